"""The columns that an operator corrects in a row (`cdc dlq edit`): one JSON object → canonical text. Nothing here shows a value."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from cdc.errors import ConfigError
from cdc.model.structure import Scalar, ScalarType
from cdc.model.topic import TopicField, TopicSchema

_JSON: Final = (Scalar(ScalarType.JSON), Scalar(ScalarType.JSONB))
_SPACE: Final = " \t\n\r"
_DECODER: Final = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)


def read_values(text: str, schema: TopicSchema) -> dict[str, str | None]:
    """The columns that a JSON object corrects, as canonical text. A value is a JSON value of the column's kind, or a string: the text that Postgres has
    for it. Raises ConfigError."""
    try:
        given = list(_members(text))
    except (ValueError, RecursionError):
        raise ConfigError("the corrected row is not JSON") from None
    except _NotAnObject:
        given = []
    if not given:
        raise ConfigError("the corrected row is not a JSON object of columns")
    fields = {one.name: one for one in schema.fields}
    found: dict[str, str | None] = {}
    for name, value, written in given:
        if (field := fields.get(name)) is None:
            raise ConfigError(f"{schema.topic} has no column {name!r}", hint=f"one of {', '.join(fields)}")
        if field.key:
            raise ConfigError(f"{name} is in the key of {schema.topic}: a row with another key is another row")
        if name in found:
            raise ConfigError(f"{name} is given twice")
        found[name] = None if value is None else _spelled(value, written, field)
        if value is not None and found[name] is None:
            raise ConfigError(f"what is given for {name} is not a value of its type, {field.type_name or field.type}")
    return found


class _NotAnObject(Exception):
    """It is JSON, but something else."""


def _members(text: str) -> Iterator[tuple[str, Any, str]]:
    """Each member's name, its value, and the value as it is written: numbers of any size inside it are not to change. Raises ValueError,
    RecursionError, _NotAnObject."""
    at = _passed(text, 0)
    if text[at : at + 1] != "{":
        _DECODER.decode(text)
        raise _NotAnObject
    at, first = _passed(text, at + 1), True
    while text[at : at + 1] != "}":
        if not first:
            at = _passed(text, _expected(text, at, ","))
        named = text[at : at + 1] == '"'
        name, at = _DECODER.raw_decode(text, at)
        at = _passed(text, _expected(text, _passed(text, at), ":"))
        value, end = _DECODER.raw_decode(text, at)
        if not named:
            raise ValueError("a member has no name")
        yield name, value, text[at:end]
        at, first = _passed(text, end), False
    if _passed(text, at + 1) != len(text):
        raise ValueError("more behind it")


def _passed(text: str, at: int) -> int:
    while text[at : at + 1] and text[at] in _SPACE:
        at += 1
    return at


def _expected(text: str, at: int, what: str) -> int:
    if text[at : at + 1] != what:
        raise ValueError(f"{what} is missing")
    return at + 1


def _spelled(value: Any, written: str, field: TopicField) -> str | None:
    """None where the field's type has no such value."""
    from sinks.render.correction import checked

    if isinstance(value, str) and written.startswith('"'):
        text = value
    elif isinstance(value, bool) and field.structure not in _JSON:
        text = "t" if value else "f"
    else:
        text = written
    return checked(text, field)
