"""Generated views of generated histories, by way of the whole product: captured from Postgres, first computed from rows that Spark's workers find in the log, and
brought on from there. At each commit they have what Postgres answered to the same SQL then."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import psycopg
import pytest

from cdc.derive.around import Around, StepLimits
from cdc.derive.computation import Computation
from cdc.derive.declarations import declared_views
from cdc.derive.inforce import in_force
from cdc.derive.refusals import is_refusal
from cdc.derive.statefolder import StateFolder
from cdc.derive.viewgenerations import ViewGenerations
from cdc.errors import Stopped
from cdc.log.contract import LogReader
from cdc.log.home import open_reader
from cdc.model.position import Position
from cdc.settings.file import load
from cdc.settings.models import Settings
from cdc.spark import viewrows
from cdc.spark.viewrows import ViewRowWorkers
from cdc.state import status
from cdc.views.contract import ViewRefused
from sinks import options_model
from tests.conftest import Database
from tests.integration.pipeline import service, settings_of
from tests.integration.views.generated import SETUP, GeneratedTable, History, Queries, tables
from tests.integration.views.stage import Stage, Texts, difference
from tests.waiting import until

pytestmark = pytest.mark.spark

CUTS: Final = 20
BUILT_AT: Final = 8
"""The view is computed first as of this commit; later ones it is brought on to."""


@pytest.mark.sampled(10)
@pytest.mark.parametrize("case", range(20))
def test_a_view_that_spark_built_has_what_postgres_has(
    postgres: Database, spark: Any, case: int, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del spark  # it is there for the workers
    monkeypatch.setattr(viewrows, "SLICE_BYTES", 2_000)
    rng = Random(f"{seed} {case}")
    made = tables(rng)
    with closing(
        Stage(postgres.connect(), "; ".join([SETUP, *(one.ddl for one in made), "create table marks (n int primary key)"]))
    ) as stage:
        _declared(stage, rng, made)
        captured = settings_of(postgres, tmp_path, {})
        with service(captured), closing(open_reader(captured.log.dir)) as log:
            until(
                lambda: (found := status.read_capture(captured.run_dir)) and found.complete_position is not None,
                "the first snapshot",
            )
            answers = _lived(stage, log, rng, made)
        with closing(open_reader(captured.log.dir)) as log, _computed(_with_view(captured, stage, tmp_path), log) as one:
            assert _compared(stage, one, answers)


def _declared(stage: Stage, rng: Random, made: list[GeneratedTable]) -> None:
    """The first generated view that is not refused."""
    while True:
        query = Queries(rng, made).query()
        with suppress(ViewRefused):
            return stage.view(query.sql, query.key)


def _lived(stage: Stage, log: LogReader, rng: Random, made: list[GeneratedTable]) -> list[tuple[Position, list[Texts]]]:
    """After each transaction where the log ends, and what Postgres answers. Shorter where Postgres has an error for an answer."""
    history, found = History(rng, made), []
    for number in range(CUTS):
        before = log.last_change("public.marks", log.head().position)
        with stage.connection.transaction():
            for statement in history.statements()[0]:
                stage.connection.execute(statement)
            # Whatever the statements did, the log hears of this one.
            stage.connection.execute("insert into marks values (%s)", [number])
        until(partial(_moved, log, before), "the transaction in the log")
        try:
            found.append((log.head().position, stage.answer()))
        except psycopg.errors.DataError:
            break
    return found


def _moved(log: LogReader, before: Position) -> bool:
    return log.last_change("public.marks", log.head().position) > before


def _with_view(captured: Settings, stage: Stage, folder: Path) -> Settings:
    configuration = folder / "cdc.toml"
    lines = [
        "[source]",
        'dsn = "postgresql://nobody@127.0.0.1/x"',
        "[log]",
        f"dir = {json.dumps(str(captured.log.dir))}",
        "[views.v]",
        f"sql = {json.dumps(stage.definition.sql)}",
        f"key = {json.dumps(list(stage.definition.key))}",
    ]
    configuration.write_text("\n".join(lines), encoding="utf-8")
    found: Settings = load(configuration, options_model)
    return found


@contextmanager
def _computed(settings: Settings, log: LogReader) -> Iterator[Computation]:
    workers = ViewRowWorkers(settings.log.dir, settings.log.dir.parent / "spark", 1)
    around = Around(log, settings.log.dir, settings.run_dir, lambda: None, workers=workers)
    with closing(StateFolder(settings.log.dir.parent / "state", "v")) as states:
        generations = ViewGenerations(states)
        view = in_force(declared_views(settings)["v"], log, log.head().position)
        yield Computation("v", view, generations.made(), around, StepLimits())
        generations.close()
        workers.end()


def _compared(stage: Stage, one: Computation, answers: list[tuple[Position, list[Texts]]]) -> bool:
    """At each commit, or up to the one at which the view stops: there is a value for which it has no exact answer."""
    built = min(BUILT_AT, len(answers) - 1)
    try:
        for _ in one.load(answers[built][0], StepLimits(rows=5)):
            pass
        for number, (cut, answer) in enumerate(answers[built:], built):
            if cut > one.cut:
                one.pass_to(cut)
            ours = stage.held(one.kernel.rows())
            assert sorted(ours, key=repr) == answer, f"commit {number} of {stage.definition.sql}: {difference(ours, answer)}"
    except Stopped as stopped:
        return is_refusal(stopped)
    return True
