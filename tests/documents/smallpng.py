"""A browser's picture with 256 colours at most, which is a third of its size and looks the same: PNG to PNG, pure."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final

import numba
import numpy as np
import numpy.typing as npt

COLOURS: Final = 256
_SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
_CHANNELS: Final = {2: 3, 6: 4}
"""PNG's colour type → bytes of a pixel: RGB, RGBA."""

Pixels = npt.NDArray[np.uint8]


def small(png: bytes) -> bytes:
    """``png``: 8 bits a channel, RGB or RGBA (opaque), not interlaced. Raises ValueError for others."""
    pixels = _pixels(png)
    height, width, _ = pixels.shape
    packed = pixels.astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    colours, each, counts = np.unique(packed, return_inverse=True, return_counts=True)
    palette = np.sort(colours[np.argsort(counts)[::-1][:COLOURS]])
    indices = _nearest(colours, palette)[each].reshape(height, width)
    rows = np.zeros((height, width + 1), np.uint8)  # each begins with its filter: none
    rows[:, 1:] = indices
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    chunks = (
        (b"IHDR", header),
        (b"PLTE", _split(palette).astype(np.uint8).tobytes()),
        (b"IDAT", zlib.compress(rows.tobytes(), 9)),
        (b"IEND", b""),
    )
    return _SIGNATURE + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def _pixels(png: bytes) -> Pixels:
    """(height, width, 3): red, green, blue."""
    chunks = dict[bytes, bytes]()
    for kind, data in _chunks(png):
        chunks[kind] = chunks.get(kind, b"") + data
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    if depth != 8 or colour not in _CHANNELS or interlaced:
        raise ValueError(f"a picture of {depth} bits, colour type {colour}, interlaced {interlaced}")
    channels = _CHANNELS[colour]
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + width * channels)
    return _unfiltered(rows, channels).reshape(height, width, channels)[:, :, :3]


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    if not png.startswith(_SIGNATURE):
        raise ValueError("not a PNG")
    at = len(_SIGNATURE)
    while at < len(png):
        length, kind = struct.unpack_from(">I4s", png, at)
        yield kind, png[at + 8 : at + 8 + length]
        at += length + 12


@numba.njit  # type: ignore[untyped-decorator]
def _unfiltered(rows: Pixels, channels: int) -> Pixels:
    height, length = rows.shape[0], rows.shape[1] - 1
    found = np.zeros((height, length), np.uint8)
    for y in range(height):
        kind = rows[y, 0]
        for x in range(length):
            left = np.int64(found[y, x - channels]) if x >= channels else 0
            up = np.int64(found[y - 1, x]) if y else 0
            corner = np.int64(found[y - 1, x - channels]) if y and x >= channels else 0
            guess = 0
            if kind == 1:
                guess = left
            elif kind == 2:
                guess = up
            elif kind == 3:
                guess = (left + up) // 2
            elif kind == 4:
                by_left, by_up, by_corner = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
                guess = left if by_left <= by_up and by_left <= by_corner else up if by_up <= by_corner else corner
            found[y, x] = (rows[y, 1 + x] + guess) & 255
    return found


def _nearest(colours: npt.NDArray[np.uint32], palette: npt.NDArray[np.uint32]) -> Pixels:
    """For each colour the index of the one in the palette that looks most like it."""
    wanted, held = _split(colours), _split(palette)
    found = [np.argmin(((part[:, None] - held[None]) ** 2).sum(2), 1) for part in np.array_split(wanted, len(wanted) // 1000 + 1)]
    return np.concatenate(found).astype(np.uint8)


def _split(colours: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
    """(n, 3): red, green, blue."""
    return np.stack([colours >> 16, colours >> 8 & 255, colours & 255], 1).astype(np.int64)
