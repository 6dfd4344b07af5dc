"""The warehouse with a catalog beside its files: in Postgres, behind Iceberg's REST protocol, on this machine and on an S3 server. Read back by Spark."""

from __future__ import annotations

import traceback
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from cdc.embedded.s3 import CREDENTIAL, IDENTITY
from cdc.errors import StoreError
from cdc.model.batch import Op
from cdc.model.position import format_lsn
from cdc.model.topic import TopicSchema
from sinks.contract import EpochPassed
from sinks.sparksession import use_session
from sinks.warehouse import Options, Warehouse, ledger
from sinks.warehouse import sink as sink_module
from sinks.warehouse.catalog import Changes, Gone
from sinks.warehouse.failures import CommitConflict
from sinks.warehouse.tablescan import live_rows
from tests.contract.rows import ORDERS, PAIRS, batch, order, upserts
from tests.faults.points import EVERYTHING
from tests.integration.spark.traffic import held
from tests.lakes import Lake
from tests.logs import LooseLog, cut


class LakeShop:
    """One warehouse; ``sink()`` opens a sink on it, as a restarted process would."""

    def __init__(self, spark: Any, lake: Lake, folder: Path) -> None:
        use_session(lambda: spark)
        self.lake = lake
        self.name = f"wh{uuid.uuid4().hex[:8]}"
        self.log = LooseLog()
        self.epoch = 0
        self._folder = folder

    def unopened(self, **options: Any) -> Warehouse:
        return Warehouse(self.name, Options(kind="iceberg", path=self._folder, **{**self.lake.options, **options}))

    def sink(self, **options: Any) -> Warehouse:
        made = self.unopened(**options)
        self.epoch += 1
        made.open(self.log.reader(), self.epoch)
        return made

    def brought(self, sink: Warehouse, changes: Any, upto: int) -> None:
        self.log.put(changes)
        sink.apply(changes)
        self.log.reach(cut(upto))
        sink.commit(cut(upto))


@pytest.fixture(params=["sql", "sql-s3", "rest-s3"] if EVERYTHING else ["sql-s3"])
def shop(request: pytest.FixtureRequest, spark: Any, lake_of: Callable[[str], Lake], tmp_path: Path) -> LakeShop:
    return LakeShop(spark, lake_of(request.param), tmp_path / "lake")


def test_rows_come_change_are_merged_and_go(shop: LakeShop) -> None:
    sink = shop.sink(compact_files=2, keep_snapshots_s=0)
    shop.brought(sink, upserts(ORDERS, 1, [order(1), order(2)]), 2)
    shop.brought(sink, batch(ORDERS, [(Op.UPDATE, 3, order(1, "x")), (Op.DELETE, 4, order(2))]), 4)
    shop.brought(sink, upserts(ORDERS, 5, [order(3)]), 5)
    place = sink._opened()[2].places[ORDERS.qualified]
    place.iceberg.expire(2**60)
    needed = place.iceberg.needed()
    assert {path.name for path in (shop.lake.files / "public" / "orders" / "data").iterdir()} == needed
    assert held(sink, ORDERS) == [order(1, "x"), order(3)]
    again = shop.sink()
    assert again.applied() == cut(5)
    assert held(again, ORDERS) == [order(1, "x"), order(3)]
    again.close()
    shop.unopened().erase()
    assert shop.lake.tables() == []
    assert [path for path in shop.lake.files.rglob("*") if path.suffix in (".parquet", ".json", ".avro")] == []


def test_whoever_sleeps_before_the_ledger_cannot_set_it_back(shop: LakeShop, monkeypatch: pytest.MonkeyPatch) -> None:
    first = shop.sink()
    shop.brought(first, upserts(ORDERS, 1, [order(1)]), 1)
    changes = upserts(ORDERS, 2, [order(2)])

    def meanwhile(point: str) -> None:
        if point == "warehouse.before_ledger":
            monkeypatch.undo()
            other = shop.sink()
            assert other.applied() == cut(1)
            shop.brought(other, upserts(ORDERS, 3, [order(3)]), 3)

    monkeypatch.setattr(ledger, "crashpoint", meanwhile)
    with pytest.raises(StoreError, match="changed by somebody else"):
        shop.brought(first, changes, 2)
    with pytest.raises(EpochPassed):
        shop.brought(first, upserts(ORDERS, 4, [order(4)]), 4)
    assert shop.sink().applied() == cut(3)


def test_a_table_that_is_lost_is_noticed_and_made_again(shop: LakeShop) -> None:
    sink = shop.sink()
    shop.brought(sink, upserts(ORDERS, 1, [order(1)]), 1)
    table = sink._opened()[2].places[ORDERS.qualified].iceberg
    assert sink._catalog is not None
    sink._catalog.remove(("public",), "orders")
    assert table.changed()
    with pytest.raises(Gone):
        sink.applied()
    again = shop.sink()
    again.apply(upserts(ORDERS, 1, [order(1)]))
    again.commit(cut(1))
    assert held(again, ORDERS) == [order(1)]


def test_pyiceberg_reads_what_its_own_catalog_of_the_same_database_lists(
    spark: Any, lake_of: Callable[[str], Lake], tmp_path: Path
) -> None:
    shop = LakeShop(spark, lake_of("sql-s3"), tmp_path / "lake")
    sink = shop.sink()
    shop.brought(sink, upserts(ORDERS, 1, [order(1), order(2)]), 2)
    shop.brought(sink, batch(ORDERS, [(Op.DELETE, 3, order(2))]), 3)
    keys = {"s3.access-key-id": IDENTITY, "s3.secret-access-key": CREDENTIAL, "s3.region": "us-east-1"}
    address = {
        "uri": shop.lake.dsn.replace("postgresql://", "postgresql+psycopg://"),
        "s3.endpoint": shop.lake.options["s3_endpoint"],
    }
    lake = SqlCatalog(shop.lake.name, **address, **keys)
    assert lake.list_tables("public") == [("public", "orders")]
    assert lake.load_table("public.orders").scan(selected_fields=("id",)).to_arrow().to_pylist() == [{"id": 1}]


@pytest.mark.parametrize("wrong", ["uri", "s3_secret_key"])
def test_no_error_shows_a_secret(spark: Any, lake_of: Callable[[str], Lake], tmp_path: Path, wrong: str) -> None:
    shop = LakeShop(spark, lake_of("sql-s3"), tmp_path / "lake")
    given = "postgresql://me:canary@127.0.0.1:1/x" if wrong == "uri" else "canary"

    def used() -> None:
        shop.brought(shop.sink(**{wrong: given}), upserts(ORDERS, 1, [order(1)]), 1)

    with pytest.raises(StoreError) as refused:
        used()
    assert "canary" not in f"{refused.value} {refused.value.hint}"
    assert "canary" not in "".join(traceback.format_exception(refused.value))


def test_a_merge_that_slept_wins_over_nothing(shop: LakeShop) -> None:
    sink = shop.sink()
    for position in (1, 2):
        shop.brought(sink, upserts(ORDERS, position, [order(position)]), position)
    table = sink._opened()[2].places[ORDERS.qualified].iceberg
    files = [file for file, _ in table.files()]
    pending = table.begin()
    other = shop.sink()
    shop.brought(other, upserts(ORDERS, 3, [order(3)]), 3)
    metadata = shop.lake.files / "public" / "orders" / "metadata"
    before = set(metadata.glob("*.avro"))
    with pytest.raises(CommitConflict):
        table.commit(pending, Changes(add=[], remove=files, rewrite=True), sink._signed(cut(2)), {})
    assert set(metadata.glob("*.avro")) == before
    assert held(other, ORDERS) == [order(1), order(2), order(3)]


def test_a_snapshot_that_somebody_reads_stays(shop: LakeShop) -> None:
    sink = shop.sink(keep_snapshots_s=0, compact_files=2)
    shop.brought(sink, upserts(ORDERS, 1, [order(1)]), 1)
    reading = shop.unopened()
    reading.open(shop.log.reader())
    rows: Any = reading.scan(TopicSchema.of(ORDERS))
    pinned = reading._opened()[2].newest(TopicSchema.of(ORDERS))
    assert pinned is not None
    first = next(rows)
    for position in range(2, 6):
        sink._opened()[2].upkeep[ORDERS.qualified]._expired_at = float("-inf")
        shop.brought(sink, upserts(ORDERS, position, [order(1, f"v{position}")]), position)
    assert pinned.iceberg.snapshot in sink._scratch.pins()
    assert first.num_rows == 1
    assert [one.num_rows for one in live_rows(pinned, TopicSchema.of(ORDERS))] == [1]
    rows.close()
    sink._opened()[2].upkeep[ORDERS.qualified]._expired_at = float("-inf")
    shop.brought(sink, upserts(ORDERS, 6, [order(6)]), 6)
    assert sink._scratch.pins() == set()
    assert not any(pinned.iceberg.storage.exists(path) for path in pinned.live())


def test_the_table_of_cuts_names_one_moment_of_several_tables(spark: Any, lake_of: Callable[[str], Lake], tmp_path: Path) -> None:
    shop = LakeShop(spark, lake_of("sql"), tmp_path / "lake")
    sink = shop.sink(cuts=True)
    shop.log.put(upserts(ORDERS, 1, [order(1)]))
    sink.apply(upserts(ORDERS, 1, [order(1)]))
    shop.brought(sink, upserts(PAIRS, 2, [{"a": "1", "b": "2", "v": "x"}]), 2)
    shop.brought(sink, upserts(ORDERS, 3, [order(1, "later")]), 3)
    lake = shop.lake.options["catalog_name"]
    assert held(sink, ORDERS) == [order(1, "later")]  # makes Spark know the catalog
    cuts = spark.sql(f"select * from {lake}.headwater.cuts order by position").collect()
    assert [(row.position, row.commit_lsn, set(row.snapshots)) for row in cuts] == [
        (2, format_lsn(20), {"public.orders", "public.pairs"}),
        (3, format_lsn(30), {"public.orders", "public.pairs"}),
    ]
    assert cuts[0].snapshots["public.pairs"] == cuts[1].snapshots["public.pairs"]
    [then] = spark.sql(f"select status from {lake}.public.orders version as of {cuts[0].snapshots['public.orders']}").collect()
    assert then.status == order(1)["status"]
    tables = sink._opened()[2]
    tables.places[ORDERS.qualified].iceberg.expire(2**60, tables._read_by_somebody())
    for name, snapshot in cuts[0].snapshots.items():
        assert spark.sql(f"select * from {lake}.{name} version as of {snapshot}").count() == 1
    again = shop.sink(cuts=True, keep_snapshots_s=0)
    shop.brought(again, upserts(ORDERS, 4, [order(4)]), 4)
    assert [row.position for row in spark.sql(f"select position from {lake}.headwater.cuts").collect()] == [4]


def test_a_cut_that_a_table_has_passed_has_no_row(
    spark: Any, lake_of: Callable[[str], Lake], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer was killed between two tables of a commit, and its follower takes smaller steps since."""
    shop = LakeShop(spark, lake_of("sql"), tmp_path / "lake")
    first = shop.sink(cuts=True)
    first.apply(upserts(PAIRS, 1, [{"a": "1", "b": "2", "v": "x"}]))
    shop.log.put(upserts(PAIRS, 1, [{"a": "1", "b": "2", "v": "x"}]))
    shop.brought(first, upserts(ORDERS, 2, [order(1)]), 2)
    orders, pairs = upserts(ORDERS, 3, [order(1, "three")]), upserts(PAIRS, 4, [{"a": "1", "b": "2", "v": "four"}])
    later = upserts(ORDERS, 5, [order(1, "five")])
    tables: list[str] = []

    def killed(point: str) -> None:
        tables.append(point)
        if tables.count("warehouse.before_table") == 2:
            raise KeyboardInterrupt

    for changes in (orders, pairs, later):
        shop.log.put(changes)
    shop.log.reach(cut(5))
    for changes in (orders, later, pairs):
        first.apply(changes)
    with monkeypatch.context() as patched:
        patched.setattr(sink_module, "crashpoint", killed)
        with pytest.raises(KeyboardInterrupt):
            first.commit(cut(5))
    again = shop.sink(cuts=True)
    assert again.applied() == cut(2)
    assert again._opened()[2].places[ORDERS.qualified].position == 5
    again.apply(orders)
    again.apply(pairs)
    again.commit(cut(4))
    assert [row["position"] for row in rows_of_cuts(again)] == [2], "orders has no snapshot at 4"
    again.apply(later)
    again.commit(cut(5))
    assert [row["position"] for row in rows_of_cuts(again)] == [2, 5]


def test_what_the_cuts_name_stays_though_their_own_table_could_not_be_tidied(
    spark: Any, lake_of: Callable[[str], Lake], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = LakeShop(spark, lake_of("sql"), tmp_path / "lake")
    sink = shop.sink(cuts=True)
    shop.brought(sink, upserts(ORDERS, 1, [order(1)]), 1)
    tables = sink._opened()[2]
    assert tables.cuts is not None
    own, tables.cuts._expired_at = tables.cuts._opened(), float("-inf")

    def refused(*_: Any) -> None:
        raise CommitConflict

    monkeypatch.setattr(own, "expire", refused)
    shop.brought(sink, upserts(ORDERS, 2, [order(2)]), 2)
    named = {snapshot for row in rows_of_cuts(sink) for _, snapshot in row["snapshots"]}
    assert len(named) == 2
    assert tables.cuts.snapshots() == named
    shop.brought(sink, upserts(ORDERS, 3, [order(3)]), 3)
    assert [row["position"] for row in rows_of_cuts(sink)] == [1, 2, 3]


def rows_of_cuts(sink: Warehouse) -> list[dict[str, Any]]:
    """As they stand in the table."""
    assert sink._catalog is not None
    table = sink._catalog.load(("headwater",), "cuts")
    assert table is not None
    return [row for file, _ in table.files() for row in pq.read_table(file.path).to_pylist()]
