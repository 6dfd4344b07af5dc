"""The command line's frame: whose eyes its files are for, and what a closed file comes out as."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from cdc.__main__ import main


def current() -> int:
    found = os.umask(0o022)
    os.umask(found)
    return found


@pytest.fixture(autouse=True)
def _umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.parametrize(("given", "expected"), [(None, 0o077), ("077", 0o077), ("027", 0o027), ("0027", 0o027)])
def test_what_a_command_writes_is_private(monkeypatch: pytest.MonkeyPatch, given: str | None, expected: int) -> None:
    seen: list[int] = []
    monkeypatch.setattr("cdc.commands.app.app", lambda **_: seen.append(current()))
    if given is not None:
        monkeypatch.setenv("HEADWATER_UMASK", given)
    assert main(["status"]) == 0
    assert seen == [expected]
    assert current() == 0o022, "a program that calls it keeps its own"


@pytest.mark.parametrize("given", ["", "7", "abc", "000", "007", "070", "0o77", "99"])
def test_a_umask_that_lets_others_write_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: str
) -> None:
    monkeypatch.setenv("HEADWATER_UMASK", given)
    assert main(["status"]) == 2
    assert capsys.readouterr().err.startswith(f"error: HEADWATER_UMASK={given} is not a umask that keeps others from writing →")


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/var/lib/headwater/log/source.json")

    monkeypatch.setattr("cdc.commands.app.app", full)
    assert main(["run"]) == 1
    assert capsys.readouterr().err.startswith(
        "error: No space left on device: /var/lib/headwater/log/source.json → free space there"
    )


def test_a_file_of_another_account(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def closed(**_: object) -> None:
        raise PermissionError(13, "Permission denied", "/var/lib/headwater/run/status/capture.json")

    monkeypatch.setattr("cdc.commands.app.app", closed)
    assert main(["status"]) == 1
    assert "capture.json: permission denied → run this as the account of cdc run" in capsys.readouterr().err


@pytest.mark.parametrize("stderr", ["2>/dev/full", "2>&-", "2>/dev/null"])
def test_an_exit_code_does_not_depend_on_who_takes_what_is_said(stderr: str) -> None:
    """The supervisor goes by it, and a full disk may be what a part has to tell about."""
    command = f"{sys.executable} -m cdc no-such-verb {stderr}"
    assert subprocess.run(["sh", "-c", command], timeout=120, check=False).returncode == 2


@pytest.mark.parametrize("stdout", [">&-", "<&- >&- 2>&-"])
def test_closed_streams_lead_nowhere(stdout: str) -> None:
    command = f"{sys.executable} -m cdc --version {stdout}"
    assert subprocess.run(["sh", "-c", command], timeout=120, check=False).returncode == 0


def test_what_every_verb_loads_does_not_hold_it_up() -> None:
    """Arrow loads pandas when it makes its first value, which may as well be when a verb needs one."""
    loaded = "import sys, cdc.commands.app, cdc.report.collector, cdc.client.wait; print({'pandas', 'numba', 'pyspark'} & sys.modules.keys())"
    said = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout
    assert said == "set()\n"


def test_the_supervisor_checks_views_without_the_engine() -> None:
    loaded = "import sys, cdc.commands.run, cdc.commands.preflight, cdc.derive.declarations, cdc.http.serve; print('duckdb' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, check=True).stdout
    assert said == "False\n"


@pytest.mark.parametrize("command", [["plan", "--ddl", "x"], ["wait", "cache"], ["audit"], ["snapshot", "t"]])
@pytest.mark.parametrize("seconds", ["inf", "nan", "-1"])
def test_a_time_limit_is_a_number_of_seconds(capsys: pytest.CaptureFixture[str], command: list[str], seconds: str) -> None:
    assert main([*command, "--timeout", seconds]) == 2
    assert capsys.readouterr().err.startswith("error: Invalid value for '--timeout': ")


def test_a_statement_is_tried_for_a_day_at_most(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--ddl", "x", "--timeout", "1e12"]) == 2
    assert capsys.readouterr().err.startswith("error: Invalid value for '--timeout': ")


@pytest.mark.parametrize(
    "command",
    [
        ["log", "grep", "\udcff"],
        ["log", "cat", "public.orders", "--key", "secret\udcff"],
        ["snapshot", "public.orders", "--where", "\udcff"],
        ["\udcff"],
    ],
)
def test_bytes_that_are_no_text_are_refused(capsys: pytest.CaptureFixture[str], command: list[str]) -> None:
    """Python hands them over as halves of surrogate pairs."""
    assert main(command) == 2
    said = capsys.readouterr().err
    assert said == f"error: argument {len(command)} has bytes that are not UTF-8 → give it in that encoding\n"


def test_a_place_in_which_nothing_can_be_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(**_: object) -> None:
        raise NotADirectoryError(errno.ENOTDIR, "Not a directory", "/srv/file/log/head")

    monkeypatch.setattr("cdc.commands.app.app", fail)
    assert main(["status"]) == 1
    said = "/srv/file/log/head: not a directory → see what is there; cdc doctor looks at the folders of cdc.toml"
    assert capsys.readouterr().err == f"error: {said}\n"
