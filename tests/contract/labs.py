"""One laboratory per kind of store: gives fresh sinks over one place in a store, and can take the store down where it has a server."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit

import duckdb
import pytest

from cdc.model.position import Cut
from sinks import make_sink, memory, options_model, traits_of
from sinks.cache import rowwriter
from sinks.contract import Sink
from tests.contract.units import (
    DuckUnits,
    MemoryUnits,
    NoUnits,
    OpenSearchUnits,
    RedisLanes,
    RedisUnits,
    SqlUnits,
    Units,
    WarehouseUnits,
)
from tests.faults.points import EVERYTHING
from tests.lakes import LakeUnits
from tests.logs import LooseLog


class Server(Protocol):
    """What the embedded servers have in common."""

    port: int

    def stop(self) -> None: ...
    def start(self) -> None: ...
    def restart(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Narrow:
    """A store that cannot hold some rows: those whose ``note`` has 40,000 characters. ``begin`` is called once
    its index is there; after ``end`` it can hold them."""

    options: Mapping[str, Any] = field(default_factory=dict)
    begin: Callable[[], object] = lambda: None
    end: Callable[[], object] = lambda: None


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
        narrow: Callable[[pytest.MonkeyPatch], Narrow] | None = None,
        spread: bool = False,
    ) -> None:
        self.name = "t" + uuid.uuid4().hex[:8]
        self.units = units(self.name)
        """What can be lost by itself."""
        self.narrow = narrow
        """Gives one that cannot hold some rows; None: it can hold all."""
        self.kind = kind
        self.server = server
        self.spread = spread
        """There are several servers, which say of each other where they are."""
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

    def url_at(self, port: int) -> str:
        """The address of its server by way of another port."""
        address = urlsplit(self._options["url"])
        before, at, _ = address.netloc.rpartition("@")
        return address._replace(netloc=f"{before}{at}127.0.0.1:{port}").geturl()

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
        applied = sink.open(self.log.reader(), self.epoch)
        sink.finish()
        return applied

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
    options = {"url": cache.url, "value": value}
    return Lab("redis", options, server=cache.server, units=lambda _: units, narrow=_narrow_values)


LANES = 5
"""More than nodes, so that one of them has several."""


def _redis_lanes(cluster: Any) -> Lab:
    units = RedisLanes(cluster, LANES)
    options = {"url": cluster.url, "lanes": LANES}
    return Lab("redis", options, server=cluster, units=lambda _: units, narrow=_narrow_values, spread=True)


def _narrow_values(patch: pytest.MonkeyPatch) -> Narrow:
    limit = rowwriter.VALUE_BYTES_MAX
    return Narrow(
        begin=lambda: patch.setattr(rowwriter, "VALUE_BYTES_MAX", 2000),
        end=lambda: patch.setattr(rowwriter, "VALUE_BYTES_MAX", limit),
    )


def _narrow_rows(patch: pytest.MonkeyPatch) -> Narrow:
    return Narrow({"row_bytes_max": 2000}, end=lambda: patch.setattr(memory, "fits", lambda row, limit: True))  # noqa: ARG005


def _narrow_field(server: Any) -> Narrow:
    """Somebody has let a field index texts that are longer than Lucene's longest term; later he takes that back."""

    def index_up_to(characters: int) -> None:
        exact = {"type": "keyword", "ignore_above": characters}
        note = {"type": "text", "fields": {"keyword": exact}}
        server.request("PUT", "/public.orders@1/_mapping", {"properties": {"note": note}})

    return Narrow(begin=lambda: index_up_to(100_000), end=lambda: index_up_to(8191))


LABS: dict[str, Callable[[Fixture], Lab]] = {
    "memory": lambda _: Lab("memory", {}, units=MemoryUnits, narrow=_narrow_rows),
    "memory-sequenced": lambda _: Lab("memory", {"sequenced": True}, units=MemoryUnits, narrow=_narrow_rows),
    "memory-staged": lambda _: Lab("memory", {"staged": True}, units=MemoryUnits),
    "redis": lambda fixture: _redis(fixture, "json"),
    "redis-hash": lambda fixture: _redis(fixture, "hash"),
    "redis-lanes": lambda fixture: _redis_lanes(fixture("redis_cluster")),
    "opensearch": lambda fixture: _opensearch(fixture("opensearch")),
    "warehouse": lambda fixture: _warehouse(fixture("spark"), fixture("tmp_path")),
    "sql": lambda fixture: _sql(fixture("postgres")),
    "sql-duckdb": lambda fixture: _duck(fixture("tmp_path")),
    "console": lambda _: Lab("console", {}, readable=False),
}
"""Every store that the suite runs against: one line each. ``conftest.MARKS`` says what it needs to run."""

if EVERYTHING:  # the same sink over other catalogs, of which tests/integration/spark/test_warehouse_catalogs.py asks the most important in every run
    LABS["warehouse-sql-s3"] = lambda fixture: _lake(fixture, "sql-s3")
    LABS["warehouse-rest"] = lambda fixture: _lake(fixture, "rest")


def _opensearch(server: Any) -> Lab:
    options = {"url": server.url, "purge_after_s": 0}
    return Lab(
        "opensearch",
        options,
        server=server,
        units=lambda name: OpenSearchUnits(server, name),
        narrow=lambda _: _narrow_field(server),
    )


def _sql(database: Any) -> Lab:
    return Lab(
        "sql",
        {"url": database.dsn},
        server=database.server,
        units=lambda name: SqlUnits(database.dsn, name),
        narrow=lambda _: _narrow_table(database),
    )


def _narrow_table(database: Any) -> Narrow:
    """Somebody has put a condition on the table, which he takes back later."""

    def change(what: str) -> None:
        with database.connect() as connection:
            connection.execute(f"alter table public.orders {what}")

    return Narrow(
        begin=lambda: change("drop constraint if exists narrow, add constraint narrow check (length(note) <= 2000)"),
        end=lambda: change("drop constraint narrow"),
    )


def _duck(folder: Any) -> Lab:
    path = folder / "lab.duckdb"
    units: Callable[[str], Units] = lambda name: DuckUnits(path, name)  # noqa: E731
    return Lab("sql", {"url": f"duckdb://{path}"}, units=units, narrow=lambda _: _narrow_column(path))


def _narrow_column(path: Any) -> Narrow:
    """Somebody has given a column a narrower type; later he takes that back."""

    def retype(kind: str) -> None:
        with duckdb.connect(str(path)) as connection:
            connection.execute(f"alter table public.orders alter column note type {kind}")

    return Narrow(begin=lambda: retype("enum ('', 'short')"), end=lambda: retype("varchar"))


def _warehouse(spark: Any, folder: Any) -> Lab:
    from sinks.sparksession import use_session

    use_session(lambda: spark)
    place = folder / "lab"
    return Lab("iceberg", {"path": place}, units=lambda name: WarehouseUnits(place, name))


def _lake(fixture: Fixture, kind: str) -> Lab:
    from sinks.sparksession import use_session

    spark, folder = fixture("spark"), fixture("tmp_path")
    use_session(lambda: spark)
    lake = fixture("lake_of")(kind)
    options = {"path": folder / "lake", **lake.options}
    return Lab("iceberg", options, units=lambda name: LakeUnits(lake, name, folder / "copies"))
