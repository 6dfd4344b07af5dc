"""The session as it is asked for, and its end, on a JVM made by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from cdc.embedded.jars import SparkJars
from cdc.spark import session


def test_a_jvm_that_does_not_end_in_time_is_killed_and_the_end_is_orderly(monkeypatch: pytest.MonkeyPatch) -> None:
    deaf = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdin=subprocess.PIPE)
    gateway: Any = SimpleNamespace(proc=deaf, shutdown=lambda: None)
    context = SimpleNamespace(_jsc=object(), _gateway=gateway, master="local[2]")
    monkeypatch.setattr(SparkSession, "_instantiatedSession", SimpleNamespace(sparkContext=context, stop=lambda: None))
    for name in ("_gateway", "_jvm"):
        monkeypatch.setattr(SparkContext, name, getattr(SparkContext, name))
    monkeypatch.setattr(session, "END_S", 0.05)
    session.stop()
    assert deaf.poll() is not None


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """The settings of a local session."""
    settings: dict[str, str] = {}

    class Builder:
        def config(self, key: str, value: str) -> Builder:
            settings[key] = value
            return self

        def appName(self, _: str) -> Builder:
            return self

        def master(self, _: str) -> Builder:
            return self

        def getOrCreate(self) -> Any:
            return SimpleNamespace(sparkContext=SimpleNamespace(setLogLevel=lambda _: None))

    monkeypatch.setattr(session, "running", lambda: None)
    monkeypatch.setattr(session, "spark_jars", lambda: SparkJars(tmp_path, tmp_path, tmp_path))
    monkeypatch.setattr(SparkSession, "builder", Builder())
    for name in ("JAVA_HOME", "PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON"):
        monkeypatch.setenv(name, "")
    before = os.umask(0o077)
    try:
        session.session(scratch=tmp_path)
    finally:
        os.umask(before)
    return settings


def test_whoever_talks_to_the_ports_of_a_local_session_needs_a_secret(given: dict[str, str]) -> None:
    """That nobody else gets in is in tests/integration/spark/test_session.py."""
    assert (given["spark.authenticate"], given["spark.network.crypto.enabled"]) == ("true", "true")
    assert not [key for key in given if "secret" in key.lower()]


def test_what_spark_writes_is_as_private_as_what_the_process_writes(given: dict[str, str]) -> None:
    """Hadoop heeds no umask but its own."""
    assert given["spark.hadoop.fs.permissions.umask-mode"] == "077"
