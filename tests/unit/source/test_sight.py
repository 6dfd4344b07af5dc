"""Looks at the catalog that keep failing become a problem, and stop being one with the first that succeeds."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
import structlog.testing

from cdc.source.sight import BLIND_S, Holder, Sight


class Answering:
    def __init__(self, holders: list[Holder] | None) -> None:
        self._holders = holders

    def execute(self, *_: object) -> Answering:
        if self._holders is None:
            raise psycopg.errors.LockNotAvailable("pg_class, too")
        return self

    def fetchall(self) -> list[Holder]:
        return self._holders or []


def blind(holders: list[Holder] | None) -> str:
    now = [100.0]
    sight = Sight(clock=lambda: now[0])
    connection: Any = Answering(holders)
    for _ in range(2):
        assert sight.problem is None, "one failure is nothing yet"
        sight.locked_out(connection)
        sight.failed("lock timeout")
        now[0] += BLIND_S
    assert sight.problem is not None
    found = sight.problem
    sight.failed("no answer")
    assert "no answer" in sight.problem, "as of the last failure"
    assert sight.problem.endswith("→ cdc doctor")
    sight.clear()
    assert sight.problem is None
    sight.failed("lock timeout")
    assert sight.problem is None, "counted from the first failure after a success"
    return found


@pytest.mark.parametrize(
    ("holders", "hint"),
    [
        (
            [(7, "pg_inherits"), (7, "t")],
            "pid 7 has locked pg_inherits, pid 7 has locked t: wait, or select pg_terminate_backend(7)",
        ),
        (
            [(None, "pg_class")],
            "a prepared transaction has locked pg_class: wait, or COMMIT PREPARED or ROLLBACK PREPARED it (pg_prepared_xacts)",
        ),
        ([], "cdc doctor"),
        (None, "cdc doctor"),
    ],
)
def test_what_is_said(holders: list[Holder] | None, hint: str) -> None:
    line = blind(holders)
    assert line.startswith("capture cannot look at the catalog (lock timeout): new tables are not captured")
    assert line.partition(" → ")[2] == hint


def test_it_is_logged_when_it_begins_ever_more_rarely_while_it_lasts_and_when_it_ends() -> None:
    now = [100.0]
    sight = Sight(clock=lambda: now[0])
    with structlog.testing.capture_logs() as lines:
        sight.clear()
        for _ in range(130):
            sight.failed("lock timeout")
            now[0] += 2.5
        sight.clear()
        sight.clear()
        sight.failed("no answer")
    assert [line["event"] for line in lines] == [
        "cannot look at the catalog now",
        *["still cannot look at the catalog"] * 7,
        "looks at the catalog again",
        "cannot look at the catalog now",
    ]
    assert [line["for_s"] for line in lines if "for_s" in line] == [10, 30, 70, 130, 190, 250, 310]
    assert all(line["reason"] == "lock timeout" for line in lines[:8])
    assert lines[8]["after_s"] == 325.0
