"""The meaning of what a receiver answers. Pure.

A redirect is not followed: a signed request would go to somebody whom nobody has configured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Final

AGAIN_S: Final = 7 * 86_400.0
"""A receiver that asks for a longer pause than this means something else."""


class RequestFate(Enum):
    """The fate of one request."""

    TAKEN = "taken"
    SILENT = "silent"
    """Nobody answered: it may have arrived."""
    AGAIN = "again"
    """Not taken for now."""
    REFUSED = "refused"
    """It will never be taken."""
    GONE = "gone"
    """The receiver wants nothing any more."""


@dataclass(frozen=True, slots=True)
class RequestVerdict:
    """``reason``: as it may be shown. ``after_s``: the receiver asks to be left alone for so long."""

    fate: RequestFate
    reason: str = ""
    after_s: float | None = None


TAKEN: Final = RequestVerdict(RequestFate.TAKEN)
_RETRIED: Final = (408, 425, 429)
_WORDS: Final[Mapping[int, str]] = {
    408: "request timeout",
    425: "too early",
    429: "too many requests",
    500: "internal server error",
    502: "bad gateway",
    503: "service unavailable",
    504: "gateway timeout",
}


def silent(why: str) -> RequestVerdict:
    """Nobody answered. ``why``: in words that quote nothing of the request."""
    return RequestVerdict(RequestFate.SILENT, f"no answer ({why})")


def verdict_of(status: int, retry_after: str | None, now_s: float) -> RequestVerdict:
    """``retry_after``: the header. ``now_s``: Unix time."""
    if 200 <= status < 300:
        return TAKEN
    said = f"the receiver answers {status}"
    if status in _RETRIED or status >= 500:
        word = _WORDS.get(status)
        return RequestVerdict(RequestFate.AGAIN, f"{said} ({word})" if word else said, pause_of(retry_after, now_s))
    if status == 410:
        return RequestVerdict(RequestFate.GONE, said)
    if 300 <= status < 400:
        return RequestVerdict(RequestFate.REFUSED, f"{said}: it redirects, and redirects are not followed")
    return RequestVerdict(RequestFate.REFUSED, said)


def pause_of(retry_after: str | None, now_s: float) -> float | None:
    """Seconds from now on, of which a header ``Retry-After`` speaks as a number or as a date; None where it says nothing."""
    text = (retry_after or "").strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:12]), AGAIN_S)
    try:
        found = parsedate_to_datetime(text)
    except (TypeError, ValueError, IndexError, OverflowError):  # a year, or a zone, of twenty digits
        return None
    moment = found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    return min(max(0.0, moment.timestamp() - now_s), AGAIN_S)
