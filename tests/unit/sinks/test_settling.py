"""Which suspects differ and which were in flight, look by look."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from cdc.audit.suspects import KeyLook, Settling, joined, look

Seen = dict[str, tuple[str, str]]
"""key → (value, xmin)"""
KEYS = pa.RecordBatch.from_pydict({"id": pa.array(["1", "2"])})


def source(keys: pa.RecordBatch, rows: Seen) -> KeyLook:
    names = ["id", "v", "_cdc_xmin"]
    columns = [[*rows], [value for value, _ in rows.values()], [xmin for _, xmin in rows.values()]]
    found = pa.RecordBatch.from_arrays([pa.array(column, pa.utf8()) for column in columns], names=names)
    return look(keys, [found], (0,), 2, seed=3)


def store(keys: pa.RecordBatch, rows: dict[str, str]) -> KeyLook:
    found = pa.RecordBatch.from_arrays([pa.array([*rows], pa.utf8()), pa.array([*rows.values()], pa.utf8())], names=["id", "v"])
    return look(keys, [found], (0,), 2, seed=3)


def run(settling: Settling, before: Seen, held: dict[str, str], after: Seen) -> dict[str, str]:
    keys = settling.keys
    found = settling.round(source(keys, before), store(keys, held), source(keys, after))
    return {key: found.kind(i) for i, key in enumerate(found.keys.column(0).to_pylist())}


def test_what_agrees_with_either_look_is_in_order() -> None:
    settling = Settling(KEYS)
    assert run(settling, {"1": ("a", "7"), "2": ("a", "7")}, {"1": "a", "2": "b"}, {"1": ("b", "8"), "2": ("b", "8")}) == {}
    assert settling.open == 0
    assert (settling.missing, settling.extra, settling.different) == (0, 0, 0)


@pytest.mark.parametrize(
    ("at_source", "held", "kind"),
    [
        ({"1": ("a", "7")}, {"1": "b"}, "different"),
        ({"1": ("a", "7")}, {}, "missing"),
        ({}, {"1": "b"}, "extra"),
    ],
)
def test_what_stays_apart_twice_differs(at_source: Seen, held: dict[str, str], kind: str) -> None:
    settling = Settling(KEYS.slice(0, 1))
    assert run(settling, at_source, held, at_source) == {}
    assert run(settling, at_source, held, at_source) == {"1": kind}
    assert settling.open == 0
    assert {"missing": settling.missing, "extra": settling.extra, "different": settling.different}[kind] == 1
    assert settling.missing + settling.extra + settling.different == settling.keys_differing == 1


def test_a_row_written_between_the_looks_is_undecided_even_with_equal_values() -> None:
    """Only xmin tells that it went from a to b and back while the store was read."""
    settling = Settling(KEYS.slice(0, 1))
    for xmin in range(4):
        assert run(settling, {"1": ("a", f"{xmin}")}, {"1": "b"}, {"1": ("a", f"{xmin}'")}) == {}
    assert settling.open == 1


def test_a_row_that_came_and_went_between_the_looks_is_no_difference() -> None:
    settling = Settling(KEYS.slice(0, 1))
    assert run(settling, {}, {"1": "passing"}, {}) == {}
    assert run(settling, {}, {}, {}) == {}
    assert settling.open == 0
    assert settling.extra == 0


def test_another_mismatch_than_last_time_is_looked_at_again() -> None:
    settling = Settling(KEYS.slice(0, 1))
    assert run(settling, {"1": ("a", "7")}, {"1": "x"}, {"1": ("a", "7")}) == {}
    assert run(settling, {"1": ("b", "8")}, {"1": "x"}, {"1": ("b", "8")}) == {}
    assert run(settling, {"1": ("b", "8")}, {"1": "y"}, {"1": ("b", "8")}) == {}
    assert run(settling, {"1": ("b", "8")}, {"1": "y"}, {"1": ("b", "8")}) == {"1": "different"}


def test_evidence_follows_its_key_when_others_are_settled() -> None:
    settling = Settling(KEYS)
    assert run(settling, {"1": ("a", "1"), "2": ("a", "1")}, {"1": "a", "2": "z"}, {"1": ("a", "1"), "2": ("a", "1")}) == {}
    assert settling.keys.column(0).to_pylist() == ["2"]
    assert run(settling, {"2": ("a", "1")}, {"2": "z"}, {"2": ("a", "1")}) == {"2": "different"}


def test_rows_that_nobody_asked_for_are_left_out() -> None:
    """Postgres finds 1.00 when asked for 1.0; it is another key's row to us."""
    seen = store(KEYS, {"1": "a", "1.00": "b"})
    assert seen.rows.tolist() == [1, 0]


def test_copies_of_a_row_are_counted() -> None:
    settling = Settling(KEYS.slice(0, 1))
    keys = settling.keys
    two = pa.RecordBatch.from_arrays([pa.array(["1", "1"])], names=["id"])
    one = pa.RecordBatch.from_arrays([pa.array(["1"])], names=["id"])
    for _ in range(2):
        found = settling.round(look(keys, [two], (0,), 1, 3), look(keys, [one], (0,), 1, 3), look(keys, [two], (0,), 1, 3))
    assert found.kind(0) == "missing"
    assert settling.missing == 1


def test_pieces_join_in_order() -> None:
    whole = store(KEYS, {"1": "a", "2": "b"})
    pieces = joined([store(KEYS.slice(0, 1), {"1": "a"}), store(KEYS.slice(1, 1), {"2": "b"})])
    assert pieces.digest.tolist() == whole.digest.tolist()
    assert joined([]).rows.size == 0


def test_equal_rows_settle_as_one() -> None:
    two = KeyLook(np.array([2]), np.array([14], np.uint64), np.array([30], np.uint64))
    one = KeyLook(np.array([1]), np.array([7], np.uint64), np.array([7], np.uint64))
    none = KeyLook(np.array([0]), np.array([0], np.uint64), np.array([0], np.uint64))
    assert two.distinct().same_content(one.distinct())
    settling = Settling(KEYS.slice(0, 1))
    for _ in range(2):
        settling.round(two.distinct(), none.distinct(), two.distinct())
    assert (settling.missing, settling.open) == (1, 0)
