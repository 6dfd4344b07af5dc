"""Generated views of generated histories: at each cut the kernel has what Postgres answers to the same SQL."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from cdc.views.contract import ViewRefused
from cdc.views.held import ViewStopped
from tests.conftest import Database
from tests.integration.views.generated import SETUP, History, Queries, tables
from tests.integration.views.stage import Connection, Stage

CUTS = 20
MOST_TRIES = 3
"""For each view that is compared."""


def run(connection: Connection, seed: int, folder: Path | None = None) -> tuple[int, str]:
    """Cuts that were compared, and what the view was refused for. Fails with the seed."""
    rng = random.Random(seed)
    made = tables(rng)
    stage = Stage(connection, "; ".join([SETUP, *(one.ddl for one in made)]), folder)
    query = Queries(rng, made).query()
    try:
        stage.view(query.sql, query.key)
    except ViewRefused as refused:
        return 0, str(refused)
    history = History(rng, made)
    try:
        for number in range(CUTS):
            statements, emptied = history.statements()
            with connection.transaction():
                for one in statements:
                    connection.execute(one)
            try:
                stage.step(rng, emptied)
            except psycopg.errors.DataError:
                return number, "an error of Postgres"
            except ViewStopped as stopped:
                return number, str(stopped)
            except Exception as error:
                raise AssertionError(f"seed {seed}, cut {number}: {query.sql} by {query.key}: {error!r}") from error
    finally:
        stage.close()
    return CUTS, ""


def _cases(connection: Connection, seed: int, count: int, folder: Callable[[], Path], in_folder: float = 0.2) -> None:
    """As many views as that are compared at all of their cuts; those that are refused, and those that stop, are not counted."""
    whole = 0
    reasons: list[str] = []
    for number in range(MOST_TRIES * count):
        rng = random.Random(f"{seed} {number}")
        _, why = run(connection, rng.randrange(2**32), folder() if rng.random() < in_folder else None)
        if why:
            reasons.append(why)
        else:
            whole += 1
        if whole == count:
            return
    raise AssertionError(f"only {whole} of {count} were compared; the others: {reasons}")


def test_some_generated_views_have_what_postgres_has(
    postgres: Database, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    _cases(postgres.connect(), seed, 6, lambda: tmp_path_factory.mktemp("state"))


def test_generated_views_have_that_where_a_handful_of_rows_is_many(
    postgres: Database, seed: int, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cdc.views.state.BULK_ROWS", 2)
    monkeypatch.setattr("cdc.views.rows.FEW", 2)
    _cases(postgres.connect(), seed, 6, lambda: tmp_path_factory.mktemp("state"), in_folder=1.0)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_generated_views_have_what_postgres_has(
    postgres: Database, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    _cases(postgres.connect(), seed, 300, lambda: tmp_path_factory.mktemp("state"))
