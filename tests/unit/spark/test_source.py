"""The readers that ``format("cdc")`` gives Spark, asked as Spark asks them: pickled, and long after they were made."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from cdc.compaction.bounds import Settled, TopicPoints, bounds
from cdc.compaction.merge import compact
from cdc.errors import ConfigError, PositionGone
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.batch import Op, last_position
from cdc.model.pgtypes import NUMERIC, TEXT
from cdc.model.position import Lsn, Position
from cdc.model.table import Column, Table
from cdc.spark.source import CdcSource
from tests.contract.rows import batch, numeric, schema

TS_US = 1_700_000_000_000_000


def table(precision: int, scale: int) -> Table:
    columns = (
        Column("id", TEXT, -1, "text", key=True, attnum=1),
        Column("x", NUMERIC, numeric(precision, scale), "numeric", attnum=2),
    )
    return Table(900, "public", "t", columns)


class Log:
    def __init__(self, folder: Path, segment_bytes: int = 0) -> None:
        """``segment_bytes``: of segments that are sealed; 0: none is."""
        self.folder = folder
        self._writer = EmbeddedLogWriter(folder, seal=segment_bytes > 0, segment_bytes=segment_bytes or 2**26)
        self.close = self._writer.close

    def compact(self) -> int:
        """Drops all that can be. Returns the floor."""
        self._writer.drain_seals()
        upkeep, head = self._writer.upkeep, self._writer.head.position
        points = bounds(upkeep.ranges("public.t"), Settled(head, head), [], TopicPoints(0, 0))
        compact(upkeep, "public.t", points, self._writer.commit, at_least=0.0)
        upkeep.remove_replaced()
        return points.floor

    def put(self, *batches: Any) -> None:
        for one in batches:
            self._writer.append(one)
            last = last_position(one)
            self._writer.commit(Lsn(last * 10), TS_US + last * 1_000_000)

    def source(self, **more: str) -> CdcSource:
        return CdcSource({"log": str(self.folder), "table": "public.t", **more})


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Log]:
    made = Log(tmp_path / "log")
    made.put(batch(table(12, 2), [(Op.INSERT, 1, {"id": "1", "x": "1.10"})]))
    yield made
    made.close()


def wider(log: Log) -> None:
    log.put(schema(table(14, 4), 2), batch(table(14, 4), [(Op.INSERT, 3, {"id": "2", "x": "1.2345"})]))


def rows(reader: Any, pieces: Any) -> list[dict[str, Any]]:
    worker = pickle.loads(pickle.dumps(reader))
    return [row for piece in pieces for found in worker.read(piece) for row in found.to_pylist()]


@pytest.mark.parametrize("form", ["changes", "changefeed"])
def test_a_frame_that_was_loaded_before_the_definition_changed_says_so(log: Log, form: str) -> None:
    source = log.source(**{"as": form})
    loaded = source.schema()
    reader = source.reader(loaded)
    pieces = reader.partitions()
    assert [row["x"] for row in rows(reader, pieces)] == [Decimal("1.10")]
    wider(log)
    with pytest.raises(ConfigError, match="definition has changed since this was loaded: load it again"):
        rows(reader, reader.partitions())
    with pytest.raises(ConfigError, match="has changed"):
        source.reader(loaded)
    again = source.reader(source.schema())
    assert Decimal("1.2345") in [row["x"] for row in rows(again, again.partitions())]


def test_a_stream_ends_where_the_definition_changes_and_goes_on_when_it_is_started_again(log: Log) -> None:
    source = log.source(fresh="true", waitSeconds="0.01")
    loaded = source.schema()
    reader = source.streamReader(loaded)
    first = reader.latestOffset()
    assert [row["x"] for row in rows(reader, reader.partitions(reader.initialOffset(), first))] == [Decimal("1.10")]
    wider(log)
    second = reader.latestOffset()
    with pytest.raises(ConfigError, match="start the stream again"):
        rows(reader, reader.partitions(first, second))
    with pytest.raises(ConfigError, match="has changed"):
        source.streamReader(loaded)
    again = source.streamReader(source.schema())
    assert [row["x"] for row in rows(again, again.partitions(first, second))] == [None, Decimal("1.2345")]


def test_a_stream_that_began_after_deletes_went_passes_the_floor_and_an_older_one_is_refused(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", segment_bytes=4096)
    few = table(12, 2)
    for at in range(1, 41):
        log.put(batch(few, [(Op.INSERT if at <= 20 else Op.DELETE, at, {"id": str((at - 1) % 20), "x": None})]))
    log.put(*(batch(few, [(Op.INSERT, at, {"id": f"later {at}", "x": None})]) for at in range(41, 121)))
    source = log.source(fresh="true", maxRows="1", waitSeconds="0.01")
    older = source.streamReader(source.schema())
    begun = older.initialOffset()
    first = older.latestOffset()
    assert len(rows(older, older.partitions(begun, first))) == 1
    floor = log.compact()
    assert floor > 41
    second = older.latestOffset()
    with pytest.raises(PositionGone, match="DELETEs before"):
        older.partitions(first, second)
    fresh = source.streamReader(source.schema())
    found, start = [], fresh.initialOffset()
    while start["position"] < 120:
        end = fresh.latestOffset()
        found += [row["id"] for row in rows(fresh, fresh.partitions(start, end))]
        fresh, start = source.streamReader(source.schema()), end
        fresh._given_out = Position(end["position"])  # as a checkpoint tells it
    assert found == [f"later {at}" for at in range(41, 121)]
    reader = log.source(startPosition="3").reader(source.schema())
    with pytest.raises(PositionGone):
        reader.partitions()
    known = log.source(startPosition="3", history=str(start["history"])).reader(source.schema())
    assert len(rows(known, known.partitions())) == 80
    whole = log.source(sliceBytes="1").reader(source.schema())
    assert len(whole.partitions()) > 2
    assert len(rows(whole, whole.partitions())) == 80
    log.close()


def test_a_change_of_columns_that_are_not_asked_for_disturbs_nobody(log: Log) -> None:
    source = log.source(columns="id,_cdc_op")
    reader = source.reader(source.schema())
    wider(log)
    assert rows(reader, reader.partitions()) == [
        {"id": "1", "_cdc_op": "c"},
        {"id": None, "_cdc_op": "s"},
        {"id": "2", "_cdc_op": "c"},
    ]


def test_names_that_are_swapped_while_a_reader_is_at_work_stay_with_their_values(log: Log) -> None:
    old = replace(
        table(12, 2), columns=tuple(Column(name, TEXT, -1, "text", key=name == "a", attnum=n) for n, name in enumerate("abc", 1))
    )
    a, b, c = old.columns
    new = replace(old, columns=(a, replace(b, name="c"), replace(c, name="b")))
    log.put(schema(old, 2), batch(old, [(Op.INSERT, 3, {"a": "1", "b": "x", "c": "y"})]))
    source = log.source(startPosition="2", columns="a,b,c")
    reader = source.reader(source.schema())
    log.put(schema(new, 4), batch(new, [(Op.INSERT, 5, {"a": "2", "c": "x", "b": "y"})]))
    found = [(row["a"], row["b"], row["c"]) for row in rows(reader, reader.partitions())]
    assert found == [("1", "x", "y"), (None, None, None), ("2", "x", "y")]


def test_a_time_stands_for_the_same_position_in_every_task(log: Log) -> None:
    source = log.source(asOf="2030-01-01T00:00:00Z")
    reader = source.reader(source.schema())
    wider(log)
    assert [row["x"] for row in rows(reader, reader.partitions())] == [Decimal("1.10")]


@pytest.mark.parametrize("form", ["changes", "changefeed", "rows"])
@pytest.mark.parametrize("ending", ["read", "left", "changed"])
def test_a_worker_closes_the_log_that_it_read(log: Log, monkeypatch: pytest.MonkeyPatch, form: str, ending: str) -> None:
    """Spark's workers are used again and again, and each log that stays open keeps its files."""
    at = {"asOf": "1"} if form == "rows" else {}
    reader = (source := log.source(**{"as": form, **at})).reader(source.schema())
    pieces = reader.partitions()
    opened, closed = [], []

    class Counted(EmbeddedLogReader):
        def __init__(self, dir: Path) -> None:
            opened.append(self)
            super().__init__(dir)

        def close(self) -> None:
            closed.append(self)
            super().close()

    monkeypatch.setattr("cdc.spark.options.open_reader", Counted)
    found = reader.read(pieces[0])
    if ending == "changed":
        wider(log)
        if form != "rows":
            with pytest.raises(ConfigError, match="has changed"):
                next(found)
            assert closed == opened
            return
    assert len(next(found)) == 1
    assert len(opened) == 1
    if ending == "left":
        found.close()  # type: ignore[attr-defined]
    else:
        assert list(found) == []
    assert closed == opened
