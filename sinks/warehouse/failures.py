"""Errors of Java and the bridge to it, as this room's own: the class only, for messages may show values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException

from cdc.errors import StoreError


class CommitConflict(Exception):
    """Somebody else changed the table in between: look again, then commit again."""


class CommitUnknown(Exception):
    """The commit may or may not have happened: look for it before anything else."""


class Vanished(StoreError):
    """A table or one of its files was there a moment ago and is not now: it was lost or put back meanwhile, and is looked at again."""

    def __init__(self, doing: str, name: str) -> None:
        super().__init__(f"the warehouse could not {doing}: {name}", retryable=True)


_PASSING: Final = frozenset(
    {
        "RuntimeIOException",
        "UncheckedIOException",
        "IOException",
        "CommitFailedException",
        "CommitStateUnknownException",
        "AlreadyExistsException",
        "OutOfMemoryError",
        "UncheckedSQLException",
        "RESTException",
        "ServiceFailureException",
        "ServiceUnavailableException",
        "SdkClientException",
        "S3Exception",
        # The token has run out, and there was no younger one in time. Whether there is one, it is the next signing in that tells (``connection``).
        "NotAuthorizedException",
    }
)
_UNANSWERED: Final = frozenset({"UncheckedSQLException", "RESTException", "ServiceFailureException", "ServiceUnavailableException"})
"""So a catalog's client calls an answer that did not come, or does not say what has happened."""
_MISSING: Final = frozenset({"NotFoundException", "NoSuchTableException"})
_METADATA_MISSING: Final = "Metadata file for version"
"""So begins what Iceberg says where a table's newest metadata went away; the class is the one of every other contradiction."""
_CONTRADICTION: Final = "IllegalStateException"
"""Iceberg's word for a commit that finds itself out of step, as where the table is put back from a copy in the middle of it."""
_HISTORY_GONE: Final = "is not an ancestor of"
"""So Iceberg calls it, as an illegal argument, where the snapshot that a commit goes out from is no longer of the table's past: it was rolled
back, or put back from a copy."""


def java_name(error: Any) -> str:
    """The class of what Java raised (``Py4JJavaError``, or what PySpark made of it), without its package."""
    try:
        return str(error.java_exception.getClass().getSimpleName())
    except (Py4JError, OSError):  # the JVM has gone meanwhile
        return type(error).__name__


@contextmanager
def errors(doing: str) -> Iterator[None]:
    """Java's exceptions, the bridge's and the disk's as StoreError. Raises Vanished where something was there a moment ago."""
    try:
        yield
    except Py4JJavaError as error:
        raise _of_java(doing, error) from error
    except CapturedException as error:
        raise _converted(doing, error) from None
    except Py4JError as error:
        raise StoreError(f"the warehouse could not {doing}: {type(error).__name__}", retryable=True) from error
    except OSError as error:
        raise StoreError(f"the warehouse could not {doing}: {error.strerror or type(error).__name__}", retryable=True) from error


@contextmanager
def commit_errors() -> Iterator[None]:
    try:
        yield
    except Py4JJavaError as error:
        name = java_name(error)
        if name in ("CommitStateUnknownException", _CONTRADICTION) or name in _UNANSWERED:
            raise CommitUnknown from error
        if name in ("CommitFailedException", "ValidationException"):
            raise CommitConflict from error
        raise _of_java("commit", error) from error
    except CapturedException as error:
        if _HISTORY_GONE in (error._desc or ""):
            raise CommitConflict from None
        raise _converted("commit", error) from None
    except (Py4JError, OSError) as error:
        raise CommitUnknown from error


def _of_java(doing: str, error: Py4JJavaError) -> StoreError:
    name = java_name(error)
    if name in _MISSING or (name == "ValidationException" and _says(error).startswith(_METADATA_MISSING)):
        return Vanished(doing, name)
    return StoreError(f"the warehouse could not {doing}: {name}", retryable=name in _PASSING)


def _says(error: Py4JJavaError) -> str:
    try:
        return str(error.java_exception.getMessage())
    except (Py4JError, OSError):
        return ""


def _converted(doing: str, error: CapturedException) -> StoreError:
    """PySpark makes exceptions of its own of some of Java's."""
    return StoreError(f"the warehouse could not {doing}: {type(error).__name__}", retryable=False)
