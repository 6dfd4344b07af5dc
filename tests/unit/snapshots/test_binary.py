"""COPY's binary format: every value is the one that its text gives, and where rows begin and end."""

from __future__ import annotations

import random
import struct
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import numpy as np
import pytest

from cdc.errors import ProtocolError
from cdc.model import pgtypes
from cdc.model.batch import EXACT, OP, Op
from cdc.model.table import Column, Table
from cdc.pgvalues.binary import is_trailer, readable, whole_binary_rows
from cdc.source.copyout import Block
from snapshots.copy import read_rows

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"


def numeric_type(precision: int, scale: int) -> int:
    return (precision << 16 | scale) + 4


def numeric(value: Decimal) -> bytes:
    """As numeric_send gives it: groups of four digits, of which the last that are zero are left out."""
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    whole = int("".join(map(str, digits)))
    below = -exponent
    whole *= 10 ** (-below % 4)
    groups: list[int] = []
    while whole:
        whole, group = divmod(whole, 10_000)
        groups.insert(0, group)
    weight = len(groups) - 1 - (below + 3) // 4
    while groups and groups[-1] == 0:
        groups.pop()
    return struct.pack("!hhHh", len(groups), weight if groups else 0, 0x4000 if sign and groups else 0, below) + b"".join(
        struct.pack("!h", group) for group in groups
    )


def rows_of(rows: list[list[bytes | None]], *, framed: bool = True, header: bool = True) -> Block:
    data = b""
    for number, row in enumerate(rows):
        fields = b"".join(struct.pack("!i", -1) if field is None else struct.pack("!i", len(field)) + field for field in row)
        line = (HEADER if header and number == 0 else b"") + struct.pack("!h", len(row)) + fields
        data += (b"d" + struct.pack("!i", len(line) + 4) if framed else b"") + line
    return Block(np.frombuffer(bytearray(data), np.uint8), len(rows), 5 if framed else 0, binary=True)


def lines_of(rows: list[list[str | None]]) -> Block:
    lines = ["\t".join("\\N" if field is None else field for field in row) + "\n" for row in rows]
    return Block(np.frombuffer(bytearray("".join(lines).encode()), np.uint8), len(rows), 0)


def table(*columns: tuple[int, int]) -> Table:
    return Table(1, "public", "t", tuple(Column(f"c{i}", oid, typmod, key=i == 0) for i, (oid, typmod) in enumerate(columns)))


COLUMNS = (
    (pgtypes.INT8, -1),
    (pgtypes.INT4, -1),
    (pgtypes.INT2, -1),
    (pgtypes.BOOL, -1),
    (pgtypes.FLOAT8, -1),
    (pgtypes.FLOAT4, -1),
    (pgtypes.NUMERIC, numeric_type(12, 2)),
    (pgtypes.NUMERIC, numeric_type(18, 18)),
    (pgtypes.NUMERIC, numeric_type(18, 0)),
    (pgtypes.NUMERIC, numeric_type(17, 5)),
    (pgtypes.TIMESTAMPTZ, -1),
    (pgtypes.TIMESTAMP, -1),
    (pgtypes.DATE, -1),
    (pgtypes.TIME, -1),
    (pgtypes.TEXT, -1),
    (pgtypes.BYTEA, -1),
)
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
FIRST, LAST = datetime(1, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)


def moment(chance: random.Random) -> datetime:
    return chance.choice(
        (FIRST, LAST, EPOCH, FIRST + timedelta(microseconds=chance.randint(0, (LAST - FIRST) // timedelta(microseconds=1))))
    )


def micros(at: datetime) -> int:
    return (at - EPOCH) // timedelta(microseconds=1)


def clock(at: datetime) -> str:
    return at.isoformat(" ").removesuffix("+00:00")


def value(chance: random.Random, oid: int, typmod: int) -> tuple[str, bytes]:
    """(the server's text, its binary form), of an edge or anywhere."""
    sizes = {pgtypes.INT8: 8, pgtypes.INT4: 4, pgtypes.INT2: 2}
    if oid in sizes:
        most = 2 ** (sizes[oid] * 8 - 1)
        number = chance.choice((0, -1, most - 1, -most, chance.randrange(-most, most)))
        return str(number), number.to_bytes(sizes[oid], "big", signed=True)
    if oid == pgtypes.BOOL:
        yes = chance.random() < 0.5
        return "ft"[yes], bytes([yes])
    if oid in (pgtypes.FLOAT8, pgtypes.FLOAT4):
        code = "!d" if oid == pgtypes.FLOAT8 else "!f"
        real = chance.choice((0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1.5, chance.uniform(-1e30, 1e30)))
        packed = struct.pack(code, real)
        (real,) = struct.unpack(code, packed)
        return {"inf": "Infinity", "-inf": "-Infinity", "nan": "NaN"}.get(repr(real), repr(real)), packed
    if oid == pgtypes.NUMERIC:
        bounds = pgtypes.numeric_precision_scale(typmod)
        assert bounds is not None
        if chance.random() < 0.05:
            return "NaN", struct.pack("!hhHh", 0, 0, 0xC000, 0)
        most = 10 ** bounds[0] - 1
        digits = chance.choice((0, 1, most, 10 ** chance.randrange(bounds[0]), chance.randint(0, most), chance.randint(0, 9_999)))
        exact = Decimal(digits * chance.choice((1, -1))).scaleb(-bounds[1])
        return f"{exact:f}", numeric(exact)
    if oid in (pgtypes.TIMESTAMPTZ, pgtypes.TIMESTAMP):
        if chance.random() < 0.05:
            return chance.choice((("infinity", b"\x7f" + b"\xff" * 7), ("-infinity", b"\x80" + bytes(7))))
        at = moment(chance)
        text = clock(at).rstrip("0") if at.microsecond else clock(at)
        return text + ("+00" if oid == pgtypes.TIMESTAMPTZ else ""), struct.pack("!q", micros(at))
    if oid == pgtypes.DATE:
        day = moment(chance).replace(hour=0, minute=0, second=0, microsecond=0)
        return day.date().isoformat(), struct.pack("!i", (day - EPOCH).days)
    if oid == pgtypes.TIME:
        if chance.random() < 0.05:
            return "24:00:00", struct.pack("!q", 86_400_000_000)
        at = moment(chance)
        text = at.time().isoformat()
        since = timedelta(hours=at.hour, minutes=at.minute, seconds=at.second, microseconds=at.microsecond)
        return text.rstrip("0") if at.microsecond else text, struct.pack("!q", since // timedelta(microseconds=1))
    raw = bytes(chance.choices(b"ab\xff\0\x50\x47", k=chance.randint(0, 40)))
    if oid == pgtypes.BYTEA:
        return "\\\\x" + raw.hex(), raw
    text = chance.choice(("", "é😀", "x" * chance.randint(0, 300), "PG"))
    return text, text.encode()


@pytest.mark.parametrize("framed", [True, False])
def test_every_value_is_the_one_that_its_text_gives(seed: int, framed: bool) -> None:
    chance = random.Random(seed)
    shape = table(*COLUMNS)
    for rows in (1, 7, 300, 1000):
        made = [[None if chance.random() < 0.1 else value(chance, *column) for column in COLUMNS] for _ in range(rows)]
        told = read_rows(lines_of([[one and one[0] for one in row] for row in made]), shape)
        sent = read_rows(rows_of([[one and one[1] for one in row] for row in made], framed=framed), shape)
        assert sent.schema == told.schema
        for name in told.schema.names:
            # As text, for which one NaN is like the other.
            assert list(map(repr, sent.column(name).to_pylist())) == list(map(repr, told.column(name).to_pylist())), name
            assert sent.column(name).null_count == told.column(name).null_count, name
        sent.validate(full=True)
        assert set(sent.column(OP).to_pylist()) == {int(Op.READ)}


@pytest.mark.parametrize(
    ("oid", "number", "text"),
    [
        (pgtypes.TIMESTAMPTZ, -63_082_281_600_000_001, "0001-12-31 23:59:59.999999+00 BC"),
        (pgtypes.TIMESTAMP, -211_810_204_800_000_000, "4713-01-01 00:00:00 BC"),
        (pgtypes.TIMESTAMP, 252_455_616_000_000_000, "10000-01-01 00:00:00"),
        (pgtypes.TIMESTAMPTZ, 252_455_616_000_500_000, "10000-01-01 00:00:00.5+00"),
        (pgtypes.DATE, -745_842, "0044-12-15 BC"),
        (pgtypes.DATE, 2**31 - 1, "infinity"),
        (pgtypes.DATE, -(2**31), "-infinity"),
    ],
)
def test_what_no_type_holds_is_told_as_the_server_tells_it(oid: int, number: int, text: str) -> None:
    raw = number.to_bytes(4 if oid == pgtypes.DATE else 8, "big", signed=True)
    batch = read_rows(rows_of([[raw]]), table((oid, -1)))
    assert batch.column("c0").to_pylist() == [None]
    assert batch.column(EXACT).to_pylist() == [[("c0", text)]]


@pytest.mark.parametrize(
    ("oid", "raw"),
    [
        (pgtypes.INT8, b"\0\0\0\1"),
        (pgtypes.INT2, b""),
        (pgtypes.BOOL, b"\2"),
        (pgtypes.FLOAT4, bytes(8)),
        (pgtypes.TIME, b"\xff" * 8),
        (pgtypes.TIMESTAMP, bytes(4)),
        (pgtypes.NUMERIC, bytes(7)),
        (pgtypes.NUMERIC, struct.pack("!hhHhh", 1, 0, 0, 0, 10_000)),
        (pgtypes.NUMERIC, struct.pack("!hhHhh", 1, 2, 0, 0, 100)),
        (pgtypes.NUMERIC, struct.pack("!hhHhh", 1, -1, 0, 2, 1)),
        (pgtypes.NUMERIC, struct.pack("!hhHhh", 2, 0, 0, 0, 1)),
        (pgtypes.NUMERIC, struct.pack("!hhHh", 0, 0, 0xD000, 0)),
    ],
)
def test_a_value_of_another_form_is_refused(oid: int, raw: bytes) -> None:
    with pytest.raises(ProtocolError, match="another form"):
        read_rows(rows_of([[raw]]), table((oid, numeric_type(8, 2) if oid == pgtypes.NUMERIC else -1)))


@pytest.mark.parametrize("columns", [1, 3])
def test_another_number_of_columns_is_refused(columns: int) -> None:
    with pytest.raises(ProtocolError, match="another shape"):
        read_rows(rows_of([[b"a", b"b"]]), table(*[(pgtypes.TEXT, -1)] * columns))


def test_a_block_that_ends_inside_a_row_is_refused() -> None:
    whole = rows_of([[b"a", None], [b"", b"bcd"]], framed=False)
    shape = table((pgtypes.TEXT, -1), (pgtypes.TEXT, -1))
    assert read_rows(whole, shape).num_rows == 2
    for cut in range(len(whole.data)):
        with pytest.raises(ProtocolError, match="another shape"):
            read_rows(Block(whole.data[:cut].copy(), 2, 0, binary=True), shape)


def test_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(ProtocolError, match="UTF-8"):
        read_rows(rows_of([[b"\xff"]]), table((pgtypes.TEXT, -1)))


@pytest.mark.parametrize("most", [1, 2, 9])
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_rows_are_taken_whole_and_the_trailer_is_none(rows: int, most: int) -> None:
    """The header comes with the first message, so with the trailer where there is no row. A row may look like both further on."""
    fields: list[list[bytes | None]] = [[HEADER + TRAILER], [TRAILER], [None]]
    made = rows_of(fields[:rows])
    trailer = TRAILER if rows else HEADER + TRAILER
    data = np.concatenate([made.data, np.frombuffer(b"d" + struct.pack("!i", len(trailer) + 4) + trailer + b"c\0\0\0\4", np.uint8)])
    ends = [0]
    for _ in range(rows):
        ends.append(ends[-1] + 1 + int.from_bytes(data[ends[-1] + 1 : ends[-1] + 5].tobytes(), "big"))
    for cut in range(len(data) + 1):
        whole = min(most, sum(end <= cut for end in ends[1:]))
        assert whole_binary_rows(data, 0, cut, most) == (whole, ends[whole])
    assert is_trailer(len(trailer), trailer[:2])


def test_only_tables_of_types_that_have_one_form() -> None:
    assert readable(table(*COLUMNS, (pgtypes.VARCHAR, 24), (pgtypes.BPCHAR, 9)))
    assert not readable(Table(1, "public", "t", ()))
    others = (pgtypes.JSONB, pgtypes.UUID, pgtypes.INTERVAL, pgtypes.TIMETZ, pgtypes.MONEY, pgtypes.NAME, 100_000)
    for column in [*((oid, -1) for oid in others), (pgtypes.NUMERIC, -1), (pgtypes.NUMERIC, numeric_type(19, 2))]:
        assert not readable(table((pgtypes.INT8, -1), column))
