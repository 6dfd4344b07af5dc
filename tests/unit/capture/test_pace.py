"""How long to wait for more."""

from __future__ import annotations

import pytest

from cdc.capture.pace import BLOCK_BYTES, BLOCK_S, FLOW_READS, FLOW_S, LARGEST_BYTES, LONGEST_S, Flow, block_bytes, block_s


@pytest.mark.parametrize(("every_s", "flows"), [(FLOW_S / FLOW_READS * 0.9, True), (FLOW_S / FLOW_READS * 1.1, False)])
def test_messages_flow_when_many_reads_in_a_short_time_find_something(every_s: float, flows: bool) -> None:
    flow = Flow()
    now_s = 0.0
    for _ in range(3 * FLOW_READS):
        now_s += every_s
        flow.read(now_s)
    assert flow.flows is flows


def test_one_burst_after_a_silence_is_no_flow() -> None:
    flow = Flow()
    now_s = 0.0
    for _ in range(10):
        now_s += 60
        for _ in range(FLOW_READS):
            flow.read(now_s)
        assert not flow.flows


def test_few_tables_change_nothing_and_many_make_larger_blocks_within_bounds() -> None:
    assert (block_bytes(0), block_s(0)) == (block_bytes(100), block_s(100)) == (BLOCK_BYTES, BLOCK_S)
    assert BLOCK_BYTES < block_bytes(700) < block_bytes(1000) < LARGEST_BYTES
    assert BLOCK_S < block_s(700) < block_s(900) < LONGEST_S
    assert (block_bytes(10**6), block_s(10**6)) == (LARGEST_BYTES, LONGEST_S)
