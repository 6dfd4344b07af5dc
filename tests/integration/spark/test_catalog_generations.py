"""Generations of a warehouse in a SQL catalog, on real Iceberg and a real Postgres: built where no reader looks, put in place in one transaction, killed at every
step, fed, put back, removed. Whoever wrote before commits nothing to what has taken its place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql
from pyiceberg.catalog.sql import SqlCatalog

from cdc.__main__ import main
from cdc.crashpoint import KILLED, VARIABLE, decided_by
from cdc.demo.configuration import Value, toml
from cdc.errors import ConfigError, StoreError
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.batch import Op
from cdc.model.position import Lsn
from cdc.settings.file import load
from cdc.state import status
from sinks import generations_of, options_model
from sinks.generations import HELD_AT_MOST_S, GenerationState
from sinks.warehouse import Options, Warehouse
from sinks.warehouse.connection import generation_rows, serving
from sinks.warehouse.failures import CommitConflict
from tests.contract.rows import ORDERS, PAIRS, batch, order, upserts
from tests.contract.test_marks import pair
from tests.faults import points
from tests.faults.points import EVERYTHING
from tests.integration.generationkills import killed_at_every_step, killed_while_the_first_is_removed
from tests.integration.spark.test_warehouse_generations import STORE, Shop
from tests.integration.test_cache_generations import At
from tests.integration.test_generations import fed, followed
from tests.lakes import Lake
from tests.waiting import until

OTHER = replace(ORDERS, oid=16499, name="other")
ROWS = {1: "new", 2: "new", 3: "new"}


class CatalogShop(Shop):
    """The same with a catalog in Postgres; the reader is a Spark whose catalog has that catalog's name."""

    def __init__(self, spark: Any, folder: Path, lake: Lake) -> None:
        super().__init__(spark, folder)
        self.database = lake
        self.options = self.options_with()
        self.sink = Warehouse(STORE, self.options, self.clock)
        self.catalog = lake.name
        read = serving(self.options).properties
        for key, value in {"": "org.apache.iceberg.spark.SparkCatalog", ".cache-enabled": "false", ".type": "jdbc"}.items():
            spark.conf.set(f"spark.sql.catalog.{self.catalog}{key}", value)
        for key, value in read.items():
            spark.conf.set(f"spark.sql.catalog.{self.catalog}.{key}", value)

    def options_with(self, **more: Any) -> Options:
        return Options(kind="iceberg", path=self.lake, **{**self.database.options, **more})

    def standing(self) -> dict[str, list[str]]:
        """The catalog's names, without the readers' own before them → the tables that stand there."""
        with psycopg.connect(self.database.dsn) as connection:
            asked = "select catalog_name, table_namespace || '.' || table_name from iceberg_tables order by 1, 2"
            found: dict[str, list[str]] = {}
            for catalog, table in connection.execute(asked).fetchall():
                found.setdefault(catalog.removeprefix(self.catalog), []).append(table)
            return found

    def locations(self) -> dict[str, str]:
        """Of the tables that readers see: table → where its newest metadata lie."""
        with psycopg.connect(self.database.dsn) as connection:
            asked = "select table_namespace || '.' || table_name, metadata_location from iceberg_tables where catalog_name = %s"
            return dict(connection.execute(asked, [self.catalog]).fetchall())

    def files(self) -> set[Path]:
        return {path for path in self.database.files.rglob("*") if path.suffix in (".parquet", ".avro", ".json", ".puffin")}


@pytest.fixture(params=["sql", "sql-s3"] if EVERYTHING else ["sql"])
def shop(request: pytest.FixtureRequest, spark: Any, lake_of: Callable[[str], Lake], tmp_path: Path) -> Iterator[CatalogShop]:
    made = CatalogShop(spark, tmp_path, lake_of(request.param))
    made.put(upserts(ORDERS, 1, [order(1), order(2), order(3)]), upserts(PAIRS, 4, [pair(1)]))
    made.follow()
    yield made
    made.sink.close()


def test_the_next_generation_takes_the_place_of_the_live_one_and_gives_it_back(shop: CatalogShop) -> None:
    tables = [f"_headwater.{STORE}", "public.orders", "public.pairs"]
    assert shop.standing() == {"": tables}
    assert shop.found() == ROWS
    first = shop.files()
    done = shop.bootstrap()
    assert (done.swapped, done.number, done.former, done.rows) == (True, 2, 1, 4)
    assert shop.generations() == {1: GenerationState.KEPT, 2: GenerationState.LIVE}
    assert shop.standing() == {"": tables, f"@{STORE}@g1": tables}
    assert all(f"/_generations/{STORE}/g2/" in one for one in shop.locations().values())
    assert shop.found() == ROWS

    with pytest.raises(StoreError, match="no longer the live one") as stale:
        shop.sink.applied()
    assert stale.value.retryable
    shop.put(batch(ORDERS, [(Op.UPDATE, 5, order(1, "paid")), (Op.DELETE, 6, order(2))]))
    shop.sink.apply(shop.log.batches[-1])
    with pytest.raises(StoreError, match="no longer the live one"):
        shop.sink.commit(shop.log.head)
    assert shop.found() == ROWS
    shop.follow()
    after = {1: "paid", 3: "new"}
    assert shop.found() == after

    back = shop.roll_back()
    assert (back.number, back.former, back.brought) == (1, 2, 2)
    assert shop.found() == after, "nobody has fed it, and yet it lacks nothing"
    with pytest.raises(StoreError, match="is live"):
        shop.drop(1)
    shop.follow()
    shop.change(7, "sent")
    shop.follow()
    assert shop.found() == {1: "sent", 3: "new"}
    shop.drop(2)
    with pytest.raises(ConfigError, match="no generation that was live before"):
        shop.roll_back()
    assert shop.generations() == {1: GenerationState.LIVE}
    assert shop.standing() == {"": tables}
    assert {path for path in first if path.suffix == ".parquet" and not path.exists()} == set(), (
        "the first's rows were never touched"
    )
    assert not [path for path in shop.files() if "_generations" in path.parts]


def test_a_kill_at_any_step_leaves_the_live_one_or_is_gone_on_with(shop: CatalogShop) -> None:
    killed_at_every_step(shop, "catalog")
    first = shop.files()
    killed_while_the_first_is_removed(shop, "generations.warehouse_erased")
    gone = first - shop.files()
    assert gone
    assert not [path for path in gone if "_generations" in path.parts], "another generation's files went with the first's"


ORDINARY = (
    "warehouse.before_table",
    "warehouse.vectors_written",
    "warehouse.table_committed",
    "warehouse.cuts_written",
    "warehouse.before_ledger",
)


@pytest.mark.parametrize("point", ORDINARY)
def test_a_writer_that_slept_over_a_swap_changes_nothing_in_what_readers_see(shop: CatalogShop, point: str) -> None:
    """It took the first generation for live, went to sleep in the middle of a commit, and wakes once the second is live; then the same the other way about, over a rollback."""
    shop.options = shop.options_with(cuts=True)
    shop.sink = Warehouse(STORE, shop.options, shop.clock)
    shop.follow()
    for key, step in ((1, shop.bootstrap), (2, shop.roll_back)):
        shop.put(batch(ORDERS, [(Op.UPDATE, 10 + key, order(key, "paid"))]))
        replaced: list[dict[str, str]] = []

        def meanwhile(step: Callable[[], Any] = step, replaced: list[dict[str, str]] = replaced) -> None:
            if not replaced:  # whoever builds comes by here, too
                replaced.append({})
                step()
                replaced.append(shop.locations())

        with decided_by(At(point, meanwhile)), pytest.raises(StoreError) as stale:
            shop.follow()
        assert stale.value.retryable
        assert shop.locations() == replaced[-1], "a table that readers see was changed"
        with pytest.raises(StoreError):  # nor does it when it tries again as it is
            shop.sink.commit(shop.log.head)
        shop.follow()
        assert shop.found() == {**ROWS, **dict.fromkeys(range(1, key + 1), "paid")}
    assert shop.generations() == {1: GenerationState.LIVE, 2: GenerationState.KEPT}


@pytest.mark.parametrize("point", ["warehouse.before_table", "warehouse.before_ledger"])
def test_a_writer_that_slept_until_its_generation_was_live_again_says_nothing_of_what_it_holds(
    shop: CatalogShop, point: str
) -> None:
    woken: list[dict[str, str]] = []

    def meanwhile() -> None:
        if not woken:
            woken.append({})
            shop.bootstrap()
            shop.roll_back()
            woken.append(shop.locations())

    shop.change(10, "paid")
    with decided_by(At(point, meanwhile)), pytest.raises(StoreError):
        shop.follow()
    ledger = f"_headwater.{STORE}"
    assert shop.locations()[ledger] == woken[-1][ledger]
    shop.follow()
    assert shop.found() == {**ROWS, 1: "paid"}


def test_a_new_table_of_a_writer_that_slept_over_a_swap_is_seen_by_no_reader(shop: CatalogShop) -> None:
    """A table that is made has no former version to be compared with."""
    other = next(iter({"public.pairs"}))
    shop.put(upserts(PAIRS, 5, [pair(2)]))
    shop.follow()
    locations = shop.locations()
    with closing(Warehouse(STORE, shop.options)) as stale:
        stale.open(shop.log.reader(), shop.epoch)
        assert stale._catalog is not None
        stale._catalog.remove(("public",), "pairs")
        assert other not in shop.locations()
        shop.follow()
        shop.bootstrap()
        seen = shop.locations()
        with pytest.raises(StoreError, match="no longer the live one"):
            stale._catalog.create(("public",), "made_late", '{"type":"struct","schema-id":0,"fields":[]}', {})
        assert shop.locations() == seen
        assert "public.made_late" in shop.standing()[f"@{STORE}@g1"]
        with pytest.raises(StoreError, match="no longer the live one"):
            stale._catalog.remove(("public",), "orders")
        assert shop.locations() == seen
    assert locations.keys() == seen.keys()


def test_a_writer_that_dies_before_its_new_table_is_shown_makes_it_again(shop: CatalogShop) -> None:
    assert shop.bootstrap().swapped
    shop.follow()
    shop.put(upserts(OTHER, 5, [order(1)]))
    assert points.killed(shop.follow, "generations.catalog_table_made=kill") == KILLED
    assert "public.other" not in shop.locations()
    shop.follow()
    assert f"/_generations/{STORE}/g2/public/other/" in shop.locations()["public.other"]
    assert shop.standing().keys() == {"", f"@{STORE}@g1"}


def test_a_generation_is_removed_with_its_own_files_only(shop: CatalogShop) -> None:
    """Its table that nobody can read among them; but where another table lies by now, which has its usual place, nothing is touched."""
    assert shop.bootstrap().swapped
    shop.follow()
    with psycopg.connect(shop.database.dsn, autocommit=True) as connection:
        rows = connection.execute(
            "select table_name, metadata_location from iceberg_tables where catalog_name = %s", [f"{shop.catalog}@{STORE}@g1"]
        )
        places = dict(rows.fetchall())
        connection.execute(
            "insert into iceberg_tables (catalog_name, table_namespace, table_name, metadata_location) values ('others', 'public', 'pairs', %s)",
            [f"{places['pairs'].rpartition('/')[0]}/00007-other.metadata.json"],
        )
    tables = shop.database.files / "public"
    (tables / "orders" / "metadata" / places["orders"].rpartition("/")[2]).unlink()
    before = shop.found()
    shop.drop(1)
    assert shop.generations() == {2: GenerationState.LIVE}
    assert shop.standing().keys() == {"", "others"}
    assert not [path for path in shop.files() if path.is_relative_to(tables / "orders")]
    assert list((tables / "pairs").glob("data/*.parquet"))
    assert shop.found() == before


def test_whoever_goes_by_the_cuts_finds_those_of_the_generation_that_is_live(shop: CatalogShop) -> None:
    """Also before its follower commits anything: the build is its first cut."""
    shop.options = shop.options_with(cuts=True)
    shop.sink = Warehouse(STORE, shop.options, shop.clock)
    shop.change(5, "paid")
    shop.follow()

    def newest() -> dict[int, str]:
        row = shop.spark.sql(f"select snapshots from {shop.catalog}.headwater.cuts order by position desc limit 1").first()
        snapshot = row.snapshots["public.orders"]
        asked = f"select id, status from {shop.catalog}.public.orders version as of {snapshot}"
        return {one.id: one.status for one in shop.spark.sql(asked).collect()}

    assert newest() == {**ROWS, 1: "paid"}
    shop.bootstrap()
    assert newest() == {**ROWS, 1: "paid"}
    shop.change(6, "sent")
    shop.follow()
    assert newest() == {**ROWS, 1: "sent"}
    shop.roll_back()
    assert newest() == {**ROWS, 1: "sent"}


def test_another_store_in_the_catalog_is_left_alone_and_a_namespace_may_come_with_the_next_generation(
    shop: CatalogShop, tmp_path: Path
) -> None:
    given = {**shop.database.options, "path": tmp_path / "near", "namespace": "near"}
    with closing(Warehouse("neighbour", Options(kind="iceberg", **given))) as neighbour:
        neighbour.open(shop.log.reader(), 1)
        for one in shop.log.batches:
            neighbour.apply(one)
        neighbour.commit(shop.log.head)
        theirs = {name: place for name, place in shop.locations().items() if "neighbour" in name or name.startswith("near.")}
        assert len(theirs) == 3
        shop.options = shop.options_with(namespace="ours")
        assert shop.bootstrap().swapped
        assert shop.locations().keys() == {f"_headwater.{STORE}", "ours.public.orders", "ours.public.pairs", *theirs}
        assert len(shop.standing()[f"@{STORE}@g1"]) == 3
        shop.drop(1)
        assert shop.standing().keys() == {""}
        assert not list((shop.database.files / "public").rglob("*.parquet"))
        assert theirs.items() <= shop.locations().items()
        shop.change(5, "paid")
        neighbour.apply(shop.log.batches[-1])
        neighbour.commit(shop.log.head)
        assert neighbour.applied() == shop.log.head
    shop.sink = Warehouse(STORE, shop.options, shop.clock)
    shop.follow()
    shop.sink.erase()
    assert shop.locations().keys() == theirs.keys()


def test_a_role_without_the_right_is_named_what_it_lacks(shop: CatalogShop) -> None:
    role = f"r{uuid.uuid4().hex[:8]}"
    with psycopg.connect(shop.database.dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("create role {} login password {}").format(sql.Identifier(role), "canary"))
        connection.execute(
            sql.SQL("grant select on iceberg_tables, iceberg_namespace_properties to {}").format(sql.Identifier(role))
        )
    address = urlsplit(shop.database.dsn)
    uri = address._replace(netloc=f"{role}@{address.netloc.rpartition('@')[2]}").geturl()
    rows = generation_rows(STORE, shop.options_with(uri=uri, password="canary"))
    try:
        assert rows.live() == 1
        with pytest.raises(StoreError, match="could not forget a generation: 42501") as refused:
            rows.forget(2)
        assert not refused.value.retryable
        assert "GRANT SELECT, INSERT, UPDATE, DELETE ON iceberg_tables" in (refused.value.hint or "")
        assert "canary" not in f"{refused.value} {refused.value.hint}"
    finally:
        with psycopg.connect(shop.database.dsn, autocommit=True) as connection:
            connection.execute(sql.SQL("drop owned by {}").format(sql.Identifier(role)))
            connection.execute(sql.SQL("drop role {}").format(sql.Identifier(role)))


@pytest.mark.slow
def test_a_foreign_table_in_the_way_is_named_and_nothing_has_changed(shop: CatalogShop) -> None:
    """Iceberg looks for metadata that are not there for a minute and a half."""

    def taken() -> None:
        with psycopg.connect(shop.database.dsn, autocommit=True) as connection:
            connection.execute(
                "update iceberg_tables set metadata_location = '/nowhere/public/pairs/metadata/1.json' where catalog_name = %s and table_name = 'pairs'",
                [shop.catalog],
            )

    with (
        decided_by(At("generations.decided", taken)),
        pytest.raises(StoreError, match=r"table public\.pairs is not one of store") as refused,
    ):
        shop.bootstrap()
    assert not refused.value.retryable
    assert "drop it in the catalog" in (refused.value.hint or "")
    assert shop.generations() == {1: GenerationState.LIVE, 2: GenerationState.BUILDING}
    assert shop.found() == ROWS


def test_a_follower_that_had_looked_before_commits_nothing_once_the_live_one_is_held(shop: CatalogShop) -> None:
    """Its rows may show, as they may where it is killed there; but it has not said that it holds them."""
    generations = generations_of(STORE, shop.options)
    with closing(generations):
        for point in ("warehouse.before_table", "warehouse.table_committed", "warehouse.before_ledger"):
            shop.change(len(shop.log.batches) + 10, point)
            with (
                decided_by(At(point, lambda: print(generations.hold()))),
                pytest.raises(StoreError, match="changed by somebody else"),
            ):
                shop.follow()
            with pytest.raises(StoreError, match="about to take"):
                shop.follow()
            generations.release()
            shop.follow()
            assert shop.found()[1] == point


def test_a_ledger_that_is_held_takes_no_cut_of_a_writer_that_looks_at_it_again(shop: CatalogShop) -> None:
    before = shop.locations()
    with closing(generations_of(STORE, shop.options)) as generations:
        generations.hold()
        held = shop.locations()
        assert {name for name in held if held[name] != before[name]} == {f"_headwater.{STORE}"}
        shop.change(10, "paid")
        shop.sink.apply(shop.log.batches[-1])
        with pytest.raises(StoreError, match="is being replaced"):
            shop.sink.commit(shop.log.head)
        assert shop.locations() == held
        generations.release()
    shop.follow()
    assert shop.found() == {**ROWS, 1: "paid"}


def test_properties_take_the_place_only_of_those_that_were_read(shop: CatalogShop) -> None:
    """Whether a table has changed is asked of Iceberg's object for it, which has the newest version in hand from then on."""
    with closing(Warehouse(STORE, shop.options)) as other:
        other.open(shop.log.reader(), shop.epoch)
        mine, theirs = (one._opened()[1].table for one in (shop.sink, other))
        assert mine is not None
        assert theirs is not None
        theirs.set_properties({"by": "them"})
        assert mine.changed()
        with pytest.raises(CommitConflict):
            mine.set_properties({"by": "me"})
        mine.refresh()
        assert mine.properties["by"] == "them"
        mine.set_properties({"by": "me"})


def test_what_was_held_and_let_go_is_not_swapped(shop: CatalogShop) -> None:
    def forgotten() -> None:
        with pytest.raises(StoreError, match="about to take"):
            shop.follow()
        shop.clock.now += HELD_AT_MOST_S
        shop.change(10, "paid")
        shop.follow()

    with decided_by(At("generations.catalog_before_swap", forgotten)), pytest.raises(StoreError, match="no longer the live one"):
        shop.bootstrap()
    assert shop.generations() == {1: GenerationState.LIVE, 2: GenerationState.BUILDING}
    assert shop.found() == {**ROWS, 1: "paid"}
    assert shop.bootstrap().swapped
    assert shop.found() == {**ROWS, 1: "paid"}


def test_a_reader_in_a_loop_sees_one_generation_or_the_other(shop: CatalogShop) -> None:
    """Each look is one statement's, as a reader's is: every table there, all of one generation. And pyiceberg, which reads the rows too."""
    seen: set[frozenset[bool]] = set()
    counts: list[int] = []
    failed: list[BaseException] = []
    stop = threading.Event()
    address = shop.database.dsn.replace("postgresql://", "postgresql+psycopg://")

    def looking() -> None:
        try:
            lake = SqlCatalog(shop.catalog, uri=address)
            while not stop.is_set():
                locations = shop.locations()
                assert len(locations) == 3
                seen.add(frozenset("_generations" in one for one in locations.values()))
                counts.append(len(lake.load_table("public.orders").scan(selected_fields=("id",)).to_arrow()))
        except BaseException as error:
            failed.append(error)

    reader = threading.Thread(target=looking)
    reader.start()
    try:
        for _ in range(3):
            shop.bootstrap()
            shop.follow()
            shop.roll_back()
            shop.follow()
    finally:
        stop.set()
        reader.join()
    if failed:
        raise failed[0]
    assert seen == {frozenset((True,)), frozenset((False,))}
    assert set(counts) == {3}


@pytest.mark.timeout(900)
def test_the_commands_beside_the_followers(shop: CatalogShop, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And one that is killed within the transaction, with the machine that holds its connection."""
    shop.sink.erase()
    given = {"kind": "iceberg", "path": str(shop.lake), "commit_interval_ms": 0, **shop.database.options}
    config = tmp_path / "cdc.toml"
    sections: dict[str, dict[str, Value]] = {
        "": {"run_dir": str(tmp_path / "run")},
        "source": {"dsn": "postgresql://nobody@127.0.0.1:1/none"},
        "log": {"dir": str(tmp_path / "log")},
        f"stores.{STORE}": given,
    }
    config.touch(0o600)
    config.write_text(toml(sections), encoding="utf-8")
    settings = load(config, options_model)

    def cdc(*arguments: str) -> Any:
        code = main(["--config", str(config), *arguments, "--json"])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        return json.loads(printed.out.splitlines()[-1])

    def told(number: int) -> int:
        found = {one.number: one.position for one in status.read_generations(settings.run_dir, STORE)}
        return found.get(number, 0)

    with closing(EmbeddedLogWriter(settings.log.dir)) as writer:

        def put(position: int, status: str) -> None:
            writer.append(batch(ORDERS, [(Op.UPDATE, position, order(position % 2, status))]))
            writer.commit(Lsn(position), position)

        put(1, "new")
        put(2, "new")
        with followed(settings, STORE):
            until(lambda: "public.orders" in shop.locations() and shop.found() == {0: "new", 1: "new"})
            before = shop.locations()
            command = [sys.executable, "-m", "cdc", "--config", str(config), "bootstrap", STORE]
            killed = subprocess.run(
                command, env={**os.environ, VARIABLE: "generations.catalog_moved=kill"}, capture_output=True, check=False
            )
            assert killed.returncode == KILLED, killed.stderr
            assert shop.locations().keys() == before.keys()
            assert not any("_generations" in one for one in shop.locations().values())
            assert [one["state"] for one in cdc("generations", STORE)["generations"]] == ["live", "building"]
            with fed(settings):
                done = cdc("bootstrap", STORE, "--keep-old", "1h")
                assert (done["generation"], done["swapped"], done["rows"]) == (2, True, 2)
                put(3, "paid")
                until(lambda: shop.found()[1] == "paid")
                until(lambda: told(1) == 3)
                back = cdc("rollback", STORE, "--keep-old", "0s")
                assert (back["generation"], back["former"], back["brought"]) == (1, 2, 0)
                assert shop.found()[1] == "paid"
                until(lambda: [one["number"] for one in cdc("generations", STORE)["generations"]] == [1])
                (live,) = cdc("generations", STORE)["generations"]
                assert (live["state"], live["rows"], live["position"]) == ("live", 2, 3)
            until(lambda: status.read_follower(settings.run_dir, STORE).state == "following")  # type: ignore[union-attr]
            assert cdc("bootstrap", STORE, "--in-place")["in_place"]
            put(4, "sent")
            until(lambda: shop.found()[0] == "sent")


def test_a_view_of_the_catalog_in_a_new_tables_way_is_named(shop: CatalogShop) -> None:
    with psycopg.connect(shop.database.dsn, autocommit=True) as connection:
        connection.execute(
            "insert into iceberg_tables (catalog_name, table_namespace, table_name, metadata_location, iceberg_type)"
            " values (%s, 'public', 'other', '/nowhere/metadata/1.json', 'VIEW')",
            [shop.catalog],
        )
    shop.put(upserts(OTHER, 5, [order(1)]))
    with pytest.raises(StoreError, match=r"public\.other .*is not a table") as refused:
        shop.follow()
    assert not refused.value.retryable
