"""Which columns nobody has decided on: no policy names them, and they may hold what a policy keeps back elsewhere. Their values stay out of
the log until ``[source.columns]`` names them. Pure, but for ``remember``.

A column may be logged when a policy names it, or when it was logged before (under its number, or in the table that had this name before).
Any other column is undecided when

- its table has policies, and the column came after them (or a policy names a column that the new table does not have);
- its table is, or was, a partition or an inheritance child of a table with policies, which does not show a column of this name;
- another table has a protected column of this name, upper and lower case being one, and the column came after the first start.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from threading import RLock
from typing import Final

from cdc.errors import StopState
from cdc.model.table import Column, Table
from cdc.privacy.decisions import Decided, Decisions
from cdc.settings.models import ColumnPolicy as Policy

_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")


class UndecidedColumns:
    """One for capture, shared with the thread that watches the catalog. ``decisions``: of an earlier start, None when there was none.

    known: the logged tables, as the log's topics have them. remember: makes decisions durable.
    """

    def __init__(
        self,
        policies: Mapping[str, Mapping[str, Policy]],
        decisions: Decisions | None = None,
        *,
        known: Iterable[Table] = (),
        remember: Callable[[Decisions], None] = lambda _: None,
    ) -> None:
        self._policies = policies
        self._remember = remember
        self._lock = RLock()
        logged = tuple(known)
        self._begun = decisions is not None or bool(logged)
        """Tables that come from here on are new: the author of the policies has not seen them."""
        self._saved = decisions
        self._tables = dict(decisions.tables) if decisions else {}
        self._kin = dict(decisions.kin) if decisions else {}
        for oid, tables in _by_oid(logged).items():
            if oid not in self._kin:
                self._tables[oid] = _with_logged(self._tables.get(oid), tables)
        self.generation = 0
        """Another one says that tables are decided on again."""
        self._namesakes = {
            column.casefold(): table
            for table, columns in policies.items()
            for column, policy in columns.items()
            if policy != "keep"
        }

    @property
    def guarded(self) -> Sequence[str]:
        return tuple(self._policies)

    @property
    def kin(self) -> Mapping[int, str]:
        return self._kin

    @property
    def begun(self) -> bool:
        return self._begun

    def note_kin(self, kin: Mapping[int, str]) -> None:
        """A table that becomes one is decided on again: what it showed before it held its parent's rows says nothing of them."""
        with self._lock:
            if kin == self._kin:
                return
            self._tables = {oid: decided for oid, decided in self._tables.items() if oid not in kin or oid in self._kin}
            self._kin = dict(kin)
            self.generation += 1
            if self._begun:
                self._save()

    def protected(self, oid: int) -> dict[str, int]:
        """The columns of this table that were kept back, with their numbers."""
        decided = self._tables.get(oid)
        return {} if decided is None else {name: number for name, (number, policy) in decided.columns.items() if policy != "keep"}

    def knows(self, name: str) -> bool:
        """Whether a table of this name has been captured before."""
        return any(decided.name == name for decided in self._tables.values())

    def was_named(self, table: Table) -> frozenset[str]:
        """Every column that this table, or the one that had its name before, is known to have had."""
        past = self._past(table)
        return frozenset() if past is None else past.former | past.columns.keys()

    def columns(self, table: Table) -> dict[str, str]:
        """The raw table's undecided columns, each with why."""
        if not self._policies:
            return {}
        named, past = self._policies.get(table.qualified, {}), self._past(table)
        found = {}
        for column in table.columns:
            if column.name in named or (past is not None and _was_logged(past, column, by_number=table.oid in self._tables)):
                continue
            why = self._why(table, column, named, past)
            if why is not None:
                found[column.name] = why
        return found

    def decide(self, tables: Iterable[Table]) -> None:
        """The raw tables' other columns may be logged from here on, under the policies that they have now."""
        with self._lock:
            changed = dict(self._tables)
            for table in tables:
                out, named = self.columns(table), self._policies.get(table.qualified, {})
                new = {c.name: (c.attnum, named.get(c.name, "keep")) for c in table.columns if c.name not in out}
                decided = _renewed(self._past(table), table.qualified, new, same=table.oid in changed)
                if decided != changed.get(table.oid):
                    changed.pop(table.oid, None)  # to the end
                    changed[table.oid] = decided
            self._tables = changed
            self._save()

    def begin(self, tables: Sequence[Table]) -> None:
        """At a start, with every captured table: those that come later are new. Those that are gone are forgotten."""
        with self._lock:
            # What a table's children may show is what it shows itself.
            for guarded in (True, False):
                self.decide(table for table in tables if (table.qualified in self._policies) is guarded)
            here = {table.oid for table in tables}
            latest = {decided.name: oid for oid, decided in self._tables.items()}
            self._tables = {
                oid: decided
                for oid, decided in self._tables.items()
                if oid in here or (latest[decided.name] == oid and (decided.protects or decided.name in self._policies))
            }
            self._begun = True
            self._save()

    def barred(self, table: Table) -> tuple[str, str] | None:
        """(why, what helps) when an undecided column is part of what tells the table's rows apart, so that none of them can be logged."""
        undecided = self.columns(table)
        column = next((column.name for column in table.key if column.name in undecided), None)
        if column is None:
            return None
        what = f"column {column} of {table.qualified} is part of the row's identity, no policy names it, and {undecided[column]}"
        return what, line_for(table.qualified, column)

    def lines(self, table: Table) -> list[str]:
        """The columns of this table kept out of the log until somebody decides: one line each with what helps."""
        return [
            f"column {column} of {table.qualified} is kept out of the log ({StopState.PRIVACY_UNDECIDED}): no policy names it, and {why} "
            f"→ {line_for(table.qualified, column)}, then restart capture"
            for column, why in self.columns(table).items()
        ]

    def _past(self, table: Table) -> Decided | None:
        """The decisions on the table, else on the last one that had its name."""
        known = self._tables.get(table.oid)
        if known is not None:
            return known
        return next((decided for decided in reversed(self._tables.values()) if decided.name == table.qualified), None)

    def _why(self, table: Table, column: Column, named: Mapping[str, Policy], past: Decided | None) -> str | None:
        parent = self._kin.get(table.oid)
        if parent is not None and not self._shows(parent, column.name):
            return f"the table came out of {parent}, which has policies"
        if past is not None and (named or past.protects):
            return "it came after the policies of its table"
        missing = [name for name, policy in named.items() if policy != "keep" and name not in table.names]
        if missing and past is None:
            return f"may be {missing[0]}, which has a policy and does not exist"
        owner = self._namesakes.get(column.name.casefold()) if self._begun else None
        return None if owner is None else f"a column of this name is protected in {owner}"

    def _shows(self, name: str, column: str) -> bool:
        """Whether the table of this name shows the column as it is."""
        policy = self._policies.get(name, {}).get(column)
        if policy is not None:
            return policy == "keep"
        decided = next((decided for decided in reversed(self._tables.values()) if decided.name == name), None)
        return decided is not None and decided.columns.get(column, (0, "drop"))[1] == "keep"

    def _save(self) -> None:
        now = Decisions(self._tables, self._kin)
        if now != self._saved:
            self._remember(now)
            self._saved = now


def line_for(table: str, column: str) -> str:
    """The line to put into cdc.toml."""
    key = column if _BARE_KEY.fullmatch(column) else json.dumps(column, ensure_ascii=False)
    return f'put {key} = "…" (keep, drop, mask, hmac or encrypt) under [source.columns.{json.dumps(table, ensure_ascii=False)}] in cdc.toml'


def _was_logged(past: Decided, column: Column, *, by_number: bool) -> bool:
    number, policy = past.columns.get(column.name, (0, "drop"))
    if by_number and column.attnum and number != column.attnum:
        # A name alone says nothing where numbers are known, and a rename keeps the number.
        unnumbered = policy == "keep" and not number and column.name in past.columns
        return unnumbered or any(entry == (column.attnum, "keep") for entry in past.columns.values())
    return policy == "keep"


def _renewed(past: Decided | None, name: str, new: Mapping[str, tuple[int, Policy]], *, same: bool) -> Decided:
    """With the new columns in. Under another name a column is still the same one, and an unknown number is not better than a known one.
    ``same``: the past is of this very table, and not of one that had its name."""
    before = past.columns if past is not None and same else {}
    numbers = {number for number, _ in new.values() if number}
    columns = {column: entry for column, entry in before.items() if entry[0] not in numbers or column in new}
    for column, (number, policy) in new.items():
        columns[column] = (number or columns.get(column, (0, policy))[0], policy)
    former = {*past.columns, *past.former} if past is not None else set()
    return Decided(name, columns, frozenset(former - columns.keys()))


def _by_oid(tables: Iterable[Table]) -> dict[int, list[Table]]:
    found: dict[int, list[Table]] = {}
    for table in tables:
        found.setdefault(table.oid, []).append(table)
    return found


def _with_logged(before: Decided | None, topics: Sequence[Table]) -> Decided:
    """With what the topics of one table show (a renamed one has left some behind) and nobody has written down."""
    columns: dict[str, tuple[int, Policy]] = {}
    for column in (column for table in topics for column in table.columns):
        if column.protected or column.name not in columns:
            columns[column.name] = (column.attnum, "mask" if column.protected else "keep")
    return Decided(topics[-1].qualified, columns) if before is None else replace(before, columns={**columns, **before.columns})
