"""How far a part lies behind the log, and its last commit, as the report shows them."""

from __future__ import annotations

from collections.abc import Sequence

from cdc.log.contract import LogReader, left_between
from cdc.model.position import Cut, Position, format_lsn
from cdc.report.shape import Lag


def lag_of(reader: LogReader, head: Cut, position: Position, tables: Sequence[str], now: float) -> Lag:
    """How far ``position`` lies behind the log's head, counting only the tables that the store's patterns select. ``now``: by the source's
    clock, which has dated the commits."""
    if position >= head.position:
        return Lag(0, 0, 0.0)
    pieces = left_between(
        reader, tables, position, head.position
    )  # whether the store may go on from there is its follower's to say
    if not pieces:
        return Lag(0, 0, 0.0)
    first = reader.cut_within(position, 1, 1)
    seconds = max(0.0, now - first.commit_ts_us / 1e6) if first.commit_ts_us else 0.0
    return Lag(sum(piece.rows for piece in pieces), sum(piece.bytes for piece in pieces), seconds)


def commit_lsn(lsn: int | None) -> str | None:
    """In Postgres's notation; None for 0."""
    return format_lsn(lsn) if lsn else None


def commit_ts(microseconds: int) -> float | None:
    """Unix seconds; None for 0."""
    return microseconds / 1e6 if microseconds else None
