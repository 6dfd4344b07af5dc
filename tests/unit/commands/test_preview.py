"""`cdc preview`, over a small log, and what docs/stores.md shows of it."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from typer.testing import CliRunner, Result

from cdc.commands.app import app
from cdc.errors import ConfigError
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.batch import Op
from cdc.model.evolution import Kind
from cdc.model.pgtypes import DATE, FLOAT8, INT8, JSONB, NUMERIC, TEXT, TIMESTAMPTZ
from cdc.model.position import Lsn
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from sinks import options_model
from sinks.holding import foreseen
from tests.contract.rows import Row, batch, schema

PAGE: Final = (Path(__file__).resolve().parents[3] / "docs/stores.md").read_text(encoding="utf-8")
SECTION: Final = PAGE.partition("## What does a store hold of a table?")[2].partition("\n## ")[0]
CUSTOMERS = Table(
    16800,
    "public",
    "customers",
    (
        Column("id", INT8, key=True, attnum=1),
        Column("name", TEXT, attnum=2),
        Column("address_city", TEXT, attnum=3),
        Column("cost", NUMERIC, attnum=4),
        Column("address_zip", TEXT, attnum=5),
        Column("notes", TEXT, attnum=6),
    ),
)
ADA: Row = {"id": "7", "name": "Ada", "address_city": "Köln", "cost": "1.10", "address_zip": "50667", "notes": '{"vip":true}'}
STORES: Final = """
[stores.search]
kind = "opensearch"
url = "http://127.0.0.1:9"
[stores.cache]
kind = "redis"
url = "redis://127.0.0.1:9"
key = "c:{id}"
[stores.hashes]
kind = "redis"
url = "redis://127.0.0.1:9"
value = "hash"
[stores.lake]
kind = "iceberg"
path = "lake"
[stores.lines]
kind = "console"
"""


@pytest.fixture
def preview(tmp_path: Path) -> Callable[..., Result]:
    writer = EmbeddedLogWriter(tmp_path / "log")
    changes = [
        *((Op.INSERT, {**ADA, "id": str(number)}) for number in (5, 6)),
        (Op.INSERT, {**ADA, "name": "old"}),
        (Op.UPDATE, ADA),
        (Op.DELETE, {"id": "6"}),
    ]
    for position, (op, row) in enumerate(changes, 1):
        writer.append(batch(CUSTOMERS, [(op, position, row)]))
        writer.commit(Lsn(position * 10), 1)
    writer.append(schema(CUSTOMERS, 6, Kind.ALTERED))
    writer.commit(Lsn(60), 1)
    writer.close()

    def run(store: str, *arguments: str, said: str = "") -> Result:
        config = tmp_path / "cdc.toml"
        config.write_text(f'[source]\ndsn = "host=h"\n[log]\ndir = "log"\n{STORES}{said}')
        return CliRunner().invoke(app, ["--config", str(config), "preview", store, *arguments])

    return run


def test_the_page_shows_what_it_prints(preview: Callable[..., Result]) -> None:
    said = "\n".join(re.findall(r"```toml\n(.*?)```", SECTION, re.DOTALL))
    assert {"columns", "rename", "as"} <= tomllib.loads(said)["stores"]["search"]["tables"]["public.customers"].keys()
    command, _, printed = re.findall(r"```console\n\$ cdc preview (.*?)```", SECTION, re.DOTALL)[0].partition("\n")
    shown = preview(*command.split(), said=said)
    assert (shown.exit_code, shown.stdout) == (0, printed), shown.output
    without = said.replace('columns = ["id", "name", "address_city", "address_zip", "notes"]', 'exclude = ["cost"]')
    assert preview(*command.split(), said=without).stdout == printed, "exclude as its comment says"


SHOPS = Table(
    16801,
    "public",
    "shops",
    (
        Column("id", INT8, key=True, attnum=1),
        Column("name", TEXT, attnum=2),
        Column("latitude", FLOAT8, attnum=3),
        Column("longitude", FLOAT8, attnum=4),
        Column("opening_hours", JSONB, attnum=5),
    ),
)
CAFE: Row = {"id": "1", "name": "Café Zoo", "latitude": "52.5", "longitude": "13.4", "opening_hours": '[{"day":"mon","from":9}]'}


@pytest.mark.parametrize("heading", ["How do I shape a search index?", "How do I shape a cache?"])
def test_the_page_shows_what_a_kind_of_store_is_told(tmp_path: Path, heading: str) -> None:
    section = PAGE.partition(f"## {heading}")[2].partition("\n## ")[0]
    said = re.findall(r"```toml\n(.*?)```", section, re.DOTALL)[0]
    command, _, printed = re.findall(r"```console\n\$ cdc preview (.*?)```", section, re.DOTALL)[0].partition("\n")
    writer = EmbeddedLogWriter(tmp_path / "log")
    writer.append(batch(SHOPS, [(Op.INSERT, 1, CAFE)]))
    writer.commit(Lsn(10), 1)
    writer.close()
    config = tmp_path / "cdc.toml"
    config.write_text(f'[source]\ndsn = "host=h"\n[log]\ndir = "log"\n{STORES}{said}')
    shown = CliRunner().invoke(app, ["--config", str(config), "preview", *command.split()])
    assert (shown.exit_code, shown.stdout) == (0, printed), shown.output


ORDERS = Table(
    16802,
    "public",
    "orders",
    (
        Column("id", INT8, key=True, attnum=1),
        Column("region", TEXT, attnum=2),
        Column("placed_at", DATE, attnum=3),
    ),
)


def test_the_page_shows_places_by_columns_that_change(tmp_path: Path) -> None:
    section = PAGE.partition("## May a column that changes say where a row stands?")[2].partition("\n## ")[0]
    said = "\n".join(re.findall(r"```toml\n(.*?)```", section, re.DOTALL))
    writer = EmbeddedLogWriter(tmp_path / "log")
    order: Row = {"id": "17", "region": "us", "placed_at": "2026-11-22"}
    writer.append(batch(ORDERS, [(Op.INSERT, 1, order), (Op.UPDATE, 2, {**order, "region": "eu"})]))
    writer.commit(Lsn(10), 1)
    writer.close()
    config = tmp_path / "cdc.toml"
    config.write_text(f'[source]\ndsn = "host=h"\n[log]\ndir = "log"\n{STORES}{said}')
    commands = re.findall(r"```console\n\$ cdc preview (.*?)```", section, re.DOTALL)
    assert len(commands) == 2
    for command, _, printed in (one.partition("\n") for one in commands):
        for arguments in (command.split(), command.split()[:-2]):
            shown = CliRunner().invoke(app, ["--config", str(config), "preview", *arguments])
            assert (shown.exit_code, shown.stdout) == (0, printed), shown.output


def test_the_page_shows_rows_in_several_indices(tmp_path: Path) -> None:
    section = PAGE.partition("## May a table's rows lie in several indices?")[2].partition("\n## ")[0]
    said = re.findall(r"```toml\n(.*?)```", section, re.DOTALL)[0].replace(
        "[stores.search]\n", "[stores.search]\nkind = 'opensearch'\nurl = 'http://127.0.0.1:9'\n"
    )
    stores = STORES.partition("[stores.cache]")[2]
    writer = EmbeddedLogWriter(tmp_path / "log")
    order: Row = {"id": "17", "region": "US", "placed_at": "2026-11-22"}
    writer.append(batch(ORDERS, [(Op.INSERT, 1, order), (Op.UPDATE, 2, {**order, "region": "EU"})]))
    writer.append(batch(ORDERS, [(Op.INSERT, 3, {**order, "id": "18", "region": "E/U"})]))
    writer.commit(Lsn(10), 1)
    writer.close()
    config = tmp_path / "cdc.toml"
    config.write_text(f'[source]\ndsn = "host=h"\n[log]\ndir = "log"\n{said}[stores.cache]{stores}')
    [(command, _, printed)] = [
        one.partition("\n") for one in re.findall(r"```console\n\$ cdc preview (.*?)```", section, re.DOTALL)
    ]
    shown = CliRunner().invoke(app, ["--config", str(config), "preview", *command.split()])
    assert (shown.exit_code, shown.stdout) == (0, printed), shown.output
    other = CliRunner().invoke(app, ["--config", str(config), "preview", *command.split()[:-1], "18"])
    assert "- index: none (index: with area and year it is not a name of at most 215 letters a to z" in other.stdout, other.output
    config.write_text(config.read_text().replace("{area}", "{aera}"))
    wrong = CliRunner().invoke(app, ["--config", str(config), "preview", *command.split()])
    assert isinstance(wrong.exception, ConfigError)
    assert "public.orders has no column aera" in str(wrong.exception)


PEOPLE = Table(
    16803,
    "public",
    "people",
    (
        Column("id", INT8, key=True, attnum=1),
        Column("name", TEXT, attnum=2),
        Column("email", TEXT, attnum=3),
        Column("phone", TEXT, attnum=4),
    ),
)


def test_the_page_shows_a_function_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = PAGE.partition("## May I change values with Python?")[2].partition("\n## ")[0]
    [said], [code] = (re.findall(rf"```{kind}\n(.*?)```", section, re.DOTALL) for kind in ("toml", "python"))
    options = tomllib.loads(said)["stores"]["search"]["tables"]["public.people"]
    assert options.keys() == {"transform", "transform_columns", "transform_version"}
    path = tmp_path / code.partition("\n")[0].removeprefix("# ")
    path.parent.mkdir()
    path.write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    writer = EmbeddedLogWriter(tmp_path / "log")
    writer.append(batch(PEOPLE, [(Op.INSERT, 1, {"id": "7", "name": "Ada", "email": "ada@example.org", "phone": "4942"})]))
    writer.commit(Lsn(10), 1)
    writer.close()
    config = tmp_path / "cdc.toml"
    config.write_text(f'[source]\ndsn = "host=h"\n[log]\ndir = "log"\n{STORES}{said}')
    command, _, printed = re.findall(r"```console\n\$ cdc preview (.*?)```", section, re.DOTALL)[0].partition("\n")
    shown = CliRunner().invoke(app, ["--config", str(config), "preview", *command.split()])
    assert (shown.exit_code, shown.stdout) == (0, printed), shown.output


def test_every_kind_shows_its_own(preview: Callable[..., Result]) -> None:
    found = {}
    for store in ("search", "cache", "hashes", "lake", "lines"):
        said = f'[stores.{store}.tables."public.customers"]\nexclude = ["cost", "notes", "address_zip"]\nrename = {{ name = "title" }}\n'
        shown = preview(store, "--json", "--key", "7", "--table", "public.customers", said=said)
        assert shown.exit_code == 0, shown.output
        [row] = json.loads(shown.stdout)["tables"]["public.customers"]
        found[store] = row
    document = '{"id":7,"title":"Ada","address_city":"Köln"}'
    assert found == {
        "search": {"index": "public.customers", "id": "7", "document": document},
        "cache": {"command": "SET", "key": "c:7", "value": document},
        "hashes": {"command": "HSET", "key": "public.customers:7", "value": '{"id": "7", "title": "Ada", "address_city": "Köln"}'},
        "lake": {"table": "public.customers", "row": '{"id": "7", "title": "Ada", "address_city": "Köln"}'},
        "lines": {"line": '{"_cdc_position":4,"id":7,"title":"Ada","address_city":"Köln"}'},
    }


def test_samples_are_the_newest_rows_as_they_are_now(preview: Callable[..., Result]) -> None:
    """Row 7 was written twice, and 6 was deleted."""
    shown = json.loads(preview("cache", "--json", "--rows", "9").stdout)["tables"]["public.customers"]
    assert [(row["key"], "old" in row["value"]) for row in shown] == [("c:5", False), ("c:7", False)]
    shown = json.loads(preview("cache", "--json", "--rows", "1").stdout)["tables"]["public.customers"]
    assert [row["key"] for row in shown] == ["c:7"]
    assert (
        preview("cache", "--key", "6", "--table", "public.customers").stdout == "public.customers: no row in what was looked at\n"
    )


def test_nothing_is_shown_from_before_a_truncate(tmp_path: Path, preview: Callable[..., Result]) -> None:
    writer = EmbeddedLogWriter(tmp_path / "log")
    writer.append(batch(CUSTOMERS, [(Op.TRUNCATE, 7, {})]))
    writer.append(batch(CUSTOMERS, [(Op.INSERT, 8, {**ADA, "id": "9"})]))
    writer.commit(Lsn(80), 1)
    writer.close()
    shown = json.loads(preview("cache", "--json", "--rows", "9").stdout)["tables"]["public.customers"]
    assert [row["key"] for row in shown] == ["c:9"]


@pytest.mark.parametrize(
    ("arguments", "said", "message"),
    [
        (("search",), 'columns = ["id", "nmae"]', r"customers\".columns: public.customers has no column nmae"),
        (("lake",), 'columns = ["name"]', "id cannot be left out"),
        (("cache", "--table", "public.x"), 'exclude = ["cost"]', "store cache has no table public.x in the log"),
        (("cache", "--key", "7"), 'exclude = ["cost"]', "--key is of one table"),
        (("nothing",), "", "there is no store 'nothing'"),
    ],
)
def test_what_is_wrong_is_said(preview: Callable[..., Result], arguments: tuple[str, ...], said: str, message: str) -> None:
    table = f'[stores.{arguments[0]}.tables."public.customers"]\n{said}\n' if said else ""
    shown = preview(*arguments, said=table)
    assert isinstance(shown.exception, ConfigError)
    assert re.search(message, str(shown.exception))


def test_it_shows_the_rows_that_the_store_holds_and_what_it_computes(preview: Callable[..., Result]) -> None:
    table = '[stores.cache.tables."public.customers"]\ncolumns = ["id", "half", "name"]\n'
    said = table + 'where = "name <> \'old\'"\ncomputed = { half = "cost / (id - 5)" }\n'
    [six, seven] = [
        json.loads(preview("cache", "--json", "--key", key, "--table", "public.customers", said=said).stdout)["tables"][
            "public.customers"
        ]
        for key in ("5", "7")
    ]
    assert six == [{"dead letter": "public.customers@1", "why": "computed.half: division by zero (22012)"}]
    assert seven == [{"command": "SET", "key": "c:7", "value": '{"id":7,"name":"Ada","half":0.55000000000000000000}'}]
    left_out = said.replace("<> 'old'", "<> 'Ada'")
    assert preview("cache", "--key", "7", "--table", "public.customers", said=left_out).stdout.endswith(
        "no row in what was looked at\n"
    )
    wrong = preview("cache", said=said.replace("name <>", "nam <>"))
    assert isinstance(wrong.exception, ConfigError)
    assert str(wrong.exception) == (
        'stores.cache.tables."public.customers".where: public.customers: line 1, column 1: column nam does not exist'
    )


def test_what_the_page_says_of_rows_and_of_what_is_computed_can_be_said() -> None:
    section = PAGE.partition("## Which rows does it hold, and what does it compute?")[2].partition("\n## ")[0]
    raw = tomllib.loads("\n".join(re.findall(r"```toml\n(.*?)```", section, re.DOTALL)))["stores"]["cache"]["tables"]
    products = TopicSchema.of(
        Table(
            1,
            "public",
            "products",
            (
                Column("id", INT8, key=True, attnum=1),
                Column("status", TEXT, attnum=2),
                Column("deleted_at", TIMESTAMPTZ, attnum=3),
                Column("price", NUMERIC, (12 << 16 | 2) + 4, attnum=4),
                Column("attributes", JSONB, attnum=5),
            ),
        )
    )
    options = options_model("redis").model_validate({"kind": "redis", "url": "redis://h", "tables": raw})
    [held] = foreseen("cache", options, [products])
    assert held.names == ("id", "status", "price", "brand", "gross")
