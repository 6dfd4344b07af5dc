"""Logs on standard error: readable lines on a terminal, one JSON object a line elsewhere. Never row values, never secrets.

A line's ``part`` is the name of its logger. What is given as ``facts`` the words of the line say already: only machines get it.

An unforeseen error's text may quote values, and so may the variables of its frames: only its type and the way there are shown. ``--debug``
shows the text, too.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Final

import structlog

from cdc.commands.lines import FACTS, PART, render
from cdc.terminal import visible

_EXCEPTION: Final = "exception"
"""Where structlog's renderers expect a trace, the only value that takes several lines."""


class _StandardError:
    """Whatever is standard error at the time of each line: a logger outlives a stream that was put in its place for a while.

    A line that cannot be written is lost, and nothing else is: a service must not end because the disk of its log is full, or because the reader of
    its log has ended.
    """

    def __init__(self, name: str = "") -> None:
        self.name = name

    def msg(self, line: str) -> None:
        with suppress(OSError, ValueError):  # ValueError: it was closed
            sys.stderr.write(line + "\n")
            sys.stderr.flush()

    debug = info = warning = error = critical = exception = fatal = log = warn = failure = err = msg


def _to_standard_error(*name: str) -> _StandardError:
    return _StandardError(*name)


def configure_logs(*, debug: bool = False) -> None:
    """Sets structlog up, and sends the standard library's warnings (those of the libraries below us) the same way."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        _name_part,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        partial(_traced, debug),
    ]
    last: structlog.typing.Processor = render if sys.stderr.isatty() else _json
    level = logging.DEBUG if debug else logging.INFO
    structlog.configure(
        processors=[*shared, last],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=_to_standard_error,
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
    if threading.excepthook is threading.__excepthook__:
        # Python's own hook prints the text.
        threading.excepthook = _thread_ended


def _thread_ended(ended: threading.ExceptHookArgs) -> None:
    if ended.exc_type is not SystemExit:
        name = ended.thread.name if ended.thread is not None else "?"
        structlog.get_logger("threads").error("a thread ended unexpectedly", thread=name, exc_info=ended.exc_value)


def _traced(text: bool, _logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """structlog's format_exc_info without variables, and without what the errors say unless ``text``."""
    given = event.pop("exc_info", None)
    if isinstance(given, tuple):
        given = given[1]
    elif given and not isinstance(given, BaseException):
        given = sys.exc_info()[1]
    record = event.get("_record")
    if not text and isinstance(record, logging.LogRecord) and record.name == "asyncio":
        # Its further lines show the task, and the task shows what its error says.
        event["event"] = str(event["event"]).partition("\n")[0]
    if given:
        event[_EXCEPTION] = "\n".join(trace(given, text=text))
    return event


def trace(error: BaseException, *, text: bool) -> Iterator[str]:
    """The lines of its traceback, those of what led to it first: places and types, and with ``text`` what the errors say."""
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None:
        yield from trace(before, text=text)
        yield ""
    yield "Traceback (most recent call last):"
    for frame in traceback.extract_tb(error.__traceback__):
        yield f'  File "{frame.filename}", line {frame.lineno}, in {frame.name}'
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    yield visible(f"{name}: {error}") if text else name


def _name_part(logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    record = event.get("_record")  # of the standard library's loggers
    if name := getattr(logger if record is None else record, "name", ""):
        event.setdefault(PART, name)
    return event


def _json(logger: Any, method: str, event: structlog.typing.EventDict) -> str | bytes:
    return _as_json(logger, method, {**event.pop(FACTS, {}), **event})


_as_json: Final = structlog.processors.JSONRenderer()
