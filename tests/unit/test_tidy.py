"""The house rules that a program can check (CONTRIBUTING.md, "How the code is written")."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = sorted(path for room in ("cdc", "sinks", "snapshots") for path in (ROOT / room).rglob("*.py"))
MODELS = sorted(
    path
    for path in (ROOT / "tests").rglob("*.py")
    if not path.name.startswith("test_") and ROOT / "tests/cases/entries" not in path.parents
)
"""What tests are made with. Files of tests and tables of cases are lists, which may be long."""
TEXT = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "deploy/**/*", "cdc/**/*.py", "sinks/**/*.py", "snapshots/**/*.py", "tests/**/*.py", "bench/**/*.py", "Makefile", "*.toml", "*.yml")
    for path in ROOT.glob(pattern)
    if path.is_file() and path.resolve() != Path(__file__).resolve()
)  # fmt: skip
VAGUE = {"utils", "util", "common", "helpers", "helper", "manager", "misc", "base"}
STANDARD = {"types", "logging", "redis", "json", "queue", "select", "signal", "time", "typing"}
MODULE_LINES = 500
FUNCTION_LINES = 70


def test_there_is_something_to_look_at() -> None:
    assert len(CODE) > 50
    assert len(TEXT) > 100


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_is_one_idea_with_a_name(path: Path) -> None:
    name = path.stem.lstrip("_")
    assert name not in VAGUE
    assert name not in STANDARD or path.parent.name in ("commands",), "named like a library that it stands near"
    assert len(path.read_text().splitlines()) <= MODULE_LINES


@pytest.mark.parametrize("path", MODELS, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_tests_are_made_with_is_one_idea_too(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MODULE_LINES


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_says_what_it_is_for_and_its_functions_fit_on_a_screen(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree) or not tree.body, "the module has no docstring"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            compiled = any("kernel" in ast.dump(decorator) for decorator in node.decorator_list)
            assert compiled or (node.end_lineno or 0) - node.lineno < FUNCTION_LINES, f"{node.name} is too long"


@pytest.mark.parametrize("path", TEXT, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_text_carries_a_machine_or_a_registry(path: Path) -> None:
    text = path.read_text(errors="replace")
    for pattern in (
        r"/root/",
        r"/work/",
        r"pypi\.org",
        r"files\.pythonhosted",
        r"repo1?\.maven",
        r"registry\.npmjs",
        r"\bTODO\b",
        r"\bFIXME\b",
    ):
        assert not re.search(pattern, text), pattern


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_text_is_utf8_whatever_the_locale(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        named = {keyword.arg: keyword.value for keyword in node.keywords}
        if name in ("read_text", "write_text"):
            assert "encoding" in named, f"line {node.lineno}: {name} without encoding"
        elif name == "open" and (isinstance(node.func, ast.Name) or _reads_text(node)):
            mode = node.args[-1] if len(node.args) > (1 if isinstance(node.func, ast.Name) else 0) else named.get("mode")
            text = mode is None or (isinstance(mode, ast.Constant) and isinstance(mode.value, str) and "b" not in mode.value)
            assert not text or "encoding" in named, f"line {node.lineno}: open without encoding"
        assert "text" not in named or name != "run" or "encoding" in named, (
            f"line {node.lineno}: text of a process without encoding"
        )


def imported(folder: Path) -> dict[str, set[str]]:
    """The folder's modules, each with those of them that it imports, be it inside a function."""
    names = {path: f"{folder.name}.{path.stem}" for path in sorted(folder.glob("*.py"))}
    found: dict[str, set[str]] = {name: set() for name in names.values()}
    for path, name in names.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found[name] |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                module = node.module or "" if not node.level else ".".join(filter(None, (folder.name, node.module)))
                found[name] |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return {name: theirs & found.keys() - {name} for name, theirs in found.items()}


def test_benchmarks_do_not_import_each_other_in_a_circle() -> None:
    found = imported(ROOT / "bench")
    assert "bench.workloads" in found["bench.capture"]
    TopologicalSorter(found).prepare()


@pytest.mark.parametrize(
    "back", ["from room.one import A", "from room import one", "import room.one", "from . import one", "from .one import A"]
)
def test_a_circle_is_found_wherever_the_import_stands(tmp_path: Path, back: str) -> None:
    room = tmp_path / "room"
    room.mkdir()
    (room / "one.py").write_text("from room.two import B\n")
    (room / "two.py").write_text(f"def late():\n    {back}\n")
    with pytest.raises(CycleError):
        TopologicalSorter(imported(room)).prepare()


def clocks(tree: ast.AST) -> set[str]:
    """The clocks for intervals that a module goes by."""
    passed = any(isinstance(node, ast.ImportFrom) and node.module == "cdc.clock" for node in ast.walk(tree))
    own = any(isinstance(node, ast.Attribute) and ast.unparse(node) == "time.monotonic" for node in ast.walk(tree))
    return {name for name, goes in (("passed in", passed), ("its own", own)) if goes}


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_that_is_given_a_clock_goes_by_no_other(path: Path) -> None:
    assert len(clocks(ast.parse(path.read_text(encoding="utf-8")))) <= 1


def test_both_clocks_are_found() -> None:
    assert clocks(ast.parse("from cdc.clock import Clock\nbegan = time.monotonic()")) == {"passed in", "its own"}


KERNELS: Final = sorted((ROOT / "sinks/render").glob("*kernels.py"))
PRINTABLE: Final = range(33, 127)


def bare_bytes(tree: ast.AST) -> Iterator[int]:
    """The lines that compare a byte with a number that stands for a character, or write one."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=left, comparators=others):
                sides = [left, *others]
                if any(
                    isinstance(side, ast.Subscript) or (isinstance(side, ast.Name) and side.id in ("byte", "code"))
                    for side in sides
                ):
                    yield from (side.lineno for side in sides for one in _alternatives(side) if _is_character(one))
            case ast.Assign(targets=[ast.Subscript()], value=value):
                yield from (value.lineno for one in _alternatives(value) if _is_character(one))


def _alternatives(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.IfExp(body=body, orelse=other):
            yield from (*_alternatives(body), *_alternatives(other))
        case ast.Tuple(elts=several):
            yield from several
        case ast.Call(args=[inner]):
            yield from _alternatives(inner)
        case ast.BinOp(left=left):
            yield left
        case _:
            yield node


def _is_character(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value in PRINTABLE


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: str(path.relative_to(ROOT)))
def test_bytes_have_names_in_kernels(path: Path) -> None:
    assert not list(bare_bytes(ast.parse(path.read_text(encoding="utf-8"))))


@pytest.mark.parametrize("code", [
    "if byte == 34: ...", "if 48 <= byte <= 57: ...", "if byte in (QUOTE, 47): ...", "while source[at] != 44: ...", "out[at] = 84",
    "out[at] = HEX[byte] if more else 61", "out[at] = np.uint8(48 + rest)",
])  # fmt: skip
def test_a_bare_byte_is_found(code: str) -> None:
    assert list(bare_bytes(ast.parse(code)))


def test_other_numbers_are_no_bytes() -> None:
    assert not list(bare_bytes(ast.parse("if digits > 40 or SHORT[byte] or end - start < 64:\n    out[at + 48] = HEX[byte & 63]")))


PATCHES: Final = {"mock", "monkeypatch", "MonkeyPatch"}
PATCHING: Final = {"tests/sim/test_checker_catches.py": "plants bugs in the product, to see that the checker catches them"}
SIMULATOR: Final = sorted((ROOT / "tests/sim").rglob("*.py"))


def _private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def reached_into(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Where code patches others, or names a private member of theirs; by line."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                module = getattr(node, "module", None) or ""
                imported_names = [*module.split("."), *(part for alias in names for part in alias.name.split("."))]
                yield from ((node.lineno, name) for name in imported_names if _private(name) or name in PATCHES)
            case ast.Attribute(value=value, attr=attr):
                own = isinstance(value, ast.Name) and value.id in ("self", "cls")
                if attr in PATCHES or (_private(attr) and not own):
                    yield node.lineno, ast.unparse(node)
            case ast.arg(arg=name) if name in PATCHES:
                yield node.lineno, name
            case ast.Call(func=ast.Name(id="getattr" | "setattr" | "delattr"), args=[_, ast.Constant(value=str(name)), *_]):
                if _private(name):
                    yield node.lineno, name


@pytest.mark.parametrize("path", SIMULATOR, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_simulator_comes_in_by_ports_only(path: Path) -> None:
    found = list(reached_into(ast.parse(path.read_text(encoding="utf-8"))))
    if reason := PATCHING.get(str(path.relative_to(ROOT))):
        assert found, f"no longer {reason}: remove the line"
    else:
        assert not found, "the simulator drives the product by its ports: give the product one, or use one that it has"


@pytest.mark.parametrize("code", [
    "from unittest import mock", "from unittest.mock import patch", "import unittest.mock", "def f(monkeypatch): ...",
    "def f(patch: pytest.MonkeyPatch): ...", "from room import _name", "from room._name import it", "follower._applied",
    "self._follower._applied", "getattr(follower, '_applied')", "setattr(Ingest, '_commit', f)",
])  # fmt: skip
def test_reaching_into_others_is_found(code: str) -> None:
    assert list(reached_into(ast.parse(code)))


@pytest.mark.parametrize(
    "code", ["self._follower.applied", "follower.__class__", "from __future__ import annotations", "cls._known"]
)
def test_what_is_ones_own_may_be_private(code: str) -> None:
    assert not list(reached_into(ast.parse(code)))


def _reads_text(node: ast.Call) -> bool:
    """Of ``something.open(…)``: a mode of text is given."""
    return any(isinstance(one, ast.Constant) and one.value in ("r", "w", "a", "x") for one in node.args)
