"""A share of a cache's rows whose keys, and whose ledger, lie in one slot of a Redis Cluster. Pure.

No transaction of a cluster spans two slots. So a store there is divided into a fixed number of lanes. A lane's number stands in braces in each of its keys
(``product:{17}:42``), which is what a cluster takes the slot from; a row's lane is CRC-16, as the cluster itself computes it, of its key as text
(``sinks.render.rowtext.keys``), modulo the number of lanes. So an application can tell it from the key alone, and another template for the keys leaves
each row in its lane.
"""

from __future__ import annotations

import binascii
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.kernels.jit import kernel
from cdc.model.topic import TopicSchema
from sinks.render.rowtext import SEPARATOR, join_key, keys
from sinks.render.texts import binary_view

PLACE: Final = "lane"
"""What stands for it in a template."""
SLOTS: Final = 16384
"""Of every Redis Cluster."""

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Lane:
    """``number``: from 0; ``of``: how many there are."""

    number: int
    of: int

    @property
    def tag(self) -> str:
        return f"{{{self.number}}}"

    @property
    def slot(self) -> int:
        return binascii.crc_hqx(str(self.number).encode(), 0) % SLOTS

    def rows(self, batch: pa.RecordBatch, schema: TopicSchema) -> pa.RecordBatch:
        """Those that are of this lane, by the key that they have under ``schema``, which is the batch's own."""
        return self._mine(batch, keys(batch, schema))

    def keys(self, key_texts: pa.RecordBatch, schema: TopicSchema) -> pa.RecordBatch:
        """The same of keys, as canonical text."""
        return self._mine(key_texts, joined(key_texts, schema))

    def _mine(self, batch: pa.RecordBatch, texts: pa.Array) -> pa.RecordBatch:
        mine = numbers(texts, self.of) == self.number
        return batch if mine.all() else batch.filter(pa.array(mine))


def joined(key_texts: pa.RecordBatch, schema: TopicSchema) -> pa.Array:
    """Each key's columns as one text (utf8)."""
    parts = [key_texts.column(column.name) for column in schema.key]
    return join_key(parts, SEPARATOR if len(parts) > 1 else "")


def numbers(texts: pa.Array, of: int) -> Numbers:
    """The lane of each key (utf8, never NULL)."""
    found = np.empty(len(texts), np.int64)
    _crc16(found, *binary_view(texts), _TABLE)
    found %= of
    return found


def warm_up() -> None:
    """Compiles or loads the kernel (see ``jsonrows.warm_up``)."""
    numbers(pa.array(["k"], pa.utf8()), 2)


def _table() -> npt.NDArray[np.int64]:
    return np.array([binascii.crc_hqx(bytes([byte]), 0) for byte in range(256)], np.int64)


_TABLE: Final = _table()
_TABLE.flags.writeable = False


@kernel
def _crc16(found: Any, data: Any, offsets: Any, table: Any) -> None:
    """XMODEM's, of each text."""
    for row in range(len(found)):
        crc = 0
        for at in range(offsets[row], offsets[row + 1]):
            crc = ((crc << 8) & 0xFFFF) ^ table[((crc >> 8) ^ data[at]) & 0xFF]
        found[row] = crc
