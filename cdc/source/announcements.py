"""The tables as the looks at the catalog have shown them to the stream: by logical messages, which stand in it where they were emitted."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence, Set
from queue import SimpleQueue
from typing import Any, Final

import psycopg

from cdc.model.facts import Facts

PREFIX: Final = "headwater.ddl"


class Announcements:
    """``known``: OIDs of the tables that the log has. ``password``: what our messages carry. One thread shows; any may ``note``."""

    def __init__(self, known: Collection[int], password: str) -> None:
        self._password = password
        self._shown: dict[int, Facts | None] = dict.fromkeys(known)
        self._noted: SimpleQueue[int] = SimpleQueue()

    def note(self, oid: int) -> None:
        """From any thread: the table has to be shown, whether or not it has changed."""
        self._noted.put(oid)

    def take_noted(self) -> None:
        while not self._noted.empty():
            self._shown[self._noted.get()] = None

    @property
    def oids(self) -> Set[int]:
        """The tables that were shown, or are to be."""
        return self._shown.keys()

    def outdated(self, facts: Facts) -> bool:
        """The stream has not been shown the table as it is."""
        return self._shown.get(facts.oid) != facts

    def show(self, connection: psycopg.Connection, tables: Sequence[Facts]) -> None:
        """In the transaction that is open; ``shown`` is for when it has committed."""
        self._emit(connection, {"tables": [facts.to_json() for facts in tables]})

    def shown(self, facts: Facts) -> None:
        self._shown[facts.oid] = facts

    def drop(self, connection: psycopg.Connection, oids: Sequence[int]) -> None:
        """Outside a transaction: these tables are gone."""
        if oids:
            self._emit(connection, {"dropped": oids})
        for oid in oids:
            del self._shown[oid]

    def _emit(self, connection: psycopg.Connection, what: dict[str, Any]) -> None:
        connection.execute(
            "select pg_logical_emit_message(true, %s, %s)",
            (PREFIX, json.dumps({"password": self._password, **what}, ensure_ascii=False)),
        )
