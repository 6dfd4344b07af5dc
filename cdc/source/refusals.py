"""The selected tables that are not captured, and why."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from cdc.source.problems import Refusal

_log = structlog.get_logger("catalog")


class Refusals:
    """By OID. One thread decides, any may read; what is new is logged."""

    def __init__(self) -> None:
        self._passed_over: dict[int, Refusal] = {}
        """Tables that cannot be captured as they are, though they have been: no row of them is logged."""
        self._barred: dict[int, Refusal] = {}
        """Tables that cannot join the publication."""

    @property
    def all(self) -> Mapping[int, Refusal]:
        return {**self._barred, **self._passed_over}

    def pass_over(self, refused: dict[int, Refusal]) -> None:
        """Known to the snapshot before the stream hears of it, and forgotten before the stream hears that a table can be captured again."""
        for oid, refusal in refused.items():
            if self._passed_over.get(oid) != refusal:
                _log.warning("a table is not captured", table=refusal.table, reason=refusal.problem, hint=refusal.hint)
        self._passed_over = refused

    def bar(self, barred: dict[int, Refusal]) -> None:
        for oid, refusal in barred.items():
            if refusal not in (self._barred.get(oid), self._passed_over.get(oid)):
                _log.warning("a new table is not captured", table=refusal.table, reason=refusal.problem, hint=refusal.hint)
        self._barred = barred
