from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Event
from unittest.mock import Mock

import pyarrow as pa
import pytest

from cdc.capture.toast import ToastMemory
from cdc.errors import LogAway
from cdc.ingest import intake
from cdc.ingest.intake import Intake
from cdc.ingest.process import _pause
from cdc.log.contract import LogReader
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.batch import Op, batch_schema
from cdc.model.position import Lsn, Position
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
            Intake(tmp_path, writer, memory, Mock(), Mock()).catch_up()
            assert memory.knows(NOTES)
            assert memory.knows(DOCS) == (since == 0)
            assert memory.position == 2


def test_capture_waits_for_no_tier_when_the_toast_memory_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(reader: LogReader, topic: str, after: Position, upto: Position) -> Iterator[pa.RecordBatch]:
        yield from reader.read(topic, after, Position(min(upto, 2)))
        if upto > 2:
            raise LogAway("the tier is down", hint="wait")

    with closing(EmbeddedLogWriter(tmp_path)) as writer:
        for position, table in enumerate((DOCS, NOTES, DOCS), 1):
            writer.append(wide(table, position))
            writer.commit(Lsn(position), 0)
        monkeypatch.setattr(intake, "_all_behind", away)
        with closing(ToastMemory(tmp_path / "toast.db")) as memory:
            Intake(tmp_path, writer, memory, Mock(), Mock()).catch_up()
            assert memory.position == 3
            assert not memory.knows(DOCS)


def test_a_commit_of_nothing_wide_is_not_read_again_by_a_new_connection_but_by_a_new_process(tmp_path: Path) -> None:
    """The file says only how far something wide came, so that nothing is written for each narrow commit."""
    with closing(EmbeddedLogWriter(tmp_path)) as writer:
        with closing(ToastMemory(tmp_path / "toast.db")) as memory:
            for position in (1, 2):
                batch = wide(DOCS, position) if position == 1 else wide(DOCS, position).set_column(6, "body", pa.array(["short"]))
                writer.append(batch)
                memory.learn(batch)
                memory.commit(writer.commit(Lsn(position), 0).position)
            memory.rollback()
            assert memory.position == 2
        with closing(ToastMemory(tmp_path / "toast.db")) as again:
            assert again.position == 1
            Intake(tmp_path, writer, again, Mock(), Mock()).catch_up()
            assert again.position == 2
            assert again.knows(DOCS)


def test_a_disk_that_refuses_what_was_handed_over_does_not_end_the_wait_for_the_source(tmp_path: Path) -> None:
    """The next attempt to reach the source comes all the same, and shows what is the matter."""
    inbox = Mock(serve=Mock(side_effect=[OSError(28, "full"), True, False, *[False] * 100]))
    capture = Intake(tmp_path, Mock(head=Mock(position=0)), Mock(), Mock(), Mock(), inbox=inbox)
    _pause(0.3, capture, Event())
    assert inbox.serve.call_count > 2
