"""Credentials of a search index: asked for again when the cluster refuses those that are held."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from pydantic import SecretStr

from cdc.errors import StoreError
from cdc.settings.secretfile import SecretFile
from sinks.search.wire import Address, Cluster


class Guarded(ThreadingHTTPServer):
    """Answers as a cluster with basic authentication does; ``seen`` are the credentials of each request, as they were sent."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Guard)
        self.wants = "cdc:one"
        self.seen: list[str] = []

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class _Guard(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        assert isinstance(self.server, Guarded)
        given = base64.b64decode(self.headers.get("authorization", "").removeprefix("Basic ")).decode()
        self.server.seen.append(given)
        body = b'{"fine": true}' if given == self.server.wants else b"Unauthorized"
        self.send_response(200 if given == self.server.wants else 401)
        self.send_header("content-type", "application/json" if given == self.server.wants else "text/plain")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def guarded() -> Iterator[Guarded]:
    with Guarded() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def in_file(path: Path, text: str) -> SecretFile:
    path.write_text(text)
    return SecretFile(text, path)


@pytest.mark.parametrize("whole_url", [False, True])
def test_a_rotated_password_counts_without_a_restart(guarded: Guarded, tmp_path: Path, whole_url: bool) -> None:
    secret, text = tmp_path / "secret", f"http://cdc:%s@{guarded.host}" if whole_url else "%s"
    if whole_url:
        address = Address(url=in_file(secret, text % "one"))
    else:
        address = Address(url=SecretStr(f"http://{guarded.host}"), username="cdc", password=in_file(secret, "one"))
    with closing(Cluster("search", address)) as cluster:
        assert cluster.ask("a question", "GET", "/") == {"fine": True}
        guarded.wants = "cdc:two"
        with pytest.raises(StoreError) as refused:
            cluster.ask("a question", "GET", "/")
        assert refused.value.retryable, "the file may follow in a moment"
        assert "file" in str(refused.value.hint)
        secret.write_text("http://cdc:tw" if whole_url else "")  # somebody is writing it
        with pytest.raises(StoreError):
            cluster.ask("a question", "GET", "/")
        secret.write_text(text % "two")
        assert cluster.ask("a question", "GET", "/") == {"fine": True}
        guarded.seen.clear()
        assert cluster.ask("a question", "GET", "/") == {"fine": True}
        assert guarded.seen == ["cdc:two"]


def test_wrong_credentials_that_no_file_holds_are_for_the_operator(guarded: Guarded) -> None:
    guarded.wants = "cdc:two"
    address = Address(url=SecretStr(f"http://{guarded.host}"), username="cdc", password=SecretStr("one"))
    with closing(Cluster("search", address)) as cluster, pytest.raises(StoreError) as refused:
        cluster.ask("a question", "GET", "/")
    assert not refused.value.retryable
    assert guarded.seen == ["cdc:one"], "the same credentials are not tried twice"


def test_credentials_in_the_url_come_as_they_are_meant(guarded: Guarded) -> None:
    guarded.wants = "c/d:o@ne"
    with closing(Cluster("search", Address(url=SecretStr(f"http://c%2Fd:o%40ne@{guarded.host}")))) as cluster:
        assert cluster.ask("a question", "GET", "/") == {"fine": True}
