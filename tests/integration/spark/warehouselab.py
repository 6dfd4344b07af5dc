"""A warehouse in a folder, and what Spark reads of its tables; fixtures for the tests that import them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.labs import LABS, Lab

Ask = Callable[..., list[tuple[Any, ...]]]


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    made = LABS["warehouse"](request.getfixturevalue)
    yield made
    made.close()


@pytest.fixture
def ask(spark: Any, tmp_path: Path) -> Ask:
    """What Spark reads of these columns of a table, which may be given by another name than ``public.orders``."""

    def rows(*columns: str, table: str = "public/orders", where: str = "true") -> list[tuple[Any, ...]]:
        frame = spark.read.format("iceberg").load(str(tmp_path / "lab" / table)).where(where)
        return sorted((tuple(row) for row in frame.selectExpr(*columns).collect()), key=repr)

    return rows
