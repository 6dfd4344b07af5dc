"""Sealed files by Spark's own reader, and the rest through format("cdc"): together exactly what format("cdc") gives alone. The change feed, and
the table as of a place, on a real Spark."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdc.errors import ConfigError
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.log.home import open_reader, parquet_files
from cdc.model.batch import Op
from cdc.model.pgtypes import TEXT
from cdc.model.position import Lsn, Position
from cdc.model.table import Column, Table
from cdc.spark import scan as scans
from cdc.spark.scan import scan
from cdc.spark.source import CdcSource
from tests.contract.rows import NUMBERED, ORDERS, TYPES, batch, order, replacing, schema, upserts
from tests.integration.spark.traffic import Traffic

ROWS_PER_COMMIT = 20


def sealed(folder: Path, *tables: Table, size: int = 8) -> None:
    """A log with sealed segments and one that is not, with a change of the definition between two tables."""
    writer = EmbeddedLogWriter(folder, segment_bytes=4096)
    position = 1
    for number, table in enumerate(tables):
        if number:
            writer.append(schema(table, position))
            writer.commit(Lsn(position * 10), position)
            position += 1
        for _ in range(size):
            rows = [order(position + more, f"s{position + more}", extra="x") for more in range(ROWS_PER_COMMIT)]
            writer.append(upserts(table, position, rows))
            position += ROWS_PER_COMMIT
            writer.commit(Lsn(position * 10), position)
            # One that is waited for, so that small segments do not pile up.
            writer.drain_seals()
    writer.append(batch(tables[-1], [(Op.DELETE, position, order(1)), (Op.TRUNCATE, position + 1, {})]))
    writer.commit(Lsn(position * 10 + 20), position)
    writer.close()


def by_format(spark: Any, folder: Path, table: str, **more: object) -> Any:
    spark.dataSource.register(CdcSource)
    given = {name: str(value) for name, value in more.items()}
    return spark.read.format("cdc").options(log=str(folder), table=table, **given).load()


def counted(frame: Any) -> Counter[Any]:
    # Of maps Spark's rows have dicts, which cannot be counted.
    return Counter(
        tuple(tuple(sorted(value.items())) if isinstance(value, dict) else value for value in row) for row in frame.collect()
    )


def test_the_same_rows_and_columns_as_format_cdc(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wider = dataclasses.replace(NUMBERED, columns=(*NUMBERED.columns, Column("extra", TEXT, -1, "text", attnum=9)))
    folder = tmp_path / "log [odd] {name}"
    sealed(folder, NUMBERED, wider)
    with_reader = open_reader(folder)
    head = with_reader.head().position
    with_reader.close()
    files = parquet_files(folder, "public.orders", Position(0), head)
    assert len(files) > 3
    assert files[-1].last < head, "the last segment is not sealed"
    whole = scan(spark, folder, "public.orders")
    plain = by_format(spark, folder, "public.orders")
    assert whole.schema.simpleString() == plain.schema.simpleString()
    assert counted(whole) == counted(plain)
    assert whole.count() == head
    monkeypatch.setattr(scans, "HANDED_OVER_BYTES", 0)
    assert counted(scan(spark, folder, "public.orders")) == counted(plain), "what is not sealed through format, too"
    monkeypatch.undo()
    edge = int(files[1].first) + 5
    for start, end in (
        (0, edge),
        (edge, int(files[2].last)),
        (edge, edge + 1),
        (int(files[1].last), head),
        (head - 1, head),
        (head, head),
    ):
        part = scan(spark, folder, "public.orders", start=start, end=end)
        assert sorted(row._cdc_position for row in part.collect()) == list(range(start + 1, end + 1)), (start, end)
    some = scan(spark, folder, "public.orders", columns=["status", "_cdc_op"])
    assert some.columns == ["status", "_cdc_op"]
    assert counted(some) == counted(plain.select("status", "_cdc_op"))


def test_files_that_spark_reads_differently_go_through_format_cdc(spark: Any, tmp_path: Path) -> None:
    """A column that had another type, and a type that Spark does not have."""
    text = tuple(
        dataclasses.replace(column, type_oid=TEXT) if column.name == "customer_id" else column for column in NUMBERED.columns
    )
    sealed(tmp_path / "log", NUMBERED, dataclasses.replace(NUMBERED, columns=text))
    whole = scan(spark, tmp_path / "log", "public.orders")
    assert counted(whole) == counted(by_format(spark, tmp_path / "log", "public.orders"))
    assert {row.customer_id for row in whole.select("customer_id").distinct().collect()} == {"7", None}


def test_every_type_is_the_same_from_parquet(spark: Any, tmp_path: Path) -> None:
    table = dataclasses.replace(TYPES, columns=tuple(column for column in TYPES.columns if column.name != "clock"))
    writer = EmbeddedLogWriter(tmp_path / "log", segment_bytes=4096)
    for position in range(1, 60):
        row = dict.fromkeys(table.names) | {
            "id": str(position),
            "small": "-7",
            "int": "8",
            "big": str(2**60),
            "flag": "t",
            "real": "1.5",
            "double": "-0.25",
            "money": "-0.05",
            "wide": "12345678901234567890.0123456789",
            "day": "infinity" if position % 3 else "1582-10-04",
            "at": "1000-01-01 00:00:00",
            "at utc": "1900-01-01 00:00:00.000001+00",
            "bytes": "\\x00ff",
            "doc": '{"a": 1}',
        }
        writer.append(upserts(table, position, [row]))
        writer.commit(Lsn(position * 10), position)
    writer.drain_seals()
    writer.close()
    assert parquet_files(tmp_path / "log", table.qualified, Position(0), Position(59))
    assert counted(scan(spark, tmp_path / "log", table.qualified)) == counted(by_format(spark, tmp_path / "log", table.qualified))


def test_a_page_that_differs_from_its_checksum_is_seen(spark: Any, tmp_path: Path) -> None:
    sealed(tmp_path / "log", ORDERS, size=4)
    (first, *_) = parquet_files(tmp_path / "log", "public.orders", Position(0), Position(1000))
    data = first.path.read_bytes()
    start = pq.ParquetFile(first.path).metadata.row_group(0).column(0).data_page_offset
    # The checksum itself, so that nothing else can see it.
    at = next(at for at in range(start, start + 60) if _reads(_flipped(data, at), False) and not _reads(_flipped(data, at), True))
    first.path.chmod(0o600)
    first.path.write_bytes(_flipped(data, at))
    with pytest.raises(Exception, match="FAILED_READ_FILE"):
        scan(spark, tmp_path / "log", "public.orders").collect()


def _flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def _reads(data: bytes, verify: bool) -> bool:
    try:
        pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=verify).read()
    except (OSError, pa.ArrowException) as error:
        return "CRC" not in str(error)
    return True


def test_what_does_not_exist_is_said(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no log"):
        scan(spark, tmp_path / "nowhere", "public.orders")
    sealed(tmp_path / "log", ORDERS, size=1)
    with pytest.raises(ConfigError, match="matches no table"):
        scan(spark, tmp_path / "log", "public.order")
    with pytest.raises(ConfigError, match="has no column 'x'"):
        scan(spark, tmp_path / "log", "public.orders", columns=["x"])


def test_a_change_feed_applied_gives_the_table_as_of_every_place(spark: Any, tmp_path: Path, seed: int) -> None:
    traffic = Traffic(tmp_path / "log", seed, truncates=False)
    head = traffic.transactions(40)
    traffic.close()
    feed = by_format(spark, traffic.folder, "public.orders", **{"as": "changefeed", "preimages": "true", "sliceBytes": 2000})
    order_of = {"update_preimage": 0}
    changes = sorted(feed.collect(), key=lambda row: (row._cdc_position, order_of.get(row._change_type, 1)))
    for cut in (int(head.position) // 3, int(head.position)):
        table: dict[int, tuple[Any, ...]] = {}
        for row in changes:
            if row._cdc_position > cut:
                break
            values = tuple(row)[: len(ORDERS.columns)]
            if row._change_type == "update_preimage":
                assert table[row.id] == values
            elif row._change_type == "delete":
                assert table.pop(row.id, values) == values, "the whole row that was there"
            else:
                table[row.id] = values
        found = by_format(spark, traffic.folder, "public.orders", asOf=cut).drop("_cdc_position", "_cdc_exact")
        assert {row.id: tuple(row) for row in found.collect()} == table


def test_preimages_that_the_source_sent_are_in_the_feed_and_nowhere_else(spark: Any, tmp_path: Path) -> None:
    full, folder = dataclasses.replace(ORDERS, identity="f"), tmp_path / "log"
    writer = EmbeddedLogWriter(folder, segment_bytes=4096)
    for position in range(1, 80, 4):
        key = str(position)
        rows = [order(1, "new", id=key), order(1, "paid", id=key), order(1, "sent", id=key)]
        changes = batch(
            full, [(Op.INSERT, position, rows[0]), (Op.UPDATE, position + 1, rows[1]), (Op.UPDATE, position + 2, rows[2])]
        )
        writer.append(replacing(changes, full, [None, rows[0], rows[1]]))
        gone = batch(full, [(Op.DELETE, position + 3, rows[2])])
        writer.append(replacing(gone, full, [rows[2]]))
        writer.commit(Lsn(position * 10), position)
    writer.drain_seals()
    writer.close()
    feed = by_format(spark, folder, "public.orders", **{"as": "changefeed", "sliceBytes": 4000})
    found = feed.select("_cdc_position", "_change_type", "id", "status").collect()
    wanted = [
        (position + offset, kind, position, status)
        for position in range(1, 80, 4)
        for offset, kind, status in (
            (0, "insert", "new"),
            (1, "update_preimage", "new"),
            (1, "update_postimage", "paid"),
            (2, "update_preimage", "paid"),
            (2, "update_postimage", "sent"),
            (3, "delete", "sent"),
        )
    ]
    assert sorted(map(tuple, found)) == sorted(wanted)
    for frame in (by_format(spark, folder, "public.orders"), scan(spark, folder, "public.orders"), feed):
        assert "_cdc_before" not in frame.columns
    assert parquet_files(folder, "public.orders", Position(0), Position(80)), "some are sealed"
    assert counted(scan(spark, folder, "public.orders")) == counted(by_format(spark, folder, "public.orders"))


def test_a_change_feed_as_a_stream(spark: Any, tmp_path: Path) -> None:
    traffic = Traffic(tmp_path / "log", 1)
    for position in range(1, 8):
        traffic.append(upserts(ORDERS, position, [order(position)]), position * 10)
    spark.dataSource.register(CdcSource)
    sizes: list[int] = []
    checkpoint = str(tmp_path / "checkpoint")
    given = {
        "log": str(traffic.folder),
        "table": "public.orders",
        "as": "changefeed",
        "maxRows": "3",
        "waitSeconds": "0.2",
        "checkpoint": checkpoint,
    }

    def take(frame: Any, _: int) -> None:
        sizes.append(frame.where("_change_type = 'insert'").count())

    frame = spark.readStream.format("cdc").options(**given).load()
    query = frame.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint).start()
    query.processAllAvailable()
    query.stop()
    traffic.close()
    assert sizes == [3, 3, 1]
