"""Column policies on the real stream and snapshot: equal values from both, and not a trace of the originals in any file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from cdc.errors import ConfigError, Stopped, StopState
from cdc.plan.plan import plan_catalog
from cdc.privacy.policies import MASKED, Keys
from cdc.settings.models import Privacy
from cdc.source import watch
from cdc.source.facts import read_facts, save_facts
from tests.integration.capture.running import Capture

SECRET = "k" * 32
POLICIES = {"public.users": {"email": "hmac", "note": "drop", "pay": "encrypt", "phone": "mask", "bio": "mask"}}
CREATE = "create table users (id int primary key, email text, note text, pay numeric, phone text, bio text, plain text)"


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for a look at the catalog need not wait for seconds."""
    monkeypatch.setattr(watch, "INTERVAL_S", 0.5)


def protected(dsn: str, folder: Path, policies: Any = POLICIES, *, strict: bool = False, **source: Any) -> Capture:
    capture = Capture(dsn, folder, columns=policies, **source)
    privacy = Privacy(key=SecretStr(SECRET), strict=strict)
    capture.settings = capture.settings.model_copy(update={"privacy": privacy})
    return capture


def traces(folder: Path, *canaries: str) -> list[str]:
    return [
        f"{canary} in {path.relative_to(folder)}"
        for path in folder.rglob("*")
        if path.is_file()
        for canary in canaries
        if canary.encode() in path.read_bytes()
    ]


def test_snapshot_and_stream_protect_alike_and_nothing_else_is_written(postgres: Any, tmp_path: Path) -> None:
    keys = Keys(SECRET)
    wide = "canary-bio-" + "".join(f"{n:07d}" for n in range(2000))
    with postgres.connect() as connection:
        connection.execute(CREATE)
        connection.execute("alter table users alter bio set storage external")
        row = "(%s, 'canary-mail', 'canary-note', 'NaN', 'canary-phone', %s, 'plain')"
        connection.execute(f"insert into users values {row}", (1, wide))
        capture = protected(postgres.dsn, tmp_path)
        with capture.running():
            capture.until_snapshot_done()
            connection.execute(f"insert into users values {row}", (2, wide))
            connection.execute("update users set plain = 'changed'")
            capture.until(
                lambda: [row["plain"] for row in capture.rows("public.users").values()] == ["changed"] * 2, "for the updates"
            )
            rows = list(capture.rows("public.users").values())
    assert rows[0] == {**rows[1], "id": "1"}
    assert rows[0]["email"] == keys.hmac("canary-mail")
    assert rows[0]["phone"] == rows[0]["bio"] == MASKED
    assert "note" not in rows[0]
    assert keys.reveal(rows[0]["pay"] or "", "public.users", "pay") == "NaN"
    assert traces(tmp_path, "canary") == []


def test_a_key_can_be_protected(postgres: Any, tmp_path: Path) -> None:
    with postgres.connect() as connection:
        connection.execute("create table people (email text primary key, v text)")
        connection.execute("insert into people select 'canary-' || n, n from generate_series(1, 500) n")
        capture = protected(postgres.dsn, tmp_path, {"public.people": {"email": "hmac"}}, snapshot_chunk_rows=50)
        with capture.running():
            capture.until_snapshot_done()
            connection.execute("delete from people where email = 'canary-1'")
            connection.execute("update people set email = 'canary-new' where email = 'canary-2'")
            expected = {(Keys(SECRET).hmac(f"canary-{n}"),) for n in (*range(3, 501), "new")}
            capture.until(lambda: set(capture.rows("public.people")) == expected, "for the changes")
            assert traces(tmp_path, "canary") == []
    assert traces(tmp_path, "canary") == []


def test_a_renamed_protected_column_stops_capture_until_it_is_named(postgres: Any, tmp_path: Path) -> None:
    with postgres.connect() as connection:
        connection.execute(CREATE)
        capture = protected(postgres.dsn, tmp_path)
        with capture.running():
            capture.until_snapshot_done()
            connection.execute("insert into users values (1, 'canary-mail')")
            capture.until(lambda: len(capture.rows("public.users")) == 1)
        connection.execute("alter table users rename email to mail")
        connection.execute("insert into users values (2, 'canary-mail')")
        capture.start()
        error = capture.failure()
        capture.stop()
        assert isinstance(error, ConfigError | Stopped)
        if isinstance(error, Stopped):
            assert error.state is StopState.PRIVACY_UNDECIDED
        assert "mail" in str(error)
        again = protected(postgres.dsn, tmp_path, {"public.users": {**POLICIES["public.users"], "mail": "hmac"}})
        with again.running():
            again.until(lambda: len(again.rows("public.users")) == 2)
            assert again.rows("public.users")[("2",)]["mail"] == Keys(SECRET).hmac("canary-mail")
    assert traces(tmp_path, "canary") == []


def test_strict_refuses_a_table_that_is_not_named(postgres: Any, tmp_path: Path) -> None:
    with postgres.connect() as connection:
        connection.execute(CREATE)
    capture = protected(postgres.dsn, tmp_path, strict=True)
    capture.start()
    with pytest.raises(ConfigError, match=r"column id of public\.users"):
        raise capture.failure()
    capture.stop()


@pytest.mark.parametrize("former", [{"id": "keep", "email": "drop"}, {"id": "encrypt", "email": "hmac"}])
def test_what_was_logged_under_another_policy_is_read_again(postgres: Any, tmp_path: Path, former: Any) -> None:
    keys = Keys(SECRET)
    with postgres.connect() as connection:
        connection.execute("create table users (id int primary key, email text); insert into users values (1, 'a'), (2, 'b')")
        with protected(postgres.dsn, tmp_path, {"public.users": former}).running() as capture:
            capture.until_snapshot_done()
        again = protected(postgres.dsn, tmp_path, {"public.users": {"id": "hmac", "email": "keep"}})
        expected = {keys.hmac(str(number)): email for number, email in ((1, "a"), (2, "b"), (3, "c"))}
        with again.running():
            connection.execute("insert into users values (3, 'c')")
            again.until(lambda: len(again.rows("public.users")) == 3, "for all rows")
            again.until_snapshot_done()
            again.until(
                lambda: {row["id"]: row["email"] for row in again.rows("public.users").values()} == expected, "for the new policy"
            )
            head = again.reader.head().position
        with again.running():
            connection.execute("insert into users values (4, 'd')")
            again.until(lambda: again.reader.head().position > head, "for the row")
            again.until_snapshot_done()
            assert [op for _, op, _ in again.changes("public.users", head)] == ["c"]


@pytest.mark.parametrize("policy", ["drop", "mask", "encrypt"])
def test_a_policy_that_is_taken_out_stops_capture_until_keep_says_so(postgres: Any, tmp_path: Path, policy: Any) -> None:
    with postgres.connect() as connection:
        connection.execute("create table users (id int primary key, email text); insert into users values (1, 'canary-1')")
        with protected(postgres.dsn, tmp_path, {"public.users": {"email": policy}}).running() as capture:
            capture.until_snapshot_done()
            connection.execute("insert into users values (2, 'canary-2')")
            capture.until(lambda: len(capture.rows("public.users")) == 2, "for the rows")
        bare = protected(postgres.dsn, tmp_path, {})
        (remark,) = plan_catalog(bare.settings).remarks
        assert remark.stops
        assert "public.users.email" in remark.what
        error = bare.start().failure()
        bare.stop()
        assert isinstance(error, Stopped)
        assert error.state is StopState.PRIVACY_UNDECIDED
        assert traces(tmp_path, "canary") == []
        asked = protected(postgres.dsn, tmp_path, {"public.users": {"email": "keep"}})
        (remark,) = plan_catalog(asked.settings).remarks
        assert not remark.stops
        with asked.running():
            expected = {("1",): "canary-1", ("2",): "canary-2"}
            asked.until(
                lambda: {key: row.get("email") for key, row in asked.rows("public.users").items()} == expected, "for the values"
            )
        assert plan_catalog(bare.settings).ok, "what is in the log needs no policy any more"


def test_a_column_that_capture_knows_before_the_log_does_was_not_kept_back(postgres: Any, tmp_path: Path) -> None:
    """It came while capture was away, or went down before a row came under it: no policy has ever named it."""
    with postgres.connect() as connection:
        connection.execute(CREATE)
        connection.execute("insert into users (id) values (1)")
        capture = Capture(postgres.dsn, tmp_path)
        with capture.running():
            capture.until_snapshot_done()
        connection.execute("alter table users add column more text")
        save_facts(capture.settings.log.dir, {facts.oid: facts for facts in read_facts(connection, "cdc", published=True)})
        again = Capture(postgres.dsn, tmp_path)
        with again.running():
            connection.execute("insert into users (id, more) values (2, 'x')")
            again.until(lambda: [row.get("more") for row in again.rows("public.users").values()] == [None, "x"], "for the column")


def left_out(capture: Capture) -> list[str]:
    return capture.status.left_out


def test_a_partition_that_is_detached_takes_no_protected_value_along(postgres: Any, tmp_path: Path) -> None:
    with postgres.connect() as connection:
        connection.execute("create schema app")
        connection.execute("create table app.users (id int, year int, email text, primary key (id, year)) partition by list (year)")
        connection.execute("create table app.users_2024 partition of app.users for values in (2024)")
        connection.execute("create table app.users_2025 partition of app.users for values in (2025)")
        connection.execute("insert into app.users values (1, 2024, 'canary-1'), (2, 2025, 'canary-2')")
        capture = protected(postgres.dsn, tmp_path, {"app.users": {"email": "hmac"}}, tables=("app.*",))
        with capture.running():
            capture.until_snapshot_done()
            connection.execute("alter table app.users detach partition app.users_2024")
            connection.execute("begin")  # under another name nothing but its past tells of it
            connection.execute("alter table app.users detach partition app.users_2025")
            connection.execute("alter table app.users_2025 rename email to contact")
            connection.execute("commit")
            connection.execute("insert into app.users_2024 values (3, 2024, 'canary-3')")
            connection.execute("insert into app.users_2025 values (4, 2025, 'canary-4')")
            for table in ("app.users_2024", "app.users_2025"):
                capture.until(lambda table=table: table in capture.topics() and len(capture.rows(table)) == 2, f"for {table}")
                assert all(set(row) == {"id", "year"} for row in capture.rows(table).values())
            capture.until(lambda: len(left_out(capture)) == 2, "for the status")
            assert [line for line in left_out(capture) if "column email of app.users_2024" in line]
            assert [line for line in left_out(capture) if "column contact of app.users_2025" in line]
            assert traces(tmp_path, "canary") == []
        again = protected(postgres.dsn, tmp_path, {"app.users": {"email": "hmac"}}, tables=("app.*",))
        with again.running():
            again.until_snapshot_done()
            again.until(lambda: len(left_out(again)) == 2, "for the status")
            connection.execute("insert into app.users_2025 values (5, 2025, 'canary-5')")
            again.until(lambda: len(again.rows("app.users_2025")) == 3, "for the row")
        assert traces(tmp_path, "canary") == []
        decided = {
            "app.users": {"email": "hmac"},
            "app.users_2024": {"email": "hmac"},
            "app.users_2025": {"contact": "mask"},
        }
        last = protected(postgres.dsn, tmp_path, decided, tables=("app.*",))
        with last.running():
            expected = {Keys(SECRET).hmac(f"canary-{n}") for n in (1, 3)}
            last.until(lambda: {row.get("email") for row in last.rows("app.users_2024").values()} == expected, "for the values")
            last.until(lambda: {row.get("contact") for row in last.rows("app.users_2025").values()} == {MASKED}, "for the masks")
            last.until(lambda: left_out(last) == [], "for the status")
        assert traces(tmp_path, "canary") == []


def test_a_copy_of_a_protected_table_is_captured_without_what_is_protected_there(postgres: Any, tmp_path: Path) -> None:
    with postgres.connect() as connection:
        connection.execute("create schema app")
        connection.execute("create table app.people (id int primary key, email text, plain text)")
        connection.execute("insert into app.people values (1, 'canary-1', 'plain')")
        capture = protected(postgres.dsn, tmp_path, {"app.people": {"email": "hmac"}}, tables=("app.*",))
        with capture.running():
            capture.until_snapshot_done()
            connection.execute("create table app.people_backup as select * from app.people")
            connection.execute("alter table app.people_backup add primary key (id)")
            connection.execute('create table app.addresses ("Email" text primary key)')
            connection.execute("insert into app.addresses values ('canary-2')")
            capture.until(lambda: "app.people_backup" in capture.topics(), "for the copy")
            assert capture.rows("app.people_backup") == {("1",): {"id": "1", "plain": "plain"}}
            capture.until(lambda: len(left_out(capture)) == 2, "for the status")
            assert "app.addresses" not in capture.topics()
            (line,) = [line for line in left_out(capture) if "app.people_backup" in line]
            assert "PRIVACY_UNDECIDED" in line
            assert '[source.columns."app.people_backup"]' in line
            assert 'email = "' in line
            connection.execute("insert into app.people values (2, 'canary-3', 'more')")
            capture.until(lambda: len(capture.rows("app.people")) == 2, "for the other tables")
        decided = {"app.people": {"email": "hmac"}, "app.people_backup": {"email": "encrypt"}, "app.addresses": {"Email": "hmac"}}
        again = protected(postgres.dsn, tmp_path, decided, tables=("app.*",))
        with again.running():
            again.until(lambda: "email" in (again.rows("app.people_backup").get(("1",)) or ()), "for the value")
            again.until(lambda: again.topics().count("app.addresses") == 1 and bool(again.rows("app.addresses")), "for the table")
            again.until(lambda: left_out(again) == [], "for the status")
    assert traces(tmp_path, "canary") == []


def test_a_table_that_is_made_again_shows_no_column_that_nobody_has_named(postgres: Any, tmp_path: Path) -> None:
    policies = {"app.people": {"email": "drop"}}
    with postgres.connect() as connection:
        connection.execute("create schema app; create table app.people (id int primary key, email text)")
        connection.execute("insert into app.people values (1, 'canary-1')")
        capture = protected(postgres.dsn, tmp_path, policies, tables=("app.*",))
        with capture.running():
            capture.until_snapshot_done()
            connection.execute("begin")
            connection.execute("drop table app.people")
            connection.execute("create table app.people (id int primary key, mail text)")
            connection.execute("insert into app.people values (2, 'canary-2')")
            connection.execute("commit")
            capture.until(lambda: list(capture.rows("app.people")) == [("2",)], "for the new table")
            assert traces(tmp_path, "canary") == []
            capture.until(lambda: len(left_out(capture)) == 1, "for the status")
        again = protected(postgres.dsn, tmp_path, policies, tables=("app.*",))
        with again.running():
            again.until_snapshot_done()
            connection.execute("insert into app.people values (3, 'canary-3')")
            again.until(lambda: len(again.rows("app.people")) == 2, "for the row")
            assert all(set(row) == {"id"} for row in again.rows("app.people").values())
            again.until(lambda: len(left_out(again)) == 1, "for the status")
        assert traces(tmp_path, "canary") == []
        asked = protected(postgres.dsn, tmp_path, {"app.people": {"email": "drop", "mail": "keep"}}, tables=("app.*",))
        with asked.running():
            expected = {"canary-2", "canary-3"}
            asked.until(lambda: {row.get("mail") for row in asked.rows("app.people").values()} == expected, "for the values")


def test_a_column_that_comes_later_is_kept_back_until_it_is_named(postgres: Any, tmp_path: Path) -> None:
    policies = {"public.users": POLICIES["public.users"]}
    wide = "canary-wide-" + "".join(f"{n:07d}" for n in range(2000))
    with postgres.connect() as connection:
        connection.execute(CREATE)
        connection.execute("create table orders (id int primary key, total int)")
        connection.execute("insert into users (id, plain) values (1, 'a')")
        capture = protected(postgres.dsn, tmp_path, policies)
        with capture.running():
            capture.until_snapshot_done()
            connection.execute("alter table users add column mail text, add column since text default 'canary-default'")
            connection.execute("alter table users alter mail set storage external")
            connection.execute("alter table orders add column email text")
            connection.execute("insert into users (id, plain, mail) values (2, 'b', %s)", (wide,))
            connection.execute("update users set plain = 'c' where id = 2")
            connection.execute("insert into orders values (1, 10, 'canary-mail')")
            capture.until(lambda: (capture.rows("public.users").get(("2",)) or {}).get("plain") == "c", "for the update")
            capture.until(lambda: "public.orders" in capture.topics() and len(capture.rows("public.orders")) == 1, "for the order")
            assert set(capture.rows("public.orders")[("1",)]) == {"id", "total"}
            assert traces(tmp_path, "canary") == []
            capture.until(lambda: len(left_out(capture)) == 3, "for the status")
        again = protected(postgres.dsn, tmp_path, policies)
        with again.running():
            again.until_snapshot_done()
            again.until(lambda: len(left_out(again)) == 3, "for the status")
        assert traces(tmp_path, "canary") == []
        names = {"public.users": {**policies["public.users"], "mail": "hmac", "since": "keep"}, "public.orders": {"email": "drop"}}
        named = protected(postgres.dsn, tmp_path, names)
        with named.running():
            named.until(
                lambda: [row.get("since") for row in named.rows("public.users").values()] == ["canary-default"] * 2,
                "for the column",
            )
            named.until(
                lambda: named.rows("public.users")[("2",)].get("mail") == Keys(SECRET).hmac(wide),
                "for the value that was kept back",
            )
            named.until(lambda: left_out(named) == [], "for the status")
        assert traces(tmp_path, "canary-wide", "canary-mail") == []


def test_old_rows_under_full_identity_show_nothing_either(postgres: Any, tmp_path: Path) -> None:
    with postgres.connect() as connection:
        connection.execute("create table users (id int primary key, email text, plain text)")
        connection.execute("alter table users replica identity full")
        connection.execute("insert into users select n, 'canary-' || n, 'a' from generate_series(1, 9) n")
        capture = protected(postgres.dsn, tmp_path, {"public.users": {"email": "mask"}})
        with capture.running():
            capture.until_snapshot_done()
            connection.execute("alter table users add column mail text default 'canary-default'")
            connection.execute("update users set plain = 'b', mail = 'canary-mail' where id < 5")
            connection.execute("update users set id = 100 where id = 1")
            connection.execute("delete from users where id > 7 and id < 100")
            capture.until(
                lambda: set(capture.rows("public.users")) == {(str(n),) for n in (2, 3, 4, 5, 6, 7, 100)}, "for the changes"
            )
            capture.until(lambda: len(left_out(capture)) == 1, "for the status")
            assert all(set(row) == {"id", "email", "plain"} for row in capture.rows("public.users").values())
            plan = plan_catalog(capture.settings)
            assert [remark for remark in plan.remarks if "column mail of public.users is kept out" in remark.what]
            assert traces(tmp_path, "canary") == []
    assert traces(tmp_path, "canary") == []


def test_a_publication_of_all_tables_shows_a_new_tables_key_to_nobody(postgres: Any, tmp_path: Path) -> None:
    """Such a table cannot be left out of it, so capture stops, and says what to decide."""
    with postgres.connect() as connection:
        connection.execute(CREATE)
        connection.execute("create publication cdc for all tables")
        capture = protected(postgres.dsn, tmp_path)
        capture.start()
        capture.until_snapshot_done()
        connection.execute("create table addresses (email text primary key); insert into addresses values ('canary-1')")
        error = capture.failure()
        capture.stop()
        assert isinstance(error, Stopped)
        assert error.state is StopState.PRIVACY_UNDECIDED
        assert "column email of public.addresses" in str(error)
        assert '[source.columns."public.addresses"]' in (error.hint or "")
        again = protected(postgres.dsn, tmp_path, {**POLICIES, "public.addresses": {"email": "hmac"}})
        with again.running():
            again.until(lambda: "public.addresses" in again.topics() and len(again.rows("public.addresses")) == 1, "for the row")
    assert traces(tmp_path, "canary") == []
