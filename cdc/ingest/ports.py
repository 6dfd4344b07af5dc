"""The ports of the stream's loop: the connection's bytes, and the display of how it goes. The simulator has its own of each."""

from __future__ import annotations

from typing import Protocol

from cdc.pgvalues.values import Bytes
from cdc.state.status import CaptureStatus


class Wire(Protocol):
    """One replication connection (``cdc.capture.stream.Stream``)."""

    batches: int
    """Set to how many batches the last group had: the more, the more bytes are taken at once."""

    @property
    def received(self) -> int:
        """Bytes that have come."""
        ...

    def take(self, timeout_s: float) -> Bytes:
        """Returns what has come, nothing after so long. Raises ConnectionError, ProtocolError when nothing will come any more."""
        ...

    def behind(self, torn: Bytes, taken: Bytes) -> Bytes:
        """Returns what was taken before and the last that was taken, as one block."""
        ...

    def confirm(self, lsn: int) -> None: ...

    def reply_now(self) -> None: ...


class Gauge(Protocol):
    """Keeps others informed of how capture stands (``cdc.ingest.meter.Meter``)."""

    status: CaptureStatus

    def write(self) -> None:
        """Shows the status, when it is time for that."""
        ...

    def lack(self) -> None:
        """Shows, before the log's next cut can be seen, that rows which belong to it are still to be read."""
        ...

    def say(self, state: str, error: str | None = None) -> None: ...
