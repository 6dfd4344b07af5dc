"""How far a store has to be to show a commit, when it holds views."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import SecretStr

from cdc.client.throughviews import ThroughViews, ViewLags, held_views
from cdc.compaction.pins import Pins
from cdc.errors import Stopped, StopState
from cdc.model.batch import Op
from cdc.model.position import Position
from cdc.settings.models import Log, Settings, Source
from cdc.settings.views import View
from cdc.state import status, stops
from tests.unit.derive.bed import CUSTOMERS, ORDERS, Bed, bed_in

HOLDS = ("views.joined",)


def settings_of(bed: Bed) -> Settings:
    return Settings(
        source=Source(dsn=SecretStr("dbname=shop")),
        log=Log(dir=bed.folder / "log"),
        run_dir=bed.folder / "run",
        views={name: View(sql="select 1", key=("id",)) for name in ("joined", "over")},
    )


def says(bed: Bed, view: str, *topics: str, position: int = 0) -> None:
    saved = status.ViewStatus(view, pid=os.getpid(), state="following", topics=list(topics), position=position)
    status.stamp(saved)
    status.write(bed.folder / "run", status.view_part(view), saved)


def test_a_store_shows_a_commit_once_the_view_reflects_it_and_not_before(tmp_path: Path) -> None:
    with bed_in(tmp_path) as bed, bed.runner() as runner:
        settings = settings_of(bed)
        bed.commit((CUSTOMERS, Op.INSERT, [{"id": 1, "name": "Ann"}]), (ORDERS, Op.INSERT, [{"id": 1, "customer": 1, "note": "a"}]))
        assert ThroughViews(settings, bed.reader, ("public.*",)).shown_at(Position(2)) == 2
        with pytest.raises(ViewLags, match="view joined has never run"):
            ThroughViews(settings, bed.reader, HOLDS).shown_at(Position(2))
        says(bed, "joined", "public.orders", "public.customers")
        with pytest.raises(ViewLags, match="view joined lags: it shows position 0 of 2"):
            ThroughViews(settings, bed.reader, HOLDS).shown_at(Position(2))
        runner.begin()
        assert ThroughViews(settings, bed.reader, HOLDS).shown_at(Position(2)) == 3
        bed.commit((ORDERS, Op.UPDATE, [{"id": 1, "customer": 1, "note": "b"}]))
        with pytest.raises(ViewLags, match="it shows position 2 of 4"):
            ThroughViews(settings, bed.reader, HOLDS).shown_at(Position(4))
        bed.keep_up(runner)
        assert ThroughViews(settings, bed.reader, HOLDS).shown_at(Position(4)) == 5


def test_an_unchanged_view_is_not_waited_for(tmp_path: Path) -> None:
    with bed_in(tmp_path) as bed, bed.runner() as runner:
        bed.commit((CUSTOMERS, Op.INSERT, [{"id": 1, "name": "Ann"}]), (ORDERS, Op.INSERT, [{"id": 1, "customer": 1, "note": "a"}]))
        runner.begin()
        says(bed, "joined", "public.orders")
        bed.commit((CUSTOMERS, Op.INSERT, [{"id": 9, "name": "Nobody"}]))
        assert ThroughViews(settings_of(bed), bed.reader, HOLDS).shown_at(Position(4)) == 4


def test_a_view_of_a_view_is_waited_for_through_both(tmp_path: Path) -> None:
    with bed_in(tmp_path) as bed, bed.runner() as runner:
        settings = settings_of(bed)
        bed.commit((CUSTOMERS, Op.INSERT, [{"id": 1, "name": "Ann"}]), (ORDERS, Op.INSERT, [{"id": 1, "customer": 1, "note": "a"}]))
        says(bed, "over", "views.joined")
        says(bed, "joined", "public.orders", "public.customers")
        assert held_views(settings, ("views.*",)) == ["joined", "over"]
        with pytest.raises(ViewLags, match="view joined lags"):
            ThroughViews(settings, bed.reader, ("views.over",)).shown_at(Position(2))
        runner.begin()
        with pytest.raises(ViewLags, match="view over lags: it shows position 0 of 3"):
            ThroughViews(settings, bed.reader, ("views.over",)).shown_at(Position(2))


def test_what_a_view_writes_after_it_reflects_a_commit_is_not_waited_for(tmp_path: Path) -> None:
    """Else a view of it that is a little behind would be waited for as long as changes come."""
    with bed_in(tmp_path) as bed, bed.runner() as runner:
        settings = settings_of(bed)
        bed.commit((CUSTOMERS, Op.INSERT, [{"id": 1, "name": "Ann"}]), (ORDERS, Op.INSERT, [{"id": 1, "customer": 1, "note": "a"}]))
        says(bed, "over", "views.joined")
        says(bed, "joined", "public.orders", "public.customers")
        runner.begin()
        waiting = ThroughViews(settings, bed.reader, ("views.over",))
        for note in ("b", "c"):
            with pytest.raises(ViewLags, match="view over lags: it shows position 0 of 3"):
                waiting.shown_at(Position(2))
            bed.commit((ORDERS, Op.UPDATE, [{"id": 1, "customer": 1, "note": note}]))
            bed.keep_up(runner)
        with pytest.raises(ViewLags, match="it shows position 0 of 7"):
            waiting.shown_at(Position(6))


def test_a_stopped_view_ends_the_waiting(tmp_path: Path) -> None:
    with bed_in(tmp_path) as bed:
        says(bed, "joined", "public.orders")
        stops.record(bed.folder / "run", "view-joined", Stopped(StopState.VIEW_REFUSED, "it cannot go on"))
        with pytest.raises(Stopped, match="VIEW_REFUSED: it cannot go on"):
            ThroughViews(settings_of(bed), bed.reader, HOLDS).shown_at(Position(0))


def test_a_view_that_was_built_holds_compaction_back_and_another_does_not(tmp_path: Path) -> None:
    with bed_in(tmp_path) as bed:
        bed.commit((ORDERS, Op.INSERT, [{"id": 1, "customer": 1, "note": "a"}]), (CUSTOMERS, Op.INSERT, [{"id": 1, "name": "Ann"}]))
        settings = settings_of(bed)
        says(bed, "joined", "public.orders", position=1)
        says(bed, "over", "views.joined")
        [pin] = Pins(lambda: settings).look(0.0, bed.reader)
        assert (pin.store, pin.tables, pin.position) == ("view joined", ("public.orders",), 1)


def test_a_generation_that_is_built_or_kept_holds_compaction_back_beside_the_live_one(tmp_path: Path) -> None:
    with bed_in(tmp_path) as bed:
        bed.commit((ORDERS, Op.INSERT, [{"id": number, "customer": 1, "note": "a"} for number in range(9)]))
        states = [status.ViewGeneration(1, "kept", 3), status.ViewGeneration(2, "live", 9), status.ViewGeneration(3, "building", 5)]
        saved = status.ViewStatus("joined", 1, "following", topics=["public.orders"], position=9, generations=states)
        status.write(bed.folder / "run", status.view_part("joined"), saved)
        settings = settings_of(bed)
        pins = {pin.store: pin.position for pin in Pins(lambda: settings).every(0.0, bed.reader)}
        assert pins == {"view joined": 9, "view joined@1": 3, "view joined@3": 5}
