"""Text columns: one text per row in two numpy arrays, which kernels write and Arrow takes without a copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sinks.render.jsonkernels import Bytes, Offsets

NOTHING: Final = np.empty(0, np.uint8)


@dataclass(frozen=True, slots=True)
class Texts:
    """One text per row: uint8 ``data`` and int64 ``offsets``, one more than rows."""

    data: Bytes
    offsets: Offsets

    def __post_init__(self) -> None:
        # A kernel is compiled again for arrays that may be written to; so none may.
        self.data.flags.writeable = False
        self.offsets.flags.writeable = False

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def to_array(self) -> pa.Array:
        """As large_binary, without a copy."""
        return pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), len(self), [None, pa.py_buffer(self.offsets), pa.py_buffer(self.data)]
        )


def raw_texts(values: pa.Array) -> Texts:
    """utf8 or binary values byte for byte, without a copy of the data; NULL must not occur."""
    return Texts(*binary_view(values))


def view(buffer: Any, dtype: np.dtype[Any], count: int, offset: int) -> npt.NDArray[Any]:
    """Read-only, without a copy."""
    return readonly(np.frombuffer(buffer, dtype, count, offset * dtype.itemsize) if count else np.empty(0, dtype))


def binary_view(values: pa.Array) -> tuple[Bytes, Offsets]:
    """(data, int64 offsets) of a utf8, binary or large array; the data is not copied."""
    dtype = np.dtype(np.int64 if pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type) else np.int32)
    _, offsets, data = values.buffers()
    own = view(offsets, dtype, len(values) + 1, values.offset) if offsets else np.zeros(1, dtype)
    return readonly(np.frombuffer(data, np.uint8) if data else NOTHING), readonly(own.astype(np.int64, copy=False))


def readonly(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same array, which nobody can write to any more."""
    array.flags.writeable = False
    return array
