"""Snapshots of real tables, quiet and under traffic: the folded log equals the source, value for value."""

from __future__ import annotations

import random
from pathlib import Path
from threading import Event, Thread
from typing import Any

import psycopg
import pytest

from tests.integration.snapshots.pipeline import Pipeline, fold, operations, rows_of, running, settle


def equal(pipeline: Pipeline, connection: psycopg.Connection[Any], table: str) -> None:
    settle(pipeline, connection)
    assert sorted(fold(pipeline.folder, table).values(), key=repr) == rows_of(connection, table)


def test_quiet_table(pg_versions: Any, tmp_path: Path) -> None:
    with pg_versions.connect() as sql:
        sql.execute("create table t (id bigint primary key, amount numeric(12,2), note text, at timestamptz)")
        sql.execute(
            r"insert into t select i, i / 3.0, case when i % 7 = 0 then null else E'a\tb\\\n' || i end, 'epoch' from generate_series(1, 1050) i"
        )
        sql.execute("insert into t values (-1, 'NaN', '', 'infinity'), (-2, 0, '\\N', '0044-03-15 BC')")
        sql.execute("create table empty (id int primary key)")
        sql.execute("create table single (id int primary key)")
        sql.execute("insert into single values (1)")
        with running(pg_versions.unix_dsn, tmp_path) as pipeline:
            pipeline.wait_finished()
            for table in ("public.t", "public.single"):
                equal(pipeline, sql, table)
            assert fold(tmp_path, "public.t")[("-1",)] == ("-1", "NaN", "", "infinity")
            assert operations(tmp_path, "public.t") == {"READ": 1052}
            assert pipeline.feed.entered >= 11 + 1
            assert [(one.table, one.done, one.total, one.finished) for one in pipeline.progress.tables()] == [
                ("public.empty", 0, 0, True),
                ("public.single", 1, 1, True),
                ("public.t", 1052, 1052, True),
            ]


KEYS = {
    "composite": ("a int, b text, primary key (b, a)", "i % 7, 'k' || i / 7"),
    "latin": ("a text primary key", "case i % 3 when 0 then 'Ä' when 1 then 'a' else 'Z' end || i"),
    "uuid": ("a uuid primary key", "md5(i::text)::uuid"),
    "quoted": ("a text primary key", r"E'it''s \\ ' || chr(9) || i"),
    "index": ("a int not null, b int not null, c int", "i, i % 5, i"),
    "full": ("a int primary key, b text", "i, 'x'"),
    "domain": ("a positive primary key", "i"),
    "timestamps": (
        "a timestamptz primary key",
        "case when i = 1 then 'infinity' else 'epoch'::timestamptz + i * interval '1 h' end",
    ),
}


@pytest.mark.parametrize("kind", KEYS)
def test_kinds_of_keys(postgres: Any, tmp_path: Path, kind: str) -> None:
    columns, values = KEYS[kind]
    with postgres.connect() as sql:
        sql.execute("create domain positive as int check (value > 0)")
        sql.execute(f"create table t ({columns})")
        if kind == "index":
            sql.execute("create unique index one on t (b desc, a); alter table t replica identity using index one")
        if kind == "full":
            sql.execute("alter table t replica identity full")
        sql.execute(f"insert into t select {values} from generate_series(1, 1000) i")
        with running(postgres.unix_dsn, tmp_path, chunk_rows=97) as pipeline:
            sql.execute("delete from t where ctid = (select min(ctid) from t)")
            pipeline.wait_finished()
            equal(pipeline, sql, "public.t")
            assert operations(tmp_path, "public.t")["READ"] in (999, 1000)


def test_collated_key(pg_versions: Any, tmp_path: Path) -> None:
    """An order in which bytes would not do: a, Ä, Z, with case ignored at first."""
    with pg_versions.connect() as sql:
        if not sql.execute("select 1 from pg_collation where collname = 'en-x-icu'").fetchone():
            pytest.skip("this server was built without ICU")
        sql.execute('create table t (a text collate "en-x-icu" primary key)')
        sql.execute(
            "insert into t select case i % 4 when 0 then 'Ä' when 1 then 'a' when 2 then 'A' else 'Z' end || i from generate_series(1, 1000) i"
        )
        with running(pg_versions.unix_dsn, tmp_path, chunk_rows=97) as pipeline:
            pipeline.wait_finished()
            equal(pipeline, sql, "public.t")
            assert operations(tmp_path, "public.t") == {"READ": 1000}


def test_without_a_key(postgres: Any, tmp_path: Path) -> None:
    with postgres.connect() as sql:
        sql.execute("create table t (a int, b text)")
        sql.execute("alter table t replica identity full")
        sql.execute("insert into t select i, repeat('x', 100) from generate_series(1, 3000) i")
        sql.execute("insert into t values (null, null)")
        sql.execute("analyze t")
        with running(postgres.unix_dsn, tmp_path) as pipeline:
            for i in range(1, 200):
                sql.execute("update t set b = %s where a = %s", (f"new {i}", i * 10))
                sql.execute("delete from t where a = %s", (i * 10 + 1,))
            pipeline.wait_finished()
            equal(pipeline, sql, "public.t")
            assert pipeline.feed.entered > 5


class Traffic:
    """Random changes of ``t (id bigint primary key, v int, wide text, small text)`` from several sessions until stopped."""

    def __init__(self, dsn: str, seed: int, *, sessions: int = 3, truncates: bool = True, ids: int = 3000) -> None:
        self._stop = Event()
        self._dsn = dsn
        self._truncates = truncates
        self._ids = ids
        self.failures: list[BaseException] = []
        self.count = 0
        self._threads = [Thread(target=self._guarded, args=(random.Random(f"{seed}:{n}"),)) for n in range(sessions)]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self.failures:
            raise self.failures[0]

    def _guarded(self, chance: random.Random) -> None:
        try:
            self._run(chance)
        except BaseException as error:
            self.failures.append(error)

    def _run(self, chance: random.Random) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as sql:
            while not self._stop.is_set():
                self.count += 1
                try:
                    with sql.transaction(force_rollback=chance.random() < 0.05):
                        for _ in range(chance.randint(1, 8)):
                            self._change(sql, chance)
                except (psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
                    pass

    def _change(self, sql: psycopg.Connection[Any], chance: random.Random) -> None:
        one, other = chance.randint(1, self._ids), chance.randint(1, self._ids)
        kind = chance.random()
        if kind < 0.3:
            sql.execute("update t set v = v + 1 where id = %s", (one,))
        elif kind < 0.4:
            sql.execute("update t set wide = wide || %s where id = %s", (str(other), one))
        elif kind < 0.55:
            sql.execute("update t set id = %s where id = %s", (other, one))
        elif kind < 0.75:
            sql.execute("delete from t where id = %s", (one,))
        elif kind < 0.998 or not self._truncates:
            sql.execute(
                "insert into t values (%s, 0, (select string_agg(md5(i::text || random()), '') from generate_series(1, %s) i), 's')"
                " on conflict (id) do update set small = t.small || 'x'",
                (one, chance.choice((1, 1, 1, 100))),
            )
        else:
            sql.execute("truncate t")


CREATE = """
create table t (id bigint primary key, v int, wide text, small text);
alter table t alter wide set storage external;
insert into t select i, 0, (select string_agg(md5(j::text || i), '') from generate_series(1, case when i % 10 = 0 then 100 else 1 end) j), 's'
  from generate_series(1, 3000) i where i % 3 <> 0
"""


@pytest.mark.parametrize("attempt", range(3))
def test_under_traffic(postgres: Any, tmp_path: Path, seed: int, attempt: int) -> None:
    """Insert, update (with unchanged TOAST values), delete, key update, re-insert and TRUNCATE while chunks are read."""
    with postgres.connect() as sql:
        sql.execute(CREATE)
        with (
            running(postgres.unix_dsn, tmp_path, chunk_rows=60) as pipeline,
            Traffic(postgres.unix_dsn, seed + attempt, truncates=attempt == 0),
        ):
            pipeline.wait_finished()
        # Traffic has ended; the pipeline has closed in between, so what came last arrives after a restart.
        with running(postgres.unix_dsn, tmp_path, chunk_rows=60) as pipeline:
            equal(pipeline, sql, "public.t")
