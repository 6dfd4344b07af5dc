"""The WAL that the server keeps for a slot, and how much more it will before it gives the slot up. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

BUDGET_WARN_BYTES: Final = 1 << 30
"""Less WAL budget than this is worth a warning at any rate of writing."""


@dataclass(frozen=True, slots=True)
class HeldWal:
    """As pg_replication_slots has it."""

    bytes: int | None = None
    """WAL that is kept because of the slot."""
    lag_bytes: int | None = None
    """WAL written since the LSN that the slot's reader has confirmed."""
    safe_bytes: int | None = None
    """The budget: how much more may be written before the slot is in danger of being lost; None without max_slot_wal_keep_size."""
    limit_bytes: int | None = None
    """max_slot_wal_keep_size; None when it is -1, no limit."""

    @property
    def short(self) -> bool:
        """Whether less budget is left than is worth a warning at any rate of writing."""
        return self.safe_bytes is not None and self.safe_bytes < min(BUDGET_WARN_BYTES, (self.limit_bytes or 0) // 2)

    def eta_s(self, bytes_per_s: float | None) -> float | None:
        """Seconds until the budget is used up, should nothing be confirmed meanwhile; None when it never is, or unknown."""
        if self.safe_bytes is None or not bytes_per_s:
            return None
        return max(0, self.safe_bytes) / bytes_per_s
