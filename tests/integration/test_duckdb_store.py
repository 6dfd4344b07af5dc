"""A store of kind sql in a DuckDB file: who may have the file open, what stands in it for readers, and the product's own follower and audit."""

from __future__ import annotations

import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest

from cdc.audit.stores import audit
from cdc.errors import ConfigError, StoreError
from cdc.model.topic import TopicSchema
from cdc.settings.views import View
from cdc.source.connection import connect
from tests.conftest import Database
from tests.contract.labs import LABS, Lab
from tests.contract.rows import ORDERS, TYPES, upserts
from tests.contract.test_marks import FIRST, SECOND, THIRD, heal, step, whole
from tests.contract.test_sinks import held
from tests.integration.pipeline import kept_up, service, settings_of
from tests.integration.test_sql_store import CATCH_UP_S, CHANGES, SOURCE
from tests.waiting import until


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = LABS["sql-duckdb"](lambda _: tmp_path)
    yield made
    made.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "lab.duckdb"


def ask(path: Path, query: str) -> list[Any]:
    """As a reader does: the file is open for no longer than the query takes."""
    with duckdb.connect(str(path), read_only=True) as connection:
        return connection.execute(query).fetchall()


@contextmanager
def held_open(path: Path, *, reading: bool) -> Iterator[int]:
    """Another process has the file open. Gives its PID."""
    code = (
        f"import duckdb, sys; c = duckdb.connect({str(path)!r}, read_only={reading}); print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"open\n"
            yield process.pid
        finally:
            process.kill()


def test_rows_are_of_types_that_can_be_computed_with_and_others_may_read_between_commits(lab: Lab, path: Path) -> None:
    sink = lab.opened()
    step(lab, sink, *FIRST)
    assert ask(path, "select sum(amount), min(created_at)::varchar from public.orders") == [
        (Decimal("3.30"), "2013-01-01 10:00:00+00")
    ]
    types = dict(ask(path, "select column_name, data_type from duckdb_columns() where table_name = 'orders'"))
    assert types["amount"] == "DECIMAL(12,2)"
    assert types["created_at"] == "TIMESTAMP WITH TIME ZONE"
    step(lab, sink, *SECOND)
    step(lab, sink, *THIRD)
    whole(lab, sink)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("reading", [False, True])
def test_who_has_the_file_open_is_named_and_the_store_goes_on_when_it_is_closed(lab: Lab, path: Path, reading: bool) -> None:
    sink = lab.opened(timeout_s=0.2)
    step(lab, sink, *FIRST)
    with held_open(path, reading=reading) as pid:
        with pytest.raises(
            StoreError, match=rf"lab\.duckdb of store {lab.name} is held open by another process \(.*, PID {pid}\)"
        ) as said:
            step(lab, sink, *SECOND)
        assert said.value.retryable
        if reading:
            assert lab.applied().position == 5, "readers do not disturb each other"
    sink = heal(lab)
    step(lab, sink, *THIRD)
    whole(lab, sink)


def test_whoever_looks_at_all_rows_holds_up_no_commit(lab: Lab) -> None:
    """As an audit does, in the process that writes."""
    sink = lab.opened(timeout_s=2)
    step(lab, sink, *FIRST)
    rows = sink.scan(TopicSchema.of(ORDERS))
    first = next(rows)
    step(lab, sink, *SECOND)
    assert len(first) + sum(map(len, rows)) == 3, "as they were"


def test_infinity_and_the_end_of_a_day_are_values_and_what_is_none_makes_its_column_text(lab: Lab, path: Path) -> None:
    sink = lab.opened()
    nothing = dict.fromkeys(TYPES.names)
    rows = [
        {
            **nothing,
            "id": "a",
            "at": "infinity",
            "at utc": "-infinity",
            "day": "infinity",
            "clock": "24:00:00",
            "money": "1.10",
            "double": "-0",
        },
        {**nothing, "id": "b", "at": "2020-01-01 00:00:00", "money": "7.00", "double": "1"},
    ]
    step(lab, sink, upserts(TYPES, 1, rows))
    table = '"Odd Schema"."Every ""type"""'
    assert ask(path, f"select id from {table} where \"at\" > now() and clock > '23:59:59'") == [("a",)]
    step(lab, sink, upserts(TYPES, 3, [{**nothing, "id": "c", "money": "NaN", "day": "0044-03-15 BC"}]))
    by_id = {row["id"]: row for row in held(sink, TYPES)}
    assert by_id == {"a": rows[0], "b": rows[1], "c": {**nothing, "id": "c", "money": "NaN", "day": "0044-03-15 BC"}}
    assert ask(path, f"select sum(try_cast(money as decimal(12, 2)))::varchar from {table}") == [("8.10",)]


def test_a_folder_that_is_not_there_and_names_that_differ_by_case_are_named(lab: Lab, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="database of store") as said:
        lab.opened(url=f"duckdb://{tmp_path}/none/x.duckdb")
    assert "folder" in (said.value.hint or "")
    import dataclasses

    twice = dataclasses.replace(ORDERS, columns=(*ORDERS.columns, dataclasses.replace(ORDERS.columns[2], name="Status")))
    with pytest.raises(ConfigError, match="the columns status and Status are one"):
        lab.sink().foresee([TopicSchema.of(twice)])


def test_an_older_copy_beside_a_later_log_of_changes_says_what_to_do_and_the_store_goes_on(lab: Lab, path: Path) -> None:
    step(lab, lab.opened(), *FIRST)
    older = path.read_bytes()
    step(lab, lab.opened(), *SECOND)
    killed = f"import duckdb, os; c = duckdb.connect({str(path)!r}); c.execute('create table theirs (i int)'); os._exit(9)"
    subprocess.run([sys.executable, "-c", killed], check=False)
    wal = path.with_name("lab.duckdb.wal")
    assert wal.exists(), "whoever was killed has left it"
    path.write_bytes(older)
    with pytest.raises(StoreError) as refused:
        lab.opened()
    assert refused.value.hint == "the file was put back, and lab.duckdb.wal beside it belongs to another copy: move that one away"
    wal.unlink()
    whole(lab, heal(lab))


def test_a_follower_keeps_it_as_the_source_is_and_the_audit_agrees(postgres: Database, tmp_path: Path) -> None:
    path = tmp_path / "reports.duckdb"
    with connect(postgres.dsn) as source:
        for statement in SOURCE.split(";\n"):
            source.execute(statement.encode())
        settings = settings_of(postgres, tmp_path, {"reports": {"kind": "sql", "url": f"duckdb://{path}"}})
        with service(settings):
            until(lambda: _count(path) == 500, "the first rows to be there", timeout_s=CATCH_UP_S)
            for statement in CHANGES.split(";\n"):
                source.execute(statement.encode())
            [result] = audit(settings, timeout_s=CATCH_UP_S)
        assert result.equal, result.to_json()


def test_a_table_without_rows_that_a_view_may_read_is_there_without_rows(postgres: Database, tmp_path: Path) -> None:
    path = tmp_path / "reports.duckdb"
    with connect(postgres.dsn) as source:
        source.execute(b"create table public.items (id int primary key, note text default 'x')")
        source.execute(b"create table public.empty (id int primary key, at timestamptz)")
        source.execute(b"insert into public.items values (1)")
        settings = settings_of(postgres, tmp_path, {"reports": {"kind": "sql", "url": f"duckdb://{path}"}})
        settings = settings.model_copy(update={"views": {"any": View(sql="select id from public.empty", key=("id",))}})
        with service(settings), kept_up(settings):
            until(lambda: _count(path) == 1, "the first row to be there", timeout_s=CATCH_UP_S)
            [result] = audit(settings, timeout_s=CATCH_UP_S)
            assert ask(path, "select count(*) from public.empty") == [(0,)]
            source.execute(b"alter table public.empty add column note text")
            source.execute(b"insert into public.empty values (1, now(), 'y')")
            [later] = audit(settings, timeout_s=CATCH_UP_S)
        assert result.equal
        assert later.equal
        assert ask(path, "select id, note from public.empty") == [(1, "y")]


def _count(path: Path) -> int:
    try:
        return int(ask(path, "select count(*) from public.items")[0][0])
    except duckdb.Error:
        return 0
