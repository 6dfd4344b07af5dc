"""Bytes taken together: eight as a word, or 64 of which it is asked which are among a few. Parts of kernels.

64 take one comparison for each of the few where the processor has wide registers, some more where they are narrower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from llvmlite import ir
from numba import types

from cdc.kernels.jit import inlined, instruction

_ALL: Final = np.uint64(0xFFFFFFFFFFFFFFFF)
WINDOW: Final = 64
"""Bytes that are looked at together: one bit each of a word."""

Look = Callable[[Any, Any], Any]
"""(data, at): bit k of the answer says whether byte ``at + k`` is one of them; all 64 lie in ``data``."""


def looked_for(marks: Sequence[int], below: int = 0) -> Look:
    """Looks for these bytes, and for all that are less than ``below``."""

    def typed(_context: Any, data: Any, at: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, arguments[0])
            vector = ir.VectorType(ir.IntType(8), WINDOW)
            place = builder.bitcast(builder.gep(array.data, [arguments[1]]), vector.as_pointer())
            found = builder.load(place, align=1)
            same = [builder.icmp_unsigned("==", found, ir.Constant(vector, [mark] * WINDOW)) for mark in marks]
            if below:
                same.append(builder.icmp_unsigned("<", found, ir.Constant(vector, [below] * WINDOW)))
            any_of = same[0]
            for one in same[1:]:
                any_of = builder.or_(any_of, one)
            return builder.bitcast(any_of, ir.IntType(WINDOW))

        return types.uint64(data, at), generate

    def one_by_one(data: Any, at: Any) -> Any:
        return np.uint64(sum(1 << k for k in range(WINDOW) if data[at + k] in marks or data[at + k] < below))

    return instruction(typed, one_by_one)


def _eight_bytes(_context: Any, data: Any, at: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.bitcast(builder.gep(array.data, [arguments[1]]), ir.IntType(64).as_pointer())
        return builder.load(place, align=1)

    return types.uint64(data, at), generate


def _put_together(data: Any, at: Any) -> Any:
    return np.uint64(int.from_bytes(data[at : at + 8].tobytes(), "little"))


eight_bytes = instruction(_eight_bytes, _put_together)
"""(data, at): the eight bytes from there on as a word whose lowest byte comes first, as x86 and ARM have it; all of them lie in ``data``."""


@inlined
def some_bytes(data: Any, at: int, length: int) -> Any:
    """Up to eight bytes, little endian: one load where eight lie in the array."""
    if length == 0:
        word = np.uint64(0)
    elif at + 8 <= data.size:
        word = eight_bytes(data, at) & (_ALL >> np.uint64(8 * (8 - length)))
    else:
        word = np.uint64(0)
        for k in range(length):
            word |= np.uint64(data[at + k]) << np.uint64(8 * k)
    return word


def _folded(_context: Any, one: Any, other: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(arguments[0], wide), builder.zext(arguments[1], wide))
        high = builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), ir.IntType(64))
        return builder.xor(builder.trunc(product, ir.IntType(64)), high)

    return types.uint64(types.uint64, types.uint64), generate


def _halves_folded(one: Any, other: Any) -> Any:
    product = int(one) * int(other)
    return np.uint64((product ^ product >> 64) & (1 << 64) - 1)


folded = instruction(_folded, _halves_folded)
"""(one, other): the two halves of the product of two words (uint64), one exclusive-or the other: all bits of both are in it."""


def _first(_context: Any, word: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(word), generate


def _first_counted(word: Any) -> Any:
    return (int(word) & -int(word)).bit_length() - 1


first_of = instruction(_first, _first_counted)
"""The number of the lowest bit of a word (uint64) that is set; one is."""
