"""Positions (ours) and LSNs (Postgres's). See ARCHITECTURE.md, "Words"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NewType

Position = NewType("Position", int)
"""int64, rising from 1, given by the log. Dense when given; a reader meets gaps, because the log may drop what was superseded. 0 means "before
the first change"."""

Lsn = NewType("Lsn", int)
"""A Postgres log sequence number as an integer. Only talks to Postgres; orders nothing but commits."""

START = Position(0)

_LSN: Final = re.compile("([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")
"""``int`` takes signs, underscores and 0x besides."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A position at which every table is transactionally consistent.

    ``commit_lsn`` is the end LSN of the source's last commit at or before ``position`` (0 before the first),
    ``commit_ts_us`` that commit's time in microseconds since 1970-01-01 UTC (informational, not monotonic).
    """

    position: Position
    commit_lsn: Lsn
    commit_ts_us: int = 0


ZERO_CUT = Cut(START, Lsn(0), 0)


def format_lsn(lsn: int) -> str:
    """Postgres's notation: two hexadecimal halves.

    >>> format_lsn(0x16_B374D848)
    '16/B374D848'
    """
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def parse_lsn(text: str) -> Lsn:
    """The integer of Postgres's notation. Raises ValueError on anything else.

    >>> parse_lsn('16/B374D848') == 0x16_B374D848
    True
    """
    found = _LSN.fullmatch(text.strip())
    if found is None:
        raise ValueError("an LSN looks like 16/B374D848")
    return Lsn(int(found[1], 16) << 32 | int(found[2], 16))
