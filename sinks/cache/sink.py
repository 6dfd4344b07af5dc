"""The cache: rows as keys of a Redis server, written in one chain per table that the server's ledger guards.

What a reader finds under a key is the row and nothing else (``sinks.cache.values``). How the guard works: ``sinks.cache.fence`` decides,
``sinks.cache.transactions`` carries out; docs/decisions/cache-fence.md tells why.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.crashpoint import crashpoint
from cdc.errors import AnotherHistory, ConfigError, StoreError
from cdc.log.contract import LogReader, Topic, selected
from cdc.model.batch import ALONE, OP, POSITION, last_position, topic_schema
from cdc.model.lineage import Lineage
from cdc.model.position import ZERO_CUT, Cut, Position
from cdc.model.selection import matches
from cdc.model.topic import TopicSchema
from sinks.cache import erasure, expiry, foresight, ledger, ledgercheck, neighbours, resp, rowreader, rowscan
from sinks.cache.barriers import CacheBarriers
from sinks.cache.cluster import LaneShare
from sinks.cache.fence import FenceAnswer, Writer, answer
from sinks.cache.generationnames import FIRST, CacheGenerationNames
from sinks.cache.ledger import CacheLedger, Projection
from sinks.cache.letters import CacheLetters, name_texts
from sinks.cache.options import Options
from sinks.cache.parts import CacheParts, parts_of
from sinks.cache.rebuild import CacheRebuild
from sinks.cache.register import CacheGenerationReplaced, CacheRegister
from sinks.cache.rowwriter import Rowwriter
from sinks.cache.server import Server
from sinks.cache.standing import CacheStanding
from sinks.cache.transactions import Answers, Commands, RedisTransactions, lost
from sinks.cache.values import Form, form_of
from sinks.contract import NOTHING, EpochPassed, Outcome, Shape, TopicAsOf, Traits
from sinks.deadletters import Letter
from sinks.generations import HeldWatch
from sinks.render import jsonrows
from sinks.render.choices import Choices
from sinks.render.meaning import plain_key
from sinks.render.rowtext import rows_with_keys


class CacheSink:
    """See ``sinks.contract.Sink``."""

    traits = Traits(sequenced=True)

    def __init__(
        self,
        name: str,
        options: Options,
        clock: Callable[[], float] = time.monotonic,
        *,
        generation: int | None = None,
        share: LaneShare | None = None,
    ) -> None:
        """``generation``: the only one that it works on, and never where readers see it; by default the one that is live, whichever that is each time
        that it is opened. ``share``: all that it works on; batches then hold rows of this lane alone."""
        self.name = name
        self._options = options
        self._generation = generation
        self._choices = Choices(name, options.as_rules)
        self._share = share
        self._server = Server(name, options, self._names(FIRST).owner, None if share is None else share.route)
        self._parts = self._parts_of(generation or FIRST)
        self._log: LogReader | None = None
        self._known = CacheStanding(self._parts.names, self._projection)
        self._epoch: int | None = None
        self._unfinished: tuple[Projection, ...] | None = None
        """Not yet ``finish``ed: the projections that keys are being taken out of. None: it is."""
        self._held = HeldWatch(clock)

    def _names(self, number: int) -> CacheGenerationNames:
        return CacheGenerationNames(self.name, number, self._options.pointer, None if self._share is None else self._share.lane)

    def _parts_of(self, number: int) -> CacheParts:
        # Whoever is told of keys that are published could do nothing with those of a generation that nobody sees.
        channel = self._options.channel if self._generation is None else lambda _: b""
        return parts_of(self._names(number), self._options, self._server, channel, self._share)

    @property
    def _store(self) -> str:
        """Whose the ledger is."""
        return self._parts.names.owner

    @property
    def _projection(self) -> Projection:
        return self._parts.projection

    @property
    def _transactions(self) -> RedisTransactions:
        return self._parts.transactions

    @property
    def _letters(self) -> CacheLetters:
        return self._writing.letters

    @property
    def _writing(self) -> Rowwriter:
        return self._parts.writing

    @property
    def _register(self) -> CacheRegister:
        return CacheRegister(self._server, self.name, self._options.pointer)

    def _choose(self, *, writing: bool) -> None:
        """Finds the generation to work on. Raises as ``CacheRegister.chosen``."""
        if self._generation is not None or self._share is not None:
            return
        number = self._register.chosen(self._held if writing else None)
        if number != self._parts.names.number:
            self._parts.close()
            self._parts = self._parts_of(number)

    # -- which log, and how far ---------------------------------------------------------------------------------------

    def open(self, log: LogReader, epoch: int | None = None) -> Cut:
        self._begin(writing=epoch is not None)
        self._log, self._epoch, self._unfinished = log, epoch, None
        self._known = CacheStanding(self._parts.names, self._projection)
        if epoch is not None:
            self._take_over(epoch)
        held = self._read()
        if held is None:
            return ZERO_CUT
        self._known = CacheStanding.of(self._parts.names, held, self._whole(held))
        self._transactions.position = self._known.applied.position
        if epoch is not None:
            if held.projection == self._projection:
                self._known.refuse_misplaced()
            self._refuse_shared([shape.schema for topic, shape in held.shapes.items() if topic in held.prefixes])
            self._unfinished = held.former
        return self._known.applied

    def _begin(self, *, writing: bool) -> None:
        jsonrows.warm_up()
        resp.warm_up()
        self._server.drop()
        self._server.refuse_unfit()
        self._choose(writing=writing)
        self._letters.reload()

    def finish(self) -> None:
        if self._unfinished is not None:
            former, self._unfinished = self._unfinished, None
            self._barriers().finish(self._projection, former)

    def applied(self) -> Cut:
        self._server.refuse_unfit(again=True)
        self._refuse_replaced()
        held = self._read()
        if held is None:
            return ZERO_CUT
        if self._epoch is not None and held.epoch > self._epoch:
            raise EpochPassed(self.name, held.epoch)
        if self._epoch is not None and held.epoch < self._epoch:
            raise lost(self.name)  # a copy from before it was taken over
        return self._whole(held)

    def _refuse_replaced(self) -> None:
        """Raises StoreError (retryable) where another generation is live by now. A writer puts the pointer right that leads there."""
        if self._generation is not None or self._options.pointer is None:
            return
        number = self._parts.names.number
        if self._epoch is not None:
            self._register.point(number)
        elif self._register.read().live != number:
            raise CacheGenerationReplaced(self.name)

    def held(self, topic: str) -> Position:
        return self._known.progress(topic)

    def commit(self, cut: Cut) -> None:
        known = self._known
        if (cut.position, cut.commit_lsn) <= (known.applied.position, known.applied.commit_lsn):
            return
        self._barriers()
        self._refuse_another_history()
        touched = {topic: known.chain(topic).at for topic in sorted(known.touched)}
        crashpoint("cache.commit.begun")
        self._transactions.change(
            [*ledger.LOOK, *(f"at:{topic}" for topic in touched)], lambda found: self._committed(cut, found, touched)
        )
        crashpoint("cache.commit.done")
        known.applied, self._transactions.position = cut, cut.position
        known.touched.clear()

    def _committed(self, cut: Cut, found: Answers, touched: Mapping[str, int | None]) -> Commands | None:
        writer, seen = self._transactions.writer, ledger.seen(found[: len(ledger.LOOK)])
        decided = answer(seen, writer, self._transactions.position, cut.position)
        self._transactions.refuse(decided, seen)
        if [None if at is None else int(at) for at in found[len(ledger.LOOK) :]] != list(touched.values()):
            raise lost(self.name)
        return [self._transactions.set(ledger.cut_fields(cut))] if decided is FenceAnswer.DONE else None

    def rebuild(self, log: LogReader, epoch: int, cut: Cut, topics: Sequence[TopicAsOf]) -> Outcome:
        return self.begin_rebuild(log, epoch, cut, topics)()

    def begin_rebuild(self, log: LogReader, epoch: int, cut: Cut, topics: Sequence[TopicAsOf]) -> Callable[[], Outcome]:
        """From here on the store says that it holds nothing. Returns what does the rest."""
        self._begin(writing=True)
        self._log, self._epoch = log, epoch
        known = self._known = CacheStanding(self._parts.names, self._projection)
        lineage, there = self._lineage(), [topic.shape.schema for topic in topics if not topic.dropped]
        self._transactions.writer, self._transactions.position = Writer(lineage.log, lineage.history, epoch), 0
        for schema in there:
            self._choices.check(schema, log)
        self._refuse_shared(there)
        self._note()
        rebuild = CacheRebuild(log, known, self._server, self._transactions, self._writing, self._refuse_shared)
        tables, ways = rebuild.begin(lineage, topics)

        def rest() -> Outcome:
            outcome = rebuild.carry_out(tables, ways, cut, topics)
            self._known = CacheStanding(self._parts.names, self._projection)
            return outcome

        return rest

    def _note(self) -> None:
        """Others are to know that there is this generation."""
        if self._generation is not None:
            self._register.note(self._generation)
        neighbours.register(self._server, self._store)

    def erase(self) -> None:
        if self._generation is None and self._share is None:
            for number in sorted({one.number for one in self._register.read().entries} - {self._parts.names.number}):
                with closing(self._parts_of(number)) as parts:
                    erasure.erase(parts.names.owner, self._server, parts.transactions)
            self._register.erase()
        self._erase()

    def lanes_before(self) -> int:
        """Into how many the store is divided, as this one's ledger says it; 0 where that says nothing."""
        return erasure.lanes_of(self._fields())

    def _erase(self) -> None:
        """This generation alone."""
        erasure.erase(self._store, self._server, self._transactions)
        self._letters.reload()
        self._known = CacheStanding(self._parts.names, self._projection)

    def _take_over(self, epoch: int) -> None:
        lineage = self._lineage()
        self._transactions.writer = Writer(lineage.log, lineage.history, epoch)
        self._clear_what_nobody_deletes()

        def decide(fields: ledger.Fields) -> Commands | None:
            if not fields:
                begun = ledger.beginning(lineage.log, lineage.history, epoch, self._projection)
                return [self._transactions.set(begun)]
            if not fields.get("log"):
                return None
            held = self._decoded(fields)
            if held.epoch > epoch:
                raise EpochPassed(self.name, held.epoch)
            if held.rebuilding:
                hint = "cdc resume STORE_REFUSES --rebuild builds it again, and goes to its end"
                raise StoreError(f"store {self.name} was being built again, and that has not ended", retryable=False, hint=hint)
            patterns, shapes = self._options.tables, held.shapes

            def selected(topic: str) -> bool:
                return matches(patterns, shapes[topic].schema if topic in shapes else topic)

            given, gone = ledger.taken_over(held, lineage.history, epoch, self._whole(held), selected)
            return [self._transactions.set(given), *([self._transactions.remove(*gone)] if gone else [])]

        while not self._transactions.change_whole(decide):
            self._erase()  # somebody began to, and was interrupted
        self._note()
        crashpoint("cache.taken_over")
        if self._generation is None and self._options.pointer is not None:
            self._register.point(self._parts.names.number)  # somebody may have held it since it was chosen

    def _clear_what_nobody_deletes(self) -> None:
        """Keys that stand there without a ledger may be of rows whose DELETEs are gone from the log. A ledger of nobody's names them, and is erased."""
        topics = [topic.schema for topic in self._selected() if topic.floor]
        if not topics or self._server.ask(lambda client: client.exists(ledger.key_of(self._store))):
            return
        self._refuse_shared(topics)
        left = ledger.of_nobody(self._projection, topics)
        self._transactions.change_whole(lambda fields: None if fields else [self._transactions.set(left)])

    def _refuse_another_history(self) -> None:
        """Positions that are written from here on have to be of the history that the ledger names."""
        lineage, writer = self._lineage(), self._transactions.writer
        if (lineage.log, lineage.history) != (writer.log, writer.history):
            raise AnotherHistory(self.name)

    def _read(self) -> CacheLedger | None:
        """None where there is no ledger, or one of a store that is being erased."""
        fields = self._fields()
        return self._decoded(fields) if fields.get("log") else None

    def _fields(self) -> ledger.Fields:
        return self._server.ask(lambda client: ledger.fields_of(client.hgetall(ledger.key_of(self._store))))

    def _decoded(self, fields: ledger.Fields) -> CacheLedger:
        """Raises StoreError for a damaged ledger, Stopped for one that this log does not vouch for."""
        held = ledgercheck.decoded(self.name, self._store, fields, self._projection)
        lineage = self._lineage() if self._log is None else self._log.lineage()
        ledgercheck.refuse_unvouched(self.name, held, lineage, self._selected())
        return held

    def _whole(self, held: CacheLedger) -> Cut:
        return held.whole({topic.name: topic.first for topic in self._selected()})

    def _selected(self) -> list[Topic]:
        return [] if self._log is None else selected(self._log, self._options.tables)

    def _lineage(self) -> Lineage:
        lineage = None if self._log is None else self._log.lineage()
        if lineage is None:
            raise StoreError(
                f"store {self.name} is not open, or the log does not exist yet", retryable=True, hint="start capture: cdc run"
            )
        return lineage

    # -- tables -------------------------------------------------------------------------------------------------------

    def prepare(self, schema: TopicSchema) -> None:
        self._choices.check(schema, self._log)
        self._make_room(schema)
        crashpoint("cache.prepared")

    def _make_room(self, schema: TopicSchema) -> None:
        barriers, new = self._barriers(), not self._known.holds(schema.topic)
        if new:
            self._refuse_shared([schema])
        barriers.prepare(schema)
        if new:
            self._refuse_shared([schema])  # another store may have looked before that, too; now one of the two sees the other

    def _refuse_shared(self, schemas: Sequence[TopicSchema]) -> None:
        """Raises StoreError where keys of these are another store's on this server."""
        log, claims = self._lineage().log, []
        for schema in schemas:
            with suppress(ConfigError):  # it has no keys, which is for others to say
                claims.append(neighbours.Claim(log, self._known.keys(schema, self._projection)))
        neighbours.refuse_shared(self._server, self._store, claims)

    def foresee(self, schemas: Sequence[TopicSchema]) -> None:
        self._choices.foresee(schemas)
        held = self._known.prefixes if self._known.projection == self._projection else {}
        foresight.refuse_misfit(self.name, self._options, CacheStanding(self._parts.names, self._projection), held, schemas)

    def projected(self) -> str | None:
        return foresight.changed(self._known, self._projection)

    def preview(self, rows: pa.RecordBatch) -> Iterator[Mapping[str, str]]:
        return foresight.previewed(self._options, CacheStanding(self._parts.names, self._projection), rows)

    def shape(self, topic: str) -> Shape | None:
        if self._epoch is not None:
            return self._known.shapes.get(topic)
        held = self._read()
        return None if held is None else held.shapes.get(topic)

    # -- writing ------------------------------------------------------------------------------------------------------

    def apply(self, changes: pa.RecordBatch) -> Outcome:
        if len(changes) == 0:
            return NOTHING
        barriers = self._barriers()
        self._refuse_another_history()
        schema = topic_schema(changes.schema)
        topic = schema.topic
        known = self._known.progress(topic)
        fresh = changes.slice(int(np.searchsorted(changes.column(POSITION), known, side="right")))
        stale = Outcome(0, stale=len(changes) - len(fresh))
        if len(fresh) == 0:
            return stale
        self._known.touched.add(topic)
        if changes.column(OP)[0].as_py() in ALONE:
            self._refuse_shared(barriers.named_anew(changes))
            return barriers.carry_out(changes)
        return self._written(fresh, schema) + stale

    def pass_over(self, changes: pa.RecordBatch) -> None:
        """Rows of a table of which none is this lane's. A table without progress would count as one that lacks its past."""
        topic, upto = topic_schema(changes.schema).topic, last_position(changes)
        chain = self._known.chain(topic)
        if chain.at is None and self._known.progress(topic) < upto:
            self._barriers()
            self._refuse_another_history()
            self._transactions.stream(chain, [self._transactions.part(topic, [], upto)])
            self._known.touched.add(topic)

    def _written(self, fresh: pa.RecordBatch, schema: TopicSchema) -> Outcome:
        known, chain = self._known, self._known.chain(schema.topic)
        if not known.holds(schema.topic) and schema.topic not in known.aside:
            self._make_room(schema)
        if not known.holds(schema.topic):
            return self._writing.set_aside(chain, fresh, known.aside[schema.topic])
        dead = self._writing.write(chain, fresh, known.keys(schema), self._form(schema))
        return Outcome(len(fresh) - len(dead), 0, tuple(letter.as_outcome() for letter in dead))

    # -- dead letters (``sinks.deadletters.LetterBox``) ---------------------------------------------------------------

    def letters(self) -> tuple[Letter, ...]:
        if self._epoch is not None:
            return self._letters.known.all
        if self._log is None:
            self._choose(writing=False)  # asked of a store that has not been opened
        return self._letters.read()

    def keep(self, letters: Collection[Letter]) -> None:
        self._barriers()
        self._letters.keep(letters)

    def forget(self, ids: Collection[str]) -> None:
        self._barriers()
        self._letters.forget(ids)

    def put(self, row: pa.RecordBatch, at: Position) -> str | None:  # noqa: ARG002
        self._barriers()
        self._refuse_another_history()
        schema, known = topic_schema(row.schema), self._known
        if not known.holds(schema.topic):
            return known.aside.get(schema.topic, "the store does not hold the table")
        return self._writing.put(known.chain(schema.topic), row, known.keys(schema), self._form(schema))

    def named(self, keys: pa.RecordBatch, schema: TopicSchema) -> pa.Array:
        return name_texts(self._known.keys(schema).texts_of_keys(keys))

    def places(self, rows: pa.RecordBatch) -> pa.Array:
        schema = topic_schema(rows.schema)
        return (
            name_texts(self._known.keys(schema).texts(rows)) if self._known.holds(schema.topic) else pa.nulls(len(rows), pa.utf8())
        )

    def _barriers(self) -> CacheBarriers:
        if self._epoch is None or self._log is None:
            raise StoreError(f"store {self.name} is open for reading only", retryable=False)
        self.finish()
        return CacheBarriers(self._log, self._known, self._transactions, self._writing, self._server)

    def _form(self, schema: TopicSchema) -> Form:
        return form_of(self._known.projection, schema)

    def make_visible(self) -> None: ...

    # -- reading ------------------------------------------------------------------------------------------------------

    def as_held(self, rows: pa.RecordBatch, schema: TopicSchema) -> pa.RecordBatch:
        return self._form(schema).meant(rows, schema)

    def scan(self, schema: TopicSchema) -> Iterator[pa.RecordBatch]:
        if (keys := self._known.keys_there(schema)) is None:
            return
        form = self._form(schema)
        for page in rowscan.pages(self._server, self._store, keys, form):
            self._refuse_lost(page.log)
            yield rowreader.own_rows(page.names, page.found.rows, page.there & ~page.found.left, keys, form)
            for start in range(0, len(left := page.names.filter(pa.array(page.there & page.found.left))), rowreader.READ_KEYS):
                yield self._rows(left.slice(start, rowreader.READ_KEYS).to_pylist(), schema)

    def fetch(self, schema: TopicSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
        if not plain_key(schema):  # what such a key means is not what its name is made of
            return rows_with_keys(self.scan(schema), keys, schema)
        there = self._known.keys_there(schema)
        names = [] if there is None else there.texts_of_keys(keys).to_array().to_pylist()
        pieces = [self._rows(names[at : at + rowreader.READ_KEYS], schema) for at in range(0, len(names), rowreader.READ_KEYS)]
        return rowreader.together(pieces, schema)

    def _rows(self, names: Sequence[bytes], schema: TopicSchema) -> pa.RecordBatch:
        """Rows and the ledger at one moment, so that nothing is taken for missing that was lost since the store was opened."""
        seen, found = rowreader.read(self._server, self._store, schema.topic, names, self._form(schema))
        self._refuse_lost(seen[0])
        return rowreader.rows_of(names, found, self._known.keys(schema), self._form(schema))[1]

    def expired(self, keys: pa.RecordBatch, schema: TopicSchema) -> npt.NDArray[np.bool_]:
        """See ``sinks.contract.Expiring``."""
        ttl_ms = self._known.projection.of(schema).ttl_ms
        if not ttl_ms or self._log is None or not plain_key(schema):
            return np.zeros(keys.num_rows, np.bool_)
        return expiry.expired(self._log, schema.topic, self._known, self.named(keys, schema), ttl_ms)

    def _refuse_lost(self, log: bytes | None) -> None:
        """``log``: the ledger's, at the moment at which rows were read."""
        if self._known.shapes and (log is None or log.decode() != self._lineage().log):
            raise lost(self.name)

    def close(self) -> None:
        self._parts.close()
        self._server.close()


def traits(options: Options) -> Traits:  # noqa: ARG001
    return CacheSink.traits
