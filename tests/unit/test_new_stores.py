"""A store that holds nothing is built from the states of its topics where these stand for most of the log, and follows the log from there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc.crashpoint import Fault, armed
from cdc.errors import StopState
from cdc.follow import follower as followers
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.topicstates import FOLDER, EmbeddedStates
from cdc.model.batch import Op
from cdc.model.position import Lsn, Position
from cdc.state import rebuilds
from sinks.contract import Outcome
from sinks.memory import MemorySink
from sinks.past import condensed
from tests.contract.rows import ORDERS, PAIRS, batch, order
from tests.unit.spark.test_marks import MODES, Pipe


@pytest.fixture(params=MODES, ids=str)
def pipe(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipe]:
    monkeypatch.setattr(followers, "FIRST_RETRY_S", 0.001)
    monkeypatch.setattr(followers, "_LOOK_AT_THE_STORE_S", 0.0)
    one = Pipe(tmp_path, **request.param)
    yield one
    one.close()


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many changes each call has given to a store that follows the log."""
    found: list[int] = []
    apply = MemorySink.apply

    def counted(self: MemorySink, changes: pa.RecordBatch) -> Outcome:
        if self.name != "fold":
            found.append(len(changes))
        return apply(self, changes)

    monkeypatch.setattr(MemorySink, "apply", counted)
    return found


def rewrite(pipe: Pipe, changes: int = 300, keys: int = 5) -> None:
    """So many changes of so few orders; the last of them is deleted again and again."""
    for at in range(int(pipe.writer.next_position), int(pipe.writer.next_position) + changes, 2):
        key = at // 2 % keys
        op = Op.DELETE if key == keys - 1 and at % 4 else Op.UPDATE
        pipe.writer.append(batch(ORDERS, [(Op.UPDATE, at, order(key, f"at {at}")), (op, at + 1, order(key, f"at {at + 1}"))]))
        pipe.writer.commit(Lsn(at * 10), at)


def make_states(pipe: Pipe, *topics: str) -> None:
    root = pipe.folder / "log"
    with closing(EmbeddedLogReader(root)) as reader:
        states, cut = EmbeddedStates(root, reader), reader.head().position
        for topic in topics or (ORDERS.qualified,):
            with condensed(reader, topic, cut) as found:
                states.keep(topic, cut, found.rows, found.batches)


def test_a_new_store_begins_with_the_newest_state(pipe: Pipe, given: list[int]) -> None:
    pipe.write(4)
    rewrite(pipe)
    make_states(pipe)
    pipe.number = 1000
    pipe.write(3)
    follower = pipe.follower()
    pipe.follow(follower)
    assert given == [], "it was built, not given one change after the other"
    assert follower.applied == pipe.writer.head
    pipe.assert_whole()
    assert rebuilds.requested(pipe.folder / "run", pipe.name) is None
    pipe.write(2)
    pipe.follow(follower)
    assert 0 < sum(given) < 20
    pipe.assert_whole()


def test_its_rows_are_read_from_the_state(pipe: Pipe, monkeypatch: pytest.MonkeyPatch) -> None:
    rewrite(pipe)
    make_states(pipe)
    cut = int(pipe.writer.head.position)
    rewrite(pipe, 20)
    begun: list[int] = []
    read = EmbeddedLogReader.read

    def noted(self: EmbeddedLogReader, topic: str, after: Position, *rest: Any, **options: Any) -> Any:
        begun.append(int(after))
        return read(self, topic, after, *rest, **options)

    monkeypatch.setattr(EmbeddedLogReader, "read", noted)
    pipe.follow(pipe.follower())
    assert begun, "what the state does not have comes from the log"
    assert min(begun) >= cut
    monkeypatch.undo()
    pipe.assert_whole()


def test_one_is_filled_change_by_change_where_states_stand_for_little(pipe: Pipe, given: list[int]) -> None:
    rewrite(pipe, 100)
    make_states(pipe)
    pipe.number = 1000
    pipe.write(60)
    pipe.follow(pipe.follower())
    with closing(EmbeddedLogReader(pipe.folder / "log")) as reader:
        assert sum(given) == sum(topic.rows for topic in reader.topics())
    pipe.assert_whole()


@pytest.mark.parametrize("tables", [["public.pairs"], ["public.*"]])
def test_only_the_tables_of_the_store_count(tmp_path: Path, given: list[int], tables: list[str]) -> None:
    pipe = Pipe(tmp_path, tables=tables)
    try:
        pipe.write(10)
        rewrite(pipe)
        make_states(pipe)
        pipe.follow(pipe.follower())
        assert bool(given) == (tables == ["public.pairs"])
        pipe.assert_whole(*([PAIRS.qualified] if given else []))
    finally:
        pipe.close()


def test_a_store_that_has_something_goes_on_from_there(pipe: Pipe, given: list[int]) -> None:
    pipe.write(2)
    pipe.follow(pipe.follower())
    pipe.followers.pop().close()
    given.clear()
    rewrite(pipe)
    make_states(pipe)
    pipe.follow(pipe.follower())
    assert sum(given) == 300
    pipe.assert_whole()


def test_one_that_has_lost_everything_is_built(pipe: Pipe, given: list[int]) -> None:
    follower = pipe.follower()
    pipe.write(2)
    pipe.follow(follower)
    rewrite(pipe)
    make_states(pipe)
    pipe.follow(follower)
    given.clear()
    pipe.store.lose(*pipe.store.units)
    pipe.follow(follower)
    follower.idle()
    assert given == []
    assert follower.applied == pipe.writer.head
    pipe.assert_whole()


def test_one_that_was_begun_is_built_to_its_end_whatever_becomes_of_the_states(pipe: Pipe, given: list[int]) -> None:
    rewrite(pipe)
    make_states(pipe)
    with armed("newstore.asked=error"), pytest.raises(Fault):
        pipe.follower().start()
    asked = rebuilds.requested(pipe.folder / "run", pipe.name)
    assert asked is not None
    assert asked.state is None, "no stop state is to be ended"
    pipe.followers.pop().close()
    shutil.rmtree(pipe.folder / "log" / FOLDER)
    rewrite(pipe, 10)
    pipe.follow(pipe.follower())
    assert given == []
    pipe.assert_whole()
    assert rebuilds.requested(pipe.folder / "run", pipe.name) is None


def test_damage_to_the_state_changes_nothing(pipe: Pipe, given: list[int]) -> None:
    rewrite(pipe)
    make_states(pipe)
    for path in (pipe.folder / "log" / FOLDER).rglob("*.parquet"):
        path.write_bytes(path.read_bytes()[:-9])
    pipe.follow(pipe.follower())
    assert sum(given) == 300
    pipe.assert_whole()


def test_an_operators_request_says_which_state_it_ends(tmp_path: Path) -> None:
    for state in (None, StopState.DIVERGED):
        rebuilds.request(tmp_path, "store", state)
        found = rebuilds.requested(tmp_path, "store")
        assert found is not None
        assert found.state is state
