"""A Redis Cluster of three real nodes, whose slots tests can move and whose nodes they can take down."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis

from cdc.embedded.processes import free_port
from cdc.embedded.valkey import Valkey
from tests.waiting import until

NODES = 3
SLOTS = 16384


class Node:
    """One server."""

    def __init__(self, folder: Path) -> None:
        self.bus_port = free_port()
        options = ["--cluster-enabled", "yes", "--cluster-port", str(self.bus_port), "--cluster-node-timeout", "2000"]
        # So that it goes on with the slots that it has while others are away.
        options += ["--cluster-require-full-coverage", "no", "--repl-diskless-sync-delay", "0"]
        self.server = Valkey(folder / f"node-{uuid.uuid4().hex[:8]}", options=options)

    @property
    def port(self) -> int:
        return self.server.port

    @contextmanager
    def client(self, **options: Any) -> Iterator[redis.Redis]:
        with closing(redis.Redis(port=self.port, protocol=2, socket_timeout=30, **options)) as client:
            yield client

    def ask(self, *command: str | int) -> Any:
        with self.client() as client:
            client.response_callbacks.clear()
            return client.execute_command(*command)

    def ports_said(self) -> set[int]:
        """The ports at which the node sends clients to others of the cluster, and to itself."""
        lines = self.ask("CLUSTER", "NODES").decode().splitlines()
        return {int(line.split()[1].partition("@")[0].rpartition(":")[2]) for line in lines}

    @property
    def id(self) -> str:
        return str(self.ask("CLUSTER", "MYID").decode())

    def state(self) -> dict[str, str]:
        return dict(line.split(":", 1) for line in self.ask("CLUSTER", "INFO").decode().split("\r\n") if ":" in line)


@dataclass
class RedisCluster:
    """``stop`` ends all of it. ``nodes``: the primaries, as they were made; then the replicas."""

    folder: Path
    nodes: list[Node] = field(default_factory=list)

    def start(self) -> None:
        """Once they were made, the nodes come back with what they had."""
        if self.nodes:
            for node in self.nodes:
                node.server.start()
            until(self._is_whole, "the cluster")
            return
        self.nodes = [Node(self.folder) for _ in range(NODES)]
        for at, node in enumerate(self.nodes):
            node.server.start()
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", at + 1)
            node.ask("CLUSTER", "ADDSLOTSRANGE", SLOTS * at // NODES, SLOTS * (at + 1) // NODES - 1)
        for node in self.nodes[1:]:
            self._meet(node)
        until(self._is_whole, "the cluster")

    def add_replica(self, of: Node) -> Node:
        """Returns it once it has everything."""
        node = Node(self.folder)
        node.server.start()
        self.nodes.append(node)
        self._meet(node)
        until(lambda: of.id.encode() in node.ask("CLUSTER", "NODES"), "the replica to know its primary")
        node.ask("CLUSTER", "REPLICATE", of.id)
        until(lambda: b"master_link_status:up" in node.ask("INFO", "replication"), "the replica's link")
        return node

    def promote(self, replica: Node) -> None:
        """It takes the slots of its primary, whether or not that is there."""
        replica.ask("CLUSTER", "FAILOVER", "TAKEOVER")
        until(lambda: b"role:master" in replica.ask("INFO", "replication"), "the promotion")

    def announce(self, node: Node, port: int) -> None:
        """From now on the cluster's clients are sent to this port of 127.0.0.1 for the node; 0: to its own."""
        node.ask("CONFIG", "SET", "cluster-announce-ip", "127.0.0.1")
        node.ask("CONFIG", "SET", "cluster-announce-port", port)
        running = [one for one in self.nodes if one.server.running]
        until(lambda: all((port or node.port) in one.ports_said() for one in running), "the cluster to hear of the port")

    def _meet(self, node: Node) -> None:
        first = self.nodes[0]
        node.ask("CLUSTER", "MEET", "127.0.0.1", first.port, first.bus_port)

    def _is_whole(self) -> bool:
        states = [node.state() for node in self.nodes]
        return all(one["cluster_state"] == "ok" and int(one["cluster_known_nodes"]) == len(self.nodes) for one in states)

    @property
    def port(self) -> int:
        """Of the node that is asked first."""
        return self.nodes[0].port

    def restart(self) -> None:
        self.stop()
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.nodes[0].port}/0"

    def client(self, **options: Any) -> redis.RedisCluster:
        return redis.RedisCluster(port=self.nodes[0].port, protocol=2, **options)

    def owner(self, slot: int) -> Node:
        """The slot's primary, as the first node that runs says it."""
        running = next(node for node in self.nodes if node.server.running)
        for first, last, (_, _, identity, *_), *_ in running.ask("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return next(node for node in self.nodes if node.server.running and node.id == identity.decode())
        raise LookupError(f"slot {slot} has no primary")

    def places(self) -> dict[str, Node]:
        """Every key, and where it is."""
        return {key.decode(): node for node in self.primaries() for key in node.ask("KEYS", "*")}

    def primaries(self) -> list[Node]:
        running = [node for node in self.nodes if node.server.running]
        return [node for node in running if b"role:master" in node.ask("INFO", "replication")]

    def flush(self) -> None:
        for node in self.primaries():
            node.ask("FLUSHALL")

    def begin_move(self, slot: int, to: Node) -> None:
        """From here on keys of the slot may be on either of the two."""
        came = self.owner(slot)
        to.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", came.id)
        came.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", to.id)

    def move_keys(self, slot: int, to: Node, *keys: str) -> None:
        """These, or all that are left."""
        came = self.owner(slot)
        left = list(keys) or [key.decode() for key in came.ask("CLUSTER", "GETKEYSINSLOT", slot, 1_000_000)]
        if left:
            came.ask("MIGRATE", "127.0.0.1", to.port, "", 0, 10_000, "KEYS", *left)

    def end_move(self, slot: int, to: Node) -> None:
        came = self.owner(slot)
        others = [node for node in self.primaries() if node not in (to, came)]
        for node in (to, came, *others):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", to.id)

    def move(self, slot: int, to: Node) -> None:
        self.begin_move(slot, to)
        self.move_keys(slot, to)
        self.end_move(slot, to)

    def stop(self) -> None:
        for node in self.nodes:
            node.server.stop()
