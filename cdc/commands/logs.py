"""Logs on standard error: coloured lines on a terminal, one JSON object a line elsewhere. Never row values, never secrets.

An unforeseen error's text may quote either, and so may the variables of its frames: only its type and the way there are shown. ``--debug``
shows the text, too.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import structlog

from cdc.terminal import visible

_EXCEPTION: Final = "exception"
"""Where structlog's renderers expect a trace, the only value that takes several lines."""


class _StandardError:
    """Whatever is standard error at the time of each line: a logger outlives a stream that was put in its place for a while."""

    def msg(self, line: str) -> None:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()

    debug = info = warning = error = critical = exception = fatal = log = warn = failure = err = msg


def _to_standard_error(*_: object) -> _StandardError:
    return _StandardError()


def configure_logs(*, debug: bool = False) -> None:
    """Sets structlog up, and sends the standard library's warnings (those of the libraries below us) the same way."""
    terminal = sys.stderr.isatty()
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        partial(_traced, debug),
    ]
    last: structlog.typing.Processor
    if terminal:
        shared.append(_neutralised)
        last = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    else:
        last = structlog.processors.JSONRenderer()
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


def _neutralised(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """For a terminal: whoever can name a table must not be able to write to it."""
    return {
        visible(str(key)): "\n".join(map(visible, str(value).split("\n"))) if key == _EXCEPTION else _shown(value)
        for key, value in event.items()
    }


def _shown(value: Any) -> Any:
    match value:
        case None | bool() | int() | float():
            return value
        case list() | tuple():
            return [_shown(inner) for inner in value]
        case dict():
            return {visible(str(key)): _shown(inner) for key, inner in value.items()}
        case _:
            return visible(str(value))
