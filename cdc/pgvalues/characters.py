"""The bytes that Postgres's text formats are made of, by name. Kernels compare with these: numba freezes them."""

from __future__ import annotations

from typing import Final

TAB: Final = ord("\t")
LINE_FEED: Final = ord("\n")
SPACE: Final = ord(" ")
PLUS: Final = ord("+")
MINUS: Final = ord("-")
POINT: Final = ord(".")
ZERO: Final = ord("0")
NINE: Final = ord("9")
COLON: Final = ord(":")
BACKSLASH: Final = ord("\\")
LOWER_A: Final = ord("a")
LOWER_F: Final = ord("f")
LOWER_X: Final = ord("x")

TRUE: Final = ord("t")
FALSE: Final = ord("f")
NULL: Final = ord("N")
"""Behind a backslash, alone in a field of COPY's text."""
