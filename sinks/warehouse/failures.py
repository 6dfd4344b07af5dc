"""What Java and the bridge to it fail with, as this room's own errors: the class only, for messages may show values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException

from cdc.errors import StoreError


class CommitConflict(Exception):
    """Somebody else changed the table in between: look again, then commit again."""


class CommitUnknown(Exception):
    """The commit may or may not have happened: look for it before anything else."""


@contextmanager
def errors(doing: str, *, just_written: bool = False) -> Iterator[None]:
    """Java's exceptions as StoreError: the class only, for messages may show values.

    ``just_written``: what is missing was there a moment ago, so the table was lost or put back meanwhile, and is looked at again.
    """
    try:
        yield
    except Py4JJavaError as error:
        name = error.java_exception.getClass().getSimpleName()
        gone = just_written and name == "NotFoundException"
        raise StoreError(f"the warehouse could not {doing}: {name}", retryable=gone or name in _PASSING) from error
    except CapturedException as error:
        raise _converted(doing, error) from None
    except (Py4JError, OSError) as error:
        raise StoreError(f"the warehouse could not {doing}: {type(error).__name__}", retryable=True) from error


_PASSING: Final = frozenset(
    {"RuntimeIOException", "UncheckedIOException", "IOException", "CommitFailedException", "CommitStateUnknownException"}
)


@contextmanager
def commit_errors() -> Iterator[None]:
    try:
        yield
    except Py4JJavaError as error:
        name = error.java_exception.getClass().getSimpleName()
        if name == "CommitStateUnknownException":
            raise CommitUnknown from error
        if name in ("CommitFailedException", "ValidationException"):
            raise CommitConflict from error
        # What it was to build on is gone: the table was lost meanwhile. Opened again, it says what is so.
        gone = name == "NotFoundException"
        raise StoreError(f"the warehouse could not commit: {name}", retryable=gone or name in _PASSING) from error
    except CapturedException as error:
        raise _converted("commit", error) from None
    except Py4JError as error:
        raise CommitUnknown from error


def _converted(doing: str, error: CapturedException) -> StoreError:
    """PySpark makes exceptions of its own of some of Java's."""
    return StoreError(f"the warehouse could not {doing}: {type(error).__name__}", retryable=False)
