"""The HTTP port over real sockets: before a service whose parts are real, and over TLS."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from cdc.commands.run import _capture as run_part
from cdc.errors import ConfigError, Stopped
from cdc.http.app import make_app
from cdc.http.events import MAX_READERS, PERIOD_S
from cdc.http.serve import TICK_S, listen, serving
from cdc.settings.models import Http, Settings
from tests.conftest import Database
from tests.integration.certificates import Authority
from tests.integration.pipeline import service, settings_of
from tests.unit.http import reports
from tests.waiting import until

TOKEN = "0123456789abcdef0123456789abcdef"


def test_a_real_service(postgres: Database, tmp_path: Path) -> None:
    """From a commit at the source to what every path of the port says of it."""
    store = f"twin-{postgres.name.replace('_', '-')}"
    given = settings_of(postgres, tmp_path, {store: {"kind": "memory"}})
    settings = given.model_copy(update={"http": Http(listen="127.0.0.1:0")})
    with postgres.connect() as connection:
        connection.execute("create table public.t (id int primary key, v text)")
        connection.execute("create publication cdc for table public.t")
        with serving(settings) as url, httpx.Client(base_url=url, timeout=150) as client:
            before = client.get("/v1/status").json()
            assert (before["capture"], before["source"]["reachable"], before["healthy"]) == (None, True, False)
            assert client.get("/readyz").status_code == 503
            with service(settings):
                connection.execute("insert into public.t select g, 'x' from generate_series(1, 1000) g")
                row = connection.execute("select pg_current_wal_insert_lsn()::text").fetchone()
                assert row is not None
                reached = client.get("/v1/wait", params={"store": store, "lsn": row[0], "timeout": "120"})
                assert reached.status_code == 200, reached.text
                assert reached.json()["position"] >= 1000
                now = client.get("/v1/wait", params={"store": store, "timeout": "120"})
                assert now.json()["reached"] is True
                status = until_in_step(client)
                until(lambda: client.get("/readyz").json() == {"ready": True})
                assert status["followers"][0]["lag"] == {"changes": 0, "bytes": 0, "seconds": 0.0}
                metrics = client.get("/metrics").text
                assert f'headwater_store_position{{store="{store}"}} {status["followers"][0]["position"]:.1f}' in metrics
                assert "headwater_slot_active 1.0" in metrics
                ahead = client.get("/v1/wait", params={"store": store, "lsn": "FFFF/0", "timeout": "0.2"})
                assert (ahead.status_code, ahead.json()["reached"]) == (504, False)
            until(lambda: client.get("/readyz").status_code == 503)


def test_every_word_of_a_real_service_agrees(postgres: Database, tmp_path: Path) -> None:
    """While it runs, when it has ended, and when an operator has to decide."""
    store = f"twin-{postgres.name.replace('_', '-')}"
    given = settings_of(postgres, tmp_path, {store: {"kind": "memory"}})
    settings = given.model_copy(update={"http": Http(listen="127.0.0.1:0")})
    stop = threading.Event()
    with postgres.connect() as connection, serving(settings) as url, httpx.Client(base_url=url, timeout=150) as client:
        connection.execute("create table public.t (id int primary key)")

        def said() -> tuple[bool, int, bool]:
            """Asked again when the second turns in between."""
            while True:
                before, ready = client.get("/v1/status").json(), client.get("/readyz")
                counted = "headwater_healthy 1.0" in client.get("/metrics").text
                after = client.get("/v1/status").json()
                if before["problems"] == after["problems"]:
                    assert list(ready.json().get("reasons", [])) == before["problems"]
                    assert all(" → " in problem for problem in before["problems"])
                    return before["healthy"], ready.status_code, counted

        assert said() == (False, 503, False)
        with service(settings):
            until(lambda: said() == (True, 200, True))
        until(lambda: said() == (False, 503, False))
        assert client.get("/v1/wait", params={"store": store, "lsn": "FFFF/0", "timeout": "0.2"}).status_code == 504
        connection.execute("select pg_drop_replication_slot(%s)", (settings.source.slot,))
        with pytest.raises(Stopped):
            run_part(settings, stop)
        until(lambda: any("cdc resume SLOT_MISSING" in problem for problem in client.get("/v1/status").json()["problems"]))
        assert said() == (False, 503, False)
        began = time.monotonic()
        refused = client.get("/v1/wait", params={"store": store, "lsn": "FFFF/0", "timeout": "120"})
        assert refused.status_code == 409
        assert "SLOT_MISSING" in refused.json()["error"]
        assert time.monotonic() - began < 60


def until_in_step(client: httpx.Client) -> dict[str, Any]:
    """The first status that shows all rows, and no lag."""
    status: dict[str, Any] = {}

    def in_step() -> bool:
        status.update(client.get("/v1/status").json())
        return status["log"]["rows"] >= 1000 and status["healthy"] and not status["followers"][0]["lag"]["changes"]

    until(in_step)
    return status


def test_a_source_that_is_down_is_a_fact_and_no_error(tmp_path: Path, free_port: Callable[[], int]) -> None:
    settings = Settings(
        source={"dsn": f"postgresql://cdc:canary-secret@127.0.0.1:{free_port()}/shop"},
        log={"dir": tmp_path / "log"},
        run_dir=tmp_path / "run",
        http={"listen": "127.0.0.1:0"},
    )  # type: ignore[arg-type]
    with serving(settings) as url:
        answer = httpx.get(f"{url}/v1/status", timeout=60)
        assert answer.status_code == 200
        assert answer.json()["source"]["reachable"] is False
        assert "canary-secret" not in answer.text
        assert "canary-secret" not in httpx.get(f"{url}/metrics", timeout=60).text


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("no openssl program to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    made = [
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
        "-keyout",
        key,
        "-out",
        cert,
        *subject,
    ]
    subprocess.run([program, *map(str, made)], check=True, capture_output=True)
    return cert, key


def served(tmp_path: Path, **http: object) -> Settings:
    return Settings(
        source={"dsn": "postgresql://nobody@127.0.0.1:1/none"},
        log={"dir": tmp_path},
        run_dir=tmp_path,
        http=Http(**http),  # type: ignore[arg-type]
    )  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1")
def test_tls_and_token(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    cert, key = certificate
    settings = served(tmp_path, listen="0.0.0.0:0", token=TOKEN, tls_cert=cert, tls_key=key)
    trusting = ssl.create_default_context(cafile=str(cert))
    with serving(settings, make_app(settings, take=reports.healthy)) as url:
        assert url.startswith("https://")
        port = url.rpartition(":")[2]
        address = f"https://127.0.0.1:{port}/v1/status"
        assert httpx.get(address, verify=trusting, timeout=60).status_code == 401
        answer = httpx.get(address, verify=trusting, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60)
        assert answer.json()["healthy"] is True
        with pytest.raises(httpx.ConnectError):
            httpx.get(address, timeout=60)
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=60)
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.maximum_version = ssl.TLSVersion.TLSv1_1
        with socket.create_connection(("127.0.0.1", int(port)), 60) as connection, pytest.raises(ssl.SSLError):
            old.wrap_socket(connection)


def test_a_certificate_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "not.pem").write_text("nothing")
    settings = served(tmp_path, tls_cert=tmp_path / "not.pem", tls_key=tmp_path / "not.pem")
    with pytest.raises(ConfigError, match="cannot use"), serving(settings):
        pass


def test_a_renewed_certificate_is_shown_without_a_restart(tmp_path: Path) -> None:
    authority = Authority()
    first, second = authority.server(), authority.server()
    cert, key = first.write(tmp_path, "port")
    (tmp_path / "authority.pem").write_bytes(authority.pem)
    trusting = ssl.create_default_context(cafile=str(tmp_path / "authority.pem"))

    def shown(port: int) -> bytes:
        with (
            socket.create_connection(("127.0.0.1", port), 60) as plain,
            trusting.wrap_socket(plain, server_hostname="localhost") as tls,
        ):
            return ssl.DER_cert_to_PEM_cert(tls.getpeercert(binary_form=True) or b"").encode()

    settings = served(tmp_path, tls_cert=cert, tls_key=key)
    with serving(settings, make_app(settings, take=reports.healthy)) as url, httpx.Client(verify=trusting, timeout=60) as standing:
        port = int(url.rpartition(":")[2])
        assert standing.get(f"{url}/healthz").status_code == 200
        assert shown(port) == first.certificate
        cert.write_bytes(second.certificate)  # which the key does not fit, until it comes as well
        time.sleep(2.5 * TICK_S)
        assert shown(port) == first.certificate
        second.write(tmp_path, "port")
        deadline = time.monotonic() + 60
        while shown(port) != second.certificate:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        cert.unlink()
        time.sleep(2.5 * TICK_S)
        assert shown(port) == second.certificate
        assert standing.get(f"{url}/healthz").status_code == 200


def test_an_address_that_is_taken() -> None:
    with listen("127.0.0.1:0") as taken, pytest.raises(ConfigError, match="cannot listen on"):
        listen(f"127.0.0.1:{taken.getsockname()[1]}")


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    settings = served(tmp_path, listen="127.0.0.1:0")
    with serving(settings, make_app(settings, take=reports.healthy)) as address:
        yield address


def test_the_stream_goes_on_and_stands_alone(url: str) -> None:
    """A reader that reads nothing holds up neither another stream nor the answers."""
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as idle:
        idle.sendall(f"GET /v1/events HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        began = time.monotonic()
        seen = 0
        with httpx.stream("GET", f"{url}/v1/events", timeout=60) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            for line in stream.iter_lines():
                seen += line == "event: status"
                if seen == 3:
                    break
        # The first one at once, the second when its time has come, the third not before half a period later.
        assert time.monotonic() - began > PERIOD_S / 2
        assert httpx.get(f"{url}/healthz", timeout=60).text == "ok\n"


def test_only_so_many_pages_at_once(url: str) -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    open_pages = [socket.create_connection((host, int(port))) for _ in range(MAX_READERS)]
    try:
        for page in open_pages:
            page.sendall(f"GET /v1/events HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        for page in open_pages:
            assert b"200 OK" in page.recv(4096)
        refused = httpx.get(f"{url}/v1/events", timeout=60)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")
        assert httpx.get(f"{url}/v1/status", timeout=60).status_code == 200
    finally:
        for page in open_pages:
            page.close()


def test_the_server_ends_quickly(tmp_path: Path) -> None:
    """With a stream open and a wait under way."""
    settings = served(tmp_path, listen="127.0.0.1:0")
    with serving(settings, make_app(settings, take=reports.healthy)) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        stream = socket.create_connection((host, int(port)))
        stream.sendall(f"GET /v1/events HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert b"200 OK" in stream.recv(4096)
        began = time.monotonic()
    stream.close()
    assert time.monotonic() - began < 60
    assert not [thread for thread in threading.enumerate() if thread.name == "http"]


def test_a_status_that_is_asked_for_all_the_time_does_not_slow_the_source(postgres: Database, tmp_path: Path) -> None:
    """The port keeps one connection to the source, whoever asks how often."""
    settings = settings_of(postgres, tmp_path, {}).model_copy(update={"http": Http(listen="127.0.0.1:0")})
    count = "select count(*) from pg_stat_activity where application_name = 'headwater-status' and datname = current_database()"
    with serving(settings) as url, psycopg.connect(postgres.dsn, autocommit=True) as connection:
        for _ in range(20):
            assert httpx.get(f"{url}/v1/status", timeout=60).json()["source"]["reachable"] is True
        assert connection.execute(count).fetchone() == (1,)
