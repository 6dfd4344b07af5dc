"""Queries as an analyst writes them: at each cut the kernel has what Postgres answers to the same SQL, or the view is refused by name when it is declared."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

import pytest

from cdc.views.contract import ViewRefused
from cdc.views.definition import define
from tests.conftest import Database
from tests.integration.views.analysts import KEPT, REFUSED
from tests.integration.views.shop import SETUP, ShopHistory
from tests.integration.views.stage import Stage

CUTS: Final = 6


@pytest.mark.parametrize("name", KEPT)
def test_a_query_of_an_analyst_has_what_postgres_has(postgres: Database, seed: int, tmp_path: Path, name: str) -> None:
    rng = random.Random(f"{seed} {name}")
    connection, (sql, key) = postgres.connect(), KEPT[name]
    stage = Stage(connection, SETUP, tmp_path if rng.random() < 0.3 else None)
    stage.view(sql, key)
    history = ShopHistory(rng)
    for cut in range(CUTS):
        statements, emptied = (history.filled(), []) if cut == 0 else history.statements()
        with connection.transaction():
            for one in statements:
                connection.execute(one)  # type: ignore[arg-type]
        try:
            stage.step(rng, [one.replace('"', "") for one in emptied])
        except Exception as error:
            raise AssertionError(f"seed {seed}, {name}, cut {cut}: {error!r}") from error
    stage.close()


def test_what_is_refused_of_an_analyst_is_named(postgres: Database) -> None:
    connection = postgres.connect()
    topics = Stage(connection, SETUP).topics
    said = {}
    for name, (sql, key, _) in REFUSED.items():
        connection.execute(f"EXPLAIN {sql}")  # type: ignore[arg-type]  # Postgres takes it
        with pytest.raises(ViewRefused) as refused:
            define("v", sql, key, topics)
        said[name] = str(refused.value).removeprefix("view v").lstrip(":, ")
    assert said == {name: message for name, (_, _, message) in REFUSED.items()}
