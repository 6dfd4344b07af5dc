"""What the stream hands over, without a server."""

from __future__ import annotations

import queue
import socket
import struct
import threading
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest

from cdc.capture import buffers, pace
from cdc.capture import stream as stream_module
from cdc.capture.feedback import Feedback
from cdc.capture.stream import Stream, _Socket
from cdc.pgvalues.values import Bytes


class Wire:
    """Receives what the test says, when it says it."""

    backlog = False

    def __init__(self) -> None:
        self.coming: queue.Queue[bytes] = queue.Queue()

    def receive(self, into: memoryview) -> int:
        try:
            piece = self.coming.get(timeout=0.01)
        except queue.Empty:
            return 0
        into[: len(piece)] = piece
        return len(piece)

    def send(self, status: bytes) -> None:
        del status

    def close(self) -> None:
        return


@pytest.fixture
def wire() -> Wire:
    return Wire()


@pytest.fixture
def stream(wire: Wire) -> Iterator[Stream]:
    with Stream(wire, Feedback(0)) as stream:  # type: ignore[arg-type]
        yield stream


def taken(stream: Stream) -> Bytes:
    while not len(got := stream.take(30.0)):
        pass
    return got


@pytest.mark.parametrize("headroom", [8, 3, 2])
def test_what_is_torn_stands_before_what_comes_next(
    headroom: int, wire: Wire, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buffers, "HEADROOM_BYTES", headroom)
    for number in range(5):
        first, second = f"{number}abc".encode(), f"{number}defg".encode()
        wire.coming.put(first)
        torn = taken(stream)[1:].copy()
        assert torn.tobytes() == first[1:]
        wire.coming.put(second)
        whole = stream.behind(torn, taken(stream))
        wire.coming.put(b"later")  # goes elsewhere
        later = taken(stream)
        assert whole.tobytes() == first[1:] + second
        assert stream.behind(np.empty(0, np.uint8), later).tobytes() == b"later"


def test_whoever_waits_for_bytes_can_be_woken_before_or_meanwhile(stream: Stream) -> None:
    stream.wake()
    assert not len(stream.take(3600.0))
    threading.Timer(0.05, stream.wake).start()
    assert not len(stream.take(3600.0))


def test_under_a_backlog_a_block_is_as_large_as_the_tables_of_the_last_one_ask_for(
    wire: Wire, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "block_bytes", lambda batches: 2 * batches)
    monkeypatch.setattr(stream_module, "block_s", lambda _: 120.0)
    wire.backlog = True
    stream.batches = 4
    wire.coming.put(b"abcde")
    wire.coming.put(b"fgh")
    assert taken(stream).tobytes() == b"abcdefgh"
    stream.batches = 1
    wire.coming.put(b"ij")
    assert taken(stream).tobytes() == b"ij"


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[_Socket, socket.socket]]:
    """Our side of a stream that has begun, and the server's."""
    monkeypatch.setattr(pace, "FLOW_S", 1e9)
    ours, server = socket.socketpair()
    server.sendall(b"W" + struct.pack("!i", 4))
    wire = _Socket(SimpleNamespace(socket=ours.fileno(), finish=ours.close), b"START")  # type: ignore[arg-type]
    assert server.recv(100) == b"Q" + struct.pack("!i", 10) + b"START\0"
    yield wire, server
    server.close()
    wire.close()


def received(wire: _Socket, least: int) -> bytes:
    into = memoryview(bytearray(10_000))
    got = b""
    while len(got) < least:
        count = wire.receive(into)
        got += into[:count]
    return got


def test_messages_that_come_fast_are_gathered_until_they_come_slower(ends: tuple[_Socket, socket.socket]) -> None:
    wire, server = ends
    for number in range(2 * pace.FLOW_READS):
        server.sendall(b"x")
        assert received(wire, 1) == b"x"
        assert wire._flow.flows == (number == 2 * pace.FLOW_READS - 1)  # the first ones have nothing to be compared with
    many = b"y" * pace.FLOW_BYTES
    server.sendall(many)
    assert received(wire, len(many)) == many
    assert wire._flow.flows
    assert not wire.backlog
    server.sendall(b"few")
    assert received(wire, 3) == b"few"
    assert not wire._flow.flows
    server.sendall(b"z" * pace.BACKLOG_BYTES)
    assert received(wire, pace.BACKLOG_BYTES) == b"z" * pace.BACKLOG_BYTES
    assert wire._flow.flows
    assert wire.backlog
    server.sendall(b"last")
    server.close()
    assert received(wire, 4) == b"last"
    with pytest.raises(ConnectionError):
        received(wire, 1)
