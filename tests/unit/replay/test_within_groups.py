"""Places between two commits that the log took in as one group."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc.log.contract import LogReader
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.log.memory import MemoryLog
from cdc.model.batch import Op, topic_schema
from cdc.model.position import Lsn, Position
from cdc.replay.netchange import net_changes
from cdc.replay.state import rows_as_of
from cdc.spark.scan import _uncovered
from sinks.render.rowtext import row_text
from tests.contract.rows import PAIRS, batch
from tests.unit.log.disks import QuickDisk


def texts(rows: pa.RecordBatch) -> list[dict[str, Any]]:
    return [{name: row[name] for name in ("a", "v")} for row in row_text(rows, topic_schema(rows.schema)).to_pylist()]


def change(op: Op, position: int, value: str) -> pa.RecordBatch:
    return batch(PAIRS, [(op, position, {"a": "1", "b": "1", "v": value})])


def logged(kind: str, folder: Path, *groups: Sequence[pa.RecordBatch]) -> LogReader:
    """A change at position n has the LSN 10 n."""
    memory = MemoryLog()
    writer = memory.writer() if kind == "memory" else EmbeddedLogWriter(folder, seal=False, disk=QuickDisk())
    with closing(writer):
        for batches in groups:
            for one in batches:
                writer.append(one)
            writer.commit(Lsn((int(writer.next_position) - 1) * 10), 0)
    return memory.reader() if kind == "memory" else EmbeddedLogReader(folder)


KINDS = pytest.mark.parametrize("kind", ["memory", "embedded"])


@KINDS
def test_the_rows_between_two_commits_of_a_group(kind: str, tmp_path: Path) -> None:
    log = logged(kind, tmp_path, [change(Op.INSERT, 1, "first"), change(Op.UPDATE, 2, "second")])
    for place, value in ((1, "first"), (2, "second")):
        assert [row for rows in rows_as_of(log, PAIRS.qualified, Position(place)) for row in texts(rows)] == [
            {"a": "1", "v": value}
        ]
    log.close()


@KINDS
def test_the_difference_between_two_commits_of_a_group(kind: str, tmp_path: Path) -> None:
    group = [change(Op.UPDATE, 2, "second"), change(Op.UPDATE, 3, "third"), change(Op.UPDATE, 4, "fourth")]
    log = logged(kind, tmp_path, [change(Op.INSERT, 1, "first")], group)
    found = list(net_changes(log, PAIRS.qualified, Position(2), Position(3)))
    assert [(texts(one.changes), texts(one.former)) for one in found if one.former is not None] == [
        ([{"a": "1", "v": "third"}], [{"a": "1", "v": "second"}])
    ]
    log.close()


@KINDS
def test_before_the_first_commit_there_are_no_rows(kind: str, tmp_path: Path) -> None:
    log = logged(kind, tmp_path, [change(Op.INSERT, 1, "first")])
    assert list(rows_as_of(log, PAIRS.qualified, Position(0))) == []
    assert [texts(one.changes) for one in net_changes(log, PAIRS.qualified, Position(0), Position(1))] == [
        [{"a": "1", "v": "first"}]
    ]
    log.close()


def test_a_scan_reads_up_to_its_end(tmp_path: Path) -> None:
    log = logged("embedded", tmp_path, [change(Op.INSERT, 1, "x"), change(Op.UPDATE, 2, "y"), change(Op.UPDATE, 3, "z")])
    ranges = _uncovered(log, PAIRS.qualified, [], Position(0), Position(2))
    assert sum(len(rows) for low, high in ranges for rows in log.read(PAIRS.qualified, low, high)) == 2
    log.close()
