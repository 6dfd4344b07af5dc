"""When the alarm is raised about the WAL that the slot holds."""

from __future__ import annotations

import pytest

from cdc.model.position import Lsn
from cdc.source.budget import alarms
from cdc.source.pins import Pin, PinWatch
from cdc.source.slot import SlotFacts

MB = 2**20


def slot(**facts: object) -> SlotFacts:
    base = {"name": "cdc", "exists": True, "server_lsn": Lsn(9 * MB), "active": True, "wal_status": "reserved"}
    return SlotFacts(**{**base, **facts})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("facts", "rate", "said"),
    [
        ({}, 5.0 * MB, []),
        ({"exists": False, "wal_status": None}, None, []),
        ({"safe_wal_bytes": 10 * MB}, 1.0 * MB, []),  # read, and not behind: what is written is confirmed, too
        ({"safe_wal_bytes": 60 * MB, "active": False}, 1.0 * MB, ["is not read; its WAL budget ends in 1 min"]),
        ({"safe_wal_bytes": 60 * MB, "wal_status": "extended"}, 1.0 * MB, ["has fallen behind; its WAL budget ends in 1 min"]),
        ({"safe_wal_bytes": 60 * MB, "wal_status": "extended"}, None, ["more than max_wal_size"]),
        ({"wal_status": "extended", "held_bytes": 3_000_000}, 1.0, ["holds 3 MB of WAL, more than max_wal_size"]),
        ({"wal_status": "unreserved", "safe_wal_bytes": -5}, 1.0, ["lost at the next checkpoint"]),
        ({"wal_status": "lost"}, 1.0, ["has been invalidated: the server removed WAL"]),
        ({"invalidation": "idle_timeout", "wal_status": "reserved"}, 1.0, ["nobody read it for longer than idle_replication_slot_timeout"]),
        ({"idle_timeout_s": 5400, "active": False}, None, ["lost after 90 min"]),
        ({"idle_timeout_s": 5400}, None, []),
    ],
)  # fmt: skip
def test_alarms(facts: dict[str, object], rate: float | None, said: list[str]) -> None:
    found = alarms(slot(**facts), rate, [])
    assert len(found) == len(said)
    for line, part in zip(found, said, strict=True):
        assert part in line
        assert " → " in line


def test_open_transactions_are_named_with_what_ends_them() -> None:
    pins = [Pin(71, "900", 4000, "psql", None), Pin(None, "901", 400, "", "transfer-7"), Pin(72, "902", None, "", None)]
    session, prepared, unseen = alarms(slot(), None, pins)
    assert "pid 71, xid 900, 4000 s old, 'psql' → select pg_terminate_backend(71)" in session
    assert "prepared transaction 'transfer-7', xid 901, 400 s old → COMMIT PREPARED or ROLLBACK PREPARED it" in prepared
    assert "pid 72, xid 902 → " in unseen


OLD = [Pin(71, "900", 4000, "psql", None)]
GB = 1 << 30


@pytest.mark.parametrize(
    ("facts", "rate", "alarmed"),
    [
        ({"safe_wal_bytes": int(2.1 * GB), "max_keep_bytes": 4 * GB}, 0.0, False),
        ({"safe_wal_bytes": int(2.1 * GB), "max_keep_bytes": 4 * GB}, None, False),
        ({"safe_wal_bytes": int(2.1 * GB), "max_keep_bytes": 4 * GB}, 10.0 * MB, True),  # for four minutes only
        ({"safe_wal_bytes": GB // 2, "max_keep_bytes": 4 * GB}, 0.0, True),
        ({"safe_wal_bytes": 3 * GB, "max_keep_bytes": 4 * GB, "wal_status": "extended"}, 0.0, True),
        ({"safe_wal_bytes": None}, 0.0, True),  # no limit: the disk is one
    ],
)
def test_an_open_transaction_endangers_no_slot_that_has_plenty_of_budget(
    facts: dict[str, object], rate: float | None, alarmed: bool
) -> None:
    found = alarms(slot(**facts), rate, OLD)
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
