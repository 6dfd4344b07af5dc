"""The continuous audit's budget: CPU time over the time that has passed, its helpers' among it. A slow machine only makes the share smaller."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from cdc.audit.budget import HELPERS, Budget
from cdc.background import Interrupted

SHARE = 0.2
PIECE_S = 0.005


def spend(seconds: float) -> float:
    began = time.thread_time()
    while (used := time.thread_time() - began) < seconds:
        pass
    return used


@pytest.mark.parametrize("helped", [False, True])
def test_a_share_of_a_core_is_not_passed(helped: bool) -> None:
    budget, used, began = Budget(SHARE, threading.Event()), 0.0, time.monotonic()
    with ThreadPoolExecutor(1, HELPERS) as ahead:
        for _ in range(40):
            used += ahead.submit(spend, PIECE_S).result() if helped else spend(PIECE_S)
            budget.rest()
    # One rest may still be owed.
    assert used - 0.02 <= SHARE * (time.monotonic() - began)
    assert used >= 40 * PIECE_S


def test_what_another_process_does_for_it_counts() -> None:
    """0.01 s at a share of a fifth: 0.04 s of rest."""
    helped, rests = iter([5.0, 5.01]), []

    class Stop(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            rests.append(timeout or 0.0)
            return False

    budget = Budget(SHARE, Stop())
    with pytest.raises(ZeroDivisionError), budget.counting(lambda: next(helped)):
        raise ZeroDivisionError
    with budget.counting(None):
        pass
    spent = spend(0.001)
    budget.rest()
    assert sum(rests) >= 0.04 + 4 * spent


def test_a_whole_core_never_rests() -> None:
    budget = Budget(1.0, threading.Event())
    spend(0.1)
    began = time.thread_time()
    budget.rest()
    assert time.thread_time() - began < 0.05


def test_it_ends_at_once_when_asked() -> None:
    stop = threading.Event()
    budget = Budget(0.001, stop)
    spend(0.05)  # owes 50 s
    threading.Timer(0.1, stop.set).start()
    began = time.monotonic()
    with pytest.raises(Interrupted):
        budget.rest()
    assert time.monotonic() - began < 30
    with pytest.raises(Interrupted):
        budget.pause(0.0)
