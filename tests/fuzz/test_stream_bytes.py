"""What the server sends (also of transactions in progress, through the spool), what is kept of prepared transactions, and the TOAST
memory. Random damage of whole streams is in tests/unit/capture; here it is every byte, and every length."""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from cdc.capture.toast import ToastMemory
from cdc.errors import HeadwaterError, LogCorrupt, ProtocolError
from tests.fuzz.damage import damaged, flips, outcome
from tests.unit.capture import wire
from tests.unit.capture.test_decoder import Run
from tests.unit.capture.test_decoder import sample as ordinary
from tests.unit.capture.test_spool import ENDS, Connections, connections, ids, prepared_sample
from tests.unit.capture.test_spool import sample as streamed
from tests.unit.capture.test_toast import DOCS, decode
from tests.unit.log.conftest import quick_folder

__all__ = ["connections", "quick_folder"]


KEYS = 6
STREAMED_CASES = 10**9 if "HEADWATER_FAULTS" in os.environ else 500
"""`make faults` damages every byte."""


def fed(run: Run, data: bytes) -> Run:
    run.feed(data)
    for group in run.groups:
        for batch in group.batches:
            batch.validate(full=True)
    return run


def lengths(data: bytes) -> Iterator[bytes]:
    """Every four bytes that could be a length, as one that is far too large, negative, or one off."""
    for at in range(len(data) - 3):
        (now,) = struct.unpack_from("!I", data, at)
        for value in (2**31 - 1, 2**32 - 1, 2**30, 0x00FFFFFF, (now + 1) % 2**32):
            yield data[:at] + struct.pack("!I", value) + data[at + 4 :]


def test_every_byte_of_an_ordinary_stream() -> None:
    for case in flips(ordinary()):
        found = outcome("pgoutput", lambda case=case: fed(Run(), case))  # type: ignore[misc]
        assert isinstance(found, Run | ProtocolError)


@pytest.mark.parametrize("kind", ["streamed", "prepared"])
def test_bytes_of_a_stream_of_transactions_in_progress(quick_folder: Path, kind: str, seed: int) -> None:
    whole = streamed() if kind == "streamed" else prepared_sample() + ENDS
    print(f"seed {seed}")
    cases = list(flips(whole))
    for case in random.Random(seed).sample(cases, min(len(cases), STREAMED_CASES)):
        made = Connections(quick_folder)
        found = outcome(f"pgoutput, {kind}", lambda case=case, made=made: fed(made.run(), case))  # type: ignore[misc]
        made.close()
        shutil.rmtree(quick_folder / "prepared", ignore_errors=True)
        assert isinstance(found, Run | ProtocolError | LogCorrupt)


def test_lengths_in_a_stream(quick_folder: Path) -> None:
    """None is believed: not even the largest takes memory before that much has come."""
    for number, case in enumerate(lengths(streamed())):
        if number % 11:
            continue
        made = Connections(quick_folder)
        found = outcome("lengths", lambda case=case, made=made: fed(made.run(), case))  # type: ignore[misc]
        made.close()
        assert isinstance(found, Run | ProtocolError)


def test_every_byte_of_a_prepared_transaction(quick_folder: Path, seed: int) -> None:
    made = Connections(quick_folder)
    made.run().feed(prepared_sample())
    folder = quick_folder / "prepared"
    kept = {path: path.read_bytes() for path in folder.iterdir()}
    assert len(kept) == 2
    whole = sorted(ids(fed(made.run(), ENDS)))  # type: ignore[type-var]
    assert whole == [2, 31, 32]
    for path, data in kept.items():
        for case in damaged(data, seed, most=1000):
            for old in folder.iterdir():
                old.unlink()
            for other, good in kept.items():
                other.write_bytes(case if other == path else good)
            found = outcome("prepared transactions", lambda: fed(made.run(), ENDS))
            made.close()
            if isinstance(found, Run):
                assert sorted(ids(found)) == whole  # type: ignore[type-var]
            else:
                assert found.hint
                assert isinstance(found, LogCorrupt)


def opened(path: Path) -> tuple[int, dict[str, object]]:
    """The memory's position, and for each key the value that an update would be completed with (absent: not known)."""
    memory = ToastMemory(path)
    try:
        known: dict[str, object] = {}
        for number in range(KEYS):
            rows = decode(memory, wire.update(DOCS.oid, [f"k{number}", wire.UNCHANGED, None, "2"]))
            if "held" not in rows[0]:
                known[f"k{number}"] = rows[0]["body"]
        return memory.position, known
    finally:
        memory.close()


@pytest.mark.parametrize("part", ["toast.db", "toast.db-wal"])
def test_the_toast_memory_knows_the_value_or_knows_none(quick_folder: Path, part: str, seed: int) -> None:
    """SQLite sees much damage, not all: a flipped bit in a value is its own business."""
    print(f"seed {seed}")
    home = quick_folder / "home"
    home.mkdir()
    memory = ToastMemory(home / "toast.db")
    for number in range(KEYS):
        decode(memory, wire.insert(DOCS.oid, [f"k{number}", f"{number} " * 1200, None, "1"]))
        memory.commit(number + 1)
    kept = home
    if part == "toast.db-wal":
        kept = Path(shutil.copytree(home, quick_folder / "killed"))
    memory.close()
    files = {path.name: path.read_bytes() for path in kept.iterdir() if not path.name.endswith("-shm")}
    work = quick_folder / "work"

    def restored(case: bytes | None) -> Path:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        for name, data in files.items():
            (work / name).write_bytes(case if case is not None and name == part else data)
        return work / "toast.db"

    restored(None)
    position, whole = opened(work / "toast.db")
    assert (position, len(whole)) == (KEYS, KEYS)
    for case in damaged(files[part], seed, most=200):
        path = restored(case)
        found = outcome("toast memory", lambda path=path: opened(path))  # type: ignore[misc]
        assert not isinstance(found, HeadwaterError)
        upto, known = found
        assert upto <= KEYS
        assert known.items() <= whole.items(), "a value that was never there"
