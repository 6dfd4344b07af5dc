"""An event store's word on itself: how far it has handed the log on. Kept where its events go, or as near to that as can be. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final, Self

from cdc.model.lineage import Mark
from cdc.model.position import Cut, Lsn, Position

_FIELDS: Final = ("log", "history", "epoch", "position", "commit_lsn", "commit_ts_us", "progress", "began")


@dataclass(frozen=True, slots=True)
class EventStanding:
    """``log``, ``history``: whose events these are (``cdc.model.lineage``)."""

    log: str
    history: str
    epoch: int
    """The highest of a writer."""
    cut: Cut
    """Everything up to here is delivered."""
    progress: Position
    """Of what comes behind ``cut``, everything up to here is. At least the cut's."""
    began: Position
    """Nothing up to here was ever meant to be delivered."""

    @property
    def mark(self) -> Mark:
        return Mark(self.log, self.history, self.cut)

    def at(self, cut: Cut) -> Self:
        """Once everything up to there is delivered."""
        return replace(self, cut=cut, progress=Position(max(self.progress, cut.position)))

    def to_fields(self) -> dict[str, str]:
        values = (
            self.log,
            self.history,
            self.epoch,
            int(self.cut.position),
            int(self.cut.commit_lsn),
            self.cut.commit_ts_us,
            int(self.progress),
            int(self.began),
        )
        return dict(zip(_FIELDS, map(str, values), strict=True))

    @classmethod
    def of(cls, fields: Mapping[str, str]) -> Self:
        """The way back from ``to_fields``. Raises KeyError, ValueError for what nobody here wrote."""
        log, history, epoch, position, lsn, ts, progress, began = (fields[name] for name in _FIELDS)
        cut = Cut(Position(int(position)), Lsn(int(lsn)), int(ts))
        return cls(log, history, int(epoch), cut, Position(int(progress)), Position(int(began)))
