"""A model of Postgres: sessions with MVCC and row locks, the WAL as a list of commits, snapshots as ``pg_current_snapshot()`` gives them.

What it keeps to: commit order is WAL order; a commit stands in the WAL before it is visible (for as long as a synchronous standby
takes), and its locks and its place among the running transactions last until it is; one that does not wait for the disk
(``synchronous_commit = off``) is visible before its WAL is safe, and a crash may take it back; the walsender sees safe WAL only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from cdc.model.facts import Facts
from cdc.model.table import Table
from tests.sim.catalog import FIRST_OTHER_OID, Listing, facts_of, listed
from tests.sim.tables import Key, Row, is_toasted
from tests.sim.wal import Abort, Change, Commit, End, Prepare, RolledBack, Rows, State

Locks = dict[tuple[int, Key], "Session"]

FIRST_NORMAL_XID: Final = 3
PUBLICATION: Final = 16_390
"""Its OID."""
_XIDS: Final = 2**32


@dataclass(eq=False, slots=True)
class Session:
    """One client inside a transaction. ``xid`` is assigned by its first write, as Postgres does."""

    xid: int | None = None
    changes: list[Change] = field(default_factory=list)
    savepoints: list[tuple[int, int | None]] = field(default_factory=list)
    """(how many changes there were, the subtransaction's xid once it has written)."""
    exclusive: set[int] = field(default_factory=set)
    """Tables that it holds for itself (TRUNCATE, ALTER)."""
    touched: set[int] = field(default_factory=set)
    altered: dict[int, Listing] = field(default_factory=dict)
    """What the catalog says to it alone, of tables that it has made, altered or published."""
    dropped: set[int] = field(default_factory=set)

    @property
    def defines(self) -> bool:
        """It has done something about a table as a whole."""
        return bool(self.altered or self.dropped)


@dataclass(slots=True)
class Slot:
    confirmed: int
    saved: int
    """What a crash of the server finds."""


class Source:
    """The server. Everything random comes from ``chance``."""

    def __init__(self, chance: Random, tables: list[Table], first_xid: int, first_lsn: int, *, all_tables: bool = True) -> None:
        """``all_tables``: the publication is FOR ALL TABLES; else it has these tables, and those that are added."""
        self._chance = chance
        self._all_tables = all_tables
        self._oids = FIRST_OTHER_OID
        self.catalog = {table.oid: listed(table, self._way()) for table in tables}
        self.tables = {table.oid: table for table in tables}
        """The catalog's, as everybody sees them who is in no transaction."""
        self._first = tuple(self.tables)
        self._streamed = set(self.tables)
        """Tables that are published where the WAL ends."""
        self.commits: list[Commit] = []
        self.sessions: list[Session] = []
        self.waiting: list[tuple[Session, Commit]] = []
        """Committed in the WAL, not visible yet."""
        self.visible = State({oid: {} for oid in self.tables})
        self.wal_lsn = first_lsn
        self.flushed_lsn = first_lsn
        self.slot = Slot(first_lsn, first_lsn)
        self.read_locks: dict[int, int] = {}
        """Table → how many readers hold ACCESS SHARE."""
        self.files: Counter[int] = Counter()
        """Table → how often it got new files."""
        self.wal: list[End] = []
        """How transactions end, in WAL order."""
        self.trails: dict[int, list[Change]] = {}
        """Transaction → all that it ever wrote, also what was rolled back."""
        self.highest = {table.oid: len(table.columns) for table in tables}
        """The highest number that a column of the table ever had: none has it again."""
        self.prepared: dict[str, Session] = {}
        """By GID."""
        self.told: set[int] = set()
        """Tables that a process has once seen in the catalog."""
        self.rekeyed: set[int] = set()
        """Tables of which the catalog has given a key's column another name: rows in the WAL may have one, and the catalog the other."""
        self._facts: dict[int, tuple[Listing, int, Facts]] = {}
        """What was last said of each table, and when it holds: it is asked for far more often than it changes."""
        self._locks: Locks = {}
        self._next_xid = first_xid
        self._latest_completed = first_xid - 1
        self._now_us = 1_700_000_000_000_000

    # --- transactions ---------------------------------------------------------------------------------------------------------

    def names(self, session: Session) -> set[str]:
        """Names of tables that no other may get now: who gives one that another transaction has given waits for its end."""
        seen = {table.name for oid, table in self.tables.items() if oid not in session.dropped}
        seen.update(listing.table.name for listing in session.altered.values())
        defined = (change for one in self._others(session) for change in one.changes if change.kind in "ACX")
        return seen.union(table.name for change in defined for table in change.tables)

    def begin(self) -> Session:
        session = Session()
        self.sessions.append(session)
        return session

    def view(self, session: Session, oid: int) -> Rows:
        """The table as the session sees it."""
        state = State({oid: dict(self.visible.get(oid, {}))})
        for change in session.changes:
            if change.kind == "T" or any(table.oid == oid for table in (change.table, *change.tables) if table is not None):
                state.apply(change)
        return state[oid]

    def can_touch(self, session: Session, oid: int) -> bool:
        return all(oid not in other.exclusive for other in self._others(session))

    def can_exclude(self, session: Session, oid: int) -> bool:
        """Whether the table is free for a TRUNCATE or an ALTER."""
        return not self.read_locks.get(oid) and all(
            oid not in other.touched and oid not in other.exclusive for other in self._others(session)
        )

    def can_publish(self, session: Session, oid: int) -> bool:
        return all(oid not in other.exclusive and oid not in other.altered for other in self._others(session))

    def can_read(self, oid: int) -> bool:
        return all(oid not in session.exclusive for session in self._running())

    def lock(self, session: Session, oid: int, *keys: Key) -> bool:
        """Row locks, held until the transaction is visible or rolled back. False: somebody else has one."""
        if any(self._locks.get((oid, key), session) is not session for key in keys):
            return False
        for key in keys:
            self._locks[oid, key] = session
        session.touched.add(oid)
        return True

    def listing(self, session: Session, oid: int) -> Listing:
        return session.altered.get(oid) or self.catalog[oid]

    def table(self, session: Session, oid: int) -> Table:
        return self.listing(session, oid).table

    def oids(self, session: Session) -> list[int]:
        """The tables that the session sees."""
        if not session.altered and not session.dropped:
            return list(self.tables)
        return [oid for oid in dict.fromkeys((*self.tables, *session.altered)) if oid not in session.dropped]

    def write(self, session: Session, oid: int, old: Row | None, new: Row | None, lsn: int | None = None) -> int:
        """Inserts, updates or deletes a row whose keys are locked; returns the record's LSN. ``lsn``: another row's of the same COPY."""
        table = self.table(session, oid)
        kind = "I" if old is None else "D" if new is None else "U"
        unchanged: frozenset[str] = frozenset()
        if old is not None and new is not None:
            unchanged = frozenset(name for name in table.names if is_toasted(new.get(name)) and new.get(name) is old.get(name))
        at = self._record() if lsn is None else lsn
        change = Change(at, self._xid_of(session), kind, table, old, new, unchanged, unpublished=self._unpublished(session, [oid]))
        self._add(session, change)
        return at

    def truncate(self, session: Session, oids: list[int]) -> None:
        session.exclusive.update(oids)
        session.touched.update(oids)
        tables = tuple(self.table(session, oid) for oid in oids)
        unpublished = self._unpublished(session, oids)
        self._add(session, Change(self._record(), self._xid_of(session), "T", tables=tables, unpublished=unpublished))

    def alter(self, session: Session, table: Table, *, rewrites: bool = False) -> Change:
        """The table's definition becomes another, for this session at once, for others when it is visible."""
        before = self.listing(session, table.oid)
        session.altered[table.oid] = before.altered(table, self._xid_of(session))
        change = self._about(session, "A", before.table, table)
        change.rewrites = rewrites
        return change

    def create(self, session: Session, table: Table) -> Change:
        session.altered[table.oid] = listed(table, self._way() if self._all_tables else 0)
        return self._about(session, "C", table)

    def publish(self, session: Session, oid: int) -> Change:
        """ALTER PUBLICATION ADD TABLE: what others do to the table's rows goes on."""
        listing = self.listing(session, oid)
        session.altered[oid] = replace(listing, way=self._way())
        session.touched.add(oid)
        return self._add(session, Change(self._record(), self._xid_of(session), "P", tables=(listing.table,)))

    def drop(self, session: Session, oid: int) -> Change:
        table = self.table(session, oid)
        session.altered.pop(oid, None)
        session.dropped.add(oid)
        return self._about(session, "X", table)

    def dropping(self) -> set[int]:
        """Tables that some transaction has dropped, which the catalog still shows."""
        return {oid for session in self._running() for oid in session.dropped}

    def new_oid(self) -> int:
        """No other object ever gets it."""
        self._oids += self._chance.randrange(1, 9)
        return self._oids

    def savepoint(self, session: Session) -> None:
        session.savepoints.append((len(session.changes), None))

    def rollback_to(self, session: Session) -> list[Change]:
        """The last savepoint and what came after it is gone; returns that."""
        count, xid = session.savepoints.pop()
        dropped = session.changes[count:]
        del session.changes[count:]
        if xid is not None:
            assert session.xid is not None
            self._abort(session.xid, *sorted({xid, *(change.xid for change in dropped)}))
            self._complete(xid)
        return dropped

    def release(self, session: Session) -> None:
        session.savepoints.pop()

    def rollback(self, session: Session) -> None:
        self.sessions.remove(session)
        self._release_locks(session)
        if session.xid is not None:
            self._abort(session.xid, session.xid)
            self._complete(session.xid)

    def prepare(self, session: Session) -> Prepare | None:
        """PREPARE TRANSACTION: from now on nobody's session. Nothing when it has not written."""
        if session.xid is None:
            return None
        self.sessions.remove(session)
        gid = f"it's {session.xid}"
        lsn = self._record()
        prepare = Prepare(session.xid, tuple(session.changes), gid, lsn, self.wal_lsn)
        self.wal.append(prepare)
        self.prepared[gid] = session
        self.flush()
        return prepare

    def rollback_prepared(self, gid: str) -> None:
        session = self.prepared.pop(gid)
        assert session.xid is not None
        self._release_locks(session)
        lsn = self._record()
        self.wal.append(RolledBack(session.xid, gid, lsn, self.wal_lsn))
        self.flush()
        self._complete(session.xid)

    def commit_prepared(self, gid: str, *, waits: bool = False) -> Commit:
        session = self.prepared.pop(gid)
        commit = self._commit(session, gid)
        self.flush()
        self._show_now_or_later(session, commit, waits=waits)
        return commit

    def commit(self, session: Session, *, waits: bool = False, flushed: bool = True) -> Commit | None:
        """waits: for a synchronous standby, before anybody else sees it. flushed: False for ``synchronous_commit = off``."""
        self.sessions.remove(session)
        if session.xid is None:
            self._release_locks(session)
            return None
        commit = self._commit(session)
        if flushed:
            self.flush()
        self._show_now_or_later(session, commit, waits=waits and flushed)
        return commit

    def show(self, number: int) -> None:
        """The standby has answered for one of the waiting commits."""
        self._show(*self.waiting.pop(number))

    def flush(self) -> None:
        self.flushed_lsn = self.wal_lsn

    def noise(self) -> None:
        """WAL of other databases, vacuum, checkpoints."""
        self._record_end(self._chance.randrange(24, 5000))

    # --- for readers ------------------------------------------------------------------------------------------------------------

    def snapshot(self) -> str:
        """``pg_current_snapshot()``: top-level transactions only, subtransactions never show."""
        running = {session.xid for session in self._running() if session.xid is not None}
        xmax = self._after(self._latest_completed)
        listed = sorted(xid for xid in running if xid < xmax)
        return f"{min(running | {xmax})}:{xmax}:{','.join(map(str, listed))}"

    def current_xid(self) -> int:
        """``pg_current_xact_id()`` in a transaction of its own."""
        xid = self._assign()
        self._record()
        self._complete(xid)
        return xid

    def idle_xids(self) -> list[int]:
        """``backend_xid`` of sessions that are idle in a transaction."""
        return [session.xid for session in self.sessions if session.xid is not None]

    def emit(self, content: bytes) -> Commit:
        """``pg_logical_emit_message(true, 'headwater', …)`` in a transaction of its own, ``synchronous_commit = local``."""
        return self._emit("M", content)

    def tell(self, content: bytes) -> Commit:
        """The same with the prefix of messages about definitions."""
        return self._emit("L", content)

    def facts(self, oid: int, session: Session | None = None) -> Facts | None:
        """What the catalog says of a table; to a session: as its event trigger tells of it."""
        if session is None:
            listing, files = self.catalog.get(oid), self.files[oid]
            if listing is None:
                return None
            known = self._facts.get(oid)
            if known is None or known[0] is not listing or known[1] != files:
                known = self._facts[oid] = listing, files, facts_of(listing, files)
            return known[2]
        own = sum(oid in change.refiled for change in session.changes)
        return facts_of(self.listing(session, oid), self.files[oid] + own, triggered=True)

    # --- accidents --------------------------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """And start again: what was not flushed has never been, open transactions are gone, what waited for a standby is visible."""
        self.commits = [commit for commit in self.commits if commit.end_lsn <= self.flushed_lsn]
        self.wal = [end for end in self.wal if end.end_lsn <= self.flushed_lsn]
        self.trails = {xid: [change for change in changes if change.lsn < self.flushed_lsn] for xid, changes in self.trails.items()}
        lost = [session.xid for session in self.sessions if session.xid is not None]
        for session, commit in self.waiting:
            self._define(session, commit)
        self.sessions.clear()
        self.waiting.clear()
        kept = set(map(id, self.prepared.values()))
        self._locks = {what: holder for what, holder in self._locks.items() if id(holder) in kept}
        self.read_locks.clear()
        self.wal_lsn = self.flushed_lsn
        state = State({oid: {} for oid in self._first})
        for commit in self.commits:
            for change in commit.changes:
                state.apply(change)
        self.visible = state
        self._latest_completed = self._next_xid - 1
        self.slot.confirmed = self.slot.saved
        for _ in range(3):
            self._record()
        for xid in lost:
            # Nothing in the WAL ends them; decoding finds out from the next list of what is running, or never in this run.
            if self._chance.random() < 0.5:
                self._abort(xid, xid)
        self.flush()

    def save_slot(self) -> None:
        """A checkpoint."""
        self.slot.saved = self.slot.confirmed

    def confirm(self, lsn: int) -> None:
        self.slot.confirmed = max(self.slot.confirmed, lsn)

    # --- inside -----------------------------------------------------------------------------------------------------------------

    def _others(self, session: Session) -> Iterator[Session]:
        return (other for other in self._running() if other is not session)

    def _running(self) -> Iterator[Session]:
        yield from self.sessions
        yield from self.prepared.values()
        yield from (session for session, _ in self.waiting)

    def _add(self, session: Session, change: Change) -> Change:
        assert session.xid is not None
        session.changes.append(change)
        self.trails.setdefault(session.xid, []).append(change)
        return change

    def _about(self, session: Session, kind: str, *tables: Table) -> Change:
        """A statement about a table as a whole, which nobody else may touch until the transaction has ended."""
        session.exclusive.add(tables[0].oid)
        session.touched.add(tables[0].oid)
        xid = self._xid_of(session)
        return self._add(session, Change(self._record(), xid, kind, tables=tables))

    def _emit(self, kind: str, content: bytes) -> Commit:
        session = self.begin()
        self._add(session, Change(self._record(), self._xid_of(session), kind, content=content))
        commit = self.commit(session)
        assert commit is not None
        return commit

    def _way(self) -> int:
        """The catalog row by which a table is published from now on."""
        return PUBLICATION if self._all_tables else self.new_oid()

    def _unpublished(self, session: Session, oids: Iterable[int]) -> frozenset[int]:
        return frozenset(oid for oid in oids if oid not in self._streamed and not self.listing(session, oid).way)

    def _abort(self, xid: int, *gone: int) -> None:
        lsn = self._record()
        self.wal += [Abort(xid, one, lsn, self.wal_lsn) for one in gone]

    def _commit(self, session: Session, gid: str = "") -> Commit:
        assert session.xid is not None
        self._now_us += self._chance.randrange(-500_000, 2_000_000)
        commit_lsn = self.wal_lsn
        end_lsn = self._record_end(self._chance.randrange(40, 120))
        commit = Commit(session.xid, tuple(session.changes), commit_lsn, end_lsn, self._now_us, gid)
        self.commits.append(commit)
        self.wal.append(commit)
        self._streamed.update(oid for oid, listing in session.altered.items() if listing.way)
        self.rekeyed.update(
            oid for oid, now in session.altered.items() if oid in self.catalog and not _same_key(self.catalog[oid], now)
        )
        return commit

    def _show_now_or_later(self, session: Session, commit: Commit, *, waits: bool) -> None:
        if waits:
            self.waiting.append((session, commit))
        else:
            self._show(session, commit)

    def _show(self, session: Session, commit: Commit) -> None:
        for change in commit.changes:
            self.visible.apply(change)
        self._define(session, commit)
        self._release_locks(session)
        self._complete(commit.xid)

    def _define(self, session: Session, commit: Commit) -> None:
        """What the catalog says from now on."""
        self.files.update(oid for change in commit.changes for oid in change.refiled)
        for oid, listing in session.altered.items():
            self.catalog[oid], self.tables[oid] = listing, listing.table
            self.highest[oid] = max(listing.table.columns[-1].attnum, self.highest.get(oid, 0))
        for oid in session.dropped:
            self.catalog.pop(oid, None)
            self.tables.pop(oid, None)

    def _release_locks(self, session: Session) -> None:
        self._locks = {what: holder for what, holder in self._locks.items() if holder is not session}

    def _xid_of(self, session: Session) -> int:
        if session.xid is None:
            session.xid = self._assign()
        xid = session.xid
        for number, (count, sub) in enumerate(session.savepoints):
            if sub is None:
                sub = self._assign()
                session.savepoints[number] = (count, sub)
            xid = sub
        return xid

    def _assign(self) -> int:
        xid, self._next_xid = self._next_xid, self._after(self._next_xid)
        return xid

    @staticmethod
    def _after(xid: int) -> int:
        """The next full transaction id: the three special ones are left out of every epoch."""
        low = (xid + 1) % _XIDS
        return xid + 1 if low >= FIRST_NORMAL_XID else xid + 1 - low + FIRST_NORMAL_XID

    def _complete(self, xid: int) -> None:
        self._latest_completed = max(self._latest_completed, xid)

    def _record(self) -> int:
        """A WAL record; returns where it begins."""
        begin = self.wal_lsn
        self._record_end(self._chance.randrange(24, 200))
        return begin

    def _record_end(self, length: int) -> int:
        self.wal_lsn += (length + 7) // 8 * 8
        return self.wal_lsn


def _same_key(before: Listing, now: Listing) -> bool:
    return [column.name for column in before.table.key] == [column.name for column in now.table.key]
