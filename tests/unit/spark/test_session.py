"""The session's end, on a JVM made by hand."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from cdc.spark import session


def test_a_jvm_that_does_not_end_in_time_is_killed_and_the_end_is_orderly(monkeypatch: pytest.MonkeyPatch) -> None:
    deaf = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdin=subprocess.PIPE)
    gateway: Any = SimpleNamespace(proc=deaf, shutdown=lambda: None)
    context = SimpleNamespace(_jsc=object(), _gateway=gateway)
    monkeypatch.setattr(SparkSession, "_instantiatedSession", SimpleNamespace(sparkContext=context, stop=lambda: None))
    for name in ("_gateway", "_jvm"):
        monkeypatch.setattr(SparkContext, name, getattr(SparkContext, name))
    monkeypatch.setattr(session, "END_S", 0.05)
    session.stop()
    assert deaf.poll() is not None
