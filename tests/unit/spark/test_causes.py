"""What of a Java error may be told."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from cdc.embedded import EmbeddedError
from cdc.embedded.cache import cache_folder
from cdc.spark.causes import place_of, reduced

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


def caught(error: Exception) -> Exception:
    try:
        raise error
    except Exception as found:
        return found


def test_our_own_errors_are_told_with_what_helps() -> None:
    """As when a jar cannot be fetched: the place alone would help nobody."""
    error = EmbeddedError("iceberg.jar cannot be fetched", hint="put it there by hand")
    assert place_of(caught(error)) == "iceberg.jar cannot be fetched → put it there by hand"


def test_a_file_that_cannot_be_had_is_named() -> None:
    denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/var/lib/headwater/run/spark")
    assert place_of(caught(denied)) == "Permission denied: /var/lib/headwater/run/spark"
    assert place_of(caught(ConnectionResetError("canary"))).startswith("ConnectionResetError at test_causes.py:")
    assert place_of(caught(ValueError("canary"))).startswith("ValueError at test_causes.py:")


def test_a_cache_that_cannot_be_made_names_the_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A service's account may have no home, or one that it cannot write to."""
    monkeypatch.delenv("HEADWATER_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    (tmp_path / "file").touch()
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    with pytest.raises(EmbeddedError, match=r"cannot make .*file/.cache/headwater: Not a directory") as unmade:
        cache_folder()
    assert unmade.value.hint is not None
    assert "HEADWATER_CACHE" in unmade.value.hint

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(EmbeddedError, match="this account has no home folder for the cache"):
        cache_folder()


def test_of_a_jvm_that_is_gone_only_the_kind_of_the_error_is_known() -> None:
    class Gone:
        def getCause(self) -> object:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

    class OfJava(Exception):
        java_exception = Gone()

    with pytest.raises(OfJava) as failed:
        raise OfJava
    assert place_of(failed.value).startswith("OfJava at test_causes.py:")
