"""Who may talk to the ports of Spark's driver: nobody but the session itself."""

from __future__ import annotations

from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

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
