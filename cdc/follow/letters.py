"""Decisions of operators about a store's dead letters (`cdc dlq`), carried out by the store's follower between two ranges.

The follower holds the store's lease, so nobody else writes meanwhile, and a letter that is there has no later change at or below what is applied.
Each decision first writes the row, then the letter, and its request goes last: whatever is interrupted is done again and comes to the same.

Requests are also carried out as soon as the store has been opened, before anything is applied: one that stops at the next row, since it has as
many letters as it may have, goes on once they are accepted.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from cdc.errors import ConfigError
from cdc.log.contract import LogReader
from cdc.model.position import Cut
from cdc.model.selection import matches
from cdc.model.topic import TopicField, TopicSchema
from cdc.state import letterrequests
from cdc.state.letterrequests import LetterAnswer, LetterRequest, Verb
from sinks.contract import Sink, audit_schema
from sinks.deadletters import CORRECTION_BYTES_MAX, Letter, LetterBox, LetterState, as_deletes
from sinks.formula import is_named
from sinks.holding import failures_of
from sinks.render.correction import checked
from sinks.render.rowtext import row_text
from sinks.reshape import conformed, reshaped
from sinks.transform import is_unseen

NAMELESS = (
    "it was set aside by an earlier version, which did not note its key: nobody can say whether the row has changed since; "
    "drop forgets it, and building the store again (--rebuild) says whether the row can be held"
)
SPENT_S = 2.0
"""After so long the requests that are left wait until other rows have been written."""
GONE = "it is not a dead letter any more: the store holds a later change of the row, or this one"


@dataclass(frozen=True, slots=True)
class Deciding:
    """One store's letters and what is needed to decide about them. ``box``: the opened ``sink``, as it keeps letters."""

    sink: Sink
    box: LetterBox
    log: LogReader
    applied: Cut
    tables: tuple[str, ...] = ("*",)
    """The patterns of those that the store follows."""

    def carry_out(self, run_dir: Path) -> bool:
        """Carries out the requests that wait, or the first of them. Returns whether there was one. Raises StoreError."""
        store, until = self.sink.name, time.monotonic() + SPENT_S
        names = letterrequests.asked(run_dir, store)
        for name in names:
            request = letterrequests.request(run_dir, store, name)
            if request is not None:
                answers = tuple(self.answers(request))
                letterrequests.answer(run_dir, store, name, answers)
            if time.monotonic() >= until:
                break
        return bool(names)

    def answers(self, request: LetterRequest) -> Iterator[LetterAnswer]:
        """Carries it out, letter by letter; those that are merely accepted all at once, for there may be thousands."""
        known = {one.id: one for one in self.box.letters()}
        asked = {wanted: known.get(wanted) for wanted in request.letters}
        accepted = {one.id for one in asked.values() if one is not None and self._is_accepted(one, request)}
        self.box.keep([_decided(known[one], LetterState.ACCEPTED, request.by) for one in accepted])
        for wanted, letter in asked.items():
            if (
                letter is None
            ):  # to be tried again was what `replay` asked for, perhaps of a follower that was killed before it could answer
                yield LetterAnswer(wanted, request.verb is Verb.REPLAY, GONE)
                continue
            try:
                refused = None if wanted in accepted else self._refused(letter, request)
            except ConfigError as error:  # an answer like any other: the store goes on
                refused = error.line()
            done = _DONE if self.sink.traits.keeps_rows else _DONE_EVENT
            yield LetterAnswer(wanted, refused is None, refused or done[request.verb])

    def _is_accepted(self, letter: Letter, request: LetterRequest) -> bool:
        """Whether it takes no more than saying so, wherever the store stands."""
        plain = request.verb is Verb.DROP and letter.state is LetterState.ASIDE and (letter.key is not None or letter.whole_table)
        return plain and matches(self.tables, letter.table)

    def _refused(self, letter: Letter, request: LetterRequest) -> str | None:
        """Does what is asked for; why not, where it cannot."""
        if letter.position > self.applied.position:
            return "the store has not come that far yet; ask again"
        if letter.key is None and not letter.whole_table:
            if request.verb is not Verb.DROP:
                return NAMELESS
            self.box.forget([letter.id])
            return None
        if not matches(self.tables, letter.table):
            return f"the store does not follow {letter.table}"
        if request.verb is Verb.EDIT and not self.sink.traits.keeps_rows:
            return "an event goes as it was written: replay it, or drop it"
        if request.verb is Verb.DROP and letter.state is LetterState.ACCEPTED:
            return None
        if letter.whole_table:
            return "the whole table is set aside; it comes by itself once the store can hold it"
        row = self._row(letter)
        if row is None:
            return "the log no longer has this change"
        match request.verb:
            case Verb.REPLAY:
                return self._replay(letter, row)
            case Verb.EDIT:
                return self._edit(letter, row, request)
            case Verb.DROP:
                return self._uncorrect(letter, row, request.by)

    def _replay(self, letter: Letter, row: pa.RecordBatch) -> str | None:
        refused = self._failure(letter)
        if refused is None:
            letter, refused = self._put(letter, row)
        if refused is None:
            self.box.forget([letter.id])
        elif letter.state is LetterState.ASIDE and refused != letter.reason:
            self.box.keep([replace(letter, reason=refused)])
        return refused

    def _edit(self, letter: Letter, row: pa.RecordBatch, request: LetterRequest) -> str | None:
        schema = self._schema(letter)
        assert schema is not None
        values = dict(letter.values)
        for name, value in request.values.items():
            if (field := _meant(schema, name, request.numbers.get(name, 0))) is None:
                return f"the store has no column {name} of {letter.table}, or it is in the key"
            if value is not None and checked(value, field) is None:
                return f"what is given for {name} is not a value of its type, {field.type_name or field.type}"
            values[field.name] = value
        if sum(len(value.encode()) for value in values.values() if value is not None) > CORRECTION_BYTES_MAX:
            return f"a correction may have {CORRECTION_BYTES_MAX} bytes: it is kept with the letter"
        failure = self._failure(letter) or ""
        if is_unseen(failure):
            return f"{failure}; what the transform would have changed cannot be written as it is"
        for field in schema.fields:
            if field.computed and is_named(field.column_name, failure) and field.name not in values:
                return f"{failure}: give {field.column_name} a value, too"
        letter, refused = self._put(letter, corrected(row, schema, values))
        if refused is None:
            self.box.keep([_decided(replace(letter, values=values), LetterState.EDITED, request.by)])
        return refused

    def _uncorrect(self, letter: Letter, row: pa.RecordBatch, by: str) -> str | None:
        letter, refused = self._put(letter, as_deletes(row))
        if refused is None:
            self.box.keep([_decided(replace(letter, values={}), LetterState.ACCEPTED, by)])
        return refused

    def _put(self, letter: Letter, row: pa.RecordBatch) -> tuple[Letter, str | None]:
        return put_in_place(self.sink, self.box, letter, row)

    def _row(self, letter: Letter) -> pa.RecordBatch | None:
        """The letter's change under the definition that the topic has in the store, or its own where that keeps no rows; None where the log has it no
        longer."""
        found = row_in_log(self.log, letter)
        if not self.sink.traits.keeps_rows:
            return found
        schema = self._schema(letter)
        return None if schema is None or found is None else conformed(found, schema)

    def _failure(self, letter: Letter) -> str | None:
        """Why an expression of the store has no value of the row; None where it has one."""
        found = row_in_log(self.log, letter)
        return None if found is None else failures_of(found).get(0)

    def _schema(self, letter: Letter) -> TopicSchema | None:
        shape = self.sink.shape(letter.table)
        return None if shape is None else shape.schema


_DONE: Mapping[Verb, str] = {
    Verb.REPLAY: "the store holds the row",
    Verb.EDIT: "the store holds the corrected row, until the row changes in the database",
    Verb.DROP: "accepted: the store does not hold the row, until it changes in the database",
}


_DONE_EVENT: Mapping[Verb, str] = {
    Verb.REPLAY: "the event was taken; those behind it go on",
    Verb.DROP: "given up; the events behind it go on",
}


def _meant(schema: TopicSchema, name: str, number: int) -> TopicField | None:
    """The field that an operator has corrected. By its number where both know one: meanwhile another may have taken its name."""
    fields = [one for one in schema.fields if one.shown and not one.key]
    numbered = number and any(one.origin for one in fields)
    return next((one for one in fields if (one.origin == number if numbered else one.column_name == name)), None)


def put_in_place(sink: Sink, box: LetterBox, letter: Letter, row: pa.RecordBatch) -> tuple[Letter, str | None]:
    """Writes the row in the letter's place; no later change of it has been applied. First the letter says where that stands, so that nobody takes it
    for a later change. Returns the letter as it is now, and why the store cannot hold the row (``LetterBox.put``)."""
    letter = replace(letter, stands_at=max(letter.position, sink.held(letter.table)))
    box.keep([letter])
    return letter, box.put(row, letter.stands_at)


def row_in_log(log: LogReader, letter: Letter) -> pa.RecordBatch | None:
    """The letter's change as it was logged: a batch of one row."""
    changes = log.changes_at(letter.table, np.array([letter.position], np.int64))
    return next((batch for batch in changes if len(batch)), None)


def corrected(row: pa.RecordBatch, schema: TopicSchema, values: Mapping[str, str | None]) -> pa.RecordBatch:
    """The row, of this definition, with other values (canonical text) in some columns."""
    texts = {**row_text(row, schema).to_pylist()[0], **values}
    return reshaped(pa.RecordBatch.from_pylist([texts], audit_schema(schema)), schema, schema, row.column(0)[0].as_py())


def _decided(letter: Letter, state: LetterState, by: str) -> Letter:
    return replace(letter, state=state, by=by, decided_s=time.time())
