"""A cache built again: the rows of a cut over whatever stands there, then what is left over goes.

The ledger first becomes one that holds nothing, is this writer's, and is ``rebuilding``: it names every way in which a row of the store may stand
there, whoever wrote it, so that a crash forgets none of them. From then on no earlier writer gets anything done. The rows are written in the
chains of their tables, whose progress the last transaction sets, all at once, with the cut.

What is left over may be another log's, which nobody here can ask, or a row whose DELETE is gone from the log. So this, and ``erasure``, are
the places where keys are found by looking at the server. A key below one of the store's prefixes goes when it is a row by its own content
(``sinks.cache.rowreader``), and none of those that were just written.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa

from cdc.crashpoint import crashpoint
from cdc.errors import ConfigError
from cdc.model.batch import POSITION
from cdc.model.lineage import Lineage
from cdc.model.position import Cut
from sinks.cache import ledger, neighbours, rowreader
from sinks.cache.erasure import Way, ways_of
from sinks.cache.keytemplate import TableKeys, bind
from sinks.cache.ledger import Base
from sinks.cache.livenames import LiveNames
from sinks.cache.rowwriter import Rowwriter
from sinks.cache.server import Server
from sinks.cache.standing import CacheStanding
from sinks.cache.transactions import Commands, RedisTransactions
from sinks.cache.values import form_of
from sinks.cache.wire import command
from sinks.contract import CameRows, EpochPassed, Outcome, TopicAsOf
from sinks.render.jsonrows import raw_texts


@dataclass(slots=True)
class CacheRebuild:
    """Over one sink, as the writer that ``transactions`` name. ``known``: empty, under the projection that is wanted."""

    known: CacheStanding
    server: Server
    transactions: RedisTransactions
    writing: Rowwriter

    def carry_out(self, lineage: Lineage, cut: Cut, topics: Sequence[TopicAsOf]) -> Outcome:
        """Raises EpochPassed when a later writer of the same log has been there, StoreError."""
        former = self._begin(lineage, topics)
        self.writing.letters.reload()
        crashpoint("rebuilding.cache_begun")
        live, outcome = LiveNames(), Outcome(0)
        for topic in topics:
            outcome += self._write(topic, cut, live)
            crashpoint("rebuilding.cache_written")
        for way in former:
            self._sweep(way, live)
        topic_fields = {f"at:{topic.shape.schema.topic}": str(cut.position) for topic in topics}
        self.transactions.settle(
            self.transactions.set({**ledger.cut_fields(cut), **topic_fields}), self.transactions.remove(ledger.REBUILDING)
        )
        return outcome

    def _begin(self, lineage: Lineage, topics: Sequence[TopicAsOf]) -> list[Way]:
        writer, projection = self.transactions.writer, self.known.projection
        key, letters = ledger.key_of(self.known.store), ledger.letters_of(self.known.store)
        found: list[Way] = []

        def decide(fields: ledger.Fields) -> Commands:
            seen = ledger.epoch_of(fields)
            if fields.get("log") == lineage.log and seen > writer.epoch:
                raise EpochPassed(self.known.store, seen)
            found[:] = ways_of(fields)
            if not fields:  # keys without a ledger may be of rows whose DELETEs are gone from the log
                found[:] = [Way(projection, topic.shape.schema) for topic in topics]
            begun = ledger.beginning(lineage.log, lineage.history, writer.epoch, projection)
            shapes = {f"shape:{one.shape.schema.topic}": ledger.encode_shape(one.shape) for one in topics}
            given = {**begun, **shapes, ledger.REBUILDING: Way.encode_all(found)}
            return [command("DEL", key, letters), self.transactions.set(given)]

        self.transactions.change_whole(decide)
        return found

    def _write(self, topic: TopicAsOf, cut: Cut, live: LiveNames) -> Outcome:
        known, shape = self.known, topic.shape
        name, chain = shape.schema.topic, known.chain(shape.schema.topic)
        if topic.dropped:
            return Outcome(0)
        try:
            keys = known.check(shape.schema)
        except ConfigError as error:
            return self._set_aside(topic, str(error))
        given = {f"prefix:{name}": keys.prefix, f"base:{name}": Base(cut.position, rewritten=True).encode()}
        self.transactions.stream(chain, [self.transactions.part(name, [self.transactions.set(given)])])
        known.prefixes[name] = keys.prefix
        outcome = Outcome(0)
        for came in topic.rows():
            rows = _at_their_own(came)
            live.add(keys.texts(rows))
            dead = self.writing.rewrite(chain, [rows], keys, form_of(known.projection, shape.schema))
            outcome += Outcome(len(rows) - len(dead), 0, tuple(letter.as_outcome() for letter in dead))
        return outcome

    def _set_aside(self, topic: TopicAsOf, why: str) -> Outcome:
        name, chain = topic.shape.schema.topic, self.known.chain(topic.shape.schema.topic)
        self.transactions.stream(chain, [self.transactions.part(name, [self.transactions.set({f"aside:{name}": why})])])
        outcome = Outcome(0)
        for came in topic.rows():
            outcome += self.writing.count_aside(chain, _at_their_own(came), why)
        return outcome

    def _sweep(self, way: Way, live: LiveNames) -> None:
        """Takes every row away that stands there in this way and is not live."""
        with suppress(ConfigError):  # it never named a row of this table
            keys, form = bind(way.projection.of(way.schema).key, way.schema), form_of(way.projection, way.schema)
            told = False
            for names in rowreader.scanned(self.server, keys.prefix):
                _, found = rowreader.read(self.server, self.known.store, way.schema.topic, names, form)
                mine, _ = rowreader.rows_of(names, found, keys, form)
                gone = [name for name, stays in zip(mine, live.among(mine), strict=True) if not stays]
                if gone:
                    if not told:
                        neighbours.tell_lost(self.server, self.known.store, keys)
                        told = True
                    self._delete(keys, gone)
                crashpoint("rebuilding.cache_swept")
            if told:
                neighbours.tell_lost(self.server, self.known.store, keys)

    def _delete(self, keys: TableKeys, names: list[bytes]) -> None:
        self.writing.delete(self.known.chain(keys.schema.topic), [raw_texts(pa.array(names, pa.binary()))])


def _at_their_own(came: CameRows) -> pa.RecordBatch:
    """The rows at the positions of the changes that brought them, by which dead letters are named."""
    return came.rows.set_column(0, came.rows.schema.field(POSITION), came.came.cast(pa.int64()))
