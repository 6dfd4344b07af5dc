"""Why tables cannot be captured as they are defined, asked of the catalog; the words are in ``capturable`` and ``leaves``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import psycopg

from cdc.errors import SourceError
from cdc.model.facts import Facts, Publishing
from cdc.source.capturable import define, identity_problem
from cdc.source.leaves import leaf_problems

_PRIMARY_KEYS: Final = "select indrelid::int8, indimmediate from pg_index where indisprimary and indisvalid and indrelid = any (%s)"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A table (``schema.name``) that is not captured, why, and what helps."""

    table: str
    problem: str
    hint: str

    @property
    def error(self) -> SourceError:
        return SourceError(f"table {self.table} {self.problem}", hint=self.hint)


def find_problems(connection: psycopg.Connection, tables: Sequence[Facts], *, computed: bool) -> dict[int, Refusal]:
    """By OID, those of the tables that cannot be captured. One that is not published is looked at as if it were, without a column list.

    ``connection``: under the pinned settings. ``computed``: the publication publishes stored generated columns.
    """
    tables = [facts if _published(facts) else replace(facts, publishing=Publishing(True, stored=computed)) for facts in tables]
    keys = _primary_keys(connection, tables)
    roots = [facts.oid for facts in tables if facts.partitioned]
    listed = [facts.oid for facts in tables if _listed(facts)]
    leaves = leaf_problems(connection, roots, listed=listed, computed=computed)
    found = {}
    for facts in tables:
        definition = define(facts, keys.get(facts.oid), connection.info.server_version)
        if (problem := identity_problem(definition, computed=computed)) is not None:
            found[facts.oid] = Refusal(definition.table.qualified, *problem)
        elif facts.oid in leaves:
            found[facts.oid] = Refusal(definition.table.qualified, *leaves[facts.oid])
    return found


def _published(facts: Facts) -> bool:
    return facts.publishing is not None and facts.publishing.published


def _listed(facts: Facts) -> bool:
    return facts.publishing is not None and facts.publishing.listed is not None


def _primary_keys(connection: psycopg.Connection, tables: Sequence[Facts]) -> dict[int, bool]:
    """Whether a table's primary key can be an identity (is not deferrable), for those that have one. Asked only where the facts do not say."""
    keys = {facts.oid: True for facts in tables if facts.index and facts.identity != "i"}
    unknown = [facts.oid for facts in tables if not facts.index]
    if unknown:
        keys.update(connection.execute(_PRIMARY_KEYS, (unknown,)).fetchall())
    return keys
