"""Tokens → syntax, with the precedences of Postgres's grammar (gram.y), lowest first:

OR · AND · NOT · IS · comparisons · BETWEEN IN LIKE · other operators · + - · * / % · ^ · AT TIME ZONE · COLLATE · sign · ::

Written by hand, because a place is needed for every operator, and because general SQL parsers take what Postgres refuses (``a < b < c``, ``x == y``)
and rewrite what they have read. A test has Postgres parse the same texts. Pure.
"""

from __future__ import annotations

from typing import Final

from cdc.expressions.refusal import PartRefused
from cdc.expressions.syntax import (
    Array,
    Case,
    Cast,
    Collated,
    FunctionCall,
    Name,
    NumberLiteral,
    Operation,
    Quoted,
    Syntax,
    Truth,
    below,
)
from cdc.expressions.tokenreader import RESERVED, TokenReader, shown
from cdc.expressions.tokens import Token, tokens

DEEPEST: Final = 60
"""Parentheses, calls and operators within each other; in a + b + c the first sum stands within the second."""
MOST_TOKENS: Final = 1000

_OR, _AND, _NOT, _IS, _COMPARED, _AMONG, _OTHER, _ADDED, _MULTIPLIED, _POWER, _ZONE, _COLLATION, _SIGN, _TYPED = range(1, 15)

_COMPARISONS: Final = frozenset({"<", ">", "=", "<=", ">=", "<>"})
_LEFT: Final = {"+": _ADDED, "-": _ADDED, "*": _MULTIPLIED, "/": _MULTIPLIED, "%": _MULTIPLIED, "^": _POWER}
_TYPED_WORDS: Final = frozenset(
    [
        "bool",
        "boolean",
        "smallint",
        "int2",
        "integer",
        "int",
        "int4",
        "bigint",
        "int8",
        "real",
        "float4",
        "float8",
        "float",
        "numeric",
        "decimal",
        "dec",
        "text",
        "varchar",
        "uuid",
        "date",
        "timestamp",
        "timestamptz",
        "time",
        "timetz",
        "interval",
        "json",
        "jsonb",
        "bytea",
        "double",
        "character",
        "char",
        "bit",
    ]
)
_SETTINGS: Final = frozenset(
    [
        "current_date",
        "current_time",
        "current_timestamp",
        "localtime",
        "localtimestamp",
        "current_user",
        "session_user",
        "current_role",
        "current_catalog",
        "current_schema",
        "user",
        "system_user",
    ]
)


BEFORE: Final = "old."
"""Begins the name of a column of the row before a change, which a condition on changes sees."""
CHANGED: Final = "changed."
"""Begins the name of what says whether a change has given a column another value."""


def parsed(text: str) -> Syntax:
    """The syntax of one expression. Raises PartRefused."""
    found = tokens(text)
    if len(found) > MOST_TOKENS:
        raise PartRefused(found[MOST_TOKENS].at, f"the expression has more than {MOST_TOKENS:,} words and signs")
    parser = Parser(found)
    if found[0].kind == "end":
        raise PartRefused(0, "the expression is empty")
    syntax = parser.whole()
    parser.end()
    too_deep = below(syntax, DEEPEST)
    if too_deep is not None:
        raise _too_deep(too_deep.at)
    return syntax


class Parser(TokenReader):
    """Reads expressions from its tokens, one after the other."""

    def __init__(self, found: list[Token]) -> None:
        super().__init__(found)
        self._depth = 0

    def end(self) -> None:
        token = self.token
        if token.kind == "end":
            return
        if token.text in ("over", "filter", "within"):
            raise PartRefused(token.at, "window functions and aggregates are not possible: an expression sees one row")
        if token.text == "[":
            raise PartRefused(token.at, "subscripts are not possible")
        if token.text in _COMPARISONS or token.text == "is":
            raise PartRefused(token.at, f"{token.text.upper()} cannot follow another one without parentheses", "write (a = b) = c")
        raise PartRefused(token.at, f"{shown(token)} is not expected here")

    # --- operators

    def whole(self) -> Syntax:
        """An expression of any operators."""
        return self.expression(_OR)

    def expression(self, least: int) -> Syntax:
        """An expression of operators that bind at least as tightly."""
        self._depth += 1
        if self._depth > DEEPEST:
            raise _too_deep(self.token.at)
        left, bound = self._prefix(least)
        while (more := self._infix(left, least, bound)) is not None:
            left, bound = more
        self._depth -= 1
        return left

    def _prefix(self, least: int) -> tuple[Syntax, int]:
        token = self.token
        if self.ahead("not") and least <= _NOT:
            self.next += 1
            return Operation(token.at, "not", (self.expression(_NOT),)), _NOT
        if token.kind == "sign" and token.text in ("+", "-"):
            self.next += 1
            operand = self.expression(_SIGN)
            if isinstance(operand, NumberLiteral):  # Postgres, too, makes one constant of it: -9223372036854775808 is a bigint
                negative = operand.text[1:] if operand.text.startswith("-") else "-" + operand.text
                return (NumberLiteral(token.at, negative) if token.text == "-" else operand), _SIGN
            return Operation(token.at, f"unary {token.text}", (operand,)), _SIGN
        return self._postfix(self._primary()), _TYPED

    def _postfix(self, value: Syntax) -> Syntax:
        while True:
            at = self.token.at
            if self.take("::"):
                value = Cast(at, value, *self.type_name())
            elif self.ahead("["):
                raise PartRefused(at, "subscripts are not possible")
            else:
                return value

    def _infix(self, left: Syntax, least: int, bound: int) -> tuple[Syntax, int] | None:
        """The operation that ``left`` is the first operand of. ``bound``: how tightly what made ``left`` binds."""
        token = self.token
        if token.kind not in ("name", "sign"):
            return None
        word = token.text
        if word in ("or", "and"):
            level = _OR if word == "or" else _AND
            if level < least:
                return None
            return self._chain(left, word, level), level
        if token.kind == "name":
            return self._worded(left, least, bound)
        if word in _COMPARISONS:
            if least > _COMPARED or bound == _COMPARED:
                return None
            self.next += 1
            return self._compared(left, word, token.at), _COMPARED
        if word in _LEFT or word[0] in "+-*/<>=~!@#%^&|`?":
            level = _LEFT.get(word, _OTHER)
            if level < least:
                return None
            self.next += 1
            return Operation(token.at, word, (left, self.expression(level + 1))), level
        return None

    def _chain(self, left: Syntax, word: str, level: int) -> Syntax:
        at = self.token.at
        operands = [left]
        while self.take(word):
            operands.append(self.expression(level + 1))
        return Operation(at, word, tuple(operands))

    def _compared(self, left: Syntax, word: str, at: int) -> Syntax:
        for quantifier in ("any", "some", "all"):
            if self.take(quantifier, "("):
                self.refuse_subquery()
                array = self.expression(_OR)
                self.demand(")")
                return Operation(at, f"{'all' if quantifier == 'all' else 'any'} {word}", (left, array))
        return Operation(at, word, (left, self.expression(_COMPARED + 1)))

    def _worded(self, left: Syntax, least: int, bound: int) -> tuple[Syntax, int] | None:
        at = self.token.at
        if self.ahead("is") or self.ahead("isnull") or self.ahead("notnull"):
            return None if least > _IS or bound == _IS else (self._tested(left), _IS)
        if self.ahead("collate"):
            return None if least > _COLLATION else (self._collated(left), _COLLATION)
        if self.ahead("at", "time", "zone"):
            if least > _ZONE:
                return None
            self.next += 3
            return FunctionCall(at, "timezone", (self.expression(_ZONE + 1), left)), _ZONE
        negated = self.ahead("not")
        word = self.tokens[self.next + negated].text if self.token.kind == "name" else ""
        if word not in ("between", "in", "like", "ilike", "similar") or least > _AMONG or bound == _AMONG:
            return None
        self.next += 1 + negated
        found = self._among(left, word, at)
        return (Operation(at, "not", (found,)) if negated else found), _AMONG

    def _among(self, left: Syntax, word: str, at: int) -> Syntax:
        if word == "between":
            if self.take("symmetric"):
                raise PartRefused(at, "BETWEEN SYMMETRIC is not possible", "write x BETWEEN least(a, b) AND greatest(a, b)")
            self.take("asymmetric")
            low = self.expression(_OTHER)
            self.demand("and")
            return Operation(at, "between", (left, low, self.expression(_AMONG + 1)))
        if word == "in":
            self.demand("(")
            self.refuse_subquery()
            return Operation(at, "in", (left, *self._list(")")))
        if word == "like":
            pattern = self.expression(_AMONG + 1)
            if self.ahead("escape"):
                raise PartRefused(self.token.at, "ESCAPE is not possible", "escape % and _ with a backslash")
            return Operation(at, "like", (left, pattern))
        if word == "ilike":
            raise PartRefused(
                at,
                "ILIKE depends on the database's collation",
                "write lower(x COLLATE \"C\") LIKE 'abc%', which changes ASCII letters only",
            )
        raise PartRefused(at, "SIMILAR TO is not possible", "write LIKE, or several of them with OR")

    def _tested(self, left: Syntax) -> Syntax:
        at = self.token.at
        if self.take("isnull"):
            return Operation(at, "is null", (left,))
        if self.take("notnull"):
            return Operation(at, "is not null", (left,))
        self.demand("is")
        negated = "not " if self.take("not") else ""
        for word in ("null", "true", "false", "unknown"):
            if self.take(word):
                return Operation(at, f"is {negated}{'null' if word == 'unknown' else word}", (left,))
        if self.take("distinct", "from"):
            return Operation(at, f"is {negated}distinct from", (left, self.expression(_IS + 1)))
        raise self.unexpected("NULL, TRUE, FALSE, UNKNOWN or DISTINCT FROM is missing")

    def _collated(self, left: Syntax) -> Syntax:
        at = self.token.at
        self.demand("collate")
        name = self.token
        self.next += 1
        if name.kind not in ("quoted", "name") or name.text not in ("C", "POSIX"):
            raise PartRefused(
                name.at, 'of the collations only "C" is possible, which is the same on every server', 'write COLLATE "C"'
            )
        return Collated(at, left)

    # --- what operators stand between

    def _primary(self) -> Syntax:
        token = self.token
        if token.kind == "end":
            raise PartRefused(token.at, "a value is missing at the end")
        if token.kind == "number":
            self.next += 1
            return NumberLiteral(token.at, token.text)
        if token.kind == "text":
            self.next += 1
            return Quoted(token.at, token.text)
        if self.take("("):
            self.refuse_subquery()
            inner = self.expression(_OR)
            if self.ahead(","):
                raise PartRefused(token.at, "row values are not possible", "compare column by column")
            self.demand(")")
            return inner
        if token.kind in ("name", "quoted"):
            return self._named(token)
        raise PartRefused(token.at, f"a value is missing before {shown(token)}")

    def _named(self, token: Token) -> Syntax:
        self.refuse_subquery()
        if token.kind == "name":
            found = self._keyword(token)
            if found is not None:
                return found
        self.next += 1
        if self.ahead("."):
            if self.take(".", "*"):
                raise PartRefused(token.at, "* is not possible: name the column")
            return self.qualified(token)
        if self.take("("):
            return self.call(token)
        if self.token.kind == "text" and token.kind == "name":
            self.next -= 1
            if token.text in _TYPED_WORDS:
                name, modifiers = self.type_name()
                value = self._primary()
                return Cast(token.at, value, name, modifiers)
            self.next += 1
        if token.kind == "name" and token.text in RESERVED:
            raise PartRefused(
                token.at, f"{token.text.upper()} is not expected here", f'a column of that name is written "{token.text}"'
            )
        return Name(token.at, token.text)

    def qualified(self, token: Token) -> Syntax:
        """The meaning of a name that stands before a dot."""
        self.next += 1
        second = self.token
        self.next += 1
        if self.take("("):
            if token.text != "pg_catalog":
                raise PartRefused(token.at, "functions of the database's own are not possible", "use Postgres's own functions")
            return self.call(second)
        if token.text == "old" and second.kind in ("name", "quoted"):
            return Name(token.at, BEFORE + second.text)
        raise PartRefused(token.at, "an expression sees one row's columns", f"write {second.text} alone")

    def _keyword(self, token: Token) -> Syntax | None:
        word, at = token.text, token.at
        if word in ("true", "false"):
            self.next += 1
            return Truth(at, word == "true")
        if word == "null":
            self.next += 1
            return Quoted(at, None)
        if word == "case":
            self.next += 1
            return self._case(at)
        if self.take("array"):
            if not self.take("["):
                self.demand("(")
                self.refuse_subquery()
                raise PartRefused(at, "subqueries are not possible: an expression sees one row")
            return Array(at, self._list("]"))
        if self.take("cast", "("):
            value = self.expression(_OR)
            self.demand("as")
            name, modifiers = self.type_name()
            self.demand(")")
            return Cast(at, value, name, modifiers)
        if word in _SETTINGS:
            raise PartRefused(
                at, f"{word} is not the same for everybody who asks, or at every time", "an expression may only depend on the row"
            )
        return None

    def _case(self, at: int) -> Syntax:
        operand = None if self.ahead("when") else self.expression(_OR)
        whens = []
        while True:
            place = self.token.at
            if not self.take("when"):
                break
            condition = self.expression(_OR)
            self.demand("then")
            if operand is not None:
                condition = Operation(place, "=", (operand, condition))
            whens.append((condition, self.expression(_OR)))
        if not whens:
            raise self.unexpected("WHEN is missing")
        otherwise = self.expression(_OR) if self.take("else") else Quoted(self.token.at, None)
        self.demand("end")
        return Case(at, tuple(whens), otherwise)

    def call(self, token: Token) -> Syntax:
        """A function's call, behind the opening parenthesis."""
        name, at = token.text, token.at
        if self.take("*", ")"):
            raise PartRefused(at, f"{name}(*) is an aggregate: an expression sees one row")
        if self.ahead("distinct") or self.ahead("variadic"):
            raise PartRefused(self.token.at, f"{self.token.text.upper()} is not possible here")
        if name == "extract" and token.kind == "name":
            return self._extract(at)
        if name == "trim" and token.kind == "name":
            return self._trim(at)
        if name == "changed" and token.kind == "name":
            return self._changed(at)
        arguments = self._list_of_call(name)
        if self.ahead("over") or self.ahead("filter", "(") or self.ahead("within"):
            raise PartRefused(at, f"{name} is a window function or an aggregate here: an expression sees one row")
        return FunctionCall(at, name, arguments)

    def _changed(self, at: int) -> Syntax:
        found = () if self.take(")") else self._list(")")
        if not found or not all(isinstance(one, Name) and not one.name.startswith(BEFORE) for one in found):
            raise PartRefused(at, "changed takes the names of columns", "write changed(status, amount)")
        names = tuple(Name(one.at, CHANGED + one.name) for one in found if isinstance(one, Name))
        return names[0] if len(names) == 1 else Operation(at, "or", names)

    def _list_of_call(self, name: str) -> tuple[Syntax, ...]:
        if self.take(")"):
            return ()
        self.refuse_subquery()
        first = self.expression(_AMONG + 1 if name == "position" else _OR)
        if name == "position" and self.take("in"):
            whole = self.expression(_AMONG + 1)
            self.demand(")")
            return whole, first
        if name == "position":
            raise self.unexpected("IN is missing")
        if name == "substring" and (self.ahead("from") or self.ahead("for") or self.ahead("similar")):
            return self._substring(first)
        if self.take(","):
            return first, *self._list(")")
        self.demand(")")
        return (first,)

    def _substring(self, whole: Syntax) -> tuple[Syntax, ...]:
        if self.ahead("similar"):
            raise PartRefused(self.token.at, "SUBSTRING … SIMILAR is not possible")
        start: Syntax = NumberLiteral(self.token.at, "1")
        if self.take("from"):
            start = self.expression(_OR)
        found = (whole, start)
        if self.take("for"):
            found = (*found, self.expression(_OR))  # type: ignore[assignment]
        self.demand(")")
        return found

    def _extract(self, at: int) -> Syntax:
        field = self.token
        if field.kind not in ("name", "text", "quoted"):
            raise self.unexpected("the field to extract is missing")
        self.next += 1
        self.demand("from")
        value = self.expression(_OR)
        self.demand(")")
        return FunctionCall(at, "extract", (Quoted(field.at, field.text), value))

    def _trim(self, at: int) -> Syntax:
        name = next(
            (made for side, made in (("both", "btrim"), ("leading", "ltrim"), ("trailing", "rtrim")) if self.take(side)), "btrim"
        )
        if self.take("from"):
            return FunctionCall(at, name, self._list(")"))
        first = self.expression(_OR)
        if self.take("from"):
            return FunctionCall(at, name, (*self._list(")"), first))
        if self.take(","):
            return FunctionCall(at, name, (first, *self._list(")")))
        self.demand(")")
        return FunctionCall(at, name, (first,))

    def _list(self, end: str) -> tuple[Syntax, ...]:
        """At least one, and the closing sign."""
        found = [self.expression(_OR)]
        while self.take(","):
            found.append(self.expression(_OR))
        self.demand(end)
        return tuple(found)


def _too_deep(at: int) -> PartRefused:
    return PartRefused(
        at, f"the expression is nested more than {DEEPEST} levels deep", "of many sums in a row put parentheses around some"
    )
