"""The cache: rows as keys of a Redis server, written in one chain per table that the server's ledger guards.

What a reader finds under a key is the row and nothing else (``sinks.cache.values``). How the guard works: ``sinks.cache.fence`` decides,
``sinks.cache.transactions`` carries out; docs/decisions/cache-fence.md tells why.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.crashpoint import crashpoint
from cdc.errors import ConfigError, StoreError
from cdc.log.contract import LogReader, Topic, selected
from cdc.model.batch import ALONE, OP, POSITION, topic_schema
from cdc.model.lineage import Lineage, Mark, believed, of_another_log
from cdc.model.position import START, ZERO_CUT, Cut, Position
from cdc.model.selection import matches, named
from cdc.model.topic import TopicSchema
from sinks.cache import erasure, expiry, ledger, neighbours, resp, rowreader, rowscan
from sinks.cache.barriers import CacheBarriers
from sinks.cache.fence import FenceAnswer, Writer, answer
from sinks.cache.ledger import CacheLedger, Projection
from sinks.cache.letters import CacheLetters, name_texts
from sinks.cache.options import Options
from sinks.cache.rebuild import CacheRebuild
from sinks.cache.rowwriter import Rowwriter
from sinks.cache.server import Server
from sinks.cache.standing import CacheStanding, could_be_the_same
from sinks.cache.transactions import Answers, Commands, RedisTransactions, lost
from sinks.cache.values import Form, form_of, shown
from sinks.contract import NOTHING, EpochPassed, Outcome, Shape, TopicAsOf, Traits
from sinks.deadletters import Letter
from sinks.followedlog import refuse_missed
from sinks.render import jsonrows
from sinks.render.choices import Choices
from sinks.render.meaning import plain_key
from sinks.render.rowtext import rows_with_keys


class CacheSink:
    """See ``sinks.contract.Sink``."""

    traits = Traits(sequenced=True)

    def __init__(self, name: str, options: Options) -> None:
        self.name = name
        self._options = options
        self._projection = Projection(options.key, options.value, shown(options.as_rules), options.table_rules)
        self._choices = Choices(name, options.as_rules)
        self._server = Server(name, options)
        self._transactions = RedisTransactions(name, self._server)
        self._letters = CacheLetters(name, self._server, self._transactions)
        self._writing = Rowwriter(self._letters, self._transactions, options.channel)
        self._log: LogReader | None = None
        self._known = CacheStanding(name, self._projection)
        self._epoch: int | None = None
        self._unfinished: tuple[Projection, ...] | None = None
        """Not yet ``finish``ed: the projections that keys are being taken out of. None: it is."""

    # -- which log, and how far ---------------------------------------------------------------------------------------

    def open(self, log: LogReader, epoch: int | None = None) -> Cut:
        jsonrows.warm_up()
        resp.warm_up()
        self._server.drop()
        self._letters.reload()
        self._server.refuse_unfit()
        self._log, self._epoch, self._unfinished = log, epoch, None
        self._known = CacheStanding(self.name, self._projection)
        if epoch is not None:
            self._take_over(epoch)
        held = self._read()
        if held is None:
            return ZERO_CUT
        self._known = CacheStanding.of(self.name, held, self._whole(held))
        self._transactions.position = self._known.applied.position
        if epoch is not None:
            self._refuse_shared([shape.schema for topic, shape in held.shapes.items() if topic in held.prefixes])
            self._unfinished = held.former
        return self._known.applied

    def finish(self) -> None:
        if self._unfinished is not None:
            former, self._unfinished = self._unfinished, None
            self._barriers().finish(self._projection, former)

    def applied(self) -> Cut:
        self._server.refuse_unfit(again=True)
        held = self._read()
        if held is None:
            return ZERO_CUT
        if self._epoch is not None and held.epoch > self._epoch:
            raise EpochPassed(self.name, held.epoch)
        if self._epoch is not None and held.epoch < self._epoch:
            raise lost(self.name)  # a copy from before it was taken over
        return self._whole(held)

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
        jsonrows.warm_up()
        resp.warm_up()
        self._server.drop()
        self._letters.reload()
        self._server.refuse_unfit()
        self._log, self._epoch = log, epoch
        self._known = known = CacheStanding(self.name, self._projection)
        lineage, there = self._lineage(), [topic.shape.schema for topic in topics if not topic.dropped]
        self._transactions.writer, self._transactions.position = Writer(lineage.log, lineage.history, epoch), 0
        for schema in there:
            self._choices.check(schema, log)
        self._refuse_shared(there)
        neighbours.register(self._server, self.name)
        refuse_shared = partial(self._refuse_shared, there)
        rebuild = CacheRebuild(log, known, self._server, self._transactions, self._writing, refuse_shared)
        outcome = rebuild.carry_out(lineage, cut, topics)
        self._known = CacheStanding(self.name, self._projection)
        return outcome

    def erase(self) -> None:
        erasure.erase(self.name, self._server, self._transactions)
        self._letters.reload()
        self._known = CacheStanding(self.name, self._projection)

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
            self.erase()  # somebody began to, and was interrupted
        neighbours.register(self._server, self.name)
        crashpoint("cache.taken_over")

    def _clear_what_nobody_deletes(self) -> None:
        """Keys that stand there without a ledger may be of rows whose DELETEs are gone from the log. A ledger of nobody's names them, and is erased."""
        topics = [topic.schema for topic in self._selected() if topic.floor]
        if not topics or self._server.ask(lambda client: client.exists(ledger.key_of(self.name))):
            return
        self._refuse_shared(topics)
        shapes = {f"shape:{schema.topic}": ledger.encode_shape(Shape(schema, START)) for schema in topics}
        left = {"log": "", "projection": self._projection.encode(), **shapes}
        self._transactions.change_whole(lambda fields: None if fields else [self._transactions.set(left)])

    def _refuse_another_history(self) -> None:
        """Positions that are written from here on have to be of the history that the ledger names."""
        lineage, writer = self._lineage(), self._transactions.writer
        if (lineage.log, lineage.history) != (writer.log, writer.history):
            raise StoreError(f"store {self.name}: the log has begun another history: it is opened again", retryable=True)

    def _read(self) -> CacheLedger | None:
        """None where there is no ledger, or one of a store that is being erased."""
        fields = self._server.ask(lambda client: _texts(client.hgetall(ledger.key_of(self.name))))
        return self._decoded(fields) if fields.get("log") else None

    def _decoded(self, fields: ledger.Fields) -> CacheLedger:
        """Raises StoreError for a damaged ledger, Stopped for one that this log does not vouch for."""
        try:
            held = CacheLedger.decode(fields)
        except (ValueError, KeyError, TypeError):
            hint = "see who writes to it; cdc resume STORE_REFUSES --rebuild builds the store again"
            raise StoreError(f"store {self.name}: {ledger.key_of(self.name)} is damaged", retryable=False, hint=hint) from None
        mark, where = Mark(held.log, held.history, held.furthest), f"store {self.name}"
        if self._log is not None and self._log.lineage() is None:
            raise of_another_log(mark, where)
        lineage = self._lineage()
        believed(mark, lineage, where)
        for topic in self._selected():
            if topic.floor and (topic.name in held.at or topic.name in held.shapes):
                at = max(held.at[topic.name], held.cut.position) if topic.name in held.at else 0
                refuse_missed(topic, at, [held.history], lineage, where)
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
        neighbours.refuse_shared(self._server, self.name, claims)

    def foresee(self, schemas: Sequence[TopicSchema]) -> None:
        """Raises ConfigError when the keys of these tables, which are to come, cannot be named, or cannot be told apart."""
        self._choices.foresee(schemas)
        for pattern in named(list(self._options.held.options)):
            if not any(matches((pattern,), schema) for schema in schemas):
                hint = f"tables: {', '.join(schema.topic for schema in schemas) or 'none'}"
                raise ConfigError(f'stores.{self.name}.tables."{pattern}": no such table is captured', hint=hint)
        now = CacheStanding(self.name, self._projection)
        held = self._known.prefixes if self._known.projection == self._projection else {}
        found = [now.check(schema, held) for schema in schemas]
        for keys, after in pairwise(sorted(found, key=lambda keys: keys.prefix)):
            if after.prefix.startswith(keys.prefix):
                raise could_be_the_same(self.name, keys.schema.topic, after.schema.topic)

    def projected(self) -> str | None:
        """The change that the next writer makes to every row because the configuration is now different; None: nothing. Raises ConfigError where it cannot."""
        held, wanted = self._known.projection, self._projection
        if held == wanted:
            return None
        later = CacheStanding(self.name, wanted)
        for topic in self._known.prefixes:
            later.prefixes[topic] = later.check(self._known.shapes[topic].schema).prefix
        if held.key != wanted.key:
            return f'every key is written again under key = "{wanted.key}", and deleted under "{held.key}"'
        if held.value != wanted.value and wanted.value == ledger.INVALIDATE:
            return "every key is deleted, and what stands there is the application's from then on"
        if held.value != wanted.value:
            return f"every value is written again as {wanted.value}, until now {held.value}"
        if held.tables != wanted.tables:
            return "every row whose `key`, `value` or `ttl` is said otherwise is written again"
        return "every value is written again, as its columns are shown otherwise"

    def preview(self, rows: pa.RecordBatch) -> Iterator[Mapping[str, str]]:
        schema = topic_schema(rows.schema)
        names = CacheStanding(self.name, self._projection).check(schema).texts(rows).to_array().to_pylist()
        form, channel = form_of(self._projection, schema), self._options.channel(schema.topic).decode()
        expire_at = form.write(rows, schema).expire_at
        for at, (key, value) in enumerate(zip(names, form.shown(rows, schema), strict=True)):
            expires = {} if expire_at is None else {"expires": _moment(int(expire_at[at]))}
            yield {
                "command": form.command,
                "key": key.decode(),
                **({"value": value} if form.keeps else {}),
                **expires,
                **({"publish": channel} if channel else {}),
            }

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
            return barriers.carry_out(changes)
        return self._written(fresh, schema) + stale

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
        return self._letters.read() if self._epoch is None else self._letters.known.all

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
        try:
            keys = self._known.keys(schema)
        except ConfigError:
            return  # its rows are set aside
        form = self._form(schema)
        for page in rowscan.pages(self._server, self.name, keys, form):
            for log in page.log:
                self._refuse_lost(log)
            yield rowreader.own_rows(page.names, page.found.rows, page.there & ~page.found.left, keys, form)
            for start in range(0, len(left := page.names.filter(pa.array(page.there & page.found.left))), rowreader.READ_KEYS):
                yield self._rows(left.slice(start, rowreader.READ_KEYS).to_pylist(), schema)

    def fetch(self, schema: TopicSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
        if not plain_key(schema):  # what such a key means is not what its name is made of
            return rows_with_keys(self.scan(schema), keys, schema)
        try:
            names = self._known.keys(schema).texts_of_keys(keys).to_array().to_pylist()
        except ConfigError:
            names = []
        pieces = [self._rows(names[at : at + rowreader.READ_KEYS], schema) for at in range(0, len(names), rowreader.READ_KEYS)]
        return rowreader.together(pieces, schema)

    def _rows(self, names: Sequence[bytes], schema: TopicSchema) -> pa.RecordBatch:
        """Rows and the ledger at one moment, so that nothing is taken for missing that was lost since the store was opened."""
        seen, found = rowreader.read(self._server, self.name, schema.topic, names, self._form(schema))
        self._refuse_lost(seen[0])
        return rowreader.rows_of(names, found, self._known.keys(schema), self._form(schema))[1]

    def expired(self, keys: pa.RecordBatch, schema: TopicSchema) -> npt.NDArray[np.bool_]:
        """See ``sinks.contract.Expiring``."""
        ttl_ms, log = self._known.projection.of(schema).ttl_ms, self._log
        topic = None if log is None else next((one for one in log.topics() if one.name == schema.topic), None)
        if not ttl_ms or log is None or topic is None or not plain_key(schema):
            return np.zeros(keys.num_rows, np.bool_)
        return expiry.expired(log, topic, self._known, self.named(keys, schema), ttl_ms)

    def _refuse_lost(self, log: bytes | None) -> None:
        """``log``: the ledger's, at the moment at which rows were read."""
        if self._known.shapes and (log is None or log.decode() != self._lineage().log):
            raise lost(self.name)

    def close(self) -> None:
        self._writing.close()
        self._server.close()


def _moment(ms: int) -> str:
    return dt.datetime.fromtimestamp(ms / 1000, dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _texts(found: Mapping[Any, Any]) -> dict[str, str]:
    return {name.decode(errors="replace"): text.decode(errors="replace") for name, text in found.items()}


def traits(options: Options) -> Traits:  # noqa: ARG001
    return CacheSink.traits


def make(name: str, options: Options) -> CacheSink:
    return CacheSink(name, options)
