"""Reads without the GIL: every byte comes, in order, and the end is told from a pause."""

from __future__ import annotations

import random
import socket
import threading

import numpy as np

from cdc.pgvalues.wire import gather


def test_a_read_with_little_is_the_last() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"abc")
        room = np.zeros(10, np.uint8)
        assert gather(ours.fileno(), room, 0, 5, 9) == (3, 3)
        assert room.tobytes() == b"abc" + bytes(7)
        count, last = gather(ours.fileno(), room, 0, 5, 9)
        assert count == 0
        assert last < 0, "nothing there is not the end"


def test_the_room_is_never_left() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"x" * 30)
        whole = np.zeros(20, np.uint8)
        assert gather(ours.fileno(), whole[4:14], 0, 1, 9) == (10, 10)
        assert whole.tobytes() == bytes(4) + b"x" * 10 + bytes(6)


def test_what_came_before_the_end_is_handed_over_first() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            theirs.sendall(b"y" * 6)
        room = np.zeros(10, np.uint8)
        assert gather(ours.fileno(), room, 0, 5, 9) == (6, 0)
        assert gather(ours.fileno(), room, 0, 5, 9) == (0, 0)


def test_everything_comes_in_order(seed: int) -> None:
    sent = random.Random(seed).randbytes(3_000_000)
    ours, theirs = socket.socketpair()
    got = bytearray()
    with ours, theirs:

        def send() -> None:
            theirs.sendall(sent)
            theirs.shutdown(socket.SHUT_WR)

        sender = threading.Thread(target=send)
        sender.start()
        room = np.zeros(2**17, np.uint8)
        while True:
            count, last = gather(ours.fileno(), room, 200, 4096, 16)
            got += room[:count].tobytes()
            if last == 0:
                break
        sender.join()
    assert bytes(got) == sent
