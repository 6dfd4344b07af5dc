"""Which server of a Redis Cluster has which slot, as the cluster itself says; asked again whenever something was not where it was said to be.

Slots move: from server to server while the cluster is given more of them, and to a replica when a server fails. Nothing here follows a redirection in the
middle of a transaction. What has moved refuses the transaction as a whole, the store is opened again, and its ledger, which moves with its slot, says what has to
be written again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import redis

from cdc.errors import StoreError
from sinks.cache.lane import Lane
from sinks.cache.options import Options
from sinks.cache.server import Address, Server
from sinks.retry import redis_error


@dataclass(frozen=True, slots=True)
class SlotRange:
    """Slots ``first`` to ``last``, and their primary."""

    first: int
    last: int
    primary: Address


class ClusterMap:
    """One cluster's. Not thread-safe."""

    def __init__(self, store: str, options: Options) -> None:
        self._store = store
        self._options = options
        self._ranges: Sequence[SlotRange] = ()
        self._known: list[Address | None] = [None]
        """Whom to ask, the next one first. None: the options' own address."""

    def primary(self, slot: int) -> Address:
        """Raises StoreError, retryable while no server that is known answers or none has the slot."""
        if not self._ranges:
            self._ranges = self._asked()
        for one in self._ranges:
            if one.first <= slot <= one.last:
                return one.primary
        self.forget()
        raise redis_error(self._store, "CLUSTERDOWN")

    def forget(self) -> None:
        """The servers are asked again before the next answer."""
        self._ranges = ()

    def _asked(self) -> Sequence[SlotRange]:
        """One whose own view is old must not be the only one ever asked, so each is asked in its turn."""
        first: StoreError | None = None
        for _ in range(len(self._known)):
            address = self._known.pop(0)
            self._known.append(address)
            try:
                found = self._asked_at(address)
            except StoreError as error:
                if not error.retryable:
                    raise
                first = first or error
            else:
                self._known += dict.fromkeys(one.primary for one in found if one.primary not in self._known)
                return found
        assert first is not None
        raise first

    def _asked_at(self, address: Address | None) -> Sequence[SlotRange]:
        with closing(Server(self._store, self._options, route=None if address is None else _Fixed(address))) as server:
            answer = server.ask(_slots)
            if answer is None:
                raise StoreError(
                    f"store {self._store}: {server.address} is not a node of a Redis Cluster",
                    retryable=False,
                    hint=f"leave lanes out of [stores.{self._store}], and {{lane}} out of its `key`",
                )
            host = server.host
        return [_range(one, host) for one in answer]


@dataclass(frozen=True, slots=True)
class SlotRoute:
    """See ``sinks.cache.server.Route``: the server that has this slot."""

    cluster: ClusterMap
    slot: int

    def address(self) -> Address:
        return self.cluster.primary(self.slot)

    def forget(self) -> None:
        self.cluster.forget()


@dataclass(frozen=True, slots=True)
class LaneShare:
    """One lane of a store, the way to its server, and how many dead letters the other lanes have that nobody has accepted."""

    lane: Lane
    route: SlotRoute
    letters_beside: Callable[[], int]


@dataclass(frozen=True, slots=True)
class _Fixed:
    at: Address
    slot: None = None

    def address(self) -> Address:
        return self.at

    def forget(self) -> None: ...


def _slots(client: redis.Redis) -> list[Any] | None:
    """None where there is no cluster."""
    if not client.info("cluster").get("cluster_enabled"):
        return None
    found: list[Any] = client.execute_command("CLUSTER", "SLOTS")  # type: ignore[no-untyped-call]
    return found


def _range(answer: Sequence[Any], asked: str) -> SlotRange:
    """``asked``: the host that was; the server leaves its own out where it does not know it."""
    first, last, (host, port, *_), *_ = answer
    named = host.decode() if isinstance(host, bytes) else ""
    return SlotRange(int(first), int(last), (named or asked, int(port)))
