"""Dead letters, which record a change that a store cannot hold: where it is and why. Its content stays in the log, found by its position."""

from __future__ import annotations

import json
from collections.abc import Iterable

from cdc.errors import StoreError
from sinks.contract import DeadLetter


def letter_id(letter: DeadLetter) -> str:
    """The same for the same change, so that a replay does not add to them."""
    return f"{letter.table}@{letter.position}"


def letter_json(letter: DeadLetter) -> str:
    return json.dumps({"table": letter.table, "position": letter.position, "reason": letter.reason}, separators=(",", ":"))


def check_share(store: str, letters: Iterable[DeadLetter], rows: int, *, share_max: float, rows_min: int) -> None:
    """Raises StoreError when so much of a batch is dead that the store, not the rows, is at fault.

    A few dead rows are normal however small their batch, hence ``rows_min``.
    """
    dead = tuple(letters)
    if len(dead) > rows_min and len(dead) > share_max * rows:
        reasons = sorted({letter.reason for letter in dead})
        raise StoreError(
            f"store {store} refuses {len(dead)} of {rows} rows of {dead[0].table} ({', '.join(reasons[:3])})",
            retryable=False,
            hint="compare the place's definition in the store with the table's, then resume",
        )
