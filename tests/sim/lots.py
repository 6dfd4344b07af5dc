"""What a run is dealt by its seed: which faults befall it, how often, and what the clients do."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

from tests.sim.stores import Moods

FAVOURITES: Final = (
    "write", "sync", "write", "ingest.group.appended", "log.append.written", "log.commit.published", "log.timeline.written",
    "log.commit.fsynced", "ingest.commit.durable", "toast.commit.begun", "ingest.commit.remembered", "ingest.commit.before_confirm",
    "snapshot.chunk.entered", "snapshot.chunk.durable",
)  # fmt: skip


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
    new_history: float
    """Of the starts of a process, how many begin a history of the log: everything is as it was, and stores have marks of the one before."""
    standby_slow: float
    unsafe_commits: float
    favourite: str
    """A crash point, or an operation of the disk, at which things go wrong far more often than elsewhere."""
    store: Moods


def deal_dangers(chance: Random) -> Dangers:
    def maybe(least: float, most: float, in_runs: float = 0.4) -> float:
        return chance.uniform(least, most) if chance.random() < in_runs else 0.0

    return Dangers(
        process_dies=maybe(0.001, 0.006),
        dies_at_point=maybe(0.001, 0.01),
        power_lost=maybe(0.001, 0.006),
        server_crashes=maybe(0.001, 0.006),
        connection_breaks=maybe(0.002, 0.03),
        disk_full=maybe(0.02, 0.1),
        disk_fails=maybe(0.005, 0.04),
        memory_lost=chance.choice((0.0, 0.5)),
        new_history=maybe(0.1, 0.7, 0.2),
        standby_slow=maybe(0.1, 0.7),
        unsafe_commits=maybe(0.1, 0.6),
        favourite=chance.choice(FAVOURITES) if chance.random() < 0.7 else "",
        store=Moods(
            refused=maybe(0.01, 0.1),
            partly=maybe(0.01, 0.2),
            answer_lost=maybe(0.01, 0.1),
            late=maybe(0.2, 0.8),
            dropped=maybe(0.02, 0.2, 0.25),
            dies=maybe(0.05, 0.4),
            sleeps=maybe(0.02, 0.2),
            lost=maybe(0.004, 0.03),
            set_back=maybe(0.015, 0.06, 0.5),
            intruded=maybe(0.01, 0.05),
            stolen=maybe(0.002, 0.012),
            swapped=maybe(0.002, 0.012),
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


def deal_work(chance: Random) -> Work:
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
        reading=chance.choice((6.0, 6.0, 20.0)),
        alters=chance.choice((0.0, 0.05, 0.15)),
        prepares=chance.choice((0.0, 0.0, 0.3)),
    )


@dataclass(frozen=True, slots=True)
class Ddl:
    """What the clients do to definitions besides altering them, and who hears of it."""

    creates: float
    publishes: float
    """Of tables that are not in the publication yet."""
    drops: float
    retypes: float
    """Statements that give columns other types."""
    all_tables: bool
    """The publication is FOR ALL TABLES; else tables are added, by clients or by capture."""
    looks: float
    """How often capture looks at the catalog; never in the runs without such statements."""

    @property
    def any(self) -> bool:
        return self.looks > 0.0


def deal_ddl(chance: Random) -> Ddl:
    """``chance``: of its own, so that runs without such statements are what they would be without this."""
    creates = chance.choice((0.04, 0.1)) if chance.random() < 0.55 else 0.0
    drops = chance.choice((0.04, 0.1)) if chance.random() < 0.55 else 0.0
    retypes = chance.choice((0.04, 0.1)) if chance.random() < 0.7 else 0.0
    return Ddl(
        creates=creates,
        publishes=chance.choice((0.0, 0.05, 0.15)),
        drops=drops,
        retypes=retypes,
        all_tables=chance.random() < 0.5,
        looks=chance.choice((0.15, 0.6, 2.0)) if creates or drops or retypes else 0.0,
    )


NO_DDL: Final = Ddl(creates=0.0, publishes=0.0, drops=0.0, retypes=0.0, all_tables=False, looks=0.0)


@dataclass(frozen=True, slots=True)
class Ways:
    """What differs between runs without being a fault."""

    segment_bytes: int
    chunk_rows: int
    workers: int
    empty_transactions: bool
    """As servers before version 15 send them."""
    streams: bool
    """Transactions are sent before they have ended (protocol 2)."""
    two_phase: bool
    """Prepared transactions are told of when they are prepared."""
    eager_progress: bool
    triggers: bool
    """The event trigger tells of each ALTER TABLE in its own transaction; else the catalog says what is now, when somebody asks."""


def deal_ways(chance: Random) -> Ways:
    return Ways(
        segment_bytes=chance.choice((4_000, 30_000, 2**20)),
        chunk_rows=chance.choice((1, 2, 5, 20)),
        workers=chance.choice((1, 2, 3)),
        empty_transactions=chance.random() < 0.3,
        streams=chance.random() < 0.5,
        two_phase=chance.random() < 0.6,
        eager_progress=chance.random() < 0.5,
        triggers=chance.random() < 0.5,
    )


@dataclass(frozen=True, slots=True)
class Rare:
    """What happens in a few runs only."""

    catalog_lost: float
    """Of the starts of a process, before how many it loses what it last saw of the tables (catalog.json)."""
    asks: float
    """Of the clients' steps, how many ask for a snapshot."""
    compacts: float
    """Of the steps in which closed segments may be sealed, in how many the log is compacted. Then its segments are small:"""
    segment_bytes: int
    producers: int
    """How many hand over groups through the inbox."""
    tier: float
    """How often closed segments are sealed, and sealed files move to a tier, or back; never in the runs without one. Then segments are small, too."""
    rebuilds: float
    """Of the steps of followers, before how many an operator has the store built again."""
    states: float
    """Of the housekeeping's steps, in how many a state is made of a topic."""
    view: bool
    """There is a view over the tables, whose definitions stay as they are then."""


def deal_rare(chance: Random) -> Rare:
    """``chance``: of its own, so that the other runs are what they would be without this."""
    return Rare(
        catalog_lost=chance.choice((0.3, 0.8)) if chance.random() < 0.2 else 0.0,
        asks=chance.choice((0.005, 0.02)) if chance.random() < 0.2 else 0.0,
        compacts=chance.choice((0.1, 0.5)) if chance.random() < 0.35 else 0.0,
        segment_bytes=chance.choice((300, 1_500, 4_000)),
        producers=chance.choice((1, 1, 2)) if chance.random() < 0.12 else 0,
        tier=chance.choice((0.3, 1.0)) if chance.random() < 0.2 else 0.0,
        rebuilds=chance.choice((0.01, 0.05)) if chance.random() < 0.3 else 0.0,
        states=chance.choice((0.05, 0.2)) if chance.random() < 0.25 else 0.0,
        view=chance.random() < 0.1,
    )
