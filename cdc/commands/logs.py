"""Logs on standard error: readable lines on a terminal, one JSON object a line elsewhere. Never row values, never secrets.

A line's ``part`` is the name of its logger. What is given as ``facts`` the words of the line say already: only machines get it.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

import structlog

from cdc.commands.lines import FACTS, PART, render


class _StandardError:
    """Whatever is standard error at the time of each line: a logger outlives a stream that was put in its place for a while."""

    def __init__(self, name: str = "") -> None:
        self.name = name

    def msg(self, line: str) -> None:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()

    debug = info = warning = error = critical = exception = fatal = log = warn = failure = err = msg


def _to_standard_error(*name: str) -> _StandardError:
    return _StandardError(*name)


def configure_logs(*, debug: bool = False) -> None:
    """Sets structlog up, and sends the standard library's warnings (those of the libraries below us) the same way."""
    terminal = sys.stderr.isatty()
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        _name_part,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: structlog.typing.Processor
    if terminal:
        last = render
    else:
        # A trace's frames may hold row values and secrets; --debug is the place to see one.
        last = _json
        if debug:
            shared.append(structlog.processors.format_exc_info)
    level = logging.DEBUG if debug else logging.INFO
    structlog.configure(
        processors=[*shared, last],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=_to_standard_error,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared, processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, last]
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO if debug else logging.WARNING)


def _name_part(logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    record = event.get("_record")  # of the standard library's loggers
    if name := getattr(logger if record is None else record, "name", ""):
        event.setdefault(PART, name)
    return event


def _json(logger: Any, method: str, event: structlog.typing.EventDict) -> str | bytes:
    return _as_json(logger, method, {**event.pop(FACTS, {}), **event})


_as_json: Final = structlog.processors.JSONRenderer()
