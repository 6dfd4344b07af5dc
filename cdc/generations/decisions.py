"""Operators' decisions about dead letters of one generation (`cdc dlq edit`, `cdc dlq drop`), brought to the one that takes its place.

A decision holds for the row that could not be held. Where the other generation can hold it, there is nothing to decide; where it has the same dead letter, the
decision is carried out there as the store's follower would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cdc.follow.letters import Deciding
from cdc.log.contract import LogReader
from cdc.model.position import Cut
from cdc.state.letterrequests import LetterAnswer, LetterRequest, Verb
from sinks.contract import Sink
from sinks.deadletters import Letter, LetterState, box_of

NOBODY: Final = "somebody"
"""Stands for an operator who did not say who."""


@dataclass(frozen=True, slots=True)
class CarriedDecisions:
    """``carried``: how many came along now; ``left``: those that did not, and why."""

    carried: int = 0
    left: tuple[LetterAnswer, ...] = ()

    def and_then(self, later: CarriedDecisions) -> CarriedDecisions:
        """Those of a second look, which has seen all that is still to be done."""
        return CarriedDecisions(self.carried + later.carried, later.left)


def carry(former: Sink, sink: Sink, log: LogReader, applied: Cut, tables: tuple[str, ...]) -> CarriedDecisions:
    """``former``: unopened, or opened; only read. ``sink``: opened to write, holds ``applied``. Done again it comes to the same. Raises StoreError."""
    there, box = box_of(former), box_of(sink)
    if there is None or box is None:
        return CarriedDecisions()
    mine: Mapping[str, Letter] = {one.id: one for one in box.letters()}
    deciding = Deciding(sink, box, log, applied, tables)
    answers: list[LetterAnswer] = []
    for one in there.letters():
        own = mine.get(one.id)
        if one.state is LetterState.ASIDE or own is None or (own.state, own.values) == (one.state, one.values):
            continue
        answers += deciding.answers(_request(sink, one))
    left = tuple(one for one in answers if not one.done)
    return CarriedDecisions(len(answers) - len(left), left)


def _request(sink: Sink, letter: Letter) -> LetterRequest:
    by = letter.by or NOBODY
    if letter.state is LetterState.ACCEPTED:
        return LetterRequest(Verb.DROP, (letter.id,), by)
    shape = sink.shape(letter.table)
    fields = {} if shape is None else {one.name: one for one in shape.schema.fields}
    # By the columns' names: a field may be called otherwise.
    names = {name: fields[name].column_name if name in fields else name for name in letter.values}
    numbers = {names[name]: fields[name].origin for name in letter.values if name in fields}
    return LetterRequest(Verb.EDIT, (letter.id,), by, {names[name]: value for name, value in letter.values.items()}, numbers)


def in_words(left: Sequence[LetterAnswer]) -> list[str]:
    """A line for each decision that did not come along."""
    return [f"{one.letter}: what was decided about it does not hold here: {one.text}" for one in left]
