"""A cache built again: the rows of a cut over whatever stands there, then what is left over goes.

The ledger first becomes one that holds nothing, is this writer's, and is ``rebuilding``: it names every way in which a row of the store may stand
there, whoever wrote it, so that a crash forgets none of them. From then on no earlier writer gets anything done. It also says which keys the store
writes, as it does when a table comes, so that no other store takes them meanwhile. The rows are written in the chains of their tables, whose progress
is 0 until the last transaction sets it, all at once, with the cut. Who takes rows away meanwhile takes that progress away (``neighbours``), and the last
transaction is refused.

Of a table whose values are the application's (``invalidate``) every key goes that the log has ever named.

What is left over may be another log's, which nobody here can ask, or a row whose DELETE is gone from the log. So this, and ``erasure``, are
the places where keys are found by looking at the server: once before the rows are written, as below most prefixes of a new generation there is
nothing, and where there is, once behind them. A key below one of the store's prefixes goes when it is a row by its own content
(``sinks.cache.rowreader``), none of those that were just written, and not of a form that another store keeps up by now. Rows are looked for in
every way that the ledger names, and in those that the log names, as nobody can tell what a ledger has lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from cdc.crashpoint import crashpoint
from cdc.errors import ConfigError
from cdc.log.contract import LogReader
from cdc.model.batch import POSITION
from cdc.model.lineage import Lineage
from cdc.model.position import START, Cut
from cdc.model.topic import TopicSchema
from sinks.cache import ledger, neighbours, rowreader, sweep
from sinks.cache.erasure import Way, bound, ways_of
from sinks.cache.keytemplate import TableKeys
from sinks.cache.ledger import Base
from sinks.cache.livenames import LiveNames
from sinks.cache.rowwriter import Rowwriter
from sinks.cache.server import Server
from sinks.cache.standing import CacheStanding
from sinks.cache.transactions import Commands, RedisTransactions
from sinks.cache.values import Form, form_of
from sinks.cache.wire import command
from sinks.contract import CameRows, EpochPassed, Outcome, TopicAsOf
from sinks.render.jsonrows import raw_texts


@dataclass(frozen=True, slots=True)
class TableAgain:
    """A table whose rows are to be written, or set aside. ``keys``: None, and ``why``, where nothing can name them."""

    topic: TopicAsOf
    keys: TableKeys | None
    why: str = ""

    @property
    def name(self) -> str:
        return self.topic.shape.schema.topic


@dataclass(slots=True)
class CacheRebuild:
    """Over one sink, as the writer that ``transactions`` name. ``known``: empty, under the projection that is wanted. ``refuse_shared``: raises StoreError
    where keys of these topics are another store's."""

    log: LogReader
    known: CacheStanding
    server: Server
    transactions: RedisTransactions
    writing: Rowwriter
    refuse_shared: Callable[[Sequence[TopicSchema]], None]

    def carry_out(self, tables: Sequence[TableAgain], ways: Sequence[Way], cut: Cut, topics: Sequence[TopicAsOf]) -> Outcome:
        """Does what ``begin`` has found. Raises StoreError."""
        # Another store may have looked before that, too; now one of the two sees the other.
        self.refuse_shared([topic.shape.schema for topic in topics if not topic.dropped])
        self.writing.letters.reload()
        crashpoint("rebuilding.cache_begun")
        held = [forms for forms in self._forms(ways) if self._holds_any(forms)]
        live, outcome = LiveNames() if held else None, Outcome(0)
        for table in tables:
            outcome += self._write(table, cut, live)
            crashpoint("rebuilding.cache_written")
        if live is not None:
            for forms in held:
                self._sweep(forms, live)
        names = [topic.shape.schema.topic for topic in topics]
        reached = {**ledger.cut_fields(cut), **{f"at:{name}": str(cut.position) for name in names}}
        self.transactions.settle(
            self.transactions.set(reached), self.transactions.remove(ledger.REBUILDING), progress=dict.fromkeys(names, START)
        )
        return outcome

    def begin(self, lineage: Lineage, topics: Sequence[TopicAsOf]) -> tuple[list[TableAgain], list[Way]]:
        """The tables, and every way in which rows may stand there; the ledger is from then on one that holds nothing. Raises EpochPassed when a later writer of
        the same log has been there, StoreError; ConfigError, before anything was touched, where rows that the store holds could not be named any more."""
        writer, projection = self.transactions.writer, self.known.projection
        key, letters = ledger.key_of(self.known.store), ledger.letters_of(self.known.store)
        tables: list[TableAgain] = []
        found: list[Way] = []

        def decide(fields: ledger.Fields) -> Commands:
            seen = ledger.epoch_of(fields)
            if fields.get("log") == lineage.log and seen > writer.epoch:
                raise EpochPassed(self.known.store, seen)
            tables[:] = self._tables(fields, topics)
            found[:] = ways_of(fields)
            begun = ledger.beginning(lineage.log, lineage.history, writer.epoch, projection)
            shapes = {f"shape:{one.shape.schema.topic}": ledger.encode_shape(one.shape) for one in topics}
            progress = {f"at:{one.shape.schema.topic}": str(START) for one in topics}
            prefixes = {f"prefix:{one.name}": one.keys.prefix for one in tables if one.keys is not None}
            given = {**begun, **shapes, **progress, **prefixes, ledger.REBUILDING: Way.encode_all(found)}
            return [command("DEL", key, letters), self.transactions.set(given)]

        self.transactions.change_whole(decide)
        for topic in topics:
            self.known.chain(topic.shape.schema.topic).at = START
        named = [Way(projection, schema) for topic in topics for schema in (topic.shape.schema, *topic.earlier)]
        return tables, list(dict.fromkeys([*found, *named]))

    def _tables(self, fields: ledger.Fields, topics: Sequence[TopicAsOf]) -> list[TableAgain]:
        """Those that the ledger holds come first: where keys of two could be the same, these are not the ones that are set aside."""
        prefixes: dict[str, str] = {}
        found: list[TableAgain] = []
        for topic in sorted(topics, key=lambda one: f"prefix:{one.shape.schema.topic}" not in fields):
            name = topic.shape.schema.topic
            if topic.dropped:
                continue
            try:
                keys = self.known.check(topic.shape.schema, prefixes)
            except ConfigError as error:
                if f"prefix:{name}" in fields:
                    raise
                found.append(TableAgain(topic, None, str(error)))
            else:
                prefixes[name] = keys.prefix
                found.append(TableAgain(topic, keys))
        return found

    def _write(self, table: TableAgain, cut: Cut, live: LiveNames | None) -> Outcome:
        """``live``: is told each key; None where nobody asks."""
        keys, name, chain = table.keys, table.name, self.known.chain(table.name)
        if keys is None:
            return self._set_aside(table)
        given = {f"base:{name}": Base(cut.position, rewritten=True).encode()}
        self.transactions.stream(chain, [self.transactions.part(name, [self.transactions.set(given)])])
        outcome, form = Outcome(0), form_of(self.known.projection, keys.schema)
        if not form.keeps:
            self.writing.delete(chain, sweep.names(self.log, keys, Base(), cut.position))
            return outcome
        for came in table.topic.rows():
            rows = _at_their_own(came)
            if live is not None:
                live.add(keys.texts(rows))
            dead = self.writing.rewrite(chain, [rows], keys, form)
            outcome += Outcome(len(rows) - len(dead), 0, tuple(letter.as_outcome() for letter in dead))
        return outcome

    def _set_aside(self, table: TableAgain) -> Outcome:
        name, chain = table.name, self.known.chain(table.name)
        self.transactions.stream(chain, [self.transactions.part(name, [self.transactions.set({f"aside:{name}": table.why})])])
        outcome = Outcome(0)
        for came in table.topic.rows():
            outcome += self.writing.count_aside(chain, _at_their_own(came), table.why)
        return outcome

    def _forms(self, ways: Sequence[Way]) -> list[list[tuple[TableKeys, Form]]]:
        """How rows may stand below each prefix, so that one look at the server is enough for all of them."""
        found: dict[str, list[tuple[TableKeys, Form]]] = {}
        for keys, form in bound(ways):
            found.setdefault(keys.prefix, []).append((keys, form))
        return list(found.values())

    def _holds_any(self, forms: Sequence[tuple[TableKeys, Form]]) -> bool:
        """Whether any key stands below the prefix of these. Where none did when no earlier writer got anything done any more, all that stands there later is ours."""
        return next(rowreader.scanned(self.server, forms[0][0].prefix), None) is not None

    def _sweep(self, forms: Sequence[tuple[TableKeys, Form]], live: LiveNames) -> None:
        """Takes every row away that stands there in one of these, which have one prefix, and is not live."""
        store = self.known.store
        ours = [(keys, form) for keys, form in forms if not neighbours.taken(self.server, store, keys)]
        if not ours:
            return
        told: dict[TableKeys, None] = {}
        for names in rowreader.scanned(self.server, ours[0][0].prefix):
            others = [name for name, stays in zip(names, live.among(names), strict=True) if not stays]
            for keys, form in ours:
                if not others:
                    break
                _, found = rowreader.read(self.server, store, keys.schema.topic, others, form)
                mine, _ = rowreader.rows_of(others, found, keys, form)
                if mine:
                    if keys not in told:
                        neighbours.tell_lost(self.server, store, keys)
                        told[keys] = None
                    self._delete(keys, mine)
                    others = sorted(set(others) - set(mine))
            crashpoint("rebuilding.cache_swept")
        for keys in told:
            neighbours.tell_lost(self.server, store, keys)

    def _delete(self, keys: TableKeys, names: list[bytes]) -> None:
        self.writing.delete(self.known.chain(keys.schema.topic), [raw_texts(pa.array(names, pa.binary()))])


def _at_their_own(came: CameRows) -> pa.RecordBatch:
    """The rows at the positions of the changes that brought them, by which dead letters are named."""
    return came.rows.set_column(0, came.rows.schema.field(POSITION), came.came.cast(pa.int64()))
