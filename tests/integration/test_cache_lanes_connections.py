"""A cache on a Redis Cluster whose nodes are reached over TLS, or by connections that lose answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest

from cdc.errors import StoreError
from cdc.model.topic import TopicSchema
from sinks.cache.lane import Lane
from sinks.cache.lanesink import DividedCacheSink
from sinks.cache.resp import EXEC
from tests.contract.lossy_proxy import LossyProxy
from tests.contract.rows import NUMBERED, order
from tests.integration.certificates import Authority
from tests.integration.test_cache_lanes import LANES, Site
from tests.integration.tls_front import tls_front
from tests.rediscluster import Node, RedisCluster
from tests.waiting import until

ROWS = 60


@pytest.fixture
def site(private_cluster: RedisCluster) -> Iterator[Site]:
    with closing(Site(private_cluster)) as one:
        yield one


class Secured:
    """A TLS end before each node, at the port that the cluster announces for it: nobody is sent to a plain one."""

    def __init__(self, site: Site, folder: Path, stack: ExitStack) -> None:
        self.authority = Authority()
        self.ca = folder / "ca.crt"
        self.ca.write_bytes(self.authority.pem)
        self._site = site
        self._folder = folder
        self._stack = stack
        self._ports: dict[int, int] = {}
        for node in site.cluster.nodes:
            self.secure(node)

    def secure(self, node: Node, *, host: str = "127.0.0.1") -> None:
        """``host``: for whom the node's certificate is."""
        pair = self.authority.server(host=host, address=host) if host != "127.0.0.1" else self.authority.server()
        front = tls_front(*pair.write(self._folder, f"{node.port}-{len(self._ports)}-{host}"), node.port)
        self._ports[node.port] = self._stack.enter_context(front)
        self._site.cluster.announce(node, self._ports[node.port])

    def options(self) -> Mapping[str, object]:
        return {"url": f"rediss://127.0.0.1:{self._ports[self._site.cluster.nodes[0].port]}/0", "ca_certs": self.ca}


@pytest.fixture
def secured(site: Site, tmp_path: Path) -> Iterator[Secured]:
    with ExitStack() as stack:
        yield Secured(site, tmp_path, stack)


def fed(site: Site, sink: DividedCacheSink, status: str) -> None:
    first = int(site.log.head.position) + 1
    site.feed(sink, first, [order(i, status) for i in range(ROWS)])
    site.commit(sink, first + ROWS - 1)


def statuses(sink: DividedCacheSink) -> dict[int, str]:
    return {int(row["id"]): row["status"] for part in sink.scan(TopicSchema.of(NUMBERED)) for row in part.to_pylist()}


def test_every_node_is_reached_over_tls_and_what_takes_its_place(site: Site, secured: Secured) -> None:
    """Its slots move, and a replica takes over: all of it at TLS ports that the cluster names."""
    sink = site.opened(**secured.options())
    fed(site, sink, "new")
    assert {node.port for node in site.cluster.places().values()} == {node.port for node in site.cluster.nodes}
    slot = Lane(0, LANES).slot
    came = site.cluster.owner(slot)
    site.cluster.move(slot, next(node for node in site.cluster.nodes[1:] if node is not came))
    with pytest.raises(StoreError) as caught:
        fed(site, sink, "moved")
    assert caught.value.retryable
    fed(site, sink := site.opened(**secured.options()), "moved")
    primary = site.cluster.owner(slot)
    site.cluster.announce(primary, 0)  # where its replica looks for it, too, in plain text
    replica = site.cluster.add_replica(primary)
    secured.secure(replica)
    until(lambda: replica.ask("DBSIZE") == primary.ask("DBSIZE"), "the replica")
    primary.server.stop()
    site.cluster.promote(replica)
    with suppress(StoreError):  # whether it has met the end of a connection already, and asks anew who has the slot, is chance
        fed(site, sink, "replica")
    until(lambda: goes_on(site, secured), "the store to go on with the replica")
    assert site.cluster.owner(slot) is replica
    with closing(site.opened(**secured.options())) as reading:
        assert statuses(reading) == dict.fromkeys(range(ROWS), "after it")


def goes_on(site: Site, secured: Secured) -> bool:
    """As a follower, which tries again."""
    try:
        with closing(site.sink(**secured.options())) as sink:
            site.open(sink)
            fed(site, sink, "after it")
    except StoreError as error:
        if not error.retryable:
            raise
        return False
    return True


def test_a_node_that_shows_anothers_certificate_is_not_talked_to(site: Site, secured: Secured) -> None:
    secured.secure(site.cluster.nodes[1], host="127.0.0.9")
    with pytest.raises(StoreError, match="no answer from"):
        site.opened(**secured.options())
    assert not any(node is site.cluster.nodes[1] for node in site.cluster.places().values())


@contextmanager
def lossy(cluster: RedisCluster) -> Iterator[Mapping[int, LossyProxy]]:
    """A proxy before each node, by its port, which may lose what a node says of a transaction that it has carried out."""
    with ExitStack() as stack:
        found = {node.port: stack.enter_context(closing(LossyProxy(node.port, only_to=EXEC))) for node in cluster.nodes}
        for node in cluster.nodes:
            cluster.announce(node, found[node.port].port)
        yield found


@pytest.mark.parametrize("value", ["json", pytest.param("hash", marks=pytest.mark.slow)])
def test_what_a_node_did_before_its_answer_was_lost_is_done_once(site: Site, value: str) -> None:
    with lossy(site.cluster) as proxies:
        options = {"url": f"redis://127.0.0.1:{proxies[site.cluster.nodes[0].port].port}/0", "value": value}
        sink = site.opened(**options)
        fed(site, sink, "new")
        for number, node in enumerate(site.cluster.nodes):
            proxy, status = proxies[node.port], f"after {number}"
            mine = {lane for lane in range(LANES) if site.cluster.owner(Lane(lane, LANES).slot) is node}
            assert mine
            held = positions(site, mine)
            proxy.lose_answers = True
            with pytest.raises(StoreError) as caught:
                fed(site, sink, status)
            proxy.lose_answers = False
            assert caught.value.retryable
            assert proxy.lost
            assert positions(site, mine) != held, "the node has done nothing, and the test shows nothing"
            sink = site.opened(**options)
            for changes in site.log.batches[-1:]:
                sink.apply(changes)
            sink.commit(site.log.head)
            assert statuses(sink) == dict.fromkeys(range(ROWS), status)
            assert set(positions(site, set(range(LANES))).values()) == {int(site.log.head.position)}


def positions(site: Site, lanes: set[int]) -> dict[int, int]:
    """How far each lane's ledger says that the table is."""
    found = {}
    for lane in lanes:
        ledger = site.cluster.owner(Lane(lane, LANES).slot).ask("HGETALL", f"cdc:{{{lane}}}:cache:ledger")
        fields = dict(zip(ledger[::2], ledger[1::2], strict=True))
        found[lane] = max(int(text) for name, text in fields.items() if name == b"position" or name.startswith(b"at:"))
    return found
