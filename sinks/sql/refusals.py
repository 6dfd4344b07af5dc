"""Rows that the database refuses, among others that it takes: which they are, and why, in words that hold nothing of a row. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

DEAD_ROWS_MIN: Final = 20
"""So many refused rows of a commit stop no store, however few rows the others are."""
_CLASSES: Final = ("22", "23", "44", "54")
"""Of SQLSTATE: a value that is none of its type, a constraint, a view's condition, a limit of the server."""
_RAISED: Final = "P0001"
"""What a trigger raises of its own accord."""
_NULL: Final = "23502"
_OF_OTHERS: Final = ("23000", "23001", "23503", "23505", "23P01", _RAISED)
"""Whether such a row is taken may hang on which other rows are there."""


@dataclass(frozen=True, slots=True)
class RowRefusal:
    """One row's, or that of several rows together."""

    reason: str
    """Holds no value of a row."""
    of_others: bool = False
    """Other rows that are there, or are not, may be why: it may pass once those have been written."""


class RowsRefused(Exception):
    """The database refuses rows; what was attempted is undone, and the transaction goes on."""

    def __init__(self, refusal: RowRefusal, *, value: bool) -> None:
        """``value``: a text is none of a column's type."""
        super().__init__(refusal.reason)
        self.refusal = refusal
        self.value = value


def refused(state: str | None, column: str | None, constraint: str | None) -> RowsRefused | None:
    """``state``: SQLSTATE. None for an error that no row is to blame for."""
    if state is None or not (state.startswith(_CLASSES) or state == _RAISED):
        return None
    if constraint:
        reason = f"the constraint {constraint} refuses it"
    elif state == _NULL and column:
        reason = f"the column {column} takes no NULL"
    elif state == _RAISED:
        reason = "a trigger of the table refuses it"
    elif column:
        reason = f"the column {column} does not take its value"
    else:
        reason = "the table does not take its values"
    return RowsRefused(RowRefusal(f"{reason} (SQLSTATE {state})", state in _OF_OTHERS), value=state.startswith("22"))


def sorted_out(
    count: int, attempt: Callable[[int, int], RowRefusal | None], enough: Callable[[int], bool], first: RowRefusal
) -> dict[int, RowRefusal]:
    """Writes ``count`` rows piece by piece, and returns those that are refused, by number.

    ``attempt``: writes the rows begin … end - 1, or none of them and says why. ``enough``: whether so many refused rows end the search, in which nothing more is
    written; ``first``: why all of them together were refused. Takes about 2 k log n attempts, for k that are refused.
    """
    found: dict[int, RowRefusal] = {}
    pieces: list[tuple[int, int, RowRefusal | None]] = [(0, count, first)]
    while pieces:
        begin, end, why = pieces.pop()
        why = why or attempt(begin, end)
        if why is None:
            continue
        if end - begin == 1:
            found[begin] = why
            if enough(len(found)):
                break
            continue
        middle = (begin + end) // 2
        pieces += [(middle, end, None), (begin, middle, None)]
    return found
