"""The log's past of a view's topic that gets other keys and types over and over, compacted now and then: as of each moment, between two, and as files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pyarrow.parquet as pq
import pytest

from cdc.compaction.bounds import Settled, TopicPoints, bounds
from cdc.compaction.merge import compact
from cdc.errors import PositionGone
from cdc.model.batch import EXACT, OP, Op
from cdc.model.position import START, Position
from cdc.replay.export import write
from cdc.replay.netchange import net_changes
from cdc.replay.query import LogQuery
from cdc.replay.state import definition_at, rows_as_of
from tests.unit.derive.bed import ORDERS, OTHER, RETYPED, VIEW, Bed
from tests.unit.derive.kernels import Row, WholeView
from tests.unit.derive.test_generations import REKEYED, SMALL, TEXTS, bed

__all__ = ["bed"]

TOPIC = "views.joined"
Key = tuple[str, ...]


@dataclass(frozen=True)
class Moment:
    """What the view was. ``rows``: by their keys as texts."""

    position: Position
    view: WholeView
    rows: Mapping[Key, Row]

    def by(self, other: WholeView) -> dict[Key, Row]:
        """Its rows by the key of another definition."""
        return {_key(row, other): row for row in self.rows.values()}


def _key(row: Row, view: WholeView) -> Key:
    return tuple(str(row[name]) for name in view.key)


def _own(row: dict[str, Any]) -> Row:
    return {name: value for name, value in row.items() if not name.startswith("_")}


def _texts(row: Row) -> dict[str, str | None]:
    return {name: None if value is None else str(value) for name, value in row.items()}


class Past:
    def __init__(self, bed: Bed, folder: Path) -> None:
        self._bed, self._folder = bed, folder
        self.moments: list[Moment] = []
        self._clean = 0

    def goes_on(self, view: WholeView, dice: Random) -> None:
        with self._bed.runner(view, limits=SMALL) as runner:
            runner.begin()
            for _ in range(dice.randrange(1, 4)):
                self._bed.traffic(dice)
                self._bed.keep_up(runner)
                rows = {_key(row, view): row for row in self._bed.expected(view).values()}
                self.moments.append(Moment(self._bed.reader.head().position, view, rows))

    def compact(self, view: WholeView, dice: Random) -> None:
        bed, upkeep, end = self._bed, self._bed.writer.upkeep, self._bed.writer.head.position
        upkeep.close_newest(TOPIC, end)
        bed.writer.commit()
        bed.commit((ORDERS, Op.INSERT, [{"id": 2_000 + end, "customer": 1, "note": "in another segment"}]))
        self.goes_on(view, dice)
        bed.writer.drain_seals()
        points = bounds(upkeep.ranges(TOPIC), Settled(end, end), (), TopicPoints(0, 0))
        if points.clean_from:
            compact(upkeep, TOPIC, points, bed._record, at_least=0.0)
            self._clean = max(self._clean, points.clean_from)

    def as_of(self, moment: Moment) -> None:
        found = self._kept(
            moment, lambda: [_own(row) for one in rows_as_of(self._bed.reader, TOPIC, moment.position) for row in one.to_pylist()]
        )
        if found is None:
            return
        assert {_key(row, moment.view): row for row in found} == moment.rows
        assert len(found) == len(moment.rows)
        shape = definition_at(self._bed.reader, TOPIC, moment.position)
        if shape is None:
            assert not found, "a compacted log no longer has the changes of rows that were gone by then"
            return
        path = self._folder / f"{moment.position}-{len(list(self._folder.iterdir()))}.parquet"
        query = LogQuery(START, moment.position, state=True)
        assert write(path, "parquet", shape, query.of(self._bed.reader, TOPIC)) == len(found)
        assert {_key(row, moment.view): _own(row) for row in pq.read_table(path).to_pylist()} == moment.rows

    def between(self, before: Moment, after: Moment) -> None:
        found = self._kept(
            before,
            lambda: [
                row
                for one in net_changes(self._bed.reader, TOPIC, before.position, after.position)
                for row in one.changes.to_pylist()
            ],
        )
        if found is None:
            return
        # A key of another type stands as text beside the row.
        deleted = {_key(row | dict(row[EXACT] or ()), after.view) for row in found if row[OP] == Op.DELETE}
        written = {_key(row, after.view): _own(row) for row in found if row[OP] != Op.DELETE}
        had = before.by(after.view)
        assert written.items() <= after.rows.items()
        for key in after.rows.keys() - written.keys():
            assert key in had, "a row that came is a change"
        if before.view.key == after.view.key:
            assert deleted == had.keys() - after.rows.keys()
            for key in after.rows.keys() - written.keys():
                assert _texts(had[key]) == _texts(after.rows[key])

    def _kept(self, moment: Moment, ask: Any) -> list[dict[str, Any]] | None:
        """None where the log no longer shows it."""
        try:
            return list(ask())
        except PositionGone:
            assert moment.position < self._clean
            return None


@pytest.mark.parametrize("rows", [200_000, 3], ids=["at once", "in several cuts"])
def test_each_moment_is_what_it_was(bed: Bed, seed: int, rows: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("cdc.derive.pieces.MAX_ROWS", rows)
    (tmp_path / "files").mkdir()
    dice, past, view = Random(seed), Past(bed, tmp_path / "files"), VIEW
    for _ in range(10):
        view = dice.choice((view, VIEW, OTHER, REKEYED, TEXTS, RETYPED))
        past.goes_on(view, dice)
        if dice.random() < 0.3:
            past.compact(view, dice)
        for moment in dice.sample(past.moments, min(3, len(past.moments))):
            past.as_of(moment)
        if len(past.moments) > 1:
            past.between(*sorted(dice.sample(past.moments, 2), key=lambda one: one.position))
