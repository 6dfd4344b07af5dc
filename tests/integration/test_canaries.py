"""Thirty kinds of failure with canaries for passwords, keys and row values: not one of them shows up in anything that is said.

Each kind makes one part fail as it does in earnest and collects whatever comes out: standard output and error of the command line
(with and without ``--debug``), every exception with its chain and notes, logs, status files, stop states and what the HTTP port serves.
"""

from __future__ import annotations

import io
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psycopg
import pytest
import structlog

from cdc.__main__ import main
from cdc.capture.messages import scan
from cdc.commands.logsetup import configure_logs
from cdc.embedded.processes import free_port
from cdc.errors import HeadwaterError
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.batch import Op
from cdc.model.position import Cut, Lsn, Position
from cdc.model.topic import TopicSchema
from cdc.settings.file import load
from cdc.source.connection import connect
from cdc.source.rows import SourceRows, snapshot
from sinks import make_sink, options_model
from tests.conftest import Database
from tests.contract.rows import ORDERS, batch, order
from tests.integration.capture.running import Capture
from tests.logs import EMPTY

SECRET = "canary-secret-5f1e"
ROW = "canary-row-77aa"


@dataclass
class Scene:
    """A database whose rows are canaries, a place for a configuration, and everything that has been said so far."""

    postgres: Database
    folder: Path
    fixture: Callable[[str], Any]
    said: list[str] = field(default_factory=list)
    failed: int = 0

    @property
    def config(self) -> Path:
        return self.folder / "cdc.toml"

    def configure(self, source: str | None = None, more: str = "") -> None:
        given = source if source is not None else f'dsn = "{self.postgres.dsn}"\nslot = "{self.slot}"'
        self.config.touch(0o600)
        self.config.write_text(f"[source]\n{given}\n{more}\n")

    @property
    def slot(self) -> str:
        return f"canary_{self.postgres.name}"[:60]

    def cdc(self, *arguments: str) -> int:
        """Runs a verb here and now, once as it is and once with --debug; returns the exit code."""
        for more in ((), ("--debug",)):
            out, err = io.StringIO(), io.StringIO()
            with redirect_stdout(out), redirect_stderr(err):
                code = main(["--config", str(self.config), *more, *arguments])
            self.said += [out.getvalue(), err.getvalue()]
        self.failed += code != 0
        return code

    def hear(self, error: BaseException) -> None:
        self.failed += 1
        self.said += ["".join(traceback.format_exception(error)), repr(error), str(error)]
        if isinstance(error, HeadwaterError):
            self.said.append(error.line())

    def attempt(self, what: Callable[[], Any]) -> None:
        """What must fail."""
        try:
            what()
        except Exception as error:
            self.hear(error)
        else:
            pytest.fail("nothing failed")

    def capture(self, **source: Any) -> Capture:
        return Capture(self.postgres.dsn, self.folder, slot=self.slot, **source)

    def captured(self, **source: Any) -> Capture:
        """After the snapshot, stopped."""
        capture = self.capture(**source)
        with capture.running():
            capture.until_snapshot_done()
        return capture

    def fails(self, capture: Capture) -> None:
        capture.start()
        self.hear(capture.failure())
        capture.stop()

    def files(self) -> Iterator[str]:
        """Status files, stop states and logs; the log's own segments hold rows, that is what they are for."""
        for path in (self.folder / "run").rglob("*"):
            if path.is_file():
                yield path.read_text(errors="replace")


Kind = Callable[[Scene], None]
KINDS: dict[str, Kind] = {}


def kind(function: Kind) -> Kind:
    KINDS[function.__name__] = function
    return function


# What nobody expected


@kind
def an_error_that_nobody_foresaw(scene: Scene) -> None:
    def broken(*_: object) -> None:
        raise ValueError(f"{SECRET} {ROW}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cdc.commands.invocation.load", broken)
        assert scene.cdc("status") == 1


# The configuration


@kind
def an_unknown_key_beside_a_secret(scene: Scene) -> None:
    scene.configure(f'dsn = "postgresql://u:{SECRET}@127.0.0.1/d"\npasword = "{SECRET}"')
    scene.cdc("status")


@kind
def a_secret_of_the_wrong_type(scene: Scene) -> None:
    scene.configure(f'dsn = ["{SECRET}"]')
    scene.cdc("status")


@kind
def a_dsn_that_is_none(scene: Scene) -> None:
    scene.configure(f'dsn = "postgresql://u:{SECRET}:{SECRET}@h:{SECRET}/d"')
    scene.cdc("run", "--only", "capture")
    scene.cdc("doctor")


@kind
def toml_that_breaks_off_in_a_secret(scene: Scene) -> None:
    scene.config.write_text(f'[source]\ndsn = "postgresql://u:{SECRET}@h/d\n')
    scene.cdc("status")


@kind
def a_secret_file_that_others_may_read(scene: Scene) -> None:
    path = scene.folder / "dsn"
    path.write_text(f"postgresql://u:{SECRET}@127.0.0.1/d")
    path.chmod(0o644)
    scene.configure(f'dsn_file = "{path}"')
    scene.cdc("status")


@kind
def a_privacy_key_that_is_too_short(scene: Scene) -> None:
    scene.configure(more=f'[source.columns."public.orders"]\nnote = "hmac"\n[privacy]\nkey = "{SECRET}"')
    scene.cdc("run", "--only", "capture")


@kind
def a_policy_that_fits_no_column(scene: Scene) -> None:
    scene.configure(more=f'[source.columns."public.orders"]\nnoet = "hmac"\n[privacy]\nkey = "{SECRET * 3}"')
    scene.cdc("run", "--only", "capture")


@kind
def a_store_address_that_is_none(scene: Scene) -> None:
    scene.configure(
        more=f'[stores.a]\nkind = "redis"\nurl = "redsi://:{SECRET}@h/0"\n[stores.b]\nkind = "opensearch"\nurl = "ftp://u:{SECRET}@h"'
    )
    scene.cdc("doctor")


@kind
def a_token_that_is_too_short(scene: Scene) -> None:
    scene.configure(more='[http]\nlisten = "0.0.0.0:0"\ntoken = "canary-secret-"')
    scene.cdc("run")


# The source


@kind
def a_server_that_is_down(scene: Scene) -> None:
    scene.configure(f'dsn = "postgresql://u:{SECRET}@127.0.0.1:{free_port()}/d"')
    scene.cdc("doctor")
    scene.cdc("audit")
    scene.cdc("status", "--json")


@kind
def a_role_that_does_not_exist(scene: Scene) -> None:
    scene.configure(f'dsn = "postgresql://nobody:{SECRET}@127.0.0.1:{scene.postgres.server.port}/{scene.postgres.name}"')
    scene.cdc("run", "--only", "capture")
    scene.cdc("doctor")


@kind
def a_database_that_does_not_exist(scene: Scene) -> None:
    scene.configure(f'dsn = "postgresql://postgres:{SECRET}@127.0.0.1:{scene.postgres.server.port}/nowhere"')
    scene.cdc("run", "--only", "capture")


@kind
def a_row_that_is_no_value_of_its_type(scene: Scene) -> None:
    """The server's own message quotes the row: invalid input syntax for type integer."""
    with connect(scene.postgres.dsn) as connection:
        connection.execute("create view public.odd as select id, note::int as n from public.orders")
        scene.attempt(lambda: _scanned(connection))


def _scanned(connection: psycopg.Connection) -> None:
    from cdc.model.table import Column, Table

    table = Table(1, "public", "odd", (Column("id", 20, key=True), Column("n", 23)))
    with snapshot(connection):
        list(SourceRows(connection, table, "none").scan())


@kind
def a_slot_that_is_gone(scene: Scene) -> None:
    capture = scene.captured()
    connection = scene.postgres.connect()
    capture.until_released(connection)
    connection.execute("select pg_drop_replication_slot(%s)", (scene.slot,))
    scene.fails(capture)


@kind
def a_publication_that_is_gone(scene: Scene) -> None:
    capture = scene.captured()
    connection = scene.postgres.connect()
    connection.execute("drop publication cdc")
    connection.execute("update orders set status = 'x'")
    capture.start()
    deadline = time.monotonic() + 20
    while capture.error is None and time.monotonic() < deadline:
        time.sleep(0.05)
    capture.stop()
    if capture.error is not None:
        scene.hear(capture.error)
    scene.failed += 1


@kind
def a_table_without_identity(scene: Scene) -> None:
    connection = scene.postgres.connect()
    connection.execute("create table loose (note text)")
    connection.execute("insert into loose values (%s)", (ROW,))
    scene.fails(scene.capture())


@kind
def a_policy_on_a_renamed_column(scene: Scene) -> None:
    capture = scene.captured(columns={"public.orders": {"note": "mask"}})
    connection = scene.postgres.connect()
    connection.execute("alter table orders rename note to remark")
    connection.execute("update orders set status = 'x'")
    scene.fails(capture)


@kind
def a_stream_that_is_garbage(scene: Scene) -> None:
    for garbage in (b"d\0\0\0\x40" + ROW.encode() * 8, ROW.encode() * 20, b"d\0\0\0\x30w" + b"\0" * 24 + b"I" + ROW.encode() * 3):
        block = np.frombuffer(garbage, np.uint8)
        scene.attempt(lambda block=block: scan(block, 0, len(block), None))  # type: ignore[misc]


# The log


def _segments(capture: Capture) -> list[Path]:
    return sorted(path for path in capture.settings.log.dir.rglob("*") if path.is_file() and path.stat().st_size > 200)


def _read_all(folder: Path) -> None:
    reader = EmbeddedLogReader(folder)
    for topic in reader.topics():
        for _ in reader.read(topic.name, Position(0), reader.head().position):
            pass


@kind
def a_log_with_flipped_bytes(scene: Scene) -> None:
    capture = scene.captured()
    damaged = [path for path in _segments(capture) if ROW.encode() in path.read_bytes()]
    assert damaged
    for path in damaged:
        content = bytearray(path.read_bytes())
        at = content.index(ROW.encode())
        content[at] ^= 0xFF
        path.write_bytes(bytes(content))
    scene.attempt(lambda: _read_all(capture.settings.log.dir))
    scene.configure()
    scene.cdc("log", "stat")
    scene.fails(capture)


@kind
def a_timeline_that_is_damaged(scene: Scene) -> None:
    capture = scene.captured()
    path = next(path for path in capture.settings.log.dir.rglob("*timeline*") if path.is_file())
    content = bytearray(path.read_bytes())
    content[40] ^= 0xFF
    path.write_bytes(bytes(content))
    scene.fails(capture)


@kind
def a_progress_file_that_is_damaged(scene: Scene) -> None:
    capture = scene.captured()
    (capture.settings.log.dir / "snapshot.json").write_text(f'{{"{ROW}": 1')
    scene.fails(capture)


@kind
def changes_that_do_not_belong_into_the_log(scene: Scene) -> None:
    with closing(EmbeddedLogWriter(scene.folder / "log2")) as writer:
        writer.append(batch(ORDERS, [(Op.INSERT, 99, order(1, note=ROW))]))
        scene.attempt(lambda: writer.commit(Lsn(5), 0))


# The stores


def _sink(options: dict[str, Any]) -> Any:
    return make_sink("store", options_model(options["kind"]).model_validate(options))


def _write(sink: Any, *rows: Any) -> Any:
    sink.prepare(TopicSchema.of(ORDERS))
    outcome = sink.apply(batch(ORDERS, [(Op.INSERT, number + 1, row) for number, row in enumerate(rows)]))
    sink.commit(Cut(Position(len(rows)), Lsn(1)))
    return outcome


@kind
def a_cache_that_is_down(scene: Scene) -> None:
    scene.attempt(_sink({"kind": "redis", "url": f"redis://:{SECRET}@127.0.0.1:{free_port()}/0"}).open)


@kind
def a_cache_that_refuses_the_password(scene: Scene) -> None:
    url = scene.fixture("valkey").url.replace("redis://", f"redis://u:{SECRET}@")
    scene.attempt(_sink({"kind": "redis", "url": url}).open)


@kind
def a_cache_whose_keys_are_somebody_elses(scene: Scene) -> None:
    cache = scene.fixture("valkey")
    sink = _sink({"kind": "redis", "url": cache.url, "key": "orders:{id}", "value": "hash"})
    sink.open(EMPTY, 1)
    with cache.client() as client:
        client.lpush("orders:1", ROW)
    try:
        scene.said.append(repr(_write(sink, order(1, note=ROW))))
        scene.failed += 1
    except HeadwaterError as error:
        scene.hear(error)
    sink.close()


@kind
def a_cache_that_is_full(scene: Scene) -> None:
    cache = scene.fixture("valkey")
    sink = _sink({"kind": "redis", "url": cache.url})
    sink.open(EMPTY, 1)
    with cache.client() as client:
        client.config_set("maxmemory", "1")
        try:
            scene.attempt(lambda: _write(sink, order(1, note=ROW)))
        finally:
            client.config_set("maxmemory", "0")
    sink.close()


@kind
def a_key_template_without_its_column(scene: Scene) -> None:
    sink = _sink({"kind": "redis", "url": scene.fixture("valkey").url, "key": "orders:{nothing}"})
    sink.open(EMPTY, 1)
    sink.prepare(TopicSchema.of(ORDERS))
    outcome = sink.apply(batch(ORDERS, [(Op.INSERT, 1, order(1, note=ROW))]))
    assert outcome.dead, "the table's rows are set aside"
    scene.said.append(repr(outcome))
    scene.failed += 1
    sink.close()


@kind
def an_index_that_is_down(scene: Scene) -> None:
    scene.attempt(_sink({"kind": "opensearch", "url": f"http://u:{SECRET}@127.0.0.1:{free_port()}"}).open)


@kind
def an_index_that_refuses_documents(scene: Scene) -> None:
    node = scene.fixture("opensearch")
    sink = _sink({"kind": "opensearch", "url": node.url})
    sink.open(EMPTY, 1)
    _write(sink, order(1))
    index = next(
        one["index"] for one in node.request("GET", "/_cat/indices?format=json&expand_wildcards=all") if "orders" in one["index"]
    )
    node.request("POST", f"/{index}/_close")
    try:
        scene.said.append(repr(sink.apply(batch(ORDERS, [(Op.INSERT, 9, order(1, note=ROW))]))))
        scene.failed += 1
    except HeadwaterError as error:
        scene.hear(error)
    finally:
        node.request("POST", f"/{index}/_open")
    sink.close()


@kind
def a_value_that_a_store_cannot_hold(scene: Scene) -> None:
    sink = _sink({"kind": "memory"})
    sink.open(EMPTY, 1)
    outcome = _write(sink, order(1, note=ROW, amount="NaN"))
    scene.said.append(repr(outcome))
    scene.failed += 1


# What is served


@kind
def status_and_metrics_of_a_service_in_trouble(scene: Scene) -> None:
    from starlette.testclient import TestClient

    from cdc.http.app import make_app

    scene.configure(
        f'dsn = "postgresql://u:{SECRET}@127.0.0.1:{free_port()}/d"',
        f'[privacy]\nkey = "{SECRET * 3}"\n[stores.cache]\nkind = "redis"\nurl = "redis://:{SECRET}@127.0.0.1:{free_port()}/0"',
    )
    settings = load(scene.config, options_model)
    scene.said.append(repr(settings))
    with TestClient(make_app(settings), base_url="http://127.0.0.1") as client:
        for path in (
            "/",
            "/healthz",
            "/readyz",
            "/metrics",
            "/v1/status",
            "/v1/wait?store=cache&timeout=0",
            "/v1/wait?store=canary",
        ):
            answer = client.get(path)
            scene.said += [answer.text.replace("store=canary", ""), str(answer.headers)]
    scene.failed += 1


@pytest.fixture(autouse=True)
def logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    heard = io.StringIO()
    monkeypatch.setattr("sys.stderr", heard)
    configure_logs()
    yield heard
    structlog.reset_defaults()


def _marks(name: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.opensearch, pytest.mark.xdist_group("opensearch")] if name == "an_index_that_refuses_documents" else []


@pytest.mark.parametrize("name", [pytest.param(name, marks=_marks(name)) for name in KINDS])
def test_nothing_leaks(name: str, postgres: Database, tmp_path: Path, request: pytest.FixtureRequest, logs: io.StringIO) -> None:
    with postgres.connect() as connection:
        connection.execute("create table orders (id bigint primary key, status text, note text)")
        connection.execute("insert into orders select g, %s, %s from generate_series(1, 50) g", (ROW, ROW))
    scene = Scene(postgres, tmp_path, request.getfixturevalue)
    scene.configure()
    KINDS[name](scene)
    assert scene.failed, "the failure did not happen"
    everything = "\n".join([*scene.said, *scene.files(), logs.getvalue()])
    assert everything.strip()
    for line in everything.splitlines():
        assert "canary-secret" not in line, line
        assert "canary-row" not in line, line


def test_thirty_kinds() -> None:
    assert len(KINDS) >= 30
