from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from cdc.model.batch import Op
from snapshots.holds import Holds
from tests.unit.snapshots.rows import T, batch

KEY = {"a": 1, "b": "x"}
CHUNK = [{**KEY, "v": "chunk v", "w": "chunk w"}, {"a": 2, "b": "x", "v": "other", "w": "other"}]


def held(*pieces: tuple[list[dict[str, Any]], list[str], int]) -> Holds:
    """(rows, columns that all of them lack, position) of each piece."""
    holds = Holds(T)
    for rows, missing, position in pieces:
        rows_at = batch(T, rows, first=position)
        positions = pa.array([position] * len(rows), pa.int64())
        rows_at = rows_at.set_column(0, rows_at.schema.field(0), positions)
        holds.add(rows_at, {name: np.ones(len(rows), np.bool_) for name in missing})
    return holds


def values(rows: list[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    return [(row["a"], row["v"], row["w"]) for one in rows for row in one.to_pylist()]


def test_what_was_sent_wins_and_what_was_not_stays() -> None:
    holds = held(([{**KEY, "v": "new"}], ["w"], 5))
    assert values(holds.complete([batch(T, CHUNK)])[0]) == [(1, "new", "chunk w"), (2, "other", "other")]
    assert len(holds) == 0


def test_null_that_was_sent_is_null() -> None:
    assert values(held(([{**KEY, "v": None}], ["w"], 5)).complete([batch(T, CHUNK[:1])])[0]) == [(1, None, "chunk w")]


def test_later_rows_of_a_key_win_column_by_column() -> None:
    pieces = ([{**KEY, "v": "first", "w": None}, {**KEY, "v": "second"}], ["w"], 5), ([{**KEY, "w": "third"}], ["v"], 6)
    assert values(held(*pieces).complete([batch(T, CHUNK[:1])])[0]) == [(1, "second", "third")]


def test_rows_that_no_chunk_brought_stay() -> None:
    holds = held(([{**KEY, "v": "new"}, {"a": 9, "b": "x", "v": "moved"}], ["w"], 5))
    holds.complete([batch(T, CHUNK)])
    left = holds.keys(10)
    assert left is not None
    assert left.column("a").to_pylist() == [9]


def test_a_later_whole_row_or_delete_ends_the_wait_and_an_earlier_one_does_not() -> None:
    for op in (Op.UPDATE, Op.INSERT, Op.DELETE):
        for position, left in ((4, 1), (5, 0), (6, 0)):
            holds = held(([{**KEY, "v": "new"}], ["w"], 5))
            holds.forget(batch(T, [KEY], op=op, first=position))
            assert len(holds) == left, (op, position)
    holds = held(([{**KEY, "v": "new"}], ["w"], 5))
    holds.forget(batch(T, [{"a": 1, "b": "y"}], first=6))
    assert len(holds) == 1


def test_truncate_ends_the_wait() -> None:
    holds = held(([{**KEY, "v": "new"}], ["w"], 5))
    holds.forget(batch(T, [{}], op=Op.TRUNCATE, first=4))
    assert len(holds) == 1
    holds.forget(batch(T, [{}], op=Op.TRUNCATE, first=5))
    assert len(holds) == 0


def test_exact_texts_go_with_their_values() -> None:
    chunk = batch(T, [{**KEY, "_exact": {"v": "chunk exact", "w": "chunk w exact"}}, CHUNK[1]])
    holds = held(([{**KEY, "_exact": {"v": "sent exact"}}], ["w"], 5))
    (row, other) = (row for one in holds.complete([chunk])[0] for row in one.to_pylist())
    assert dict(row["_cdc_exact"]) == {"v": "sent exact", "w": "chunk w exact"}
    assert other["_cdc_exact"] is None


def test_a_row_that_is_updated_again_and_again_is_held_once() -> None:
    holds = held(*(([{**KEY, "v": str(n)}], ["w"], 5 + n) for n in range(500)))
    holds.settle()
    assert len(holds) == 1
    assert values(holds.complete([batch(T, CHUNK[:1])])[0]) == [(1, "499", "chunk w")]


def test_settling_changes_nothing_of_what_comes_out(seed: int) -> None:
    """Rows of few keys, each lacking some columns, with whole rows and deletes in between: held one by one, or settled after each group."""
    random = Random(seed)
    for _ in range(60):
        plain, settled = Holds(T), Holds(T)
        position = 1
        for _ in range(random.randrange(1, 25)):
            if random.random() < 0.2:
                change = batch(T, [{**KEY, "a": random.randrange(4)}], op=random.choice((Op.UPDATE, Op.DELETE)), first=position)
                position += 1
                for holds in (plain, settled):
                    holds.forget(change)
            else:
                sent = [
                    {"a": random.randrange(4), "b": "x", "v": f"v{position}", "w": f"w{position}"}
                    for _ in range(random.randrange(1, 4))
                ]
                flags = {name: np.array([random.random() < 0.5 for _ in sent]) for name in ("v", "w")}
                rows = batch(T, sent, first=position)
                rows = rows.set_column(0, rows.schema.field(0), pa.array([position] * len(sent), pa.int64()))
                for holds in (plain, settled):
                    holds.add(rows, flags)
            if random.random() < 0.7:
                settled.settle()
        chunk = [batch(T, [{"a": a, "b": "x", "v": f"chunk {a}", "w": f"chunk {a}"} for a in range(4)])]
        assert len(settled) <= len(plain)
        assert values(settled.complete(chunk)[0]) == values(plain.complete(chunk)[0])
        assert (len(settled), len(plain)) == (0, 0)
