"""Tokens one after the other: what the parser asks of them, and the names of types. Pure."""

from __future__ import annotations

from typing import Final

from cdc.expressions.refusal import PartRefused
from cdc.expressions.tokens import Token

RESERVED: Final = frozenset(
    [
        "all",
        "analyse",
        "analyze",
        "and",
        "any",
        "array",
        "as",
        "asc",
        "asymmetric",
        "both",
        "case",
        "cast",
        "check",
        "collate",
        "column",
        "constraint",
        "create",
        "default",
        "deferrable",
        "desc",
        "distinct",
        "do",
        "else",
        "end",
        "except",
        "fetch",
        "for",
        "foreign",
        "from",
        "grant",
        "group",
        "having",
        "in",
        "initially",
        "intersect",
        "into",
        "lateral",
        "leading",
        "limit",
        "not",
        "offset",
        "on",
        "only",
        "or",
        "order",
        "placement",
        "primary",
        "references",
        "returning",
        "select",
        "some",
        "symmetric",
        "table",
        "then",
        "to",
        "trailing",
        "union",
        "unique",
        "user",
        "using",
        "variadic",
        "when",
        "where",
        "window",
        "with",
    ]
)


class TokenReader:
    """The tokens of an expression, of which ``next`` is the one to be looked at."""

    def __init__(self, found: list[Token]) -> None:
        self.tokens = found
        self.next = 0

    @property
    def token(self) -> Token:
        return self.tokens[self.next]

    def ahead(self, *words: str) -> bool:
        """Whether the next tokens are these keywords and signs."""
        found = self.tokens[self.next : self.next + len(words)]
        return len(found) == len(words) and all(
            one.kind in ("name", "sign") and one.text == word for one, word in zip(found, words, strict=True)
        )

    def take(self, *words: str) -> bool:
        if not self.ahead(*words):
            return False
        self.next += len(words)
        return True

    def demand(self, word: str) -> None:
        if not self.take(word):
            raise self.unexpected(f"{word.upper()} is missing")

    def unexpected(self, message: str) -> PartRefused:
        token = self.token
        where = "at the end" if token.kind == "end" else f"before {shown(token)}"
        return PartRefused(token.at, f"{message} {where}")

    def type_name(self) -> tuple[str, tuple[int, ...]]:
        token = self.token
        if token.kind not in ("name", "quoted"):
            raise self.unexpected("the name of a type is missing")
        self.next += 1
        name = token.text
        if name == "pg_catalog" and self.take("."):
            name = self.token.text
            self.next += 1
        if name in ("double", "character", "bit") and self.token.text in ("precision", "varying"):
            name = f"{name} {self.token.text}"
            self.next += 1
        modifiers = self.modifiers()
        if name in ("timestamp", "time"):
            for word in ("with", "without"):
                if self.take(word, "time", "zone"):
                    name = f"{name} {word} time zone"
        if self.ahead("[") or self.ahead("array"):
            raise PartRefused(self.token.at, "casts to arrays are not possible")
        return name, modifiers

    def modifiers(self) -> tuple[int, ...]:
        if not self.take("("):
            return ()
        found = []
        while True:
            sign = -1 if self.take("-") else 1
            if self.token.kind != "number" or not self.token.text.isdigit() or len(self.token.text) > 6:
                raise self.unexpected("a whole number is missing")
            found.append(sign * int(self.token.text))
            self.next += 1
            if not self.take(","):
                self.demand(")")
                return tuple(found)

    def refuse_subquery(self) -> None:
        token = self.token
        if token.kind == "name" and token.text in ("select", "with", "values", "table", "exists"):
            if token.text == "exists" and self.tokens[self.next + 1].text != "(":
                return
            if token.text == "values" and self.tokens[self.next + 1].text != "(":
                return
            raise PartRefused(token.at, "subqueries are not possible: an expression sees one row")


def shown(token: Token) -> str:
    return f"'{token.text[:20]}'" if token.kind == "text" else (token.text.upper() if token.text in RESERVED else token.text)
