"""The HTTP port under peers that mean no good, on raw sockets: whatever they leave open, the port answers others."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from cdc.http import door
from cdc.http.app import MAX_WAITERS, make_app
from cdc.http.events import MAX_READERS
from cdc.http.serve import serving
from cdc.report.shape import Report, TopicReport
from cdc.settings.models import Http, Settings
from sinks import options_model
from tests.integration.test_http import certificate  # noqa: F401 (a fixture)
from tests.unit.http import reports
from tests.waiting import until

DEADLINE_S = 60.0
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def settings_in(folder: Path, **http: object) -> Settings:
    return Settings(
        source={"dsn": "postgresql://nobody@127.0.0.1:1/none"},
        log={"dir": folder / "log"},
        stores={"cache": options_model("memory").model_validate({"kind": "memory"})},
        run_dir=folder / "run",
        http=Http(**{"listen": "127.0.0.1:0", **http}),  # type: ignore[arg-type]
    )  # type: ignore[arg-type]


@contextmanager
def served(folder: Path, take: Callable[[], Report] = reports.healthy, **http: object) -> Iterator[str]:
    settings = settings_in(folder, **http)
    with serving(settings, make_app(settings, take=take)) as url:
        yield url


def connected(url: str, number: int, stack: ExitStack, first: bytes = b"") -> list[socket.socket]:
    host, _, port = url.rpartition("/")[2].rpartition(":")
    address = ("127.0.0.1" if host == "0.0.0.0" else host, int(port))
    made = [stack.enter_context(socket.create_connection(address, DEADLINE_S)) for _ in range(number)]
    for one in made:
        if first:
            one.sendall(first)
    return made


def answers(url: str) -> bool:
    return httpx.get(f"{url}/healthz", timeout=DEADLINE_S).text == "ok\n"


def ends(peer: socket.socket) -> bool:
    """Whether the server ends the connection; what it says before is read."""
    peer.settimeout(DEADLINE_S)
    try:
        while peer.recv(65536):
            pass
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize("first", [b"", b"GET /v1/sta", REQUEST], ids=["idle", "half sent", "kept alive"])
def test_the_port_answers_whatever_stays_connected(tmp_path: Path, first: bytes) -> None:
    with served(tmp_path) as url, ExitStack() as stack:
        connected(url, 2 * door.MAX_CONNECTIONS, stack, first)
        for _ in range(3):
            assert answers(url)
            assert httpx.get(f"{url}/v1/status", timeout=DEADLINE_S).status_code == 200


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "REQUEST_S", 0.5)
    monkeypatch.setattr(door, "UNREAD_S", 0.5)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("first", "then"),
    [
        (b"", b""),
        (b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ", b"x"),
        (b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100000\r\n\r\n", b"x"),
        (b"POST /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (REQUEST + b"GET /he", b"x"),
    ],
    ids=["nothing", "a slow header", "a slow body", "slow chunks", "a slow second request"],
)
def test_a_request_has_to_come_in_time(tmp_path: Path, first: bytes, then: bytes) -> None:
    """A byte now and then does not keep the connection open."""
    with served(tmp_path) as url, ExitStack() as stack:
        (peer,) = connected(url, 1, stack, first)
        over = threading.Event()

        def drip() -> None:
            while then and not over.wait(0.1):
                try:
                    peer.sendall(then)
                except OSError:
                    return

        dripping = threading.Thread(target=drip)
        dripping.start()
        try:
            assert ends(peer)
        finally:
            over.set()
            dripping.join()
        assert answers(url)


def test_a_header_has_a_limit(tmp_path: Path) -> None:
    with served(tmp_path) as url, ExitStack() as stack:
        (peer,) = connected(url, 1, stack, b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: " + b"x" * 20_000)
        assert b" 400 " in peer.recv(4096)
        assert ends(peer)


@pytest.mark.parametrize("header", [b"Origin: http://[", b"Host: [", b"Host: a\x00b", b"Authorization: Bearer \xff\xfe"])
def test_odd_headers_are_refused_and_not_an_error_of_ours(tmp_path: Path, header: bytes) -> None:
    host = b"" if header.startswith(b"Host") else b"Host: 127.0.0.1\r\n"
    with served(tmp_path, token="0123456789abcdef") as url, ExitStack() as stack:
        (peer,) = connected(url, 1, stack, b"GET /v1/status HTTP/1.1\r\n" + host + header + b"\r\nConnection: close\r\n\r\n")
        assert peer.recv(4096).split()[1] in (b"400", b"401", b"403")


def test_requests_in_a_row_are_answered_in_a_row(tmp_path: Path) -> None:
    with served(tmp_path) as url, ExitStack() as stack:
        (peer,) = connected(url, 1, stack, REQUEST * 200)
        said = b""
        while said.count(b"ok\n") < 200:
            more = peer.recv(65536)
            assert more
            said += more
        assert said.count(b"200 OK") == 200


def test_a_wait_ends_with_its_connection(tmp_path: Path) -> None:
    asked = b"GET /v1/wait?store=cache&lsn=FFFFFFFF/FFFFFFFF&timeout=300 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with served(tmp_path) as url:
        with ExitStack() as stack:
            connected(url, MAX_WAITERS, stack, asked)

            def wait_code() -> int:
                return httpx.get(f"{url}/v1/wait?store=cache&lsn=1/1&timeout=0.05", timeout=DEADLINE_S).status_code

            until(lambda: wait_code() == 503)
            assert answers(url)
        until(lambda: wait_code() == 504)


def test_a_wait_says_how_long_it_waited_in_all(tmp_path: Path) -> None:
    with served(tmp_path) as url:
        answer = httpx.get(f"{url}/v1/wait?store=cache&lsn=1/1&timeout=1.2", timeout=DEADLINE_S)
        assert answer.status_code == 504
        assert "does not show 1/1 after 1.2 s: " in answer.json()["error"]


def test_pages_are_counted_when_they_are_let_in(tmp_path: Path) -> None:
    asked = b"GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    slow = threading.Event()

    def take() -> Report:
        slow.wait(2)
        return reports.healthy()

    with served(tmp_path, take) as url:
        with ExitStack() as stack:
            pages = connected(url, MAX_READERS + 6, stack, asked)
            slow.set()
            codes = [page.recv(4096).split()[1] for page in pages]
            assert sorted(codes) == [b"200"] * MAX_READERS + [b"503"] * 6
        until(lambda: httpx.get(f"{url}/healthz", timeout=DEADLINE_S).status_code == 200)

        def admitted() -> bool:
            with httpx.stream("GET", f"{url}/v1/events", timeout=DEADLINE_S) as stream:
                return stream.status_code == 200

        until(admitted)


@pytest.mark.usefixtures("impatient")
def test_a_page_that_reads_nothing_is_let_go(tmp_path: Path) -> None:
    report = reports.healthy()
    large = replace(report, log=replace(report.log, tables=(TopicReport("t" * 5_000_000, 1, 1, 1, 1),)))
    settings = settings_in(tmp_path)
    app = make_app(settings, take=lambda: replace(large, at=time.time()))
    with serving(settings, app) as url, ExitStack() as stack:
        connected(url, 1, stack, b"GET /v1/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        until(lambda: app.state.feed.readers.count == 1)
        until(lambda: app.state.feed.readers.count == 0)
        assert answers(url)


def test_a_handshake_that_never_comes_keeps_nobody_out(tmp_path: Path, certificate: tuple[Path, Path]) -> None:  # noqa: F811
    cert, key = certificate
    trusting = ssl.create_default_context(cafile=str(cert))
    token = "0123456789abcdef"
    with served(tmp_path, listen="0.0.0.0:0", token=token, tls_cert=cert, tls_key=key) as url, ExitStack() as stack:
        connected(url, 2 * door.MAX_CONNECTIONS, stack)
        address = f"https://127.0.0.1:{url.rpartition(':')[2]}/healthz"
        for _ in range(3):
            assert httpx.get(address, verify=trusting, timeout=DEADLINE_S).text == "ok\n"
        connected(url, door.MAX_CONNECTIONS, stack, b"\x16\x03\x01")
        assert httpx.get(address, verify=trusting, timeout=DEADLINE_S).text == "ok\n"
