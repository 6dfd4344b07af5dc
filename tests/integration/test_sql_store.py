"""A store of kind sql in a real Postgres: writers that stop in the middle, what is in the way, rights, and the product's own follower and audit."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.audit.stores import audit
from cdc.crashpoint import decided_by
from cdc.errors import StoreError
from cdc.model.pgtypes import INT8
from cdc.model.topic import TopicSchema
from cdc.source.connection import connect
from sinks import make_sink, options_model
from tests.conftest import Database
from tests.contract.labs import LABS, Lab
from tests.contract.rows import ORDERS, PAIRS, order, schema, upserts
from tests.contract.test_marks import FIRST, SECOND, THIRD, apply, bring, pair, step, whole
from tests.contract.test_sinks import held
from tests.integration.pipeline import service, settings_of
from tests.waiting import until

CATCH_UP_S = 120
"""For a store to get as far as the source, on a machine with much else to do."""
STILL_S = 3
"""After so long the database ends the session of a writer that stands still in a commit."""


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    made = LABS["sql"](request.getfixturevalue)
    yield made
    made.close()


class Stopping:
    """Stops this process, as a machine does that is too busy, when the point is reached."""

    def __init__(self, point: str) -> None:
        self._point = point

    def reach(self, name: str) -> None:
        if name == self._point:
            os.kill(os.getpid(), signal.SIGSTOP)


def in_a_process(work: Callable[[], None]) -> Any:
    """Its exit code is 0 where the work ended, 3 where the store refused it and waiting may help."""

    def run() -> None:
        try:
            work()
        except StoreError as error:
            os._exit(3 if error.retryable else 4)
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    return process


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "T"


@pytest.mark.parametrize("point", ["sql.table_written", "sql.before_commit"])
def test_a_writer_that_stands_still_in_a_commit_holds_nobody_up_and_changes_nothing_when_it_wakes(lab: Lab, point: str) -> None:
    step(lab, lab.opened(timeout_s=STILL_S), *FIRST)
    lab.epoch += 1
    epoch = lab.epoch
    for changes in SECOND:
        lab.log.put(changes)

    def write() -> None:
        sink = lab.sink(timeout_s=STILL_S)
        sink.open(lab.log.reader(), epoch)
        for changes in SECOND:
            apply(sink, changes)
        with decided_by(Stopping(point)):
            sink.commit(lab.log.head)

    process = in_a_process(write)
    try:
        until(lambda: stopped(process.pid), "the writer to stand still")
        assert lab.applied().position == 5, "nobody who looks waits for it"
        began, sink = time.monotonic(), None
        while sink is None:
            with suppress(StoreError):
                sink = lab.opened(timeout_s=STILL_S)
            assert time.monotonic() - began < CATCH_UP_S
        bring(lab, sink)
        step(lab, sink, *THIRD)
        os.kill(process.pid, signal.SIGCONT)
        process.join(CATCH_UP_S)
        assert process.exitcode == 3
        whole(lab, sink)
    finally:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)
        process.kill()
        process.join()


def test_all_tables_of_a_cut_become_visible_together(lab: Lab, postgres: Database) -> None:
    sink = lab.opened()
    step(lab, sink, *FIRST)
    seen: list[tuple[int, int]] = []

    class Looking:
        def reach(self, name: str) -> None:
            if name in ("sql.table_written", "sql.before_commit", "sql.committed"):
                with postgres.connect() as other:
                    counts = (
                        "select (select count(*) from public.orders where status = 'paid'), (select count(*) from public.pairs)"
                    )
                    seen.extend(other.execute(counts).fetchall())

    with decided_by(Looking()):
        step(lab, sink, *SECOND)
    assert seen == [(0, 2), (0, 2), (0, 2), (1, 3)]


def test_a_table_that_is_not_ours_is_refused_by_name_and_left_alone(lab: Lab, postgres: Database) -> None:
    """As where the store's URL is the source's."""
    mine = postgres.connect()
    mine.execute("create table public.orders (id bigint primary key, theirs text); insert into public.orders values (1, 'x')")
    for attempt in (lambda sink: sink.prepare(TopicSchema.of(ORDERS)), lambda sink: step(lab, sink, *FIRST)):
        with pytest.raises(
            StoreError, match=r"the table public\.orders in the database is not one that this store has made"
        ) as refused:
            attempt(lab.opened())
        assert not refused.value.retryable
        assert "namespace" in (refused.value.hint or "")
    lab.sink().erase()
    assert mine.execute("select * from public.orders").fetchall() == [(1, "x")]
    elsewhere = lab.opened(namespace="copy_{schema}")
    bring(lab, elsewhere)
    assert held(elsewhere, ORDERS) == [order(1), order(2), order(3)]
    assert mine.execute("select id from copy_public.orders order by id").fetchall() == [(1,), (2,), (3,)]


def test_another_namespace_is_filled_and_the_old_tables_stay(lab: Lab, postgres: Database) -> None:
    step(lab, lab.opened(), *FIRST)
    sink = lab.opened(namespace="copy_{schema}")
    assert sink.applied().position == 0
    bring(lab, sink)
    step(lab, sink, *SECOND)
    whole_there = [held(sink, table) for table in (ORDERS, PAIRS)]
    assert whole_there[1] == [pair(1, "w"), pair(2), pair(3)]
    assert lab.sink(namespace="copy_{schema}").open(lab.log.reader()) == lab.log.head
    assert postgres.connect().execute("select count(*) from public.orders").fetchall() == [(3,)]
    lab.sink().erase()
    assert postgres.connect().execute("select to_regclass('public.orders'), to_regclass('copy_public.orders')").fetchall() == [
        (None, None)
    ]


def test_two_stores_never_share_a_table(lab: Lab) -> None:
    step(lab, lab.opened(), *FIRST)
    other = make_sink("other", options_model("sql").model_validate({"kind": "sql", **lab._options}))
    other.open(lab.log.reader(), 1)
    with pytest.raises(StoreError, match=rf"belongs to store {lab.name} and topic public\.orders"):
        other.prepare(TopicSchema.of(ORDERS))
    other.erase()
    assert held(lab.opened(), PAIRS) == [pair(1), pair(2)]


def test_missing_rights_are_named_with_what_helps_and_no_secret(lab: Lab, postgres: Database) -> None:
    owner = postgres.connect()
    owner.execute("create role reports login password 'canary-secret'")
    try:
        sink = lab.sink(url=f"postgresql://reports:canary-secret@{postgres.dsn.partition('@')[2]}")
        with pytest.raises(StoreError) as refused:
            sink.open(lab.log.reader(), 1)
        assert not refused.value.retryable
        assert "permission denied" in str(refused.value)
        assert "GRANT CREATE" in (refused.value.hint or "")
        assert "canary" not in f"{refused.value} {refused.value.hint} {sink!r}"
        owner.execute(f'grant create, connect, temporary on database "{postgres.name}" to reports')
        owner.execute("grant create, usage on schema public to reports")
        sink.open(lab.log.reader(), 1)
        step(lab, sink, *FIRST)
        sink.close()
    finally:
        owner.execute("drop owned by reports cascade; drop role reports")


def test_the_doctor_names_each_right_that_is_missing_and_the_least_is_enough(lab: Lab, postgres: Database) -> None:
    """Schemas of its own, and temporary tables: no right to make a schema."""
    owner = postgres.connect()
    owner.execute(f"create role reports login password 'x'; revoke temporary on database \"{postgres.name}\" from public")
    owner.execute("create schema taken; create table taken.orders (id int)")
    url = f"postgresql://reports:x@{postgres.dsn.partition('@')[2]}"
    topics = [TopicSchema.of(ORDERS), TopicSchema.of(PAIRS)]

    def missing(**options: str) -> list[str]:
        found = lab.sink(url=url, **options).missing_rights(topics)
        assert isinstance(found, Iterator)
        return [str(error.hint).removeprefix("as its owner: ") for error in found]

    try:
        statements = missing(namespace="copy_{schema}")
        assert [statement.partition(" ")[0] for statement in statements] == ["GRANT", "CREATE", "CREATE"]
        for statement in statements:
            owner.execute(statement)
        assert missing(namespace="copy_{schema}") == []
        assert [one.partition(" ON ")[0] for one in missing()] == ["GRANT CREATE, USAGE"]
        assert "namespace" in missing(namespace="taken")[-1], "a table that is not ours stands there"
        step(lab, lab.opened(url=url, namespace="copy_{schema}"), *FIRST)
        assert missing(namespace="copy_{schema}") == []
        owner.execute("alter table copy_public.orders owner to current_user")
        assert missing(namespace="copy_{schema}") == ['ALTER TABLE "copy_public"."orders" OWNER TO "reports"']
    finally:
        owner.execute("drop owned by reports cascade; drop role reports")


def test_views_and_rights_on_a_table_outlive_a_rebuild(lab: Lab, postgres: Database) -> None:
    from tests.contract.test_rebuild import rebuild

    mine = postgres.connect()
    step(lab, lab.opened(), *FIRST)
    mine.execute("create view public.paid as select id, status from public.orders")
    step(lab, lab.opened(), *SECOND)
    rebuild(lab).close()
    assert mine.execute("select * from public.paid order by id").fetchall() == [(1, "paid"), (3, "new")]


def test_changes_beyond_the_memory_wait_in_a_file(lab: Lab) -> None:
    sink = lab.opened(staged_bytes=1)
    step(lab, sink, *FIRST, *SECOND, *THIRD)
    whole(lab, sink)


def test_a_follower_keeps_it_as_the_source_is_and_the_audit_agrees(postgres: Database, tmp_path: Path) -> None:
    """Over every kind of column that a table is likely to have, with a table that has no key and one that is told apart by all it holds."""
    with connect(postgres.dsn) as source:
        for statement in SOURCE.split(";\n"):
            source.execute(statement.encode())
        url = postgres.dsn
        settings = settings_of(postgres, tmp_path, {"reports": {"kind": "sql", "url": url, "namespace": "copy_{schema}"}})
        with service(settings):
            agree(source)
            for statement in CHANGES.split(";\n"):
                source.execute(statement.encode())
                agree(source)
            [result] = audit(settings, timeout_s=CATCH_UP_S)
        assert result.equal, result.to_json()


SOURCE = """create type public.mood as enum ('sad', 'happy');
create table public.items (id uuid primary key, n numeric(12, 2), at timestamptz, tags text[], spans int4range[], doc jsonb, raw bytea,
  mood public.mood, net inet, "odd "" name" interval);
create table public.whole (a int, b json, c text);
alter table public.whole replica identity full;
create publication cdc for table public.items, public.whole;
insert into public.items select gen_random_uuid(), g / 7.0, now() - g * interval '1 hour', array['a', null, g::text], array[int4range(g, g + 3)],
  jsonb_build_object('g', g), decode(md5(g::text), 'hex'), 'happy', '10.0.0.1'::inet + g, g * interval '1 day 3 minutes' from generate_series(1, 500) g;
insert into public.whole values (1, '{"a" : 1}', null), (2, null, 'x')"""
CHANGES = """update public.items set n = -n, mood = 'sad' where n > 30;
delete from public.items where n < -60;
update public.whole set c = 'y' where a = 1;
delete from public.whole where a = 2;
alter table public.items rename column net to address;
alter table public.items add column extra bigint default 7;
insert into public.items (id, n, extra) values (gen_random_uuid(), 'NaN', 9);
alter table public.items alter column extra type text using 'is ' || extra;
alter table public.items drop column raw;
update public.items set extra = 'x' where n = 'NaN';
truncate public.whole;
insert into public.whole values (3, '[]', 'z')"""

LIVE = "select attname from pg_attribute where attnum > 0 and not attisdropped and"


def agree(source: psycopg.Connection[Any]) -> None:
    """Both tables hold the same rows, column for column."""
    names = [
        [
            f'"{str(row[0]).replace(chr(34), chr(34) * 2)}"'
            for row in source.execute(f"{LIVE} attrelid = 'public.{table}'::regclass".encode()).fetchall()
        ]
        for table in ("items", "whole")
    ]
    compared = [
        f"select {', '.join(f'{name}::text' for name in columns)} from {{schema}}.{table}"
        for table, columns in zip(("items", "whole"), names, strict=True)
    ]

    def same() -> bool:
        with suppress(psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn):
            for query in compared:
                there, here = query.format(schema="copy_public"), query.format(schema="public")
                differ = f"select count(*) from (({here} except all {there}) union all ({there} except all {here})) d"
                if source.execute(differ.encode()).fetchall() != [(0,)]:
                    return False
            return True
        return False

    until(same, "the store to be as the source is")


def test_every_version_takes_rows_and_changes_of_columns(pg_versions: Database) -> None:
    lab = LABS["sql"](lambda _: pg_versions)
    try:
        sink = lab.opened()
        step(lab, sink, *FIRST)
        retyped = replace(
            ORDERS, columns=tuple(replace(c, type_oid=INT8, type_name="int8") if c.name == "status" else c for c in ORDERS.columns)
        )
        step(lab, sink, *SECOND, schema(retyped, 10), upserts(retyped, 11, [order(7, "70")]))
        assert [(row["id"], row["status"]) for row in held(sink, retyped)] == [("1", None), ("3", None), ("7", "70")]
    finally:
        lab.close()
