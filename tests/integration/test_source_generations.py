"""Generations and the database itself: compared with it before they are shown, and built from its rows where the log does not have them all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.__main__ import main
from cdc.crashpoint import KILLED, VARIABLE, decided_by
from cdc.demo.configuration import toml
from cdc.log.home import open_reader
from cdc.settings.file import load
from cdc.settings.models import Settings
from cdc.source.connection import connect
from sinks import options_model
from sinks.sparksession import use_session
from tests.conftest import Database
from tests.faults.points import EVERYTHING
from tests.integration.pipeline import service
from tests.integration.test_cache_generations import At
from tests.waiting import until

STORE = "store"
Fixture = Callable[[str], Any]


class Kind:
    """One kind of store: its options, what readers find, and somebody who changes row 1 of generation 2."""

    def __init__(self, options: Mapping[str, object], found: Callable[[], dict[int, str]], tamper: Callable[[], object]) -> None:
        self.options = options
        self.found = found
        self.tamper = tamper


def _redis(fixture: Fixture, folder: Path) -> Kind:  # noqa: ARG001
    cache = fixture("valkey")
    client = cache.client()

    def found() -> dict[int, str]:
        prefix = (client.get("live") or b"").decode()
        rows = (json.loads(client.get(key)) for key in client.scan_iter(f"{prefix}public.t:*"))
        return {row["id"]: row["a"] for row in rows}

    def tamper() -> None:
        client.set("g2:public.t:1", client.get("g2:public.t:1").replace(b'"one"', b'"other"'))

    return Kind({"kind": "redis", "url": cache.url, "pointer": "live"}, found, tamper)


def _opensearch(fixture: Fixture, folder: Path) -> Kind:  # noqa: ARG001
    server = fixture("opensearch")
    prefix = f"s{uuid.uuid4().hex[:8]}-"

    def found() -> dict[int, str]:
        server.request("POST", f"/{prefix}public.t/_refresh")
        hits = server.request("POST", f"/{prefix}public.t/_search", {"size": 1000})["hits"]["hits"]
        return {int(hit["_id"]): hit["_source"]["a"] for hit in hits}

    def tamper() -> None:
        changed = {"script": {"source": "ctx._source.a = 'other'"}, "query": {"ids": {"values": ["1"]}}}
        server.request("POST", f"/{prefix}public.t.gen2@1/_refresh")
        server.request("POST", f"/{prefix}public.t.gen2@1/_update_by_query?refresh=true", changed)

    return Kind({"kind": "opensearch", "url": server.url, "index": prefix + "{schema}.{table}"}, found, tamper)


def _iceberg(fixture: Fixture, folder: Path) -> Kind:
    spark = fixture("spark")
    use_session(lambda: spark)
    lake, pointer = folder / "lake", folder / "live"

    def catalog(path: Path) -> str:
        name = f"c{uuid.uuid4().hex[:8]}"
        for key, value in {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "hadoop", ".warehouse": path}.items():
            spark.conf.set(f"spark.sql.catalog.{name}{key}", str(value))
        return name

    def found() -> dict[int, str]:
        return {row.id: row.a for row in spark.sql(f"select id, a from {catalog(pointer)}.public.t").collect()}

    def tamper() -> None:
        spark.sql(f"update {catalog(lake / '_generations' / STORE / 'g2')}.public.t set a = 'other' where id = 1")

    return Kind({"kind": "iceberg", "path": str(lake), "pointer": str(pointer), "commit_interval_ms": 0}, found, tamper)


KINDS = [
    pytest.param(_redis, id="redis"),
    pytest.param(_opensearch, id="opensearch", marks=[pytest.mark.opensearch, pytest.mark.xdist_group("opensearch")]),
    pytest.param(_iceberg, id="iceberg", marks=[pytest.mark.spark, pytest.mark.xdist_group("spark")]),
]


class Shop:
    """A database, capture and a follower, in threads, and the command line beside them."""

    def __init__(self, postgres: Database, folder: Path, kind: Kind, capsys: pytest.CaptureFixture[str]) -> None:
        self.kind = kind
        self._folder = folder
        self._source = {"dsn": postgres.dsn, "slot": f"gen_{postgres.name}"[:60]}
        self._config = folder / "cdc.toml"
        self._capsys = capsys
        self.configure()

    def configure(self, **log: Any) -> None:
        """``log``: of ``[log]``."""
        run_dir, log_dir = f"{self._folder}/run", f"{self._folder}/log"
        store: Any = self.kind.options
        sections = {"": {"run_dir": run_dir}, "source": self._source, "log": {"dir": log_dir, **log}, f"stores.{STORE}": store}
        self._config.write_text(toml(sections))
        self._config.chmod(0o600)
        self.settings: Settings = load(self._config, options_model)

    def cdc(self, *arguments: str) -> tuple[int, str, str]:
        code = main(["--config", str(self._config), *arguments])
        printed = self._capsys.readouterr()
        return code, printed.out, printed.err

    @contextmanager
    def running(self) -> Iterator[None]:
        with service(self.settings):
            until(
                lambda: self.cdc("wait", STORE, "--timeout", "5")[0] == 0,
                timeout_s=40,
                what=lambda: self.cdc("wait", STORE, "--timeout", "5")[2],
            )
            yield


@pytest.fixture
def source(postgres: Database) -> Iterator[psycopg.Connection]:
    with closing(connect(postgres.dsn)) as connection:
        connection.execute("create table public.t (id bigint primary key, a text)")
        connection.execute("create table public.empty (id bigint primary key)")
        connection.execute("insert into public.t values (1, 'one'), (2, 'two'), (3, 'three')")
        yield connection


@pytest.mark.timeout(900)
@pytest.mark.parametrize("make", KINDS)
def test_the_database_is_asked_before_a_generation_is_shown(
    make: Callable[[Fixture, Path], Kind],
    source: psycopg.Connection,
    postgres: Database,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shop = Shop(postgres, tmp_path, make(request.getfixturevalue, tmp_path), capsys)
    code, _, told = shop.cdc("bootstrap", STORE, "--audit", "source")
    assert (code, "capture does not run" in told) == (2, True), told
    with shop.running():
        before = {1: "one", 2: "two", 3: "three"}
        assert shop.kind.found() == before
        with decided_by(At("generations.compared", shop.kind.tamper)):  # the log has been asked by then
            code, printed, told = shop.cdc("bootstrap", STORE, "--audit", "source")
        assert code == 1, printed + told
        assert f"{STORE} public.t: equal to the log, 3 rows" in printed
        assert f"{STORE} public.t: DIFFERENT, 0 missing, 0 extra, 1 different" in printed
        assert "generation 2 is not live" in printed
        assert shop.kind.found() == before
        assert shop.cdc("generations", STORE, "--drop", "2")[0] == 0
        source.execute("update public.t set a = 'second' where id = 2")
        code, printed, told = shop.cdc("bootstrap", STORE, "--audit", "source", "--json")
        assert code == 0, printed + told
        done = json.loads(printed.splitlines()[-1])
        assert (done["swapped"], done["audit"]["equal"], len(done["audit"]["tables"])) == (True, True, 2)
        assert shop.kind.found() == {**before, 2: "second"}
        assert shop.cdc("bootstrap", STORE, "--in-place", "--audit", "source")[0] == 2


def kept_from(shop: Shop) -> int:
    with closing(open_reader(shop.settings.log.dir)) as reader:
        return next((one.kept_from for one in reader.topics() if one.name == "public.t"), 0)


@pytest.mark.timeout(900)
@pytest.mark.faults
@pytest.mark.skipif(not EVERYTHING, reason="waits for retention, which may take minutes: make faults")
@pytest.mark.parametrize("make", KINDS)
def test_a_log_whose_past_is_gone_is_given_the_rows_again(
    make: Callable[[Fixture, Path], Kind],
    source: psycopg.Connection,
    postgres: Database,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shop = Shop(postgres, tmp_path, make(request.getfixturevalue, tmp_path), capsys)
    source.execute("alter table public.t add column note text default 'x'")
    source.execute("create table public.plain (id bigint, a text)")
    source.execute("alter table public.plain replica identity full")
    source.execute("insert into public.plain values (7, 'seven'), (7, 'seven'), (8, 'eight')")
    with shop.running():
        assert shop.kind.found() == {1: "one", 2: "two", 3: "three"}
    shop.configure(cleanup="delete", retain_hours=0, history_hours=0, segment_bytes=4096)
    with shop.running():
        source.execute("delete from public.t where id = 3")
        source.execute("update public.t set a = 'second' where id = 2")
        until(lambda: kept_from(shop) > 1)
        until(lambda: shop.kind.found() == {1: "one", 2: "second"})
        code, printed, told = shop.cdc("bootstrap", STORE)
        assert (code, "the log no longer keeps public." in told) == (4, True), printed + told
        assert "--from source" in told
        for one in ("generations.read_again", "generations.built", "generations.compared"):
            change = f"changed at {one}"
            with decided_by(At(one, lambda change=change: source.execute("update public.t set a = %s where id = 1", (change,)))):
                code, printed, told = shop.cdc("bootstrap", STORE, "--from", "source", "--audit", "source", "--json")
            assert code == 0, printed + told
            done = json.loads(printed.splitlines()[-1])
            assert (done["swapped"], done["audit"]["equal"]) == (True, True), done
            assert {one["table"] for one in done["tables"]} >= {"public.t", "public.plain"}
            until(lambda change=change: shop.kind.found() == {1: change, 2: "second"})
        source.execute("insert into public.t values (9, 'nine')")
        until(lambda: shop.kind.found().get(9) == "nine")


@pytest.mark.timeout(900)
def test_a_command_that_is_killed_once_the_rows_are_read_leaves_the_live_one(
    source: psycopg.Connection,
    postgres: Database,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shop = Shop(postgres, tmp_path, _redis(request.getfixturevalue, tmp_path), capsys)
    with shop.running():
        command = [sys.executable, "-m", "cdc", "--config", str(tmp_path / "cdc.toml"), "bootstrap", STORE, "--from", "source"]
        environment = {**os.environ, VARIABLE: "generations.read_again=kill"}
        assert subprocess.run(command, env=environment, capture_output=True, check=False).returncode == KILLED
        before = {1: "one", 2: "two", 3: "three"}
        assert shop.kind.found() == before
        source.execute("delete from public.t where id = 3")
        code, printed, told = shop.cdc("bootstrap", STORE, "--from", "source", "--json")
        assert code == 0, printed + told
        assert json.loads(printed.splitlines()[-1])["generation"] == 2
        assert shop.kind.found() == {1: "one", 2: "two"}
