"""Rows into one table, within one transaction: staged in a temporary table, then one DELETE and one INSERT.

What the table refuses as a whole is written piece by piece (``refusals.sorted_out``), and a row that it refuses by itself becomes a dead letter: then nothing stands
under its key. Where other rows may be why, as with a foreign key, it is tried again once the other tables' rows are there (``settled``).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.errors import StoreError
from cdc.log.contract import LogReader
from cdc.model.batch import OP, POSITION, Op, first_position, last_position, topic_schema
from cdc.model.position import Position
from cdc.model.topic import TopicSchema
from sinks.barrier import RowsBefore, TableBarrier, barrier_of
from sinks.contract import CameRows, Shape, audit_schema
from sinks.deadletters import Letter, LetterState
from sinks.render.rowtext import keys, row_text
from sinks.reshape import conformed, reshaped, same_origin
from sinks.sql import letters
from sinks.sql.dialect import SqlSession, StagedRows
from sinks.sql.history import HistoryWriter
from sinks.sql.letters import LettersDraft
from sinks.sql.names import GONE
from sinks.sql.refusals import RowRefusal, RowsRefused, sorted_out
from sinks.sql.table import TargetTable, digested

Mask = npt.NDArray[np.bool_]
_BESIDE: Final = {GONE: "boolean"}
_GROUP_BYTES: Final = 64 * 2**20
"""So much goes in with one INSERT."""
_ROUNDS: Final = 20
"""So often rows that may wait for others are tried again one by one."""


@dataclass(frozen=True, slots=True)
class _LastChanges:
    """The last change of each key, under one definition; of a table without keys, its rows. ``gone``: which are deletes."""

    schema: TopicSchema
    rows: pa.RecordBatch
    gone: Mask

    @property
    def positions(self) -> npt.NDArray[np.int64]:
        found: npt.NDArray[np.int64] = self.rows.column(POSITION).to_numpy()
        return found

    def only(self, numbers: Sequence[int]) -> _LastChanges:
        return _LastChanges(self.schema, self.rows.take(pa.array(numbers, pa.int64())), self.gone[list(numbers)])

    def names(self) -> pa.Array:
        """As letters name their places."""
        return keys(self.rows, self.schema)


@dataclass(frozen=True, slots=True)
class _Late:
    """Changes that other rows may be in the way of. ``why``: of each; ``stuck``: why what stands in their places could not go."""

    changes: _LastChanges
    why: Sequence[RowRefusal]
    stuck: RowRefusal | None = None


class SqlRowWriter:
    """Over one table. ``shape``: the definition that its rows stand under, and afterwards stand under."""

    def __init__(
        self,
        session: SqlSession,
        table: TargetTable,
        shape: Shape,
        draft: LettersDraft,
        log: LogReader,
        history: HistoryWriter | None = None,
    ) -> None:
        """``history``: gets all that ``write`` is given."""
        self.shape = shape
        self._history = history
        self._session = session
        self._table = table
        self._draft = draft
        self._log = log
        self._late: list[_Late] = []
        self._rows = 0
        """So many were written at once last."""

    @property
    def _topic(self) -> str:
        return self.shape.schema.topic

    # --- changes in their order ------------------------------------------------------------------------------------------------------

    def write(self, batches: Iterable[pa.RecordBatch], held: Position) -> None:
        """batches: of the topic, in position order; what stands at or below ``held`` is left out. Some may be late afterwards (``settled``)."""
        for group in _groups(batches, held):
            barrier = barrier_of(group[0], self.shape.schema)
            if barrier is not None:
                self._pass(barrier, group[0])
                continue
            schema = topic_schema(group[0].schema)
            if not same_origin(self.shape.schema, schema):
                self._pass(TableBarrier(schema, Position(first_position(group[0]) - 1), RowsBefore.GONE, True), group[0])
            self._merge(schema, group)

    def _pass(self, barrier: TableBarrier, change: pa.RecordBatch) -> None:
        self.finish()
        if self._history is not None:
            self._history.close(barrier, change)
        gone = barrier.rows is RowsBefore.GONE
        if gone:
            self._draft.end_before(self._topic, barrier.position)
        if gone and barrier.defines:
            self._table.empty()
        elif gone:
            self._table.truncate()
        if barrier.defines:
            before, self.shape = self.shape.schema, barrier.shape
            self._table.evolve(before, barrier.schema, emptied=gone)
            self._try_letters_again(before)

    def _merge(self, schema: TopicSchema, group: Sequence[pa.RecordBatch]) -> None:
        self.finish()
        self._table.admit(schema)
        batch = group[0] if len(group) == 1 else pa.Table.from_batches(group).combine_chunks().to_batches()[0]
        if self._history is not None:
            self._history.write(schema, batch)
        gone = batch.column(OP).to_numpy() == int(Op.DELETE)
        last = _last_of_each(keys(batch, schema)) if schema.key else np.flatnonzero(~gone)
        chosen = batch if len(last) == len(batch) else batch.take(pa.array(last))
        self._rows = len(chosen)
        changes = _LastChanges(schema, chosen, gone[last])
        why = self._write_whole(changes)
        if why is not None and why.of_others:
            self._late.append(_Late(changes, [why] * len(chosen)))
        elif why is not None:
            self._sort_out(changes, why)

    # --- what is late ----------------------------------------------------------------------------------------------------------------

    def try_late(self) -> bool:
        """Tries again what is late, each as a whole. Returns whether some of it is there now."""
        before = self._late
        self._late = [late for late in before if self._write_whole(late.changes) is not None]
        return len(self._late) < len(before)

    def sort_late(self) -> bool:
        """As ``try_late``, row by row."""
        before, self._late = self._late, []
        some = False
        for late in before:
            why = self._write_whole(late.changes)
            if why is None:
                some = True
            elif late.changes.gone.all():
                self._late.append(_Late(late.changes, [why]))
            else:
                some |= self._sort_out(late.changes, why)
        return some

    def finish(self) -> None:
        """Makes dead letters of what is late still. Raises LettersStop, StoreError."""
        if not self._late:
            return
        self.sort_late()
        late, self._late = self._late, []
        for one in late:
            stuck = one.why[0] if one.changes.gone.any() else one.stuck
            if stuck is not None:
                raise StoreError(
                    f"rows of {self._table.place} are to go, and cannot: {stuck.reason}",
                    retryable=False,
                    hint="rows of another table refer to them: drop that constraint, or the trigger, in the store's database",
                )
            self._set_aside(one.changes, one.why)

    # --- writing ---------------------------------------------------------------------------------------------------------------------

    def _write_whole(self, changes: _LastChanges) -> RowRefusal | None:
        """All of them, or none, and why; but for rows of which the table says beforehand that it refuses them."""
        gone = changes.gone.copy()
        try:
            with self._staged(changes) as staged:
                foreseen = self._table.foreseen(changes.schema, staged)
                if foreseen:
                    staged.leave(foreseen)
                    gone[list(foreseen)] = True
                with self._session.attempt():
                    if gone.any() and changes.schema.key:
                        self._table.remove(changes.schema, staged)
                    if not gone.all():
                        self._table.put(changes.schema, staged)
        except RowsRefused as error:
            return error.refusal
        self._taken(changes, foreseen)
        self._set_some_aside(changes, foreseen)
        return None

    def _sort_out(self, changes: _LastChanges, why: RowRefusal) -> bool:
        """Row by row. Returns whether some of it is there now."""
        schema, enough = changes.schema, self._draft.enough(self._rows)
        with self._staged(changes) as staged:
            staged.number()
            going = np.flatnonzero(changes.gone).tolist()
            kept = _going(changes, going, self._removed(changes, staged, going))
            found = sorted_out(len(changes.rows), lambda begin, end: self._piece(schema, staged, begin, end), enough, why)
            staged.leave(found)
            stuck = self._removed(changes, staged, sorted(found))
        if enough(len(found)):
            self._set_some_aside(changes, found)
            raise AssertionError("the store does not stop, and not every row was looked at")
        self._taken(changes, found)
        dead = {number: one for number, one in found.items() if not one.of_others}
        self._set_some_aside(changes, dead)
        kept += _going(changes, sorted(dead), stuck)
        waits = [number for number in sorted(found) if found[number].of_others]
        if waits:  # these may be there yet, and then nothing in their places goes
            kept.append(_Late(changes.only(waits), [found[number] for number in waits], stuck))
        self._late += kept
        return len(waits) < len(changes.rows)

    def _piece(self, schema: TopicSchema, staged: StagedRows, begin: int, end: int) -> RowRefusal | None:
        try:
            with self._session.attempt():
                self._table.put(schema, staged, staged.piece(begin, end))
        except RowsRefused as error:
            return error.refusal
        return None

    def _removed(self, changes: _LastChanges, staged: StagedRows, numbers: Sequence[int]) -> RowRefusal | None:
        """Removes the rows of the staged keys that go, these. Returns why they cannot go yet, where they cannot."""
        if not numbers or not changes.schema.key:
            return None
        try:
            with self._session.attempt():
                self._table.remove(changes.schema, staged)
        except RowsRefused as error:
            return error.refusal
        return None

    def _taken(self, changes: _LastChanges, refused: Mapping[int, RowRefusal]) -> None:
        written = np.ones(len(changes.rows), np.bool_)
        written[list(refused)] = False
        self._draft.took(self._topic, changes.names, changes.positions, written)

    def _set_some_aside(self, changes: _LastChanges, refused: Mapping[int, RowRefusal]) -> None:
        if numbers := sorted(refused):
            self._set_aside(changes.only(numbers), [refused[number] for number in numbers])

    def _set_aside(self, changes: _LastChanges, why: Sequence[RowRefusal]) -> None:
        places = zip(changes.positions.tolist(), changes.names().to_pylist(), why, strict=True)
        self._draft.set_aside(self._topic, _letters(self._topic, places), self._rows)

    @contextmanager
    def _staged(self, changes: _LastChanges) -> Iterator[StagedRows]:
        """The changes, staged: dropped afterwards, but where the transaction as a whole has failed."""
        schema = changes.schema
        foreign = self._foreign(schema)
        text = self._session.dialect.text
        columns = {name: text if name in foreign else kind for name, kind in self._table.columns.items()}
        staged = self._session.dialect.stage(self._session, schema, columns, _BESIDE)
        try:
            self._turn(staged.send(changes.rows, {GONE: pa.array(changes.gone)}))
            yield staged
        except RowsRefused:
            staged.drop()
            raise
        staged.drop()

    def _foreign(self, schema: TopicSchema) -> set[str]:
        """The columns to which somebody has given a type of his own: it stays, and rows that do not fit it are set aside."""
        if digested(schema):
            return set()
        ours: dict[str, set[str]] = {}
        for field in (*schema.fields, *self.shape.schema.fields):
            ours.setdefault(field.name, {self._session.dialect.text}).add(self._session.dialect.column_type(field))
        there = self._table.columns
        return {name for name in schema.names if name in there and there[name] not in ours[name]}

    def _turn(self, names: Iterable[str]) -> None:
        for name in names:
            if self._table.columns[name] != self._session.dialect.text:
                self._table.become_text(name)

    # --- letters ---------------------------------------------------------------------------------------------------------------------

    def put(self, row: pa.RecordBatch, before: Mapping[str, str | None] | None) -> str | None:
        """Writes one row in the place of a letter's, or takes it away where it is a DELETE. ``before``: what stands there now, of a row that nothing tells
        apart. Returns why the table refuses it; then nothing has been done."""
        schema = self.shape.schema
        gone = row.column(OP).to_numpy() == int(Op.DELETE)
        changes = _LastChanges(schema, row, gone)
        try:
            with self._staged(changes) as staged:
                if foreseen := self._table.foreseen(schema, staged):
                    return foreseen[0].reason
            with self._session.attempt():
                if before is not None:
                    self._table.remove_one(schema, before)
                with self._staged(changes) as staged:
                    if gone.all() and schema.key:
                        self._table.remove(schema, staged)
                    elif not gone.all():
                        self._table.put(schema, staged)
                self._session.check_deferred()
        except RowsRefused as error:
            return error.refusal.reason
        return None

    def _try_letters_again(self, before: TopicSchema) -> None:
        """After a change of the definition: each of the topic's rows that stands aside has its place under the new key, and may fit now, unless an expression fails
        for it."""
        mine = {int(one.position): one for one in self._draft.known.of(self._topic) if one.key is not None}
        if not mine:
            return
        schema = self.shape.schema
        for batch in self._log.changes_at(self._topic, np.array(sorted(mine), np.int64)):
            rows = conformed(batch, schema)
            at = rows.column(POSITION).to_pylist()
            names = keys(rows, schema).to_pylist()
            self._draft.keep(
                [replace(mine[position], key=name) for position, name in zip(at, names, strict=True) if mine[position].key != name]
            )
            corrected = [mine[position].state is LetterState.EDITED for position in at]
            for position in (position for position, edited in zip(at, corrected, strict=True) if edited and not schema.key):
                self._reshape_standing(mine[position], before)
            again = [row for row, edited in enumerate(corrected) if not edited and not mine[at[row]].failed]
            if again:
                self._rows = max(self._rows, len(again))
                changes = _LastChanges(schema, rows.take(pa.array(again)), np.zeros(len(again), np.bool_))
                why = self._write_whole(changes)
                if why is not None:
                    self._sort_out(changes, why)
        self.finish()

    def _reshape_standing(self, letter: Letter, before: TopicSchema) -> None:
        store = self._draft.store
        texts = letters.standing(self._session, store, letter.id)
        if texts is not None:
            row = pa.RecordBatch.from_pylist([dict(texts)], audit_schema(before))
            after = row_text(reshaped(row, before, self.shape.schema, int(letter.position)), self.shape.schema)
            letters.set_standing(self._session, store, letter.id, after.to_pylist()[0])

    # --- all rows ----------------------------------------------------------------------------------------------------------------

    def replace_all(self, schema: TopicSchema, known: Sequence[str], rows: Iterable[CameRows]) -> int:
        """Replaces every row by these, one a key. ``known``: the columns that were the store's before. Returns how many there are, without those that are
        refused."""
        fits, dialect = self._table.fits(schema), self._session.dialect
        wanted = dict(self._table.columns) if fits else {field.name: dialect.column_type(field) for field in schema.fields}
        staged = dialect.stage(self._session, schema, wanted, _BESIDE)
        positions, names, changed = list[pa.Array](), list[pa.Array](), set[str]()
        for came in rows:
            changed.update(staged.send(came.rows, {GONE: pa.array(np.zeros(len(came.rows), np.bool_))}))
            positions.append(came.came.cast(pa.int64()))
            names.append(keys(came.rows, schema) if schema.key else came.came.cast(pa.utf8()))
        count = sum(map(len, positions))
        if fits and schema.key:
            self._table.keep_only(schema, staged)
        else:
            self._table.empty()
        if not fits:
            self._table.replace_columns(known, schema)
        self._turn(changed)
        refused = self._put_all(schema, staged, count)
        staged.drop()
        if refused:
            numbers = pa.array(sorted(refused))
            places = (pa.chunked_array(one).take(numbers).to_pylist() for one in (positions, names))
            fresh = _letters(schema.topic, zip(*places, [refused[number] for number in sorted(refused)], strict=True))
            self._draft.set_aside(schema.topic, fresh, count)
        return count - len(refused)

    def _put_all(self, schema: TopicSchema, staged: StagedRows, count: int) -> dict[int, RowRefusal]:
        found = dict(self._table.foreseen(schema, staged))
        if found:
            staged.leave(found)
        try:
            with self._session.attempt():
                self._table.put(schema, staged)
                self._session.check_deferred()
        except RowsRefused as error:
            self._session.check_deferred()
            staged.number()
            enough = self._draft.enough(count)
            found |= sorted_out(count, lambda begin, end: self._piece(schema, staged, begin, end), enough, error.refusal)
            staged.leave(found)
        if found and schema.key:
            self._table.remove(schema, staged)
        return found


def _going(changes: _LastChanges, numbers: Sequence[int], stuck: RowRefusal | None) -> list[_Late]:
    """These, as rows that have yet to go. ``stuck``: why they could not."""
    if stuck is None or not numbers:
        return []
    return [_Late(replace(changes.only(numbers), gone=np.ones(len(numbers), np.bool_)), [stuck])]


def _letters(topic: str, places: Iterable[tuple[int, str, RowRefusal]]) -> list[Letter]:
    """``places``: (position, key, why) of each."""
    now = time.time()
    return [Letter(topic, Position(position), why.reason, name, now) for position, name, why in places]


def settle(writers: Sequence[SqlRowWriter]) -> None:
    """Brings what is late, of all tables, to its end: whatever can be there is there then. Raises LettersStop, StoreError."""
    for _ in range(_ROUNDS):
        while sum(writer.try_late() for writer in writers):
            """As long as one of them helps another."""
        if not sum(writer.sort_late() for writer in writers):
            break
    for writer in writers:
        writer.finish()


def _groups(batches: Iterable[pa.RecordBatch], held: Position) -> Iterator[list[pa.RecordBatch]]:
    """What goes in at once: a barrier alone, else rows under one definition."""
    run: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if not len(batch) or last_position(batch) <= held:
            continue
        fresh = (
            batch
            if first_position(batch) > held
            else batch.slice(int(np.searchsorted(batch.column(POSITION).to_numpy(), held, "right")))
        )
        alone = barrier_of(fresh, None) is not None
        if run and (alone or size > _GROUP_BYTES or not run[-1].schema.equals(fresh.schema, check_metadata=True)):
            yield run
            run, size = [], 0
        if alone:
            yield [fresh]
            continue
        run.append(fresh)
        size += fresh.nbytes
    if run:
        yield run


def _last_of_each(texts: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The rows' numbers, rising."""
    numbers = pa.array(np.arange(len(texts), dtype=np.int64))
    grouped = pa.table({"key": texts, "number": numbers}).group_by("key", use_threads=False).aggregate([("number", "max")])
    return np.sort(grouped.column("number_max").to_numpy())
