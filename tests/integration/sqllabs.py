"""A SQL store of each database, and what a reader of it sees; fixtures for the tests that import them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.contract.labs import LABS, Lab

Ask = Callable[[str], list[tuple[Any, ...]]]


@pytest.fixture(params=["sql", "sql-duckdb"])
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    made = LABS[request.param](request.getfixturevalue)
    yield made
    made.close()


@pytest.fixture
def ask(lab: Lab, request: pytest.FixtureRequest) -> Ask:
    """As a reader does, or somebody who may change what is there."""

    def of_file(query: str) -> list[tuple[Any, ...]]:
        path: Path = request.getfixturevalue("tmp_path") / "lab.duckdb"
        with duckdb.connect(str(path)) as connection:
            return connection.execute(query).fetchall()

    def of_server(query: str) -> list[tuple[Any, ...]]:
        with request.getfixturevalue("postgres").connect() as connection:
            cursor = connection.execute(query)
            found: list[tuple[Any, ...]] = cursor.fetchall() if cursor.description else []
            return found

    return of_file if "duckdb" in lab._options["url"] else of_server
