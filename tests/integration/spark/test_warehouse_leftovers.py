"""Files that failed commits have left in the warehouse: they go, and nobody's that may still be needed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.crashpoint import armed
from cdc.errors import StoreError
from cdc.model.batch import Op
from sinks.warehouse import Warehouse, leftovers
from sinks.warehouse import catalog as catalogs
from sinks.warehouse.failures import CommitConflict
from sinks.warehouse.names import STAGING
from tests.contract.rows import ORDERS, batch, order, upserts
from tests.integration.spark.test_warehouse import Shop
from tests.integration.spark.traffic import held
from tests.logs import cut

HOUR_S = 3600.0


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = time.monotonic()
        monkeypatch.setattr(leftovers, "time", SimpleNamespace(monotonic=lambda: self.now))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def shop(spark: Any, tmp_path: Path) -> Shop:
    return Shop(spark, tmp_path / "warehouse")


def data(shop: Shop) -> set[str]:
    return {path.name for path in (shop.folder / "public" / "orders" / "data").iterdir()}


def needed(shop: Shop) -> set[str]:
    rows = shop.sql("select file_path from orders.all_files")
    return {Path(row.file_path).name for row in rows}


def one_more(shop: Shop, sink: Warehouse, *gone: int) -> None:
    """A commit of one new order and of deletes."""
    at = shop.log.head.position + 1
    changes = [(Op.INSERT, at, order(at)), *((Op.DELETE, at + 1 + n, order(key)) for n, key in enumerate(gone))]
    sink.apply(batch(ORDERS, changes))
    sink.commit(cut(at + len(gone)))


def two_hours(shop: Shop, sink: Warehouse, clock: Clock) -> None:
    """Pass with commits."""
    for _ in range(12):
        clock.now += HOUR_S / 6
        one_more(shop, sink)


def again(shop: Shop, **options: Any) -> Warehouse:
    """Another process, as far as the warehouse sees."""
    sink = shop.sink(**options)
    if shop.log.head.position > sink.applied().position:
        for changes in shop.log.reader().read(ORDERS.qualified, sink.held(ORDERS.qualified), shop.log.head.position):
            sink.apply(changes)
        sink.commit(shop.log.head)
    return sink


def failed(shop: Shop, sink: Warehouse, point: str = "warehouse.files_written") -> set[str]:
    """The files that a commit has left which failed there."""
    before = data(shop)
    with armed(f"{point}=error"), pytest.raises(StoreError):
        one_more(shop, sink, 1)
    left = data(shop) - before
    assert left
    return left


@pytest.mark.parametrize("point", ["warehouse.files_written", "warehouse.vectors_written"])
def test_files_of_a_commit_that_failed_go(shop: Shop, clock: Clock, point: str) -> None:
    sink = shop.sink(compact_files=3, keep_snapshots_s=0)
    for gone in ((), (), ()):
        one_more(shop, sink, *gone)
    left = failed(shop, sink, point)
    sink.close()
    sink = again(shop, compact_files=3)
    assert left <= data(shop), "a commit may outlive its process for a moment"
    two_hours(shop, sink, clock)
    assert not left & data(shop)
    assert data(shop) >= needed(shop)
    assert {int(row["id"]) for row in held(sink, ORDERS)} >= {2, 3, 4}
    assert len(held(sink, ORDERS)) == 15


def test_files_of_somebody_who_has_only_stopped_stay_until_he_is_gone(shop: Shop, clock: Clock) -> None:
    """A writer whose lease has passed to another may yet commit what it has written."""
    stopped = shop.sink()
    one_more(shop, stopped)
    left = failed(shop, stopped)
    sink = again(shop)
    two_hours(shop, sink, clock)
    assert left <= data(shop)
    stopped.close()
    two_hours(shop, sink, clock)
    assert not left & data(shop)
    assert data(shop) >= needed(shop)


LOCKED = """
import sys
from pathlib import Path
from sinks.warehouse.scratch import Scratch
scratch = Scratch(Path(sys.argv[1]))
scratch.folder()
print(scratch.owner, flush=True)
sys.stdin.read()
"""


def test_files_of_a_process_that_was_killed_go(shop: Shop, clock: Clock) -> None:
    sink = shop.sink()
    one_more(shop, sink)
    home = str(shop.folder / STAGING / shop.name)
    root = Path(__file__).parents[3]
    with subprocess.Popen([sys.executable, "-c", LOCKED, home], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root) as other:
        assert other.stdout is not None
        owner = other.stdout.readline().decode().strip()
        file = shop.folder / "public/orders/data" / f"{owner}-{'0' * 32}.parquet"
        file.write_text("written by half")
        two_hours(shop, sink, clock)
        assert file.exists()
        other.kill()
    two_hours(shop, sink, clock)
    assert not file.exists()


def test_files_that_another_has_put_there_stay(shop: Shop, clock: Clock) -> None:
    sink = shop.sink()
    one_more(shop, sink)
    folder = shop.folder / "public/orders/data"
    names = {f"00000-0-{'a' * 32}-0-00001.parquet", f"{'a' * 32}.parquet", f"{'a' * 32}-{'b' * 32}.csv", "notes.txt"}
    for name in names:
        (folder / name).write_text("hers")
    two_hours(shop, sink, clock)
    assert names <= data(shop)


@pytest.mark.parametrize("how", ["tag", "branch", "snapshot"])
def test_a_file_that_any_snapshot_needs_stays(shop: Shop, clock: Clock, how: str) -> None:
    first = shop.sink()
    one_more(shop, first)
    one_more(shop, first)
    kept = data(shop)
    snapshot = shop.sql("select snapshot_id from orders.snapshots order by committed_at desc limit 1")[0].snapshot_id
    if how != "snapshot":
        shop.sql(f"alter table orders create {how} hers as of version {snapshot}")
    first.close()
    sink = again(shop, keep_snapshots_s=0 if how != "snapshot" else 10**6)
    sink.apply(batch(ORDERS, [(Op.TRUNCATE, 3, {}), (Op.INSERT, 4, order(4))][:1]))
    sink.apply(upserts(ORDERS, 4, [order(4)]))
    sink.commit(cut(4))
    sink._tables.places[ORDERS.qualified].iceberg.expire(2**60 if how != "snapshot" else 0)
    two_hours(shop, sink, clock)
    assert kept <= data(shop)
    version = f"'{'hers'}'" if how != "snapshot" else snapshot
    assert len(shop.sql(f"select * from orders version as of {version}")) == 2
    if how != "snapshot":
        shop.sql(f"alter table orders drop {how} hers")
        sink._tables.places[ORDERS.qualified].iceberg.expire(2**60)
        assert not kept & data(shop)


def test_a_writer_whose_lease_has_passed_on_removes_nothing(shop: Shop, clock: Clock) -> None:
    sink = shop.sink()
    one_more(shop, sink)
    left = failed(shop, sink)
    sink.close()
    late = again(shop)
    mine = late._tables.upkeep[ORDERS.qualified]._leftovers
    sink = again(shop)
    one_more(shop, sink)
    late._tables.places[ORDERS.qualified].mark = sink._tables.places[ORDERS.qualified].mark
    for _ in range(12):
        clock.now += HOUR_S / 6
        mine.remove(late._opened_epoch())
    assert left <= data(shop)
    two_hours(shop, sink, clock)
    assert not left & data(shop)


@pytest.mark.parametrize("merging", [False, True])
def test_what_a_commit_in_conflict_has_written_goes_at_once(shop: Shop, monkeypatch: pytest.MonkeyPatch, merging: bool) -> None:
    sink = shop.sink(compact_files=3 if merging else 16)
    sink.apply(upserts(ORDERS, 1, [order(1), order(2)]))
    sink.commit(cut(2))
    one_more(shop, sink)
    real, met = catalogs.IcebergTable.commit, []

    def conflict(self: Any, pending: Any, changes: Any, *more: Any) -> None:
        if changes.rewrite == merging and not met:
            met.append(self)
            raise CommitConflict
        real(self, pending, changes, *more)

    monkeypatch.setattr(catalogs.IcebergTable, "commit", conflict)
    one_more(shop, sink, 1)
    assert met
    assert data(shop) == needed(shop)
    assert len(held(sink, ORDERS)) == 3
