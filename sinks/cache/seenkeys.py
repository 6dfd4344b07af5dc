"""Which keys a scan has given already, by eight bytes for each: SCAN may give a key twice, above all while the server's table grows or shrinks.

Ten million keys take 134 MB (201 MB for the moment in which the table grows), where the names themselves took more than 1 GB. Two names
have one code once in 370,000 scans of ten million keys. The later one is then left out, so whoever asks must be able to do without one:
the audit reads what it misses once more by its key, and where it cannot, running it again is under another secret.
"""

from __future__ import annotations

import secrets
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.kernels.jit import inlined, kernel
from cdc.kernels.windows import some_bytes
from sinks.render.texts import binary_view

Codes = npt.NDArray[np.int64]

_FEWEST_SLOTS: Final = 1 << 12
_NO_CODE: Final = 0


class SeenKeys:
    def __init__(self) -> None:
        # Of this scan, so that nobody can choose names that collide.
        self._secret = np.frombuffer(secrets.token_bytes(16), np.uint64)
        self._slots: Codes = np.zeros(_FEWEST_SLOTS, np.int64)
        self._count = 0

    @property
    def nbytes(self) -> int:
        return int(self._slots.nbytes)

    def fresh(self, names: pa.Array) -> pa.Array:
        """Those (large_binary) that were not seen before, each once; from now on they are."""
        codes = np.empty(len(names), np.int64)
        _codes(codes, *binary_view(names), self._secret)
        added = self.add(codes)
        return names if added.all() else names.filter(pa.array(added))

    def add(self, codes: Codes) -> npt.NDArray[np.bool_]:
        """Whether each was added: it is the first of its kind."""
        while 4 * (self._count + len(codes)) > 3 * len(self._slots):
            grown = np.zeros(2 * len(self._slots), np.int64)
            _move(grown, self._slots)
            self._slots = grown
        added = np.empty(len(codes), np.bool_)
        self._count += _add(self._slots, codes, added)
        return added


@inlined
def _turned(value: Any, bits: int) -> Any:
    return (value << np.uint64(bits)) | (value >> np.uint64(64 - bits))


@kernel
def _round(v0: Any, v1: Any, v2: Any, v3: Any) -> Any:
    v0 += v1
    v1 = _turned(v1, 13) ^ v0
    v0 = _turned(v0, 32)
    v2 += v3
    v3 = _turned(v3, 16) ^ v2
    v0 += v3
    v3 = _turned(v3, 21) ^ v0
    v2 += v1
    v1 = _turned(v1, 17) ^ v2
    v2 = _turned(v2, 32)
    return v0, v1, v2, v3


@kernel
def _codes(codes: Any, data: Any, offsets: Any, secret: Any) -> None:
    """SipHash-1-3 of each text, under a secret of two words."""
    for row in range(len(codes)):
        v0, v1 = secret[0] ^ np.uint64(0x736F6D6570736575), secret[1] ^ np.uint64(0x646F72616E646F6D)
        v2, v3 = secret[0] ^ np.uint64(0x6C7967656E657261), secret[1] ^ np.uint64(0x7465646279746573)
        at, end = offsets[row], offsets[row + 1]
        last = np.uint64(end - at) << np.uint64(56)
        while True:
            size = min(end - at, 8)
            word = some_bytes(data, at, size)
            if size < 8:
                word |= last
            v0, v1, v2, v3 = _round(v0, v1, v2, v3 ^ word)
            v0 ^= word
            at += size
            if size < 8:
                break
        v2 ^= np.uint64(0xFF)
        for _ in range(3):
            v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        codes[row] = np.int64(v0 ^ v1 ^ v2 ^ v3)


@kernel
def _add(slots: Any, codes: Any, added: Any) -> int:
    """Returns how many were added."""
    mask = len(slots) - 1
    count = 0
    for k in range(len(codes)):
        code = codes[k] if codes[k] != _NO_CODE else 1
        at = code & mask
        while slots[at] != _NO_CODE and slots[at] != code:
            at = (at + 1) & mask
        added[k] = slots[at] == _NO_CODE
        slots[at] = code
        count += added[k]
    return count


@kernel
def _move(slots: Any, former: Any) -> None:
    """Into slots that are empty."""
    mask = len(slots) - 1
    for k in range(len(former)):
        code = former[k]
        if code != _NO_CODE:
            at = code & mask
            while slots[at] != _NO_CODE:
                at = (at + 1) & mask
            slots[at] = code
