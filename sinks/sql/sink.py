"""A SQL store: one table per topic in a database (Postgres, DuckDB), written so that all tables of a cut become visible together.

What is applied waits in memory (``stagedchanges``) until ``commit``, which is one transaction of the target database: it locks the store's mark, checks that
the mark and every table are as this writer left them and that no later writer has been there, writes the rows of all topics, moves the marks, commits.
So nothing is applied twice, nothing is held locked between commits, and whoever stands still in a commit loses its session and with it all that it had
begun. A commit whose answer was lost is decided by the mark: it is there, or nothing of it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from cdc.crashpoint import crashpoint
from cdc.errors import ConfigError, StoreError
from cdc.log.contract import LogReader
from cdc.model.batch import OP, POSITION, Op, first_position, topic_schema
from cdc.model.lineage import Mark
from cdc.model.position import ZERO_CUT, Cut, Position
from cdc.model.topic import TopicSchema
from sinks.contract import NOTHING, DeadLetter, EpochPassed, Outcome, Shape, TopicAsOf, Traits
from sinks.deadletters import Letter, Letters
from sinks.render.rowtext import SEPARATOR, join_key, keys, row_text
from sinks.rowversions import history_topic, refuse
from sinks.sql import ledger, letters, ownership
from sinks.sql.choice import dialect_of
from sinks.sql.dialect import Dialect, SqlSession
from sinks.sql.extent import SqlExtent
from sinks.sql.history import HistoryWriter, history_place
from sinks.sql.historyupkeep import Forgotten
from sinks.sql.ledger import SqlLedger, TableEntry
from sinks.sql.letters import LettersDraft, LettersStop
from sinks.sql.names import TargetPlace, place_of
from sinks.sql.options import Options
from sinks.sql.rebuild import SqlRebuild
from sinks.sql.refusals import RowsRefused
from sinks.sql.rowreader import SqlRowReader
from sinks.sql.rowwriter import SqlRowWriter, settle
from sinks.stagedchanges import StagedChanges


class SqlSink:
    """See ``sinks.contract.Sink``."""

    traits = Traits(sequenced=True, staged=True, evolves=True)

    def __init__(self, name: str, options: Options) -> None:
        self.name = name
        self.options = options
        self._database = self._dialect.database(name, options)
        self._reader = SqlRowReader(name, options)
        self._staging = StagedChanges(options.staged_bytes)
        self._applied = ZERO_CUT
        self._epoch: int | None = None
        self._extent: SqlExtent | None = None
        self._known = SqlLedger()
        """As this sink found it, or left it: of its topics."""
        self._letters: Letters | None = None
        """An opened writer's."""
        self._tried: _Tried | None = None
        """What a commit would have left whose answer did not come."""
        self._refused: tuple[DeadLetter, ...] = ()

    @property
    def _dialect(self) -> Dialect:
        return dialect_of(self.options)

    # --- which log, and how far ------------------------------------------------------------------------------------------------------

    def open(self, log: LogReader, epoch: int | None = None) -> Cut:
        self.close()
        extent = SqlExtent(self.name, self.options, log, writing=epoch is not None)
        with self._database.transaction(reading=epoch is None) as session:
            if epoch is not None:
                ledger.make(session)
            held = self._read(session, lock=epoch is not None)
            applied = extent.whole(held)
            known = None
            if epoch is not None:
                if held.mark is None:  # they have gone with it
                    letters.remove_all(session, self.name)
                known = Letters(self.name, letters.read(session, self.name))
                if held.epoch > epoch:
                    raise EpochPassed(self.name, held.epoch)
                held = replace(held, epoch=epoch, mark=held.mark or extent.lineage().mark(ZERO_CUT))
                assert held.mark is not None
                ledger.sign(session, self.name, epoch, held.mark)
        self._extent, self._epoch, self._applied, self._known, self._letters = extent, epoch, applied, held, known
        return applied

    def finish(self) -> None: ...

    def applied(self) -> Cut:
        extent = self._opened()
        with self._database.transaction(reading=True) as session:
            return extent.whole(self._read(session))

    def held(self, topic: str) -> Position:
        entry = self._known.entries.get(topic)
        return (
            max(self._applied.position, entry.mark.cut.position) if entry is not None and entry.counts else self._applied.position
        )

    def rebuild(self, log: LogReader, epoch: int, cut: Cut, topics: Sequence[TopicAsOf]) -> Outcome:
        self.close()
        lineage = log.lineage()
        if lineage is None:
            raise StoreError(f"there is no log yet that store {self.name} could be built from", retryable=True)
        return SqlRebuild(self.name, self.options, self._database, log, epoch).carry_out(lineage, cut, topics)

    def erase(self) -> None:
        self.close()
        with self._database.transaction() as session:
            ownership.erase(session, self.name)

    # --- writing ---------------------------------------------------------------------------------------------------------------------

    def prepare(self, schema: TopicSchema) -> None:
        extent, epoch = self._opened(), self._writer()
        place = place_of(schema, self.options.namespace)
        self._refuse_columns(schema)
        entry = self._known.entries.get(schema.topic)
        if entry is not None and entry.has_table:
            return
        with self._database.transaction() as session:
            self._locked(session, epoch)
            fresh = ownership.made(session, self.name, schema, place, extent.lineage())
            draft = self._draft()
            draft.forget([one.id for one in draft.known.of(schema.topic)])  # its changes come again
            draft.write(session)
            beside = []
            if said := self.options.history_of(schema.topic):
                beside.append(ownership.history_made(session, self.name, schema, history_place(place, said), extent.lineage()))
            if entry is not None and entry.counts:  # there was nothing to hold up to here, which a table without rows says as well
                fresh = replace(fresh, mark=entry.mark)
                ledger.put(session, self.name, fresh)
        self._known, self._letters = self._known.with_entries(fresh, *beside), draft.known

    def foresee(self, schemas: Sequence[TopicSchema]) -> None:
        taken: dict[str, str] = {}
        for schema in schemas:
            place = place_of(schema, self.options.namespace)
            self._dialect.refuse(schema)
            self._refuse_columns(schema)
            said = self.options.history_of(schema.topic)
            beside = {history_topic(schema.topic): history_place(place, said)} if said else {}
            for topic, one in ({schema.topic: place} | beside).items():
                if (other := taken.setdefault(self._dialect.same_name(str(one)), topic)) != topic:
                    raise ConfigError(
                        f"stores.{self.name}: {other} and {topic} would both be the table {one}",
                        hint='let the namespace contain {schema}, as in "copy_{schema}"',
                    )

    def missing_rights(self, schemas: Sequence[TopicSchema]) -> Iterator[StoreError]:
        places: list[TargetPlace] = []
        for schema in schemas:
            place, said = place_of(schema, self.options.namespace), self.options.history_of(schema.topic)
            places += [place, *([history_place(place, said)] if said else [])]
        database = self._dialect.database(self.name, self.options, writing=False)
        try:
            with database.transaction(reading=True) as session:
                yield from list(self._dialect.missing_rights(session, self.name, places))
        finally:
            database.close()

    def _refuse_columns(self, schema: TopicSchema) -> None:
        self.options.refuse_own_names(self.name, schema)
        if self.options.history_of(schema.topic):
            refuse(self.name, schema)

    def preview(self, rows: pa.RecordBatch) -> Iterator[Mapping[str, str]]:
        schema = topic_schema(rows.schema)
        place = place_of(schema, self.options.namespace)
        for row in row_text(rows, schema).to_pylist():
            yield {"table": str(place), "row": json.dumps(row, ensure_ascii=False)}

    def projected(self) -> str | None:
        return None

    def shape(self, topic: str) -> Shape | None:
        """Moves with the commits: what is staged does not count."""
        self._opened()
        entry = self._known.entries.get(topic)
        if entry is None and self._epoch is None:
            with self._database.transaction(reading=True) as session:
                entry = self._read(session).entries.get(topic)
        return entry.shape if entry is not None and entry.has_table else None

    def apply(self, changes: pa.RecordBatch) -> Outcome:
        if not len(changes):
            return NOTHING
        schema = topic_schema(changes.schema)
        self.prepare(schema)
        there = max(self.held(schema.topic), self._staging.reach(schema.topic))
        fresh = changes.slice(int(np.searchsorted(changes.column(POSITION).to_numpy(), there, side="right")))
        if len(fresh):
            self._staging.add(schema.topic, fresh)
        return Outcome(len(fresh), stale=len(changes) - len(fresh))

    def commit(self, cut: Cut) -> None:
        if (cut.position, cut.commit_lsn) <= (self._applied.position, self._applied.commit_lsn):
            return
        extent, epoch = self._opened(), self._writer()
        mark = extent.lineage().mark(cut)
        try:
            with self._database.transaction() as session:
                if not self._was_committed(session, mark):
                    self._locked(session, epoch)
                    self._tried = self._carried_out(session, extent, mark)
                    crashpoint("sql.before_commit")
        except LettersStop as stop:
            self.keep(stop.found)
            raise stop.error from None
        crashpoint("sql.committed")
        assert self._tried is not None
        tried, self._tried = self._tried, None
        self._known, self._letters, self._refused, self._applied = tried.ledger, tried.letters, tried.refused, cut
        extent.histories.done = tried.forgotten
        self._staging.clear()

    def refused(self) -> tuple[DeadLetter, ...]:
        """See ``sinks.contract.Deferring``."""
        return self._refused

    def _carried_out(self, session: SqlSession, extent: SqlExtent, mark: Mark) -> _Tried:
        """Where what is checked at the commit refuses something, all of it is done again with that checked at once: so it is known which row it is."""
        try:
            with session.attempt():
                tried = self._written(session, extent, mark)
                session.check_deferred()
        except RowsRefused:
            session.check_deferred()
            tried = self._written(session, extent, mark)
        return tried

    def _written(self, session: SqlSession, extent: SqlExtent, mark: Mark) -> _Tried:
        """Writes all that is staged, the dead letters and the marks. Returns what the ledger says then."""
        now, draft = self._known, self._draft()
        writers = []
        for topic in self._staging.topics:
            history = extent.histories.writer(session, now.entries[topic], mark.cut)
            writer = self._writer_of(session, now.entries[topic], draft, history)
            now = now.with_entries(self._write(session, writer, now.entries[topic], mark))
            writers.append(writer)
        settle(writers)
        draft.write(session)
        for topic in extent.selected():
            entry = now.entries.get(topic)
            if extent.last_change(topic, mark.cut) > (0 if entry is None else entry.mark.cut.position):
                entry = TableEntry(topic, mark) if entry is None else replace(entry, mark=mark)
                ledger.put(session, self.name, entry)
                now = now.with_entries(entry)
        held = {topic: self.held(topic) for topic in now.entries}
        forgotten = extent.histories.carry_out(session, now.entries.values(), held, self._staging.topics, mark.cut)
        ledger.sign(session, self.name, now.epoch, mark)
        assert self._letters is not None
        return _Tried(replace(now, mark=mark), draft.known if draft.changed else self._letters, tuple(draft.refused), forgotten)

    def _draft(self) -> LettersDraft:
        self._writer()
        assert self._letters is not None
        return LettersDraft(self.name, self._letters, self.options.dead_share_max)

    def _writer_of(
        self, session: SqlSession, entry: TableEntry, draft: LettersDraft, history: HistoryWriter | None = None
    ) -> SqlRowWriter:
        assert entry.place is not None
        assert entry.shape is not None
        table = session.dialect.table(session, entry.place)
        table.take(self.options.own_columns(entry.topic))
        return SqlRowWriter(session, table, entry.shape, draft, self._opened().log, history)

    def _write(self, session: SqlSession, writer: SqlRowWriter, entry: TableEntry, mark: Mark) -> TableEntry:
        writer.write(self._staging.batches(entry.topic), entry.mark.cut.position)
        now = replace(entry, mark=max(mark, entry.mark, key=lambda one: one.cut.position), shape=writer.shape)
        ledger.put(session, self.name, now)
        crashpoint("sql.table_written")
        return now

    def _was_committed(self, session: SqlSession, mark: Mark) -> bool:
        """Whether this commit has been carried out already, and nobody heard the answer."""
        tried = self._tried
        if tried is None or tried.ledger.mark != mark:
            self._tried = None
            return False
        held = self._read(session, lock=True)
        return held.mark == mark and held.epoch == self._epoch and _unchanged(tried.ledger, held)

    def _read(self, session: SqlSession, *, lock: bool = False) -> SqlLedger:
        """What the ledger says. A table at another place than the options name now is none that this store goes on with."""
        held = ledger.read(session, self.name, lock=lock)
        moved = [
            replace(entry, there=False)
            for entry in held.entries.values()
            if entry.shape is not None
            and (entry.place != place_of(entry.shape.schema, self.options.namespace) or self._halved(held, entry))
        ]
        return held.with_entries(*moved)

    def _halved(self, held: SqlLedger, entry: TableEntry) -> bool:
        """Whether the topic has lost its history, which is written from the log's beginning, as the rows are."""
        history = held.entries.get(history_topic(entry.topic))
        return bool(self.options.history_of(entry.topic)) and (history is None or not history.has_table)

    def _locked(self, session: SqlSession, epoch: int) -> None:
        """Locks the ledger. Raises where it, or a table, is not as this sink left it."""
        held = self._read(session, lock=True)
        ledger.refuse_others(held, self.name, epoch, self._known.mark)
        if not _unchanged(self._known, held):
            raise ledger.lost(self.name)

    def _writer(self) -> int:
        if self._epoch is None:
            raise StoreError(f"store {self.name} was opened for reading only", retryable=False)
        return self._epoch

    def _opened(self) -> SqlExtent:
        if self._extent is None:
            raise StoreError(f"store {self.name} is not open", retryable=True)
        return self._extent

    # --- dead letters (``sinks.deadletters.LetterBox``) --------------------------------------------------------------------------------

    def letters(self) -> tuple[Letter, ...]:
        if self._letters is not None:
            return self._letters.all
        with self._database.transaction(reading=True) as session:
            return letters.read(session, self.name)

    def keep(self, letters: Collection[Letter]) -> None:
        if letters:
            self._lettered(lambda draft: draft.keep(letters))

    def forget(self, ids: Collection[str]) -> None:
        if ids:
            self._lettered(lambda draft: draft.forget(ids))

    def _lettered(self, change: Callable[[LettersDraft], None]) -> None:
        epoch, draft = self._writer(), self._draft()
        with self._database.transaction() as session:
            self._locked(session, epoch)
            change(draft)
            draft.write(session)
        self._letters = draft.known

    def put(self, row: pa.RecordBatch, at: Position) -> str | None:  # noqa: ARG002
        epoch, schema = self._writer(), topic_schema(row.schema)
        entry = self._known.entries.get(schema.topic)
        if entry is None or not entry.has_table:
            return "the store does not hold the table"
        with self._database.transaction() as session:
            self._locked(session, epoch)
            writer = self._writer_of(session, entry, self._draft())
            if schema.key:
                return writer.put(row, None)
            letter = Letter(schema.topic, Position(first_position(row)), "").id
            refused = writer.put(row, letters.standing(session, self.name, letter))
            if refused is None:
                gone = row.column(OP)[0].as_py() == int(Op.DELETE)
                letters.set_standing(session, self.name, letter, None if gone else row_text(row, schema).to_pylist()[0])
            return refused

    def places(self, rows: pa.RecordBatch) -> pa.Array:
        return keys(rows, topic_schema(rows.schema))

    def named(self, keys: pa.RecordBatch, schema: TopicSchema) -> pa.Array:
        return join_key([keys.column(field.name) for field in schema.key], SEPARATOR if len(schema.key) > 1 else "")

    # --- reading ---------------------------------------------------------------------------------------------------------------------

    def make_visible(self) -> None:
        """Nothing to do: a commit is visible to every reader that looks afterwards."""

    def as_held(self, rows: pa.RecordBatch, schema: TopicSchema) -> pa.RecordBatch:  # noqa: ARG002
        return rows

    def scan(self, schema: TopicSchema) -> Iterator[pa.RecordBatch]:
        return self._reader.scan(schema)

    def fetch(self, schema: TopicSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
        return self._reader.fetch(schema, keys)

    def close(self) -> None:
        self._staging.clear()
        self._database.close()
        self._reader.close()
        self._extent, self._known, self._tried, self._letters, self._refused = None, SqlLedger(), None, None, ()


@dataclass(frozen=True, slots=True)
class _Tried:
    """What one commit leaves."""

    ledger: SqlLedger
    letters: Letters
    refused: tuple[DeadLetter, ...]
    forgotten: Forgotten


def _unchanged(known: SqlLedger, now: SqlLedger) -> bool:
    """Whether every entry that was known and is true is so still. The others are made again, or stay away."""
    return all(topic in now.entries and (now.entries[topic] == entry or not entry.counts) for topic, entry in known.entries.items())


def traits(options: Options) -> Traits:  # noqa: ARG001
    return SqlSink.traits


def make(name: str, options: Options) -> SqlSink:
    return SqlSink(name, options)
