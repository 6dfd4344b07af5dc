"""When the alarm is raised about the WAL that the slot holds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdc.model.position import Lsn
from cdc.source.budget import alarms
from cdc.source.heldwal import HeldWal
from cdc.source.pins import Pin, PinWatch
from cdc.source.slot import SlotFacts, SlotReader

MB = 2**20


SLOT = SlotFacts("cdc", True, Lsn(9 * MB), reader=SlotReader(7), wal_status="reserved")


@pytest.mark.parametrize(
    ("facts", "rate", "said"),
    [
        (SLOT, 5.0 * MB, []),
        (replace(SLOT, exists=False, wal_status=None), None, []),
        (replace(SLOT, wal=HeldWal(safe_bytes=10 * MB)), 1.0 * MB, []),  # read, and not behind: what is written is confirmed, too
        (replace(SLOT, wal=HeldWal(safe_bytes=60 * MB), reader=None), 1.0 * MB, ["is not read; its WAL budget ends in 1 min"]),
        (replace(SLOT, wal=HeldWal(safe_bytes=60 * MB), wal_status="extended"), 1.0 * MB, ["has fallen behind; its WAL budget ends in 1 min"]),
        (replace(SLOT, wal=HeldWal(safe_bytes=60 * MB), wal_status="extended"), None, ["more than max_wal_size"]),
        (replace(SLOT, wal=HeldWal(bytes=3_000_000), wal_status="extended"), 1.0, ["holds 3 MB of WAL, more than max_wal_size"]),
        (replace(SLOT, wal=HeldWal(safe_bytes=-5), wal_status="unreserved"), 1.0, ["lost at the next checkpoint"]),
        (replace(SLOT, wal_status="lost"), 1.0, ["has been invalidated: the server removed WAL"]),
        (replace(SLOT, invalidation="idle_timeout", wal_status="reserved"), 1.0, ["nobody read it for longer than idle_replication_slot_timeout"]),
        (replace(SLOT, idle_timeout_s=5400, reader=None), None, ["lost after 90 min"]),
        (replace(SLOT, idle_timeout_s=5400), None, []),
    ],
)  # fmt: skip
def test_alarms(facts: SlotFacts, rate: float | None, said: list[str]) -> None:
    found = alarms(facts, rate, [])
    assert len(found) == len(said)
    for line, part in zip(found, said, strict=True):
        assert part in line
        assert " → " in line


def test_open_transactions_are_named_with_what_ends_them() -> None:
    pins = [Pin(71, "900", 4000, "psql", None), Pin(None, "901", 400, "", "transfer-7"), Pin(72, "902", None, "", None)]
    session, prepared, unseen = alarms(SLOT, None, pins)
    assert "pid 71, xid 900, 4000 s old, 'psql' → select pg_terminate_backend(71)" in session
    assert "prepared transaction 'transfer-7', xid 901, 400 s old → COMMIT PREPARED or ROLLBACK PREPARED it" in prepared
    assert "pid 72, xid 902 → " in unseen


OLD = [Pin(71, "900", 4000, "psql", None)]
GB = 1 << 30


@pytest.mark.parametrize(
    ("facts", "rate", "alarmed"),
    [
        (replace(SLOT, wal=HeldWal(safe_bytes=int(2.1 * GB), limit_bytes=4 * GB)), 0.0, False),
        (replace(SLOT, wal=HeldWal(safe_bytes=int(2.1 * GB), limit_bytes=4 * GB)), None, False),
        (replace(SLOT, wal=HeldWal(safe_bytes=int(2.1 * GB), limit_bytes=4 * GB)), 10.0 * MB, True),  # for four minutes only
        (replace(SLOT, wal=HeldWal(safe_bytes=GB // 2, limit_bytes=4 * GB)), 0.0, True),
        (replace(SLOT, wal=HeldWal(safe_bytes=3 * GB, limit_bytes=4 * GB), wal_status="extended"), 0.0, True),
        (replace(SLOT, wal=HeldWal(safe_bytes=None)), 0.0, True),  # no limit: the disk is one
    ],
)
def test_an_open_transaction_endangers_no_slot_that_has_plenty_of_budget(
    facts: SlotFacts, rate: float | None, alarmed: bool
) -> None:
    found = alarms(facts, rate, OLD)
    assert any("pg_terminate_backend" in line for line in found) is alarmed


def test_a_transaction_whose_age_cannot_be_seen_is_old_once_it_has_been_watched_for_long() -> None:
    now = [0.0]
    watch = PinWatch(clock=lambda: now[0])
    unseen, seen = Pin(72, "902", None, "app", None), Pin(71, "900", 900, "psql", None)
    assert watch.judge([seen, unseen]) == [seen]
    now[0] = 299.0
    assert watch.judge([unseen]) == []
    now[0] = 301.0
    (old,) = watch.judge([unseen])
    assert "pid 72, xid 902, at least 301 s old, 'app'" in str(old)
    now[0] = 302.0
    assert watch.judge([Pin(72, "903", None, "app", None)]) == []  # the next statement of the same session
    now[0] = 900.0
    assert watch.judge([unseen]) == []  # it was not there in between
