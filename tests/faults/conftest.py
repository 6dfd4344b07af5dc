"""What the fault tests share: a warm nursery of processes, a Postgres of their own that may be hurt, and a database to copy."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from cdc.embedded.postgres import VOLATILE, Postgres
from tests.faults.lab import lab
from tests.faults.nursery import Nursery
from tests.faults.stores import Written, write_everything
from tests.faults.workload import Workload

SMALL = {"logical_decoding_work_mem": "64kB", "max_replication_slots": "16", "autovacuum": "off"}


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    one = Nursery()
    yield one
    one.close()


@pytest.fixture(scope="session")
def fault_server(server_folder: Path) -> Iterator[Postgres]:
    server = Postgres(server_folder / "faults", options={**VOLATILE, **SMALL})
    server.start()
    yield server
    server.stop("immediate")


@pytest.fixture(autouse=True)
def _the_server_is_up(request: pytest.FixtureRequest) -> None:
    """Whatever became of it in the test before."""
    if "fault_server" in request.fixturenames:
        request.getfixturevalue("fault_server").start()


@pytest.fixture(scope="session")
def filled_database(fault_server: Postgres) -> str:
    """A database with the workload's tables and first rows, to be copied."""
    name = "faults_template"
    with psycopg.connect(fault_server.unix_dsn(), autocommit=True) as admin:
        admin.execute(f"create database {name}")
    with psycopg.connect(fault_server.unix_dsn(name)) as connection:
        Workload(random.Random(name)).fill(connection)
    return name


@pytest.fixture(scope="session")
def _histories() -> list[Written]:
    """The one that has been written, once it has been: a failure to write it is not kept for every other test."""
    return []


@pytest.fixture
def written(
    _histories: list[Written], fault_server: Postgres, nursery: Nursery, filled_database: str, server_folder: Path
) -> Written:
    if not _histories:
        with lab(fault_server, nursery, server_folder / f"written-{uuid.uuid4().hex[:8]}", template=filled_database) as one:
            _histories.append(write_everything(one))
    return _histories[0]
