"""The writer of a topic as Spark calls it, without a Spark: what is in the log after crashes, without a checkpoint, and after mistakes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from cdc.errors import HeadwaterError
from cdc.inbox.handover import Handover
from cdc.log.contract import LogWriter
from cdc.log.home import await_seals, open_reader, upkeep_of
from cdc.model.position import Lsn
from cdc.spark import sink
from cdc.spark.sink import TopicStreamWriter, origin
from tests.contract.rows import ORDERS, PAIRS, order, upserts
from tests.unit.inbox.parts import TOPIC, inbox_of, logged, served, written


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[LogWriter]:
    """The log's writer, with two orders at the positions 1 and 2, whose inbox is served."""
    with written(tmp_path) as made:
        made.append(upserts(ORDERS, 1, [order(1), order(2)]))
        made.commit(7, 7)
        with served(inbox_of(tmp_path, made)):
            yield made


def options(folder: Path, **more: str) -> dict[str, str]:
    return {"log": f"{folder}/log", "runDir": f"{folder}/run", "topic": TOPIC, "key": "id", **more}


def frame(*ids: int, text: str = "x", sequence: str | None = "at") -> pa.RecordBatch:
    """A row for each id, with the id as the sequence."""
    columns = {"id": pa.array(ids, pa.int64()), "text": pa.array([text] * len(ids), pa.utf8())}
    return pa.RecordBatch.from_pydict(columns | ({sequence: pa.array(ids, pa.int64())} if sequence else {}))


def bring(folder: Path, batch: int, *tasks: pa.RecordBatch, **more: str) -> None:
    """One micro-batch, of several tasks."""
    made = TopicStreamWriter(options(folder, **more), from_arrow_schema(tasks[0].schema), False)
    made.commit([made.write(iter([rows])) for rows in tasks], batch)


def ids(folder: Path, topic: str = TOPIC) -> list[int]:
    return [row[2] for row in logged(folder, topic)]


@pytest.mark.usefixtures("writer")
def test_a_micro_batch_comes_again_with_other_tasks(tmp_path: Path) -> None:
    for tasks in ([frame(1, 3), frame(2)], [frame(3), frame(), frame(2, 1)]):
        bring(tmp_path, 0, *tasks, sequence="at")
    bring(tmp_path, 1, frame(4), sequence="at")
    assert ids(tmp_path) == [1, 2, 3, 4]


@pytest.mark.parametrize(("step", "held"), [("before", [1, 2]), ("after", [1, 2, 3, 4])])
@pytest.mark.usefixtures("writer")
def test_a_driver_that_is_killed_around_a_hand_over_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, held: list[int]
) -> None:
    monkeypatch.setattr(sink, "MAX_GROUP_ROWS", 2)
    given = Handover.give_encoded
    calls = 0

    def killed(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2 and step == "before":
            raise KeyboardInterrupt
        done = given(*arguments)
        if calls == 2:
            raise KeyboardInterrupt
        return done

    with monkeypatch.context() as patched:
        patched.setattr(Handover, "give_encoded", killed)
        with pytest.raises(KeyboardInterrupt):
            bring(tmp_path, 0, frame(1, 2, 3, 4, 5), sequence="at")
    assert ids(tmp_path) == held
    bring(tmp_path, 0, frame(5, 4, 3, 2, 1), sequence="at")
    assert ids(tmp_path) == [1, 2, 3, 4, 5]


@pytest.mark.usefixtures("writer")
def test_a_query_without_its_checkpoint_doubles_and_loses_nothing(tmp_path: Path) -> None:
    bring(tmp_path, 0, frame(1, 2, 3), sequence="at")
    for number, rows in enumerate([(1,), (), (2,), (3, 4), (5,)]):
        bring(tmp_path, number, frame(*rows), sequence="at")
    assert ids(tmp_path) == [1, 2, 3, 4, 5]


@pytest.mark.usefixtures("writer")
def test_without_a_sequence_a_micro_batch_that_comes_again_is_in_the_log_again(tmp_path: Path) -> None:
    for number in (0, 0, 1):
        bring(tmp_path, number, frame(1, sequence=None))
    assert ids(tmp_path) == [1, 1, 1]


@pytest.mark.usefixtures("writer")
def test_the_same_step_with_other_rows_stops_the_producer(tmp_path: Path) -> None:
    bring(tmp_path, 0, frame(1), sequence="at")
    for number in (0, 1):
        with pytest.raises(HeadwaterError, match=r"INBOX_CONFLICT.*another content"):
            bring(tmp_path, number, frame(1, text="other"), sequence="at")
    assert ids(tmp_path) == [1]


@pytest.mark.usefixtures("writer")
def test_a_topic_derived_from_itself_by_way_of_another_is_refused(tmp_path: Path) -> None:
    bring(tmp_path, 0, frame(1, 2, sequence="_cdc_position"))
    bring(tmp_path, 0, frame(4, sequence="_cdc_position"), topic="derived.second")
    with pytest.raises(HeadwaterError, match=rf"{TOPIC} would be derived from itself: {TOPIC} → derived.second → {TOPIC}"):
        bring(tmp_path, 1, frame(5, sequence="_cdc_position"))
    assert ids(tmp_path) == [1, 2]


def test_what_another_table_no_longer_has_stops_no_write(tmp_path: Path) -> None:
    with written(tmp_path) as made:
        for at in (1, 2):
            made.append(upserts(PAIRS, at, [{"a": "1", "b": "2", "v": "x"}]))
            made.commit(Lsn(at), at)
            upkeep = upkeep_of(made)
            assert upkeep is not None
            upkeep.close_newest(PAIRS.qualified, at)
            made.commit()
            await_seals(made)
        made.append(upserts(ORDERS, 3, [order(1)]))
        made.commit(Lsn(3), 3)
        upkeep.retire(PAIRS.qualified, kept_from=2, floor=2, clean_from=2)
        made.commit()
        with closing(open_reader(tmp_path / "log")) as log:
            assert next(one.kept_from for one in log.topics() if one.name == PAIRS.qualified) == 2
            assert [origin(log, TOPIC, at) for at in (1, 2, 3)] == ["", PAIRS.qualified, ORDERS.qualified]


def test_where_nobody_serves_the_inbox_it_says_so_and_goes_on_later(tmp_path: Path) -> None:
    with written(tmp_path) as made:
        made.commit(7, 7)
        with pytest.raises(HeadwaterError, match="cdc status says whether capture runs"):
            bring(tmp_path, 0, frame(1), sequence="at", timeoutSeconds="0.1")
        with served(inbox_of(tmp_path, made)):
            bring(tmp_path, 0, frame(1), sequence="at")
    assert ids(tmp_path) == [1]


@pytest.mark.parametrize(
    ("rows", "given", "says"),
    [
        (frame(1), {"key": "number"}, "the frame has no column number"),
        (frame(1), {"topic": "Orders"}, "the topic's name is not schema.name"),
        (frame(1), {"runDir": ""}, "needs the option runDir"),
        (frame(1), {"maxRows": "1"}, "has no option maxRows"),
        (frame(1), {"timeoutSeconds": "soon"}, "an option of the write is wrong"),
        (frame(1), {"log": "/nowhere"}, "there is no log in /nowhere"),
        (pa.RecordBatch.from_pydict({"id": [1.5]}), {}, "column id cannot be in the key: it is double precision"),
    ],
)
@pytest.mark.usefixtures("writer")
def test_what_cannot_be_written_is_said_before_anything_is(
    tmp_path: Path, rows: pa.RecordBatch, given: dict[str, str], says: str
) -> None:
    with pytest.raises(HeadwaterError, match=says):
        TopicStreamWriter(options(tmp_path) | given, from_arrow_schema(rows.schema), False)
