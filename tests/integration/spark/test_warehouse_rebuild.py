"""A warehouse built again where other things lie in its folder: only what is the store's own is ever removed."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from cdc.errors import StoreError
from cdc.follow.rebuild import Rebuilding
from cdc.follow.rules import Rules
from sinks.heldlog import HeldLog
from sinks.warehouse import Options, Warehouse, datafiles, make
from tests.contract.rows import ORDERS, order, upserts
from tests.integration.spark.test_warehouse import Shop
from tests.integration.spark.traffic import held
from tests.logs import EMPTY, cut

METADATA = Path("public", "orders", "metadata")


@pytest.fixture
def shop(spark: Any, tmp_path: Path) -> Shop:
    return Shop(spark, tmp_path / "warehouse")


def rebuild(shop: Shop) -> Warehouse:
    """As the follower does that finds the request; gives the sink, opened."""
    sink, options = shop.sink_unopened(), Options(kind="iceberg", path=shop.folder)
    shop.epoch += 1
    reader = HeldLog(shop.log.reader(), shop.name, options)
    Rebuilding(Rules(shop.name, options), reader, threading.Event(), lambda: None).carry_out(sink, shop.epoch)
    reader.forget()
    return shop.sink()


def lacking_metadata(shop: Shop) -> None:
    """The store's own table, without a part that every reader needs."""
    sink = shop.sink()
    sink.apply(upserts(ORDERS, 1, [order(1)]))
    sink.commit(cut(1))
    sink.close()
    for path in (shop.folder / METADATA).glob("v*.metadata.json"):
        if not path.name.startswith(("v1.", "v2.")):
            path.unlink()


@pytest.mark.parametrize("there", ["no table yet", "a table that nobody can read"])
def test_what_lies_below_the_folder_of_a_table_stays(shop: Shop, there: str) -> None:
    """Another store's namespace and schema may be called as the schema and the table are here."""
    if there != "no table yet":
        lacking_metadata(shop)
    shop.log.put(upserts(ORDERS, 2, [order(2)]))
    table = Path("public", "orders")
    others = make("other", Options(kind="iceberg", path=shop.folder / table, namespace="theirs"))
    others.open(EMPTY, 1)
    others.apply(upserts(ORDERS, 1, [order(1)]))
    others.commit(cut(1))
    (shop.folder / table / "notes.csv").write_text("x")
    sink = rebuild(shop)
    assert {row["id"] for row in held(sink, ORDERS)} >= {"2"}
    assert others.applied() == cut(1)
    assert held(others, ORDERS) == [order(1)]
    assert (shop.folder / table / "notes.csv").read_text() == "x"
    sink.close()
    shop.sink_unopened().erase()
    assert held(others, ORDERS) == [order(1)]
    assert not (shop.folder / METADATA).exists()
    assert (shop.folder / table / "notes.csv").read_text() == "x"


def test_a_table_that_nobody_can_read_goes_only_where_it_is_the_stores_own(shop: Shop) -> None:
    others = make("other", Options(kind="iceberg", path=shop.folder))
    others.open(EMPTY, 1)
    others.apply(upserts(ORDERS, 1, [order(1)]))
    others.commit(cut(1))
    others.close()
    max((shop.folder / METADATA).glob("v*.metadata.json"), key=lambda path: path.stat().st_mtime_ns).unlink()
    before = sorted(shop.folder.rglob("*"))
    shop.log.put(upserts(ORDERS, 1, [order(1)]))
    with pytest.raises(StoreError, match=rf"public\.orders cannot be read, and nothing shows .* of store {shop.name}") as refused:
        rebuild(shop)
    assert not refused.value.retryable
    assert f"move {shop.folder / 'public' / 'orders'} away" in (refused.value.hint or "")
    assert [path for path in before if not path.exists()] == []
    shutil.move(shop.folder / "public" / "orders", shop.folder.parent / "away")  # the way out that the hint names
    assert held(rebuild(shop), ORDERS) == [order(1)]


def test_a_table_that_can_be_read_stays_when_something_else_fails(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = shop.sink()
    sink.apply(upserts(ORDERS, 1, [order(1)]))
    sink.commit(cut(1))
    sink.close()

    def refused(*_: Any) -> Any:
        raise StoreError("these rows cannot be written", retryable=False)

    with monkeypatch.context() as patched:
        patched.setattr(datafiles, "write", refused)
        with pytest.raises(StoreError, match="these rows cannot be written"):
            rebuild(shop)
    assert [row.id for row in shop.sql("select id from orders")] == [1]
    assert [row["id"] for row in held(rebuild(shop), ORDERS)] == ["1"]


@pytest.mark.parametrize("files", ["metadata/snap-*.avro", "metadata/*-m*.avro", "data/*.parquet"])
def test_a_table_that_lacks_what_every_reader_needs_is_made_anew(shop: Shop, files: str) -> None:
    sink = shop.sink()
    sink.apply(upserts(ORDERS, 1, [order(1)]))
    sink.commit(cut(1))
    sink.close()
    for path in (shop.folder / "public" / "orders").glob(files):
        path.unlink()
    assert held(rebuild(shop), ORDERS) == [order(1)]


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_table_that_lacks_one_of_its_manifests_is_made_anew(shop: Shop, which: int) -> None:
    """By the time Iceberg misses it, it may have written others anew, which is no change of the table."""
    sink = shop.sink()
    for position in (1, 2, 3):
        sink.apply(upserts(ORDERS, position, [order(position)]))
        sink.commit(cut(position))
    sink.close()
    manifests = sorted((shop.folder / METADATA).glob("*-m*.avro"), key=lambda path: path.stat().st_mtime_ns)
    manifests[which].unlink()
    assert held(rebuild(shop), ORDERS) == [order(1), order(2), order(3)]


@pytest.mark.parametrize("rebuilt", [True, False], ids=["built again", "followed"])
def test_a_table_whose_folder_went_in_the_middle_of_a_commit_is_no_table(shop: Shop, rebuilt: bool) -> None:
    """What the commit writes after that stands there alone."""
    sink = shop.sink()
    sink.apply(upserts(ORDERS, 1, [order(1), order(2)]))
    sink.commit(cut(2))
    before = list((shop.folder / "public" / "orders").rglob("*"))
    sink.apply(upserts(ORDERS, 3, [order(1), order(3)]))
    sink.commit(cut(4))
    sink.close()
    for path in (*before, *(shop.folder / METADATA).glob("*-m0.avro")):
        if path.is_file() and "version-hint" not in path.name:
            path.unlink()
    if rebuilt:
        assert held(rebuild(shop), ORDERS) == [order(1), order(2), order(3)]
        return
    with pytest.raises(StoreError, match="lacks a file that it needs") as refused:
        shop.sink().applied()
    assert not refused.value.retryable
