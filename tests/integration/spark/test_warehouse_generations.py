"""Generations of a warehouse on real Iceberg: built beside the live one, found through the pointer, killed at every step, fed, put back, removed."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cdc.__main__ import main
from cdc.crashpoint import KILLED, decided_by
from cdc.errors import ConfigError, StoreError
from cdc.follow.rules import Rules
from cdc.generations.alone import alone
from cdc.generations.bootstrap import Bootstrap, Bootstrapped
from cdc.generations.follower import GenerationFollower
from cdc.generations.rollback import RolledBack, roll_back
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.batch import Op
from cdc.model.position import Lsn
from cdc.settings.file import load
from cdc.state import status
from sinks import generations_of, options_model
from sinks.generations import GenerationState
from sinks.heldlog import HeldLog
from sinks.sparksession import use_session
from sinks.warehouse import Options, Warehouse
from tests.contract.rows import ORDERS, PAIRS, batch, order, upserts
from tests.contract.test_marks import apply, pair
from tests.faults import points
from tests.integration.generationkills import killed_at_every_step, killed_while_the_first_is_removed
from tests.integration.test_cache_generations import At, Clock
from tests.integration.test_generations import fed, followed
from tests.logs import LooseLog
from tests.waiting import until

STORE = "wh"


class Shop:
    """A log, the warehouse that follows it, a reader of that, and whoever builds generations of it."""

    def __init__(self, spark: Any, folder: Path) -> None:
        use_session(lambda: spark)
        self.spark = spark
        self.folder = folder
        self.run_dir = folder / "run"
        self.lake, self.pointer = folder / "lake", folder / "lake-live"
        self.log = LooseLog()
        self.options = Options(kind="iceberg", path=self.lake, pointer=self.pointer)
        self.clock = Clock()
        self.sink = Warehouse(STORE, self.options, self.clock)
        self.epoch = 10
        self.catalog = f"reader{uuid.uuid4().hex[:8]}"
        for key, value in {
            "": "org.apache.iceberg.spark.SparkCatalog",
            ".type": "hadoop",
            ".warehouse": self.pointer,
            ".cache-enabled": "false",
        }.items():
            spark.conf.set(f"spark.sql.catalog.{self.catalog}{key}", str(value))

    def put(self, *batches: Any) -> None:
        for one in batches:
            self.log.put(one)

    def change(self, position: int, status: str) -> None:
        self.put(batch(ORDERS, [(Op.UPDATE, position, order(1, status))]))

    def follow(self) -> None:
        """As the daemon's follower: opened again, then everything that the store lacks."""
        self.epoch += 1
        cut = self.sink.open(self.log.reader(), self.epoch)
        self.sink.finish()
        for one in self.log.batches:
            if one.column("_cdc_position")[0].as_py() > cut.position:
                apply(self.sink, one)
        self.sink.commit(self.log.head)

    def held(self) -> HeldLog:
        return HeldLog(self.log.reader(), STORE, self.options)

    def bootstrap(self, keep_s: float | None = None) -> Bootstrapped:
        with closing(generations_of(STORE, self.options)) as generations:
            rules = Rules(STORE, self.options)
            made = Bootstrap(self.folder, self.run_dir, self.held(), generations, rules, keep_s, threading.Event())
            return made.carry_out()

    def roll_back(self) -> RolledBack:
        follower = GenerationFollower(self.folder, self.held(), Rules(STORE, self.options), threading.Event())
        with closing(generations_of(STORE, self.options)) as generations, alone(self.folder, STORE):
            return roll_back(follower, generations, self.run_dir, None)

    def drop(self, number: int) -> None:
        with closing(generations_of(STORE, self.options)) as generations:
            generations.drop(number)

    def generations(self) -> dict[int, GenerationState]:
        with closing(generations_of(STORE, self.options)) as generations:
            return {one.number: one.state for one in generations.entries()}

    def found(self) -> dict[int, str]:
        """What a reader finds by the pointer: id → status."""
        rows = self.spark.sql(f"select id, status from {self.catalog}.public.orders").collect()
        assert len({row.id for row in rows}) == len(rows), "a row is found twice"
        return {row.id: row.status for row in rows}


@pytest.fixture
def shop(spark: Any, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(spark, tmp_path)
    made.put(upserts(ORDERS, 1, [order(1), order(2), order(3)]), upserts(PAIRS, 4, [pair(1)]))
    made.follow()
    yield made
    made.sink.close()


def test_the_next_generation_takes_the_place_of_the_live_one_and_gives_it_back(shop: Shop) -> None:
    before = {1: "new", 2: "new", 3: "new"}
    assert shop.pointer.readlink() == shop.lake
    assert shop.found() == before
    first = set(shop.lake.rglob("*.parquet"))
    done = shop.bootstrap()
    assert (done.swapped, done.number, done.former, done.rows) == (True, 2, 1, 4)
    assert shop.generations() == {1: GenerationState.KEPT, 2: GenerationState.LIVE}
    assert shop.pointer.readlink() == shop.lake / "_generations" / STORE / "g2"
    assert shop.found() == before

    with pytest.raises(StoreError, match="no longer the live one") as stale:
        shop.sink.applied()
    assert stale.value.retryable
    shop.put(batch(ORDERS, [(Op.UPDATE, 5, order(1, "paid")), (Op.DELETE, 6, order(2))]))
    shop.sink.apply(shop.log.batches[-1])
    with pytest.raises(StoreError, match="no longer the live one"):
        shop.sink.commit(shop.log.head)
    assert shop.found() == before
    shop.follow()
    after = {1: "paid", 3: "new"}
    assert shop.found() == after

    back = shop.roll_back()
    assert (back.number, back.former, back.brought) == (1, 2, 2)
    assert shop.pointer.readlink() == shop.lake
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
    assert {path for path in first if not path.exists()} == set(), "what the first generation holds was never touched"
    assert not list((shop.lake / "_generations").rglob("*.parquet"))


def test_a_generation_with_a_row_that_differs_is_not_swapped(shop: Shop) -> None:
    before = shop.found()

    def tamper() -> None:
        other = f"other{uuid.uuid4().hex[:8]}"
        for key, value in {
            "": "org.apache.iceberg.spark.SparkCatalog",
            ".type": "hadoop",
            ".warehouse": shop.lake / "_generations" / STORE / "g2",
        }.items():
            shop.spark.conf.set(f"spark.sql.catalog.{other}{key}", str(value))
        shop.spark.sql(f"update {other}.public.orders set status = 'changed' where id = 1")
        shop.spark.sql(f"delete from {other}.public.orders where id = 2")

    with decided_by(At("generations.built", tamper)):
        done = shop.bootstrap()
    assert (done.swapped, done.number) == (False, 2)
    differ = {one.table: (one.differ, {key["id"] for key in one.keys}) for one in done.tables}
    assert differ["public.orders"] == (2, {"1", "2"})
    assert shop.generations() == {1: GenerationState.LIVE, 2: GenerationState.BUILDING}
    assert shop.found() == before
    shop.change(5, "paid")
    shop.follow()
    assert shop.found() == {**before, 1: "paid"}


def test_a_kill_at_any_step_leaves_the_live_one_or_is_gone_on_with(shop: Shop) -> None:
    killed_at_every_step(shop, "warehouse")
    killed_while_the_first_is_removed(shop, "generations.warehouse_erased")


def test_a_follower_that_had_looked_before_commits_nothing_once_the_live_one_is_held(shop: Shop) -> None:
    """Its rows may show, as they may where it is killed there; but it has not said that it holds them."""
    generations = generations_of(STORE, shop.options)
    with closing(generations):
        for point in ("warehouse.before_table", "warehouse.table_committed"):
            shop.change(len(shop.log.batches) + 10, point)
            with decided_by(At(point, lambda: print(generations.hold()))), pytest.raises(StoreError, match="is being replaced"):
                shop.follow()
            with pytest.raises(StoreError, match="about to take"):
                shop.follow()
            generations.release()
            shop.follow()
            assert shop.found()[1] == point


def test_a_pointer_that_is_lost_is_made_again_and_one_that_leads_elsewhere_is_left_alone(shop: Shop) -> None:
    assert shop.bootstrap().swapped
    shop.follow()
    before = shop.found()
    shop.pointer.unlink()
    assert shop.generations() == {1: GenerationState.KEPT, 2: GenerationState.LIVE}
    assert shop.sink.applied().position == shop.log.head.position
    assert shop.pointer.readlink() == shop.lake / "_generations" / STORE / "g2"
    assert shop.found() == before
    (shop.lake / "_generations" / STORE / "register.json").unlink()
    assert shop.generations() == {1: GenerationState.KEPT, 2: GenerationState.LIVE}, "the pointer says which is live"
    assert shop.sink.applied().position == shop.log.head.position
    for spoil in (lambda: shop.pointer.symlink_to("/elsewhere"), shop.pointer.mkdir):
        shop.pointer.unlink()
        spoil()
        with pytest.raises(StoreError, match=f"its pointer {shop.pointer} ") as refused:
            shop.follow()
        assert not refused.value.retryable
    assert shop.pointer.is_dir()


def test_without_the_pointer_nobody_goes_on_with_another_generation_than_readers_see(shop: Shop) -> None:
    bare = Options(kind="iceberg", path=shop.lake)
    assert points.killed(lambda: print(shop.bootstrap()), "generations.warehouse_swapped=kill") == KILLED
    for _ in range(2):
        with closing(Warehouse(STORE, bare)) as sink, pytest.raises(ConfigError, match="one of several generations"):
            sink.open(shop.log.reader(), shop.epoch + 1)
        shop.follow()
    with pytest.raises(ConfigError, match="no generations beside each other") as refused:
        generations_of(STORE, bare)
    assert "--in-place" in (refused.value.hint or "")
    with closing(Warehouse(STORE, shop.options)) as sink:
        sink.erase()
    assert not shop.pointer.is_symlink()
    assert not list(shop.lake.rglob("*.parquet"))
    shop.sink = Warehouse(STORE, bare)
    shop.follow()
    assert list((shop.lake / "public" / "orders" / "data").glob("*.parquet"))


def test_a_pointer_within_the_folder_is_refused(tmp_path: Path) -> None:
    for pointer in (tmp_path / "lake", tmp_path / "lake" / "live"):
        with pytest.raises(ValueError, match="pointer lies in path"):
            Options(kind="iceberg", path=tmp_path / "lake", pointer=pointer)


@pytest.mark.timeout(900)
def test_the_commands_beside_the_followers_and_in_place(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shop = Shop(spark, tmp_path)  # for its reader
    config = tmp_path / "cdc.toml"
    config.write_text(
        f'run_dir = "{tmp_path / "run"}"\n[source]\ndsn = "postgresql://nobody@127.0.0.1:1/none"\n[log]\ndir = "{tmp_path / "log"}"\n'
        f'[stores.{STORE}]\nkind = "iceberg"\npath = "lake"\npointer = "lake-live"\ncommit_interval_ms = 0\n',
        encoding="utf-8",
    )
    settings = load(config, options_model)

    def cdc(*arguments: str) -> Any:
        code = main(["--config", str(config), *arguments, "--json"])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        return json.loads(printed.out.splitlines()[-1])

    def told(number: int) -> int:
        found = {one.number: one.position for one in status.read_generations(settings.run_dir, STORE)}
        return found.get(number, 0)

    def row(key: int) -> str | None:
        return shop.found().get(key) if shop.pointer.is_symlink() else None

    with closing(EmbeddedLogWriter(settings.log.dir)) as writer:

        def put(position: int, status: str) -> None:
            writer.append(batch(ORDERS, [(Op.UPDATE, position, order(position % 2, status))]))
            writer.commit(Lsn(position), position)

        put(1, "new")
        put(2, "new")
        with followed(settings, STORE):
            until(lambda: (shop.lake / "public" / "orders" / "data").exists() and row(0) == row(1) == "new")
            with fed(settings):
                done = cdc("bootstrap", STORE, "--keep-old", "1h")
                assert (done["generation"], done["swapped"], done["rows"]) == (2, True, 2)
                put(3, "paid")
                until(lambda: row(1) == "paid")
                until(lambda: told(1) == 3)
                back = cdc("rollback", STORE, "--keep-old", "0s")
                assert (back["generation"], back["former"], back["brought"]) == (1, 2, 0)
                assert row(1) == "paid"
                until(lambda: [one["number"] for one in cdc("generations", STORE)["generations"]] == [1])
                (live,) = cdc("generations", STORE)["generations"]
                assert (live["state"], live["rows"], live["position"]) == ("live", 2, 3)
                assert 0 < live["bytes"] < 100_000
            until(lambda: status.read_follower(settings.run_dir, STORE).state == "following")  # type: ignore[union-attr]
            assert cdc("bootstrap", STORE, "--in-place")["in_place"]
            put(4, "sent")
            until(lambda: row(0) == "sent")
