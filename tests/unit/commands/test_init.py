from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict
from typer.testing import CliRunner

from cdc.commands.app import app
from cdc.commands.init import write_new
from cdc.commands.starter import MANY_TABLES, configuration
from cdc.errors import ConfigError, SourceError
from cdc.model.table import Column, Table
from cdc.settings.interpolation import interpolate
from cdc.settings.models import Settings
from cdc.source.capturable import Definition
from cdc.source.catalog import CatalogTable

CANARY = "s3cr3t canary'"


def table(name: str, *, key: bool = True) -> CatalogTable:
    made = Table(1, "public", name, (Column("id", 23, key=key),))
    return CatalogTable(Definition(made, has_primary_key=key, deferrable_key=False), "r", False, None, "me", True, False, 0)


def written(source: str | None, *tables: CatalogTable) -> tuple[str, Settings]:
    text = "\n".join(configuration(source, tables))
    return text, Settings.model_validate(tomllib.loads(text))


def test_what_it_writes_loads_and_names_the_tables() -> None:
    text, settings = written("postgresql://me@h/d", table("orders"), table('odd "name'), table("loose", key=False))
    assert settings.source.tables == ("public.orders", 'public.odd "name')
    assert settings.source.dsn.get_secret_value() == "postgresql://me@h/d"
    assert "# public.loose has no primary key" in text


def test_a_name_cannot_break_out_of_its_comment() -> None:
    text, settings = written(None, table("orders"), table("a\n[http]\nlisten = 'evil'\r\x7f", key=False))
    assert settings.http == Settings.model_validate({"source": {"dsn": "x"}}).http
    assert "# public.a\\n[http]" in text


def test_many_tables_become_their_schema() -> None:
    tables = [table(f"t{number}") for number in range(MANY_TABLES)]
    assert written(None, *tables, table("loose", key=False))[1].source.tables == ("public.*", "!public.loose")


def test_an_empty_database() -> None:
    assert written(None)[1].source.tables == ("public.*",)


@pytest.mark.parametrize(
    "source",
    [
        "postgresql://me:canary@h:1/d?sslmode=require",
        "postgresql://me:canary@${HOST}/d",
        "postgresql://me:can${PW}ary@h/d",
        "postgresql://me@h/d?password=canary",
        "host=h port=1 dbname=d user=me password='canary' sslmode=require",
        "host=${HOST} password = canary",
        "host=h sslpassword=canary",
    ],
)
def test_a_password_on_the_command_line_is_refused(tmp_path: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOST", "127.0.0.1")
    monkeypatch.setenv("PW", "x")
    done = CliRunner().invoke(app, ["--config", str(tmp_path / "cdc.toml"), "init", "--source", source])
    assert isinstance(done.exception, ConfigError), done.output
    line = done.exception.line()
    assert "canary" not in line
    assert "${CDC_SOURCE_PASSWORD}" in line
    assert "~/.pgpass" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://me:${CDC_SOURCE_PASSWORD}@h:1/d?sslmode=require",
        "host=h port=1 dbname=d user=me password=${CDC_SOURCE_PASSWORD} sslmode=require",
    ],
)
def test_a_variable_stays_one(dsn: str) -> None:
    text, settings = written(dsn)
    assert settings.source.dsn.get_secret_value() == dsn
    assert "read from the environment" in text
    again = interpolate(dsn, {"CDC_SOURCE_PASSWORD": CANARY}, conninfo=True)
    said = conninfo_to_dict(again)
    assert (said["password"], said["sslmode"], said["host"]) == (CANARY, "require", "h")


def test_the_file_is_its_owner_s(tmp_path: Path) -> None:
    write_new(tmp_path / "cdc.toml", "new")
    assert (tmp_path / "cdc.toml").stat().st_mode & 0o777 == 0o600


def test_an_existing_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "cdc.toml"
    path.write_text("mine")
    with pytest.raises(ConfigError, match="exists already"):
        write_new(path, "new")
    assert path.read_text() == "mine"
    with pytest.raises(ConfigError, match="cannot write"):
        write_new(tmp_path / "nowhere" / "cdc.toml", "new")


@pytest.mark.parametrize(
    ("source", "kind"),
    [("nonsense", ConfigError), ("postgresql://me@127.0.0.1:port/d", ConfigError), ("postgresql://me@127.0.0.1:1/d", SourceError)],
)
def test_what_is_wrong_with_the_source_names_the_option(tmp_path: Path, source: str, kind: type[Exception]) -> None:
    done = CliRunner().invoke(app, ["--config", str(tmp_path / "cdc.toml"), "init", "--source", source])
    assert isinstance(done.exception, kind), done.output
    line = done.exception.line()
    assert "--source" in line
    assert "source.dsn" not in line
    assert list(tmp_path.iterdir()) == []
