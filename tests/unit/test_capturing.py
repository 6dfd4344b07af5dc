from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from cdc.capture.toast import ToastMemory
from cdc.capturing import _catch_up
from cdc.log.writer import EmbeddedLogWriter
from cdc.model.batch import Op, batch_schema
from cdc.model.position import Lsn
from cdc.model.table import Column, Table
from cdc.source import identity
from cdc.source.identity import Identity

DOCS = Table(7, "public", "docs", (Column("id", 20, key=True, attnum=1), Column("body", 25, attnum=2)))
NOTES = Table(8, "public", "notes", DOCS.columns)


def wide(table: Table, position: int) -> pa.RecordBatch:
    row = {"_cdc_position": position, "_cdc_op": int(Op.READ), "_cdc_lsn": position, "id": 1, "body": "x" * 5000}
    return pa.RecordBatch.from_pylist([row], schema=batch_schema(table))


@pytest.mark.parametrize("since", [0, 1])
def test_a_lost_toast_memory_learns_nothing_from_before_the_last_rebuild(tmp_path: Path, since: int) -> None:
    """Rows from before may have changed while nobody listened."""
    with closing(EmbeddedLogWriter(tmp_path)) as writer:
        for position, table in enumerate((DOCS, NOTES), 1):
            writer.append(wide(table, position))
            writer.commit(Lsn(position), 0)
        identity.record(tmp_path, Identity("73", 1, "shop", "cdc", "cdc", 5, since))
        with closing(ToastMemory(tmp_path / "toast.db")) as memory:
            _catch_up(memory, writer, tmp_path)
            assert memory.knows(NOTES)
            assert memory.knows(DOCS) == (since == 0)
            assert memory.position == 2
