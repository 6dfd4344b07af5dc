"""One view kept up: each step takes a range of the log, has the kernel compute what it changes, hands that over to the inbox, and only then
has the kernel keep its state.

A step's output is a pure function of its range, and the log keeps, in the same cut as the output, a mark that says which range it was
(``cdc.views.marks``). So a process that ends anywhere in between is followed by one that reads the mark, computes what the state lacks
again, and hands over what the log lacks: ``cdc.derive.course`` decides that. Of two processes the inbox lets only the one hand over that
began last.

The mark also says of which definition the topic's rows are. Where the configuration has another one since, that former one is still followed
while the next generation is built beside it (``cdc.derive.nextgeneration``), and then the topic gets what differs, with a mark of the new one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pyarrow as pa
import structlog

from cdc.crashpoint import crashpoint
from cdc.derive.around import Around, Halted, StepCounts, StepLimits
from cdc.derive.computation import Computation
from cdc.derive.course import ViewCourse
from cdc.derive.inforce import ViewInForce, ViewWaits
from cdc.derive.netrange import Redefined
from cdc.derive.nextgeneration import NextGeneration
from cdc.derive.ports import DeclaredView
from cdc.derive.refusals import NextRefusal, is_refusal
from cdc.derive.shown import course_of, former_by, shown_by, why_lost
from cdc.derive.statefolder import StateFolder
from cdc.derive.topicrows import Groups, LackingRows, lacking_rows, output_groups
from cdc.derive.viewgenerations import ViewGenerations
from cdc.derive.wholeness import mark_in_log
from cdc.diskspace import FULL
from cdc.errors import HeadwaterError, PositionGone, Stopped
from cdc.inbox.handover import Handover, HandoverDeadline
from cdc.log.contract import LogReader
from cdc.model.position import START, ZERO_CUT, Lsn, Position
from cdc.settings.views import topic_of
from cdc.state import status
from cdc.views.contract import StateDamaged, StateFull
from cdc.views.marks import ViewMark, producer_of

MARK_S: Final = 1.0
"""A mark that brings no changes is handed over so often at most."""
WAITS_S: Final = 0.5
"""The building of the next generation goes on after so long when a table is not whole,"""
AGAIN_S: Final = 60.0
"""and after so long when it failed."""
ANOTHER: Final = "its definition is another than that of its rows in the log"
_NEVER: Final = 10.0**9

_log = structlog.get_logger("views")


class ViewRunner:
    """One view's. For one thread.

    ``declared``: the view. ``folder``: of its states.
    """

    def __init__(
        self, name: str, declared: DeclaredView, around: Around, folder: StateFolder, limits: StepLimits | None = None
    ) -> None:
        self.name = name
        self._declared = declared
        self._around = around
        self._limits = limits or StepLimits()
        self._handover = Handover(around.log_dir, around.run_dir, producer_of(name), around.pump, around.token, around.log)
        self._generations = ViewGenerations(folder)
        self._live: Computation | None = None
        self._next: NextGeneration | None = None
        self._marked_at = float("-inf")
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

    @property
    def _refusal(self) -> NextRefusal:
        return NextRefusal(self._around.run_dir, self.name)

    def begin(self) -> None:
        """Opens the producer, so that every earlier runner is fenced, and brings state and topic together: with the definition that the topic's rows are of where that
        can be gone on with, else with the declared one.

        Raises ViewWaits while a source is not whole, Stopped, HeadwaterError; it can be called again.
        """
        self._live = None
        self._generations.look()
        self._next = self._generation()
        wanted, hindrance = self._wanted()
        shown = self._shown(wanted, mark_in_log(self._log, self._handover.producer))
        if hindrance is not None and shown is None and (self._generations.former is None or not is_refusal(hindrance)):
            raise hindrance
        crashpoint("derive.opening")
        mark = ViewMark.read(self._handover.open(HandoverDeadline.within(_NEVER)).to)
        shown = self._shown(wanted, mark)
        why = "" if mark is None else ANOTHER
        if mark is not None and shown is not None:
            why = self._resume(shown, mark)
        if self._live is not None:
            self._settle_refusal(hindrance)
        self._tidy(mark)
        if self._live is None:
            if isinstance(hindrance, Stopped):
                self._restore(hindrance, why)
            elif hindrance is not None:
                raise hindrance
            else:
                self._finish(why)

    def _generation(self, declared: DeclaredView | None = None) -> NextGeneration:
        return NextGeneration(self.name, declared or self._declared, self._around, self._generations, self._limits)

    def _wanted(self) -> tuple[ViewInForce | None, ViewWaits | Stopped | None]:
        """The declared definition over its topics as they are; or what that waits for, or why it is refused."""
        assert self._next is not None
        try:
            return self._next.bind(), None
        except ViewWaits as waits:
            return None, waits
        except Stopped as stopped:
            if not is_refusal(stopped):
                raise
            return None, stopped

    def _settle_refusal(self, hindrance: ViewWaits | Stopped | None) -> None:
        """Beside a live generation a refused definition is not tried until somebody resumes it."""
        if self._next is None:
            self._refusal.clear()
        elif isinstance(hindrance, Stopped):
            self._refuse(hindrance)
        elif (held := self._refusal.held()) is not None:
            self._next.refuse(held.message)

    def _shown(self, wanted: ViewInForce | None, mark: ViewMark | None) -> Computation | None:
        """The computation that the topic's rows are of; None where it is not known any more, or cannot be done."""
        assert self._next is not None
        self._generations.former = None
        if mark is None:
            return None
        if wanted is not None and wanted.digest == mark.digest:
            return self._next.computation
        former = self._generations.former = former_by(self._generations, self._declared, mark)
        return shown_by(self.name, former, mark, self._generations, self._around, self._limits)

    def _resume(self, shown: Computation, mark: ViewMark) -> str:
        """Goes on with what the topic shows; or says why that is not possible, and has nothing left of its state then."""
        following = self._next
        assert following is not None
        declared = shown is following.computation
        decision = course_of(shown, mark, self._log)
        why = decision.why
        if decision.course is not ViewCourse.REBUILD:
            try:
                self._go_on(shown, mark, decision.course)
                shown.state.note(left=None)
                self._next = None if declared else following
                return ""
            except (Redefined, PositionGone, StateDamaged) as lost:
                why = why_lost(self.name, lost)
            except Stopped as stopped:
                if declared or not is_refusal(stopped):
                    raise
                self._part()  # the declared one need not stop by that, too
                self._generations.former = None
                return ANOTHER
        self._live = None
        if declared:
            following.begin_again()
            return why
        self._generations.forget(shown.state)
        return ANOTHER

    def _go_on(self, shown: Computation, mark: ViewMark, course: ViewCourse) -> None:
        self._live = shown
        self.at = shown.cut
        if course is ViewCourse.CATCH_UP:
            self._catch_up(shown, mark)
        elif course is ViewCourse.RECONCILE:
            self._reconcile(shown.cut, lacking_rows(self._log, self.topic, shown))
        self.at = max(self.at, mark.cut)

    def _catch_up(self, shown: Computation, mark: ViewMark) -> None:
        """Brings the state to the mark. What the log has of the output is not handed over again."""
        if mark.done is None:
            shown.pass_to(mark.cut)
            return
        if shown.cut < mark.begin:
            shown.pass_to(mark.begin)
        history = shown.history()
        deltas = shown.deltas(mark.cut, wait=False)
        found = output_groups(self._log, self.topic, shown, shown.advance(deltas, mark.cut))
        self._hand_over(found[mark.done :], mark, mark.done)
        shown.commit(history)

    def step(self) -> bool:
        """Takes one range of the log; False: there was none.

        Raises ViewWaits, Stopped, HeadwaterError when another runner has begun since; after any of them the view has to ``begin`` again.
        """
        if (live := self._live) is None:
            self._finish(self.why)
            return True
        head = self._log.head().position
        if live.cut >= head or self.at >= head:
            return False
        try:
            return self._step(live)
        except (Redefined, PositionGone, StateDamaged) as lost:  # damage in a page that no step had read until now
            self._part()
            self.why, self._generations.former = why_lost(self.name, lost), live.view.declared if self._next else None
            self._generations.forget(live.state)
        except StateFull:
            self._make_room()
            raise
        except Stopped as stopped:
            if self._next is None or not is_refusal(stopped):
                raise
            self._part()  # the declared one need not stop by that, too
            self.why, self._generations.former = ANOTHER, None
        self._next = self._next or self._generation()
        self._finish(self.why)
        return True

    def _part(self) -> None:
        """What the topic shows is not gone on with."""
        if self._live is not None:
            self._live.close()
        self._live = None

    def _make_room(self) -> None:
        """Its disk is full: what can be computed again goes."""
        self._generations.drop(float("inf"))
        if self._next is not None:
            self._next.begin_again()

    def _step(self, live: Computation) -> bool:
        begin = live.cut
        to = live.reach(self.at)
        if to <= self.at:
            return False
        history, taken = live.history(), live.counts.taken
        deltas = live.deltas(to)
        if not deltas:
            self._pass_over(to)
            return True
        output = live.advance(deltas, to)
        self.counts.taken += live.counts.taken - taken
        crashpoint("derive.advanced")
        groups = output_groups(self._log, self.topic, live, output)
        mark = ViewMark(live.view.digest, begin, to)
        if not groups:
            self._even(live, to)
            live.commit(history)
            self._pass_over(to)
            return True
        self._hand_over(groups, mark)
        crashpoint("derive.handed_over")
        live.commit(history)
        self.at = to
        return True

    def _pass_over(self, to: Position) -> None:
        """Nothing came out up to here, which the log learns now and then."""
        self.at = to
        self.move_mark()

    def move_mark(self) -> None:
        """Hands over how far the view is, where the log does not know it and has not learnt it for a while."""
        held, now = ViewMark.read(self._handover.mark.to), self._around.clock.monotonic()
        if self._live is None or held is None or held.cut >= self.at or now - self._marked_at < MARK_S:
            return
        self._marked_at = now
        self._handover.leave(ViewMark(self._live.view.digest, held.cut, self.at).text)

    def _even(self, live: Computation, to: Position) -> None:
        """Says durably that nothing comes out of the view between the log's mark and this cut, where its state is about to be."""
        held = ViewMark.read(self._handover.mark.to)
        assert held is not None
        live.state.note(even=(held.cut, to))
        crashpoint("derive.even")

    def _hand_over(self, groups: Groups, mark: ViewMark, done: int = 0, *, redefines: bool = False) -> None:
        """The groups of the mark's range that are left behind the first ``done``; the last one carries the mark itself. ``redefines``: of the first one."""
        key, deadline = tuple(self._following.view.view.key), HandoverDeadline.within(_NEVER)
        for number, batches in enumerate(groups, 1):
            to = mark if number == len(groups) else mark.part(done + number)
            first = redefines and number == 1
            self._handover.deliver(to.text, self.topic, key, batches, deadline, redefines=first)
            self.counts.written += sum(map(len, batches))
            self._marked_at = self._around.clock.monotonic()
            crashpoint("derive.group_taken")

    # --- generations ---------------------------------------------------------------------------------------------------

    @property
    def building(self) -> bool:
        """A slice of the next generation's building can be taken beside the live one."""
        return self._next is not None and self._live is not None and self._next.due

    @property
    def topics(self) -> list[str]:
        """Those that its generations read."""
        live = [] if self._live is None else self._live.view.declared.topics
        return list(dict.fromkeys([*self._declared.topics, *live]))

    def generations(self) -> list[status.ViewGeneration]:
        """Those that have a state, and one that is refused: how far they are."""
        live = [] if self._live is None else [status.ViewGeneration(self._live.state.number, "live", self.at)]
        following = [] if self._next is None else list(self._next.report())
        kept = self._generations.kept(self._limits.kept_s)
        return [*live, *following, *(one for one in kept if one.number not in {each.number for each in (*live, *following)})]

    def state_bytes(self) -> dict[int, int]:
        """The size of each generation on the disk, by its number."""
        return self._generations.bytes()

    def build(self) -> bool:
        """Takes one slice of the next generation's building beside the live one; once that is done, the topic goes over to it. False: nothing can be done now.

        Raises as ``step``.
        """
        if (following := self._next) is None or not self.building:
            return False
        if following.refused is not None and not self._resumed(following):
            return False
        try:
            if following.step():
                self._swap(ANOTHER)
            return True
        except ViewWaits as waits:
            following.suspend(str(waits), WAITS_S)
            return False
        except (HeadwaterError, OSError) as error:
            if self._next is not following:
                raise  # the topic goes over
            if is_refusal(error):
                self._refuse(error)
                return False
            if isinstance(error, Halted) or (isinstance(error, Stopped) and not isinstance(error, PositionGone)):
                raise
            if isinstance(error, StateFull) or (isinstance(error, OSError) and error.errno in FULL):
                self._make_room()
            following.suspend(str(error), AGAIN_S)
            return False

    def _refuse(self, stopped: Stopped) -> None:
        """The next generation is given up for now. The live one goes on, and what its topic shows is what it was."""
        assert self._next is not None
        assert self._live is not None
        stop = self._refusal.record(stopped, self._live.state.number)
        self._next.refuse(stop.message)
        _log.warning(f"the next generation of view {self.name} is refused: {stop.error().line()}", facts={"view": self.name})

    def _resumed(self, following: NextGeneration) -> bool:
        if (held := self._refusal.held()) is not None:
            following.suspend(held.message, WAITS_S)
            return False
        following.suspended = None
        _log.info(f"the next generation of view {self.name} is tried again", facts={"view": self.name})
        return True

    def _finish(self, why: str) -> None:
        """Builds the next generation with nothing beside it: the topic stands still until it goes over. ``why``: it is computed, if its state itself does not say it."""
        following = self._next
        assert following is not None
        refusal = self._generations.refused or self._refusal.refusal()  # it is not tried until somebody resumes it,
        if refusal is not None and self._generations.former is not None:
            try:
                return self._restore(refusal, why)
            except Stopped as stopped:  # or there is nothing else
                if stopped is not refusal:
                    raise
        self._refusal.clear()
        self._generations.refused, following.beside, following.suspended = None, False, None
        try:
            self._go_over(following, why)
        except Stopped as stopped:
            if not is_refusal(stopped):
                raise
            self._generations.refused = stopped
            self._restore(stopped, why)

    def _go_over(self, following: NextGeneration, why: str) -> None:
        while not following.step():
            pass
        self._swap(why)

    def _restore(self, refusal: Stopped, why: str) -> None:
        """As the declared definition is refused, the one that the topic's rows are of is computed again, whose state is lost, and followed. Raises the refusal where
        that cannot be."""
        if self._generations.former is None:
            raise refusal
        following, self._next = self._next, self._generation(self._generations.former)
        assert following is not None
        try:
            self._next.beside = False
            self._go_over(self._next, why)
        except Stopped as stopped:
            raise (refusal if is_refusal(stopped) else stopped) from None
        finally:
            self._next = following
        following.beside, self._generations.former, self._generations.refused = True, None, None
        self._refuse(refusal)

    def _swap(self, why: str) -> None:
        """The topic goes over to the next generation, whose state is as of the log's head: it gets what differs, and with the last of that the mark.

        So nothing that a store shows of it disappears meanwhile.
        """
        assert self._next is not None
        one, anew = self._next.computation, self._next.why
        assert one is not None
        found = lacking_rows(self._log, self.topic, one)
        shown, former = ViewMark.read(self._handover.mark.to), self._live
        cut = one.cut
        if shown is not None and shown.digest != one.view.digest:
            at = former.cut if former is not None else shown.reflected
            self._generations.leave(shown.digest, self._around.now(), at)
        crashpoint("derive.swapping")
        self._live, self._next = one, None
        self._reconcile(cut, found)
        crashpoint("derive.swapped")
        self.why = (why or anew) if anew else ""
        self.counts.taken += one.counts.taken
        one.state.note(left=None)
        if former is not None:
            former.close()
        self._tidy(None)
        facts = {"view": self.name, "position": cut, "changes": self.counts.written}
        how = f"was computed from the beginning: {self.why}" if self.why else "goes on with a state that was kept"
        _log.info(f"view {self.name} {how}", facts=facts)

    def _tidy(self, mark: ViewMark | None) -> None:
        """Beside the state that the topic's rows are of, one is kept: that of the next generation, or of the former one.

        ``mark``: the log's; None: it is that of the live generation."""
        of_mark = None if mark is None else self._generations.of(mark.digest)
        kept = [of_mark, self._live.state if self._live else None]
        if self._next is None:
            kept += self._generations.left[-1:]
        elif self._next.computation is not None:
            kept.append(self._next.computation.state)
        else:
            kept += self._generations.left
        self._generations.keep_only(kept)

    def forget_former(self) -> None:
        """The state of a former definition goes once its time is over."""
        if self._next is None or self._next.refused is not None:
            self._generations.count_from(now := self._around.now())
            self._generations.drop(now - self._limits.kept_s)

    def _reconcile(self, cut: Position, found: LackingRows) -> None:
        """Hands over what the topic lacks of the live state's rows."""
        self.at = cut
        # A mark that stands already cannot be handed over again, nor one of its parts: they are counted on.
        mark, held = ViewMark(self._following.view.digest, START, cut), ViewMark.read(self._handover.mark.to)
        if found.groups:
            done = held.done or 0 if held is not None and replace(held, done=None) == mark else 0
            self._hand_over(found.groups, mark, done, redefines=found.redefines)
        elif mark.text != self._handover.mark.to:
            self._handover.deliver(mark.text, "", (), [], HandoverDeadline.within(_NEVER))

    def rows(self) -> pa.Table:
        """The whole view as of its last step."""
        return self._following.kernel.rows()

    def kept_rows(self) -> int:
        """The rows of its live state."""
        return 0 if self._live is None else self._live.kernel.kept_rows()

    def reflects(self) -> tuple[Lsn, int]:
        """The source's last commit that the view shows: its LSN and its time (microseconds since 1970)."""
        cut = self._log.cut_within(Position(self.at - 1), 1, 1) if self.at else ZERO_CUT
        return cut.commit_lsn, cut.commit_ts_us

    def close(self) -> None:
        self._generations.close()

    @property
    def _following(self) -> Computation:
        assert self._live is not None, "begin comes first"
        return self._live
