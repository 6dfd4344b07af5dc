"""Contract lines whose proof needs more than SQL and a log, with the tests that give it."""

from __future__ import annotations

from typing import Final

ELSEWHERE: Final[tuple[tuple[str, str, str], ...]] = (
    ("B46", "late writes from before a TRUNCATE never come back", "tests/contract/test_sinks.py"),
    ("B73", "a transaction larger than memory is one cut", "tests/integration/capture/test_capture.py"),
    ("B75", "a transaction over a segment's end: all or nothing", "tests/unit/log/test_writer.py"),
    ("B74", "5,000 savepoints", "tests/integration/capture/test_large.py"),
    (
        "B78, B93, B96",
        "slots dropped or replaced; publications that are gone or change",
        "tests/integration/source/test_stop_states.py",
    ),
    ("B79–B80", "a slot that held too much WAL, the idle timeout", "tests/integration/source/test_undecodable.py"),
    (
        "B87–B89, B120",
        "failover, promotion, copies of the cluster; a standby is refused",
        "tests/integration/source/test_histories.py",
    ),
    ("B81", "alarms while a slot can still be saved: extended, unreserved, the budget used up", "tests/unit/source/test_budget.py"),
    (
        "B83",
        "the server stopped in every way and killed, walsenders terminated, capture killed and stopped, under traffic",
        "tests/faults/test_cycles.py",
    ),
    ("B86", "a slot that waits for open transactions names the oldest", "tests/integration/test_source.py"),
    (
        "B91",
        "nothing is decoded on a standby, so no slot there can be lost: it is refused",
        "tests/integration/source/test_histories.py",
    ),
    ("B82", "a fast shutdown of Postgres does not hang", "tests/integration/capture/test_capture.py"),
    ("B84", "an idle database frees its WAL", "tests/integration/capture/test_capture.py"),
    (
        "B99",
        "a row that the server cannot decode (bytes in the wrong encoding, not 1 GB of text)",
        "tests/integration/source/test_undecodable.py",
    ),
    ("B101–B102", "a full disk at append, EIO at fsync", "tests/unit/log/test_writer.py"),
    ("B103–B105", "a torn tail, damage anywhere else, missing and swapped segments", "tests/unit/log/test_recover.py"),
    ("B106", "what was not synced is lost, directory entries included", "tests/unit/log/test_crash.py"),
    ("B107", "one writer per log", "tests/unit/log/test_writer.py"),
    ("B108", "a clock that jumps ahead makes nothing in the log old", "tests/unit/log/compaction/test_worker.py"),
    (
        "B109",
        "compaction with the power lost in any step: nobody who may read on misses a row",
        "tests/unit/log/compaction/test_power_loss.py",
    ),
    ("B110", "whoever has read less than the log still tells of gets POSITION_GONE", "tests/unit/log/compaction/test_merge.py"),
    ("B111", "kill -9 at every named point", "tests/faults/test_crashpoints.py"),
    ("B112", "a log of another format is refused", "tests/unit/log/test_recover.py"),
    ("B113, B115", "a snapshot under every kind of traffic", "tests/integration/snapshots/test_traffic.py"),
    ("B114", "commits that wait for a standby while their chunk is read", "tests/integration/snapshots/test_visibility.py"),
    ("B117", "the snapshot's connection is lost midway", "tests/integration/snapshots/test_interruptions.py"),
    ("B119", "COPY, snapshot and stream give equal bytes for random rows of 40 types", "tests/cases/test_types.py"),
)
"""(lines, what holds, the file with the tests)"""

NOT_BUILT: Final[tuple[tuple[str, str], ...]] = (
    ("B90", "an upgrade of the source's cluster has not been tried"),
    ("B94", "no case: capture reads one publication, in which a table has one column list"),
)
"""(lines, why no test is named)"""
