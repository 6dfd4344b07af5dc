"""How long the server keeps the WAL that the slot still needs, and when to raise the alarm. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cdc.source.pins import Pin
from cdc.source.slot import SlotFacts, lost_message

ALARM_S: Final = 3600.0
"""Less time than this until the budget is used up."""


def wal_rate(samples: Sequence[tuple[float, int]]) -> float | None:
    """Bytes of WAL a second over (monotonic seconds, LSN) samples; None when they span less than a second."""
    if len(samples) < 2 or samples[-1][0] - samples[0][0] < 1.0:
        return None
    return max(0.0, (samples[-1][1] - samples[0][1]) / (samples[-1][0] - samples[0][0]))


def has_plenty(facts: SlotFacts, wal_bytes_per_s: float | None) -> bool:
    """Whether the server keeps so much more WAL for the slot that nothing need be done yet. Without a limit the disk is one that nobody knows."""
    if facts.wal_status != "reserved" or facts.wal.safe_bytes is None:
        return False
    eta_s = facts.wal.eta_s(wal_bytes_per_s)
    return not facts.wal.short and (eta_s is None or eta_s >= ALARM_S)


def alarms(facts: SlotFacts, wal_bytes_per_s: float | None, pins: Sequence[Pin]) -> list[str]:
    """One line each: what is in danger → what helps. Empty for a slot that does not exist: its absence is said elsewhere."""
    if not facts.exists:
        return []
    if facts.lost:
        return [f"{lost_message(facts)} → cdc resume SLOT_LOST --rebuild"]
    found = []
    held = f"{(facts.wal.bytes or 0) / 1e6:.0f} MB of WAL"
    eta_s = facts.wal.eta_s(wal_bytes_per_s)
    if facts.wal_status == "unreserved":
        found.append(f"replication slot {facts.name!r} holds {held} and is lost at the next checkpoint → let capture catch up now")
    elif (facts.wal_status == "extended" or not facts.reader) and eta_s is not None and eta_s < ALARM_S:
        reader = "is read, but has fallen behind" if facts.reader else "is not read"
        found.append(
            f"replication slot {facts.name!r} {reader}; its WAL budget ends in {eta_s / 60:.0f} min at the present rate"
            " → cdc run, or raise max_slot_wal_keep_size"
        )
    elif facts.wal_status == "extended":
        found.append(f"replication slot {facts.name!r} holds {held}, more than max_wal_size → see why capture lags (cdc status)")
    if not facts.reader and facts.idle_timeout_s is not None:
        found.append(
            f"nothing reads replication slot {facts.name!r}, which is lost after {facts.idle_timeout_s / 60:.0f} min of that"
            " (idle_replication_slot_timeout) → cdc run"
        )
    if not has_plenty(facts, wal_bytes_per_s):
        found += [f"an open transaction keeps WAL from being freed: {pin} → {pin.hint}" for pin in pins]
    return found
