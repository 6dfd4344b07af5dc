"""format("cdc") on a real Spark: batch and streaming, definitions, admission control, restarts from a checkpoint, errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdc.model.batch import Op
from cdc.model.pgtypes import TEXT
from cdc.model.table import Column
from cdc.spark.options import ReadPlan
from cdc.spark.source import CdcSource
from tests.contract.rows import NUMBERED, ORDERS, PAIRS, TYPES, batch, order, schema, upserts
from tests.integration.spark.traffic import Traffic
from tests.waiting import until


@pytest.fixture
def traffic(tmp_path: Path, spark: Any, seed: int) -> Iterator[Traffic]:
    spark.dataSource.register(CdcSource)
    made = Traffic(tmp_path / "log", seed)
    yield made
    made.close()


def options(traffic: Traffic, **more: object) -> dict[str, str]:
    return {"log": str(traffic.folder), **{key: str(value) for key, value in more.items()}}


def test_a_table_as_a_typed_frame_at_its_newest_version(spark: Any, traffic: Traffic) -> None:
    wider = dataclasses.replace(ORDERS, columns=(*ORDERS.columns, Column("extra", TEXT, -1, "text")))
    traffic.append(upserts(ORDERS, 1, [order(1), order(2)]), 10)
    traffic.append(upserts(wider, 3, [order(3, extra="x")]), 20)
    traffic.append(batch(wider, [(Op.DELETE, 4, order(1))]), 30)
    frame = spark.read.format("cdc").options(**options(traffic, table="public.orders")).load().orderBy("_cdc_position")
    assert frame.columns[:5] == ["_cdc_position", "_cdc_op", "_cdc_lsn", "_cdc_ts", "_cdc_exact"]
    found = [(row._cdc_position, row._cdc_op, row.id, str(row.amount), row.extra) for row in frame.collect()]
    assert found == [(1, "c", 1, "1.10", None), (2, "c", 2, "1.10", None), (3, "c", 3, "1.10", "x"), (4, "d", 1, "None", None)]
    between = spark.read.format("cdc").options(**options(traffic, table="public.orders", startPosition=1, endPosition=3)).load()
    assert between.count() == 2


def test_every_type_reaches_spark(spark: Any, traffic: Traffic) -> None:
    row = dict.fromkeys(TYPES.names) | {
        "id": "1",
        "clock": "10:30:00.5",
        "day": "infinity",
        "money": "-0.05",
        "real": "1.5",
    }
    traffic.append(upserts(TYPES, 1, [row]), 10)
    found = spark.read.format("cdc").options(**options(traffic, table=TYPES.qualified)).load().collect()[0]
    assert (found["clock"], found["day"], found["_cdc_exact"], str(found["money"])) == (
        "10:30:00.5",
        None,
        {"day": "infinity"},
        "-0.05",
    )


def test_the_table_as_it_was_under_the_definition_of_then(spark: Any, traffic: Traffic) -> None:
    renamed = dataclasses.replace(
        NUMBERED, columns=tuple(dataclasses.replace(one, name="state") if one.name == "status" else one for one in NUMBERED.columns)
    )
    traffic.append(upserts(NUMBERED, 1, [order(1), order(2)]), 10)
    traffic.append(schema(renamed, 3), 20)
    traffic.append(upserts(renamed, 4, [order(3) | {"state": "paid"}]), 30)
    for place, name, expected in ((2, "status", {1: "new", 2: "new"}), (4, "state", {1: "new", 2: "new", 3: "paid"})):
        frame = spark.read.format("cdc").options(**options(traffic, table="public.orders", asOf=place)).load()
        assert {row.id: row[name] for row in frame.collect()} == expected
        assert frame.columns[-2:] == ["_cdc_position", "_cdc_exact"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"table": "public.nothing"}, "matches no table of the log"),
        ({"tables": "public.*"}, "matches 2 tables"),
        ({}, "needs the option table or tables"),
        ({"table": "public.orders", "log": "/nowhere"}, "there is no log in /nowhere"),
        ({"table": "public.orders", "as": "deltas"}, "gives changes, changefeed, slices or rows"),
        ({"table": "public.orders", "as": "rows"}, "as = rows and asOf belong together"),
        ({"table": "public.orders", "asOf": "tomorrow"}, "is not a place in the log"),
        ({"table": "public.orders", "columns": "id, nothing"}, "the table has no column 'nothing'"),
        ({"table": "public.orders", "preimages": "true"}, "the option preimages belongs to as = changefeed"),
        ({"table": "public.orders", "fresh": "yes"}, "the option fresh is neither true nor false"),
        ({"table": "public.orders", "maxRows": "many"}, "the option maxRows is not a whole number"),
    ],
)
def test_what_is_wrong_is_said(spark: Any, traffic: Traffic, given: dict[str, str], says: str) -> None:
    traffic.append(upserts(ORDERS, 1, [order(1)]), 10)
    traffic.append(upserts(PAIRS, 2, [{"a": "1", "b": "2", "v": "3"}]), 20)
    with pytest.raises(Exception, match=says):
        spark.read.format("cdc").options(**(options(traffic) | given)).load().count()


def test_a_table_is_named_exactly() -> None:
    assert ReadPlan.of({"log": "x", "table": "public.a*[b]"}).tables == ("public.a[*][[]b]",)


def test_a_stream_of_small_batches_survives_a_restart(spark: Any, traffic: Traffic, tmp_path: Path) -> None:
    sizes: list[int] = []
    batches: list[int] = []
    seen: set[int] = set()
    checkpoint = tmp_path / "checkpoint"

    def take(frame: Any, batch_id: int) -> None:
        positions = [row._cdc_position for row in frame.select("_cdc_position").collect()]
        sizes.append(len(positions))
        batches.append(batch_id)
        seen.update(positions)

    def committed(upto: int) -> bool:
        """Seen, and noted as done: a query that is stopped in between takes its last batch again, rightly."""
        return seen == set(range(1, upto + 1)) and (checkpoint / "commits" / str(batches[-1])).exists()

    def start(**more: Any) -> Any:
        given = options(traffic, table="public.orders", maxRows=3, waitSeconds=0.2, **more)
        frame = spark.readStream.format("cdc").options(**given).load()
        return frame.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint)).start()

    for number in range(1, 8):
        traffic.append(upserts(ORDERS, number, [order(number)]), number * 10)
    query = start(checkpoint=checkpoint)
    until(lambda: committed(7))
    assert max(sizes) == 3
    query.stop()
    for number in range(8, 12):
        traffic.append(upserts(ORDERS, number, [order(number)]), number * 10)
    sizes.clear()
    query = start(checkpoint=checkpoint)
    until(lambda: committed(11))
    assert sum(sizes) == 4, "what was committed before the restart is not read again"
    assert sizes[0] == 3, "maxRows holds from the first micro-batch after a restart"
    query.stop()
