"""The requests that the snapshot's generators yield.

A generator holds what is decided. It has no connection, no thread and no clock: whatever takes time it yields as a request, and it goes on with
the answer, or with the error that is thrown into it there. ``coordinator`` drives the generators with threads and connections; the
simulator drives the same ones over its model of the server, one step at a time. psycopg's ``generators`` and ``waiting`` are built like this.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import psycopg

from cdc.model.batch import Op
from snapshots.catalog import SourceTable
from snapshots.feed import Chunk, State
from snapshots.plan import Key, Range


class Query:
    """A question to the server, on the connection of the one who asks (``queries``)."""

    __slots__ = ()

    def ask(self, connection: psycopg.Connection) -> object:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Rollback:
    """Ends the transaction, be it in the middle of a COPY."""


@dataclass(frozen=True, slots=True)
class Copy:
    """Begins to read some rows, which become changes of kind ``op``; ``NextBlock`` asks for them."""

    source: SourceTable
    part: Range
    op: Op
    most_rows: int
    """In one block."""


@dataclass(frozen=True, slots=True)
class NextBlock:
    """→ ``RowsRead | None``: the next rows; None when there are no more."""


@dataclass(frozen=True, slots=True)
class RowsRead:
    """Rows as they were read. ``content`` means something to the driver only."""

    rows: int
    size_bytes: int
    content: Any


@dataclass(frozen=True, slots=True)
class Typed:
    """→ ``list[pa.RecordBatch]``: the rows as changes."""

    rows: Sequence[RowsRead]


@dataclass(frozen=True, slots=True)
class Emit:
    """Writes a watermark. The server's WAL is synced up to it when this is answered."""

    content: bytes


class Started(Protocol):
    """Steps that go on beside those that started them."""

    def done(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Start:
    """→ ``Started``."""

    steps: Generator[Any, Any, None]


@dataclass(frozen=True, slots=True)
class Finished:
    """Waits until the steps have ended. Raises what they raised."""

    started: Started


@dataclass(frozen=True, slots=True)
class Await:
    """→ bool: whether the chunk came into one of the states, within ``most_s`` where that is given."""

    chunk: Chunk
    states: frozenset[State]
    most_s: float | None = None


@dataclass(frozen=True, slots=True)
class Since:
    """→ ``Position | None`` (``loggedrows.LoggedRows.since``)."""

    source: SourceTable


@dataclass(frozen=True, slots=True)
class Unread:
    """→ the keys that ``loggedrows.LoggedRows.unread`` gives, for ``NextKeys``."""

    source: SourceTable
    since: int


@dataclass(frozen=True, slots=True)
class NextKeys:
    """→ ``Sequence[Key]``: some more of them, empty when there are no more; None when the log can no longer tell."""

    keys: Iterator[Sequence[Key]]


@dataclass(frozen=True, slots=True)
class Pause:
    """Lets time pass."""

    seconds: float


@dataclass(frozen=True, slots=True)
class NextJob:
    """→ ``Job | None``: the board's next job; None when the session is over."""


@dataclass(frozen=True, slots=True)
class AwaitBoard:
    """Waits until something on the board has changed, or ``most_s`` have passed. Raises what a worker failed with."""

    most_s: float


Request = (
    Query
    | Rollback
    | Copy
    | NextBlock
    | Typed
    | Emit
    | Start
    | Finished
    | Await
    | Since
    | Unread
    | NextKeys
    | Pause
    | NextJob
    | AwaitBoard
)

T = TypeVar("T")
Steps = Generator[Request, Any, T]
"""A generator of requests, which returns a ``T``."""


def drive(steps: Steps[T], answer: Callable[[Request], object]) -> T:
    """Runs the steps to their end. An error while a request is answered is raised in the steps, where they made it."""
    try:
        request = next(steps)
        while True:
            try:
                answered = answer(request)
            except BaseException as error:
                request = steps.throw(error)
            else:
                request = steps.send(answered)
    except StopIteration as end:
        result: T = end.value
        return result
