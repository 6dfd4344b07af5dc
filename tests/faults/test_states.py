"""Whoever makes states of topics ends, or is refused, at any step: every answer before and after is right, and nothing is left over."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from cdc.crashpoint import KILLED, CrashKind, armed
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.topicstates import EmbeddedStates
from cdc.model.position import Position
from sinks.past import condensed
from tests import counters
from tests.faults import points
from tests.unit.log.test_states import TOPIC, cuts, folder, rewritten, table, without_states


def work(root: Path) -> None:
    for _ in range(3):
        rewritten(root, 200)
        make(root)


def make(root: Path) -> None:
    """As the thread does: a note, which a later state makes needless, and the state."""
    with closing(EmbeddedLogReader(root)) as reader:
        states, cut = EmbeddedStates(root, reader), reader.head().position
        states.tidy(TOPIC)
        states.keep(TOPIC, Position(cut - 1), 99, None)
        with condensed(reader, TOPIC, cut) as found:
            states.keep(TOPIC, cut, found.rows, found.batches)
        states.tidy(TOPIC)


@pytest.mark.faults
@pytest.mark.parametrize("kind", [CrashKind.KILL, CrashKind.ERROR])
@pytest.mark.parametrize("point", points.of("states"))
def test_making_states(point: str, kind: CrashKind, tmp_path: Path) -> None:
    root = tmp_path / "log"
    if kind is CrashKind.KILL:
        assert points.killed(lambda: work(root), f"{point}={CrashKind.KILL}:2") == KILLED, f"{point} was not reached"
    else:
        with armed(f"{point}={kind}:2") as reached, pytest.raises(OSError):
            work(root)
        assert reached.hit
    with closing(EmbeddedLogReader(root)) as reader:
        head = int(reader.head().position)
    known = without_states(root, lambda: table(root, head))
    assert table(root, head) == known
    assert [at for at, _, _ in known] == list(range(head - 9, head + 1))
    make(root)
    assert table(root, head) == known
    assert head in cuts(root)
    records = {path.name for path in folder(root).glob("*.json")}
    assert len(records) == len(cuts(root)) == len(list(folder(root).glob("*.parquet"))), "nothing is left over"
    counters.add("crash points", str(kind))
