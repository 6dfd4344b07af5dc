"""DDL under every isolation level works as without the event trigger: it adds no conflict, and what it cannot see there is left to the looks at the catalog."""

from __future__ import annotations

import random
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import IsolationLevel

from tests.conftest import Database
from tests.integration.capture.running import Capture
from tests.integration.schema.folding import Row, fold

ROLES = Path(__file__).parents[3] / "deploy/roles.sql"
STRICT = (IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE)
THREADS = 3
ROUNDS = 12
PATIENCE_S = 60

Connection = psycopg.Connection[Any]


@pytest.fixture
def triggered(pg_versions: Database) -> Database:
    """The event trigger, and tables that a publication has."""
    with pg_versions.connect() as sql:
        for name in ("a", "b", "c"):
            sql.execute(f"create table {name} (id int primary key, v text); insert into {name} values (1, 'first')")
        sql.execute("create publication cdc for table only a, only b, only c with (publish_via_partition_root = true)")
    run_roles(pg_versions)
    return pg_versions


def run_roles(database: Database, publication: str = "cdc") -> None:
    psql = [
        str(database.server.binary("psql")),
        "-Xqd",
        database.dsn,
        "-v",
        "role=postgres",
        "-v",
        "schema=public",
        "-v",
        f"publication={publication}",
        "-f",
        str(ROLES),
    ]
    subprocess.run(psql, check=True, timeout=120)


class Session:
    """One transaction of the application's; its snapshot is as old as its beginning."""

    def __init__(self, connection: Connection, level: IsolationLevel) -> None:
        self._connection = connection
        self.warnings: list[str | None] = []
        connection.add_notice_handler(self._said)
        connection.autocommit = False
        connection.isolation_level = level
        connection.execute("select 1")

    def _said(self, notice: psycopg.errors.Diagnostic) -> None:
        if notice.severity_nonlocalized == "WARNING":
            self.warnings.append(notice.message_primary)

    def works(self, *statements: str) -> None:
        for statement in statements:
            self._connection.execute(statement.encode())

    def commit(self) -> None:
        self._connection.commit()


@pytest.fixture
def session(triggered: Database) -> Iterator[Callable[[IsolationLevel], Session]]:
    with ExitStack() as stack:
        yield lambda level: Session(stack.enter_context(triggered.connect()), level)


def published(database: Database) -> list[str]:
    with database.connect() as sql:
        return [
            name for (name,) in sql.execute("select tablename::text from pg_publication_tables where pubname = 'cdc' order by 1")
        ]


DROP_KEY = "alter table {0} drop constraint {0}_pkey"
USE = ("update {0} set v = v || '!'", "delete from {0} where id = 7")


def test_two_serializable_transactions_do_not_meet_in_the_trigger(triggered: Database, session: Callable[..., Session]) -> None:
    one, other = session(IsolationLevel.SERIALIZABLE), session(IsolationLevel.SERIALIZABLE)
    one.works("alter table c add n int")
    other.works(DROP_KEY.format("b"), *(statement.format("b") for statement in USE))
    other.commit()
    one.works(DROP_KEY.format("a"), *(statement.format("a") for statement in USE))
    one.commit()
    assert published(triggered) == ["c"]


def test_dropped_tables_do_not_meet_in_the_trigger(triggered: Database, session: Callable[..., Session]) -> None:
    with triggered.connect() as sql:
        sql.execute(DROP_KEY.format("a").encode())
        sql.execute(DROP_KEY.format("b").encode())
    one, other = session(IsolationLevel.SERIALIZABLE), session(IsolationLevel.SERIALIZABLE)
    one.works("alter table c add n int")
    other.works("drop table b")
    other.commit()
    one.works("drop table a")
    one.commit()


@pytest.mark.parametrize("level", STRICT, ids=lambda level: level.name)
def test_a_key_that_came_and_went_since_the_transaction_began(
    triggered: Database, session: Callable[..., Session], level: IsolationLevel
) -> None:
    """The table has left the publication, and come back, after the snapshot was taken."""
    one = session(level)
    with triggered.connect() as sql:
        sql.execute(DROP_KEY.format("a").encode())
        sql.execute("alter table a add primary key (id)")
    assert published(triggered) == ["a", "b", "c"]
    one.works(DROP_KEY.format("a"), *(statement.format("a") for statement in USE))
    one.commit()
    assert published(triggered) == ["b", "c"]


@pytest.mark.parametrize("level", STRICT, ids=lambda level: level.name)
def test_a_key_that_was_replaced_since_the_transaction_began(
    triggered: Database, session: Callable[..., Session], level: IsolationLevel
) -> None:
    with triggered.connect() as sql:
        sql.execute("create table parted (id int primary key, v text) partition by range (id)")
        sql.execute("create table part partition of parted for values from (0) to (9); alter publication cdc add table only parted")
        one = session(level)
        for name in ("a", "parted"):
            sql.execute(DROP_KEY.format(name).encode())
            sql.execute(f"alter table {name} add primary key (id)".encode())
    assert published(triggered) == ["a", "b", "c", "parted"]
    one.works("alter table a add n int", "alter table parted add n int")
    assert one.warnings == []
    one.commit()
    assert published(triggered) == ["a", "b", "c", "parted"]


@pytest.mark.parametrize("level", STRICT, ids=lambda level: level.name)
def test_a_table_that_was_published_since_the_transaction_began(
    triggered: Database, session: Callable[..., Session], level: IsolationLevel
) -> None:
    with triggered.connect() as sql:
        sql.execute("create table late (id int primary key, v text)")
        one = session(level)
        sql.execute("alter publication cdc add table only late")
    one.works(DROP_KEY.format("late"), "insert into late values (1, 'a')", *(statement.format("late") for statement in USE))
    one.commit()
    assert published(triggered) == ["a", "b", "c"]


@pytest.mark.parametrize("level", STRICT, ids=lambda level: level.name)
def test_a_key_lost_and_found_under_one_snapshot_is_published_again(
    triggered: Database, session: Callable[..., Session], level: IsolationLevel, tmp_path: Path
) -> None:
    one = session(level)
    one.works(DROP_KEY.format("a"), *(statement.format("a") for statement in USE))
    one.works("alter table a add primary key (id)", "update a set v = 'found'")
    one.commit()
    capture = Capture(triggered.dsn, tmp_path, tables=("public.*",), slot=f"s_{triggered.name}")
    with capture.running():
        capture.until(lambda: "public.a" in capture.topics() and rows(capture, "public.a") == [("1", "found")], "for its row")


@pytest.mark.parametrize("level", STRICT, ids=lambda level: level.name)
def test_a_partition_that_went_since_the_transaction_began(
    triggered: Database, session: Callable[..., Session], level: IsolationLevel
) -> None:
    """The snapshot still sees it, without its key."""
    with triggered.connect() as sql:
        for name in ("sound", "bare"):
            sql.execute(f"create table {name} (id int primary key, v text) partition by range (id)".encode())
            for place in range(2):
                sql.execute(f"create table {name}_{place} partition of {name} for values from ({place}) to ({place + 1})".encode())
            sql.execute(f"alter publication cdc add table only {name}".encode())
        one = session(level)
        for name in ("sound", "bare"):
            sql.execute(f"drop table {name}_0".encode())
    one.works("alter table sound add n int")
    one.works(DROP_KEY.format("bare"), "insert into bare values (1, 'a')", *(statement.format("bare") for statement in USE))
    assert one.warnings == []
    one.commit()
    assert published(triggered) == ["a", "b", "c", "sound"]


@pytest.mark.parametrize("level", STRICT, ids=lambda level: level.name)
def test_a_table_that_has_left_since_the_transaction_began(
    triggered: Database, session: Callable[..., Session], level: IsolationLevel
) -> None:
    """The others that one statement breaks leave all the same."""
    names = ("x", "y", "z")
    with triggered.connect() as sql:
        sql.execute("create domain k as int")
        for name in names:
            sql.execute(f"create table {name} (id k primary key, v text); alter publication cdc add table only {name}".encode())
        one = session(level)
        sql.execute("alter publication cdc drop table only x, only z")
    one.works("drop domain k cascade", *(f"update {name} set v = v" for name in names))
    assert one.warnings == []
    one.commit()
    assert published(triggered) == ["a", "b", "c"]


@pytest.mark.parametrize("level", [IsolationLevel.READ_COMMITTED, *STRICT], ids=lambda level: level.name)
def test_a_publication_of_all_tables_that_nothing_can_leave(
    triggered: Database, session: Callable[..., Session], level: IsolationLevel
) -> None:
    with triggered.connect() as sql:
        sql.execute("create publication every_table for all tables")
    run_roles(triggered, publication="every_table")
    one = session(level)
    one.works("create table keyless (v text)")
    assert one.warnings == []


@pytest.mark.parametrize("table", ["set_aside", "publications", "ddl_password"])
def test_ddl_does_not_wait_for_the_tables_of_the_trigger(triggered: Database, table: str) -> None:
    """An administrator who runs deploy/roles.sql again may wait for the transaction that would wait for him."""
    with triggered.connect() as administrator, triggered.connect() as sql, administrator.transaction():
        administrator.execute(f"lock table headwater.{table}".encode())
        sql.execute("set statement_timeout = '20s'")
        sql.execute("alter table a add n int")
        sql.execute("drop table b")


@pytest.mark.parametrize("level", STRICT, ids=lambda level: level.name)
def test_a_column_that_the_transaction_does_not_see(
    triggered: Database, session: Callable[..., Session], level: IsolationLevel, tmp_path: Path
) -> None:
    """What the trigger reads of the catalog is as old as the transaction's snapshot, unlike what the statement has done."""
    capture = Capture(triggered.dsn, tmp_path, tables=("public.*",), slot=f"s_{triggered.name}")
    with capture.running(), triggered.connect() as sql:
        capture.until_snapshot_done()
        one = session(level)
        sql.execute("alter table a add unseen int")
        sql.execute("insert into a values (2, 'second', 22)")
        one.works("alter table a add seen int")
        one.commit()
        sql.execute("insert into a values (3, 'third', 33, 333)")
        content = [("1", "first", None, None), ("2", "second", "22", None), ("3", "third", "33", "333")]
        capture.until(lambda: len(rows(capture, "public.a")) == 3, "for its rows")
        capture.until(lambda: sorted(rows(capture, "public.a"), key=str) == content, "for its columns")


def test_what_was_out_before_this_version_is_still_known(triggered: Database) -> None:
    with triggered.connect() as sql:
        sql.execute("drop table headwater.set_aside cascade")
        sql.execute(
            "create table headwater.set_aside (publication name, relation oid, entry oid, again boolean not null, "
            "primary key (publication, relation))"
        )
        sql.execute("alter publication cdc drop table a; alter table a drop constraint a_pkey")
        sql.execute("insert into headwater.set_aside values ('cdc', 'a'::regclass, null, true)")
    for _ in range(2):
        run_roles(triggered)
    with triggered.connect() as sql:
        sql.execute("alter table a add primary key (id)")
        sql.execute(DROP_KEY.format("a").encode())
        sql.execute("alter table a add primary key (id)")
        assert published(triggered) == ["a", "b", "c"]
        assert len(sql.execute("select from headwater.set_aside").fetchall()) == 1, "only the last word is kept"


def rows(capture: Capture, topic: str) -> list[Row]:
    return fold(capture.batches(topic))[0]


# Any statements


class Worker:
    """Does DDL with its own tables only, so that nothing that it does can conflict with what others do."""

    def __init__(self, database: Database, name: str, seed: int) -> None:
        self.outcomes: list[str] = []
        self._connection = database.connect()
        self._chance = random.Random(seed)
        self._name = name
        self._thread = threading.Thread(target=self._run, name=name)
        self._bare = False

    def start(self) -> None:
        self._thread.start()

    def join(self) -> list[str]:
        self._thread.join(PATIENCE_S * 2)
        assert not self._thread.is_alive()
        self._connection.close()
        return self.outcomes

    def _run(self) -> None:
        self._connection.autocommit = True
        self._connection.execute("set lock_timeout = '10s'")
        self._one("create table {0} (id int primary key, v text)", "alter publication cdc add table only {0}")
        for round_ in range(ROUNDS):
            level = self._chance.choice([*STRICT, IsolationLevel.SERIALIZABLE, IsolationLevel.READ_COMMITTED])
            self._connection.isolation_level = level
            self._one(*[self._statement(round_, place) for place in range(self._chance.choice([1, 2, 3]))], *USE)

    def _statement(self, round_: int, place: int) -> str:
        if self._chance.random() < 0.5:
            self._bare = not self._bare
            return DROP_KEY if self._bare else "alter table {0} add primary key (id)"
        return self._chance.choice(
            [
                f"alter table {{0}} add x{round_}_{place} int",
                f"create table {{0}}_{round_}_{place} (id int primary key)",
                f"create temp table tmp_{round_}_{place} (id int)",
                f"create index on {{0}} (v); comment on table {{0}} is '{place}'",
                "create table {0}_gone (id int primary key); drop table {0}_gone",
                f"create type {{0}}_t{round_}_{place} as (n int)",
                "truncate {0}",
                "insert into {0} select coalesce(max(id), 0) + 1, 'a' from {0}",
            ]
        )

    def _one(self, *statements: str) -> None:
        outcome = "works"
        try:
            with self._connection.transaction():
                for statement in statements:
                    self._connection.execute(statement.format(self._name).encode())
        except psycopg.Error as error:
            outcome = f"{self._connection.isolation_level}: {error.sqlstate} {str(error).splitlines()[0]}"
        self.outcomes.append(f"{'; '.join(statements)} → {outcome}")


def outcomes(database: Database, seeds: Sequence[int]) -> list[list[str]]:
    workers = [Worker(database, f"w{place}", seed) for place, seed in enumerate(seeds)]
    for worker in workers:
        worker.start()
    return [worker.join() for worker in workers]


def test_concurrent_ddl_has_the_same_outcomes_with_and_without_the_trigger(triggered: Database, seed: int) -> None:
    chance = random.Random(seed)
    seeds = [chance.randrange(2**32) for _ in range(THREADS)]
    found = outcomes(triggered, seeds)
    with triggered.connect() as sql:
        sql.execute("drop event trigger headwater_ddl_end; drop event trigger headwater_ddl_drop; drop schema headwater cascade")
        sql.execute(
            "drop schema public cascade; create schema public; drop publication cdc; create publication cdc with (publish = 'insert')"
        )
    wanted = outcomes(triggered, seeds)
    assert found == wanted, f"seed {seed}"
    assert any("works" in outcome for worker in wanted for outcome in worker)
