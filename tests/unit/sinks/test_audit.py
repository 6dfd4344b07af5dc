"""The audit's engine: what two sides of rows do not agree on."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from cdc.audit.engine import Side, key_indices, suspects
from cdc.kernels.digests import _fold_key, _fold_rows, digests
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from sinks.contract import audit_schema

TABLE = Table(1, "public", "t", (Column("id", 20, key=True), Column("a", 25), Column("b", 1700)))
SCHEMA = audit_schema(TopicSchema.of(TABLE))
Row = tuple[str | None, ...]


def batch(rows: list[Row], schema: pa.Schema = SCHEMA) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([row[i] for row in rows], pa.utf8()) for i in range(len(schema))], schema=schema)


def side(rows: list[Row], *, key: tuple[int, ...] = (0,), size: int = 3, spill_rows: int = 1 << 30) -> Side:
    filled = Side(SCHEMA, key, seed=42, spill_rows=spill_rows)
    for start in range(0, len(rows), size):
        filled.add(batch(rows[start : start + size]))
    return filled


def differing(source: list[Row], store: list[Row], **options: int) -> set[str | None]:
    return set(suspects(side(source, **options), side(store, **options)).column(0).to_pylist())


def rows(count: int) -> list[Row]:
    return [(str(i), f"value {i}" if i % 3 else None, f"{i}.50") for i in range(count)]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (("1", "a", "1.10"), ("1", "b", "1.10")),
        (("1", None, "1.10"), ("1", "", "1.10")),
        (("1", "a", "1.10"), ("1", "a", "1.1")),
        (("1", "a", "1.10"), ("1", "a ", "1.10")),
        (("1", "a", "b"), ("1", "b", "a")),
        (("1", "ab", "c"), ("1", "a", "bc")),
        (("1", None, "a"), ("1", "a", None)),
        (("1", "sixteen bytes it", "x"), ("1", "sixteen bytes it\0", "x")),
        (("1", "0123456789abcdefXYZ", "x"), ("1", "0123456789abcdefXYz", "x")),
        (("1", "NULL", "x"), ("1", None, "x")),
        (("1", "\\N", "x"), ("1", None, "x")),
    ],
)
def test_every_kind_of_other_value_is_seen(ours: Row, theirs: Row) -> None:
    around = [("0", "x", "1"), ("2", "y", "2")]
    assert differing([*around, ours], [*around, theirs]) == {"1"}
    assert differing([*around, ours], [*around, ours]) == set()


def test_the_kernel_is_compiled_once_whoever_made_the_buffers() -> None:
    texts = ["a", None, "bc"]
    offsets, data, bitmap = np.array([0, 1, 1, 3], np.int32), np.frombuffer(b"abc", np.uint8), np.array([0b101], np.uint8)
    for writable in range(8):
        parts = [
            part.copy() if writable >> at & 1 else pa.py_buffer(part.tobytes()) for at, part in enumerate((offsets, data, bitmap))
        ]
        column = pa.StringArray.from_buffers(3, *map(pa.py_buffer, parts))
        assert column.to_pylist() == texts
        found = digests(pa.RecordBatch.from_arrays([column], names=["id"]), (0,), 5)
        assert np.array_equal(found.row, digests(batch([(text,) for text in texts], pa.schema([("id", pa.utf8())])), (0,), 5).row)
    for kernel in (_fold_key, _fold_rows):
        assert len(kernel.signatures) == 1  # type: ignore[attr-defined]


def test_order_and_batching_do_not_matter() -> None:
    shuffled = rows(1000)
    random.Random(7).shuffle(shuffled)
    assert suspects(side(rows(1000), size=1000), side(shuffled, size=17)).num_rows == 0


@pytest.mark.parametrize("spill_rows", [1 << 30, 100], ids=["in memory", "spilled"])
def test_drift_is_found_and_nothing_else(spill_rows: int) -> None:
    """Also when the digests went to files and are compared range by range."""
    source, store = rows(5000), rows(5000)
    store[77] = ("77", "other", "77.50")
    del store[4000]
    store.append(("extra", "x", "1"))
    assert differing(source, store, spill_rows=spill_rows, size=50) == {"77", "4000", "extra"}


def test_random_drift(seed: int) -> None:
    dice = random.Random(seed)
    source = {str(i): (str(i), dice.choice([None, "", "x" * dice.randrange(40)]), str(dice.random())) for i in range(2000)}
    store = dict(source)
    for key in dice.sample(sorted(source), 60):
        match dice.randrange(3):
            case 0:
                del store[key]
            case 1:
                store[key] = (key, f"changed {key}", store[key][2])
            case _:
                store[f"new {key}"] = (f"new {key}", None, None)
    expected = {key for key in source.keys() | store.keys() if source.get(key) != store.get(key)}
    assert differing(list(source.values()), list(store.values()), spill_rows=dice.choice([300, 1 << 30]), size=70) == expected


def test_an_empty_side() -> None:
    assert differing(rows(3), []) == {"0", "1", "2"}
    assert differing([], rows(3)) == {"0", "1", "2"}
    assert differing([], []) == set()


def test_rows_without_a_key_are_a_multiset() -> None:
    keyless = Table(1, "public", "t", (Column("id", 20), Column("a", 25), Column("b", 1700)), identity="f")
    assert key_indices(TopicSchema.of(keyless)) == (0, 1, 2)
    twice, once = ("1", None, "x"), ("2", "y", None)
    key = (0, 1, 2)
    assert suspects(side([twice, once, twice], key=key), side([twice, twice, once], key=key)).num_rows == 0
    found = suspects(side([twice, once, twice], key=key), side([twice, once], key=key))
    assert found.to_pylist() == [{"id": "1", "a": None, "b": "x"}]


def test_composite_keys_are_injective() -> None:
    """('a', 'b:c') is not ('a:b', 'c')."""
    found = digests(batch([("a", "b:c", "x"), ("a:b", "c", "x"), ("ab", ":c", "x"), ("", "ab:c", "x")]), (0, 1), seed=1)
    assert np.unique(found.high).size == 4


def test_slices_hash_like_copies() -> None:
    whole = batch([(str(i), None if i % 2 else f"t{i}", "x") for i in range(40)])
    cut = whole.slice(13, 9)
    copied = batch([tuple(row.values()) for row in cut.to_pylist()])
    for ours, theirs in zip(digests(cut, (0,), 5), digests(copied, (0,), 5), strict=True):
        assert (ours == theirs).all()


def test_equal_high_halves_are_told_apart_by_the_low(monkeypatch: pytest.MonkeyPatch) -> None:
    """A 64-bit collision among billions of rows must not mix two keys up."""
    import cdc.audit.engine as engine

    def colliding(piece: pa.RecordBatch, key: list[int], seed: int):  # type: ignore[no-untyped-def]
        found = digests(piece, key, seed)
        return found._replace(high=found.high & np.uint64(3))

    monkeypatch.setattr(engine, "digests", colliding)
    source = rows(500)
    store = [row for row in reversed(source) if row[0] != "250"]
    assert differing(source, store) == {"250"}


def test_other_columns_and_other_types_are_refused() -> None:
    with pytest.raises(ValueError, match="expected the columns"):
        side([]).add(pa.RecordBatch.from_pydict({"id": pa.array(["1"])}))
    with pytest.raises(TypeError, match="'id' is int64"):
        side([]).add(pa.RecordBatch.from_pydict({"id": pa.array([1]), "a": pa.array(["x"]), "b": pa.array(["x"])}))


@pytest.mark.parametrize("spill_rows", [1 << 30, 4], ids=["in memory", "spilled"])
def test_equal_rows_count_once_where_nothing_tells_them_apart(spill_rows: int) -> None:
    def distinct(rows: list[Row]) -> Side:
        filled = Side(SCHEMA, (0, 1, 2), seed=42, distinct=True, spill_rows=spill_rows)
        filled.add(batch(rows))
        return filled

    twice: list[Row] = [("1", "a", None), ("2", "b", "x"), ("1", "a", None), ("1", "a", None), ("3", None, None)]
    source, store = distinct(twice), distinct([("3", None, None), ("1", "a", None), ("2", "b", "x")])
    assert suspects(source, store).num_rows == 0
    assert (source.repeated, store.repeated) == (2, 0)
    assert suspects(distinct(twice), distinct([("3", None, None), ("2", "b", "x")])).column(0).to_pylist() == ["1"]
