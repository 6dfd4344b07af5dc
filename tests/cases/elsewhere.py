"""Contract lines whose proof needs more than SQL and a log, with the tests that give it."""

from __future__ import annotations

from typing import Final

ELSEWHERE: Final[tuple[tuple[str, str, str], ...]] = (
    ("B46", "late writes from before a TRUNCATE never come back", "tests/contract/test_sinks.py"),
    ("B73", "a transaction larger than memory is one cut", "tests/integration/capture/test_capture.py"),
    ("B75", "a transaction over a segment's end: all or nothing", "tests/unit/log/test_writer.py"),
    (
        "B78–B93",
        "slots: dropped, replaced, lost, of another cluster; publications that are gone",
        "tests/integration/source/test_stop_states.py",
    ),
    ("B82", "a fast shutdown of Postgres does not hang", "tests/integration/capture/test_capture.py"),
    ("B84", "an idle database frees its WAL", "tests/integration/capture/test_capture.py"),
    ("B101–B106", "a full disk, EIO, a torn tail, damage anywhere else", "tests/unit/log/test_recover.py"),
    ("B107", "one writer per log", "tests/unit/log/test_writer.py"),
    ("B111", "kill -9 at every named point", "tests/faults/test_crashpoints.py"),
    ("B112", "a log of another format is refused", "tests/unit/log/test_format.py"),
    ("B113, B115", "a snapshot under every kind of traffic", "tests/integration/snapshots/test_traffic.py"),
    ("B114", "commits that wait for a standby while their chunk is read", "tests/integration/snapshots/test_visibility.py"),
    ("B117", "the snapshot's connection is lost midway", "tests/integration/snapshots/test_interruptions.py"),
    ("B119", "COPY, snapshot and stream give equal bytes for random rows of 40 types", "tests/cases/test_types.py"),
)
"""(lines, what holds, the file with the tests)"""
