"""A model of Postgres: sessions with MVCC and row locks, the WAL as a list of commits, snapshots as ``pg_current_snapshot()`` gives them.

What it keeps to: commit order is WAL order; a commit stands in the WAL before it is visible (for as long as a synchronous standby
takes), and its locks and its place among the running transactions last until it is; one that does not wait for the disk
(``synchronous_commit = off``) is visible before its WAL is safe, and a crash may take it back; the walsender sees safe WAL only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final

from cdc.model.table import Table
from tests.sim.tables import Key, Row, is_toasted, key_of, renamed

Rows = dict[Key, Row]
Locks = dict[tuple[int, Key], "Session"]

FIRST_NORMAL_XID: Final = 3
_XIDS: Final = 2**32


@dataclass(eq=False, slots=True)
class Change:
    """One WAL record of a row, a TRUNCATE or a logical message. ``xid``: of the (sub)transaction, 64 bits wide."""

    lsn: int
    xid: int
    kind: str
    """I, U, D, T (``tables``), M (``content``) or A, an ALTER TABLE (``tables``: before and after; ``content``: what the event trigger says of it)."""
    table: Table | None = None
    old: Row | None = None
    new: Row | None = None
    unchanged: frozenset[str] = frozenset()
    """Columns whose TOASTed value an update did not touch."""
    tables: tuple[Table, ...] = ()
    content: bytes = b""

    @property
    def silent(self) -> bool:
        """Nothing of it is in the stream: what an ALTER TABLE has changed is told with the next row."""
        return self.kind == "A" and not self.content

    @property
    def moves(self) -> bool:
        """An update that changes the row's key."""
        assert self.table is not None
        assert self.old is not None
        assert self.new is not None
        return key_of(self.table, self.old) != key_of(self.table, self.new)


@dataclass(frozen=True, slots=True)
class Commit:
    xid: int
    changes: tuple[Change, ...]
    commit_lsn: int
    end_lsn: int
    ts_us: int
    gid: str = ""
    """Of COMMIT PREPARED."""

    @property
    def lsn(self) -> int:
        """Where its record begins."""
        return self.commit_lsn


@dataclass(frozen=True, slots=True)
class Abort:
    """``gone``: what of the transaction was rolled back, a subtransaction or all of it."""

    xid: int
    gone: int
    lsn: int
    end_lsn: int


@dataclass(frozen=True, slots=True)
class Prepare:
    xid: int
    changes: tuple[Change, ...]
    gid: str
    lsn: int
    end_lsn: int


@dataclass(frozen=True, slots=True)
class RolledBack:
    """ROLLBACK PREPARED."""

    xid: int
    gid: str
    lsn: int
    end_lsn: int


End = Commit | Abort | Prepare | RolledBack


class State(dict[int, Rows]):
    """Table OID → its rows. Rows are never changed in place."""

    def apply(self, change: Change) -> None:
        if change.kind == "T":
            for table in change.tables:
                self[table.oid] = {}
        elif change.kind == "A":
            before, after = change.tables
            names = renamed(before, after)
            if names is not None:
                self[after.oid] = {key: _under(row, names) for key, row in self.get(after.oid, {}).items()}
        elif change.table is not None:
            rows = self.setdefault(change.table.oid, {})
            if change.old is not None:
                del rows[key_of(change.table, change.old)]
            if change.new is not None:
                rows[key_of(change.table, change.new)] = change.new

    def copied(self) -> State:
        return State({oid: dict(rows) for oid, rows in self.items()})


def _under(row: Row, names: Mapping[str, str]) -> Row:
    return {names[name]: value for name, value in row.items() if name in names}


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
    altered: dict[int, Table] = field(default_factory=dict)


@dataclass(slots=True)
class Slot:
    confirmed: int
    saved: int
    """What a crash of the server finds."""


class Source:
    """The server. Everything random comes from ``chance``."""

    def __init__(self, chance: Random, tables: list[Table], first_xid: int, first_lsn: int) -> None:
        self._chance = chance
        self.tables = {table.oid: table for table in tables}
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
        self._locks: Locks = {}
        self._next_xid = first_xid
        self._latest_completed = first_xid - 1
        self._now_us = 1_700_000_000_000_000

    # --- transactions ---------------------------------------------------------------------------------------------------------

    def begin(self) -> Session:
        session = Session()
        self.sessions.append(session)
        return session

    def view(self, session: Session, oid: int) -> Rows:
        """The table as the session sees it."""
        state = State({oid: dict(self.visible[oid])})
        for change in session.changes:
            if change.kind in "TA" or (change.table is not None and change.table.oid == oid):
                state.apply(change)
        return state[oid]

    def can_touch(self, session: Session, oid: int) -> bool:
        return all(oid not in other.exclusive for other in self._others(session))

    def can_exclude(self, session: Session, oid: int) -> bool:
        """Whether the table is free for a TRUNCATE or an ALTER."""
        return not self.read_locks.get(oid) and all(
            oid not in other.touched and oid not in other.exclusive for other in self._others(session)
        )

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

    def table(self, session: Session, oid: int) -> Table:
        return session.altered.get(oid) or self.tables[oid]

    def write(self, session: Session, oid: int, old: Row | None, new: Row | None, lsn: int | None = None) -> int:
        """Inserts, updates or deletes a row whose keys are locked; returns the record's LSN. ``lsn``: another row's of the same COPY."""
        table = self.table(session, oid)
        kind = "I" if old is None else "D" if new is None else "U"
        unchanged: frozenset[str] = frozenset()
        if old is not None and new is not None:
            unchanged = frozenset(name for name in table.names if is_toasted(new.get(name)) and new.get(name) is old.get(name))
        at = self._record() if lsn is None else lsn
        self._add(session, Change(at, self._xid_of(session), kind, table, old, new, unchanged))
        return at

    def truncate(self, session: Session, oids: list[int]) -> None:
        session.exclusive.update(oids)
        session.touched.update(oids)
        tables = tuple(self.table(session, oid) for oid in oids)
        self._add(session, Change(self._record(), self._xid_of(session), "T", tables=tables))

    def alter(self, session: Session, table: Table, content: bytes = b"") -> None:
        """The table's definition becomes another, for this session at once, for others when it is visible. content: the event trigger's message."""
        before = self.table(session, table.oid)
        session.exclusive.add(table.oid)
        session.touched.add(table.oid)
        session.altered[table.oid] = table
        xid = self._xid_of(session)
        self._add(session, Change(self._record(), xid, "A", tables=(before, table), content=content))

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
        session = self.begin()
        self._add(session, Change(self._record(), self._xid_of(session), "M", content=content))
        commit = self.commit(session)
        assert commit is not None
        return commit

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
        state = State({oid: {} for oid in self.tables})
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

    def _add(self, session: Session, change: Change) -> None:
        assert session.xid is not None
        session.changes.append(change)
        self.trails.setdefault(session.xid, []).append(change)

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
        self.files.update(table.oid for change in commit.changes if change.kind == "T" for table in change.tables)
        self.tables.update(session.altered)
        self.highest.update({oid: max(table.columns[-1].attnum, self.highest[oid]) for oid, table in session.altered.items()})

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
