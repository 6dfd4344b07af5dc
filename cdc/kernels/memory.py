"""Large pieces of memory that are used again.

A fresh page costs more than what is written to it: the kernel interrupts the writer and clears it, and a virtual machine's host may have to
find it first. The C library gives large pieces back to the kernel as soon as they are free, so code that needs one for each block of data
pays for all of its pages with each block.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

Take = Callable[[int], npt.NDArray[np.uint8]]
"""Gives a writable array of so many bytes, whatever they hold."""

LEAST_BYTES: Final = 2**16
"""The C library itself keeps blocks smaller than this."""


def fresh(size: int) -> npt.NDArray[np.uint8]:
    """A ``Take`` that keeps nothing."""
    return np.empty(size, np.uint8)


class Reused:
    """``take`` gives memory that comes back by itself once the array and everything made of it (slices, views, Arrow buffers) is gone.

    Thread-safe. ``most_bytes``: of each size (they are powers of two) no more than this is kept for later.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._spare: dict[int, deque[npt.NDArray[np.uint8]]] = {}

    def take(self, size: int) -> npt.NDArray[np.uint8]:
        if size < LEAST_BYTES:
            return fresh(size)
        power = (size - 1).bit_length()
        spare = self._spare.get(power)
        if spare is None:
            spare = self._spare.setdefault(power, deque(maxlen=self._most_bytes >> power))
        try:
            piece = spare.pop()
        except IndexError:
            piece = fresh(1 << power)
        # Over a memoryview: what is made of a slice of another array refers to that, past the slice, which is what is watched here.
        array = np.frombuffer(piece.data, np.uint8, size)
        weakref.finalize(array, spare.append, piece).atexit = False
        return array
