"""Who gets the password: nobody who asks for it in clear text or as MD5, and over TLS nobody who merely passes it on."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psycopg
import pytest

from cdc.capture.stream import Connection
from cdc.embedded.postgres import Postgres, installations
from cdc.errors import SourceError, SourceUnreachable
from cdc.model.pgtypes import PINNED_SETTINGS
from cdc.source.connection import connect, parse
from tests.integration.capture.running import Capture
from tests.integration.certificates import Authority
from tests.integration.tls_front import tls_front

PASSWORD = "canary-password"
VERSION = next((version for version in (17, 15) if version in installations()), None)
pytestmark = pytest.mark.skipif(VERSION is None, reason="no Postgres here was built with TLS")


class Guarded:
    """A Postgres with TLS whose way to authenticate ``cdc`` over TCP each test chooses."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority()
        self.folder = folder
        self.server = Postgres(folder / "pg", version=VERSION or 0)
        self.ca = folder / "ca.crt"
        self.ca.write_bytes(self.authority.pem)
        self.server.start()
        with psycopg.connect(self.server.unix_dsn(), autocommit=True) as connection:
            connection.execute("create role cdc superuser login replication password 'canary-password'")
            connection.execute("create role old login password null; set password_encryption = 'md5'")
            connection.execute("alter role old replication password 'canary-password'")
        self.server.stop()
        owner = self.server.data.stat()
        pair = self.authority.server()
        for name, content in (("server.crt", pair.certificate), ("server.key", pair.key), ("root.crt", self.authority.pem)):
            path = self.server.data / name
            path.touch(0o600)
            path.write_bytes(content)
            path.chmod(0o600)
            os.chown(path, owner.st_uid, owner.st_gid)
        self.server.options |= {"ssl": "on", "ssl_ca_file": "root.crt"}
        self.server.start()

    def asks(self, method: str) -> None:
        """From the next connection on."""
        hba = self.server.data / "pg_hba.conf"
        hba.write_text(f"local all postgres trust\nhost all all all {method}\n")
        with psycopg.connect(self.server.unix_dsn(), autocommit=True) as connection:
            before = connection.execute("select pg_conf_load_time()").fetchone()
            connection.execute("select pg_reload_conf()")
        while True:
            with psycopg.connect(self.server.unix_dsn(), autocommit=True) as connection:
                if connection.execute("select pg_conf_load_time()").fetchone() != before:
                    return

    def dsn(self, options: str = "sslmode=verify-full", *, user: str = "cdc", port: int | None = None) -> str:
        return (
            f"host=127.0.0.1 port={port or self.server.port} user={user} password={PASSWORD} dbname=postgres "
            f"sslrootcert={self.ca} {options}"
        )


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    made = Guarded(tmp_path_factory.mktemp("authentication"))
    try:
        yield made
    finally:
        made.server.stop("immediate")


def attempts(dsn: str) -> list[Callable[[], object]]:
    """The ways in which we connect: for SQL, and for the stream."""
    return [lambda: connect(dsn), lambda: Connection(parse(dsn), PINNED_SETTINGS, name="the source")]


@contextmanager
def impostor(asks: bytes) -> Iterator[tuple[int, bytearray]]:
    """Listens where Postgres should, asks for a password in this way, and keeps what it is given."""
    heard = bytearray()
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:

        def serve() -> None:
            while True:
                try:
                    client, _ = listening.accept()
                except OSError:
                    return
                with client:
                    client.settimeout(10)
                    try:
                        while True:
                            head = client.recv(8, socket.MSG_WAITALL)
                            if len(head) < 8:
                                break
                            if struct.unpack("!ii", head)[1] == 80877103:  # SSLRequest
                                client.sendall(b"N")
                                continue
                            client.recv(struct.unpack("!ii", head)[0] - 8, socket.MSG_WAITALL)
                            client.sendall(b"R" + struct.pack("!i", 4 + len(asks)) + asks)
                            heard.extend(client.recv(1 << 16))
                            break
                    except OSError:
                        pass

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()[1], heard
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize("asks", [struct.pack("!i", 3), struct.pack("!i", 5) + b"salt"], ids=["clear text", "md5"])
def test_whoever_answers_on_loopback_does_not_get_the_password(asks: bytes) -> None:
    with impostor(asks) as (port, heard):
        for attempt in attempts(f"postgresql://cdc:{PASSWORD}@127.0.0.1:{port}/shop"):
            with pytest.raises(SourceError) as refused:
                attempt()
            assert PASSWORD not in refused.value.line()
        with pytest.raises(SourceError) as refused:
            connect(f"postgresql://cdc:{PASSWORD}@127.0.0.1:{port}/shop")
        assert "require_auth=" in (refused.value.hint or "")
        assert not isinstance(refused.value, SourceUnreachable)
    assert bytes(heard) == b""


@pytest.mark.parametrize(("method", "user", "allows"), [("password", "cdc", "password"), ("md5", "old", "md5")])
@pytest.mark.parametrize("tls", ["sslmode=verify-full", "sslmode=disable"])
def test_a_server_that_only_asks_so_is_refused_with_the_option_that_allows_it(
    guarded: Guarded, method: str, user: str, allows: str, tls: str
) -> None:
    guarded.asks(method)
    with pytest.raises(SourceError) as refused:
        connect(guarded.dsn(tls, user=user))
    assert f"require_auth={allows}" in (refused.value.hint or "")
    with connect(guarded.dsn(f"{tls} require_auth={allows}", user=user)) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


@pytest.mark.parametrize("tls", ["verify-full", "verify-ca", "require", "prefer", "disable"])
@pytest.mark.parametrize("method", ["scram-sha-256", "md5", "trust"])
def test_scram_and_trust_work_with_and_without_tls(guarded: Guarded, method: str, tls: str) -> None:
    """Where the role's password is stored for SCRAM, the method md5 asks for SCRAM, too."""
    guarded.asks(method)
    with connect(guarded.dsn(f"sslmode={tls}")) as connection:
        row = connection.execute("select ssl from pg_stat_ssl where pid = pg_backend_pid()").fetchone()
        assert row == (tls != "disable",)
        walsender = Connection(connection.opened_with, PINNED_SETTINGS, name="the source")
        assert walsender.identify().database == "postgres"
        walsender.close()


def test_a_client_certificate_is_enough(guarded: Guarded, tmp_path: Path) -> None:
    guarded.asks("cert map=all")
    (guarded.server.data / "pg_ident.conf").write_text("all /^.*$ cdc\n")
    guarded.asks("cert map=all")
    certificate, key = guarded.authority.server().write(tmp_path, "client")
    with connect(guarded.dsn(f"sslmode=verify-full sslcert={certificate} sslkey={key}")) as connection:
        walsender = Connection(connection.opened_with, PINNED_SETTINGS, name="the source")
        assert walsender.identify().database == "postgres"
        walsender.close()


def test_a_socket_of_this_machine_needs_no_password(guarded: Guarded) -> None:
    with connect(guarded.server.unix_dsn()) as connection:
        assert connection.execute("select 1").fetchone() == (1,)


@pytest.mark.parametrize("mode", ["require", "verify-full"])
def test_who_ends_tls_in_between_is_refused_unless_the_dsn_allows_it(guarded: Guarded, tmp_path: Path, mode: str) -> None:
    guarded.asks("scram-sha-256")
    with tls_front(*guarded.authority.server().write(tmp_path, "front"), guarded.server.port, postgres=True) as port:
        dsn = guarded.dsn(f"sslmode={mode}", port=port)
        with pytest.raises(SourceError, match="channel binding") as refused:
            connect(dsn)
        assert "channel_binding=prefer" in (refused.value.hint or "")
        with connect(f"{dsn} channel_binding=prefer") as connection:
            assert connection.execute("select 1").fetchone() == (1,)


def test_capture_runs_where_the_server_trusts_over_tls(guarded: Guarded, tmp_path: Path) -> None:
    guarded.asks("trust")
    with psycopg.connect(guarded.server.unix_dsn(), autocommit=True) as connection:
        connection.execute("create table trusted (id int primary key)")
        connection.execute("insert into trusted select generate_series(1, 100)")
        capture = Capture(guarded.dsn(), tmp_path, tables=("public.trusted",), slot="trusted", publication="trusted")
        with capture.running():
            capture.until(lambda: len(capture.rows("public.trusted")) == 100, "for the rows")
            connection.execute("insert into trusted values (101)")
            capture.until(lambda: len(capture.rows("public.trusted")) == 101, "for the change")
