"""A reader that takes its time, as the continuous audit does: the files of its snapshot stay until it has done, whoever merges and expires them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc.errors import StoreError
from cdc.model.batch import Op
from cdc.model.topic import TopicSchema
from sinks.sparksession import jvm_thread_s
from sinks.warehouse import Warehouse, upkeep
from sinks.warehouse.names import STAGING
from tests.contract.rows import ORDERS, batch, order
from tests.integration.spark.test_warehouse import Shop
from tests.logs import cut

SCHEMA = TopicSchema.of(ORDERS)
FILES = 5


@pytest.fixture
def shop(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setattr(upkeep, "_EXPIRE_EVERY_S", 0.0)
    return Shop(spark, tmp_path / "warehouse")


def commit(shop: Shop, sink: Warehouse, *changes: tuple[Op, int]) -> None:
    at = shop.log.head.position
    sink.apply(batch(ORDERS, [(op, at + 1 + n, order(key)) for n, (op, key) in enumerate(changes)]))
    sink.commit(cut(at + len(changes)))


def filled(shop: Shop) -> Warehouse:
    """Several files, and in a single one the vectors of two of them."""
    sink = shop.sink(compact_files=50, keep_snapshots_s=0)
    for first in range(0, 3 * FILES, 3):
        commit(shop, sink, *((Op.INSERT, key) for key in range(first, first + 3)))
    commit(shop, sink, (Op.DELETE, 4), (Op.DELETE, 7))
    return sink


def ids(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return sorted(int(key) for one in batches for key in one.column("id").to_pylist())


def scanned_while_everything_is_replaced(shop: Shop, sink: Warehouse, *, pinned: bool) -> list[int]:
    """What a reader sees whose files have all been merged after its first rows, by a writer that expires what nobody reads."""
    data = shop.folder / "public" / "orders" / "data"
    with closing(shop.sink(reads=True)) as reader:
        scan = reader.scan(SCHEMA)
        found = ids(iter([next(scan)]))
        before = set(data.iterdir())
        sink.close()
        merging = shop.sink(compact_files=2, keep_snapshots_s=0)
        for key in range(100, 106):
            commit(shop, merging, (Op.INSERT, key), (Op.DELETE, key - 100))
        assert bool(before & set(data.iterdir())) is pinned
        assert ids(merging.scan(SCHEMA)) == [key for key in (*range(6, 3 * FILES), *range(100, 106)) if key != 7]
        rest = ids(scan)
        commit(shop, merging, (Op.INSERT, 200))
        assert not before & set(data.iterdir()), "what is read no longer is not kept"
        merging.close()
        return sorted([*found, *rest])


def test_a_slow_reader_sees_one_snapshot_to_its_end(shop: Shop) -> None:
    found = scanned_while_everything_is_replaced(shop, filled(shop), pinned=True)
    assert found == [key for key in range(3 * FILES) if key not in (4, 7)]
    staging = shop.folder / STAGING / shop.name
    assert [path for path in staging.rglob("*") if path.is_file() and path.name != ".lock"] == [], "pins are left"


def test_where_nothing_can_be_pinned_a_slow_reader_does_not_get_fewer_rows(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    sink = filled(shop)
    monkeypatch.setattr(Path, "touch", refused)
    with closing(shop.sink(reads=True)) as reader:
        assert len(ids(reader.scan(SCHEMA))) == 3 * FILES - 2
    with pytest.raises(StoreError) as caught:
        scanned_while_everything_is_replaced(shop, sink, pinned=False)
    assert caught.value.retryable


def test_what_the_jvm_does_for_a_thread_is_that_threads(shop: Shop) -> None:
    sink = filled(shop)
    used: list[float] = []

    def read() -> None:
        before = jvm_thread_s()
        for _ in range(10):
            with closing(shop.sink(reads=True)) as reader:
                ids(reader.scan(SCHEMA))
        used.append(jvm_thread_s() - before)

    before = jvm_thread_s()
    thread = threading.Thread(target=read)
    thread.start()
    thread.join()
    asked = jvm_thread_s() - before
    assert used[0] > 0.002
    assert asked < used[0] / 2, "only the question itself is of this thread"
    sink.close()
