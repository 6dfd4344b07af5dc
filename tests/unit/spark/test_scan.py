"""Which sealed files Spark's own reader may take in place of ``format("cdc")``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cdc.log.contract import ParquetFile
from cdc.model.batch import batch_schema
from cdc.model.pgtypes import TEXT, TIME
from cdc.model.position import Position
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from cdc.spark.scan import _readable


def text(name: str, attnum: int) -> Column:
    return Column(name, TEXT, -1, "text", attnum=attnum)


def readable(old: Table, new: Table) -> bool:
    return _readable(ParquetFile(Path("x"), Position(1), Position(2), 2, batch_schema(old)), TopicSchema.of(new))


def test_spark_reads_by_name_only_where_names_mean_what_they_meant() -> None:
    old = Table(900, "public", "t", (text("a", 1), text("b", 2)))
    more = replace(old, columns=(*old.columns, text("c", 3)))
    assert readable(old, old)
    assert readable(old, more), "what is missing is NULL"
    assert readable(more, old)
    for columns in (
        (text("c", 1), text("b", 2)),
        (text("b", 1), text("a", 2)),
        (text("a", 1), text("b", 3)),
        (text("a", 1), text("B", 3)),
        (text("a", 1), Column("b", TIME, -1, "time", attnum=3)),
    ):
        assert not readable(old, replace(old, columns=columns)), columns
