"""A store that was taken out of the configuration and comes back one day: nothing that was left of it counts."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from cdc.errors import Stopped, StopState
from cdc.follow.fleet import Fleet
from cdc.log.home import open_reader
from cdc.model.position import Position
from cdc.settings.models import StoreOptions
from cdc.state import approvals, rebuilds, status, stops
from cdc.state.status import FollowerStatus, ViewStatus
from cdc.state.strangers import forget_all_but, forget_views_but
from sinks import options_model


class Idle:
    """A store's thread that has nothing to do."""

    ended = True

    def start(self) -> None: ...

    def join(self) -> None: ...

    def check(self) -> None: ...


def options() -> StoreOptions:
    return options_model("console").model_validate({"kind": "console"})


def left_behind(run_dir: Path, store: str) -> None:
    """By one that waits before a schema change, and by a rebuild that no process has carried out."""
    stops.record(run_dir, f"follow-{store}", Stopped(StopState.SCHEMA_PAUSED, "waits before position 7"))
    approvals.ask(run_dir, store, "public.orders", Position(7))
    rebuilds.request(run_dir, store, StopState.DIVERGED)
    status.write(run_dir, f"follow-{store}", FollowerStatus(store, "console", state="stopped"))


def held(run_dir: Path, store: str) -> tuple[object, ...]:
    return (
        dict(approvals.approved(run_dir, store)),
        rebuilds.requested(run_dir, store),
        stops.held_by(run_dir, f"follow-{store}"),
        status.read_follower(run_dir, store),
    )


def test_a_change_that_waited_is_not_let_through_by_taking_the_store_out_and_putting_it_back(tmp_path: Path) -> None:
    left_behind(tmp_path, "cache")
    with closing(open_reader(tmp_path / "log")) as reader:
        fleet = Fleet(tmp_path / "log", tmp_path, reader, {}, lambda *_: Idle())
        fleet.begin({"cache": options(), "other": options()})
        try:
            assert approvals.approved(tmp_path, "cache")
            fleet.adapt({"other": options()})
            assert held(tmp_path, "cache") == ({}, None, None, None)
        finally:
            fleet.close()


def test_nor_while_nothing_runs(tmp_path: Path) -> None:
    forget_all_but(tmp_path, ())
    left_behind(tmp_path, "cache")
    left_behind(tmp_path, "other")
    stops.record(tmp_path, "capture", Stopped(StopState.SLOT_LOST, "gone"))
    forget_all_but(tmp_path, ("other",))
    assert held(tmp_path, "cache") == ({}, None, None, None)
    assert None not in held(tmp_path, "other")
    assert stops.held_by(tmp_path, "capture") is not None


def test_a_view_that_was_taken_out_is_stopped_no_more(tmp_path: Path) -> None:
    forget_views_but(tmp_path, ("there",))
    refused = Stopped(StopState.VIEW_REFUSED, "its column is gone")
    for view in ("there", "gone"):
        stops.record(tmp_path, status.view_part(view), refused)
        stops.record(tmp_path, status.next_part(view), refused)
        status.write(tmp_path, status.view_part(view), ViewStatus(view, state="stopped"))
    stops.record(tmp_path, status.next_part("never_began"), refused)
    others = stops.record(tmp_path, "capture", Stopped(StopState.SLOT_LOST, "gone"))
    forget_views_but(tmp_path, ("there",))
    assert {stop.part for stop in stops.held(tmp_path)} == {status.view_part("there"), status.next_part("there"), others.part}
    assert status.view_parts(tmp_path) == {status.view_part("there")}
    assert status.read_view(tmp_path, "gone") is None
