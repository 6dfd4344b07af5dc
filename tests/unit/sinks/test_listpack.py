"""Hashes in the form that RESTORE takes, read back the plain way."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from sinks.cache import listpack
from sinks.cache.resp import hashes_of
from sinks.cache.wire import bulk
from sinks.render.jsonrows import raw_texts
from tests.unit.sinks.listpacks import unpacked

NUMBERS = [0, 7, 127, 128, 4095, 4096, 32767, 32768, 1 << 23, (1 << 31) - 1, 1 << 31, 10**18 - 1, 10**18, 1 << 63, 10**30]
TEXTS = [b"", b"-", b"-0", b"00", b"01", b"+1", b"1.0", b" 1", b"1 ", b"x" * 63, b"\r\n\x00\xff", "größe".encode()]
SHORT = [*TEXTS, *(b"%d" % (sign * (number + more)) for number in NUMBERS for sign in (1, -1) for more in (-1, 0, 1))]
LONG = [b"x" * 64, b"x" * 65, b"1" * 64, b"x" * 5000]


def test_the_checksum_is_the_server_s() -> None:
    assert int(listpack.crc64(np.frombuffer(b"123456789", np.uint8), 0, 9)) == 0xE9C6D914C4B8D9CA


def test_short_rows_are_read_back_and_long_ones_are_items(seed: int) -> None:
    chance = random.Random(seed)
    names, rows = [b"id", b"7", "größe".encode(), b"", b"n" * 63], 2 * len(SHORT)
    held = [[chance.choice([None, *SHORT, *(LONG if chance.random() < 0.1 else [])]) for _ in range(rows)] for _ in names]
    held[0] = [*SHORT, *SHORT]
    made = hashes_of([_named(name, values) for name, values in zip(names, held, strict=True)], rows, packed=True)
    assert 0 < made.packed.sum() < rows
    for row, text in enumerate(made.texts.to_array().to_pylist()):
        expected = {name: values[row] for name, values in zip(names, held, strict=True) if values[row] is not None}
        assert made.items[row] == 2 * len(expected)
        if made.packed[row]:
            assert unpacked(text) == expected
        else:
            assert any(value in LONG for value in expected.values())
            assert text == b"".join(bulk(part) for pair in expected.items() for part in pair)


@pytest.mark.parametrize(("number", "size"), [((1 << 63) - 1, 9), (-(1 << 63), 9), (1 << 63, 20), (-(1 << 63) - 1, 21)])
def test_a_number_of_eight_bytes_is_kept_as_one_and_a_larger_one_as_its_text(number: int, size: int) -> None:
    made = hashes_of([_named(b"f", [b"%d" % number])], 1, packed=True)
    (text,) = made.texts.to_array().to_pylist()
    assert unpacked(text) == {b"f": b"%d" % number}
    assert len(text) == listpack.AROUND + listpack.name_bytes(b"f") + size + 1


@pytest.mark.parametrize(("fields", "name", "packed"), [(128, b"f", 1), (129, b"f", 0), (1, b"n" * 64, 0)])
def test_many_fields_and_long_names_are_left_to_the_server(fields: int, name: bytes, packed: int) -> None:
    made = hashes_of([_named(name, [b"1"])] * fields, 1, packed=True)
    assert made.packed.tolist() == [packed]


def _named(name: bytes, values: list[bytes | None]) -> tuple[bytes, object, object]:
    states = np.array([value is None for value in values], np.uint8)
    return name, raw_texts(pa.array([value or b"" for value in values], pa.binary())), states if states.any() else None
