"""Every text comes back exactly: typed where the type holds it, as exact text where it does not."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from datetime import date
from decimal import Context

import numpy as np
import pyarrow as pa
import pytest

from cdc.errors import ProtocolError
from cdc.model import pgtypes
from cdc.model.pgtypes import canonical_text
from cdc.model.table import Column, Table
from cdc.pgvalues import columns


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
    arrays, exact = columns.columns(
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
    arrays, exact = columns.columns(
        np.frombuffer(bytearray(data), np.uint8),
        np.array([[0, 0], [8, 8], [16, 16]], np.int64),
        np.array([[8, -1], [8, -1], [1, 1]], np.int32),
        table,
    )
    assert exact.to_pylist() == [[("a", "infinity"), ("b", "24:00:00")], None]
    assert arrays[2].to_pylist() == [7, 7]


def test_bytes_that_are_not_utf8_are_refused() -> None:
    with pytest.raises(ProtocolError, match="UTF-8"):
        columns.text(np.frombuffer(bytearray(b"\xff\xfe"), np.uint8), np.array([0], np.int64), np.array([2], np.int32))


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


def test_many_tables_at_once_give_what_each_gives_by_itself(seed: int) -> None:
    rng = random.Random(seed)
    kinds = [(oid, typmod, [*typed, *beside, None]) for _, oid, typmod, typed, beside in CASES]
    data, offsets, lengths = bytearray(b"?"), np.empty(0, np.int64), np.empty(0, np.int32)
    fields, alone = [], []
    for number in range(12):
        # Rows over several of the kernel's chunks, and room behind them as changed keys leave it.
        rows = rng.choice([0, 1, 7, 8, 255, 256, 257, 600, 1031])
        stride = rows + rng.randrange(3)
        chosen = [rng.choice(kinds) for _ in range(rng.randint(0, 6))]
        table = Table(number, "public", f"t{number}", tuple(Column(f"c{n}", *kind[:2]) for n, kind in enumerate(chosen)))
        at, long = np.zeros((len(chosen), stride), np.int64), np.full((len(chosen), stride), -1, np.int32)
        for place, (_, _, texts) in enumerate(chosen):
            for row in range(rows):
                text = rng.choice(texts)
                at[place, row], long[place, row] = len(data), -1 if text is None else len(text.encode())
                data += b"" if text is None else text.encode()
        fields.append(columns.Fields(table, len(offsets), stride, rows))
        alone.append((table, at[:, :rows], long[:, :rows]))
        offsets, lengths = np.concatenate([offsets, at.reshape(-1)]), np.concatenate([lengths, long.reshape(-1)])
    block = np.frombuffer(data, np.uint8)
    together = columns.columns_of(block, offsets, lengths, fields)
    for (arrays, exact), (table, at, long) in zip(together, alone, strict=True):
        exact.validate(full=True)
        beside = [dict(found or ()) for found in exact.to_pylist()]
        for number, (column, array) in enumerate(zip(table.columns, arrays, strict=True)):
            array.validate(full=True)
            texts = canonical_text(array).to_pylist()
            for row in range(at.shape[1]):
                raw = data[at[number, row] : at[number, row] + long[number, row]].decode() if long[number, row] >= 0 else None
                assert (texts[row] if column.name not in beside[row] else beside[row][column.name]) == raw
        by_itself, its_exact = columns.columns(block, at, long, table)
        assert exact.equals(its_exact)
        assert all(one.equals(other) or str(one) == str(other) for one, other in zip(arrays, by_itself, strict=True))


def test_bytes_beyond_ascii_are_looked_at_in_every_chunk() -> None:
    data = np.frombuffer(bytearray(b"a\xff"), np.uint8)
    offsets = np.zeros(1000, np.int64)
    for odd in (0, 256, 999):
        offsets[:] = 0
        offsets[odd] = 1
        with pytest.raises(ProtocolError, match="UTF-8"):
            columns.text(data, offsets, np.ones(1000, np.int32))


def oracle_timestamp(text: str) -> int | None:
    """Microseconds since 1970; the server has already seen to the days of the month."""
    found = re.fullmatch(r"(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?\+00", text, re.ASCII)
    if found is None:
        return None
    year, month, day, hour, minute, second = map(int, found.groups()[:6])
    if not (year >= 1 and 1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 60):
        return None
    days = date(year, month, 1).toordinal() - date(1970, 1, 1).toordinal() + day - 1
    return ((days * 24 + hour) * 60 + minute) * 60_000_000 + second * 1_000_000 + int((found[7] or "").ljust(6, "0"))


def oracle_integer(text: str) -> int | None:
    found = re.fullmatch(r"-?\d{1,19}", text, re.ASCII)
    return int(text) if found and -(2**63) <= int(text) < 2**63 else None


def oracle_decimal(text: str, precision: int, scale: int) -> int | None:
    point = rf"\.\d{{{scale}}}" if scale else r"\.?"
    found = re.fullmatch(rf"-?\d*{point}", text, re.ASCII) and text not in ("", "-")
    if not found:
        return None
    digits = int("0" + text.replace("-", "").replace(".", ""))
    return None if digits >= 10**precision else -digits if text[0] == "-" else digits


def texts_with_flaws(rng: random.Random, make: Callable[[], str]) -> list[str]:
    """Most as the server writes them; the others with one byte too many, too few or another one."""
    texts = []
    for _ in range(400):
        text = make()
        at = rng.randrange(len(text))
        other = rng.choice("0123456789-:. +/x\x00\x7f")
        texts.append(
            rng.choice([text, text, text[:at] + other + text[at + 1 :], text[:at] + text[at + 1 :], text[:at] + other + text[at:]])
        )
    return texts


def numbers(column: Column, texts: Sequence[str], before: str) -> list[int | None]:
    """What the column's values are as whole numbers; ``before`` lies before each text."""
    raw = [(before + text).encode() for text in texts]
    ends = np.cumsum([len(one) for one in raw], dtype=np.int64)
    lengths = np.array([[len(text.encode()) for text in texts]], np.int32)
    arrays, exact = columns.columns(
        np.frombuffer(bytearray(b"".join(raw)), np.uint8), ends[None, :] - lengths, lengths, Table(1, "public", "t", (column,))
    )
    assert [found is None for found in exact.to_pylist()] == [value.is_valid for value in arrays[0]]
    if pa.types.is_decimal(arrays[0].type):
        return [
            None if value is None else int(value.scaleb(arrays[0].type.scale, Context(prec=60))) for value in arrays[0].to_pylist()
        ]
    return arrays[0].cast(pa.int64()).to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("before", ["", "9", "12345678"])
def test_numbers_and_times_are_what_every_byte_of_them_says(seed: int, before: str) -> None:
    """Eight bytes are looked at together: whichever of them is wrong, wherever the text lies, and whatever stands before it."""
    rng = random.Random(seed)

    def timestamp() -> str:
        fraction = f".{rng.randrange(10 ** (size := rng.randint(1, 6))):0{size}}" if rng.random() < 0.5 else ""
        day = f"{rng.choice([1, 1970, 2024, 9999, rng.randint(0, 9999)]):04}-{rng.randint(0, 13):02}-{rng.randint(0, 32):02}"
        return f"{day} {rng.randint(0, 24):02}:{rng.randint(0, 60):02}:{rng.randint(0, 60):02}{fraction}+00"

    texts = texts_with_flaws(rng, timestamp)
    assert numbers(Column("a", pgtypes.TIMESTAMPTZ), texts, before) == [oracle_timestamp(text) for text in texts]

    def digits() -> str:
        return ("-" if rng.random() < 0.3 else "") + "".join(rng.choices("0123456789", k=rng.randint(1, 20)))

    texts = texts_with_flaws(rng, digits)
    assert numbers(Column("a", pgtypes.INT8), texts, before) == [oracle_integer(text) for text in texts]
    for precision, scale in ((4, 0), (12, 2), (15, 8), (16, 8), (18, 9), (38, 2)):

        def decimal(precision: int = precision, scale: int = scale) -> str:
            whole = "".join(rng.choices("0123456789", k=rng.randint(1, precision - scale + 1)))
            rest = "." + "".join(rng.choices("0123456789", k=scale)) if scale else ""
            return ("-" if rng.random() < 0.3 else "") + whole + rest

        texts = texts_with_flaws(rng, decimal)
        expected = [oracle_decimal(text, precision, scale) for text in texts]
        assert numbers(Column("a", pgtypes.NUMERIC, numeric(precision, scale)), texts, before) == expected
