"""Events of the log that cannot be written again: none of them is, and which it was is said."""

from __future__ import annotations

import pytest

from cdc.commands.outbox import _write_again
from cdc.errors import ConfigError
from cdc.replay.events import LoggedEvent
from cdc.settings.outbox import Outbox
from tests.conftest import Database
from tests.integration.outbox.capturing import CREATE

MESSAGES = Outbox(prefix="outbox")


def logged(position: int, payload: str | bytes | None = "{}", headers: str | None = None) -> LoggedEvent:
    id = f"00000000-0000-7000-8000-{position:012d}"
    return LoggedEvent(
        position, 26, "2026-11-27T10:00:00+00:00", id, "7", "order.placed", headers, payload, isinstance(payload, str)
    )


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (logged(4, "secret"), "the payload is not JSON's text"),
        (logged(4, "{} secret"), "the payload is not JSON's text"),
        (logged(4, b"secret"), "bytes are a payload for a table"),
        (logged(4, headers='["secret"]'), "its headers are not an object"),
        (logged(4, headers='{"secret": 1}'), "headers map text to text"),
        (logged(4, headers='{"secret": ' + "1" * 5000 + "}"), "its headers are not an object"),
    ],
)
def test_one_that_cannot_be_written_again_is_named_and_none_is(postgres: Database, event: LoggedEvent, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        _write_again(postgres.dsn, "source.dsn", MESSAGES, "outbox.order", [logged(3), event])
    assert f"that at position 4 cannot be: {why}" in str(refused.value)
    assert "secret" not in str(refused.value)


def test_headers_that_are_null_are_none(postgres: Database) -> None:
    connection = postgres.connect()
    connection.execute(CREATE)
    assert _write_again(postgres.dsn, "source.dsn", Outbox(table="public.outbox"), "outbox.order", [logged(3, headers="null")]) == 1
    [(headers,)] = connection.execute("select headers from outbox").fetchall()
    assert headers == {"replayed-of": logged(3).id}
