"""What one test breaks, the next one does not meet."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from cdc.crashpoint import KILLED
from tests.faults.lab import DEADLINE_S
from tests.faults.nursery import Job, Nursery


@pytest.mark.faults
def test_an_exchange_that_is_cut_short_ends_the_children_and_no_later_test(
    nursery: Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_short() -> Job:
        raise TimeoutError

    job = {"run": "capture", "folder": str(tmp_path), "source": {"dsn": "postgresql://nobody@127.0.0.1:1/none"}}
    hanging = nursery.start({**job, "crash": "status.written_aside=hang"}, tmp_path / "hanging.log")
    monkeypatch.setattr(hanging._parent, "_answer", cut_short)
    with pytest.raises(TimeoutError):
        nursery.start(job, tmp_path / "unheard-of.log")
    assert hanging.wait(DEADLINE_S) == -signal.SIGKILL
    assert nursery.start({**job, "crash": "status.written_aside=kill"}, tmp_path / "next.log").wait(DEADLINE_S) == KILLED
