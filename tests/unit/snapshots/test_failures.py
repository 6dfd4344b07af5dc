"""What the server refuses while a table is read: whose problem it is, in which words, and when it is tried again."""

from __future__ import annotations

import psycopg
import pytest
import structlog.testing

from cdc.errors import SourceError
from cdc.model import pgtypes
from cdc.model.table import Column, Table
from snapshots.catalog import SourceTable
from snapshots.failures import FAILED_S, REFUSED_S, Unreadable, ends_connection, table_problem

ID = Column("id", pgtypes.INT4, key=True, attnum=1)
MOOD = Column("m", 99_999, attnum=2)


def source(*columns: Column) -> SourceTable:
    return SourceTable(Table(16400, "public", "t", columns), ("id",), False, None, 1, 8192, 1)


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (psycopg.errors.ProgramLimitExceeded("out of memory"), False),
        (psycopg.errors.InternalError_("invalid memory alloc request size 1080000003"), False),
        (psycopg.errors.DataCorrupted("missing chunk number 0"), False),
        (psycopg.errors.OutOfMemory("out of memory"), True),
        (psycopg.errors.AdminShutdown("terminating connection"), True),
        (psycopg.OperationalError("connection lost"), True),
    ],
)
def test_what_concerns_more_than_the_table(error: psycopg.Error, ends: bool) -> None:
    assert ends_connection(error) == ends


def test_the_way_out_is_named() -> None:
    large = psycopg.errors.ProgramLimitExceeded("string buffer exceeds maximum allowed length")
    as_text, binary = table_problem(source(ID, MOOD), large), table_problem(source(ID), large)
    assert "500 MB of bytea" in str(as_text)
    assert "column list" in str(as_text.hint)
    assert "column list" not in str(binary.hint)
    damaged = table_problem(source(ID), psycopg.errors.DataCorrupted("missing chunk number 0 for toast value 7"))
    assert str(damaged) == "Postgres cannot read table public.t: missing chunk number 0 for toast value 7"
    assert all("!public.t" in str(problem.hint) for problem in (as_text, binary, damaged))


def test_it_is_tried_again_and_told_once() -> None:
    now = [0.0]
    unreadable, error = Unreadable(clock=lambda: now[0]), psycopg.errors.DataCorrupted("missing chunk")
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            unreadable.failed(source(ID), error)
            assert unreadable.waiting == {16400}
            now[0] += FAILED_S
            assert unreadable.waiting == set()
            assert len(unreadable.problems) == 1
            unreadable.granted(16400)
            assert len(unreadable.problems) == 1, "the catalog knows nothing of its rows"
        unreadable.refused(16400, SourceError("may not read"))
        now[0] += REFUSED_S
        assert unreadable.waiting == set()
        unreadable.granted(16400)
        assert unreadable.problems == []
    assert [line["log_level"] for line in lines] == ["warning", "warning"]
    unreadable.failed(source(ID), error)
    unreadable.keep({16400})
    assert len(unreadable.problems) == 1
    unreadable.keep(())
    assert unreadable.problems == []


def test_rows_that_other_workers_have_read_do_not_shorten_the_wait() -> None:
    now = [0.0]
    unreadable = Unreadable(clock=lambda: now[0])
    unreadable.failed(source(ID), psycopg.errors.DataCorrupted("missing chunk"))
    unreadable.read(16400)
    assert (unreadable.waiting, len(unreadable.problems)) == ({16400}, 1)
    now[0] += FAILED_S
    unreadable.read(16400)
    assert unreadable.problems == []
