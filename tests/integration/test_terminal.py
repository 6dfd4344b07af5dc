"""Every command that prints, on a terminal and into a pipe, over a table whose name wants to act on the terminal."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog
from psycopg import sql

from cdc.__main__ import main
from cdc.audit.findings import Progress, RowDifference, StoreAudit, TableAudit, Tally
from cdc.settings.file import load
from sinks import options_model
from tests.conftest import Cache, Database
from tests.integration.capture.running import Capture

NAME = "[/x]\x1b]0;owned\x07\nforged\u202e[bold]"
TABLE = f"public.{NAME}"


class Screen(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.fixture(params=[True, False], ids=["terminal", "pipe"])
def screen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Screen]]:
    """Call it for what standard output and standard error are from then on."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(threading, "excepthook", threading.__excepthook__)

    def fresh() -> Screen:
        made = Screen(request.param)
        monkeypatch.setattr("sys.stdout", made)
        monkeypatch.setattr("sys.stderr", made)
        return made

    yield fresh
    structlog.reset_defaults()


@pytest.fixture
def config(postgres: Database, valkey: Cache, tmp_path: Path) -> Path:
    with postgres.connect() as connection:
        table = sql.Identifier(NAME)
        connection.execute(sql.SQL("create table {} (id text primary key, {} text)").format(table, table))
        connection.execute(sql.SQL("insert into {} values (%s, %s)").format(table), (NAME, NAME))
        connection.execute("create table loose (id int)")
    path = tmp_path / "cdc.toml"
    path.write_text(
        f'run_dir = "run"\n[source]\ndsn = "{postgres.dsn}"\ntables = ["public.*", "!public.loose"]\nslot = "s_{postgres.name}"\n'
        f'[log]\ndir = "log"\n[stores.cache]\nkind = "redis"\nurl = "{valkey.url}"\n[http]\nlisten = "127.0.0.1:0"\n'
    )
    return path


def harmless(said: str, *, names_it: bool = True) -> None:
    """Nothing of the name is acted on; it is there to be read."""
    assert "\x1b]" not in said, repr(said)
    assert "\x07" not in said, repr(said)
    assert "\u202e" not in said, repr(said)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", said)
    assert not any(one.lstrip().startswith("forged") for one in re.split(r"[\r\n]+", plain)), repr(said)
    if names_it:
        assert "[/x]" in plain, repr(said)
        assert r"\x1b]0;owned" in plain or r"\u001b]0;owned" in plain, repr(said)


def test_a_name_that_wants_to_act_on_the_terminal(
    screen: Callable[[], Screen], config: Path, postgres: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cdc(*arguments: str, code: int = 0, names_it: bool = True) -> None:
        out = screen()
        ended = main(["--config", str(config), *arguments])
        assert ended == code, out.getvalue()
        harmless(out.getvalue(), names_it=names_it)

    ddl = sql.SQL("alter table {} add column {} int").format(sql.Identifier(NAME), sql.Identifier(f"{NAME}2")).as_string()
    cdc("doctor")
    cdc("doctor", "--json")
    cdc("wait", NAME, code=2)
    cdc("resume", NAME, code=2)
    cdc("init", "--config", str(config.parent / "new.toml"), "--source", postgres.dsn, names_it=False)
    assert r"[[]/x]" in (config.parent / "new.toml").read_text()
    settings = load(config, options_model)
    capture = Capture(postgres.dsn, config.parent)
    capture.settings = settings
    log = screen()
    main(["--config", str(config), "--version"])  # sets the logs up as they are in the daemon
    with capture.running():
        capture.until_snapshot_done()
        structlog.get_logger("capture").warning("reads rows back", table=TABLE, tables=[TABLE])
        cdc("snapshot", TABLE)
        cdc("snapshot", TABLE, "--json")
        for debug in ((), ("--debug",)):
            cdc(*debug, "snapshot", f"{TABLE}x", code=2)
        cdc("status", names_it=False)
        cdc("status", "--json")
        with monkeypatch.context() as patch:
            patch.setattr("cdc.commands.status.time.sleep", _interrupted)
            cdc("status", "--watch", code=130, names_it=False)
        cdc("plan", names_it=False)
        cdc("plan", "--ddl", ddl)
        cdc("plan", "--ddl", ddl, "--json")
        for verb in (("ls",), ("ls", "--json"), ("cat",), ("cat", "--format", "json")):
            cdc("log", *verb)
        for verb in (
            ("cat", TABLE, "--at", "1"),
            ("diff", TABLE, "--from", "0"),
            ("diff", TABLE, "--from", "0", "--json"),
            ("grep", NAME),
        ):
            cdc("log", *verb)
        cdc("log", "cat", f"{TABLE}x", code=2)
        cdc("log", "stat", names_it=False)
    harmless(log.getvalue())


def _interrupted(_seconds: float) -> None:
    raise KeyboardInterrupt


def test_what_an_audit_says(screen: Callable[[], Screen], config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    differs = TableAudit(TABLE, False, tally=Tally(different=1), differences=(RowDifference("different", {NAME: NAME}, (NAME,)),))
    failed = TableAudit(TABLE, False, error=f"no {NAME}")

    def audited(*_: object, progress: Callable[[Progress], None], **__: object) -> list[StoreAudit]:
        progress(Progress("cache", TABLE, "scanning", 1, 1, 2))
        return [StoreAudit("cache", False, "0/1", 1, 0.1, (differs, failed))]

    monkeypatch.setattr("cdc.audit.stores.audit", audited)
    for more in ((), ("--json",)):
        out = screen()
        assert main(["--config", str(config), "audit", *more]) == 1
        harmless(out.getvalue())
