"""What a follower does at a schema change: apply it, wait before it, or go on in the former shape; and what contracts add to that."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest

from cdc.errors import StopState
from cdc.follow.follower import Follower
from cdc.follow.survey import survey
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.log.memory import MemoryLog
from cdc.model.batch import Op
from cdc.model.evolution import Kind
from cdc.model.pgtypes import INT8, TEXT
from cdc.model.position import Lsn
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from cdc.settings.models import Contract
from cdc.state import stops
from sinks.memory import STORES, Options
from tests.contract.rows import Row, batch, schema, upserts

OLD = Table(7, "public", "t", (Column("id", INT8, key=True, attnum=1), Column("a", TEXT, attnum=2), Column("b", TEXT, attnum=3)))
NEW = dataclasses.replace(OLD, columns=(OLD.columns[0], Column("b", TEXT, attnum=2), Column("c", INT8, attnum=4)))
"""``a`` has become ``b``, the old ``b`` is gone, ``c`` has come."""
OTHER = Table(8, "public", "other", (Column("id", INT8, key=True, attnum=1),))


class Pipe:
    """A log in memory, and followers on it that come and go."""

    def __init__(self, folder: Path) -> None:
        self.log = MemoryLog()
        self.folder = folder
        self.name = folder.name.lower().replace("_", "-")
        self._writer = self.log.writer()
        self._lsn = 0

    def commit(self, *batches: pa.RecordBatch) -> None:
        self._lsn += 1
        for written in batches:
            self._writer.append(written)
        self._writer.commit(Lsn(self._lsn), self._lsn)

    def follow(self, contracts: dict[str, Contract] | None = None, **options: object) -> Follower:
        """A new process: follows as far as it gets."""
        stop = threading.Event()
        chosen = Options.model_validate({"kind": "memory", **options})
        follower = Follower(self.name, chosen, self.folder, self.log.reader(), self.folder, stop, contracts)
        follower.follow_to(self.log.reader().head())
        follower.close()
        return follower

    def rows(self, table: str = "public.t") -> Sequence[Row]:
        held = STORES[self.name].rows.get(table, {})
        return [row for _, row in held.values() if row is not None]

    def held(self) -> list[stops.Stop]:
        return stops.held(self.folder)


@pytest.fixture
def pipe(tmp_path: Path) -> Pipe:
    return Pipe(tmp_path)


def scenario(pipe: Pipe) -> None:
    """Two rows, then in one transaction a row, the change, and a row under the new definition; a row of another table with it."""
    pipe.commit(upserts(OLD, 1, [{"id": "1", "a": "x", "b": "y"}, {"id": "2", "a": "x", "b": "y"}]))
    pipe.commit(upserts(OLD, 3, [{"id": "3", "a": "x", "b": "y"}]))
    pipe.commit(
        upserts(OLD, 4, [{"id": "4", "a": "x", "b": "y"}]),
        upserts(OTHER, 5, [{"id": "1"}]),
        schema(NEW, 6),
        upserts(NEW, 7, [{"id": "5", "b": "z", "c": "9"}]),
    )


def test_apply(pipe: Pipe) -> None:
    scenario(pipe)
    assert pipe.follow().applied.position == 7
    assert list(pipe.rows()) == [
        *({"id": str(key), "b": "x", "c": None} for key in (1, 2, 3, 4)),
        {"id": "5", "b": "z", "c": "9"},
    ]


def test_pause_waits_with_everything_before_the_transaction_and_applies_it_once_resumed(pipe: Pipe) -> None:
    scenario(pipe)
    for _ in range(
        2
    ):  # it survives a restart that nobody resumed: the daemon does not start it, and if it did, it would stop again
        follower = pipe.follow(schema="pause")
        assert (follower.applied.position, follower.stopped) == (3, True)
        assert [row["id"] for row in pipe.rows()] == ["1", "2", "3"]
        assert pipe.rows("public.other") == []
        [stop] = pipe.held()
        assert (stop.state, stop.part) == (StopState.SCHEMA_PAUSED, f"follow-{pipe.name}")
        assert "drops b" in stop.message
        assert "renames a to b" in stop.message
        assert stop.hint == f"cdc resume SCHEMA_PAUSED:follow-{pipe.name} applies the change"
        (pipe.folder / "schema" / f"{pipe.name}.json").unlink()
    assert pipe.follow(schema="pause").stopped
    stops.clear(pipe.folder, "SCHEMA_PAUSED")
    assert pipe.follow(schema="pause").applied.position == 7
    assert pipe.rows()[0] == {"id": "1", "b": "x", "c": None}
    # The next change waits again, and a change of nothing does not.
    pipe.commit(schema(dataclasses.replace(NEW, identity="i"), 8), upserts(NEW, 9, [{"id": "6", "b": "z", "c": None}]))
    assert pipe.follow(schema="pause").applied.position == 9
    pipe.commit(schema(OLD, 10))
    assert pipe.follow(schema="pause").stopped


def test_pause_of_one_table_only(pipe: Pipe) -> None:
    scenario(pipe)
    assert pipe.follow(schema="pause", schema_for={"public.t": "apply"}).applied.position == 7


def test_ignore_goes_on_in_the_former_shape(pipe: Pipe) -> None:
    scenario(pipe)
    expected = [
        *({"id": str(key), "a": "x", "b": "y"} for key in (1, 2, 3, 4)),
        {"id": "5", "a": "z", "b": None},
    ]
    assert pipe.follow(schema="ignore").applied.position == 7
    assert list(pipe.rows()) == expected
    pipe.commit(batch(NEW, [(Op.UPDATE, 8, {"id": "1", "b": "w", "c": "1"}), (Op.DELETE, 9, {"id": "2"})]))
    pipe.follow(schema="ignore")
    assert list(pipe.rows()) == [{"id": "1", "a": "w", "b": None}, *expected[2:]]
    del STORES[pipe.name]  # rebuilt from the log
    pipe.follow(schema="ignore")
    assert sorted(map(str, pipe.rows())) == sorted(map(str, [{"id": "1", "a": "w", "b": None}, *expected[2:]]))


def test_ignore_keeps_its_shape_when_rows_are_read_again(pipe: Pipe) -> None:
    scenario(pipe)
    pipe.commit(schema(NEW, 8, Kind.REWRITTEN, empties=True), upserts(NEW, 9, [{"id": "5", "b": "new", "c": "9"}]))
    pipe.follow(schema="ignore")
    assert list(pipe.rows()) == [{"id": "5", "a": "new", "b": None}]


def test_ignore_takes_a_new_table_as_it_is(pipe: Pipe) -> None:
    scenario(pipe)
    another = dataclasses.replace(NEW, oid=99)
    pipe.commit(schema(another, 8, Kind.CREATED, empties=True), upserts(another, 9, [{"id": "5", "b": "new", "c": "9"}]))
    pipe.follow(schema="ignore")
    assert list(pipe.rows()) == [{"id": "5", "b": "new", "c": "9"}]


def test_ignore_waits_when_the_key_changes(pipe: Pipe) -> None:
    pipe.commit(upserts(OLD, 1, [{"id": "1", "a": "x", "b": "y"}]))
    rekeyed = dataclasses.replace(OLD, columns=tuple(dataclasses.replace(c, key=c.name == "a") for c in OLD.columns))
    pipe.commit(schema(rekeyed, 2), upserts(rekeyed, 3, [{"id": "1", "a": "z", "b": "y"}]))
    assert pipe.follow(schema="ignore").stopped
    stops.clear(pipe.folder, "SCHEMA_PAUSED")
    assert pipe.follow(schema="ignore").applied.position == 3
    assert len(pipe.rows()) == 2


@pytest.mark.parametrize("policy", ["apply", "ignore", "pause"])
def test_a_contract_stops_the_store_before_its_column_goes(pipe: Pipe, policy: str) -> None:
    scenario(pipe)
    contracts = {"public.t": Contract(require=("id", "a"))}
    follower = pipe.follow(contracts, schema=policy)
    assert follower.applied.position == 3
    [stop] = pipe.held()
    assert stop.state is StopState.CONTRACT_BROKEN
    assert "requires a" in stop.message
    stops.clear(pipe.folder, stop.name)
    assert pipe.follow(contracts, schema=policy).applied.position == 7


def test_a_contract_that_holds_stops_nothing(pipe: Pipe) -> None:
    scenario(pipe)
    assert pipe.follow({"public.t": Contract(require=("id", "b"))}).applied.position == 7


def test_the_change_is_the_first_thing_that_a_store_meets(pipe: Pipe) -> None:
    pipe.commit(schema(NEW, 1, Kind.CREATED), upserts(NEW, 2, [{"id": "5", "b": "z", "c": "9"}]))
    assert pipe.follow({"public.t": Contract(require=("a",))}, schema="pause").applied.position == 2


@pytest.mark.parametrize("made", [lambda _: MemoryLog(), lambda _: None], ids=["memory", "embedded"])
@pytest.mark.parametrize(("kept_bytes", "brought"), [(2**30, [1, 2, 6, 7]), (0, [1, 2, 3, 4, 5, 6, 7])])
def test_what_a_topic_loses_anyway_is_skipped_but_not_before_a_definition(
    tmp_path: Path, made: Callable[[Path], MemoryLog | None], kept_bytes: int, brought: list[int]
) -> None:
    """A store that has the definition of position 2 has everything before it, too: its follower may end right there."""
    memory = made(tmp_path)
    writer = memory.writer() if memory else EmbeddedLogWriter(tmp_path)
    for written in (
        upserts(OLD, 1, [{"id": "1", "a": "x", "b": "y"}]),
        schema(NEW, 2),
        upserts(NEW, 3, [{"id": "1", "b": "x", "c": "1"}]),
        batch(NEW, [(Op.TRUNCATE, 4, {})]),
        upserts(NEW, 5, [{"id": "2", "b": "x", "c": "1"}]),
        batch(NEW, [(Op.TRUNCATE, 6, {})]),
        upserts(NEW, 7, [{"id": "3", "b": "x", "c": "1"}]),
    ):
        writer.append(written)
    writer.commit(Lsn(1), 1)
    reader = memory.reader() if memory else EmbeddedLogReader(tmp_path)
    seen = survey(reader, {"public.t": 0}, 7, kept_bytes=kept_bytes)  # type: ignore[arg-type]
    [found] = seen.topics
    assert [b.column(0).to_pylist() for b in found.batches(reader)] == [[position] for position in brought]
    assert found.emptied_at == 6
    assert seen.barriers
    assert list(found.schemas) == [TopicSchema.of(NEW)]
    assert found.first == TopicSchema.of(OLD)
    reader.close()
    writer.close()
