"""Rows of which an expression of the store has no value, such as a division by zero: they become its dead letters, and the rows around them go on.

The log as the store sees it (``sinks.heldlog``) gives such a row as a DELETE and says why. The letter is recorded before the store is given that: whatever is
interrupted in between is brought again, and the same letter is recorded again. As any letter it ends with a later change of its row.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa

from cdc.errors import StopState, StoreError
from cdc.follow.letters import put_in_place, row_in_log
from cdc.log.contract import LogReader
from cdc.model.batch import POSITION, topic_schema
from cdc.model.evolution import TopicChange
from cdc.model.position import Position
from cdc.model.topic import TopicSchema
from sinks.barrier import RowsBefore, rows_before_change
from sinks.contract import DeadLetter, Deferring, Outcome, Sink
from sinks.deadletters import LETTERS_MAX, Letter, LetterBox, Letters, LetterState, as_deletes, box_of, last_of_keys
from sinks.holding import failures_of
from sinks.reshape import conformed, rekeyed


def recorded(sink: Sink, changes: pa.RecordBatch, failures: Mapping[int, str]) -> tuple[DeadLetter, ...]:
    """Records the letters of rows of this batch, which ``sink`` is to be given. ``failures``: row → why (``sinks.holding.failures_of``).

    Raises StoreError: a store that keeps no letters stops here, and so does one that has too many.
    """
    topic, positions = topic_schema(changes.schema).topic, changes.column(POSITION).to_numpy()
    held = sink.held(topic)
    rows = sorted(row for row in failures if positions[row] > held)
    found = [DeadLetter(topic, Position(int(positions[row])), failures[row]) for row in rows]
    if not found or sink.traits.passing:
        return tuple(found)
    box = box_of(sink)
    if box is None:
        raise kept_by_none(sink.name, found[0])
    letters = _letters(box, changes, dict(zip(rows, found, strict=True)))
    known = Letters(sink.name, box.letters())
    fresh = known.refused(letters)
    fitting = known.fitting(fresh)
    box.keep(fitting)
    if len(fitting) < len(fresh):
        raise known.too_many()
    newest = {one.key: one.position for one in letters}
    older = [one.id for one in known.of(topic) if one.position < newest.get(one.key, 0)]
    if older:
        box.forget(older)
    return tuple(one.as_outcome() for one in letters)


def named_again(sink: Sink, changes: pa.RecordBatch) -> None:
    """Records the letters of these changes, each the last one of its row: the store was built again without the rows that fail."""
    box, shape = box_of(sink), sink.shape(topic_schema(changes.schema).topic)
    assert box is not None
    assert shape is not None
    positions = changes.column(POSITION)
    found = {
        row: DeadLetter(shape.schema.topic, Position(positions[row].as_py()), why) for row, why in failures_of(changes).items()
    }
    box.keep(_letters(box, conformed(changes, shape.schema), found))


def _letters(box: LetterBox, changes: pa.RecordBatch, found: Mapping[int, DeadLetter]) -> list[Letter]:
    """Those of rows that no later row of the batch replaces. ``found``: by row."""
    places = box.places(changes)
    if places.null_count:
        return []  # the table is set aside as a whole
    last, now = set(last_of_keys(places, sorted(found))), time.time()
    return [
        Letter(one.table, one.position, one.reason, places[row].as_py(), now, failed=True)
        for row, one in sorted(found.items())
        if row in last
    ]


def carried(sink: Sink, log: LogReader, held: TopicSchema | None, change: TopicChange) -> None:
    """Before a change of the definition writes a table's rows again: those that fail are not among them, so their letters go on, under the key that the row has
    from here on, and what an operator has corrected is gone. A store that has yet to commit what came before names them itself then: it may end some of them."""
    box = box_of(sink)
    if box is None or held is None or rows_before_change(held, change) is not RowsBefore.AGAIN:
        return
    for letter in [one for one in box.letters() if one.failed and one.table == change.schema.topic]:
        left, row = letter, row_in_log(log, letter)
        if row is None:
            continue
        if letter.state is LetterState.EDITED:
            gone, _ = put_in_place(sink, box, letter, as_deletes(conformed(row, held)))
            left = replace(gone.undecided(), stands_at=gone.stands_at)
        if rekeyed(held, change.schema) and not isinstance(sink, Deferring):
            place = box.places(conformed(row, change.schema))[0].as_py()
            left = left if place is None else replace(left, key=place)
        if left != letter:
            box.keep([left])


def counted_apart(outcome: Outcome, dead: tuple[DeadLetter, ...]) -> Outcome:
    """The outcome of a batch whose dead letters the store was given as DELETEs."""
    written = min(len(dead), outcome.written)
    return Outcome(outcome.written - written, outcome.stale - (len(dead) - written), outcome.dead + dead)


def kept_by_none(store: str, first: DeadLetter) -> StoreError:
    """The error of a store that keeps no letters."""
    return _refused(store, f"cannot hold the change {first.table}@{first.position} and keeps no dead letters: {first.reason}")


def too_many(store: str, first: DeadLetter) -> StoreError:
    """The error of a store that cannot be built of the rows that there are."""
    return _refused(store, f"cannot hold {first.table}@{first.position} and more than {LETTERS_MAX} other rows: {first.reason}")


def _refused(store: str, why: str) -> StoreError:
    resume = f"cdc resume {StopState.STORE_REFUSES}:follow-{store} --rebuild"
    return StoreError(
        f"store {store} {why}",
        retryable=False,
        hint=f"write the expression so that it has a value of every row, with nullif or CASE; then {resume}",
    )
