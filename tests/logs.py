"""Logs for tests that need a sink but no log of their own."""

from __future__ import annotations

from typing import Final

from cdc.log.memory import MemoryLog

EMPTY: Final = MemoryLog().reader()
"""An empty log, the same for every sink of a test run, so that their marks agree."""
