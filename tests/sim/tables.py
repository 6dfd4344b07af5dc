"""The tables of a run and values for them, as the text that Postgres gives: ordinary ones, odd ones, and ones wide enough to be TOASTed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from random import Random
from typing import Final

import pyarrow as pa

from cdc.model import pgtypes
from cdc.model.pgtypes import arrow_type
from cdc.model.structure import Structure, structure_of
from cdc.model.table import Column, Identity, Table
from cdc.model.topic import TopicSchema

Row = dict[str, str | None]
"""Column → canonical text; a column that is not there is NULL."""
Key = tuple[str, ...]

FIRST_OID: Final = 16_400
PAGES: Final = 6
WIDE_CHARACTERS: Final = 2_100
"""Longer than this, a value alone makes its tuple wide, so Postgres moves it out of line."""

_NASTY: Final[dict[int, tuple[str, ...]]] = {
    pgtypes.INT4: ("0", "-1", "2147483647", "-2147483648"),
    pgtypes.INT8: ("0", "9223372036854775807", "-9223372036854775808"),
    pgtypes.FLOAT8: ("NaN", "Infinity", "-0", "0.30000000000000004", "5e-324", "1e+300"),
    pgtypes.BOOL: ("t", "f"),
    pgtypes.TEXT: ("", "NULL", "\\N", "a\tb\nc\\", "tab\\t", "é😀", "a:b", "'\"{,}"),
    pgtypes.NUMERIC: ("0.00", "NaN", "-99999999.99", "1.10"),
    pgtypes.TIMESTAMPTZ: ("infinity", "-infinity", "0044-03-15 00:00:00+00 BC", "2024-02-29 12:00:00.000001+00"),
    pgtypes.DATE: ("infinity", "4714-11-24 BC", "5874897-12-31", "2000-02-29"),
    pgtypes.VARCHAR: ("", "NULL", "a\tb", "é😀"),
    pgtypes.BYTEA: ("\\x", "\\x00ff"),
    pgtypes.JSONB: ("null", '{"a": [1, 2.50]}', '"\\\\N"'),
}

NUMBER: Final = (10 << 16 | 2) + 4
"""The modifier of numeric(10, 2)."""
_EXTRA: Final = (
    Column("num", pgtypes.NUMERIC, NUMBER),
    Column("at", pgtypes.TIMESTAMPTZ),
    Column("day", pgtypes.DATE),
    Column("fl", pgtypes.FLOAT8),
    Column("flag", pgtypes.BOOL),
    Column("raw", pgtypes.BYTEA),
    Column("doc", pgtypes.JSONB),
    Column("small", pgtypes.INT4),
)


_AGAIN: Final = "__"
"""Between a column's first name and how often it was renamed since."""


def another_name(name: str) -> str:
    first, _, times = name.partition(_AGAIN)
    return f"{first}{_AGAIN}{int(times or 0) + 1}"


@lru_cache(maxsize=1024)
def first_name(name: str) -> str:
    return name.partition(_AGAIN)[0]


@lru_cache(maxsize=1024)
def renamed(before: Table, after: Table) -> dict[str, str] | None:
    """The name before of each column that is still there, and the name after; None where nothing but new columns has come."""
    now = {column.attnum: column.name for column in after.columns}
    names = {column.name: now[column.attnum] for column in before.columns if column.attnum in now}
    return None if names == {name: name for name in before.names} else names


@lru_cache(maxsize=1024)
def conversions(before: Table, after: Table) -> Mapping[str, Callable[[str], str]]:
    """What becomes of values where a column has another type: by the name after, for those that are written in another way then."""
    was = {column.attnum or first_name(column.name): column for column in before.columns}
    found: dict[str, Callable[[str], str]] = {}
    for column in after.columns:
        old = was.get(column.attnum) or was.get(first_name(column.name))
        if old is None or (old.type_oid, old.typmod) == (column.type_oid, column.typmod):
            continue
        if old.type_oid == pgtypes.BOOL:
            found[column.name] = {"t": "true", "f": "false"}.__getitem__
        elif column.type_oid == pgtypes.NUMERIC and (bounds := pgtypes.numeric_precision_scale(column.typmod)) is not None:
            found[column.name] = partial(_scaled, scale=bounds[1])
    return found


def _scaled(number: str, scale: int) -> str:
    """With so many digits behind the point, of which it has no more."""
    if number == "NaN":
        return number
    whole, _, fraction = number.partition(".")
    return f"{whole}.{fraction.ljust(scale, '0')}"


def retyped(chance: Random, column: Column) -> tuple[Column, bool] | None:
    """The column with another type, which holds all of its values; and whether Postgres writes the table's rows again for it."""
    kind = column.type_oid
    if kind == pgtypes.INT4:
        to, typmod = chance.choice(((pgtypes.INT8, -1), (pgtypes.TEXT, -1), (pgtypes.NUMERIC, (14 << 16 | 2) + 4)))
        return replace(column, type_oid=to, typmod=typmod), True
    if kind == pgtypes.INT8:
        return replace(column, type_oid=pgtypes.NUMERIC), True
    if kind == pgtypes.BOOL:
        return replace(column, type_oid=pgtypes.TEXT), True
    if kind == pgtypes.TEXT:
        typmod = chance.choice((-1, 4 + 5_000))
        return replace(column, type_oid=pgtypes.VARCHAR, typmod=typmod), typmod >= 0
    if kind == pgtypes.VARCHAR:
        return replace(column, type_oid=pgtypes.TEXT, typmod=-1), False
    bounds = pgtypes.numeric_precision_scale(column.typmod) if kind == pgtypes.NUMERIC else None
    if bounds is None:
        return None
    precision, scale = bounds[0] + 4, bounds[1] + chance.choice((0, 2))
    if precision > 30:
        return None
    if bounds[1] == 2 and chance.random() < 0.2:
        return replace(column, typmod=-1), False
    return replace(column, typmod=(precision << 16 | scale) + 4), scale != bounds[1]


def make_tables(chance: Random) -> list[Table]:
    """One to three tables of different identities."""
    return [make_table(chance, FIRST_OID + 7 * number, f"t{number}") for number in range(chance.choice((1, 1, 2, 3)))]


def make_table(chance: Random, oid: int, name: str, *, late: bool = False) -> Table:
    """One of any shape. ``late``: it comes while capture runs. Under FULL only the catalog tells its key then, which may not show the table
    yet, or not any more, when its first row comes: until the catalog does, the whole row is taken for the key."""
    identity: Identity = chance.choice(("d", "d", "f", "i"))
    whole = identity == "f" and (late or chance.random() < 0.4)
    keys = [Column("id", pgtypes.INT8)]
    if identity == "i":
        keys = [Column("code", pgtypes.TEXT)]
    elif chance.random() < 0.3:
        keys = [Column("part", pgtypes.TEXT), Column("id", pgtypes.INT8)]
    others = [Column("tag", pgtypes.TEXT), Column("body", pgtypes.TEXT), *chance.sample(_EXTRA, chance.randrange(4))]
    if identity == "i":
        others.append(Column("id", pgtypes.INT8))
    if chance.random() < 0.3:
        others.append(Column("body2", pgtypes.TEXT))
    chance.shuffle(others)
    at = chance.randrange(len(others) + 1)
    columns = [*others[:at], *(replace(key, key=True) for key in keys), *others[at:]]
    if whole:
        columns = [replace(column, key=True) for column in columns]
    return Table(oid, "public", name, tuple(replace(c, attnum=number) for number, c in enumerate(columns, 1)), identity)


@lru_cache(maxsize=1024)
def keyless(table: Table | TopicSchema) -> bool:
    """Replica identity FULL and no primary key: the whole row identifies itself."""
    return table.identity in ("f", "row") and len(table.key) == len(table.names)


@lru_cache(maxsize=1024)
def identity_of(table: Table | TopicSchema) -> tuple[str, ...]:
    """The columns that tell its rows apart."""
    return ("tag",) if keyless(table) else tuple(column.name for column in table.key)


def key_of(table: Table | TopicSchema, row: Row) -> Key:
    """Without a key the tag stands for the row: no two rows ever have the same."""
    return tuple([row.get(name) or "" for name in identity_of(table)])


def tag_of(row: Row) -> Key:
    return (row["tag"] or "",)


def index_of(table: Table) -> tuple[str, ...]:
    """The columns of the index that identifies its rows, in the index's order, which need not be theirs; none where no index does."""
    names = () if keyless(table) else tuple(column.name for column in table.key)
    return names[::-1] if table.oid % 2 else names


def new_key(chance: Random, table: Table, keys: int) -> Row:
    """One of so many keys, so that they are met again."""
    row: Row = {}
    if keyless(table):
        return row
    for column in table.key:
        number = chance.randrange(keys)
        if column.type_oid in (pgtypes.INT8, pgtypes.NUMERIC):
            row[column.name] = str(number - 1)
        else:
            row[column.name] = ("a", "a ", "A:b", "", "\\")[number % 5] if len(table.key) > 1 else f"k{number}"
    return row


def new_value(chance: Random, column: Column, tag: str, wide: float) -> str | None:
    """``tag`` is unique in the run and becomes part of every text, so that no two versions of a row are equal."""
    if column.name == "tag":
        return tag
    if chance.random() < 0.1:
        return None
    if column.type_oid in (pgtypes.TEXT, pgtypes.VARCHAR) and chance.random() < wide:
        return f"{tag}:" + chance.choice("xyé") * (WIDE_CHARACTERS + chance.randrange(200))
    if column.type_oid == pgtypes.NUMERIC and column.typmod != NUMBER:
        return _number(chance, column)
    if chance.random() < 0.25:
        return chance.choice(_NASTY[column.type_oid])
    number = chance.randrange(1, 10_000)
    match column.type_oid:
        case pgtypes.NUMERIC:
            return f"{number}.{chance.randrange(100):02d}"
        case pgtypes.TIMESTAMPTZ:
            return f"2024-03-{number % 28 + 1:02d} 01:02:{number % 60:02d}+00"
        case pgtypes.DATE:
            return f"19{number % 90 + 10}-05-{number % 30 + 1:02d}"
        case pgtypes.FLOAT8:
            return f"{number}.5"
        case pgtypes.BOOL:
            return chance.choice("tf")
        case pgtypes.BYTEA:
            return f"\\x{number:04x}"
        case pgtypes.JSONB:
            return f'{{"n": {number}}}'
        case pgtypes.TEXT | pgtypes.VARCHAR:
            return f"{tag} {number}"
        case _:
            return str(number)


def _number(chance: Random, column: Column) -> str:
    """Of a column that has been numeric(10, 2): most would not have been one of its values."""
    if chance.random() < 0.2:
        return "NaN"
    bounds = pgtypes.numeric_precision_scale(column.typmod)
    if bounds is None:
        return chance.choice(("0", "1.10", "1e30", f"{chance.randrange(10**20)}.000")).replace("1e30", "1" + "0" * 30)
    digits = chance.randrange(10 ** (bounds[0] - bounds[1]))
    return _scaled(f"{'-' if chance.random() < 0.3 and digits else ''}{digits}.{chance.randrange(100):02d}", bounds[1])


def is_toasted(value: str | None) -> bool:
    return value is not None and len(value) > WIDE_CHARACTERS


def page_of(row: Row) -> int:
    """Every version of a row stands on some page, wherever there was room."""
    return int((row["tag"] or "v0")[1:]) * 7919 % 101 % PAGES


def retypes(before: Table, after: Table) -> bool:
    """Whether a column that stays has taken another type."""
    kinds = {first_name(column.name): (column.type_oid, column.typmod) for column in after.columns}
    return any(
        kinds.get(first_name(column.name), kind) != kind for column in before.columns if (kind := (column.type_oid, column.typmod))
    )


def written_again(before: Table, after: Table) -> dict[str, str] | None:
    """Where each column's values were that a store has to write again: both by their first names. None: it has nothing to write again."""
    came = _came_from(before, after)
    now = {old.name: column for column in after.columns if (old := came.get(column.name)) is not None}
    if all(
        (new := now.get(column.name)) is not None and (new.name, _type(new)) == (column.name, _type(column))
        for column in before.columns
    ):
        return None
    return {first_name(column.name): first_name(came[column.name].name) for column in after.columns if column.name in came}


def _came_from(before: Table, after: Table) -> dict[str, Column]:
    """By the name after: the column before. A column goes by its number where both definitions have one of it, else by its name: one whose
    number nobody could tell leaves the others theirs."""
    numbers = {column.attnum: column for column in before.columns if column.attnum}
    found = {column.name: numbers[column.attnum] for column in after.columns if column.attnum in numbers}
    names = {column.name: column for column in before.columns if column not in found.values()}
    for column in after.columns:
        old = None if column.name in found else names.get(column.name)
        if old is not None and not (old.attnum and column.attnum):
            found[column.name] = old
    return found


def _type(column: Column) -> tuple[pa.DataType, Structure]:
    return arrow_type(column), structure_of(column)
