"""Sealing: the same changes as Parquet, under readers that do not notice."""

from __future__ import annotations

import errno
import threading
import time
from contextlib import closing
from datetime import UTC, date, datetime
from datetime import time as dt_time
from decimal import Context, Decimal
from itertools import cycle, islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdc.errors import LogCorrupt
from cdc.log.embedded import sealedsegment as sealed
from cdc.log.embedded.names import sealed_of
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.sealedsegment import LARGE_BYTES
from cdc.log.embedded.segment import SegmentPlace
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.log.views import joined
from cdc.model.batch import EXACT_TYPE, batch_schema, table_of
from cdc.model.pgtypes import BOOL, DATE, FLOAT8, INT2, INT4, INT8, NUMERIC, TIME, TIMESTAMP, TIMESTAMPTZ
from cdc.model.position import Lsn, Position
from cdc.model.table import Column, Table
from tests.unit.log.changes import ORDERS, ORDERS_WIDER, USERS, changes, everything, expected, positions_in, rows_of
from tests.unit.log.disks import FailingDisk, QuickDisk

ALL = Position(2**40)


def closed_but_not_sealed(root: Path, groups: int = 6) -> list[object]:
    writer = EmbeddedLogWriter(root, segment_bytes=5000, seal=False, disk=QuickDisk())
    batches = [changes(ORDERS, range(start, start + 60)) for start in range(1, groups * 60, 60)]
    for batch in batches:
        writer.append(batch)
        writer.commit(Lsn(writer.next_position), 0)
    writer.close()
    return rows_of(batches)  # type: ignore[return-value]


def test_large_batches_are_sealed_as_they_are_and_small_ones_between_them_joined(tmp_path: Path) -> None:
    first = iter(range(1, 10_000))
    batches = [
        changes(USERS, [next(first) for _ in range(rows)], width=width)
        for rows, width in ((300, 2000), (1, 8), (2, 8), (255, 2000), (300, 2000))
    ]
    assert [batch.num_rows for batch in joined(batches, LARGE_BYTES)] == [300, 258, 300]
    writer = EmbeddedLogWriter(tmp_path, segment_bytes=5 * 2**19, disk=QuickDisk())
    for batch in batches:
        writer.append(batch)
    writer.commit(Lsn(1), 0)
    writer.drain_seals()
    writer.close()
    assert not list(tmp_path.rglob("*.seg"))
    with closing(EmbeddedLogReader(tmp_path)) as reader:
        assert rows_of(reader.read(USERS.qualified, Position(0), ALL)) == rows_of(batches)


def test_a_head_from_before_the_sealing_still_finds_its_changes(tmp_path: Path) -> None:
    """A power loss may set the head back, which is not synced; what was sealed meanwhile stays. Nobody has opened the log for writing yet."""
    writer = EmbeddedLogWriter(tmp_path, segment_bytes=5000, disk=QuickDisk())
    before = [changes(ORDERS, range(1, 11)), changes(ORDERS, range(11, 21))]
    for batch in before:
        writer.append(batch)
        writer.commit(Lsn(writer.next_position), 0)
    head = (tmp_path / "head").read_bytes()
    for start in range(21, 301, 10):
        writer.append(changes(ORDERS, range(start, start + 10)))
        writer.commit(Lsn(writer.next_position), 0)
    writer.drain_seals()
    writer.close()
    assert list(tmp_path.rglob("*.parquet"))
    (tmp_path / "head").write_bytes(head)
    with closing(EmbeddedLogReader(tmp_path)) as reader:
        assert reader.head().position == 20
        assert [topic.name for topic in reader.topics()] == [ORDERS.qualified]
        assert rows_of(reader.read(ORDERS.qualified, Position(0), Position(20))) == rows_of(before)


def test_a_reader_from_before_the_recovery_sees_all_of_a_sealed_segment_after_it(tmp_path: Path) -> None:
    """What it has open may have been as short as the head that the power loss had left."""
    writer = EmbeddedLogWriter(tmp_path, segment_bytes=6000, disk=QuickDisk())
    before, wider = changes(ORDERS, range(1, 11)), changes(ORDERS_WIDER, range(11, 21))
    writer.append(before)
    writer.commit(Lsn(10), 0)
    head = (tmp_path / "head").read_bytes()
    writer.append(wider)
    writer.commit(Lsn(20), 0)
    for start in range(21, 141, 60):
        writer.append(changes(ORDERS_WIDER, range(start, start + 60)))
        writer.commit(Lsn(writer.next_position), 0)
    writer.drain_seals()
    writer.close()
    assert sealed_of(min(path.name for path in tmp_path.rglob("*.parquet"))).last == 10  # type: ignore[union-attr]
    (tmp_path / "head").write_bytes(head)
    with closing(EmbeddedLogReader(tmp_path)) as reader:
        assert rows_of(reader.read(ORDERS.qualified, Position(0), ALL)) == rows_of([before])
        EmbeddedLogWriter(tmp_path, segment_bytes=6000, disk=QuickDisk()).close()
        assert positions_in(reader.read(ORDERS.qualified, Position(0), ALL)) == [*range(1, 141)]
        assert reader.last_change(ORDERS.qualified, Position(20)) == 20


def test_wide_rows_become_row_groups_of_bounded_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [changes(USERS, range(first, first + 300), width=2000) for first in range(1, 1501, 300)]
    monkeypatch.setattr(sealed, "ROW_GROUP_BYTES", batches[0].nbytes + 1)
    writer = EmbeddedLogWriter(tmp_path, segment_bytes=sum(batch.nbytes for batch in batches), disk=QuickDisk())
    for batch in batches:
        writer.append(batch)
    writer.commit(Lsn(1), 0)
    writer.drain_seals()
    writer.close()
    (file,) = tmp_path.rglob("*.parquet")
    metadata = pq.ParquetFile(file).metadata
    assert [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)] == [600, 600, 300]
    with closing(EmbeddedLogReader(tmp_path)) as reader:
        assert rows_of(reader.read(USERS.qualified, Position(0), ALL)) == rows_of(batches)
        assert positions_in(reader.read(USERS.qualified, Position(650), Position(1250))) == list(range(651, 1251))


def seal_all(root: Path) -> None:
    writer = EmbeddedLogWriter(root, segment_bytes=5000, disk=QuickDisk())
    writer.drain_seals()
    writer.close()
    assert not list(root.rglob("*.seg"))


def test_readers_that_have_it_open_or_have_just_looked_go_on(tmp_path: Path) -> None:
    root = tmp_path / "log"
    rows = closed_but_not_sealed(root)
    has_open, looked, midway = EmbeddedLogReader(root), EmbeddedLogReader(root), EmbeddedLogReader(root)
    assert rows_of(has_open.read("public.orders", Position(0), ALL)) == rows
    looked.head()
    halfway = midway.read("public.orders", Position(0), ALL)
    first = next(halfway)
    seal_all(root)
    assert rows_of(has_open.read("public.orders", Position(0), ALL)) == rows
    assert rows_of(looked.read("public.orders", Position(0), ALL)) == rows
    assert rows_of([first, *halfway]) == rows
    assert rows_of(EmbeddedLogReader(root).read("public.orders", Position(0), ALL)) == rows


def test_a_sealed_file_is_plain_parquet(tmp_path: Path) -> None:
    root = tmp_path / "log"
    writer = EmbeddedLogWriter(root, segment_bytes=100, disk=QuickDisk())
    batches = [changes(ORDERS, range(1, 11)), changes(ORDERS_WIDER, range(11, 21)), changes(ORDERS, range(21, 31))]
    for batch in batches:
        writer.append(batch)
    writer.commit(Lsn(1), 0)
    writer.drain_seals()
    files = sorted(root.rglob("*.parquet"))
    assert [(name.first, name.last, name.rows) for name in map(sealed_of, [file.name for file in files]) if name] == [
        (1, 10, 10),
        (11, 20, 10),
        (21, 30, 10),
    ]
    for file, batch in zip(files, batches, strict=True):
        table = pq.read_table(file, page_checksum_verification=True)
        assert table.column_names == batch.schema.names
        assert table_of(table.schema) == table_of(batch.schema)
        assert table.to_pylist() == batch.to_pylist()
    found = list(EmbeddedLogReader(root).read("public.orders", Position(0), ALL))
    assert [batch.schema.equals(batch_schema(table_of(batch.schema)), check_metadata=True) for batch in found] == [True] * 3
    writer.close()


def test_numbers_of_every_kind_are_sealed_exactly(tmp_path: Path) -> None:
    """Extremes side by side make the largest differences there are; a column may hold nothing but NULL."""
    numerics = [(precision, scale) for precision in (1, 9, 10, 18, 19, 38) for scale in (0, precision)]
    columns = [Column("id", INT8, key=True), Column("nothing", INT8), Column("d.ot", INT8)]
    columns += [Column(f"k{kind}", kind) for kind in (INT2, INT4, INT8, DATE, TIME, TIMESTAMP, TIMESTAMPTZ, BOOL, FLOAT8)]
    columns += [Column(f"n{p}_{s}", NUMERIC, (p << 16 | s) + 4) for p, s in numerics]
    table = Table(104, "public", "extremes", tuple(columns))
    schema = batch_schema(table)
    rows = 300

    def extremes(kind: pa.DataType) -> list[object]:
        if pa.types.is_decimal(kind):
            most = Decimal(10**kind.precision - 1).scaleb(-kind.scale, Context(prec=60))
            return [most, most.copy_negate(), None, Decimal(0)]
        if pa.types.is_boolean(kind):
            return [True, None, False]
        if pa.types.is_floating(kind):
            return [1.5, -0.0, None, 1e300]
        bits = 63 if kind == pa.int64() else kind.bit_width - 1
        if pa.types.is_date(kind):
            return [date.min, None, date.max]
        if pa.types.is_time(kind):
            return [dt_time.min, None, dt_time.max]
        if pa.types.is_timestamp(kind):
            zone = UTC if kind.tz else None
            return [datetime.min.replace(tzinfo=zone), None, datetime.max.replace(tzinfo=zone)]
        return [2**bits - 1, -(2**bits), None, 0]

    arrays = [pa.array(range(1, rows + 1), pa.int64()), *(pa.array([0] * rows, field.type) for field in list(schema)[1:4])]
    arrays += [pa.nulls(rows, EXACT_TYPE), pa.array(range(rows), pa.int64()), pa.nulls(rows, pa.int64())]
    arrays += [pa.array(list(islice(cycle(extremes(field.type)), rows)), field.type) for field in list(schema)[len(arrays) :]]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    writer = EmbeddedLogWriter(tmp_path, segment_bytes=100, disk=QuickDisk())
    writer.append(batch)
    writer.commit(Lsn(1), 0)
    writer.drain_seals()
    writer.close()
    with closing(EmbeddedLogReader(tmp_path)) as reader:
        (found,) = reader.read(table.qualified, Position(0), ALL)
    assert found.equals(batch, check_metadata=True)
    (file,) = tmp_path.rglob("*.parquet")
    metadata = pq.ParquetFile(file).metadata
    encodings = {(c := metadata.row_group(0).column(n)).path_in_schema: c.encodings for n in range(metadata.num_columns)}
    assert "DELTA_BINARY_PACKED" in encodings["id"]
    assert "DELTA_BINARY_PACKED" in encodings["n18_18"]
    assert "DELTA_BINARY_PACKED" not in encodings["n19_19"]


def test_sealing_while_a_reader_follows(tmp_path: Path) -> None:
    root = tmp_path / "log"
    writer = EmbeddedLogWriter(root, segment_bytes=8000, disk=QuickDisk())
    failures: list[BaseException] = []
    stop = threading.Event()

    def follow() -> None:
        try:
            again = EmbeddedLogReader(root)
            while not stop.is_set():
                head = again.head().position
                assert positions_in(again.read("public.orders", Position(0), head)) == list(range(1, head + 1))
                again.close()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=follow) for _ in range(2)]
    for thread in threads:
        thread.start()
    give_up = time.monotonic() + 60
    while len(list(root.rglob("*.parquet"))) < 30 and not failures and time.monotonic() < give_up:
        start = writer.next_position
        writer.append(changes(ORDERS, range(start, start + 40)))
        writer.commit(Lsn(start), 0)
    writer.drain_seals()
    stop.set()
    for thread in threads:
        thread.join()
    writer.close()
    assert not failures
    assert len(list(root.rglob("*.parquet"))) >= 30


def test_a_full_disk_keeps_the_segment_and_sealing_tries_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.log.embedded.sealer.RETRY_S", 0.01)
    root, disk = tmp_path / "log", FailingDisk()
    rows = closed_but_not_sealed(root, 1)
    disk.fail("create", 28)
    writer = EmbeddedLogWriter(root, segment_bytes=5000, disk=disk)
    writer.drain_seals()
    assert writer.alarm() is None
    assert disk.calls.count("create") == 2
    writer.close()
    assert rows_of(EmbeddedLogReader(root).read("public.orders", Position(0), ALL)) == rows


def test_a_disk_that_refuses_sealed_files_is_said_with_what_helps(tmp_path: Path) -> None:
    root, disk = tmp_path / "log", FailingDisk()
    closed_but_not_sealed(root, 1)
    disk.fail("create", errno.ENOSPC)
    writer = EmbeddedLogWriter(root, segment_bytes=5000, disk=disk)
    deadline = time.monotonic() + 60
    while (alarm := writer.alarm()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert alarm.startswith(f"the log's segments in {root} are not being sealed and stay large: No space left on device")
    assert "→ free space there" in alarm
    writer.close()


def test_damage_met_while_sealing_stops_the_writer(tmp_path: Path) -> None:
    root = tmp_path / "log"
    closed_but_not_sealed(root, 3)
    first = min(root.rglob("*.seg"))
    data = bytearray(first.read_bytes())
    data[2000] ^= 1
    first.write_bytes(data)
    writer = EmbeddedLogWriter(root, segment_bytes=5000, disk=QuickDisk())
    writer.drain_seals()
    writer.append(changes(USERS, [writer.next_position]))
    with pytest.raises(LogCorrupt, match=first.name):
        writer.commit(Lsn(1), 0)
    writer.close()
    assert first.exists()


def test_a_missing_sealed_file_is_corrupt(tmp_path: Path) -> None:
    root = tmp_path / "log"
    closed_but_not_sealed(root)
    seal_all(root)
    for path in sorted(root.rglob("*.parquet")):
        data = path.read_bytes()
        path.unlink()
        with pytest.raises(LogCorrupt):
            everything(EmbeddedLogReader(root))
        with pytest.raises(LogCorrupt):
            EmbeddedLogWriter(root, segment_bytes=5000, disk=QuickDisk())
        path.write_bytes(data)
    first, second, *_ = sorted(root.rglob("*.parquet"))
    first.write_bytes(second.read_bytes())
    with pytest.raises(LogCorrupt, match="checksum"):
        everything(EmbeddedLogReader(root))


def test_a_sealed_file_of_another_topic_is_corrupt(tmp_path: Path) -> None:
    root = tmp_path / "log"
    writer = EmbeddedLogWriter(root, segment_bytes=100, disk=QuickDisk())
    writer.append(changes(ORDERS, [1, 3]))
    writer.append(changes(USERS, [2, 4]))
    writer.commit(Lsn(1), 0)
    writer.drain_seals()
    writer.close()
    orders, users = sorted(root.rglob("*.parquet"), key=lambda path: str(path.parent))
    name = sealed_of(users.name)
    assert name
    other = orders.with_name(users.name)
    data = users.read_bytes()
    orders.unlink()
    # Named as if it held the range of ORDERS.
    other.with_name(f"{1:020d}-{3:020d}-2-{name.crc:08x}.parquet").write_bytes(data)
    with pytest.raises(LogCorrupt, match="belongs elsewhere"):
        everything(EmbeddedLogReader(root))


def test_after_sealing_the_newest_segment_appends_go_on_in_a_new_one(tmp_path: Path) -> None:
    root = tmp_path / "log"
    batches = []
    for start in (1, 31, 61):
        writer = EmbeddedLogWriter(root, segment_bytes=100, disk=QuickDisk())
        batches.append(changes(ORDERS, range(start, start + 30)))
        writer.append(batches[-1])
        writer.commit(Lsn(start), 0)
        writer.drain_seals()
        writer.close()
    reader = EmbeddedLogReader(root)
    assert everything(reader) == expected(batches, [ORDERS] * 3)
    assert reader.topics()[0].table == ORDERS


@pytest.mark.parametrize(
    "names",
    [
        ("id", "_cdc_before.list.element.id"),
        ("_cdc_exact.key_value.key",),
        ("a", "_cdc_before.list.element.a", "_cdc_before.list.element", "_cdc.x"),
        ("a.b", "b", "_cdc_exact.key_value", "_cdc_exact.key_value.value"),
    ],
)
def test_a_column_whose_name_reads_like_another_ones_path_is_sealed(names: tuple[str, ...]) -> None:
    """What Parquet's writer is told of one path it takes as said of all that read the same."""
    whole = [pa.field(name, pa.string() if name.startswith("_cdc_before.") else pa.int64()) for name in names]
    before = pa.field(
        "_cdc_before", pa.list_(pa.field("element", pa.struct([pa.field(name, pa.int64()) for name in ("id", "a", "a.b")])))
    )
    table = Table(1, "public", "t", (Column("key", INT8, key=True),))
    schema = pa.schema([*batch_schema(table), *whole, before], batch_schema(table).metadata)
    rows = pa.Table.from_pylist(
        [{"_cdc_position": 1, "_cdc_op": 1, "_cdc_lsn": 7, "_cdc_exact": [("key", "x")], "key": 1}], schema
    ).to_batches()
    ((name, data),) = sealed.encode(SegmentPlace(1, 1, table.qualified, 1), rows)
    assert name.rows == 1
    assert pq.read_table(pa.BufferReader(data)).to_pylist() == rows[0].to_pylist()
