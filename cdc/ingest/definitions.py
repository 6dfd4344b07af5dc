"""Capture's knowledge of the source's definitions, wired: the log's topics, the facts kept beside them, the catalog and the thread that watches it.

What a table's rows mean depends on where in the stream they stand, and the catalog only shows how a table is now. So whatever is learned from
the catalog takes the way through the stream: the watching thread, like the event trigger, writes the facts that it finds as a logical message
into the WAL, and ``cdc.capture.definitions`` decides what they mean at the place where they come back. The stream's side only asks for looks at
the catalog, and asks the catalog itself where a RELATION message lacks something, such as column numbers (``cdc.capture.attnums``). Any role may emit
such messages, so ours carry a password: one that this process makes up, or the trigger's.

Two things are kept between processes, and each connection's ``Definitions`` begin with them, as of the log's last durable cut: the newest definition
of each topic, in the log itself, and the facts that the table had then, beside it (``catalog.json``). Facts are saved only once the changes before
them are durable. A connection that is lost takes with it what was not, and the stream that is sent again leads to the same decisions.

- **DDL while capture was down** shows as a difference between the kept facts and the first look at the catalog. For that, a table's facts are
  kept before its first row is read (``_remember_first``).
- **Facts that were lost** leave nothing to compare with: such tables are read again.
- **A table that we have taken out of the publication**, as it could not be captured, is noted before it leaves (``cdc.source.aside``). Any other that
  is missing there was taken out by somebody else, and capture stops (TABLE_UNPUBLISHED).
- **A catalog that cannot be asked** delays what only it can show; the watching thread tries again, and ``blind`` says so.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import psycopg
import structlog

from cdc import source
from cdc.capture.definitions import CapturedPart, Definitions, Outside
from cdc.errors import Stopped
from cdc.log.contract import captured
from cdc.log.home import open_reader
from cdc.log.orphans import ended_topics
from cdc.model.facts import Facts
from cdc.model.selection import matches
from cdc.model.table import Table
from cdc.settings.models import Source as SourceSettings
from cdc.source.aside import find_aside, load_aside, save_aside
from cdc.source.facts import load_facts, read_facts, save_facts
from cdc.source.kin import Undecided
from cdc.source.membership import table_unpublished
from cdc.source.problems import Refusal
from cdc.source.trigger import SetAside, trigger_password
from cdc.source.watch import CatalogWatch

_log = structlog.get_logger("capture")


class Evolving:
    """One for the capture process; each connection gets its ``definitions``, which begin at the log's last durable cut."""

    def __init__(
        self,
        settings: SourceSettings,
        folder: Path,
        logged: Callable[[Table], Table],
        undecided: Undecided,
        fail: Callable[[Exception], None],
        stop: threading.Event,
    ) -> None:
        """``folder``: the log's. ``logged``: a table's definition as the log has it. ``undecided``: of the column policies.
        ``fail``: takes what the watching thread ends with."""
        self._settings = settings
        self._folder = folder
        self._logged = logged
        self._undecided = undecided
        self._fail = fail
        self._stop = stop
        self._password = secrets.token_hex(16)
        self._watch: CatalogWatch | None = None

    def start(self) -> None:
        """Once publication and slot exist, before the snapshot reads its first row."""
        dsn = self._settings.dsn.get_secret_value()
        tables, ended = self._topics()
        facts = load_facts(self._folder)
        with source.connect(dsn) as connection:
            self._remember_first(connection, tables, ended, facts)
            aside = find_aside(connection, self._settings.publication, self._folder)
        out = {oid: told for oid, told in aside.items() if told.entry is None}
        known = {*facts, *(table.oid for table in tables.values())}
        self._watch = CatalogWatch(
            self._settings, known, self._password, self._stop, self._fail, self._undecided, out=out, remember=self._remember_aside
        )
        self._watch.start()

    def refused(self) -> Mapping[int, Refusal]:
        """The selected tables (by OID) that are not captured, and why; from any thread."""
        return {} if self._watch is None else self._watch.refused

    def join(self) -> None:
        """After ``stop`` was set."""
        if self._watch is not None:
            self._watch.join()

    def left_out(self) -> Sequence[str]:
        """Selected tables, or parts of them, that do not reach the log: one line each with what helps, as of the last look at the catalog."""
        return () if self._watch is None else self._watch.left_out

    def blind(self) -> str | None:
        """Why the catalog has not been looked at for a while, with what helps; None when all is well."""
        return None if self._watch is None else self._watch.blind

    def notes(self) -> Sequence[str]:
        """Facts to know about captured tables: one line each with what helps, as of the last look at the catalog."""
        return () if self._watch is None else self._watch.notes

    def definitions(self, catalog: psycopg.Connection) -> Definitions:
        """``catalog``: asked what the stream does not tell. The log is not being written."""
        assert self._watch is not None, "start comes first"
        tables, ended = self._topics()
        trigger = trigger_password(catalog)
        return Definitions(
            partial(self._ask, catalog),
            known=tables.values(),
            ended=ended,
            facts=load_facts(self._folder),
            passwords=[password for password in (self._password, trigger) if password],
            selection=CapturedPart(
                publication=self._settings.publication, wanted=partial(matches, self._settings.tables), logged=self._logged
            ),
            outside=Outside(
                look=self._watch.look_soon,
                unread=_unread,
                note=self._watch.note,
                unpublished=self._unpublished,
                keep=partial(save_facts, self._folder),
            ),
        )

    def _remember_first(
        self, connection: psycopg.Connection, tables: dict[str, Table], ended: Collection[str], facts: dict[int, Facts]
    ) -> None:
        """Remembers the definitions that hold when a table's first row is read."""
        lost = sorted(name for name, table in tables.items() if name not in ended and table.oid not in facts)
        if lost:
            _log.warning("tables are read again, as it is not known what has become of them since they were logged", tables=lost)
        published = read_facts(connection, self._settings.publication, published=True)
        if new := first_remembered(published, tables, ended, facts):
            facts.update(new)
            save_facts(self._folder, facts)

    def _remember_aside(self, out: Mapping[int, SetAside]) -> None:
        """Whatever was taken out since the last start: what has come back needs to be known until then (``cdc.source.aside``)."""
        save_aside(self._folder, {**load_aside(self._folder), **out})

    def _ask(self, catalog: psycopg.Connection, oid: int) -> Facts | None:
        found = read_facts(catalog, self._settings.publication, [oid])
        return found[0] if found else None

    def _unpublished(self, table: str) -> Stopped:
        return table_unpublished(self._settings.publication, [table], again=False)

    def _topics(self) -> tuple[dict[str, Table], list[str]]:
        """The newest definition of each topic, and the topics whose table is gone."""
        reader = open_reader(self._folder)
        try:
            return {topic.name: topic.table for topic in captured(reader)}, list(ended_topics(reader))
        finally:
            reader.close()


def first_remembered(
    published: Iterable[Facts], tables: Mapping[str, Table], ended: Collection[str], known: Collection[int]
) -> dict[int, Facts]:
    """Chooses the facts to begin with, by OID, when a process starts. Pure.

    A table that has taken another's name is left for the stream to find; one whose rows the log has, though its facts were lost, for the first
    look at the catalog, which has it read again.

    ``published``: what the catalog says now of the tables that are published. ``tables``: each topic's newest definition, by its name. ``ended``:
    the topics whose table is gone. ``known``: the OIDs of tables whose facts were kept.
    """
    logged = {table.oid for name, table in tables.items() if name not in ended}
    return {
        found.oid: found
        for found in published
        if found.oid not in known and found.oid not in logged and _free(tables.get(found.qualified), found.oid)
    }


def _unread() -> None:
    hint = "run deploy/roles.sql of this version again, as a superuser"
    _log.warning("a message of the event trigger cannot be read, so the catalog is asked instead", hint=hint)


def _free(holder: Table | None, oid: int) -> bool:
    return holder is None or holder.oid == oid
