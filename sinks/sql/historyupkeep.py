"""Versions that a store's histories no longer need, taken away in the transaction that commits a cut; and since when each history has all of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from cdc.clock import SteadyTime
from cdc.log.contract import LogReader
from cdc.model.position import START, Cut, Position
from cdc.model.topic import TopicSchema
from sinks.rowversions import TO
from sinks.sql import ledger
from sinks.sql.dialect import SqlSession
from sinks.sql.history import HistoryWriter, history_place
from sinks.sql.ledger import TableEntry
from sinks.sql.names import TargetPlace
from sinks.sql.options import Options
from sinks.versionage import VersionAge, later, whole_since_us

_ALL: Final = 1 << 40
"""More rows than any table has."""

Forgotten = Mapping[str, int]
"""Topic → the horizon up to which nothing is left in its history."""


@dataclass(slots=True)
class SqlHistoryUpkeep:
    """Over one store's histories. ``log``: what they are written from. ``done``: as the last commit left it."""

    store: str
    options: Options
    log: LogReader
    time: SteadyTime = field(default_factory=SteadyTime)
    done: Forgotten = field(default_factory=dict)

    def writer(self, session: SqlSession, entry: TableEntry, cut: Cut) -> HistoryWriter | None:
        """Writes the topic's history, for changes up to the cut; None where it has none."""
        place = self._place(entry)
        if place is None:
            return None
        assert entry.shape is not None
        return HistoryWriter(session, session.dialect.table(session, place), entry.shape.schema, self._horizon_us(entry.topic, cut))

    def carry_out(
        self, session: SqlSession, entries: Iterable[TableEntry], held: Mapping[str, Position], written: Collection[str], cut: Cut
    ) -> Forgotten:
        """Returns what is done once the transaction is committed. ``held``: up to where the topics' changes were held before this commit; ``written``: the topics
        of which it has written some. Takes no more rows from each history than changes may come at once, and the others with the next commit."""
        found, topics = dict(self.done), self.log.topics()
        for entry in entries:
            place = self._place(entry)
            if place is None:
                continue
            age, horizon = VersionAge(self.options.history_days_of(entry.topic)), self._horizon_us(entry.topic, cut)
            due = horizon is not None and age.is_due(horizon, self.done.get(entry.topic))
            if due and horizon is not None and entry.shape is not None:
                session.dialect.index_once(session, place, TO)
                history = HistoryWriter(session, session.dialect.table(session, place), entry.shape.schema)
                if history.forget(horizon, self.options.batch_rows):
                    found[entry.topic] = horizon
            lacks = whole_since_us(self.log, topics, entry.topic, held[entry.topic])
            self._sign(session, entry.topic, place, later(lacks, horizon if due or entry.topic in written else None))
        return found

    def write_again(
        self, session: SqlSession, place: TargetPlace, schema: TopicSchema, changes: Iterable[pa.RecordBatch], cut: Cut
    ) -> None:
        """Fills the empty history at this place. ``changes``: all of the topic's in the log, up to the cut; ``schema``: the definition of the first."""
        horizon = self._horizon_us(schema.topic, cut)
        history = HistoryWriter(session, session.dialect.table(session, place), schema, horizon)
        history.write_all(changes)
        if horizon is not None:
            history.forget(horizon, _ALL)
        lacks = whole_since_us(self.log, self.log.topics(), schema.topic, START)  # what was compacted meanwhile counts, too
        self._sign(session, schema.topic, place, later(lacks, horizon))

    def _horizon_us(self, topic: str, cut: Cut) -> int | None:
        return VersionAge(self.options.history_days_of(topic)).horizon_us(cut, self.time.now_s())

    def _place(self, entry: TableEntry) -> TargetPlace | None:
        said = self.options.history_of(entry.topic)
        return history_place(entry.place, said) if said and entry.has_table and entry.place is not None else None

    def _sign(self, session: SqlSession, topic: str, place: TargetPlace, since_us: int | None) -> None:
        if since_us is not None:
            ledger.complete_from(session, self.store, topic, place, since_us)
