"""Dead letters: which rows a store cannot hold, where their changes stand in the log, and what an operator has decided about them.

A letter is one row's, by its key. Its values stay in the log, found by the position; only what an operator has corrected stands in the letter.

- **The store holds nothing** under the key of a letter, neither the older row nor a part of the new one. So what a store shows is what the
  log says, whatever it was built from and in which steps; what it cannot show is missing, and named.
- **A later change of that key replaces it**: changes are whole rows, so one that the store can hold is all that it needs, and a delete leaves
  nothing to hold. One that it cannot hold either becomes the letter. A TRUNCATE, and whatever writes a table's rows again, ends its letters,
  but for those of rows that an expression fails for, which are not among these.
- **They are bounded**: a store that would keep more than ``LETTERS_MAX`` stops, for then the store is at fault, not the rows. Those that an
  operator has accepted are not counted.

docs/decisions/dead-letters.md tells why.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.errors import StoreError
from cdc.model.batch import OP, Op
from cdc.model.position import START, Position
from cdc.model.topic import TopicSchema
from sinks.contract import DeadLetter

LETTERS_MAX: Final = 10_000
"""Of one store, not counting those that an operator has accepted."""
CORRECTION_BYTES_MAX: Final = 1 << 20
"""Of one letter, all columns together: it is read with all others whenever the store is opened."""


class LetterState(StrEnum):
    """How a letter stands."""

    ASIDE = "set aside"
    EDITED = "edited"
    """The store holds a row that an operator has corrected."""
    ACCEPTED = "accepted"
    """An operator is content that the store does not hold the row."""


@dataclass(frozen=True, slots=True)
class Letter:
    """One row's. Nothing here but ``key`` and ``values`` comes from the row."""

    table: str
    position: Position
    """The place of the change in the log."""
    reason: str
    key: str | None = None
    """The row's place in the store: a document's id, the name of a key. None for a table that is set aside as a whole, and in letters of
    versions that did not write it."""
    at_s: float = 0.0
    """When it was set aside: Unix time, seconds. 0: not known."""
    state: LetterState = LetterState.ASIDE
    by: str = ""
    """Who decided that it is no longer merely set aside, and ``decided_s``, when."""
    decided_s: float = 0.0
    values: Mapping[str, str | None] = field(default_factory=dict)
    """The columns that an operator has corrected, as canonical text."""
    stands_at: Position = START
    """The position at which the store was last given a row, or its absence, in the place of this one (``LetterBox.put``)."""
    rows: int = 1
    whole_table: bool = False
    """The store cannot hold any row of the table; it does once it can (``rows``: so many changes were passed over)."""
    failed: bool = False
    """An expression of the store has no value of the row (``sinks.formula``): the store itself was given its DELETE, at this position."""

    @property
    def id(self) -> str:
        """The same for the same change, so that a replay does not add to them. What stands behind the last @ tells a table from a row, whatever
        the tables are called."""
        return f"{self.table}@all" if self.whole_table else f"{self.table}@{self.position}"

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "values": dict(self.values)}, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Letter:
        """Raises ValueError, KeyError, TypeError for what nobody here wrote."""
        raw = json.loads(text)
        return cls.of({name: value for name, value in raw.items() if name in cls.__dataclass_fields__})

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Letter:
        """As ``from_json``."""
        found = {"position": Position(int(raw["position"])), "stands_at": Position(int(raw.get("stands_at", START)))}
        return cls(**{**raw, **found, "state": LetterState(raw.get("state", LetterState.ASIDE))})

    def undecided(self) -> Letter:
        """As it was before an operator has decided anything."""
        return replace(self, state=LetterState.ASIDE, by="", decided_s=0.0, values={}, stands_at=START)

    def as_outcome(self) -> DeadLetter:
        return DeadLetter(self.table, self.position, self.reason)


@runtime_checkable
class LetterBox(Protocol):
    """A sink whose store may be unable to hold a row. Opened for writing, but for ``letters``."""

    def letters(self) -> tuple[Letter, ...]:
        """Every letter of the store. A writer's: as it has left them, and the same object for as long as nothing changes; else read now, also
        by a sink that is not open."""
        ...

    def keep(self, letters: Collection[Letter]) -> None:
        """Records them, each in place of a letter of its id. Durable on return."""
        ...

    def forget(self, ids: Collection[str]) -> None:
        """Removes these letters. Durable on return; those that are gone already are fine."""
        ...

    def put(self, row: pa.RecordBatch, at: Position) -> str | None:
        """Writes one row, or takes it away where it is a DELETE, in the place of a letter's: under the definition that the topic has in the
        store. ``at``: where it stands from now on, the highest position of the topic that the store has; its own, which may name it, is that of
        its change. Returns why the store cannot hold it, without its values, and None once it does. Only changes after ``at`` win against it.
        Raises StoreError."""
        ...

    def places(self, rows: pa.RecordBatch) -> pa.Array:
        """Each change's place as letters name it (``Letter.key``), utf8; NULL where the table is set aside as a whole."""
        ...

    def named(self, keys: pa.RecordBatch, schema: TopicSchema) -> pa.Array:
        """Each row's place as letters name it (``Letter.key``), utf8. ``keys``: the key's columns as ``Sink.as_held`` has them, of a plain key
        (``sinks.render.meaning.plain_key``)."""
        ...


def box_of(sink: object) -> LetterBox | None:
    """The sink as a box of letters; None where its store can hold every row."""
    return sink if isinstance(sink, LetterBox) else None


@dataclass(frozen=True, slots=True)
class TakenChanges:
    """Says of each change of a batch whether the store holds it, or a later one of its key (``there``), and whether it was written now."""

    there: npt.NDArray[np.bool_]
    written: npt.NDArray[np.bool_]


class Letters:
    """One writer's knowledge of its store's letters, by id and by key."""

    def __init__(self, store: str, found: Iterable[Letter] = (), beside: Callable[[], int] = lambda: 0) -> None:
        """``beside``: how many more the store has elsewhere that nobody has accepted."""
        self._store = store
        self._beside = beside
        self.by_id: dict[str, Letter] = {one.id: one for one in found}
        self._all: tuple[Letter, ...] | None = None

    @property
    def all(self) -> tuple[Letter, ...]:
        """The same object for as long as nothing changes."""
        if self._all is None:
            self._all = tuple(self.by_id.values())
        return self._all

    def add(self, letters: Iterable[Letter]) -> None:
        self.by_id |= {one.id: one for one in letters}
        self._all = None

    def remove(self, ids: Iterable[str]) -> None:
        for one in ids:
            self.by_id.pop(one, None)
        self._all = None

    def of(self, topic: str) -> list[Letter]:
        return [one for one in self.by_id.values() if one.table == topic]

    def before(self, topic: str, position: int, *, emptied: bool, again: Collection[int] = ()) -> list[str]:
        """The ids of those that a change of the table as a whole ends. ``emptied``: every row of before is gone. Where they are written again
        instead, a row that an expression fails for is not among them and keeps its letter; ``again``: the positions of those that the store has
        refused again, which keep theirs."""
        kept = (one for one in self.of(topic) if one.position < position and one.position not in again)
        return [one.id for one in kept if emptied or not one.failed]

    def refused(self, fresh: Iterable[Letter], *, edited_stay: bool = False) -> list[Letter]:
        """These letters as they are to be recorded, without those that stay as they are.

        A change that is refused again keeps its letter, as an operator has left it; but it says under which key the row stands now. A row that was
        corrected is merely set aside again, since the change takes its place, but where ``edited_stay``.
        """
        found = []
        for one in fresh:
            known = self.by_id.get(one.id)
            if known is None or known.key is None:
                found.append(one)
                continue
            now = replace(known, key=one.key, reason=one.reason, failed=one.failed)
            if known.state is LetterState.EDITED and not edited_stay:
                now = now.undecided()
            if now != known:
                found.append(now)
        return found

    def ended(self, topic: str, keys: Callable[[], pa.Array], positions: npt.NDArray[np.int64], taken: TakenChanges) -> list[str]:
        """The ids of those that these changes of the topic end: the store has taken a later one of their key, or itself, now that it can.

        ``keys``: gives each change's, and is asked only where the topic has letters; ``taken``: which changes the store has taken, and which of them changed it.
        """
        mine = {one.key: one for one in self.of(topic) if one.key is not None}
        if not mine:
            return []
        named = keys()
        at = np.flatnonzero(pc.is_in(named, value_set=pa.array(list(mine), named.type)))
        found = []
        for row, key in zip(at.tolist(), named.take(pa.array(at)).to_pylist(), strict=True):
            letter, position = mine[key], int(positions[row])
            itself = position == letter.position and taken.written[row] and not letter.failed
            if taken.there[row] and (position > letter.position or itself):
                found.append(letter.id)
        return found

    @property
    def room(self) -> int:
        """How many more there may be; negative where there are too many."""
        return LETTERS_MAX - self.unaccepted - self._beside()

    @property
    def unaccepted(self) -> int:
        """How many there are that nobody has accepted."""
        return sum(one.state is not LetterState.ACCEPTED for one in self.by_id.values())

    def fitting(self, fresh: Sequence[Letter]) -> Sequence[Letter]:
        """Those of them, from the first on, that a store may have beside the others."""
        new = np.cumsum([one.id not in self.by_id for one in fresh])
        return fresh if not len(fresh) or new[-1] <= self.room else fresh[: int(np.searchsorted(new, max(self.room, 0), "right"))]

    def too_many(self) -> StoreError:
        """The error of a store that would have more."""
        return StoreError(
            f"store {self._store} has {LETTERS_MAX - self.room} dead letters that nobody has accepted, and more would be too many",
            retryable=False,
            hint=_way_out(self._store),
        )


def _way_out(store: str) -> str:
    return f"see what they have in common (cdc dlq ls {store}), and put that right in the store, or accept them (cdc dlq drop {store} --all)"


def last_of_keys(keys: pa.Array, rows: Sequence[int]) -> list[int]:
    """Those of ``rows`` (numbers within the batch) that no later row of the batch has the key of. ``keys``: every row's."""
    at = np.flatnonzero(pc.is_in(keys, value_set=keys.take(pa.array(rows, pa.int64()))))
    last = dict(zip(keys.take(pa.array(at)).to_pylist(), at.tolist(), strict=True))
    return [row for row in rows if last[keys[row].as_py()] == row]


def as_deletes(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows as deletes; columns that are not of the key stay, and no store looks at them."""
    at = rows.schema.get_field_index(OP)
    gone: npt.NDArray[np.int8] = np.full(len(rows), int(Op.DELETE), np.int8)
    return rows.set_column(at, rows.schema.field(at), pa.array(gone))


def check_share(store: str, letters: Iterable[DeadLetter], rows: int, *, share_max: float, rows_min: int) -> None:
    """Raises StoreError when so much of a batch is dead that the store, not the rows, is at fault. ``letters``: those that nobody has accepted.

    A few dead rows are normal however small their batch, hence ``rows_min``.
    """
    dead = tuple(letters)
    if len(dead) > rows_min and len(dead) > share_max * rows:
        reasons = sorted({letter.reason for letter in dead})
        raise StoreError(
            f"store {store} refuses {len(dead)} of {rows} rows of {dead[0].table} ({', '.join(reasons[:3])})",
            retryable=False,
            hint=_way_out(store),
        )
