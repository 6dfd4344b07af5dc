"""``python -m cdc.demo.board REDIS_URL``: the departure board, read from the cache alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import Any, Final

import redis

LATEST: Final = 3000
"""Flights get onto the board in the order of their departure, so the highest numbers are those to come (about three days of them)."""
LINES: Final = 12


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or not arguments[0].startswith("redis"):
        print("usage: python -m cdc.demo.board REDIS_URL", file=sys.stderr)
        return 2
    with redis.Redis.from_url(arguments[0]) as client:
        names = sorted(client.scan_iter("flight:*", 5000), key=_number)[-LATEST:]
        values = client.mget(names) if names else []
    print(board(json.loads(value) for value in values if value))
    return 0


def board(flights: Iterable[dict[str, Any]]) -> str:
    """The next departures, soonest first."""
    waiting = sorted((f for f in flights if f["status"] == "scheduled"), key=lambda f: (f["scheduled_departure"], f["id"]))
    lines = ["departs (UTC)     flight   from → to"]
    for f in waiting[:LINES]:
        time = f["scheduled_departure"][:16].replace("T", " ")
        lines.append(f"{time}  {f['carrier']} {f['number']:<5} {f['origin']} → {f['dest']}")
    return "\n".join(lines)


def _number(name: bytes) -> int:
    return int(name.rpartition(b":")[2])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
