"""Deletion vectors: which rows of a data file are gone, as Iceberg v3 stores them (spec: "Deletion Vectors", "Puffin"). Pure.

A vector is a 64-bit Roaring bitmap of row positions in the portable format, framed with a length, a magic number and a CRC-32, and
lies as one blob in a Puffin file. Positions here are numpy int64, sorted and unique.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int64]

BLOB_TYPE: Final = "deletion-vector-v1"
_BLOB_MAGIC: Final = b"\xd1\xd3\x39\x64"
_PUFFIN_MAGIC: Final = b"PFA1"
_ROW_POSITION_FIELD_ID: Final = 2147483645
"""Iceberg's reserved field id of ``_pos``: what a vector's blob says that it is about."""

_NO_RUNS_COOKIE: Final = 12346
_RUNS_COOKIE: Final = 12347
_ARRAY_LIMIT: Final = 4096
"""A container of more values than this is a bitmap of 65,536 bits (Roaring's format)."""
_BITMAP_BYTES: Final = 8192
_NO_OFFSETS_BELOW: Final = 4


@dataclass(frozen=True, slots=True)
class Blob:
    """Where one data file's vector lies in a Puffin file."""

    offset: int
    length: int
    cardinality: int


def puffin(vectors: Mapping[str, Positions]) -> tuple[bytes, dict[str, Blob]]:
    """One Puffin file with a vector per data file (path → deleted positions), and where each lies in it."""
    parts = [_PUFFIN_MAGIC]
    offset = len(_PUFFIN_MAGIC)
    blobs: dict[str, Blob] = {}
    described: list[dict[str, object]] = []
    for path, positions in vectors.items():
        payload = encode(positions)
        blobs[path] = Blob(offset, len(payload), len(positions))
        described.append(
            {
                "type": BLOB_TYPE,
                "fields": [_ROW_POSITION_FIELD_ID],
                "snapshot-id": -1,
                "sequence-number": -1,
                "offset": offset,
                "length": len(payload),
                "properties": {"referenced-data-file": path, "cardinality": str(len(positions))},
            }
        )
        parts.append(payload)
        offset += len(payload)
    footer = json.dumps({"blobs": described, "properties": {"created-by": "headwater"}}, separators=(",", ":")).encode()
    parts += [_PUFFIN_MAGIC, footer, struct.pack("<i", len(footer)), b"\0\0\0\0", _PUFFIN_MAGIC]
    return b"".join(parts), blobs


def encode(positions: Positions) -> bytes:
    """The vector's blob: length, magic, bitmap, CRC-32."""
    bitmaps = []
    highs = positions >> 32
    for high in np.unique(highs):
        bitmaps.append(struct.pack("<I", int(high)) + _encode_32((positions[highs == high] & 0xFFFFFFFF).astype(np.uint32)))
    body = _BLOB_MAGIC + struct.pack("<Q", len(bitmaps)) + b"".join(bitmaps)
    return struct.pack(">I", len(body)) + body + struct.pack(">I", zlib.crc32(body))


def decode(blob: bytes) -> Positions:
    """The positions of a vector's blob. Raises ValueError when it is damaged or no deletion vector."""
    if len(blob) < 20 or blob[4:8] != _BLOB_MAGIC or struct.unpack_from(">I", blob)[0] != len(blob) - 8:
        raise ValueError("not a deletion vector")
    body = blob[4:-4]
    if struct.unpack_from(">I", blob, len(blob) - 4)[0] != zlib.crc32(body):
        raise ValueError("a deletion vector's checksum is wrong")
    (count,) = struct.unpack_from("<Q", body, 4)
    at = 12
    pieces: list[Positions] = []
    for _ in range(count):
        (high,) = struct.unpack_from("<I", body, at)
        low, at = _decode_32(body, at + 4)
        pieces.append(low | (high << 32))
    return np.concatenate(pieces) if pieces else np.empty(0, np.int64)


def union(one: Positions, other: Positions) -> Positions:
    return np.union1d(one, other)


def _encode_32(values: npt.NDArray[np.uint32]) -> bytes:
    """Roaring's portable format without run containers."""
    keys, starts, counts = np.unique(values >> 16, return_index=True, return_counts=True)
    low = (values & 0xFFFF).astype("<u2")
    header = struct.pack("<II", _NO_RUNS_COOKIE, len(keys))
    described = np.empty((len(keys), 2), "<u2")
    described[:, 0] = keys
    described[:, 1] = counts - 1
    sizes = np.where(counts <= _ARRAY_LIMIT, counts * 2, _BITMAP_BYTES)
    first = len(header) + len(keys) * 8
    offsets = (first + np.concatenate(([0], np.cumsum(sizes)[:-1]))).astype("<u4")
    containers = []
    for start, count in zip(starts, counts, strict=True):
        piece = low[start : start + count]
        containers.append(piece.tobytes() if count <= _ARRAY_LIMIT else _bitmap(piece))
    return header + described.tobytes() + offsets.tobytes() + b"".join(containers)


def _bitmap(low: npt.NDArray[np.uint16]) -> bytes:
    bits = np.zeros(65536, np.uint8)
    bits[low] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def _decode_32(data: bytes, at: int) -> tuple[Positions, int]:
    """(values, where the bitmap ends). Reads run containers too: other writers make them."""
    start = at
    (cookie,) = struct.unpack_from("<I", data, at)
    at += 4
    runs = np.zeros(0, bool)
    if cookie & 0xFFFF == _RUNS_COOKIE:
        size = (cookie >> 16) + 1
        flag_bytes = (size + 7) // 8
        runs = np.unpackbits(np.frombuffer(data, np.uint8, flag_bytes, at), bitorder="little")[:size].astype(bool)
        at += flag_bytes
    elif cookie == _NO_RUNS_COOKIE:
        (size,) = struct.unpack_from("<I", data, at)
        at += 4
        runs = np.zeros(size, bool)
    else:
        raise ValueError(f"a deletion vector's bitmap begins with {cookie}")
    described = np.frombuffer(data, "<u2", size * 2, at).reshape(size, 2).astype(np.int64)
    at += size * 4
    if cookie == _NO_RUNS_COOKIE or size >= _NO_OFFSETS_BELOW:
        at += size * 4
    pieces: list[Positions] = []
    for (key, count_less_one), run in zip(described, runs, strict=True):
        low, at = _decode_container(data, at, int(count_less_one) + 1, bool(run))
        pieces.append(low | (int(key) << 16))
    if at > len(data):
        raise ValueError(f"a deletion vector's bitmap at {start} is cut short")
    return (np.concatenate(pieces) if pieces else np.empty(0, np.int64)), at


def _decode_container(data: bytes, at: int, count: int, run: bool) -> tuple[Positions, int]:
    if run:
        (number,) = struct.unpack_from("<H", data, at)
        pairs = np.frombuffer(data, "<u2", number * 2, at + 2).reshape(number, 2).astype(np.int64)
        values = [np.arange(first, first + more + 1, dtype=np.int64) for first, more in pairs]
        return np.concatenate(values), at + 2 + number * 4
    if count > _ARRAY_LIMIT:
        bits = np.unpackbits(np.frombuffer(data, np.uint8, _BITMAP_BYTES, at), bitorder="little")
        return np.flatnonzero(bits).astype(np.int64), at + _BITMAP_BYTES
    return np.frombuffer(data, "<u2", count, at).astype(np.int64), at + count * 2
