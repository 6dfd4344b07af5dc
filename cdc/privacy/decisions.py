"""The column policies' decisions so far, as capture last had them: ``decided.json`` in the log's folder.

The log cannot tell a column that was kept out of it from one that came later, nor a table that was a partition of another from any
other. So what was let through, and which tables came out of protected ones, is written down before the first row that depends on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_args

from cdc.errors import LogCorrupt
from cdc.settings.models import ColumnPolicy
from cdc.state.statefile import StateFile

FILE: Final = "decided.json"
_POLICIES: Final = frozenset(get_args(ColumnPolicy))


@dataclass(frozen=True, slots=True)
class Decided:
    """One table: its name, and each column that was let through or protected, with its number (0: not known) and policy.
    ``former``: names of columns that it, or the table that had its name before, has no longer."""

    name: str
    columns: Mapping[str, tuple[int, ColumnPolicy]] = field(default_factory=dict)
    former: frozenset[str] = frozenset()

    @property
    def protects(self) -> bool:
        return any(policy != "keep" for _, policy in self.columns.values())


@dataclass(frozen=True, slots=True)
class Decisions:
    """``tables``: by OID, the one that was decided last at the end. ``kin``: OID of a table → the protected table that it is, or was, a
    partition or child of."""

    tables: Mapping[int, Decided] = field(default_factory=dict)
    kin: Mapping[int, str] = field(default_factory=dict)


def load_decisions(folder: Path) -> Decisions | None:
    """None when the file does not exist. Raises LogCorrupt when it is not ours."""
    return _FILE.load(folder / FILE)


def save_decisions(folder: Path, decisions: Decisions) -> None:
    """Durable on return."""
    _FILE.save(folder / FILE, decisions)


def _encoded(decisions: Decisions) -> dict[str, Any]:
    tables = {
        str(oid): {
            "name": decided.name,
            "columns": {name: list(entry) for name, entry in decided.columns.items()},
            "former": sorted(decided.former),
        }
        for oid, decided in decisions.tables.items()
    }
    return {"tables": tables, "kin": {str(oid): parent for oid, parent in decisions.kin.items()}}


def _decoded(raw: dict[str, Any]) -> Decisions:
    tables = {int(oid): _decided(table) for oid, table in raw["tables"].items()}
    return Decisions(tables, {int(oid): str(parent) for oid, parent in raw["kin"].items()})


def _decided(raw: Any) -> Decided:
    columns = {str(name): (int(number), policy) for name, (number, policy) in raw["columns"].items()}
    if not {policy for _, policy in columns.values()} <= _POLICIES:
        raise ValueError("a policy that does not exist")
    return Decided(str(raw["name"]), columns, frozenset(map(str, raw["former"])))


def _unreadable(path: Path, what: str) -> LogCorrupt:
    return LogCorrupt(
        f"{path} {what}: which columns were kept out of the log is not known any more; make sure that [source.columns] still "
        "names them, then remove it"
    )


_FILE: Final = StateFile(format=1, encode=_encoded, decode=_decoded, unreadable=_unreadable)
