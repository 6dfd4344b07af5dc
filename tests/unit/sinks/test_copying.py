"""Bytes from one array into another, compiled and interpreted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from cdc.kernels import memcpy as copying
from cdc.kernels.jit import kernel


@kernel
def _compiled(out: object, at: int, source: object, start: int, size: int) -> int:
    return copying.copied(out, at, source, start, size)


@pytest.mark.parametrize("copied", [_compiled, copying._sliced])
@pytest.mark.parametrize(("at", "start", "size"), [(0, 0, 0), (3, 5, 1), (0, 0, 300), (100, 7, 150), (300, 300, 0)])
def test_these_bytes_and_no_others(copied: Callable[..., int], at: int, start: int, size: int) -> None:
    source = np.arange(300, dtype=np.uint16).astype(np.uint8)
    out, expected = np.full(300, 250, np.uint8), np.full(300, 250, np.uint8)
    expected[at : at + size] = source[start : start + size]
    assert copied(out, at, source, start, size) == at + size
    assert out.tolist() == expected.tolist()


def test_a_part_of_an_array_is_counted_from_its_own_beginning() -> None:
    source = np.arange(100, dtype=np.uint8)
    out = np.zeros(10, np.uint8)
    assert _compiled(out[2:], 1, source[50:], 4, 3) == 4
    assert out.tolist() == [0, 0, 0, 54, 55, 56, 0, 0, 0, 0]
