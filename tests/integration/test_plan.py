"""`cdc plan` against a real catalog: what is told before is what capture and followers would do."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr

from cdc.commands.plan import lines
from cdc.commands.preflight import refuse_unknown
from cdc.derive.declarations import declared_views
from cdc.errors import ConfigError, SourceError
from cdc.follow.follower import Follower
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.log.home import open_reader
from cdc.model.evolution import Kind, SchemaChange, schema_record
from cdc.model.position import Lsn
from cdc.model.topic import TopicSchema
from cdc.plan import views
from cdc.plan.plan import JOINS, Plan, plan_catalog, plan_ddl
from cdc.settings.models import Contract, Settings
from cdc.settings.views import View
from cdc.source.connection import connect
from cdc.source.facts import read_facts, save_facts
from cdc.state import status
from sinks import make_sink, options_model
from tests.conftest import Cache, Database

ITEMS = """
create table items (id bigint primary key, name text, price numeric(12,2), note varchar(10));
insert into items select g, 'n', 1.10 from generate_series(1, 500) g;
create table others (id int primary key);
create publication cdc for table items, others;
analyze items;
"""


@pytest.fixture
def shop(postgres: Database, tmp_path: Path) -> Settings:
    """A source, and a log that knows its two tables."""
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(ITEMS)
    with connect(postgres.dsn) as connection:
        facts = read_facts(connection, "cdc", published=True)
    writer = EmbeddedLogWriter(tmp_path / "log")
    for position, found in enumerate(facts, 1):
        writer.append(schema_record(SchemaChange(found.table(), Kind.CREATED), position, 1, 0))
    writer.commit(Lsn(1), 0)
    writer.close()
    save_facts(tmp_path / "log", {found.oid: found for found in facts})
    stores = {
        "follows": {"kind": "memory"},
        "waits": {"kind": "memory", "schema": "pause"},
        "ignores": {"kind": "memory", "schema": "ignore"},
        "lake": {"kind": "iceberg", "path": tmp_path / "lake"},
        "elsewhere": {"kind": "memory", "tables": ("public.others",)},
    }
    return Settings(
        source={"dsn": postgres.dsn},
        log={"dir": tmp_path / "log"},
        stores={name: options_model(str(given["kind"])).model_validate(given) for name, given in stores.items()},
        run_dir=tmp_path / "run",
    )  # type: ignore[arg-type]


def learn(shop: Settings, postgres: Database, *names: str) -> None:
    """The log gets to know tables that have been made since."""
    with connect(postgres.dsn) as connection:
        facts = read_facts(connection, "cdc", published=True)
    writer = EmbeddedLogWriter(shop.log.dir)
    for position, found in enumerate([found for found in facts if found.name in names], writer.head.position + 1):
        writer.append(schema_record(SchemaChange(found.table(), Kind.CREATED), position, 1, 0))
    writer.commit(Lsn(2), 0)
    writer.close()
    save_facts(shop.log.dir, {found.oid: found for found in facts})


def actions(plan: Plan, number: int = 0) -> dict[str, str]:
    return {effect.store: str(effect.action) for effect in plan.changes[number].effects}


def ddl(shop: Settings, statement: str) -> Plan:
    return plan_ddl(shop, statement, timeout_ms=60_000)


@pytest.mark.parametrize(
    ("statement", "kind", "follows", "lake", "reread"),
    [
        ("alter table items drop column note", Kind.ALTERED, "rewrite rows", "evolve in place", None),
        ("alter table items rename column name to title", Kind.ALTERED, "rewrite rows", "evolve in place", None),
        ("ALTER TABLE items ADD COLUMN rank int", Kind.ALTERED, "evolve in place", "evolve in place", None),
        ("alter table items alter note type varchar(20)", Kind.ALTERED, "evolve in place", "evolve in place", None),
        ("alter table public.items alter price type text using price::text || '!'; ", Kind.REWRITTEN, "rewrite rows", None, 500),
        ("/* why */ drop table items", Kind.DROPPED, "empty", "empty", None),
    ],
)
def test_ddl_is_tried_and_rolled_back(
    shop: Settings, statement: str, kind: Kind, follows: str, lake: str | None, reread: int | None
) -> None:
    plan = ddl(shop, statement)
    change = next(change for change in plan.changes if change.kind is kind)
    found = {effect.store: str(effect.action) for effect in plan.changes[0].effects}
    assert (change.table, change.reread_rows) == ("public.items", reread)
    assert (found["follows"], found["waits"]) == (follows, "pause")
    assert lake in (None, found["lake"])
    assert "elsewhere" not in found
    assert not plan.ok
    assert plan_catalog(shop).changes == (), "nothing of it has happened"


def test_an_added_column_with_values_is_read_again(shop: Settings) -> None:
    plan = ddl(shop, "alter table items add column made timestamptz default now()")
    assert [change.reread_rows for change in plan.changes if change.kind is Kind.REWRITTEN] == [500]


def test_what_no_definition_shows_is_no_change(shop: Settings) -> None:
    for statement in ("create index on items (name)", "comment on table items is 'x'", "alter table items add check (id > 0)"):
        plan = ddl(shop, statement)
        assert (plan.changes, plan.ok) == ((), True)


def test_a_new_table_joins(shop: Settings) -> None:
    plan = ddl(shop, "create table fresh (id int primary key)")
    assert plan.changes[0].table == "public.fresh"
    assert set(actions(plan).values()) == {JOINS}
    assert "elsewhere" not in actions(plan)


def test_a_contract_that_would_break(shop: Settings) -> None:
    contracts = {"public.items": Contract(require=("id", "price"))}
    shop = shop.model_copy(update={"contracts": contracts})
    plan = ddl(shop, "alter table items rename price to cost")
    assert set(actions(plan).values()) == {"contract broken"}
    told = "\n".join(lines(plan))
    assert "public.items: renames price to cost" in told
    assert "  lake: contract broken (public.items: renames price to cost; its contract requires price)" in told
    stores = {name: options for name, options in shop.stores.items() if name != "waits"}
    assert ddl(shop.model_copy(update={"stores": stores}), "alter table items drop note").ok


def test_what_the_log_does_not_know_yet(shop: Settings, postgres: Database) -> None:
    assert plan_catalog(shop).changes == ()
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute("alter table items drop note; drop table others")
    plan = plan_catalog(shop)
    assert {(change.table, change.kind) for change in plan.changes} == {
        ("public.items", Kind.ALTERED),
        ("public.others", Kind.DROPPED),
    }
    assert "public.items: drops note" in "\n".join(lines(plan))


@pytest.mark.parametrize(
    "statement",
    [
        "select 1",
        "delete from items",
        "alter system set work_mem = '1GB'",
        "create index concurrently on items (name)",
        "create table t as select * from items",
        "drop database shop",
        "",
    ],
)
def test_only_ddl_that_can_be_rolled_back(shop: Settings, statement: str) -> None:
    with pytest.raises(ConfigError):
        ddl(shop, statement)


def test_one_statement_only_and_its_errors_are_told(shop: Settings) -> None:
    for statement in (
        "alter table items drop note; drop table items",
        "alter table nowhere drop note",
        "alter table items drop nope",
    ):
        with pytest.raises(SourceError, match="the server refuses the DDL"):
            ddl(shop, statement)
    assert plan_catalog(shop).changes == ()


@pytest.fixture
def limited(shop: Settings, postgres: Database) -> Iterator[Settings]:
    """The same with a role as in deploy/roles.sql."""
    role = f"r_{postgres.name}"
    with psycopg.connect(postgres.dsn, autocommit=True) as admin:
        admin.execute(f"create role {role} login replication nosuperuser nocreatedb nocreaterole noinherit")
        admin.execute(f"alter role {role} set default_transaction_read_only = on")
        admin.execute(f"grant usage on schema public to {role}; grant select on all tables in schema public to {role}")
        admin.execute("revoke create on schema public from public")
        dsn = postgres.server.dsn(postgres.name, user=role)
        yield shop.model_copy(update={"source": shop.source.model_copy(update={"dsn": SecretStr(dsn)})})
        admin.execute(f"drop owned by {role}; drop role {role}")


SAME_FOR_ALL = [
    "alter table items drop column note",
    "alter table items rename column name to title",
    'ALTER TABLE ONLY "items" rename "id" to "item id"',
    "alter /* why */ table if exists public . items -- all of it\n add column rank int",
    "alter table items add column rank int default 7, drop column name",
    "alter table items add column made timestamptz default clock_timestamp()",
    "alter table items alter note type varchar(20)",
    "alter table items alter price type text using price::text || '!'",
    "alter table items alter id type text",
    "alter table items rename to goods",
    "alter table items replica identity full",
    "alter table items drop constraint items_pkey, add primary key (id, name)",
    "alter table items drop column price; ",
    "alter table gaps add column more text, drop column b",
    "alter table gaps rename c to d",
    "alter table indexed rename code to number",
    "alter table full_row add column more int",
    "alter table items add check (id > 0)",
    "alter table items alter column price set default 1",
    "drop table items",
    "drop table if exists public.others, items cascade",
]


@pytest.mark.parametrize("statement", SAME_FOR_ALL)
def test_a_role_that_owns_nothing_is_told_the_same(limited: Settings, shop: Settings, postgres: Database, statement: str) -> None:
    with psycopg.connect(postgres.dsn, autocommit=True) as admin:
        admin.execute("create table gaps (x int, a int, id int primary key, y int, b text, c text)")
        admin.execute("alter table gaps drop x; alter table gaps drop y; insert into gaps values (1, 1, 'b', 'c')")
        admin.execute("create table indexed (code text not null, other int, n int); create unique index on indexed (other)")
        admin.execute("create unique index by_code on indexed (code); alter table indexed replica identity using index by_code")
        admin.execute("create table full_row (a int, b int); alter table full_row replica identity full")
        admin.execute("alter publication cdc add table gaps, indexed, full_row")
        admin.execute("grant select on all tables in schema public to public")
    learn(shop, postgres, "gaps", "indexed", "full_row")
    mine, theirs = ddl(shop, statement), ddl(limited, statement)
    assert theirs.changes == mine.changes
    if not any(word in statement for word in ("check", "default 1", "replica")):
        assert mine.changes
    [remark] = theirs.remarks
    assert "tried on an empty copy" in remark.what
    assert theirs.ok == mine.ok
    assert plan_catalog(limited).changes == plan_catalog(shop).changes
    with psycopg.connect(postgres.dsn, autocommit=True) as admin:
        assert admin.execute("select count(*) from pg_class where relpersistence = 't'").fetchone() == (0,)


@pytest.mark.parametrize(
    ("statement", "said", "hint"),
    [
        ("alter table items drop column nope", 'column "nope" of relation "items" does not exist', ""),
        ("alter table items rename price to note", "already exists", ""),
        ("alter table items drop note; drop table items", "cannot insert multiple commands", ""),
        ("alter table items add column o int references others", "must be owner of table items", "a role that owns the table"),
        ("alter table items set schema pg_catalog", "must be owner of table items", "a role that owns the table"),
        ("create table fresh (id int primary key)", "permission denied for schema public", "a role that owns the table"),
        ("create index on items (name)", "must be owner of table items", "a role that owns the table"),
    ],
)
def test_what_a_copy_cannot_tell(limited: Settings, statement: str, said: str, hint: str) -> None:
    with pytest.raises(SourceError, match=said) as refused:
        ddl(limited, statement)
    assert hint in (refused.value.hint or "")


def test_without_the_right_to_make_a_copy(limited: Settings, postgres: Database) -> None:
    with psycopg.connect(postgres.dsn, autocommit=True) as admin:
        admin.execute(f'revoke temporary on database "{postgres.name}" from public')
    with pytest.raises(SourceError, match="must be owner of table items"):
        ddl(limited, "alter table items drop note")


@pytest.mark.parametrize(
    ("statement", "stops"),
    [
        ("alter table items rename id to item_id", True),
        ("alter table items rename name to title", False),
        ("alter table items drop constraint items_pkey, add primary key (id, name)", True),
        ("drop table items", False),
    ],
)
def test_a_key_template_that_the_change_breaks(
    shop: Settings, limited: Settings, valkey: Cache, statement: str, stops: bool
) -> None:
    options = {"kind": "redis", "url": valkey.url, "tables": ("public.items",), "key": "item:{id}"}
    stores = {"cache": options_model("redis").model_validate(options)}
    for given in (shop, limited):
        plan = ddl(given.model_copy(update={"stores": stores}), statement)
        [effect] = plan.changes[0].effects
        assert (str(effect.action) == "stops (STORE_REFUSES)") is stops
        assert plan.ok is not stops
        if stops:
            assert "'item:{id}' cannot name a cache's keys" in "\n".join(lines(plan))


def test_a_new_table_that_a_key_template_does_not_fit(shop: Settings, valkey: Cache) -> None:
    options = {"kind": "redis", "url": valkey.url, "key": "{table}:{id}"}
    stores = {"cache": options_model("redis").model_validate(options)}
    plan = ddl(shop.model_copy(update={"stores": stores}), "create table fresh (number int primary key)")
    assert actions(plan) == {"cache": "stops (STORE_REFUSES)"}
    plan = ddl(shop.model_copy(update={"stores": stores}), "create table fresh (id int primary key)")
    assert actions(plan) == {"cache": JOINS}


def test_locks_are_not_waited_for(shop: Settings, postgres: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.plan.plan.LOCK_TIMEOUT_MS", 50)
    with psycopg.connect(postgres.dsn) as other:
        other.execute("select from items")
        with pytest.raises(SourceError, match="lock timeout") as failure:
            ddl(shop, "alter table items drop note")
    assert failure.value.hint


def test_a_changed_configuration(shop: Settings, valkey: Cache) -> None:
    def cache(**more: Any) -> Settings:
        options = options_model("redis").model_validate({"kind": "redis", "url": valkey.url, **more})
        return shop.model_copy(update={"stores": {"cache": options}})

    before = cache(tables=("public.items",))
    sink = make_sink("cache", before.stores["cache"])
    sink.open(open_reader(shop.log.dir), 1)
    with connect(shop.source.dsn.get_secret_value()) as connection:
        tables = {facts.name: facts.table() for facts in read_facts(connection, "cdc", published=True)}
    sink.prepare(TopicSchema.of(tables["items"]))
    from tests.contract.test_sinks import cut

    sink.commit(cut(2))
    sink.close()
    assert plan_catalog(before).remarks == ()
    [added] = plan_catalog(cache()).remarks
    assert "public.others was added" in added.what
    assert not added.stops
    [out] = [remark for remark in plan_catalog(cache(tables=("public.others",))).remarks if "items" in remark.what]
    assert "taken out" in out.what
    # Under another template the rows are written again under their new names, from the log.
    again = plan_catalog(cache(tables=("public.items",), key="item:{id}"))
    assert again.ok
    [keys] = again.remarks
    assert (
        keys.what
        == 'every key is written again under key = "item:{id}", and deleted under "{schema}.{table}:{key}": about 500 rows'
    )
    [values] = plan_catalog(cache(tables=("public.items",), value="hash")).remarks
    assert values.what == "every value is written again as hash, until now json: about 500 rows"
    [looks] = plan_catalog(cache(tables={"select": ("public.items",), "public.items": {"as": {"note": "text"}}})).remarks
    assert looks.what == "every value is written again, as its columns are shown otherwise: about 500 rows"
    # One that cannot name the rows stops the store, and nothing is written again.
    [refused] = plan_catalog(cache(tables=("public.items",), key="item:{price}")).remarks
    assert refused.stops
    assert "places are named by price, and were not" in refused.what


@pytest.fixture
def viewed(shop: Settings) -> Settings:
    """With a view of a table that no store holds, and one that is computed from it."""
    views = {
        "dear": View(sql="select id, name, price * 2 as twice from items where price > 1", key=("id",)),
        "dearer": View(sql="select id from views.dear", key=("id",)),
    }
    return shop.model_copy(update={"views": views, "stores": {}})


@pytest.mark.parametrize(
    ("statement", "effect"),
    [
        ("alter table items drop column price", views.STOPS),
        ("alter table items alter column price type text", views.STOPS),
        ("alter table items alter column name type varchar(9) using left(name, 9)", views.AGAIN),
        ("drop table items", views.STOPS),
        ("alter table items rename to articles", views.STOPS),
        ("alter table items add column other int", None),
        ("alter table others add column other int", None),
    ],
)
def test_what_ddl_does_to_views(viewed: Settings, statement: str, effect: str | None) -> None:
    plan = plan_ddl(viewed, statement, timeout_ms=5000)
    found = {one.store: one.action for change in plan.changes for one in change.effects}
    assert found == ({} if effect is None else {"view dear": effect})
    assert plan.ok is (effect != views.STOPS)


def test_what_the_configuration_says_anew_of_views(viewed: Settings) -> None:
    status.write(viewed.run_dir, status.view_part("dear"), status.ViewStatus(view="dear", declaration="another"))
    said = list(lines(plan_catalog(viewed)))
    assert any(one.startswith("view dear: is defined otherwise") for one in said), said
    assert any(one.startswith("view dearer: is new") for one in said), said
    known = declared_views(viewed)["dear"].declaration
    status.write(viewed.run_dir, status.view_part("dear"), status.ViewStatus(view="dear", declaration=known))
    assert not any("view dear:" in one for one in lines(plan_catalog(viewed)))


DOCUMENTS = "select id, jsonb_build_object('named', jsonb_build_object('name', name, 'price', {price})) as d from items"


def documents(shop: Settings, price: str) -> Settings:
    """With a view of documents, another that carries them, and a search index of both."""
    views = {
        "shown": View(sql=DOCUMENTS.format(price=price), key=("id",)),
        "carried": View(sql="select id, d from views.shown", key=("id",)),
    }
    given = {"kind": "opensearch", "url": "http://127.0.0.1:9", "tables": [f"views.{name}" for name in views]}
    return shop.model_copy(update={"views": views, "stores": {"search": options_model("opensearch").model_validate(given)}})


def test_an_index_that_a_views_documents_make_again_is_announced(shop: Settings) -> None:
    now = documents(shop, "price")
    known = {"public.items": next(one.schema for one in open_reader(shop.log.dir).topics() if one.name == "public.items")}
    writer = EmbeddedLogWriter(shop.log.dir)
    for view in declared_views(now).values():
        table = view.bind(known).table
        known[table.qualified] = TopicSchema.of(table)
        writer.append(schema_record(SchemaChange(table, Kind.CREATED), writer.head.position + len(known) - 1, 1, 0))
    writer.commit(Lsn(3), 0)
    writer.close()

    def said(settings: Settings) -> list[str]:
        return [one for one in lines(plan_catalog(settings)) if "another index" in one]

    assert not said(now)
    assert said(documents(shop, "price::text")) == [
        f"search: views.{name}: another index is filled from the log, as fields of d have other types"
        for name in ("shown", "carried")
    ]
    assert not said(documents(shop, "price, 'more', price::text"))
    plan = ddl(now, "alter table items alter column price type text using price::text")
    assert actions(plan)["search"] == "makes again what it has of a view"
    assert "(views.carried: another index is filled from the log, as fields of d have other types)" in str(list(lines(plan)))
    assert "search" not in actions(ddl(now, "alter table items alter column name type varchar(9) using left(name, 9)"))


@pytest.mark.parametrize(
    ("contracts", "hint"),
    [
        ({"public.item": ("id",)}, "did you mean public.items?"),
        ({"public.items": ("id", "prise")}, "did you mean price?"),
    ],
)
def test_contracts_name_what_there_is(shop: Settings, contracts: dict[str, tuple[str, ...]], hint: str) -> None:
    given = {table: Contract(require=required) for table, required in contracts.items()}
    with pytest.raises(ConfigError) as failure:
        refuse_unknown(shop.model_copy(update={"contracts": given}))
    assert failure.value.hint == hint


def test_a_column_that_was_just_dropped_stops_a_store_not_the_start(shop: Settings, postgres: Database) -> None:
    given = shop.model_copy(update={"contracts": {"public.items": Contract(require=("price",))}})
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute("alter table items drop price")
    refuse_unknown(given)


def test_the_checks_before_a_start_leave_no_file_of_the_log_open(shop: Settings) -> None:
    """They are the daemon's own process, which would keep the disk space of each file that goes."""
    refuse_unknown(shop.model_copy(update={"contracts": {"public.items": Contract(require=("id",))}}))
    files = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
    assert [file for file in files if file.startswith(str(shop.log.dir))] == []


def test_a_table_that_would_be_left_out_is_not_read_and_a_new_table_does_not_hide_what_does_not_fit_it(
    shop: Settings, postgres: Database
) -> None:
    postgres.connect().execute("create table loose (x int); create table fresh (id int primary key)")
    given = {"kind": "redis", "url": "redis://127.0.0.1:9", "tables": {"public.fresh": {"columns": ["nope"]}}}
    plan = plan_catalog(shop.model_copy(update={"stores": {"cache": options_model("redis").model_validate(given)}}))
    assert [change.table for change in plan.changes] == ["public.fresh"]
    [effect] = plan.changes[0].effects
    assert effect.stops
    assert "public.fresh has no column nope" in effect.why
    said = list(lines(plan))
    assert said[0] == "public.fresh: is new, and is read; about 0 rows to read"
    assert any(line.startswith("capture: public.loose is left out: it has no primary key") for line in said)


def test_a_warehouse_is_not_opened_and_its_shape_and_names_are_foreseen_all_the_same(shop: Settings, tmp_path: Path) -> None:
    def lake(**more: Any) -> Settings:
        options = options_model("iceberg").model_validate({"kind": "iceberg", "path": tmp_path / "lake", **more})
        return shop.model_copy(update={"stores": {"lake": options}})

    [plain] = plan_catalog(lake()).remarks
    assert plain.what == "not looked into: it belongs to its follower alone"
    [shaped] = plan_catalog(lake(deleted="is_deleted", tables={"public.items": {"history": True}})).remarks
    assert "another shape, and it stops (STORE_REFUSES)" in shaped.what
    assert "public.items (deleted, history)" in shaped.what
    plan = ddl(lake(deleted="is_deleted", tables=("public.items",)), "alter table items add is_deleted boolean")
    assert "public.items has a column is_deleted itself" in str(plan)


def test_other_days_of_a_history_are_foreseen(shop: Settings, tmp_path: Path) -> None:
    def lake(days: float | None) -> Settings:
        said = {"history": True} | ({} if days is None else {"history_days": days})
        given = {"kind": "iceberg", "path": tmp_path / "lake", "tables": {"select": ("public.*",), "public.items": said}}
        return shop.model_copy(update={"stores": {"lake": options_model("iceberg").model_validate(given)}})

    def foreseen(before: float | None, now: float | None) -> list[str]:
        run_dir = tmp_path / f"{before} {now}"
        settings = lake(before).model_copy(update={"run_dir": run_dir})
        with closing(open_reader(shop.log.dir)) as reader:
            Follower("lake", settings.stores["lake"], shop.log.dir, reader, run_dir, threading.Event()).close()
        remarks = plan_catalog(lake(now).model_copy(update={"run_dir": run_dir})).remarks
        return [one.what for one in remarks if "versions" in one.what and not one.stops]

    assert foreseen(30, 30) == foreseen(None, None) == []
    assert plan_catalog(lake(30)).remarks[0].what.startswith("not looked into"), "it never ran"
    [fewer] = foreseen(30, 7.5)
    assert fewer == (
        "public.items: versions that ended more than 7.5 days before the last commit go with the next ones; until now after 30 days"
    )
    [first] = foreseen(None, 30)
    assert first.endswith("until now none did")
    [more] = foreseen(7, 30)
    assert more.startswith("public.items: versions stay 30 days, until now 7 days: those that have gone stay away")
    [all_of_them] = foreseen(7, math.inf)
    assert "versions stay for ever, until now 7 days" in all_of_them
