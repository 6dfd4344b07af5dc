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
from cdc.generations import feeder
from cdc.generations.alone import GenerationInUse, alone, writing
from cdc.generations.bootstrap import Bootstrap, Bootstrapped
from cdc.generations.feeder import GenerationFeeder
from cdc.generations.follower import GenerationFollower
from cdc.generations.rollback import RolledBack, roll_back
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.log.home import open_reader
from cdc.model.batch import Op
from cdc.model.evolution import Kind
from cdc.model.position import Lsn, Position
from cdc.model.topic import TopicSchema
from cdc.settings.file import load
from cdc.settings.models import Settings
from cdc.state import status
from sinks import generations_of, options_model
from sinks.deadletters import Letter, LetterState
from sinks.generations import HELD_AT_MOST_S, GenerationState
from sinks.heldlog import HeldLog
from sinks.search.sink import Options, SearchSink
from tests.contract.rows import ORDERS, PAIRS, batch, order, schema, upserts
from tests.contract.test_marks import apply, pair
from tests.faults import points
from tests.logs import LooseLog
from tests.waiting import until

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

    @property
    def run_dir(self) -> Path:
        return self.folder / "run"

    def bootstrap(self, keep_s: float | None = None) -> Bootstrapped:
        with closing(generations_of("search", self.options)) as generations:
            rules = Rules("search", self.options)
            made = Bootstrap(self.folder, self.run_dir, self.held(), generations, rules, keep_s, threading.Event())
            return made.carry_out()

    def roll_back(self, number: int | None = None, keep_s: float | None = None) -> RolledBack:
        follower = GenerationFollower(self.folder, self.held(), Rules("search", self.options), threading.Event())
        with closing(generations_of("search", self.options)) as generations, alone(self.folder, "search"):
            return roll_back(follower, generations, self.run_dir, keep_s, number)

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

    back = shop.roll_back()
    assert (back.number, back.former, back.brought) == (1, 2, 2)
    assert shop.found() == after, "nobody has fed it, and yet it lacks nothing"
    with closing(generations_of("search", shop.options)) as generations, pytest.raises(StoreError, match="is live"):
        generations.drop(1)
    shop.follow()
    assert shop.found() == after
    with closing(generations_of("search", shop.options)) as generations:
        generations.drop(2)
    with pytest.raises(ConfigError, match="no generation that was live before"):
        shop.roll_back()
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
    pairs = shop.found("public.pairs")

    def lose(index: str) -> None:
        shop.server.request("DELETE", f"/{index}")

    with decided_by(At("generations.search_held", lambda: lose("public.pairs.gen2@1"))), pytest.raises(StoreError):
        shop.bootstrap()
    assert shop.found("public.pairs") == pairs
    assert shop.bootstrap().swapped, "it is filled again"
    lose("public.pairs@1")
    assert shop.roll_back().brought, "what it has lost is brought to it again first"
    assert shop.found("public.pairs") == pairs
    assert shop.generations() == {1: GenerationState.LIVE, 2: GenerationState.KEPT}


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
    with pytest.raises(ConfigError, match="generation 7"):
        shop.roll_back(7)
    shop.put(batch(ORDERS, [(Op.DELETE, 7, order(2))]), upserts(PAIRS, 8, [pair(3)]))
    shop.follow()
    shop.log.forget("public.orders", 8)
    with pytest.raises(Stopped, match="POSITION_GONE"):
        shop.roll_back()
    assert shop.generations() == {1: GenerationState.KEPT, 2: GenerationState.LIVE}


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
    steps = points.generation_steps("search")
    assert len(steps) == 7
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


def letter_of(shop: Shop, generation: str, at: int, state: LetterState = LetterState.ASIDE, **decided: Any) -> Letter:
    """A dead letter that says of a change of public.orders that it cannot be held."""
    letter = Letter("public.orders", Position(at), "too long", str(at), state=state, **decided)
    said = {"table": letter.table, "position": at, "reason": letter.reason, "letter": letter.to_json()}
    shop.server.request("PUT", f"/.headwater-search{generation}@dead/_doc/{letter.id}", said)
    return letter


def test_what_was_decided_about_dead_letters_comes_along(shop: Shop) -> None:
    """Row 1 was corrected, row 2 accepted, of row 3 nobody has said anything; of row 9 the other generation knows nothing."""
    corrected = letter_of(shop, "", 1, LetterState.EDITED, by="ann", values={"status": "paid"})
    accepted = letter_of(shop, "", 2, LetterState.ACCEPTED, by="bob")
    letter_of(shop, "", 3)
    letter_of(shop, "", 9, LetterState.ACCEPTED, by="bob")

    def find_them_there() -> None:
        for at in (1, 2, 3):
            letter_of(shop, "@g2", at)
            shop.server.request("DELETE", f"/public.orders.gen2@1/_doc/{at}")

    with decided_by(At("generations.built", find_them_there)):
        done = shop.bootstrap()
    assert done.swapped, done
    assert (done.decisions.carried, done.decisions.left) == (2, ())
    with closing(SearchSink("search", shop.options)) as unopened:
        found = {one.id: (one.state, one.by, dict(one.values)) for one in unopened.letters()}
    assert found == {
        corrected.id: (LetterState.EDITED, "ann", {"status": "paid"}),
        accepted.id: (LetterState.ACCEPTED, "bob", {}),
        "public.orders@3": (LetterState.ASIDE, "", {}),
    }
    assert shop.found() == {"1": "paid"}
    assert shop.roll_back().decisions.carried == 0, "the former has them already"


def settings_of(folder: Path, server: OpenSearch) -> Settings:
    config = folder / "cdc.toml"
    config.write_text(
        f'run_dir = "{folder / "run"}"\n[source]\ndsn = "postgresql://nobody@127.0.0.1:1/none"\n[log]\ndir = "{folder / "log"}"\n'
        f'[stores.search]\nkind = "opensearch"\nurl = "{server.url}"\nrefresh_interval = "100ms"\n',
        encoding="utf-8",
    )
    return load(config, options_model)


def test_one_that_cannot_be_fed_holds_up_nobody_and_one_goes_when_its_time_is_over(
    opensearch: OpenSearch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeder, "RETRY_S", (0.2,))
    settings = settings_of(tmp_path, opensearch)
    run_dir, options = settings.run_dir, settings.stores["search"]

    def put(position: int, status: str) -> None:
        writer.append(batch(ORDERS, [(Op.UPDATE, position, order(1, status))]))
        writer.commit(Lsn(position), position)

    def shown() -> list[str]:
        opensearch.request("POST", "/public.orders/_refresh")
        return [one["_source"]["status"] for one in opensearch.request("POST", "/public.orders/_search", {})["hits"]["hits"]]

    def states() -> dict[int, GenerationState]:
        with closing(generations_of("search", options)) as generations:
            return {one.number: one.state for one in generations.entries()}

    def built(keep_s: float | None) -> Bootstrapped:
        with closing(open_reader(settings.log.dir)) as reader, closing(generations_of("search", options)) as generations:
            held, rules = HeldLog(reader, "search", options), Rules("search", options)
            return Bootstrap(settings.log.dir, run_dir, held, generations, rules, keep_s, threading.Event()).carry_out()

    with closing(EmbeddedLogWriter(settings.log.dir)) as writer:
        put(1, "new")
        with followed(settings):
            until(lambda: opensearch.request("GET", "/_cat/aliases/public.orders?format=json") != [] and shown() == ["new"])
            assert built(None).swapped
            assert [(one.number, one.state, one.position) for one in status.read_generations(run_dir, "search")] == [(1, "kept", 1)]
            with fed(settings):
                put(2, "paid")
                until(lambda: told(settings, 1).position == 2)
                opensearch.request("PUT", "/public.orders@1/_settings", {"index.blocks.write": True})
                put(3, "sent")
                until(lambda: told(settings, 1).error is not None)
                until(lambda: shown() == ["sent"])
                assert told(settings, 1).position == 2
                assert built(0.0).swapped
                until(lambda: 2 not in states())
                assert states() == {1: GenerationState.KEPT, 3: GenerationState.LIVE}
                opensearch.request("PUT", "/public.orders@1/_settings", {"index.blocks.write": None})
                until(lambda: told(settings, 1).position == 3)
                assert told(settings, 1).error is None
            assert [one.number for one in status.read_generations(run_dir, "search")] == [1]


def test_only_one_works_on_generations_at_a_time(shop: Shop) -> None:
    with alone(shop.folder, "search"), pytest.raises(GenerationInUse, match="another process"):
        shop.bootstrap()
    assert shop.bootstrap().swapped
    with writing(shop.folder, "search", 1), pytest.raises(GenerationInUse), writing(shop.folder, "search", 1, patience_s=0.1):
        pass
    assert shop.roll_back().number == 1


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


@pytest.mark.timeout(900)
def test_readers_see_a_whole_index_all_the_time(opensearch: OpenSearch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands of docs/stores.md, one after the other, beside the product's follower, traffic and a reader."""
    page = (Path(__file__).parents[2] / "docs" / "stores.md").read_text(encoding="utf-8")
    documented = re.findall(r"^cdc ((?:bootstrap|generations|rollback) search.*)$", page, re.MULTILINE)
    assert len(documented) == 4
    bootstrap, generations, rollback, drop = (line.split() for line in documented)
    settings, config = settings_of(tmp_path, opensearch), tmp_path / "cdc.toml"
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
            with fed(settings):
                until(lambda: told(settings, 1).position == position)
                with repeated(read) as read_failed:
                    back = cdc(*rollback)
                    assert (back["generation"], back["former"], back["brought"]) == (1, 2, 0)
                    opensearch.request("POST", "/public.orders/_refresh")
                    assert shows_all(), "it was fed, so nothing is missing"
                    change()
                    until(shows_all)
                assert read_failed == []
                until(lambda: told(settings, 2).position == position)
            listed = {one["number"]: one for one in cdc(*generations)["generations"]}
            assert {number: one["state"] for number, one in listed.items()} == {1: "live", 2: "kept"}
            assert (listed[1]["behind"], listed[2]["behind"], listed[2]["rows"]) == (0, 0, rows)
            assert (listed[1]["until"], listed[2]["until"] > time.time() + 86_000) == (None, True)
            assert listed[2]["bytes"] > 0
            assert [one["number"] for one in cdc(*drop)["generations"]] == [1]
            assert status.read_generations(settings.run_dir, "search") == []


def told(settings: Settings, number: int) -> status.GenerationStatus:
    """What is said of this generation; nothing where there is no word of it yet."""
    found = [one for one in status.read_generations(settings.run_dir, "search") if one.number == number]
    return found[0] if found else status.GenerationStatus(store="search")


@contextmanager
def fed(settings: Settings) -> Iterator[None]:
    """As the daemon feeds what is kept."""
    stop = threading.Event()
    thread = GenerationFeeder(settings, lambda: settings.stores, stop)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(LONG_S)


@contextmanager
def followed(settings: Settings, store: str = "search") -> Iterator[None]:
    """As the daemon follows the store, without Spark."""
    stop = threading.Event()

    def follow() -> None:
        with closing(open_reader(settings.log.dir)) as reader:
            follower = Follower(store, settings.stores[store], settings.log.dir, reader, settings.run_dir, stop)
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
