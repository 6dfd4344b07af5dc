"""Random histories of what compaction and retention hand over; what the log then answers is held against a plain account of it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from cdc.errors import PositionGone
from cdc.log.contract import Slice, present_history
from cdc.log.embedded.groupfiles import GroupFiles
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.model.position import Lsn, Position
from cdc.model.topic import TopicSchema
from cdc.replay.state import definition_at
from tests.unit.log.changes import ORDERS, ORDERS_WIDER, USERS, changes, positions_in
from tests.unit.log.test_upkeep import TOPIC, opened, remove_superseded, runs, write


class History:
    """A log, and what of its orders it still has."""

    def __init__(self, root: Path, chance: random.Random) -> None:
        self.root = root
        self.writer = opened(root)
        self.cuts = [0]
        self.kept: set[int] = set()
        self.retired = [0, 0, 0]
        """Kept from, floor, clean from."""
        self._chance = chance
        self._wide_from = 2**40
        self._lsn = 0

    def grow(self, *, wider: bool = False) -> None:
        """One more cut."""
        start = self.writer.next_position
        if wider:
            self._wide_from = start
        positions = range(start, start + self._chance.choice((1, 2, 9, 25)))
        orders = [position for position in positions if self._chance.random() < 0.7]
        for batch in self._batches(orders):
            self.writer.append(batch)
        self.writer.append(changes(USERS, [position for position in positions if position not in orders]))
        self.commit()
        self.kept |= set(orders)

    def commit(self) -> None:
        self._lsn += 1
        self.cuts.append(self.writer.commit(Lsn(self._lsn), 0).position)

    def replace(self) -> None:
        """Some of the closed segments, by some of their changes."""
        self.writer.drain_seals()
        closed = runs(self.root)[:-1]
        if not closed:
            return
        low = self._chance.randrange(len(closed))
        first, last = closed[low][0], closed[self._chance.randrange(low, len(closed))][1]
        share = self._chance.choice((0, 0.1, 0.5, 1))
        stay = [position for position in sorted(self.kept) if first <= position <= last and self._chance.random() < share]
        names, size = write(self.root, first, self._batches(stay), self.writer.upkeep.next_generation(TOPIC))
        self.writer.upkeep.replace(TOPIC, first, last, names, size)
        self.commit()
        self.kept = {position for position in self.kept if not first <= position <= last} | set(stay)
        remove_superseded(self.root)

    def retire(self, *, keeps: bool) -> None:
        """``keeps``: only DELETEs may be gone, no change is for its position alone."""
        self.writer.drain_seals()
        newest = runs(self.root)[-1][0]
        now = sorted(self._chance.randint(0, newest) for _ in range(3))
        now = [max(numbers) for numbers in zip(self.retired, [0, *now[1:]] if keeps else now, strict=True)]
        kept_from, floor, clean_from = self.retired = now
        self.writer.upkeep.retire(TOPIC, kept_from=kept_from, floor=floor, clean_from=clean_from)
        self.commit()
        first = runs(self.root)[0][0]
        self.kept = {position for position in self.kept if position >= first}
        remove_superseded(self.root)

    def reopen(self) -> None:
        self.writer.close()
        self.writer = opened(self.root)

    def last(self, upto: int) -> int:
        return max((position for position in self.kept if position <= upto), default=0)

    def last_or_dropped(self, upto: int) -> int:
        """The same; or the place of the last DELETE that may have been dropped."""
        dropped = self.retired[1] - 1
        return max(self.last(upto), dropped if dropped <= upto else 0)

    def definition(self, upto: int) -> TopicSchema | None:
        last = self.last(upto)
        return TopicSchema.of(ORDERS if last < self._wide_from else ORDERS_WIDER) if last else None

    def _batches(self, positions: Sequence[int]) -> list[pa.RecordBatch]:
        narrow = [position for position in positions if position < self._wide_from]
        wide = [position for position in positions if position >= self._wide_from]
        return [changes(table, some) for table, some in ((ORDERS, narrow), (ORDERS_WIDER, wide)) if some]


@pytest.fixture
def history(quick_folder: Path, seed: int) -> Iterator[History]:
    print(f"seed {seed}")
    found = History(quick_folder / "log", random.Random(seed))
    yield found
    found.writer.close()


def lived(history: History) -> Iterator[int]:
    """The number of each step, once the history has taken it."""
    for number in range(40):
        history.grow(wider=number == 20)
        if number % 4 == 3:
            history.replace()
        yield number


def standing(history: History) -> Iterator[EmbeddedLogReader]:
    """A new reader now, after the timeline has begun another file, and after the writer was opened again."""
    for then in (None, history.grow, history.reopen):
        if then is not None:
            then()
        with closing(EmbeddedLogReader(history.root)) as reader:
            yield reader


@pytest.mark.parametrize("rolls", [False, True])
def test_the_last_change_is_one_that_the_log_still_has(history: History, rolls: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupFiles, "full", rolls)
    following = EmbeddedLogReader(history.root)
    for number in lived(history):
        upto = history.cuts[number]
        following.head()
        assert following.last_change(TOPIC, Position(upto)) == history.last(upto)
    monkeypatch.setattr(GroupFiles, "full", True)
    for reader in (following, *standing(history)):
        for upto in history.cuts:
            assert reader.last_change(TOPIC, Position(upto)) == history.last(upto), upto
            found = definition_at(reader, TOPIC, Position(upto))
            assert found == history.definition(upto), upto
    following.close()


def read_or_gone(reader: EmbeddedLogReader, after: int, upto: int, history: str | None = None) -> list[int] | None:
    """The positions there; None where they can no longer be read."""
    try:
        return positions_in(reader.read(TOPIC, Position(after), Position(upto), history))
    except PositionGone:
        return None


def slices_or_gone(reader: EmbeddedLogReader, after: int, upto: int, target_bytes: int) -> Sequence[Slice] | None:
    try:
        return reader.slices([TOPIC], Position(after), Position(upto), target_bytes)
    except PositionGone:
        return None


def compare_slices(reader: EmbeddedLogReader, chance: random.Random, most: int) -> None:
    after, upto = sorted((chance.choice((0, 0, chance.randint(0, most))), chance.choice((most, chance.randint(0, most)))))
    wanted = read_or_gone(reader, after, upto)
    pieces = slices_or_gone(reader, after, upto, chance.choice((1, 1, 3000, 2**40)))
    known = None if after else present_history(reader)
    assert (pieces is None) == (wanted is None), (after, upto)
    found: list[int] = []
    edge = after
    for piece in pieces or ():
        assert edge <= piece.after < piece.upto <= upto
        edge = piece.upto
        positions = read_or_gone(reader, piece.after, piece.upto, known)
        assert positions is not None, (after, upto, piece)
        assert len(positions) <= piece.rows
        found += positions
    assert found == (wanted or [])


@pytest.mark.parametrize("keeps", [True, False], ids=["a floor only", "kept from"])
@pytest.mark.parametrize("rolls", [False, True])
def test_slices_can_be_read_exactly_where_their_whole_can(
    history: History, keeps: bool, rolls: bool, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed + 1)
    monkeypatch.setattr(GroupFiles, "full", rolls)
    following = EmbeddedLogReader(history.root)
    for number in lived(history):
        if number > 20 and number % 5 == 0:
            history.retire(keeps=keeps)
        following.head()
        for _ in range(5):
            compare_slices(following, chance, history.cuts[-1] + 2)
    monkeypatch.setattr(GroupFiles, "full", True)
    for reader in (following, *standing(history)):
        for _ in range(50):
            compare_slices(reader, chance, history.cuts[-1] + 2)
        for upto in history.cuts:
            assert reader.last_change(TOPIC, Position(upto)) == history.last_or_dropped(upto), upto
            if keeps:
                assert definition_at(reader, TOPIC, Position(upto)) == history.definition(upto), upto
    following.close()
