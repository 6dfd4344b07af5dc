"""The log's bytes beyond what tests/unit/log/test_recover.py does to whole files: every bit of a frame and of a sealed file, and records
whose checksums are right though what they say is not, so that nothing but their bounds protects the reader."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from cdc.errors import HeadwaterError
from cdc.log.embedded import headfile
from cdc.log.embedded.format import (
    HEAD_BYTES,
    Damaged,
    FrameKind,
    crc32c,
    decode_frame,
    decode_segment_header,
    encode_frame,
)
from cdc.log.embedded.groupfiles import GroupFiles
from cdc.log.embedded.names import sealed_of
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.records import RECORD_BYTES, RecordKind
from cdc.log.embedded.sealedsegment import SealedFile, encode
from cdc.log.embedded.segment import SegmentPlace
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.position import Lsn, Position
from tests import counters
from tests.fuzz.damage import additions, cuts, damaged, flips, limited_memory, outcome
from tests.unit.log.changes import changes, positions_in
from tests.unit.log.conftest import quick_folder
from tests.unit.log.test_recover import SMALL, Rows, open_writer, pristine, read_all

__all__ = ["pristine", "quick_folder"]

LARGE = (2**31 - 1, 2**32 - 1, 2**40, 2**62, 2**63 - 1, -1, 0)
"""What a length or a position is replaced with."""


@pytest.fixture
def log(pristine: Path, quick_folder: Path) -> Path:
    return Path(shutil.copytree(pristine, quick_folder / "log"))


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headfile, "_PAUSE_S", 0)


def sealed_file(folder: Path) -> Path:
    """The only sealed file of a small log."""
    writer = open_writer(folder / "log", 100, seal=True)
    writer.append(changes(SMALL, range(1, 50)))
    writer.commit(Lsn(1), 0)
    writer.drain_seals()
    writer.close()
    [path] = (folder / "log").rglob("*.parquet")
    return path


def test_every_bit_of_a_frame() -> None:
    body = bytes(range(64))
    head, _ = encode_frame(FrameKind.BATCH, [body], offset=96, schema_at=8, topic=3, first=5, last=9, rows=5)
    data = head + body
    whole = decode_frame(pa.py_buffer(data), 0, offset=96, topic=3)
    cases = [data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :] for at in range(len(data)) for bit in range(8)]
    with limited_memory():
        for case in (*cases, *cuts(data)):
            with pytest.raises((Damaged, HeadwaterError)):
                decode_frame(pa.py_buffer(case), 0, offset=96, topic=3)
        for case in additions(data):
            assert decode_frame(pa.py_buffer(case), 0, offset=96, topic=3) == whole
    counters.add("fuzz", "frames", len(cases) + len(data))


def test_every_byte_of_a_sealed_file(quick_folder: Path, seed: int) -> None:
    path = sealed_file(quick_folder)
    data, name = path.read_bytes(), sealed_of(path.name)
    assert name is not None
    for case in damaged(data, seed, most=3 * 2**14):
        path.write_bytes(case)
        found = outcome("sealed files", lambda: SealedFile(path, name, SegmentPlace(0, 0, "", 0)))
        assert isinstance(found, HeadwaterError), "the checksum in its name sees every damage"
        assert found.hint


def test_a_sealed_file_that_is_damaged_under_a_good_checksum(quick_folder: Path, seed: int) -> None:
    """Arrow's own readers meet the damage: what they say becomes our error."""
    path = sealed_file(quick_folder)
    data = path.read_bytes()
    for case in damaged(data, seed, most=800):
        path.unlink()
        path = path.with_name(f"{path.name[: -len('00000000.parquet')]}{crc32c(case):08x}.parquet")
        path.write_bytes(case)
        found = outcome("sealed files", lambda path=path: read_whole(path))  # type: ignore[misc]
        assert found is None or found.hint


def read_whole(path: Path) -> None:
    with closing(EmbeddedLogReader(path.parents[2])) as reader:
        for _ in reader.read("s.a", Position(0), reader.head().position):
            pass


def resealed(record: bytes, at: int, form: str, value: int) -> bytes | None:
    """The record with another value in one field and the checksum that goes with it; None when it does not fit."""
    try:
        field = struct.pack(form, value)
    except struct.error:
        return None
    changed = record[:at] + field + record[at + len(field) :]
    return changed[:-4] + crc32c(changed[:-4]).to_bytes(4, "little")


def test_a_head_that_lies(log: Path) -> None:
    path = log / "head"
    data = path.read_bytes()[:HEAD_BYTES]
    rows = read_all(log)
    fields = [(12, "<I"), (16, "<Q"), (24, "<q"), (32, "<q"), (40, "<q"), (48, "<I"), (52, "<I"), (56, "<I")]
    for at, form in fields:
        for value in LARGE:
            case = resealed(data, at, form, value)
            if case is None:
                continue
            path.write_bytes(case)
            found = outcome("lying heads", lambda: read_all(log))
            assert isinstance(found, HeadwaterError) or found == rows, (at, value)
            written = outcome("lying heads", lambda: _opened(log))
            assert isinstance(written, HeadwaterError) or written == rows, (at, value)


def _opened(log: Path) -> Rows:
    """On a copy: a writer mends the head."""
    copy = log.with_name("copy")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(log, copy)
    open_writer(copy).close()
    return read_all(copy)


def rechained(timeline: bytes, number: int, record: bytes) -> bytes:
    """The timeline with another record there, and checksums that go with it to the end."""
    out = bytearray(timeline)
    out[number * RECORD_BYTES : (number + 1) * RECORD_BYTES] = record
    previous = 0
    for at in range(0, len(out), RECORD_BYTES):
        previous = crc32c(bytes(out[at : at + RECORD_BYTES - 4]), previous)
        out[at + RECORD_BYTES - 4 : at + RECORD_BYTES] = previous.to_bytes(4, "little")
    return bytes(out)


def lies(timeline: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Every 2-, 4- and 8-byte field, wherever one may stand in a record behind the first, with what no writer writes there."""
    for number in range(1, len(timeline) // RECORD_BYTES):
        record = timeline[number * RECORD_BYTES : (number + 1) * RECORD_BYTES]
        for at, form in (
            [(at, "<H") for at in (0, 2)] + [(at, "<I") for at in range(4, 44, 4)] + [(at, "<q") for at in (8, 16, 24, 32)]
        ):
            for value in (0, 1, 3, 255, *LARGE):
                case = resealed(record, at, form, value)
                if case is not None and case[:-4] != record[:-4]:
                    yield number, at, rechained(timeline, number, case)


def test_a_timeline_that_lies(log: Path) -> None:
    head, timeline = log / "head", log / "timeline-00000001"
    rows = read_all(log)
    told, data = head.read_bytes()[:HEAD_BYTES], timeline.read_bytes()
    for number, at, case in lies(data):
        timeline.write_bytes(case)
        ends = resealed(told, 56, "<I", int.from_bytes(case[-4:], "little"))
        assert ends is not None
        head.write_bytes(ends)
        found = outcome("lying timelines", lambda: read_all(log))
        if not isinstance(found, HeadwaterError):
            assert {p: row["id"] for p, row in found.items()} == {p: row["id"] for p, row in rows.items()}, (number, at)


@pytest.mark.parametrize("few_bytes", [False, True])
def test_a_timeline_that_lies_about_what_was_dropped(quick_folder: Path, monkeypatch: pytest.MonkeyPatch, few_bytes: bool) -> None:
    """Where a file of the timeline has but few bytes, what was dropped is in a checkpoint."""
    monkeypatch.setattr(GroupFiles, "full", property(lambda files: few_bytes and files.head.timeline_bytes > 300))
    root = quick_folder / "log"
    rows, writer = dropped_from(root)
    head, timeline = root / "head", max(root.glob("timeline-*"))
    told, data = head.read_bytes()[:HEAD_BYTES], timeline.read_bytes()
    kinds = [RecordKind(data[at]) for at in range(0, len(data), RECORD_BYTES)]
    assert {RecordKind.REPLACED, RecordKind.RETIRED} < set(kinds)
    assert (RecordKind.CHECKPOINT in kinds) == few_bytes
    for number, at, case in lies(data):
        if not few_bytes and kinds[number] not in (RecordKind.REPLACED, RecordKind.RETIRED):
            continue
        timeline.write_bytes(case)
        ends = resealed(told, 56, "<I", int.from_bytes(case[-4:], "little"))
        assert ends is not None
        head.write_bytes(ends)
        found = outcome("lying timelines", lambda: read_kept(root))
        assert isinstance(found, HeadwaterError) or found == rows, (number, at)
    writer.abandon()


def dropped_from(root: Path) -> tuple[list[int], EmbeddedLogWriter]:
    """A log with a replaced segment and retired positions: what can be read of it behind them, and its writer."""
    writer = open_writer(root, 100, seal=True)
    for start in range(1, 60, 10):
        writer.append(changes(SMALL, range(start, start + 10)))
        writer.commit(Lsn(start), 0)
        writer.drain_seals()
    place = SegmentPlace(writer._published.head.log_id, 1, "s.a", 11)
    [(name, data)] = encode(place, [changes(SMALL, [11, 15, 30])], 1)
    (writer._places.folder("s.a") / name.file).write_bytes(data)
    writer.upkeep.replace("s.a", 11, 30, [name], data.size)
    writer.commit()
    writer.upkeep.retire("s.a", kept_from=11, floor=11, clean_from=31)
    writer.commit()
    found = read_kept(root)
    assert found == [11, 15, *range(30, 61)]
    return found, writer


def read_kept(root: Path) -> list[int]:
    with closing(EmbeddedLogReader(root)) as reader:
        end = reader.head().position
        return [position for topic in reader.topics() for position in positions_in(reader.read(topic.name, Position(10), end))]


def test_a_segment_header_that_lies(log: Path) -> None:
    """A checksum that is right does not make a name that is none, or is longer than the file, one."""
    [path, *_] = sorted(log.rglob("*.seg"))
    data, rows = path.read_bytes(), read_all(log)
    _, length, crc = decode_segment_header(data[:1100])
    whole = data[:length]
    at = whole.index(crc.to_bytes(4, "little"))
    for case in flips(whole):
        crc = crc32c(case[at + 4 :], crc32c(case[:at]))
        header = case[:at] + crc.to_bytes(4, "little") + case[at + 4 :]
        path.write_bytes(header + data[length:])
        found = outcome("lying segments", lambda: read_all(log))
        assert isinstance(found, HeadwaterError) or found == rows
