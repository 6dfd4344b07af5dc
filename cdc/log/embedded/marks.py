"""The producers' marks, as of every cut. Pure."""

from __future__ import annotations

from bisect import bisect_right


class MarkHistory:
    """Each producer's marks, with the numbers of the cuts since which they hold."""

    def __init__(self) -> None:
        self.producers: list[str] = []
        """All that are named, also those without a mark."""
        self._since: dict[str, list[int]] = {}
        self._values: dict[str, list[bytes]] = {}

    def take(self, producer: str, value: bytes, cut: int) -> None:
        """``cut``: its number; numbers never fall."""
        self._since.setdefault(producer, []).append(cut)
        self._values.setdefault(producer, []).append(value)

    def at(self, cut: int) -> dict[str, bytes]:
        """The marks that hold at this cut: of every producer that had one by then."""
        found: dict[str, bytes] = {}
        for producer, since in self._since.items():
            number = bisect_right(since, cut)
            if number:
                found[producer] = self._values[producer][number - 1]
        return found
