"""Whoever keeps the runs of look-ups ends, or is refused, at any step: every look-up before and after is right, and nothing is left over."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from cdc.crashpoint import KILLED, CrashKind, armed
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.lookup.lookup import Lookup
from cdc.lookup.shelf import chain, folder_of, names_in
from cdc.lookup.upkeep import RunUpkeep
from cdc.model.batch import OP, POSITION, Op
from cdc.model.position import Lsn, Position
from tests import counters
from tests.contract.rows import ORDERS, batch, order
from tests.faults import points
from tests.unit.log.disks import QuickDisk

TOPIC = ORDERS.qualified


def work(root: Path) -> None:
    """Ten rows, each of them changed again and again, and deleted now and then; the runs are kept up after every few changes."""
    for _ in range(8):
        with closing(EmbeddedLogWriter(root, disk=QuickDisk())) as writer:
            for at in range(int(writer.next_position), int(writer.next_position) + 7):
                writer.append(batch(ORDERS, [(Op.DELETE if at % 8 == 0 else Op.UPDATE, at, order(at % 10, f"at {at}"))]))
                writer.commit(Lsn(at), 0)
        keep(root)


def keep(root: Path) -> None:
    with closing(EmbeddedLogReader(root)) as reader:
        upkeep = RunUpkeep(reader, root, TOPIC)
        while upkeep.advance():
            pass


def positions(root: Path, **limits: int) -> list[int]:
    with closing(EmbeddedLogReader(root)) as reader, closing(Lookup(reader, root, **limits)) as found:
        asked = pa.array([str(key) for key in range(10)])
        return found.rows(TOPIC, Position(reader.head().position), asked).positions.tolist()


def expected(root: Path) -> list[int]:
    """The same from the log itself."""
    newest = dict.fromkeys(range(10), 0)
    with closing(EmbeddedLogReader(root)) as reader:
        for changes in reader.read(TOPIC, Position(0), reader.head().position):
            for row in changes.to_pylist():
                newest[row["id"]] = 0 if row[OP] == Op.DELETE else row[POSITION]
    return list(newest.values())


@pytest.mark.faults
@pytest.mark.parametrize("kind", [CrashKind.KILL, CrashKind.ERROR])
@pytest.mark.parametrize("point", points.of("lookup"))
def test_keeping_look_ups(point: str, kind: CrashKind, tmp_path: Path) -> None:
    root = tmp_path / "log"
    for _ in range(2):
        if kind is CrashKind.KILL:
            assert points.killed(lambda: work(root), f"{point}={CrashKind.KILL}:2") == KILLED, f"{point} was not reached"
        else:
            with armed(f"{point}={kind}:2") as reached, pytest.raises(OSError):
                work(root)
            assert reached.hit
        known = expected(root)
        assert positions(root) == known
        keep(root)
        assert positions(root, tail_rows=0) == known
        folder = folder_of(root, TOPIC)
        names = names_in(folder)
        assert len(chain(names)) == len(names) == len(list(folder.iterdir())), "nothing is left over"
    counters.add("crash points", str(kind))
