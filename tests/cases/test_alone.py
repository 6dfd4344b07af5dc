"""The second, smaller table: cases with a capture of their own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.embedded.postgres import Postgres
from cdc.errors import HeadwaterError
from tests.cases.bench import agree, batches, content, drop, now, published, records, stored
from tests.cases.case import EXTENSIONS, Case, line, lines, record
from tests.cases.case import records as expected_records
from tests.cases.conftest import Benches, log_folder
from tests.cases.entries import ALONE, LEAVES, REFUSALS, STOPS
from tests.cases.sessions import PATIENT, Sessions
from tests.integration.capture.running import Capture


@contextmanager
def prepared(case: Case, server: Postgres, folder: Path) -> Iterator[tuple[Capture, psycopg.Connection[Any]]]:
    name = f"alone_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute(f'create database "{name}" {case.rig.database}'.encode())
    dsn = server.dsn(name)
    with psycopg.connect(dsn, autocommit=True) as owner:
        owner.execute(f"create schema {EXTENSIONS}; create schema {case.schema}; set search_path = {case.schema}".encode())
        owner.execute(case.sql(case.setup).encode())
    settings = {"tables": ("*",)} | dict(case.settings)
    if case.settings.get("tables"):
        settings["tables"] = tuple(map(case.sql, case.settings["tables"]))
    capture = Capture(dsn, folder, **settings)
    try:
        with psycopg.connect(dsn, autocommit=True, options=PATIENT) as owner:
            yield capture, owner
    finally:
        capture.stop()
        drop(server, name)


@pytest.mark.parametrize("case", REFUSALS, ids=lambda case: case.id)
def test_refused_at_the_start(case: Case, benches: Benches) -> None:
    with log_folder() as folder, prepared(case, benches.server(case.versions[-1]), folder) as (capture, _):
        error = capture.start().failure()
        assert isinstance(error, HeadwaterError)
        for words in case.refusal:
            assert case.sql(words) in error.line()


@pytest.mark.parametrize("case", LEAVES, ids=lambda case: case.id)
def test_leaves_while_everything_else_goes_on(case: Case, benches: Benches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.source.watch.INTERVAL_S", 0.1)
    monkeypatch.setattr("cdc.source.inspection.UNSETTLED_S", 0.2)
    with log_folder() as folder, prepared(case, benches.server(case.versions[-1]), folder) as (capture, owner):
        capture.start()
        capture.until_snapshot_done()
        with Sessions(capture.settings.source.dsn.get_secret_value(), case) as sessions:
            sessions.run(case.steps)
        words = [case.sql(word) for word in case.refusal]
        capture.until(lambda: any(all(word in line for word in words) for line in capture.status.left_out), "for its line")
        owner.execute(f"insert into {case.schema}.goes_on values (1)".encode())
        capture.until(lambda: len(capture.rows(f"{case.schema}.goes_on")) == 1, "for the other table")


@pytest.mark.parametrize("case", STOPS, ids=lambda case: case.id)
def test_stops_while_it_runs(case: Case, benches: Benches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.source.watch.INTERVAL_S", 0.1)
    monkeypatch.setattr("cdc.source.inspection.UNSETTLED_S", 0.2)
    with log_folder() as folder, prepared(case, benches.server(case.versions[-1]), folder) as (capture, _):
        capture.start()
        capture.until_snapshot_done()
        with Sessions(capture.settings.source.dsn.get_secret_value(), case) as sessions:
            sessions.run(case.steps)
        error = capture.failure()
        for words in case.refusal:
            assert case.sql(words) in error.line()


@pytest.mark.parametrize(
    ("case", "server_version"),
    [
        pytest.param(
            case, version, id=f"{case.id}-pg{version}", marks=[pytest.mark.xfail(reason=case.wrong, strict=True)] * bool(case.wrong)
        )
        for case in ALONE
        for version in case.versions
    ],
)
def test_alone(case: Case, server_version: int, benches: Benches) -> None:
    with log_folder() as folder, prepared(case, benches.server(server_version), folder) as (capture, owner):
        dsn = capture.settings.source.dsn.get_secret_value()
        capture.start()
        capture.until_snapshot_done()
        begun = capture.reader.head().position

        def act(what: str) -> None:
            match what:
                case "stop":
                    capture.stop()
                    assert capture.error is None
                case "start":
                    capture.start()
                case _:
                    assert what == "caught up"
                    capture.until_lsn(now(owner))

        with Sessions(dsn, case) as sessions:
            sessions.run(case.steps, {"capture": act})
        capture.until_lsn(now(owner))

        def done() -> bool:
            source = content(owner, case, published(owner, capture.settings.source.publication))
            return agree(source, stored(case, batches(case, capture, capture.topics())))

        equal = case.rig.name != "alone-unequal"
        if equal:
            capture.until(done, "for the store to equal the source")
        found = batches(case, capture, capture.topics())
        capture.stop()
        assert capture.error is None
        streamed = [one for one in records(case, found) if one.position > begun]
        if case.log is not None:
            assert [record(one) for one in streamed] == expected_records(case.log)
        store = stored(case, found)
        for table, text in case.rows.items():
            assert sorted(map(line, store.get(table, ()))) == sorted(lines(text)), table
