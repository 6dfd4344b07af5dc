"""``python -m cdc.demo.departures REDIS_URL``: the latest departures, each an event on a stream."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any, Final

import redis

STREAM: Final = "departures"
LINES: Final = 12


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or not arguments[0].startswith("redis"):
        print("usage: python -m cdc.demo.departures REDIS_URL", file=sys.stderr)
        return 2
    with redis.Redis.from_url(arguments[0], decode_responses=True) as client:
        print(departures(client.xrevrange(STREAM, count=LINES)))
    return 0


def departures(entries: Iterable[tuple[str, dict[str, str]]]) -> str:
    """The latest first: when it was committed, the entry's id, and the flight."""
    lines = ["committed (UTC)      entry         flight   from → to"]
    for place, fields in entries:
        flight: dict[str, Any] = json.loads(fields["body"])["after"]
        when = fields["time"][:19].replace("T", " ")
        lines.append(f"{when}  {place:<12}  {flight['carrier']} {flight['number']:<5} {flight['origin']} → {flight['dest']}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
