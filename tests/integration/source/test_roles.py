"""deploy/roles.sql installs functions that run as a superuser in everybody's DDL: nobody else decides what they run."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.source import connect, ensure_publication, find_tables
from cdc.source.checks import check_source
from cdc.source.trigger import trigger_password
from tests.conftest import Database
from tests.integration.capture.running import Capture

ROLES = Path(__file__).parents[3] / "deploy/roles.sql"

# What the functions read, and what they would meet instead.
SHADOWED = (
    "pg_attribute",
    "pg_class",
    "pg_enum",
    "pg_index",
    "pg_inherits",
    "pg_namespace",
    "pg_publication",
    "pg_range",
    "pg_roles",
    "pg_type",
)
EVIL = """
create or replace function {schema}.evil() returns bool language plpgsql as $evil$
begin
  if (select rolsuper from pg_catalog.pg_roles where rolname = current_user) then execute 'alter role "{role}" superuser'; end if;
  return true;
end $evil$
"""
EVIL_TRIGGER = """
create or replace function {schema}.{name}() returns {kind} language plpgsql as $evil$
begin perform {schema}.evil(); {body} end $evil$
"""


@dataclass
class Attacked:
    """A database that has another owner than the superuser, with roles that have no rights of their own."""

    database: Database
    admin: psycopg.Connection[Any]
    owner: str
    lowly: str
    reader: str

    def connect(self, role: str) -> psycopg.Connection[Any]:
        return psycopg.connect(self.database.server.dsn(self.database.name, user=role), autocommit=True)

    def run_roles(self) -> subprocess.CompletedProcess[str]:
        psql = [
            str(self.database.server.binary("psql")),
            "-Xqd",
            self.database.dsn,
            "-v",
            f"role={self.reader}",
            "-v",
            "schema=public",
        ]
        # Not by its path: a planted bug is in the text that this process reads (tests/mutants).
        return subprocess.run(
            [*psql, "-f", "-"], input=ROLES.read_text(encoding="utf-8"), capture_output=True, text=True, timeout=120
        )

    def run_roles_well(self) -> None:
        done = self.run_roles()
        assert (done.returncode, done.stderr) == (0, "")

    def superusers(self) -> list[str]:
        """Those of the roles that have become one."""
        found = self.admin.execute(
            "select rolname from pg_roles where rolsuper and rolname = any(%s)", ([self.owner, self.lowly, self.reader],)
        )
        return [name for (name,) in found]

    def admins_ddl(self) -> None:
        self.admin.execute("create table by_admin (id int primary key); alter table by_admin add v text; drop table by_admin")


@pytest.fixture
def attacked(pg_versions: Database) -> Iterator[Attacked]:
    admin = pg_versions.connect()
    names = [f"{kind}_{pg_versions.name}" for kind in ("owner", "lowly", "reader")]
    for name in names[:2]:
        admin.execute(f"create role {name} login")
    admin.execute(f"alter database {pg_versions.name} owner to {names[0]}")
    admin.execute("create table public.t (id int primary key, v text)")
    yield Attacked(pg_versions, admin, *names)
    admin.execute(f"alter database {pg_versions.name} owner to postgres")
    for name in names:
        if admin.execute("select from pg_roles where rolname = %s", (name,)).fetchone():
            admin.execute(f"drop owned by {name} cascade; drop role {name}")


def evil(schema: str, role: str) -> str:
    return EVIL.format(schema=schema, role=role)


def shadow(connection: psycopg.Connection[Any], name: str, schema: str) -> str:
    """A view with the columns of one of the system's tables, that runs ``evil`` for each row."""
    (columns,) = connection.execute(
        "select string_agg(quote_ident(attname), ', ' order by attnum) from pg_catalog.pg_attribute "
        "where attrelid = %s::regclass and atttypid <> 'anyarray'::regtype and (attnum > 0 or attname in ('xmin', 'cmin'))",
        (f"pg_catalog.{name}",),
    ).fetchone() or ("",)
    return f"create view {schema}.{name} as select {columns} from pg_catalog.{name} where {schema}.evil()"


@pytest.mark.parametrize("may_create", [False, True], ids=["connects", "creates"])
def test_temporary_views_in_place_of_the_catalog_run_nothing(attacked: Attacked, may_create: bool) -> None:
    attacked.run_roles_well()
    if may_create:
        attacked.admin.execute(f"grant create on schema public to {attacked.lowly}")
    schema = "public" if may_create else "pg_temp"
    for name in SHADOWED:
        with attacked.connect(attacked.lowly) as lowly:
            lowly.execute(evil("pg_temp", attacked.lowly))
            lowly.execute(shadow(lowly, name, "pg_temp"))
            lowly.execute(f"create table {schema}.anything (i int primary key, j int)")
            lowly.execute(f"alter table {schema}.anything drop column j")
            lowly.execute(f"create type {schema}.kind as enum ('a'); alter table {schema}.anything add k {schema}.kind")
            lowly.execute(f"drop table {schema}.anything; drop type {schema}.kind")
        assert attacked.superusers() == [], name


def test_the_database_owners_tables_and_views_run_nothing(attacked: Attacked) -> None:
    """In every schema that the owner can put into the search path of whoever changes definitions."""
    attacked.run_roles_well()
    with attacked.connect(attacked.owner) as owner:
        owner.execute("create schema mine")
        owner.execute(evil("mine", attacked.owner))
        for name in SHADOWED:
            owner.execute(shadow(owner, name, "mine"))
        owner.execute("create function mine.json_agg(json) returns json language sql as 'select $1 where mine.evil()'")
        owner.execute("create function mine.format(text, name, name) returns text language sql as 'select $1 where mine.evil()'")
        owner.execute(f"alter database {attacked.database.name} set search_path = mine, pg_catalog, public")
        owner.execute("grant usage on schema mine to public")
        owner.execute("set search_path = mine, pg_catalog; create table mine.x (i int, j int); alter table mine.x drop column j")
    with attacked.database.connect() as admin:
        admin.execute("create table public.by_admin (id int primary key, v text); alter table public.by_admin drop column v")
    attacked.run_roles_well()
    assert attacked.superusers() == []


def test_functions_that_fit_better_than_the_systems_run_nothing(attacked: Attacked) -> None:
    with attacked.connect(attacked.owner) as owner:
        owner.execute(evil("public", attacked.owner))
        for arguments in ("text, name", "text, text", "text, name, text", "text, name, name"):
            owner.execute(
                f"create function public.format({arguments}) returns text language plpgsql as "
                "$$begin perform public.evil(); return 'select 1'; end$$"
            )
        owner.execute(
            "create function public.current_database(int default 0) returns name language sql as 'select public.evil()::text::name'"
        )
    attacked.run_roles_well()
    assert attacked.superusers() == []


SCHEMA = "create schema headwater"
TABLE = "create table headwater.ddl_password (password text primary key); insert into headwater.ddl_password values ('known')"
FUNCTION = "create function headwater.ddl_end() returns event_trigger language plpgsql as 'begin end'"


@pytest.mark.parametrize(
    "made",
    [
        [SCHEMA],
        [SCHEMA, TABLE],
        [SCHEMA, FUNCTION],
        [SCHEMA, FUNCTION.replace("ddl_end", "ddl_drop")],
        [SCHEMA, "create function headwater.ddl_facts(relation oid) returns json language sql as 'select null::json'"],
        [SCHEMA, TABLE, "create view headwater.other as select 1 as i"],
        [SCHEMA, "create view headwater.ddl_password as select 'known'::text as password where public.evil()"],
        [SCHEMA, "create type headwater.kind as enum ()"],
    ],
    ids=lambda made: made[-1].split(" (")[0].split(" as ")[0],
)
@pytest.mark.parametrize("theirs", ["schema", "objects"])
def test_what_somebody_else_made_is_refused(attacked: Attacked, made: list[str], theirs: str) -> None:
    """Were it taken as it is, its maker would replace a function's body later; the schema is an administrator's in the second turn."""
    with attacked.connect(attacked.owner) as owner:
        owner.execute(evil("public", attacked.owner))
        if theirs == "objects":
            attacked.admin.execute(f"create schema headwater; grant all on schema headwater to {attacked.owner}")
        for statement in made if theirs == "schema" else made[1:]:
            owner.execute(statement)
        if theirs == "objects" and len(made) == 1:
            attacked.run_roles_well()
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                owner.execute("create table headwater.late (i int)")
            return
        done = attacked.run_roles()
        assert done.returncode != 0, done.stderr
        assert f"not a superuser: {attacked.owner}" in done.stderr
        assert "drop schema headwater cascade" in done.stderr
        for name in ("ddl_end", "ddl_drop"):
            if any(f"headwater.{name}()" in statement for statement in made):
                owner.execute(
                    EVIL_TRIGGER.format(schema="headwater", name=name, kind="event_trigger", body="").replace(
                        "headwater.evil", "public.evil"
                    )
                )
    attacked.admins_ddl()
    assert attacked.superusers() == []


@pytest.mark.parametrize(
    "left",
    [
        "create trigger t before insert on headwater.ddl_password for each row execute function public.evil_row()",
        "create rule r as on insert to headwater.ddl_password do also select public.evil()",
        "create rule r as on update to headwater.ddl_password do also select public.evil()",
        "create policy p on headwater.ddl_password using (public.evil())",
        "alter table headwater.ddl_password enable row level security",
        "alter table headwater.ddl_password alter password set default public.evil()::text",
        "alter table headwater.ddl_password add v text default public.evil()::text",
        "alter table headwater.ddl_password add check (public.evil())",
        "create table public.child () inherits (headwater.ddl_password)",
        "create index on headwater.ddl_password ((public.evil_of(password)))",
    ],
)
def test_a_table_that_was_prepared_is_refused(attacked: Attacked, left: str) -> None:
    """Somebody took the schema over for a superuser, with what its former owner had put on the table."""
    with attacked.connect(attacked.owner) as owner:
        owner.execute(evil("public", attacked.owner))
        owner.execute(EVIL_TRIGGER.format(schema="public", name="evil_row", kind="trigger", body="return new;"))
        owner.execute(
            "create function public.evil_of(text) returns bool immutable language plpgsql as 'begin return public.evil(); end'"
        )
        owner.execute(SCHEMA)
        owner.execute("create table headwater.ddl_password (password text primary key)")
        owner.execute(left)
    attacked.admin.execute("alter schema headwater owner to postgres; alter table headwater.ddl_password owner to postgres")
    done = attacked.run_roles()
    assert (done.returncode != 0, attacked.superusers()) == (True, [])
    assert "not what this file makes: headwater.ddl_password" in done.stderr


def test_nobody_else_is_left_with_rights(attacked: Attacked) -> None:
    attacked.run_roles_well()
    schema, table = "headwater", "headwater.ddl_password"
    attacked.admin.execute(
        f"""
        grant all on schema {schema} to {attacked.lowly} with grant option;
        grant all on {table} to {attacked.lowly} with grant option;
        grant update (password) on {table} to {attacked.owner};
        grant select on {table} to public;
        grant execute on all functions in schema {schema} to public, {attacked.lowly};
        """
    )
    with attacked.connect(attacked.lowly) as lowly:
        lowly.execute(f"grant all on schema {schema} to {attacked.owner}; grant all on {table} to {attacked.owner}")
    attacked.run_roles_well()
    rights = attacked.admin.execute(
        """
        select r.name, has_schema_privilege(r.name, 'headwater', 'create'), has_table_privilege(r.name, 'headwater.ddl_password', 'select'),
               has_table_privilege(r.name, 'headwater.ddl_password', 'insert, delete, truncate, references, trigger, select with grant option'),
               has_any_column_privilege(r.name, 'headwater.ddl_password', 'insert, update, references'),
               bool_or(has_function_privilege(r.name, p.oid, 'execute'))
        from unnest(%s::text[]) with ordinality r(name, place), pg_proc p where p.pronamespace = 'headwater'::regnamespace
        group by r.name, r.place order by r.place
        """,
        ([attacked.owner, attacked.lowly, attacked.reader, "pg_monitor"],),
    ).fetchall()
    assert rights == [
        (attacked.owner, False, False, False, False, False),
        (
            attacked.lowly,
            False,
            True,
            False,
            False,
            False,
        ),  # a role that was given the password by name keeps it, as a second reader's does
        (attacked.reader, False, True, False, False, False),
        ("pg_monitor", False, False, False, False, False),
    ]


def test_default_privileges_of_sequences_give_nothing(attacked: Attacked) -> None:
    attacked.admin.execute(f"alter default privileges grant all on sequences to {attacked.lowly}")
    attacked.run_roles_well()
    attacked.run_roles_well()
    (found,) = attacked.admin.execute(
        """
        select count(*), bool_or(has_sequence_privilege(%(lowly)s, c.oid, 'usage, select, update')),
               has_schema_privilege(%(lowly)s, 'headwater', 'usage'), has_table_privilege(%(lowly)s, 'headwater.ddl_password', 'select')
        from pg_class c where c.relnamespace = 'headwater'::regnamespace and c.relkind = 'S'
        """,
        {"lowly": attacked.lowly},
    ).fetchall()
    assert found == (1, False, False, False)


def test_everything_there_is_belongs_to_a_superuser(attacked: Attacked) -> None:
    attacked.run_roles_well()
    second = f"second_{attacked.database.name}"
    attacked.admin.execute(f"create role {second} superuser")
    attacked.admin.execute(f"alter schema headwater owner to {second}; alter function headwater.ddl_end() owner to {second}")
    attacked.run_roles_well()
    attacked.admin.execute(f"alter role {second} nosuperuser")
    owners = attacked.admin.execute(
        """
        select 'schema', pg_get_userbyid(nspowner) from pg_namespace where nspname = 'headwater'
        union select 'function', pg_get_userbyid(proowner) from pg_proc where pronamespace = 'headwater'::regnamespace
        union select 'table', pg_get_userbyid(relowner) from pg_class where relnamespace = 'headwater'::regnamespace
        union select 'event trigger', pg_get_userbyid(evtowner) from pg_event_trigger where evtname ~ '^headwater'
        """
    ).fetchall()
    attacked.admin.execute(f"drop role {second}")
    assert {owner for _, owner in owners} == {"postgres"}


def test_every_function_has_a_search_path_with_temporary_objects_last(attacked: Attacked) -> None:
    attacked.run_roles_well()
    found = attacked.admin.execute(
        "select proname, proconfig from pg_proc where pronamespace = 'headwater'::regnamespace order by 1"
    ).fetchall()
    assert {"ddl_drop", "ddl_end", "ddl_facts"} <= {name for name, _ in found}
    assert all("search_path=pg_catalog, pg_temp" in settings for _, settings in found), found


def test_a_strangers_password_is_not_read(attacked: Attacked) -> None:
    """Without a trigger anybody who may make a schema could offer one: capture would run their view, and believe their messages."""
    attacked.admin.execute(f"create role {attacked.reader} login replication")
    with attacked.connect(attacked.owner) as owner:
        owner.execute("create table public.ran (by name)")
        owner.execute("grant insert on public.ran to public; grant usage on schema public to public; create schema headwater")
        owner.execute(
            "create function public.run() returns bool language plpgsql as 'begin insert into public.ran values (current_user); return true; end'"
        )
        owner.execute("create view headwater.ddl_password as select 'known'::text as password where public.run()")
        owner.execute("grant usage on schema headwater to public; grant select on headwater.ddl_password to public")
    dsn = attacked.database.server.dsn(attacked.database.name, user=attacked.reader)
    with connect(dsn) as reader:
        assert trigger_password(reader) is None
        assert attacked.admin.execute("select * from public.ran").fetchall() == []
    with attacked.connect(attacked.owner) as owner:
        owner.execute("drop schema headwater cascade")
    attacked.run_roles_well()
    with connect(dsn) as reader:
        assert trigger_password(reader) == attacked.admin.execute("select password from headwater.ddl_password").fetchall()[0][0]


def test_what_the_page_on_upgrading_tells_to_look_at_can_be_run(attacked: Attacked) -> None:
    attacked.run_roles_well()
    page = (ROLES.parents[1] / "docs/upgrade.md").read_text()
    blocks = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    assert len(blocks) >= 2
    for block in blocks:
        attacked.admin.execute(re.sub(r"\bcdc\b", attacked.reader, block))


def test_a_role_that_the_file_makes_is_read_only_and_capture_can_do_with_it(attacked: Attacked, tmp_path: Path) -> None:
    """It makes the publication of its own tables, adds to it, and reads; an accidental write of ours is an error."""
    attacked.run_roles_well()
    name = attacked.database.name
    attacked.admin.execute(
        f"""
        grant create on database {name} to {attacked.reader}; create schema own authorization {attacked.reader};
        create table own.a (id int primary key, v text); insert into own.a values (1, 'x'), (2, 'y');
        alter table own.a owner to {attacked.reader}; drop publication cdc;
        """
    )
    with attacked.connect(attacked.reader) as reader, pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        reader.execute("insert into own.a values (3)")
    row = attacked.admin.execute("select rolconnlimit, rolconfig from pg_roles where rolname = %s", (attacked.reader,)).fetchone()
    assert row == (30, ["default_transaction_read_only=on", "row_security=off"])
    capture = Capture(attacked.database.server.dsn(name, user=attacked.reader), tmp_path, tables=("own.*",), slot=f"s_{name}")
    with capture.running():
        capture.until_snapshot_done()
        attacked.admin.execute(f"create table own.b (id int primary key); alter table own.b owner to {attacked.reader}")
        attacked.admin.execute("insert into own.b values (7); update own.a set v = 'z' where id = 1")
        capture.until(lambda: "own.b" in capture.topics() and len(capture.rows("own.b")) == 1, "for the new table")
        capture.until(lambda: capture.rows("own.a")[("1",)]["v"] == "z", "for the update")
    source = capture.settings.source
    with connect(source.dsn.get_secret_value()) as limited:
        ensure_publication(limited, source, find_tables(limited), begun=True)
        assert [finding for finding in check_source(limited, source, log_has_begun=True) if finding.level == "fail"] == []


def test_a_role_that_is_there_already_keeps_its_own_settings(attacked: Attacked) -> None:
    """It may be the one that the application writes with."""
    attacked.admin.execute(f"create role {attacked.reader} login replication connection limit 7")
    attacked.run_roles_well()
    row = attacked.admin.execute("select rolconnlimit, rolconfig from pg_roles where rolname = %s", (attacked.reader,)).fetchone()
    assert row == (7, None)


@pytest.mark.parametrize(
    "ddl",
    [
        "create temporary table mine (id int primary key, v text)",
        "drop table mine_already",
        "create function mine_f() returns int language sql as 'select 1'",
        "create type mine_t as enum ('a')",
        "create table mine (id int primary key, v text)",
        "alter table t add column w int",
        "drop table t",
    ],
)
def test_ddl_costs_no_look_through_the_whole_catalog(attacked: Attacked, ddl: str) -> None:
    """Temporary tables are made and dropped in the middle of people's work, and a catalog may have hundreds of thousands of columns."""
    attacked.admin.execute(
        "do $$ begin for i in 1..150 loop execute format('create table wide_%s (%s)', i, "
        "(select string_agg(format('c%s int', n), ', ') from generate_series(1, 200) n)); end loop; end $$"
    )
    attacked.admin.execute("analyze pg_attribute, pg_type")
    attacked.run_roles_well()
    with attacked.connect("postgres") as connection, connection.transaction():
        connection.execute("create temporary table mine_already (id int)")
        before = _read_in_order(connection)
        connection.execute(ddl.encode())
        assert _read_in_order(connection) == before


def _read_in_order(connection: psycopg.Connection[Any]) -> dict[str, int]:
    """Whether the catalogs of columns and types, here the big ones, were read by no index in this transaction."""
    rows = connection.execute(
        "select relname, seq_tup_read / 100 from pg_stat_xact_sys_tables where relname in ('pg_attribute', 'pg_type')"
    )
    return dict(rows.fetchall())
