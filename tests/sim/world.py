"""One run: a seed becomes a world (its tables, its dangers), the world takes steps until its work is done and all is equal.

Everything happens in this thread, one small step at a time, chosen by the seed; no clock but the world's own, no socket.
A view's process has a thread, of all of which one at a time runs.
What is real: decoder, relations, TOAST memory, ingest, the snapshot (agenda, workers, feed, fence, holds), the log (writer, recovery,
sealing, reader, tier), the followers, the view's runner with its state.
What is a model: Postgres, its connections, the disk, the stores, what a tier lies in.
"""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from cdc import crashpoint
from cdc.log.embedded.reader import EmbeddedLogReader
from tests.sim.checker import Checker, Violation
from tests.sim.clients import Clients
from tests.sim.course import Course, Trace
from tests.sim.disk import ModelDisk
from tests.sim.followers import Followers
from tests.sim.lots import NO_DDL, deal_dangers, deal_ddl, deal_rare, deal_ways, deal_work
from tests.sim.points import Points
from tests.sim.process import Process
from tests.sim.producers import Producers
from tests.sim.source import Source
from tests.sim.tables import make_tables
from tests.sim.tier import Tier
from tests.sim.turns import Party, Turns
from tests.sim.views import Views
from tests.sim.walsender import Link, Walsender

SETTLING_STEPS: Final = 4_000
"""Within so many steps after the last fault everything must be equal, …"""
STEPS_A_CHUNK: Final = 200
"""… and so many more for each chunk that a snapshot from the beginning has then: the slowest reader takes half of them for one."""
WORKING_STEPS: Final = 3_000
"""A run whose work is not done by then goes on without faults."""
HURT: Final = "runs in which a store was hurt"
"""Counted once a run: a store loses rows, is set back, or is taken over, while there is traffic."""
SCRATCH: Final = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())


class World:
    """See the module's text. ``run`` raises Violation; anything else that comes out of it is a bug of the product, or of the model."""

    def __init__(self, seed: int, folder: Path, trace: Trace | None = None) -> None:
        chance = Random(seed)
        dangers, work = deal_dangers(chance), deal_work(chance)
        ways, ddl, rare = deal_ways(chance), deal_ddl(Random(f"{seed} ddl")), deal_rare(Random(f"{seed} rare"))
        if rare.view:
            ddl, work = NO_DDL, replace(work, alters=0.0)
        seals = ways.segment_bytes == 4_000 and chance.random() < 0.3
        self._seals = seals or rare.compacts > 0 or rare.tier > 0
        ways = replace(ways, segment_bytes=rare.segment_bytes) if rare.compacts or rare.tier else ways
        self._course = course = Course(chance, dangers, work, ways, ddl, rare, trace, Random(f"{seed} identities"))
        first_xid = chance.choice((700, 2**32 - 12, 2**32 * 3 + 2**31 - 9, 2**31 - 9))
        first_lsn = chance.choice((0x1_5000, 0xFFFF_F000, 0x16_B374_D848))
        self.source = Source(chance, make_tables(chance), first_xid, first_lsn, all_tables=ddl.all_tables or not ddl.any)
        disk = ModelDisk(folder, chance)
        self._points = Points(course)
        disk.meet = self._points.meet_disk
        self.checker = Checker(self.source, disk, course.asking.keys)
        self._log = EmbeddedLogReader(folder)
        self._clients = Clients(course, self.source)
        self.process = Process(course, self._points, self.source, disk, self.checker, self._log)
        self._followers = Followers(course, seed, self._log, folder.parent / "run", self.process, self.checker)
        self._producers = Producers(course, seed, folder, folder.parent / "run", self.process, self.checker)
        self._views = Views(course, seed, folder, self.source, self.process, self.checker)
        self._points.between = self._views.between
        self._tier = Tier(course, seed, self._log, folder, self._points, self.process) if rare.tier else None
        if self._tier is not None:
            self.checker.undisturbed = self._tier.answers

    # --- the run --------------------------------------------------------------------------------------------------------------------

    def run(self) -> Counter[str]:
        """What happened, counted."""
        tier = nullcontext() if self._tier is None else self._tier.given()
        with crashpoint.decided_by(self._points), tier:
            try:
                self._run()
            finally:
                self._views.close()
                self.process.close()
                self._log.close()
                self._followers.close()
        return self._course.counts

    def _run(self) -> None:
        self._clients.prefill()
        self.process.begin()
        turns = self._working()
        for _ in range(WORKING_STEPS):
            if self._clients.done:
                break
            turns.step()
            self._producers.step()
            self._views.step()
        self._course.faulty = False
        self._course.say("the faults stop")
        self._followers.calm()
        self._views.calm()
        turns, left = self._settling(), ["nothing was tried"]
        most = self._settling_steps()
        for step in range(most):
            self._producers.step()
            self._views.step()
            if not turns.step() or step % 20 == 19:
                left = self._left()
                if not left:
                    break
        if left:
            raise Violation("i", f"{most} steps after the last fault: {'; '.join(left)}")
        self.process.look()
        self.checker.reread(self._log)
        if self._tier is not None:
            self._tier.conclude()
        self._course.counts[HURT] += self._followers.hurt
        self._course.counts["views compared"] += self.checker.views.compared
        self._course.counts["runs in which catalog.json was lost"] += bool(self._course.counts["fault: catalog.json is lost"])
        self._course.counts["runs in which a snapshot was asked for"] += bool(self._course.counts["asked-for snapshots done"])
        for count, what in (
            ("changes compacted away", "changes were compacted away"),
            ("groups of producers", "producers handed over groups"),
            ("views compared", "a view was kept up"),
            ("empty stores that were to be built", "an empty store was built from states"),
        ):
            self._course.counts[f"runs in which {what}"] += bool(self._course.counts[count])
        changes = [change for commit in self.source.commits for change in commit.changes]
        for kind, what in ("C", "created"), ("X", "dropped"):
            self._course.counts[f"runs in which a table was {what}"] += any(change.kind == kind for change in changes)
        self._course.counts["runs in which a type was changed"] += any(change.retypes for change in changes)
        self._course.counts["steps"] += self._course.steps
        self._course.counts["transactions"] += len(self.source.commits)
        self._course.counts["changes"] += len(self.checker.entries)
        self._course.counts["held rows"] += self.checker.waited

    def _settling_steps(self) -> int:
        chunks = sum(-(-len(rows) // self._course.ways.chunk_rows) for rows in self.source.visible.values())
        return SETTLING_STEPS + STEPS_A_CHUNK * chunks * (1 + len(self._course.asking.pending()))

    def _left(self) -> list[str]:
        """What is not equal yet. Rows are compared when nothing else is left, for that takes long."""
        at_rest = not (self.source.sessions or self.source.waiting or self.source.prepared)
        if not at_rest or self.process.capture is None or not self.process.capture.connected:
            return ["not at rest"]
        self.process.look()
        self.checker.complete = self.process.completed()
        left, head = [], self.process.capture.writer.head
        if not self.process.capture.reader.finished:
            left.append("the reader is not idle")
        if self._course.asking.pending():
            left.append("a snapshot that was asked for is not done")
        commits = self.source.commits
        if commits and self.source.slot.confirmed < commits[-1].end_lsn:
            left.append("the last commit is not confirmed")
        left += [
            f"{name} is at {store.applied.position} of {head.position}"
            for name, store in self._followers.stores
            if store.applied != head
        ]
        return left or self._producers.left() or self._views.left() or list(self.checker.differences(self._followers.stores, head))

    def _working(self) -> Turns:
        """Which steps there are while faults happen, and how often each comes."""
        process, ddl, dangers = self.process, self._course.ddl, self._course.dangers
        looks = [Party(process.watch, ddl.looks)] if ddl.any else []
        moves = [Party(self._tend_tier, self._course.rare.tier)] if self._tier is not None else []
        steps = (
            Party(self._clients.step, 4.0),
            Party(process.step, 3.0),
            Party(self._server_step, 2.0),
            Party(process.read, self._course.work.reading),
            Party(self._followers.step, 1.2),
            Party(self._housekeeping, 0.5),
            *looks,
            *moves,
            Party(process.die, dangers.process_dies * 10),
            Party(self._power_lost, dangers.power_lost * 10),
            Party(self._server_crashes, dangers.server_crashes * 10),
            Party(self._connection_breaks, dangers.connection_breaks * 10),
        )
        return Turns(self._course, steps)

    def _settling(self) -> Turns:
        """The same when nothing goes wrong any more."""
        process, source, ddl = self.process, self.source, self._course.ddl
        follows = self._followers.follows
        often = (4.0 if ddl.any else 1.2) / len(follows)
        steps = [
            Party(self._clients.step, 0.5, lambda: (len(source.sessions), len(source.prepared))),
            Party(process.step, 3.0, lambda: process.received),
            Party(self._server_step, 2.0, lambda: (source.wal_lsn, source.flushed_lsn, process.durable)),
            Party(process.read, 25.0, lambda: (source.wal_lsn, process.taken, len(source.sessions), len(source.waiting))),
            Party(self._housekeeping, 0.5, lambda: (len(source.waiting), source.wal_lsn)),
            *(Party(partial(self._followers.step, follow), often, lambda: process.head) for follow in follows),
        ]
        if ddl.any:
            steps.append(Party(process.watch, 2.0, lambda: source.wal_lsn))
        if self._tier is not None:
            steps.append(Party(self._tend_tier, 1.0, lambda: process.head))
        return Turns(self._course, steps, resting=True)

    def _server_step(self) -> bool:
        """The walsender sends something, or hears something. False: once the faults have stopped, all is sent and heard."""
        capture, chance = self.process.capture, self._course.chance
        if capture is None or capture.link is None or capture.server is None or capture.link.broken:
            return False
        link, server = capture.link, capture.server
        if not (self._course.faulty or link.asked or self._unsaid(server, link)):
            return False
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
            self._course.counts["blocks of open transactions"] += bool(block)
            link.send(block)
        elif roll < 0.8:
            server.relations_changed()
        else:
            link.send(server.keepalive(reply=chance.random() < 0.5))
        return True

    def _unsaid(self, server: Walsender, link: Link) -> bool:
        """Whether one of the two has something to say to the other."""
        commits, confirmed = self.source.commits, self.source.slot.confirmed
        behind = bool(commits) and commits[-1].end_lsn > confirmed
        return behind or not server.caught_up or link.feedback.durable_lsn > confirmed or bool(self.source.sessions)

    def _housekeeping(self) -> bool:
        """False: nothing waited for it."""
        source, chance = self.source, self._course.chance
        waited = bool(source.waiting) or source.flushed_lsn < source.wal_lsn
        if source.waiting and chance.random() < (0.3 if self._course.faulty else 1.0):
            source.show(chance.randrange(len(source.waiting)))
        if chance.random() < 0.5:
            source.flush()
        if chance.random() < 0.3 and self._course.faulty:
            source.noise()
        if chance.random() < 0.2:
            source.save_slot()
        if self._seals and self.process.capture is not None and chance.random() < (0.1 if self._course.faulty else 0.4):
            self.process.seal()
        compacts = self._course.rare.compacts
        if self._seals and compacts and self.process.capture is not None and chance.random() < compacts:
            self.process.compact([store.applied.position for _, store in self._followers.stores] + self._views.pins)
        states = self._course.rare.states
        if states and self.process.capture is not None and chance.random() < states:
            self.process.make_state()
        return waited

    def _tend_tier(self) -> bool:
        """False: nothing moved."""
        assert self._tier is not None
        self.process.seal()
        moved = self._tier.step()
        if self._tier.dark:
            self._power_lost()
        return moved

    def _server_crashes(self) -> None:
        self._course.fault("server crashes")
        self.source.crash()
        if self.process.capture is not None:
            self.process.capture.lose_sessions()
            if self.process.capture.link is not None:
                self.process.capture.link.cut(lose=True)

    def _connection_breaks(self) -> None:
        if self.process.capture is not None and self.process.capture.link is not None and not self.process.capture.link.broken:
            self._course.fault("connection breaks")
            self.process.capture.link.cut(lose=self._course.chance.random() < 0.5)
            if self._course.chance.random() < 0.2:
                self.process.capture.lose_sessions()

    def _power_lost(self) -> None:
        self.process.lose_power()
        if self._tier is not None:
            self._tier.lose_power()
        self._followers.lose_power()
        self._producers.lose_power()
        self._views.lose_power()


def simulate(seed: int, trace: Trace | None = None) -> Counter[str]:
    """Runs one seed to its end and returns what happened, counted. Raises Violation, or whatever the product raises."""
    with _folder() as folder:
        # An error may name the folder, which is another one every time.
        say = None if trace is None else lambda line: trace(line.replace(str(folder), "log"))
        return World(seed, folder, say).run()


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="headwater-sim-", dir=SCRATCH))
    try:
        yield folder / "log"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
