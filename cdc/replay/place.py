"""A place in the log as people name it: a position, an LSN or a time; and the position it stands for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow.compute as pc

from cdc.errors import ConfigError
from cdc.log.contract import LogReader, present_history
from cdc.model.batch import LSN, POSITION, TS
from cdc.model.position import START, Cut, Lsn, Position, format_lsn, parse_lsn

_HINT: Final = "a position like 4711, an LSN like 16/B374D848, or a time like 2026-11-22T18:00:00Z"


@dataclass(frozen=True, slots=True)
class LogPlace:
    """Exactly one of the three is given."""

    text: str
    position: Position | None = None
    lsn: Lsn | None = None
    time_us: int | None = None
    """Microseconds since 1970-01-01 UTC."""


def parse_place(text: str) -> LogPlace:
    """The place that the text names. A time without a zone is UTC. Raises ConfigError."""
    given = text.strip()
    try:
        if given.isascii() and given.isdecimal():
            return LogPlace(given, position=Position(int(given)))
        if "/" in given:
            return LogPlace(given, lsn=parse_lsn(given))
        time = datetime.fromisoformat(given)
    except ValueError:
        raise ConfigError(f"{text!r} is not a place in the log", hint=_HINT) from None
    since = (time if time.tzinfo else time.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return LogPlace(given, time_us=since // timedelta(microseconds=1))


def before(log: LogReader, place: LogPlace) -> Position:
    """The position before the first change at or after the place; the head's where that is a time after all of them.

    Raises PositionGone, and ConfigError for a position or an LSN that the log has not reached.
    """
    if place.position is not None:
        return Position(max(0, _reached(log, place.position, place.text) - 1))
    if place.lsn is not None:
        lsn = place.lsn
        cut = _cut_at_lsn(log, lsn, place.text)
        return _first(log, _group(log, lambda one: one.position >= cut.position), LSN, lsn)
    time_us = place.time_us or 0
    return _first(log, _group(log, lambda one: one.commit_ts_us >= time_us), TS, time_us)


def upto(log: LogReader, place: LogPlace) -> Position:
    """The position of the last change at or before the place. Raises ConfigError for a position or an LSN that the log has not reached."""
    head = log.head()
    if place.position is not None:
        return _reached(log, place.position, place.text)
    if place.lsn is not None:
        lsn = place.lsn
        _cut_at_lsn(log, lsn, place.text)
        beyond = log.cut_at_lsn(Lsn(lsn + 1))
        if beyond is None:
            return head.position
        return _first(log, _group(log, lambda one: one.position >= beyond.position), LSN, lsn + 1)
    time_us = place.time_us or 0
    return _first(log, _group(log, lambda one: one.commit_ts_us > time_us), TS, time_us + 1)


def cut_before_time(log: LogReader, time_us: int) -> Position:
    """The last cut before the first whose commit is of that time (microseconds since 1970-01-01 UTC) or later; the head's where none is."""
    return _group(log, lambda one: one.commit_ts_us >= time_us)[0]


def _reached(log: LogReader, position: Position, text: str) -> Position:
    """The position. Raises ConfigError, which names it by ``text``, when the log ends before it."""
    head = log.head().position
    if position > head:
        day = _day_of(text)
        hint = f"{day} if a day is meant" if day else "cdc log stat"
        raise ConfigError(f"the log ends at position {head}, before {text}", hint=hint)
    return position


def _cut_at_lsn(log: LogReader, lsn: Lsn, text: str) -> Cut:
    """The first cut that reaches the LSN. Raises ConfigError, which names it by ``text``, when none does."""
    cut = log.cut_at_lsn(lsn)
    if cut is None:
        ends = format_lsn(log.head().commit_lsn)
        raise ConfigError(f"the log ends at LSN {ends}, before {text}", hint="cdc wait, or cdc log stat")
    return cut


def _day_of(text: str) -> str | None:
    """Eight digits as the day that they may be meant to be; they are a position."""
    try:
        return datetime.strptime(text, "%Y%m%d").date().isoformat() if len(text) == 8 else None
    except ValueError:
        return None


def _group(log: LogReader, reached: Callable[[Cut], bool]) -> tuple[Position, Position]:
    """The first group (after, upto] whose cut has reached something; an empty one at the head when none has.

    Found by halving, so where commit times go back and forth it is one of the groups at which the time is crossed.
    """
    low, high = START, log.head().position
    if high == START or not reached(log.head()):
        return high, high
    while low < high:
        middle = Position((low + high) // 2)
        if reached(log.cut_within(middle, 1, 1)):
            high = middle
        else:
            low = Position(middle + 1)
    return low, log.cut_within(low, 1, 1).position


def _first(log: LogReader, group: tuple[Position, Position], column: str, least: int) -> Position:
    """The position before the group's first change whose column is at least so much; the group's end when there is none."""
    after, end = group
    found = int(end)
    for topic in log.topics():
        if topic.last <= after or topic.first > found:
            continue
        for batch in log.read(topic.name, after, end, present_history(log)):
            values = batch.column(column)
            numbers = pc.fill_null(values.view("int64") if column == TS else values, 0)
            positions = batch.column(POSITION).filter(pc.greater_equal(numbers, least))
            if len(positions):
                found = min(found, positions[0].as_py() - 1)
                break
    return Position(found)
