"""The thread that looks at the catalog (``cdc.source.inspection``), over the model's: what it sees it tells the stream, and new tables it publishes.

Each step is one of its transactions; between two of them the catalog may change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from random import Random
from typing import Any, cast

import psycopg

from cdc.model.facts import Facts
from cdc.source.announcements import Announcements
from tests.sim.catalog import PASSWORD
from tests.sim.source import Source

IDLE_LOOKS = 0.2
"""How likely it looks where nobody has asked it to."""


class Watch:
    """One for the capture process. ``known``: tables (OIDs) that the log has."""

    def __init__(self, source: Source, chance: Random, known: Collection[int], met: Callable[[str], None]) -> None:
        self._source = source
        self._chance = chance
        self._met = met
        self._announcements = Announcements(known, PASSWORD)
        self._connection = cast(psycopg.Connection, _Emitting(source))
        self._steps: Iterator[None] = iter(())
        self._due = True

    def note(self, oid: int) -> None:
        self._announcements.note(oid)
        self._due = True

    def look_soon(self) -> None:
        self._due = True

    def step(self) -> bool:
        """False: nothing was found to be done, and nobody asks for another look."""
        try:
            next(self._steps)
        except StopIteration:
            if not self._due and self._chance.random() >= IDLE_LOOKS:
                return False
            self._due = False
            self._steps = self._look()
        return True

    def disconnect(self) -> None:
        """What it was about is given up."""
        self._steps = iter(())
        self._due = True

    def _look(self) -> Iterator[None]:
        source, announcements = self._source, self._announcements
        announcements.take_noted()
        seen = {oid: facts for oid in sorted(source.catalog) if (facts := self._seen(oid)) is not None}
        yield
        if gone := [oid for oid in announcements.oids - seen.keys() if source.can_read(oid) and oid not in source.catalog]:
            announcements.drop(self._connection, gone)
            self._met("looks that missed tables")
            yield
        for facts in [facts for facts in seen.values() if announcements.outdated(facts)]:
            self._show(facts)
            yield
        published = {oid for oid, facts in seen.items() if _published(facts)}
        for oid in [oid for oid in source.catalog if oid not in published and oid not in announcements.oids]:
            self._admit(oid)
            yield

    def _seen(self, oid: int) -> Facts | None:
        facts = self._source.facts(oid)
        assert facts is not None
        return facts if _published(facts) or oid in self._announcements.oids else None

    def _show(self, seen: Facts) -> None:
        """Under the table's lock, where it still has the name and the place with which it was seen."""
        fresh = self._source.facts(seen.oid) if self._source.can_read(seen.oid) else None
        if fresh is not None and (fresh.qualified, _published(fresh)) == (seen.qualified, _published(seen)):
            self._announcements.show(self._connection, [fresh])
            self._announcements.shown(fresh)
            self._met("tables shown by looks")

    def _admit(self, oid: int) -> None:
        source = self._source
        session = source.begin()
        if oid in source.catalog and not source.catalog[oid].way and source.can_publish(session, oid):
            source.publish(session, oid)
            source.commit(session)
            self._met("tables published by looks")
            self._due = True
        else:
            source.rollback(session)


class _Emitting:
    """A connection that knows one statement: ``pg_logical_emit_message``."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def execute(self, _: str, given: tuple[Any, str]) -> None:
        self._source.tell(given[1].encode())


def _published(facts: Facts) -> bool:
    return facts.publishing is not None and facts.publishing.published
