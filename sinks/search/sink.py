"""The search index: one table is one index behind an alias of the table's name, one row one document.

OpenSearch has no transactions over documents, and loses, restores and replaces each index by itself. Three things make up for it:

- **Rows are versioned** (``bulk``). Each document is written with its change's position as its version, so an older change never replaces a newer
  one, in whatever order and however often they arrive. A delete is a document, too, until it is safe to purge it (``fence``).
- **Each index says what it holds** (``standing``), inside itself: once before the first rows of a stretch of writing, and again at its end. Both
  are refused where the index is not the one that this process has seen.
- **The ledger is a claim** (``ledger``). What is applied is the ledger's cut as far as the indices bear it out, never more. One request at the
  commit ends the stretches and writes the ledger. It need not be taken as a whole: whatever part of it is lost only makes the store hold less.

The sink is closed, open for reading (``open`` without an epoch) or open for writing. Whoever opens it for writing puts its epoch into the ledger, and
a writer with a lower one commits nothing until it has taken a higher one (EpochPassed). A reader changes nothing.

After any StoreError the follower opens the store again. ``open`` forgets everything that was known and looks at all indices; if one of them
was deleted or is an older copy, it goes back to the position that this one holds, and what the others have already is passed over there. A commit
whose answer was lost is looked up before the next one (``_settle``): each write carries a word that is used only once. What is written late
by a process that has slept loses to the versions, and to the fence once its rows are purged.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from cdc.crashpoint import crashpoint
from cdc.errors import ConfigError, StoreError
from cdc.log.contract import LogReader
from cdc.model.batch import ALONE, OP, POSITION, topic_schema
from cdc.model.lineage import believed, of_another_log
from cdc.model.position import ZERO_CUT, Cut, Position
from cdc.model.topic import TopicSchema
from sinks.contract import NOTHING, EpochPassed, Outcome, Shape, TopicAsOf, Traits
from sinks.deadletters import Letter
from sinks.generations import HeldWatch
from sinks.render import jsonrows
from sinks.render.choices import Choices
from sinks.retry import Fate
from sinks.search import bulk, conditional, fields, mapping, wishes
from sinks.search.aside import Aside
from sinks.search.conditional import Conflict
from sinks.search.indices import APART
from sinks.search.ledger import Entry, SearchLedger
from sinks.search.names import places, shared
from sinks.search.options import Options as Options
from sinks.search.parts import Parts, parts_of, remove
from sinks.search.placement import INDEX, ROUTING, placement_of, refuse_shared
from sinks.search.rebuild import SearchRebuild
from sinks.search.register import GenerationRegister, Registered
from sinks.search.rows import Rows
from sinks.search.shown import FIRST, GenerationNames, Shown
from sinks.search.standing import order
from sinks.search.tables import Tables


class SearchSink:
    """See ``sinks.contract.Sink``. Its units are the ledger and each table's index."""

    traits = Traits(parallel=True, refreshes=True, gathers=True)

    def __init__(
        self, name: str, options: Options, clock: Callable[[], float] = time.monotonic, *, generation: int | None = None
    ) -> None:
        """``generation``: the only one that it works on, and never where readers see it; by default the one that is live, whichever that is each time
        that it is opened."""
        self.name = name
        self._options = options
        self._clock = clock
        self._generation = generation
        self._choices = Choices(name, options.as_rules, fields.style_of)
        self._parts = self._parts_of(Shown(GenerationNames(name, generation or FIRST), live=generation is None))
        self._epoch: int | None = None
        self._held = HeldWatch(clock)

    def _parts_of(self, shown: Shown) -> Parts:
        return parts_of(shown, self._options, self._choices, self._index_settings, self._clock)

    @property
    def _register(self) -> GenerationRegister:
        return GenerationRegister(self._parts.cluster, self.name, self._options.index_pattern)

    @property
    def _ledger(self) -> SearchLedger:
        return self._parts.ledger

    @property
    def _tables(self) -> Tables:
        return self._parts.tables

    @property
    def _rows(self) -> Rows:
        return self._parts.rows

    @property
    def _aside(self) -> Aside:
        return Aside(self._tables, self._rows)

    def _choose(self, *, writing: bool) -> bool:
        """Finds the generation to work on; returns whether its ledger says that it is that one."""
        if self._generation is not None:
            return True
        register = self._register
        found = register.all()
        held = next((one for one in found if one.leaving is not None), None)
        if writing and held is not None:
            self._await_release(register, held)
        names = register.live(found)
        if names != self._parts.shown.names:
            self._parts.close()
            self._parts = self._parts_of(Shown(names))
        return any(one.live for one in found)

    def _await_release(self, register: GenerationRegister, held: Registered) -> None:
        """Raises StoreError (retryable) while another process is about to put another generation in this one's place, and seems to live."""
        if not self._held.forgotten(held.leaving or ""):
            raise StoreError(f"store {self.name}: another generation is about to take the live one's place", retryable=True)
        register.let_go(held)

    def open(self, log: LogReader, epoch: int | None = None) -> Cut:
        jsonrows.warm_up()
        lineage = log.lineage()
        self._epoch = None
        if lineage is None:
            self._tables.followed.end()
            if epoch is not None:
                raise StoreError(f"store {self.name}: there is no log yet", retryable=True, hint="start capture")
            if (entry := self._ledger.read()) is not None:
                raise of_another_log(entry.mark, f"store {self.name}")
            return ZERO_CUT
        says_so = self._choose(writing=epoch is not None)
        self._ledger.claiming = None
        self._parts.purging.forget()
        tables = self._tables
        tables.followed.begin(log, lineage, writing=epoch is not None)
        tables.forget()
        self._rows.letters.reload()
        entry = self._ledger.read()
        if entry is not None:
            believed(entry.mark, lineage, f"store {self.name}")
            if epoch is not None and entry.epoch > epoch:
                raise EpochPassed(self.name, entry.epoch)
        if epoch is not None and not says_so:
            self._parts.looks.look(entry, writing=False)  # another log's store is left alone
            self._ledger.create(lineage.log)  # before anything is changed of what readers see
        applied = tables.held.applied = self._parts.looks.look(entry, writing=epoch is not None)
        if epoch is not None:
            self._take_over(entry, Entry(lineage.mark(applied), epoch))
        self._epoch = epoch
        return applied

    def _take_over(self, entry: Entry | None, now: Entry) -> None:
        """The ledger names this writer, and claims no more than is there."""
        self._ledger.create(now.mark.log)
        if entry != now:
            crashpoint("search.opening.before_write")
            conditional.send(self._parts.cluster, "writing the ledger", [self._ledger.change(now)])
            crashpoint("search.opening.written")

    def finish(self) -> None: ...

    def held(self, topic: str) -> Position:
        return self._tables.held.of(topic)

    def rebuild(self, log: LogReader, epoch: int, cut: Cut, topics: Sequence[TopicAsOf]) -> Outcome:
        jsonrows.warm_up()
        self._epoch, lineage = None, log.lineage()
        if lineage is None:
            raise StoreError(f"store {self.name}: there is no log yet", retryable=True, hint="start capture")
        self._choose(writing=True)
        self._ledger.claiming = None
        self._parts.purging.forget()
        tables = self._tables
        tables.followed.begin(log, lineage, writing=True)
        tables.forget()
        for topic in topics:
            if not topic.dropped:
                self._choices.check(topic.shape.schema, log)
        rebuild = SearchRebuild(self._parts.cluster, self._ledger, tables, self._rows)
        return rebuild.carry_out(lineage, epoch, cut, topics)

    def erase(self) -> None:
        chosen = self._generation
        numbers = {FIRST, *(one.names.number for one in self._register.all())} if chosen is None else {chosen}
        for number in sorted(numbers):
            parts = self._parts_of(Shown(GenerationNames(self.name, number), live=False))
            remove(parts)
            parts.close()
        self._tables.known.clear()
        self._rows.letters.reload()

    def prepare(self, schema: TopicSchema) -> None:
        self._writes()
        self._choices.check(schema, self._tables.followed.log)
        self._check_wishes(schema)
        self._tables.prepare(schema)

    def foresee(self, schemas: Sequence[TopicSchema]) -> None:
        """Raises ConfigError when two of these tables, which are to come, would have the same index, or when the configuration
        says something of a table or column that does not exist."""
        self._choices.foresee(schemas)
        for schema in schemas:
            self._check_wishes(schema)
        self._index_settings()
        refuse_shared(self.name, schemas)
        if (both := shared(self._options.index, schemas)) is not None:
            names = " and ".join(schema.topic for schema in both)
            raise ConfigError(
                f"store {self.name}: index = {self._options.index!r} gives {names} the same index", hint=f"set {APART} in cdc.toml"
            )

    def projected(self) -> str | None:
        return None

    def preview(self, rows: pa.RecordBatch) -> Iterator[Mapping[str, str]]:
        schema = topic_schema(rows.schema)
        self._check_wishes(schema)
        style, chosen = self._choices.style(schema), self._options.further_settings
        place = {"index": places(self._options.index, schema).alias}
        said = {"settings": chosen, "mapping": mapping.wished(schema, style)}
        place |= {name: json.dumps(one, ensure_ascii=False) for name, one in said.items() if one}
        placement = placement_of(schema)
        routings, indices = placement.routings(rows), placement.indices(rows)
        routed = [{}] * len(rows) if routings is None else [{ROUTING: one} for one in routings.to_pylist()]
        into = (
            [{}] * len(rows) if indices is None else [{INDEX: one or f"none ({placement.nameless})"} for one in indices.to_pylist()]
        )
        shown = zip(placement.ids(rows).to_pylist(), into, routed, fields.sources(rows, schema, style), strict=True)
        for identity, index, routing, document in shown:
            yield {**place, **index, "id": identity, **routing, "document": document}

    def _check_wishes(self, schema: TopicSchema) -> None:
        wishes.check(self.name, schema, fields.own_kinds(schema, self._choices.style(schema)))
        try:
            placement_of(schema)
        except ConfigError as error:
            raise ConfigError(f'stores.{self.name}.tables."{schema.topic}".{error}', hint=error.hint) from None

    def shape(self, topic: str) -> Shape | None:
        return self._tables.shape(topic)

    def apply(self, changes: pa.RecordBatch) -> Outcome:
        self._writes()
        schema = topic_schema(changes.schema)
        if len(changes) == 0:
            return NOTHING
        self._tables.failed.add(schema.topic)  # unless it gets to the end
        outcome = self._taken(schema, changes)
        self._tables.failed.discard(schema.topic)
        return outcome

    def _taken(self, schema: TopicSchema, changes: pa.RecordBatch) -> Outcome:
        if changes.column(OP)[0].as_py() in ALONE:
            self._check_wishes(schema)
            return self._parts.barriers.carry_out(changes)
        place = self._tables.place(schema)
        positions = changes.column(POSITION).to_numpy()
        first = int(np.searchsorted(positions, max(self._tables.held.of(schema.topic), place.floor), side="right"))
        fresh, positions = changes.slice(first), positions[first:]
        if len(fresh) == 0:
            return Outcome(0, stale=first)
        verdicts = self._rows.write(schema, place, bulk.Actions(fresh, schema, self._choices.style(schema)), positions)
        letters = self._aside.settle(schema, fresh, verdicts)
        written = verdicts.count(Fate.WRITTEN)
        return Outcome(written, len(changes) - written - len(letters), tuple(one.as_outcome() for one in letters))

    def commit(self, cut: Cut) -> None:
        epoch, tables = self._writes(), self._tables
        self._settle()
        if self._options.workers_from_rows:
            tables.join(cut)
            self._aside.compare()
        applied = tables.held.applied
        if order(cut) < order(applied) or (cut == applied and not tables.statements.begun):
            return
        self._record(Entry(tables.followed.lineage().mark(cut), epoch))
        tables.held.applied = self._parts.looks.holds = cut
        self._parts.purging.after_commit()

    def _record(self, entry: Entry) -> None:
        """One request: what each index with changes says of itself, and the ledger. Whichever of them are taken, what counts is what all of
        them say."""
        cut, tables, statements = entry.mark.cut, self._tables, self._tables.statements
        passed_over = tables.passed_over(cut, by_workers=self._options.workers_from_rows > 0)
        ended = [statements.end(place, cut) for place in (*statements.begun, *passed_over)]
        ledger = self._ledger.change(entry)
        crashpoint("search.ledger.before_write")
        self._ledger.claiming = cut
        try:
            statements.send(ended, ledger)
        except Conflict:
            there = None if ledger.taken else self._ledger.peek()
            if there is None or there.mark.log != entry.mark.log or order(there.mark.cut) < order(cut):
                raise
            tables.known.clear()  # somebody else has come as far: this cut adds nothing
        self._ledger.claiming = None
        crashpoint("search.ledger.written")

    def _settle(self) -> None:
        """Finds out what became of a commit, and of what indices were to say, where the answer was lost."""
        tables, claimed = self._tables, self._ledger.claiming
        if claimed is not None:
            if self._ledger.settle():
                tables.held.applied = max(tables.held.applied, claimed, key=order)
            self._ledger.claiming = None
        for place in list(tables.known.values()):
            tables.statements.settle(place)

    # -- dead letters (``sinks.deadletters.LetterBox``) ---------------------------------------------------------------

    def letters(self) -> tuple[Letter, ...]:
        if self._epoch is not None:
            return self._rows.letters.known.all
        if not self._tables.followed.begun:
            self._choose(writing=False)  # asked of a store that has not been opened
        return self._rows.letters.read()

    def keep(self, letters: Collection[Letter]) -> None:
        self._writes()
        self._rows.letters.keep(letters)

    def forget(self, ids: Collection[str]) -> None:
        self._writes()
        self._rows.letters.forget(ids)

    def put(self, row: pa.RecordBatch, at: Position) -> str | None:
        self._writes()
        refused = self._aside.put(row, at, self._choices.style(topic_schema(row.schema)))
        self.commit(self._tables.held.applied)  # ends the stretch that the row was written in
        return refused

    def named(self, keys: pa.RecordBatch, schema: TopicSchema) -> pa.Array:
        return placement_of(schema).ids_of_keys(keys)

    def places(self, rows: pa.RecordBatch) -> pa.Array:
        return placement_of(topic_schema(rows.schema)).ids(rows)

    def applied(self) -> Cut:
        return self._parts.looks.applied(writing=self._epoch is not None) if self._tables.followed.begun else ZERO_CUT

    def make_visible(self) -> None:
        """Refreshes every index of ours, also those of tables that this process has not written, and nobody else's."""
        indices = self._tables.indices
        indices.refresh(one.index for one in indices.all(standings=False) if indices.mine(one))

    def as_held(self, rows: pa.RecordBatch, schema: TopicSchema) -> pa.RecordBatch:
        return self._parts.documents.as_held(rows, schema)

    def scan(self, schema: TopicSchema) -> Iterator[pa.RecordBatch]:
        return self._parts.documents.scan(schema)

    def fetch(self, schema: TopicSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
        return self._parts.documents.fetch(schema, keys)

    def close(self) -> None:
        self._parts.close()

    def _writes(self) -> int:
        if self._epoch is None:
            raise StoreError(f"store {self.name} is not open for writing", retryable=True)
        return self._epoch

    def _index_settings(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "number_of_shards": self._options.shards,
            "refresh_interval": self._options.refresh_interval,
        }
        if self._options.replicas is not None:
            found["number_of_replicas"] = self._options.replicas
        return {**found, **self._options.further_settings}


def traits(options: Options) -> Traits:  # noqa: ARG001
    return SearchSink.traits


def make(name: str, options: Options) -> SearchSink:
    return SearchSink(name, options)
