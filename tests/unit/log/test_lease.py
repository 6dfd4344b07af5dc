"""A follower's lease: one holder at a time, and an epoch that no two holders share."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from cdc.errors import HeadwaterError
from cdc.state import lease as leases
from cdc.state.lease import FOLDER, Beat, Lease, LeaseHeld, LeaseWatch, path_of, take
from tests.waiting import LONG_S

HOLDER = """
import sys
from pathlib import Path
from cdc.state.lease import Lease
lease = Lease(Path(sys.argv[1]), "search")
print(lease.epoch, flush=True)
sys.stdin.read()
"""


def test_each_holder_has_a_higher_epoch(tmp_path: Path) -> None:
    epochs = []
    for _ in range(3):
        lease = Lease(tmp_path, "search")
        epochs.append(lease.epoch)
        lease.close()
    assert epochs == sorted(set(epochs))
    assert epochs[0] > 0, "a store that has seen nobody has seen epoch 0"


def test_each_store_has_its_own(tmp_path: Path) -> None:
    leases = [Lease(tmp_path, name) for name in ("search", "Search", "a/b", "a%2Fb", "..")]
    assert all(path.parent == tmp_path / FOLDER for path in tmp_path.rglob("*") if path.is_file())
    for lease in leases:
        lease.close()


def test_a_second_holder_is_refused_and_takes_no_epoch(tmp_path: Path) -> None:
    first = Lease(tmp_path, "search")
    for _ in range(2):
        with pytest.raises(HeadwaterError, match=f"process {os.getpid()} already follows store search") as refused:
            Lease(tmp_path, "search")
        assert str(os.getpid()) in (refused.value.hint or "")
    assert first.ours
    first.close()
    assert not first.ours
    second = Lease(tmp_path, "search")
    assert second.epoch > first.epoch
    second.close()
    second.close()


def test_a_killed_holder_leaves_its_epoch_and_nothing_else(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        epoch = int(holder.stdout.readline())
        with pytest.raises(HeadwaterError, match=f"process {holder.pid} "):
            Lease(tmp_path, "search")
        # A process that sleeps holds its lease as well.
        holder.send_signal(signal.SIGSTOP)
        with pytest.raises(HeadwaterError):
            Lease(tmp_path, "search")
    finally:
        holder.kill()
        holder.communicate()
    lease = Lease(tmp_path, "search")
    assert lease.epoch > epoch
    lease.close()


def test_it_goes_above_what_a_store_has_seen(tmp_path: Path) -> None:
    lease = Lease(tmp_path, "search")
    high = 10**9
    assert lease.raise_above(high) == lease.epoch > high
    before = lease.epoch
    assert lease.raise_above(7) == lease.epoch > before, "it never goes back"
    lease.close()
    again = Lease(tmp_path, "search")
    assert again.epoch > lease.epoch
    again.close()


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"crc32c": "00000000", "format": 1, "epoch": 9}', None])
def test_a_lost_or_damaged_record_counts_as_none(tmp_path: Path, damage: bytes | None) -> None:
    first = Lease(tmp_path, "search")
    first.raise_above(10**9)
    first.close()
    path = tmp_path / FOLDER / "search.json"
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage)
    lease = Lease(tmp_path, "search")
    assert 0 < lease.epoch < 10**9
    lease.close()


def test_copies_of_one_log_give_out_other_epochs(tmp_path: Path) -> None:
    """By chance alone, and one in 65,536: twice the same among three would be one in four billion."""
    Lease(tmp_path / "log", "search").close()
    epochs = []
    for number in range(3):
        shutil.copytree(tmp_path / "log", tmp_path / f"copy {number}")
        lease = Lease(tmp_path / f"copy {number}", "search")
        epochs.append(lease.epoch)
        lease.close()
    assert len(set(epochs)) > 1


def test_a_lease_whose_folder_was_replaced_is_ours_no_more(tmp_path: Path) -> None:
    """The log's folder was put back from a copy: whoever begins now gets a lock that knows nothing of ours."""
    lease = Lease(tmp_path, "search")
    shutil.rmtree(tmp_path / FOLDER)
    assert not lease.ours
    other = Lease(tmp_path, "search")
    assert other.ours
    assert not lease.ours
    lease.close()
    other.close()


def test_a_log_folder_that_is_made_for_it_is_private(tmp_path: Path) -> None:
    """A follower may start before the log exists."""
    Lease(tmp_path / "var" / "log", "search").close()
    assert (tmp_path / "var" / "log").stat().st_mode & 0o777 == 0o700
    for path in (tmp_path / "var" / "log").rglob("*"):
        assert path.stat().st_mode & 0o077 == 0


RENEWING = """
import sys
from pathlib import Path
from cdc.state import lease
lease.RENEW_S = 0.05
held = lease.Lease(Path(sys.argv[1]), "search")
print(held.epoch, flush=True)
for line in sys.stdin:
    print(held.ours, held.taken_over, flush=True)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lease and renews it all the time, until it is stopped."""
    process = subprocess.Popen(
        [sys.executable, "-c", RENEWING, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield process
    process.kill()
    process.communicate()


def told(process: subprocess.Popen[str], question: str = "") -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    if question:
        process.stdin.write(question)
        process.stdin.flush()
    return process.stdout.readline().strip()


def wait_for_it(folder: Path, watch: LeaseWatch) -> Lease:
    deadline = time.monotonic() + LONG_S
    while True:
        try:
            return take(folder, "search", watch)
        except LeaseHeld:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_one_that_is_not_renewed_is_taken_over(
    tmp_path: Path, holder: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "LAPSE_S", 2.0)
    epoch, watch = int(told(holder)), LeaseWatch()
    until = time.monotonic() + 3
    while time.monotonic() < until:  # it is renewed
        with pytest.raises(LeaseHeld, match=f"process {holder.pid} already follows"):
            take(tmp_path, "search", watch)
        time.sleep(0.02)
    holder.send_signal(signal.SIGSTOP)
    lease = wait_for_it(tmp_path, watch)
    assert lease.epoch > epoch
    holder.send_signal(signal.SIGCONT)
    assert told(holder, "?\n") == "False True", "it sees that it is no longer its own"
    assert lease.ours
    with pytest.raises(LeaseHeld, match=f"process {os.getpid()} already follows"):
        Lease(tmp_path, "search")
    lease.close()
    assert not lease.taken_over, "whoever has let go of it has not lost it"
    again = Lease(tmp_path, "search")
    assert again.epoch > lease.epoch
    again.close()


def test_only_one_of_several_takes_it_over(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    told(holder)
    holder.send_signal(signal.SIGSTOP)
    beat = Beat.of(path_of(tmp_path, "search"))
    together = threading.Barrier(4)
    taken: list[Lease] = []

    def try_it() -> None:
        together.wait()
        with suppress(LeaseHeld):
            taken.append(Lease(tmp_path, "search", over=beat))

    threads = [threading.Thread(target=try_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (lease,) = taken
    assert lease.ours
    lease.close()
    assert not list((tmp_path / FOLDER).glob("search.????????????????")), "nothing is left aside"


def test_a_lock_that_is_replaced_while_it_is_opened_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has opened the file of a holder that was taken over gets its lock when that ends, and has got nothing."""
    first = Lease(tmp_path, "search")
    opened = os.open
    others: list[Lease] = []

    def slow(path: Any, *arguments: Any, **named: Any) -> int:
        fd = opened(path, *arguments, **named)
        if Path(path) == path_of(tmp_path, "search") and not others:
            others.append(Lease.__new__(Lease))
            others[0].__init__(tmp_path, "search", over=Beat.of(path_of(tmp_path, "search")))  # type: ignore[misc]
            first.close()
        return fd

    monkeypatch.setattr(os, "open", slow)
    with pytest.raises(LeaseHeld):
        Lease(tmp_path, "search")
    (other,) = others
    assert other.ours
    other.close()
