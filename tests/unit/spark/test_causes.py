"""What of a Java error may be told."""

from __future__ import annotations

import pytest

from cdc.spark.causes import reduced

PYTHON = """[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform planPartitions: Traceback (most recent call last):
  File "/x/cdc/log/embedded/reader.py", line 9, in read
    raise PositionGone(canary)
{}
 SQLSTATE: 38000"""


@pytest.mark.parametrize(
    ("kind", "text", "told"),
    [
        ("java.nio.file.FileSystemException", "/var/run/spark: No space left on device\nmore", "FileSystemException: /var/run/spark: No space left on device"),
        ("java.lang.OutOfMemoryError", "Java heap space", "OutOfMemoryError: Java heap space"),
        ("java.io.EOFException", "", "EOFException"),
        ("java.lang.IllegalStateException", "canary", "IllegalStateException"),
        ("org.apache.spark.SparkException", "[CAST_INVALID_INPUT] The value 'canary'", "SparkException: CAST_INVALID_INPUT"),
        ("org.apache.spark.SparkException", "[canary 1] is odd", "SparkException"),
        ("org.apache.spark.SparkException", PYTHON.format("ValueError: canary"), "SparkException: PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR"),
        ("org.apache.spark.SparkException", PYTHON.format("cdc.errors.PositionGone: POSITION_GONE: at 7"), "SparkException: PositionGone: POSITION_GONE: at 7"),
    ],
)  # fmt: skip
def test_no_row_is_told(kind: str, text: str, told: str) -> None:
    assert reduced([("org.apache.spark.sql.streaming.StreamingQueryException", "canary"), (kind, text)]) == told
