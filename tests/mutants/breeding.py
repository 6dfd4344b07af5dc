"""Runs tests against a product with one planted bug: a process that has imported the libraries, but nothing of ours, forks a child per
bug; the child's import system changes the source text of the one module as it is read. Of a file that is no module, what the child opens
is changed. No file is touched.

``python -m tests.mutants.breeding``: one JSON line in (``{"file", "old", "new", "tests", "jit"}``), one JSON line out
(``{"code", "said"}``: pytest's exit code, None after a timeout, and the end of what it wrote).
"""

from __future__ import annotations

import builtins
import importlib.abc
import importlib.machinery
import importlib.util
import io
import json
import os
import select
import signal
import sys
import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 240.0
_LIBRARIES = (
    "cryptography.x509", "google_crc32c", "hypothesis", "numba", "numpy", "opensearchpy", "pandas", "psutil", "psycopg",
    "pyarrow.compute", "pyarrow.parquet", "pydantic.main", "pydantic.types", "pytest", "redis", "rich.console", "rich.progress", "structlog", "typer",
)  # fmt: skip


def plant(file: str, old: str, new: str) -> None:
    """The bug, in this process."""
    text = (ROOT / file).read_text(encoding="utf-8").replace(old, new)
    if file.endswith(".py"):
        sys.meta_path.insert(0, Planter(file, text))
    else:
        _plant_text(ROOT / file, text)


def _plant_text(path: Path, text: str) -> None:
    real = io.open

    def opened(file: Any, mode: str = "r", *rest: Any, **more: Any) -> Any:
        if set(mode) <= set("rbt") and isinstance(file, str | Path) and Path(file) == path:
            return io.BytesIO(text.encode()) if "b" in mode else io.StringIO(text)
        return real(file, mode, *rest, **more)

    for module in (io, builtins):
        setattr(module, "open", opened)  # noqa: B010 (mypy takes no assignment)


class Planter(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds one module and gives it another text."""

    def __init__(self, file: str, text: str) -> None:
        self._name = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        self._path = ROOT / file
        self._text = text

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        return importlib.util.spec_from_file_location(name, self._path, loader=self)

    def get_filename(self, name: str) -> str:  # noqa: ARG002
        return str(self._path)

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self._text, str(self._path), "exec"), module.__dict__)


def _child(bug: dict[str, Any]) -> int:
    if bug["old"]:
        plant(bug["file"], bug["old"], bug["new"])
    if not bug["jit"]:
        # Compiled code is kept on disk under the module's name, and callers carry what they call: neither may meet a planted bug.
        import_module("numba").config.DISABLE_JIT = True
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_CURRENT_TEST", "PYTEST_ADDOPTS"):
        os.environ.pop(name, None)
    pytest = import_module("pytest")
    options = ["-x", "-q", "--no-header", "--tb=line", "-p", "no:cacheprovider"]
    if bug["old"]:
        # Nobody reads what differs where a bug is caught, and to say it of large values takes pytest longer than all tests take together.
        options.append("--assert=plain")
    return int(pytest.main([*options, *bug["tests"]]))


def _run(bug: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryFile() as out:
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
            code = 70
            try:
                code = _child(bug)
            finally:
                sys.stdout.flush()
                os._exit(code)
        pidfd = os.pidfd_open(pid)
        ended = bool(select.select([pidfd], [], [], TIMEOUT_S)[0])
        os.close(pidfd)
        if not ended:
            os.killpg(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        out.seek(0)
        return {"code": code if ended else None, "said": out.read().decode(errors="replace")[-1500:]}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    for name in _LIBRARIES:
        import_module(name)
    ours = [name for name in sys.modules if name.partition(".")[0] in ("cdc", "sinks", "snapshots") or name == "tests.conftest"]
    assert not ours, ours
    for line in sys.stdin:
        answers.write(json.dumps(_run(json.loads(line))) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
