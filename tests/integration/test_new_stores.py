"""New stores on real servers that are built from a topic's state, and follow the log from there."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cdc.follow.follower import Follower
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.topicstates import EmbeddedStates
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.batch import Op
from cdc.model.position import Cut, Lsn
from cdc.model.topic import TopicSchema
from cdc.replay.state import rows_as_of
from cdc.settings.models import StoreOptions
from cdc.state import status
from sinks import make_sink, options_model
from sinks.past import condensed
from sinks.render.rowtext import row_text
from tests.contract.rows import ORDERS, batch, order

CHANGES = 400
KEYS = 8


def write(root: Path, changes: int) -> Cut:
    """Orders that come, change, go and come again, a commit each four."""
    with closing(EmbeddedLogWriter(root)) as writer:
        for at in range(int(writer.next_position), int(writer.next_position) + changes, 4):
            ops = [
                (Op.DELETE if (at + n) % 7 == 0 else Op.UPDATE, at + n, order((at + n) % KEYS, f"at {at + n}")) for n in range(4)
            ]
            writer.append(batch(ORDERS, ops))
            writer.commit(Lsn(at * 10), at)
        return writer.head


def make_state(root: Path) -> None:
    with closing(EmbeddedLogReader(root)) as reader:
        cut = reader.head().position
        with condensed(reader, ORDERS.qualified, cut) as found:
            EmbeddedStates(root, reader).keep(ORDERS.qualified, cut, found.rows, found.batches)


def shows_the_log(root: Path, options: StoreOptions) -> None:
    with closing(EmbeddedLogReader(root)) as reader, closing(make_sink("store", options)) as sink:
        head = reader.head()
        assert sink.open(reader) == head
        sink.make_visible()
        schema = TopicSchema.of(ORDERS)
        found = sorted(str(row) for part in sink.scan(schema) for row in part.to_pylist())
        there = rows_as_of(reader, ORDERS.qualified, head.position)
        assert found == sorted(str(row) for part in there for row in sink.as_held(row_text(part, schema), schema).to_pylist())


def follow(root: Path, options: StoreOptions, end: Cut) -> status.FollowerStatus:
    run_dir = root.parent / "run"
    with closing(EmbeddedLogReader(root)) as reader:
        follower = Follower("store", options, root, reader, run_dir, threading.Event())
        try:
            follower.follow_to(end)
            assert follower.applied == end, follower.status
        finally:
            follower.close()
    found = status.read_follower(run_dir, "store")
    assert found is not None
    return found


def begin_and_go_on(root: Path, given: Mapping[str, Any]) -> None:
    options = options_model(given["kind"]).model_validate({"tables": [ORDERS.qualified], **given})
    write(root, CHANGES)
    make_state(root)
    said = follow(root, options, write(root, 20))
    assert said.written == 0, "nothing was given to it change by change"
    shows_the_log(root, options)
    said = follow(root, options, write(root, 20))
    assert 0 < said.written + said.stale <= 20
    shows_the_log(root, options)


@pytest.mark.parametrize("value", ["json", "hash"])
def test_a_cache(valkey: Any, tmp_path: Path, value: str) -> None:
    begin_and_go_on(tmp_path / "log", {"kind": "redis", "url": valkey.url, "value": value})
