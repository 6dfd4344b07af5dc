"""One definition of a view over a state of its own, brought forward through the log. It hands nothing over: what comes out, its caller does with what he likes."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from contextlib import closing

import pyarrow as pa

from cdc.crashpoint import crashpoint
from cdc.derive.around import Around, StepCounts, StepLimits
from cdc.derive.course import KernelFacts
from cdc.derive.inforce import ViewInForce, ViewWaits
from cdc.derive.netrange import TopicReads, loaded, net
from cdc.derive.refusals import refused
from cdc.derive.sourcerows import SourcePiece, read_here
from cdc.derive.viewstate import ViewState
from cdc.derive.wholeness import lacking
from cdc.errors import HeadwaterError
from cdc.log.contract import LogReader
from cdc.model.position import Position
from cdc.replay.state import refuse_superseded
from cdc.views.contract import Delta, Kernel, StateFull

Deltas = Mapping[str, Delta]


class Computation:
    """For one thread. ``counts``: counts what it takes in."""

    def __init__(self, name: str, view: ViewInForce, state: ViewState, around: Around, limits: StepLimits) -> None:
        self.name, self.view, self.state = name, view, state
        self._around, self._limits = around, limits
        self._again_at_head = False
        self.counts = StepCounts()

    @property
    def kernel(self) -> Kernel:
        """The one that is open."""
        return self.state.kernel

    @property
    def cut(self) -> Position:
        """The state's."""
        return self.state.kernel.cut

    @property
    def _log(self) -> LogReader:
        return self._around.log

    def facts(self) -> KernelFacts:
        """The facts of a state that begins now."""
        lineage = self._log.lineage()
        assert lineage is not None
        return KernelFacts(self.view.digest, lineage.log, lineage.history, loading=True, definition=self.view.declared.definition)

    # --- a range of the log --------------------------------------------------------------------------------------------

    def reach(self, after: Position) -> Position:
        """The end of the next range, which begins here."""
        if self._again_at_head:
            return self._log.head().position
        return self._log.cut_within(after, self._limits.rows, self._limits.bytes).position

    def deltas(self, to: Position, *, wait: bool = True) -> dict[str, Delta]:
        """The changes of its sources between the state's cut and this one. Raises Redefined, PositionGone, Stopped; and ViewWaits while a table is being read again,
        unless it is not to ``wait``."""
        found = {}
        for topic, reads in self.view.reads.items():
            if self._log.last_change(topic, to) <= self.cut:
                continue
            one = net(reads, self._log.read(topic, self.cut, to, self.state.history))
            if one.begins_again and wait and (why := lacking(self._log, self._around.run_dir, [topic])) is not None:
                self._again_at_head = True
                raise ViewWaits(why)
            if one.delta is not None:
                found[topic] = one.delta
        for known in self._log.topics():  # asked last: they may have been compacted meanwhile
            if known.name in self.view.reads:
                refuse_superseded(known, to)
        self._again_at_head = False
        return found

    def advance(self, deltas: Deltas, to: Position, partial: bool = False) -> Delta:
        """The view's own changes. Raises Stopped for a value that it has no exact answer for, StateFull, StateDamaged."""
        self.counts.taken += sum(delta.rows.num_rows + delta.gone.num_rows for delta in deltas.values())
        try:
            return self.kernel.advance(deltas, to, partial)
        except StateFull:
            raise
        except HeadwaterError as refusal:
            raise refused(self.name, refusal) from None

    def history(self) -> str:
        """To be asked before a range is read."""
        lineage = self._log.lineage()
        assert lineage is not None
        return lineage.history

    def commit(self, history: str) -> None:
        """The state is as of what was advanced to."""
        self.kernel.commit()
        crashpoint("derive.committed")
        self.state.note(history=history)

    def pass_to(self, to: Position, *, wait: bool = False) -> None:
        """The state moves on; nobody asks what comes out of it."""
        history = self.history()
        self.advance(self.deltas(to, wait=wait), to)
        self.commit(history)

    # --- from the beginning --------------------------------------------------------------------------------------------

    def load(self, cut: Position, most: StepLimits) -> Generator[int]:
        """Computes the whole state from its sources' rows as of this cut, in pieces of at most so much, each of which is as good as a change of the log. Between them
        the state is not that of a cut, and is not used. Yields how many rows there have been, also where
        the next ones are still on their way. Raises PositionGone where the log no longer has a source as a
        whole, and what ends the waiting."""
        self.state.begin_again(self.facts())
        crashpoint("derive.cleared")
        kernel, rows, number = self.state.open(self.view), 0, 0
        with closing(self._chunks(cut, most)) as chunks:
            for delta, last in _with_last(chunks):
                if delta is not None:
                    number += 1
                    # Counters until the last: a piece has a row at least, so there are no more of them than positions.
                    self.advance(delta, cut if last else Position(number), partial=not last)
                    kernel.commit()
                    crashpoint("derive.loading")
                    rows += sum(one.rows.num_rows for one in delta.values())
                else:
                    self._around.pump()  # whoever asks the process to end need not wait for all of them
                yield rows
        kernel.sync()  # a state of some of the pieces would be taken for one as of a cut
        crashpoint("derive.loaded")
        self.state.note(loading=False)
        crashpoint("derive.whole")

    def _chunks(self, cut: Position, most: StepLimits) -> Generator[dict[str, Delta] | None]:
        """None: the next one is on its way."""
        waiting: list[pa.RecordBatch] = []
        of: TopicReads | None = None
        with closing(self._rows(cut)) as found:
            for one in found:
                if of is not None and waiting and one.reads is not of:
                    yield {of.topic: loaded(of, waiting)}
                    waiting = []
                of = one.reads
                if not one.batches:
                    yield None
                for piece in (batch.slice(at, most.rows) for batch in one.batches for at in range(0, len(batch), most.rows)):
                    waiting.append(piece)
                    if sum(map(len, waiting)) >= most.rows or sum(batch.nbytes for batch in waiting) >= most.bytes:
                        yield {of.topic: loaded(of, waiting)}
                        waiting = []
        if of is not None and waiting:
            yield {of.topic: loaded(of, waiting)}

    def _rows(self, cut: Position) -> Generator[SourcePiece]:
        """Of its sources, by workers where there are many."""
        workers, reads = self._around.workers, list(self.view.reads.values())
        if workers is not None and self.source_rows() >= workers.from_rows:
            yield from workers.rows(self._log, reads, cut, self.state.scratch)
        else:
            yield from read_here(self._log, reads, cut)

    def source_rows(self) -> int:
        """About how many rows its sources have, at most."""
        return sum(topic.rows for topic in self._log.topics() if topic.name in self.view.reads)

    def close(self) -> None:
        self.state.close()


def _with_last(pieces: Iterator[dict[str, Delta] | None]) -> Iterator[tuple[dict[str, Delta] | None, bool]]:
    """Each piece, and whether it is the last; one that is empty where there are none. None comes as it came."""
    held: dict[str, Delta] = {}
    begun = False
    for piece in pieces:
        if piece is None:
            yield None, False
            continue
        if begun:
            yield held, False
        held, begun = piece, True
    yield held, True
