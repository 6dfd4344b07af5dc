"""The options that every kind of event store has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self, cast

from pydantic import Field, model_validator

from cdc.model.selection import matches
from cdc.model.topic import TopicSchema
from cdc.settings.models import StoreOptions
from cdc.settings.tableoptions import StoreTables, TableOptions
from sinks.condition import asks_old_rows

MB = 2**20
Body = Literal["payload", "change", "cloudevents", "debezium"]
"""The form of an event's body."""


class EventTable(TableOptions):
    """``[stores.NAME.tables."schema.table"]`` of a store of events."""

    when: str | None = Field(None, min_length=1)
    """As of the store, for these tables."""


class EventTables(StoreTables):
    """``tables`` of a store of events."""

    __pydantic_extra__: dict[str, EventTable] = Field(init=False)  # type: ignore[assignment]  # nobody adds to it


class EventOptions(StoreOptions):
    """The options of a store that hands changes on as events."""

    renders = True

    held: EventTables = Field(EventTables(), alias="tables")
    """As in every store."""
    when: str | None = Field(None, min_length=1)
    """Which changes are events: those that this condition is true of, in Postgres's SQL over the columns as the change leaves them. It sees `op` (`insert`, `update`,
    `delete`, `read` or `truncate`), each column as it was (`old.status`), and whether an update has changed one of some (`changed(status, total)`). Left out: all of them."""
    order: Literal["key", "none"] = "key"
    """`key`: events of one key go one after the other; `none`: they are independent of each other. Where events go in one order anyway it makes no difference."""
    order_by: tuple[str, ...] = ()
    """Columns whose values, together, are what order is kept by instead of the key, such as `["account_id"]`; every table of the store needs them."""
    body: Body | None = None
    """`payload`: what the application wrote, byte for byte, which only topics of events have; `change`: an object with `op`, `before`, `after`, `position`, `lsn` and
    `time`; `cloudevents`: a CloudEvent in JSON; `debezium`: what Debezium's JSON converter writes without a schema, of topics of events the payload. Left out: `payload` of topics of events, `change` of tables."""
    begin: Literal["now", "start"] = "now"
    """Where the store begins when it is opened for the first time: with what comes from then on, or with the first change that the log has. The store notes it: later
    it makes no difference."""
    reads: bool | None = None
    """Whether rows that a snapshot reads are events, too (`op` is `read`). Left out: if `begin = "start"`."""
    staged_bytes: int = Field(64 * MB, ge=1)
    """Events that wait for their turn, in memory; beyond this they go to a temporary file."""
    workers_from_rows: int = Field(0, ge=0, le=0)
    """Never: events go in order."""

    def when_of(self, schema: TopicSchema) -> str:
        tables = cast(Mapping[str, EventTable], self.held.options)
        said = [one.when for pattern, one in tables.items() if matches((pattern,), schema)]
        return next((one for one in reversed(said) if one is not None), self.when) or ""

    def looks_up(self, schema: TopicSchema) -> bool:
        return schema.identity != "row" and asks_old_rows(self.when_of(schema))

    @property
    def keys_apart(self) -> bool:
        return True

    @property
    def delivers_reads(self) -> bool:
        """Whether rows that a snapshot reads are events."""
        return self.begin == "start" if self.reads is None else self.reads

    def keeps(self, schema: TopicSchema) -> bool:  # noqa: ARG002
        return False

    @model_validator(mode="after")
    def _hands_changes_on_as_they_are(self) -> Self:
        for pattern, options in self.choices:
            for key in ("where", "transform"):
                if getattr(options, key) is not None:
                    raise ValueError(f"tables.{pattern}.{key}: a store of kind {self.kind} hands changes on and holds no rows")
            if options.computed:
                raise ValueError(f"tables.{pattern}.computed: a store of kind {self.kind} hands changes on as they were made")
        if {self.schema_policy, *self.schema_for.values()} != {"apply"}:
            raise ValueError(
                f"a store of kind {self.kind} hands each change on under the definition that it was made with: "
                'it knows no other `schema` than "apply"'
            )
        return self
