"""A history's upkeep: what every table's is, and before that, versions that are not needed any longer go."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Final

from cdc.model.position import Cut
from sinks.versionage import VersionAge, later
from sinks.warehouse.historyplace import HistoryPlace
from sinks.warehouse.leftovers import Leftovers
from sinks.warehouse.marks import Signed
from sinks.warehouse.options import Options
from sinks.warehouse.upkeep import Upkeep

_FILES: Final = 8
"""So many files are looked into at once for rows that go; those that go as a whole are not."""


class HistoryUpkeep(Upkeep):
    """One history's."""

    def __init__(
        self, place: HistoryPlace, options: Options, leftovers: Leftovers, kept: Callable[[], Set[int]], age: VersionAge
    ) -> None:
        super().__init__(place, options, leftovers, kept)
        self._history = place
        self._age = age
        self._done_us: int | None = None
        """Up to this horizon nothing is left."""

    def before_commit(self, cut: Cut, whole_since_us: int | None) -> None:
        """``whole_since_us``: of earlier times the log may lack versions that the commit is to bring (``versionage.whole_since_us``)."""
        self._history.horizon_us = self._age.horizon_us(cut, self._time.now_s())
        self._history.complete_from_us = later(whole_since_us, self._history.horizon_us)

    def after_commit(self, signed: Signed) -> None:
        self.forget(signed)
        super().after_commit(signed)

    def forget(self, signed: Signed) -> None:
        """Takes away versions that are not needed at the cut that was committed, where it is time to."""
        horizon = self._age.horizon_us(signed.mark.cut, self._time.now_s())
        if horizon is None or not self._age.is_due(horizon, self._done_us):
            return
        with self._giving_way():
            if self._history.forget(horizon, signed, _FILES):
                self._done_us = horizon
