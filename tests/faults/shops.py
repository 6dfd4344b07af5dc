"""A shop: a database under traffic, real capture, one real store with its follower, and what may happen to that store meanwhile."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final, Protocol

import psycopg

from cdc.audit.stores import audit
from cdc.errors import HeadwaterError, StopState, StoreError
from cdc.follow.follower import Follower
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.memory import MemoryLog
from cdc.model.position import Lsn
from cdc.model.topic import TopicSchema
from cdc.settings.models import Settings
from cdc.state import rebuilds, status, stops
from sinks import make_sink
from tests.contract.rows import ORDERS, order, upserts
from tests.contract.units import Units
from tests.end_to_end.traffic import Traffic
from tests.integration.pipeline import service

DDL: Final = """
create table accounts (id bigint primary key, owner text, amount numeric(12,2), at timestamptz default now());
create table docs (id text primary key, body text, n int);
alter table docs alter body set storage external;
create table board (id int primary key, line text);
create table quiet (id int primary key, line text);
insert into accounts select n, 'owner ' || n, n, now() from generate_series(1, 300) n;
insert into docs select 'd' || n, repeat(md5(n::text), 100), 0 from generate_series(1, 50) n;
insert into board select n, 'first' from generate_series(1, 20) n;
insert into quiet values (1, '0');
"""
TEXTS: Final = {"accounts": "owner", "docs": "body", "board": "line", "quiet": "line"}
"""Of each table a column that is text everywhere, so that stores can be compared with the source without our own reading of them."""
DEADLINE_S: Final = 300.0
STORE: Final = "store"


class Raw(Protocol):
    """A kind of store as its own clients see it."""

    look_s: float
    """Within so long its follower notices what happened to it, when it is up."""

    def rows(self, table: str, column: str) -> dict[str, str | None]: ...

    def quiet(self) -> str | None:
        """The line of the one row that nobody writes while things happen; None when it is not there."""
        ...


class Watch(Thread):
    """Raises an alarm at its end when status has said that all is well, later than the look that had to find out that the quiet row is missing or old."""

    def __init__(self, shop: Shop) -> None:
        super().__init__(name="watch", daemon=True)
        self.alarms: list[str] = []
        self._shop = shop
        self._ending = Event()

    def run(self) -> None:
        since, said = None, set[float]()
        while not self._ending.wait(0.05):
            lacks = self._lacks()
            since = (since or time.time()) if lacks else None
            if since is None:
                said.clear()
                continue
            told = status.read_follower(self._shop.settings.run_dir, STORE)
            healthy = told is not None and told.state == "following" and told.position >= self._shop.quiet_at
            if told is not None and healthy and told.updated_at > since + self._shop.raw.look_s and self._lacks():
                said.add(told.updated_at)
                if len(said) > 1:  # not one that was on its way
                    self.alarms.append(f"{told.updated_at - since:.1f} s after the quiet row was gone: {told}")

    def _lacks(self) -> bool:
        wanted = self._shop.quiet_line
        try:
            found = self._shop.raw.quiet()
        except Exception:  # its server is down, or being put back: nobody can say
            return False
        return found is None or int(found) < wanted

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        self._ending.set()
        self.join(60)
        assert failed or not self.alarms, "\n".join(self.alarms[:3])


class Shop:
    """``running`` starts capture and follower; what is done to the store is the caller's."""

    def __init__(self, settings: Settings, units: Units, raw: Raw, seed: int) -> None:
        self.settings = settings
        self.units = units
        self.raw = raw
        self.dsn = settings.source.dsn.get_secret_value()
        self.quiet_line = 0
        self.quiet_at = 0
        self.traffic: Traffic | None = None
        self._seed = seed
        self._service: Any = None
        self._followers: Mapping[str, Follower] = {}

    # --- the service ----------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._service = service(self.settings)
        self._followers = self._service.__enter__()

    def end(self) -> None:
        if self._service is not None:
            running, self._service = self._service, None
            running.__exit__(None, None, None)

    def copy(self) -> Any:
        """Of the store, at a moment at which nobody writes: what a backup is."""
        follower = self._followers.get(STORE)
        if follower is None:
            return self.units.copy()
        with follower.between_batches():
            return self.units.copy()

    def begin_traffic(self) -> None:
        self._seed += 1
        self.traffic = Traffic(self.dsn, self._seed)
        self.traffic.start()

    def end_traffic(self) -> None:
        if self.traffic is not None:
            traffic, self.traffic = self.traffic, None
            traffic.end()

    def write_quiet(self) -> None:
        """The next line of the quiet row, and where the store has it."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("update quiet set line = %s", [str(self.quiet_line + 1)])
        self.until(lambda: self._quiet_is(self.quiet_line + 1) or self.held_stops(), "the quiet row")
        assert not self.held_stops(), self.held_stops()
        with closing(EmbeddedLogReader(self.settings.log.dir)) as reader:
            at = int(reader.last_change("public.quiet", reader.head().position))
        self.quiet_at, self.quiet_line = at, self.quiet_line + 1

    def holds_quiet(self) -> bool:
        return self._quiet_is(self.quiet_line)

    def _quiet_is(self, line: int) -> bool:
        with suppress(Exception):
            return self.raw.rows("quiet", "line").get("1") == str(line)
        return False

    # --- what it says, and what is so --------------------------------------------------------------------------------------------------

    def held_stops(self) -> list[stops.Stop]:
        return stops.held(self.settings.run_dir)

    def until(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, f"waited in vain for {what}: {self.told()}"
            time.sleep(0.05)

    def told(self) -> str:
        return f"{status.read_follower(self.settings.run_dir, STORE)} {self.held_stops()} {self.differs()}"

    def differs(self) -> str | None:
        """The first table that is not the source's, as the store's own clients see it; None when all are equal."""
        with psycopg.connect(self.dsn) as connection:
            for table, column in TEXTS.items():
                wanted = dict(connection.execute(f"select id::text, {column} from {table}").fetchall())  # type: ignore[arg-type]
                try:
                    found = self.raw.rows(table, column)
                except Exception as error:
                    return f"{table} cannot be read: {error!r}"
                if found != wanted:
                    missing, extra = wanted.keys() - found.keys(), found.keys() - wanted.keys()
                    other = sum(found[key] != wanted[key] for key in wanted.keys() & found.keys())
                    return f"{table}: {len(missing)} missing {sorted(missing)[:3]}, {len(extra)} extra {sorted(extra)[:3]}, {other} others"
        return None

    def converge(self) -> None:
        """The traffic has stopped; by itself, the store becomes the source."""
        self.until(lambda: self.differs() is None or self.held_stops(), "the store to equal the source")
        assert not self.held_stops(), self.held_stops()
        [found] = audit(self.settings, STORE, timeout_s=DEADLINE_S)
        assert found.equal, found
        differs = self.differs()
        assert differs is None, f"what was equal once is so no more: {differs}"

    # --- others ----------------------------------------------------------------------------------------------------------------------

    def resume(self, state: StopState) -> None:
        """`cdc resume STATE:follow-store --rebuild`"""
        rebuilds.request(self.settings.run_dir, STORE, state)
        assert stops.clear(self.settings.run_dir, f"{state}:follow-{STORE}")

    def intrude(self) -> None:
        """A service with a log of its own comes upon the store, and goes as it came."""
        sink = make_sink(STORE, self.settings.stores[STORE])
        try:
            sink.open(foreign().reader(), 1_000)
        except HeadwaterError as refused:
            told = refused
        else:
            raise AssertionError("another service opened a store with our rows in it")
        finally:
            sink.close()
        assert isinstance(told, StoreError) or "OTHER_LOG" in str(told), told

    def take_over(self) -> None:
        """… and its operator says that the store is to be its own."""
        log = foreign()
        deadline = time.monotonic() + DEADLINE_S
        while not any(stop.state is StopState.OTHER_LOG for stop in self.held_stops()):
            assert time.monotonic() < deadline, f"it goes on in a store of another log: {self.told()}"
            with closing(make_sink(STORE, self.settings.stores[STORE])) as sink, suppress(HeadwaterError):
                sink.erase()
                sink.open(log.reader(), 1_000)
                for changes in log.batches:
                    sink.prepare(TopicSchema.of(ORDERS))
                    sink.apply(changes)
                sink.commit(log.head)
            time.sleep(self.raw.look_s / 2)


def foreign() -> MemoryLog:
    """Another service's log, with one row of a table that the shop does not have."""
    log = MemoryLog()
    writer = log.writer()
    writer.append(upserts(ORDERS, 1, [order(1)]))
    writer.commit(Lsn(1), 0)
    return log


class RawRedis:
    look_s = 2.0

    def __init__(self, client: Any) -> None:
        self._client = client

    def rows(self, table: str, column: str) -> dict[str, str | None]:
        begin = f"public.{table}:".encode()
        keys = list(self._client.scan_iter(match=begin + b"*", count=1000))
        values = self._client.mget(keys) if keys else []
        return {
            key.removeprefix(begin).decode(): json.loads(value)[column] for key, value in zip(keys, values, strict=True) if value
        }

    def quiet(self) -> str | None:
        value = self._client.get("public.quiet:1")
        return None if value is None else str(json.loads(value)["line"])


class RawOpenSearch:
    look_s = 7.0

    def __init__(self, server: Any) -> None:
        self._server = server

    def rows(self, table: str, column: str) -> dict[str, str | None]:
        self._server.request("POST", f"/public.{table}/_refresh")
        body = {"size": 10_000, "_source": [column]}
        hits = self._server.request("POST", f"/public.{table}/_search", body)["hits"]["hits"]
        return {hit["_id"]: hit["_source"].get(column) for hit in hits}

    def quiet(self) -> str | None:
        return self.rows("quiet", "line").get("1") if self._there() else None

    def _there(self) -> bool:
        found = self._server.request("GET", "/_cat/indices?format=json&expand_wildcards=all")
        return any(index["index"].startswith("public.quiet") for index in found)


class RawIceberg:
    look_s = 2.0

    def __init__(self, spark: Any, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._catalog = f"raw{uuid.uuid4().hex[:8]}"
        options = {
            "": "org.apache.iceberg.spark.SparkCatalog",
            ".type": "hadoop",
            ".warehouse": str(folder),
            ".cache-enabled": "false",
        }
        for key, value in options.items():
            spark.conf.set(f"spark.sql.catalog.{self._catalog}{key}", value)

    def rows(self, table: str, column: str) -> dict[str, str | None]:
        found = self._spark.sql(f"select cast(id as string) as id, {column} as text from {self._catalog}.public.{table}")
        return {row.id: row.text for row in found.collect()}

    def quiet(self) -> str | None:
        """Only whether the table is there: a query takes longer than the look that it is to be compared with."""
        there = (self._folder / "public" / "quiet" / "metadata" / "version-hint.text").exists()
        return str(2**31) if there else None
