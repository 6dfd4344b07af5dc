"""The one way to compile a hot loop: numba, cached on disk, without the GIL. A kernel takes arrays and numbers, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from numba import njit

Function = TypeVar("Function", bound=Callable[..., object])


def kernel(function: Function) -> Function:
    """Compiles on first call; the machine code is kept beside the source, so later processes start without compiling."""
    return cast(Function, njit(cache=True, nogil=True)(function))


def inlined(function: Function) -> Function:
    """A kernel that becomes part of the kernels that call it."""
    return cast(Function, njit(cache=True, nogil=True, inline="always")(function))
