"""Ways to damage bytes, and what may come of it."""

from __future__ import annotations

import itertools
import random
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

from cdc.errors import HeadwaterError
from tests import counters

Value = TypeVar("Value")

MEMORY_BYTES: Final = 200 * 2**20
"""What damage may cost on top: a length that is believed before it is bounded wants more."""
CASE_S: Final = 60.0
"""More than that for one damaged file is a hang."""


def flips(data: bytes) -> Iterator[bytes]:
    """One bit of each byte."""
    for at in range(len(data)):
        yield data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]


def cuts(data: bytes) -> Iterator[bytes]:
    """At every length, the whole one left out."""
    for length in range(len(data)):
        yield data[:length]


def additions(data: bytes) -> Iterator[bytes]:
    """Bytes behind the end."""
    for extra in (b"\0", b"\0" * 4096, b"}", b"\xff" * 9, data):
        yield data + extra


def damaged(data: bytes, seed: int, most: int) -> Iterator[bytes]:
    """All of them, or ``most`` chosen by the seed when there would be more."""
    whole = 2 * len(data)
    chance = random.Random(seed)
    yield from itertools.chain(flips(data), cuts(data)) if whole <= most else _sampled(data, chance, most)
    yield from additions(data)


def _sampled(data: bytes, chance: random.Random, count: int) -> Iterator[bytes]:
    for _ in range(count):
        at = chance.randrange(len(data))
        if chance.random() < 0.25:
            yield data[:at]
        else:
            yield data[:at] + bytes([data[at] ^ chance.randrange(1, 256)]) + data[at + 1 :]


@contextmanager
def limited_memory(extra_bytes: int = MEMORY_BYTES) -> Iterator[None]:
    """Whoever asks for more fails at once (MemoryError), which is not one of the outcomes."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + extra_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def outcome(artefact: str, action: Callable[[], Value]) -> Value | HeadwaterError:
    """What the action gives, or our error, Any other error comes through, and so fails the test. Counts the case."""
    began = time.monotonic()
    try:
        with limited_memory():
            return action()
    except HeadwaterError as error:
        return error
    finally:
        assert time.monotonic() - began < CASE_S, "it hung"
        counters.add("fuzz", artefact)
