"""What looking back holds at once: as much as it was allowed, however large the former rows are."""

from __future__ import annotations

import pyarrow as pa
import pytest

from cdc.log.memory import MemoryLog, MemoryReader
from cdc.model.batch import Op
from cdc.model.position import Lsn, Position
from cdc.replay import former, netchange
from cdc.replay.former import with_former
from cdc.replay.netchange import net_changes
from cdc.replay.query import alone, sliced
from tests.contract.rows import PAIRS, batch, upserts

ROWS = 800
MOST = 100_000
BODY = "x" * 2_000


def shrinking(op: Op) -> MemoryReader:
    """Many large rows, each of which a small change replaces."""
    log = MemoryLog()
    writer = log.writer()
    for low in range(0, ROWS, 20):  # as the rows of a log come: many batches
        writer.append(upserts(PAIRS, low + 1, [{"a": str(row), "b": "1", "v": BODY} for row in range(low, low + 20)]))
    writer.commit(Lsn(10), 0)
    writer.append(batch(PAIRS, [(op, ROWS + 1 + row, {"a": str(row), "b": "1", "v": None}) for row in range(ROWS)]))
    writer.commit(Lsn(20), 0)
    return log.reader()


@pytest.mark.parametrize("op", [Op.UPDATE, Op.DELETE])
def test_a_window_holds_no_more_former_rows_than_bytes_it_may_take(op: Op, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []

    def measured(rows: pa.Table, at: pa.Array) -> pa.RecordBatch:
        held.append(rows.nbytes)
        return taken(rows, at)

    taken = former.taken
    monkeypatch.setattr(former, "taken", measured)
    found = list(with_former(shrinking(op), PAIRS.qualified, Position(ROWS), Position(2 * ROWS), window_bytes=MOST))
    assert sum(one.known.sum() for one in found) == ROWS
    assert max(held) < 3 * MOST


def test_net_changes_hold_no_more_former_rows_than_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []

    def measured(rows: pa.Table, at: pa.Array) -> pa.RecordBatch:
        held.append(rows.nbytes)
        return taken(rows, at)

    taken = netchange.taken
    monkeypatch.setattr(netchange, "taken", measured)
    found = list(net_changes(shrinking(Op.UPDATE), PAIRS.qualified, Position(ROWS), Position(2 * ROWS), lookup_bytes=MOST))
    assert sum(one.known.sum() for one in found) == ROWS
    assert max(held) < 2 * MOST


def test_few_rows_are_rendered_at_once_where_they_are_large() -> None:
    large = upserts(PAIRS, 1, [{"a": str(row), "b": "1", "v": "x" * (400_000)} for row in range(100)])
    pieces = [len(one.changes) for one in sliced([alone(large)])]
    assert sum(pieces) == 100
    assert max(pieces) <= 10
