"""Why something has failed, as one line that shows no row and no secret: the error's kind and where it arose, and its text only where
that can name nothing but files, memory, or what our own errors say."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql.streaming import StreamingQuery

from cdc.diskspace import described
from cdc.errors import HeadwaterError

_PLAIN: Final = ("java.io.", "java.nio.", "java.lang.OutOfMemoryError", "org.apache.hadoop.fs.")
"""Kinds of Java's errors whose texts tell of files, streams and memory."""
_OURS: Final = "cdc.errors."
_DEPTH_MAX: Final = 20


def place_of(error: Exception) -> str:
    """The place of an error in Python, or of one that Python got from Spark; of our own errors what they say."""
    if isinstance(error, HeadwaterError):
        return error.line()
    if isinstance(error, OSError) and error.filename is not None:
        return described(error)
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    if java is not None and (said := _of_java(java)) is not None:
        return said
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}"


def ending_of(query: StreamingQuery) -> str | None:
    """The reason for which Spark ended the query; None when it gives none."""
    try:
        found = query._jsq.exception()
        return _of_java(found.get()) if found.isDefined() else None
    except Py4JError as error:  # its JVM is gone, too
        return type(error).__name__


def _of_java(error: Any) -> str | None:
    try:
        chain = [error]
        while len(chain) < _DEPTH_MAX and (inner := chain[-1].getCause()) is not None:
            chain.append(inner)
        return reduced([(str(one.getClass().getName()), str(one.getMessage() or "")) for one in chain])
    except (Py4JError, OSError):  # its JVM is gone
        return None


def reduced(chain: Sequence[tuple[str, str]]) -> str:
    """Reduces (class, message) pairs, the outermost first, to the innermost's class and the part of its message that may be shown."""
    kind, text = chain[-1]
    name = kind.rpartition(".")[2]
    lines = text.splitlines()
    if kind.startswith(_PLAIN) and lines:
        return f"{name}: {lines[0]}"
    # Of Python's workers Spark gives the whole traceback; its last line is the error.
    ours = next((line.removeprefix(_OURS) for line in reversed(lines) if line.startswith(_OURS)), None)
    condition = text[1 : text.index("]")] if text.startswith("[") and "]" in text else None
    told = ours or (condition if condition and condition.replace("_", "").replace(".", "").isalnum() else None)
    return f"{name}: {told}" if told else name
