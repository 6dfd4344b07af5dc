"""The kernel of a view: it keeps the view up to date, whichever way the view is declared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from cdc.errors import HeadwaterError
from cdc.model.position import Position


class ViewRefused(HeadwaterError):
    """A view that cannot be kept up exactly. The message names the construct, its place in the text, and what can be written instead."""


class StateFull(HeadwaterError):
    """The rows that a kernel keeps do not fit on their disk. They are as of the cut before, and this says nothing of the view."""


class StateDamaged(Exception):
    """The rows that a kernel keeps cannot be read. They can be thrown away and computed again, so that this says nothing of the view."""


@dataclass(frozen=True, slots=True)
class Delta:
    """The net changes of one topic, or of a view, in a range (a, b] of the log. Each key occurs once, in ``rows`` or in ``gone``."""

    rows: pa.Table
    """The rows as of b of the keys that were written in the range: every column that is read, the key's among them, with the Arrow types of the topic's schema;
    and ``_cdc_exact`` (``cdc.model.batch``), which may be left out, here as in ``gone``, where no value has an exact text."""
    gone: pa.Table
    """The keys, in the key's columns only, that were deleted in the range and do not exist as of b. One that did not exist as of a either may be among them."""
    emptied: bool = False
    """The topic was emptied in the range: no row of a key that is not in ``rows`` exists as of b."""
    fresh: bool = False
    """No row of a key in ``rows`` exists as of a: nothing has to be looked up for them."""


class Kernel(Protocol):
    """One view and the state that it needs, as of one cut. For one thread.

    What ``advance`` returns is a pure function of the definition, the sources' rows as of ``cut``, and the deltas: a process that was killed
    behind it returns the same again.
    """

    @property
    def cut(self) -> Position:
        """The state's cut as of the last ``commit``; 0: nothing has been read yet."""
        ...

    def advance(self, deltas: Mapping[str, Delta], to: Position, partial: bool = False) -> Delta:
        """The view's net changes when its sources change by ``deltas``, by topic, from ``cut`` to ``to``. Rows that stay equal are left out; the others are in the
        order of the key. ``partial``: more follows before the sources are as of a cut, so that what is returned, and ``rows``, say nothing. Raises ValueError for a
        topic that the view does not read, and StateDamaged."""
        ...

    def commit(self) -> None:
        """The state is as of the last ``advance``'s cut. A process killed before it is left with the state of the cut before, and a machine that loses its power
        perhaps with that of an earlier commit."""
        ...

    def sync(self) -> None:
        """Every commit so far survives a loss of power, too. Raises StateFull, StateDamaged."""
        ...

    def rollback(self) -> None:
        """Forgets the last ``advance``."""
        ...

    def rows(self) -> pa.Table:
        """The whole view as of the last ``advance``, in the order of its key."""
        ...

    def kept_rows(self) -> int:
        """How many rows the state has, its own and those of its topics and groups."""
        ...

    def close(self) -> None: ...
