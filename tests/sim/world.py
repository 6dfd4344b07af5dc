"""One run: a seed becomes a world (its tables, its dangers), the world takes steps until its work is done and all is equal.

Everything happens in this thread, one small step at a time, chosen by the seed; no clock but the world's own, no thread, no socket.
What is real: decoder, relations, TOAST memory, ingest, the snapshot's feed, flight, fence and holds, the log (writer, recovery, sealing,
reader), ``apply_range``. What is a model: Postgres, its connection, the coordinator's SQL, the disk, the stores.
"""

from __future__ import annotations

import shutil
import tempfile
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Final
from unittest import mock

from cdc import crashpoint, ingest
from cdc.errors import HeadwaterError, ProtocolError, Stopped
from cdc.log.names import Places
from cdc.log.reader import EmbeddedLogReader
from cdc.log.seal import seal
from cdc.log.segment import Place
from cdc.model import pgtypes
from cdc.model.position import Cut, Lsn
from cdc.model.table import Column
from tests.sim.capture import TOAST, Capture, Ways
from tests.sim.checker import Checker, Violation
from tests.sim.disk import ModelDisk, refused
from tests.sim.source import Change, Session, Source
from tests.sim.stores import Died, Moods, Site
from tests.sim.tables import Row, key_of, keyless, make_tables, new_key, new_value

SETTLING_STEPS: Final = 4_000
"""Within so many steps after the last fault everything must be equal, …"""
STEPS_A_CHUNK: Final = 200
"""… and so many more for each chunk that a snapshot from the beginning has then: the slowest reader takes half of them for one."""
WORKING_STEPS: Final = 3_000
"""A run whose work is not done by then goes on without faults."""
SCRATCH: Final = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())

FAVOURITES: Final = (
    "write", "sync", "write", "ingest.group.appended", "log.append.written", "log.commit.published", "log.timeline.written",
    "log.timeline.fsynced", "ingest.commit.durable", "toast.commit.begun", "ingest.commit.remembered", "ingest.commit.before_confirm",
    "snapshot.chunk.entered", "snapshot.chunk.durable",
)  # fmt: skip
FAVOURITE_LIKELY: Final = 0.15
FAVOURITE_MOST: Final = 4
"""So often a run: each costs a recovery."""

Trace = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Dangers:
    """How likely each fault is, per step of the kind that it befalls. Every run has some of them, and none of the others."""

    process_dies: float
    dies_at_point: float
    power_lost: float
    server_crashes: float
    connection_breaks: float
    disk_full: float
    disk_fails: float
    memory_lost: float
    standby_slow: float
    unsafe_commits: float
    favourite: str
    """A crash point, or an operation of the disk, at which things go wrong far more often than elsewhere."""
    store: Moods


def _dangers(chance: Random) -> Dangers:
    def maybe(least: float, most: float) -> float:
        return chance.uniform(least, most) if chance.random() < 0.4 else 0.0

    return Dangers(
        process_dies=maybe(0.001, 0.006),
        dies_at_point=maybe(0.001, 0.01),
        power_lost=maybe(0.001, 0.006),
        server_crashes=maybe(0.001, 0.006),
        connection_breaks=maybe(0.002, 0.03),
        disk_full=maybe(0.02, 0.1),
        disk_fails=maybe(0.005, 0.04),
        memory_lost=chance.choice((0.0, 0.5)),
        standby_slow=maybe(0.1, 0.7),
        unsafe_commits=maybe(0.1, 0.6),
        favourite=chance.choice(FAVOURITES) if chance.random() < 0.7 else "",
        store=Moods(
            refused=maybe(0.01, 0.1),
            partly=maybe(0.01, 0.2),
            answer_lost=maybe(0.01, 0.1),
            late=maybe(0.2, 0.8),
            dies=maybe(0.05, 0.4),
            sleeps=maybe(0.02, 0.2),
        ),
    )


@dataclass(frozen=True, slots=True)
class Work:
    """What the clients do."""

    transactions: int
    sessions: int
    keys: int
    rows_before: int
    wide: float
    commits: float
    rollbacks: float
    savepoints: float
    truncates: float
    copies: float
    moves: float
    deletes: float
    reading: float
    """How fast snapshots are: in most runs they are under way until the end."""
    alters: float
    prepares: float
    """Of commits, how many in two phases."""


def _work(chance: Random) -> Work:
    return Work(
        transactions=chance.randrange(10, 41),
        sessions=chance.choice((1, 2, 3, 5)),
        keys=chance.choice((2, 5, 12, 30)),
        rows_before=chance.choice((0, 0, 3, 10, 25)),
        wide=chance.choice((0.0, 0.2, 0.6)),
        commits=chance.choice((0.15, 0.35, 0.7)),
        rollbacks=chance.choice((0.0, 0.05, 0.2)),
        savepoints=chance.choice((0.0, 0.1, 0.25)),
        truncates=chance.choice((0.0, 0.05, 0.15)),
        copies=chance.choice((0.0, 0.1)),
        moves=chance.choice((0.0, 0.1, 0.3)),
        deletes=chance.choice((0.1, 0.25, 0.45)),
        reading=chance.choice((4.0, 4.0, 15.0)),
        alters=chance.choice((0.0, 0.0, 0.03)),
        prepares=chance.choice((0.0, 0.0, 0.3)),
    )


class Clock:
    """What ``time`` is to ingest."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@dataclass(slots=True)
class Follow:
    """Who follows a store: the newest first, zombies behind."""

    site: Site
    lives: list[Iterator[str]] = field(default_factory=list)


class World:
    """See the module's text. ``run`` raises Violation; anything else that comes out of it is a bug of the product, or of the model."""

    def __init__(self, seed: int, folder: Path, trace: Trace | None = None) -> None:
        self.seed = seed
        self.counts: Counter[str] = Counter()
        self._trace = trace
        self._chance = chance = Random(seed)
        self._dangers = _dangers(chance)
        self._work = _work(chance)
        self._ways = Ways(
            segment_bytes=chance.choice((4_000, 30_000, 2**20)),
            chunk_rows=chance.choice((1, 2, 5, 20)),
            workers=chance.choice((1, 2, 3)),
            empty_transactions=chance.random() < 0.3,
            streams=chance.random() < 0.5,
            two_phase=chance.random() < 0.6,
            eager_progress=chance.random() < 0.5,
        )
        self._seals = self._ways.segment_bytes == 4_000 and chance.random() < 0.3
        self.clock = Clock()
        first_xid = chance.choice((700, 2**32 - 12, 2**32 * 3 + 2**31 - 9, 2**31 - 9))
        self.source = Source(chance, make_tables(chance), first_xid, chance.choice((0x1_5000, 0xFFFF_F000, 0x16_B374_D848)))
        self._folder = folder
        self._places = Places(folder)
        self.disk = ModelDisk(folder, chance)
        self.disk.meet = self._meet_disk
        self.checker = Checker(self.source, self.disk)
        self.capture: Capture | None = None
        self._log = EmbeddedLogReader(folder)
        self._faulty = True
        self._dying = 0.0
        self._favours = FAVOURITE_MOST
        self._since_lsn = 0
        self._memory_kept: list[tuple[str, bytes]] = []
        """The files of the TOAST memory as they once were."""
        self._unrecovered = False
        """The power was lost and no writer has been there since: the head may be older than the timeline, so nobody looks."""
        self._begun = 0
        self._tags = 0
        self._actions: list[Callable[[], None]] = []
        self._weights: list[float] = []
        self._before: dict[int, int] = {}
        self._completed: dict[int, int] = {}
        self._follows = [self._store(number) for number in range(chance.choice((1, 1, 2)))]

    # --- the run --------------------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        with mock.patch.object(ingest, "time", self.clock), mock.patch.object(crashpoint, "_armed", self):
            try:
                self._run()
            finally:
                if self.capture is not None:
                    self.capture.die()
                self._log.close()
                for follow in self._follows:
                    follow.site.close()

    def _run(self) -> None:
        self._prefill()
        self._choose_among(working=True)
        for _ in range(WORKING_STEPS):
            if self._begun >= self._work.transactions and not self.source.sessions and not self.source.prepared:
                break
            self._step()
        self._faulty = False
        self._choose_among(working=False)
        self._say("the faults stop")
        for follow in self._follows:
            follow.site.moods = Moods()
        left = ["nothing was tried"]
        most = self._settling_steps()
        for step in range(most):
            self._step()
            if step % 20 == 19:
                left = self._left()
                if not left:
                    break
        if left:
            raise Violation("i", f"{most} steps after the last fault: {'; '.join(left)}")
        self._check_log()
        self.checker.reread(self._log)
        self.counts["transactions"] += len(self.source.commits)
        self.counts["changes"] += len(self.checker.entries)
        self.counts["held rows"] += self.checker.waited

    def _settling_steps(self) -> int:
        chunks = sum(-(-len(rows) // self._ways.chunk_rows) for rows in self.source.visible.values())
        return SETTLING_STEPS + STEPS_A_CHUNK * chunks

    def _left(self) -> list[str]:
        """What is not equal yet."""
        at_rest = not (self.source.sessions or self.source.waiting or self.source.prepared)
        if not at_rest or self.capture is None or not self.capture.connected:
            return ["not at rest"]
        self._check_log()
        self.checker.complete = self._complete()
        stores = [(follow.site.name, follow.site.store) for follow in self._follows]
        left = list(self.checker.differences(stores, self.capture.writer.head))
        if not self.capture.reader.finished:
            left.append("the reader is not idle")
        commits = self.source.commits
        if commits and self.source.slot.confirmed < commits[-1].end_lsn:
            left.append("the last commit is not confirmed")
        return left

    def _step(self) -> None:
        self.counts["steps"] += 1
        self.clock.now += self._chance.random() * 0.4
        self._actions[bisect(self._weights, self._chance.random() * self._weights[-1])]()

    def _choose_among(self, *, working: bool) -> None:
        """Which steps there are, and how often each comes."""
        found: list[tuple[Callable[[], None], float]] = [
            (self._client, 4.0 if working else 0.5),
            (self._capture_step, 3.0),
            (self._server_step, 2.0),
            (self._reader_step, self._work.reading if working else 4.0),
            (self._follower_step, 1.2),
            (self._housekeeping, 0.5),
        ]
        if working:
            dangers = self._dangers
            found += [
                (self._process_dies, dangers.process_dies * 10),
                (self._power_lost, dangers.power_lost * 10),
                (self._server_crashes, dangers.server_crashes * 10),
                (self._connection_breaks, dangers.connection_breaks * 10),
            ]
        self._actions = [action for action, _ in found]
        self._weights = list(accumulate(weight for _, weight in found))

    # --- clients --------------------------------------------------------------------------------------------------------------------

    def _prefill(self) -> None:
        """Rows from before the slot."""
        source, session = self.source, self.source.begin()
        for table in source.tables.values():
            for _ in range(self._work.rows_before):
                row = self._new_row(table.oid, session)
                if key_of(table, row) not in source.view(session, table.oid):
                    source.lock(session, table.oid, key_of(table, row))
                    source.write(session, table.oid, None, row)
        source.commit(session)
        source.noise()
        source.flush()
        source.slot.confirmed = source.slot.saved = source.flushed_lsn
        self._since_lsn = source.flushed_lsn
        self.checker.begin(source.visible)

    def _client(self) -> None:
        source, chance, work = self.source, self._chance, self._work
        if self._begun < work.transactions and self._faulty and len(source.sessions) < work.sessions and chance.random() < 0.5:
            source.begin()
            self._begun += 1
            return
        if source.prepared and chance.random() < (0.3 if source.sessions else 0.7):
            self._end_prepared(chance.choice(list(source.prepared)))
            return
        if not source.sessions:
            return
        session = chance.choice(source.sessions)
        ending = work.commits if self._faulty else 0.9
        roll = chance.random()
        if roll < ending:
            self._commit(session)
        elif roll < ending + work.rollbacks * (1 - ending):
            self._say(f"rollback of {session.xid}")
            self.counts["rollbacks"] += 1
            source.rollback(session)
        elif session.savepoints and chance.random() < 0.3:
            if chance.random() < 0.5:
                source.release(session)
            else:
                self._say(f"rollback of {session.xid} to a savepoint: {len(source.rollback_to(session))} changes")
                self.counts["savepoints rolled back"] += 1
        elif chance.random() < work.savepoints and not session.altered:
            source.savepoint(session)
        else:
            self._write(session, chance.choice(list(source.tables)))

    def _end_prepared(self, gid: str) -> None:
        chance = self._chance
        if chance.random() < 0.3:
            self.counts["prepared transactions rolled back"] += 1
            self._say(f"rollback of prepared {gid}")
            self.source.rollback_prepared(gid)
        else:
            self.counts["prepared transactions committed"] += 1
            waits = self._faulty and chance.random() < self._dangers.standby_slow
            commit = self.source.commit_prepared(gid, waits=waits)
            self._say(f"commit of prepared {gid} at {commit.commit_lsn:X}-{commit.end_lsn:X}{' waits' * waits}")

    def _commit(self, session: Session) -> None:
        chance, dangers = self._chance, self._dangers
        if chance.random() < self._work.prepares:
            prepare = self.source.prepare(session)
            if prepare is not None:
                changes = ", ".join(_told(change) for change in prepare.changes)
                self._say(f"prepare of {prepare.xid} at {prepare.lsn:X}-{prepare.end_lsn:X}: {changes}")
                return
        waits = self._faulty and chance.random() < dangers.standby_slow
        unsafe = self._faulty and not session.altered and chance.random() < dangers.unsafe_commits
        self.counts["commits that wait for a standby"] += waits
        self.counts["commits that do not wait for the disk"] += unsafe
        commit = self.source.commit(session, waits=waits, flushed=not unsafe)
        if commit is not None and self._trace is not None:
            self._say(
                f"commit of {commit.xid} at {commit.commit_lsn:X}-{commit.end_lsn:X}{' waits' * waits}{' unsafe' * unsafe}: "
                + ", ".join(_told(change) for change in commit.changes)
            )

    def _write(self, session: Session, oid: int) -> None:
        source, chance, work = self.source, self._chance, self._work
        if not source.can_touch(session, oid):
            return
        table = source.table(session, oid)
        if chance.random() < work.truncates:
            oids = [o for o in source.tables if o == oid or chance.random() < 0.3]
            if all(source.can_exclude(session, o) for o in oids):
                self.counts["truncates"] += 1
                source.truncate(session, oids)
            return
        if chance.random() < work.alters and not session.savepoints and not session.altered:
            # Not of a table without a key: only the catalog, which is not modelled, tells that the new column is part of what identifies a row.
            if source.can_exclude(session, oid) and not keyless(table):
                self.counts["columns added"] += 1
                column = Column(f"more{len(table.columns)}", chance.choice((pgtypes.TEXT, pgtypes.INT4)))
                source.alter(session, replace(table, columns=(*table.columns, column)))
            return
        rows = source.view(session, oid)
        if chance.random() < work.copies:
            self._copy(session, oid)
            return
        fresh = self._new_row(oid, session)
        key = key_of(table, fresh)
        if keyless(table) and rows and chance.random() < 0.6:
            key = chance.choice(list(rows))
            self.counts["changes of rows without a key"] += 1
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
        source = self.source
        lsn: int | None = None
        for _ in range(self._chance.randrange(2, 6)):
            row = self._new_row(oid, session)
            key = key_of(source.table(session, oid), row)
            if key not in source.view(session, oid) and source.lock(session, oid, key):
                lsn = source.write(session, oid, None, row, lsn)
        self.counts["copies"] += 1

    def _new_row(self, oid: int, session: Session) -> Row:
        table = self.source.table(session, oid)
        self._tags += 1
        row = new_key(self._chance, table, self._work.keys)
        for column in table.columns:
            if column.name not in row:
                row[column.name] = new_value(self._chance, column, f"v{self._tags}", self._work.wide)
        return row

    # --- the server -----------------------------------------------------------------------------------------------------------------

    def _server_step(self) -> None:
        """The walsender sends something, or hears something."""
        capture, chance = self.capture, self._chance
        if capture is None or capture.link is None or capture.server is None or capture.link.broken:
            return
        link, server = capture.link, capture.server
        roll = chance.random()
        if roll < 0.25 or link.asked:
            link.asked = 0
            self.source.confirm(link.feedback.durable_lsn)
        elif not server.caught_up and roll < 0.8:
            for _ in range(chance.choice((1, 1, 2, 6))):
                if not server.caught_up:
                    link.send(server.send())
        elif roll < 0.75 or (not server.caught_up and roll < 0.9):
            block = server.stream()
            self.counts["blocks of open transactions"] += bool(block)
            link.send(block)
        elif roll < 0.8:
            server.relations_changed()
        else:
            link.send(server.keepalive(reply=chance.random() < 0.5))

    def _housekeeping(self) -> None:
        source, chance = self.source, self._chance
        if source.waiting and chance.random() < (0.3 if self._faulty else 1.0):
            source.show(chance.randrange(len(source.waiting)))
        if chance.random() < 0.5:
            source.flush()
        if chance.random() < 0.3 and self._faulty:
            source.noise()
        if chance.random() < 0.2:
            source.save_slot()
        if self._seals and self.capture is not None and chance.random() < 0.1:
            self._seal()

    def _server_crashes(self) -> None:
        self._fault("server crashes")
        self.source.crash()
        if self.capture is not None:
            self.capture.lose_sessions()
            if self.capture.link is not None:
                self.capture.link.cut(lose=True)

    def _connection_breaks(self) -> None:
        if self.capture is not None and self.capture.link is not None and not self.capture.link.broken:
            self._fault("connection breaks")
            self.capture.link.cut(lose=self._chance.random() < 0.5)
            if self._chance.random() < 0.2:
                self.capture.lose_sessions()

    # --- the capture process --------------------------------------------------------------------------------------------------------

    def _capture_step(self) -> None:
        try:
            if self.capture is None:
                self._start()
            elif not self.capture.connected:
                self.capture.connect().on_confirm = lambda lsn: self.checker.check_confirmed(lsn, self._places, self._log)
                self._say("connected")
            else:
                self._take(self.capture)
        except Died:
            self._say("the process died")
            self._end()
        except (OSError, HeadwaterError) as error:
            if isinstance(error, ProtocolError | Stopped):
                raise  # nothing that happens here makes the server's bytes wrong, or needs an operator
            self._say(f"the process ended: {error}")
            self.counts["processes ended by an error"] += 1
            self._end()

    def _start(self) -> None:
        self._dying = self._dangers.dies_at_point
        self.capture = Capture(
            self._folder, self.disk, self.source, self._chance, self._ways, self._log, self._since_lsn, self._met
        )
        self._unrecovered = False
        if self._dangers.memory_lost and self._chance.random() < 0.5:
            self._memory_kept = [
                (path.name, path.read_bytes()) for path in self._folder.glob(f"{TOAST}*") if path.suffix != ".db-shm"
            ]
        head, slot = self.capture.writer.head, self.source.slot
        self._say(f"a process starts at {head}, the slot is at {slot.confirmed:X}")
        if head.commit_lsn == 0:
            self.capture.writer.commit(Lsn(slot.confirmed), 0)
        elif slot.confirmed > head.commit_lsn:
            raise Violation("a", f"the slot stands at {slot.confirmed:X}, ahead of the log at {head}")
        self.checker.reread(self._log)

    def _take(self, capture: Capture) -> None:
        link = capture.link
        assert link is not None
        before = link.waiting
        if before:
            self._before = self._complete()
        try:
            capture.take()
        except (OSError, HeadwaterError) as error:
            if not isinstance(error, OSError):
                raise
            self._say(f"the stream broke: {error}")
            self.counts["reconnects"] += 1
            capture.broken()
        if before and self._trace is not None:
            self._say(f"took {before - link.waiting} bytes, the log is at {capture.writer.head}")
        self._check_log()

    def _reader_step(self) -> None:
        capture = self.capture
        if capture is None:
            return
        before = capture.reader.refused, capture.reader.not_admitted, capture.reader.chunks
        try:
            capture.read_on()
        except Died:
            self._say("the process died")
            self._end()
            return
        reader = capture.reader
        self.counts["chunks refused"] += reader.refused - before[0]
        self.counts["snapshots not admitted"] += reader.not_admitted - before[1]
        if reader.chunks > before[2]:
            self.counts["chunks read"] += 1
            self._say(f"chunk {reader.chunks} was read")

    def _end(self) -> None:
        if self.capture is not None:
            self.capture.die()
        self.capture = None
        self._before = {}

    def _process_dies(self) -> None:
        if self.capture is not None:
            self._fault("process dies")
            self._end()

    def _power_lost(self) -> None:
        """Capture's machine, not the database's."""
        self._fault("power lost")
        self._end()
        self._log.close()
        self.disk.lose_power(self._chance.choice(("lost", "torn")))
        if self._chance.random() < self._dangers.memory_lost:
            self._memory_goes_back()
        self._unrecovered = True
        for follow in self._follows:
            follow.lives.clear()

    def _memory_goes_back(self) -> None:
        """SQLite syncs at its checkpoints only, so a power loss leaves an earlier commit; or nothing."""
        for path in self._folder.glob(f"{TOAST}*"):
            path.unlink()
        for name, content in self._chance.choice(([], self._memory_kept)):
            (self._folder / name).write_bytes(content)

    def _seal(self) -> None:
        """What the sealing thread does with closed segments."""
        assert self.capture is not None
        timeline = self._log.timeline
        if timeline is None:
            return
        try:
            for index in timeline.topics.values():
                for run in index.segments()[:-1]:
                    if not self._log.is_sealed(index.name, run):
                        self.counts["segments sealed"] += 1
                        seal(self._places, self.disk, Place(timeline.log_id, index.number, index.name, run.segment), run)
        except OSError:
            return
        except Died:
            self._end()

    # --- faults at a point -----------------------------------------------------------------------------------------------------------

    def _meet_disk(self, operation: str) -> None:
        if not self._faulty:
            return
        likely = self._dangers.disk_full if operation == "write" else self._dangers.disk_fails
        if self._chance.random() < likely or self._favours_now(operation):
            self._fault(f"disk refuses {operation}")
            raise refused(self._chance, operation)
        if self._chance.random() < self._dying:
            self._fault(f"dies at {operation}")
            raise Died

    def reach(self, point: str) -> None:
        """A named crash point of the product (``cdc.crashpoint``)."""
        if not self._faulty or point.startswith("follower."):
            return
        if self._chance.random() < self._dying or self._favours_now(point):
            self._fault(f"dies at {point}")
            raise Died

    def _favours_now(self, what: str) -> bool:
        if what != self._dangers.favourite or not self._favours or self._chance.random() >= FAVOURITE_LIKELY:
            return False
        self._favours -= 1
        return True

    # --- stores ---------------------------------------------------------------------------------------------------------------------

    def _store(self, number: int) -> Follow:
        chance = self._chance
        site = Site(
            f"sim-{self.seed}-{number}",
            staged=chance.random() < 0.4,
            moods=replace(self._dangers.store),
            chance=chance,
            met=self._fault,
            batch_rows=chance.choice((1, 7, 1000)),
        )

        def written(cut: Cut | None = None) -> None:
            self._check_log()
            self.checker.check_store(site.name, site.store, staged=site.staged, cut=cut)

        site.written = written
        return Follow(site)

    def _follower_step(self) -> None:
        chance = self._chance
        follow = chance.choice(self._follows)
        site = follow.site
        if self._unrecovered:
            self._check_log()  # a start that failed may have published what it found, and a follower reads it
        if site.late and chance.random() < 0.5:
            site.deliver_late()
            return
        if not follow.lives:
            follow.lives.append(site.follow(self._log))
        if len(follow.lives) > 1 and chance.random() < 0.2:
            number = chance.randrange(1, len(follow.lives))
            self._live(follow, number)
            if chance.random() < 0.3:
                del follow.lives[number:]
            return
        if self._live(follow, 0) == "applied" and chance.random() < site.moods.sleeps:
            self._fault("follower sleeps, another begins")
            follow.lives.insert(0, site.follow(self._log))

    def _live(self, follow: Follow, number: int) -> str:
        try:
            return next(follow.lives[number])
        except Died:
            del follow.lives[number]
            return "died"

    # --- watching -------------------------------------------------------------------------------------------------------------------

    def _check_log(self) -> None:
        if self._unrecovered and self._log.head().position <= self.checker.last.position:
            return  # what the power loss took of the head comes back with the recovery
        if self.capture is not None and self.capture.writer.head == self.checker.last:
            return
        after = self._complete()
        self.checker.finished = self._before
        self.checker.complete = {oid: lsn for oid, lsn in self._before.items() if after.get(oid) == lsn}
        self.checker.log_grew(self._log)

    def _complete(self) -> dict[int, int]:
        """Table → where the WAL stood when its snapshot was seen to be finished, by this process or an earlier one."""
        capture = self.capture
        if capture is None:
            return {}
        known, now = self._completed, self.source.wal_lsn
        self._completed = {oid: known.get(oid, now) for oid in self.source.tables if capture.complete(oid)}
        return self._completed

    def _met(self, name: str) -> None:
        self.counts[name] += 1

    def _fault(self, name: str) -> None:
        self.counts[f"fault: {name}"] += 1
        self._say(f"! {name}")

    def _say(self, text: str) -> None:
        if self._trace is not None:
            self._trace(f"{self.counts['steps']:5d}  {text}")


def _told(change: Change) -> str:
    if change.table is None:
        return change.kind
    row = change.new or change.old or {}
    return f"{change.kind} {change.table.name}{list(key_of(change.table, row))} tag {row.get('tag')}"


def simulate(seed: int, trace: Trace | None = None) -> Counter[str]:
    """Runs one seed to its end and returns what happened, counted. Raises Violation, or whatever the product raises."""
    with _folder() as folder:
        world = World(seed, folder, trace)
        world.run()
        return world.counts


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="headwater-sim-", dir=SCRATCH))
    try:
        yield folder / "log"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
