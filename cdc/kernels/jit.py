"""The one way to compile a hot loop: numba, cached on disk, without the GIL. A kernel takes arrays and numbers, nothing else.

What belongs together comes as a tuple of arrays, which the kernel unpacks into names before its loops: a named tuple costs half a microsecond
a call as an argument, and each of its fields that a loop names is counted as a reference there. As results, named tuples cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import config, njit
from numba.extending import intrinsic

from cdc.kernels.cache import LOCATORS

Function = TypeVar("Function", bound=Callable[..., object])


def kernel(function: Function) -> Function:
    """Compiles on first call; the machine code is kept beside the source, so later processes start without compiling."""
    return _compiled(function, nogil=True)


def inlined(function: Function) -> Function:
    """A kernel that becomes part of the kernels that call it."""
    return _compiled(function, nogil=True, inline="always")


def instruction(typed: Callable[..., Any], interpreted: Function) -> Function:
    """Makes an instruction that numba has no words for; only kernels may call it. ``typed``: how it is compiled (``numba.extending.intrinsic``);
    ``interpreted``: what stands for it where nothing is compiled."""
    return interpreted if config.DISABLE_JIT else cast(Function, intrinsic(typed))


def _compiled(function: Function, **options: Any) -> Function:
    others, config.CACHE_LOCATOR_CLASSES = config.CACHE_LOCATOR_CLASSES, LOCATORS
    try:
        return cast(Function, njit(cache=True, **options)(function))
    finally:
        config.CACHE_LOCATOR_CLASSES = others  # the importing program may have kernels of its own
