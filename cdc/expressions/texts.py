"""The whitelist's functions of text. Pure.

Equality is that of bytes, which holds for every deterministic collation. Order and the case of letters are the collation's, so they need COLLATE "C".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow.compute as pc

from cdc.expressions.entry import NOT_A_LENGTH, NOT_A_PARAMETER, NOT_HELD, TOO_LARGE, WhitelistEntry
from cdc.expressions.pgtype import BOOL, ENUM, INT2, INT4, INT8, TEXT, UUID

_LONGEST: Final = 64 << 20
"""Bytes that a text may grow to: a row's value comes from whoever may write to the table."""


def entries() -> Iterator[WhitelistEntry]:
    yield from _comparisons()
    yield from _lengths()
    yield from _parts()
    yield from _changes()


def _comparisons() -> Iterator[WhitelistEntry]:
    for sign in ("=", "<>"):
        for kind in (TEXT, UUID, ENUM):
            yield WhitelistEntry(sign, (kind, kind), BOOL, f"{{0}} {sign} {{1}}")
    for sign in ("<", ">", "<=", ">="):
        yield WhitelistEntry(sign, (UUID, UUID), BOOL, f"{{0}} {sign} {{1}}")
        yield WhitelistEntry(sign, (TEXT, TEXT), BOOL, f"{{0}} {sign} {{1}}", collated=True)
    yield WhitelistEntry("like", (TEXT, TEXT), BOOL, "regexp_full_match({0}, {1}, 's')", constants=(1,), given=_pattern)
    yield WhitelistEntry("starts_with", (TEXT, TEXT), BOOL, "starts_with({0}, {1})")


def _lengths() -> Iterator[WhitelistEntry]:
    for name in ("length", "char_length", "character_length"):
        yield WhitelistEntry(name, (TEXT,), INT4, "CAST(length({0}) AS INTEGER)")
    yield WhitelistEntry("octet_length", (TEXT,), INT4, "CAST(strlen({0}) AS INTEGER)")
    yield WhitelistEntry("strpos", (TEXT, TEXT), INT4, "CAST(strpos({0}, {1}) AS INTEGER)")
    yield WhitelistEntry("position", (TEXT, TEXT), INT4, "CAST(strpos({0}, {1}) AS INTEGER)")


def _parts() -> Iterator[WhitelistEntry]:
    for integer in (INT2, INT4):
        start = "CAST({1} AS BIGINT)"
        first = f"greatest({start}, 1)"
        for name in ("substring", "substr"):
            yield WhitelistEntry(name, (TEXT, integer), TEXT, f"substring({{0}}, {first})", lenient=True)
            for count in (INT2, INT4):
                end = f"({start} + CAST({{2}} AS BIGINT))"
                sql = f"substring({{0}}, {first}, greatest({end} - {first}, 0))"
                yield WhitelistEntry(name, (TEXT, integer, count), TEXT, sql, (("{2} < 0", NOT_A_LENGTH),), lenient=True)
        yield WhitelistEntry("left", (TEXT, integer), TEXT, f"substring({{0}}, 1, greatest({_kept()}, 0))", lenient=True)
        kept = f"substring({{0}}, length({{0}}) - greatest(least({_kept()}, length({{0}})), 0) + 1)"
        # Of the least integer Postgres computes the negative, which overflows.
        yield WhitelistEntry("right", (TEXT, integer), TEXT, kept, (("{1} = -2147483648", NOT_HELD),), lenient=True)
    field = "CASE WHEN {1} = '' THEN CASE WHEN {2} IN (1, -1) THEN {0} ELSE '' END ELSE split_part({0}, {1}, {2}) END"
    for integer in (INT2, INT4):
        yield WhitelistEntry("split_part", (TEXT, TEXT, integer), TEXT, field, (("{2} = 0", NOT_A_PARAMETER),), lenient=True)


def _kept() -> str:
    """Characters that left and right keep: a negative number is how many they leave out."""
    return "(CASE WHEN {1} < 0 THEN length({0}) + CAST({1} AS BIGINT) ELSE CAST({1} AS BIGINT) END)"


def _changes() -> Iterator[WhitelistEntry]:
    yield WhitelistEntry("||", (TEXT, TEXT), TEXT, "{0} || {1}")
    for kind in (INT2, INT4, INT8):
        yield WhitelistEntry("||", (TEXT, kind), TEXT, "{0} || CAST({1} AS VARCHAR)")
        yield WhitelistEntry("||", (kind, TEXT), TEXT, "CAST({0} AS VARCHAR) || {1}")
    for name, function in (("btrim", "trim"), ("ltrim", "ltrim"), ("rtrim", "rtrim")):
        yield WhitelistEntry(name, (TEXT,), TEXT, f"{function}({{0}}, ' ')")
        yield WhitelistEntry(name, (TEXT, TEXT), TEXT, f"{function}({{0}}, {{1}})")
    grown = f"strlen({{0}}) * greatest(strlen({{2}}), 1) > {_LONGEST}"
    short = f"CASE WHEN NOT ({grown}) THEN {{0}} END"
    replaced = f"CASE WHEN {{1}} = '' THEN {{0}} ELSE replace({short}, {{1}}, {{2}}) END"
    yield WhitelistEntry("replace", (TEXT, TEXT, TEXT), TEXT, replaced, ((grown, TOO_LARGE),), lenient=True)
    yield WhitelistEntry("translate", (TEXT, TEXT, TEXT), TEXT, "translate({0}, {1}, {2})")
    yield WhitelistEntry("md5", (TEXT,), TEXT, "md5({0})")
    yield WhitelistEntry("lower", (TEXT,), TEXT, kernel=lambda value: (pc.ascii_lower(value), None), collated=True)
    yield WhitelistEntry("upper", (TEXT,), TEXT, kernel=lambda value: (pc.ascii_upper(value), None), collated=True)


def _pattern(constants: Sequence[Any]) -> str | None:
    pattern = constants[1]
    if pattern is not None and _escapes_nothing(pattern):
        return "the pattern ends with a backslash that escapes nothing"
    return None


def _escapes_nothing(pattern: str) -> bool:
    return bool((len(pattern) - len(pattern.rstrip("\\"))) % 2)


def regular(pattern: str) -> str:
    """LIKE's pattern as a regular expression of RE2, whose time is linear in the text: matched sign by sign, '%a%a%a%' could take for ever."""
    found = []
    signs = iter(pattern)
    for sign in signs:
        if sign == "\\":
            sign = next(signs)
        elif sign in "%_":
            found.append(".*" if sign == "%" else ".")
            continue
        found.append(f"\\x{{{ord(sign):x}}}" if not sign.isalnum() or ord(sign) > 127 else sign)
    return "".join(found)
