"""Answers of a server that come in pieces of any size."""

from __future__ import annotations

import random
import socket
import threading

import pytest

from sinks.cache.wire import RedisWire, Refused, command


def wire_of(data: bytes, sizes: random.Random | None = None) -> RedisWire:
    """A wire on which the server has said this, in pieces, and hung up."""
    ours, theirs = socket.socketpair()

    def say() -> None:
        rest = data
        with theirs:
            while rest:
                size = sizes.randint(1, 9) if sizes is not None else len(rest)
                theirs.sendall(rest[:size])
                rest = rest[size:]

    threading.Thread(target=say).start()
    ours.settimeout(30)
    return RedisWire(ours)


ANSWERS = b"+OK\r\n:-7\r\n$3\r\na\r\n\r\n$-1\r\n*3\r\n$0\r\n\r\n$-1\r\n:4\r\n*-1\r\n*0\r\n+QUEUED\r\n:1\r\n"


def test_answers_of_every_kind_in_pieces_of_any_size(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(20):
        wire = wire_of(ANSWERS, chance)
        assert [wire.reply() for _ in range(7)] == [b"OK", -7, b"a\r\n", None, [b"", None, 4], None, []]
        assert wire.lines(2) == b"+QUEUED\r\n:1\r\n"
        with pytest.raises(ConnectionResetError):
            wire.reply()


def test_lines_leave_what_comes_behind_them(seed: int) -> None:
    chance = random.Random(seed)
    answers = [b"+QUEUED\r\n", b":%d\r\n" % chance.randint(0, 999), b"-OOM no\r\n"]
    for pieces in (chance, None):
        said = chance.choices(answers, k=60)
        wire = wire_of(b"".join(said) + b"+OK\r\n", pieces)
        while said:
            count = chance.randint(0, len(said))
            assert wire.lines(count) == b"".join(said[:count])
            del said[:count]
        assert wire.reply() == b"OK"


def test_what_is_expected_is_taken_and_what_is_not_is_left(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(20):
        wire = wire_of(b"+OK\r\n+QUEUED\r\n-OOM no\r\n", chance)
        assert wire.expect(b"+OK\r\n")
        assert not wire.expect(b"+QUEUED\r\n+QUEUED\r\n"), "said without waiting for more than what differs"
        assert wire.expect(b"+QUEUED\r\n")
        with pytest.raises(Refused) as refused:
            wire.reply()
        assert refused.value.code == "OOM"


def test_of_an_error_only_its_first_word_is_kept() -> None:
    with pytest.raises(Refused, match=r"^WRONGTYPE$"):
        wire_of(b"-WRONGTYPE canary-value\r\n").reply()
    with pytest.raises(Refused, match=r"^ERR$"):
        wire_of(b"-canary-value\r\n").reply()
    with pytest.raises(Refused, match=r"^OOM$"):
        wire_of(b"-EXECABORT Transaction discarded because of: OOM command not allowed\r\n").reply()
    with pytest.raises(Refused, match=r"^EXECABORT$"):
        wire_of(b"-EXECABORT Transaction discarded because of previous errors.\r\n").reply()


def test_a_command_is_an_array_of_texts() -> None:
    assert command("SET", b"\x00k", 12) == b"*3\r\n$3\r\nSET\r\n$2\r\n\x00k\r\n$2\r\n12\r\n"
