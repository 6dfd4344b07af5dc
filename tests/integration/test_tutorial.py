"""docs/tutorial.md, line by line: every command is run, and what comes out is what the page says (`…` stands for anything)."""

from __future__ import annotations

import difflib
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cdc.embedded.opensearch import OpenSearch
from cdc.embedded.postgres import VOLATILE, Postgres, installations
from cdc.embedded.processes import kill_group, spawn
from tests.conftest import Cache

ROOT = Path(__file__).resolve().parents[2]
PASSWORD = "tut0r 'canary"
VERSION = next((version for version in (17, 15) if version in installations()), None)
RUN = "cdc run"
CTRL_C = "^C"
REDIS_CLI = '''#!{python}
"""redis-cli as it prints where nobody watches, for a machine without it."""
import sys
import redis

reply = redis.Redis.from_url("{url}", decode_responses=True).execute_command(*sys.argv[1:])
for line in reply if isinstance(reply, (list, set)) else [reply]:
    print("OK" if line is True else line)
'''
pytestmark = [pytest.mark.skipif(VERSION is None, reason="no Postgres here has psql"), pytest.mark.timeout(600)]


@dataclass(frozen=True, slots=True)
class Step:
    """A command and what the page says that it prints; or a text that the reader appends to cdc.toml."""

    command: str
    said: str


def steps() -> Iterator[Step]:
    page = (ROOT / "docs/tutorial.md").read_text()
    for language, block in re.findall(r"```(console|toml)\n(.*?)```", page, re.DOTALL):
        if language == "toml":
            yield Step("", block)
            continue
        first, *commands = re.split(r"^\$ ", block, flags=re.MULTILINE)
        if first:
            assert (first, commands) == (f"{CTRL_C}\n", []), "a block begins with a command"
            yield Step(CTRL_C, "")
        for one in commands:
            command, _, said = one.partition("\n")
            yield Step(command, said)


def as_said(said: str, printed: str) -> bool:
    pattern = "".join(
        ".+?" if part == "…" else re.escape(part)
        for part in re.split("(…)", "\n".join(line.rstrip() for line in said.rstrip("\n").splitlines()))
    )
    shown = "\n".join(line.rstrip() for line in printed.rstrip("\n").splitlines())
    return re.fullmatch(pattern, shown) is not None  # within a line: "." matches no line end


class Terminal:
    """One bash that lives as long as the reader's."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self._bash = subprocess.Popen(
            ["bash"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # psql then asks its standard input for the password instead of our terminal
        )

    def type(self, command: str, answers: str = "") -> str:
        """What the command prints; ``answers``: what it is told when it asks."""
        assert self._bash.stdin is not None
        assert self._bash.stdout is not None
        end = f"end-{secrets.token_hex(8)}"
        self._bash.stdin.write(f"{command}; printf '\\n%s %s\\n' {end} $?\n{answers}")
        self._bash.stdin.flush()
        watchdog = threading.Timer(300, kill_group, [self._bash])
        watchdog.start()
        printed = ""
        try:
            for line in self._bash.stdout:
                if line.startswith(end):
                    return printed.removesuffix("\n")
                printed += line
        finally:
            watchdog.cancel()
        raise AssertionError(f"{command} ended the terminal: {printed}")

    def close(self) -> None:
        kill_group(self._bash)
        self._bash.communicate()


@pytest.fixture
def own_postgres(server_folder: Path) -> Iterator[Postgres]:
    """A reader's server: whoever comes over the socket is the administrator, everybody else has a password."""
    server = Postgres(server_folder / "tutorial", version=VERSION or 0, options=VOLATILE)
    server.start()
    (server.data / "pg_hba.conf").write_text("local all postgres trust\nhost all all all scram-sha-256\n")
    server.stop()
    server.start()
    yield server
    server.stop("immediate")


@pytest.fixture
def daemons() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        if process.poll() is None:
            kill_group(process)


def test_the_tutorial_does_what_it_says(
    own_postgres: Postgres,
    opensearch: OpenSearch,
    valkey: Cache,
    tmp_path: Path,
    free_port: Callable[[], int],
    daemons: list[subprocess.Popen[bytes]],
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "deploy").symlink_to(ROOT / "deploy")
    shim = tmp_path / "bin" / "redis-cli"
    shim.parent.mkdir()
    shim.write_text(REDIS_CLI.format(python=sys.executable, url=valkey.url))
    shim.chmod(0o755)
    ports = {":9200": f":{opensearch.port}", ":6379": f":{valkey.server.port}", ":8642": f":{free_port()}"}

    def ours(text: str) -> str:
        for page, machine in ports.items():
            text = text.replace(page, machine)
        return text

    paths = (shim.parent, own_postgres.binary("psql").parent, Path(sys.executable).parent, os.environ["PATH"])
    environment = {
        **os.environ,
        "PATH": os.pathsep.join(map(str, paths)),
        "PGPORT": str(own_postgres.port),
        "PGHOST": str(own_postgres.socket_folder),
        "PGUSER": "postgres",
    }
    terminal = Terminal(here, environment)
    wrong: list[str] = []
    try:
        for step in steps():
            if not step.command:
                written = here / "cdc.toml"
                written.write_text(ours(f"{written.read_text()}\n{step.said}").replace("8642", ports[":8642"][1:]))
            elif step.command == RUN:
                daemons.append(
                    spawn(
                        ["cdc", "run"],
                        log=tmp_path / "cdc.log",
                        cwd=here,
                        env={**environment, "CDC_SOURCE_PASSWORD": PASSWORD},
                        death_signal=signal.SIGTERM,
                    )
                )
            elif step.command == CTRL_C:
                daemons[-1].send_signal(signal.SIGINT)
                assert daemons[-1].wait(120) == 0, (tmp_path / "cdc.log").read_text()
            else:
                printed = terminal.type(ours(step.command), _answers(step.command))
                print(f"$ {step.command}\n{printed}")
                if not as_said(ours(step.said), printed):
                    wrong.append(f"$ {step.command}\n" + "\n".join(difflib.ndiff(step.said.splitlines(), printed.splitlines())))
    finally:
        terminal.close()
    assert not wrong, "\n".join([*wrong, (tmp_path / "cdc.log").read_text()[-3000:]])


def _answers(command: str) -> str:
    """What the reader types when the command asks."""
    if "\\password" in command:
        return f"{PASSWORD}\n{PASSWORD}\n"
    return f"{PASSWORD}\n" if command.startswith("read ") else ""
