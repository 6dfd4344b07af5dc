"""An event as a row of the outbox table: what is checked before it is written, so that a bad one does not cost its writer the transaction. Pure."""

from __future__ import annotations

import json
import re
import secrets
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cdc.errors import HeadwaterError

MAX_ROUTE_BYTES: Final = 63
"""An aggregate's name becomes a part of a topic's name."""
_NUL: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
_MAX_INDEXED_BYTES: Final = 2000


class OutboxError(HeadwaterError):
    """Nothing was written."""


class BadEvent(OutboxError):
    """The event cannot be written as it is. Holds no value of it."""


class NoTransaction(OutboxError):
    """The connection is in no transaction: the event would be there also if what it tells of is not."""


class UnknownConnection(OutboxError):
    """Neither a session or connection of SQLAlchemy's, nor a connection or cursor of psycopg's."""


@dataclass(frozen=True, slots=True)
class OutboxTable:
    """The table and its columns by name, as in ``[outbox]`` of ``cdc.toml``. ``headers``: None where it has no such column."""

    table: str = "public.outbox"
    id: str = "id"
    route: str = "aggregatetype"
    key: str = "aggregateid"
    type: str = "type"
    payload: str = "payload"
    headers: str | None = "headers"

    @property
    def columns(self) -> tuple[str, ...]:
        """In the order of ``Event.values``."""
        return tuple(name for name in (self.id, self.route, self.key, self.type, self.payload, self.headers) if name is not None)


@dataclass(frozen=True, slots=True)
class OutboxMessages:
    """No table: events are logical messages under this prefix, as in ``[outbox]`` of ``cdc.toml`` (``cdc.outbox.message``)."""

    prefix: str = "outbox"


@dataclass(frozen=True, slots=True, repr=False)
class Event:
    """One row, or one message. ``payload`` is JSON's text, or bytes for a column of type bytea."""

    id: uuid.UUID
    route: str
    key: str
    type: str
    payload: str | bytes | None
    headers: str | None

    def values(self, table: OutboxTable) -> tuple[str | bytes | None, ...]:
        """In the order of the table's columns. Raises BadEvent for headers where the table has no column for them."""
        values = (str(self.id), self.route, self.key, self.type, self.payload)
        if table.headers is not None:
            return (*values, self.headers)
        if self.headers is not None:
            raise BadEvent(f"headers were given, and {table.table} has no column for them")
        return values


def event(
    type: str,
    key: object,
    payload: object,
    headers: Mapping[str, str] | None,
    *,
    aggregate: str | None = None,
    id: uuid.UUID | None = None,
    encode: Callable[[Any], str] | None = None,
) -> Event:
    """Checks what was given. Raises BadEvent, which names what is wrong, and no value."""
    _check_text("type", type)
    route = type.partition(".")[0] if aggregate is None else aggregate
    _check_text("aggregate", route)
    if len(route.encode()) > MAX_ROUTE_BYTES or not route.isprintable():
        raise BadEvent(f"the aggregate becomes a topic's name: it is at most {MAX_ROUTE_BYTES} bytes of printable text")
    if not isinstance(key, str | int | uuid.UUID) or isinstance(key, bool):
        raise BadEvent(f"the key is a str, an int or a UUID, not {_kind(key)}")
    _check_text("key", str(key))
    if id is not None and not isinstance(id, uuid.UUID):
        raise BadEvent(f"the id is a UUID, not {_kind(id)}")
    body = payload if payload is None or isinstance(payload, bytes) else _json("payload", payload, encode or dumps)
    return Event(id or new_id(), route, str(key), type, body, None if headers is None else _headers(headers))


def new_id() -> uuid.UUID:
    """A UUID of version 7 (RFC 9562), which begins with the time in milliseconds: new ones lie beside each other in the key's index."""
    value = time.time_ns() // 1_000_000 << 80 | secrets.randbits(80)
    value &= ~(0xF << 76 | 0x3 << 62)
    return uuid.UUID(int=value | 0x7 << 76 | 0x2 << 62)


def _headers(headers: Mapping[str, str]) -> str:
    if not isinstance(headers, Mapping) or not all(isinstance(one, str) for pair in headers.items() for one in pair):
        raise BadEvent("headers map text to text")
    return _json("headers", dict(headers), dumps)


dumps: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
"""The value as JSON's text. Raises TypeError, ValueError or RecursionError."""


def _json(what: str, value: object, encode: Callable[[Any], str]) -> str:
    try:
        text = encode(value)
    except (TypeError, ValueError, RecursionError) as error:
        # Their messages may quote values; a type's name is none.
        of = f": {error}" if isinstance(error, TypeError) and str(error).startswith("Object of type") else ""
        raise BadEvent(f"the {what} is not JSON{of}", hint="give encode=, which makes JSON's text of it") from None
    if not isinstance(text, str):
        raise BadEvent(f"encode gave {_kind(text)} for the {what}, not JSON's text as str")
    if not _is_utf8(text) or "\0" in text or _NUL.search(text):
        raise BadEvent(f"the {what} holds a character that Postgres cannot: U+0000, or half of a surrogate pair")
    return text


def _check_text(what: str, text: object) -> None:
    if not isinstance(text, str):
        raise BadEvent(f"the {what} is a str, not {_kind(text)}")
    if not text:
        raise BadEvent(f"the {what} is empty")
    if "\0" in text or not _is_utf8(text) or len(text.encode()) > _MAX_INDEXED_BYTES:
        raise BadEvent(f"the {what} is text without U+0000 and of at most {_MAX_INDEXED_BYTES} bytes")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _kind(value: object) -> str:
    return type(value).__name__
