"""Rows that are equal in every column, in a table without a key: what the stores hold of them, and who says so."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.audit.findings import TableAudit
from cdc.audit.stores import audit
from cdc.commands.audit import lines
from cdc.log.home import open_reader
from cdc.plan.plan import plan_catalog
from cdc.report.collector import gather
from cdc.report.probe import SourceProbe
from cdc.settings.models import Settings
from cdc.source.capturable import KEYLESS
from cdc.state import status
from snapshots.requests import Request, Requests
from tests.conftest import Database
from tests.integration.pipeline import service, settings_of
from tests.waiting import until

TABLES = """
create table public.twins (v text, w int);
alter table public.twins replica identity full;
create table public.keyed (id int primary key, v text);
alter table public.keyed replica identity full;
insert into public.twins values ('deleted', 1), ('deleted', 1), ('changed', 2), ('changed', 2), ('kept', 3), ('kept', 3), (null, null);
insert into public.keyed values (1, 'a'), (2, 'a')
"""
ONE_OF_TWO = """
delete from public.twins where ctid = (select min(ctid) from public.twins where v = 'deleted');
update public.twins set w = 9 where ctid = (select min(ctid) from public.twins where v = 'changed')
"""
CATCH_UP_S = 120


@pytest.fixture(
    params=[
        "memory",
        "redis",
        pytest.param("opensearch", marks=[pytest.mark.opensearch, pytest.mark.xdist_group("opensearch")]),
        pytest.param("iceberg", marks=[pytest.mark.spark, pytest.mark.xdist_group("spark")]),
    ]
)
def settings(request: pytest.FixtureRequest, postgres: Database, tmp_path: Path) -> Iterator[Settings]:
    store: dict[str, Any] = {"kind": request.param}
    match request.param:
        case "redis":
            store["url"] = request.getfixturevalue("valkey").url
        case "opensearch":
            store["url"] = request.getfixturevalue("opensearch").url
        case "iceberg":
            from sinks.sparksession import use_session

            session = request.getfixturevalue("spark")
            use_session(lambda: session)
            store |= {"path": tmp_path / "lake", "commit_interval_ms": 50}
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(TABLES)
        # A name of its own: the twin's stores live as long as the process.
        yield settings_of(postgres, tmp_path, {f"s-{postgres.name.replace('_', '-')}": store})


def audited(settings: Settings) -> dict[str, TableAudit]:
    [result] = audit(settings, timeout_s=CATCH_UP_S)
    return {table.table: table for table in result.tables}


def test_the_audit_compares_distinct_rows_and_names_those_that_went_with_their_equals(
    settings: Settings, postgres: Database
) -> None:
    with service(settings), psycopg.connect(postgres.dsn, autocommit=True) as connection:
        first = audited(settings)
        twins = first["public.twins"]
        assert (twins.equal, twins.scanned.source_rows, twins.scanned.store_rows, twins.scanned.repeated) == (True, 7, 4, 3)
        assert (first["public.keyed"].equal, first["public.keyed"].scanned.repeated) == (True, 0)
        [said] = [line for line in lines(audit(settings, timeout_s=CATCH_UP_S)) if "public.twins:" in line]
        assert "equal as distinct rows" in said
        assert "3 rows of the database repeat another" in said
        connection.execute(ONE_OF_TWO)
        less = audited(settings)["public.twins"]
        assert (less.equal, less.tally.missing, less.tally.extra, less.tally.different, less.scanned.repeated) == (
            False,
            2,
            0,
            0,
            1,
        )
        assert {tuple(one.key.values()) for one in less.differences} == {("deleted", "1"), ("changed", "2")}
        requests = Requests(settings.log.dir)
        name = requests.queue(Request("public.twins"))
        until(lambda: requests.outcome(name).state == "done", "the table to be read again")
        again = audited(settings)["public.twins"]
        assert (again.equal, again.scanned.store_rows, again.scanned.repeated) == (True, 5, 1)


def test_status_and_plan_name_the_tables_without_a_key(postgres: Database, tmp_path: Path) -> None:
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute(TABLES)
        settings = settings_of(postgres, tmp_path, {})
        with service(settings), closing(open_reader(settings.log.dir)) as reader:
            until(lambda: (told := status.read_capture(settings.run_dir)) and told.notes, "capture to name the table")
            probe = SourceProbe(settings.source.dsn, settings.source.slot)
            with closing(probe):
                notes = gather(settings, reader, probe).notes
            assert [note for note in notes if KEYLESS in note] == [note for note in notes if "public.twins" in note]
            remarks = [remark for remark in plan_catalog(settings).remarks if KEYLESS in remark.what]
            assert [(remark.store, remark.stops) for remark in remarks] == [("capture", False)]
            assert remarks[0].what.startswith("public.twins ")
            connection.execute("alter table public.twins add id int generated always as identity primary key")
            until(lambda: (told := status.read_capture(settings.run_dir)) and not told.notes, "capture to see the key")
