"""Whether a group that was handed over is taken: decided from the mark that the log keeps of its
producer, and nothing else. Pure.

A producer's groups are a chain: each says from which mark to which it leads. The log keeps the last
mark in the same cut as the changes, so a group is in the log exactly if its mark is or was there.
Opening a producer raises its epoch: what an older opening still hands over is refused.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Final, Self

MAX_MARK_TEXT_BYTES: Final = 512
"""The longest ``to`` of a group."""
MAX_EPOCH: Final = 10**10 - 1


@dataclass(frozen=True, slots=True)
class InboxMark:
    """How far the log holds what a producer handed over. The first one of all is empty."""

    epoch: int = 0
    """The newest opening; the first one is 1."""
    to: str = ""
    """Where the last group that was taken led to."""
    digest: str = ""
    """That group's content hash."""
    token: str = ""
    """The word by which whoever opened the producer knows this opening as its own."""

    def encode(self) -> bytes:
        """The mark as the log keeps it."""
        return json.dumps(asdict(self), separators=(",", ":"), ensure_ascii=False).encode()

    @classmethod
    def decode(cls, raw: bytes | None) -> Self:
        """Reads what ``encode`` made; None is the mark of a producer that was never opened. Raises
        ValueError for anything else.
        """
        if raw is None:
            return cls()
        try:
            found = json.loads(raw)
            mark = cls(**found)
        except (ValueError, TypeError):
            raise ValueError("not a mark of the inbox") from None
        if type(mark.epoch) is not int or not all(isinstance(text, str) for text in (mark.to, mark.digest, mark.token)):
            raise ValueError("not a mark of the inbox")
        return mark


@dataclass(frozen=True, slots=True)
class GroupStep:
    """A group, as far as the decision goes. With a ``token`` it opens its producer and brings
    nothing.
    """

    epoch: int
    begin: str = ""
    to: str = ""
    digest: str = ""
    token: str = ""


class InboxVerdict(StrEnum):
    """The decision on a step."""

    TAKE = "take"
    OPEN = "open"
    REPEAT = "repeat"
    """It is in the log already: acknowledged, and nothing is appended."""
    FENCED = "fenced"
    """It comes from an older opening of the producer."""
    UNOPENED = "unopened"
    """It claims an opening that never happened."""
    GAP = "gap"
    """It does not begin where the producer's last group ended."""
    CONFLICT = "conflict"
    """It leads to the mark that the log has, with another content."""


def judge(mark: InboxMark, step: GroupStep) -> InboxVerdict:
    """The decision on this step, where the log has this mark of its producer."""
    if step.token:
        if step.epoch > mark.epoch:
            return InboxVerdict.OPEN
        return InboxVerdict.REPEAT if (step.epoch, step.token) == (mark.epoch, mark.token) else InboxVerdict.FENCED
    if step.epoch > mark.epoch or not mark.epoch:
        return InboxVerdict.UNOPENED
    if (step.to, step.digest) == (mark.to, mark.digest):
        return InboxVerdict.REPEAT
    if step.epoch < mark.epoch:
        return InboxVerdict.FENCED
    if step.to == mark.to:
        return InboxVerdict.CONFLICT
    return InboxVerdict.TAKE if step.begin == mark.to else InboxVerdict.GAP


def after(mark: InboxMark, step: GroupStep) -> InboxMark:
    """The mark once this step, which is to be opened or taken, is in the log."""
    if step.token:
        return InboxMark(step.epoch, mark.to, mark.digest, step.token)
    return InboxMark(mark.epoch, step.to, step.digest, mark.token)
