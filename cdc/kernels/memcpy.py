"""Bytes from one array into another inside a kernel, by the C library's memcpy: a loop of numba's moves one byte at a time."""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.core import cgutils

from cdc.kernels.jit import inlined, instruction

BLOCK: Final = 16
"""Bytes that are moved at once."""


def _copied(_context: Any, out: Any, at: Any, source: Any, start: Any, size: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        into, where, data, first, count = arguments
        target = context.make_array(signature.args[0])(context, builder, into).data
        origin = context.make_array(signature.args[2])(context, builder, data).data
        one = ir.Constant(count.type, 1)
        cgutils.raw_memcpy(builder, builder.gep(target, [where]), builder.gep(origin, [first]), count, one, align=1)
        return builder.add(where, count)

    return types.int64(out, types.int64, source, types.int64, types.int64), generate


def _sliced(out: Any, at: int, source: Any, start: int, size: int) -> int:
    out[at : at + size] = source[start : start + size]
    return at + size


copied = instruction(_copied, _sliced)
"""(out, at, source, start, size): writes these bytes of ``source`` at ``at``, and returns where they end."""


def _sixteen(_context: Any, out: Any, at: Any, source: Any, start: Any) -> Any:  # noqa: ARG001
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        into, where, data, first = arguments
        target = context.make_array(signature.args[0])(context, builder, into).data
        origin = context.make_array(signature.args[2])(context, builder, data).data
        block = ir.VectorType(ir.IntType(8), BLOCK).as_pointer()
        found = builder.load(builder.bitcast(builder.gep(origin, [first]), block), align=1)
        builder.store(found, builder.bitcast(builder.gep(target, [where]), block), align=1)
        return context.get_dummy_value()

    return types.none(out, types.int64, source, types.int64), generate


def _block_sliced(out: Any, at: int, source: Any, start: int) -> None:
    out[at : at + BLOCK] = source[start : start + BLOCK]


_block_copied = instruction(_sixteen, _block_sliced)


@inlined
def short_copied(out: Any, at: Any, source: Any, start: Any, size: Any) -> Any:
    """As ``copied``, faster for a few bytes: whole blocks are written, so ``BLOCK`` bytes of ``out`` behind these may be anything afterwards, and have to be there."""
    if start + size + BLOCK <= len(source):
        for k in range(0, size, BLOCK):
            _block_copied(out, at + k, source, start + k)
        end = at + size
    else:
        end = copied(out, at, source, start, size)
    return end
