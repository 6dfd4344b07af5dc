from __future__ import annotations

import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from cdc.log.embedded.syncpool import LOOK_AGAIN, WORTH_S, SyncPool
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.batch import Op
from cdc.model.position import Lsn
from tests.contract.rows import ORDERS, batch, order


@pytest.mark.parametrize("threads", [1, 2, 3, 40])
def test_each_is_synced_once_and_all_are_done_on_return(threads: int) -> None:
    done: list[int] = []
    used: set[str] = set()

    def sync(one: int) -> None:
        used.add(threading.current_thread().name)
        done.append(one)

    with closing(SyncPool(threads)) as pool:
        for count in (0, 1, 2, 9):
            done.clear()
            pool.together(sync, range(count))
            assert sorted(done) == list(range(count))
    if threads == 1:
        assert used == {threading.current_thread().name}


@pytest.mark.parametrize(("quicker_s", "threads"), [(WORTH_S / 2, 1), (2 * WORTH_S, 2)])
def test_two_are_handed_to_threads_only_where_both_take_long(quicker_s: float, threads: int) -> None:
    """The first round finds that out, and one much later again."""
    used: list[set[int]] = []
    now = 0.0

    def sync(takes_s: float) -> None:
        nonlocal now
        now += takes_s
        used[-1].add(threading.get_ident())

    with closing(SyncPool(32, lambda: now)) as pool:
        for _ in range(LOOK_AGAIN + 3):
            used.append(set())
            pool.together(sync, (1.0, quicker_s))
    first, *rest = [len(each) for each in used]
    assert first == 1
    assert rest == ([1] * (LOOK_AGAIN + 2) if threads == 1 else [2] * LOOK_AGAIN + [1, 2])


def test_all_are_done_when_one_is_refused() -> None:
    """What is done next must not meet a sync that still goes on."""
    done: list[int] = []

    def sync(one: int) -> None:
        if one == 0:
            raise OSError("refused")
        time.sleep(0.05)
        done.append(one)

    with closing(SyncPool(3)) as pool, pytest.raises(OSError, match="refused"):
        pool.together(sync, range(3))
    assert sorted(done) == [1, 2]


def test_what_the_disk_refuses_is_raised() -> None:
    def sync(one: int) -> None:
        if one == 2:
            raise OSError("refused")

    with closing(SyncPool(2)) as pool, pytest.raises(OSError, match="refused"):
        pool.together(sync, range(4))


def test_an_abandoned_log_keeps_what_is_staged_for_the_recovery_to_drop(tmp_path: Path) -> None:
    writer = EmbeddedLogWriter(tmp_path, seal=False)
    writer.append(batch(ORDERS, [(Op.INSERT, 1, order(1, "new"))]))
    writer.commit(Lsn(1), 0)
    [segment] = [path for path in (tmp_path / "topics").rglob("*") if path.is_file()]
    committed = segment.stat().st_size
    writer.append(batch(ORDERS, [(Op.INSERT, 2, order(2, "new"))]))
    writer.abandon()
    assert segment.stat().st_size > committed
    with closing(EmbeddedLogWriter(tmp_path, seal=False)) as again:
        assert again.head.position == 1
        assert segment.stat().st_size == committed
