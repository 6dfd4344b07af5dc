"""Where a stream stands, by the files of its checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.errors import ConfigError
from cdc.spark.checkpoint import position_in


def offsets(folder: Path, number: int, *lines: str) -> None:
    (folder / "offsets").mkdir(exist_ok=True)
    (folder / "offsets" / str(number)).write_text("\n".join(["v1", '{"batchWatermarkMs":0}', *lines]))


def ours(position: int) -> str:
    return f'{{"position":{position},"commit_lsn":1,"commit_ts_us":2,"history":""}}'


def test_the_newest_offset_counts(tmp_path: Path) -> None:
    assert position_in(str(tmp_path / "nowhere")) == 0
    assert position_in(str(tmp_path)) == 0
    for number in (8, 9, 10):
        offsets(tmp_path, number, ours(number * 100))
    (tmp_path / "offsets" / ".10.crc").write_bytes(b"\0")
    (tmp_path / "offsets" / ".11.tmp").write_bytes(b"torn")
    assert position_in(str(tmp_path)) == 1000
    assert position_in(f"file://{tmp_path}") == 1000


def test_of_several_sources_the_furthest(tmp_path: Path) -> None:
    """No other is certain not to lie before where one of them stands."""
    offsets(tmp_path, 0, ours(7), "-", '{"topic":{"0":12}}', ours(5))
    assert position_in(str(tmp_path)) == 7


def test_what_is_no_checkpoint_of_ours_is_said(tmp_path: Path) -> None:
    offsets(tmp_path, 0, '{"topic":{"0":12}}')
    with pytest.raises(ConfigError, match=r"holds no offset of format"):
        position_in(str(tmp_path))
    with pytest.raises(ConfigError, match="the option checkpoint is on s3a"):
        position_in("s3a://bucket/checkpoint")
