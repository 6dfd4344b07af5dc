"""`cdc log`, over a small log."""

from __future__ import annotations

import re
from pathlib import Path

from typer.testing import CliRunner

from cdc.commands.app import app
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.position import Lsn

TS_US = 1_763_812_800_123_456


def test_stat_says_when_and_how_much_in_words_of_people(tmp_path: Path) -> None:
    writer = EmbeddedLogWriter(tmp_path / "log")
    writer.commit(Lsn(7), TS_US)
    writer.close()
    config = tmp_path / "cdc.toml"
    config.write_text('[source]\ndsn = "host=h"\n[log]\ndir = "log"\n')
    said = CliRunner().invoke(app, ["--config", str(config), "log", "stat"])
    assert said.exit_code == 0, said.output
    assert "commit_ts: 2025-11-22 12:00:00Z\n" in said.stdout
    assert re.search(r"^disk_bytes: \d+ B$", said.stdout, re.MULTILINE)
    assert str(TS_US) not in said.stdout
    as_json = CliRunner().invoke(app, ["--config", str(config), "log", "stat", "--json"])
    assert f'"commit_ts_us": {TS_US}' in as_json.stdout
