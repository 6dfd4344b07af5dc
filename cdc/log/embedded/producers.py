"""Who brings changes to a log, as its writer knows them: each producer's number and mark, and what of it is staged. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from cdc.errors import ConfigError
from cdc.log.embedded.records import MAX_MARK_BYTES, MAX_PRODUCER_BYTES, MAX_PRODUCERS, SOURCE, NewMark, NewProducer
from cdc.log.embedded.timeline import Timeline

_NOTHING: Final[tuple[tuple[NewProducer, ...], tuple[NewMark, ...]]] = ((), ())


class Producers:
    """``source``: the one whose commit LSN the cuts carry. The others say how far they are by a mark of their own."""

    def __init__(self, source: str, timeline: Timeline) -> None:
        """Raises ConfigError when the log was filled from another source."""
        self.source = _named(source)
        self._numbers = {name: number for number, name in enumerate(timeline.producers, SOURCE)}
        self._marks = {name: value for name, value in timeline.marks().items() if self._numbers[name] != SOURCE}
        self._staged: dict[str, bytes] = {}
        if self._numbers and self._numbers.get(source) != SOURCE:
            raise ConfigError(
                f"the log was filled from source {timeline.producers[0]!r}, not {source!r}",
                hint="correct source.name, or use another log.dir",
            )

    @property
    def durable(self) -> Mapping[str, bytes]:
        """The marks that are in the log."""
        return dict(self._marks)

    @property
    def staged(self) -> bool:
        return bool(self._staged)

    def stage(self, producer: str, value: bytes) -> None:
        """See ``LogWriter.mark``."""
        if producer == self.source:
            raise ValueError("the source's mark is its commit LSN")
        if len(value) > MAX_MARK_BYTES:
            raise ValueError(f"a mark is at most {MAX_MARK_BYTES} bytes long")
        if self._marks.get(_named(producer)) == value:
            self._staged.pop(producer, None)
        else:
            self._staged[producer] = value

    def entries(self, of_topics: Sequence[str]) -> tuple[tuple[NewProducer, ...], tuple[NewMark, ...]]:
        """The records of the next group, with the producers of its new topics. Raises ValueError for one producer too many."""
        if not self._staged and self._numbers and not of_topics:
            return _NOTHING  # nearly always
        new = [name for name in dict.fromkeys((self.source, *of_topics, *self._staged)) if name not in self._numbers]
        numbers = {**self._numbers, **{name: number for number, name in enumerate(new, len(self._numbers) + 1)}}
        if len(numbers) > MAX_PRODUCERS:
            raise ValueError(f"a log has at most {MAX_PRODUCERS} producers")
        return (
            tuple(NewProducer(numbers[name], name) for name in new),
            tuple(NewMark(numbers[name], value) for name, value in self._staged.items()),
        )

    def number(self, name: str) -> int:
        """The number of one that ``entries`` knows."""
        return self._numbers[name]

    def recorded(self, new: Iterable[NewProducer]) -> None:
        """Takes note that all that was staged is durable."""
        self._numbers.update({name: number for number, name in new})
        if self._staged:
            self._marks.update(self._staged)
            self._staged = {}

    def take_back(self) -> None:
        self._staged = {}


def _named(producer: str) -> str:
    if not 0 < len(producer.encode()) <= MAX_PRODUCER_BYTES:
        raise ValueError(f"a producer's name is 1 to {MAX_PRODUCER_BYTES} bytes long")
    return producer
