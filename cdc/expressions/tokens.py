"""Text → tokens, by the rules of Postgres's own scanner (manual, "Lexical Structure"), as far as expressions need them. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from cdc.expressions.refusal import PartRefused

Kind = Literal["name", "quoted", "number", "text", "sign", "end"]
LONGEST: Final = 10_000
"""Characters of an expression."""


@dataclass(frozen=True, slots=True)
class Token:
    """``text``: a name as Postgres folds it, a text without its quotes, else as it is written. ``at``: characters before it."""

    kind: Kind
    text: str
    at: int


_SPACE: Final = re.compile(r"[ \t\n\r\f\v]*")
_NAME: Final = re.compile(r"[A-Za-z_\u0080-\U0010ffff][A-Za-z0-9_$\u0080-\U0010ffff]*")
_QUOTED: Final = re.compile(r'"((?:[^"]|"")*)"')
_TEXT: Final = re.compile(r"'((?:[^']|'')*)'")
_NUMBER: Final = re.compile(r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_OPERATOR: Final = re.compile(r"[-+*/<>=~!@#%^&|`?]+")
_LETTERED: Final = re.compile(r"(?i)(?:[ebxn]|u&)'")
_ASCII_UPPER: Final = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")


def tokens(text: str) -> list[Token]:
    """The tokens in order, the last of kind ``end``. Raises PartRefused."""
    if len(text) > LONGEST:
        raise PartRefused(0, f"the expression is longer than {LONGEST:,} characters")
    if "\0" in text:
        raise PartRefused(text.index("\0"), "Postgres knows no character with the number 0")
    found = []
    at = _SPACE.match(text).end()  # type: ignore[union-attr]
    while at < len(text):
        token, at = _one(text, at)
        found.append(token)
        at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
    return [*found, Token("end", "", len(text))]


def _one(text: str, at: int) -> tuple[Token, int]:
    _refuse_other_forms(text, at)
    if match := _TEXT.match(text, at):
        return Token("text", match[1].replace("''", "'"), at), match.end()
    if match := _QUOTED.match(text, at):
        return Token("quoted", match[1].replace('""', '"'), at), match.end()
    if match := _NUMBER.match(text, at):
        if _NAME.match(text, match.end()):
            raise PartRefused(at, "a number is followed by a letter", "write it with decimal digits, as 1000, 1.5 or 1e6")
        return Token("number", match[0], at), match.end()
    if match := _NAME.match(text, at):
        return Token("name", match[0].translate(_ASCII_UPPER), at), match.end()
    if text.startswith("::", at):
        return Token("sign", "::", at), at + 2
    if text[at] in "()[],.":
        return Token("sign", text[at], at), at + 1
    if match := _OPERATOR.match(text, at):
        return _operator(match[0], at)
    if text[at] in "'\"":
        raise PartRefused(at, "the quotes that begin here do not end")
    raise PartRefused(at, f"{text[at]!r} cannot stand in an expression")


def _operator(signs: str, at: int) -> tuple[Token, int]:
    """A longer operator ends in + or - only if it contains one of some signs: 5*-3 is a product."""
    for comment in ("--", "/*"):
        if comment in signs:
            raise PartRefused(at + signs.index(comment), "comments are not possible in an expression")
    while len(signs) > 1 and signs[-1] in "+-" and not set(signs) & set("~!@#%^&|`?"):
        signs = signs[:-1]
    return Token("sign", "<>" if signs == "!=" else signs, at), at + len(signs)


def _refuse_other_forms(text: str, at: int) -> None:
    if _LETTERED.match(text, at):
        raise PartRefused(
            at, "only plain quotes are possible around a text", "write 'it''s' without a letter before the first quote"
        )
    if text[at] == "$":
        if re.match(r"\$\d", text[at:]):
            raise PartRefused(at, "parameters are not possible in an expression", "write the value itself")
        raise PartRefused(at, "only plain quotes are possible around a text", "write 'text'")
    if text[at] == ";":
        raise PartRefused(at, "this is one expression, not a statement", "leave the semicolon out")
