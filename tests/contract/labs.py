"""One laboratory per kind of store: gives fresh sinks over one place in a store, and can take the store down where it has a server."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from cdc.model.position import Cut
from sinks import make_sink, options_model, traits_of
from sinks.contract import Sink
from tests.contract.units import MemoryUnits, NoUnits, OpenSearchUnits, RedisUnits, Units, WarehouseUnits
from tests.logs import LooseLog


class Server(Protocol):
    """What the embedded servers have in common."""

    port: int

    def stop(self) -> None: ...
    def start(self) -> None: ...
    def restart(self) -> None: ...


class Lab:
    """A place of its own in one store. ``sink()`` opens one more sink on that same place."""

    def __init__(
        self,
        kind: str,
        options: Mapping[str, Any],
        *,
        server: Server | None = None,
        readable: bool = True,
        units: Callable[[str], Units] = lambda _: NoUnits(),
    ) -> None:
        self.name = "t" + uuid.uuid4().hex[:8]
        self.units = units(self.name)
        """What can be lost by itself."""
        self.kind = kind
        self.server = server
        self.traits = traits_of(options_model(kind).model_validate({"kind": kind, **options}))
        self.readable = readable
        """Whether what was written can be read back, so that the guard has something to compare with."""
        self.log = LooseLog()
        """What is fed to the sinks stands in it, too."""
        self.epoch = 0
        self._options = options
        self._opened: list[Sink] = []

    @property
    def staged(self) -> bool:
        return self.traits.staged

    @property
    def sequenced(self) -> bool:
        return self.traits.sequenced

    def sink(self, **options: Any) -> Sink:
        """A new sink on this place, not opened yet."""
        given = {"kind": self.kind, **self._options, **options}
        sink = make_sink(self.name, options_model(self.kind).model_validate(given))
        self._opened.append(sink)
        return sink

    def opened(self, **options: Any) -> Sink:
        """A new sink that may write; those before it are zombies from now on."""
        sink = self.sink(**options)
        self.open(sink)
        return sink

    def open(self, sink: Sink) -> Cut:
        self.epoch += 1
        return sink.open(self.log.reader(), self.epoch)

    def applied(self) -> Cut:
        """What the store says to somebody who only looks."""
        return self.sink().open(self.log.reader())

    def close(self) -> None:
        for sink in self._opened:
            sink.close()
        self.units.close()


Fixture = Callable[[str], Any]
"""Gives the value of a fixture by its name; a real server starts when its first lab asks for it."""


def _redis(fixture: Fixture, value: str) -> Lab:
    cache = fixture("valkey")
    units = RedisUnits(cache.client())
    return Lab("redis", {"url": cache.url, "value": value}, server=cache.server, units=lambda _: units)


LABS: dict[str, Callable[[Fixture], Lab]] = {
    "memory": lambda _: Lab("memory", {}, units=MemoryUnits),
    "memory-sequenced": lambda _: Lab("memory", {"sequenced": True}, units=MemoryUnits),
    "memory-staged": lambda _: Lab("memory", {"staged": True}, units=MemoryUnits),
    "redis": lambda fixture: _redis(fixture, "json"),
    "redis-hash": lambda fixture: _redis(fixture, "hash"),
    "opensearch": lambda fixture: _opensearch(fixture("opensearch")),
    "warehouse": lambda fixture: _warehouse(fixture("spark"), fixture("tmp_path")),
    "console": lambda _: Lab("console", {}, readable=False),
}
"""Every store that the suite runs against: one line each. ``conftest.MARKS`` says what it needs to run."""


def _opensearch(server: Any) -> Lab:
    options = {"url": server.url, "purge_after_s": 0}
    return Lab("opensearch", options, server=server, units=lambda name: OpenSearchUnits(server, name))


def _warehouse(spark: Any, folder: Any) -> Lab:
    from sinks.sparksession import use_session

    use_session(lambda: spark)
    place = folder / "lab"
    return Lab("iceberg", {"path": place}, units=lambda name: WarehouseUnits(place, name))
