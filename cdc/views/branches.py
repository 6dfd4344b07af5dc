"""UNION ALL, planned. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cdc.expressions.refusal import PartRefused
from cdc.views.columns import PlanColumns, PlannedRelation
from cdc.views.plan import PlanColumn, UnionNode
from cdc.views.syntax import QuerySyntax

MOST_BRANCHES: Final = 20


class BranchPlanner:
    """Plans the branches of one query."""

    def __init__(self, book: PlanColumns) -> None:
        self._book = book

    def union(self, query: QuerySyntax, branches: Sequence[PlannedRelation]) -> PlannedRelation:
        if len(branches) > MOST_BRANCHES:
            raise PartRefused(query.at, f"more than {MOST_BRANCHES} branches are not possible", "make a view of some")
        first = branches[0]
        width = len(first.names)
        lists = [list(one.names.values()) for one in branches]
        for select, columns in zip(query.selects[1:], lists[1:], strict=True):
            if len(columns) != width:
                raise PartRefused(select.at, "the branches of UNION ALL have different numbers of columns")
            for item, column, other in zip(select.items, columns, lists[0], strict=True):
                if column.kind != other.kind or (column.kind.name in ("own", "opaque") and not alike(column, other)):
                    raise PartRefused(
                        item.at, f"a branch has {column.kind} here, and the first one {other.kind}", "cast one of them"
                    )
        place = self._branch_place(query, lists)
        same_fields = [all(alike(column, columns[0]) for column in columns) for columns in zip(*lists, strict=True)]
        names = {
            name: self._book.column(column.kind, column.field if same else None)
            for (name, column), same in zip(first.names.items(), same_fields, strict=True)
        }
        made = list(names.values())
        for number, column in enumerate(made):
            outlines = [self._book.outlines.get(columns[number].name) for columns in lists]
            self._book.outlines[column.name] = outlines[0] if all(outline == outlines[0] for outline in outlines) else None
        key = {made[place].name}
        for select, relation, columns in zip(query.selects, branches, lists, strict=True):
            places = {column.name: number for number, column in reversed(list(enumerate(columns)))}
            closed = self._book.knowledge.closed(places)
            one = next((one for one in relation.node.keys if one <= closed), None)
            if one is None:
                raise PartRefused(
                    select.at,
                    f"the branch lacks its rows' key: {self._book.shown(min(relation.node.keys, key=len))}",
                    "select it: UNION ALL keeps equal rows apart by it",
                )
            for name in sorted(one):
                same = next(other for other in places if name in self._book.knowledge.closed([other]))
                key.add(made[places[same]].name)
        taken = tuple(tuple(column.name for column in columns) for columns in lists)
        ordered = tuple(one.name for one in made if one.name in key)
        node = UnionNode(tuple(one.node for one in branches), tuple(made), taken, ordered, (frozenset(ordered),))
        return PlannedRelation(node, names)

    def _branch_place(self, query: QuerySyntax, lists: Sequence[Sequence[PlanColumn]]) -> int:
        for place, columns in enumerate(zip(*lists, strict=True)):
            texts = [self._book.knowledge.constants.get(one.name) for one in columns]
            if None not in texts and len(set(texts)) == len(texts):
                return place
        raise PartRefused(
            query.selects[1].at,
            "UNION ALL needs a column that tells the branches apart",
            "write SELECT 'a' AS branch, … UNION ALL SELECT 'b', …",
        )


def alike(one: PlanColumn, other: PlanColumn) -> bool:
    if one.field is None or other.field is None:
        return False
    return one.field.type == other.field.type and one.field.value_type == other.field.value_type
