"""A crash point armed as a user would: through the environment, on the real command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from cdc.crashpoint import KILLED, VARIABLE
from cdc.embedded.postgres import Postgres
from tests import counters
from tests.faults.lab import remove
from tests.faults.truth import LogFold, difference, of_source, pin
from tests.integration.capture.running import Capture


@pytest.mark.faults
def test_a_crash_point_by_environment_on_a_real_process(fault_server: Postgres, filled_database: str, server_folder: Path) -> None:
    name, folder = "by_hand", server_folder / "by-hand"
    folder.mkdir()
    config, mark = folder / "cdc.toml", folder / "reached"
    config.write_text(
        f'run_dir = "{folder}/run"\n'
        f'[source]\ndsn = "{fault_server.dsn(name)}"\nslot = "{name}"\npublication = "cdc"\ntables = ["public.*"]\n'
        f'[log]\ndir = "{folder}/log"\n'
    )
    with psycopg.connect(fault_server.unix_dsn(), autocommit=True) as admin:
        admin.execute(f"create database {name} template {filled_database}")
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "cdc", "--config", str(config), "run", "--only", "capture"],
            env={**os.environ, VARIABLE: f"ingest.commit.durable=kill@{mark}"},
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert ended.returncode == KILLED, ended.stderr[-2000:]
        assert mark.exists()
        # Whoever comes after, without the point, goes on to the end.
        capture = Capture(fault_server.dsn(name), folder, slot=name, publication="cdc", tables=["public.*"])
        with psycopg.connect(fault_server.unix_dsn(name), autocommit=True) as connection, capture.running():
            pin(connection)
            source = of_source(connection)
            capture.until_snapshot_done()
            fold = LogFold(folder / "log")
            assert difference(source, fold.tables()) is None
            fold.close()
    finally:
        remove(fault_server, name)
    counters.add("crash points", "by environment")
