"""Upkeep by others, without a pause, beside a warehouse that is written without a pause: merges, expiry, and the removal of files that no commit has named.

No commit fails for it, no row is lost, a snapshot that somebody reads stays whole, and no file goes that a commit in the making needs.
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cdc.crashpoint import decided_by
from cdc.errors import StoreError
from cdc.model.batch import Op
from cdc.model.topic import TopicSchema
from sinks.sparksession import use_session
from sinks.warehouse import Options, Warehouse, leftovers, upkeep
from sinks.warehouse.tablescan import live_rows
from tests.contract.rows import ORDERS, batch, order
from tests.integration.spark.traffic import held
from tests.lakes import Lake
from tests.logs import LooseLog, cut

TOPIC = TopicSchema.of(ORDERS)


@dataclass
class Yard:
    """One warehouse with a writer, and any number of others that look after it."""

    options: dict[str, Any]
    name: str = field(default_factory=lambda: f"wh{uuid.uuid4().hex[:8]}")
    log: LooseLog = field(default_factory=LooseLog)
    model: dict[int, str] = field(default_factory=dict)
    truth: dict[int, dict[int, str]] = field(default_factory=dict)
    """The rows as of each cut's position."""
    versions: int = 0
    position: int = 0
    errors: list[BaseException] = field(default_factory=list)
    kept_up: int = 0
    read: int = 0
    done: threading.Event = field(default_factory=threading.Event)

    def warehouse(self) -> Warehouse:
        return Warehouse(
            self.name, Options.model_validate({"kind": "iceberg", "compact_files": 2, "keep_snapshots_s": 0, **self.options})
        )

    def write(self, sink: Warehouse, chance: random.Random) -> None:
        """One cut."""
        changes: list[Any] = []
        for _ in range(chance.randrange(1, 20)):
            self.position += 1
            key, gone = chance.randrange(40), chance.random() < 0.25
            changes.append((Op.DELETE if gone else Op.UPDATE, self.position, order(key, f"v{self.position}")))
            self.versions += not gone
            if gone:
                self.model.pop(key, None)
            else:
                self.model[key] = f"v{self.position}"
        self.truth[self.position] = dict(self.model)
        self.log.put(batch(ORDERS, changes))
        sink.apply(batch(ORDERS, changes))
        sink.commit(cut(self.position))

    def keep_up(self, epoch: int) -> None:
        """As the writer's own upkeep after a commit, by somebody else, whenever he likes."""
        while not self.done.is_set():
            sink = self.warehouse()
            try:
                sink.open(self.log.reader())
                sink._scratch.folder()
                sink._epoch = epoch
                tables = sink._opened()[2]
                tables._writing = True
                tables.places.clear()
                tables.histories.clear()
                tables.load([TOPIC])
                for one in tables.upkeep.values():
                    one._expired_at = float("-inf")
                    one._leftovers._looked_at = float("-inf")
                    with suppress(StoreError):  # the table moved on, which an upkeep of its own would find at the next commit
                        one.after_commit(sink._signed(cut(0)))
                        self.kept_up += 1
            except StoreError:
                pass
            finally:
                sink.close()
            time.sleep(0.2)

    def audit(self) -> None:
        """Reads slowly, at one snapshot, which stays whole meanwhile, and is what was true then."""
        while not self.done.is_set():
            sink = self.warehouse()
            try:
                sink.open(self.log.reader())
                tables = sink._opened()[2]
                place = tables.newest(TOPIC)
                assert place is not None
                with sink._scratch.pinned(place.iceberg.snapshot):
                    again = tables.newest(TOPIC)
                    if again is None or again.iceberg.snapshot != place.iceberg.snapshot:
                        continue  # it was an old one already when it was pinned
                    found = {}
                    for part in live_rows(place, TOPIC):
                        time.sleep(0.3)
                        found |= {int(row["id"]): row["status"] for row in part.to_pylist()}
                    assert found == self.truth[place.position]
                self.read += 1
            finally:
                sink.close()

    @contextmanager
    def beside(self, *works: Callable[[], None]) -> Iterator[None]:
        def run(work: Callable[[], None]) -> None:
            try:
                work()
            except BaseException as error:
                self.errors.append(error)

        threads = [threading.Thread(target=run, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self.done.set()
            for thread in threads:
                thread.join()


SHORT_S, LONG_S, LEAST_CUTS = 2.0, 30.0, 5


@pytest.mark.parametrize(
    ("kind", "seconds"),
    [
        pytest.param("hadoop", SHORT_S, marks=pytest.mark.slow),
        pytest.param("hadoop", LONG_S, marks=pytest.mark.slow),
        pytest.param("sql", LONG_S, marks=pytest.mark.slow),
        pytest.param("rest", LONG_S, marks=pytest.mark.slow),
    ],
)
def test_upkeep_without_a_pause_costs_no_cut_and_no_row(
    request: pytest.FixtureRequest,
    spark: Any,
    tmp_path: Path,
    kind: str,
    seconds: float,
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_session(lambda: spark)
    monkeypatch.setattr(leftovers, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(leftovers, "GONE_FOR_S", 0.0)
    monkeypatch.setattr(upkeep, "_EXPIRE_EVERY_S", 0.0)
    lake: Lake | None = None if kind == "hadoop" else request.getfixturevalue("lake_of")(kind)
    yard = Yard(
        {"path": tmp_path / "yard", "tables": {"public.orders": {"history": True}}} | ({} if lake is None else lake.options)
    )
    chance, sink = random.Random(seed), yard.warehouse()
    sink.open(yard.log.reader(), 1)
    yard.write(sink, chance)
    cuts, until = 0, time.monotonic() + seconds
    with yard.beside(lambda: yard.keep_up(1), yard.audit):
        while time.monotonic() < until or cuts < LEAST_CUTS or not yard.kept_up or not yard.read:
            yard.write(sink, chance)  # raises where the cut fails
            cuts += 1
            assert time.monotonic() < until + 300, "nobody else got anywhere"
    assert yard.errors == []
    print(f"{kind}: {cuts} cuts, kept up {yard.kept_up} times, read {yard.read} times")
    assert sink.applied() == cut(yard.position)
    assert {int(row["id"]): row["status"] for row in held(sink, ORDERS)} == yard.model
    histories = sink._opened()[2].histories[ORDERS.qualified]
    assert sum(live.file.rows - len(histories.gone(live)) for live in histories.live().values()) == yard.versions
    assert sink._scratch.pins() == set()


class Meanwhile:
    """Does something whenever a point is reached."""

    def __init__(self, points: tuple[str, ...], work: Callable[[], None]) -> None:
        self._points, self._work, self.times = points, work, 0

    def reach(self, name: str) -> None:
        if name in self._points:
            self.times += 1
            self._work()


def test_files_of_a_commit_in_the_making_stay_and_those_of_a_dead_writer_go(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_session(lambda: spark)
    monkeypatch.setattr(leftovers, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(leftovers, "GONE_FOR_S", 0.0)
    yard = Yard({"path": tmp_path / "yard"})
    chance, sink = random.Random(1), yard.warehouse()
    sink.open(yard.log.reader(), 1)
    yard.write(sink, chance)
    folder = tmp_path / "yard/public/orders/data"
    dead = folder / f"{uuid.uuid4().hex}-{uuid.uuid4().hex}.parquet"
    dead.touch()

    def removed() -> None:
        other = yard.warehouse()
        other.open(yard.log.reader())
        for one in other._opened()[2].upkeep.values():
            for _ in range(2):
                one._leftovers._looked_at = float("-inf")
                one._leftovers.remove(1)
        other.close()

    points = Meanwhile(("warehouse.files_written", "warehouse.vectors_written"), removed)
    with decided_by(points):
        yard.write(sink, chance)
    assert points.times >= 1
    assert not dead.exists()
    assert {int(row["id"]): row["status"] for row in held(sink, ORDERS)} == yard.model
