"""A table's definition changes while its snapshot is read and rows of it change."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.source import watch
from tests.conftest import Database
from tests.integration.capture.running import Capture
from tests.integration.schema.folding import fold
from tests.integration.snapshots.pipeline import rows_of
from tests.integration.snapshots.test_traffic import CREATE, Traffic


def test_a_column_with_a_default_comes(postgres: Database, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the rows that were read before it have in it, no row of the stream tells."""
    monkeypatch.setattr(watch, "INTERVAL_S", 0.3)
    capture = Capture(postgres.dsn, tmp_path, slot=f"s_{postgres.name}", snapshot_chunk_rows=20)

    def read() -> int:
        return sum(batch.num_rows for batch in capture.batches("public.t")) if "public.t" in capture.topics() else 0

    with postgres.connect() as sql:
        sql.execute(CREATE)
        with capture.running():
            with Traffic(postgres.dsn, seed, truncates=False):
                capture.until(lambda: read() >= 400, "for a part of the rows")
                sql.execute("alter table t add column added int default 7")
                capture.until(lambda: "added" in last_column(capture), "for the column")
            capture.until(lambda: fold(capture.batches("public.t"))[0] == rows_of(sql, "public.t"), "for log and source to agree")


def last_column(capture: Capture) -> set[str]:
    return {topic.table.names[-1] for topic in capture.reader.topics() if topic.name == "public.t"}
