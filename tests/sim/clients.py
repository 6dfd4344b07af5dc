"""What the clients of the database do: a step is one statement of one of them."""

from __future__ import annotations

from tests.sim.course import Course
from tests.sim.definers import Definers
from tests.sim.source import Session, Source
from tests.sim.tables import Row, key_of, keyless, new_key, new_value
from tests.sim.wal import Change


class Clients:
    def __init__(self, course: Course, source: Source) -> None:
        self._course = course
        self._source = source
        self._definers = Definers(course, source)
        self._begun = 0
        self._tags = 0

    @property
    def done(self) -> bool:
        """All that they were to do is begun, and none of it is open any more."""
        source = self._source
        return self._begun >= self._course.work.transactions and not source.sessions and not source.prepared

    def prefill(self) -> None:
        """Rows from before the slot."""
        source, session = self._source, self._source.begin()
        for table in source.tables.values():
            for _ in range(self._course.work.rows_before):
                row = self._new_row(table.oid, session)
                if key_of(table, row) not in source.view(session, table.oid):
                    source.lock(session, table.oid, key_of(table, row))
                    source.write(session, table.oid, None, row)
        source.commit(session)
        source.noise()
        source.flush()
        source.slot.confirmed = source.slot.saved = source.flushed_lsn

    def step(self) -> bool:
        """False: nobody is there."""
        source, chance, work = self._source, self._course.chance, self._course.work
        asks = self._course.rare.asks
        if asks and self._course.faulty and chance.random() < asks:
            self._course.asking.ask(chance, source, work.keys)
            return True
        if (
            self._begun < work.transactions
            and self._course.faulty
            and len(source.sessions) < work.sessions
            and chance.random() < 0.5
        ):
            source.begin()
            self._begun += 1
            return True
        if source.prepared and chance.random() < (0.3 if source.sessions else 0.7):
            self._end_prepared(chance.choice(list(source.prepared)))
            return True
        if not source.sessions:
            return bool(source.prepared)
        session = chance.choice(source.sessions)
        ending = work.commits if self._course.faulty else 0.9
        roll = chance.random()
        if roll < ending:
            self._commit(session)
        elif roll < ending + work.rollbacks * (1 - ending):
            self._course.say(f"rollback of {session.xid}")
            self._course.counts["rollbacks"] += 1
            source.rollback(session)
        elif session.savepoints and chance.random() < 0.3:
            if chance.random() < 0.5:
                source.release(session)
            else:
                self._course.say(f"rollback of {session.xid} to a savepoint: {len(source.rollback_to(session))} changes")
                self._course.counts["savepoints rolled back"] += 1
        elif chance.random() < work.savepoints and not session.defines:
            source.savepoint(session)
        elif not self._definers.step(session) and (oids := source.oids(session)):
            self._write(session, chance.choice(oids))
        return True

    def _end_prepared(self, gid: str) -> None:
        chance = self._course.chance
        if chance.random() < 0.3:
            self._course.counts["prepared transactions rolled back"] += 1
            self._course.say(f"rollback of prepared {gid}")
            self._source.rollback_prepared(gid)
        else:
            self._course.counts["prepared transactions committed"] += 1
            waits = self._course.faulty and chance.random() < self._course.dangers.standby_slow
            commit = self._source.commit_prepared(gid, waits=waits)
            self._course.say(f"commit of prepared {gid} at {commit.commit_lsn:X}-{commit.end_lsn:X}{' waits' * waits}")

    def _commit(self, session: Session) -> None:
        chance, dangers = self._course.chance, self._course.dangers
        if chance.random() < self._course.work.prepares:
            prepare = self._source.prepare(session)
            if prepare is not None:
                changes = ", ".join(_told(change) for change in prepare.changes)
                self._course.say(f"prepare of {prepare.xid} at {prepare.lsn:X}-{prepare.end_lsn:X}: {changes}")
                return
        waits = self._course.faulty and chance.random() < dangers.standby_slow
        unsafe = self._course.faulty and not session.defines and chance.random() < dangers.unsafe_commits
        self._course.counts["commits that wait for a standby"] += waits
        self._course.counts["commits that do not wait for the disk"] += unsafe
        commit = self._source.commit(session, waits=waits, flushed=not unsafe)
        if commit is not None and self._course.told:
            self._course.say(
                f"commit of {commit.xid} at {commit.commit_lsn:X}-{commit.end_lsn:X}{' waits' * waits}{' unsafe' * unsafe}: "
                + ", ".join(_told(change) for change in commit.changes)
            )

    def _write(self, session: Session, oid: int) -> None:
        source, chance, work = self._source, self._course.chance, self._course.work
        if not source.can_touch(session, oid):
            return
        table = source.table(session, oid)
        if chance.random() < work.truncates:
            oids = [o for o in source.oids(session) if o == oid or chance.random() < 0.3]
            if all(source.can_exclude(session, o) for o in oids):
                self._course.counts["truncates"] += 1
                source.truncate(session, oids)
            return
        if chance.random() < work.alters and not session.savepoints and not session.defines:
            self._definers.alter(session, oid)
            return
        rows = source.view(session, oid)
        if chance.random() < work.copies:
            self._copy(session, oid)
            return
        fresh = self._new_row(oid, session)
        key = key_of(table, fresh)
        if keyless(table) and rows and chance.random() < 0.6:
            key = chance.choice(list(rows))
            self._course.counts["changes of rows without a key"] += 1
        if key not in rows:
            if source.lock(session, oid, key):
                source.write(session, oid, None, fresh)
            return
        old = rows[key]
        if not source.lock(session, oid, key):
            return
        if chance.random() < work.deletes:
            source.write(session, oid, old, None)
            return
        new = {name: old.get(name) if name != "tag" and chance.random() < 0.7 else value for name, value in fresh.items()}
        if keyless(table):
            source.lock(session, oid, key_of(table, new))
        elif chance.random() < work.moves:
            elsewhere = new_key(chance, table, work.keys)
            target = key_of(table, {**new, **elsewhere})
            if target not in rows and source.lock(session, oid, target):
                new |= elsewhere
        source.write(session, oid, old, new)

    def _copy(self, session: Session, oid: int) -> None:
        """COPY FROM: rows that share one WAL record, and so its LSN."""
        source = self._source
        lsn: int | None = None
        for _ in range(self._course.chance.randrange(2, 6)):
            row = self._new_row(oid, session)
            key = key_of(source.table(session, oid), row)
            if key not in source.view(session, oid) and source.lock(session, oid, key):
                lsn = source.write(session, oid, None, row, lsn)
        self._course.counts["copies"] += 1

    def _new_row(self, oid: int, session: Session) -> Row:
        table = self._source.table(session, oid)
        self._tags += 1
        row = new_key(self._course.chance, table, self._course.work.keys)
        for column in table.columns:
            if column.name not in row:
                row[column.name] = new_value(self._course.chance, column, f"v{self._tags}", self._course.work.wide)
        return row


def _told(change: Change) -> str:
    if change.kind == "A":
        before, after = change.tables
        return f"A {before.name}({', '.join(before.names)}) to {after.name}({', '.join(after.names)})"
    if change.table is None:
        return " ".join((change.kind, *(f"{table.name}={table.oid}" for table in change.tables)))
    row = change.new or change.old or {}
    return f"{change.kind} {change.table.name}{list(key_of(change.table, row))} tag {row.get('tag')}"
