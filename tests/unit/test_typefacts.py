"""Structures of types as the catalog's facts have them, however large somebody has made the types."""

from __future__ import annotations

import json
import time

import pytest

from cdc.model.facts import FactColumn, Facts, LeafTable, Publishing
from cdc.model.structure import Composite, Scalar, ScalarType, structure_of
from cdc.model.typefacts import DEEPEST, PARTS_OF_A_TABLE, PARTS_OF_A_TYPE

TYPE = 20_000
ID = FactColumn(1, "id", 23, -1, "", "", True, "10")


def row(number: int, *attributes: int) -> dict[str, str]:
    """A composite type's facts; its relation has its number, too."""
    return {f"t{number}": f"c {number}"} | {f"n{number}.{place}": f"{oid} a{place}" for place, oid in enumerate(attributes, 1)}


def facts(types: dict[str, str], *oids: int) -> Facts:
    columns = (ID, *(FactColumn(place, f"v{place}", oid, -1, "", "", False, "10") for place, oid in enumerate(oids, 2)))
    return Facts(7, "public", "t", False, "d", columns, (1,), {7: LeafTable(70, True)}, types, Publishing(True))


def structures(types: dict[str, str], *oids: int) -> list[str]:
    """What the columns of these types get; it has to be there soon."""
    began = time.process_time()
    found = [column.structure for column in facts(types, *oids).table().columns[1:]]
    assert time.process_time() - began < 20
    return found


WIDE = row(TYPE, *[23] * 1600) | row(TYPE + 1, *[TYPE] * 1600)
SHARED = {key: told for level in range(60) for key, told in row(TYPE + level + 1, TYPE + level, TYPE + level).items()} | row(
    TYPE, 23
)
LONG = {key: told for level in range(3000) for key, told in row(TYPE + level + 1, TYPE + level).items()} | row(TYPE, 23)


@pytest.mark.parametrize(
    ("types", "oid"),
    [
        pytest.param(WIDE, TYPE + 1, id="wide"),
        pytest.param(SHARED, TYPE + 60, id="shared"),
        pytest.param(LONG, TYPE + 3000, id="long"),
        pytest.param({f"t{TYPE}": f"d {TYPE}"}, TYPE, id="itself"),
        pytest.param(row(TYPE, TYPE + 1) | row(TYPE + 1, 23, TYPE), TYPE, id="itself-in-another"),
        pytest.param(row(TYPE, 23) | {f"n{TYPE}.x": "23 a"}, TYPE, id="odd-number"),
        pytest.param({f"t{TYPE}": "a what ,"}, TYPE, id="odd-element"),
    ],
)
def test_a_type_of_too_many_parts_is_plain_text(types: dict[str, str], oid: int) -> None:
    """Two types of 1,600 attributes, or sixty of two, make more parts than the memory holds."""
    assert structures(types, oid, 23) == ["", ""]
    assert structures({**types, **row(90_000, 23)}, oid, 90_000) == ["", '{"row":[["a1",23]]}'], "the next column is as it was"


def test_many_columns_of_large_types_end_as_plain_text() -> None:
    """Each of the types may be as large as a type can be, but a table cannot have any number of those."""
    types = row(TYPE, *[23] * 1600)
    for number in range(1600):
        types |= row(TYPE + 1 + number, *[TYPE] * 6)
    found = structures(types, *range(TYPE + 1, TYPE + 1601))
    assert sum(map(bool, found)) == PARTS_OF_A_TABLE // (1 + 6 * 1601)
    assert found == sorted(found, key=lambda text: not text), "the last ones"


def test_what_people_make_is_described_whole() -> None:
    types = (
        row(TYPE, *[23] * 1600) | {f"t{TYPE + 1}": f"a {TYPE} ,"} | row(TYPE + 2, 25, TYPE + 1) | {f"t{TYPE + 3}": f"d {TYPE + 2}"}
    )
    (text,) = structures(types, TYPE + 3)
    assert len(json.loads(text)["row"][1][1]["array"]["row"]) == 1600
    deep = {f"t{TYPE + level + 1}": f"a {TYPE + level} ," for level in range(DEEPEST - 1)} | row(TYPE, 23)
    (text,) = structures(deep, TYPE + DEEPEST - 1)
    assert text.count("array") == DEEPEST - 1
    column = facts(row(TYPE, 23, 25), TYPE).table().columns[1]
    assert structure_of(column) == Composite((("a1", Scalar(ScalarType.INT4)), ("a2", Scalar(ScalarType.TEXT))))
    assert 1600 < PARTS_OF_A_TYPE < PARTS_OF_A_TABLE
