"""The Python of Spark's workers is this one, and its path keeps all but the zip of pyspark's sources."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from cdc.embedded.workers import worker_python

_TELL = "import json, os, sys; print(json.dumps([os.environ['PYTHONPATH'], sys.prefix, sys.argv[1:]]))"


@pytest.mark.parametrize(
    ("path", "kept"),
    [
        ("/s/python/lib/pyspark.zip:/s/python/lib/py4j-0.10-src.zip:/mine", "/s/python/lib/py4j-0.10-src.zip:/mine"),
        ("/a b:/s/pyspark.zip", "/a b"),
        ("/s/pyspark.zip", ""),
        ("", ""),
    ],
)
def test_only_the_zip_leaves_the_path(path: str, kept: str) -> None:
    command = [worker_python(), "-c", _TELL, "an argument", "*"]
    told = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, check=True, text=True).stdout
    assert json.loads(told) == [kept, sys.prefix, ["an argument", "*"]]


@pytest.mark.parametrize(
    ("module", "heard"), [("pyspark.sql.streaming.python_streaming_source_runner", False), ("pyspark.worker", True)]
)
def test_the_end_of_a_query_writes_no_traces(module: str, heard: bool) -> None:
    """Both fail here, as there is nobody for them to report to."""
    done = subprocess.run([worker_python(), "-m", module], capture_output=True, check=False, text=True)
    assert done.returncode != 0
    assert ("Traceback" in done.stderr) is heard
