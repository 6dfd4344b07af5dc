"""Loads (on the first start: compiles) every kernel of capture before a stream begins, so that no change waits for it."""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.capture import tuples
from cdc.capture.decoder import Decoder
from cdc.capture.definitions import Definitions
from cdc.model import pgtypes
from cdc.model.facts import FactColumn, Facts
from cdc.model.table import Table
from cdc.pgvalues.values import Bytes, Flags
from cdc.pgvalues.wire import gather

_COLUMNS: Final = (
    (b"id", pgtypes.INT8, -1, b"1"),
    (b"whole", pgtypes.INT4, -1, b"2"),
    (b"amount", pgtypes.NUMERIC, (12 << 16 | 2) + 4, b"1.10"),
    (b"at", pgtypes.TIMESTAMPTZ, -1, b"2000-01-01 00:00:00.5+00"),
    (b"on", pgtypes.DATE, -1, b"2000-01-01"),
    (b"time", pgtypes.TIME, -1, b"12:00:00"),
    (b"good", pgtypes.BOOL, -1, b"t"),
    (b"ratio", pgtypes.FLOAT8, -1, b"0.5"),
    (b"raw", pgtypes.BYTEA, -1, b"\\x00"),
    (b"note", pgtypes.TEXT, -1, b"text"),
)
_RELATION: Final = 1
_FULL: Final = 2
"""… and a table under replica identity FULL, whose old rows the server sends."""


def warm() -> None:
    """Decodes one small transaction with every kind of row and every kernel's type."""
    row = struct.pack("!h", len(_COLUMNS)) + b"".join(b"t" + struct.pack("!i", len(text)) + text for *_, text in _COLUMNS)
    relation, full = struct.pack("!I", _RELATION), struct.pack("!I", _FULL)
    columns = b"".join(
        struct.pack("!B", index == 0) + name + b"\0" + struct.pack("!Ii", oid, typmod)
        for index, (name, oid, typmod, _) in enumerate(_COLUMNS)
    )
    block = _frames(
        b"B" + struct.pack("!QqI", 1, 0, 1),
        b"R" + relation + b"public\0warm\0d" + struct.pack("!h", len(_COLUMNS)) + columns,
        b"I" + relation + b"N" + row,
        b"U" + relation + b"K" + row + b"N" + row,
        b"D" + relation + b"K" + row,
        b"R" + full + b"public\0warm_full\0f" + struct.pack("!h", len(_COLUMNS)) + columns,
        b"U" + full + b"O" + row + b"N" + row,
        b"C" + struct.pack("!BQQq", 0, 1, 2, 0),
    )
    own = tuple(
        FactColumn(n, name.decode(), oid, typmod, "", "", False, "") for n, (name, oid, typmod, _) in enumerate(_COLUMNS, 1)
    )
    facts = Facts(_FULL, "public", "warm_full", False, "f", own, (1,), {})
    decoder = Decoder(Definitions(lambda _: None, facts={_FULL: facts}), _Forgetful(), lambda _rows, _missing: None, 0)
    for _ in decoder.groups(block, 0, len(block), lambda: 1):
        pass
    gather(-1, block, 0, 1, 1)  # no descriptor: nothing is read
    pa.array(np.zeros(1))  # pyarrow imports pandas at its first array from numpy: 0.2 s that the first chunk would wait for


class _Forgetful:
    def knows(self, table: Table) -> bool:
        del table
        return False

    def fill(self, table: Table, block: Bytes, rows: tuples.RowFields) -> tuple[Bytes, Flags | None]:
        del table, rows
        return block, None

    def weigh(self, table: Table, block: Bytes, rows: tuples.RowFields) -> npt.NDArray[np.int64]:
        del table, block
        return np.zeros(len(rows.op), np.int64)

    def forget(self, relation: int) -> None:
        del relation


def _frames(*messages: bytes) -> Bytes:
    bodies = [b"w" + bytes(24) + message for message in messages]
    return np.frombuffer(bytearray(b"".join(b"d" + struct.pack("!i", len(body) + 4) + body for body in bodies)), np.uint8)
