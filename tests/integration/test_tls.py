"""TLS to every party: what cannot be verified is not talked to, and capture works over a verified connection."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr

from cdc.capture import stream as streaming
from cdc.capture.feedback import Feedback
from cdc.capture.stream import Connection
from cdc.embedded.postgres import Postgres, installations
from cdc.errors import HeadwaterError, SourceError
from cdc.model.pgtypes import PINNED_SETTINGS
from cdc.source.connection import connect, parse
from sinks import make_sink, options_model
from tests.integration.capture.running import Capture
from tests.integration.certificates import Authority, Pair
from tests.integration.tls_front import plain_server, tls_front
from tests.logs import EMPTY

PASSWORD = "canary-password"
VERSION = next((version for version in (17, 15) if version in installations()), None)
pytestmark = pytest.mark.skipif(VERSION is None, reason="no Postgres here was built with TLS")


class Secured:
    """A Postgres that takes nothing but TLS with a SCRAM password over TCP."""

    def __init__(self, folder: Path, authority: Authority) -> None:
        self.folder = folder
        self.authority = authority
        self.ca = folder / "ca.crt"
        self.ca.write_bytes(authority.pem)
        self.server = Postgres(folder / "pg", version=VERSION or 0)

    def start(self) -> None:
        self.server.start()
        with psycopg.connect(self.server.unix_dsn(), autocommit=True) as connection:
            connection.execute("create role cdc superuser login replication password 'canary-password'")
            connection.execute("create database shop")
        self.server.stop()
        hba = self.server.data / "pg_hba.conf"
        hba.write_text(
            "local all postgres trust\nhostssl all all 127.0.0.1/32 scram-sha-256\nhostssl replication all 127.0.0.1/32 scram-sha-256\n"
        )
        self.present(self.authority.server())
        self.server.options |= {"ssl": "on"}
        self.server.start()

    def present(self, pair: Pair) -> None:
        """From the next connection on the server shows this certificate."""
        owner = self.server.data.stat()
        for name, content in (("server.crt", pair.certificate), ("server.key", pair.key)):
            path = self.server.data / name
            path.touch(0o600)
            path.write_bytes(content)
            path.chmod(0o600)
            os.chown(path, owner.st_uid, owner.st_gid)
        if self.server.running:
            with psycopg.connect(self.server.unix_dsn(), autocommit=True) as connection:
                connection.execute("select pg_reload_conf()")
                before = connection.execute("select pg_conf_load_time()").fetchone()
            while True:
                with psycopg.connect(self.server.unix_dsn(), autocommit=True) as connection:
                    if connection.execute("select pg_conf_load_time()").fetchone() != before:
                        return

    def dsn(self, *, host: str = "127.0.0.1", mode: str = "verify-full", ca: Path | None = None, password: str = PASSWORD) -> str:
        return f"postgresql://cdc:{password}@{host}:{self.server.port}/shop?sslmode={mode}&sslrootcert={ca or self.ca}"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    made = Secured(tmp_path_factory.mktemp("tls"), Authority())
    try:
        made.start()
        yield made
    finally:
        made.server.stop("immediate")


def test_capture_streams_over_a_verified_connection(secured: Secured, tmp_path: Path) -> None:
    with psycopg.connect(secured.dsn(), autocommit=True) as connection:
        connection.execute("create table a (id int primary key, v text)")
        connection.execute("insert into a select g, repeat('x', 100) from generate_series(1, 2000) g")
        capture = Capture(secured.dsn(), tmp_path)
        with capture.running():
            capture.until_snapshot_done()
            for number in range(20):
                connection.execute("update a set v = v || %s where id %% 20 = %s", (str(number), number))
            connection.execute("insert into a select g, repeat('y', 100) from generate_series(2001, 20000) g")
            capture.until(lambda: len(capture.rows("public.a")) == 20_000, "for the rows")
            row = connection.execute("select ssl from pg_stat_ssl join pg_stat_replication using (pid)").fetchone()
            assert row == (True,)
            expected = dict(connection.execute("select id::text, v from a").fetchall())
            assert {key[0]: row["v"] for key, row in capture.rows("public.a").items()} == expected


def _wrong(secured: Secured, fault: str) -> str:
    """The DSN that meets the fault."""
    authority = secured.authority
    match fault:
        case "another authority":
            other = secured.folder / "other.crt"
            other.write_bytes(Authority("another").pem)
            return secured.dsn(ca=other)
        case "another host":
            secured.present(authority.server(host="elsewhere.example", address="127.0.0.9"))
        case "expired":
            secured.present(authority.server(days=-1))
        case "not signed by the authority":
            secured.present(Authority("self").server())
        case "another password":
            return secured.dsn(password="wrong-canary")
        case _:
            raise AssertionError(fault)
    return secured.dsn()


@pytest.mark.parametrize(
    "fault", ["another authority", "another host", "expired", "not signed by the authority", "another password"]
)
def test_a_server_that_cannot_be_verified_is_refused(secured: Secured, fault: str) -> None:
    try:
        dsn = _wrong(secured, fault)
        for attempt in (lambda: connect(dsn), lambda: Connection(parse(dsn), PINNED_SETTINGS, name="the source")):
            with pytest.raises(SourceError) as refused:
                attempt()
            assert "canary" not in refused.value.line()
    finally:
        secured.present(secured.authority.server())
    with connect(secured.dsn()) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


def test_a_server_without_tls_is_refused(postgres: Any) -> None:
    dsn = postgres.dsn + "?sslmode=verify-full"
    with pytest.raises(SourceError, match="SSL"):
        connect(dsn)
    with pytest.raises(SourceError, match="SSL"):
        Connection(parse(dsn), PINNED_SETTINGS, name="the source")


@pytest.mark.parametrize(("mode", "bare"), [({}, True), ({"gssencmode": "disable"}, True), ({"gssencmode": "prefer"}, False)])
def test_the_bare_socket_is_taken_only_where_kerberos_cannot_encrypt_it(
    postgres: Any, mode: dict[str, str], bare: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[object] = []
    real = streaming._Socket
    monkeypatch.setattr(streaming, "_Socket", lambda pg, command: taken.append(pg) or real(pg, command))
    with postgres.connect() as admin:
        admin.execute("create publication cdc for all tables")
        admin.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (postgres.name,))
        connection = Connection({**parse(postgres.dsn), **mode}, PINNED_SETTINGS, name="here")
        with connection.start(postgres.name, "cdc", 0, Feedback(0)) as stream:
            admin.execute("create table t (id int primary key); insert into t values (1)")
            deadline = time.monotonic() + 60
            received = b""
            while b"\0t\0" not in received:
                assert time.monotonic() < deadline, "the change does not come"
                received += bytes(stream.take(0.1))
    assert bool(taken) is bare


def test_a_client_key_that_others_may_read_is_refused(secured: Secured, tmp_path: Path) -> None:
    certificate, key = secured.authority.server().write(tmp_path, "client")
    key.chmod(0o644)
    with pytest.raises(SourceError, match="private key"):
        connect(f"{secured.dsn()}&sslcert={certificate}&sslkey={key}")


def _faces(authority: Authority) -> dict[str, Pair]:
    return {
        "another host": authority.server(host="elsewhere.example", address="127.0.0.9"),
        "expired": authority.server(days=-1),
        "not signed by the authority": Authority("self").server(),
    }


def _store(kind: str, url: str, ca: Path | None) -> Any:
    options = options_model(kind).model_validate({"kind": kind, "url": url, **({"ca_certs": ca} if ca else {})})
    return make_sink("store", options)


@pytest.mark.parametrize(
    "kind", ["redis", pytest.param("opensearch", marks=[pytest.mark.opensearch, pytest.mark.xdist_group("opensearch")])]
)
def test_a_store_is_reached_over_verified_tls_only(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if kind == "redis":
        server = request.getfixturevalue("valkey")
        scheme, port = "rediss", int(server.url.rsplit(":", 1)[1].split("/")[0])
    else:
        server = request.getfixturevalue("opensearch")
        scheme, port = "https", int(server.url.rsplit(":", 1)[1].strip("/"))
    authority = Authority()
    ca = tmp_path / "ca.crt"
    ca.write_bytes(authority.pem)
    with ExitStack() as stack:
        fine = stack.enter_context(tls_front(*authority.server().write(tmp_path, "fine"), port))
        sink = _store(kind, f"{scheme}://127.0.0.1:{fine}", ca)
        sink.open(EMPTY)
        sink.close()
        attempts = {"authority unknown": _store(kind, f"{scheme}://127.0.0.1:{fine}", None)}
        attempts["plain"] = _store(kind, f"{scheme}://127.0.0.1:{stack.enter_context(plain_server())}", ca)
        for fault, pair in _faces(authority).items():
            front = stack.enter_context(tls_front(*pair.write(tmp_path, fault.replace(" ", "-")), port))
            attempts[fault] = _store(kind, f"{scheme}://127.0.0.1:{front}", ca)
        for fault, refused in attempts.items():
            with pytest.raises(HeadwaterError):
                print(kind, fault, refused.open(EMPTY))
            refused.close()


def test_a_remote_source_is_verified_unless_the_dsn_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PGSSLMODE", raising=False)
    remote = parse("postgresql://cdc@db.internal/shop")
    assert (remote["sslmode"], remote["sslrootcert"]) == ("verify-full", "system")
    assert parse("postgresql://cdc@db.internal/shop?sslrootcert=/ca.crt")["sslrootcert"] == "/ca.crt"
    assert parse("host=a,127.0.0.1")["sslmode"] == parse("hostaddr=10.0.0.1")["sslmode"] == "verify-full"
    for said in (
        "postgresql://cdc@db.internal/shop?sslmode=require",
        "postgresql://cdc@127.0.0.1/shop",
        "host=/run/postgresql",
        "host=localhost",
    ):
        assert parse(said).get("sslmode") in (None, "require")
    monkeypatch.setenv("PGSSLMODE", "require")
    assert "sslmode" not in parse("postgresql://cdc@db.internal/shop")


def test_the_secret_is_in_no_repr(secured: Secured) -> None:
    assert "canary" not in repr(SecretStr(secured.dsn()))


def test_a_snapshot_over_tls_works_with_very_many_open_files(secured: Secured, tmp_path: Path) -> None:
    resource.setrlimit(
        resource.RLIMIT_NOFILE,
        (max(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[0]), resource.getrlimit(resource.RLIMIT_NOFILE)[1]),
    )
    with ExitStack() as stack:
        for _ in range(1100):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        connection = stack.enter_context(psycopg.connect(secured.dsn(), autocommit=True))
        connection.execute("create schema many; create table many.t (id int primary key)")
        connection.execute("insert into many.t select generate_series(1, 100)")
        capture = Capture(secured.dsn(), tmp_path, tables=("many.*",), slot="many", publication="many")
        with capture.running():
            capture.until(lambda: len(capture.rows("many.t")) == 100, "for the rows")
