"""Problems of the service, one line each: the part, what is the matter → what helps. Pure; empty means healthy.

A part is well when it lives, is in one of its well states, and has reported no error. Every other state has a line, so whatever looks at the parts
(status, page, metrics, ``/readyz``) says the same of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from cdc.report.shape import AuditedTableReport, CaptureReport, FollowerReport, ProcessReport, SourceReport, StopReport, ViewReport
from cdc.terminal import counted, visible

WELL: Final = frozenset({"streaming", "snapshot", "following"})
STARTS: Final = "wait a moment; if it lasts, see the log of cdc run"
"""The end of a line that says no more than that a part is starting."""
_HELP: Final[Mapping[str, str]] = {
    "starting": STARTS,
    "rebuilding": "wait until it is built; its readers see the rows from before and the new ones",
    "retrying": "cdc doctor",
}
"""By the state of a part that lives."""


def problems_of(
    source: SourceReport,
    capture: CaptureReport | None,
    followers: Sequence[FollowerReport],
    views: Sequence[ViewReport],
    stopped: Sequence[StopReport],
    processes: Sequence[ProcessReport],
    silent_s: Mapping[str, float],
    further: Sequence[str] = (),
) -> tuple[str, ...]:
    """``further``: lines that stand by themselves. ``silent_s``: part (``capture``, ``follow-NAME``, ``view-NAME``) → for how long its process, which lives, has reported nothing; only too long ones."""
    held = {stop.part for stop in stopped}
    children = {child.name: child for child in processes}
    lines = [
        *_of_source(source, capture, begins=_begins(capture, children.get("capture"))),
        *_of_capture(capture, held, children.get("capture"), silent_s),
        *further,
        *(line for view in views for line in _of_view(view, capture, held, children, silent_s)),
        *(line for follower in followers for line in _of_follower(follower, held, children.get("followers"), silent_s)),
        *(f"{stop.part} stopped: {stop.state}: {stop.message} → {stop.hint}" for stop in stopped),
    ]
    return tuple(map(visible, lines))


def _begins(capture: CaptureReport | None, child: ProcessReport | None) -> bool:
    """Whether capture is on its way, and has met nothing that would keep it."""
    if capture is not None and capture.alive:
        return capture.state == "starting" and not capture.error
    return child is not None and child.state in ("starting", "running")


def _of_source(source: SourceReport, capture: CaptureReport | None, *, begins: bool) -> Iterator[str]:
    if not source.reachable:
        yield f"the source is unreachable: {source.error} → cdc doctor"
    elif source.slot is not None and not source.slot.exists:
        if not begins:  # capture makes the slot
            yield f"replication slot {source.slot.name!r} does not exist → cdc doctor"
    elif capture is not None and capture.alive and capture.error:
        # It runs, and says itself why it does not read: to start it does not help.
        yield from (line.replace("→ cdc run", "→ fix what capture reports") for line in source.alarms)
    else:
        yield from source.alarms


def _of_capture(
    capture: CaptureReport | None, held: Collection[str], child: ProcessReport | None, silent_s: Mapping[str, float]
) -> Iterator[str]:
    if "capture" in held:
        return
    if capture is None:
        yield _dead("capture", "never started", None, child, None)
        return
    if capture.alive:
        yield from _living("capture", capture.state, capture.error, child)
        yield from (line if " → " in line else f"{line} → cdc doctor" for line in capture.left_out)
    else:
        yield _dead("capture", capture.state, capture.error, child, silent_s.get("capture"))


def _of_follower(
    follower: FollowerReport, held: Collection[str], child: ProcessReport | None, silent_s: Mapping[str, float]
) -> Iterator[str]:
    part, label = f"follow-{follower.store}", f"follower {follower.store}"
    if part not in held:
        if follower.alive:
            yield from _living(label, follower.state, follower.error, child)
        else:
            yield _dead(label, follower.state, follower.error, child, silent_s.get(part))
    if follower.undecided:
        yield f"store {follower.store} set {counted(follower.undecided, 'change')} aside → cdc dlq ls {follower.store} names them"
    if follower.audit is not None:
        yield from (_of_drift(follower.store, one) for one in follower.audit.drift)


def _of_view(
    view: ViewReport,
    capture: CaptureReport | None,
    held: Collection[str],
    children: Mapping[str, ProcessReport],
    silent_s: Mapping[str, float],
) -> Iterator[str]:
    part, label = f"view-{view.view}", f"view {view.view}"
    child = children.get(part)
    if part in held:
        return
    if not view.alive and child is None and children:  # as when the file cannot be used, or the view counts at the next start only
        yield f"{label} is not taken up by cdc run yet → {STARTS}"
    elif not view.alive:
        yield _dead(label, view.state, view.error, child, silent_s.get(part))
    elif view.state != "waiting" or capture is None or capture.state != "snapshot":  # what it waits for is on its way then
        yield from _living(label, view.state, view.error, child, f"cdc views explain {view.view}")


def _of_drift(store: str, one: AuditedTableReport) -> str:
    rows = f"{'at least ' if one.at_least else ''}{counted(one.differing, 'row')}"
    kinds = f"{one.missing} missing, {one.extra} extra, {one.different} different"
    helps = f"cdc audit {store} --table {one.table} lists them, and sends them again with --repair"
    return f"store {store} differs from the log in {rows} of {one.table} ({kinds}) → {helps}"


def _living(
    label: str, state: str, error: str | None, child: ProcessReport | None, helps_waiting: str = "see whether the store is up"
) -> Iterator[str]:
    helps = helps_waiting if state == "waiting" else _HELP.get(state)
    if child is not None and child.state == "refused":
        yield f"{label} refuses its configuration → cdc doctor"
    elif error is not None:
        yield f"{label} is {state}: {error}" + ("" if " → " in error else f" → {helps or 'see the log of cdc run'}")
    elif state not in WELL:
        yield f"{label} is {state} → {helps or 'cdc run'}"


def _dead(label: str, state: str, error: str | None, child: ProcessReport | None, silent_s: float | None) -> str:
    if child is not None and child.state == "refused":
        return f"{label} refuses its configuration → cdc doctor"
    if child is not None and child.state == "backing-off":
        why = f" ({error})" if error else ""
        return (
            f"{label} ended{why} and is started again by itself, {counted(child.restarts, 'time')} so far → see the log of cdc run"
        )
    if silent_s is not None:
        return f"{label} has reported nothing for {silent_s:.0f} s → see the log of cdc run; if it lasts, restart it"
    if child is not None and child.state in ("starting", "running"):
        return f"{label} is starting → {_HELP['starting']}"
    never = state == "never started" and label == "capture"
    return f"{label} {'has never run' if never else 'does not run'} → cdc run"
