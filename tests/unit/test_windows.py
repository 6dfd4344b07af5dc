"""Bytes taken together, compiled and interpreted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cdc.kernels import windows
from cdc.kernels.jit import kernel
from cdc.kernels.windows import WINDOW, eight_bytes, first_of, looked_for

_marks = looked_for((ord('"'), 92), below=32)


@kernel
def _looked(data: Any, at: int) -> Any:
    return _marks(data, at)


@kernel
def _word(data: Any, at: int) -> Any:
    return eight_bytes(data, at)


@kernel
def _first(word: Any) -> Any:
    return first_of(word)


@pytest.mark.parametrize("at", [0, 1, 7, 63, 200])
def test_each_bit_says_whether_its_byte_is_looked_for(at: int, seed: int) -> None:
    data = np.random.default_rng(seed).integers(0, 256, 300, np.uint8)
    data[at : at + 3] = (31, 32, 34)
    wanted = [bool(byte in (34, 92) or byte < 32) for byte in data[at : at + WINDOW].tolist()]
    assert [bool(int(_looked(data, at)) >> bit & 1) for bit in range(WINDOW)] == wanted
    assert wanted[:3] == [True, False, True]
    assert int(_first(np.uint64(_looked(data[2:], at)))) == 0


def test_eight_bytes_are_a_word_whose_lowest_byte_comes_first() -> None:
    data = np.arange(1, 30, dtype=np.uint8)
    for at in (0, 3, 21):
        wanted = int.from_bytes(data[at : at + 8].tobytes(), "little")
        assert int(_word(data, at)) == wanted == int(windows._put_together(data, at))


def test_the_lowest_bit_counts() -> None:
    for word in (1, 2, 0x8000_0000_0000_0000, 0xFFFF_0000):
        assert int(_first(np.uint64(word))) == windows._first_counted(word) == (word & -word).bit_length() - 1
