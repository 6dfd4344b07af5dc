"""How often the report is taken: once a second for whoever reads, less often for nobody."""

from __future__ import annotations

import asyncio

import pytest

from cdc.http import events
from cdc.http.events import Feed
from cdc.report.shape import Report
from tests.unit.http import reports


def test_nobody_reading_costs_less_and_a_reader_gets_every_second_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PERIOD_S", 0.01)
    monkeypatch.setattr(events, "UNSEEN_PERIOD_S", 3600.0)
    taken: list[Report] = []

    def take() -> Report:
        taken.append(reports.healthy())
        return taken[-1]

    async def course() -> None:
        feed = Feed(take)
        running = asyncio.create_task(feed.run())
        while not taken:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.2)
        assert len(taken) == 1, "nobody reads"
        assert feed.readers.enter()
        while len(taken) < 5:
            await asyncio.sleep(0.001)
        feed.readers.leave()
        await asyncio.sleep(0.1)
        seen = len(taken)
        await asyncio.sleep(0.2)
        assert len(taken) == seen, "nobody reads any more"
        running.cancel()

    asyncio.run(asyncio.wait_for(course(), 60))
