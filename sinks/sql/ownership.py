"""The store's tables, found, made, checked and removed. Each function works within one transaction that holds the ledger's lock."""

from __future__ import annotations

from cdc.model.lineage import Lineage
from cdc.model.position import START, ZERO_CUT
from cdc.model.topic import TopicSchema
from sinks.contract import Shape
from sinks.rowversions import TO_POSITION, history_topic
from sinks.sql import ledger
from sinks.sql import table as tables
from sinks.sql.dialect import SqlSession
from sinks.sql.history import COLUMNS
from sinks.sql.ledger import TableEntry
from sinks.sql.names import TableSign, TargetPlace
from sinks.sql.table import refused


def made(session: SqlSession, store: str, schema: TopicSchema, place: TargetPlace, lineage: Lineage) -> TableEntry:
    """A table without rows for a topic that has none. What stands at its place goes if it is ours, and is refused by name if it is not."""
    refuse_taken(session, store, schema, place, lineage.log)
    if (found := session.dialect.standing(session, place)) is not None and found.sign is not None:
        session.run(f"drop table {place.sql}")
    table = tables.made(session, schema, place, TableSign(store, schema.topic, lineage.log))
    entry = TableEntry(schema.topic, lineage.mark(ZERO_CUT), place, table.number, Shape(schema, START))
    ledger.put(session, store, entry)
    return entry


def history_made(session: SqlSession, store: str, schema: TopicSchema, place: TargetPlace, lineage: Lineage) -> TableEntry:
    """As ``made``, for the table of all versions. ``place``: its own."""
    topic = history_topic(schema.topic)
    _refuse_taken(session, (store, topic), place, None)
    if session.dialect.standing(session, place) is not None:
        session.run(f"drop table {place.sql}")
    ledger.remove(session, store, topic)
    table = tables.made(session, schema, place, TableSign(store, topic, lineage.log), COLUMNS)
    session.dialect.index(session, place, schema, f"{TO_POSITION} is null")
    entry = TableEntry(topic, lineage.mark(ZERO_CUT), place, table.number)
    ledger.put(session, store, entry)
    return entry


def refuse_taken(session: SqlSession, store: str, schema: TopicSchema, place: TargetPlace, log: str | None) -> None:
    """Raises StoreError where what stands at the place is not a table of this topic in this store. ``log``: the only one that it may be of; None: any."""
    _refuse_taken(session, (store, schema.topic), place, log)


def _refuse_taken(session: SqlSession, mine: tuple[str, str], place: TargetPlace, log: str | None) -> None:
    owner = ledger.owner(session, place)
    if owner is not None and owner != mine:
        raise refused(place, f"belongs to store {owner[0]} and topic {owner[1]}")
    found = session.dialect.standing(session, place)
    if found is None:
        return
    sign = found.sign
    if not found.plain or sign is None:
        raise refused(place, "is not one that this store has made, and is left as it is")
    if (sign.store, sign.topic) != mine:
        raise refused(place, f"belongs to store {sign.store} and topic {sign.topic}")
    if log is not None and sign.log != log:
        raise refused(place, f"is fed by another log ({sign.log}; this one is {log})")


def remove(session: SqlSession, store: str, entry: TableEntry) -> None:
    """Removes the topic's table, where it is still the one, and the entry."""
    if entry.has_table and entry.place is not None:
        session.run(f"drop table {entry.place.sql}")
    ledger.remove(session, store, entry.topic)


def erase(session: SqlSession, store: str) -> None:
    """Removes all that the store has put there, also what no ledger knows of any more."""
    if ledger.exists(session):
        for entry in ledger.read(session, store, lock=True).entries.values():
            remove(session, store, entry)
        ledger.remove_all(session, store)
    for place, _ in list(session.dialect.signed_tables(session, store)):
        session.run(f"drop table {place.sql}")
