"""How far an audit is, as its file keeps it and the report shows it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cdc.audit.keyrange import KeyRange
from cdc.errors import StoreError
from cdc.state import auditstate
from cdc.state.auditstate import AuditStanding, Drift, TableStanding, TableWork
from cdc.state.strangers import forget

FOUND = AuditStanding(
    round_at=100.0,
    ended_at=90.0,
    waits="its follower is waiting",
    tables=(
        TableStanding("public.a", 110.0, 110.0, 7, Drift(rows=5)),
        TableStanding("public.b", 50.0, 80.0, 5, Drift(9, 1, 2, 3, 4, True), None, TableWork(2**62, 4, 1, 6, 0.5, Drift(rows=3))),
        TableStanding("public.c", problem="it is set aside as a whole"),
    ),
)


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    assert auditstate.load(tmp_path, "cache") is None
    auditstate.save(tmp_path, "cache", FOUND)
    assert auditstate.load(tmp_path, "cache") == FOUND
    forget(tmp_path, "cache")
    assert auditstate.load(tmp_path, "cache") is None


def test_what_was_repaired_is_asked_for_until_it_has_been_compared(tmp_path: Path) -> None:
    assert auditstate.asked_again(tmp_path, "cache") == {}
    auditstate.ask_again(tmp_path, "cache", ["public.a", "public.b"])
    first = auditstate.asked_again(tmp_path, "cache")
    auditstate.ask_again(tmp_path, "cache", ["public.a"])  # repaired again, while it is compared
    auditstate.answered(tmp_path, "cache", "public.a", first["public.a"])
    assert set(auditstate.asked_again(tmp_path, "cache")) == {"public.a", "public.b"}
    auditstate.answered(tmp_path, "cache", "public.b", first["public.b"])
    assert set(auditstate.asked_again(tmp_path, "cache")) == {"public.a"}
    forget(tmp_path, "cache")
    assert auditstate.asked_again(tmp_path, "cache") == {}


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    auditstate.save(tmp_path, "cache", FOUND)
    (path,) = (tmp_path / "audit").iterdir()
    path.write_bytes(path.read_bytes().replace(b"public.a", b"public.x"))
    with pytest.raises(StoreError, match="is damaged"):
        auditstate.load(tmp_path, "cache")


def test_how_far_a_round_is() -> None:
    assert FOUND.share() == pytest.approx((1 + 1.5 / 4 + 0) / 3)
    assert AuditStanding().share() == 0


@pytest.mark.parametrize(
    ("last", "now", "shown"),
    [(2, 0, 2), (0, 1, 1), (2, 1, 2), (0, 0, 0)],
    ids=["until it is found whole", "as soon as it is found", "the whole of it", "none"],
)
def test_what_is_known_to_differ(last: int, now: int, shown: int) -> None:
    one = TableStanding("public.a", last=Drift(missing=last), work=TableWork(1, 3, 1, found=Drift(missing=now)))
    assert one.drift.differing == shown


def test_every_key_is_in_one_range() -> None:
    high = np.random.default_rng(1).integers(0, 2**64, 10_000, dtype=np.uint64)
    high[:2] = 0, 2**64 - 1
    for ranges in (2, 3, 7, 25):
        counts = sum(KeyRange(number, ranges).holds(high).astype(int) for number in range(ranges))
        assert (counts == 1).all()
        assert min(KeyRange(number, ranges).holds(high).sum() for number in range(ranges)) > 0.8 * 10_000 / ranges
