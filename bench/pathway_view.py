"""The peer of ``bench.viewlive``: the same join by pathway, whose engine is native, into the same Redis. For a Python that has pathway and psycopg2.

``python pathway_view.py DSN PORT COMMIT_MS [FOLDER]``: reads three tables, and then their changes from a slot of its own (``test_decoding``), until it is ended.
Pathway's own reader of Postgres needs a licence, so rows come to its engine through Python, as its documentation has it for other sources; and they go to Redis from
Python, in one pipeline for each of its commits. Without FOLDER it keeps nothing on the disk: after an end it begins from the beginning. With it pathway persists its
input there, as its documentation recommends for one that goes on.
"""

from __future__ import annotations

import json
import re
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

SLOT: Final = "pathway"
TABLES: Final[dict[str, dict[str, type]]] = {
    "customers": {"number": int, "name": str},
    "products": {"number": int, "title": str},
    "orders": {"number": int, "version": int, "customer_id": int, "product_id": int, "status": str, "amount": str},
}
"""The columns of each table. In pathway ``id`` is something else, so the key has another name."""
AT_ONCE: Final = 2000
"""Commands in one pipeline."""
_COLUMN: Final = re.compile(r"(\w+)\[[^\]]+\]:('(?:[^']|'')*'|\S+)")
_CHANGE: Final = re.compile(r"table public\.(\w+): (\w+): (.*)", re.DOTALL)


def main() -> None:
    import pathway as pw

    dsn, port, commit_ms, *folder = sys.argv[1:]
    subjects = {name: _subject(pw, dsn, name) for name in TABLES}
    customers, products, orders = (
        pw.io.python.read(subject, schema=_schema(pw, name), autocommit_duration_ms=int(commit_ms), name=name)
        for name, subject in subjects.items()
    )
    joined = orders.join(customers, orders.customer_id == customers.number).join(products, orders.product_id == products.number)
    shown = joined.select(orders.number, orders.version, orders.status, orders.amount, customers.name, products.title)
    changed, ended = _writer(int(port))
    pw.io.subscribe(shown, on_change=changed, on_time_end=ended)
    threading.Thread(target=_stream, args=(dsn, subjects), daemon=True).start()
    kept = pw.persistence.Config(pw.persistence.Backend.filesystem(folder[0])) if folder else None
    pw.run(monitoring_level=pw.MonitoringLevel.NONE, persistence_config=kept)


def _schema(pw: Any, table: str) -> Any:
    columns = {name: pw.column_definition(dtype=kind, primary_key=name == "number") for name, kind in TABLES[table].items()}
    return pw.schema_builder(columns, name=table)


def _subject(pw: Any, dsn: str, table: str) -> Any:
    """A table's rows, as they are. What changes of them is given to it from outside."""
    import psycopg2

    kinds = TABLES[table]

    def run(self: Any) -> None:
        with psycopg2.connect(dsn) as connection, connection.cursor("rows") as cursor:
            cursor.itersize = 20_000
            columns = ["id", *(f"{name}::{'bigint' if kind is int else 'text'}" for name, kind in list(kinds.items())[1:])]
            cursor.execute(f"select {', '.join(columns)} from {table}")
            for row in cursor:
                self.next(**dict(zip(kinds, row, strict=True)))
        self.loaded.set()
        threading.Event().wait()

    made = type(table, (pw.io.python.ConnectorSubject,), {"run": run})(session_type="upsert")
    made.loaded = threading.Event()
    return made


def _stream(dsn: str, subjects: dict[str, Any]) -> None:
    import psycopg2
    import psycopg2.extras

    for subject in subjects.values():
        subject.loaded.wait()
    connection = psycopg2.connect(dsn, connection_factory=psycopg2.extras.LogicalReplicationConnection)
    cursor = connection.cursor()
    cursor.start_replication(slot_name=SLOT, decode=True, status_interval=1)

    def consume(message: Any) -> None:
        found = _CHANGE.fullmatch(message.payload)
        if found is not None and found[1] in TABLES:
            kinds = TABLES[found[1]]
            columns = (("number" if name == "id" else name, value) for name, value in _COLUMN.findall(found[3]))
            row = {name: kinds[name](value.strip("'")) for name, value in columns}
            if found[2] == "DELETE":
                subjects[found[1]].delete(**{name: row.get(name, kind()) for name, kind in kinds.items()})
            else:
                subjects[found[1]].next(**row)
        message.cursor.send_feedback(flush_lsn=message.data_start)

    cursor.consume_stream(consume)


def _writer(port: int) -> tuple[Callable[..., None], Callable[[int], None]]:
    """What is called for each change of the view, and at the end of each of pathway's commits."""
    encode = json.JSONEncoder(separators=(",", ":")).encode
    wire = socket.create_connection(("127.0.0.1", port))
    answers = wire.makefile("rb")
    gone: set[int] = set()
    written: dict[int, dict[str, Any]] = {}

    def changed(key: Any, row: dict[str, Any], time: int, is_addition: bool) -> None:
        del key, time
        if is_addition:
            written[row["number"]] = row
        else:
            gone.add(row["number"])

    def ended(time: int) -> None:
        del time
        commands = [_command(b"DEL", b"order:%d" % one) for one in gone - written.keys()]
        commands += [_command(b"SET", b"order:%d" % one, encode(row).encode()) for one, row in written.items()]
        gone.clear()
        written.clear()
        for at in range(0, len(commands), AT_ONCE):
            some = commands[at : at + AT_ONCE]
            wire.sendall(b"".join(some))
            for _ in some:
                answers.readline()

    return changed, ended


def _command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


if __name__ == "__main__":
    main()
