"""An event as a logical message: the body that a service emits in its transaction, and what is read of it. Pure; neither Arrow nor a driver is loaded.

``select pg_logical_emit_message(true, 'outbox', body)``, where the body is a JSON object in UTF-8 of at most ``MOST_BYTES``, with these members in any order:

=============  =======  =============================================================================
``id``         text     the event's id, a UUID
``aggregate``  text     says into which topic it goes
``key``        text     what the event is about
``type``       text     the kind of event
``payload``    any      the event itself, kept to the letter as it stands here. Left out: there is none
``headers``    object   of text by name, kept to the letter, too. May be left out
=============  =======  =============================================================================

Everybody who may connect may emit any bytes, so whatever a body is, reading it gives an ``Event`` or raises ``BadMessage``. Its words quote nothing of it.
"""

from __future__ import annotations

import json
import re
import uuid
from typing import Any, Final

from cdc.outbox.event import BadEvent, Event, dumps

MOST_BYTES: Final = 4 * 2**20
"""Reading takes twenty times as much memory, where somebody means ill."""
NOT_TRANSACTIONAL: Final = "it was not emitted with its transaction: the first argument of pg_logical_emit_message has to be true"
TOO_LARGE: Final = f"it is larger than {MOST_BYTES:,} bytes"

_TEXTS: Final = ("id", "aggregate", "key", "type")
_MEMBERS: Final = frozenset((*_TEXTS, "payload", "headers"))
_SPACE: Final = re.compile(r"[ \t\n\r]*")


class BadMessage(Exception):
    """The body does not hold an event."""


def body_of(event: Event) -> str:
    """The text to emit. Raises BadEvent for a payload that is bytes, or is not JSON's text, and for an event that is too large."""
    if isinstance(event.payload, bytes):
        raise BadEvent("bytes are a payload for a table whose column is bytea, not for a message", hint="encode them as text")
    if event.payload is not None and not _is_json(event.payload):
        raise BadEvent("the payload is not JSON's text, as that of a message has to be", hint="write it into an outbox table")
    texts = {"id": str(event.id), "aggregate": event.route, "key": event.key, "type": event.type}
    members = [f'"{name}":{dumps(text)}' for name, text in texts.items()]
    members += [f'"{name}":{text}' for name, text in (("payload", event.payload), ("headers", event.headers)) if text is not None]
    body = "{" + ",".join(members) + "}"
    if len(body.encode()) > MOST_BYTES:
        raise BadEvent(
            f"the event has more than {MOST_BYTES:,} bytes, the most that a message may have", hint="write it into an outbox table"
        )
    return body


def parsed(body: bytes) -> Event:
    """The event of a message's body. Raises BadMessage."""
    if len(body) > MOST_BYTES:
        raise BadMessage(TOO_LARGE)
    try:
        text = body.decode()
    except UnicodeDecodeError:
        raise BadMessage("it is not UTF-8") from None
    try:
        found = _members(text)
    except (ValueError, RecursionError, IndexError):
        raise BadMessage("it is not a JSON object") from None
    if found.keys() - _MEMBERS:
        raise BadMessage(f"it has members beside {', '.join((*_TEXTS, 'payload'))} and headers")
    values = {}
    for name in _TEXTS:
        value = found.get(name, (None, ""))[0]
        if not isinstance(value, str) or not _is_plain(value):
            raise BadMessage(f"it has no {name}, which is text without U+0000")
        values[name] = value
    headers, headers_text = found.get("headers", (None, None))
    if headers is not None and not (isinstance(headers, dict) and all(isinstance(one, str) for one in headers.values())):
        raise BadMessage("its headers are not an object of text by name")
    if headers and not all(_is_plain(one) for pair in headers.items() for one in pair):
        raise BadMessage("its headers hold a character that Postgres cannot: U+0000, or half of a surrogate pair")
    try:
        id = uuid.UUID(values["id"])
    except ValueError:
        raise BadMessage("its id is not a UUID") from None
    payload = found.get("payload", (None, None))[1]
    return Event(id, values["aggregate"], values["key"], values["type"], payload, headers_text if headers is not None else None)


def _refuse_constant(_: str) -> None:
    raise ValueError  # NaN and the infinities are no JSON


# Numbers are only passed over, however long they are.
_value_at: Final = json.JSONDecoder(parse_int=float, parse_float=float, parse_constant=_refuse_constant).raw_decode


def _members(text: str) -> dict[str, tuple[Any, str]]:
    """The members of the object, each as a value and as it is written. Raises ValueError, IndexError or RecursionError."""
    found: dict[str, tuple[Any, str]] = {}
    at = _expect(text, _past(text, 0), "{")
    if text[at] == "}":
        return _ended(text, at + 1, found)
    while True:
        if text[at] != '"':
            raise ValueError
        name, at = _value_at(text, at)
        begin = _expect(text, _past(text, at), ":")
        value, end = _value_at(text, begin)
        if name in found:
            raise ValueError
        found[name] = value, text[begin:end]
        at = _past(text, end)
        if text[at] == "}":
            return _ended(text, at + 1, found)
        at = _expect(text, at, ",")


def _expect(text: str, at: int, character: str) -> int:
    if text[at] != character:
        raise ValueError
    return _past(text, at + 1)


def _past(text: str, at: int) -> int:
    """Where the next character is that is not a space."""
    space = _SPACE.match(text, at)
    assert space is not None
    return space.end()


def _ended(text: str, at: int, found: dict[str, tuple[Any, str]]) -> dict[str, tuple[Any, str]]:
    if _past(text, at) != len(text):
        raise ValueError
    return found


def _is_json(text: str) -> bool:
    try:
        return _past(text, _value_at(text, _past(text, 0))[1]) == len(text)
    except (ValueError, RecursionError, IndexError):
        return False


def _is_plain(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False  # half of a surrogate pair
    return "\0" not in text
