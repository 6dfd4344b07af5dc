"""A table that is locked is tried again ever more rarely, is named once that lasts, and is forgotten when it can be read."""

from __future__ import annotations

import structlog.testing

from cdc.model import pgtypes
from cdc.model.table import Column, Table
from snapshots.catalog import SourceTable
from snapshots.locks import AGAIN_S, NAMED_S, Locks

TABLE = Table(16400, "public", "it's", (Column("id", pgtypes.INT4, key=True, attnum=1),))


def source(*, partitioned: bool = False) -> SourceTable:
    return SourceTable(TABLE, ("id",), partitioned, None, 1, 8192, 1)


def test_a_lock_that_lasts() -> None:
    now = [100.0]
    locks = Locks(clock=lambda: now[0])
    pauses = []
    with structlog.testing.capture_logs() as lines:
        assert locks.waiting == set()
        for _ in range(8):
            locks.refused(source())
            began = now[0]
            while locks.waiting == {TABLE.oid}:
                now[0] += 0.25
            pauses.append(now[0] - began)
        assert pauses == [0.5, 1, 2, 4, *[AGAIN_S[1]] * 4]
        (problem,) = locks.problems
        assert str(problem).startswith("table public.it's is locked (ACCESS EXCLUSIVE)")
        assert problem.hint is not None
        assert "::regclass" in problem.hint
        locks.had(source())
        locks.had(source())
        assert (locks.waiting, locks.problems) == (set(), [])
    assert [line["event"] for line in lines] == ["a table cannot be read", "a table can be read again"]


def test_a_short_lock_is_not_worth_a_word() -> None:
    now = [100.0]
    locks = Locks(clock=lambda: now[0])
    with structlog.testing.capture_logs() as lines:
        locks.refused(source(partitioned=True))
        now[0] += NAMED_S / 2
        locks.refused(source(partitioned=True))
        assert locks.problems == []
        locks.had(source(partitioned=True))
    assert lines == []


def test_a_table_that_nobody_reads_any_more_is_not_named() -> None:
    now = [100.0]
    locks = Locks(clock=lambda: now[0])
    for gone in (lambda: locks.forget(TABLE.oid), lambda: now.append(now.pop() + 3600)):
        locks.refused(source())
        now[0] += NAMED_S
        locks.refused(source())
        assert len(locks.problems) == 1
        gone()
        assert locks.problems == []
