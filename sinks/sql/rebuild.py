"""A SQL store built again, table by table, each in one transaction: a reader sees its rows as they were or as they are.

First the store's mark says that it holds nothing, under this writer's epoch: whoever wrote before commits nothing more. A table that is there stays the same
table, with the rights that were granted on it and the views over it; rows go over rows, and what is left over goes in the same transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from cdc.crashpoint import crashpoint
from cdc.log.contract import LogReader
from cdc.model.batch import topic_schema
from cdc.model.lineage import Lineage
from cdc.model.position import START, ZERO_CUT, Cut
from cdc.model.topic import TopicSchema
from sinks.contract import DeadLetter, EpochPassed, Outcome, TopicAsOf
from sinks.deadletters import Letters, LetterState
from sinks.rowversions import history_topic
from sinks.sql import ledger, letters, ownership
from sinks.sql.dialect import SqlSession, TargetDatabase
from sinks.sql.history import history_place
from sinks.sql.historyupkeep import SqlHistoryUpkeep
from sinks.sql.letters import LettersDraft, LettersStop
from sinks.sql.names import TableSign, TargetPlace, place_of
from sinks.sql.options import Options
from sinks.sql.rowwriter import SqlRowWriter


@dataclass(frozen=True, slots=True)
class SqlRebuild:
    """Over one store, under one lease."""

    store: str
    options: Options
    database: TargetDatabase
    log: LogReader
    epoch: int

    def carry_out(self, lineage: Lineage, cut: Cut, topics: Sequence[TopicAsOf]) -> Outcome:
        """Raises EpochPassed when a later writer of the same log has been there, StoreError."""
        nothing = lineage.mark(ZERO_CUT)
        with self.database.transaction() as session:
            ledger.make(session)
            held = ledger.read(session, self.store, lock=True)
            if held.mark is not None and held.mark.log == lineage.log and held.epoch > self.epoch:
                raise EpochPassed(self.store, held.epoch)
            for topic in topics:
                schema = topic.shape.schema
                ownership.refuse_taken(session, self.store, schema, place_of(schema, self.options.namespace), None)
            ledger.sign(session, self.store, self.epoch, nothing)
            # What an operator has accepted stays so, where the same change is refused again.
            known = letters.read(session, self.store)
            letters.remove(session, self.store, [one.id for one in known if one.failed or one.state is not LetterState.ACCEPTED])
        crashpoint("rebuilding.sql_begun")
        rows, dead = 0, list[DeadLetter]()
        for topic in topics:
            try:
                with self.database.transaction() as session:
                    self._refuse_others(session, lineage)
                    known = letters.read(session, self.store)
                    draft = LettersDraft(self.store, Letters(self.store, known), self.options.dead_share_max)
                    rows += self._replaced(session, topic, lineage, cut, draft)
                    again = {one.position for one in draft.refused}
                    draft.forget([one.id for one in draft.known.of(topic.shape.schema.topic) if one.position not in again])
                    draft.write(session)
            except LettersStop as stop:
                with self.database.transaction() as session:
                    self._refuse_others(session, lineage)
                    letters.put(session, self.store, stop.found)
                raise stop.error from None
            dead += draft.refused
            crashpoint("rebuilding.sql_table_replaced")
        with self.database.transaction() as session:
            self._refuse_others(session, lineage)
            names = {topic.shape.schema.topic for topic in topics}
            names |= {history_topic(one) for one in names if self.options.history_of(one)}
            for entry in ledger.read(session, self.store).entries.values():
                if entry.topic not in names:
                    ownership.remove(session, self.store, entry)
            ledger.sign(session, self.store, self.epoch, lineage.mark(cut))
        return Outcome(rows, 0, tuple(dead))

    def _refuse_others(self, session: SqlSession, lineage: Lineage) -> None:
        held = ledger.read(session, self.store, lock=True)
        if held.epoch != self.epoch:
            raise EpochPassed(self.store, held.epoch)
        ledger.refuse_others(held, self.store, self.epoch, lineage.mark(ZERO_CUT))

    def _replaced(self, session: SqlSession, topic: TopicAsOf, lineage: Lineage, cut: Cut, draft: LettersDraft) -> int:
        """Returns the number of rows."""
        schema = topic.shape.schema
        place = place_of(schema, self.options.namespace)
        entry = ledger.read(session, self.store).entries.get(schema.topic)
        if entry is not None and (not entry.has_table or entry.place != place):
            ownership.remove(session, self.store, entry)
            entry = None
        if entry is None:
            ownership.refuse_taken(session, self.store, schema, place, None)
            found = session.dialect.standing(session, place)
            if found is not None:
                session.run(f"drop table {place.sql}")
            entry = ownership.made(session, self.store, schema, place, lineage)
        table = session.dialect.table(session, place)
        table.take(self.options.own_columns(schema.topic))
        known = entry.shape.schema.names if entry.shape is not None else ()
        writer = SqlRowWriter(session, table, topic.shape, draft, self.log)
        count = writer.replace_all(schema, known, topic.rows())
        table.sign(TableSign(self.store, schema.topic, lineage.log))
        ledger.put(session, self.store, replace(entry, mark=lineage.mark(cut), shape=topic.shape))
        if said := self.options.history_of(schema.topic):
            self._versions(session, schema, history_place(place, said), lineage, cut)
        return count

    def _versions(self, session: SqlSession, schema: TopicSchema, place: TargetPlace, lineage: Lineage, cut: Cut) -> None:
        """All of them again, out of the log."""
        changes = self.log.read(schema.topic, START, cut.position)
        first = next(changes, None)
        begun = schema if first is None else topic_schema(first.schema)
        entry = ownership.history_made(session, self.store, begun, place, lineage)
        SqlHistoryUpkeep(self.store, self.options, self.log).write_again(
            session, place, begun, () if first is None else chain([first], changes), cut
        )
        ledger.put(session, self.store, replace(entry, mark=lineage.mark(cut)))
