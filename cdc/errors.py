"""Every error a user can meet: what is wrong, where, and the command that helps. Never a row's values, never a secret."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any, Final


class StopState(StrEnum):
    """A named reason for which a part stops and waits for an operator; it survives restarts."""

    SLOT_MISSING = "SLOT_MISSING"
    SLOT_REPLACED = "SLOT_REPLACED"
    SLOT_LOST = "SLOT_LOST"
    DIVERGED = "DIVERGED"
    OTHER_LOG = "OTHER_LOG"
    SYSTEM_CHANGED = "SYSTEM_CHANGED"
    PUBLICATION_LOST = "PUBLICATION_LOST"
    TABLE_UNPUBLISHED = "TABLE_UNPUBLISHED"
    PRIVACY_UNDECIDED = "PRIVACY_UNDECIDED"
    COLUMN_RESERVED = "COLUMN_RESERVED"
    POISON_ROW = "POISON_ROW"
    LOG_CORRUPT = "LOG_CORRUPT"
    POSITION_GONE = "POSITION_GONE"
    STORE_REFUSES = "STORE_REFUSES"
    SCHEMA_PAUSED = "SCHEMA_PAUSED"
    CONTRACT_BROKEN = "CONTRACT_BROKEN"
    INBOX_CONFLICT = "INBOX_CONFLICT"
    OUTBOX_UPDATED = "OUTBOX_UPDATED"
    RECEIVER_GONE = "RECEIVER_GONE"
    VIEW_REFUSED = "VIEW_REFUSED"


class HeadwaterError(Exception):
    """Base of all errors that this package raises on purpose.

    ``str(error)`` is one line: what is wrong and where. ``hint`` is the command or the setting that repairs it.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint

    def line(self) -> str:
        return f"{self} → {self.hint}" if self.hint else str(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """As another process gets it: each kind is made from arguments of its own, and this is what came of them."""
        return _again, (type(self), self.args, self.__dict__)


def _again(kind: type[HeadwaterError], args: tuple[object, ...], held: dict[str, Any]) -> HeadwaterError:
    made = kind.__new__(kind, *args)
    made.__dict__.update(held)
    return made


class ConfigError(HeadwaterError):
    """The configuration or the command line is wrong (exit 2)."""

    exit_code = 2


class SourceError(HeadwaterError):
    """Postgres refuses, is not set up for capture, or cannot be reached at start (exit 2)."""

    exit_code = 2


class SourceUnreachable(SourceError):
    """Postgres does not answer now (down, starting up, out of connections); it may do so later."""


class WriterElsewhere(HeadwaterError):
    """Another process writes to the log."""


class WaitTimeout(HeadwaterError):
    """The awaited event did not happen in time (exit 3)."""

    exit_code = 3


class Stopped(HeadwaterError):
    """A stop state: an operator has to decide (exit 4)."""

    exit_code = 4

    def __init__(self, state: StopState, message: str, *, hint: str | None = None) -> None:
        super().__init__(f"{state}: {message}", hint=hint or f"cdc resume {state}")
        self.state = state


class ProtocolError(HeadwaterError):
    """Bytes that the replication protocol does not allow. Raised by the decoder; of all bytes it raises nothing else but ``ColumnReserved``."""


class LogCorrupt(Stopped):
    """Damage in the log anywhere but at its torn tail."""

    def __init__(self, message: str) -> None:
        super().__init__(StopState.LOG_CORRUPT, message)


class PositionGone(Stopped):
    """A reader asks for changes that the log no longer keeps."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(StopState.POSITION_GONE, message, hint=hint)


class LookupBehind(HeadwaterError):
    """A keyed look-up cannot be answered yet: its files are still being made from the log. Whoever asks again later gets an answer."""


class ColumnReserved(Stopped):
    """A captured table has got a column with a name that batches and stores use themselves."""

    def __init__(self, table: str, column: str) -> None:
        super().__init__(
            StopState.COLUMN_RESERVED,
            f"table {table} has got a column {column}, a name that Headwater uses itself",
            hint="rename the column, then cdc resume COLUMN_RESERVED (with --rebuild if rows were written under that name; "
            "deploy/runbook.md, COLUMN_RESERVED)",
        )


class StoreError(HeadwaterError):
    """A derived store does not take what it is given. ``retryable`` says whether waiting can help."""

    def __init__(self, message: str, *, retryable: bool, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retryable = retryable


class AnotherHistory(StoreError):
    """The log has begun another history since the store was opened, or raised a floor: what is written now could not say so. Whoever opens the store again may go on."""

    def __init__(self, store: str) -> None:
        super().__init__(f"store {store}: the log has begun another history: it is opened again", retryable=True)


class LogReplaced(StoreError):
    """Another folder stands where the log was that somebody has open: a copy was put back, say. Whoever asks again is answered from that one."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"the log's folder {folder} was replaced", retryable=True, hint="start again whatever reads it")


class LogAway(StoreError):
    """A sealed file of the log is in the tier, which does not give it now. Nothing is lost: whoever asks again may get it."""

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message, retryable=True, hint=hint)


_QUOTING: Final = {"22": "a data exception", "23": "a violated constraint"}


def presentable(sqlstate: str | None, message: str) -> str:
    """A Postgres error's primary message, or just its class where such messages quote values (manual, "PostgreSQL Error Codes")."""
    quoting = _QUOTING.get((sqlstate or "")[:2])
    return f"{quoting} (SQLSTATE {sqlstate})" if quoting else message
