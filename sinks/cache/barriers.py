"""Changes of a table as a whole: its first definition, a TRUNCATE, a change of its definition, another way of naming its keys.

Each is made of transactions that leave the table's progress where it is, and a last one that moves it. What they delete and write is
computed from the log (``sinks.cache.sweep``), so that one that was interrupted is done again from the beginning and comes to the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from cdc.crashpoint import crashpoint
from cdc.errors import ConfigError
from cdc.log.contract import LogReader
from cdc.model.evolution import Kind, SchemaChange
from cdc.model.position import START, Position
from cdc.model.table import Table
from sinks.cache import ledger, neighbours, sweep
from sinks.cache.keytemplate import TableKeys
from sinks.cache.ledger import Base, Projection
from sinks.cache.server import Server
from sinks.cache.standing import Standing
from sinks.cache.transactions import Transactions
from sinks.cache.values import form_of
from sinks.cache.writing import Letters, Rowwriter
from sinks.contract import Outcome, Shape
from sinks.policy import emptied
from sinks.reshape import rewrites


class Barriers:
    """Over one opened sink."""

    def __init__(self, log: LogReader, known: Standing, transactions: Transactions, writing: Rowwriter, server: Server) -> None:
        self._log = log
        self._known = known
        self._transactions = transactions
        self._writing = writing
        self._server = server

    def prepare(self, table: Table) -> None:
        """Makes a place for a table that comes for the first time. Raises ConfigError when the store holds it and can name its keys no more."""
        known, topic = self._known, table.qualified
        if known.holds(topic):
            known.keys(table)
            return
        try:
            keys = known.check(table)
        except ConfigError as error:
            self._set_aside(table, str(error))
            return
        if topic in known.aside:
            # Its rows so far were set aside, and now there is room for them.
            self._rewrite(table, keys, known.progress(topic))
        self._record(topic, known.shapes.get(topic) or Shape(table, START), keys.prefix)

    def truncate(self, topic: str, position: Position) -> Outcome:
        self._sweep(topic, position)
        self._finish(topic, position, {f"base:{topic}": Base(position).encode()})
        self._known.bases[topic] = Base(position)
        return Outcome(1)

    def reshape(self, change: SchemaChange, position: Position) -> Outcome:
        known, table, topic = self._known, change.table, change.table.qualified
        held = known.shapes.get(topic)
        gone = emptied(None if held is None else held.table, change)
        keys, why = self._named(change, gone)
        now, dead = Shape(table, position), Letters()
        base = Base(position) if gone else known.bases.get(topic, Base())
        if gone:
            self._sweep(topic, position)
        elif held is not None and keys is not None and (not known.holds(topic) or rewrites(held.table, table)):
            self._begin(topic, now)
            dead, base = self._moved(topic, keys, position), Base(position, rewritten=True)
        given = {f"shape:{topic}": ledger.encode_shape(now), f"base:{topic}": base.encode()}
        self._conclude(topic, position, given, keys, why)
        known.shapes[topic], known.bases[topic] = now, base
        return Outcome(1, 0, dead)

    def finish(self, projection: Projection, former: tuple[Projection, ...]) -> None:
        """Finishes what an earlier writer began, and applies what the configuration says differently now. To be called once, after opening."""
        known = self._known
        for topic, shape in list(known.coming.items()):
            keys = known.check(shape.table)
            self._moved(topic, keys, shape.position)
            base = Base(shape.position, rewritten=True)
            given = {f"shape:{topic}": ledger.encode_shape(shape), f"base:{topic}": base.encode()}
            self._conclude(topic, shape.position, given, keys, "")
            known.shapes[topic], known.bases[topic] = shape, base
        if known.projection != projection or former:
            self._project(projection, {known.projection, *former, projection})

    # -- pieces -------------------------------------------------------------------------------------------------------

    def _named(self, change: SchemaChange, gone: bool) -> tuple[TableKeys | None, str]:
        """The table's keys from the change on; None, and why, when its rows have to be set aside.

        Raises ConfigError when that would leave rows behind that nobody keeps up.
        """
        if change.kind in (Kind.DROPPED, Kind.RENAMED) and gone:
            return None, ""
        try:
            return self._known.check(change.table), ""
        except ConfigError as error:
            if self._known.holds(change.table.qualified) and not gone:
                raise
            return None, str(error)

    def _moved(self, topic: str, keys: TableKeys, position: Position) -> Letters:
        """Every row under the definition that the change at this position brings; under another key, where that gives it one."""
        known = self._known
        if known.holds(topic) and not sweep.same_names(known.keys(known.shapes[topic].table), keys):
            self._sweep(topic, position)
        dead = self._rewrite(keys.table, keys, Position(position - 1), position)
        crashpoint("cache.schema.rewritten")
        return dead

    def _sweep(self, topic: str, position: Position) -> None:
        """Takes every key away that the table may have before the change at this position."""
        known = self._known
        if known.holds(topic):
            keys = known.keys(known.shapes[topic].table)
            names = sweep.names(self._log, keys, known.bases.get(topic, Base()), Position(position - 1))
            self._writing.delete(known.chain(topic), names, position)
            crashpoint("cache.swept")

    def _rewrite(self, shape: Table, keys: TableKeys, upto: Position, until: Position | None = None) -> Letters:
        """Every row as of ``upto``. ``until``: the position of the change that asks for it."""
        rows = sweep.rows(self._log, shape, upto)
        form = form_of(self._known.projection)
        return self._writing.rewrite(self._known.chain(shape.qualified), rows, keys, form, until)

    def _begin(self, topic: str, coming: Shape) -> None:
        self._run(topic, [self._transactions.set({f"coming:{topic}": ledger.encode_shape(coming)})], coming.position)

    def _conclude(self, topic: str, position: Position, given: dict[str, str], keys: TableKeys | None, why: str) -> None:
        """The last transaction of a change. A table without keys has no prefix; with a reason, its rows are set aside from now on."""
        known = self._known
        kept = {"prefix": keys.prefix if keys is not None else "", "aside": why}
        given |= {f"{kind}:{topic}": text for kind, text in kept.items() if text}
        self._finish(topic, position, given, [f"coming:{topic}", *(f"{kind}:{topic}" for kind, text in kept.items() if not text)])
        known.coming.pop(topic, None)
        for held, text in ((known.prefixes, kept["prefix"]), (known.aside, kept["aside"])):
            held.pop(topic, None)
            if text:
                held[topic] = text

    def _finish(self, topic: str, position: Position, given: dict[str, str], gone: Iterable[str] = ()) -> None:
        removed = [self._transactions.remove(*gone)] if gone else []
        part = self._transactions.part(topic, [self._transactions.set(given), *removed], position)
        self._transactions.stream(self._known.chain(topic), [part])

    def _record(self, topic: str, shape: Shape, prefix: str) -> None:
        known = self._known
        given = {f"shape:{topic}": ledger.encode_shape(shape), f"prefix:{topic}": prefix}
        self._run(topic, [self._transactions.set(given), self._transactions.remove(f"aside:{topic}")])
        known.shapes[topic], known.prefixes[topic] = shape, prefix
        known.aside.pop(topic, None)

    def _set_aside(self, table: Table, why: str) -> None:
        known, topic = self._known, table.qualified
        if known.aside.get(topic) != why:
            shape = known.shapes.get(topic) or Shape(table, START)
            self._run(topic, [self._transactions.set({f"shape:{topic}": ledger.encode_shape(shape), f"aside:{topic}": why})])
            known.shapes[topic], known.aside[topic] = shape, why

    def _run(self, topic: str, commands: list[bytes], until: int | None = None) -> None:
        """A change of the ledger that moves nothing."""
        self._transactions.stream(self._known.chain(topic), [self._transactions.part(topic, commands)], until)

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
                if one.key != projection.key:
                    self._sweep_as(topic, one)
        known.projection = projection
        for topic, keys in wanted.items():
            self._rewrite(keys.table, keys, known.progress(topic))
            self._record(topic, known.shapes[topic], keys.prefix)
        self._transactions.settle(self._transactions.set({"projection": projection.encode()}), self._transactions.remove("former"))

    def _wanted(self, projection: Projection) -> dict[str, TableKeys]:
        """The keys that the tables will have. Raises ConfigError before anything is touched."""
        later = Standing(self._known.store, projection)
        for topic, shape in self._known.shapes.items():
            if topic not in self._known.chains:
                continue  # nobody follows it any more, and what is left of it is nobody's to move
            try:
                later.prefixes[topic] = later.check(shape.table).prefix
            except ConfigError:
                if self._known.holds(topic):
                    raise
        return {topic: later.keys(self._known.shapes[topic].table) for topic in later.prefixes}

    def _sweep_as(self, topic: str, projection: Projection) -> None:
        known = self._known
        try:
            keys = known.keys(known.shapes[topic].table, projection)
        except ConfigError:
            return  # it never named one of this table's
        names = sweep.names(self._log, keys, known.bases.get(topic, Base()), known.progress(topic))
        neighbours.tell_lost(self._server, known.store, keys)
        self._writing.delete(known.chain(topic), names)
        neighbours.tell_lost(self._server, known.store, keys)
