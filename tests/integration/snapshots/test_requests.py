"""`cdc snapshot`'s requests: what is stale in the log is corrected while the stream goes on."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.errors import ConfigError
from snapshots.requestcheck import WrongKey, check_request
from snapshots.requests import Request, RequestOutcome, Requests
from snapshots.session import open_session
from tests.integration.snapshots.pipeline import Pipeline, fold, operations, rows_of, running, settle

ROWS = 1200


@pytest.fixture
def stale(postgres: Any, tmp_path: Path) -> Any:
    """A pipeline whose log says 'old' of every row, and of rows that the source never had; the source changed behind its back."""
    with postgres.connect() as sql:
        sql.execute("create table t (a int, b text, v text, primary key (b, a))")
        sql.execute(f"insert into t select i, 'k' || i % 3, 'old' from generate_series(1, {ROWS}) i")
        with running(postgres.unix_dsn, tmp_path, snapshot_workers=2) as pipeline:
            pipeline.wait_finished()
            behind_the_back(sql, "update t set v = 'new'")
            behind_the_back(sql, "delete from t where a in (7, 8)")
            yield pipeline, sql


def behind_the_back(sql: psycopg.Connection[Any], statement: str) -> None:
    """Changes that the stream does not deliver."""
    with sql.transaction():
        sql.execute("alter publication cdc drop table t")
    sql.execute(statement)
    sql.execute("alter publication cdc add table t")


def done(pipeline: Pipeline, name: str, timeout_s: float = 120) -> RequestOutcome:
    deadline = time.monotonic() + timeout_s
    while (outcome := pipeline.requests.outcome(name)).state not in ("done", "failed"):
        pipeline.check()
        assert time.monotonic() < deadline, outcome
        time.sleep(0.02)
    return outcome


def values(folder: Path) -> list[tuple[str | None, ...]]:
    return sorted(fold(folder, "public.t").values(), key=repr)


def test_the_whole_table_corrects_and_replacing_removes(stale: Any, tmp_path: Path) -> None:
    pipeline, sql = stale
    assert done(pipeline, pipeline.requests.queue(Request("public.t"))) == RequestOutcome("done", ROWS - 2, ROWS - 2)
    rows = values(tmp_path)
    assert len(rows) == ROWS, "rows that are gone stay"
    assert sum(row[2] == "new" for row in rows) == ROWS - 2
    assert done(pipeline, pipeline.requests.queue(Request("public.t", replace=True))).state == "done"
    settle(pipeline, sql)
    assert values(tmp_path) == rows_of(sql, "public.t")
    assert operations(tmp_path, "public.t")["SCHEMA"] == 1
    assert not pipeline.requests.pending()


def test_a_condition(stale: Any, tmp_path: Path) -> None:
    pipeline, _ = stale
    outcome = done(pipeline, pipeline.requests.queue(Request("public.t", where="a <= 10 and b <> 'it''s' -- ten of them")))
    assert outcome == RequestOutcome("done", 8, 8)
    assert sum(row[2] == "new" for row in values(tmp_path)) == 8


def test_keys_and_what_no_row_has(stale: Any, tmp_path: Path) -> None:
    pipeline, _ = stale
    keys = tuple((f"k{a % 3}", f"{a:03d}") for a in (5, 6, 7, 8, 5000))
    assert done(pipeline, pipeline.requests.queue(Request("public.t", keys=keys))).state == "done"
    state = fold(tmp_path, "public.t")
    assert len(state) == ROWS - 2
    assert operations(tmp_path, "public.t")["DELETE"] == 3
    assert sum(row[2] == "new" for row in state.values()) == 2


def test_keys_that_are_equal_to_another_row_s(pg_versions: Any, tmp_path: Path) -> None:
    """What the log has under a key that equals a row's, and is another: gone, as asked for, and the row is not."""
    with pg_versions.connect() as sql:
        keys = {"n": ("1.50", "1.5"), "c": ("ab  ", "zz"), "b": ("0101", "1111")}
        sql.execute(
            "create table n (id numeric primary key); create table c (id char(4) primary key); create table b (id bit(4) primary key)"
        )
        if sql.execute("select 1 from pg_collation where collname = 'en-x-icu'").fetchone():
            sql.execute("create collation anycase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
            sql.execute("create table i (id text collate anycase primary key)")
            keys["i"] = ("Abc", "aBC")
        for table, (row, _) in keys.items():
            sql.execute(f"insert into {table} values ('{row}')")
        with running(pg_versions.unix_dsn, tmp_path) as pipeline:
            pipeline.wait_finished()
            for table, (row, other) in keys.items():
                asked = ((row.strip(),), (other,), (other,))
                assert done(pipeline, pipeline.requests.queue(Request(f"public.{table}", keys=asked))).state == "done"
                assert operations(tmp_path, f"public.{table}")["DELETE"] == 1, table
                assert list(fold(tmp_path, f"public.{table}")) == [(row,)]


def test_what_fails_concerns_nobody_else(stale: Any, tmp_path: Path) -> None:
    pipeline, sql = stale
    assert (
        done(pipeline, pipeline.requests.queue(Request("public.t", where="1 / (a - a) = 1"))).error
        == "a data exception (SQLSTATE 22012)"
    )
    assert "22P02" in (done(pipeline, pipeline.requests.queue(Request("public.t", keys=(("k1", "x"),)))).error or "")
    assert done(pipeline, pipeline.requests.queue(Request("public.nothing"))).state == "failed"
    sql.execute("insert into t values (-1, 'k', 'streamed')")
    settle(pipeline, sql)
    assert fold(tmp_path, "public.t")[("-1", "k")][2] == "streamed"


def test_a_request_outlives_the_process(postgres: Any, tmp_path: Path) -> None:
    with postgres.connect() as sql:
        sql.execute("create table t (id int primary key, v text)")
        sql.execute("insert into t select i, 'v' from generate_series(1, 100) i")
        name = Requests(tmp_path).queue(Request("public.t", where="id > 90"))
        with running(postgres.unix_dsn, tmp_path) as pipeline:
            assert done(pipeline, name).rows == 10
        assert operations(tmp_path, "public.t") == {"READ": 110}


@pytest.mark.parametrize(
    ("request_of", "says"),
    [
        (Request("public.no"), "no table public.no"),
        (Request("public.t", where="v ="), "not a condition"),
        (Request("public.t", where="v"), "not a condition"),
        (Request("public.t", where="nothing = 1"), "not a condition"),
        (Request("public.t", where="true) or (true"), "not a condition"),
        (Request("public.t", where="true) to stdout; drop table t; copy (select 1 where (true"), "not a condition"),
        (Request("public.t", where="true]) or (array[true"), "not a condition"),
        (Request("public.t", where="true, true"), "not a condition"),
        (Request("public.t", keys=(("1", "2"),)), "has 1 column: id"),
    ],
)
def test_refused_before_it_is_queued(postgres: Any, request_of: Request, says: str) -> None:
    with postgres.connect() as sql:
        sql.execute("create table t (id int primary key, v text); create publication cdc for table t")
        with closing(open_session(postgres.unix_dsn)) as connection, pytest.raises(ConfigError, match=says):
            check_request(connection, request_of, _SOURCE)


@pytest.mark.parametrize(
    ("keys", "place", "column"),
    [
        ([("1", "joy", "x")] * 5 + [("1", "canary", "x")] * 3, 5, 'm is not of type public."mo%od"'),
        ([("canary", "joy", "x")], 0, "id is not of type integer"),
        (
            [(str(n), "joy", "x") for n in range(100)] + [("99999999999", "joy", "x"), ("canary", "joy", "x")],
            100,
            "id is not of type integer",
        ),
    ],
)
def test_a_wrong_key_is_named_without_its_value(postgres: Any, keys: Any, place: int, column: str) -> None:
    with postgres.connect() as sql:
        sql.execute(
            'create type "mo%od" as enum (\'joy\'); create table t (id int, m "mo%od", v varchar(2), primary key (id, m, v))'
        )
        sql.execute("create publication cdc for table t")
        with closing(open_session(postgres.unix_dsn)) as connection:
            check_request(connection, Request("public.t", keys=(("1", "joy", "longer than the column"),)), _SOURCE)
            with pytest.raises(WrongKey) as raised:
                check_request(connection, Request("public.t", keys=tuple(keys)), _SOURCE)
    assert raised.value.place == place
    assert raised.value.problem.endswith(f"column {column}")
    assert "canary" not in raised.value.line()


def test_conditions_that_are_fine(postgres: Any) -> None:
    with postgres.connect() as sql:
        sql.execute("create table t (id int primary key, v text); create publication cdc for table t")
        with closing(open_session(postgres.unix_dsn)) as connection:
            for condition in ("id > 5", "v in ('a)', 'b;c') -- so", "id = (select 1) or v is null"):
                check_request(connection, Request("public.t", where=condition), _SOURCE)


@pytest.mark.parametrize(
    ("setup", "table", "says", "hint"),
    [
        ("select 1", "public.t", "there is no publication 'cdc' yet, so no table is captured", "cdc run"),
        ("create publication cdc for table t", "t", "table t is not captured", "did you mean public.t?"),
        ("create publication cdc for table t", "public.tt", "there is no table public.tt", "did you mean public.t?"),
        ("create publication cdc for table t", "public.far", "there is no table public.far", "cdc log ls lists"),
        ("create publication cdc for table t", "other.u", "source.tables does not select table other.u", "cdc.toml"),
        ("create publication cdc for table t", "public.w", "table public.w is not in the publication 'cdc'", "cdc status"),
    ],
)
def test_a_table_that_is_not_captured_is_told_why(postgres: Any, setup: str, table: str, says: str, hint: str) -> None:
    with postgres.connect() as sql:
        sql.execute("create table t (id int primary key); create schema other; create table other.u (id int primary key)")
        sql.execute("create table w (id int primary key)")
        sql.execute(setup)
        with closing(open_session(postgres.unix_dsn)) as connection, pytest.raises(ConfigError) as raised:
            check_request(connection, Request(table), _SOURCE)
    assert says in str(raised.value)
    assert hint in (raised.value.hint or "")


class _Source:
    tables = ("public.*",)
    publication = "cdc"


_SOURCE = _Source()
