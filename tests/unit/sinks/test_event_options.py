"""The options of stores that hand changes on, and what docs/event-stores.md shows of them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from cdc.errors import ConfigError
from cdc.model.topic import TopicSchema
from sinks import generations_of, make_sink, options_model, traits_of
from sinks.events.redisstream import Options
from tests.contract.rows import ORDERS

PAGE = (Path(__file__).resolve().parents[3] / "docs/event-stores.md").read_text(encoding="utf-8")
SERVER = {"kind": "redis-stream", "url": "redis://127.0.0.1:1/0"}


def options(**more: Any) -> Options:
    return Options.model_validate(SERVER | more)


def test_the_page_shows_stores_that_there_can_be() -> None:
    for text in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL):
        for given in tomllib.loads(text)["stores"].values():
            read = {key.removesuffix("_file"): value for key, value in given.items()}
            make_sink("bus", options_model(given["kind"]).model_validate(read)).foresee([TopicSchema.of(ORDERS)])
    fields = re.search(r"has the fields ([^;]*);", PAGE.replace("\n", " "))
    assert fields
    from sinks.events.redisstream.channel import FIELDS

    assert re.findall(r"`(\w+)`", fields[1]) == list(FIELDS)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"tables": {"public.orders": {"where": "id > 1"}}}, "holds no rows"),
        ({"tables": {"public.orders": {"computed": {"x": "id"}}}}, "as they were made"),
        ({"schema": "pause"}, 'no other `schema` than "apply"'),
        ({"stream": "{nothing}"}, "is not a key"),
        ({"stream": "{topic.x}"}, "is not a key"),
        ({"stream": "cdc:x"}, "our own keys"),
        ({"maxlen": 0}, "maxlen"),
        ({"when": ""}, "when"),
    ],
)
def test_what_it_cannot_do_is_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(said)):
        options(**more)


def test_streams_are_named_by_topics() -> None:
    assert options(stream="{schema}/{table}").stream_of("public.a.b") == "public/a.b"
    assert options().stream_of("outbox.order") == "outbox.order"


def test_a_payload_is_what_an_application_wrote() -> None:
    sink = make_sink("bus", options(body="payload"))
    with pytest.raises(ConfigError, match=r"public\.orders is a table"):
        sink.foresee([TopicSchema.of(ORDERS)])
    with pytest.raises(ConfigError, match="no column account_id"):
        make_sink("bus", options(order_by=["account_id"])).foresee([TopicSchema.of(ORDERS)])


def test_nothing_compares_it_or_builds_it_again() -> None:
    assert not traits_of(options()).keeps_rows
    with pytest.raises(ConfigError, match="keeps no rows: nothing can be built again"):
        generations_of("bus", options())


def test_rows_are_looked_up_only_for_a_condition_that_asks_for_them() -> None:
    orders = TopicSchema.of(ORDERS)
    assert not options(when="op = 'update' AND status = 'paid'").looks_up(orders)
    assert options(when="old.status = 'paid'").looks_up(orders)
    assert options(tables={"public.orders": {"when": "changed(status)"}}).looks_up(orders)
