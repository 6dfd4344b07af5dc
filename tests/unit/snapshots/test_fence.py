"""Which rows of a chunk may enter: by table, then by the epoch's edges."""

from __future__ import annotations

import numpy as np
import pytest

from cdc.model.batch import Op
from snapshots.fence import Barrier, Delivered, Snapshot, Window, keys_of, number_keys
from tests.unit.snapshots.rows import TIMES, T, batch, transactions

SNAPSHOT = "100:110:100,105"
"""Sees 99 and below, 101 … 104, 106 … 109."""
ROWS = [{"a": a, "b": b, "v": "chunk"} for a in (1, 2) for b in ("x", "y", None)]


def window(*, before: tuple[int, ...] = (), snapshot: str = SNAPSHOT) -> Window:
    made = Window(T, np.array(before, np.uint32))
    made.admit(Snapshot.parse(snapshot))
    return made


@pytest.mark.parametrize(
    ("snapshot", "xid", "seen"),
    [
        (SNAPSHOT, 3, True),
        (SNAPSHOT, 99, True),
        (SNAPSHOT, 100, False),
        (SNAPSHOT, 104, True),
        (SNAPSHOT, 105, False),
        (SNAPSHOT, 109, True),
        (SNAPSHOT, 110, False),
        (SNAPSHOT, 2**31 + 200, True),  # nearer behind than ahead
        (f"{2**32 + 5}:{2**32 + 9}:{2**32 + 5},{2**32 + 7}", 2**32 - 1, True),
        (f"{2**32 + 5}:{2**32 + 9}:{2**32 + 5},{2**32 + 7}", 4, True),
        (f"{2**32 + 5}:{2**32 + 9}:{2**32 + 5},{2**32 + 7}", 5, False),
        (f"{2**32 + 5}:{2**32 + 9}:{2**32 + 5},{2**32 + 7}", 6, True),
        (f"{2**32 + 5}:{2**32 + 9}:{2**32 + 5},{2**32 + 7}", 9, False),
        (f"{2**32 - 2}:{2**32 + 3}:{2**32 - 2},{2**32 + 1}", 2**32 - 2, False),
        (f"{2**32 - 2}:{2**32 + 3}:{2**32 - 2},{2**32 + 1}", 2**32 - 1, True),
        (f"{2**32 - 2}:{2**32 + 3}:{2**32 - 2},{2**32 + 1}", 1, False),
        (f"{2**32 - 2}:{2**32 + 3}:{2**32 - 2},{2**32 + 1}", 2, True),
        (f"{5 * 2**32 + 7}:{5 * 2**32 + 7}:", 6, True),
        (f"{5 * 2**32 + 7}:{5 * 2**32 + 7}:", 7, False),
    ],
)
def test_what_a_snapshot_sees(snapshot: str, xid: int, seen: bool) -> None:
    assert Snapshot.parse(snapshot).sees(np.array([xid], np.uint32)).tolist() == [seen]


@pytest.mark.parametrize(("before", "usable"), [((), True), ((99, 104), True), ((99, 105), False), ((110,), False)])
def test_usable_only_if_all_delivered_are_visible(before: tuple[int, ...], usable: bool) -> None:
    assert Window(T, np.array(before, np.uint32)).admit(Snapshot.parse(SNAPSHOT)) is usable


KEPT = [(1, "x"), (1, "y"), (1, None), (2, "x"), (2, "y"), (2, None)]


@pytest.mark.parametrize(
    ("xid", "op", "key", "dropped"),
    [
        (104, Op.UPDATE, (1, "x"), []),
        (105, Op.UPDATE, (1, "x"), [(1, "x")]),
        (105, Op.INSERT, (2, None), [(2, None)]),
        (110, Op.DELETE, (2, "y"), [(2, "y")]),
        (110, Op.UPDATE, (3, "x"), []),
        (104, Op.TRUNCATE, (None, None), []),
        (105, Op.TRUNCATE, (None, None), KEPT),
    ],
)
def test_what_is_dropped(xid: int, op: Op, key: tuple[int | None, str | None], dropped: list[tuple[int, str | None]]) -> None:
    tested = window()
    tested.add(
        batch(T, [{"a": 2, "b": "x"}, {"a": key[0], "b": key[1], "_op": op}], first=11), T, transactions((99, 11), (xid, 12))
    )
    left = tested.survivors([batch(T, ROWS[:3]), batch(T, ROWS[3:])])
    assert [(row["a"], row["b"]) for one in left for row in one.to_pylist()] == [key for key in KEPT if key not in dropped]


def test_a_window_for_several_chunks_remembers() -> None:
    tested = window()
    tested.add(batch(T, [{"a": 1, "b": "x"}]), T, transactions((105, 1)))
    assert sum(one.num_rows for one in tested.survivors([batch(T, ROWS)])) == 5
    tested.add(batch(T, [{"a": 1, "b": "y"}], first=2), T, transactions((110, 2)))
    assert sum(one.num_rows for one in tested.survivors([batch(T, ROWS)])) == 4


def test_another_schema_version_refuses_the_chunk() -> None:
    tested = window()
    tested.add(batch(TIMES, [{"v": "x"}]), TIMES, transactions((105, 1)))
    assert tested.mixed


def test_keys_that_their_type_cannot_hold() -> None:
    left = batch(TIMES, [{"_exact": {"at": "infinity"}}, {"_exact": {"at": "-infinity", "v": "x"}}, {"at": 5}, {}])
    right = batch(
        TIMES, [{"_exact": {"at": "-infinity"}}, {"at": 5, "_exact": {"v": "y"}}, {"_exact": {"at": "0044-03-15 00:00:00+00 BC"}}]
    )
    ours, theirs = number_keys(keys_of(left, TIMES), keys_of(right, TIMES))
    assert np.isin(ours, theirs).tolist() == [False, True, True, False]


def test_composite_keys_are_not_confused() -> None:
    left = batch(T, [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}, {"a": 1, "b": "y"}])
    right = batch(T, [{"a": 2, "b": "x"}, {"a": 1, "b": "y"}])
    ours, theirs = number_keys(keys_of(left, T), keys_of(right, T))
    assert np.isin(ours, theirs).tolist() == [False, False, True]


def test_delivered_is_pruned_by_what_is_seen() -> None:
    delivered = Delivered()
    delivered.add(np.array([98, 100, 104], np.uint32))
    delivered.add(np.array([105, 110], np.uint32))
    delivered.prune(Snapshot.parse(SNAPSHOT))
    assert delivered.so_far().tolist() == [100, 105, 110]


def test_barrier() -> None:
    barrier = Barrier(Snapshot.parse(SNAPSHOT), next_xid=113)
    assert barrier.suspects.tolist() == [100, 105, 110, 111, 112]
    barrier.deliver(np.array([111, 113], np.uint32))
    barrier.exclude(np.array([100]))
    assert not barrier.passed_by(Snapshot.parse("105:120:105"))
    assert barrier.suspects.tolist() == [105]
    assert barrier.passed_by(Snapshot.parse("106:120:"))
