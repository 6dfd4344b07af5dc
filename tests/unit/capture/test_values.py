"""Every text comes back exactly: typed where the type holds it, as exact text where it does not."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from cdc.capture import values
from cdc.errors import ProtocolError
from cdc.model import pgtypes
from cdc.model.pgtypes import canonical_text
from cdc.model.table import Column, Table


def numeric(precision: int, scale: int) -> int:
    return (precision << 16 | scale & 0x7FF) + 4


def decode(column: Column, texts: Sequence[str | None]) -> tuple[pa.Array, list[str | None], list[str | None]]:
    """(the typed array, its canonical text, the exact text beside it)."""
    data, offsets, lengths = bytearray(b"?"), [], []
    for text in texts:
        raw = b"" if text is None else text.encode()
        offsets.append(len(data))
        lengths.append(-1 if text is None else len(raw))
        data += raw
    table = Table(1, "public", "t", (column,))
    arrays, exact = values.columns(
        np.frombuffer(data, np.uint8), np.array([offsets], np.int64), np.array([lengths], np.int32), table
    )
    arrays[0].validate(full=True)
    exact.validate(full=True)
    beside = [dict(found).get(column.name) if found else None for found in exact.to_pylist()]
    return arrays[0], canonical_text(arrays[0]).to_pylist(), beside


CASES = [
    ("int2", pgtypes.INT2, -1, ["-32768", "32767", "0"], ["32768", "-32769"]),
    ("int4", pgtypes.INT4, -1, ["-2147483648", "2147483647"], ["2147483648", "", "-", "1x"]),
    ("int8", pgtypes.INT8, -1, ["-9223372036854775808", "9223372036854775807"], ["9223372036854775808", "-9223372036854775809"]),
    ("numeric(12,2)", pgtypes.NUMERIC, numeric(12, 2), ["1.10", "-0.01", "0.00", "-9999999999.99"], ["NaN", "Infinity", "1.1", "-Infinity"]),
    ("numeric(38,0)", pgtypes.NUMERIC, numeric(38, 0), ["9" * 38, "-" + "9" * 38, "1" + "0" * 19], ["NaN"]),
    ("numeric(38,38)", pgtypes.NUMERIC, numeric(38, 38), ["0." + "1" * 38, "-0." + "0" * 37 + "1"], []),
    ("numeric(2,-3)", pgtypes.NUMERIC, numeric(2, -3), ["12000", "NaN"], []),
    ("numeric", pgtypes.NUMERIC, -1, ["1.10", "NaN", "1" * 100, "0.000"], []),
    ("numeric(39,1)", pgtypes.NUMERIC, numeric(39, 1), ["1" * 38 + ".1"], []),
    ("float8", pgtypes.FLOAT8, -1, ["0.30000000000000004", "5e-324", "-0", "NaN", "Infinity", "-Infinity", "1e+15", "123456789012345"], []),
    ("float4", pgtypes.FLOAT4, -1, ["1e-45", "3.4028235e+38", "0.1", "100000", "1e+06"], []),
    ("bool", pgtypes.BOOL, -1, ["t", "f"], ["true", ""]),
    ("date", pgtypes.DATE, -1, ["0001-01-01", "2024-02-29", "9999-12-31"], ["infinity", "-infinity", "4714-11-24 BC", "5874897-12-31"]),
    ("time", pgtypes.TIME, -1, ["00:00:00", "23:59:59.999999", "12:00:00.1"], ["24:00:00"]),
    (
        "timestamp",
        pgtypes.TIMESTAMP,
        -1,
        ["0001-01-01 00:00:00", "1969-12-31 23:59:59.999999", "2024-02-29 12:00:00.12"],
        ["infinity", "294276-12-31 23:59:59.999999", "0044-03-15 00:00:00 BC"],
    ),
    (
        "timestamptz",
        pgtypes.TIMESTAMPTZ,
        -1,
        ["0001-01-01 00:00:00+00", "9999-12-31 23:59:59.999999+00"],
        ["-infinity", "0001-01-01 00:00:00+00 BC", "10000-01-01 00:00:00+00"],
    ),
    ("bytea", pgtypes.BYTEA, -1, ["\\x", "\\x00ff", "\\xdeadbeef"], ["\\xf", "\\xZZ", "abc"]),
    ("text", pgtypes.TEXT, -1, ["", "NULL", "é🎉\u0301", "a\nb\\"], []),
    ("uuid", pgtypes.UUID, -1, ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"], []),
    ("unknown type", 99_999, -1, ["{1,2,NULL}", "(1,\"a,\")"], []),
]  # fmt: skip


@pytest.mark.parametrize(("name", "oid", "typmod", "typed", "beside"), CASES, ids=[case[0] for case in CASES])
def test_every_text_comes_back(name: str, oid: int, typmod: int, typed: list[str], beside: list[str], seed: int) -> None:
    texts = [*typed, *beside, None]
    random.Random(seed).shuffle(texts)
    array, held, exact = decode(Column(name, oid, typmod), texts)
    for text, in_column, outside in zip(texts, held, exact, strict=True):
        if text is None:
            assert (in_column, outside) == (None, None)
        elif text in typed:
            assert (in_column, outside) == (text, None)
        else:
            assert (in_column, outside) == (None, text)
    assert array.null_count == 1 + len(beside)


def test_a_column_without_nulls_has_no_validity_bitmap() -> None:
    array, _, _ = decode(Column("a", pgtypes.INT8), ["1", "2"])
    assert array.buffers()[0] is None


def test_several_values_of_one_row_stand_in_one_map() -> None:
    table = Table(1, "public", "t", (Column("a", pgtypes.DATE), Column("b", pgtypes.TIME), Column("c", pgtypes.INT4)))
    data = b"infinity24:00:007"
    arrays, exact = values.columns(
        np.frombuffer(bytearray(data), np.uint8),
        np.array([[0, 0], [8, 8], [16, 16]], np.int64),
        np.array([[8, -1], [8, -1], [1, 1]], np.int32),
        table,
    )
    assert exact.to_pylist() == [[("a", "infinity"), ("b", "24:00:00")], None]
    assert arrays[2].to_pylist() == [7, 7]


def test_bytes_that_are_not_utf8_are_refused() -> None:
    with pytest.raises(ProtocolError, match="UTF-8"):
        values.text(np.frombuffer(bytearray(b"\xff\xfe"), np.uint8), np.array([0], np.int64), np.array([2], np.int32))


def test_random_integers_and_decimals_against_python(seed: int) -> None:
    rng = random.Random(seed)
    integers = [str(rng.randrange(-(2**63), 2**63)) for _ in range(500)]
    assert decode(Column("a", pgtypes.INT8), integers)[1] == integers
    for _ in range(30):
        precision = rng.randint(1, 38)
        scale = rng.randint(0, precision)
        texts = []
        for _ in range(50):
            digits = str(rng.randrange(10 ** rng.randint(1, precision))).rjust(scale + 1, "0")
            text = digits[: len(digits) - scale] + ("." + digits[len(digits) - scale :] if scale else "")
            texts.append("-" + text if rng.random() < 0.5 and int(digits) else text)
        assert decode(Column("a", pgtypes.NUMERIC, numeric(precision, scale)), texts)[1] == texts, (precision, scale)
