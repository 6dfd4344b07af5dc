from __future__ import annotations

from pathlib import Path

import pytest

from cdc.errors import LogCorrupt
from cdc.model.position import Lsn
from cdc.source import claim
from cdc.source.claim import SlotClaim


@pytest.mark.parametrize(
    ("settled", "slot", "database", "confirmed", "ours"),
    [
        (True, "cdc", "shop", 100, True),
        (True, "cdc", "shop", 101, False),  # somebody has read it, or made it again
        (True, "cdc", "shop", 99, False),
        (True, "cdc", "shop", None, False),
        (True, "other", "shop", 100, False),
        (True, "cdc", "other", 100, False),
        (False, "cdc", "shop", 100, True),
        (False, "cdc", "shop", 250, True),
        (False, "cdc", "shop", None, True),  # still being made
        (False, "cdc", "shop", 99, False),  # was there before us
        (False, "cdc", "other", 250, False),
    ],
)
def test_which_slot_is_ours(settled: bool, slot: str, database: str, confirmed: int | None, ours: bool) -> None:
    mine = SlotClaim("cdc", "shop", 100, settled)
    assert mine.covers(slot, database, None if confirmed is None else Lsn(confirmed)) is ours


def test_what_is_recorded_comes_back_and_damage_is_seen(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    assert claim.recorded(folder) is None
    mine, another = SlotClaim("cdc", "shop", 100, settled=False), SlotClaim("cdc", "shop", 100, settled=True)
    claim.record(folder, mine)
    assert claim.recorded(folder) == mine
    claim.withdraw(folder, another)
    assert claim.recorded(folder) == mine
    claim.withdraw(folder, mine)
    assert claim.recorded(folder) is None
    claim.record(folder, another)
    path = folder / claim.FILE
    path.write_bytes(path.read_bytes().replace(b"shop", b"shoq"))
    with pytest.raises(LogCorrupt, match="damaged"):
        claim.recorded(folder)
