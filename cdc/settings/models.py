"""The settings of ``cdc.toml`` as typed values; ``cdc.settings.file`` reads it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self, TypeVar

from pydantic import Field, SecretStr, field_validator, model_validator

from cdc.model.display import AsRules
from cdc.model.selection import Qualified, matches
from cdc.settings.outbox import Outbox
from cdc.settings.sparkoptions import SparkOptions
from cdc.settings.strict import Strict
from cdc.settings.tableoptions import Patterns, StoreTables, TableOptions
from cdc.settings.tier import Tier
from cdc.settings.views import View, topics_of

if TYPE_CHECKING:
    from cdc.model.topic import TopicSchema


ColumnPolicy = Literal["keep", "drop", "mask", "hmac", "encrypt"]
"""The form in which a column's values may reach the log (``cdc.privacy.policies``)."""


class Privacy(Strict):
    key: SecretStr | None = None
    """The secret from which the `hmac` and `encrypt` policies derive their keys; at least 32 bytes."""
    strict: bool = False
    """Every column of a captured table has to be named in `source.columns`; capture stops where one is not."""


class Database(Strict):
    """Which database a log is filled from."""

    dsn: SecretStr
    """libpq's connection string or URL; a service file or a passfile works as everywhere."""
    name: str = "postgres"
    """What the log calls this database, beside its topics and as its producer ([log-format.md](log-format.md)). A log keeps the name that it was
    begun with."""

    @field_validator("name")
    @classmethod
    def _is_a_producers_name(cls, name: str) -> str:
        if re.fullmatch("[a-z0-9_.-]{1,63}", name) is None:
            raise ValueError("a source's name holds lower-case letters, digits, _, . and - only, at most 63 of them")
        return name


class Source(Database):
    tables: Patterns = ("public.*",)
    """Patterns of `schema.table`, each part matched by itself. `!pattern` excludes; the last pattern that matches decides; at least one
    has to include tables."""
    slot: str = "cdc"
    """The replication slot, made by the first run or by `cdc doctor --fix`. A slot of that name that somebody else made is refused."""
    publication: str = Field("cdc", min_length=1, max_length=63)
    """The publication, made in the same way."""
    failover: bool = True
    """The slot is synchronised to standbys where the server can do that (17 and newer), so that capture goes on after a failover."""
    streaming: bool = True
    """Large transactions are received while they run, into a spool beside the log, so that little is left to do at their commit."""
    two_phase: bool = False
    """Prepared transactions are received at PREPARE. Stores see them at COMMIT PREPARED either way."""
    columns: Mapping[str, Mapping[str, ColumnPolicy]] = {}
    """By table (`schema.table`): column → what of its values may reach the log ([privacy.md](privacy.md))."""
    snapshot_chunk_rows: int = Field(50_000, ge=1)
    """Rows of a snapshot that enter the stream at a time."""
    snapshot_workers: int = Field(2, ge=1, le=32)
    """Connections that read tables, or parts of one, at the same time."""
    snapshot_rows_per_s: int | None = Field(None, ge=1)
    """The most that a snapshot reads; no limit when left out."""
    snapshot_pause_lag_mb: int = Field(1024, ge=1)
    """While the log is farther behind the server than this, or the slot's WAL budget nears its end, a snapshot pauses."""

    @field_validator("slot")
    @classmethod
    def _is_a_slot_name(cls, name: str) -> str:
        if re.fullmatch("[a-z0-9_]{1,63}", name) is None:
            raise ValueError("a slot's name holds lower-case letters, digits and _ only, at most 63 of them")
        return name

    @model_validator(mode="after")
    def _nothing_unprotected_is_kept(self) -> Self:
        if self.two_phase and self.columns:
            # Prepared transactions are kept as they came, so before column policies apply.
            raise ValueError(
                "two_phase cannot stand together with source.columns: what is prepared is kept on disk as it came, before any policy; "
                "leave two_phase out, and prepared transactions come at COMMIT PREPARED"
            )
        return self


_Option = TypeVar("_Option")

Cleanup = Literal["compact", "delete", "keep"]
"""What becomes of a table's older changes."""


class LogTable(Strict):
    """``[log.tables."schema.table"]``: how the log treats one table (* and ? match)."""

    cleanup: Cleanup | None = None
    """As in `[log]`, which counts when left out."""
    retain_hours: float | None = Field(None, ge=0)
    """As in `[log]`, which counts when left out."""
    retain_mb: int | None = Field(None, ge=1)
    """As in `[log]`, which counts when left out."""
    lookup: bool | None = None
    """Whether the rows of many keys can be looked up at once ([log.md](log.md#keyed-look-up)). It costs about 16 bytes on the disk for each change
    that the log holds. By default `false`."""
    states: bool | None = None
    """`keep`: whether it is kept now and then how the table was, so that nobody who asks for that has to read it from its beginning. It takes at most a tenth of the
    room of the table's changes ([log.md](log.md#states-of-a-table)). By default `true`."""


class RetentionLimits(NamedTuple):
    """``cleanup = "delete"``: how old one table's changes become, and how many megabytes there are; None: no matter how."""

    hours: float | None
    mb: int | None


class Log(Strict):
    dir: Path = Path("var/log")
    """The log's folder; give it a disk whose fsync can be trusted."""
    segment_bytes: int = Field(64 * 2**20, ge=4096)
    """A segment that has grown to this size is closed and becomes Parquet."""
    cleanup: Cleanup = "keep"
    """`keep`: every change stays for ever. `compact`: of changes that are older than `history_hours` only each row's last stays, which may be its
    DELETE. `delete`: changes beyond `retain_hours` or `retain_mb` go, whether or not anything has superseded them ([log.md](log.md))."""
    retain_hours: float | None = Field(None, ge=0)
    """`delete`: changes that are older than this go. When left out, their age does not matter."""
    retain_mb: int | None = Field(None, ge=1)
    """`delete`: where a table's changes come to more than this, the oldest go, however young they are. Counted as they came (`bytes` in `cdc log ls`);
    sealed, they take less of the disk. When left out, their size does not matter."""
    history_hours: float = Field(24.0, ge=0)
    """Every change stays for at least so long, so that the log can be asked how a table was at any moment since then."""
    deletes_hours: float = Field(336.0, ge=0)
    """`compact`: a row's DELETE stays for so long. A store that was restored from a backup older than that can only be built again (POSITION_GONE)."""
    pin_hours: float = Field(336.0, ge=0)
    """A configured store that stands still (it is down, or has stopped) keeps what it still has to read for so long, and so shows whole commits when
    it goes on. One that runs and yet does not get on keeps it for an hour at least."""
    pin_mb: int | None = Field(None, ge=1)
    """A configured store that lacks more than this keeps nothing any longer. When left out, it does not matter how much a store lacks."""
    reserve_mb: int = Field(256, ge=0)
    """Compaction leaves so much of the log's disk free for capture: it writes nothing that would leave less. While there is less, everything that `cleanup`
    lets go goes at once ([log.md](log.md#when-it-happens))."""
    tables: Mapping[str, LogTable] = {}
    """For single tables (`schema.table`, `*` and `?` match): `cleanup`, `retain_hours`, `retain_mb`, `lookup` and `states`; the last that matches and says it decides."""

    tier: Tier | None = None
    """Where sealed files go when they are old; left out: nowhere."""

    @model_validator(mode="after")
    def _what_is_deleted_has_a_limit(self) -> Self:
        if self.retain_hours is None and self.retain_mb is None:
            for options in self.tables.values():
                if options.cleanup == "delete" and options.retain_hours is None and options.retain_mb is None:
                    raise ValueError('cleanup = "delete" needs retain_hours or retain_mb, for this table or for the whole log')
            if self.cleanup == "delete":
                raise ValueError('cleanup = "delete" needs retain_hours or retain_mb')
        return self

    @model_validator(mode="after")
    def _what_is_looked_up_stays(self) -> Self:
        for pattern in self.tables:
            alike = [
                options for other, options in self.tables.items() if other in (pattern, "*", "*.*") or matches((other,), pattern)
            ]
            cleanup = next((one.cleanup for one in reversed(alike) if one.cleanup is not None), self.cleanup)
            if cleanup == "delete" and next((one.lookup for one in reversed(alike) if one.lookup is not None), False):
                raise ValueError(
                    f'{pattern}: lookup = true needs the whole table, which cleanup = "delete" does not keep; leave out one of them'
                )
        return self

    def cleanup_of(self, table: Qualified | str) -> Cleanup:
        """How this table's changes are kept, or those of all tables that a pattern matches, as far as nothing else is said of some of them."""
        return self._last(table, lambda options: options.cleanup) or self.cleanup

    def limits_of(self, table: Qualified) -> RetentionLimits:
        """How much of this table's changes is kept, where ``cleanup_of`` says ``delete``."""
        hours, mb = self._last(table, lambda options: options.retain_hours), self._last(table, lambda options: options.retain_mb)
        return RetentionLimits(self.retain_hours if hours is None else hours, self.retain_mb if mb is None else mb)

    def looks_up(self, table: Qualified) -> bool:
        """Whether this table's rows can be looked up by their keys."""
        return bool(self._last(table, lambda options: options.lookup))

    def keeps_states(self, table: Qualified) -> bool:
        """Whether it is kept now and then how this table was."""
        return self.cleanup_of(table) == "keep" and self._last(table, lambda options: options.states) is not False

    def _last(self, table: Qualified | str, option: Callable[[LogTable], _Option | None]) -> _Option | None:
        """What the last pattern says that matches and says anything."""
        found = None
        for pattern, options in self.tables.items():
            if matches((pattern,), table) and (said := option(options)) is not None:
                found = said
        return found


class Http(Strict):
    listen: str = "127.0.0.1:8642"
    """`host:port`. Any other address than loopback needs `token`, `tls_cert` and `tls_key`."""
    token: SecretStr | None = None
    """The token that clients send as `Authorization: Bearer …`."""
    tls_cert: Path | None = None
    """PEM: the server's certificate and its chain. When the files are renewed, the port shows the new one within seconds."""
    tls_key: Path | None = None
    """PEM: the certificate's key."""
    hosts: tuple[str, ...] = ()
    """Further names under which a browser may reach the port, such as a proxy's."""

    @field_validator("listen")
    @classmethod
    def _is_an_address(cls, listen: str) -> str:
        host, colon, port = listen.rpartition(":")
        if not colon or not host.removeprefix("[").removesuffix("]") or not port.isdecimal() or int(port) > 65535:
            raise ValueError("not an address; write host:port, such as 127.0.0.1:8642")
        return listen


class Audit(Strict):
    """``[audit]``: the comparison of stores with the log that goes on while the daemon runs."""

    continuous: bool = True
    """Every store is compared with what the log says that it holds, one table after the other, again and again."""
    core_share: float = Field(0.05, gt=0, le=1)
    """The most of one core that this takes, in CPU time: of a warehouse also what it asks the JVM for."""
    pause_s: float = Field(600.0, ge=0)
    """So long after the start, and after all tables of a store have been compared, they are compared again."""


SchemaPolicy = Literal["apply", "pause", "ignore"]
"""A store's policy when a table's definition changes: follow it, wait for an operator, or go on in the former shape."""


class Contract(Strict):
    """The columns that readers of one table's stores rely on."""

    require: tuple[str, ...]
    """Columns on which readers rely. A change that removes one of them pauses the stores that hold the table."""


class StoreOptions(Strict):
    """The options that every store has; each sink's own model extends it."""

    renders: ClassVar[bool] = False
    """Whether the store makes JSON of values, so that a column may be shown in another way."""
    plain_schemes: ClassVar[Mapping[str, str]] = {}
    """Schemes of the store's addresses in which anybody may read along → the same with TLS."""
    example: ClassVar[tuple[str, ...]] = ()
    """For a new cdc.toml: a name for such a store, and the lines that it cannot do without. Empty: it is not proposed."""

    kind: str
    """`opensearch`, `redis`, `iceberg` or `sql`; `console` prints each change as a line."""
    held: StoreTables = Field(StoreTables(), alias="tables")
    """Which of the captured tables the store holds: patterns as in `source.tables`. Written as a table, its `select` is that list."""
    views: tuple[str, ...] = ()
    """The views that the store holds, by their names in `[views.NAME]`, beside what `tables` selects: the same as `views.NAME` there. With `views` and without `tables` the
    store holds these views alone ([views.md](views.md))."""
    batch_rows: int = Field(200_000, ge=1)
    """The most rows that are applied at once. Usually it is fewer, so that a store commits about every 3 s."""
    batch_bytes: int = Field(64 * 2**20, ge=1)
    """The most bytes of changes that are applied at once."""
    workers_from_rows: int = Field(20_000, ge=0)
    """Ranges of at least this many rows are applied by Spark's workers, where the store takes several writers; 0: never. Shipping work to
    them costs about 90 ms, so it pays only for ranges that take longer than that."""
    schema_policy: SchemaPolicy = Field("apply", alias="schema")
    """What the store does when a table changes: follow it, wait for an operator, or go on in the former shape
    ([schema-changes.md](schema-changes.md))."""
    schema_for: Mapping[str, SchemaPolicy] = {}
    """The same for single tables (`schema.table`, `*` and `?` match); the last that matches decides."""

    @model_validator(mode="before")
    @classmethod
    def _holds_its_views(cls, given: Any) -> Any:
        """Views are topics: from here on they are among the store's tables."""
        if not isinstance(given, dict) or not given.get("views") or not isinstance(given["views"], list | tuple):
            return given
        held, named = given.get("tables"), topics_of(given["views"])
        if isinstance(held, StoreTables):
            return given
        if isinstance(held, dict):
            select = held.get("select", [])
            return {**given, "tables": {**held, "select": [*select, *named]} if isinstance(select, list | tuple) else held}
        return {**given, "tables": [*held, *named] if isinstance(held, list | tuple) else named if held is None else held}

    @model_validator(mode="after")
    def _only_what_it_can(self) -> Self:
        if not self.renders and self.as_rules:
            raise ValueError(f"a store of kind {self.kind} holds the types of the database: it knows no `as`")
        for pattern, options in self.choices:
            dotted = [target for target in options.rename.values() if "." in target]
            if dotted and not self.renders:
                raise ValueError(
                    f"tables.{pattern}.rename: a store of kind {self.kind} has columns, not objects: it cannot hold {dotted[0]}"
                )
        return self

    @property
    def tables(self) -> Patterns:
        """The patterns of the tables that the store holds."""
        return self.held.select

    @property
    def as_rules(self) -> AsRules:
        """How this store shows columns, by patterns of tables."""
        return tuple((pattern, options.as_) for pattern, options in self.held.options.items() if options.as_)

    @property
    def choices(self) -> tuple[tuple[str, TableOptions], ...]:
        """The options that say what the store holds of tables, by patterns of them, where that is not all (``sinks.holding``)."""
        return tuple((pattern, options) for pattern, options in self.held.options.items() if options.chooses)

    def shaping_of(self, schema: TopicSchema) -> Mapping[str, str]:  # noqa: ARG002
        """Options of this kind of store on which this topic's rows depend → what they say: other texts are another shape. Raises ConfigError where that cannot
        be read."""
        return {}

    def remade(self, before: TopicSchema, after: TopicSchema) -> str:  # noqa: ARG002
        """Says what the store makes again, from the log, where a topic that it holds is defined otherwise; empty where it takes that in as it stands. Both as it holds
        them."""
        return ""

    def naming(self, schema: TopicSchema) -> tuple[str, ...]:  # noqa: ARG002
        """The columns of this topic, and what is computed of it, that say where the store puts a row, beside the columns of its key. They may change: then the
        row goes from one place to another (``sinks.places``)."""
        return ()

    def when_of(self, schema: TopicSchema) -> str | None:  # noqa: ARG002
        """A condition on this topic's changes (``sinks.condition``): the store is given those that it is true of, and with each the row that it replaced where
        that is known. Empty: all of them. None: all of them, and no rows that were replaced."""
        return None

    def looks_up(self, schema: TopicSchema) -> bool:
        """Whether rows of this topic have to be looked up by their keys as they were before changes."""
        return bool(self.naming(schema))

    def keeps(self, schema: TopicSchema) -> bool:  # noqa: ARG002
        """Whether the store keeps rows of this topic, which an audit can compare."""
        return True

    @property
    def kept_whole(self) -> Mapping[str, str]:
        """Patterns of tables of which the store needs changes that others have superseded → the option that says so. ``changes_needed`` says how many."""
        return {}

    def changes_needed(self, table: Qualified | str) -> float | None:  # noqa: ARG002
        """For how many days the store needs every change of this table that there was, ``math.inf``: for ever. None: it needs no more than each row's last."""
        return None

    @property
    def version_days(self) -> Mapping[str, float]:
        """Patterns of tables → for how many days the store's histories of them keep versions, 0: for ever; the last that matches decides."""
        return {}

    @property
    def generational(self) -> bool:
        """Whether there can be several generations of a store of these options beside each other (``sinks.generations``)."""
        return False

    @property
    def why_not_generational(self) -> str:
        """Says why a store of these options has one generation only, where its kind can have several; empty otherwise."""
        return ""

    @property
    def keys_apart(self) -> bool:
        """Whether rows are told apart by something beside their columns, such as a document's id, so that the key need not be one of them."""
        return False

    @property
    def server_urls(self) -> Mapping[str, SecretStr]:
        """Option → the address where one of the store's servers answers."""
        return {}

    @property
    def disk_path(self) -> Path | None:
        """The folder on this machine that the store lies in; None for any other."""
        return None

    @property
    def commit_interval_s(self) -> float:
        """For so long the store's commits are to be apart at least."""
        return 0.0

    def beside(self, log_dir: Path) -> Self:  # noqa: ARG002
        """The same, where a store that keeps something on this machine keeps it by the log, unless they say where."""
        return self

    def policy(self, table: str) -> SchemaPolicy:
        """The store's policy for changes of the table (``schema.table``)."""
        found = self.schema_policy
        for pattern, policy in self.schema_for.items():
            if matches((pattern,), table):
                found = policy
        return found


class Settings(Strict):
    source: Source
    """The database."""
    log: Log = Log()
    stores: Mapping[str, StoreOptions] = {}
    contracts: Mapping[str, Contract] = {}
    """By table (`schema.table`); counts for every store that holds the table."""
    privacy: Privacy = Privacy()
    http: Http = Http()
    audit: Audit = Audit()
    outbox: Outbox | None = None
    """A table into which services write events, each in its own transaction ([outbox.md](outbox.md)). Left out: there is none."""
    views: Mapping[str, View] = {}
    """Topics that are computed from other topics, by name: view `NAME` is topic `views.NAME` ([views.md](views.md))."""
    spark: SparkOptions = SparkOptions()
    run_dir: Path = Path("var/run")
    """Status files, stop states, Spark's scratch space."""
