"""A log on the disk whose commits have times of days ago, compacted by their age; what questions as of these times have to answer; and the tests that ask a store them."""

from __future__ import annotations

import datetime as dt
import random
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import SecretStr

from cdc.compaction.standing import compact_now
from cdc.log.contract import LogReader
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.batch import TS, Op
from cdc.model.position import Cut, Lsn, Position
from cdc.model.table import Table
from cdc.settings.models import Log, Settings, Source
from sinks.contract import Sink
from sinks.heldlog import HeldLog
from tests.contract.labs import Lab
from tests.contract.rows import ORDERS, PAIRS, batch, order
from tests.contract.test_marks import bring
from tests.contract.test_rebuild import rebuild
from tests.unit.log.disks import QuickDisk

HOUR_US = 3_600_000_000
NAME = ORDERS.qualified
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def us(when: dt.datetime | None) -> int | None:
    """Microseconds since 1970."""
    return None if when is None else (when - _EPOCH) // dt.timedelta(microseconds=1)


@dataclass(frozen=True)
class Version:
    """``ends`` None: it is open. Times in microseconds."""

    key: int
    status: str
    begins: int
    ends: int | None
    begins_us: int
    ends_us: int | None


class AgedLog:
    """Stands where ``Lab.log`` does."""

    def __init__(self, folder: Path, history_hours: float) -> None:
        self.settings = Settings(
            source=Source(dsn=SecretStr("host=h")),
            run_dir=folder / "run",
            log=Log(dir=folder / "log", segment_bytes=4096, cleanup="compact", history_hours=history_hours, reserve_mb=0),
        )
        self.began_us = (time.time_ns() // 1000) - 60 * 24 * HOUR_US
        self.changes: list[tuple[int, int, Op, dict[str, str | None]]] = []
        """Position, time, what."""
        self._reader = EmbeddedLogReader(self.settings.log.dir)
        self._log: LogReader = self._reader

    def us(self, hour: float) -> int:
        return self.began_us + int(hour * HOUR_US)

    def commit(self, hour: float, changes: Iterable[tuple[Op, Any]]) -> None:
        self.commit_all([(self.us(hour), changes)])

    def commit_other(self, hour: float) -> None:
        """A commit of another table alone."""
        self.commit_all([(self.us(hour), [(Op.INSERT, {"a": str(hour), "b": "", "v": ""})])], PAIRS)

    def commit_all(self, commits: Iterable[tuple[int, Iterable[tuple[Op, Any]]]], table: Table = ORDERS) -> None:
        with closing(EmbeddedLogWriter(self.settings.log.dir, segment_bytes=4096, disk=QuickDisk())) as writer:
            for when, changes in commits:
                for op, row in changes:
                    position = writer.next_position
                    made = batch(table, [(op, position, row)])
                    times = pa.array([when], pa.int64()).view(made.schema.field(TS).type)
                    writer.append(made.set_column(made.schema.get_field_index(TS), made.schema.field(TS), times))
                    if table is ORDERS:
                        self.changes.append((int(position), when, op, row))
                writer.commit(Lsn(int(writer.next_position)), when)
            writer.drain_seals()

    def compacted(self) -> int:
        """How many changes are gone."""
        return sum(done.dropped for done in compact_now(self.settings, None))

    def reader(self) -> LogReader:
        return self._log

    def hold(self, lab: Lab, sink: Any) -> None:
        """From now on the log is read as a follower of this store reads it."""
        held = HeldLog(self._reader, lab.name, sink.options)
        held.settle(sink)
        self._log = held

    @property
    def head(self) -> Cut:
        return self._reader.head()

    @property
    def clean_us(self) -> int:
        """From when on the log has every change."""
        topic = next(one for one in self._reader.topics() if one.name == NAME)
        return self._reader.cut_within(Position(max(topic.clean_from - 2, 0)), 1, 1).commit_ts_us

    def rows_at(self, time_us: int) -> list[tuple[int, str]]:
        """The fold of the whole log."""
        return self._rows(lambda position, when: when <= time_us)  # noqa: ARG005

    def rows_upto(self, position: int) -> list[tuple[int, str]]:
        return self._rows(lambda at, when: at <= position)  # noqa: ARG005

    def _rows(self, counts: Callable[[int, int], bool]) -> list[tuple[int, str]]:
        rows: dict[int, str] = {}
        for position, when, op, row in self.changes:
            if not counts(position, when):
                break
            if op == Op.TRUNCATE:
                rows.clear()
            elif op == Op.DELETE:
                rows.pop(int(str(row["id"])), None)
            else:
                rows[int(str(row["id"]))] = str(row["status"])
        return sorted(rows.items())


def as_of(versions: Sequence[Version], *, time_us: int | None = None, position: int | None = None) -> list[tuple[int, str]]:
    """As the page asks."""
    if position is not None:
        there = [one for one in versions if one.begins <= position and (one.ends is None or one.ends > position)]
    else:
        assert time_us is not None
        there = [one for one in versions if one.begins_us <= time_us and (one.ends is None or (one.ends_us or 0) > time_us)]
    return sorted((one.key, one.status) for one in there)


def some_changes(chance: random.Random) -> list[tuple[Op, Any]]:
    if chance.random() < 0.03:
        return [(Op.TRUNCATE, {})]
    found: list[tuple[Op, Any]] = []
    for _ in range(chance.randrange(1, 5)):
        op = chance.choice([Op.INSERT, Op.UPDATE, Op.UPDATE, Op.READ, Op.DELETE])
        found.append((op, order(chance.randrange(8), chance.choice(["new", "paid", "sent"]))))
    return found


def check(log: AgedLog, versions: Sequence[Version], since_us: int) -> None:
    """Every question as of a time, or a position, since then is answered as the whole log does."""
    head = log.head
    cuts = sorted({(when, position) for position, when, _, _ in log.changes if position <= head.position})
    last_of: dict[int, int] = {}
    for when, position in cuts:
        last_of[when] = max(position, last_of.get(when, 0))
    asked = [when for when in last_of if when >= since_us]
    assert asked
    for when in (since_us, *asked):
        assert as_of(versions, time_us=when) == log.rows_at(when), (when - log.began_us) / HOUR_US
    for when in asked:
        assert as_of(versions, position=last_of[when]) == log.rows_upto(last_of[when])


def random_days(
    lab: Lab,
    log: AgedLog,
    seed: int,
    versions: Callable[[], list[Version]],
    complete_from: Callable[[], int | None],
    rounds: int = 11,
) -> None:
    """Versions stay for two days, over two weeks; then the store is built again from the compacted log, and goes on."""
    chance, days = random.Random(seed), 2
    options = {"tables": {"public.*": {"history": True, "history_days": days}}, "compact_files": 3}
    if lab.kind == "sql":
        del options["compact_files"]
    lab.log = log  # type: ignore[assignment]
    log.commit(0, [(Op.INSERT, order(key)) for key in (1, 2, 99)])  # 99 never changes again
    sink, hour = lab.opened(**options), 0.0
    for number in range(rounds):
        commits = []
        for _ in range(chance.randrange(1, 4)):
            hour += chance.choice([0.5, 6, 12, 30]) if number < rounds - 2 else 3
            commits.append((log.us(hour), some_changes(chance)))
        log.commit_all(commits)
        bring(lab, sink)
        if chance.random() < 0.2:
            sink = lab.opened(**options)
        horizon = log.us(hour) - days * 24 * HOUR_US
        found = versions()
        assert all(one.ends_us is None or one.ends_us > horizon - 0.01 * days * 24 * HOUR_US for one in found), "gone"
        if horizon > log.began_us:
            since = complete_from()
            assert since is not None
            assert horizon - days * 0.24 * HOUR_US <= since <= horizon
        check(log, found, max(horizon, log.began_us))
    assert log.compacted()
    assert log.clean_us < horizon
    rebuilt = rebuild(lab, **options)
    log.hold(lab, rebuilt)
    found = versions()
    assert all(one.ends_us is None or one.ends_us > horizon for one in found)
    check(log, found, horizon)
    assert complete_from() == horizon
    for _ in range(3):
        hour += 20
        log.commit(hour, some_changes(chance))
        bring(lab, rebuilt)
        check(log, versions(), log.us(hour) - days * 24 * HOUR_US)


DAY = 24.0


def days_that_change(
    lab: Lab, log: AgedLog, versions: Callable[[], list[Version]], complete_from: Callable[[], int | None]
) -> None:
    """Days are said for a store that has versions, of fewer and of more days; then the source's clock jumps ahead."""
    lab.log = log  # type: ignore[assignment]

    def opened(days: float | None) -> Sink:
        return lab.opened(tables={NAME: {"history": True} | ({} if days is None else {"history_days": days})})

    def ends() -> list[float]:
        return sorted((one.ends_us - log.began_us) / HOUR_US / DAY for one in versions() if one.ends_us is not None)

    log.commit(0, [(Op.INSERT, order(key)) for key in (1, 2, 3)])
    for day in (5, 10, 20):
        log.commit(DAY * day, [(Op.UPDATE, order(1, f"on day {day}")), (Op.DELETE, order(2)), (Op.INSERT, order(2, f"day {day}"))])
    bring(lab, sink := opened(None))
    assert ends() == [5, 5, 10, 10, 20, 20]
    assert complete_from() is None
    sink = opened(7)
    log.commit_other(DAY * 21)
    bring(lab, sink)
    assert ends() == [20, 20], "though nothing of the table itself has come"
    assert complete_from() == log.us(DAY * 14)
    check(log, versions(), log.us(DAY * 14))
    sink = opened(50)
    log.commit(DAY * 22, [(Op.TRUNCATE, {})])
    bring(lab, sink)
    assert ends() == [20, 20, 22, 22, 22]
    assert complete_from() == log.us(DAY * 14), "what has gone is not there again"
    rebuilt = rebuild(lab, tables={NAME: {"history": True, "history_days": 50}})
    assert ends() == [5, 5, 10, 10, 20, 20, 22, 22, 22]
    assert complete_from() == log.us(DAY * (22 - 50)), "before the log's beginning"
    check(log, versions(), log.began_us)
    log.hold(lab, rebuilt)
    log.commit_all([(log.us(DAY * 365 * 80), [(Op.INSERT, order(1, "later"))])])
    bring(lab, rebuilt)
    assert ends() == [20, 20, 22, 22, 22], "counted back from this machine's clock, of which the log's beginning is 60 days ago"
    check(log, versions(), log.us(DAY * 11))


def whole_from_later(
    lab: Lab, log: AgedLog, versions: Callable[[], list[Version]], complete_from: Callable[[], int | None]
) -> None:
    """The log has been compacted to fewer hours than the days need, or behind a store that stood still for long: both is said, and no later time is wrong."""
    lab.log = log  # type: ignore[assignment]
    options: dict[str, Any] = {"tables": {NAME: {"history": True, "history_days": 30}}}
    log.commit(0, [(Op.INSERT, order(key)) for key in range(40)])
    bring(lab, sink := lab.opened(**options))
    since = complete_from()
    log.commit_all(
        (log.us(hour), [*((Op.UPDATE, order(key, f"at {hour}")) for key in range(10)), (Op.DELETE, order(30 + hour % 5))])
        for hour in range(40)
    )
    assert log.compacted()
    assert log.began_us < log.clean_us < log.us(40)
    bring(lab, sink)
    assert since is not None
    assert since < log.began_us
    assert complete_from() == log.clean_us
    check(log, versions(), log.clean_us)
    rebuild(lab, **options)
    assert complete_from() == log.clean_us
    check(log, versions(), log.clean_us)
    sink.close()


# The tests of every kind of store, which bring ``lab``, ``versions`` and ``complete_from`` of their own


def test_times_within_the_days_are_answered_as_the_whole_log_does(
    lab: Lab, tmp_path: Path, seed: int, versions: Callable[[], list[Version]], complete_from: Callable[[], int | None]
) -> None:
    random_days(lab, AgedLog(tmp_path / "aged", 72), seed, versions, complete_from)


def test_days_may_be_said_later_and_be_fewer_or_more(
    lab: Lab, tmp_path: Path, versions: Callable[[], list[Version]], complete_from: Callable[[], int | None]
) -> None:
    days_that_change(lab, AgedLog(tmp_path / "aged", 1000000), versions, complete_from)


def test_what_the_log_no_longer_has_is_said(
    lab: Lab, tmp_path: Path, versions: Callable[[], list[Version]], complete_from: Callable[[], int | None]
) -> None:
    whole_from_later(lab, AgedLog(tmp_path / "aged", 12), versions, complete_from)
