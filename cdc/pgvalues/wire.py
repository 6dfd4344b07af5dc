"""A socket's bytes without the GIL: the receiver need not wait for a thread that works, and what it wakes for is worth it. Linux's libc."""

from __future__ import annotations

import socket
from typing import Final, NamedTuple

import numpy as np
from numba import types

from cdc.kernels.jit import kernel
from cdc.pgvalues.values import Bytes

# By their names, so that the compiled kernels can be kept on disk.
_recv = types.ExternalFunction("recv", types.intp(types.int32, types.uintp, types.uintp, types.int32))
_usleep = types.ExternalFunction("usleep", types.int32(types.uint32))
_DONTWAIT: Final = int(socket.MSG_DONTWAIT)


class Gathered(NamedTuple):
    bytes: int
    """In all."""
    last: int
    """What the last read said: 0 the end, negative nothing there or an error."""


@kernel
def gather(fd: int, room: Bytes, pause_us: int, least: int, most_reads: int) -> Gathered:
    """Reads what has come, after a pause before each read, into ``room``: until a read brings less than ``least`` bytes, the room is full
    or there were ``most_reads``."""
    end = 0
    got = 0
    for _ in range(most_reads):
        _usleep(np.uint32(pause_us))
        got = _recv(np.int32(fd), np.uintp(room.ctypes.data + end), np.uintp(room.shape[0] - end), np.int32(_DONTWAIT))
        if got <= 0:
            break
        end += got
        if got < least or end == room.shape[0]:
            break
    return Gathered(end, got)
