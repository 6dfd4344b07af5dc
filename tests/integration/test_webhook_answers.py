"""Answers that a receiver draws out or splits: each attempt ends in time, and says what was meant."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from sinks.events.webhook import Options
from sinks.events.webhook.deliveries import EventRequest, Outgoing
from sinks.events.webhook.receiver import Receiver
from sinks.events.webhook.verdict import TAKEN, RequestFate, RequestVerdict

PIECES = 200
PAUSE_S = 0.05


@contextmanager
def answering(answer: Callable[[socket.socket], None]) -> Iterator[int]:
    """A server that answers one request so; gives its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            given, _ = server.accept()
            with given, suppress(OSError):
                given.recv(65536)
                answer(given)

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


def post(port: int) -> RequestVerdict:
    receiver = Receiver(Options.model_validate({"kind": "webhook", "url": f"http://127.0.0.1:{port}/", "timeout_s": 0.3}))
    try:
        return receiver.post(EventRequest((Outgoing("public.orders", 1, "e1", "a", "/", b"{}"),)))
    finally:
        receiver.close()


@pytest.mark.parametrize(
    ("head", "piece"),
    [(b"HTTP/1.1 200 OK\r\n", b"x"), (b"HTTP/1.1 200 OK\r\n", b"x: y\r\n"), (b"", b"HTTP/1.1 100 Continue\r\n\r\n")],
)
def test_headers_that_come_piece_by_piece_are_no_answer(head: bytes, piece: bytes) -> None:
    def answer(given: socket.socket) -> None:
        given.sendall(head)
        for _ in range(PIECES // 4):
            given.sendall(piece)
            time.sleep(PAUSE_S)
        given.sendall(b"\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    with answering(answer) as port:
        assert post(port) == RequestVerdict(RequestFate.SILENT, "no answer (timeout)")


def test_a_body_that_comes_byte_by_byte_is_not_waited_for() -> None:
    sent = []

    def answer(given: socket.socket) -> None:
        given.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % PIECES)
        for _ in range(PIECES):
            given.sendall(b"x")
            sent.append(1)
            time.sleep(PAUSE_S)

    with answering(answer) as port:
        assert post(port) == TAKEN
    assert len(sent) < PIECES, "hung up before its end"


def test_an_interim_answer_is_not_the_last() -> None:
    def answer(given: socket.socket) -> None:
        given.sendall(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n")
        given.sendall(b"HTTP/1.1 104 Upload Resumption Supported\r\n\r\nHTTP/1.1 199 Whatever\r\n\r\n")
        given.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    with answering(answer) as port:
        assert post(port) == TAKEN


def test_an_offer_of_another_protocol_is_the_last() -> None:
    with answering(lambda given: given.sendall(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n")) as port:
        assert post(port).fate is RequestFate.REFUSED
