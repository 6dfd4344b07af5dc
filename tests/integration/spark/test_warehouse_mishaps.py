"""A warehouse through whatever operators, other writers and failures do to it, in the middle of traffic: it is made whole again, and says nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.java_gateway import JavaMember
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException

from cdc.crashpoint import armed
from cdc.errors import StoreError
from cdc.model.batch import Op
from cdc.model.position import Cut
from cdc.model.table import Table
from cdc.model.topic import TopicSchema
from sinks.warehouse import Warehouse
from sinks.warehouse.names import LEDGERS
from tests.contract.rows import ORDERS, PAIRS, Row, batch, order
from tests.contract.units import WarehouseUnits
from tests.integration.spark.sparkreading import rows_by_spark
from tests.integration.spark.test_warehouse import Shop, ends_a_commit
from tests.logs import cut

TABLES = (ORDERS, PAIRS)
KEYS = 12
POINTS = (
    "warehouse.before_table",
    "warehouse.files_written",
    "warehouse.vectors_written",
    "warehouse.table_committed",
    "warehouse.before_ledger",
    "warehouse.ledger_written",
)


def row_of(table: Table, key: int, text: str) -> Row:
    return order(key, text) if table is ORDERS else {"a": str(key), "b": "b", "v": text}


def keys_of(table: Table) -> pa.RecordBatch:
    rows = [row_of(table, key, "") for key in range(KEYS)]
    return pa.RecordBatch.from_pydict({one.name: pa.array([row[one.name] for row in rows], pa.utf8()) for one in table.key})


class Course:
    """A log, and a follower of it in few lines, which begins again after every error."""

    def __init__(self, spark: Any, folder: Path, chance: random.Random) -> None:
        self.shop = Shop(spark, folder)
        self.units = WarehouseUnits(folder, self.shop.name)
        self.chance = chance
        self.past: dict[tuple[str, int], list[tuple[int, Row | None]]] = {}
        self.sink: Warehouse | None = None
        self.zombies: list[Warehouse] = []
        self.copies: list[Any] = []
        self.left = 0
        """So many mishaps may happen yet in this step."""
        self.did: list[str] = []

    # -- traffic and following

    def traffic(self, step: int) -> None:
        for table in TABLES:
            at = self.shop.log.head.position + 1
            changes: list[tuple[Op, int, Row]] = []
            for number in range(self.chance.randint(0, 6)):
                op = self.chance.choice((Op.INSERT, Op.UPDATE, Op.UPDATE, Op.DELETE))
                key = self.chance.randrange(KEYS)
                row = row_of(table, key, f"{step}.{number}")
                changes.append((op, at + number, row))
                self._note(table, key, at + number, None if op == Op.DELETE else row)
            if self.chance.random() < 0.1:
                changes = [(Op.TRUNCATE, at, {})]
                for key in range(KEYS):
                    states = self.past.get((table.qualified, key), [])
                    self.past[table.qualified, key] = [*(one for one in states if one[0] < at), (at, None)]
            if changes:
                self.shop.log.put(batch(table, changes))

    def _note(self, table: Table, key: int, position: int, row: Row | None) -> None:
        self.past.setdefault((table.qualified, key), []).append((position, row))

    def follow(self, attempts: int = 8) -> None:
        for attempt in range(attempts):
            try:
                self._advance()
                return
            except StoreError as error:
                if not error.retryable and "--rebuild" in (error.hint or ""):
                    self._rebuild()
                if self.sink is not None:
                    if self.chance.random() < 0.2:
                        self.zombies.append(self.sink)
                    else:
                        self.sink.close()
                self.sink = None
                if attempt == attempts - 1:
                    raise

    def _rebuild(self) -> None:
        """As the operator is told to. Folders that were put back in the middle of a commit lack what it had written by then."""
        self.did.append("rebuild")
        sink = self.shop.sink_unopened()
        sink.erase()
        sink.close()

    def _advance(self) -> None:
        self.mishap()
        if self.sink is not None and self.sink.applied() != self.sink._applied:
            self.sink.close()
            self.sink = None
        if self.sink is None:
            options = {"compact_files": self.chance.choice((2, 3, 16)), "keep_snapshots_s": self.chance.choice((0, 600))}
            self.sink = self.shop.sink(**options)
        sink, head = self.sink, self.shop.log.head
        for table in TABLES:
            for changes in self.shop.log.reader().read(table.qualified, sink.held(table.qualified), head.position):
                sink.prepare(TopicSchema.of(table))
                sink.apply(changes)
                self.mishap()
        for upkeep in sink._tables.upkeep.values():
            if self.chance.random() < 0.5:
                upkeep._expired_at = float("-inf")
        with self.failing():
            sink.commit(head)

    # -- what is found

    def reported(self) -> Cut:
        return self.shop.sink(reads=True).applied()

    def check(self, reported: Cut, *, exactly: bool) -> None:
        reading = self.shop.sink(reads=True)
        for table in TABLES:
            names = [column.name for column in table.key]
            parts = reading.scan(TopicSchema.of(table)) if exactly else [reading.fetch(TopicSchema.of(table), keys_of(table))]
            found = [row for part in parts for row in part.to_pylist()]
            if exactly:
                by_spark = [row for part in rows_by_spark(reading, TopicSchema.of(table)) for row in part.to_pylist()]
                assert sorted(map(str, found)) == sorted(map(str, by_spark)), "an audit reads something else than Spark"
            there = {tuple(row[name] for name in names): row for row in found}
            assert len(there) == len(found), f"{table.qualified}: a key twice"
            for key in range(KEYS):
                states = self.past.get((table.qualified, key), [])
                last = max((at for at, _ in states if at <= reported.position), default=0)
                right = [row for at, row in states if at >= last] + ([None] if last == 0 else [])
                right = right[:1] if exactly else right
                mine = row_of(table, key, "")
                assert there.get(tuple(str(mine[name]) for name in names)) in right, (table.qualified, key, reported, self.did)

    # -- what happens

    def mishap(self) -> None:
        if self.left and self.chance.random() < 0.4:
            self.left -= 1
            self._one_of(self.lose, self.copy, self.copy, self.restore, self.restore, self.roll_back, self.rewrite, self.wake)

    def _one_of(self, *these: Callable[[], None]) -> None:
        happens = self.chance.choice(these)
        self.did.append(happens.__name__)
        with suppress(StoreError, PySparkException, Py4JJavaError, LookupError):  # what is asked for may not be there
            happens()

    @contextmanager
    def failing(self) -> Iterator[None]:
        """The commit inside fails somewhere, or something happens in its middle."""
        if not self.left or self.chance.random() < 0.2:
            yield
            return
        self.left -= 1
        kind = self.chance.choice(("point", "answer lost", "middle", "middle", "middle"))
        self.did.append(kind)
        if kind == "point":
            with armed(f"{self.chance.choice(POINTS)}=error:{self.chance.randint(1, 2)}"):
                yield
            return
        with pytest.MonkeyPatch.context() as patch:
            nth, done = self.chance.randint(1, 2), self.chance.random() < 0.5
            patch.setattr(JavaMember, "__call__", self._commits(kind, nth, done=done))
            yield

    def _commits(self, kind: str, nth: int, *, done: bool) -> Callable[..., Any]:
        call, met = JavaMember.__call__, []

        def commits(member: JavaMember, *given: Any) -> Any:
            ends = ends_a_commit(member, given)
            met.extend([member] if ends else [])
            if not ends or len(met) != nth:
                return call(member, *given)
            if kind == "middle":
                self._one_of(self.rewrite, self.rewrite, self.restore, self.lose, self.roll_back, self.wake)
                return call(member, *given)
            if done:
                call(member, *given)
            raise Py4JNetworkError("gone")

        return commits

    def _one(self) -> str:
        there = self.units.there()
        return self.chance.choice(there)

    def lose(self) -> None:
        self.units.lose(*(self.units.there() if self.chance.random() < 0.3 else [self._one()]))

    def copy(self) -> None:
        self.copies.append(self.units.copy())

    def restore(self) -> None:
        copy = self.chance.choice(self.copies) if self.copies else self.units.copy()
        self.units.restore(copy, *(self.units.there() if self.chance.random() < 0.3 else [self._one()]))

    def _table(self) -> str:
        return self.chance.choice([one for one in self.units.there() if LEDGERS not in one]).replace("/", ".")

    def roll_back(self) -> None:
        name = self._table()
        snapshots = self.shop.sql(f"select snapshot_id from catalog.{name}.snapshots")
        self.shop.sql(f"call catalog.system.set_current_snapshot('{name}', {self.chance.choice(snapshots).snapshot_id})")

    def rewrite(self) -> None:
        for table in TABLES:
            name = table.qualified
            self.shop.sql(f"call catalog.system.rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))")

    def wake(self) -> None:
        """A writer that was thought dead goes on."""
        if self.zombies:
            zombie = self.zombies.pop(self.chance.randrange(len(self.zombies)))
            with suppress(StoreError):
                zombie.commit(self.shop.log.head)
            zombie.close()


@pytest.mark.parametrize("number", range(2))
def test_whatever_happens_to_a_warehouse_it_is_made_whole_and_says_nothing_else(
    spark: Any, tmp_path: Path, seed: int, number: int
) -> None:
    chance = random.Random(seed + number)
    course = Course(spark, tmp_path / "warehouse", chance)
    for step in range(10):
        course.did.append(f"step {step}")
        course.traffic(step)
        course.left = chance.randint(0, 5)
        with suppress(StoreError):
            course.follow()
        with suppress(StoreError):
            reported = course.reported()
            course.check(reported, exactly=False)
    course.left = 0
    course.traffic(99)
    course.follow()
    assert course.reported() == course.shop.log.head
    course.check(course.shop.log.head, exactly=True)
    for one in course.zombies:
        one.close()
    course.units.close()


def test_a_table_that_was_put_back_since_it_was_read_is_not_said_to_lack_anything(spark: Any, tmp_path: Path) -> None:
    """The version that the writer has in mind is gone with all its files, the one that stands there is whole: opened again, the store goes on from it."""
    shop = Shop(spark, tmp_path / "warehouse")
    units = WarehouseUnits(shop.folder, shop.name)
    sink = shop.sink()
    sink.prepare(TopicSchema.of(ORDERS))
    sink.apply(batch(ORDERS, [(Op.INSERT, 1, order(1))]))
    sink.commit(cut(1))
    copy = units.copy()
    sink.apply(batch(ORDERS, [(Op.INSERT, 2, order(2))]))
    sink.commit(cut(2))
    table = sink._tables.places[ORDERS.qualified].iceberg
    units.restore(copy, *units.there())
    with pytest.raises(StoreError) as told:
        table.files()
    assert told.value.retryable
    sink.close()
    assert shop.sink().applied() == cut(1)
    units.close()
