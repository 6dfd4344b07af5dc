"""The messages with the prefix ``headwater.ddl``: which of them are ours, and what they hold. Pure.

Anybody may emit messages under any prefix and of any size. Ours begin with a password, and nothing is parsed before that has been compared.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from hmac import compare_digest
from typing import Final, Self

from cdc.model.facts import Facts, Publishing

DDL_PREFIX: Final = "headwater.ddl"

MOST_BYTES: Final = 128 * 2**20
"""A longer message is not parsed: the catalog is asked instead. Several thousand tables with their partitions take less."""
_HEAD: Final = re.compile(rb'[ \t\n\r]{0,8}\{[ \t\n\r]{0,8}"password"[ \t\n\r]{0,8}:[ \t\n\r]{0,8}("(?:[^"\\]|\\.)*+")')
_HEAD_BYTES: Final = 64
"""The bytes before the password and behind it that may have to be looked at."""


@dataclass(frozen=True, slots=True)
class DdlMessage:
    """The content of one of our messages."""

    tables: tuple[Facts, ...]
    dropped: tuple[int, ...]
    """OIDs."""
    look: bool
    """Whether to look at the catalog."""

    @classmethod
    def from_json(cls, content: bytes, publication: str) -> Self:
        """``publication``: whose departures count. Raises ValueError, KeyError, TypeError, AttributeError or RecursionError for anything else than what our messages hold."""
        if len(content) > MOST_BYTES:
            raise ValueError("too long")
        raw = json.loads(content)
        dropped = tuple(raw.get("dropped", ()))
        if not all(type(oid) is int for oid in dropped):
            raise TypeError("an OID is a number")
        aside = frozenset(raw.get("aside", {}).get(publication, ()))
        tables = tuple(_left_aside(Facts.from_json(table), aside) for table in raw.get("tables", ()))
        return cls(tables, dropped, bool(raw.get("look")))


class UnreadableMessage(Exception):
    """One of our messages that another version of deploy/roles.sql wrote, say."""


class DdlMessages:
    """Tells ours from others', and reads them.

    passwords: messages without one of these are not ours. publication: ours; the event trigger says of each which tables have left it.
    """

    def __init__(self, passwords: Collection[str], publication: str) -> None:
        self._passwords = [json.dumps(password, ensure_ascii=False).encode() for password in passwords]
        self._publication = publication
        self.head_bytes = _HEAD_BYTES + max(map(len, self._passwords), default=0)
        """So much of a message's content tells whether it bears a password."""

    def bears_password(self, content: bytes) -> bool:
        """``content``: of a message, or its first ``head_bytes``."""
        head = _HEAD.match(content[: self.head_bytes])
        return head is not None and True in [compare_digest(head[1], password) for password in self._passwords]

    def read(self, content: bytes) -> DdlMessage | None:
        """Reads one of our messages; None for somebody else's. Raises Unreadable."""
        if not self.bears_password(content):
            return None
        try:
            return DdlMessage.from_json(content, self._publication)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise UnreadableMessage from None


def _left_aside(facts: Facts, aside: Collection[int]) -> Facts:
    return replace(facts, publishing=Publishing(False, refused=True)) if facts.oid in aside else facts
