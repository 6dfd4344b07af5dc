"""Large batches reach the disk as the buffers that they are: the same bytes as those of a copy."""

from __future__ import annotations

import os
import random
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from bench.logrows import orders
from cdc.log.embedded.disk import EARLY_BYTES, MOST_PARTS, PAGE_BYTES, Disk
from cdc.log.embedded.format import FrameKind, encode_frame
from cdc.log.embedded.message import LARGE_BYTES, message_of
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.position import Lsn, Position
from tests.unit.log.disks import FailingDisk, QuickDisk

LARGE = orders(1, 5_000)
WIDE = pa.record_batch({f"c{number}": pa.array(np.arange(200)) for number in range(MOST_PARTS + 10)})
NESTED = pa.record_batch(
    {
        "lists": pa.array([[number, None] * (number % 3) for number in range(20_000)], pa.list_(pa.int64())),
        "structs": pa.array([{"text": "é" * (number % 7), "flag": None} for number in range(20_000)]),
        "none": pa.nulls(20_000),
    }
)


@pytest.mark.parametrize(
    "batch", [orders(1, 10), LARGE, LARGE.slice(3, 4_001), WIDE, NESTED, NESTED.slice(7, 19_000)],
    ids=["small", "large", "slice", "wide", "nested", "slice of nested"],
)  # fmt: skip
def test_the_pieces_are_the_message(batch: pa.RecordBatch) -> None:
    pieces, whole = message_of(batch), batch.serialize()
    assert b"".join(bytes(memoryview(piece)) for piece in pieces) == whole.to_pybytes()
    assert (len(pieces) > 1) == (batch.nbytes >= LARGE_BYTES)
    told = {"offset": 8, "schema_at": 0, "topic": 1}
    assert encode_frame(FrameKind.BATCH, pieces, **told) == encode_frame(FrameKind.BATCH, [whole], **told)


def test_the_pieces_of_a_large_batch_are_no_copies() -> None:
    buffers = {buffer.address for column in LARGE.columns for buffer in column.buffers() if buffer is not None}
    pieces = {piece.address for piece in message_of(LARGE) if isinstance(piece, pa.Buffer)}
    assert len(pieces & buffers) >= LARGE.num_columns


def test_more_parts_than_the_system_takes_at_once_are_written(tmp_path: Path) -> None:
    disk, parts = Disk(), [bytes([number % 251]) * (number % 5) for number in range(3 * MOST_PARTS + 1)]
    fd = disk.create(tmp_path / "file")
    disk.write(fd, parts, 3)
    disk.close(fd)
    assert (tmp_path / "file").read_bytes() == bytes(3) + b"".join(parts)


class Told(QuickDisk):
    """What it was told to begin with, and how long the file was then."""

    def __init__(self) -> None:
        self.started: list[tuple[int, int, int]] = []

    def start_writing(self, fd: int, start: int, end: int) -> None:
        self.started.append((start, end, os.fstat(fd).st_size))
        super().start_writing(fd, start, end)


@pytest.mark.parametrize("offset", [0, 1, PAGE_BYTES - 1, PAGE_BYTES, 3 * PAGE_BYTES + 77])
def test_what_is_written_early_is_the_same_and_no_page_is_begun_twice(tmp_path: Path, offset: int, seed: int) -> None:
    chance = random.Random(seed)
    disk, parts = Told(), [chance.randbytes(chance.choice((0, 3, 5_000, 300_000, EARLY_BYTES + 5))) for _ in range(20)]
    fd = disk.create(tmp_path / "file")
    disk.write_early(fd, parts, offset)
    disk.close(fd)
    assert (tmp_path / "file").read_bytes() == bytes(offset) + b"".join(parts)
    whole = offset + sum(map(len, parts))
    assert len(disk.started) > 1
    starts, ends = [one[0] for one in disk.started], [one[1] for one in disk.started]
    assert starts == [-(-offset // PAGE_BYTES) * PAGE_BYTES, *ends[:-1]], "one behind the other"
    assert ends[-1] == whole // PAGE_BYTES * PAGE_BYTES
    assert all(start < end <= there and end % PAGE_BYTES == 0 for start, end, there in disk.started)


@pytest.mark.parametrize("parts", [[], [b""], [b"short"]])
def test_what_fills_no_page_is_left_to_the_sync(tmp_path: Path, parts: list[bytes]) -> None:
    disk = Told()
    fd = disk.create(tmp_path / "file")
    disk.write_early(fd, parts, 5)
    disk.close(fd)
    assert disk.started == []
    assert (tmp_path / "file").read_bytes()[5:] == b"".join(parts)


def test_large_and_small_batches_lie_side_by_side(tmp_path: Path) -> None:
    batches = [orders(1, 5_000), orders(5_001, 3), orders(5_004, 4_000), orders(9_004, 1)]
    with closing(EmbeddedLogWriter(tmp_path, disk=QuickDisk(), seal=False)) as log:
        for batch in batches:
            log.append(batch)
        log.commit(Lsn(1), 0)
    with closing(EmbeddedLogReader(tmp_path)) as reader:
        found = list(reader.read("public.orders", Position(0), Position(9_004)))
    assert pa.Table.from_batches(found).equals(pa.Table.from_batches(batches))


@pytest.mark.parametrize("fails_at", [0, 1])
def test_a_large_batch_that_the_disk_refuses_halfway_leaves_nothing(tmp_path: Path, fails_at: int) -> None:
    disk = FailingDisk()
    with closing(EmbeddedLogWriter(tmp_path, disk=disk, seal=False)) as log:
        log.append(orders(1, 10))
        log.commit(Lsn(1), 0)
        [segment] = (tmp_path / "topics").rglob("*.seg")
        before = segment.stat().st_size
        disk.fail("write", 28, after=fails_at)
        with pytest.raises(OSError, match="No space left"):
            log.append(orders(11, 5_000))
        assert segment.stat().st_size == before
        log.append(orders(11, 5_000))
        log.commit(Lsn(2), 0)
    with closing(EmbeddedLogReader(tmp_path)) as reader:
        assert sum(batch.num_rows for batch in reader.read("public.orders", Position(0), Position(9_004))) == 5_010
