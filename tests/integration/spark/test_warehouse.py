"""The warehouse on real Iceberg, read back by Spark: replays, crashes at every step of a commit, other writers, evolving tables."""

from __future__ import annotations

import dataclasses
import errno
import gzip
import json
import os
import random
import re
import shutil
import threading
import uuid
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from py4j.java_gateway import JavaMember
from py4j.protocol import Py4JNetworkError

from cdc.crashpoint import armed
from cdc.errors import Stopped, StopState, StoreError
from cdc.model.batch import Op
from cdc.model.pgtypes import INT4, INT8, NUMERIC, TEXT
from cdc.model.position import ZERO_CUT, Cut
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from sinks.memory import MemorySink
from sinks.memory import Options as TwinOptions
from sinks.sparksession import use_session
from sinks.warehouse import Options, Warehouse, make, upkeep, versions
from sinks.warehouse import catalog as catalogs
from sinks.warehouse.erasure import tables_in
from sinks.warehouse.failures import CommitUnknown
from sinks.warehouse.ledger import WarehouseLedger
from sinks.warehouse.names import LEDGERS, STAGING
from tests.contract.rows import NUMBERED, ORDERS, PAIRS, Row, batch, numeric, order, schema, upserts
from tests.integration.spark.traffic import held
from tests.logs import EMPTY, LooseLog, cut


class Fed(Warehouse):
    """What is fed to it stands in the log first, as it does in the product."""

    log: LooseLog

    def apply(self, changes: Any) -> Any:
        self.log.put(changes)
        return super().apply(changes)

    def commit(self, cut: Cut) -> None:
        self.log.reach(cut)
        super().commit(cut)


class Shop:
    """One warehouse folder; ``sink()`` opens a sink on it, as a restarted process would."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.name = f"wh{uuid.uuid4().hex[:8]}"
        self.log = LooseLog()
        self.epoch = 0
        use_session(lambda: spark)
        self.catalog = f"headwater_{self.name}"
        for key, value in {
            "": "org.apache.iceberg.spark.SparkCatalog",
            ".type": "hadoop",
            ".warehouse": folder,
            ".cache-enabled": "false",
        }.items():
            spark.conf.set(f"spark.sql.catalog.{self.catalog}{key}", str(value))

    def sink(self, *, reads: bool = False, **options: Any) -> Warehouse:
        made = Fed(self.name, Options(kind="iceberg", path=self.folder, **options))
        made.log = self.log
        self.epoch += not reads
        made.open(self.log.reader(), None if reads else self.epoch)
        return made

    def sink_unopened(self) -> Warehouse:
        made = Fed(self.name, Options(kind="iceberg", path=self.folder))
        made.log = self.log
        return made

    def sql(self, text: str) -> list[Any]:
        """``orders`` stands for the table, ``catalog`` for the catalog."""
        rows: list[Any] = self.spark.sql(
            re.sub(r"(?<!public\.)\borders\b", f"{self.catalog}.public.orders", text).replace("catalog.", f"{self.catalog}.")
        ).collect()
        return rows


@pytest.fixture
def shop(spark: Any, tmp_path: Path) -> Shop:
    return Shop(spark, tmp_path / "warehouse")


def test_a_table_with_columns_named_like_icebergs_own_is_read_back(shop: Shop) -> None:
    own = ("_file", "_pos", "_deleted", "_partition", "_spec_id", "_row_id", "_last_updated_sequence_number", "_change_type")
    table = dataclasses.replace(ORDERS, columns=(*ORDERS.columns, *(Column(name, INT4) for name in own)))
    row = order(1, **dict.fromkeys(own, "7"))
    sink = shop.sink()
    sink.prepare(TopicSchema.of(table))
    sink.apply(upserts(table, 1, [row, order(2, **dict.fromkeys(own, "8"))]))
    sink.commit(cut(2))
    sink.apply(batch(table, [(Op.DELETE, 3, order(2))]))
    sink.commit(cut(3))
    assert held(sink, table) == [row]
    assert shop.sql("select count(_pos__2) from orders")[0][0] == 1


def test_random_changes_with_restarts_replays_and_compaction(shop: Shop, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    twin = MemorySink(f"twin-{tmp_path}", TwinOptions(kind="memory"))
    twin.open(EMPTY, 1)
    sink = shop.sink(compact_files=4, staged_bytes=2_000)
    position, unsure = 0, []
    for step in range(24):
        table = chance.choice((ORDERS, PAIRS))
        changes = []
        for _ in range(chance.randint(1, 30)):
            position += 1
            op = chance.choice((Op.INSERT, Op.UPDATE, Op.UPDATE, Op.DELETE))
            key = chance.randrange(60)
            row = order(key, f"p{position}") if table is ORDERS else {"a": str(key % 7), "b": str(key // 7), "v": f"p{position}"}
            changes.append((op, position, row))
        batches = [batch(table, changes)]
        if chance.random() < 0.05:
            position += 1
            batches.append(batch(table, [(Op.TRUNCATE, position, {})]))
        for one in batches:
            twin.apply(one)
            sink.apply(one)
            unsure.append(one)
        if chance.random() < 0.7:
            sink.commit(cut(position))
            twin.commit(cut(position))
            if chance.random() < 0.8:
                unsure = unsure[-2:]
        if chance.random() < 0.1:
            sink = shop.sink(compact_files=4)
            for one in unsure:
                sink.apply(one)
        if step % 8 == 7:
            sink.commit(cut(position))
            for table in (ORDERS, PAIRS):
                sink.prepare(TopicSchema.of(table))
                assert held(sink, table) == held(twin, table)
                keys = twin.fetch(TopicSchema.of(table), _keys(table, held(twin, table)[:5]))
                assert _sorted(sink.fetch(TopicSchema.of(table), _keys(table, held(twin, table)[:5])), table) == _sorted(
                    keys, table
                )


def _keys(table: Table, rows: list[dict[str, Any]]) -> Any:
    import pyarrow as pa

    return pa.RecordBatch.from_pydict(
        {column.name: pa.array([row[column.name] for row in rows], pa.utf8()) for column in table.key}
    )


def _sorted(rows: Any, table: Table) -> list[dict[str, Any]]:
    return sorted(rows.to_pylist(), key=lambda row: [str(row[column.name]) for column in table.key])


def test_position_and_lsn_are_in_the_snapshot_that_holds_the_rows(shop: Shop) -> None:
    sink = shop.sink()
    sink.apply(upserts(ORDERS, 1, [order(1), order(2)]))
    sink.commit(cut(2))
    (summary,) = (row.summary for row in shop.sql("select summary from orders.snapshots"))
    assert (summary["headwater.position"], summary["headwater.commit-lsn"], summary["headwater.store"]) == ("2", "20", shop.name)
    sink.commit(cut(7))  # nothing of this table: no snapshot, no commit of it
    assert len(shop.sql("select * from orders.snapshots")) == 1
    assert shop.sink().applied() == cut(7)


def test_a_store_is_read_in_the_folder_where_it_is(spark: Any, tmp_path: Path) -> None:
    """Spark remembers a catalog, with its folder, by the catalog's name."""
    use_session(lambda: spark)
    name = f"wh{uuid.uuid4().hex[:8]}"
    for number in (1, 2):
        sink = make(name, Options(kind="iceberg", path=tmp_path / f"folder {number}"))
        sink.open(EMPTY, 1)
        sink.apply(upserts(ORDERS, 1, [order(number)]))
        sink.commit(cut(1))
        assert [row["id"] for row in held(sink, ORDERS)] == [str(number)]
        sink.close()


def test_one_commit_a_table_whatever_the_mix(shop: Shop) -> None:
    sink = shop.sink()
    sink.apply(upserts(ORDERS, 1, [order(key) for key in range(20)]))
    sink.commit(cut(20))
    sink.apply(batch(ORDERS, [(Op.UPDATE, 21, order(1, "x")), (Op.DELETE, 22, order(2)), (Op.INSERT, 23, order(99))]))
    sink.commit(cut(23))
    assert len(shop.sql("select * from orders.snapshots")) == 2
    assert [row.id for row in shop.sql("select id from orders where status = 'x' or id >= 19 or id = 2 order by id")] == [1, 19, 99]


def test_a_crash_between_the_table_and_the_ledger_is_replayed_without_a_trace(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = shop.sink()
    keyless = dataclasses.replace(
        ORDERS, name="events", columns=tuple(dataclasses.replace(c, key=False) for c in ORDERS.columns), identity="n"
    )
    changes = [upserts(ORDERS, 1, [order(1), order(2)]), upserts(keyless, 3, [order(1), order(1)])]
    for one in changes:
        sink.apply(one)
    monkeypatch.setattr(WarehouseLedger, "record", _crash)
    with pytest.raises(KeyboardInterrupt):
        sink.commit(cut(4))
    monkeypatch.undo()
    again = shop.sink()
    assert again.applied() == ZERO_CUT
    for one in changes:
        again.prepare(TopicSchema.of(catalogs_table(one)))
        assert again.apply(one).stale == one.num_rows
    again.commit(cut(4))
    assert len(held(again, keyless)) == 2
    assert len(shop.sql("select * from orders.snapshots")) == 1


def catalogs_table(changes: Any) -> Table:
    from cdc.model.batch import table_of

    return table_of(changes.schema)


def _crash(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("happened", [True, False])
def test_a_commit_of_unknown_state_is_looked_for_first(shop: Shop, monkeypatch: pytest.MonkeyPatch, happened: bool) -> None:
    sink = shop.sink()
    sink.apply(upserts(ORDERS, 1, [order(1)]))
    sink.commit(cut(1))
    sink.apply(batch(ORDERS, [(Op.UPDATE, 2, order(1, "new")), (Op.INSERT, 3, order(2))]))
    real = catalogs.IcebergTable.commit

    def unsure(self: Any, *arguments: Any) -> None:
        if happened:
            real(self, *arguments)
        raise CommitUnknown

    monkeypatch.setattr(catalogs.IcebergTable, "commit", unsure)
    if happened:
        sink.commit(cut(3))
    else:
        with pytest.raises(StoreError) as refused:
            sink.commit(cut(3))
        assert refused.value.retryable
        monkeypatch.undo()
        sink = shop.sink()
        assert sink.applied() == cut(1)
        sink.apply(batch(ORDERS, [(Op.UPDATE, 2, order(1, "new")), (Op.INSERT, 3, order(2))]))
        sink.commit(cut(3))
    monkeypatch.undo()
    assert held(sink, ORDERS) == [order(1, "new"), order(2)]
    assert len(shop.sql("select * from orders.snapshots")) == 2


def test_a_commit_that_finds_the_table_changed_under_it_is_tried_again(
    shop: Shop, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a copy was put in the table's place in the middle of it."""
    sink = shop.sink()
    sink.apply(upserts(ORDERS, 1, [order(1)]))
    sink.commit(cut(1))
    sink.apply(batch(ORDERS, [(Op.INSERT, 2, order(2))]))
    out_of_step = spark._jvm.java.util.ArrayList().iterator()
    monkeypatch.setattr(catalogs.IcebergTable, "_update", lambda *_: out_of_step.remove())  # raises IllegalStateException
    with pytest.raises(StoreError) as refused:
        sink.commit(cut(2))
    assert refused.value.retryable
    monkeypatch.undo()
    sink = shop.sink()
    sink.apply(batch(ORDERS, [(Op.INSERT, 2, order(2))]))
    sink.commit(cut(2))
    assert held(sink, ORDERS) == [order(1), order(2)]


def test_other_writers_deletes_and_rewrites_are_kept(shop: Shop) -> None:
    """Somebody cleans up with Spark between our commits: their deletion vectors (run containers among them) are read and grown."""
    sink = shop.sink()
    sink.apply(upserts(ORDERS, 1, [order(key) for key in range(20_000)]))
    sink.commit(cut(20_000))
    shop.sql("delete from orders where id between 5000 and 15000 or id % 1000 = 7")
    sink.apply(
        batch(ORDERS, [(Op.DELETE, 20_001, order(3)), (Op.UPDATE, 20_002, order(6000, "back")), (Op.UPDATE, 20_003, order(4, "x"))])
    )
    sink.commit(cut(20_003))
    kept = {key for key in range(20_000) if not (5000 <= key <= 15000 or key % 1000 == 7)} - {3} | {6000}
    assert {int(row["id"]) for row in held(sink, ORDERS)} == kept
    shop.sql("call catalog.system.rewrite_data_files(table => 'public.orders', options => map('rewrite-all', 'true'))")
    sink.apply(batch(ORDERS, [(Op.DELETE, 20_004, order(4)), (Op.INSERT, 20_005, order(3))]))
    sink.commit(cut(20_005))
    assert {int(row["id"]) for row in held(sink, ORDERS)} == kept - {4} | {3}


def test_a_writer_in_between_makes_the_commit_look_again(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = shop.sink()
    sink.apply(upserts(ORDERS, 1, [order(key) for key in range(10)]))
    sink.commit(cut(10))
    real, interfered = catalogs.IcebergTable.commit, []

    def late(self: Any, *arguments: Any) -> None:
        if not interfered:
            interfered.append(shop.sql("delete from orders where id = 5"))
        real(self, *arguments)

    monkeypatch.setattr(catalogs.IcebergTable, "commit", late)
    sink.apply(batch(ORDERS, [(Op.UPDATE, 11, order(4, "x")), (Op.UPDATE, 12, order(6, "x"))]))
    sink.commit(cut(12))
    assert [int(row["id"]) for row in held(sink, ORDERS)] == [0, 1, 2, 3, 4, 6, 7, 8, 9]


def test_a_rollback_to_a_rewrite_by_others_is_noticed_although_the_commit_before_it_has_expired(shop: Shop) -> None:
    """Such a snapshot says nothing of itself, and the table's properties speak of what it was rolled back from."""
    sink = shop.sink()
    for number in (1, 2):
        sink.apply(upserts(ORDERS, number, [order(number)]))
        sink.commit(cut(number))
    shop.sql("call catalog.system.rewrite_data_files(table => 'public.orders', options => map('rewrite-all', 'true'))")
    theirs = shop.sql("select snapshot_id from orders.snapshots order by committed_at desc")[0].snapshot_id
    sink.apply(batch(ORDERS, [(Op.UPDATE, 3, order(1, "x")), (Op.DELETE, 4, order(2))]))
    sink.commit(cut(4))
    sink._tables.places[ORDERS.qualified].iceberg.expire(2**60)
    assert len(shop.sql("select * from orders.snapshots")) == 2
    assert sink.applied() == shop.sink(reads=True).applied() == cut(4)
    shop.sql(f"call catalog.system.rollback_to_snapshot('public.orders', {theirs})")
    assert sink.applied() != cut(4)
    assert shop.sink(reads=True).applied() != cut(4)
    sink = shop.sink()
    for changes in shop.log.reader().read(ORDERS.qualified, sink.held(ORDERS.qualified), shop.log.head.position):
        sink.apply(changes)
    sink.commit(shop.log.head)
    assert held(sink, ORDERS) == [order(1, "x")]


@pytest.mark.parametrize("times", [1, 2])
def test_a_rewrite_by_others_who_expire_what_was_before_it_changes_nothing(shop: Shop, times: int) -> None:
    sink = shop.sink()
    for number in (1, 2):
        sink.apply(upserts(ORDERS, number, [order(number)]))
        sink.commit(cut(number))
    for _ in range(times):
        shop.sql("call catalog.system.rewrite_data_files(table => 'public.orders', options => map('rewrite-all', 'true'))")
    shop.sql(
        "call catalog.system.expire_snapshots(table => 'public.orders', older_than => timestamp '2999-01-01', retain_last => 1)"
    )
    assert len(shop.sql("select * from orders.snapshots")) == 1
    assert sink.applied() == shop.sink(reads=True).applied() == cut(2)
    sink.apply(batch(ORDERS, [(Op.UPDATE, 3, order(1, "x"))]))
    sink.commit(cut(3))
    assert _by_id(held(sink, ORDERS)) == [order(1, "x"), order(2)]


@pytest.mark.parametrize("rows", [True, False], ids=["rows", "a mark alone"])
def test_a_table_that_is_rolled_back_in_the_middle_of_a_commit_is_filled_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, *, rows: bool
) -> None:
    """Iceberg calls it an illegal argument that the commit goes out from a snapshot that is no longer of the table's past."""
    sink = shop.sink()
    for number in (1, 2):
        sink.apply(upserts(ORDERS, number, [order(number)]))
        sink.commit(cut(number))
    first = shop.sql("select snapshot_id from orders.snapshots order by committed_at")[0].snapshot_id
    real, interfered = catalogs.IcebergTable.commit, []

    def late(self: Any, *arguments: Any) -> None:
        if not interfered:
            interfered.append(shop.sql(f"call catalog.system.rollback_to_snapshot('public.orders', {first})"))
        real(self, *arguments)

    changes = batch(ORDERS, [(Op.UPDATE, 3, order(2, "x"))])
    if rows:
        sink.apply(changes)
    else:
        shop.log.put(changes)  # a change that leaves nothing to write
    with monkeypatch.context() as patch:
        patch.setattr(catalogs.IcebergTable, "commit", late)
        with pytest.raises(StoreError) as failed:
            sink.commit(cut(3))
    assert interfered
    assert failed.value.retryable
    sink = shop.sink()
    for changes in shop.log.reader().read(ORDERS.qualified, sink.held(ORDERS.qualified), shop.log.head.position):
        sink.apply(changes)
    sink.commit(shop.log.head)
    assert held(sink, ORDERS) == [order(1), order(2, "x")]


@pytest.mark.parametrize("keys", [[4], [4, 5], list(range(10))], ids=["a vector", "a longer vector", "a whole file"])
@pytest.mark.parametrize("who", ["somebody with Spark", "a writer of ours that was thought dead"])
def test_files_that_are_merged_in_between_make_the_commit_look_again(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, who: str, keys: list[int]
) -> None:
    """What the commit marks as gone is in another file by now."""
    late, sink = _two_writers_of_two_files(shop, hole=len(keys) == 2)
    real, interfered = catalogs.IcebergTable.commit, []

    def between(self: Any, *arguments: Any) -> None:
        if not interfered:
            interfered.append(who)
            if who == "somebody with Spark":
                shop.sql("call catalog.system.rewrite_data_files(table => 'public.orders', options => map('rewrite-all', 'true'))")
            else:
                late._tables.upkeep[ORDERS.qualified].after_commit(late._signed(late._applied))
        real(self, *arguments)

    monkeypatch.setattr(catalogs.IcebergTable, "commit", between)
    changes = [(Op.UPDATE, 22 + at, order(key, "x")) for at, key in enumerate(keys)]
    sink.apply(batch(ORDERS, changes))
    with suppress(StoreError):
        sink.commit(cut(21 + len(keys)))
    assert interfered
    sink = shop.sink()
    if sink.applied() != cut(21 + len(keys)):
        sink.apply(batch(ORDERS, changes))
        sink.commit(cut(21 + len(keys)))
    wanted = [order(key, *(["x"] if key in keys else [])) for key in range(20) if len(keys) != 2 or key != 7]
    assert _by_id(held(sink, ORDERS)) == _by_id(wanted)


@pytest.mark.parametrize("keys", [[4], [4, 5], list(range(10))], ids=["a vector", "a longer vector", "a whole file"])
def test_a_merge_takes_no_row_back_that_has_gone_in_between(shop: Shop, monkeypatch: pytest.MonkeyPatch, keys: list[int]) -> None:
    """A writer of ours that was thought dead wakes up in the middle of a merge."""
    late, sink = _two_writers_of_two_files(shop, hole=len(keys) == 2)
    changes = [(Op.UPDATE, 22 + at, order(key, "x")) for at, key in enumerate(keys)]
    sink.apply(batch(ORDERS, changes))
    real, merging = catalogs.IcebergTable.commit, []

    def between(self: Any, *arguments: Any) -> None:
        if not merging:
            merging.append(self)
            sink.commit(cut(21 + len(keys)))
        real(self, *arguments)

    monkeypatch.setattr(catalogs.IcebergTable, "commit", between)
    with suppress(StoreError):
        late._tables.upkeep[ORDERS.qualified].after_commit(late._signed(late._applied))
    assert merging
    assert sink.applied() == shop.sink().applied() == cut(21 + len(keys))
    wanted = [order(key, *(["x"] if key in keys else [])) for key in range(20) if len(keys) != 2 or key != 7]
    assert _by_id(held(sink, ORDERS)) == _by_id(wanted)


def test_files_that_another_has_merged_are_not_merged_again(shop: Shop) -> None:
    """Upkeep knows which files there are from the commit before it."""
    late, _ = _two_writers_of_two_files(shop, hole=False)
    assert len(late._tables.places[ORDERS.qualified].live()) == 2
    other = shop.sink(compact_files=2)
    other._tables.upkeep[ORDERS.qualified].after_commit(other._signed(other._applied))
    (merged,) = other._tables.places[ORDERS.qualified].live()
    files = sorted((shop.folder / "public/orders/data").iterdir())
    late._tables.upkeep[ORDERS.qualified].after_commit(late._signed(late._applied))
    assert sorted((shop.folder / "public/orders/data").iterdir()) == files, "nothing was written"
    assert set(shop.sink(reads=True)._tables.places[ORDERS.qualified].live()) == {merged}


@pytest.mark.parametrize("when", ["before it is read", "before it is committed"])
def test_files_that_another_has_merged_and_removed_leave_upkeep_for_later(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    late, _ = _two_writers_of_two_files(shop, hole=False)
    other = shop.sink(compact_files=2)
    real, interfered = upkeep.merged, []

    def between(place: Any, chosen: Any) -> Any:
        if interfered:
            return real(place, chosen)
        interfered.append(when)
        written = None if when == "before it is read" else real(place, chosen)
        other._tables.upkeep[ORDERS.qualified].after_commit(other._signed(other._applied))
        for _ in range(2):  # the last two snapshots stay
            other._tables.places[ORDERS.qualified].write((), other._signed(other._applied))
        other._tables.places[ORDERS.qualified].iceberg.expire(2**60)
        return written or real(place, chosen)

    monkeypatch.setattr(upkeep, "merged", between)
    late._tables.upkeep[ORDERS.qualified].after_commit(late._signed(late._applied))
    assert interfered
    assert _by_id(held(shop.sink(reads=True), ORDERS)) == [order(key) for key in range(20)]


def _two_writers_of_two_files(shop: Shop, *, hole: bool) -> tuple[Any, Any]:
    """A late writer that would merge the two files of ten rows each, and its successor. hole: row 7 has been deleted."""
    sink = shop.sink()
    for number in range(2):
        sink.apply(upserts(ORDERS, number * 10 + 1, [order(number * 10 + key) for key in range(10)]))
        sink.commit(cut(number * 10 + 10))
    if hole:
        sink.apply(batch(ORDERS, [(Op.DELETE, 21, order(7))]))
        sink.commit(cut(21))
    return shop.sink(compact_files=2), shop.sink()


def _by_id(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: int(row["id"] or 0))


def test_small_files_are_merged_and_rows_keep_their_lineage(shop: Shop) -> None:
    sink = shop.sink(compact_files=5, keep_snapshots_s=0)
    for number in range(1, 14):
        sink.apply(upserts(ORDERS, number, [order(number)]))
        sink.commit(cut(number))
        if number == 3:
            before = {
                row.id: (row._row_id, row.seq)
                for row in shop.sql("select id, _row_id, _last_updated_sequence_number seq from orders")
            }
    assert len(shop.sql("select * from orders.files where content = 0")) < 6
    after = {
        row.id: (row._row_id, row.seq) for row in shop.sql("select id, _row_id, _last_updated_sequence_number seq from orders")
    }
    assert {key: after[key] for key in before} == before
    assert len({row_id for row_id, _ in after.values()}) == 13
    sink._tables.places["public.orders"].iceberg.expire(2**60)
    assert len(held(sink, ORDERS)) == 13
    live = {Path(row.file_path).name for row in shop.sql("select file_path from orders.files")}
    assert {path.name for path in (shop.folder / "public" / "orders" / "data").iterdir() if not path.name.startswith(".")} >= live


def test_a_file_of_vectors_stays_until_the_last_of_them_has_expired(shop: Shop) -> None:
    """One commit has deleted rows of two data files, and so has one Puffin file the vectors of both; later ones replace one after the other."""
    sink = shop.sink()
    table = sink._tables
    data = shop.folder / "public" / "orders" / "data"
    position = 0

    def commit(op: Op, *ids: int) -> set[str]:
        """Names the Puffin files that came."""
        nonlocal position
        before = set(data.glob("*.puffin"))
        sink.apply(batch(ORDERS, [(op, position + number, order(id, f"at {position}")) for number, id in enumerate(ids, 1)]))
        position += len(ids)
        sink.commit(cut(position))
        return {path.name for path in set(data.glob("*.puffin")) - before}

    def expire() -> set[str]:
        commit(Op.INSERT, 100 + position)
        commit(Op.INSERT, 100 + position)
        table.places[ORDERS.qualified].iceberg.expire(2**60)
        table.look_for_files()
        assert len(held(sink, ORDERS)) == len(shop.sql("select * from orders"))
        return {path.name for path in data.glob("*.puffin")}

    commit(Op.INSERT, *range(10))
    commit(Op.INSERT, *range(10, 20))
    [both] = commit(Op.UPDATE, 0, 10)
    commit(Op.UPDATE, 1)
    assert both in expire(), "the second data file's is in it"
    commit(Op.UPDATE, 11)
    assert both not in expire()


def test_a_last_commit_of_a_time_to_come_is_named_and_waited_for(shop: Shop) -> None:
    """As after the clock was set back: Iceberg then refuses every commit until the time of the last one has come again."""
    sink = shop.sink()
    sink.apply(upserts(ORDERS, 1, [order(1)]))
    sink.commit(cut(1))
    folder = shop.folder / "public" / "orders" / "metadata"
    number = int((folder / "version-hint.text").read_text())
    version = folder / f"v{number}.gz.metadata.json"
    written = version.read_bytes()
    later = json.loads(gzip.decompress(written))
    later["last-updated-ms"] += 3 * 3600 * 1000
    for entry in (*later["snapshots"], *later["snapshot-log"]):
        entry["timestamp-ms"] += 3 * 3600 * 1000
    version.write_bytes(gzip.compress(json.dumps(later).encode()))
    (folder / f".{version.name}.crc").unlink(missing_ok=True)
    again = shop.sink()
    again.apply(upserts(ORDERS, 2, [order(2)]))
    with pytest.raises(StoreError, match=r"clock is 3 h before the last commit of the warehouse's table public\.orders") as refused:
        again.commit(cut(2))
    assert refused.value.retryable
    version.write_bytes(written)
    last = shop.sink()
    last.apply(upserts(ORDERS, 2, [order(2)]))
    last.commit(cut(2))
    assert len(held(last, ORDERS)) == 2


def test_a_lost_table_rewinds_the_store(shop: Shop) -> None:
    sink = shop.sink()
    for number, table in ((1, ORDERS), (2, PAIRS)):
        row = order(1) if table is ORDERS else {"a": "1", "b": "2", "v": "3"}
        sink.apply(upserts(table, number, [row]))
        sink.commit(cut(number))
    sink = shop.sink()
    assert sink.applied() == cut(2)
    shop.sql("drop table orders purge")
    sink.apply(upserts(ORDERS, 3, [order(3)]))
    with pytest.raises(StoreError, match=r"public\.orders is gone") as failure:
        sink.commit(cut(3))
    assert failure.value.retryable
    with pytest.raises(StoreError, match="gone"):
        sink.applied()
    again = shop.sink()
    assert again.applied() == ZERO_CUT
    assert (again.held("public.orders"), again.held("public.pairs")) == (0, 2)
    again.apply(upserts(ORDERS, 1, [order(1)]))
    assert again.apply(upserts(PAIRS, 2, [{"a": "1", "b": "2", "v": "3"}])).stale == 1
    again.commit(cut(2))
    assert held(again, ORDERS) == [order(1)]
    assert again.applied() == cut(2)


def test_a_rolled_back_table_is_brought_forward_again(shop: Shop) -> None:
    sink = shop.sink()
    for number in (1, 2, 3):
        sink.apply(upserts(ORDERS, number, [order(number)]))
        sink.commit(cut(number))
    first = shop.sql("select snapshot_id from orders.snapshots order by committed_at")[0].snapshot_id
    shop.sql(f"call catalog.system.rollback_to_snapshot('public.orders', {first})")
    again = shop.sink()
    assert again.applied() == cut(1)
    for number in (1, 2, 3):
        again.apply(upserts(ORDERS, number, [order(number)]))
    again.commit(cut(3))
    assert held(again, ORDERS) == [order(1), order(2), order(3)]


def test_columns_come_widen_go_and_come_back(shop: Shop) -> None:
    def table(*columns: Column) -> Table:
        return Table(1, "public", "orders", (Column("id", INT4, -1, "int4", key=True), *columns))

    sink = shop.sink()
    first = table(Column("a", INT4, -1, "int4"), Column("gone", TEXT, -1, "text"), Column("n", NUMERIC, numeric(5, 2), "numeric"))
    sink.apply(
        upserts(first, 1, [{"id": "1", "a": "7", "gone": "kept", "n": "1.10"}, {"id": "2", "a": "8", "gone": None, "n": "2.20"}])
    )
    sink.commit(cut(2))
    wider = Table(
        1,
        "public",
        "orders",
        (Column("id", INT8, -1, "int8", key=True), Column("a", INT8, -1, "int8"), Column("n", NUMERIC, numeric(9, 2), "n")),
    )
    sink.apply(upserts(wider, 3, [{"id": "2", "a": str(2**40), "n": "1234567.89"}]))
    sink.commit(cut(3))
    assert held(sink, wider) == [{"id": "1", "a": "7", "n": "1.10"}, {"id": "2", "a": str(2**40), "n": "1234567.89"}]
    assert [row.gone for row in shop.sql("select gone from orders order by id")] == ["kept", None]
    texts = Table(
        1,
        "public",
        "orders",
        (Column("id", INT8, -1, "int8", key=True), Column("a", TEXT, -1, "text"), Column("gone", TEXT, -1, "text")),
    )
    sink = shop.sink()
    sink.apply(upserts(texts, 4, [{"id": "3", "a": "seven", "gone": "new"}]))
    sink.commit(cut(4))
    # What the source re-sends after such a change fills the new columns; the old values stay under another name.
    assert held(sink, texts) == [
        {"id": key, "a": a, "gone": g} for key, a, g in (("1", None, None), ("2", None, None), ("3", "seven", "new"))
    ]
    assert [row.a__2 for row in shop.sql("select a__2 from orders order by id")] == [7, 2**40, None]


def test_who_looks_seldom_still_finds_the_newest_version(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit that waits for a busy store: the version that it opened has been deleted since."""
    monkeypatch.setattr(versions, "KEPT_VERSIONS", 2)
    writer = shop.sink()
    writer.apply(upserts(ORDERS, 1, [order(1)]))
    writer.commit(cut(1))
    reader = shop.sink(reads=True)
    for position in range(2, versions.KEPT_VERSIONS + 4):
        writer.apply(upserts(ORDERS, position, [order(position)]))
        writer.commit(cut(position))
    assert reader.applied() == cut(position)
    assert len(held(reader, ORDERS)) == position
    with pytest.raises(StoreError, match="reading only"):
        reader.commit(cut(position + 1))
    again = shop.sink()
    again.apply(upserts(ORDERS, position + 1, [order(position + 1)]))
    again.commit(cut(position + 1))
    assert len(held(reader, ORDERS)) == position + 1


def test_what_a_dropped_column_could_not_hold_stays_with_it(shop: Shop) -> None:
    """Files are written again for the columns that are there; the past of those that are not goes along, also under another name."""
    sink, position = shop.sink(), 0

    def step(table: Table, *rows: Row) -> None:
        nonlocal position
        if position:
            sink.apply(schema(table, position := position + 1))
        sink.apply(upserts(table, position + 1, rows))
        position += len(rows)
        sink.commit(cut(position))

    def past(*columns: str) -> list[tuple[Any, ...]]:
        rows = shop.sql("select * from orders order by id")
        return [(*(row[name] for name in columns), row["_cdc_exact"] or {}) for row in rows]

    key, one = NUMBERED.columns[0], dataclasses.replace
    amount, rest = (
        Column(name, NUMERIC, numeric(12, 2), "numeric", attnum=number) for number, name in enumerate(("amount", "rest"), 2)
    )
    first = one(NUMBERED, columns=(key, amount, rest))
    step(first, {"id": "1", "amount": "NaN", "rest": "NaN"}, {"id": "2", "amount": "1.10", "rest": "Infinity"})
    step(one(first, columns=(key, rest)), {"id": "3", "rest": "NaN"})
    assert past("amount") == [
        (None, {"amount": "NaN", "rest": "NaN"}),
        (Decimal("1.10"), {"rest": "Infinity"}),
        (None, {"rest": "NaN"}),
    ]

    other = one(rest, name="other")
    step(one(first, columns=(key, other)))
    assert past("amount", "other")[0] == (None, None, {"amount": "NaN", "other": "NaN"})

    again = one(amount, attnum=4)
    step(one(first, columns=(key, other, again)), {"id": "4", "other": "0.10", "amount": "NaN"})
    assert past("amount__2", "amount") == [
        (None, None, {"amount__2": "NaN", "other": "NaN"}), (Decimal("1.10"), None, {"other": "Infinity"}), (None, None, {"other": "NaN"}), (None, None, {"amount": "NaN"}),
    ]  # fmt: skip
    text = one(other, type_oid=TEXT, typmod=-1)
    step(one(first, columns=(key, text, again)))
    assert past("amount__2", "other__3", "other")[0] == (None, None, "NaN", {"amount__2": "NaN", "other__3": "NaN"})
    expected = [("1", "NaN", None), ("2", "Infinity", None), ("3", "NaN", None), ("4", "0.10", "NaN")]
    rows = held(sink, one(first, columns=(key, text, again)))
    assert rows == [{"id": i, "other": o, "amount": a} for i, o, a in expected]


def test_a_key_of_another_type_and_a_table_made_anew_start_empty(shop: Shop) -> None:
    sink = shop.sink()
    sink.apply(upserts(ORDERS, 1, [order(1), order(2)]))
    sink.commit(cut(2))
    columns = (dataclasses.replace(ORDERS.columns[0], type_oid=TEXT), *ORDERS.columns[1:])
    by_text = dataclasses.replace(ORDERS, columns=columns)
    sink.apply(upserts(by_text, 3, [order(2, "text")]))
    sink.commit(cut(3))
    assert held(sink, by_text) == [order(2, "text")]
    anew = dataclasses.replace(by_text, oid=99_999)
    sink.apply(upserts(anew, 4, [order(5)]))
    sink.commit(cut(4))
    assert held(sink, anew) == [order(5)]


def test_the_key_moves_to_another_column_in_one_range(shop: Shop) -> None:
    def by(key: str) -> Table:
        columns = tuple(Column(name, INT8, -1, "int8", key=name == key) for name in ("a", "b"))
        return Table(5, "public", "orders", columns)

    sink = shop.sink()
    sink.apply(upserts(by("a"), 1, [{"a": "1", "b": "10"}, {"a": "2", "b": "20"}, {"a": "3", "b": "30"}]))
    sink.commit(cut(3))
    sink.apply(batch(by("a"), [(Op.DELETE, 4, {"a": "1"}), (Op.UPDATE, 5, {"a": "2", "b": "21"})]))
    sink.apply(batch(by("b"), [(Op.DELETE, 6, {"b": "30"}), (Op.UPDATE, 7, {"a": "5", "b": "21"})]))
    sink.commit(cut(7))
    assert held(sink, by("b")) == [{"a": "5", "b": "21"}]


def test_two_stores_do_not_share_a_table(shop: Shop) -> None:
    shop.sink().prepare(TopicSchema.of(ORDERS))
    other = make("other", Options(kind="iceberg", path=shop.folder))
    other.open(EMPTY, 1)
    with pytest.raises(StoreError) as refused:
        other.prepare(TopicSchema.of(ORDERS))
    assert not refused.value.retryable
    elsewhere = make("elsewhere", Options(kind="iceberg", path=shop.folder, namespace="second"))
    elsewhere.open(EMPTY, 1)
    elsewhere.prepare(TopicSchema.of(ORDERS))


PAIR: Row = {"a": "1", "b": "2", "v": "3"}


def filled(shop: Shop, upto: int = 4, **options: Any) -> Warehouse:
    """Orders at odd positions, pairs at even ones, a commit each."""
    sink = shop.sink(**options)
    for position in range(1, upto + 1):
        sink.apply(
            upserts(*((ORDERS, position, [order(position)]) if position % 2 else (PAIRS, position, [{**PAIR, "a": str(position)}])))
        )
        sink.commit(cut(position))
    return sink


def brought(shop: Shop, sink: Warehouse) -> None:
    """As a follower does: everything that the store lacks by its own word."""
    for table in (ORDERS, PAIRS):
        for changes in shop.log.reader().read(table.qualified, sink.held(table.qualified), shop.log.head.position):
            sink.prepare(TopicSchema.of(table))
            sink.apply(changes)
    sink.commit(shop.log.head)


class Power:
    """What of the warehouse a power cut would leave: each file that was synced, and each name in a folder that was."""

    def __init__(self, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
        self._shop = shop
        self._synced: set[str] = set()
        self._sync = os.fsync
        self.accident: tuple[str, BaseException] | None = None
        """What syncing a path that this pattern is found in ends with, once."""
        monkeypatch.setattr(os, "fsync", self._noted)

    def _noted(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if self.accident is not None and re.search(self.accident[0], str(path)):
            error, self.accident = self.accident[1], None
            raise error
        self._sync(descriptor)
        self._synced.update(map(str, path.iterdir()) if path.is_dir() else [f"content of {path}"])

    def assert_nothing_to_lose(self) -> None:
        there = self._there()
        assert [str(path) for path in there if str(path) not in self._synced] == []
        assert [path for path in map(str, filter(Path.is_file, there)) if f"content of {path}" not in self._synced] == []

    def _there(self) -> list[Path]:
        return [path for path in self._shop.folder.rglob("*") if STAGING not in path.parts and path.suffix != ".crc"]


def test_after_a_commit_nothing_of_it_can_be_lost_with_the_power(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file is synced, and each name in the folder that it is in, up to the warehouse itself: also of a table's first version, and of
    the deletion vector that is all that a commit of deletes writes."""
    power = Power(shop, monkeypatch)
    sink = shop.sink()
    for number, changes in enumerate((upserts(ORDERS, 1, [order(1), order(2)]), batch(ORDERS, [(Op.DELETE, 3, order(1))])), 2):
        sink.apply(changes)
        sink.commit(cut(number))
    assert list(shop.folder.rglob("*.puffin"))
    power.assert_nothing_to_lose()


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), OSError(errno.EIO, "input/output error")], ids=["process ends", "disk fails"]
)
@pytest.mark.parametrize(
    ("where", "upto"),
    [("/orders/metadata/", 0), ("/public$", 0), ("/orders/metadata/", 2), (f"/{LEDGERS}/", 2)],
    ids=["a new table", "a new table's folder", "a table", "the ledger"],
)
def test_what_was_committed_but_not_synced_is_synced_before_the_ledger_counts_on_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, where: str, upto: int, error: BaseException
) -> None:
    """Also where the next writer finds everything in the tables already, and has nothing to write but the ledger."""
    power = Power(shop, monkeypatch)
    sink = filled(shop, upto)
    shop.log.put(upserts(ORDERS, upto + 1, [order(upto + 1)]))
    power.accident = where, error
    with pytest.raises((KeyboardInterrupt, StoreError)):
        brought(shop, sink)
    assert power.accident is None
    again = shop.sink()
    if again.applied() == shop.log.head:
        power.assert_nothing_to_lose()
    brought(shop, again)
    power.assert_nothing_to_lose()
    assert_whole(shop)


def ends_a_commit(member: JavaMember, given: Sequence[Any]) -> bool:
    """Whether a table, and not the ledger, is given the next version in the place of the one that was seen."""
    return bool(member.name == "commit" and len(given) == 2 and "/_headwater/" not in f"{given[0].location()}/")


@pytest.mark.parametrize(("compact_files", "last"), [(16, 1), (2, 2)], ids=["rows", "merged files"])
def test_a_commit_that_is_found_to_have_happened_is_synced(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, compact_files: int, last: int
) -> None:
    """``last``: so many commits there are, and of the last one the answer is lost."""
    power = Power(shop, monkeypatch)
    sink = filled(shop, 2, compact_files=compact_files)
    call, commits = JavaMember.__call__, []

    def answer_lost(self: JavaMember, *given: Any) -> Any:
        answer = call(self, *given)
        if ends_a_commit(self, given):
            commits.append(answer)
            if len(commits) == last:
                raise Py4JNetworkError("gone")
        return answer

    monkeypatch.setattr(JavaMember, "__call__", answer_lost)
    shop.log.put(upserts(ORDERS, 3, [order(3)]))
    brought(shop, sink)
    assert len(commits) == last
    power.assert_nothing_to_lose()
    assert_whole(shop)


@pytest.mark.parametrize(
    "error", [None, KeyboardInterrupt(), OSError(errno.EIO, "input/output error")], ids=["no", "process ends", "disk fails"]
)
def test_what_has_expired_is_deleted_only_once_no_metadata_that_is_durable_names_it(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, error: BaseException | None
) -> None:
    """A power cut takes back what was not synced, and so brings back the metadata before it."""
    power = Power(shop, monkeypatch)
    sink = filled(shop, 9, compact_files=2)
    table = sink._tables.places[ORDERS.qualified].iceberg
    before = {path for path in table.location.rglob("*") if path.suffix in (".avro", ".parquet", ".puffin")}
    if error is None:
        table.expire(2**60)
        power.assert_nothing_to_lose()
        assert len(before - set(table.location.rglob("*"))) > 5
        files = {path.name for path in table.location.rglob("*")}
        assert [name for name in files if name.endswith(".avro.crc") and name[1:-4] not in files] == []
    else:
        power.accident = "/orders/metadata/", error
        with pytest.raises((KeyboardInterrupt, StoreError)):
            table.expire(2**60)
        assert before <= set(table.location.rglob("*"))
    assert_whole(shop)


def assert_whole(shop: Shop) -> None:
    reader = shop.sink(reads=True)
    assert reader.applied() == shop.log.head
    positions = range(1, shop.log.head.position + 1)
    assert {int(row["id"]) for row in held(reader, ORDERS)} == {at for at in positions if at % 2}
    assert {int(row["a"]) for row in held(reader, PAIRS)} == {at for at in positions if at % 2 == 0}


def test_a_snapshot_says_which_log_and_history_its_rows_are_of(shop: Shop) -> None:
    filled(shop, 2)
    shop.log.begin_history()
    sink = shop.sink()
    sink.apply(upserts(ORDERS, 3, [order(3)]))
    sink.commit(cut(3))
    summaries = [row.summary for row in shop.sql("select summary from orders.snapshots order by committed_at")]
    lineage = shop.log.lineage
    assert [said["headwater.log"] for said in summaries] == [lineage.log] * 2
    assert [said["headwater.history"] for said in summaries] == [one.id for one in lineage.histories]
    assert [said["headwater.position"] for said in summaries] == ["1", "3"]
    assert shop.sink().applied() == cut(3)


def test_a_table_that_is_lost_before_its_new_files_are_committed_is_looked_at_again(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no reason to stop for an operator."""
    sink = filled(shop, 2)
    original = catalogs.IcebergTable.data_file

    def data_file(self: Any, path: Path) -> Any:
        (shop.folder / "public" / "orders").rename(tmp_path / "gone")
        return original(self, path)

    monkeypatch.setattr(catalogs.IcebergTable, "data_file", data_file)
    shop.log.put(upserts(ORDERS, 3, [order(3)]))
    sink.apply(upserts(ORDERS, 3, [order(3)]))
    with pytest.raises(StoreError, match="describe a data file") as lost:
        sink.commit(cut(3))
    assert lost.value.retryable
    monkeypatch.undo()
    again = shop.sink()
    brought(shop, again)
    assert_whole(shop)


@pytest.mark.parametrize("step", ["files", "begin"])
def test_a_table_that_is_lost_in_any_step_of_a_commit_is_looked_at_again(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    filled(shop, 2)
    sink = shop.sink()
    original = getattr(catalogs.IcebergTable, step)

    def lost_before(self: Any, *given: Any) -> Any:
        if self.location.name == "orders" and self.location.exists():
            self.location.rename(tmp_path / "gone")
        return original(self, *given)

    shop.log.put(upserts(ORDERS, 3, [order(3)]))
    sink.apply(upserts(ORDERS, 3, [order(3)]))
    monkeypatch.setattr(catalogs.IcebergTable, step, lost_before)
    with pytest.raises(StoreError) as lost:
        sink.commit(cut(3))
    assert lost.value.retryable, lost.value
    monkeypatch.undo()
    again = shop.sink()
    brought(shop, again)
    assert_whole(shop)


def test_a_table_that_is_lost_while_it_is_looked_for_is_not_there(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = filled(shop, 2)
    original = catalogs.IcebergTable.__init__

    def lost_before(self: Any, *given: Any) -> None:
        if (shop.folder / "public" / "orders").exists():
            (shop.folder / "public" / "orders").rename(tmp_path / "gone")
        original(self, *given)

    monkeypatch.setattr(catalogs.IcebergTable, "__init__", lost_before)
    assert list(sink.scan(TopicSchema.of(ORDERS))) == []


def test_a_file_of_a_tables_metadata_that_stays_away_is_named(shop: Shop) -> None:
    """What is missing while nothing else changes was deleted by hand, and no waiting brings it back."""
    filled(shop, 2)
    sink = shop.sink()
    victims = list((shop.folder / "public" / "orders" / "metadata").glob("snap-*.avro"))
    content = {path: path.read_bytes() for path in victims}
    for path in victims:
        path.unlink()
    with pytest.raises(StoreError, match=r"public\.orders lacks a file that it needs: a part of its metadata") as refused:
        sink.applied()
    assert not refused.value.retryable
    assert "--rebuild" in (refused.value.hint or "")
    for path, bytes_ in content.items():
        path.write_bytes(bytes_)
    assert sink.applied() == cut(2)


@pytest.mark.parametrize("files", ["metadata/snap-*.avro", "data/*.parquet"])
def test_a_copy_that_stalls_while_it_is_put_back_is_waited_for(shop: Shop, files: str) -> None:
    """On a machine with much else to do a second may pass between two of its files."""
    filled(shop, 2)
    sink = shop.sink()
    victims = list((shop.folder / "public" / "orders").glob(files))
    assert victims
    content = {path: path.read_bytes() for path in victims}
    for path in victims:
        path.unlink()
    back = threading.Timer(1.5, lambda: [path.write_bytes(bytes_) for path, bytes_ in content.items()])
    back.start()
    try:
        sink.applied()
    except StoreError as error:
        assert error.retryable, error  # noqa: PT017
    back.join()
    assert sink.applied() == cut(2)


@pytest.mark.parametrize("files", ["snap-*.avro", "*-m*.avro"])
@pytest.mark.parametrize("op", [Op.INSERT, Op.UPDATE, Op.TRUNCATE], ids=["insert", "update", "truncate"])
def test_a_commit_that_lacks_a_file_of_the_tables_metadata_names_the_table_and_is_not_tried_for_ever(
    shop: Shop, op: Op, files: str
) -> None:
    """A commit that is broken off may have written files of metadata by then, which are no other version of the table."""
    sink = filled(shop, 2)
    for path in (shop.folder / "public" / "orders" / "metadata").glob(files):
        path.unlink()
    sink.apply(batch(ORDERS, [(op, 3, {} if op is Op.TRUNCATE else order(1))]))
    with pytest.raises(StoreError, match=r"public\.orders lacks a file that it needs: a part of its metadata") as refused:
        sink.commit(cut(3))
    assert not refused.value.retryable
    assert "--rebuild" in (refused.value.hint or "")


@pytest.mark.parametrize("what", ["public/orders", "_headwater", ""])
@pytest.mark.parametrize("how", ["gone", "older"])
def test_folders_that_are_lost_or_put_back_from_a_copy_are_noticed_at_once_and_filled_again(
    shop: Shop, tmp_path: Path, what: str, how: str
) -> None:
    """While a sink is open: before its next commit nothing is recorded, and whoever asks hears of it."""
    filled(shop, 3)
    shutil.copytree(shop.folder, tmp_path / "copy")
    sink = shop.sink()
    sink.apply(upserts(PAIRS, 4, [{**PAIR, "a": "4"}]))
    sink.apply(upserts(ORDERS, 5, [order(5)]))
    sink.commit(cut(5))
    sink.apply(upserts(ORDERS, 7, [order(7)]))
    shop.log.put(upserts(PAIRS, 6, [{**PAIR, "a": "6"}]))
    shutil.rmtree(shop.folder / what)
    if how == "older":
        shutil.copytree(tmp_path / "copy" / what, shop.folder / what)
    with pytest.raises(StoreError) as refused:
        sink.commit(cut(7))
    assert refused.value.retryable
    with suppress(StoreError):  # of what is gone altogether an opened sink can say nothing more
        assert sink.applied().position < 5
    again = shop.sink()
    least = again.applied().position
    assert least == (0 if how == "gone" else 3)
    if what == "public/orders":
        assert again.held(PAIRS.qualified) == 5, "what was not lost is not brought again"
    if what == "_headwater":
        assert again.held(ORDERS.qualified) == 5
    brought(shop, again)
    assert_whole(shop)


def test_a_copy_that_others_have_written_on_is_not_taken_for_the_version_that_was_known(shop: Shop, tmp_path: Path) -> None:
    """Iceberg numbers a table's versions, and the copy's next ones get the numbers that an opened sink knows by other content."""
    filled(shop, 3)
    shutil.copytree(shop.folder, tmp_path / "copy")
    sink = shop.sink()
    sink.apply(upserts(ORDERS, 5, [order(5)]))
    sink.commit(cut(5))
    shutil.rmtree(shop.folder)
    shutil.copytree(tmp_path / "copy", shop.folder)
    for _ in range(3):
        shop.sql("delete from orders where id = 12345")
        shop.sql("insert into orders (id, _cdc_exact) values (777, null)")
    sink.apply(upserts(ORDERS, 7, [order(7)]))
    with pytest.raises(StoreError) as refused:
        sink.commit(cut(7))
    assert refused.value.retryable
    assert shop.sink(reads=True).applied() == cut(3)


def test_what_others_do_to_a_table_leaves_its_mark_believed(shop: Shop) -> None:
    sink = filled(shop, 3)
    shop.sql("insert into orders (id, status) values (777, 'by hand')")
    shop.sql("call catalog.system.rewrite_data_files(table => 'public.orders', options => map('rewrite-all', 'true'))")
    shop.sql("call catalog.system.rewrite_manifests('public.orders')")
    shop.sql("alter table orders set tblproperties ('comment' = 'hers')")
    assert sink.applied() == cut(3)
    sink.apply(upserts(ORDERS, 5, [order(5)]))
    sink.commit(cut(5))
    assert shop.sink().applied() == cut(5)
    assert len(held(sink, ORDERS)) == 4


def test_a_table_rolled_back_under_an_open_sink_is_noticed(shop: Shop) -> None:
    sink = filled(shop, 5)
    first = shop.sql("select snapshot_id from orders.snapshots order by committed_at")[0].snapshot_id
    shop.sql(f"call catalog.system.rollback_to_snapshot('public.orders', {first})")
    shop.sql("call catalog.system.rewrite_data_files(table => 'public.orders', options => map('rewrite-all', 'true'))")
    assert sink.applied() == cut(1)
    sink.apply(upserts(PAIRS, 6, [{**PAIR, "a": "6"}]))
    with pytest.raises(StoreError, match="restored"):
        sink.commit(cut(6))
    again = shop.sink()
    assert (again.applied(), again.held(PAIRS.qualified)) == (cut(1), 4)
    brought(shop, again)
    assert_whole(shop)


def test_changes_that_leave_no_row_count_as_held(shop: Shop) -> None:
    """A delete of a row that is not there, and a topic that a store's policy passes over."""
    sink = filled(shop, 2)
    sink.apply(batch(ORDERS, [(Op.DELETE, 3, order(99))]))
    sink.commit(cut(3))
    shop.log.put(upserts(dataclasses.replace(PAIRS, name="passed over"), 4, [PAIR]))
    shop.log.put(schema(ORDERS, 5))
    sink.commit(cut(5))
    assert sink.applied() == shop.sink(reads=True).applied() == shop.sink().applied() == cut(5)


def test_another_logs_warehouse_is_left_alone(shop: Shop) -> None:
    filled(shop, 3)
    theirs, shop.log = shop.log, LooseLog()
    before = {path: path.stat().st_mtime_ns for path in shop.folder.rglob("*.json")}
    for reads in (True, False):
        with pytest.raises(Stopped) as stopped:
            shop.sink(reads=reads)
        assert stopped.value.state is StopState.OTHER_LOG
    assert {path: path.stat().st_mtime_ns for path in shop.folder.rglob("*.json")} == before
    shutil.rmtree(shop.folder / "_headwater")
    shop.log.put(upserts(ORDERS, 1, [order(1)]))
    with pytest.raises(Stopped, match=r"the table of public\.orders") as stopped:
        shop.sink()
    assert stopped.value.state is StopState.OTHER_LOG
    shop.log = theirs
    assert shop.sink().held(ORDERS.qualified) == 3


def test_another_logs_table_is_refused_when_its_topic_comes_later(shop: Shop) -> None:
    """Its position is beyond the rows that come, which would count as held."""
    filled(shop, 5)
    shutil.rmtree(shop.folder / "_headwater")
    shutil.rmtree(shop.folder / "public" / "pairs")
    theirs, shop.log = shop.log, LooseLog()
    shop.log.put(upserts(PAIRS, 1, [PAIR]))
    sink = shop.sink()
    with pytest.raises(Stopped, match=r"the table of public\.orders") as stopped:
        sink.apply(upserts(ORDERS, 2, [order(2)]))
    assert stopped.value.state is StopState.OTHER_LOG
    assert theirs.head.position == 5


def test_a_warehouse_without_marks_is_not_believed(shop: Shop) -> None:
    """An earlier version wrote none."""
    filled(shop, 2)
    shop.sql(f"alter table catalog._headwater.{shop.name} unset tblproperties ('headwater.log')")
    with pytest.raises(Stopped, match="earlier version") as stopped:
        shop.sink()
    assert stopped.value.state is StopState.DIVERGED
    assert "--rebuild" in (stopped.value.hint or "")
    shop.sink_unopened().erase()
    assert shop.sink().applied() == ZERO_CUT


def test_erasing_takes_what_is_this_stores_and_nothing_else(shop: Shop) -> None:
    filled(shop, 3)
    others = make("other", Options(kind="iceberg", path=shop.folder, namespace="second"))
    others.open(EMPTY, 1)
    others.apply(upserts(ORDERS, 1, [order(1)]))
    others.commit(cut(1))
    shop.sql("create table catalog.hers.notes (id bigint) using iceberg")
    with armed("rebuild.table_erased=error"), pytest.raises(StoreError):
        shop.sink_unopened().erase()
    for sink in (shop.sink_unopened(), shop.sink()):
        sink.erase()
    assert sorted(str(path.relative_to(shop.folder)) for path in tables_in(shop.folder)) == [
        "_headwater/other",
        "hers/notes",
        "second/public/orders",
    ]
    again = shop.sink()
    assert again.applied() == ZERO_CUT
    brought(shop, again)
    assert_whole(shop)
    assert others.applied() == cut(1)
    assert not list((shop.folder / "_staging" / shop.name).glob("erased-*"))


def test_whoever_only_reads_makes_nothing(shop: Shop) -> None:
    assert shop.sink(reads=True).applied() == ZERO_CUT
    assert not shop.folder.exists()


@pytest.mark.parametrize("kind", ["parquet", "puffin"])
def test_a_file_that_was_deleted_by_hand_is_named(shop: Shop, kind: str) -> None:
    sink = filled(shop, 3)
    sink.apply(batch(ORDERS, [(Op.DELETE, 5, order(3)), (Op.INSERT, 6, order(9)), (Op.INSERT, 7, order(11))]))
    sink.commit(cut(7))
    sink.apply(batch(ORDERS, [(Op.DELETE, 8, order(9))]))
    sink.commit(cut(8))
    assert sink.applied() == cut(8)
    victim = next(path for path in (shop.folder / "public" / "orders" / "data").glob(f"*.{kind}"))
    content = victim.read_bytes()
    reader = shop.sink(reads=True)
    live = {Path(row.file_path).name for row in shop.sql("select file_path from orders.files")}
    for path in (shop.folder / "public" / "orders" / "data").glob(f"*.{kind}"):
        if path.name in live:
            victim, content = path, path.read_bytes()
    victim.unlink()
    attempts = [
        lambda: list(reader.scan(TopicSchema.of(ORDERS))),
        lambda: reader.applied(),
        lambda: sink.applied(),
        # Where a row stands in a data file a sink may remember, so its commit need not read that file; which rows are gone it reads again.
        lambda: _commit_one_more(sink) if kind == "puffin" else sink.applied(),
        lambda: reader.fetch(TopicSchema.of(ORDERS), _keys(ORDERS, [order(n) for n in (1, 9, 11)])),  # type: ignore[list-item]
    ]
    for attempt in attempts:
        with pytest.raises(StoreError, match=victim.name) as refused:
            attempt()
        assert not refused.value.retryable
        assert "--rebuild" in (refused.value.hint or "")
    victim.write_bytes(content)
    again = shop.sink()
    assert again.applied() == cut(8)
    assert {row["id"] for row in held(again, ORDERS)} == {"1", "11"}


@pytest.mark.parametrize("kind", ["parquet", "puffin"])
@pytest.mark.parametrize("how", ["cut off", "overwritten"])
def test_a_damaged_file_is_named(shop: Shop, kind: str, how: str) -> None:
    sink = shop.sink()
    sink.apply(upserts(ORDERS, 1, [order(number) for number in range(200)]))
    sink.commit(cut(200))
    sink.apply(batch(ORDERS, [(Op.DELETE, 201, order(9))]))
    sink.commit(cut(201))
    (victim,) = (shop.folder / "public" / "orders" / "data").glob(f"*.{kind}")
    content = victim.read_bytes()
    middle = len(content) // 2 if kind == "parquet" else 20  # inside of the vector
    victim.write_bytes(content[:middle] if how == "cut off" else bytes(middle) + content[middle:])
    again = shop.sink()
    again.apply(batch(ORDERS, [(Op.DELETE, 202, order(1))]))
    with pytest.raises(StoreError, match=f"is damaged: orders/data/{victim.name}") as refused:
        again.commit(cut(202))
    assert not refused.value.retryable
    assert "--rebuild" in (refused.value.hint or "")
    victim.write_bytes(content)
    healed = shop.sink()
    healed.apply(batch(ORDERS, [(Op.DELETE, 202, order(1))]))
    healed.commit(cut(202))
    assert len(held(healed, ORDERS)) == 198


def _commit_one_more(sink: Warehouse) -> None:
    sink.apply(batch(ORDERS, [(Op.UPDATE, 9, order(1, "x")), (Op.UPDATE, 10, order(9, "x")), (Op.UPDATE, 11, order(11, "x"))]))
    sink.commit(cut(11))
