"""The thread that keeps look-ups: for the tables that configuration names, as long as it names them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cdc.background import Interrupted
from cdc.log.contract import LogReader
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.lookup import upkeep, worker
from cdc.lookup.lookup import Lookup
from cdc.lookup.shelf import FOLDER, folder_of, names_in
from cdc.lookup.worker import Keeping
from cdc.model.batch import Op
from cdc.model.position import Position
from cdc.settings.models import Settings
from sinks import options_model
from tests.contract.rows import ORDERS, PAIRS, batch, order, upserts
from tests.unit.log.compaction.test_merge import Log

LOOKED_UP = {"public.o*": {"lookup": True}}


@pytest.fixture
def log(quick_folder: Path) -> Iterator[Log]:
    found = Log(quick_folder / "log")
    found.put(upserts(ORDERS, 1, [order(1), order(2)]), upserts(PAIRS, 3, [{"a": "x", "b": "y", "v": "1"}]))
    yield found
    found.close()


def settings(log: Log, tables: object, **options: object) -> Settings:
    raw = {"source": {"dsn": "postgresql://nobody"}, "log": {"dir": log.root, "tables": tables, "reserve_mb": 0, **options}}
    return Settings.model_validate(raw)


def looked(keeping: Keeping, log: Log) -> list[str]:
    problems: list[str] = []
    with closing(EmbeddedLogReader(log.root)) as reader:
        keeping.look(reader, problems)
    return problems


def test_the_named_tables_are_kept_and_no_others(log: Log) -> None:
    now = settings(log, {"public.*": {"lookup": True}, "public.pairs": {"lookup": False, "cleanup": "compact"}})
    assert [now.log.cleanup_of(one) for one in ("public.orders", "public.pairs")] == ["keep", "compact"]
    keeping = Keeping(now, threading.Event(), in_force=lambda: now)
    assert looked(keeping, log) == []
    assert len(names_in(folder_of(log.root, "public.orders"))) == 1
    assert [path.name for path in (log.root / FOLDER).iterdir()] == [folder_of(log.root, "public.orders").name]
    now = settings(log, {"public.pairs": {"lookup": True}})
    assert looked(keeping, log) == []
    assert [path.name for path in (log.root / FOLDER).iterdir()] == [folder_of(log.root, "public.pairs").name]
    now = settings(log, {})
    assert looked(keeping, log) == []
    assert list((log.root / FOLDER).iterdir()) == []


def test_a_store_that_asks_for_former_rows_switches_it_on_for_its_tables(log: Log) -> None:
    given = {"kind": "redis", "url": "redis://h", "tables": {"select": ["public.*"], "public.orders": {"key": "o:{status}:{id}"}}}
    stores = {"cache": options_model("redis").model_validate(given)}
    now = settings(log, {"public.orders": {"lookup": False}}).model_copy(update={"stores": stores})
    keeping = Keeping(now, threading.Event(), in_force=lambda: now)
    assert looked(keeping, log) == []
    assert [path.name for path in (log.root / FOLDER).iterdir()] == [folder_of(log.root, "public.orders").name]
    now = settings(log, {})
    assert looked(keeping, log) == []
    assert list((log.root / FOLDER).iterdir()) == []


def test_what_is_deleted_by_age_cannot_be_looked_up(log: Log) -> None:
    gone = {"cleanup": "delete", "retain_hours": 1}
    for tables, options in (
        ({"public.orders": {"lookup": True, **gone}}, {}),
        (LOOKED_UP, gone),
        ({"public.*": {"lookup": True}, "public.orders": gone}, {}),
    ):
        with pytest.raises(ValueError, match="lookup = true needs the whole table"):
            settings(log, tables, **options)
    settings(log, {"public.*": {"cleanup": "keep"}, "public.orders": {"lookup": True}}, **gone)
    settings(log, {"public.*": {"lookup": True}, "public.orders": {"lookup": False, **gone}})


def test_a_run_is_written_for_many_changes_or_after_a_while(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    keeping = Keeping(settings(log, LOOKED_UP), threading.Event())
    folder = folder_of(log.root, "public.orders")
    assert looked(keeping, log) == []
    first = names_in(folder)
    log.put(upserts(ORDERS, 4, [order(3)]))
    assert looked(keeping, log) == []
    assert names_in(folder) == first
    monkeypatch.setattr(worker, "RUN_S", 0.0)
    assert looked(keeping, log) == []
    assert max(name.high for name in names_in(folder)) == 4
    assert looked(keeping, log) == []
    log.put(upserts(PAIRS, 5, [{"a": "x", "b": "y", "v": "1"}]))
    before = names_in(folder)
    assert looked(keeping, log) == []
    assert names_in(folder) == before, "another table's changes are no reason to write"


def test_a_full_disk_or_a_folder_that_is_refused_is_said_and_what_helps(log: Log) -> None:
    full = Keeping(settings(log, LOOKED_UP, reserve_mb=1), threading.Event(), free=lambda _: 10**6)
    (problem,) = looked(full, log)
    assert "keyed look-ups are not being kept up: less than 1 MB (log.reserve_mb) would be left" in problem
    assert "→" in problem
    assert not names_in(folder_of(log.root, "public.orders"))
    folder_of(log.root, "public.orders").rmdir()
    (log.root / FOLDER).rmdir()
    (log.root / FOLDER).write_text("in the way")
    (problem,) = looked(full, log)
    assert str(log.root / FOLDER) in problem
    stop = threading.Event()
    stop.set()
    (log.root / FOLDER).unlink()
    with pytest.raises(Interrupted):
        looked(Keeping(settings(log, LOOKED_UP), stop), log)


def test_the_thread_keeps_up_and_ends(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "LOOK_S", 0.01)
    stop = threading.Event()
    keeping = Keeping(settings(log, LOOKED_UP), stop)
    keeping.start()
    folder = folder_of(log.root, "public.orders")
    for _ in range(6000):
        if names_in(folder) or stop.wait(0.01):
            break
    stop.set()
    keeping.join()
    assert keeping.alarm() is None
    assert names_in(folder)


def test_pairs_of_changes_that_compaction_has_dropped_go_too(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else they would grow with the changes, and the log with the rows only."""
    monkeypatch.setattr(upkeep, "THIN_PAIRS", 0)
    keeping = Keeping(settings(log, LOOKED_UP), threading.Event())
    end = 600
    for at in range(4, end + 1, 10):
        log.put(batch(ORDERS, [(Op.UPDATE, one, order(one % 7, "again")) for one in range(at, min(at + 10, end + 1))]))
    assert looked(keeping, log) == []
    log.compact(end, end, topic="public.orders")
    with closing(EmbeddedLogReader(log.root)) as reader, closing(Lookup(reader, log.root)) as standing:
        asked = pa.array([str(key) for key in range(8)])
        before = standing.rows("public.orders", Position(end), asked)
        file = max(folder_of(log.root, "public.orders").iterdir())
        size = file.stat().st_size
        assert looked(keeping, log) == []
        assert size - file.stat().st_size > 300 * upkeep.PAIR_BYTES
        after = standing.rows("public.orders", Position(end), asked)
        assert np.array_equal(before.positions, after.positions)
    with closing(EmbeddedLogReader(log.root)) as reader, closing(Lookup(reader, log.root, tail_rows=0)) as fresh:
        assert np.array_equal(fresh.rows("public.orders", Position(end), asked).positions, before.positions)


def test_what_failed_is_not_read_again_at_every_look_and_stays_said(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "RUN_POSITIONS", 1)
    full = Keeping(settings(log, LOOKED_UP, reserve_mb=1), threading.Event(), free=lambda _: 10**6)
    said = looked(full, log)
    assert len(said) == 1
    monkeypatch.setattr(upkeep.RunUpkeep, "advance", lambda _: pytest.fail("read again"))
    assert looked(full, log) == said


def test_where_no_table_is_looked_up_nothing_is_asked_of_the_log(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EmbeddedLogReader, "topics", lambda _: pytest.fail("asked"))
    assert looked(Keeping(settings(log, {}), threading.Event()), log) == []


def test_at_rest_it_keeps_no_file_of_the_log_open(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """The room of a file that compaction has replaced becomes free once nobody has it open."""
    looks, stop = 0, threading.Event()
    closed_after: list[int] = []
    look, close = Keeping.look, EmbeddedLogReader.close

    def one_more(self: Keeping, reader: LogReader, problems: list[str]) -> None:
        nonlocal looks
        looks += 1
        if looks == 5:
            log.put(upserts(ORDERS, 4, [order(3)]))
        if looks == 10:
            stop.set()
        look(self, reader, problems)

    def closed(self: EmbeddedLogReader) -> None:
        closed_after.append(looks)
        close(self)

    monkeypatch.setattr(worker, "LOOK_S", 0.001)
    monkeypatch.setattr(worker, "RUN_S", 0.0)
    monkeypatch.setattr(Keeping, "look", one_more)
    monkeypatch.setattr(EmbeddedLogReader, "close", closed)
    keeping = Keeping(settings(log, LOOKED_UP), stop)
    keeping.start()
    keeping.join()
    assert closed_after == [2, 6, 10]
