"""A question to the log: which topics, between which places, which changes; and the answer as a stream of batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.errors import ConfigError
from cdc.log.contract import LogReader, Topic
from cdc.model.position import START, Position
from cdc.replay.former import WithFormer, with_former, with_sent
from cdc.replay.match import KeyMatch, TextMatch, chosen
from cdc.replay.place import LogPlace, before, upto
from cdc.replay.state import rows_as_of

RENDERED_ROWS: Final = 8192
RENDERED_BYTES: Final = 4 * 2**20


@dataclass(frozen=True, slots=True)
class LogQuery:
    """``state``: the rows as of ``upto`` in place of changes. ``sent``: each change with the row that it replaced, if the source sent that. ``former``:
    … and else looked up. ``history``: as ``LogReader.read`` takes it; who only looks at what is left names the present one."""

    after: Position
    upto: Position
    state: bool = False
    sent: bool = False
    former: bool = False
    match: KeyMatch | TextMatch | None = None
    history: str | None = None

    def of(self, log: LogReader, topic: str) -> Iterator[WithFormer]:
        """The topic's answer, in position order; no batch of it is empty. Raises PositionGone."""
        for replaced in self._all(log, topic):
            if self.match is None:
                yield replaced
                continue
            mask = self.match.rows(replaced.changes)
            if pc.any(mask).as_py():
                yield chosen(replaced, mask)

    def _all(self, log: LogReader, topic: str) -> Iterator[WithFormer]:
        if (self.sent or self.former) and not self.state:
            replaced = with_former if self.former else with_sent
            yield from replaced(log, topic, self.after, self.upto, history=self.history)
            return
        batches = rows_as_of(log, topic, self.upto) if self.state else log.read(topic, self.after, self.upto, self.history)
        for batch in batches:
            yield alone(batch)


def alone(batch: pa.RecordBatch) -> WithFormer:
    """The changes without what they replaced."""
    return WithFormer(batch, None, np.zeros(batch.num_rows, np.bool_))


def sliced(answer: Iterable[WithFormer], rows: int = RENDERED_ROWS) -> Iterator[WithFormer]:
    """The same in batches of at most so many rows, and fewer where rows are large: as text they take several times what they take as columns."""
    for changes, former, known in answer:
        size = changes.nbytes + (0 if former is None else former.nbytes)
        step = max(1, min(rows, len(changes) * RENDERED_BYTES // max(1, size)))
        for at in range(0, len(changes), step):
            yield WithFormer(changes.slice(at, step), None if former is None else former.slice(at, step), known[at : at + step])


def span(log: LogReader, begin: LogPlace | None, end: LogPlace | None) -> tuple[Position, Position]:
    """The range (after, upto] between two places, both of which belong to it. Raises ConfigError when the second lies before the first."""
    after = START if begin is None else before(log, begin)
    until = log.head().position if end is None else upto(log, end)
    if begin is not None and end is not None and until < after:
        raise ConfigError(f"{end.text} lies before {begin.text} in the log", hint="exchange the two")
    return after, Position(max(after, until))


def topics(log: LogReader, name: str | None) -> Sequence[Topic]:
    """One topic, or all. Raises ConfigError for one that the log does not have, and when there is no log."""
    if log.lineage() is None:
        raise ConfigError("there is no log yet", hint="cdc run makes one; [log] dir in cdc.toml names the place")
    found = [topic for topic in log.topics() if name in (None, topic.name)]
    if name is not None and not found:
        raise ConfigError(f"the log has no change of {name}", hint="cdc log ls names the topics")
    return sorted(found, key=lambda topic: topic.name)
