"""A class has a name of its own in the whole house; modules are nouns, and no two in a room differ by an ending only. Exceptions may only shrink."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable
from itertools import combinations
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CODE = sorted(path for room in ("cdc", "sinks", "snapshots") for path in (ROOT / room).rglob("*.py"))

SHARED = {
    "Options": 9,
}
"""Names that several classes have today, with how many."""

NOUNS = {"beginning", "feed", "holding", "mapping", "meaning", "standing"}
"""They look like participles; a standing is what an index, or a writer, knows of how far a store is."""

ENDINGS = ("ations", "ation", "ions", "ion", "ings", "ing", "ers", "er", "ors", "or", "ed", "es", "s", "ment", "able", "y")


def class_names(trees: Iterable[ast.Module]) -> dict[str, int]:
    """Names that more than one of the modules' classes have, with how many."""
    counted = Counter(node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef))
    return {name: count for name, count in counted.items() if count > 1}


def stem(name: str) -> str:
    for ending in ENDINGS:
        if name.endswith(ending) and len(name) - len(ending) > 2:
            return name.removesuffix(ending).rstrip("e")
    return name.rstrip("e")


def alike(names: Iterable[str]) -> set[tuple[str, str]]:
    return {(one, other) for one, other in combinations(sorted(names), 2) if stem(one) == stem(other)}


def test_the_counting() -> None:
    assert class_names(ast.parse(text) for text in ("class A: ...\nclass B: ...", "class A: ...", "x = 1")) == {"A": 2}
    assert alike(["asked", "asking", "group", "groups", "publication", "published", "server", "table"]) >= {
        ("asked", "asking"),
        ("group", "groups"),
    }
    assert not alike(["plan", "planets", "state", "status", "slot", "sight"])


def test_no_two_classes_share_a_name() -> None:
    found = class_names(ast.parse(path.read_text(encoding="utf-8")) for path in CODE)
    assert not {name: count for name, count in found.items() if count > SHARED.get(name, 1)}, "give the new one a name of its own"
    gone = {name: count for name, count in SHARED.items() if found.get(name, 1) < count}
    assert not gone, "shared by fewer than the table says: correct the number, or remove the line"


def test_modules_are_nouns() -> None:
    found = {str(path.relative_to(ROOT)) for path in CODE if path.stem.endswith(("ing", "ed")) and path.stem not in NOUNS}
    assert not found, "call the module after what it holds"


def test_no_two_modules_of_a_room_differ_by_an_ending_only() -> None:
    rooms: dict[Path, set[str]] = {}
    for path in CODE:
        name, room = (path.parent.name, path.parent.parent) if path.stem == "__init__" else (path.stem, path.parent)
        rooms.setdefault(room.relative_to(ROOT), set()).add(name)
    found = {(str(room), one, other) for room, names in rooms.items() for one, other in alike(names)}
    assert not found, "a reader takes one for the other"
