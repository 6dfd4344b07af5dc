"""``python -m cdc.demo.kernels capture|stores``: compiles the hot loops of one of the daemon's processes, which keeps them on disk.

The first start on a machine would do so by itself, each process when it needs one, while somebody waits for the first rows. The demo does it
while its servers start.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from cdc.embedded.processes import kill_group, spawn


def _capture() -> None:
    from cdc.capture.warm import warm

    warm()
    _snapshot()


def _snapshot() -> None:
    import numpy as np

    from cdc.model.pgtypes import INT8
    from cdc.model.table import Column, Table
    from cdc.pgvalues.binary import binary_columns, whole_binary_rows

    table = Table(1, "public", "warm", (Column("id", INT8, -1, key=True),))
    row = np.frombuffer(bytearray(b"d\0\0\0\x12" + b"\0\1" + b"\0\0\0\x08" + bytes(8)), np.uint8)
    whole_binary_rows(row, 0, len(row), 1)
    binary_columns(row, 5, 1, table)


def _stores() -> None:
    from sinks.cache import resp
    from sinks.render import jsonrows

    jsonrows.warm_up()
    resp.warm_up()


PARTS: Final[Mapping[str, Callable[[], None]]] = MappingProxyType({"capture": _capture, "stores": _stores})


class Compiling:
    """Every part in a process of its own. One that fails stops nobody: the daemon compiles what is missing, and says what is wrong."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, log: Path) -> None:
        self._processes = [spawn([sys.executable, "-m", __name__, part], log=log) for part in PARTS]

    def wait(self) -> None:
        """Returns when all of them have ended."""
        for process in self._processes:
            process.wait()

    def stop(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                kill_group(process)


if __name__ == "__main__":
    PARTS[sys.argv[1]]()
