"""`cdc snapshot`: the file of keys, and what it says when capture has stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc import stops
from cdc.commands.snapshot import _wait, read_keys
from cdc.errors import ConfigError, Stopped, StopState
from cdc.settings import Settings
from snapshots.requests import Request, Requests


def test_a_line_is_a_key_or_the_array_of_its_columns(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_bytes('7\r\n a \n\n["x", 1.10, ""]\na\x0cb\u2028c\rd\n'.encode())
    assert read_keys(file) == (("7",), (" a ",), ("x", "1.10", ""), ("a\x0cb\u2028c\rd",))


def test_a_range_has_to_stand_in_an_array(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("[1,5)\n")
    with pytest.raises(ConfigError, match="line 1") as raised:
        read_keys(file)
    assert "[1,5)" in str(raised.value.hint)


def test_waiting_ends_when_capture_stops(tmp_path: Path) -> None:
    settings = Settings(source={"dsn": "host=/nowhere"}, log={"dir": tmp_path / "log"}, run_dir=tmp_path / "run")  # type: ignore[arg-type]
    requests = Requests(settings.log.dir)
    name = requests.queue(Request("public.t"))
    stops.record(settings.run_dir, "capture", Stopped(StopState.SLOT_LOST, "gone"))
    with pytest.raises(Stopped, match="SLOT_LOST"):
        _wait(settings, requests, name, "public.t", 5, quiet=True)
