"""The options of a warehouse whose catalog is beside its files, what docs/warehouse.md shows of them, and what Iceberg is told."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from cdc.errors import ConfigError
from sinks import generations_of, options_model
from sinks.warehouse.connection import serving
from sinks.warehouse.options import Options

PAGE = (Path(__file__).resolve().parents[3] / "docs/warehouse.md").read_text(encoding="utf-8")
SQL = {"catalog": "sql", "uri": "postgresql://me:p%40ss@db:5433/lake?sslmode=require"}
REST = {"catalog": "rest", "uri": "https://lake.example/api"}


def options(**given: Any) -> Options:
    made = options_model("iceberg").model_validate({"kind": "iceberg", "path": "/w", **given})
    assert isinstance(made, Options)
    return made


def test_the_page_shows_a_store_that_there_can_be() -> None:
    section = PAGE.partition("## Catalogs")[2].partition("\n## ")[0]
    given = tomllib.loads(section.partition("```toml\n")[2].partition("```")[0])["stores"]["lake"]
    read = {key.removesuffix("_file"): value for key, value in given.items()}
    assert serving(options_model("iceberg").model_validate(read)).properties["warehouse"] == "s3://bucket/lake"  # type: ignore[arg-type]
    assert f'SqlCatalog("{options(**SQL).catalog_name}"' in section


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"warehouse": "s3://bucket/x"}, "no atomic rename.*catalog = .sql. or .rest."),
        ({"uri": "postgresql://x/y"}, "knows no `uri`"),
        ({"catalog": "sql"}, "needs `uri`"),
        ({**SQL, "uri": "mysql://me:canary@x/y"}, "not an address such as"),
        ({**SQL, "uri": "https://canary"}, "not an address of catalog = .sql."),
        ({**REST, "uri": "postgresql://canary"}, "not an address of catalog = .rest."),
        ({**SQL, "token": "canary"}, "knows no `token`"),
        ({**REST, "password": "canary"}, "knows no `password`"),
        ({**SQL, "scope": "canary"}, "knows no `scope`"),
        ({"oauth2_server_uri": "https://canary/token"}, "knows no `oauth2_server_uri`"),
        ({**REST, "token": "t", "audience": "canary"}, "`audience` is about the token that `credential` is for"),
        ({**REST, "credential": "a:b", "oauth2_server_uri": "canary/token"}, "not an address such as"),
        ({**REST, "credential": "a:b", "oauth2_server_uri": "https://me:canary@host/token"}, "without a user"),
        ({**SQL, "s3_endpoint": "https://host"}, "knows no `s3_endpoint`"),
        ({**SQL, "warehouse": "/folder"}, "not an address such as .s3:"),
        ({**SQL, "warehouse": "s3://b/x", "s3_access_key": "canary"}, "go together"),
        ({**SQL, "warehouse": "s3://b/x", "s3_endpoint": "host:9000"}, "not an address such as .https:"),
        ({**SQL, "pointer": "/elsewhere"}, "knows no `pointer`"),
    ],
)
def test_what_cannot_be_is_refused_without_its_secret(given: dict[str, str], why: str) -> None:
    with pytest.raises(ValidationError, match=why) as refused:
        options(**given)
    assert "canary" not in "".join(error["msg"] for error in refused.value.errors())


def test_whose_generations_stand_beside_each_other(tmp_path: Path) -> None:
    assert options(**SQL).generational
    assert options(pointer=tmp_path / "live").generational
    for given, why in ((REST, "several tables in one step"), ({}, "not a `pointer`")):
        with pytest.raises(
            ConfigError, match=f"store lake of kind iceberg has no generations beside each other: .*{why}"
        ) as refused:
            generations_of("lake", options(**given))
        assert "--in-place" in (refused.value.hint or "")


def test_a_database_is_told_in_javas_words() -> None:
    told = serving(options(**SQL, namespace="ours"))
    assert told.properties["uri"] == "jdbc:postgresql://db:5433/lake?sslmode=require"
    assert (told.properties["jdbc.user"], told.properties["jdbc.password"]) == ("me", "p@ss")
    assert (told.properties["warehouse"], told.under, told.by_snapshot) == ("/w", "ours", False)
    assert serving(options(**SQL, password="other")).properties["jdbc.password"] == "other"
    assert "p@ss" not in repr(told)


def test_a_server_and_object_storage_are_told_their_credentials() -> None:
    keys = {"s3_access_key": "key", "s3_secret_key": "secret", "s3_endpoint": "https://host:9000", "s3_region": "eu-west-1"}
    told = serving(options(**REST, token="t", warehouse="s3://bucket/x", **keys))
    assert told.by_snapshot
    assert (told.properties["uri"], told.properties["token"]) == ("https://lake.example/api", "t")
    assert (told.properties["s3.access-key-id"], told.properties["s3.secret-access-key"]) == ("key", "secret")
    assert told.properties["client.region"] == "eu-west-1"


def test_a_server_is_told_where_its_tokens_come_from() -> None:
    said = {
        "credential": "me:secret",
        "oauth2_server_uri": "https://login/token",
        "scope": "lake.write",
        "audience": "lake",
        "resource": "r",
    }
    told = serving(options(**REST, **said)).properties
    assert (told["oauth2-server-uri"], told["token-exchange-enabled"]) == ("https://login/token", "false")
    assert {told[key] for key in ("credential", "scope", "audience", "resource")} == {"me:secret", "lake.write", "lake", "r"}
    alone = serving(options(**REST, credential="me:secret", scope="lake.write")).properties
    assert "oauth2-server-uri" not in alone
    assert "token-exchange-enabled" not in alone
