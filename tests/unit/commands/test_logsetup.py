from __future__ import annotations

import asyncio
import gc
import io
import json
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
import structlog

from cdc.commands.logsetup import configure_logs

CANARY = "canary-row-value"
EVIL = "t\x1b]0;owned\x07\nforged \u202e[/x]"


class Screen(io.StringIO):
    """Standard error as a terminal, or as a file."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.fixture(params=[True, False], ids=["terminal", "file"])
def screen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Screen]:
    made = Screen(request.param)
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)
    before = logging.getLogger().handlers[:], logging.getLogger().level
    yield made
    structlog.reset_defaults()
    logging.getLogger().handlers[:] = before[0]
    logging.getLogger().setLevel(before[1])


def test_a_logger_outlives_the_stream_it_first_wrote_to(monkeypatch: pytest.MonkeyPatch) -> None:
    log = structlog.get_logger("part")
    first, second = io.StringIO(), io.StringIO()
    try:
        monkeypatch.setattr("sys.stderr", first)
        configure_logs()
        log.info("one")
        assert "one" in first.getvalue()
        first.close()
        monkeypatch.setattr("sys.stderr", second)
        log.info("two")
        assert "two" in second.getvalue()
    finally:
        structlog.reset_defaults()


@pytest.mark.parametrize("path", ["/dev/full", "a pipe that nobody reads"])
def test_a_line_that_nobody_takes_ends_nobody(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """The disk that the log goes to is full, or whoever read it has ended."""
    if path == "/dev/full":
        descriptor = os.open(path, os.O_WRONLY)
    else:
        reading, descriptor = os.pipe()
        os.close(reading)
    try:
        said = 0
        with suppress(OSError), open(descriptor, "w") as stream:  # closing it fails
            monkeypatch.setattr("sys.stderr", stream)
            configure_logs()
            structlog.get_logger("run").info("one")
            logging.getLogger("library").warning("two")
            said = 2
        assert said == 2
        structlog.get_logger("run").info("three")
    finally:
        structlog.reset_defaults()


def fails() -> None:
    row = {"email": CANARY}
    try:
        raise KeyError(row["email"])
    except KeyError:
        raise ValueError(f"cannot take {row}") from None


def fails_because() -> None:
    row = {"email": CANARY}
    try:
        raise KeyError(row["email"])
    except KeyError as error:
        raise ValueError(f"cannot take {row}") from error


@pytest.mark.parametrize("failing", [fails, fails_because])
@pytest.mark.parametrize("way", ["structlog", "structlog with the error", "logging", "a thread"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_unforeseen_error_shows_its_type_and_place_and_no_value(
    screen: Screen, monkeypatch: pytest.MonkeyPatch, way: str, failing: object
) -> None:
    assert callable(failing)
    monkeypatch.setattr("sys.stderr", screen)
    configure_logs()
    if way == "a thread":
        thread = threading.Thread(target=failing, name="here")
        thread.start()
        thread.join()
    else:
        try:
            failing()
        except ValueError as error:
            if way == "logging":
                logging.getLogger("asyncio").exception("task failed")
            elif way == "structlog":
                structlog.get_logger("http").exception("unexpected")
            else:
                structlog.get_logger("http").error("unexpected", exc_info=error)
    said = screen.getvalue()
    assert CANARY not in said
    assert "ValueError" in said
    assert ("KeyError" in said) == (failing is fails_because)
    assert "in fails" in said
    assert "test_logsetup.py" in said
    if not screen.isatty():
        [entry] = [json.loads(line) for line in said.splitlines()]
        assert "exc_info" not in entry


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_task_that_nobody_waited_for_shows_no_value(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", screen)
    configure_logs()

    async def scene() -> None:
        async def failing() -> None:
            fails()

        task = asyncio.create_task(failing())
        await asyncio.sleep(0)
        assert task.done()
        del task
        gc.collect()

    asyncio.run(scene())
    said = screen.getvalue()
    assert "Task exception was never retrieved" in said
    assert "ValueError" in said
    assert CANARY not in said


def test_debug_shows_what_it_says_and_still_no_variables(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", screen)
    configure_logs(debug=True)
    secret = "canary-variable"
    try:
        raise ValueError(f"cannot take it{EVIL}")
    except ValueError:
        structlog.get_logger("http").exception("unexpected")
    said = screen.getvalue()
    assert "cannot take it" in said
    assert secret not in said
    assert "\nforged" not in said
    assert "\x1b]0;" not in said
    assert "\u202e" not in said


def test_a_name_writes_nothing_to_the_terminal(screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", screen)
    configure_logs()
    structlog.get_logger("capture").warning("table", table=EVIL, tables=[EVIL], more={EVIL: EVIL}, **{EVIL: 1})
    structlog.get_logger("capture").warning(EVIL)
    logging.getLogger("library").warning("table %s", EVIL)
    said = screen.getvalue()
    assert "\x1b]0;" not in said
    assert "\u202e" not in said
    assert "\nforged" not in said
    assert said.count("[/x]") >= 6
    assert len(said.splitlines()) == 3
