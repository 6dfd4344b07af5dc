"""The source's side in SQL against real servers: catalog, publication, slot, and what doctor finds."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from pydantic import SecretStr

from cdc.errors import ConfigError, SourceError, Stopped, StopState
from cdc.model.facts import hidden
from cdc.settings.models import Source
from cdc.source import (
    connect,
    ensure_publication,
    ensure_slot,
    find_tables,
    load_published,
    read_publication,
    read_slot,
    select_tables,
)
from cdc.source import publication as publications
from cdc.source.checks import Finding, check_source
from cdc.source.facts import read_facts
from cdc.source.pins import PinWatch, read_pins
from snapshots.catalog import load_tables
from tests.conftest import Database

Connection = psycopg.Connection[Any]


def source(database: Database, *tables: str, slot: str = "") -> Source:
    return Source(dsn=SecretStr(database.dsn), tables=tables or ("public.*",), slot=slot or f"s_{database.name}", publication="cdc")


@pytest.fixture
def sql(postgres: Database) -> Connection:
    return postgres.connect()


def selected(connection: Connection, *patterns: str) -> list[str]:
    return [table.name for table in select_tables(find_tables(connection), patterns)]


def findings(database: Database, settings: Source, *, dsn: str | None = None, log_has_begun: bool = False) -> list[Finding]:
    with connect(dsn or database.dsn) as connection:
        return list(check_source(connection, settings, log_has_begun=log_has_begun))


def worst(found: list[Finding], check: str) -> Finding:
    mine = [finding for finding in found if finding.check == check]
    assert mine, f"no finding {check} among {[finding.check for finding in found]}"
    return max(mine, key=lambda finding: ("ok", "warn", "fail").index(finding.level))


# The catalog


def test_tables_with_their_keys_in_table_order(sql: Connection) -> None:
    sql.execute(
        """
        create domain label as text;
        create type mood as enum ('a');
        create table "Odd ""name" (a int, b mood, c label, g int generated always as (a + 1) stored, primary key (b, a));
        """
    )
    (found,) = find_tables(sql)
    assert found.name == 'public.Odd "name'
    assert found.table.names == ("a", "b", "c")
    assert [column.name for column in found.table.key] == ["a", "b"]
    assert [column.type_name for column in found.table.columns] == ["", "public.mood", "pg_catalog.text"]
    assert found.definition.identified
    assert found.capturable
    assert found.readable


def test_every_kind_of_identity(sql: Connection) -> None:
    sql.execute(
        """
        create table plain (id int primary key, v text);
        create table none (id int);
        create table nothing (id int primary key); alter table nothing replica identity nothing;
        create table whole (id int primary key, v text); alter table whole replica identity full;
        create table keyless (id int, v text); alter table keyless replica identity full;
        create table late (id int primary key deferrable);
        create table indexed (id int, other int not null); create unique index by_other on indexed (other);
        alter table indexed replica identity using index by_other;
        create table unindexed (id int, other int not null); create unique index gone on unindexed (other);
        alter table unindexed replica identity using index gone; drop index gone;
        """
    )
    found = {table.table.name: table for table in find_tables(sql)}
    assert {name for name, table in found.items() if table.definition.identified} == {"plain", "whole", "keyless", "indexed"}
    keys = {name: [column.name for column in table.table.key] for name, table in found.items()}
    assert keys["whole"] == ["id"]
    assert keys["keyless"] == ["id", "v"]
    assert keys["indexed"] == ["other"]
    assert keys["late"] == keys["none"] == []


def test_selection_takes_roots_for_their_partitions(sql: Connection) -> None:
    sql.execute(
        """
        create table m (id int, at date, primary key (id, at)) partition by range (at);
        create table m_1 partition of m for values from ('2020-01-01') to ('2021-01-01') partition by list (id);
        create table m_1_a partition of m_1 default;
        create unlogged table u (id int primary key);
        create view v as select 1 as id;
        """
    )
    assert selected(sql, "public.*") == ["public.m"]
    assert selected(sql, "public.m_1_a") == ["public.m_1_a"]


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        ("public.v", "is a view"),
        ("public.u", "is unlogged"),
        ("public.nowhere", "does not exist"),
        ("nothing.*", "selects no table"),
    ],
)
def test_a_named_table_must_be_capturable(sql: Connection, pattern: str, what: str) -> None:
    sql.execute("create unlogged table u (id int primary key); create view v as select 1 as id")
    with pytest.raises(SourceError, match=what):
        selected(sql, pattern)


# The publication


def test_the_publication_is_made_then_widened(sql: Connection, postgres: Database) -> None:
    sql.execute('create table "A b" (id int primary key, v text)')
    settings = source(postgres)
    (table,) = ensure_publication(sql, settings, find_tables(sql))
    assert table.qualified == "public.A b"
    sql.execute("create table later (id int primary key)")
    assert [table.qualified for table in ensure_publication(sql, settings, find_tables(sql))] == ["public.A b", "public.later"]
    publication = read_publication(sql, "cdc")
    assert publication is not None
    assert publication.via_root
    assert publication.publishes == {"insert", "update", "delete", "truncate"}
    assert publication.tables == {"public.A b", "public.later"}


def test_a_column_list_is_what_the_stream_sends(pg_versions: Database) -> None:
    connection = pg_versions.connect()
    connection.execute("create table t (id int primary key, secret text, v text); create publication cdc for table t (id, v)")
    (table,) = ensure_publication(connection, source(pg_versions), find_tables(connection))
    assert table.names == ("id", "v")
    assert load_published(connection, "cdc", ["other.*"]) == []


@pytest.mark.parametrize(
    ("ddl", "hint"),
    [
        ("create table t (id int)", 'add a primary key, or: ALTER TABLE "public"."t" REPLICA IDENTITY FULL'),
        (
            "create table t (id int primary key); alter table t replica identity nothing",
            'ALTER TABLE "public"."t" REPLICA IDENTITY DEFAULT',
        ),
    ],
)
def test_a_table_that_would_break_the_application_is_never_published(
    sql: Connection, postgres: Database, ddl: str, hint: str
) -> None:
    sql.execute(ddl)
    with pytest.raises(SourceError, match=r"table public\.t has") as caught:
        ensure_publication(sql, source(postgres), find_tables(sql))
    assert caught.value.hint == hint
    assert read_publication(sql, "cdc") is None
    sql.execute(hint.removeprefix("add a primary key, or: "))
    assert len(ensure_publication(sql, source(postgres), find_tables(sql))) == 1


@pytest.mark.parametrize("identity", ["default", "full"])
def test_a_deferrable_key_is_no_identity(sql: Connection, postgres: Database, identity: str) -> None:
    sql.execute(f"create table t (id int primary key deferrable); alter table t replica identity {identity}".encode())
    with pytest.raises(SourceError, match=r"table public\.t has a deferrable primary key") as caught:
        ensure_publication(sql, source(postgres), find_tables(sql))
    assert "without DEFERRABLE" in str(caught.value.hint)
    sql.execute("alter table t drop constraint t_pkey, add primary key (id)")
    assert len(ensure_publication(sql, source(postgres), find_tables(sql))) == 1


def test_a_partial_publication_is_refused_with_working_sql(sql: Connection, postgres: Database) -> None:
    sql.execute("create table t (id int primary key); create publication cdc for table t with (publish = 'insert')")
    with pytest.raises(SourceError, match="does not publish delete, update") as caught:
        ensure_publication(sql, source(postgres), find_tables(sql))
    assert caught.value.hint is not None
    sql.execute(caught.value.hint.encode())
    ensure_publication(sql, source(postgres), find_tables(sql))


def test_a_role_that_may_not_publish_is_told_what_the_owner_runs(sql: Connection, postgres: Database) -> None:
    role = f"r_{postgres.name}"
    sql.execute(f"create table t (id int primary key); create role {role} login replication; grant select on t to {role}")
    dsn = postgres.server.dsn(postgres.name, user=role)
    with connect(dsn) as limited, pytest.raises(SourceError, match="may not change publication") as caught:
        ensure_publication(limited, source(postgres), find_tables(limited))
    assert caught.value.hint is not None
    found = worst(findings(postgres, source(postgres), dsn=dsn), "publication")
    assert found.level == "fail"
    assert found.hint is not None
    sql.execute(found.hint.removeprefix("let the owner run: ").encode())
    assert worst(findings(postgres, source(postgres), dsn=dsn), "publication").level == "ok"
    sql.execute(f"drop owned by {role}; drop role {role}")


def test_a_schema_s_pattern_selects_no_other_schema(sql: Connection, postgres: Database) -> None:
    sql.execute('create schema app; create schema "app.evil"')
    sql.execute('create table app.orders (id int primary key); create table "app.evil".wages (id int primary key)')
    assert selected(sql, "app.*") == ["app.orders"]
    assert selected(sql, "app.evil.*") == ["app.evil.wages"]
    ensure_publication(sql, source(postgres, "*"), find_tables(sql))
    assert [found.qualified for found in load_published(sql, "cdc", ("app.*",))] == ["app.orders"]
    assert [found.name for found in load_tables(sql, ("app.*",), "cdc")] == ["app.orders"]


# The slot


def test_the_slot_on_every_version(pg_versions: Database) -> None:
    connection = pg_versions.connect()
    settings = source(pg_versions)
    with pytest.raises(Stopped) as caught:
        ensure_slot(connection, settings, create=False)
    assert caught.value.state is StopState.SLOT_MISSING
    assert not read_slot(connection, settings.slot).exists
    made = ensure_slot(connection, settings, create=True)
    assert made.exists
    assert made.wal_status == "reserved"
    assert made.confirmed_lsn is not None
    assert made.confirmed_lsn <= made.server_lsn
    assert made.made is not None
    assert made.made.plugin == "pgoutput"
    assert made.made.failover is (None if pg_versions.server.version < 17 else True)
    assert not made.made.two_phase
    assert ensure_slot(connection, settings, create=False).confirmed_lsn == made.confirmed_lsn


def test_a_slot_for_two_phase_commit_and_without_failover(pg_versions: Database) -> None:
    connection = pg_versions.connect()
    settings = source(pg_versions).model_copy(update={"failover": False})
    made = ensure_slot(connection, settings, create=True, two_phase=True)
    assert made.made is not None
    assert made.made.two_phase
    assert not made.made.failover


def test_somebody_elses_slot_is_refused(sql: Connection, postgres: Database) -> None:
    settings = source(postgres)
    sql.execute("select pg_create_physical_replication_slot(%s)", (settings.slot,))
    with pytest.raises(SourceError, match="belongs to somebody else"):
        ensure_slot(sql, settings, create=True)
    sql.execute("select pg_drop_replication_slot(%s)", (settings.slot,))


def test_a_slot_that_waits_for_a_transaction_names_it(sql: Connection, postgres: Database) -> None:
    open_transaction = postgres.connect(autocommit=False)
    pid = open_transaction.info.backend_pid
    open_transaction.execute("select pg_current_xact_id()")
    with pytest.raises(SourceError, match=rf"waits for open transactions; the oldest is pid {pid}, xid \d+"):
        ensure_slot(sql, source(postgres), create=True, timeout_s=0.5)
    open_transaction.rollback()
    assert ensure_slot(sql, source(postgres), create=True).exists


def test_a_role_that_cannot_see_a_transaction_s_age_takes_it_for_new(sql: Connection, postgres: Database) -> None:
    role = f"r_{postgres.name}"
    sql.execute(f"create role {role} login replication")
    settings = source(postgres)
    with postgres.connect(autocommit=False) as held, connect(postgres.server.dsn(postgres.name, user=role)) as limited:
        held.execute("select pg_current_xact_id()")
        pid = held.info.backend_pid
        assert pid in [pin.pid for pin in read_pins(limited, least_s=0, most=1000)]
        assert pid not in [pin.pid for pin in read_pins(limited, most=1000)]
        found = list(check_source(limited, settings, log_has_begun=False))
        assert not [finding for finding in found if finding.check == "open transaction" and f"pid {pid}," in finding.message]
        watch = PinWatch(clock=iter((0.0, 301.0)).__next__)
        assert pid not in [pin.pid for pin in watch.look(limited)]
        assert (pid, 301, True) in [(pin.pid, pin.age_s, pin.at_least) for pin in watch.look(limited)]
    sql.execute(f"drop role {role}")


# What doctor finds


def test_a_healthy_source_has_no_failure(sql: Connection, postgres: Database) -> None:
    sql.execute("create table t (id int primary key)")
    settings = source(postgres)
    before = findings(postgres, settings)
    assert not [finding for finding in before if finding.level == "fail"]
    assert worst(before, "publication").hint == worst(before, "slot").hint == "cdc doctor --fix"
    ensure_publication(sql, settings, find_tables(sql))
    ensure_slot(sql, settings, create=True)
    after = findings(postgres, settings)
    assert {finding.check for finding in after if finding.level == "warn"} <= {"role", "wal limit", "event trigger"}
    assert worst(after, "table public.t").level == "ok"


def test_a_role_without_rights(sql: Connection, postgres: Database) -> None:
    role = f"r_{postgres.name}"
    sql.execute(
        f"""
        create role {role} login; create table t (id int primary key);
        create table hidden (id int primary key); grant select on hidden to {role}; alter table hidden enable row level security
        """
    )
    dsn = postgres.server.dsn(postgres.name, user=role)
    found = findings(postgres, source(postgres), dsn=dsn)
    for check in ("role", "table public.t", "table public.hidden"):
        finding = worst(found, check)
        assert finding.level == "fail", check
        assert finding.hint is not None
        sql.execute(finding.hint.encode())
    mended = findings(postgres, source(postgres), dsn=dsn)
    assert {worst(mended, check).level for check in ("role", "table public.t", "table public.hidden")} == {"ok"}
    sql.execute(f"drop owned by {role}; drop role {role}")


def test_a_slot_that_is_gone_though_the_log_has_begun(sql: Connection, postgres: Database) -> None:
    sql.execute("create table t (id int primary key)")
    assert worst(findings(postgres, source(postgres), log_has_begun=True), "slot").level == "fail"


def test_truncate_left_out_and_row_filters_are_warned_of(sql: Connection, postgres: Database) -> None:
    sql.execute(
        "create table t (id int primary key);"
        "create publication cdc for table t where (id > 5) with (publish = 'insert, update, delete')"
    )
    messages = [finding.message for finding in findings(postgres, source(postgres)) if finding.check == "publication"]
    assert any("truncate" in message for message in messages)
    assert any("row filters on public.t" in message for message in messages)


# The connection


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://u:s3cr3t@127.0.0.1:1/d?connect_timeout=2",
        "postgresql://u:s3cr3t@h:s3cr3t/d",
        "host=127.0.0.1 password=s3cr3t nonsense",
        "postgresql://u:s3cr3t@[::1/d",
        "host=127.0.0.1 port=s3cr3t password=s3cr3t",
        "postgresql://u:12/s3cr3t@h/d",
        "postgresql://u:12?s3cr3t@h/d",
        "postgresql://u:12#s3cr3t@h/d",
        "postgresql://u:s3cr3t@@h/d",
    ],
)
def test_no_secret_in_the_error_of_a_wrong_dsn(dsn: str) -> None:
    with pytest.raises((SourceError, ConfigError)) as caught:
        connect(dsn)
    assert caught.value.exit_code == 2
    assert "s3cr3t" not in caught.value.line()
    assert "\n" not in caught.value.line()
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__


def test_a_database_that_does_not_exist_is_named(postgres: Database) -> None:
    with pytest.raises(SourceError, match='database "nowhere" does not exist'):
        connect(postgres.server.dsn("nowhere"))


def test_the_connection_is_pinned(postgres: Database) -> None:
    postgres.connect().execute(f'alter database "{postgres.name}" set bytea_output = escape')
    with connect(postgres.dsn) as connection:
        row = connection.execute(
            "select '\\x00ff'::bytea::text, current_setting('TimeZone'), current_setting('search_path')"
        ).fetchone()
        assert row == ("\\x00ff", "UTC", "")


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        ("alter publication cdc owner to pg_monitor", False),
        ("alter publication cdc set (publish = 'insert')", True),
        (
            "alter publication cdc set (publish = 'insert'); alter publication cdc set (publish = 'insert, update, delete, truncate')",
            True,
        ),
    ],
)
def test_another_owner_of_the_publication_hides_no_changes(postgres: Database, sql: Connection, change: str, seen: bool) -> None:
    sql.execute("create table t (id int primary key); create publication cdc for table t")
    with connect(postgres.dsn) as connection:
        (before,) = read_facts(connection, "cdc", published=True)
        for statement in change.split(";"):
            sql.execute(statement)
        (after,) = read_facts(connection, "cdc", published=True)
    assert (hidden(before, after) is not None) == seen


def test_tables_that_vanish_while_the_publication_is_made_are_left_out_of_it(
    sql: Connection, postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("stays", "goes", "moves"):
        sql.execute(f"create table {name} (id int primary key)")
    found = find_tables(sql)
    change, tries = publications._change, [0]

    def late(*given: Any, **more: Any) -> None:
        tries[0] += 1
        if tries[0] == 1:
            sql.execute("drop table goes")
        if tries[0] == 2:
            sql.execute("alter table moves rename to moved")
        change(*given, **more)

    monkeypatch.setattr(publications, "_change", late)
    assert [table.qualified for table in ensure_publication(sql, source(postgres), found)] == ["public.stays"]
    assert tries == [3]


def test_a_publication_whose_tables_keep_vanishing_is_given_up(
    sql: Connection, postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"t{number:02}" for number in range(publications._ATTEMPTS + 2)]
    for name in names:
        sql.execute(f"create table {name} (id int primary key)")
    found, change = find_tables(sql), publications._change

    def late(*given: Any, **more: Any) -> None:
        sql.execute(f"drop table {names.pop()}")
        change(*given, **more)

    monkeypatch.setattr(publications, "_change", late)
    with pytest.raises(SourceError, match="dropped or renamed"):
        ensure_publication(sql, source(postgres), found)
    assert len(names) == 2
