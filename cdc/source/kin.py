"""The column policies in the catalog's watch: which tables are partitions or inheritance children of others (when one of them goes
its own way, it takes the parent's rows along), and what is kept out of the log until somebody decides."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol

import psycopg
import structlog

from cdc.errors import SourceError, StopState
from cdc.model.facts import Facts
from cdc.model.table import Table
from cdc.source.descent import descendants

_KIN: Final = (
    "select kin.oid::int8, kin.parent from "
    + descendants(
        "select i.inhrelid, n.nspname || '.' || c.relname "
        "from pg_inherits i join pg_class c on c.oid = i.inhparent join pg_namespace n on n.oid = c.relnamespace "
        "where n.nspname || '.' || c.relname = any (%s)",
        {"parent": "t.parent"},
    )
    + " kin"
)
_STILL: Final = "select oid::int8 from pg_class where oid = any (%s::oid[])"

_log = structlog.get_logger("catalog")


class Undecided(Protocol):
    """The questions that the catalog's watch asks of the column policies, from its own thread."""

    @property
    def guarded(self) -> Sequence[str]:
        """The tables (``schema.name``) that have policies."""
        ...

    @property
    def kin(self) -> Mapping[int, str]: ...

    def note_kin(self, kin: Mapping[int, str]) -> None:
        """Tables (OIDs) that are, or were, partitions or children of those."""
        ...

    def barred(self, table: Table) -> tuple[str, str] | None:
        """(why, what helps) when no row of this table can be logged yet."""
        ...

    def lines(self, table: Table) -> list[str]:
        """The columns of this table kept out of the log until somebody decides: one line each with what helps."""
        ...


def read_kin(connection: psycopg.Connection, parents: Collection[str], known: Mapping[int, str]) -> dict[int, str]:
    """Every table (OID) below these parents, with the parent's name; and those of ``known`` that still exist, wherever they are now."""
    if not parents and not known:
        return {}
    now: dict[int, str] = dict(connection.execute(_KIN, (list(parents),)).fetchall())
    still = {oid for (oid,) in connection.execute(_STILL, (list(known),)).fetchall()}
    return {**{oid: parent for oid, parent in known.items() if oid in still}, **now}


def refuse_undecided(undecided: Undecided, table: Table) -> None:
    """Raises SourceError for a new table none of whose rows could be logged: it would stop capture for all."""
    barred = undecided.barred(table)
    if barred is not None:
        raise SourceError(f"{StopState.PRIVACY_UNDECIDED}: {barred[0]}", hint=f"{barred[1]}, then restart capture")


class KeptBack:
    """One for the catalog's watch: looks at all captured tables again and again, and thinks about those that have changed."""

    def __init__(self, undecided: Undecided) -> None:
        self._undecided = undecided
        self._known: dict[int, tuple[Facts, list[str]]] = {}
        """By OID: the facts of a table, and the lines that the column policies make of them."""

    def look(self, connection: psycopg.Connection, captured: Sequence[Facts]) -> list[str]:
        """The columns that are kept out of the log until somebody decides, one line each with what helps."""
        undecided = self._undecided
        kin = read_kin(connection, undecided.guarded, undecided.kin)
        before = self._known if kin == undecided.kin else {}
        undecided.note_kin(kin)
        now = {}
        for facts in captured:
            known = before.get(facts.oid)
            now[facts.oid] = known if known is not None and known[0] == facts else (facts, undecided.lines(facts.table()))
        warned = {line for _, lines in self._known.values() for line in lines}
        self._known = now
        found = [line for _, lines in now.values() for line in lines]
        for line in found:
            if line not in warned:
                _log.warning("a column is kept out of the log", problem=line)
        return found
