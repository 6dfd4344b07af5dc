"""A SQL store: one table per topic in a database (Postgres, DuckDB), written so that all tables of a cut become visible together.

What is applied waits in memory (``stagedchanges``) until ``commit``, which is one transaction of the target database: it locks the store's mark, checks that
the mark and every table are as this writer left them and that no later writer has been there, writes the rows of all topics, moves the marks, commits.
So nothing is applied twice, nothing is held locked between commits, and whoever stands still in a commit loses its session and with it all that it had
begun. A commit whose answer was lost is decided by the mark: it is there, or nothing of it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from cdc.crashpoint import crashpoint
from cdc.errors import ConfigError, StoreError
from cdc.log.contract import LogReader
from cdc.model.batch import POSITION, topic_schema
from cdc.model.lineage import Mark
from cdc.model.position import ZERO_CUT, Cut, Position
from cdc.model.topic import TopicSchema
from sinks.contract import NOTHING, EpochPassed, Outcome, Shape, TopicAsOf, Traits
from sinks.render.rowtext import row_text
from sinks.rowversions import history_topic, refuse
from sinks.sql import ledger, ownership
from sinks.sql.choice import dialect_of
from sinks.sql.dialect import SqlSession
from sinks.sql.extent import SqlExtent
from sinks.sql.history import HistoryWriter, history_place
from sinks.sql.ledger import SqlLedger, TableEntry
from sinks.sql.names import TargetPlace, place_of
from sinks.sql.options import Options
from sinks.sql.rebuild import SqlRebuild
from sinks.sql.rowreader import SqlRowReader
from sinks.sql.rowwriter import SqlRowWriter
from sinks.stagedchanges import StagedChanges


class SqlSink:
    """See ``sinks.contract.Sink``."""

    traits = Traits(sequenced=True, staged=True, evolves=True)

    def __init__(self, name: str, options: Options) -> None:
        self.name = name
        self.options = options
        self._dialect = dialect_of(options)
        self._database = self._dialect.database(name, options)
        self._reader = SqlRowReader(name, options)
        self._staging = StagedChanges(options.staged_bytes)
        self._applied = ZERO_CUT
        self._epoch: int | None = None
        self._extent: SqlExtent | None = None
        self._known = SqlLedger()
        """As this sink found it, or left it: of its topics."""
        self._tried: SqlLedger | None = None
        """What a commit would have left whose answer did not come."""

    # --- which log, and how far ------------------------------------------------------------------------------------------------------

    def open(self, log: LogReader, epoch: int | None = None) -> Cut:
        self.close()
        extent = SqlExtent(self.name, self.options.tables, log, writing=epoch is not None)
        with self._database.transaction(reading=epoch is None) as session:
            if epoch is not None:
                ledger.make(session)
            held = self._read(session, lock=epoch is not None)
            applied = extent.whole(held)
            if epoch is not None:
                if held.epoch > epoch:
                    raise EpochPassed(self.name, held.epoch)
                held = replace(held, epoch=epoch, mark=held.mark or extent.lineage().mark(ZERO_CUT))
                assert held.mark is not None
                ledger.sign(session, self.name, epoch, held.mark)
        self._extent, self._epoch, self._applied, self._known = extent, epoch, applied, held
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
            beside = []
            if said := self.options.history_of(schema.topic):
                beside.append(ownership.history_made(session, self.name, schema, history_place(place, said), extent.lineage()))
            if entry is not None and entry.counts:  # there was nothing to hold up to here, which a table without rows says as well
                fresh = replace(fresh, mark=entry.mark)
                ledger.put(session, self.name, fresh)
        self._known = self._known.with_entries(fresh, *beside)

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
        with self._database.transaction() as session:
            if not self._was_committed(session, mark):
                self._locked(session, epoch)
                self._tried = self._written(session, extent, mark)
                crashpoint("sql.before_commit")
        crashpoint("sql.committed")
        assert self._tried is not None
        self._known, self._tried, self._applied = self._tried, None, cut
        self._staging.clear()

    def _written(self, session: SqlSession, extent: SqlExtent, mark: Mark) -> SqlLedger:
        """Writes all that is staged, and the marks. Returns what the ledger says then."""
        now = self._known
        for topic in self._staging.topics:
            now = now.with_entries(self._write(session, now.entries[topic], mark))
        for topic in extent.selected():
            entry = now.entries.get(topic)
            if extent.last_change(topic, mark.cut) > (0 if entry is None else entry.mark.cut.position):
                entry = TableEntry(topic, mark) if entry is None else replace(entry, mark=mark)
                ledger.put(session, self.name, entry)
                now = now.with_entries(entry)
        ledger.sign(session, self.name, now.epoch, mark)
        return replace(now, mark=mark)

    def _write(self, session: SqlSession, entry: TableEntry, mark: Mark) -> TableEntry:
        assert entry.place is not None
        assert entry.shape is not None
        table = session.dialect.table(session, entry.place)
        table.take(self.options.own_columns(entry.topic))
        writer = SqlRowWriter(session, table, entry.shape, self._history(session, entry))
        writer.write(self._staging.batches(entry.topic), entry.mark.cut.position)
        now = replace(entry, mark=max(mark, entry.mark, key=lambda one: one.cut.position), shape=writer.shape)
        ledger.put(session, self.name, now)
        crashpoint("sql.table_written")
        return now

    def _history(self, session: SqlSession, entry: TableEntry) -> HistoryWriter | None:
        said = self.options.history_of(entry.topic)
        if not said:
            return None
        assert entry.place is not None
        assert entry.shape is not None
        return HistoryWriter(session, session.dialect.table(session, history_place(entry.place, said)), entry.shape.schema)

    def _was_committed(self, session: SqlSession, mark: Mark) -> bool:
        """Whether this commit has been carried out already, and nobody heard the answer."""
        tried = self._tried
        if tried is None or tried.mark != mark:
            self._tried = None
            return False
        held = self._read(session, lock=True)
        return held.mark == mark and held.epoch == self._epoch and _unchanged(tried, held)

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
        self._extent, self._known, self._tried = None, SqlLedger(), None


def _unchanged(known: SqlLedger, now: SqlLedger) -> bool:
    """Whether every entry that was known and is true is so still. The others are made again, or stay away."""
    return all(topic in now.entries and (now.entries[topic] == entry or not entry.counts) for topic, entry in known.entries.items())


def traits(options: Options) -> Traits:  # noqa: ARG001
    return SqlSink.traits


def make(name: str, options: Options) -> SqlSink:
    return SqlSink(name, options)
