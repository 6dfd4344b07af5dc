"""Generations of a search store on the real OpenSearch: built beside the live one, swapped under readers, killed at every step, put back."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdc.__main__ import main
from cdc.crashpoint import KILLED, decided_by
from cdc.embedded.opensearch import OpenSearch
from cdc.errors import ConfigError, Stopped, StoreError
from cdc.follow.follower import Follower
from cdc.follow.rules import Rules
from cdc.generations.bootstrap import Bootstrap, Bootstrapped
from cdc.generations.rollback import roll_back
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.log.home import open_reader
from cdc.model.batch import Op
from cdc.model.evolution import Kind
from cdc.model.position import Lsn, Position
from cdc.model.topic import TopicSchema
from cdc.settings.file import load
from cdc.settings.models import Settings
from sinks import generations_of, options_model
from sinks.deadletters import Letter
from sinks.generations import HELD_AT_MOST_S, GenerationState
from sinks.heldlog import HeldLog
from sinks.search.sink import Options, SearchSink
from tests.contract.rows import ORDERS, PAIRS, batch, order, schema, upserts
from tests.contract.test_marks import apply, pair
from tests.faults import points
from tests.logs import LooseLog

EVENTS = replace(ORDERS, oid=20001, name="events")
LONG_S = 300.0
"""On a machine with much else to do."""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Shop:
    """A log, the store that follows it, and whoever builds generations of that."""

    def __init__(self, server: OpenSearch, folder: Path) -> None:
        self.server = server
        self.folder = folder
        self.log = LooseLog()
        self.options = Options.model_validate({"kind": "opensearch", "url": server.url})
        self.clock = Clock()
        self.sink = SearchSink("search", self.options, self.clock)
        self.epoch = 0

    def put(self, *batches: Any) -> None:
        for one in batches:
            self.log.put(one)

    def follow(self) -> None:
        """As the daemon's follower: opened again, then everything that the store lacks."""
        self.epoch += 1
        cut = self.sink.open(self.log.reader(), self.epoch)
        for one in self.log.batches:
            if one.column("_cdc_position")[0].as_py() > cut.position:
                apply(self.sink, one)
        self.sink.commit(self.log.head)

    def held(self) -> HeldLog:
        return HeldLog(self.log.reader(), "search", self.options)

    def bootstrap(self) -> Bootstrapped:
        with closing(generations_of("search", self.options)) as generations:
            rules = Rules("search", self.options)
            return Bootstrap("search", self.options, self.folder, self.held(), generations, rules, threading.Event()).carry_out()

    def generations(self) -> dict[int, GenerationState]:
        with closing(generations_of("search", self.options)) as generations:
            return {one.number: one.state for one in generations.all()}

    def found(self, alias: str = "public.orders") -> dict[str, str]:
        """What a user finds: id → status, or a pair's value."""
        self.server.request("POST", f"/{alias}/_refresh")
        hits = self.server.request("POST", f"/{alias}/_search", {"size": 1000})["hits"]["hits"]
        assert len({hit["_id"] for hit in hits}) == len(hits), "a row is found twice"
        return {hit["_id"]: hit["_source"].get("status") or hit["_source"]["v"] for hit in hits}


@pytest.fixture
def shop(opensearch: OpenSearch, tmp_path: Path) -> Iterator[Shop]:
    made = Shop(opensearch, tmp_path)
    made.put(upserts(ORDERS, 1, [order(1), order(2), order(3)]), upserts(PAIRS, 4, [pair(1)]))
    made.follow()
    yield made
    made.sink.close()


def test_the_next_generation_takes_the_place_of_the_live_one_and_gives_it_back(shop: Shop) -> None:
    before = {"1": "new", "2": "new", "3": "new"}
    assert shop.found() == before
    done = shop.bootstrap()
    assert (done.swapped, done.number, done.former, done.rows) == (True, 2, 1, 4)
    assert shop.generations() == {1: GenerationState.KEPT, 2: GenerationState.LIVE}
    assert shop.found() == before
    said = {"table": "public.orders", "position": 1, "reason": "too long"}
    shop.server.request("PUT", "/.headwater-search@g2@dead/_doc/public.orders@1", said)
    with closing(SearchSink("search", shop.options)) as unopened:
        assert [one.reason for one in unopened.letters()] == ["too long"]
    shop.server.request("DELETE", "/.headwater-search@g2@dead/_doc/public.orders@1")

    with pytest.raises(StoreError, match="no longer the live one") as stale:
        shop.sink.applied()
    assert stale.value.retryable
    shop.put(batch(ORDERS, [(Op.UPDATE, 5, order(1, "paid")), (Op.DELETE, 6, order(2))]))
    with pytest.raises(StoreError, match="no longer the live one"):
        shop.sink.prepare(TopicSchema.of(ORDERS))
    shop.sink.apply(shop.log.batches[-1])
    with pytest.raises(StoreError):
        shop.sink.commit(shop.log.head)
    assert shop.found() == before, "what it writes without knowing changes nothing of what users find"
    shop.follow()
    after = {"1": "paid", "3": "new"}
    assert shop.found() == after

    with closing(generations_of("search", shop.options)) as generations:
        back = roll_back("search", generations, shop.held())
        assert (back.number, back.former, back.behind) == (1, 2, 2)
        with pytest.raises(StoreError, match="is live"):
            generations.drop(1)
    shop.follow()
    assert shop.found() == after
    with closing(generations_of("search", shop.options)) as generations:
        generations.drop(2)
        with pytest.raises(ConfigError, match="no generation that was live before"):
            roll_back("search", generations, shop.held())
    assert shop.generations() == {1: GenerationState.LIVE}
    indices = shop.server.request("GET", "/_cat/indices?format=json&expand_wildcards=all")
    assert not [one["index"] for one in indices if "gen2" in one["index"] or "@g2" in one["index"]]


class At:
    """Does something when a crash point is reached."""

    def __init__(self, point: str, work: Callable[[], None]) -> None:
        self.point = point
        self.work = work

    def reach(self, name: str) -> None:
        if name == self.point:
            self.work()


def test_a_generation_with_a_row_that_differs_is_not_swapped(shop: Shop) -> None:
    before = shop.found()

    def tamper() -> None:
        """One document is changed, where a dead letter says that there is none, and one is deleted."""
        letter = {"table": "public.orders", "position": 1, "reason": "too long"}
        whole = {**letter, "letter": Letter("public.orders", Position(1), "too long", "1").to_json()}
        shop.server.request("PUT", "/.headwater-search@g2@dead/_doc/public.orders@1", whole)
        changed = {"script": {"source": "ctx._source.status = 'changed'"}, "query": {"ids": {"values": ["1"]}}}
        shop.server.request("POST", "/public.orders.gen2@1/_refresh")
        shop.server.request("POST", "/public.orders.gen2@1/_update_by_query", changed)
        shop.server.request("DELETE", "/public.orders.gen2@1/_doc/2")

    with decided_by(At("generations.built", tamper)):
        done = shop.bootstrap()
    assert (done.swapped, done.number) == (False, 2)
    differ = {one.table: (one.differ, one.aside, {key["id"] for key in one.keys}) for one in done.tables}
    assert differ == {"public.orders": (2, 0, {"1", "2"}), "public.pairs": (0, 0, set())}
    assert shop.generations() == {1: GenerationState.LIVE, 2: GenerationState.BUILDING}
    assert shop.found() == before
    shop.put(batch(ORDERS, [(Op.UPDATE, 5, order(1, "paid"))]))
    shop.follow()
    assert shop.found() == {**before, "1": "paid"}


def test_a_generation_that_has_lost_an_index_is_not_shown(shop: Shop) -> None:
    lost, pairs = "it lacks what it said that it holds", shop.found("public.pairs")

    def lose(index: str) -> None:
        shop.server.request("DELETE", f"/{index}")

    with decided_by(At("generations.search_held", lambda: lose("public.pairs.gen2@1"))), pytest.raises(StoreError):
        shop.bootstrap()
    assert shop.found("public.pairs") == pairs
    assert shop.bootstrap().swapped, "it is filled again"
    lose("public.pairs@1")
    with closing(generations_of("search", shop.options)) as generations, pytest.raises(StoreError, match=lost):
        roll_back("search", generations, shop.held())
    assert shop.found("public.pairs") == pairs
    assert shop.generations() == {1: GenerationState.KEPT, 2: GenerationState.LIVE}


def test_the_generation_that_readers_see_is_not_removed_where_its_ledger_does_not_say_so(shop: Shop) -> None:
    """As a ledger from before there were generations."""
    alias = {"index": ".headwater-search", "alias": ".headwater-search@live"}
    shop.server.request("POST", "/_aliases", {"actions": [{"remove": alias}]})
    with closing(generations_of("search", shop.options)) as generations, pytest.raises(StoreError, match="is live"):
        generations.drop(1)
    assert shop.generations() == {1: GenerationState.LIVE}
    shop.follow()
    assert shop.bootstrap().swapped


def test_a_live_generation_of_another_log_or_beyond_this_one_is_left_alone(shop: Shop) -> None:
    older = shop.log.copied()
    shop.put(upserts(ORDERS, 5, [order(4)]))
    shop.follow()
    shop.log = older
    with pytest.raises(Stopped, match="DIVERGED"):
        shop.bootstrap()
    shop.log = LooseLog()
    shop.put(upserts(ORDERS, 1, [order(9)]))
    with pytest.raises(Stopped, match="OTHER_LOG"):
        shop.bootstrap()
    assert shop.generations() == {1: GenerationState.LIVE}


def test_one_that_was_begun_is_filled_again_where_the_log_cannot_bring_it_on(shop: Shop) -> None:
    assert points.killed(lambda: print(shop.bootstrap()), "generations.built=kill") == KILLED
    shop.put(batch(ORDERS, [(Op.DELETE, 5, order(1))]), upserts(PAIRS, 6, [pair(2)]))
    shop.follow()
    shop.log.forget("public.orders", 6)
    done = shop.bootstrap()
    assert (done.swapped, done.number, done.rows) == (True, 2, 4)
    with closing(generations_of("search", shop.options)) as generations, pytest.raises(ConfigError, match="generation 7"):
        roll_back("search", generations, shop.held(), 7)


def test_rows_that_compaction_has_taken_from_the_log_meanwhile_are_no_difference(shop: Shop) -> None:
    def compact() -> None:
        shop.put(batch(ORDERS, [(Op.UPDATE, 5, order(1, "paid"))]))
        shop.follow()
        shop.log.supersede("public.orders", 6)

    with decided_by(At("generations.caught_up", compact)):
        done = shop.bootstrap()
    assert done.swapped, done
    assert shop.found() == {"1": "paid", "2": "new", "3": "new"}


def test_tables_that_come_and_go_meanwhile_are_there_or_gone_afterwards(shop: Shop) -> None:
    def come_and_go() -> None:
        shop.put(schema(PAIRS, 5, Kind.DROPPED, empties=True), upserts(EVENTS, 6, [order(7)]))
        shop.follow()

    for point in ("generations.built", "generations.compared"):
        with decided_by(At(point, come_and_go)):
            done = shop.bootstrap()
        assert done.swapped, done
        shop.follow()
        assert shop.found() == {"1": "new", "2": "new", "3": "new"}
        assert shop.found("public.pairs") == {}
        assert shop.found("public.events") == {"7": "new"}


def test_a_store_that_would_be_empty_is_not_built(shop: Shop) -> None:
    shop.options = Options.model_validate({"kind": "opensearch", "url": shop.server.url, "tables": ["public.none"]})
    with pytest.raises(ConfigError, match="no table"):
        shop.bootstrap()
    assert list(shop.found("public.pairs").values()) == ["v"]


def test_a_kill_at_any_step_leaves_the_live_one_or_is_gone_on_with(shop: Shop) -> None:
    """Each time in a process of its own; then the follower goes on, and whoever builds begins again."""
    before = shop.found()
    steps = [point for point in points.of("generations") if point != "generations.search_indices_removed"]
    assert len(steps) == 6
    for number, point in enumerate(steps, start=2):
        assert points.killed(lambda: print(shop.bootstrap()), f"{point}=kill") == KILLED, point
        swapped = point == "generations.search_swapped"
        live = next(one for one, state in shop.generations().items() if state is GenerationState.LIVE)
        assert live == (number if swapped else number - 1), point
        assert shop.found() == before, point
        if point in ("generations.search_held", "generations.search_before_swap"):
            with pytest.raises(StoreError, match="about to take"):
                shop.follow()
            shop.clock.now += HELD_AT_MOST_S
        status = f"after {number}"
        shop.put(batch(ORDERS, [(Op.UPDATE, 10 + number, order(1, status))]))
        shop.follow()
        before["1"] = status
        assert shop.found() == before, point
        if not swapped:
            assert shop.bootstrap().number == number, point
        assert shop.found() == before, point

    def drop() -> None:
        with closing(generations_of("search", shop.options)) as generations:
            generations.drop(1)

    assert points.killed(drop, "generations.search_indices_removed=kill") == KILLED
    assert 1 in shop.generations()
    drop()
    assert 1 not in shop.generations()
    assert shop.found() == before


@contextmanager
def repeated(work: Callable[[], None]) -> Iterator[list[BaseException]]:
    """Does it again and again in a thread; yields what it has failed with."""
    failed: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        while not done.is_set():
            try:
                work()
            except BaseException as error:
                failed.append(error)
                return

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield failed
    finally:
        done.set()
        thread.join(60)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_S
    while not true():
        assert time.monotonic() < deadline, "it does not come true"
        time.sleep(0.1)


@pytest.mark.timeout(900)
def test_readers_see_a_whole_index_all_the_time(opensearch: OpenSearch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands of docs/stores.md, one after the other, beside the product's follower, traffic and a reader."""
    page = (Path(__file__).parents[2] / "docs" / "stores.md").read_text(encoding="utf-8")
    documented = re.findall(r"^cdc ((?:bootstrap|generations|rollback) search.*)$", page, re.MULTILINE)
    assert len(documented) == 4
    bootstrap, generations, rollback, drop = (line.split() for line in documented)
    config = tmp_path / "cdc.toml"
    config.write_text(
        f'run_dir = "{tmp_path / "run"}"\n[source]\ndsn = "postgresql://nobody@127.0.0.1:1/none"\n[log]\ndir = "{tmp_path / "log"}"\n'
        f'[stores.search]\nkind = "opensearch"\nurl = "{opensearch.url}"\nrefresh_interval = "100ms"\n',
        encoding="utf-8",
    )
    settings = load(config, options_model)
    rows, position = 500, 500
    last: dict[int, str] = {}

    def cdc(*arguments: str) -> Any:
        code = main(["--config", str(config), *arguments, "--json"])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        return json.loads(printed.out.splitlines()[-1])

    def change() -> None:
        nonlocal position
        position += 1
        key = position % rows + 1
        last[key] = f"changed at {position}"
        writer.append(batch(ORDERS, [(Op.UPDATE, position, order(key, last[key]))]))
        writer.commit(Lsn(position), position)
        time.sleep(0.02)

    def read() -> None:
        assert opensearch.request("GET", "/public.orders/_count")["count"] == rows
        time.sleep(0.02)

    def shows_all() -> bool:
        hits = opensearch.request("POST", "/public.orders/_search", {"size": 2 * rows})["hits"]["hits"]
        found = {int(hit["_id"]): hit["_source"]["status"] for hit in hits}
        return len(hits) == rows and all(found[key] == status for key, status in last.items())

    with closing(EmbeddedLogWriter(settings.log.dir)) as writer:
        writer.append(upserts(ORDERS, 1, [order(key) for key in range(1, rows + 1)]))
        writer.commit(Lsn(rows), rows)
        with followed(settings):
            until(lambda: opensearch.request("GET", "/_cat/aliases/public.orders?format=json") != [] and shows_all())
            with repeated(change) as change_failed, repeated(read) as read_failed:
                done = cdc(*bootstrap)
                at_the_swap = position
                until(lambda: position > at_the_swap + 5)
            assert (change_failed, read_failed) == ([], [])
            assert (done["generation"], done["swapped"], done["rows"]) == (2, True, rows)
            assert done["position"] > rows, "it was built under traffic"
            until(shows_all)
            with repeated(read) as read_failed:
                back = cdc(*rollback)
                assert (back["generation"], back["former"]) == (1, 2)
                assert back["behind"] >= 5
                change()
                until(shows_all)
            assert read_failed == []
            listed = {one["number"]: one for one in cdc(*generations)["generations"]}
            assert {number: one["state"] for number, one in listed.items()} == {1: "live", 2: "kept"}
            assert (listed[1]["behind"], listed[2]["rows"]) == (0, rows)
            assert listed[2]["bytes"] > 0
            assert [one["number"] for one in cdc(*drop)["generations"]] == [1]


@contextmanager
def followed(settings: Settings) -> Iterator[None]:
    """As the daemon follows the store, without Spark."""
    stop = threading.Event()

    def follow() -> None:
        with closing(open_reader(settings.log.dir)) as reader:
            follower = Follower("search", settings.stores["search"], settings.log.dir, reader, settings.run_dir, stop)
            follower.start()
            while not stop.is_set():
                head = reader.wait(follower.applied.position, 0.05)
                if head.position > follower.applied.position:
                    follower.follow_to(head)
                follower.idle()
            follower.close()

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(120)
