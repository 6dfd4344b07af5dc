"""A line of the log as a person reads it at a terminal: time, part, words; coloured by how much it matters.

Names and reasons in it are somebody else's text: none of it reaches the terminal as an order, or begins a line of its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from cdc.terminal import visible

PART: Final = "part"
FACTS: Final = "facts"
_PART_WIDTH: Final = 15
_DIM, _BOLD, _PLAIN = "2", "1", ""
_COLOURS: Final[Mapping[str, str]] = {"debug": _DIM, "info": _PLAIN, "warning": "33", "error": "31", "critical": "31"}
_TRACES: Final = ("exception", "stack")
"""Facts that take several lines."""
_OURS: Final = ("event", "level", "timestamp", "exc_info", PART, FACTS, *_TRACES)


def render(_logger: object, _method: str, event: structlog.typing.EventDict) -> str:
    """structlog's last step. ``NO_COLOR`` is heeded, as everywhere."""
    colour = _COLOURS.get(str(event.get("level")), _PLAIN)
    rest = ", ".join(f"{visible(str(key))} {_value(value)}" for key, value in event.items() if key not in _OURS)
    words = visible(str(event.get("event", ""))) + (f" ({rest})" if rest else "")
    part = visible(str(event.get(PART, "")))
    line = (
        f"{_painted(_clock(event.get('timestamp')), _DIM)}  {_painted(part.ljust(_PART_WIDTH), _BOLD)}  {_painted(words, colour)}"
    )
    traces = [visible(row) for name in _TRACES if event.get(name) for row in str(event[name]).split("\n")]
    return "\n".join([line, *traces])


def _value(value: Any) -> str:
    if isinstance(value, list | tuple):
        return visible(", ".join(map(str, value)))
    return visible(str(value))


def _clock(stamp: object) -> str:
    """The local time of an ISO timestamp."""
    try:
        moment = datetime.fromisoformat(str(stamp))
    except ValueError:
        moment = datetime.now(UTC)
    return moment.astimezone().strftime("%H:%M:%S")


def _painted(text: str, colour: str) -> str:
    return f"\x1b[{colour}m{text}\x1b[0m" if colour and "NO_COLOR" not in os.environ else text
