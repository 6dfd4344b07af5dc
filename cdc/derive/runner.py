"""One view kept up: each step takes a range of the log, has the kernel compute what it changes, hands that over to the inbox, and only then
makes the kernel's state durable.

A step's output is a pure function of its range, and the log keeps, in the same cut as the output, a mark that says which range it was
(``cdc.views.marks``). So a process that ends anywhere in between is followed by one that reads the mark, computes what the state lacks
again, and hands over what the log lacks: ``cdc.derive.course`` decides that. Of two processes the inbox lets only the one hand over that
began last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import structlog

from cdc.clock import MACHINE, Clock
from cdc.crashpoint import crashpoint
from cdc.derive.course import Decision, KernelFacts, ViewCourse, decide
from cdc.derive.inforce import ViewInForce, ViewWaits, in_force
from cdc.derive.netrange import Redefined, loaded, net
from cdc.derive.pieces import difference, pieces, rowless, topic_table
from cdc.derive.ports import DeclaredView
from cdc.derive.statefolder import StateFolder
from cdc.derive.viewstate import ViewState
from cdc.derive.wholeness import lacking
from cdc.errors import HeadwaterError, PositionGone, Stopped, StopState
from cdc.inbox.definition import refuses
from cdc.inbox.handover import Handover, HandoverDeadline, draw_token
from cdc.log.contract import LogReader
from cdc.model.batch import META_FIELDS
from cdc.model.position import START, ZERO_CUT, Cut, Lsn, Position
from cdc.model.table import Table
from cdc.replay.state import refuse_superseded, rows_as_of
from cdc.settings.views import topic_of
from cdc.state import status
from cdc.views.contract import Delta, Kernel, StateDamaged, StateFull, ViewRefused
from cdc.views.marks import ViewMark, producer_of

MARK_S: Final = 1.0
"""A mark that brings no changes is handed over so often at most."""
_NEVER: Final = 10.0**9
_PAST_BYTES: Final = 256 * 2**20
"""The memory for finding a table's rows among its changes, as much as a kernel is given: up to some millions of rows, no key goes by way of a file."""
_REDEFINED: Final = "a table that it reads was defined otherwise"
_UNREADABLE: Final = "its state cannot be read"

_log = structlog.get_logger("views")


class Halted(HeadwaterError):
    """The process was asked to end while a view waited for something."""


@dataclass(frozen=True, slots=True)
class Around:
    """The log in which a view is kept up. ``log_dir``: its folder. ``pump``: brings things forward while a group waits in the inbox; it may raise to end that
    (``Halted``)."""

    log: LogReader
    log_dir: Path
    run_dir: Path
    pump: Callable[[], None]
    clock: Clock = MACHINE
    token: Callable[[], str] = draw_token
    """Draws the word by which an opening of the producer is known."""


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The most that one step takes of the log."""

    rows: int = 200_000
    bytes: int = 64 * 2**20


@dataclass(slots=True)
class StepCounts:
    """``taken``: changes of the view's topics that were taken in. ``written``: changes of its own that were handed over."""

    taken: int = 0
    written: int = 0


class ViewRunner:
    """One view's. For one thread.

    ``declared``: the view. ``folder``: of its state.
    """

    def __init__(
        self, name: str, declared: DeclaredView, around: Around, folder: StateFolder, limits: StepLimits | None = None
    ) -> None:
        self.name = name
        self._declared = declared
        self._around = around
        self._state = ViewState(folder)
        self._limits = limits or StepLimits()
        self._handover = Handover(around.log_dir, around.run_dir, producer_of(name), around.pump, around.token)
        self._view: ViewInForce | None = None
        self._marked_at = float("-inf")
        self._again_at_head = False
        self.at = START
        """Up to here the view's rows in the log, or on their way into it, show what its sources had."""
        self.counts = StepCounts()
        """Of this process."""
        self.why = ""
        """Why the view was computed from the beginning, if it was."""

    @property
    def topic(self) -> str:
        """The topic that the view is."""
        return topic_of(self.name)

    @property
    def _log(self) -> LogReader:
        return self._around.log

    # --- beginning -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Opens the producer, so that every earlier runner is fenced, and brings state and topic together.

        Raises ViewWaits while a source is not whole, Stopped, HeadwaterError; it can be called again.
        """
        self._state.close()
        self._refuse_lacking()
        head = self._log.head()
        self._bind(head)
        crashpoint("derive.opening")
        mark = ViewMark.read(self._handover.open(HandoverDeadline.within(_NEVER)).to)
        decision = self._course(mark)
        if decision.course is ViewCourse.REBUILD:
            self._rebuild(decision.why)
            return
        assert mark is not None
        try:
            self._go_on(mark, decision.course)
        except Redefined:
            self._rebuild(_REDEFINED)
        except PositionGone as gone:
            self._too_late(gone)
        except StateDamaged as damaged:
            self._damaged(damaged)

    def _go_on(self, mark: ViewMark, course: ViewCourse) -> None:
        self.at = self._state.kernel.cut
        if course is ViewCourse.CATCH_UP:
            self._catch_up(mark)
        elif course is ViewCourse.RECONCILE:
            self._reconcile(self._state.kernel.cut)
        self.at = max(self.at, mark.cut)

    def _too_late(self, gone: PositionGone) -> None:
        _log.warning(f"view {self.name} is computed from the beginning: {gone}", facts={"view": self.name})
        self._rebuild("the log no longer has all changes since its last step")

    def _damaged(self, damaged: StateDamaged) -> None:
        _log.warning(f"the state of view {self.name} cannot be read", problem=str(damaged))
        self._rebuild(_UNREADABLE)

    def _refuse_lacking(self) -> None:
        why = lacking(self._log, self._around.run_dir, self._declared.topics)
        if why is not None:
            raise ViewWaits(why)

    def _bind(self, at: Cut) -> None:
        try:
            self._view = in_force(self._declared, self._log, at.position)
        except ViewRefused as refused:
            raise self._refused(refused) from None

    def _course(self, mark: ViewMark | None) -> Decision:
        facts, lineage = self._state.facts, self._log.lineage()
        assert lineage is not None
        digest = self._bound.digest
        if facts is None or facts.digest != digest or facts.loading:
            return decide(digest, mark, facts, START, lineage)
        try:
            cut = self._state.open(self._bound).cut
        except (Stopped, StateFull):
            raise
        except Exception as error:  # whatever a damaged file leads to
            problem = str(error) if isinstance(error, StateDamaged) else type(error).__name__
            _log.warning(f"the state of view {self.name} cannot be read", problem=problem)
            return Decision(ViewCourse.REBUILD, _UNREADABLE)
        return decide(digest, mark, facts, cut, lineage)

    def _catch_up(self, mark: ViewMark) -> None:
        """Brings the state to the mark. What the log has of the output is not handed over again."""
        kernel = self._state.kernel
        if mark.done is None:
            self._pass(mark.cut)
            return
        if kernel.cut < mark.begin:
            self._pass(mark.begin)
        history = self._history()
        deltas = self._deltas(kernel.cut, mark.cut, wait=False)
        found = self._groups(self._advance(deltas, mark.cut))
        self._hand_over(found, mark, done=mark.done)
        self._commit(history)

    def _pass(self, to: Position) -> None:
        """The state moves on; the log has all that comes out of it."""
        history = self._history()
        self._advance(self._deltas(self._state.kernel.cut, to, wait=False), to)
        self._commit(history)

    # --- steps ---------------------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Takes one range of the log; False: there was none.

        Raises ViewWaits, Stopped, HeadwaterError when another runner has begun since; after any of them the view has to ``begin`` again.
        """
        head = self._log.head().position
        if self._state.kernel.cut >= head or self.at >= head:
            return False
        try:
            return self._step(head)
        except Redefined:
            self._refuse_lacking()
            self._bind(self._log.head())
            self._rebuild(_REDEFINED)
        except PositionGone as gone:
            self._too_late(gone)
        except StateDamaged as damaged:  # in a page that no step had read until now
            self._damaged(damaged)
        return True

    def _step(self, head: Position) -> bool:
        begin = self._state.kernel.cut
        to = self._log.cut_within(self.at, self._limits.rows, self._limits.bytes).position
        if self._again_at_head:
            to = head
        if to <= self.at:
            return False
        history = self._history()
        deltas = self._deltas(begin, to)
        self._again_at_head = False
        if not deltas:
            self._pass_over(to)
            return True
        output = self._advance(deltas, to)
        crashpoint("derive.advanced")
        groups = self._groups(output)
        mark = ViewMark(self._bound.digest, begin, to)
        if not groups:
            self._even(to)
            self._commit(history)
            self._pass_over(to)
            return True
        self._hand_over(groups, mark)
        crashpoint("derive.handed_over")
        self._commit(history)
        self.at = to
        return True

    def _pass_over(self, to: Position) -> None:
        """Nothing came out up to here, which the log learns now and then."""
        self.at = to
        self.move_mark()

    def move_mark(self) -> None:
        """Hands over how far the view is, where the log does not know it and has not learnt it for a while."""
        held = ViewMark.read(self._handover.mark.to)
        now = self._around.clock.monotonic()
        if held is None or held.cut >= self.at or now - self._marked_at < MARK_S:
            return
        self._marked_at = now
        self._handover.leave(ViewMark(self._bound.digest, held.cut, self.at).text)

    def _even(self, to: Position) -> None:
        """Says durably that nothing comes out of the view between the log's mark and this cut, where its state is about to be."""
        held = ViewMark.read(self._handover.mark.to)
        assert held is not None
        self._state.note(even=(held.cut, to))
        crashpoint("derive.even")

    def _deltas(self, after: Position, to: Position, *, wait: bool = True) -> dict[str, Delta]:
        found = {}
        for topic, reads in self._bound.reads.items():
            if self._log.last_change(topic, to) <= after:
                continue
            one = net(reads, self._log.read(topic, after, to, self._state.history))
            if one.begins_again and wait and (why := lacking(self._log, self._around.run_dir, [topic])) is not None:
                self._again_at_head = True
                raise ViewWaits(why)
            if one.delta is not None:
                found[topic] = one.delta
        for known in self._log.topics():  # asked last: they may have been compacted meanwhile
            if known.name in self._bound.reads:
                refuse_superseded(known, to)
        return found

    def _advance(self, deltas: Mapping[str, Delta], to: Position, partial: bool = False) -> Delta:
        self.counts.taken += sum(delta.rows.num_rows + delta.gone.num_rows for delta in deltas.values())
        try:
            return self._state.kernel.advance(deltas, to, partial)
        except StateFull:
            raise
        except HeadwaterError as refused:  # such as a value that the view has no exact answer for
            raise self._refused(refused) from None

    def _refused(self, refused: HeadwaterError) -> Stopped:
        """Names the view once, and both ways on: a view that is defined otherwise is tried again by itself."""
        named = f"view {self.name}"
        message = str(refused) if str(refused).startswith(named) else f"{named}: {refused}"
        ways = f"{refused.hint}; " if refused.hint else ""
        helps = f"{ways}{self._ways_on}"
        return Stopped(StopState.VIEW_REFUSED, message, hint=helps)

    @property
    def _ways_on(self) -> str:
        return f"with another [views.{self.name}] restart cdc run, else cdc resume VIEW_REFUSED:{status.view_part(self.name)}"

    def _groups(self, output: Delta) -> list[list[pa.RecordBatch]]:
        if output.emptied:
            output = difference(output.rows, self._held(), self._bound.view.key)
        return pieces(output, self._bound.view.key, self._bound.view.typed)

    def _hand_over(self, groups: list[list[pa.RecordBatch]], mark: ViewMark, done: int = 0) -> None:
        """All but the first ``done`` groups of the mark's range; the last one carries the mark itself."""
        deadline = HandoverDeadline.within(_NEVER)
        for number, batches in enumerate(groups[done:], done + 1):
            last = number == len(groups)
            self._handover.deliver(
                (mark if last else mark.part(number)).text, self.topic, tuple(self._bound.view.key), batches, deadline
            )
            self.counts.written += sum(map(len, batches))
            self._marked_at = self._around.clock.monotonic()
            crashpoint("derive.group_taken")

    def _commit(self, history: str) -> None:
        self._state.kernel.commit()
        crashpoint("derive.committed")
        self._state.note(history=history)

    # --- from the beginning --------------------------------------------------------------------------------------------

    def _rebuild(self, why: str) -> None:
        """Computes the view from its sources as of the log's head, and hands over in what its topic differs from that.

        So nothing that a store shows of it disappears meanwhile. Raises PositionGone where the log no longer has a source as a whole.
        """
        began = self._around.clock.monotonic()
        self._state.close()
        self.why = why
        lineage, cut = self._log.lineage(), self._log.head().position
        assert lineage is not None
        self._state.begin_again(KernelFacts(self._bound.digest, lineage.log, lineage.history, loading=True))
        crashpoint("derive.cleared")
        kernel = self._state.open(self._bound)
        self._refuse_other_shape(kernel.rows())
        self._load(kernel, cut)
        crashpoint("derive.loaded")
        self._state.note(loading=False)
        crashpoint("derive.whole")
        self._reconcile(cut)
        facts = {
            "view": self.name,
            "position": cut,
            "seconds": round(self._around.clock.monotonic() - began, 3),
            "changes": self.counts.written,
        }
        _log.info(f"view {self.name} was computed from the beginning: {why}", facts=facts)

    def _refuse_other_shape(self, rows: pa.Table) -> None:
        """Raises Stopped where the topic, as it is in the log, cannot go on with rows of these columns and with this key."""
        known, view = self._known(), self._bound.view
        why = None if known is None else refuses(known, topic_table(self.topic, rows, view.key, view.typed))
        if why is not None:
            raise Stopped(
                StopState.VIEW_REFUSED,
                f"view {self.name} cannot go on as {self.topic}: {why}",
                hint=f"give the new definition another name than [views.{self.name}], or take the change back; {self._ways_on}",
            )

    def _known(self) -> Table | None:
        """The topic's definition in the log; None before the view's first group is there."""
        return next((topic.table for topic in self._log.topics() if topic.name == self.topic), None)

    def _load(self, kernel: Kernel, cut: Position) -> None:
        """In pieces, each of which is as good as a change of the log. Between them the state is no cut's; it is not used before the last."""
        for number, (delta, last) in enumerate(_with_last(self._chunks(cut)), 1):
            # Counters until the last: a piece has a row at least, so there are no more of them than positions.
            self._advance(delta, cut if last else Position(number), partial=not last)
            kernel.commit()
            crashpoint("derive.loading")

    def _chunks(self, cut: Position) -> Iterator[dict[str, Delta]]:
        for topic, reads in self._bound.reads.items():
            waiting: list[pa.RecordBatch] = []
            for batch in rows_as_of(self._log, topic, cut, memory_bytes=_PAST_BYTES):
                if not len(batch):
                    continue
                waiting.append(batch)
                if sum(map(len, waiting)) >= self._limits.rows or sum(one.nbytes for one in waiting) >= self._limits.bytes:
                    yield {topic: loaded(reads, waiting)}
                    waiting = []
            if waiting:
                yield {topic: loaded(reads, waiting)}

    def _reconcile(self, cut: Position) -> None:
        """Hands over what the topic lacks of the state's rows, and what it has beyond them."""
        view, rows = self._bound.view, self._state.kernel.rows()
        found = pieces(difference(rows, self._held(), view.key), view.key, view.typed)
        if not found and self._known() is None:
            found = [rowless(rows, view.typed)]  # what reads the view has to know how it is defined
        self.at = cut
        # A mark that stands already cannot be handed over again.
        mark = ViewMark(self._bound.digest, START, cut)
        if found:
            self._hand_over(found, mark)
        elif mark.text != self._handover.mark.to:
            self._handover.deliver(mark.text, "", (), [], HandoverDeadline.within(_NEVER))

    def _held(self) -> pa.Table | None:
        """The rows of the view's topic as of the log's head."""
        batches = list(rows_as_of(self._log, self.topic, self._log.head().position, memory_bytes=_PAST_BYTES))
        if not batches:
            return None
        meta = {field.name for field in META_FIELDS}
        own = [name for name in batches[0].schema.names if name not in meta]
        return pa.Table.from_batches([batch.select(own).replace_schema_metadata(None) for batch in batches])

    # --- the end -------------------------------------------------------------------------------------------------------

    def rows(self) -> pa.Table:
        """The whole view as of its last step."""
        return self._state.kernel.rows()

    def kept_rows(self) -> int:
        """The rows of its state."""
        return self._state.kernel.kept_rows()

    def reflects(self) -> tuple[Lsn, int]:
        """The source's last commit that the view shows: its LSN and its time (microseconds since 1970)."""
        cut = self._log.cut_within(Position(self.at - 1), 1, 1) if self.at else ZERO_CUT
        return cut.commit_lsn, cut.commit_ts_us

    def close(self) -> None:
        self._state.close()

    @property
    def _bound(self) -> ViewInForce:
        assert self._view is not None, "begin comes first"
        return self._view

    def _history(self) -> str:
        """To be asked before a range is read."""
        lineage = self._log.lineage()
        assert lineage is not None
        return lineage.history


def _with_last(pieces_: Iterator[dict[str, Delta]]) -> Iterator[tuple[dict[str, Delta], bool]]:
    """Each piece, and whether it is the last; one that is empty where there are none."""
    held: dict[str, Delta] = {}
    begun = False
    for piece in pieces_:
        if begun:
            yield held, False
        held, begun = piece, True
    yield held, True
