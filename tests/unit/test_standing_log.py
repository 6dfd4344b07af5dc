"""A page that is open for months shows the log that stands there now, whatever was done to its folder."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from cdc.http import app as port
from cdc.http import events
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.position import Lsn
from cdc.settings.models import Settings
from tests.unit.log.changes import USERS, changes
from tests.unit.log.disks import QuickDisk


def written(folder: Path, first: int, last: int) -> None:
    with closing(EmbeddedLogWriter(folder, seal=False, disk=QuickDisk())) as writer:
        writer.append(changes(USERS, range(first, last + 1), width=1))
        writer.commit(Lsn(last), 0)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PERIOD_S", 0.05)
    monkeypatch.setattr(events, "UNSEEN_PERIOD_S", 0.1)


def until(page: TestClient, what: Callable[[int, dict[str, Any]], bool]) -> None:
    deadline = time.monotonic() + 60
    while not what((answer := page.get("/v1/status")).status_code, answer.json()):
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.05)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.model_validate(
        {"source": {"dsn": "postgresql://nobody@127.0.0.1:1/none"}, "log": {"dir": tmp_path / "log"}, "run_dir": tmp_path / "run"}
    )


def test_a_log_that_is_put_back_from_a_copy(settings: Settings, tmp_path: Path) -> None:
    folder = settings.log.dir
    written(folder, 1, 100)
    shutil.copytree(folder, tmp_path / "copy")
    with TestClient(port.make_app(settings), base_url="http://127.0.0.1:8642") as page:
        written(folder, 101, 200)
        until(page, lambda _, told: told["log"]["position"] == 200)
        folder.rename(tmp_path / "former")
        shutil.copytree(tmp_path / "copy", folder)
        until(page, lambda _, told: told["log"]["position"] == 100)
        written(folder, 101, 150)
        until(page, lambda _, told: told["log"]["position"] == 150)


def test_a_damaged_file_that_is_put_back(settings: Settings, tmp_path: Path) -> None:
    folder, ahead = settings.log.dir, tmp_path / "ahead"
    written(folder, 1, 100)
    shutil.copytree(folder, ahead)
    written(ahead, 101, 200)
    whole = (ahead / "timeline-00000001").read_bytes()
    with TestClient(port.make_app(settings), base_url="http://127.0.0.1:8642") as page:
        until(page, lambda code, _: code == 200)
        (folder / "timeline-00000001").write_bytes(whole[:-10] + bytes([whole[-10] ^ 1]) + whole[-9:])
        shutil.copytree(ahead / "topics", folder / "topics", dirs_exist_ok=True)
        (folder / "head").write_bytes((ahead / "head").read_bytes())  # from here on that is read
        until(page, lambda code, told: code == 503 and "LOG_CORRUPT" in told["error"])
        aside = folder / "aside"
        aside.write_bytes(whole)
        aside.replace(folder / "timeline-00000001")
        until(page, lambda code, told: code == 200 and told["log"]["position"] == 200)
