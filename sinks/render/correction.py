"""A value that an operator gives a column in place of its own: whether the column's type has it. Pure."""

from __future__ import annotations

from typing import Final

from cdc.model.structure import ArrayOf, Scalar, ScalarType
from cdc.model.topic import TopicField
from sinks.render.fromtext import spelled
from sinks.render.literals import check
from sinks.render.pgtext import array_elements

_JSON: Final = (Scalar(ScalarType.JSON), Scalar(ScalarType.JSONB))


def checked(text: str, field: TopicField) -> str | None:
    """The value's canonical text; None where the field's type has no such value."""
    if "\0" in text:
        return None
    try:
        text.encode()  # half a surrogate pair is no text, either
        if field.structure in _JSON:
            check(text)
        elif isinstance(field.structure, ArrayOf):
            array_elements(text, field.structure.delimiter)
    except (ValueError, RecursionError):
        return None
    return spelled(text, field)
