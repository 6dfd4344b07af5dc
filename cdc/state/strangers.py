"""The end of all that ``run_dir`` holds of a store, or a view, that is no longer configured: none of it may count for one that takes its name later."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

from cdc.state import approvals, auditstate, letterrequests, rebuilds, status, stops

_PREFIX: Final = "follow-"


def forget(run_dir: Path, store: str) -> None:
    """Removes its stop states with what an operator has, or might have, let through by them; a rebuild and decisions about dead letters that were
    not carried out; how far its audit was; its status."""
    # In this order: without its stop state a change that waits counts as let through, and by its status a store is found here again.
    approvals.forget(run_dir, store)
    rebuilds.carried_out(run_dir, store)
    letterrequests.forget(run_dir, store)
    auditstate.forget(run_dir, store)
    stops.clear_part(run_dir, _PREFIX + store)
    for one in status.read_generations(run_dir, store):
        status.remove(run_dir, one.part)
    status.remove(run_dir, _PREFIX + store)


def forget_all_but(run_dir: Path, stores: Collection[str]) -> None:
    """Forgets every store but these."""
    stopped = (stop.part.removeprefix(_PREFIX) for stop in stops.held(run_dir) if stop.part.startswith(_PREFIX))
    for store in {*(found.store for found in status.read_followers(run_dir)), *stopped} - set(stores):
        forget(run_dir, store)


def forget_views_but(run_dir: Path, views: Collection[str]) -> None:
    """Removes the stop states of every view but these, those of next generations among them, and its status. What the log has of it stays."""
    kept = {part for view in views for part in (status.view_part(view), status.next_part(view))}
    for stop in stops.held(run_dir):
        if stop.part.startswith(status.VIEW) and stop.part not in kept:
            stops.clear(run_dir, stop.name)
    for part in status.view_parts(run_dir) - kept:
        status.remove(run_dir, part)
