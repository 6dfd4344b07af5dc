"""What an audit says when Spark cannot read a table; a real one whose files are gone is in tests/integration/spark/test_warehouse.py."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError

from cdc.errors import StoreError
from cdc.model.topic import TopicSchema
from sinks.warehouse.sparkreader import SparkReader
from tests.contract.rows import ORDERS

WORDS = "java.io.FileNotFoundException: /shop/public/orders/data/0001.parquet, while reading canary"


def fails(*_: object) -> None:
    raise Py4JError(WORDS)


def refusal(folder: Path, *, missing: str | None = None, clock: Any = lambda: 0) -> StoreError:
    """What comes of a read that Spark gives up."""
    system = SimpleNamespace(nanoTime=clock)
    jvm = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(System=system)))
    spark = SimpleNamespace(conf=SimpleNamespace(set=lambda *_: None), table=fails, _jvm=jvm)
    place: Any = SimpleNamespace(
        name="public.orders", iceberg=SimpleNamespace(fields=()), look_again=lambda: None, missing=lambda: missing
    )
    with pytest.raises(StoreError) as refused:
        list(SparkReader(spark, "lake", folder).rows(place, TopicSchema.of(ORDERS), ("public", "orders"), folder))
    assert "canary" not in refused.value.line()
    return refused.value


def test_a_file_that_is_gone_is_named_with_what_helps(tmp_path: Path) -> None:
    said = refusal(tmp_path, missing="0001.parquet")
    assert "public.orders lacks a file that it needs: 0001.parquet" in str(said)
    assert "--rebuild" in (said.hint or "")
    assert not said.retryable


def test_of_anything_else_only_its_kind_is_shown(tmp_path: Path) -> None:
    said = refusal(tmp_path)
    assert str(said) == "Spark cannot read the warehouse's table public.orders: Py4JError"
    assert said.retryable


def test_a_jvm_that_has_ended_is_called_that(tmp_path: Path) -> None:
    said = refusal(tmp_path, clock=fails)
    assert "Spark's JVM ended while it read" in str(said)
    assert said.retryable
