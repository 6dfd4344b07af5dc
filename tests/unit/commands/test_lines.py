"""A line of the log at a terminal and elsewhere."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from cdc.commands.logsetup import configure_logs

EVIL = "t\x1b]0;owned\x07\nforged \u202e"


class Screen(io.StringIO):
    """Standard error as a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    handlers, level = logging.getLogger().handlers[:], logging.getLogger().level
    yield
    structlog.reset_defaults()
    logging.getLogger().handlers[:] = handlers
    logging.getLogger().setLevel(level)


def on(screen: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """To be called in the test: between its set-up and itself pytest puts a standard error of its own in place."""
    monkeypatch.setattr("sys.stderr", screen)
    configure_logs()
    return screen


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Screen()


def test_at_a_terminal_a_line_is_time_part_and_words(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    on(screen, monkeypatch)
    structlog.get_logger("store cache").info("opened; follows", facts={"state": "following"})
    structlog.get_logger("capture").warning("a new table is not captured", table="public.t", tables=["a", "b"])
    logging.getLogger("library").warning("something about %s", "it")
    first, second, third = screen.getvalue().splitlines()
    assert first[8:] == "  store cache      opened; follows"
    assert first[2] == first[5] == ":"
    assert second[8:] == "  capture          a new table is not captured (table public.t, tables a, b)"
    assert third[8:] == "  library          something about it"


def test_it_is_coloured_by_how_much_it_matters(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    on(screen, monkeypatch)
    log = structlog.get_logger("store cache")
    log.info("opened")
    log.warning("waits")
    log.error("stopped")
    well, warning, error = screen.getvalue().splitlines()
    assert well.endswith("  opened")
    assert warning.endswith("\x1b[33mwaits\x1b[0m")
    assert error.endswith("\x1b[31mstopped\x1b[0m")


def test_what_a_store_or_a_table_is_called_gives_the_terminal_no_orders(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    on(screen, monkeypatch)
    structlog.get_logger(f"store {EVIL}").warning(f"waits: {EVIL}", table=EVIL, tables=[EVIL], **{EVIL: EVIL})
    logging.getLogger("library").warning("%s", EVIL)
    said = screen.getvalue()
    assert "\x1b]0;" not in said
    assert "\u202e" not in said
    assert len(said.splitlines()) == 2


def test_elsewhere_it_is_one_json_object_with_the_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    file = on(io.StringIO(), monkeypatch)
    structlog.get_logger("store cache").warning(f"waits: {EVIL}", facts={"state": "waiting", "event": "never"})
    logging.getLogger("library").warning("something")
    own, foreign = (json.loads(line) for line in file.getvalue().splitlines())
    assert {key: own[key] for key in ("part", "event", "state", "level")} == {
        "part": "store cache",
        "event": f"waits: {EVIL}",
        "state": "waiting",
        "level": "warning",
    }
    assert foreign["part"] == "library"
