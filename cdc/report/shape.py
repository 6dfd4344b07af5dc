"""Everything that `cdc status`, `/v1/status` and the status page show, as one value (``cdc.report.collector`` makes it).

``Report.to_json()`` is the stable JSON shape. LSNs are text in Postgres's notation (or null), times are Unix seconds, sizes are bytes.

=============  ===============================================================================================================
``version``    the package's version
``at``         when the facts were gathered
``healthy``    true when nothing is stopped, down or in danger: then ``problems`` is empty
``problems``   one line each: what is wrong → the command that helps
``notes``      one line each: what is not wrong and good to know, such as settings that take effect at the next start
``source``     ``reachable``, ``error``, ``address`` (host:port/database), ``slot`` (or null): {``name``, ``exists``, ``active``,
               ``wal_status``, ``server_lsn``, ``confirmed_lsn``, ``lag_bytes`` (written and not confirmed), ``held_bytes`` (WAL kept
               because of the slot), ``max_keep_bytes``, ``safe_wal_bytes`` (the WAL budget that is left, null = no limit),
               ``wal_bytes_per_s``, ``budget_eta_s`` (until the budget is used up at that rate; null = no limit, or not known yet)},
               ``alarms`` (one line each: what endangers the slot → what helps), ``transactions`` that keep WAL from being freed:
               [{``pid``, ``xid``, ``age_s``, ``application``, ``gid`` (of a prepared one), ``at_least`` (true: watched for so long, as the role may
               not see more)}]
``capture``    null before its first start, else {``state``, ``alive``, ``stop``, ``error``, ``position``, ``commit_lsn``, ``commit_ts``,
               ``received_lsn``, ``confirmed_lsn``, ``changes``, ``changes_per_s``, ``wire_bytes``, ``snapshot``: [{``table``, ``done``,
               ``total``, ``finished``}], ``snapshot_paused`` (why reading tables stands still, or null), ``left_out`` (one line each:
               what of the selected tables does not reach the log, or why nobody knows → what helps), ``updated_at``}
``log``        {``dir``, ``position``, ``commit_lsn``, ``commit_ts``, ``rows``, ``bytes`` (on disk), ``disk_free_bytes``, ``tables``: [{``name``,
               ``rows``, ``bytes``, ``first``, ``last``}]}
``followers``  [{``store``, ``kind``, ``state``, ``alive``, ``stop``, ``error``, ``position``, ``commit_lsn``, ``commit_ts``, ``lag``:
               {``changes``, ``bytes``, ``seconds``} (the log's head against the store's applied position; bytes and changes of the store's own
               tables; seconds = age of the oldest commit not yet applied; null before the follower's first word), ``written``,
               ``stale``, ``dead`` (set aside since the store was empty), ``aside`` (dead letters now: [{``table``, ``letters``, of which
               ``edited`` and ``accepted`` by an operator, ``oldest_at`` of the others}]), ``batches``, ``rows_per_s``, ``catch_up`` (null unless the store is far behind, as in its first load:
               {``done``, ``total`` (changes of its tables, and rows that are still to be read), ``rows_per_s``, ``eta_s`` (null = not known yet)}),
               ``audit`` (null where the continuous audit does not compare the store: {``waits`` (why nothing is compared now, or null), ``round_share`` (how far
               the present round over its tables is, 0 to 1), ``tables``: [{``table``, ``whole_at`` (when all of it was last compared and nothing
               differed, or null), ``compared_at`` (when all of it was last compared, or null), ``position`` (what the store held then, at least), ``rows``
               (of the log), ``missing`` (rows that the store lacks), ``extra`` (rows that only the store has), ``different`` (keys whose rows have other
               values), ``in_flight`` (keys that changed meanwhile), ``at_least`` (true: more differ than were counted), ``problem`` (why it could not be
               compared, or null)}]}), ``updated_at``}], one for each store of the configuration
``generations``  copies of stores that no readers see: [{``store``, ``number``, ``state`` (building, kept), ``alive`` (somebody builds or feeds it),
               ``error`` (why it is not brought on, or null), ``position``, ``lag`` (as a store's), ``phase`` (of the building, or null: ``building``,
               ``catching up``, ``comparing``, ``swapping``), ``progress`` (of that phase; null where nothing is counted: {``done``, ``total`` (at most),
               ``rows_per_s``, ``eta_s`` (null = not known)}), ``until`` (when it is removed; null = never)}]
``views``      [{``view``, ``state``, ``alive``, ``stop``, ``error`` (why it waits or has ended, or null), ``position`` (up to here its rows show what its topics
               had), ``commit_lsn``, ``commit_ts``, ``lag`` (as a store's, of the topics that it reads; null before its first word), ``taken`` and ``written``
               (changes that its process has taken in and handed over), ``taken_per_s``, ``written_per_s``, ``step`` (the last range of the log that it took,
               or null: {``seconds``, ``taken``, ``written``}), ``state_rows`` and ``state_bytes`` (of its live state), ``reads`` (topics), ``stores`` (that
               hold it), ``generations``: [{``number``, ``state`` (``live``: its topic shows this one; ``building``: the next one; ``refused``: the next
               one, which is not built; ``kept``: a former one), ``position``, ``done`` and ``total`` (rows of its topics that it has been through while it is loaded, and how many there are at most; else
               0), ``eta_s`` (seconds until it has been through them all; null = not known), ``bytes`` (on disk), ``until`` (when it is removed, or null), ``error`` (what its building waits for, or why it is refused, or null)}], ``updated_at``}], one for each view of the configuration
``stops``      [{``name`` (what `cdc resume` takes), ``state``, ``part``, ``message``, ``hint``, ``since``}]
``processes``  the supervisor's children: [{``name``, ``pid``, ``state``, ``restarts``, ``exit_code``, ``started_at``}]
=============  ===============================================================================================================
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from cdc.source.pins import Pin
from cdc.state.chronicle import LOADING_ROWS


@dataclass(frozen=True, slots=True)
class SlotReport:
    name: str
    exists: bool
    active: bool
    wal_status: str | None
    server_lsn: str
    confirmed_lsn: str | None
    lag_bytes: int | None
    held_bytes: int | None
    max_keep_bytes: int | None
    safe_wal_bytes: int | None
    wal_bytes_per_s: float | None
    budget_eta_s: float | None


@dataclass(frozen=True, slots=True)
class SourceReport:
    reachable: bool
    error: str | None
    address: str
    slot: SlotReport | None
    alarms: tuple[str, ...] = ()
    transactions: tuple[Pin, ...] = ()


@dataclass(frozen=True, slots=True)
class SnapshotReport:
    table: str
    done: int
    total: int
    finished: bool


@dataclass(frozen=True, slots=True)
class CaptureReport:
    state: str
    alive: bool
    stop: str | None
    error: str | None
    position: int
    commit_lsn: str | None
    commit_ts: float | None
    received_lsn: str | None
    confirmed_lsn: str | None
    changes: int
    changes_per_s: float
    wire_bytes: int
    snapshot: tuple[SnapshotReport, ...]
    updated_at: float
    snapshot_paused: str | None = None
    """Why reading tables stands still now."""
    left_out: tuple[str, ...] = ()
    """Selected tables, or parts of them, that do not reach the log → what helps."""


@dataclass(frozen=True, slots=True)
class TopicReport:
    name: str
    rows: int
    bytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReport:
    dir: str
    position: int
    commit_lsn: str | None
    commit_ts: float | None
    rows: int
    bytes: int
    disk_free_bytes: int
    tables: tuple[TopicReport, ...]


@dataclass(frozen=True, slots=True)
class Lag:
    """The changes that a store lacks; see ``lag`` in the module's text."""

    changes: int
    bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CatchUp:
    """How far a store that is far behind has come, as in its first load; or a generation in what is done with it."""

    done: int
    total: int
    rows_per_s: float
    eta_s: float | None


def catch_up_of(lag: Lag | None, held: int, unread: int, rows_per_s: float) -> CatchUp | None:
    """None for a store that is merely behind.

    held: changes of the store's tables in the log. unread: rows of these tables that the snapshot has not read yet.
    """
    missing = (held if lag is None else lag.changes) + unread
    if missing < LOADING_ROWS:
        return None
    return CatchUp(held + unread - missing, held + unread, rows_per_s, round(missing / rows_per_s, 1) if rows_per_s > 0 else None)


@dataclass(frozen=True, slots=True)
class LettersReport:
    """One table's dead letters in a store. ``oldest_at``: of those that nobody has decided about; null without one."""

    table: str
    letters: int
    edited: int
    accepted: int
    oldest_at: float | None

    @property
    def undecided(self) -> int:
        return self.letters - self.edited - self.accepted


@dataclass(frozen=True, slots=True)
class AuditedTableReport:
    """One table of a store in the continuous audit; see ``audit`` in the module's text."""

    table: str
    whole_at: float | None
    compared_at: float | None
    position: int
    rows: int
    missing: int
    extra: int
    different: int
    in_flight: int
    at_least: bool
    problem: str | None

    @property
    def differing(self) -> int:
        return self.missing + self.extra + self.different


@dataclass(frozen=True, slots=True)
class AuditReport:
    """One store in the continuous audit."""

    waits: str | None
    round_share: float
    tables: tuple[AuditedTableReport, ...]

    @property
    def drift(self) -> tuple[AuditedTableReport, ...]:
        """The tables that differ."""
        return tuple(one for one in self.tables if one.differing)

    @property
    def whole_at(self) -> float | None:
        """When the last of its tables was found whole; None while one never was."""
        found = [one.whole_at for one in self.tables]
        known = [at for at in found if at is not None]
        return min(known) if known and len(known) == len(found) else None


@dataclass(frozen=True, slots=True)
class GenerationReport:
    """One generation of a store that its readers do not see; see ``generations`` in the module's text."""

    store: str
    number: int
    state: str
    alive: bool
    error: str | None
    position: int
    lag: Lag
    phase: str | None
    progress: CatchUp | None
    until: float | None


@dataclass(frozen=True, slots=True)
class FollowerReport:
    store: str
    kind: str
    state: str
    alive: bool
    stop: str | None
    error: str | None
    position: int
    commit_lsn: str | None
    commit_ts: float | None
    lag: Lag | None
    written: int
    stale: int
    dead: int
    batches: int
    rows_per_s: float
    updated_at: float
    catch_up: CatchUp | None = None
    aside: tuple[LettersReport, ...] = ()
    audit: AuditReport | None = None

    @property
    def undecided(self) -> int:
        """Dead letters that nobody has decided about."""
        return sum(one.undecided for one in self.aside)


@dataclass(frozen=True, slots=True)
class StepReport:
    """The last range of the log that a view took."""

    seconds: float
    taken: int
    written: int


@dataclass(frozen=True, slots=True)
class ViewGenerationReport:
    """One state of a view; see ``views`` in the module's text."""

    number: int
    state: str
    position: int
    done: int
    total: int
    bytes: int
    until: float | None
    error: str | None
    eta_s: float | None = None


@dataclass(frozen=True, slots=True)
class ViewReport:
    """One view; see ``views`` in the module's text."""

    view: str
    state: str
    alive: bool
    stop: str | None
    error: str | None
    position: int
    commit_lsn: str | None
    commit_ts: float | None
    lag: Lag | None
    taken: int
    written: int
    taken_per_s: float
    written_per_s: float
    step: StepReport | None
    state_rows: int
    state_bytes: int
    reads: tuple[str, ...]
    stores: tuple[str, ...]
    updated_at: float
    generations: tuple[ViewGenerationReport, ...] = ()


@dataclass(frozen=True, slots=True)
class StopReport:
    name: str
    state: str
    part: str
    message: str
    hint: str
    since: float


@dataclass(frozen=True, slots=True)
class ProcessReport:
    name: str
    pid: int
    state: str
    restarts: int
    exit_code: int | None
    started_at: float


@dataclass(frozen=True, slots=True)
class Report:
    version: str
    at: float
    healthy: bool
    problems: tuple[str, ...]
    source: SourceReport
    capture: CaptureReport | None
    log: LogReport
    followers: tuple[FollowerReport, ...]
    stops: tuple[StopReport, ...]
    processes: tuple[ProcessReport, ...]
    notes: tuple[str, ...] = ()
    generations: tuple[GenerationReport, ...] = ()
    views: tuple[ViewReport, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain dicts and lists in the shape that the module's text gives."""
        return asdict(self)
