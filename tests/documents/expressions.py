"""The tables of docs/expressions.md, from the whitelist itself: ``make docs`` writes them; a test fails while they are stale."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from cdc.expressions.entry import MEANINGS, WhitelistEntry
from cdc.expressions.pgtype import NUMBERS
from cdc.expressions.whitelist import CASTS, ENTRIES, FORMS, REFUSED

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "expressions.md"
_NUMBERS: Final = frozenset(str(kind) for kind in NUMBERS)


def parts() -> dict[str, str]:
    """The generated parts by name."""
    return {
        "forms": _table(("form", "what to know"), [(_code(name), text) for name, text in FORMS.items()]),
        "entries": _table(
            ("operator or function", "takes", "gives"),
            [(_code(_shown(name)), _arguments(of), _results(of)) for name, of in sorted(ENTRIES.items())],
        ),
        "casts": _table(("from", "to"), [(source, ", ".join(f"`{kind}`" for kind in of)) for source, of in _casts().items()]),
        "refused": _table(("refused", "why", "instead"), _refused()),
        "errors": _table(("SQLSTATE", "meaning"), [(f"`{state}`", text) for state, text in MEANINGS.items()]),
    }


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def _code(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"


def _shown(name: str) -> str:
    return name.upper() if name == "like" else name.replace("unary ", "") + (" x" if name.startswith("unary") else "")


def _arguments(entries: Iterable[WhitelistEntry]) -> str:
    """The arguments that it takes. Where every number can stand it says number, and of smallint and integer, into which Postgres casts it, integer."""
    entries = list(entries)
    numbers = [{str(entry.arguments[at]) for entry in entries if len(entry.arguments) > at} & _NUMBERS for at in range(3)]
    lines: dict[str, None] = {}
    for entry in entries:
        kinds = [str(kind) for kind in entry.arguments]
        only = all(kind in _NUMBERS for kind in kinds) and not entry.constants
        for at, kind in enumerate(kinds):
            if kind in _NUMBERS:
                kinds[at] = "number" if only and numbers[at] == _NUMBERS else "integer" if kind == "smallint" else kind
        for at in entry.constants:
            kinds[at] += " constant"
        if entry.word:
            kinds[0] = "…"
        lines[", ".join(kinds) + (' with `COLLATE "C"`' if entry.collated else "")] = None
    words = ", ".join(dict.fromkeys(f"`'{entry.word}'`" for entry in entries if entry.word))
    return "; ".join(lines) + (f", where … is one of {words}" if words else "")


def _results(entries: Iterable[WhitelistEntry]) -> str:
    return ", ".join(dict.fromkeys(str(entry.result) for entry in entries))


def _casts() -> Mapping[str, list[str]]:
    found: dict[str, list[str]] = {}
    for entry in CASTS:
        found.setdefault(str(entry.arguments[0]), []).append(str(entry.result))
    return found


def _refused() -> list[tuple[str, str, str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for name, reason in REFUSED.items():
        found.setdefault(reason, []).append(name)
    return [(", ".join(_code(name) for name in names), why, instead.replace("|", "\\|")) for (why, instead), names in found.items()]
