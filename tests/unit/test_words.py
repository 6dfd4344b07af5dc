"""Words for users and readers: the retired ones of docs/glossary.md, "Sentences", stay out of messages, pages and public docstrings."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
CODE: Final = sorted(path for room in ("cdc", "sinks", "snapshots") for path in (ROOT / room).rglob("*.py"))
PAGES: Final = sorted(
    path
    for pattern in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "docs/**/*.md", "deploy/**/*.md", "deploy/**/*.sql")
    for path in ROOT.glob(pattern)
    if path.name != "glossary.md"
)
"""All but the glossary, which has to name the words, and CHANGELOG.md, which is history."""


class Allowed(NamedTuple):
    """A longer phrase, in which a retired word is good English."""

    phrase: str
    because: str
    only_in: str = ""
    """The one file in which it is allowed; empty: everywhere."""


ALLOWED: Final = (
    Allowed("there is no", "says that a thing does not exist"),
    Allowed("is no longer", "says that something has ended"),
    Allowed("is no more than", "compares"),
    Allowed("told apart", "means distinguished"),
    Allowed("told to", "means that somebody gave an order"),
    Allowed("failed to", "OpenSearch's own words, by which its errors are recognised", "sinks/search/reasons.py"),
    Allowed("failed to", "OpenSearch's own words, by which its errors are recognised", "sinks/search/bulk.py"),
)
TERMS: Final = ("schema version",)
"""Of the glossary's right column ("Things"), those that are never right, comments and private docstrings included: the others are ordinary words, or
what somebody else's things are called."""
UNFINISHED: Final[frozenset[str]] = frozenset()
"""Rooms (``cdc/capture``) whose docstrings still begin in a retired way. It may only shrink."""


class Glossary(NamedTuple):
    """The retired words, as the table has them in its left column."""

    words: tuple[str, ...]
    openings: tuple[str, ...]
    """With which no docstring begins."""


def glossary(page: str) -> Glossary:
    table = page.partition("\n## Sentences\n")[2]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| ")][1:]
    openings = [opening for cell in cells for opening in re.findall(r'"([^"]+) …"', cell)]
    words = [word.strip() for cell in cells if "…" not in cell for word in cell.split(",")]
    return Glossary(tuple(words), tuple(openings))


GLOSSARY: Final = glossary((ROOT / "docs/glossary.md").read_text())
_OPENING: Final = re.compile(rf"({'|'.join(GLOSSARY.openings)})\b")


def retired(text: str, file: str = "") -> list[str]:
    """The retired words in the text, with a little of what stands around each."""
    text = " ".join(text.split())
    phrases = [one.phrase for one in ALLOWED if one.only_in in ("", file)]
    fine = [found.span() for phrase in phrases for found in re.finditer(rf"\b{phrase}\b", text, re.IGNORECASE)]
    return [
        f"{word!r} in …{text[max(found.start() - 40, 0) : found.end() + 40]}…"
        for word in GLOSSARY.words
        for found in re.finditer(rf"\b{word}\b", text, re.IGNORECASE)
        if not any(begin <= found.start() and found.end() <= end for begin, end in fine)
    ]


def messages(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every text in the code with a space in it, by line: errors, hints, log events, the command line's and metrics' help. Not docstrings."""
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    pieces = {id(piece) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for piece in node.values}
    for node in ast.walk(tree):
        if id(node) in bare | pieces:
            continue
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(piece.value) if isinstance(piece, ast.Constant) else "{}" for piece in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if " " in text:
            yield node.lineno, text


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Of the module, its public classes and functions, and theirs; by line."""
    if text := ast.get_docstring(tree):
        yield 1, text
    yield from _within(tree)


def _within(node: ast.Module | ast.ClassDef) -> Iterator[tuple[int, str]]:
    for inner in node.body:
        if not isinstance(inner, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or inner.name.startswith("_"):
            continue
        if text := ast.get_docstring(inner):
            yield inner.lineno, text
        if isinstance(inner, ast.ClassDef):
            yield from _within(inner)


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_messages_use_no_retired_word(path: Path) -> None:
    file = str(path.relative_to(ROOT))
    wrong = [f"{file}:{line}: {word}" for line, text in messages(ast.parse(path.read_text())) for word in retired(text, file)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_public_docstrings_are_plain(path: Path) -> None:
    file = str(path.relative_to(ROOT))
    found = list(docstrings(ast.parse(path.read_text())))
    wrong = [f"{file}:{line}: {word}" for line, text in found for word in retired(text, file)]
    if not any(file.startswith(f"{room}/") for room in UNFINISHED):
        wrong += [f"{file}:{line}: begins with {text.split()[0]!r}" for line, text in found if _OPENING.match(text)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_use_no_retired_word(path: Path) -> None:
    assert not retired(path.read_text())


def retired_terms(text: str) -> list[str]:
    text = " ".join(text.split())
    return [term for term in TERMS if re.search(rf"\b{term}s?\b", text, re.IGNORECASE)]


@pytest.mark.parametrize("path", [*CODE, *PAGES], ids=lambda path: str(path.relative_to(ROOT)))
def test_no_text_uses_a_retired_term(path: Path) -> None:
    assert not retired_terms(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("term", TERMS)
def test_a_retired_term_stands_in_the_glossary_and_is_found(term: str) -> None:
    things = (ROOT / "docs/glossary.md").read_text(encoding="utf-8").partition("\n## Sentences\n")[0]
    others = [line.strip("|").split("|")[2] for line in things.splitlines() if line.startswith("| ")]
    assert any(term in [word.strip() for word in cell.split(",")] for cell in others)
    first, _, last = term.partition(" ")
    assert retired_terms(f"The newest {first.title()}\n    {last}s of it.") == [term]


@pytest.mark.parametrize("one", ALLOWED, ids=lambda one: f"{one.phrase} {one.only_in}".strip())
def test_an_exception_contains_a_retired_word(one: Allowed) -> None:
    assert any(re.search(rf"\b{word}\b", one.phrase, re.IGNORECASE) for word in GLOSSARY.words)
    assert one.because
    assert not one.only_in or one.phrase in (ROOT / one.only_in).read_text()


def test_a_room_named_as_unfinished_is_unfinished() -> None:
    for room in UNFINISHED:
        texts = [text for path in (ROOT / room).rglob("*.py") for _, text in docstrings(ast.parse(path.read_text()))]
        assert any(_OPENING.match(text) for text in texts), f"{room} is done: take it out of UNFINISHED"


def test_the_glossary_is_read() -> None:
    assert {"anew", "told", "is no", "by and by"} <= set(GLOSSARY.words)
    assert {"Of", "What", "So many"} <= set(GLOSSARY.openings)


def test_the_test_finds_retired_words_where_users_meet_them() -> None:
    code = '''
"""Of a thing."""
log.info("the server was told")
raise ConfigError(f"{name} is no table", hint="read it anew")
def shown():
    """What is shown."""
def _kept():
    """What is kept, and told."""
text = "is no longer there" # and is no comment either
'''
    tree = ast.parse(code)
    assert [word.split(" in ")[0] for _, text in messages(tree) for word in retired(text)] == ["'told'", "'is no'", "'anew'"]
    assert [text for _, text in docstrings(tree) if _OPENING.match(text)] == ["Of a thing.", "What is shown."]
