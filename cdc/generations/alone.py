"""Who may work on generations of a store. Whoever is killed leaves nothing behind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from cdc.errors import HeadwaterError
from cdc.state.lease import LeaseHeld, StoreLock

PATIENCE_S: Final = 30.0
"""Whoever feeds a generation lets go of it after a second or two, unless the store hangs."""
_POLL_S: Final = 0.05


@contextmanager
def alone(log_dir: Path, store: str) -> Iterator[None]:
    """The right to build, swap or remove generations of a store: one process at a time. Raises HeadwaterError when another process has it."""
    with _held(log_dir, f"{store}@next", f"another process builds, swaps or removes generations of store {store}", store, 0.0):
        yield


@contextmanager
def writing(log_dir: Path, store: str, number: int, *, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """The right to write to a generation that readers do not see. Raises HeadwaterError (``GenerationInUse``) when another process has it for so long."""
    with _held(log_dir, f"{store}@{number}", f"another process works on generation {number} of store {store}", store, patience_s):
        yield


class GenerationInUse(HeadwaterError):
    """Another process has the right that was asked for."""


@contextmanager
def _held(log_dir: Path, name: str, otherwise: str, store: str, patience_s: float) -> Iterator[None]:
    """``name``: no store's, as there is an @ in it."""
    until = time.monotonic() + patience_s
    while True:
        try:
            lock = StoreLock(log_dir, name)
        except LeaseHeld:
            if time.monotonic() >= until:
                raise GenerationInUse(otherwise, hint=f"wait for it; cdc generations {store}") from None
            time.sleep(_POLL_S)
        else:
            break
    with closing(lock):
        yield
