"""Generations of a cache on a real server: built beside the live one, found through the pointer, killed at every step, fed, put back, removed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdc.__main__ import main
from cdc.crashpoint import decided_by
from cdc.errors import ConfigError, StoreError
from cdc.follow.rules import Rules
from cdc.generations.alone import alone
from cdc.generations.bootstrap import Bootstrap, Bootstrapped
from cdc.generations.follower import GenerationFollower
from cdc.generations.rollback import RolledBack, roll_back
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.batch import Op
from cdc.model.pgtypes import TEXT
from cdc.model.position import Lsn, Position
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from cdc.settings.file import load
from cdc.state import status
from sinks import generations_of, options_model
from sinks.cache import ledger
from sinks.cache.generationnames import CacheGenerationNames
from sinks.cache.sink import CacheSink, Options
from sinks.deadletters import Letter, LetterState
from sinks.generations import GenerationState
from sinks.heldlog import HeldLog
from tests.contract.rows import ORDERS, PAIRS, batch, order, upserts
from tests.contract.test_marks import apply, pair
from tests.integration.generationkills import killed_at_every_step, killed_while_the_first_is_removed
from tests.integration.test_generations import fed, followed
from tests.logs import LooseLog
from tests.waiting import until

POINTER = "live:cache"
ROW = "public.orders:{}"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Shop:
    """A log, the cache that follows it, an application that reads that, and whoever builds generations of it."""

    def __init__(self, server: Any, folder: Path) -> None:
        self.client = server.client()
        self.folder = folder
        self.run_dir = folder / "run"
        self.log = LooseLog()
        self.options = Options.model_validate({"kind": "redis", "url": server.url, "pointer": POINTER})
        self.clock = Clock()
        self.sink = CacheSink("cache", self.options, self.clock)
        self.epoch = 10

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
        return HeldLog(self.log.reader(), "cache", self.options)

    def bootstrap(self, keep_s: float | None = None) -> Bootstrapped:
        with closing(generations_of("cache", self.options)) as generations:
            rules = Rules("cache", self.options)
            made = Bootstrap(self.folder, self.run_dir, self.held(), generations, rules, keep_s, threading.Event())
            return made.carry_out()

    def roll_back(self) -> RolledBack:
        follower = GenerationFollower(self.folder, self.held(), Rules("cache", self.options), threading.Event())
        with closing(generations_of("cache", self.options)) as generations, alone(self.folder, "cache"):
            return roll_back(follower, generations, self.run_dir, None)

    def drop(self, number: int) -> None:
        with closing(generations_of("cache", self.options)) as generations:
            generations.drop(number)

    def generations(self) -> dict[int, GenerationState]:
        with closing(generations_of("cache", self.options)) as generations:
            return {one.number: one.state for one in generations.entries()}

    def found(self, keys: int = 5) -> dict[int, str]:
        """What an application finds by the pointer: id → status."""
        prefix = (self.client.get(POINTER) or b"").decode()
        rows = {key: self.client.get(prefix + ROW.format(key)) for key in range(1, keys + 1)}
        return {key: json.loads(row)["status"] for key, row in rows.items() if row is not None}

    def names(self) -> set[str]:
        return {name.decode() for name in self.client.scan_iter(count=1000)}


@pytest.fixture
def shop(valkey: Any, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(valkey, tmp_path)
    made.put(upserts(ORDERS, 1, [order(1), order(2), order(3)]), upserts(PAIRS, 4, [pair(1)]))
    made.follow()
    yield made
    made.sink.close()


def test_the_next_generation_takes_the_place_of_the_live_one_and_gives_it_back(shop: Shop) -> None:
    before = {1: "new", 2: "new", 3: "new"}
    assert shop.client.get(POINTER) == b""
    assert shop.found() == before
    first = shop.names()
    done = shop.bootstrap()
    assert (done.swapped, done.number, done.former, done.rows) == (True, 2, 1, 4)
    assert shop.generations() == {1: GenerationState.KEPT, 2: GenerationState.LIVE}
    assert shop.client.get(POINTER) == b"g2:"
    assert shop.found() == before
    assert {f"g2:{ROW.format(key)}" for key in before} < shop.names()

    with pytest.raises(StoreError, match="no longer the live one") as stale:
        shop.sink.applied()
    assert stale.value.retryable
    shop.put(batch(ORDERS, [(Op.UPDATE, 5, order(1, "paid")), (Op.DELETE, 6, order(2))]))
    with pytest.raises(StoreError, match="not where this writer left it"):
        shop.sink.apply(shop.log.batches[-1])
    assert shop.found() == before
    assert json.loads(shop.client.get(ROW.format(1)))["status"] == "new", "nor does the former take what is not its feeder's"
    shop.follow()
    after = {1: "paid", 3: "new"}
    assert shop.found() == after

    back = shop.roll_back()
    assert (back.number, back.former, back.brought) == (1, 2, 2)
    assert shop.client.get(POINTER) == b""
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
    assert shop.names() == first - {ROW.format(2)} | {"cdc:{cache}:generations", POINTER}


class At:
    """Does something when a crash point is reached."""

    def __init__(self, point: str, work: Callable[[], object]) -> None:
        self.point = point
        self.work = work

    def reach(self, name: str) -> None:
        if name == self.point:
            self.work()


@pytest.mark.parametrize("point", ["generations.built", "generations.caught_up", "generations.compared", "generations.decided"])
def test_compaction_may_take_deletes_out_of_the_log_while_a_generation_is_built(point: str, shop: Shop) -> None:
    """Marks say how often that has been so, so whoever writes has to open the store again."""
    times = iter(range(5, 9))

    def compacted() -> None:
        shop.log.raise_floor(ORDERS.qualified, Position(3))
        shop.change(next(times), "paid")

    with decided_by(At(point, compacted)):
        done = shop.bootstrap()
    assert (done.swapped, done.number) == (True, 2)
    shop.follow()
    assert shop.found() == {1: "paid", 2: "new", 3: "new"}


def test_a_generation_with_a_row_that_differs_is_not_swapped(shop: Shop) -> None:
    before = shop.found()

    def tamper() -> None:
        row = json.loads(shop.client.get(f"g2:{ROW.format(1)}"))
        shop.client.set(f"g2:{ROW.format(1)}", json.dumps({**row, "status": "changed"}))
        shop.client.delete(f"g2:{ROW.format(2)}")

    with decided_by(At("generations.built", tamper)):
        done = shop.bootstrap()
    assert (done.swapped, done.number) == (False, 2)
    differ = {one.table: (one.differ, {key["id"] for key in one.keys}) for one in done.tables}
    assert differ == {"public.orders": (2, {"1", "2"}), "public.pairs": (0, set())}
    assert shop.generations() == {1: GenerationState.LIVE, 2: GenerationState.BUILDING}
    assert shop.found() == before
    shop.change(5, "paid")
    shop.follow()
    assert shop.found() == {**before, 1: "paid"}


def test_a_kill_at_any_step_leaves_the_live_one_or_is_gone_on_with(shop: Shop) -> None:
    def held() -> None:
        with pytest.raises(StoreError, match="is being replaced"):
            shop.sink.applied()

    killed_at_every_step(shop, "cache", held)
    killed_while_the_first_is_removed(shop, "generations.cache_erased")


@pytest.mark.parametrize("point", ["generations.built", "generations.compared", "generations.cache_held"])
def test_a_server_that_is_emptied_meanwhile_is_filled_again_and_nothing_is_swapped(shop: Shop, point: str) -> None:
    before = shop.found()
    with decided_by(At(point, lambda: shop.client.flushall())), pytest.raises(StoreError):
        shop.bootstrap()
    assert shop.found() == {}
    shop.follow()
    assert shop.found() == before
    assert shop.bootstrap().swapped
    assert shop.found() == before
    assert shop.client.get(POINTER) != b""


def test_a_follower_that_opens_the_store_while_the_live_one_is_held_writes_nothing(shop: Shop) -> None:
    """It has looked before, and takes the ledger over afterwards."""
    generations = generations_of("cache", shop.options)
    shop.change(5, "paid")

    def hold() -> None:
        generations.hold()

    with closing(generations):
        with decided_by(At("cache.taken_over", hold)), pytest.raises(StoreError, match="is being replaced"):
            shop.follow()
        with pytest.raises(StoreError, match="about to take"):
            shop.follow()
        assert shop.found()[1] == "new"
        generations.release()
    shop.follow()
    assert shop.found()[1] == "paid"


def test_a_pointer_that_is_lost_or_overwritten_is_put_right(shop: Shop) -> None:
    assert shop.bootstrap().swapped
    shop.follow()
    before = shop.found()
    for spoil in (lambda: shop.client.delete(POINTER), lambda: shop.client.set(POINTER, "g9:")):
        spoil()
        assert shop.sink.applied().position == shop.log.head.position
        assert shop.client.get(POINTER) == b"g2:"
    shop.client.delete("cdc:{cache}:generations")
    assert shop.sink.applied().position == shop.log.head.position, "the pointer says which is live"
    assert shop.found() == before
    assert shop.client.hget("cdc:{cache}:generations", "live") == b"2"


def test_without_the_pointer_nobody_goes_on_with_another_generation_than_readers_see(shop: Shop) -> None:
    assert shop.bootstrap().swapped
    bare = shop.options.model_copy(update={"pointer": None})
    with closing(CacheSink("cache", bare)) as sink, pytest.raises(ConfigError, match="generation 2"):
        sink.open(shop.log.reader(), shop.epoch + 1)
    with pytest.raises(ConfigError, match="no generations beside each other") as refused:
        generations_of("cache", bare)
    assert "--in-place" in (refused.value.hint or "")


def test_a_pointer_that_could_be_a_row_or_a_generations_key_is_refused(shop: Shop) -> None:
    for pointer in ("cdc:live", "g2:live", ""):
        with pytest.raises(ValueError, match="pointer"):
            Options.model_validate({"kind": "redis", "url": "redis://h", "pointer": pointer})
    with pytest.raises(ValueError, match="exclude each other"):
        Options.model_validate({"kind": "redis", "url": "redis://h", "pointer": "live", "value": "invalidate"})
    mine = shop.options.model_copy(update={"pointer": ROW.format("live")})
    with closing(CacheSink("cache", mine)) as sink, pytest.raises(ConfigError, match="could be a key of public"):
        sink.foresee([TopicSchema.of(ORDERS)])
    with closing(CacheSink("cache", shop.options)) as sink:
        (shown,) = sink.preview(batch(ORDERS, [(Op.INSERT, 1, order(1))]))
    assert (shown["key"], shown["pointer"]) == (ROW.format(1), f"what {POINTER} holds stands before the key")


def test_rows_that_have_expired_are_no_difference_and_only_the_live_one_publishes(valkey: Any, tmp_path: Path) -> None:
    shop = Shop(valkey, tmp_path)
    given = {"kind": "redis", "url": valkey.url, "pointer": POINTER, "tables": {"public.orders": {"ttl": "1s", "publish": "keys"}}}
    shop.options = Options.model_validate(given)
    shop.sink = CacheSink("cache", shop.options)
    shop.put(upserts(ORDERS, 1, [order(1), order(2)]), upserts(PAIRS, 3, [pair(1), pair(2)]))
    shop.follow()
    heard = shop.client.pubsub()
    heard.subscribe("keys")
    with closing(heard):
        done = shop.bootstrap()
        assert done.swapped, done
        assert [one for one in iter(lambda: heard.get_message(timeout=0.2), None) if one["type"] == "message"] == []
    shop.sink.close()


def test_an_old_generation_goes_in_bounded_steps(shop: Shop) -> None:
    """Other clients are answered between two of them."""
    many = 20_000
    shop.put(upserts(ORDERS, 10, [order(key) for key in range(10, 10 + many)]))
    shop.follow()
    assert shop.bootstrap().swapped
    assert len(shop.names()) > 2 * many
    shop.client.config_resetstat()
    shop.drop(1)
    calls = shop.client.info("commandstats")["cmdstat_del"]
    assert calls["calls"] > 10, "no single command removes much"
    assert len(shop.names()) < many + 20
    assert shop.found()[1] == "new"


@pytest.mark.timeout(600)
def test_the_commands_beside_the_followers_and_in_place(valkey: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "cdc.toml"
    config.write_text(
        f'run_dir = "{tmp_path / "run"}"\n[source]\ndsn = "postgresql://nobody@127.0.0.1:1/none"\n[log]\ndir = "{tmp_path / "log"}"\n'
        f'[stores.cache]\nkind = "redis"\nurl = "{valkey.url}"\npointer = "{POINTER}"\n',
        encoding="utf-8",
    )
    settings, client = load(config, options_model), valkey.client()

    def cdc(*arguments: str) -> Any:
        code = main(["--config", str(config), *arguments, "--json"])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        return json.loads(printed.out.splitlines()[-1])

    def row(key: int) -> str | None:
        found = client.get((client.get(POINTER) or b"").decode() + ROW.format(key))
        return None if found is None else json.loads(found)["status"]

    def told(number: int) -> int:
        found = {one.number: one.position for one in status.read_generations(settings.run_dir, "cache")}
        return found.get(number, 0)

    with closing(EmbeddedLogWriter(settings.log.dir)) as writer:

        def put(position: int, status: str) -> None:
            writer.append(batch(ORDERS, [(Op.UPDATE, position, order(position % 2, status))]))
            writer.commit(Lsn(position), position)

        put(1, "new")
        put(2, "new")
        assert main(["--config", str(config), "bootstrap", "cache", "--in-place"]) == 1
        assert "nobody follows store cache" in capsys.readouterr().err
        with followed(settings, "cache"):
            until(lambda: row(0) == row(1) == "new")
            with fed(settings):
                done = cdc("bootstrap", "cache", "--keep-old", "1h")
                assert (done["generation"], done["swapped"], done["rows"]) == (2, True, 2)
                put(3, "paid")
                until(lambda: row(1) == "paid")
                until(lambda: told(1) == 3)
                back = cdc("rollback", "cache", "--keep-old", "0s")
                assert (back["generation"], back["former"], back["brought"]) == (1, 2, 0)
                assert row(1) == "paid"
                until(lambda: [one["number"] for one in cdc("generations", "cache")["generations"]] == [1])
                (live,) = cdc("generations", "cache")["generations"]
                assert (live["state"], live["rows"], live["bytes"]) == ("live", 2, None)
            until(lambda: status.read_follower(settings.run_dir, "cache").state == "following")  # type: ignore[union-attr]
            client.set(ROW.format(9), client.get(ROW.format(1)).replace(b'"id":1', b'"id":9'))
            client.delete(ROW.format(0))
            assert cdc("bootstrap", "cache", "--in-place")["in_place"]
            assert (row(0), row(1), row(9)) == ("new", "paid", None), (
                "what was lost is there again, what the log does not have is gone"
            )
            put(4, "sent")
            until(lambda: row(0) == "sent")


def letter_of(shop: Shop, number: int, at: int, state: LetterState = LetterState.ASIDE, **decided: Any) -> Letter:
    """A dead letter of a generation that says of a change of public.orders that it cannot be held."""
    names = CacheGenerationNames("cache", number)
    letter = Letter("public.orders", Position(at), "too long", names.prefix + ROW.format(at), state=state, **decided)
    shop.client.hset(ledger.letters_of(names.owner), letter.id, letter.to_json())
    return letter


def test_what_was_decided_about_dead_letters_comes_along(shop: Shop) -> None:
    """Row 1 was corrected, row 2 accepted, of row 3 nobody has said anything; of row 9 the other generation knows nothing."""
    corrected = letter_of(shop, 1, 1, LetterState.EDITED, by="ann", values={"status": "paid"})
    accepted = letter_of(shop, 1, 2, LetterState.ACCEPTED, by="bob")
    letter_of(shop, 1, 3)
    letter_of(shop, 1, 9, LetterState.ACCEPTED, by="bob")

    def find_them_there() -> None:
        for at in (1, 2, 3):
            letter_of(shop, 2, at)
            shop.client.delete(f"g2:{ROW.format(at)}")

    with decided_by(At("generations.built", find_them_there)):
        done = shop.bootstrap()
    assert done.swapped, done
    assert (done.decisions.carried, done.decisions.left) == (2, ())
    with closing(CacheSink("cache", shop.options)) as unopened:
        found = {one.id: (one.state, one.by, dict(one.values)) for one in unopened.letters()}
    assert found == {
        corrected.id: (LetterState.EDITED, "ann", {"status": "paid"}),
        accepted.id: (LetterState.ACCEPTED, "bob", {}),
        "public.orders@3": (LetterState.ASIDE, "", {}),
    }
    assert shop.found() == {1: "paid"}
    assert shop.roll_back().decisions.carried == 0, "the former has them already"


def test_a_table_that_is_set_aside_as_a_whole_keeps_no_generation_from_being_shown(valkey: Any, tmp_path: Path) -> None:
    """Whoever may make a table of the same name elsewhere must not be able to."""
    shop = Shop(valkey, tmp_path)
    shop.options = Options.model_validate({"kind": "redis", "url": valkey.url, "pointer": POINTER, "key": "{table}:{key}"})
    shop.sink = CacheSink("cache", shop.options, shop.clock)
    shop.put(
        upserts(ORDERS, 1, [order(1)]), upserts(replace(ORDERS, oid=17000, schema="theirs"), 2, [order(1, "theirs"), order(2)])
    )
    with closing(shop.sink):
        shop.follow()
        done = shop.bootstrap()
        assert done.swapped, done
        found = {one.table: (one.rows, one.differ, one.aside) for one in done.tables}
        assert found == {"public.orders": (1, 0, 0), "theirs.orders": (0, 0, 2)}


@pytest.mark.parametrize("value", ["json", "hash"])
def test_whoever_names_tables_and_writes_rows_reaches_neither_the_pointer_nor_another_generation(
    valkey: Any, tmp_path: Path, value: str
) -> None:
    """The owner of a schema makes a table `live` with a row `cache`, and a table `g2` with a row `orders:1`."""
    shop = Shop(valkey, tmp_path)
    given = {"kind": "redis", "url": valkey.url, "pointer": POINTER, "key": "{table}:{key}", "value": value}
    shop.options = Options.model_validate(given)
    shop.sink = CacheSink("cache", shop.options, shop.clock)
    columns = (Column("a", TEXT, -1, "text", key=True), Column("v", TEXT, -1, "text"))
    strangers = [Table(17000 + at, "public", name, columns) for at, name in enumerate(("live", "g2"))]
    shop.put(upserts(ORDERS, 1, [order(1), order(2)]))
    for at, (table, key) in enumerate(zip(strangers, ("cache", "orders:1"), strict=True), start=3):
        shop.put(batch(table, [(Op.INSERT, at, {"a": key, "v": "theirs"})]))
    with closing(shop.sink):
        shop.follow()
        rows = {"orders:1", "orders:2"}
        assert {name for name in shop.names() if not name.startswith("cdc:")} == {POINTER, *rows}
        assert shop.client.get(POINTER) == b""
        assert shop.bootstrap().swapped
        shop.put(batch(strangers[1], [(Op.DELETE, 5, {"a": "orders:1"})]))
        shop.follow()
        assert shop.client.get(POINTER) == b"g2:"
        assert {name for name in shop.names() if not name.startswith("cdc:")} == {POINTER, *rows, *(f"g2:{one}" for one in rows)}


def test_a_pointer_is_refused_while_rows_stand_where_a_generation_would_have_its_own(valkey: Any, tmp_path: Path) -> None:
    shop = Shop(valkey, tmp_path)
    shop.put(upserts(ORDERS, 1, [order(1)]))
    for pointer, refused in ((None, False), (POINTER, True), (None, False)):
        shop.options = Options.model_validate({"kind": "redis", "url": valkey.url, "pointer": pointer, "key": "g2:{table}:{key}"})
        shop.sink = CacheSink("cache", shop.options, shop.clock)
        with closing(shop.sink):
            if refused:
                with pytest.raises(ConfigError, match="could be those of a generation"):
                    shop.follow()
            else:
                shop.follow()
    shop.options = Options.model_validate({"kind": "redis", "url": valkey.url, "pointer": POINTER, "key": "o:{table}:{key}"})
    shop.sink = CacheSink("cache", shop.options, shop.clock)
    with closing(shop.sink):
        shop.follow()
    assert {name for name in shop.names() if not name.startswith("cdc:")} == {POINTER, "o:orders:1"}


def test_a_generation_that_another_log_feeds_is_not_dropped(shop: Shop, capsys: pytest.CaptureFixture[str]) -> None:
    """Two configurations may name one store, of which one is a copy that somebody tries something with."""
    shop.bootstrap()
    EmbeddedLogWriter(shop.folder / "other").close()
    config = shop.folder / "cdc.toml"
    config.touch(0o600)
    url = shop.options.url.get_secret_value()
    config.write_text(
        f'run_dir = "run"\n[source]\ndsn = "host=h"\n[log]\ndir = "other"\n[stores.cache]\nkind = "redis"\nurl = "{url}"\npointer = "{POINTER}"\n'
    )
    before = shop.names()
    assert main(["--config", str(config), "generations", "cache", "--drop", "1"]) != 0
    assert "is fed by another log" in capsys.readouterr().err
    assert shop.names() == before
    assert shop.generations() == {1: GenerationState.KEPT, 2: GenerationState.LIVE}
