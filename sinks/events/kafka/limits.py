"""The lengths that topics have refused, and what follows from that. Pure.

The broker compares a topic's ``max.message.bytes`` with a whole batch as it is compressed, so nobody can say beforehand whether an event is too long. A batch that is refused
has either one event that alone is, or only too many. Once one was refused batches are made smaller; and events as long as the longest of it, where that is most of it, go in
transactions of their own from then on, one of which says for certain.
"""

from __future__ import annotations

from typing import Final

LEAST_BYTES: Final = 1_000
"""Smaller batches make no sense."""
_NO_LIMIT: Final = 1 << 62


class EventLimits:
    """The limits of one store's topics, as this process has met them."""

    def __init__(self, batch_bytes: int) -> None:
        self.batch_bytes = batch_bytes
        self._longest: dict[str, int] = {}

    @property
    def known(self) -> bool:
        """Whether any topic has refused an event for its length alone, as far as that can be said."""
        return bool(self._longest)

    def longest_of(self, topic: str) -> int:
        """An event of so many bytes may be too long for it."""
        return self._longest.get(topic, _NO_LIMIT)

    def failed(self, topic: str, longest: int) -> None:
        """A batch of the topic was refused, whose longest event has so many bytes."""
        if 2 * longest >= self.batch_bytes or self.batch_bytes <= LEAST_BYTES:
            self.refused(topic, longest)
        self.batch_bytes = max(LEAST_BYTES, min(self.batch_bytes // 2, max(longest, self.batch_bytes // 4)))

    def refused(self, topic: str, size: int) -> None:
        """One event was too long by itself."""
        self._longest[topic] = min(self.longest_of(topic), size)

    def taken(self, topic: str, size: int) -> None:
        """One of so many bytes was taken after all."""
        if size >= self.longest_of(topic):
            self._longest[topic] = size + 1
