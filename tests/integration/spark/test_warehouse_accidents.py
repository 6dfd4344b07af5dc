"""What leaves a commit into the warehouse when the disk, Iceberg or the JVM fails in any of its calls: an error of ours that is tried again."""

from __future__ import annotations

import errno
import io
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from py4j.java_gateway import JavaMember
from py4j.protocol import Py4JJavaError, Py4JNetworkError

from cdc.errors import StoreError
from cdc.model.batch import Op
from cdc.model.pgtypes import INT4, TEXT
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from sinks.warehouse import Warehouse
from tests.contract.rows import ORDERS, batch, order, upserts
from tests.integration.spark.test_warehouse import Shop
from tests.logs import cut

TWINS: Final = Table(
    16409,
    "public",
    "twins",
    (Column("v", TEXT, -1, "text", key=True), Column("w", INT4, -1, "int4", key=True)),
    identity="f",
)
"""As a table without a key under REPLICA IDENTITY FULL: all columns tell its rows apart."""
SAMPLES: Final = int(os.environ.get("HEADWATER_ACCIDENTS", "8"))
"""How many of a commit's calls fail in one test, each in a commit of its own."""

Call = Callable[..., Any]


class Failing:
    """Fails the one call with the number ``at``, once; counts calls otherwise."""

    def __init__(self, at: int | None, error: Callable[[], BaseException], *, done: bool = False) -> None:
        self.calls = 0
        self._at = at
        self._error = error
        self._done = done

    def around(self, real: Call, counts: Callable[..., bool] = lambda *_: True) -> Call:
        def call(*given: Any, **named: Any) -> Any:
            if not counts(*given):
                return real(*given, **named)
            self.calls += 1
            if self.calls - 1 != self._at:
                return real(*given, **named)
            if self._done:
                real(*given, **named)
            raise self._error()

        return call


class Life:
    """A shop's warehouse through many commits of deletes and updates, of which any may fail."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self.shop = Shop(spark, folder)
        self.position = 0
        self.number = 0
        self.rows: set[tuple[str, str]] = set()
        self.seen: set[tuple[str, str]] = set()

    def sink(self) -> Warehouse:
        return self.shop.sink(compact_files=3, keep_snapshots_s=0)

    def changes(self) -> pa.RecordBatch:
        """Two rows come; of the two before, one goes and the other becomes another."""
        n, p = self.number, self.position
        old = [("deleted", str(n - 1)), ("changed", str(n - 1))] if n else []
        new = [("deleted", str(n)), ("changed", str(n))]
        found = [(Op.DELETE, row) for row in old] + ([(Op.INSERT, ("kept", str(n)))] if n else [])
        found += [(Op.INSERT, row) for row in new]
        self.number += 1
        self.position += len(found)
        self.rows = {*self.rows.difference(old), *(row for op, row in found if op == Op.INSERT)}
        self.seen |= self.rows
        return batch(TWINS, [(op, p + i + 1, {"v": row[0], "w": row[1]}) for i, (op, row) in enumerate(found)])

    def step(self) -> Callable[[], None]:
        """The next changes stand in the log and wait for the commit that is returned."""
        sink = self.sink()
        sink.apply(self.changes())
        # What leaves nothing to write: the mark alone goes into that table.
        self.position += 1
        self.shop.log.put(upserts(ORDERS, self.position, [order(self.position)]))
        sink._tables.upkeep[TWINS.qualified]._expired_at = float("-inf")
        return lambda: sink.commit(cut(self.position))

    def check(self) -> None:
        """Opened again, the warehouse takes what it lacks, and holds each row once."""
        again = self.sink()
        if again.applied() != cut(self.position):
            for changes in self.shop.log.reader().read(TWINS.qualified, again.held(TWINS.qualified), self.shop.log.head.position):
                again.apply(changes)
            again.commit(cut(self.position))
        keys = pa.RecordBatch.from_pylist([{"v": v, "w": w} for v, w in sorted(self.seen)])
        assert sorted((row["v"], row["w"]) for row in again.fetch(TopicSchema.of(TWINS), keys).to_pylist()) == sorted(self.rows)
        again.close()


@pytest.fixture
def life(spark: Any, tmp_path: Path) -> Life:
    life = Life(spark, tmp_path / "warehouse")
    sink = life.sink()
    sink.prepare(TopicSchema.of(TWINS))
    sink.prepare(TopicSchema.of(ORDERS))
    for _ in range(2):
        life.step()()
    return life


@contextmanager
def java(failing: Failing) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JavaMember, "__call__", failing.around(JavaMember.__call__))
        yield


@contextmanager
def disk(failing: Failing) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in ((os, "scandir"), (os, "listdir"), (os, "unlink"), (os, "stat"), (io, "open")):
            patch.setattr(owner, name, failing.around(getattr(owner, name), lambda path, *_: "warehouse" in str(path)))
        patch.setattr(os, "fsync", failing.around(os.fsync))
        for kind in (pq.ParquetWriter, pq.ParquetFile):
            patch.setattr(kind, "__init__", failing.around(kind.__init__))
        yield


def failure_of(commit: Callable[[], None]) -> StoreError | None:
    try:
        commit()
    except StoreError as refused:
        return refused
    return None


def accidents(life: Life, place: Callable[[Failing], Any], error: Callable[[], BaseException], seed: int, *, done: bool) -> None:
    counted = Failing(None, error)
    with place(counted):
        life.step()()
    rng = random.Random(seed)
    for at in sorted(rng.sample(range(counted.calls), min(SAMPLES, counted.calls))):
        commit = life.step()
        with place(Failing(at, error, done=done)):
            refused = failure_of(commit)
        assert refused is None or (refused.retryable and "the warehouse" in str(refused)), (at, refused)
        life.check()


@pytest.mark.parametrize("done", [True, False], ids=["answer lost", "not sent"])
def test_the_bridge_to_the_jvm_breaks(life: Life, seed: int, done: bool) -> None:
    accidents(life, java, lambda: Py4JNetworkError("gone"), seed, done=done)


def test_java_cannot_read_or_write(life: Life, seed: int) -> None:
    jvm = life.shop.spark._jvm
    raised = jvm.java.io.UncheckedIOException("no room", jvm.java.io.IOException("no room"))
    accidents(life, java, lambda: Py4JJavaError("no room", raised), seed, done=False)


def test_the_disk_fails(life: Life, seed: int) -> None:
    accidents(life, disk, lambda: OSError(errno.EIO, "input/output error"), seed, done=False)
