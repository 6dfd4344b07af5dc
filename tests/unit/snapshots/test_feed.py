"""The feed's rules, one thread playing both sides."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from cdc.errors import SourceError
from cdc.model.batch import Op
from cdc.model.evolution import Kind, SchemaChange, schema_change_of, schema_record
from cdc.model.group import Watermark
from cdc.model.position import Cut, Lsn, Position
from snapshots.catalog import SourceTable
from snapshots.feed import Chunk, SnapshotFeed, State, place
from snapshots.fence import Barrier, Snapshot
from snapshots.jobs import Job, Task
from snapshots.loads import Loads
from snapshots.progress import SnapshotProgress
from tests.unit.snapshots.rows import T, batch, group

SOURCE = SourceTable(T, ("a", "b"), False, None, 10, 1000, 1)


@pytest.fixture
def feed(tmp_path: Path) -> SnapshotFeed:
    progress = SnapshotProgress(tmp_path, interval_s=0.0)
    progress.begin(SOURCE, "files")
    return SnapshotFeed(progress)


def ready(feed: SnapshotFeed, content: bytes = b"chunk:1", snapshot: str = "100:110:105") -> Chunk:
    window = feed.open(T)
    assert feed.admit(window, Snapshot.parse(snapshot))
    chunk = Chunk(content, window)
    feed.ready(chunk, [batch(T, [{"a": 1, "b": "x"}, {"a": 2, "b": "x"}], op=Op.READ)])
    return chunk


def test_a_chunk_enters_without_what_it_does_not_see(feed: SnapshotFeed) -> None:
    chunk = ready(feed)
    feed.on_group(group([batch(T, [{"a": 2, "b": "x"}])], (105, 1)))
    survivors = feed.chunk_at(Watermark(b"chunk:1", 50))
    assert survivors is not None
    assert [row["a"] for one in survivors for row in one.to_pylist()] == [1]
    feed.on_durable(Cut(Position(3), Lsn(49)))
    assert chunk.state is State.ENTERED
    feed.on_durable(Cut(Position(3), Lsn(60)))
    assert chunk.state is State.DURABLE
    assert feed.chunk_at(Watermark(b"chunk:1", 50)) is None, "it enters once"


def test_other_messages_are_no_chunks(feed: SnapshotFeed) -> None:
    assert feed.chunk_at(Watermark(b"hello", 50)) is None


def test_a_window_is_refused_when_something_delivered_is_not_visible(feed: SnapshotFeed) -> None:
    feed.on_group(group([], (105, 0)))
    assert not feed.admit(feed.open(T), Snapshot.parse("100:110:105"))
    assert feed.admit(feed.open(T), Snapshot.parse("106:110:"))


def test_what_was_refused_once_is_remembered(feed: SnapshotFeed) -> None:
    feed.on_group(group([], (105, 0)))
    for _ in range(3):
        assert not feed.admit(feed.open(T), Snapshot.parse("100:110:105"))


def test_the_barrier_holds_all_windows_until_it_is_passed(feed: SnapshotFeed) -> None:
    feed.set_barrier(Barrier(Snapshot.parse("100:101:100"), 101))
    assert not feed.admit(feed.open(T), Snapshot.parse("100:110:100"))
    feed.on_group(group([], (100, 0)))
    assert not feed.admit(feed.open(T), Snapshot.parse("100:110:100")), "delivered, so it has to be visible after all"
    assert feed.admit(feed.open(T), Snapshot.parse("110:110:"))


def test_a_barrier_gives_way_to_what_this_process_was_delivered_inside_the_window(feed: SnapshotFeed) -> None:
    feed.set_barrier(Barrier(Snapshot.parse("100:101:100"), 101))
    window = feed.open(T)
    feed.on_group(group([], (100, 0)))
    assert feed.admit(window, Snapshot.parse("100:110:100"))


def test_a_snapshot_older_than_the_one_that_let_the_barrier_pass_is_refused(feed: SnapshotFeed) -> None:
    feed.set_barrier(Barrier(Snapshot.parse("100:101:100"), 101))
    slow, quick = feed.open(T), feed.open(T)
    assert feed.admit(quick, Snapshot.parse("110:110:"))
    assert not feed.admit(slow, Snapshot.parse("100:110:100"))
    assert feed.admit(feed.open(T), Snapshot.parse("110:110:"))


def test_reset_lets_open_chunks_be_read_again(feed: SnapshotFeed) -> None:
    entered, waiting = ready(feed), ready(feed, b"chunk:2")
    assert feed.chunk_at(Watermark(b"chunk:1", 50))
    window = feed.open(T)
    feed.reset()
    assert (entered.state, waiting.state) == (State.REFUSED, State.REFUSED)
    assert feed.chunk_at(Watermark(b"chunk:2", 60)) is None
    assert feed.admit(window, Snapshot.parse("106:110:"))
    late = Chunk(b"chunk:3", window)
    feed.ready(late, [])
    assert feed.chunk_at(Watermark(b"chunk:3", 70)) is None
    assert late.state is State.REFUSED


@pytest.mark.parametrize("closed_first", [True, False])
def test_no_chunk_enters_whose_window_is_closed(feed: SnapshotFeed, closed_first: bool) -> None:
    """A reader that fails closes the window, and lets go of its chunks a moment later: a delete in between is in no window."""
    first = ready(feed)
    second = Chunk(b"chunk:2", first.window)
    feed.ready(second, [batch(T, [{"a": 3, "b": "x"}], op=Op.READ)])
    if closed_first:
        feed.close(first.window)
    else:
        feed.abandon(first)
    feed.on_group(group([batch(T, [{"a": 3, "b": "x"}], op=Op.DELETE)], (120, 1)))
    assert feed.chunk_at(Watermark(b"chunk:2", 50)) is None
    assert second.state is State.REFUSED


def test_held_rows_overlay_the_chunk_and_outlive_no_reset(feed: SnapshotFeed) -> None:
    missing = {"w": np.array([True])}
    held = batch(T, [{"a": 1, "b": "x", "v": "sent"}])
    feed.hold(held, missing)
    assert feed.unresolved(T.oid)
    ready(feed)
    survivors = feed.chunk_at(Watermark(b"chunk:1", 50))
    assert survivors is not None
    assert survivors[0].column("v").to_pylist() == ["sent", None]
    assert not feed.held(T.oid)
    feed.hold(held, missing)
    feed.reset()
    assert not feed.held(T.oid)
    assert feed.to_read_again() == {T.oid}
    assert not feed.finish(T.oid, 1)
    old = feed._progress.begin(SOURCE, "files").number
    feed.reading_again(T.oid)
    assert not feed.finish(T.oid, old), "late words of what was given up"
    assert feed.finish(T.oid, feed._progress.begin(SOURCE, "files").number)


def test_a_delete_from_before_a_held_row_took_the_key_does_not_end_the_waiting(feed: SnapshotFeed) -> None:
    """The source had no row of that key when it was asked; then another row took it over, without an unchanged value."""
    window = feed.open(T)
    assert feed.admit(window, Snapshot.parse("100:100:"))
    feed.ready(Chunk(b"chunk:1", window), [batch(T, [{"a": 7, "b": "x"}, {"a": 8, "b": "x"}], op=Op.DELETE)])
    feed.hold(batch(T, [{"a": 7, "b": "x", "v": "moved here"}]), {"w": np.array([True])})
    survivors = feed.chunk_at(Watermark(b"chunk:1", 50))
    assert survivors is not None
    assert [row["a"] for one in survivors for row in one.to_pylist()] == [8]
    assert feed.held(T.oid)


def test_a_row_that_was_completed_does_not_come_again_from_another_chunk(feed: SnapshotFeed) -> None:
    """The row moved to another page between two workers' snapshots, neither of which sees the update that is held."""
    ready(feed)
    ready(feed, b"chunk:2")
    feed.hold(batch(T, [{"a": 1, "b": "x", "v": "sent"}]), {"w": np.array([True])})
    first, second = (feed.chunk_at(Watermark(content, 50)) for content in (b"chunk:1", b"chunk:2"))
    assert first is not None
    assert first[0].column("v").to_pylist() == ["sent", None]
    assert second is not None
    assert [row["a"] for one in second for row in one.to_pylist()] == [2]


def test_what_the_log_has_comes_without_its_changes_and_lets_no_barrier_pass(feed: SnapshotFeed) -> None:
    """After a restart the server sends transactions again, even such as are not visible yet."""
    feed.set_barrier(Barrier(Snapshot.parse("100:101:100"), 101))
    window = feed.open(T)
    feed.on_group(group([], (100, 0)), durable_lsn=1)
    assert not feed.admit(window, Snapshot.parse("100:110:100"))
    assert feed.admit(feed.open(T), Snapshot.parse("110:110:"))


def test_a_crash_while_rows_are_held_begins_the_table_anew(feed: SnapshotFeed, tmp_path: Path) -> None:
    feed._progress.advance(T.oid, 0, (0, 5), 2, waiting=False)
    assert SnapshotProgress(tmp_path).begin(SOURCE, "files").pages == ((0, 5),)
    feed.hold(batch(T, [{"a": 1, "b": "x"}]), {"w": np.array([True])})
    again = SnapshotProgress(tmp_path)
    assert again.begin(SOURCE, "files").pages == ()
    assert again.tables()[0].done == 0


def test_errors_reach_ingest(feed: SnapshotFeed) -> None:
    feed.fail(SourceError("no"))
    for call in (feed.check, lambda: feed.on_group(group([])), lambda: feed.chunk_at(Watermark(b"", 0))):
        with pytest.raises(SourceError):
            call()


def test_place() -> None:
    placed = place([batch(T, [{"a": 1}, {"a": 2}]), batch(T, [{"a": 3}])], Position(41), 7, 1_000_001)
    assert [one.column("_cdc_position").to_pylist() for one in placed] == [[41, 42], [43]]
    assert {(row["_cdc_lsn"], row["_cdc_ts"].microsecond) for one in placed for row in one.to_pylist()} == {(7, 1)}


def test_read_again_lets_go_of_what_is_open_and_held(feed: SnapshotFeed, tmp_path: Path) -> None:
    feed._progress.finish(T.oid, 0)
    feed.hold(batch(T, [{"a": 1, "b": "x"}]), {"w": np.array([True])})
    open_chunk = ready(feed)
    feed.read_again(T.oid, empties=True)
    assert feed.chunk_at(Watermark(b"chunk:1", 50)) is None
    assert open_chunk.state is State.REFUSED
    assert not feed.held(T.oid)
    assert feed.to_read_again() == {T.oid}
    after_a_crash = SnapshotProgress(tmp_path)
    assert (after_a_crash.finished(T.oid), after_a_crash.empties(T.oid), after_a_crash.joining(T.oid)) == (False, True, False)


def test_read_again_of_an_unknown_table_waits_for_open_transactions(feed: SnapshotFeed, tmp_path: Path) -> None:
    feed.read_again(99)
    assert SnapshotProgress(tmp_path).joining(99)


def test_a_table_that_comes_back_waits_for_open_transactions(feed: SnapshotFeed, tmp_path: Path) -> None:
    feed._progress.finish(T.oid, 0)
    asked_in = feed._progress.run(T.oid)
    feed.read_again(T.oid, joined=True)
    feed._progress.joined(T.oid, asked_in)
    assert SnapshotProgress(tmp_path).joining(T.oid), "what was open when it came before is another matter"
    feed._progress.joined(T.oid, feed._progress.run(T.oid))
    feed._progress.flush()
    assert not SnapshotProgress(tmp_path).joining(T.oid)


def test_a_table_that_comes_back_while_the_catalog_is_asked_is_not_forgotten(feed: SnapshotFeed) -> None:
    asked_in = feed._progress.run(T.oid)
    feed.read_again(T.oid, joined=True)
    feed.forget(T.oid, asked_in)
    assert feed._progress.unfinished() == [T.oid]
    feed.forget(T.oid, feed._progress.run(T.oid))
    assert not feed._progress.known(T.oid)


def test_a_schema_record_refuses_the_chunks_that_are_open(feed: SnapshotFeed) -> None:
    chunk = ready(feed)
    feed.on_group(group([schema_record(SchemaChange(T, Kind.REWRITTEN, empties=True), 1, 0, 0)], (200, 1)))
    assert feed.chunk_at(Watermark(b"chunk:1", 50)) is None
    assert chunk.state is State.REFUSED


@pytest.mark.parametrize("another", [True, False])
def test_rows_of_another_table_of_that_name_refuse_the_chunks_that_are_open(feed: SnapshotFeed, another: bool) -> None:
    """It was dropped and made again by a transaction that the snapshot does not see, as its commit still waits for a standby."""
    chunk = ready(feed)
    made_again = replace(T, oid=9, name="t" if another else "u")
    feed.on_group(group([batch(made_again, [{"a": 5, "b": "new"}])], (200, 1)))
    assert (feed.chunk_at(Watermark(b"chunk:1", 50)) is None) == another
    assert chunk.state is (State.REFUSED if another else State.ENTERED)


@pytest.mark.parametrize("empties", [True, False])
def test_an_announcement_enters_as_a_schema_record(feed: SnapshotFeed, empties: bool) -> None:
    change = SchemaChange(T, Kind.REWRITTEN, empties=empties)
    feed.ready(Chunk(b"chunk:1", feed.open(T), announces=change), ())
    (record,) = feed.chunk_at(Watermark(b"chunk:1", 50)) or ()
    assert schema_change_of(place([record], Position(9), 50, 0)[0]) == change


def test_changes_of_another_shape_before_a_held_row_do_not_let_it_go(feed: SnapshotFeed) -> None:
    """A rename and the first update after it in one group: the table was read from its beginning."""
    renamed = replace(T, columns=(*T.columns[:3], replace(T.columns[3], name="renamed")))
    feed.hold(batch(renamed, [{"a": 1, "b": "x"}], first=4), {"renamed": np.array([True])})
    feed.on_group(group([batch(T, [{"a": 1, "b": "x"}, {"a": 2, "b": "x"}, {"a": 3, "b": "x"}])], (100, 3)))
    assert feed.held(T.oid)
    assert not feed.to_read_again()
    feed.on_group(group([batch(T, [{"a": 1, "b": "x"}], first=4)], (101, 4)))
    assert feed.to_read_again() == {T.oid}


def test_a_chunk_of_another_shape_than_a_held_row_is_read_again(feed: SnapshotFeed) -> None:
    """A rename and one update that is held back: nothing but the held row tells of either, and the chunk has the row from before."""
    chunk = ready(feed)
    renamed = replace(T, columns=(*T.columns[:3], replace(T.columns[3], name="renamed")))
    feed.hold(batch(renamed, [{"a": 1, "b": "x"}]), {"renamed": np.array([True])})
    assert feed.chunk_at(Watermark(b"chunk:1", 50)) is None
    assert chunk.state is State.REFUSED


def test_a_range_that_ends_after_held_rows_were_let_go_does_not_end_the_waiting(feed: SnapshotFeed, tmp_path: Path) -> None:
    """The stream broke, and what it held of the table is lost: until that begins again from its beginning, a crash must not let it go on."""
    job = _job(feed)
    feed.hold(batch(T, [{"a": 1, "b": "x", "v": "sent"}]), {"w": np.array([True])})
    feed.reset()
    job.purpose.advance(Task((), pages=(0, 5)), 10)
    assert SnapshotProgress(tmp_path).begin(SOURCE, "files").pages == ()
    feed.reading_again(T.oid)
    _job(feed).purpose.advance(Task((), pages=(0, 5)), 10)
    assert SnapshotProgress(tmp_path).begin(SOURCE, "files").pages == ((0, 5),)


def _job(feed: SnapshotFeed) -> Job:
    options = Mock(snapshot_chunk_rows=10, snapshot_workers=1, snapshot_rows_per_s=None)
    steps = Loads(options, feed, feed._progress, Mock(), Mock(), Mock()).job(SOURCE, Mock(files="files"), 0, joined=True)
    with pytest.raises(StopIteration) as ended:
        next(steps)
    assert isinstance(ended.value.value, Job)
    return ended.value.value
