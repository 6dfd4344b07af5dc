"""A picture with fewer colours has the same pixels, as long as it has no more than those; the documentation's are small."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from tests.documents.picture import FOLDER, PICTURES
from tests.documents.smallpng import COLOURS, Pixels, _pixels, small

ROOT = Path(__file__).parents[2]
MOST_BYTES = 150_000


def png(pixels: Pixels, filters: list[int]) -> bytes:
    """As browsers write them: one filter a row, each computed as the standard says."""
    height, width, channels = pixels.shape
    rows = pixels.reshape(height, -1).astype(int)
    left = np.pad(rows, ((0, 0), (channels, 0)))[:, :-channels]
    up = np.pad(rows, ((1, 0), (0, 0)))[:-1]
    corner = np.pad(up, ((0, 0), (channels, 0)))[:, :-channels]
    distances = np.abs(np.stack([up - corner, left - corner, left + up - 2 * corner]))
    paeth = np.choose(distances.argmin(0), [left, up, corner])
    guesses = [0 * rows, left, up, (left + up) // 2, paeth]
    data = b"".join(bytes([kind]) + ((rows - guesses[kind])[y] % 256).astype(np.uint8).tobytes() for y, kind in enumerate(filters))
    header = struct.pack(">IIBBBBB", width, height, 8, {3: 2, 4: 6}[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(data)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content)) for kind, content in chunks
    )


def shown(palette: bytes) -> Pixels:
    """The pixels of a picture with a palette."""
    chunks, at = dict[bytes, bytes](), 8
    while at < len(palette):
        length, kind = struct.unpack_from(">I4s", palette, at)
        chunks[kind] = palette[at + 8 : at + 8 + length]
        at += length + 12
    width, height, depth, colour = struct.unpack_from(">IIBB", chunks[b"IHDR"])
    assert (depth, colour) == (8, 3)
    colours = np.frombuffer(chunks[b"PLTE"], np.uint8).reshape(-1, 3)
    assert len(colours) <= COLOURS
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, width + 1)
    assert not rows[:, 0].any()
    return np.asarray(colours[rows[:, 1:]])


@pytest.mark.parametrize("channels", [3, 4])
def test_few_colours_stay_as_they_are(channels: int) -> None:
    chance = np.random.default_rng(7)
    colours = chance.integers(0, 256, (200, channels)).astype(np.uint8)
    pixels = colours[chance.integers(0, 200, (15, 40))]
    taken = png(pixels, [0, 1, 2, 3, 4] * 3)
    assert np.array_equal(_pixels(taken), pixels[:, :, :3])
    assert np.array_equal(shown(small(taken)), pixels[:, :, :3])


def test_of_many_colours_the_nearest_are_shown() -> None:
    ramp = np.stack(np.meshgrid(np.arange(64), np.arange(64), [90]), -1).reshape(64, 64, 3).astype(np.uint8)
    pixels = np.concatenate([ramp, np.full((64, 64, 3), [200, 100, 50], np.uint8)])
    found = shown(small(png(pixels, [4] * 128)))
    assert np.array_equal(found[64:], pixels[64:]), "the most frequent one"
    assert np.abs(found.astype(int) - pixels).max() <= 64


@pytest.mark.parametrize("name", PICTURES)
def test_the_documentations_pictures_are_small(name: str) -> None:
    taken = (FOLDER / name).read_bytes()
    assert len(taken) < MOST_BYTES
    width, _ = PICTURES[name]
    assert shown(taken).shape[1] == width
    named = "".join(page.read_text() for page in (ROOT / "README.md", *ROOT.glob("docs/*.md")))
    assert f"pictures/{name}" in named, "a page shows it"
