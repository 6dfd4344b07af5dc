"""The text of a view → its syntax: SELECT around the expressions that ``cdc.expressions`` parses. Pure.

What can never be kept up is refused here, at its place; what depends on types and keys is refused by the planner.
"""

from __future__ import annotations

import re
from typing import Final

from cdc.expressions.parser import Parser
from cdc.expressions.refusal import PartRefused
from cdc.expressions.syntax import Syntax, below
from cdc.expressions.tokenreader import RESERVED
from cdc.expressions.tokens import Token, tokens
from cdc.views.syntax import (
    AggregateCall,
    ColumnName,
    FromItem,
    JoinKind,
    JoinSyntax,
    OrderItem,
    QuerySyntax,
    RowNumberCall,
    Select,
    SelectItem,
    Subquery,
    TableName,
)

MOST_TOKENS: Final = 3000
DEEPEST: Final = 60
_DEEPEST_QUERY: Final = 20
"""Subqueries, and parentheses around joins, within each other."""

AGGREGATES: Final = frozenset(
    [
        "count",
        "sum",
        "avg",
        "min",
        "max",
        "bool_and",
        "bool_or",
        "every",
        "array_agg",
        "string_agg",
        "jsonb_agg",
        "jsonb_object_agg",
    ]
)
_OTHER_AGGREGATES: Final = frozenset(
    [
        *(
            "json_agg",
            "json_object_agg",
            "stddev",
            "stddev_pop",
            "stddev_samp",
            "variance",
            "var_pop",
            "var_samp",
        ),
        *("percentile_cont", "percentile_disc", "mode", "any_value", "bit_and", "bit_or", "bit_xor", "corr", "covar_pop", "xmlagg"),
        *("regr_count", "regr_slope", "range_agg", "covar_samp"),
    ]
)
_WINDOWS: Final = frozenset(
    ["rank", "dense_rank", "percent_rank", "cume_dist", "ntile", "lag", "lead", "first_value", "last_value", "nth_value"]
)
_CLAUSES: Final = frozenset(
    [
        *(
            "join",
            "inner",
            "left",
            "right",
            "full",
            "cross",
            "natural",
            "on",
            "using",
            "where",
            "group",
            "having",
            "order",
            "union",
        ),
        *("limit", "offset", "fetch", "window", "except", "intersect", "for", "from", "tablesample", "lateral"),
    ]
)
_COMMENT: Final = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|(?P<comment>--[^\n]*|/\*.*?\*/)", re.DOTALL)


def parsed_query(text: str) -> QuerySyntax:
    """The syntax of a view's text. Raises PartRefused."""
    found = tokens(_without_comments(text))
    if len(found) > MOST_TOKENS:
        raise PartRefused(found[MOST_TOKENS].at, f"the query has more than {MOST_TOKENS:,} words and signs")
    if found[0].kind == "end":
        raise PartRefused(0, "the query is empty")
    parser = _QueryParser(found)
    query = parser.query()
    parser.end_of_query()
    return query


def parsed_part(text: str) -> Syntax:
    """The syntax of one expression of a view, which may be an aggregate. Raises PartRefused."""
    parser = _QueryParser(tokens(text))
    found = parser.whole()
    parser.end_of_query()
    return found


def _without_comments(text: str) -> str:
    """Blanks instead, so that places stay."""
    return _COMMENT.sub(lambda one: re.sub(r"[^\n]", " ", one[0]) if one["comment"] else one[0], text)


class _QueryParser(Parser):
    def __init__(self, found: list[Token]) -> None:
        super().__init__(found)
        self._depth = 0

    # --- queries

    def query(self) -> QuerySyntax:
        at = self.token.at
        self._go_down("queries are")
        named = self._with() if self.take("with") else ()
        selects = [self._select()]
        while self.ahead("union") or self.ahead("except") or self.ahead("intersect"):
            word = self.token
            self.next += 1
            if word.text != "union":
                raise PartRefused(
                    word.at, f"{word.text.upper()} is not kept up", "write a LEFT JOIN and WHERE … IS NULL, or a JOIN"
                )
            if not self.take("all"):
                raise PartRefused(
                    word.at,
                    "UNION without ALL is not kept up",
                    "write UNION ALL with a column that names the branch: SELECT 'a' AS branch, …",
                )
            selects.append(self._select())
        self._refuse_behind()
        self._depth -= 1
        return QuerySyntax(at, tuple(selects), named)

    def _go_down(self, what: str) -> None:
        self._depth += 1
        if self._depth > _DEEPEST_QUERY:
            raise PartRefused(self.token.at, f"{what} nested more than {_DEEPEST_QUERY} levels deep")

    def _with(self) -> tuple[tuple[str, QuerySyntax], ...]:
        if self.ahead("recursive"):
            raise PartRefused(self.token.at, "RECURSIVE is not kept up: one change could reach every row")
        found = []
        while True:
            name = self._name("the name of a query is missing")
            if self.ahead("("):
                raise PartRefused(self.token.at, "names of columns are not possible here", "give them with AS in the query")
            self.demand("as")
            self.take("materialized")
            self.demand("(")
            found.append((name, self.query()))
            self.demand(")")
            if not self.take(","):
                return tuple(found)

    def _refuse_behind(self) -> None:
        at = self.token.at
        if self.ahead("order"):
            raise PartRefused(at, "ORDER BY has no meaning for a view, whose rows have a key and no order", "leave it out")
        for word in ("limit", "offset", "fetch"):
            if self.ahead(word):
                raise PartRefused(
                    at,
                    f"{word.upper()} is not kept up: one change could move every row",
                    "number the rows of a group in a subquery, row_number() OVER (PARTITION BY … ORDER BY …) AS n, and write WHERE n <= 10",
                )
        if self.ahead("for"):
            raise PartRefused(at, "FOR UPDATE and FOR SHARE have no meaning for a view", "leave it out")
        if self.ahead("window"):
            raise PartRefused(at, "WINDOW is not possible", "write the window behind OVER")

    def end_of_query(self) -> None:
        if self.token.kind != "end":
            self.end()

    def _select(self) -> Select:
        at = self.token.at
        if self.ahead("("):
            raise PartRefused(at, "parentheses around a SELECT are not possible here", "leave them out")
        if self.ahead("values") or self.ahead("table"):
            raise PartRefused(at, f"{self.token.text.upper()} is not kept up", "write SELECT … FROM a topic")
        self.demand("select")
        distinct, on = self._distinct()
        items = [self._item()]
        while self.take(","):
            items.append(self._item())
        if not self.take("from"):
            raise self.unexpected("FROM is missing")
        source = self._from()
        where = self.whole() if self.take("where") else None
        group = self._group()
        having = self.whole() if self.take("having") else None
        order = self._order_by() if on and self.take("order") else ()
        return Select(at, tuple(items), source, where, group, having, distinct, on, order)

    def _distinct(self) -> tuple[bool, tuple[Syntax, ...]]:
        if not self.take("distinct"):
            self.take("all")
            return False, ()
        if not self.take("on"):
            return True, ()
        self.demand("(")
        return False, self._expressions(")")

    def _item(self) -> SelectItem:
        token = self.token
        if token.kind == "sign" and token.text == "*":
            raise PartRefused(token.at, "* is not possible: a column that is added later would change the view", "name the columns")
        value = self.whole()
        name = ""
        if self.take("as"):
            name = self._name("a name is missing", any_word=True)
        elif self.token.kind == "quoted" or (self.token.kind == "name" and self.token.text not in _CLAUSES | RESERVED):
            name = self._name("a name is missing")
        elif isinstance(value, ColumnName) or type(value).__name__ == "Name":
            name = value.name  # type: ignore[union-attr]
        return SelectItem(token.at, value, name)

    def _group(self) -> tuple[Syntax, ...] | None:
        if not self.ahead("group"):
            return None
        self.next += 1
        self.demand("by")
        for word in ("grouping", "rollup", "cube"):
            if self.ahead(word):
                raise PartRefused(self.token.at, f"{self.token.text.upper()} is not kept up", "write one view for each grouping")
        if self.ahead("all") or self.ahead("distinct"):
            raise PartRefused(self.token.at, f"GROUP BY {self.token.text.upper()} is not possible")
        return self._expressions("")

    def _expressions(self, end: str) -> tuple[Syntax, ...]:
        found = [self.whole()]
        while self.take(","):
            found.append(self.whole())
        if end:
            self.demand(end)
        return tuple(found)

    def _order_by(self) -> tuple[OrderItem, ...]:
        """Behind ORDER."""
        self.demand("by")
        found = []
        while True:
            at = self.token.at
            value = self.whole()
            descending = self.take("desc")
            if not descending:
                self.take("asc")
            if self.ahead("using"):
                raise PartRefused(self.token.at, "ORDER BY … USING is not possible", "write ASC or DESC")
            first = descending
            if self.take("nulls"):
                first = self.take("first")
                if not first:
                    self.demand("last")
            found.append(OrderItem(at, value, descending, first))
            if not self.take(","):
                return tuple(found)

    # --- FROM

    def _from(self) -> FromItem:
        found = self._joined()
        if self.ahead(","):
            raise PartRefused(
                self.token.at, "a comma in FROM is a cross join: one change could reach every row", "write JOIN … ON a.x = b.x"
            )
        return found

    def _joined(self) -> FromItem:
        left = self._table()
        while (kind := self._join_kind()) is not None:
            at = self.tokens[self.next - 1].at
            right = self._table()
            if self.take("using"):
                self.demand("(")
                names = []
                while True:
                    token = self.token
                    names.append(ColumnName(token.at, self._name("a column's name is missing")))
                    if not self.take(","):
                        break
                self.demand(")")
                left = JoinSyntax(at, kind, left, right, None, tuple(names))
            elif self.take("on"):
                left = JoinSyntax(at, kind, left, right, self.whole())
            else:
                raise self.unexpected("ON is missing")
        return left

    def _join_kind(self) -> JoinKind | None:
        at = self.token.at
        if self.ahead("cross"):
            raise PartRefused(at, "CROSS JOIN is not kept up: one change could reach every row", "write JOIN … ON a.x = b.x")
        if self.ahead("natural"):
            raise PartRefused(
                at, "NATURAL JOIN is not possible: a column that is added later would change the view", "write ON a.x = b.x"
            )
        if self.take("join") or self.take("inner", "join"):
            return "inner"
        kinds: tuple[JoinKind, ...] = ("left", "right", "full")
        for kind in kinds:
            if self.take(kind, "join") or self.take(kind, "outer", "join"):
                return kind
        return None

    def _table(self) -> FromItem:
        token = self.token
        if self.ahead("lateral"):
            raise PartRefused(token.at, "LATERAL is not kept up", "write a join, or row_number() for the first rows of a group")
        if self.take("("):
            if self.ahead("select") or self.ahead("with") or self.ahead("values"):
                query = self.query()
                self.demand(")")
                alias = self._alias()
                if not alias:
                    raise PartRefused(self.token.at, "a query in FROM needs a name", "write (SELECT …) AS x")
                return Subquery(token.at, query, alias)
            self._go_down("joins are")
            found = self._joined()
            self.demand(")")
            self._depth -= 1
            return found
        if self.ahead("only"):
            raise PartRefused(token.at, "ONLY is not possible: a topic has all rows of its table", "leave it out")
        schema, name = "", self._name("the name of a topic is missing")
        if self.take("."):
            schema, name = name, self._name("the name of a topic is missing")
        if self.ahead("("):
            raise PartRefused(token.at, "functions in FROM are not kept up", "name a topic")
        if self.ahead("tablesample"):
            raise PartRefused(self.token.at, "TABLESAMPLE is not kept up: its rows are not the same twice")
        return TableName(token.at, schema, name, self._alias() or name)

    def _alias(self) -> str:
        if (
            self.take("as")
            or self.token.kind == "quoted"
            or (self.token.kind == "name" and self.token.text not in _CLAUSES | RESERVED)
        ):
            found = self._name("a name is missing")
        else:
            return ""
        if self.ahead("("):
            raise PartRefused(self.token.at, "names of columns are not possible here", "give them with AS in the query")
        return found

    def _name(self, missing: str, any_word: bool = False) -> str:
        token = self.token
        if token.kind not in ("name", "quoted") or (token.kind == "name" and not any_word and token.text in RESERVED):
            raise self.unexpected(missing)
        self.next += 1
        return token.text

    # --- what is different within expressions

    def whole(self) -> Syntax:
        found = super().whole()
        too_deep = below(found, DEEPEST)
        if too_deep is not None:
            raise PartRefused(too_deep.at, f"the expression is nested more than {DEEPEST} levels deep")
        return found

    def refuse_subquery(self) -> None:
        try:
            super().refuse_subquery()
        except PartRefused as refusal:
            raise PartRefused(
                refusal.at, f"{self.token.text.upper()} within an expression is not kept up", "write a join with the query in FROM"
            ) from None

    def qualified(self, token: Token) -> Syntax:
        """Behind the name, at the dot."""
        second = self.tokens[self.next + 1]
        if second.kind == "sign" and second.text == "*":
            raise PartRefused(token.at, "* is not possible: a column that is added later would change the view", "name the columns")
        if self.tokens[self.next + 2].kind == "sign" and self.tokens[self.next + 2].text in ("(", "."):
            return super().qualified(token)
        self.next += 1
        return ColumnName(token.at, self._name("a column's name is missing", any_word=True), token.text)

    def call(self, token: Token) -> Syntax:
        name, at = token.text, token.at
        if name == "row_number":
            return self._row_number(at)
        if name in _WINDOWS:
            raise PartRefused(
                at, f"{name} is not kept up", "of window functions only row_number() OVER (PARTITION BY … ORDER BY …) is"
            )
        if name in _OTHER_AGGREGATES:
            raise PartRefused(at, f"{name} is not kept up", f"the aggregates are {', '.join(sorted(AGGREGATES))}")
        if name not in AGGREGATES:
            return super().call(token)
        return self._aggregate(at, name)

    def _row_number(self, at: int) -> Syntax:
        self.demand(")")
        if not self.take("over", "("):
            raise self.unexpected("OVER (PARTITION BY … ORDER BY …) is missing")
        partition: tuple[Syntax, ...] = ()
        if self.take("partition", "by"):
            partition = self._expressions("")
        order = self._order_by() if self.take("order") else ()
        self.demand(")")
        return RowNumberCall(at, "row_number", (), partition, order)

    def _aggregate(self, at: int, name: str) -> Syntax:
        distinct = False
        arguments: tuple[Syntax, ...] = ()
        order: tuple[OrderItem, ...] = ()
        if self.take("*"):
            if name != "count":
                raise PartRefused(at, f"{name}(*) is not possible")
        elif self.ahead(")"):
            raise PartRefused(at, f"{name} needs an argument")
        else:
            distinct = self.take("distinct")
            arguments = self._expressions("")
            order = self._order_by() if self.take("order") else ()
        self.demand(")")
        if self.ahead("within"):
            raise PartRefused(self.token.at, "WITHIN GROUP is not kept up")
        condition = None
        if self.take("filter"):
            self.demand("(")
            self.demand("where")
            condition = self.whole()
            self.demand(")")
        if self.ahead("over"):
            raise PartRefused(
                at,
                f"{name} as a window function is not kept up",
                "of window functions only row_number() OVER (PARTITION BY … ORDER BY …) is",
            )
        return AggregateCall(at, name, arguments, distinct, order, condition)
