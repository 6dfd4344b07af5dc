"""The text of the small JSON files that one process leaves for another, or for its next start: JSON with its own checksum in front.

Without it a single flipped bit could make pages that were never read look read, or move an LSN, and nobody would see. Pure; each file's
owner writes it aside and renames it, and says what a damaged one means.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import google_crc32c

_BEGINNING: Final = re.compile(rb'\{"crc32c": "([0-9a-f]{8})", ')
_BEGINNING_BYTES: Final = len('{"crc32c": "00000000", ')


def encode(content: Mapping[str, Any]) -> str:
    """``content`` (not empty, keys are text) as one JSON object, whose first entry is the CRC-32C of all that follows it."""
    if not content:
        raise ValueError("an empty object says nothing")
    rest = json.dumps(content)[1:]
    return f'{{"crc32c": "{google_crc32c.value(rest.encode()):08x}", {rest}'


def decode(data: bytes) -> dict[str, Any]:
    """What was encoded. Raises ValueError when a single bit differs."""
    found = _BEGINNING.match(data)
    if found is None or google_crc32c.value(data[_BEGINNING_BYTES:]) != int(found[1], 16):
        raise ValueError("the checksum differs")
    content: dict[str, Any] = json.loads(data)
    del content["crc32c"]
    return content
