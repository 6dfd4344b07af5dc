"""A cache on a Redis Cluster of three real nodes: where its keys are, and what becomes of it while slots move, nodes fail and writers sleep."""

from __future__ import annotations

import binascii
import os
import random
import signal
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from cdc.errors import StoreError
from cdc.follow import follower as followers
from cdc.follow.follower import Follower
from cdc.model.topic import TopicSchema
from sinks.cache import Options
from sinks.cache.lane import Lane
from sinks.cache.lanesink import DividedCacheSink
from sinks.cache.resp import Limits
from sinks.cache.sink import CacheSink
from sinks.contract import Outcome
from tests.contract.rows import NUMBERED, PAIRS, Row, order, upserts
from tests.faults.points import EVERYTHING
from tests.integration.test_cache_histories import MODULES, Died, World
from tests.logs import LooseLog, cut
from tests.rediscluster import Node, RedisCluster

LANES = 5
DIVIDED = (*MODULES, "sinks.cache.lanesink")


class Site:
    """One store on a cluster, and the log that is written into it."""

    def __init__(self, cluster: RedisCluster) -> None:
        self.cluster = cluster
        self.log = LooseLog()
        self.epoch = 10
        self._made: list[DividedCacheSink] = []

    def sink(self, **options: Any) -> DividedCacheSink:
        given = {"kind": "redis", "url": self.cluster.url, "lanes": LANES, "key": "order:{lane}:{id}", **options}
        sink = DividedCacheSink("cache", Options.model_validate(given))
        self._made.append(sink)
        return sink

    def opened(self, **options: Any) -> DividedCacheSink:
        sink = self.sink(**options)
        self.open(sink)
        sink.prepare(TopicSchema.of(NUMBERED))
        return sink

    def open(self, sink: DividedCacheSink) -> int:
        self.epoch += 10
        applied = sink.open(self.log.reader(), self.epoch)
        sink.finish()
        return int(applied.position)

    def feed(self, sink: DividedCacheSink, first: int, rows: list[Row]) -> Outcome:
        changes = upserts(NUMBERED, first, rows)
        self.log.put(changes)
        return sink.apply(changes)

    def commit(self, sink: DividedCacheSink, position: int) -> None:
        self.log.reach(cut(position))
        sink.commit(cut(position))

    def statuses(self) -> dict[int, str]:
        """What the store shows of each order."""
        with closing(DividedCacheSink("cache", self._made[0]._options)) as reading:
            reading.open(self.log.reader())
            rows = [row for part in reading.scan(TopicSchema.of(NUMBERED)) for row in part.to_pylist()]
        assert len({row["id"] for row in rows}) == len(rows), "a row stands in two places"
        return {int(row["id"]): row["status"] for row in rows}

    def close(self) -> None:
        for sink in self._made:
            sink.close()


@pytest.fixture
def site(redis_cluster: RedisCluster) -> Iterator[Site]:
    with closing(Site(redis_cluster)) as one:
        yield one


@pytest.fixture
def private(private_cluster: RedisCluster) -> Iterator[Site]:
    with closing(Site(private_cluster)) as one:
        yield one


def lane_of(key: str) -> int:
    """As an application computes it."""
    return binascii.crc_hqx(key.encode(), 0) % LANES


def test_each_row_is_in_the_slot_of_its_lane(site: Site) -> None:
    sink = site.opened()
    site.feed(sink, 1, [order(i, "new") for i in range(200)])
    site.commit(sink, 200)
    there = site.cluster.places()
    rows = {f"order:{{{lane_of(str(i))}}}:{i}" for i in range(200)}
    assert {key for key in there if not key.startswith("cdc:")} == rows
    assert {key for key in there if key.startswith("cdc:")} == {
        f"cdc:{{{lane}}}:{what}" for lane in range(LANES) for what in ("cache:ledger", "stores")
    }
    assert len(set(there.values())) == 3, "every node has a share"
    for key, node in there.items():
        lane = Lane(int(key.partition("{")[2].partition("}")[0]), LANES)
        assert node.ask("CLUSTER", "KEYSLOT", key) == lane.slot
    ledgers = [
        site.cluster.owner(Lane(lane, LANES).slot).ask("HGET", f"cdc:{{{lane}}}:cache:ledger", "position") for lane in range(LANES)
    ]
    assert ledgers == [b"200"] * LANES, "each lane has its own position"


def test_a_key_of_several_columns_has_the_lane_of_all_of_them(site: Site) -> None:
    sink = site.opened(key="{table}:{lane}:{key}")
    sink.prepare(TopicSchema.of(PAIRS))
    changes = upserts(PAIRS, 1, [{"a": "x", "b": "y:z", "v": None}])
    site.log.put(changes)
    sink.apply(changes)
    (found,) = (key for key in site.cluster.places() if key.startswith("pairs:"))
    assert found == f"pairs:{{{lane_of('x:y' + chr(92) + ':z')}}}:x:y{chr(92)}:z"


def test_slots_move_between_batches(private: Site) -> None:
    """Every lane to another node: what is written next meets nobody at the old place, and the store goes on where it was."""
    sink, at = private.opened(), 0
    for round in range(3):
        rows = [order(i, f"round {round}") for i in range(round * 10, round * 10 + 60)]
        with suppress(StoreError):  # the first to meet a slot that has moved
            private.feed(sink, at + 1, rows)
        assert private.open(sink) <= at
        sink.prepare(TopicSchema.of(NUMBERED))
        for changes in private.log.reader().read("public.orders", cut(0).position, private.log.head.position):
            sink.apply(changes)
        at += 60
        private.commit(sink, at)
        assert private.statuses() == {i: f"round {min(i // 10, round)}" for i in range(round * 10 + 60)}
        for lane in range(LANES):
            slot = Lane(lane, LANES).slot
            others = [node for node in private.cluster.nodes if node is not private.cluster.owner(slot)]
            private.cluster.move(slot, others[(lane + round) % 2])


def test_a_slot_that_is_half_moved_takes_nothing(private: Site) -> None:
    """The ledger still here, some of the rows there already; then the ledger there, and rows still here. Nothing is written meanwhile, and then all of it."""
    sink = private.opened()
    private.feed(sink, 1, [order(i, "before") for i in range(60)])
    private.commit(sink, 60)
    lane = lane_of("7")
    slot, cluster = Lane(lane, LANES).slot, private.cluster
    to = next(node for node in cluster.nodes if node is not cluster.owner(slot))
    cluster.begin_move(slot, to)
    for first, moved in ((61, f"order:{{{lane}}}:7"), (62, f"cdc:{{{lane}}}:cache:ledger")):
        cluster.move_keys(slot, to, moved)
        with pytest.raises(StoreError, match="moving a slot") as failure:
            private.feed(sink, first, [order(7, f"at {first}")])
        assert failure.value.retryable
        with pytest.raises(StoreError, match="moving a slot"):
            open_and_apply(private, sink, first)
    cluster.move_keys(slot, to)
    cluster.end_move(slot, to)
    assert private.statuses()[7] == "before"
    assert private.open(sink) == 60
    sink.prepare(TopicSchema.of(NUMBERED))
    for changes in private.log.reader().read("public.orders", cut(60).position, private.log.head.position):
        sink.apply(changes)
    private.commit(sink, 62)
    assert private.statuses() == {**dict.fromkeys(range(60), "before"), 7: "at 62"}


def open_and_apply(site: Site, sink: DividedCacheSink, first: int) -> None:
    site.open(sink)
    sink.apply(upserts(NUMBERED, first, [order(7, f"at {first}")]))


def test_where_a_lane_has_lost_its_shape_the_store_has_none(private: Site) -> None:
    """Whoever follows it takes every change before the shape for applied."""
    sink = private.opened()
    private.feed(sink, 1, [order(i, "new") for i in range(50)])
    private.commit(sink, 50)
    assert sink.shape("public.orders") is not None
    lane = Lane(3, LANES)
    private.cluster.owner(lane.slot).ask("DEL", f"cdc:{{{lane.number}}}:cache:ledger")
    again = private.sink()
    assert private.open(again) == 0
    assert again.shape("public.orders") is None


def test_nobody_looks_through_a_slot_that_moves(private: Site) -> None:
    sink = private.opened()
    private.feed(sink, 1, [order(i, "new") for i in range(200)])
    private.commit(sink, 200)
    lane = Lane(2, LANES)
    there = private.cluster.owner(lane.slot)
    other = next(node for node in private.cluster.nodes if node is not there)
    private.cluster.begin_move(lane.slot, other)
    some = [key for key in (key.decode() for key in there.ask("CLUSTER", "GETKEYSINSLOT", lane.slot, 1000)) if ":ledger" not in key]
    private.cluster.move_keys(lane.slot, other, *some[:5])
    with pytest.raises(StoreError, match="is moving a slot") as refused:
        private.statuses()
    assert refused.value.retryable
    private.cluster.move_keys(lane.slot, other)
    private.cluster.end_move(lane.slot, other)
    assert len(private.statuses()) == 200


def test_a_replica_that_lacks_the_last_writes_takes_over(private: Site) -> None:
    """A node's lanes go back in time together, ledgers and rows; the others keep what they have, and skip it when it comes again."""
    cluster = private.cluster
    primary = cluster.owner(Lane(0, LANES).slot)
    replica = cluster.add_replica(primary)
    sink = private.opened()
    private.feed(sink, 1, [order(i, "first") for i in range(60)])
    private.commit(sink, 60)
    assert primary.ask("WAIT", 1, 10_000) == 1
    os.kill(replica.server.pid, signal.SIGSTOP)
    primary.ask("CLIENT", "KILL", "TYPE", "replica")  # what is written from here on is not even under way to it
    private.feed(sink, 61, [order(i, "second") for i in range(60)])
    private.commit(sink, 120)
    primary.server.crash()
    os.kill(replica.server.pid, signal.SIGCONT)
    cluster.promote(replica)
    with pytest.raises(StoreError) as failure:
        private.feed(sink, 121, [order(i, "third") for i in range(30)])
    assert failure.value.retryable
    with closing(private.sink(url=f"redis://127.0.0.1:{replica.port}/0")) as other:
        assert private.open(other) == 60, "what the least of the lanes has"
        other.prepare(TopicSchema.of(NUMBERED))
        outcome = Outcome(0)
        for changes in private.log.reader().read("public.orders", cut(60).position, cut(120).position):
            outcome += other.apply(changes)
        assert 0 < outcome.stale < 60, "the other nodes have it"
        for changes in private.log.reader().read("public.orders", cut(120).position, private.log.head.position):
            other.apply(changes)
        private.commit(other, 150)
        rows = [row for part in other.scan(TopicSchema.of(NUMBERED)) for row in part.to_pylist()]
    assert {int(row["id"]): row["status"] for row in rows} == {i: "third" if i < 30 else "second" for i in range(60)}


def test_another_number_of_lanes_waits_for_a_rebuild(site: Site) -> None:
    sink = site.opened()
    site.feed(sink, 1, [order(i, "new") for i in range(60)])
    site.commit(sink, 60)
    for lanes in (LANES - 2, LANES + 2):
        with pytest.raises(StoreError, match=f"divided into {LANES} lanes, and `lanes` says {lanes}") as failure:
            site.open(site.sink(lanes=lanes))
        assert not failure.value.retryable
    assert len(site.statuses()) == 60


def test_a_server_that_is_not_a_cluster_is_refused(valkey: Any, site: Site) -> None:
    with pytest.raises(StoreError, match="is not a node of a Redis Cluster") as failure:
        site.open(site.sink(url=valkey.url))
    assert failure.value.hint == "leave lanes out of [stores.cache], and {lane} out of its `key`"


def test_a_cluster_without_lanes_is_refused(site: Site) -> None:
    options = Options.model_validate({"kind": "redis", "url": site.cluster.url})
    with closing(CacheSink("cache", options)) as sink, pytest.raises(StoreError, match="is a node of a Redis Cluster") as failure:
        sink.open(site.log.reader(), 1)
    assert not failure.value.retryable
    assert "lanes = 16 in [stores.cache]" in (failure.value.hint or "")


def test_keys_are_published(site: Site) -> None:
    sink = site.opened(tables={"public.*": {"publish": "orders"}})
    with site.cluster.nodes[0].client() as client, closing(client.pubsub()) as listener:
        listener.subscribe("orders")
        assert listener.get_message(timeout=30)
        site.feed(sink, 1, [order(i) for i in range(10)])
        heard = set()
        while len(heard) < 10 and (message := listener.get_message(timeout=30)):
            heard.add(message["data"].decode())
    assert heard == {f"order:{{{lane_of(str(i))}}}:{i}" for i in range(10)}


class LanesWorld(World):
    """``World`` on a cluster: its nodes lose what they have, lanes are put back to what they were, slots move, at once or half way."""

    def __init__(self, cluster: RedisCluster, folder: Path, chance: random.Random, value: str) -> None:
        self.cluster = cluster
        self.moving: tuple[int, Node] | None = None
        self.arriving = threading.RLock()
        self.lanes: list[tuple[int, dict[bytes, bytes]]] = []
        super().__init__(cluster.url, folder, chance, value)

    def _accident(self, point: str) -> None:
        what = self.chance.choice(["flush", "restore", "lose the ledger", "cut off", "move", "half", "die", "replaced", "zombie"])
        self.met.append(f"{what} at {point}")
        lane = Lane(self.chance.randrange(LANES), LANES)
        match what:
            case "flush":
                self.chance.choice(self.cluster.nodes).ask("FLUSHALL")
            case "restore":
                self._restore()
            case "lose the ledger":
                with suppress(Exception):  # it is half way to another node
                    self.cluster.owner(lane.slot).ask("DEL", f"cdc:{{{lane.number}}}:cache:ledger")
            case "cut off":
                for node in self.cluster.nodes:
                    with node.client() as client:
                        client.client_kill_filter(_type="normal", skipme=True)
            case "move":
                self.arrive()
                self.cluster.move(lane.slot, self._another(lane.slot))
            case "half":
                self.arrive()
                self.moving = lane.slot, self._another(lane.slot)
                self.cluster.begin_move(*self.moving)
                there = self.cluster.owner(lane.slot).ask("CLUSTER", "GETKEYSINSLOT", lane.slot, 1000)
                some = [key.decode() for key in there if self.chance.random() < 0.5]
                if some:
                    self.cluster.move_keys(*self.moving, *some)
                threading.Timer(0.2, self.arrive).start()  # nobody gets anywhere before
            case "die":
                raise Died
            case "replaced":
                self._replace()
                raise Died
            case "zombie":
                self._wake()

    def arrive(self) -> None:
        """A slot that is half way gets to its end."""
        with self.arriving:
            if self.moving is not None:
                self.cluster.move_keys(*self.moving)
                self.cluster.end_move(*self.moving)
                self.moving = None

    def _another(self, slot: int) -> Node:
        return self.chance.choice([node for node in self.cluster.nodes if node is not self.cluster.owner(slot)])

    def copy(self) -> None:
        if self.moving is None:
            lane = Lane(self.chance.randrange(LANES), LANES)
            node = self.cluster.owner(lane.slot)
            keys = node.ask("CLUSTER", "GETKEYSINSLOT", lane.slot, 100_000)
            self.lanes.append((lane.slot, {key: node.ask("DUMP", key) for key in keys}))

    def _restore(self) -> None:
        self.arrive()
        if self.lanes:
            slot, copy = self.chance.choice(self.lanes)
            node = self.cluster.owner(slot)
            for key in node.ask("CLUSTER", "GETKEYSINSLOT", slot, 100_000):
                node.ask("DEL", key)
            for key, content in copy.items():
                node.ask("RESTORE", key, 0, content)

    def finish(self) -> None:
        self.arrive()
        super().finish()

    def close(self) -> None:
        self.arrive()
        super().close()

    def _said(self) -> Options:
        given = {"kind": "redis", "url": self.cluster.url, "lanes": LANES, "value": self.value, "batch_rows": 40}
        return Options.model_validate(given)

    def _follower(self) -> Follower:
        reader = self.source.log.reader()
        return Follower("cache", self._said(), self.folder / "log", reader, self.folder / "run", threading.Event())

    def _reading(self) -> Any:
        return DividedCacheSink("cache", self._said())


@pytest.mark.parametrize("value", ["json", "hash"])
@pytest.mark.parametrize("round", range(3) if EVERYTHING else range(1))
def test_a_random_history(
    private_cluster: RedisCluster, tmp_path: Path, seed: int, round: int, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followers, "FIRST_RETRY_S", 0.001)
    monkeypatch.setattr(followers, "LONGEST_RETRY_S", 0.01)
    monkeypatch.setattr(followers, "_LOOK_AT_THE_STORE_S", 0.0)
    monkeypatch.setattr("sinks.cache.rowwriter.LIMITS", Limits(7, 1 << 20))
    world = LanesWorld(private_cluster, tmp_path, random.Random(seed + round), value)
    for module in DIVIDED:
        monkeypatch.setattr(f"{module}.crashpoint", world.at)
    with closing(world):
        for _ in range(30):
            world.step()
            world.assert_honest()
        world.finish()
