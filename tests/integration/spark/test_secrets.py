"""A store's secrets in a real follower with Spark's workers: not in its event log, not on any command line, not in what it says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from cdc.embedded.opensearch import OpenSearch
from cdc.follow.follower import LARGE_ROWS
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.batch import Op
from cdc.model.position import Lsn
from tests.contract.rows import ORDERS, batch, order

SECRET = "canary-password-31c5"
ROW = "canary-row-94be"
ROWS = LARGE_ROWS
"""In one commit: such a range waits for Spark's workers, however long these take to come."""


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(600)
def test_secrets_stay_out_of_sparks_event_log_and_out_of_arguments(opensearch: OpenSearch, tmp_path: Path) -> None:
    writer = EmbeddedLogWriter(tmp_path / "log")
    # Enough for a query of Spark, behind the first small range that needs none.
    for first in range(1, 3 * ROWS, ROWS):
        writer.append(batch(ORDERS, [(Op.INSERT, first + n, order(first + n, note=ROW)) for n in range(ROWS)]))
        writer.commit(Lsn(first), 0)
    writer.close()
    events = tmp_path / "events"
    events.mkdir()
    url = opensearch.url.replace("http://", f"http://user:{SECRET}@")
    config = tmp_path / "cdc.toml"
    config.touch(0o600)
    config.write_text(
        f'run_dir = "run"\n[source]\ndsn = "postgresql://u:{SECRET}@127.0.0.1:1/d"\n[log]\ndir = "log"\n'
        f'[stores.search]\nkind = "opensearch"\nurl = "{url}"\nworkers_from_rows = 1\n'
    )
    environment = {
        **os.environ,
        "PYSPARK_SUBMIT_ARGS": f"--conf spark.eventLog.enabled=true --conf spark.eventLog.compress=false --conf spark.eventLog.dir=file:{events} pyspark-shell",
    }
    seen: set[str] = set()
    log = tmp_path / "said"
    with log.open("w") as output:
        follower = subprocess.Popen(
            [sys.executable, "-m", "cdc", "--config", str(config), "follow", "search", "--until-caught-up"],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        while follower.poll() is None:
            for process in (psutil.Process(follower.pid), *psutil.Process(follower.pid).children(recursive=True)):
                try:
                    seen.add(" ".join(process.cmdline()))
                except (psutil.NoSuchProcess, psutil.ZombieProcess):
                    continue
            try:
                follower.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
        said = log.read_text()
        assert follower.returncode == 0, said
    opensearch.request("POST", "/public.orders/_refresh")
    assert opensearch.request("GET", "/public.orders/_count")["count"] == 3 * ROWS
    assert "log level" not in said, "Spark tells how to set another"
    recorded = "".join(path.read_text() for path in events.rglob("*") if path.is_file())
    assert "SparkListenerTaskEnd" in recorded, "the workers had nothing to do"
    assert any("java" in line for line in seen)
    for text in (recorded, said, *seen):
        assert SECRET not in text
        assert ROW not in text
