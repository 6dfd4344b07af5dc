from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import pytest

from cdc.log.embedded.syncpool import SyncPool
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
