"""Which of the entries of one name Postgres would choose, by the types of the arguments. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cdc.expressions.casts import IMPLICIT
from cdc.expressions.entry import WhitelistEntry
from cdc.expressions.pgtype import FLOAT8, TEXT, UNKNOWN
from cdc.expressions.refusal import PartRefused, near
from cdc.expressions.term import Term
from cdc.expressions.whitelist import ENTRIES, REFUSED, WORDS_OF_FORMS


def unknown(at: int, name: str) -> PartRefused:
    if name in REFUSED:
        why, instead = REFUSED[name]
        return PartRefused(at, f"{spelled(name)} is not possible: {why}", instead)
    known = [one for one in (*ENTRIES, *WORDS_OF_FORMS) if one[0].isalpha()]
    return PartRefused(
        at,
        f"{spelled(name)} is not one of the functions that an expression may use",
        near(name, known) or "docs/expressions.md has them all",
    )


def spelled(name: str) -> str:
    """An operator or function for people."""
    return name.upper() if name == "like" else name.removeprefix("unary ")


def chosen_entry(at: int, name: str, terms: Sequence[Term]) -> WhitelistEntry:
    """The entry that Postgres would choose (manual, "Type Conversion"): the most exact types, then the preferred ones."""
    fitting = [(_rank(entry, terms), entry) for entry in ENTRIES[name] if _fits(entry, terms)]
    if not fitting:
        raise _no_entry(at, name, terms)
    best = max(rank for rank, _ in fitting)
    chosen = [entry for rank, entry in fitting if rank == best]
    if len(chosen) > 1:
        raise PartRefused(at, f"{spelled(name)} could mean several types here", "cast the constant, as in '1'::integer")
    return chosen[0]


def _fits(entry: WhitelistEntry, terms: Sequence[Term]) -> bool:
    if len(entry.arguments) != len(terms):
        return False
    for number, (kind, term) in enumerate(zip(entry.arguments, terms, strict=True)):
        if entry.word and number == 0:
            if not (term.is_constant and term.type in (UNKNOWN, TEXT) and str(term.constant).lower() == entry.word.lower()):
                return False
        elif term.type is not UNKNOWN and term.type.name != kind.name and (term.type, kind) not in IMPLICIT:
            bare = replace(term.type, bounds=None)
            if (bare, kind) not in IMPLICIT:
                return False
    return True


def _rank(entry: WhitelistEntry, terms: Sequence[Term]) -> tuple[int, int, int]:
    known = [term.type.name for term in terms if term.type is not UNKNOWN]
    exact = cast = same = 0
    for kind, term in zip(entry.arguments, terms, strict=True):
        if term.type is UNKNOWN:
            # An unknown operand is first taken for the other one's type, and else for a text.
            same += 2 * (len(terms) == 2 and kind.name in known) + (kind is TEXT)
        elif kind.name == term.type.name:
            exact += 1
        elif kind is FLOAT8:
            cast += 1
    return exact, cast, same


def _no_entry(at: int, name: str, terms: Sequence[Term]) -> PartRefused:
    kinds = [str(term.type) if term.type is not UNKNOWN else "a constant" for term in terms]
    words = sorted({entry.word for entry in ENTRIES[name] if entry.word})
    shown = f"{spelled(name)} of {' and '.join(kinds)}" if kinds else f"{name}()"
    if words:
        return PartRefused(
            at,
            f"{shown} is not possible",
            f"the first argument is one of {', '.join(words)}; of a timestamptz write AT TIME ZONE 'UTC' first",
        )
    own = next((term.type for term in terms if term.type.name in ("own", "opaque")), None)
    if own is not None and own.name == "own":
        return PartRefused(at, f"{shown} is not possible: {own} is a type of the database's own", "cast it, as in x::text = 'a'")
    return PartRefused(
        at, f"{shown} is not one of the operators and functions that an expression may use", "docs/expressions.md has them all"
    )
