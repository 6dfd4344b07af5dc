"""The peer of ``bench.latency``: a reader as one writes it in an afternoon, psycopg2 and redis-py, each change straight into Redis.

It keeps no log, takes no snapshot, knows nothing of TOAST, of schema changes or of other stores, and confirms what it has written to Redis.
``python -m bench.plain_reader DSN SLOT PORT``: reads the slot (``test_decoding``) until it is ended.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any, Final

import redis

PREFIX: Final = "plain:"
_COLUMN: Final = re.compile(r"(\w+)\[[^\]]+\]:('(?:[^']|'')*'|\S+)")


def main() -> None:
    import psycopg2
    import psycopg2.extras

    dsn, slot, port = sys.argv[1:]
    cache = redis.Redis(port=int(port))
    connection = psycopg2.connect(dsn, connection_factory=psycopg2.extras.LogicalReplicationConnection)
    cursor = connection.cursor()
    cursor.start_replication(slot_name=slot, decode=True, status_interval=1)

    def consume(message: Any) -> None:
        if message.payload.startswith("table public.orders: "):
            _, _, change = message.payload.partition(": ")
            kind, _, columns = change.partition(": ")
            row = {name: value.strip("'") for name, value in _COLUMN.findall(columns)}
            if kind == "DELETE":
                cache.delete(PREFIX + row["id"])
            else:
                cache.set(PREFIX + row["id"], json.dumps({**row, "version": int(row["version"])}, separators=(",", ":")))
        message.cursor.send_feedback(flush_lsn=message.data_start)

    print("reads", flush=True)
    cursor.consume_stream(consume)


if __name__ == "__main__":
    main()
