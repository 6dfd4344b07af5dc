"""Which of the keys that differ are known to: those of dead letters, which are reported apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cdc.audit.suspects import Differing
from cdc.model.topic import TopicSchema
from sinks.contract import Sink
from sinks.deadletters import Letter, LetterBox, LetterState, box_of
from sinks.render.meaning import plain_key


@dataclass(frozen=True, slots=True)
class KnownLetters:
    """A store's letters, by table and key. ``box``: None where the store can hold every row. ``tables``: those that are set aside as a whole."""

    box: LetterBox | None
    states: Mapping[tuple[str, str], LetterState]
    tables: frozenset[str] = frozenset()

    @classmethod
    def of(cls, sink: Sink) -> KnownLetters:
        """As they are now."""
        box = box_of(sink)
        letters = () if box is None else box.letters()
        return cls(box, _states(letters), frozenset(one.table for one in letters if one.whole_table))

    def also(self, sink: Sink) -> KnownLetters:
        """With those that are there now: a letter may come and go while rows are looked at."""
        now = KnownLetters.of(sink)
        return KnownLetters(self.box, {**self.states, **now.states}, self.tables | now.tables)

    def among(self, differing: Differing, schema: TopicSchema) -> list[LetterState | None]:
        """For each key the state of the letter that says why it differs, as it does: None where there is none, or where it does not say so."""
        count = differing.keys.num_rows
        if schema.topic in self.tables:
            return [LetterState.ASIDE if differing.kind(at) == "missing" else None for at in range(count)]
        if self.box is None or not count or not any(table == schema.topic for table, _ in self.states) or not _named(schema):
            return [None] * count
        names = self.box.named(differing.keys, schema).to_pylist()
        found = (self.states.get((schema.topic, name)) for name in names)
        return [state if state is not None and _says(state, differing.kind(at)) else None for at, state in enumerate(found)]


def without(differing: Differing, states: Iterable[LetterState | None]) -> Differing:
    """Those that no letter explains."""
    left: npt.NDArray[np.bool_] = np.array([state is None for state in states], np.bool_)
    return differing.only(np.flatnonzero(left))


def _states(letters: Iterable[Letter]) -> dict[tuple[str, str], LetterState]:
    return {(one.table, one.key): one.state for one in letters if one.key is not None}


def _named(schema: TopicSchema) -> bool:
    return bool(schema.key) and plain_key(schema)


def _says(state: LetterState, kind: str) -> bool:
    """A corrected row has other values; without one the row is missing."""
    return kind == ("different" if state is LetterState.EDITED else "missing")
