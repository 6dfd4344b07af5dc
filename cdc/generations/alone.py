"""The right to build, swap or remove generations of a store: one process at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from cdc.errors import HeadwaterError
from cdc.state.lease import Lease, LeaseHeld


@contextmanager
def alone(log_dir: Path, store: str) -> Iterator[None]:
    """Raises HeadwaterError when another process is at work on the store's generations. One that was killed leaves nothing behind."""
    try:
        lease = Lease(log_dir, f"{store}@next")  # no store's name has an @
    except LeaseHeld:
        raise HeadwaterError(
            f"another process builds or swaps generations of store {store}", hint=f"cdc generations {store}"
        ) from None
    with closing(lease):
        yield
