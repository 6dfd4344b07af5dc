"""SCAN gives keys twice: which were seen takes eight bytes each, and no key is lost by it."""

from __future__ import annotations

import random
import tracemalloc
from typing import Any

import numpy as np
import pyarrow as pa

from sinks.cache import rowreader
from sinks.cache.seenkeys import SeenKeys
from sinks.cache.server import Server


class Pages(Server):
    """A server with so many pages of keys."""

    def __init__(self, pages: int) -> None:
        self._left = pages

    def ask(self, question: Any) -> Any:  # noqa: ARG002
        self._left -= 1
        return self._left, [b"order:%d" % key for key in range(self._left * 2000, (self._left + 1) * 2000)]

    def refuse_moving(self) -> None: ...


def test_looking_through_a_server_keeps_nothing_of_what_was_seen() -> None:
    tracemalloc.start()
    try:
        count = sum(len(keys) for keys in rowreader.scanned(Pages(250), "order:"))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 500_000
    assert most < 2e6


def test_each_key_is_fresh_once_whatever_the_pages() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    choose = random.Random(seed)
    seen, known = SeenKeys(), set[bytes]()
    for _ in range(300):
        page = [b"order:%d" % choose.randrange(20_000) for _ in range(choose.randrange(300))]
        wanted = [key for key in dict.fromkeys(page) if key not in known]
        assert seen.fresh(pa.array(page, pa.large_binary())).to_pylist() == wanted
        known.update(page)


def test_codes_that_meet_in_one_slot_are_still_told_apart() -> None:
    seen = SeenKeys()
    codes = np.arange(3000, dtype=np.int64) << 40  # 0, and others that have nothing but zeros in a table's index
    assert seen.add(codes).all()
    assert not seen.add(codes).any()


def test_ten_million_keys_take_134_mb_and_201_while_the_table_grows() -> None:
    random_codes = np.random.default_rng(7)
    tracemalloc.start()
    try:
        seen = SeenKeys()
        for _ in range(100):
            seen.add(random_codes.integers(-(2**63), 2**63, 100_000, np.int64))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert seen.nbytes == 8 << 24
    assert most < 210e6
