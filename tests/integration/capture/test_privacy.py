"""Column policies on the real stream and snapshot: equal values from both, and not a trace of the originals in any file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from cdc.errors import ConfigError, Stopped, StopState
from cdc.planning import plan_catalog
from cdc.privacy import MASKED, Keys
from cdc.settings import Privacy
from cdc.source.facts import read_facts, save_facts
from tests.integration.capture.running import Capture

SECRET = "k" * 32
POLICIES = {"public.users": {"email": "hmac", "note": "drop", "pay": "encrypt", "phone": "mask", "bio": "mask"}}
CREATE = "create table users (id int primary key, email text, note text, pay numeric, phone text, bio text, plain text)"


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
