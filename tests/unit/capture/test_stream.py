"""What the stream hands over, without a server."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import numpy as np
import pytest

from cdc.capture import stream as stream_module
from cdc.capture.feedback import Feedback
from cdc.capture.stream import Stream
from cdc.capture.values import Bytes


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
    monkeypatch.setattr(stream_module, "HEADROOM_BYTES", headroom)
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
