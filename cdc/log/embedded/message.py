"""A batch as the Arrow IPC message that a frame holds, in pieces."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from cdc.log.embedded.format import Bytes

LARGE_BYTES: Final = 2**18
"""A smaller batch is copied into one piece, which costs less than many pieces do."""


def message_of(batch: pa.RecordBatch) -> list[Bytes]:
    """The same bytes as ``batch.serialize()``. Of a large batch the pieces are its own columns: fresh pages of memory for a copy cost more than
    the copy. They hold until the last of them goes."""
    if batch.nbytes < LARGE_BYTES:
        return [batch.serialize()]
    pieces = _PiecesWritten()
    writer = pa.ipc.new_stream(pa.PythonFile(pieces, "w"), batch.schema)
    writer.write_batch(batch)
    return pieces.behind(batch.schema.serialize().size)


class _PiecesWritten:
    """A file that keeps what is written as it is given: columns come as the buffers that they are."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[Bytes] = []

    def write(self, piece: Bytes) -> int:
        self._pieces.append(piece)
        return len(piece)

    def tell(self) -> int:
        return sum(map(len, self._pieces))

    def flush(self) -> None:
        return

    def close(self) -> None:
        return

    def behind(self, start: int) -> list[Bytes]:
        """Raises ValueError unless a piece begins there."""
        at = 0
        for number, piece in enumerate(self._pieces):
            if at == start:
                return self._pieces[number:]
            at += len(piece)
        raise ValueError("a stream's schema does not end where a piece does")
