"""Bytes from one array into another inside a kernel, by the C library's memcpy: a loop of numba's moves one byte at a time."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from cdc.kernels.jit import instruction


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
