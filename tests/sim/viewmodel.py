"""Views of a run: each as SQL, and as what plain Python makes of the tables' rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from cdc.model.table import Table
from tests.sim.entries import Folded
from tests.sim.tables import Key, Row, keyless

Rows = dict[Key, Row]


@dataclass(frozen=True, slots=True)
class ModelView:
    sql: str
    key: tuple[str, ...]
    rows: Callable[[Folded], Rows]
    """The view over the tables' rows, without NULLs and as texts, as ``Folded`` has them."""


def deal_views(chance: Random, tables: Sequence[Table]) -> list[ModelView]:
    """One view in several versions, between which the configuration changes; none where no table has a key."""
    keyed = [table for table in tables if not keyless(table)]
    if not keyed:
        return []
    shape = chance.choice((_filtered, _grouped, _joined if len(keyed) > 1 else _grouped))
    versions = chance.sample(("0123456789", "01234567", "13579"), 2)
    return [shape(chance.choice(keyed[:1]) if shape is not _joined else keyed[0], keyed[-1], digits) for digits in versions]


def _where(name: str, digits: str) -> str:
    listed = ", ".join(f"'{one}'" for one in digits)
    return f"right({name}, 1) in ({listed})"


def _of(fold: Folded, table: Table, digits: str = "0123456789") -> list[Row]:
    """The table's rows of which the tag ends so."""
    found = [entry.row for entry in fold.get(f"public.{table.name}", {}).values() if entry.row is not None]
    return [row for row in found if (row["tag"] or "")[-1] in digits]


def _filtered(table: Table, _: Table, digits: str) -> ModelView:
    key = tuple(column.name for column in table.key)
    shown = (*key, "tag", "body")

    def rows(fold: Folded) -> Rows:
        return {
            _key(row, key): {name: row[name] for name in shown if row.get(name) is not None} for row in _of(fold, table, digits)
        }

    return ModelView(f"select {', '.join(shown)} from public.{table.name} where {_where('tag', digits)}", key, rows)


def _grouped(table: Table, _: Table, digits: str) -> ModelView:
    def rows(fold: Folded) -> Rows:
        groups: dict[str, list[int]] = defaultdict(list)
        for row in _of(fold, table, digits):
            tag = row["tag"] or ""
            groups[tag[-1]].append(len(tag))
        return {(digit,): {"digit": digit, "n": str(len(ns)), "width": str(sum(ns))} for digit, ns in groups.items()}

    sql = "select right(tag, 1) as digit, count(*) as n, sum(length(tag)) as width"
    return ModelView(f"{sql} from public.{table.name} where {_where('tag', digits)} group by right(tag, 1)", ("digit",), rows)


def _joined(left: Table, right: Table, digits: str) -> ModelView:
    ours, theirs = ([column.name for column in table.key] for table in (left, right))
    key = (*(f"a_{name}" for name in ours), *(f"b_{name}" for name in theirs))

    def rows(fold: Folded) -> Rows:
        found = {}
        for a in _of(fold, left, digits):
            for b in _of(fold, right):
                if a.get("id") is not None and a.get("id") == b.get("id"):
                    row = {f"a_{name}": a[name] for name in (*ours, "tag")} | {f"b_{name}": b[name] for name in (*theirs, "tag")}
                    found[_key(row, key)] = row
        return found

    shown = [f"{side}.{name} as {side}_{name}" for side, names in (("a", ours), ("b", theirs)) for name in (*names, "tag")]
    joined = f"public.{left.name} a join public.{right.name} b on a.id = b.id"
    return ModelView(f"select {', '.join(shown)} from {joined} where {_where('a.tag', digits)}", key, rows)


def _key(row: Row, key: Sequence[str]) -> Key:
    return tuple([row.get(name) or "" for name in key])
