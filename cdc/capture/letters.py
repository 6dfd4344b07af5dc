"""The letters and lengths of the server's messages, by their names in the manual.

"Message Formats" (frames), "Streaming Replication Protocol" (what a CopyData frame holds) and "Logical Replication Message Formats" (pgoutput).
Kernels compare with these: numba freezes them.
"""

from __future__ import annotations

from typing import Final

# Frames
COPY_DATA: Final = ord("d")
COPY_DONE: Final = ord("c")
COMMAND_COMPLETE: Final = ord("C")
ERROR_RESPONSE: Final = ord("E")
NOTICE_RESPONSE: Final = ord("N")
PARAMETER_STATUS: Final = ord("S")

FRAME_HEADER_BYTES: Final = 5
"""The letter, and a length that counts itself but not the letter."""
LENGTH_BYTES: Final = 4
MOST_FRAME_BYTES: Final = 2**30 + 2**20
"""The largest length: the most that Postgres puts together (1 GB), and what stands around it."""

# What a CopyData frame holds
XLOG_DATA: Final = ord("w")
KEEPALIVE: Final = ord("k")

XLOG_HEADER_BYTES: Final = 25
"""The letter, the LSN where the data begins, that where the server's WAL ends, and its clock."""
KEEPALIVE_BYTES: Final = 18
"""The letter, the LSN where the server's WAL ends, its clock, and whether it wants an answer."""

# pgoutput
BEGIN: Final = ord("B")
COMMIT: Final = ord("C")
INSERT: Final = ord("I")
UPDATE: Final = ord("U")
DELETE: Final = ord("D")
TRUNCATE: Final = ord("T")
RELATION: Final = ord("R")
TYPE: Final = ord("Y")
ORIGIN: Final = ord("O")
MESSAGE: Final = ord("M")
PASSED: Final = ord("-")
"""Stands for the letter of a logical message that is not ours (``cdc.capture.authenticity``)."""
EVENT: Final = ord("!")
"""Stands for the letter of a logical message that is to be an event (``cdc.capture.eventmessages``)."""
STREAM_START: Final = ord("S")
STREAM_STOP: Final = ord("E")
STREAM_COMMIT: Final = ord("c")
STREAM_ABORT: Final = ord("A")
BEGIN_PREPARE: Final = ord("b")
PREPARE: Final = ord("P")
STREAM_PREPARE: Final = ord("p")
COMMIT_PREPARED: Final = ord("K")
ROLLBACK_PREPARED: Final = ord("r")

BEGIN_BYTES: Final = 20
"""Behind the letter: the commit's LSN, its time, the xid."""
COMMIT_BYTES: Final = 25
"""Behind the letter: flags, the commit's LSN, the LSN where its record ends, its time."""
OID_BYTES: Final = 4
"""Behind the letter of a row message: which table."""
LEAST_ROW_BYTES: Final = 7
"""Behind the letter: the table's OID, which tuple comes first, how many columns it has."""

# Tuples in a row message, and columns in a tuple
NEW_TUPLE: Final = ord("N")
OLD_TUPLE: Final = ord("O")
KEY_TUPLE: Final = ord("K")
TEXT_FIELD: Final = ord("t")
NULL_FIELD: Final = ord("n")
UNCHANGED_FIELD: Final = ord("u")
