"""Views of a run: each as SQL, one version of some with a function over it, and as what plain Python makes of the tables' rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from cdc.model.table import Table
from cdc.settings.views import View
from tests.sim.entries import Folded
from tests.sim.tables import Key, Row, keyless

Rows = dict[Key, Row]
BY_FUNCTION: Final = "13579"
"""The digits of the version whose groups a function counts."""


@dataclass(frozen=True, slots=True)
class ModelView:
    view: View
    rows: Callable[[Folded], Rows]
    """The view over the tables' rows, without NULLs and as texts, as ``Folded`` has them."""


def deal_views(chance: Random, tables: Sequence[Table]) -> list[ModelView]:
    """One view in several versions, between which the configuration changes; none where no table has a key."""
    keyed = [table for table in tables if not keyless(table)]
    if not keyed:
        return []
    shape = chance.choice((_filtered, _grouped, _joined if len(keyed) > 1 else _grouped))
    versions = chance.sample(("0123456789", "01234567", BY_FUNCTION), 2)
    return [shape(chance.choice(keyed[:1]) if shape is not _joined else keyed[0], keyed[-1], digits) for digits in versions]


def refused_view(view: View) -> View:
    """The same over a column that its table does not have."""
    return view.model_copy(
        update={
            "sql": f"{view.sql} and gone = 1" if " group by " not in view.sql else view.sql.replace("select ", "select gone, ", 1)
        }
    )


def _where(name: str, digits: str) -> str:
    listed = ", ".join(f"'{one}'" for one in digits)
    return f"right({name}, 1) in ({listed})"


def _of(fold: Folded, table: Table, digits: str = "0123456789") -> list[Row]:
    """The table's rows of which the tag ends so."""
    found = [entry.row for entry in fold.get(f"public.{table.name}", {}).values() if entry.row is not None]
    return [row for row in found if (row["tag"] or "")[-1] in digits]


def _filtered(table: Table, _: Table, digits: str) -> ModelView:
    """In one version the body is how long it is, which is of another type."""
    key = tuple(column.name for column in table.key)
    shown = (*key, "tag", "body")
    measured = digits == BY_FUNCTION

    def rows(fold: Folded) -> Rows:
        found = {
            _key(row, key): {name: row[name] for name in shown if row.get(name) is not None} for row in _of(fold, table, digits)
        }
        for row in found.values() if measured else ():
            if (body := row.get("body")) is not None:
                row["body"] = str(len(body))
        return found

    columns = (*key, "tag", "length(body) as body" if measured else "body")
    return ModelView(View(sql=f"select {', '.join(columns)} from public.{table.name} where {_where('tag', digits)}", key=key), rows)


def _grouped(table: Table, _: Table, digits: str) -> ModelView:
    def rows(fold: Folded) -> Rows:
        groups: dict[str, list[int]] = defaultdict(list)
        for row in _of(fold, table, digits):
            tag = row["tag"] or ""
            groups[tag[-1]].append(len(tag))
        return {(digit,): {"digit": digit, "n": str(len(ns)), "width": str(sum(ns))} for digit, ns in groups.items()}

    source = f"from public.{table.name} where {_where('tag', digits)}"
    if digits == BY_FUNCTION:
        view = View(
            sql=f"select tag, right(tag, 1) as digit {source}",
            python=f"{__name__}:{measured.__name__}",
            by=("digit",),
            returns={"n": "bigint", "width": "bigint"},
            version="1",
            key=("digit",),
        )
        return ModelView(view, rows)
    sql = "select right(tag, 1) as digit, count(*) as n, sum(length(tag)) as width"
    return ModelView(View(sql=f"{sql} {source} group by right(tag, 1)", key=("digit",)), rows)


def measured(group: pa.Table) -> pa.Table:
    """What ``_grouped`` counts of one group."""
    return pa.table({"n": [len(group)], "width": [pc.sum(pc.utf8_length(group.column("tag"))).as_py()]})


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
    return ModelView(View(sql=f"select {', '.join(shown)} from {joined} where {_where('a.tag', digits)}", key=key), rows)


def _key(row: Row, key: Sequence[str]) -> Key:
    return tuple([row.get(name) or "" for name in key])
