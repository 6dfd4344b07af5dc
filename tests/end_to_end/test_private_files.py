"""What the daemon writes is for its own account's eyes: the log, the warehouse, Spark's scratch, status and stop states."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import psycopg
import pytest

from cdc.demo.configuration import toml
from cdc.embedded.postgres import Postgres
from tests.end_to_end.daemon import Daemon

STRANGER = 65534


def open_to_others(folder: Path) -> list[str]:
    found = []
    for path in (folder, *folder.rglob("*")):
        try:
            mode = stat.S_IMODE(path.lstat().st_mode)
        except FileNotFoundError:
            continue
        if mode & 0o077 and not path.is_symlink():
            found.append(f"{path} {mode:04o}")
    return found


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_nothing_that_the_daemon_writes_is_open_to_others(postgres_server: Postgres, tmp_path: Path) -> None:
    with psycopg.connect(postgres_server.dsn(), autocommit=True) as sql:
        sql.execute(
            "create table private (id int primary key, v text); insert into private select n, repeat('x', 9000) from generate_series(1, 50) n"
        )
    folders = [tmp_path / name for name in ("run", "log", "warehouse")]
    (tmp_path / "run").mkdir(mode=0o755)
    (tmp_path / "cdc.toml").write_text(
        toml(
            {
                "": {"run_dir": "run"},
                "source": {"dsn": postgres_server.dsn(), "tables": ["public.private"]},
                "log": {"dir": "log", "segment_bytes": 8192},
                "stores.warehouse": {"kind": "iceberg", "path": "warehouse"},
                "http": {"listen": "127.0.0.1:0"},
            }
        )
    )
    daemon = Daemon(tmp_path, lambda: None)
    before = os.umask(0o022)
    try:
        daemon.start()
    finally:
        os.umask(before)
    try:
        daemon.until(lambda: daemon.position() >= 50 and daemon.follower("warehouse").position >= 50, "the warehouse")
        assert any(path.suffix == ".parquet" for path in (tmp_path / "warehouse").rglob("*"))
        assert [line for folder in folders for line in open_to_others(folder)] == []
        assert "a folder was open to others and no longer is" in (tmp_path / "cdc.log").read_text()
    finally:
        daemon.kill()
    if os.geteuid() == 0:
        os.chown(tmp_path / "run", STRANGER, STRANGER)
        refused = daemon.cdc("run")
        assert refused.returncode == 2
        assert f"error: run_dir: {tmp_path / 'run'} belongs to" in refused.stderr
