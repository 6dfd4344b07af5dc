"""The index of a block's messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cdc.capture import messages
from cdc.capture.messages import Inside, Open, scan
from tests.unit.capture import wire


class _Dirty:
    """numpy, but for memory that nobody has written to yet: it holds what was there before."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    def empty(self, shape: Any, kind: Any) -> Any:
        return np.full(shape, 99, kind)


@pytest.mark.parametrize("opened", [None, Open(5, 50, 500)])
def test_a_transaction_whose_end_has_not_come_has_no_end(opened: Open | None, monkeypatch: pytest.MonkeyPatch) -> None:
    before = [] if opened else [wire.begin(5, 50)]
    block = wire.block(*before, wire.commit(50, 60), wire.begin(7, 70))
    scan(block, 0, len(block), opened)  # the kernel is compiled with numpy itself
    monkeypatch.setattr(messages, "np", _Dirty())
    index = scan(block, 0, len(block), opened)
    assert index.inside is Inside.TRANSACTION
    assert (index.xid.tolist(), index.commit_lsn.tolist(), index.end_lsn.tolist()) == ([5, 7], [50, 70], [60, 0])
    if opened:
        index = scan(block, 0, 0, opened)
        assert (index.xid.tolist(), index.end_lsn.tolist()) == ([5], [0])
