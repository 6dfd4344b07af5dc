"""``[outbox]``, and what it means for the other sections."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from cdc.errors import ConfigError
from cdc.model.selection import matches
from cdc.settings.file import load
from cdc.settings.models import Settings
from cdc.settings.outbox import OutboxColumns
from sinks import options_model

BASE = '[source]\ndsn = "postgresql://cdc@localhost/shop"\n'


def loaded(folder: Path, text: str) -> Settings:
    path = folder / "cdc.toml"
    path.write_text(BASE + text)
    path.chmod(0o600)
    return load(path, options_model)


PAGE: Final = Path(__file__).parents[2] / "docs" / "outbox-from-debezium.md"


def test_what_the_page_for_debeziums_users_shows_is_understood(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    shown = re.search(r"<!-- from debezium: tested -->\n```toml\n(.*?)```", text, re.DOTALL)
    assert shown is not None
    outbox = loaded(tmp_path, shown[1]).outbox
    assert outbox is not None
    assert outbox.model_fields_set >= {"columns", "headers", "topic", "on_update", "keep"}
    for key in re.findall(r"`columns\.(\w+)`", text):
        assert key in OutboxColumns.model_fields


def test_without_it_nothing_changes(tmp_path: Path) -> None:
    found = loaded(tmp_path, 'tables = ["*"]\n')
    assert found.outbox is None
    assert (found.source.tables, found.log.tables) == (("*",), {})


def test_the_table_is_captured_and_no_store_holds_it_unless_named(tmp_path: Path) -> None:
    stores = '[stores.a]\nkind = "console"\n[stores.b]\nkind = "console"\ntables = ["public.outbox", "app.*"]\n'
    found = loaded(tmp_path, 'tables = ["app.*"]\n[outbox]\n' + stores)
    assert matches(found.source.tables, "public.outbox")
    assert matches(found.source.tables, "app.orders")
    assert not matches(found.source.tables, "outbox.order")
    assert not matches(found.stores["a"].tables, "public.outbox")
    assert matches(found.stores["a"].tables, "outbox.order")
    assert matches(found.stores["b"].tables, "public.outbox")


def test_events_stay_and_rows_that_are_gone_do_not_unless_said(tmp_path: Path) -> None:
    found = loaded(tmp_path, '[outbox]\n[log]\ncleanup = "delete"\nretain_hours = 1\n')
    kept = {table: found.log.tables[table].cleanup for table in found.log.tables}
    assert kept == {"public.outbox": "compact", "outbox.*": "keep"}
    said = loaded(tmp_path, '[outbox]\n[log.tables."outbox.*"]\ncleanup = "delete"\nretain_hours = 1\n')
    assert said.log.tables["outbox.*"].cleanup == "delete"


def test_with_a_prefix_alone_there_is_no_table(tmp_path: Path) -> None:
    found = loaded(tmp_path, '[outbox]\nprefix = "outbox"\n[stores.a]\nkind = "console"\n')
    assert found.outbox is not None
    assert (found.outbox.table, found.source.tables) == ("", ("public.*", "!outbox.*"))
    assert list(found.log.tables) == ["outbox.*"]
    both = loaded(tmp_path, '[outbox]\nprefix = "outbox"\ntable = "app.outbox"\n')
    assert both.outbox is not None
    assert both.outbox.table == "app.outbox"


@pytest.mark.parametrize(("keep", "seconds"), [("", None), ("0s", 0), ("24h", 86_400), ("7d", 604_800), ("90m", 5400)])
def test_how_long_rows_are_kept(keep: str, seconds: int | None, tmp_path: Path) -> None:
    found = loaded(tmp_path, f'[outbox]\nkeep = "{keep}"\n')
    assert found.outbox is not None
    assert found.outbox.keep_s == seconds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[outbox]\nkeep = "1 day"\n', 'outbox.keep: not a time; write such as "24h" or "7d", or "" for ever'),
        (
            '[outbox]\nprefix = "outbox"\nheaders = { tenant = "tenant_id" }\n',
            "outbox: headers are columns of a table, and there is none; a message's body holds its headers",
        ),
        ('[outbox]\ntable = ""\n', 'outbox: there is neither a table nor a prefix; write table = "public.outbox"'),
        (
            '[outbox]\nprefix = "a b"\n',
            "outbox.prefix: not the prefix of messages; write at most 63 letters, digits and any of _.-, such as outbox",
        ),
        (
            '[outbox]\nprefix = "headwater.ddl"\n',
            'outbox.prefix: messages of Headwater\'s own have such prefixes; write another, such as "outbox"',
        ),
        ('[outbox]\ntable = "outbox"\n', "outbox.table: not a table; write schema.table, such as public.outbox"),
        (
            '[outbox]\ntopic = "{route}"\n',
            'outbox.topic: not the name of topics; write schema.{route}, such as "outbox.{route}", in small letters, digits and _',
        ),
        (
            '[outbox]\ntable = "outbox.rows"\n',
            'the table and the events\' topics are both in schema outbox; write another topic, such as "events.{route}"',
        ),
        ('[outbox.columns]\nid = "type"\n', "outbox.columns: column type cannot be two things at once"),
        ('[outbox.columns]\nkey = ""\n', "outbox.columns: key is empty"),
        (
            'tables = ["*", "!public.outbox"]\n[outbox]\n',
            "outbox: source.tables takes public.outbox out, which is the outbox table",
        ),
        ('tables = ["outbox.a"]\n[outbox]\n', "outbox: source.tables names outbox.a, and the topics of events have such names"),
        (
            '[outbox]\n[source.columns."public.outbox"]\npayload = "mask"\n',
            "outbox: column payload of public.outbox has the policy mask, and events are what was written",
        ),
    ],
)
def test_what_cannot_be_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        loaded(tmp_path, text)
    assert str(refused.value).endswith(message)
