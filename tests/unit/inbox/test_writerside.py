"""Groups that producers hand over come into the log exactly once, whoever they are and whatever
happens in between.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from math import ceil
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pytest

from cdc.capture.toast import ToastMemory
from cdc.crashpoint import Fault, armed
from cdc.errors import HeadwaterError, Stopped, StopState, WaitTimeout
from cdc.inbox.bell import LOOK_S
from cdc.inbox.folder import KEPT_REFUSALS, InboxFolder
from cdc.inbox.groupfile import GroupHeader, encode
from cdc.inbox.handover import Handover, HandoverDeadline
from cdc.inbox.writerside import PASS_OVER_S, RIDE_S, check_names, part_of
from cdc.ingest.intake import Intake
from cdc.log.contract import captured
from cdc.log.embedded import producers
from cdc.log.home import open_reader
from cdc.model.evolution import Kind, schema_change_of
from cdc.model.position import Lsn, Position
from cdc.privacy.policies import ProtectedWriter, Protection
from cdc.replay.rows import rows_schema, to_rows
from cdc.replay.state import rows_as_of
from cdc.state import stops
from cdc.state.status import CaptureStatus
from tests.faults import points
from tests.unit.inbox.parts import KEY, TOPIC, deadline, handover, inbox_of, logged, rows, serve_all, written
from tests.unit.log.changes import ORDERS, changes


def test_a_group_is_one_cut_of_the_topic_that_its_producer_names(tmp_path: Path) -> None:
    with written(tmp_path) as writer:
        given = handover(tmp_path, inbox_of(tmp_path, writer))
        assert given.open(deadline()).to == ""
        assert given.give("1", TOPIC, KEY, rows(1, 2), deadline()) == 2
        assert given.give("2", TOPIC, KEY, rows(2, op="d"), deadline()) == 3
        assert writer.head.position == 3
    assert logged(tmp_path) == [(1, "u", 1, "row 1"), (2, "u", 2, "row 2"), (3, "d", 2, None)]
    assert list((tmp_path / "log/inbox").glob("*.arrow")) == []


def test_another_producers_cut_repeats_the_sources_lsn(tmp_path: Path) -> None:
    with written(tmp_path) as writer:
        given = handover(tmp_path, inbox_of(tmp_path, writer))
        writer.append(changes(ORDERS, [1]))
        writer.commit(Lsn(70), 5)
        given.open(deadline())
        given.give("1", TOPIC, KEY, rows(1), deadline())
        assert (writer.head.position, writer.head.commit_lsn, writer.head.commit_ts_us) == (2, 70, 5)


def test_a_changed_definition_comes_as_a_schema_record(tmp_path: Path) -> None:
    with written(tmp_path) as writer:
        given = handover(tmp_path, inbox_of(tmp_path, writer))
        given.open(deadline())
        given.give("1", TOPIC, KEY, rows(1), deadline())
        given.give("2", TOPIC, KEY, rows(2, late=True), deadline())
        given.give("3", TOPIC, KEY, rows(3, late=True), deadline())
    with closing(open_reader(tmp_path / "log")) as reader:
        batches = list(reader.read(TOPIC, Position(0), reader.head().position))
    found = [change for batch in batches if (change := schema_change_of(batch)) is not None]
    assert [(change.kind, change.table.names) for change in found] == [(Kind.ALTERED, ("id", "text", "late"))]
    assert [(position, op) for position, op, *_ in logged(tmp_path)] == [(1, "u"), (2, "s"), (3, "u"), (4, "u")]


@pytest.mark.parametrize(
    ("batches", "key", "why"),
    [
        (rows(2), ("id", "text"), "its key is another"),
        ([pa.RecordBatch.from_pydict({"_cdc_op": ["u"], "id": ["2"]})], KEY, "column id is text, in the topic it is bigint"),
    ],
)
def test_a_topic_keeps_its_key_and_its_types(tmp_path: Path, batches: list[pa.RecordBatch], key: tuple[str, ...], why: str) -> None:
    with written(tmp_path) as writer:
        given = handover(tmp_path, inbox_of(tmp_path, writer))
        given.open(deadline())
        given.give("1", TOPIC, KEY, rows(1), deadline())
        with pytest.raises(HeadwaterError, match=why):
            given.give("2", TOPIC, key, batches, deadline())
        given.give("2", TOPIC, KEY, rows(2), deadline())
    assert [one for _, _, one, _ in logged(tmp_path)] == [1, 2]


@pytest.mark.parametrize("new", [7, "seven"])
def test_a_column_that_was_dropped_gives_nothing_to_a_later_one_of_its_name(tmp_path: Path, new: object) -> None:
    with written(tmp_path) as writer:
        inbox = inbox_of(tmp_path, writer)
        given = handover(tmp_path, inbox)
        given.open(deadline())
        given.give("1", TOPIC, KEY, rows(1, n=1), deadline())
        given.give("2", TOPIC, KEY, rows(2), deadline())
        given = handover(tmp_path, inbox_of(tmp_path, writer))  # the definition is read from the log again
        given.open(deadline())
        given.give("3", TOPIC, KEY, rows(3, n=new), deadline())
        given.give("4", TOPIC, KEY, rows(4, n=new), deadline())
    with closing(open_reader(tmp_path / "log")) as reader:
        (topic,) = reader.topics()
        upto = reader.head().position
        shape = rows_schema(topic.schema)
        found = [row for batch in reader.read(TOPIC, Position(0), upto) for row in to_rows(batch, shape).to_pylist()]
        assert [(row["id"], row["n"], row["_cdc_exact"]) for row in found if row["_cdc_op"] == "u"] == [
            (1, None, None), (2, None, None), (3, new, None), (4, new, None),
        ]  # fmt: skip
        state = [row for batch in rows_as_of(reader, TOPIC, upto) for row in batch.to_pylist()]
        assert {row["id"]: row["n"] for row in state} == {1: None, 2: None, 3: new, 4: new}


def test_an_older_opening_is_fenced_and_never_taken(tmp_path: Path) -> None:
    with written(tmp_path) as writer:
        inbox = inbox_of(tmp_path, writer)
        zombie, heir = handover(tmp_path, inbox), handover(tmp_path, inbox)
        zombie.open(deadline())
        zombie.give("1", TOPIC, KEY, rows(1), deadline())
        assert heir.open(deadline()).to == "1"
        with pytest.raises(HeadwaterError, match="opened again since"):
            zombie.give("2", TOPIC, KEY, rows(66), deadline())
        heir.give("2", TOPIC, KEY, rows(2), deadline())
        with pytest.raises(HeadwaterError, match="opened again since"):
            zombie.give("3", TOPIC, KEY, rows(67), deadline())
    assert [one for _, _, one, _ in logged(tmp_path)] == [1, 2]


def test_an_opening_that_was_outdone_while_it_waited_stays_fenced(tmp_path: Path) -> None:
    """Its group is taken before the newer opening, and acknowledged after it."""
    with written(tmp_path) as writer:
        inbox = inbox_of(tmp_path, writer)
        heir = handover(tmp_path, inbox)
        outdone = Handover(tmp_path / "log", tmp_path / "run", "job", lambda: heir.open(deadline()) and None)
        first = handover(tmp_path, inbox)
        outdone.mark = first.open(deadline())
        outdone.give("1", TOPIC, KEY, rows(1), deadline())
        assert (heir.mark.to, heir.mark.epoch, outdone.mark.epoch) == ("1", 2, 1)
        with pytest.raises(HeadwaterError, match="opened again since"):
            outdone.give("2", TOPIC, KEY, rows(66), deadline())
        heir.give("2", TOPIC, KEY, rows(2), deadline())
    assert [one for _, _, one, _ in logged(tmp_path)] == [1, 2]


def test_what_waits_from_an_older_opening_is_taken_before_the_newer_one_learns_the_mark(tmp_path: Path) -> None:
    with written(tmp_path) as writer:
        inbox = inbox_of(tmp_path, writer)
        first = handover(tmp_path, inbox)
        first.open(deadline())
        impatient = Handover(tmp_path / "log", tmp_path / "run", "job", lambda: None)
        impatient.mark = first.mark
        with pytest.raises(WaitTimeout):
            impatient.give("1", TOPIC, KEY, rows(1), HandoverDeadline.within(0))
        assert handover(tmp_path, inbox).open(deadline()).to == "1"
    assert [one for _, _, one, _ in logged(tmp_path)] == [1]


def test_the_same_group_again_is_acknowledged_and_appends_nothing(tmp_path: Path) -> None:
    with written(tmp_path) as writer:
        inbox = inbox_of(tmp_path, writer)
        given = handover(tmp_path, inbox)
        before = given.open(deadline())
        given.give("1", TOPIC, KEY, rows(1), deadline())
        given.mark = before
        assert given.give("1", TOPIC, KEY, rows(1), deadline()) == 1
        assert writer.head.position == 1


def test_another_content_for_the_same_step_stops_its_producer_alone(tmp_path: Path) -> None:
    with written(tmp_path) as writer:
        inbox = inbox_of(tmp_path, writer)
        given, other = handover(tmp_path, inbox), handover(tmp_path, inbox, "other")
        before = given.open(deadline())
        given.give("1", TOPIC, KEY, rows(1), deadline())
        given.mark = before
        with pytest.raises(Stopped, match="INBOX_CONFLICT"):
            given.give("1", TOPIC, KEY, rows(2), deadline())
        (stop,) = stops.held(tmp_path / "run")
        assert (stop.state, stop.part) == (StopState.INBOX_CONFLICT, part_of("job"))
        other.open(deadline())
        other.give("1", "derived.others", KEY, rows(5), deadline())
        with pytest.raises(Stopped):
            handover(tmp_path, inbox).open(deadline())
        stops.clear(tmp_path / "run", stop.name)
        again = handover(tmp_path, inbox)
        assert again.open(deadline()).to == "1"
        again.give("2", TOPIC, KEY, rows(2), deadline())
    assert [one for _, _, one, _ in logged(tmp_path)] == [1, 2]
    assert [one for _, _, one, _ in logged(tmp_path, "derived.others")] == [5]


def test_a_gap_and_somebody_elses_topic_are_refused_by_name(tmp_path: Path) -> None:
    with written(tmp_path) as writer:
        inbox = inbox_of(tmp_path, writer)
        writer.append(changes(ORDERS, [1]))
        writer.commit(Lsn(7), 0)
        given, other = handover(tmp_path, inbox), handover(tmp_path, inbox, "other")
        given.open(deadline())
        given.give("1", TOPIC, KEY, rows(1), deadline())
        other.open(deadline())
        with pytest.raises(HeadwaterError, match=r"topic derived\.delays is brought by job"):
            other.give("1", TOPIC, KEY, rows(2), deadline())
        with pytest.raises(HeadwaterError, match=r"source\.tables selects public\.orders"):
            other.give("1", "public.orders", KEY, rows(2), deadline())
        unselected = handover(tmp_path, inbox_of(tmp_path, writer, tables=["app.*"]), "other")
        unselected.open(deadline())
        with pytest.raises(HeadwaterError, match=r"topic public\.orders is brought by postgres"):
            unselected.give("1", "public.orders", KEY, rows(2), deadline())
        lost = given.mark
        given.give("2", TOPIC, KEY, rows(2), deadline())
        given.give("3", TOPIC, KEY, rows(3), deadline())
        given.mark = lost
        with pytest.raises(HeadwaterError, match="does not begin where"):
            given.give("9", TOPIC, KEY, rows(9), deadline())
        with closing(open_reader(tmp_path / "log")) as log, pytest.raises(HeadwaterError, match=r"selects derived\.delays"):
            check_names(log, ["*.*"])
    assert [one for _, _, one, _ in logged(tmp_path)] == [1, 2, 3]


def test_the_sources_own_name_is_nobody_elses(tmp_path: Path) -> None:
    with written(tmp_path) as writer:
        writer.commit(Lsn(7), 0)
        inbox = inbox_of(tmp_path, writer)
        with pytest.raises(HeadwaterError, match="not one of the inbox"):
            handover(tmp_path, inbox, "postgres").open(deadline())
        folder = InboxFolder(tmp_path / "log")
        name = folder.hand_over("postgres", 1, 0, encode(GroupHeader("postgres", token="0" * 32)))
        serve_all(inbox)
        assert "the source's own name" in (folder.reason(name) or "")
        assert writer.marks() == {}


def test_producers_take_turns(tmp_path: Path) -> None:
    with written(tmp_path) as writer:
        inbox = inbox_of(tmp_path, writer)
        folder = InboxFolder(tmp_path / "log")
        for producer in ("a", "b"):
            handover(tmp_path, inbox, producer).open(deadline())
        for producer in ("a", "b"):
            for number in range(3):
                header = GroupHeader(producer, str(number) if number else "", str(number + 1), f"derived.{producer}", KEY, 1)
                folder.hand_over(producer, 1, number, encode(header, rows(number)))
        before = writer.head.position
        served = []
        while inbox.serve():
            with closing(open_reader(tmp_path / "log")) as log:
                served.append(next(one.name for one in log.topics() if one.last == writer.head.position))
        assert writer.head.position == before + 6
        assert served in (["derived.a", "derived.b"] * 3, ["derived.b", "derived.a"] * 3)


def test_groups_are_taken_in_order_however_many_wait_and_however_the_folder_lists_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = os.scandir

    def backwards(path: Path) -> AbstractContextManager[Iterator[os.DirEntry[str]]]:
        with scan(path) as entries:
            return nullcontext(iter(sorted(entries, key=lambda entry: entry.name, reverse=True)))

    with written(tmp_path) as writer:
        inbox = inbox_of(tmp_path, writer)
        folder = InboxFolder(tmp_path / "log")
        for producer in ("a", "b"):
            handover(tmp_path, inbox, producer).open(deadline())
            for number in range(1, 8):
                header = GroupHeader(producer, str(number - 1) if number > 1 else "", str(number), f"derived.{producer}", KEY, 1)
                folder.hand_over(producer, 1, number, encode(header, rows(number)))
        for number in range(9):
            (folder.root / f".aside-{number}").touch()
        monkeypatch.setattr("cdc.inbox.folder.MAX_LISTED", 2)
        monkeypatch.setattr(os, "scandir", backwards)
        assert (folder.newest_epoch("b"), folder.newest_epoch("nobody")) == (1, 0)
        serve_all(inbox)
    for producer in ("a", "b"):
        assert [one for _, _, one, _ in logged(tmp_path, f"derived.{producer}")] == [1, 2, 3, 4, 5, 6, 7]
    assert not (folder.root / "refused").exists()


def test_the_inbox_waits_while_the_source_has_something_staged(tmp_path: Path) -> None:
    with written(tmp_path) as writer:
        inbox = inbox_of(tmp_path, writer)
        InboxFolder(tmp_path / "log").hand_over("job", 1, 0, encode(GroupHeader("job", token="0" * 32)))
        writer.append(changes(ORDERS, [1]))
        assert not inbox.serve()
        assert writer.marks() == {}
        writer.commit(Lsn(7), 0)
        assert inbox.serve()
        assert set(writer.marks()) == {"job"}


def test_a_mark_without_changes_rides_with_the_next_cut_or_goes_alone_after_a_second(tmp_path: Path) -> None:
    with written(tmp_path) as writer:
        inbox = inbox_of(tmp_path, writer)
        folder = InboxFolder(tmp_path / "log")
        handover(tmp_path, inbox).open(deadline())
        name = folder.hand_over("job", 1, 1, encode(GroupHeader("job", "", "1")))
        while inbox.serve():
            pass
        assert b'"to":""' in writer.marks()["job"]
        assert folder.waits(name)
        writer.append(changes(ORDERS, [1]))
        writer.rollback()  # a stream that breaks takes what was staged back
        serve_all(inbox)
        writer.append(changes(ORDERS, [1]))
        writer.commit(Lsn(7), 0)
        given = handover(tmp_path, inbox)
        assert given.open(deadline()).to == "1"
        assert not folder.waits(name)
        given.give("2", "", (), [], deadline())
        assert b'"to":"2"' in writer.marks()["job"]


@pytest.mark.parametrize("limit", ["MAX_MARK_BYTES", "MAX_PRODUCERS"])
def test_a_mark_without_changes_that_the_log_refuses_is_put_aside_and_stops_nobody(
    tmp_path: Path, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with written(tmp_path) as writer:
        inbox = inbox_of(tmp_path, writer)
        folder = InboxFolder(tmp_path / "log")
        writer.append(changes(ORDERS, [1]))
        writer.commit(Lsn(7), 0)
        handover(tmp_path, inbox).open(deadline())
        name = folder.hand_over("job", 1, 1, encode(GroupHeader("job", "", "1")))
        with monkeypatch.context() as patch:
            patch.setattr(producers, limit, 0)  # in the place of a log that is full
            for _ in range(2 * ceil(RIDE_S / LOOK_S)):
                inbox.serve()
        assert "at most 0" in (folder.reason(name) or "")
        writer.append(changes(ORDERS, [2]))
        writer.commit(Lsn(8), 0)
        assert b'"to":""' in writer.marks()["job"]
        handover(tmp_path, inbox).open(deadline())


def test_a_disk_that_refuses_a_mark_without_changes_leaves_nothing_staged(tmp_path: Path) -> None:
    with written(tmp_path) as writer:
        inbox = inbox_of(tmp_path, writer)
        given = handover(tmp_path, inbox)
        given.open(deadline())
        before = writer.marks()
        with armed("log.timeline.before_write=error"), pytest.raises(OSError, match="cannot write the log"):
            given.give("1", "", (), [], deadline())
        writer.append(changes(ORDERS, [1]))
        writer.commit(Lsn(7), 0)
        assert writer.marks() == before
        serve_all(inbox)
        assert handover(tmp_path, inbox).open(deadline()).to == "1"


@pytest.mark.parametrize(
    "point", ["log.timeline.before_write", *(name for name in points.places() if name.startswith("inbox.take."))]
)
def test_an_error_at_any_step_leaves_the_group_taken_once(tmp_path: Path, point: str) -> None:
    with written(tmp_path) as writer:
        inbox = inbox_of(tmp_path, writer)
        given = handover(tmp_path, inbox)
        given.open(deadline())
        with armed(f"{point}=error"), pytest.raises(OSError, match=r"crash point|cannot write the log"):
            given.give("1", TOPIC, KEY, rows(1, 2), deadline())
        serve_all(inbox_of(tmp_path, writer))
        assert handover(tmp_path, inbox).open(deadline()).to == "1"
    assert [one for _, _, one, _ in logged(tmp_path)] == [1, 2]


def test_an_error_behind_the_commit_gives_no_column_another_number(tmp_path: Path) -> None:
    """The group is in the log, and the same inbox goes on: what it knew of the topic before is out of date."""
    with written(tmp_path) as writer:
        inbox = inbox_of(tmp_path, writer)
        given = handover(tmp_path, inbox)
        given.open(deadline())
        given.give("1", TOPIC, KEY, rows(1), deadline())
        with armed("log.commit.published=error"), pytest.raises(Fault):
            given.give("2", TOPIC, KEY, rows(2, n=7), deadline())
        serve_all(inbox)
        given = handover(tmp_path, inbox)
        assert given.open(deadline()).to == "2"
        given.give("3", TOPIC, KEY, rows(3, n=8), deadline())
    with closing(open_reader(tmp_path / "log")) as reader:
        (topic,) = reader.topics()
        shape = rows_schema(topic.schema)
        read = reader.read(TOPIC, Position(0), reader.head().position)
        found = [row for batch in read for row in to_rows(batch, shape).to_pylist() if row["_cdc_op"] == "u"]
    assert [(row["id"], row["n"]) for row in found] == [(1, None), (2, 7), (3, 8)]


def test_what_can_be_put_aside_only_later_keeps_nobody_waiting_for_longer(tmp_path: Path) -> None:
    with written(tmp_path) as writer:
        inbox = inbox_of(tmp_path, writer)
        folder = InboxFolder(tmp_path / "log")
        in_the_way = folder.root / "refused"
        in_the_way.touch()  # in the place of a disk that is full
        name = folder.hand_over("job", 1, 1, encode(GroupHeader("job", "", "1")))
        for _ in range(ceil(PASS_OVER_S / LOOK_S)):
            inbox.serve()
        assert folder.waits(name)
        in_the_way.unlink()
        for _ in range(ceil(PASS_OVER_S / LOOK_S)):
            inbox.serve()
        assert not folder.waits(name)
        assert "never opened" in (folder.reason(name) or "")


def test_only_the_newest_refusals_are_kept(tmp_path: Path) -> None:
    with written(tmp_path) as writer:
        inbox = inbox_of(tmp_path, writer)
        folder = tmp_path / "log/inbox"
        for number in range(2 * KEPT_REFUSALS):
            (folder / f"junk {number}").write_bytes(b"junk")
        (folder / "a folder").mkdir()
        (folder / ("x" * 255)).touch()
        serve_all(inbox)
        assert sorted(path.name for path in folder.iterdir()) == ["refused"]
        assert len(list((folder / "refused").iterdir())) <= 2 * KEPT_REFUSALS


def test_column_policies_are_of_the_sources_tables_only(tmp_path: Path) -> None:
    """Under ``strict`` every column of a table has to be named; a topic of another producer is not
    a table.
    """
    with written(tmp_path) as unguarded:
        writer = ProtectedWriter(unguarded, Protection({}, strict=True).protect)
        given = handover(tmp_path, inbox_of(tmp_path, writer))
        given.open(deadline())
        given.give("1", TOPIC, KEY, rows(1), deadline())
        with pytest.raises(Stopped, match="PRIVACY_UNDECIDED"):
            writer.append(changes(ORDERS, [2]))
        with closing(open_reader(tmp_path / "log")) as log:
            assert [topic.name for topic in log.topics()] == [TOPIC]
            assert captured(log) == []


def test_capture_learns_nothing_from_topics_that_it_does_not_bring(tmp_path: Path) -> None:
    with written(tmp_path) as writer, closing(ToastMemory(tmp_path / "toast.db")) as memory:
        given = handover(tmp_path, inbox_of(tmp_path, writer))
        given.open(deadline())
        given.give("1", TOPIC, KEY, rows(1), deadline())
        Intake(tmp_path / "log", writer, memory, Mock(outdated=lambda _: False), Mock()).catch_up()
        assert memory.position == 1
        assert list(memory.relations) == []


def test_what_intake_serves_is_counted_in_captures_status(tmp_path: Path) -> None:
    with written(tmp_path) as writer:
        inbox = inbox_of(tmp_path, writer)
        gauge = Mock(status=CaptureStatus())
        intake = Intake(tmp_path / "log", writer, Mock(), Mock(), gauge, inbox=inbox)
        given = Handover(tmp_path / "log", tmp_path / "run", "job", lambda: intake.serve_inbox() and None)
        given.open(deadline())
        given.give("1", TOPIC, KEY, rows(1, 2), deadline())
        assert (gauge.status.position, gauge.status.changes) == (2, 2)
        assert not Intake(tmp_path / "log", writer, Mock(), Mock(), gauge).serve_inbox()
