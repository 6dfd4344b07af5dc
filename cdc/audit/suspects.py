"""Which suspects of an audit really differ, and which were merely in flight. Pure: the caller looks at both sides.

One round is three looks: the source at a snapshot with LSN L, the store once it has applied L, the source again. A key

- agrees when the store showed what either look at the source showed;
- is *seen to differ* when it does not agree although the source's rows (with their xmin) were the same in both looks, so
  nothing was in flight. Seen twice in a row with the same content, it differs: once could still be a row that came and went
  between the looks;
- is undecided otherwise, and looked at again. One that never holds still stays undecided ("unsettled").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.kernels.digests import U64, Digests, digests

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class KeyLook:
    """The rows that one side held for each of the suspects at one moment; arrays are aligned with the suspects.

    ``rows``: how many; ``digest``: the sum of their row digests; ``version``: the sum of digests that also cover the row's
    version (the source's xmin), equal to ``digest`` where the side has none.
    """

    rows: I64
    digest: U64
    version: U64

    def same_content(self, other: KeyLook) -> Mask:
        same: Mask = (self.rows == other.rows) & (self.digest == other.digest)
        return same

    def distinct(self) -> KeyLook:
        """Equal rows counted once, where the keys cover all columns."""
        return KeyLook(np.minimum(self.rows, 1), np.zeros_like(self.digest), self.version)


def look(keys: pa.RecordBatch, found: Iterable[pa.RecordBatch], key: Sequence[int], columns: int, seed: int) -> KeyLook:
    """Aligns fetched rows with the suspects' keys. The first ``columns`` columns are the table's, one more is a version.

    Rows whose key is not among ``keys`` (equal to Postgres, other text) are left out: they were not asked for.
    """
    wanted = key_bytes(digests(keys, range(keys.num_columns), seed))
    rows = np.zeros(keys.num_rows, np.int64)
    digest = np.zeros(keys.num_rows, np.uint64)
    version = np.zeros(keys.num_rows, np.uint64)
    for batch in found:
        key_digests = digests(
            pa.RecordBatch.from_arrays([batch.column(i) for i in key], names=[str(i) for i in key]), range(len(key)), seed
        )
        content = digests(batch.select(range(columns)), (), seed).row
        versioned = content if batch.num_columns == columns else digests(batch, (), seed).row
        at = pc.index_in(key_bytes(key_digests), value_set=wanted)
        known = at.is_valid().to_numpy(zero_copy_only=False)
        where = at.fill_null(0).to_numpy()[known]
        np.add.at(rows, where, 1)
        np.add.at(digest, where, content[known])
        np.add.at(version, where, versioned[known])
    return KeyLook(rows, digest, version)


def joined(looks: Sequence[KeyLook]) -> KeyLook:
    """Looks at pieces of the suspects as one, in their order."""
    rows = [seen.rows for seen in looks] or [np.zeros(0, np.int64)]
    digest = [seen.digest for seen in looks] or [np.zeros(0, np.uint64)]
    version = [seen.version for seen in looks] or [np.zeros(0, np.uint64)]
    return KeyLook(np.concatenate(rows), np.concatenate(digest), np.concatenate(version))


def key_bytes(found: Digests) -> pa.Array:
    """The keys' digests as fixed-size binaries of 16 bytes."""
    both = np.empty((found.high.size, 2), np.uint64)
    both[:, 0], both[:, 1] = found.high, found.low
    return pa.Array.from_buffers(pa.binary(16), found.high.size, [None, pa.py_buffer(both.tobytes())])


@dataclass(frozen=True, slots=True)
class Differing:
    """Keys that are known to differ. ``surplus``: rows that the source has of each key more than the store; where it is 0
    the rows have other values."""

    keys: pa.RecordBatch
    surplus: I64

    def kind(self, index: int) -> str:
        return "missing" if self.surplus[index] > 0 else "extra" if self.surplus[index] < 0 else "different"

    def only(self, at: Sequence[int] | I64) -> Differing:
        """Those at these places."""
        places = np.asarray(at, np.int64)
        return Differing(self.keys.take(pa.array(places)), self.surplus[places])

    @classmethod
    def joined(cls, found: Sequence[Differing], schema: pa.Schema) -> Differing:
        """Several as one. ``schema``: of the keys."""
        keys = pa.Table.from_batches([one.keys for one in found], schema=schema).combine_chunks().to_batches()
        surplus = [one.surplus for one in found] or [np.zeros(0, np.int64)]
        return cls(keys[0] if keys else pa.RecordBatch.from_pylist([], schema=schema), np.concatenate(surplus))


@dataclass(slots=True)
class Settling:
    """The suspects of one table on their way to a verdict. ``keys``: those not decided yet."""

    keys: pa.RecordBatch
    missing: int = 0
    extra: int = 0
    different: int = 0
    keys_differing: int = 0
    _seen: Mask = field(init=False)
    _evidence: tuple[KeyLook, KeyLook] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._seen = np.zeros(self.keys.num_rows, np.bool_)

    @property
    def open(self) -> int:
        return int(self.keys.num_rows)

    @property
    def differ(self) -> int:
        """How many are known to differ."""
        return self.missing + self.extra + self.different

    def round(self, before: KeyLook, store: KeyLook, after: KeyLook) -> Differing:
        """Takes one round's looks (aligned with ``keys``). Returns the keys that are now known to differ; they and those that
        agree leave ``keys``."""
        agrees = store.same_content(before) | store.same_content(after)
        still = (before.rows == after.rows) & (before.version == after.version) & ~agrees
        again = still & self._seen_before(before, store)
        surplus = (before.rows - store.rows)[again]
        self.missing += int(surplus[surplus > 0].sum())
        self.extra -= int(surplus[surplus < 0].sum())
        self.different += int((surplus == 0).sum())
        self.keys_differing += surplus.size
        differing = Differing(self.keys.filter(pa.array(again)), surplus)
        left = ~(agrees | again)
        self.keys = self.keys.filter(pa.array(left))
        self._seen = still[left]
        self._evidence = (_only(before, left), _only(store, left))
        return differing

    def _seen_before(self, source: KeyLook, store: KeyLook) -> Mask:
        if self._evidence is None:
            return np.zeros(self.open, np.bool_)
        source_then, store_then = self._evidence
        same_source = (source_then.rows == source.rows) & (source_then.version == source.version)
        same: Mask = self._seen & same_source & store_then.same_content(store)
        return same


def _only(seen: KeyLook, left: Mask) -> KeyLook:
    return KeyLook(seen.rows[left], seen.digest[left], seen.version[left])
