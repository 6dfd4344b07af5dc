"""`cdc snapshot`: the file of keys, and what it says when capture has stopped."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cdc.commands.app import app
from cdc.commands.snapshot import _wait, read_keys
from cdc.errors import ConfigError, Stopped, StopState, WaitTimeout
from cdc.settings.models import Settings
from cdc.state import stops
from snapshots.requestcheck import WrongKey
from snapshots.requests import Request, Requests


def test_a_line_is_a_key_or_the_array_of_its_columns(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes('7\r\n a \n\n["x", 1.10, ""]\na\x0cb\u2028c\rd\n'.encode())
    assert read_keys(file) == {1: ("7",), 2: (" a ",), 4: ("x", "1.10", ""), 5: ("a\x0cb\u2028c\rd",)}


def test_a_range_has_to_stand_in_an_array(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("[1,5)\n")
    with pytest.raises(ConfigError, match="line 1") as raised:
        read_keys(file)
    assert "[1,5)" in str(raised.value.hint)


def test_a_mark_that_an_editor_puts_before_the_text_is_none_of_the_first_key(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes(b"\xef\xbb\xbfabc\r\nd\r\n")
    assert read_keys(file) == {1: ("abc",), 2: ("d",)}


@pytest.mark.parametrize("line", ['["\\ud800"]', "[" * 100_000])
def test_what_can_be_no_key_is_named_by_its_line(tmp_path: Path, line: str) -> None:
    file = tmp_path / "keys"
    file.write_text(f"1\n{line}\n")
    with pytest.raises(ConfigError, match="line 2"):
        read_keys(file)


def test_waiting_ends_when_capture_stops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(source={"dsn": "host=/nowhere"}, log={"dir": tmp_path / "log"}, run_dir=tmp_path / "run")  # type: ignore[arg-type]
    requests = Requests(settings.log.dir)
    name = requests.queue(Request("public.t"))
    stops.record(settings.run_dir, "capture", Stopped(StopState.SLOT_LOST, "gone"))
    with pytest.raises(Stopped, match="SLOT_LOST"):
        _wait(settings, requests, name, "public.t", 5, quiet=True)
    assert capsys.readouterr().err == f"request {name} is kept, and taken up once capture was resumed\n"


def test_who_waits_learns_that_nobody_takes_the_request_up_and_that_it_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(source={"dsn": "host=/nowhere"}, log={"dir": tmp_path / "log"}, run_dir=tmp_path / "run")  # type: ignore[arg-type]
    requests = Requests(settings.log.dir)
    name = requests.queue(Request("public.t"))
    kept = f"request {name} is kept, and taken up as soon as capture runs (cdc run); it does not run now"
    with pytest.raises(WaitTimeout) as late:
        _wait(settings, requests, name, "public.t", 0.3, quiet=True)
    assert capsys.readouterr().err == f"{kept}\n", "once"
    assert str(late.value) == f"the snapshot of public.t is not done after 0.3 s; {kept}"
    assert name in requests.pending()


def test_a_wrong_key_is_named_by_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise WrongKey(1, "the value for column id is not of type integer")

    monkeypatch.setattr("snapshots.session.open_session", lambda _: BytesIO())
    monkeypatch.setattr("snapshots.requestcheck.check_request", refuse)
    config, file = tmp_path / "cdc.toml", tmp_path / "keys"
    config.write_text('[source]\ndsn = "host=/nowhere"\n')
    file.write_text("1\n\ncanary\n3\n")
    done = CliRunner().invoke(app, ["--config", str(config), "snapshot", "public.t", "--keys", str(file)])
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception) == f"{file}, line 3: the value for column id is not of type integer"
