"""The stream shows a table before the catalog does: its CREATE TABLE has committed, and nobody sees that yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.model.evolution import Kind, schema_change_of
from cdc.source import watch
from tests.conftest import Database
from tests.integration.capture.running import Capture, counted_looks
from tests.integration.heldcommit import held_commit


def test_a_table_that_nobody_sees_yet_is_not_taken_for_dropped(
    postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "INTERVAL_S", 0.05)
    looks = counted_looks(monkeypatch)
    here = postgres.connect()
    here.execute("create publication cdc for all tables with (publish_via_partition_root = true)")
    here.execute("create table first (id int primary key)")
    capture = Capture(postgres.dsn, tmp_path, tables=("public.*",), slot=f"s_{postgres.name}")
    with capture.running():
        capture.until_snapshot_done()
        with held_commit(postgres.server, "create table late (id int primary key); insert into late values (1)", postgres.dsn):
            capture.until(lambda: "public.late" in capture.topics(), "for a row of the table")
            seen = looks[0]
            capture.until(lambda: looks[0] >= seen + 3, "for looks that do not find the table")
            assert here.execute("select to_regclass('late')").fetchone() == (None,)
        here.execute("insert into late values (2)")
        here.execute("drop table late")
        here.execute("insert into first values (7)")
        capture.until(lambda: ("7",) in capture.rows("public.first"), "for the row that comes last")
        capture.until(lambda: not capture.rows("public.late"), "for the table's end")
        kinds = [change.kind for batch in capture.batches("public.late") if (change := schema_change_of(batch)) is not None]
        assert kinds.count(Kind.DROPPED) == 1
