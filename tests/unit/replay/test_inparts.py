"""A topic's rows found in parts are those that one reader finds, in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from cdc.log.contract import LogReader
from cdc.model.batch import Op
from cdc.model.evolution import Kind, SchemaChange, schema_record
from cdc.model.position import Lsn, Position
from cdc.replay.inparts import TopicParts, keys_of_slice, newest_of_bucket, rows_of_slice
from cdc.replay.state import definition_at, rows_as_of
from tests.unit.derive.bed import CUSTOMERS, ORDERS, Bed, bed_in

TOPICS = ("public.orders", "public.customers")


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    with bed_in(tmp_path) as found:
        yield found


def in_parts(log: LogReader, topic: str, cut: Position, slice_bytes: int, buckets: int) -> tuple[list[pa.RecordBatch], int]:
    """The rows, and from where on another key tells them apart."""
    parts = TopicParts.of(log, topic, cut, slice_bytes, buckets)
    slices = range(len(parts.slices))
    found = [keys_of_slice(log, parts, number) for number in slices]
    start, rekeyed = max((one.emptied for one in found), default=0), max((one.rekeyed for one in found), default=0)
    places = [newest_of_bucket(parts, [one.buckets[bucket] for one in found], start, 1 << 20) for bucket in range(parts.buckets)]
    shape = definition_at(log, topic, cut)
    assert shape is not None
    handed = [[one[number] for one in places] for number in slices]
    return [batch for number in slices for batch in rows_of_slice(log, parts, handed[number], shape, 1 << 20)], rekeyed


def same(bed: Bed, slice_bytes: int, buckets: int) -> None:
    cut = bed.reader.head().position
    for topic in TOPICS:
        here = list(rows_as_of(bed.reader, topic, cut))
        parts, _ = in_parts(bed.reader, topic, cut, slice_bytes, buckets)
        assert [row for one in parts for row in one.to_pylist()] == [row for one in here for row in one.to_pylist()]


@pytest.mark.parametrize("seed", range(4))
def test_any_traffic_gives_the_same_rows_in_any_parts(bed: Bed, seed: int) -> None:
    dice = Random(seed)
    bed.commit((CUSTOMERS, Op.INSERT, [{"id": 1, "name": None}]), (ORDERS, Op.INSERT, [{"id": 1, "note": "x" * 100_000}]))
    for number in range(120):
        bed.traffic(dice)
        if number == 60:
            bed.alter(5)
    same(bed, dice.choice((1, 2_000, 1 << 20)), dice.randrange(1, 5))


def test_a_compacted_stretch_gives_the_same_rows(bed: Bed) -> None:
    dice = Random(7)
    for _ in range(60):
        bed.traffic(dice)
    bed.compact()
    for _ in range(20):
        bed.traffic(dice)
    same(bed, 1, 3)


def test_a_table_that_was_emptied_last_has_no_rows(bed: Bed) -> None:
    for table in (ORDERS, CUSTOMERS):
        bed.commit((table, Op.INSERT, [{"id": 1}, {"id": 2}]))
        bed.commit((table, Op.TRUNCATE, ()))
    same(bed, 1, 2)


def rekey(bed: Bed) -> None:
    """Customers are told apart by name from now on."""
    number, name = CUSTOMERS.columns
    table = replace(CUSTOMERS, columns=(replace(number, key=False), replace(name, key=True)))
    bed.lsn += 10
    bed.writer.append(schema_record(SchemaChange(table, Kind.ALTERED), bed.writer.next_position, bed.lsn, bed.lsn))
    bed.writer.commit(Lsn(bed.lsn), bed.lsn)


@pytest.mark.parametrize("slice_bytes", [1, 1 << 20])
def test_another_key_is_noticed_until_the_table_is_emptied(bed: Bed, slice_bytes: int) -> None:
    for number in (1, 2):
        bed.commit((CUSTOMERS, Op.INSERT, [{"id": number, "name": f"n{number}"}]))
    rekey(bed)
    _, rekeyed = in_parts(bed.reader, "public.customers", bed.reader.head().position, slice_bytes, 2)
    assert rekeyed == 3
