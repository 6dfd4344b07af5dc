"""How wide a function or a class may be: what a reader has to hold in mind at once. Exceptions are listed, and may only shrink."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = sorted(path for room in ("cdc", "sinks", "snapshots") for path in (ROOT / room).rglob("*.py"))

PARAMETERS = 8
"""The most that a function takes, beside ``self``."""
ATTRIBUTES = 12
"""The most that an instance holds."""

WIDE_FUNCTIONS = {}
"""Functions that are wider today, each with its number of parameters."""

WIDE_CLASSES = {
    # The facts of one topic, and of one field of it, each of which somebody else asks for.
    ("cdc.log.contract", "Topic"): 13,
    ("cdc.model.topic", "TopicField"): 13,
    # These are JSON objects, with one attribute for each key; nothing takes a part of one. The reports are documented (``cdc status --json``, /v1/status),
    # the statuses are the files that the parts write.
    ("snapshots.progress", "Record"): 13,
    ("sinks.deadletters", "Letter"): 13,
    ("sinks.cache.ledger", "CacheLedger"): 13,
    ("cdc.report.shape", "CaptureReport"): 16,
    ("cdc.report.shape", "FollowerReport"): 19,
    ("cdc.report.shape", "ViewReport"): 20,
    ("cdc.report.shape", "Report"): 13,
    ("cdc.state.status", "CaptureStatus"): 22,
    ("cdc.state.status", "FollowerStatus"): 16,
    ("cdc.state.status", "ViewStatus"): 26,
}
"""Classes that are wider today, each with its number of attributes."""

Widths = dict[tuple[str, str], int]
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def parameters(function: _Function) -> int:
    every = function.args
    names = [one.arg for one in (*every.posonlyargs, *every.args, *every.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def attributes(a_class: ast.ClassDef) -> int:
    """Fields that the class declares, and whatever its methods set on ``self``."""
    names = {
        node.target.id
        for node in a_class.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and "ClassVar" not in ast.unparse(node.annotation)
    }
    for node in ast.walk(a_class):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            names.add(node.attr)
    return len(names)


def _named(node: ast.AST, within: str = "") -> Iterator[tuple[str, ast.ClassDef | _Function]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | _Function):
            name = f"{within}{child.name}"
            yield name, child
            yield from _named(child, f"{name}.")
        else:
            yield from _named(child, within)


def widths(tree: ast.Module, module: str) -> tuple[Widths, Widths]:
    """Functions by how many parameters they take, classes by how many attributes their instances have."""
    functions: Widths = {}
    classes: Widths = {}
    for name, node in _named(tree):
        if isinstance(node, ast.ClassDef):
            classes[module, name] = attributes(node)
        else:
            functions[module, name] = max(parameters(node), functions.get((module, name), 0))
    return functions, classes


@pytest.fixture(scope="module")
def house() -> tuple[Widths, Widths]:
    functions: Widths = {}
    classes: Widths = {}
    for path in CODE:
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        some_functions, some_classes = widths(ast.parse(path.read_text(encoding="utf-8")), module)
        functions |= some_functions
        classes |= some_classes
    return functions, classes


def test_the_counts_are_those_of_a_reader() -> None:
    text = """
class Wide:
    shared: ClassVar[int] = 0
    a: int
    def __init__(self, a, /, b, *, c=1): self.b, self.c = b, c
    def move(self):
        other.d = 1
        self.e += 1
        def inner(x, y): pass
"""
    functions, classes = widths(ast.parse(text), "m")
    assert functions == {("m", "Wide.__init__"): 3, ("m", "Wide.move"): 0, ("m", "Wide.move.inner"): 2}
    assert classes == {("m", "Wide"): 4}


def test_no_function_takes_more_than_a_reader_can_hold(house: tuple[Widths, Widths]) -> None:
    assert_as_listed(house[0], WIDE_FUNCTIONS, PARAMETERS)


def test_no_class_holds_more_than_a_reader_can(house: tuple[Widths, Widths]) -> None:
    assert_as_listed(house[1], WIDE_CLASSES, ATTRIBUTES)


def test_an_exception_may_only_shrink() -> None:
    at_most_two = 2
    for listed in ({}, {("m", "f"): 3}, {("m", "f"): 5}, {("m", "f"): 4, ("m", "g"): 3}, {("m", "f"): 4, ("m", "gone"): 3}):
        with pytest.raises(AssertionError):
            assert_as_listed({("m", "f"): 4, ("m", "g"): 2}, listed, at_most_two)
    assert_as_listed({("m", "f"): 4, ("m", "g"): 2}, {("m", "f"): 4}, at_most_two)


def assert_as_listed(found: Widths, listed: Widths, most: int) -> None:
    """The exceptions are exactly what is wider than ``most``, with the widths they have."""
    wide = {name: width for name, width in found.items() if width > most}
    grown = {name: width for name, width in wide.items() if width > listed.get(name, most)}
    assert not grown, f"wider than {most}, or than the table says: take it apart by idea"
    shrunk = {name: (width, found.get(name, 0)) for name, width in listed.items() if wide.get(name, 0) < width}
    assert not shrunk, "narrower than the table says (there, here): correct the number, or remove the line"
