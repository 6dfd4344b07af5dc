"""`cdc follow`: where a store begins, over a small log."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cdc.commands.app import app
from cdc.errors import HeadwaterError
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.batch import Op
from cdc.model.position import Lsn
from cdc.state import status
from cdc.state.status import FollowerStatus
from tests.contract.rows import ORDERS, batch, order

Follow = Callable[..., Result]


@pytest.fixture
def shop(tmp_path: Path) -> Follow:
    """Runs `cdc follow … --until-caught-up` over orders 1 to 6: two changes a commit, a second apart."""
    writer = EmbeddedLogWriter(tmp_path / "log", seal=False)
    for position in range(1, 7):
        writer.append(batch(ORDERS, [(Op.INSERT, position, order(position))]))
        if position % 2 == 0:
            writer.commit(Lsn(position * 10), 1_700_000_000_000_000 + position * 1_000_000)
    writer.close()
    config = tmp_path / "cdc.toml"
    config.write_text(
        '[source]\ndsn = "host=h"\n[log]\ndir = "log"\n[stores.out]\nkind = "console"\n'
        '[stores.cache]\nkind = "redis"\nurl = "redis://127.0.0.1:1"\nkey = "o:{id}"\n'
    )

    def run(store: str, *arguments: str) -> Result:
        return CliRunner().invoke(app, ["--config", str(config), "follow", store, "--until-caught-up", *arguments])

    return run


def ids(result: Result) -> list[int]:
    assert result.exit_code == 0, result.output
    return [json.loads(line)["id"] for line in result.stdout.splitlines()]


def refused(result: Result, exit_code: int) -> str:
    """The line that the user sees."""
    assert isinstance(result.exception, HeadwaterError), result.output
    assert result.exception.exit_code == exit_code
    return result.exception.line()


def test_a_store_that_keeps_nothing_begins_at_any_place(shop: Follow) -> None:
    assert ids(shop("out")) == [1, 2, 3, 4, 5, 6], "without one: at the log's beginning"
    assert ids(shop("out", "--from", "4")) == [4, 5, 6], "within a commit"
    assert ids(shop("out", "--from", "0/3C")) == [6]
    assert ids(shop("out", "--from", "2123-01-01")) == []


def test_a_place_that_the_log_does_not_have_is_refused_and_stops_nothing(shop: Follow) -> None:
    for place in ("7", "0/FF", "yesterday"):
        assert place in refused(shop("out", "--from", place), 2)
    assert ids(shop("out", "--from", "6")) == [6]


def test_a_store_with_rows_begins_nowhere_else_than_where_it_stands(shop: Follow, tmp_path: Path) -> None:
    status.write(tmp_path / "var" / "run", "follow-cache", FollowerStatus("cache", "redis", position=4))
    ahead = refused(shop("cache", "--from", "6"), 2)
    assert "position 4" in ahead
    assert "would lack every change before that → cdc follow cache" in ahead
    behind = refused(shop("cache", "--from", "2"), 2)
    assert "cdc audit cache" in behind
    assert "cdc snapshot TABLE" in behind


def test_a_place_before_what_is_left_names_the_first_that_is(shop: Follow, tmp_path: Path) -> None:
    with closing(EmbeddedLogWriter(tmp_path / "log")) as writer:
        writer.upkeep.close_newest("public.orders", 6)
        writer.commit()
        writer.append(batch(ORDERS, [(Op.INSERT, 7, order(7))]))
        writer.commit(Lsn(70), 1_700_000_007_000_000)
        writer.drain_seals()
        writer.upkeep.retire("public.orders", kept_from=5, floor=5, clean_from=5)
        writer.commit()
    gone = refused(shop("out", "--from", "2"), 4)
    assert gone.count("POSITION_GONE") == 1
    assert gone.endswith("cdc follow out --from 5, or a later place")
    assert ids(shop("out", "--from", "5")) == [5, 6, 7]
