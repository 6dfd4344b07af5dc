"""``[outbox]``: a table into which services write events in their own transactions, and what becomes of its rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, Literal

from pydantic import Field, field_validator, model_validator

from cdc.settings.strict import Strict

ROUTE: Final = "{route}"
_KEEP: Final = re.compile(r"([0-9]{1,8})([smhd])")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_PREFIX: Final = re.compile(r"[A-Za-z0-9_.-]{1,63}")
_TOPIC: Final = re.compile(r"([a-z_][a-z0-9_]{0,31})\.([a-z0-9_]{0,31})\{route\}")


class OutboxColumns(Strict):
    """``[outbox.columns]``: the table's columns by name. Left out, they are Debezium's."""

    id: str = "id"
    """The event's id, which is the table's key."""
    route: str = "aggregatetype"
    """The kind of thing that the event is about: it says into which topic the event goes."""
    key: str = "aggregateid"
    """The thing that the event is about. Events of one key keep their order."""
    type: str = "type"
    """The kind of event."""
    payload: str = "payload"
    """The event itself: `jsonb`, `json`, `text` or `bytea`."""
    headers: str = "headers"
    """A JSON object of text beside the payload. A table may have no such column; `""`: none is taken for it."""
    time: str = "created_at"
    """When the event was written. A table may have no such column; `""`: none is taken for it."""

    @model_validator(mode="after")
    def _are_different_columns(self) -> OutboxColumns:
        names = {field: getattr(self, field) for field in type(self).model_fields}
        for field, name in names.items():
            if not name and field not in ("headers", "time"):
                raise ValueError(f"{field} is empty")
            if name and list(names.values()).count(name) > 1:
                raise ValueError(f"column {name} cannot be two things at once")
        return self


class Outbox(Strict):
    table: str = "public.outbox"
    """The table, as `schema.table`. `cdc outbox init` makes it. `""`, or left out beside `prefix`: there is none."""
    prefix: str = ""
    """Logical messages under this prefix (`pg_logical_emit_message(true, 'PREFIX', …)`) are events, beside rows of the table or without one
    ([outbox.md](outbox.md#without-a-table)). `""`: no message is."""
    columns: OutboxColumns = OutboxColumns()
    """The names of its columns."""
    topic: str = "outbox.{route}"
    """The topic of an event: `{route}` is the text of the column `route`, whose case is kept."""
    topics_max: int = Field(1000, ge=1)
    """So many topics of events there may be. A row that would need one more becomes no event, until this is raised or its route is another: whoever may insert rows
    would make topics without end."""
    headers: Mapping[str, str] = {}
    """Headers of events that are columns of the table, by the header's name: `headers = { tenant = "tenant_id", traceparent = "traceparent" }`. They are text as
    Postgres prints it, come to those of the column `headers`, and take the place of one of the same name there. NULL: the event has no such header."""
    on_update: Literal["stop", "warn", "ignore"] = "warn"
    """An UPDATE of a row whose event was taken already makes no event. `stop`: capture stops at it (OUTBOX_UPDATED); `warn`: capture's log names the first."""
    keep: str = "0s"
    """A row is deleted from the table once its event is durable in the log and that much time has passed since its commit (`"24h"`; `s`, `m`, `h` or `d`), which takes
    the right to delete rows there. `""`: rows stay, until you delete them."""

    @field_validator("table")
    @classmethod
    def _is_a_tables_name(cls, table: str) -> str:
        schema, dot, name = table.partition(".")
        if table and not (schema and dot and name):
            raise ValueError("not a table; write schema.table, such as public.outbox")
        return table

    @field_validator("prefix")
    @classmethod
    def _is_nobodys_prefix(cls, prefix: str) -> str:
        if prefix and _PREFIX.fullmatch(prefix) is None:
            raise ValueError("not the prefix of messages; write at most 63 letters, digits and any of _.-, such as outbox")
        if prefix.partition(".")[0].partition("-")[0] == "headwater":
            raise ValueError('messages of Headwater\'s own have such prefixes; write another, such as "outbox"')
        return prefix

    @model_validator(mode="before")
    @classmethod
    def _messages_alone_need_no_table(cls, given: object) -> object:
        return {"table": "", **given} if isinstance(given, dict) and given.get("prefix") else given

    @model_validator(mode="after")
    def _has_a_source(self) -> Outbox:
        if not self.table and not self.prefix:
            raise ValueError('there is neither a table nor a prefix; write table = "public.outbox"')
        return self

    @field_validator("topic")
    @classmethod
    def _has_a_route(cls, topic: str) -> str:
        if _TOPIC.fullmatch(topic) is None:
            raise ValueError(
                'not the name of topics; write schema.{route}, such as "outbox.{route}", in small letters, digits and _'
            )
        return topic

    @model_validator(mode="after")
    def _topics_are_apart(self) -> Outbox:
        if self.table and self.parts[0] == self.topic_schema:
            raise ValueError(
                f'the table and the events\' topics are both in schema {self.topic_schema}; write another topic, such as "events.{ROUTE}"'
            )
        return self

    @field_validator("keep")
    @classmethod
    def _is_a_time(cls, keep: str) -> str:
        if keep and _KEEP.fullmatch(keep) is None:
            raise ValueError('not a time; write such as "24h" or "7d", or "" for ever')
        return keep

    @field_validator("headers")
    @classmethod
    def _name_headers(cls, headers: Mapping[str, str]) -> Mapping[str, str]:
        if "" in headers or "" in headers.values():
            raise ValueError('a header, or the column that it is, has no name; write { tenant = "tenant_id" }')
        return headers

    @model_validator(mode="after")
    def _headers_are_of_a_table(self) -> Outbox:
        if self.headers and not self.table:
            raise ValueError("headers are columns of a table, and there is none; a message's body holds its headers")
        return self

    @property
    def keep_s(self) -> int | None:
        """How long a row stays whose event is durable; None: for ever, or there is no table."""
        found = _KEEP.fullmatch(self.keep)
        return None if found is None or not self.table else int(found[1]) * _SECONDS[found[2]]

    @property
    def parts(self) -> tuple[str, str]:
        """The table's schema and name."""
        schema, _, name = self.table.partition(".")
        return schema, name

    @property
    def topic_schema(self) -> str:
        """The first part of every event topic's name."""
        return self.topic.partition(".")[0]

    @property
    def topics(self) -> str:
        """The pattern that selects the event topics."""
        return self.topic.replace(ROUTE, "*")

    def topic_name(self, route: str) -> str:
        """The second part of the topic's name of events of this route."""
        return self.topic.partition(".")[2].replace(ROUTE, route)
