"""The warehouse's pure parts: deletion vectors, keys, columns, which changes survive, which files are merged."""

from __future__ import annotations

import dataclasses
import json
import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.model.batch import Op
from cdc.model.pgtypes import (
    BOOL,
    BYTEA,
    DATE,
    FLOAT4,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    NUMERIC,
    TEXT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
)
from cdc.model.table import Column, Table
from cdc.model.topic import TopicField, TopicSchema
from sinks.warehouse.catalog import DataFile
from sinks.warehouse.columns import (
    Add,
    Evolution,
    Rename,
    Widen,
    arrow_schema,
    evolution,
    first_schema,
    iceberg_kind,
    labels,
    parse_schema,
    to_rows,
)
from sinks.warehouse.keys import FileKeys, encode, key_plan, last_of_each
from sinks.warehouse.names import safe
from sinks.warehouse.options import MB, Options
from sinks.warehouse.tablefiles import Live
from sinks.warehouse.typedtext import typed
from sinks.warehouse.upkeep import choose
from sinks.warehouse.upserts import final, groups
from sinks.warehouse.vectors import Blob, decode, puffin
from sinks.warehouse.vectors import encode as encode_vector
from tests.contract.rows import NUMBERED, ORDERS, PAIRS, batch, numeric, order, upserts


@given(st.lists(st.integers(0, 300_000), max_size=60, unique=True), st.integers(0, 20_000), st.integers(0, 2**34))
def test_a_vector_comes_back(scattered: list[int], dense: int, base: int) -> None:
    positions = np.unique(np.concatenate([np.array(scattered, np.int64), np.arange(dense, dtype=np.int64) + base]))
    np.testing.assert_array_equal(decode(encode_vector(positions)), positions)


def test_a_vector_with_runs_is_read() -> None:
    """As Java's writer makes them: cookie 12347, one run container of the values 5…14 and 100."""
    bitmap = bytes.fromhex("3b3000000100000a0002000500090064000000")
    body = b"\xd1\xd3\x39\x64" + (1).to_bytes(8, "little") + (0).to_bytes(4, "little") + bitmap
    import zlib

    blob = len(body).to_bytes(4, "big") + body + zlib.crc32(body).to_bytes(4, "big")
    assert decode(blob).tolist() == [*range(5, 15), 100]


def test_a_damaged_vector_is_refused() -> None:
    good = encode_vector(np.arange(10, dtype=np.int64))
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 1
        with pytest.raises(ValueError, match="deletion vector"):
            decode(bytes(bad))


def test_a_puffin_file_says_where_its_vectors_lie() -> None:
    content, blobs = puffin({"a": np.array([1, 2]), "b": np.array([70_000])})
    assert (content[:4], content[-4:], blobs["a"].cardinality) == (b"PFA1", b"PFA1", 2)
    for name, positions in (("a", [1, 2]), ("b", [70_000])):
        where: Blob = blobs[name]
        assert decode(content[where.offset : where.offset + where.length]).tolist() == positions
    size = int.from_bytes(content[-12:-8], "little")
    described = json.loads(content[-12 - size : -12])["blobs"]
    assert [one["properties"]["referenced-data-file"] for one in described] == ["a", "b"]


def test_keys_that_only_look_alike_stay_apart() -> None:
    plan = key_plan(TopicSchema.of(PAIRS))
    assert plan is not None
    rows = [("a", "b:c"), ("a:b", "c"), ("1", "2:"), ("12", ":"), ("", "n"), ("n", "")]
    changes = upserts(PAIRS, 1, [{"a": a, "b": b, "v": "x"} for a, b in rows])
    assert len(set(encode(plan, changes.column, len(rows)).to_pylist())) == len(rows)


def test_a_value_kept_as_exact_text_is_part_of_the_key() -> None:
    table = Table(1, "s", "t", (Column("at", TIMESTAMP, -1, "timestamp", key=True), Column("n", INT4, -1, "int4", key=True)))
    plan = key_plan(TopicSchema.of(table))
    assert plan is not None
    rows = [{"at": at, "n": "1"} for at in ("infinity", "-infinity", "2020-01-01 00:00:00")]
    changes = upserts(table, 1, rows)
    texts = pa.RecordBatch.from_pylist(rows, schema=pa.schema([("at", pa.utf8()), ("n", pa.utf8())]))
    keys = encode(plan, changes.column, 3).to_pylist()
    assert len(set(keys)) == 3
    assert encode(plan, typed(texts, TopicSchema.of(table)).__getitem__, 3).to_pylist() == keys


SCALARS = {
    BOOL: ("t", "f"),
    BYTEA: ("\\x00ff", "\\x"),
    DATE: ("2020-02-29", "infinity"),
    FLOAT4: ("0.5", "1.5"),
    FLOAT8: ("0.1", "-2"),
    INT2: ("1", "2"),
    INT4: ("1", "-2"),
    INT8: ("1", "9223372036854775807"),
    NUMERIC: ("1.10", "1.1"),
    TIME: ("00:00:00", "12:30:00.5", "23:59:59.999999", "24:00:00"),
    TIMESTAMP: ("2020-01-01 00:00:00.5", "infinity"),
    TIMESTAMPTZ: ("2020-01-01 00:00:00+00", "-infinity"),
    UUID: ("7c5a8f5e-2d0e-4a3b-9f62-0d8f4a1c2b3d", "00000000-0000-0000-0000-000000000000"),
}
"""Type → values that a key column can have."""


@pytest.mark.parametrize("kind", list(SCALARS))
def test_a_key_of_any_type_is_found_among_rows_as_they_stand_in_the_table(kind: int) -> None:
    table = Table(1, "s", "t", (Column("k", kind, -1, "", key=True), Column("l", TEXT, -1, "text", key=True)))
    topic = TopicSchema.of(table)
    plan = key_plan(topic)
    assert plan is not None
    came = upserts(table, 1, [{"k": text, "l": "x"} for text in SCALARS[kind]])
    stored = to_rows(came, topic, arrow_schema(parse_schema(first_schema(topic))))
    keys = encode(plan, came.column, came.num_rows).to_pylist()
    assert encode(plan, stored.column, stored.num_rows).to_pylist() == keys
    assert len(set(keys)) == len(SCALARS[kind])


def test_widened_keys_are_still_equal() -> None:
    for narrow, wide, value in ((INT4, INT8, "7"), (FLOAT4, 701, "0.5")):
        keys = []
        for oid in (narrow, wide):
            table = Table(1, "s", "t", (Column("k", oid, -1, "", key=True), Column("l", TEXT, -1, "text", key=True)))
            plan = key_plan(TopicSchema.of(table))
            assert plan is not None
            keys.append(encode(plan, upserts(table, 1, [{"k": value, "l": "x"}]).column, 1).to_pylist())
        assert keys[0] == keys[1]


@given(st.lists(st.integers(0, 20), min_size=1, max_size=80), st.randoms())
def test_the_last_of_each_key_is_kept(keys: list[int], chance: random.Random) -> None:
    positions = list(range(1, len(keys) + 1))
    chance.shuffle(positions)
    kept = last_of_each(np.array(keys), np.array(positions))
    newest = {key: max(p for k, p in zip(keys, positions, strict=True) if k == key) for key in keys}
    assert sorted(np.array(positions)[kept].tolist()) == sorted(newest.values())


@given(st.lists(st.integers(-50, 50), max_size=60), st.lists(st.integers(-60, 60), max_size=30, unique=True))
def test_keys_are_found_in_a_file(stored: list[int], wanted: list[int]) -> None:
    expected = [row for row, key in enumerate(stored) if key in wanted]
    assert FileKeys(np.array(stored, np.int64)).find(np.array(wanted, np.int64)).tolist() == expected
    texts = FileKeys(pa.array(map(str, stored), pa.utf8()))
    assert texts.find(pa.array(map(str, wanted), pa.utf8())).tolist() == expected


def test_a_truncate_drops_what_lies_before_it_whatever_the_order() -> None:
    changes = [
        upserts(ORDERS, 5, [order(5)]),
        batch(ORDERS, [(Op.TRUNCATE, 4, {})]),
        upserts(ORDERS, 1, [order(1), order(2), order(3)]),
    ]
    (group,) = groups(changes, None, 0)
    assert (group.floor, group.last) == (4, 5)
    assert final(group, 0).written.tolist() == [5]  # type: ignore[union-attr]
    assert groups(changes, TopicSchema.of(ORDERS), 5) == []


def test_another_table_of_the_same_name_replaces_all_rows() -> None:
    anew = dataclasses.replace(ORDERS, oid=7)
    (group,) = groups([upserts(anew, 4, [order(1)])], TopicSchema.of(ORDERS), 3)
    assert group.floor == 3
    (same,) = groups([upserts(ORDERS, 4, [order(1)])], TopicSchema.of(ORDERS), 3)
    assert same.floor == -1


def test_columns_evolve() -> None:
    fields = parse_schema(first_schema(TopicSchema.of(ORDERS)))
    assert evolution(fields, TopicSchema.of(ORDERS), TopicSchema.of(ORDERS)) == Evolution(())
    narrower = dataclasses.replace(ORDERS.columns[0], type_oid=INT4)
    assert evolution(
        fields, TopicSchema.of(dataclasses.replace(ORDERS, columns=(narrower, *ORDERS.columns[1:]))), TopicSchema.of(ORDERS)
    ) == Evolution(())
    wider = dataclasses.replace(ORDERS.columns[3], typmod=numeric(20, 2))
    changed = dataclasses.replace(ORDERS.columns[1], type_oid=TEXT)
    table = dataclasses.replace(ORDERS, columns=(ORDERS.columns[0], changed, wider, Column("more", TEXT, -1, "text")))
    assert evolution(fields, TopicSchema.of(table), TopicSchema.of(ORDERS)) == Evolution(
        (
            Rename("customer_id", "customer_id__2"),
            Widen("amount", "decimal(20, 2)"),
            Add("customer_id", "string", "int8"),
            Add("more", "string", "text"),
        ),
        frozenset({"customer_id"}),
    )
    without = dataclasses.replace(ORDERS, columns=ORDERS.columns[:-1])
    assert evolution(fields, TopicSchema.of(ORDERS), TopicSchema.of(without)) == Evolution(
        (Rename("created_at", "created_at__6"), Add("created_at", "timestamptz", "timestamptz"))
    )


def test_columns_are_renamed_by_number() -> None:
    fields = parse_schema(first_schema(TopicSchema.of(NUMBERED)))

    def called(names: dict[str, str]) -> Table:
        kept = [dataclasses.replace(c, name=names.get(c.name, c.name)) for c in NUMBERED.columns]
        return dataclasses.replace(NUMBERED, columns=tuple(kept))

    assert evolution(fields, TopicSchema.of(called({"id": "order_id"})), TopicSchema.of(NUMBERED)) == Evolution(
        (Rename("id", "order_id"),)
    )
    assert evolution(fields, TopicSchema.of(called({"note": "status", "status": "note"})), TopicSchema.of(NUMBERED)) == Evolution(
        (Rename("status", "status__3"), Rename("note", "note__5"), Rename("status__3", "note"), Rename("note__5", "status"))
    )
    assert evolution(fields, TopicSchema.of(called({"note": "status", "status": "state"})), TopicSchema.of(NUMBERED)) == Evolution(
        (Rename("status", "status__3"), Rename("status__3", "state"), Rename("note", "status"))
    )
    assert evolution(fields, TopicSchema.of(called({"note": "NOTE"})), TopicSchema.of(NUMBERED)) == Evolution(
        (Rename("note", "NOTE"),)
    )


def test_names_that_engines_mix_up_are_told_apart() -> None:
    table = Table(1, "s", "t", (Column("Id", INT4), Column("id", INT4), Column("ID", INT4)))
    assert list(labels(TopicSchema.of(table)).values()) == ["Id", "id__2", "ID__3"]
    assert (
        len({safe(name) for name in ("a.b", "a_b", "A_B", "../../x", ".", "..", "e\u0301", "\u00e9", "x" * 300, "_headwater")})
        == 10
    )
    assert all(
        "/" not in safe(name) and "." not in safe(name) and not safe(name).startswith("_") for name in ("..", "a/b", "_x", "%")
    )


def test_a_name_that_looks_like_one_of_ours_is_not_taken_for_it() -> None:
    names = ["Orders", safe("Orders"), safe(safe("Orders")), "x" * 300, safe("x" * 300)]
    assert len({safe(name) for name in names}) == len(names)
    assert safe("orders_2024") == "orders_2024"


def test_columns_named_like_the_formats_own_get_other_labels() -> None:
    own = ["_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number", "_FILE"]
    table = Table(1, "s", "t", tuple(Column(name, INT4) for name in own))
    assert not {label.lower() for label in labels(TopicSchema.of(table)).values()} & set(own)
    assert len(set(labels(TopicSchema.of(table)).values())) == len(own)


def test_a_numeric_without_bounds_is_text() -> None:
    assert iceberg_kind(TopicField.of(Column("n", NUMERIC))) == "string"
    assert iceberg_kind(TopicField.of(Column("n", NUMERIC, numeric(12, 2)))) == "decimal(12, 2)"


def _live(*sizes: int) -> dict[str, Live]:
    return {str(n): Live(DataFile(str(n), str(n), 100, size, None)) for n, size in enumerate(sizes)}


def test_files_of_one_size_are_merged_when_there_are_enough() -> None:
    options = Options.model_validate({"kind": "iceberg", "path": "x", "compact_files": 4})
    assert choose(_live(*[1000] * 3, 20 * MB), options) == []
    assert len(choose(_live(*[1000] * 5, 20 * MB), options)) == 5
    assert len(choose(_live(*[3 * MB] * 4, 1000), options)) == 4
    assert sum(one.file.bytes for one in choose(_live(*[60 * MB] * 9), options)) <= 128 * MB
    mostly_gone = {"a": Live(DataFile("a", "a", 100, 9 * MB, None), None, np.arange(60))}
    assert [one.file.path for one in choose(mostly_gone, options)] == ["a"]
