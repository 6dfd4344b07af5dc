"""The conditions for capture to stream: the right server, the publication, the slot, and that they continue this log.

Also the one place where a requested reload (``cdc.state.reloads``) is carried out. Everything here can be done again after a crash at any
point: nothing is recorded before what it says is so.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence, Set
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psycopg
import structlog

from cdc import source
from cdc.capture.stream import Connection, System
from cdc.capture.toast import ToastMemory
from cdc.crashpoint import crashpoint
from cdc.errors import SourceError
from cdc.log.contract import LogWriter
from cdc.log.home import open_reader
from cdc.model.pgtypes import PINNED_SETTINGS
from cdc.model.position import Lsn, format_lsn
from cdc.model.selection import matches
from cdc.privacy.policies import Protection
from cdc.settings.models import Source as SourceSettings
from cdc.source import identity
from cdc.source.aside import excused, find_aside, load_aside, save_aside, withheld
from cdc.source.catalog import CatalogTable, find_tables, load_published, misnamed, select_tables
from cdc.source.connection import address
from cdc.source.facts import load_facts
from cdc.source.identity import Branch, Identity
from cdc.source.kin import read_kin
from cdc.source.membership import Membership, check_membership, read_membership
from cdc.source.patience import PatientConnection
from cdc.source.publication import read_publication, refuse_unreadable
from cdc.source.slot import SlotFacts, slot_from_now
from cdc.state import reloads
from snapshots.progress import SnapshotProgress

_log = structlog.get_logger("capture")


class Preparation:
    """Brings source and log together before each connection's stream. ``progress`` and ``memory`` hear when tables are to be read again."""

    def __init__(
        self,
        settings: SourceSettings,
        folder: Path,
        writer: LogWriter,
        memory: ToastMemory,
        progress: SnapshotProgress,
        protection: Protection,
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._writer = writer
        self._memory = memory
        self._progress = progress
        self._protection = protection
        self._begun = False

    def run(self) -> Identity:
        """Returns the source as it is now recorded. Raises SourceError, ConfigError, or Stopped for a stop state."""
        dsn = self._settings.dsn.get_secret_value()
        with source.connect(dsn) as connection:
            _refuse_standby(connection, dsn)
            known = identity.recorded(self._folder)
            # Only before anything else runs: the snapshot's thread has not begun then.
            reload = None if self._begun or known is None else reloads.requested(self._folder)
            system, history = self._ask_system(connection, dsn)
            found = self._identity(system)
            if known is not None and not (reload and reload.whole):
                identity.check_system(known, found)
            published = read_membership(connection, self._settings.publication)
            # Asked after that: a table that is dropped in between must not look as if it had left the publication.
            tables = find_tables(connection)
            aside = find_aside(connection, self._settings.publication, self._folder)
            out = self._out_of_publication(published, tables, known, reload, excused(aside, published))
            self._publish(connection, tables, withheld(aside))
            if known is None or (reload and reload.whole):
                now = self._begin(connection, known, found, reload)
            else:
                now = self._go_on(connection, known, found, history)
                if out:
                    self._read_again(out)
            if not self._begun:  # else the catalog's thread writes to the file
                here = now.membership.tables
                save_aside(self._folder, {oid: told for oid, told in load_aside(self._folder).items() if oid not in here})
            if reload is not None:
                crashpoint("capture.reload_prepared")
                reloads.carried_out(self._folder)
            self._begun = True
            return now

    # --- the ways to begin ---------------------------------------------------------------------------------------------------

    def _begin(
        self, connection: psycopg.Connection, known: Identity | None, found: Identity, reload: reloads.ReloadRequest | None
    ) -> Identity:
        """The slot's present place is where this log begins, or (after a stop state) begins again."""
        settings = self._settings
        if reload is None:
            facts = source.ensure_slot(connection, settings, create=True, two_phase=settings.two_phase, record=self._folder)
        else:
            followed = self._writer.head.commit_lsn if known is not None and identity.same_slot(known, found) else None
            facts = slot_from_now(connection, settings, two_phase=settings.two_phase, record=self._folder, followed=followed)
        crashpoint("capture.slot_ready")
        begin = facts.confirmed_lsn or Lsn(0)
        if reload is not None:
            self._read_everything_again(connection, reload, begin)
            self._writer.begin_history()
        if begin != self._writer.head.commit_lsn:
            self._writer.commit(begin, self._writer.head.commit_ts_us)
        if reload is not None:
            self._memory.begin_at(self._writer.head.position)
        now = replace(
            found, since_lsn=int(begin), since_position=int(self._writer.head.position), membership=self._membership(connection)
        )
        crashpoint("capture.before_identity")
        identity.record(self._folder, now)
        crashpoint("capture.identified")
        return now

    def _go_on(self, connection: psycopg.Connection, known: Identity, found: Identity, history: Sequence[Branch]) -> Identity:
        facts = source.ensure_slot(connection, self._settings, create=False)
        crashpoint("capture.slot_known")
        identity.check_history(known, found, history, self._writer.head, facts)
        now = replace(
            found, since_lsn=known.since_lsn, since_position=known.since_position, membership=self._membership(connection)
        )
        if now != known:
            identity.record(self._folder, now)
        _warn_of_pauses(facts)
        return now

    def _read_everything_again(self, connection: psycopg.Connection, reload: reloads.ReloadRequest, begin: Lsn) -> None:
        """The log's topics say that they are empty before the rows come; tables that are not known by this name begin as new ones."""
        with closing(open_reader(self._folder)) as log:
            topics = {topic.name for topic in log.topics()}
        tables = load_published(connection, self._settings.publication, self._settings.tables)
        _log.warning("reads every table again", state=str(reload.state), tables=len(tables), lsn=format_lsn(begin))
        self._progress.forget_all()
        for table in tables:
            self._progress.restart(table.oid, empties=table.qualified in topics)
        # No prepared transaction is open (``slot_from_now``), so what is kept of some has been decided unseen.
        shutil.rmtree(self._folder / "prepared", ignore_errors=True)
        crashpoint("capture.reload_marked")

    def _read_again(self, oids: Sequence[int]) -> None:
        _log.warning("reads tables again that were out of the publication", tables=len(oids))
        for oid in oids:
            # As one that has just joined: what was changed in transactions that were open then is not streamed.
            self._progress.forget(oid)
            self._progress.restart(oid, empties=True)
            self._memory.forget(oid)
        self._memory.commit(self._writer.head.position)

    # --- what is there -------------------------------------------------------------------------------------------------------

    def _ask_system(self, connection: PatientConnection, dsn: str) -> tuple[System, tuple[Branch, ...]]:
        with closing(Connection(connection.opened_with, PINNED_SETTINGS, name=address(dsn))) as walsender:
            system = walsender.identify()
            history = walsender.query(f"TIMELINE_HISTORY {system.timeline}".encode())[1] if system.timeline > 1 else b""
        return system, identity.parse_history(history.decode())

    def _identity(self, system: System) -> Identity:
        settings = self._settings
        return Identity(system.identifier, system.timeline, system.database, settings.slot, settings.publication, 0, 0)

    def _out_of_publication(
        self,
        found: Membership,
        tables: Sequence[CatalogTable],
        known: Identity | None,
        reload: reloads.ReloadRequest | None,
        excused: Set[int],
    ) -> tuple[int, ...]:
        """The tables that were, for a while, not published; asked for before anything is put back. Raises Stopped without a request, but for
        tables (OIDs) that are ``excused``."""
        if known is None or (reload and reload.whole):
            return ()
        wanted = {table.table.oid for table in select_tables(tables, self._settings.tables, begun=True)}
        # What was seen while capture ran has been read again since.
        seen = {oid: facts.publishing.ways for oid, facts in load_facts(self._folder).items() if facts.publishing}
        membership = known.membership.seen(seen)
        if reload is None:
            check_membership(self._settings.publication, membership, found, wanted - excused)
            return ()
        return membership.interrupted(found, wanted)

    def _publish(self, connection: psycopg.Connection, tables: Sequence[CatalogTable], withheld: Collection[int]) -> None:
        settings = self._settings
        begun = identity.recorded(self._folder) is not None
        undecided = self._protection.undecided
        undecided.note_kin(read_kin(connection, undecided.guarded, undecided.kin))
        source.ensure_publication(connection, settings, self._admissible(connection, tables), begun=begun, withheld=withheld)
        if not self._begun:
            refuse_unreadable(connection, settings.publication, select_tables(tables, settings.tables, begun=True))
            for unknown in misnamed(tables, settings.tables):
                _log.warning("a table that source.tables names is not captured", problem=str(unknown), hint=unknown.hint)
        self._protection.begin(load_published(connection, settings.publication, settings.tables))
        crashpoint("capture.published")

    def _admissible(self, connection: psycopg.Connection, tables: Sequence[CatalogTable]) -> list[CatalogTable]:
        """Without the tables that must not join the publication while nobody has decided on their key. The catalog's watch names them."""
        undecided = self._protection.undecided
        barred = {table.name for table in tables if undecided.begun and undecided.barred(table.table) is not None}
        publication = read_publication(connection, self._settings.publication) if barred else None
        inside = publication.tables if publication is not None else frozenset()
        return [table for table in tables if table.name not in barred or table.name in inside]

    def _membership(self, connection: psycopg.Connection) -> Membership:
        """The publication's membership of captured tables: another one may come and go until it is selected."""
        found = read_membership(connection, self._settings.publication)
        return replace(
            found, tables={oid: entry for oid, entry in found.tables.items() if matches(self._settings.tables, entry[0])}
        )


def _refuse_standby(connection: psycopg.Connection, dsn: str) -> None:
    row = connection.execute("select pg_is_in_recovery()").fetchone()
    if row and row[0]:
        raise SourceError(
            f"{address(dsn)} is a standby: publication, slot and snapshot need the primary",
            hint="point source.dsn at the primary; with several hosts in it, add target_session_attrs=read-write",
        )


def _warn_of_pauses(facts: SlotFacts) -> None:
    if facts.idle_timeout_s is not None:
        _log.warning(
            "a pause of capture longer than idle_replication_slot_timeout loses the slot",
            slot=facts.name,
            idle_replication_slot_timeout_s=facts.idle_timeout_s,
        )
