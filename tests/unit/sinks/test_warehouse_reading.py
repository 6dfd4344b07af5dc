"""What an audit says when Spark cannot read a table; a real one whose files are gone is in tests/integration/spark/test_warehouse.py."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError

from sinks.warehouse import Options, Warehouse

WORDS = "java.io.FileNotFoundException: /shop/public/orders/data/0001.parquet, while reading canary"


@pytest.fixture
def warehouse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Warehouse:
    made = Warehouse("lake", Options(kind="iceberg", path=tmp_path))
    monkeypatch.setattr(made, "_jvm_lives", lambda: True)
    return made


def place(missing: str | None) -> Any:
    return SimpleNamespace(name="public.orders", look_again=lambda: None, missing=lambda: missing)


def test_a_file_that_is_gone_is_named_with_what_helps(warehouse: Warehouse) -> None:
    said = warehouse._unreadable(place("0001.parquet"), Py4JError(WORDS))
    assert "public.orders lacks a file that it needs: 0001.parquet" in str(said)
    assert "--rebuild" in (said.hint or "")
    assert not said.retryable


def test_of_anything_else_only_its_kind_is_shown(warehouse: Warehouse) -> None:
    said = warehouse._unreadable(place(None), Py4JError(WORDS))
    assert str(said) == "Spark cannot read the warehouse's table public.orders: Py4JError"
    assert said.retryable
