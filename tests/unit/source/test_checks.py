"""What `cdc doctor` says of a server's settings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cdc.source.checks import ServerFacts, check_server

FINE = ServerFacts(18, "logical", max_slots=4, used_slots=3, max_senders=4, used_senders=3, encoding="UTF8", standby=False)


def test_a_server_that_can_be_captured() -> None:
    assert [finding for finding in check_server(FINE, slot_exists=False) if finding.level == "fail"] == []


@pytest.mark.parametrize(
    ("facts", "hint"),
    [
        (replace(FINE, wal_level="replica"), "wal_level = logical"),
        (replace(FINE, used_slots=4), "max_replication_slots = 8"),
        (replace(FINE, used_senders=4), "max_wal_senders = 8"),
    ],
)
def test_a_setting_that_is_too_small_is_named_with_what_helps(facts: ServerFacts, hint: str) -> None:
    (finding,) = [finding for finding in check_server(facts, slot_exists=False) if finding.level == "fail"]
    assert f"ALTER SYSTEM SET {hint}; then restart Postgres" == finding.hint


def test_who_has_a_slot_needs_no_other() -> None:
    full = replace(FINE, used_slots=4, used_senders=4)
    assert [finding for finding in check_server(full, slot_exists=True) if finding.level == "fail"] == []
