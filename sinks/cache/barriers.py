"""Changes of a table as a whole: its first definition, a TRUNCATE, a change of its definition, another way of naming its keys.

Each is made of transactions that leave the table's progress where it is, and a last one that moves it. What they delete and write is
computed from the log (``sinks.cache.sweep``), so that one that was interrupted is done again from the beginning and comes to the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from cdc.crashpoint import crashpoint
from cdc.errors import ConfigError
from cdc.log.contract import LogReader
from cdc.model.batch import POSITION, topic_schema
from cdc.model.evolution import Kind, TopicChange, topic_change_of
from cdc.model.position import START, Position
from cdc.model.topic import TopicSchema
from sinks.barrier import RowsBefore, TableBarrier, barrier_of, carry_out
from sinks.cache import ledger, neighbours, sweep
from sinks.cache.keytemplate import TableKeys
from sinks.cache.ledger import Base, Projection
from sinks.cache.letters import name_texts
from sinks.cache.rowwriter import Found, Rowwriter
from sinks.cache.server import Server
from sinks.cache.standing import CacheStanding
from sinks.cache.transactions import RedisTransactions
from sinks.cache.values import form_of
from sinks.contract import DeadLetter, Outcome, Shape
from sinks.reshape import conformed


class CacheBarriers:
    """Over one opened sink."""

    def __init__(
        self, log: LogReader, known: CacheStanding, transactions: RedisTransactions, writing: Rowwriter, server: Server
    ) -> None:
        self._known = known
        self._transactions = transactions
        self._server = server
        self._pieces = _Pieces(log, known, transactions, writing)

    def prepare(self, schema: TopicSchema) -> None:
        """Makes a place for a table that comes for the first time. Raises ConfigError when the store holds it and can name its keys no more."""
        known, topic = self._known, schema.topic
        if known.holds(topic):
            known.keys(schema)
            return
        try:
            keys = known.check(schema)
        except ConfigError as error:
            self._pieces.set_aside(schema, str(error))
            return
        if topic in known.aside:
            # Its rows so far were set aside, and now there is room for them.
            self._pieces.rewrite(schema, keys, known.progress(topic))
        self._pieces.record(topic, known.shapes.get(topic) or Shape(schema, START), keys.prefix)

    def named_anew(self, changes: pa.RecordBatch) -> list[TopicSchema]:
        """The definition by which a barrier's record names a table's keys from then on, where the store has keys of it."""
        change = topic_change_of(changes)
        if change is None or change.kind in (Kind.DROPPED, Kind.RENAMED) or not self._known.holds(change.schema.topic):
            return []
        return [change.schema]

    def carry_out(self, changes: pa.RecordBatch) -> Outcome:
        """``changes``: one barrier's record."""
        known, topic = self._known, topic_schema(changes.schema).topic
        held = known.shapes.get(topic)
        barrier = barrier_of(changes, None if held is None else held.schema)
        change = topic_change_of(changes)
        assert barrier is not None
        if change is None:
            return carry_out(barrier, _Steps(self._pieces, known, None, ""))
        keys, why = self._named(change, barrier)
        if keys is None and barrier.rows is RowsBefore.AGAIN:
            barrier = replace(barrier, rows=RowsBefore.KEPT)  # they have been set aside
        elif keys is not None and held is not None and barrier.rows is RowsBefore.KEPT and not known.holds(topic):
            barrier = replace(barrier, rows=RowsBefore.AGAIN)  # they were set aside until now
        return carry_out(barrier, _Steps(self._pieces, known, keys, why))

    def finish(self, projection: Projection, former: tuple[Projection, ...]) -> None:
        """Finishes what an earlier writer began, and applies what the configuration says differently now. To be called once, after opening."""
        known = self._known
        for shape in list(known.coming.values()):
            steps = _Steps(self._pieces, known, known.check(shape.schema), "")
            carry_out(TableBarrier(shape.schema, shape.position, RowsBefore.AGAIN, True), steps)
        if known.projection != projection or former:
            self._project(projection, {known.projection, *former, projection})

    def _named(self, change: TopicChange, barrier: TableBarrier) -> tuple[TableKeys | None, str]:
        """The table's keys from the change on; None, and why, when its rows have to be set aside.

        Raises ConfigError when that would leave rows behind that nobody keeps up.
        """
        gone = barrier.rows is RowsBefore.GONE
        if change.kind in (Kind.DROPPED, Kind.RENAMED) and gone:
            return None, ""
        try:
            return self._known.check(change.schema), ""
        except ConfigError as error:
            if self._known.holds(change.schema.topic) and not gone:
                raise
            return None, str(error)

    # -- another projection -------------------------------------------------------------------------------------------

    def _project(self, projection: Projection, every: set[Projection]) -> None:
        """The configuration names keys otherwise, or gives values another form: every row is written again so, under its new key.

        ``every``: all projections under which there may be keys, this one included.
        """
        known = self._known
        wanted = self._wanted(projection)
        former = json.dumps(sorted(one.encode() for one in every))
        self._transactions.settle(self._transactions.set({"former": former}))
        for one in sorted(every, key=Projection.encode):
            for topic in known.prefixes:
                schema = known.shapes[topic].schema
                if one.of(schema).key != projection.of(schema).key:
                    self._pieces.sweep_as(self._server, topic, one)
        known.projection = projection
        for topic, keys in wanted.items():
            if all((one.of(keys.schema), one.shown) == (projection.of(keys.schema), projection.shown) for one in every):
                continue
            self._pieces.rewrite(keys.schema, keys, known.progress(topic))
            self._pieces.record(topic, known.shapes[topic], keys.prefix)
        self._transactions.settle(self._transactions.set({"projection": projection.encode()}), self._transactions.remove("former"))

    def _wanted(self, projection: Projection) -> dict[str, TableKeys]:
        """The keys that the tables will have. Raises ConfigError before anything is touched."""
        later = CacheStanding(self._known.names, projection)
        for topic, shape in self._known.shapes.items():
            if topic not in self._known.chains:
                continue  # nobody follows it any more, and what is left of it is nobody's to move
            try:
                later.prefixes[topic] = later.check(shape.schema).prefix
            except ConfigError:
                if self._known.holds(topic):
                    raise
        return {topic: later.keys(self._known.shapes[topic].schema) for topic in later.prefixes}


@dataclass(frozen=True, slots=True)
class _Steps:
    """One barrier's (``sinks.barrier.Steps``). ``keys``: the table's from the change on; None where its rows are set aside from then on,
    and ``why``, or where a TRUNCATE leaves them as they are."""

    pieces: _Pieces
    known: CacheStanding
    keys: TableKeys | None
    why: str

    def rows_before(self, barrier: TableBarrier) -> Iterator[pa.RecordBatch]:
        return self.pieces.rows(barrier.schema, Position(barrier.position - 1))

    def write_again(self, barrier: TableBarrier, rows: Iterable[pa.RecordBatch]) -> tuple[DeadLetter, ...]:
        assert self.keys is not None
        known, topic = self.known, barrier.schema.topic
        self.pieces.begin(topic, barrier.shape)
        if known.holds(topic) and not self._same_names(topic):
            self.pieces.sweep(topic, barrier.position)
        dead = self.pieces.write(topic, rows, self.keys, barrier.position)
        crashpoint("cache.schema.rewritten")
        self.pieces.end_letters(topic, barrier.position, barrier.position, emptied=False, again=dead)
        return tuple(letter.as_outcome() for letter in dead)

    def raise_floor(self, barrier: TableBarrier) -> None:
        """Rows that were written again stand under the names that the former ones had, or those are gone."""
        if barrier.rows is RowsBefore.GONE:
            self.pieces.end_letters(barrier.schema.topic, barrier.position, barrier.position, emptied=True)
            self.pieces.sweep(barrier.schema.topic, barrier.position)

    def set_shape(self, barrier: TableBarrier) -> None:
        """In one transaction with the base of the table's keys, and with its progress."""
        known, topic = self.known, barrier.schema.topic
        base = Base(barrier.position, rewritten=barrier.rows is RowsBefore.AGAIN)
        if barrier.rows is RowsBefore.KEPT or (barrier.rows is RowsBefore.AGAIN and self._same_names(topic)):
            # Under the same names nothing was taken away, so a later sweep has to look at whatever this one would have.
            base = known.bases.get(topic, Base())
        given = {f"base:{topic}": base.encode()}
        if barrier.defines:
            given[f"shape:{topic}"] = ledger.encode_shape(barrier.shape)
            self.pieces.conclude(topic, barrier.position, given, self.keys, self.why)
            known.shapes[topic] = barrier.shape
        else:
            self.pieces.finish(topic, barrier.position, given)
        known.bases[topic] = base

    def _same_names(self, topic: str) -> bool:
        """Whether the rows' keys are the ones that they had."""
        known = self.known
        return known.holds(topic) and self.keys is not None and sweep.same_names(known.keys(known.shapes[topic].schema), self.keys)


class _Pieces:
    """The transactions that all of this is made of."""

    def __init__(self, log: LogReader, known: CacheStanding, transactions: RedisTransactions, writing: Rowwriter) -> None:
        self._log = log
        self._known = known
        self._transactions = transactions
        self._writing = writing

    def sweep(self, topic: str, position: Position) -> None:
        """Takes every key away that the table may have before the change at this position."""
        known = self._known
        if known.holds(topic):
            keys = known.keys(known.shapes[topic].schema)
            names = sweep.names(self._log, keys, known.bases.get(topic, Base()), Position(position - 1))
            self._writing.delete(known.chain(topic), names, position)
            crashpoint("cache.swept")

    def rows(self, shape: TopicSchema, upto: Position) -> Iterator[pa.RecordBatch]:
        return sweep.rows(self._log, shape, upto, self._known.projection.lane)

    def rewrite(self, shape: TopicSchema, keys: TableKeys, upto: Position) -> None:
        """Every row as of ``upto``."""
        dead = self.write(shape.topic, self.rows(shape, upto), keys)
        self.end_letters(shape.topic, upto + 1, emptied=False, again=dead)

    def _carry_failed(self, topic: str, keys: TableKeys, until: Position | None) -> None:
        """A row that an expression fails for is not among those that are written again: its letter goes on, under the name that the row has now, and
        nothing is left of what an operator has corrected."""
        letters = self._writing.letters
        failed = {int(one.position): one for one in letters.known.of(topic) if one.failed}
        if not failed:
            return
        for batch in self._log.changes_at(topic, np.array(sorted(failed), np.int64)):
            names = keys.texts(conformed(batch, keys.schema))
            self._writing.delete(self._known.chain(topic), [names], until)
            named = zip(batch.column(POSITION).to_pylist(), name_texts(names).to_pylist(), strict=True)
            letters.keep([replace(failed[position].undecided(), key=name) for position, name in named])

    def write(self, topic: str, rows: Iterable[pa.RecordBatch], keys: TableKeys, until: Position | None = None) -> Found:
        """``until``: the position of the change that asks for it."""
        self._carry_failed(topic, keys, until)
        return self._writing.rewrite(self._known.chain(topic), rows, keys, form_of(self._known.projection, keys.schema), until)

    def end_letters(self, topic: str, before: int, until: Position | None = None, *, emptied: bool, again: Found = ()) -> None:
        """A change of the table as a whole leaves none of its dead letters but those of the rows that it has written ``again`` in vain, and, unless the
        table was ``emptied``, those of the rows that an expression fails for."""
        commands = self._writing.letters.ended_before(topic, before, emptied=emptied, again={one.position for one in again})
        if commands:
            self._run(topic, commands, until)

    def begin(self, topic: str, coming: Shape) -> None:
        self._run(topic, [self._transactions.set({f"coming:{topic}": ledger.encode_shape(coming)})], coming.position)

    def conclude(self, topic: str, position: Position, given: dict[str, str], keys: TableKeys | None, why: str) -> None:
        """The last transaction of a change. A table without keys has no prefix; with a reason, its rows are set aside from now on."""
        known = self._known
        kept = {"prefix": keys.prefix if keys is not None else "", "aside": why}
        given |= {f"{kind}:{topic}": text for kind, text in kept.items() if text}
        if not why and (left := self._writing.letters.table_held(topic)):
            self._run(topic, left, position)
        self.finish(topic, position, given, [f"coming:{topic}", *(f"{kind}:{topic}" for kind, text in kept.items() if not text)])
        known.coming.pop(topic, None)
        for held, text in ((known.prefixes, kept["prefix"]), (known.aside, kept["aside"])):
            held.pop(topic, None)
            if text:
                held[topic] = text

    def finish(self, topic: str, position: Position, given: dict[str, str], gone: Iterable[str] = ()) -> None:
        removed = [self._transactions.remove(*gone)] if gone else []
        part = self._transactions.part(topic, [self._transactions.set(given), *removed], position)
        self._transactions.stream(self._known.chain(topic), [part])

    def record(self, topic: str, shape: Shape, prefix: str) -> None:
        known = self._known
        given = {f"shape:{topic}": ledger.encode_shape(shape), f"prefix:{topic}": prefix}
        held = self._writing.letters.table_held(topic)
        self._run(topic, [self._transactions.set(given), self._transactions.remove(f"aside:{topic}"), *held])
        known.shapes[topic], known.prefixes[topic] = shape, prefix
        known.aside.pop(topic, None)

    def set_aside(self, schema: TopicSchema, why: str) -> None:
        known, topic = self._known, schema.topic
        if known.aside.get(topic) != why:
            shape = known.shapes.get(topic) or Shape(schema, START)
            self._run(topic, [self._transactions.set({f"shape:{topic}": ledger.encode_shape(shape), f"aside:{topic}": why})])
            known.shapes[topic], known.aside[topic] = shape, why

    def _run(self, topic: str, commands: list[bytes], until: int | None = None) -> None:
        """A change of the ledger that moves nothing."""
        self._transactions.stream(self._known.chain(topic), [self._transactions.part(topic, commands)], until)

    def sweep_as(self, server: Server, topic: str, projection: Projection) -> None:
        known = self._known
        try:
            keys = known.keys(known.shapes[topic].schema, projection)
        except ConfigError:
            return  # it never named one of this table's
        names = sweep.names(self._log, keys, known.bases.get(topic, Base()), known.progress(topic))
        neighbours.tell_lost(server, known.store, keys)
        self._writing.delete(known.chain(topic), names)
        neighbours.tell_lost(server, known.store, keys)
