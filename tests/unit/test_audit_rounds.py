"""The continuous audit's thread where its surroundings change under it: nothing is found that is not so, and nothing ends it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from cdc.audit import logcomparison, rounds
from cdc.audit.budget import Budget
from cdc.audit.keyrange import KeyRange
from cdc.audit.logcomparison import OpenedStore
from cdc.audit.rounds import ContinuousAudit, StoreRound
from cdc.follow.rules import Rules
from cdc.model.position import Cut
from cdc.model.topic import TopicSchema
from cdc.settings.models import Audit, Settings
from cdc.state.auditstate import AuditStanding, Drift, TableStanding
from sinks.heldlog import HeldLog
from sinks.memory import MemorySink, Options
from tests.contract.rows import ORDERS, order, upserts
from tests.logs import LooseLog, cut

OPTIONS = Options.model_validate({"kind": "memory"})
TABLE = "public.orders"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        source={"dsn": "postgresql://nobody@127.0.0.1:1/none"},
        log={"dir": tmp_path / "log"},
        stores={"copy": OPTIONS},
        run_dir=tmp_path / "run",
        audit=Audit(pause_s=0.0),
    )  # type: ignore[arg-type]


def test_a_log_that_cannot_be_opened_does_not_end_the_audit(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    stop, tried = threading.Event(), threading.Semaphore(0)

    def refused(_: Path) -> Any:
        tried.release()
        raise PermissionError(13, "Permission denied", "log")

    monkeypatch.setattr(rounds, "open_reader", refused)
    monkeypatch.setattr(rounds, "RETRY_S", 0.01)
    audit = ContinuousAudit(settings, dict, stop)
    audit.start()
    assert all(tried.acquire(timeout=60) for _ in range(3))
    stop.set()
    audit.join()


def test_what_was_seen_while_the_options_changed_is_no_finding(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store may have been built again by the new ones meanwhile."""
    wanted = {"copy": OPTIONS}
    lacking = Drift(rows=9, missing=9)

    def compared(*_: object) -> Drift:
        return lacking

    @contextmanager
    def opened(_: StoreRound) -> Iterator[Any]:
        yield SimpleNamespace(compare=compared, applied=cut(9))

    monkeypatch.setattr(rounds, "hindrance", lambda *_: None)
    monkeypatch.setattr(StoreRound, "_opened", opened)
    stop = threading.Event()
    audit = ContinuousAudit(settings, lambda: wanted, stop)
    log = LooseLog()
    log.put(upserts(ORDERS, 1, [order(1)]))
    (topic,) = log.reader().topics()
    known = rounds._Store(OPTIONS, AuditStanding(round_at=1.0, tables=(TableStanding(TABLE),)))
    turn = StoreRound(audit, "copy", known, log.reader(), Budget(1.0, stop))
    found = turn._compared(TableStanding(TABLE), topic)
    assert found is not None
    assert found.drift == lacking
    wanted["copy"] = OPTIONS.model_copy(update={"row_bytes_max": 1})
    found = turn._compared(TableStanding(TABLE), topic)
    assert found is not None
    assert found.drift == Drift()
    assert found.problem is not None


def test_a_start_leaves_no_word_about_what_is_over(settings: Settings) -> None:
    """Before the first round begins, the store's follower follows for long."""
    later = settings.model_copy(update={"audit": Audit(pause_s=9e9)})
    audit = ContinuousAudit(later, lambda: {"copy": OPTIONS}, threading.Event())
    known = rounds._Store(OPTIONS, AuditStanding(waits="its follower does not run"))
    assert not StoreRound(audit, "copy", known, LooseLog().reader(), Budget(1.0, threading.Event())).step()
    assert known.standing.waits is None


def test_a_clock_that_is_set_back_ends_a_round_and_keeps_nothing_from_being_compared() -> None:
    now = time.time()
    later = now + 1e6
    table = TableStanding(TABLE, whole_at=later, compared_at=later, last=Drift(rows=1))
    ended = rounds._not_from_later(AuditStanding(round_at=later, ended_at=later, tables=(table,)), now)
    assert ended.ended_at >= ended.round_at, "the next round begins"
    assert replace(ended, round_at=now).share() == 0.0, "with every table"
    assert ended.tables[0].last == table.last
    usual = AuditStanding(round_at=now - 9, ended_at=now - 5, tables=(replace(table, whole_at=now - 6, compared_at=now - 6),))
    assert rounds._not_from_later(usual, now) == usual


@pytest.mark.parametrize(("before", "ranges"), [(0, 100), (200, 4), (9_000, 100)])
def test_a_row_that_has_changed_often_counts_as_one_once_its_table_has_been_compared(before: int, ranges: int) -> None:
    log = LooseLog()
    log.put(upserts(ORDERS, 1, [order(1)]))
    (topic,) = log.reader().topics()
    assert logcomparison.ranges_of(replace(topic, rows=10_000), before, 100) == ranges


class BuiltAgain(MemorySink):
    """A store that was emptied before it was read, and is whole again by the time at which it is asked how far it is."""

    whole = False

    def applied(self) -> Cut:
        self.whole = True
        return super().applied()

    def scan(self, schema: TopicSchema) -> Iterator[pa.RecordBatch]:
        return super().scan(schema) if self.whole else iter(())

    def fetch(self, schema: TopicSchema, keys: pa.RecordBatch) -> pa.RecordBatch:
        found = super().fetch(schema, keys)
        return found if self.whole else found.slice(0, 0)


def test_a_store_that_was_built_again_just_before_the_end_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logcomparison, "LOOKS_APART_S", 0.0)
    log = LooseLog()
    writer = MemorySink("audited-rounds", OPTIONS)
    writer.open(log.reader(), 1)
    writer.prepare(TopicSchema.of(ORDERS))
    changes = upserts(ORDERS, 1, [order(1), order(2)])
    log.put(changes)
    writer.apply(changes)
    writer.commit(cut(2))
    sink = BuiltAgain("audited-rounds", OPTIONS)
    held = HeldLog(log.reader(), sink.name, OPTIONS)
    applied = sink.open(held)
    held.settle(sink)
    sink.whole = False
    (topic,) = held.topics()
    store = OpenedStore(sink, held, Rules(sink.name, OPTIONS), applied, Budget(1.0, threading.Event()))
    checks = iter([True])  # the first is made before anything is suspected

    def check(one: OpenedStore) -> None:
        if not next(checks, False):
            one.sink.applied()

    monkeypatch.setattr(OpenedStore, "check", check)
    assert store.compare(topic, KeyRange(0, 1), 7, lambda *_: None).differing == 0
