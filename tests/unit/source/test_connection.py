"""How the source is reached: what libpq would really do with a DSN, its environment and its service files."""

from __future__ import annotations

from pathlib import Path

import pytest
from psycopg import pq
from psycopg.conninfo import make_conninfo

from cdc.source.connection import address, parse

REMOTE = "203.0.113.9"


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No libpq setting of whoever runs the tests counts."""
    for option in pq.Conninfo.get_defaults():
        if option.envvar:
            monkeypatch.delenv(option.envvar.decode(), raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PGSYSCONFDIR", str(tmp_path))


def services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    path = tmp_path / "services"
    path.write_text(text)
    monkeypatch.setenv("PGSERVICEFILE", str(path))


def by_libpq(dsn: str) -> dict[str, str]:
    """What libpq does with what we give it, by its own word."""
    started = pq.PGconn.connect_start(make_conninfo(**{**parse(dsn), "target_session_attrs": "nonsense"}).encode())
    try:
        return {option.keyword.decode(): option.val.decode() for option in started.info if option.val}
    finally:
        started.finish()


def test_a_host_from_the_environment_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "db.example")
    options = by_libpq("postgresql://cdc@/shop")
    assert (options["host"], options["sslmode"], options["sslrootcert"]) == ("db.example", "verify-full", "system")


def test_an_address_from_the_environment_is_verified_whatever_the_host_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOSTADDR", REMOTE)
    for dsn in ("postgresql://cdc@localhost/shop", "postgresql://cdc@/shop", "host=/run/postgresql dbname=shop"):
        options = by_libpq(dsn)
        assert (options["hostaddr"], options["sslmode"]) == (REMOTE, "verify-full")


@pytest.mark.parametrize("place", [f"hostaddr={REMOTE}", "host=db.example", f"host=localhost\nhostaddr={REMOTE}"])
@pytest.mark.parametrize("named", ["in the DSN", "in the environment"])
def test_a_service_that_leaves_sslmode_out_is_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, named: str
) -> None:
    services(tmp_path, monkeypatch, f"[prod]\n{place}\ndbname=shop\nuser=cdc\n")
    dsn = "service=prod"
    if named == "in the environment":
        monkeypatch.setenv("PGSERVICE", "prod")
        dsn = "dbname=shop"
    options = by_libpq(dsn)
    assert (options["sslmode"], options["sslrootcert"]) == ("verify-full", "system")


def test_what_the_service_or_the_environment_says_of_tls_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    services(tmp_path, monkeypatch, "[prod]\nhost=db.example\nsslmode=require\n[other]\nhost=db.example\n")
    assert by_libpq("service=prod")["sslmode"] == "require"
    assert by_libpq("service=prod sslmode=verify-ca sslrootcert=/ca.crt")["sslmode"] == "verify-ca"
    monkeypatch.setenv("PGSSLROOTCERT", "/ca.crt")
    options = by_libpq("service=other")
    assert (options["sslmode"], options["sslrootcert"]) == ("verify-full", "/ca.crt")
    for said in ("require", "prefer"):
        monkeypatch.setenv("PGSSLMODE", said)
        assert by_libpq("service=other")["sslmode"] == by_libpq("host=db.example")["sslmode"] == said


@pytest.mark.parametrize(
    "dsn", ["dbname=shop", "host=/run/postgresql", "postgresql://cdc@localhost/shop", "hostaddr=127.0.0.1", "host=::1"]
)
def test_this_machine_needs_no_tls(dsn: str) -> None:
    assert by_libpq(dsn)["sslmode"] == "prefer"


def test_encryption_by_kerberos_is_kept_wherever_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream's connection would else leave it out."""
    services(tmp_path, monkeypatch, "[prod]\nhost=localhost\ngssencmode=prefer\n")
    assert "gssencmode" not in parse("host=localhost")
    assert parse("host=localhost gssencmode=prefer")["gssencmode"] == "prefer"
    assert parse("service=prod")["gssencmode"] == "prefer"
    monkeypatch.setenv("PGGSSENCMODE", "prefer")
    assert parse("host=localhost")["gssencmode"] == "prefer"


def test_a_service_that_does_not_exist_is_left_to_libpq_to_refuse() -> None:
    assert "sslmode" not in parse("service=nowhere")


def test_messages_name_the_host_that_is_really_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    services(tmp_path, monkeypatch, "[prod]\nhost=db.example\nport=6432\ndbname=shop\npassword=canary\n")
    assert address("service=prod") == "db.example:6432/shop"
    assert address("postgresql://u:canary@h/d") == "h/d"
    assert address("dbname=d") == "the local socket/d"
    monkeypatch.setenv("PGHOST", "elsewhere")
    assert address("postgresql://cdc@/shop") == "elsewhere/shop"
