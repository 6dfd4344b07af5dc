"""Who may talk to the ports of Spark's driver: nobody but the session itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from cdc.settings.sparkoptions import SparkOptions
from cdc.spark import session

pytestmark = pytest.mark.spark
ENDPOINTS = ("BlockManagerMaster", "MapOutputTracker", "LocalSchedulerBackendEndpoint")


def stranger(jvm: Any) -> Any:
    """A client of Spark's own that has no secret, as any user of the machine can start one."""
    settings = jvm.org.apache.spark.SparkConf(False).set("spark.rpc.askTimeout", "20s").set("spark.rpc.lookupTimeout", "20s")
    security = jvm.org.apache.spark.SecurityManager
    manager = security(settings, jvm.scala.Option.empty(), getattr(security, "$lessinit$greater$default$3")())
    return jvm.org.apache.spark.rpc.RpcEnv.create("stranger", "127.0.0.1", 0, settings, manager, True)


def test_a_client_without_the_secret_is_refused(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    address = jvm.org.apache.spark.rpc.RpcAddress("127.0.0.1", int(spark.conf.get("spark.driver.port") or 0))
    client = stranger(jvm)
    try:
        for name in ENDPOINTS:
            with pytest.raises(Py4JJavaError, match="SparkException"):
                client.setupEndpointRef(address, name)
    finally:
        client.shutdown()
    assert spark.range(3).count() == 3


def test_results_that_go_over_a_port_still_arrive(spark: SparkSession) -> None:
    """More than 1 MB of a task comes by the block manager, from the driver to itself."""
    assert spark.range(0, 1_000_000, numPartitions=2).toArrow().num_rows == 1_000_000


def test_no_setting_holds_the_secret(spark: SparkSession) -> None:
    settings = dict(spark.sparkContext.getConf().getAll())
    assert settings["spark.authenticate"] == "true"
    assert not [name for name in settings if "secret" in name.lower()]
    assert settings["spark.driver.bindAddress"] == settings["spark.driver.host"] == "127.0.0.1"
    assert settings["spark.ui.enabled"] == "false"


def test_an_audit_does_not_end_a_session_that_others_use(spark: SparkSession, tmp_path: Path) -> None:
    """A session may run without being the active one of this thread."""
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.classic.SparkSession.clearActiveSession()
    assert SparkSession.getActiveSession() is None
    with session.lent("audit", tmp_path / "run", SparkOptions()):
        assert session.running() is not None
    running = session.running()
    assert running is not None
    assert running.range(3).count() == 3


ANOTHER_JVM = """
import sys
from pathlib import Path
from cdc.spark import session

scratch = Path(sys.argv[1])
first = session.session(scratch=scratch)
assert first.range(3).count() == 3
process = first.sparkContext._gateway.proc
process.kill()
process.wait()
assert session.running() is None
second = session.session(scratch=scratch)
assert second.range(4).count() == 4
assert len(list(scratch.iterdir())) == 1
session.stop()
assert session.running() is None
assert not list(scratch.iterdir())
"""


def test_a_session_whose_jvm_was_killed_is_replaced_by_another(tmp_path: Path) -> None:
    """As the kernel does when memory runs out. In a process of its own, because the tests share one session."""
    ended = subprocess.run([sys.executable, "-c", ANOTHER_JVM, str(tmp_path)], capture_output=True, text=True, encoding="utf-8")
    assert ended.returncode == 0, ended.stderr[-3000:]
