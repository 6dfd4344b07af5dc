"""A join planned: the columns that have to be equal, other conditions, and which columns tell its rows apart. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from cdc.expressions import BOOL
from cdc.expressions.pgtype import INTEGERS
from cdc.expressions.refusal import PartRefused
from cdc.expressions.syntax import Name, Operation, Syntax
from cdc.views.columns import PlanColumns, Scope, filtered_by
from cdc.views.parts import conjuncts, walk
from cdc.views.plan import FilterNode, JoinNode, Key, Node, PlanColumn, columns_of, smallest
from cdc.views.syntax import ColumnName, JoinSyntax


class JoinPlanner:
    """Plans the joins of one query."""

    def __init__(self, book: PlanColumns) -> None:
        self._book = book

    def join(self, scope: Scope, item: JoinSyntax, left: Node, right: Node, mine: set[str], others: set[str]) -> Node:
        """``left``, ``right``: both sides, planned. ``mine``, ``others``: the aliases of their tables. Raises PartRefused."""
        conditions = self._conditions(scope, item, mine, others)
        pairs: list[tuple[PlanColumn, PlanColumn]] = []
        rest: list[Syntax] = []
        repeated: list[tuple[int, tuple[PlanColumn, PlanColumn], tuple[PlanColumn, PlanColumn]]] = []
        for at, condition in conditions:
            pair = self._pair(scope, condition, mine, others)
            if pair is None:
                rest.append(condition)
            else:
                self._comparable(at, *pair)
                again = next((one for one in pairs if pair[0] is one[0] or pair[1] is one[1]), None)
                if again is None:
                    pairs.append(pair)
                elif pair != again:
                    repeated.append((at, again, pair))
        if not pairs:
            raise PartRefused(
                item.at,
                "a join without an equality of columns of both sides is a cross join: one change could reach every row",
                "write ON a.x = b.x",
            )
        behind: list[Syntax] = []
        for condition in rest:
            tables = self._tables_of(scope, condition)
            resolved = self._book.resolved(scope, condition, "ON")
            if item.kind == "inner":
                behind.append(resolved)
            elif item.kind == "left" and tables <= others:
                right = FilterNode(right, self._book.expression(resolved, BOOL), right.key, right.keys)
            elif item.kind == "right" and tables <= mine:
                left = FilterNode(left, self._book.expression(resolved, BOOL), left.key, left.keys)
            else:
                raise PartRefused(
                    condition.at,
                    f"ON of a {item.kind.upper()} JOIN can have equalities, and conditions on the side that may be missing",
                    "filter a side in a subquery first",
                )
        for at, first, second in repeated:  # a = x AND a = y: x = y, on the other side
            of_left = first[1] is second[1]
            names = [Name(at, pair[0 if of_left else 1].name) for pair in (first, second)]
            equal = Operation(at, "=", tuple(names))
            if item.kind == "inner":
                behind.append(equal)
            elif item.kind == "left" and not of_left:
                right = filtered_by(right, self._book.expression(equal, BOOL))
            elif item.kind == "right" and of_left:
                left = filtered_by(left, self._book.expression(equal, BOOL))
            else:
                raise PartRefused(
                    at, f"a {item.kind.upper()} JOIN by one column twice is not kept up", "filter a side in a subquery first"
                )
        on = tuple((a.name, b.name) for a, b in pairs)
        if item.kind == "inner":
            self._book.knowledge.equal += [pair for pair in on if self._book.kinds[pair[0]].kind == self._book.kinds[pair[1]].kind]
        for side, kinds in ((left, ("right", "full")), (right, ("left", "full"))):
            if item.kind in kinds:  # rows without a partner have NULL there
                for name in columns_of(side):
                    self._book.knowledge.constants.pop(name, None)
        node: Node = JoinNode(item.kind, left, right, on, (*left.key, *right.key), self._keys_of_join(item.kind, left, right, on))
        for resolved in behind:
            node = FilterNode(node, self._book.expression(resolved, BOOL), node.key, node.keys)
        return node

    def _conditions(self, scope: Scope, item: JoinSyntax, mine: set[str], others: set[str]) -> list[tuple[int, Syntax]]:
        if item.on is not None:
            return [(one.at, one) for one in conjuncts(item.on)]
        found: list[tuple[int, Syntax]] = []
        for name in item.using:
            sides = []
            for aliases in (mine, others):
                having = [
                    alias for alias in scope.tables if alias in aliases and name.name in self._book.names(scope.tables[alias])
                ]
                if len(having) != 1:
                    raise PartRefused(
                        name.at, f"column {name.name} of USING has to be in one table of each side", "write ON a.x = b.x"
                    )
                sides.append(ColumnName(name.at, name.name, having[0]))
            if item.kind == "full":
                raise PartRefused(
                    name.at, "USING of a FULL JOIN makes a column of both sides", "write ON a.x = b.x, and coalesce(a.x, b.x)"
                )
            scope.merged[name.name] = self._book.found(scope, name.at, sides[item.kind == "right"].table, name.name)
            found.append((name.at, Operation(name.at, "=", (sides[0], sides[1]))))
        return found

    def _pair(self, scope: Scope, condition: Syntax, mine: set[str], others: set[str]) -> tuple[PlanColumn, PlanColumn] | None:
        if not (
            isinstance(condition, Operation) and condition.name == "=" and all(isinstance(one, Name) for one in condition.operands)
        ):
            return None
        sides = [self._tables_of(scope, one) for one in condition.operands]
        columns = [
            self._book.kinds[one.name]
            for one in (self._book.resolved(scope, one, "ON") for one in condition.operands)
            if isinstance(one, Name)
        ]
        if sides[0] <= mine and sides[1] <= others:
            return columns[0], columns[1]
        if sides[0] <= others and sides[1] <= mine:
            return columns[1], columns[0]
        return None

    def _tables_of(self, scope: Scope, syntax: Syntax) -> set[str]:
        found = set()
        for one in walk(syntax):
            if isinstance(one, Name):
                table = one.table if isinstance(one, ColumnName) else ""
                if table:
                    self._book.found(scope, one.at, table, one.name)
                    found.add(table)
                else:
                    self._book.found(scope, one.at, "", one.name)
                    found |= {alias for alias, other in scope.tables.items() if one.name in self._book.names(other)}
        return found

    def _comparable(self, at: int, left: PlanColumn, right: PlanColumn) -> None:
        for one in (left, right):
            self._book.has_equality(at, one, "a join")
        a, b = left.kind, right.kind
        if a.name == b.name:
            if a.name == "numeric" and a.bounds is not None and b.bounds is not None and a.bounds[1] != b.bounds[1]:
                raise PartRefused(at, f"a join of {a} and {b} is not kept up", "cast one side in a subquery")
        elif not (a in INTEGERS and b in INTEGERS):
            raise PartRefused(at, f"a join of {a} and {b} is not kept up", "cast one side in a subquery")

    def _keys_of_join(self, kind: str, left: Node, right: Node, on: Sequence[tuple[str, str]]) -> tuple[Key, ...]:
        """A row of the side that is kept says what its partners have in the columns of ``on``: their keys are told apart by the others."""
        found = [a | b for a in left.keys for b in right.keys]
        of_left, of_right = (self._book.knowledge.closed(pair[side] for pair in on) for side in (0, 1))
        if kind in ("inner", "left"):
            found += [a | (b - of_right) for a in left.keys for b in right.keys]
        if kind in ("inner", "right"):
            found += [(a - of_left) | b for a in left.keys for b in right.keys]
        return smallest(found)
