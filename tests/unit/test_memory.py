"""Memory that is used again: never while anything still refers to it, and not without bound."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest

from cdc.kernels.jit import kernel
from cdc.kernels.memory import LEAST_BYTES, Reused

SIZE = LEAST_BYTES + 5
Array = npt.NDArray[np.uint8]


@kernel
def _part(data: Array) -> Array:
    return data[8:16]


def test_what_is_gone_comes_back() -> None:
    memory = Reused(2**20)
    first = memory.take(SIZE)
    first[:] = 7
    assert len(first) == SIZE
    assert first.flags.writeable
    at = first.ctypes.data
    del first
    again = memory.take(SIZE - 1)
    assert (again.ctypes.data, len(again)) == (at, SIZE - 1)
    assert memory.take(SIZE).ctypes.data != at


@pytest.mark.parametrize(
    "made",
    [
        lambda array: array[10:20],
        lambda array: array[10:20][2:4],
        lambda array: array[:800].view(np.int64),
        lambda array: array[:800].view(np.int64).reshape(10, 10)[3],
        lambda array: array[::2].T,
        lambda array: np.asarray(array),
        lambda array: np.frombuffer(array, np.uint8),
        lambda array: memoryview(array)[3:4],
        lambda array: array.data,
        lambda array: pa.py_buffer(array),
        lambda array: pa.py_buffer(array).slice(64, 8),
        lambda array: pa.Array.from_buffers(pa.int64(), 8, [None, pa.py_buffer(array).slice(64, 64)])[2:],
        lambda array: pa.array(array[:800].view(np.int64)),
        lambda array: pa.array(array[:800].view(np.int64)).to_numpy(),
        _part,
    ],
)
def test_nothing_comes_back_while_anything_made_of_it_is_there(made: Callable[[Array], object]) -> None:
    memory = Reused(2**20)
    array = memory.take(SIZE)
    at = array.ctypes.data
    kept = made(array)
    del array
    others = [memory.take(SIZE) for _ in range(3)]
    assert at not in [other.ctypes.data for other in others]
    del kept
    assert memory.take(SIZE).ctypes.data == at


def test_small_pieces_and_more_than_the_bound_are_not_kept() -> None:
    memory = Reused(2 * 2**17)
    pieces = [memory.take(2**17) for _ in range(5)]
    places = {piece.ctypes.data for piece in pieces}
    big, small = memory.take(2**20), memory.take(LEAST_BYTES - 1)
    assert [len(big), len(small)] == [2**20, LEAST_BYTES - 1]
    del pieces, big, small
    assert [len(spare) for spare in memory._spare.values() if spare] == [2]
    assert {memory.take(2**17).ctypes.data} <= places


def test_threads_never_share_a_piece() -> None:
    memory = Reused(2**22)
    wrong: list[int] = []

    def work(mark: int) -> None:
        for turn in range(400):
            pieces = [memory.take(SIZE + turn) for _ in range(3)]
            for piece in pieces:
                piece[::4096] = mark
            if not all((piece[::4096] == mark).all() for piece in pieces):
                wrong.append(mark)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
