"""Rows as they stand in the store, for the audit and for erasing it: of any keys, whatever they hold (``rowscan`` reads what most of them hold, and faster).

What lies below a table's prefix is a row of ours when its own columns name exactly the key that it stands under; anything else there is
somebody else's, and is neither shown nor touched. Where values do not show the key, a row of ours is what has fields of the table
and no others, under a name that the template gives.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import redis

from cdc.model.topic import TopicSchema
from sinks.cache import ledger
from sinks.cache.keytemplate import TableKeys
from sinks.cache.server import Server
from sinks.cache.values import Fields, Form, Mask
from sinks.contract import audit_schema
from sinks.render.meaning import plain_key

SCAN_COUNT: Final = 2000
READ_KEYS: Final = 500
"""Read at once, together with the table's progress: so many hold the server up for a millisecond."""


def scanned(server: Server, prefix: str) -> Iterator[list[bytes]]:
    """The keys below the prefix, in pieces of at most ``READ_KEYS``. Some may come twice. Raises StoreError (retryable), perhaps after the last piece, where
    some may be missing."""
    server.refuse_moving()
    pattern = pattern_of(prefix)
    cursor = 0
    while True:
        cursor, found = server.ask(partial(_page, cursor, pattern))
        yield from (found[start : start + READ_KEYS] for start in range(0, len(found), READ_KEYS))
        if cursor == 0:
            server.refuse_moving()
            return


def pattern_of(prefix: str) -> str:
    """As SCAN takes it."""
    return "".join("\\" + c if c in "*?[]\\^-" else c for c in prefix) + "*"


def _page(cursor: int, pattern: str, client: redis.Redis) -> tuple[int, list[bytes]]:
    at, found = client.scan(cursor, match=pattern, count=SCAN_COUNT)
    return int(at), [key if isinstance(key, bytes) else key.encode() for key in found]


def read(
    server: Server, store: str, topic: str, names: Sequence[bytes], form: Form
) -> tuple[list[bytes | None], list[Fields | None]]:
    """Reads the ledger and these keys at one moment."""

    def question(client: redis.Redis) -> list[Any]:
        together = client.pipeline(transaction=True)
        together.hmget(ledger.key_of(store), [*ledger.LOOK, f"at:{topic}"])
        for name in names:
            form.ask(together, name)
        return together.execute(raise_on_error=False)

    seen, *values = server.ask(question)
    if isinstance(seen, Exception):
        with server.errors():
            raise seen
    return seen, form.read(values)


def rows_of(
    names: Sequence[bytes], found: Sequence[Fields | None], keys: TableKeys, form: Form
) -> tuple[list[bytes], pa.RecordBatch]:
    """Those of the keys that are rows of the table, and the rows. Schema: ``audit_schema``."""
    there = [
        (name, fields)
        for name, fields in zip(names, found, strict=True)
        if fields is not None and (keys.shown or form.may_be_row(fields, keys.schema))
    ]
    try:
        rows = form.rows([fields for _, fields in there], keys.schema)
    except (ValueError, TypeError, KeyError, AttributeError):
        # One of them at least has values that no column has. Which one is seen by looking at each alone.
        alone = [rows_of([name], [fields], keys, form) for name, fields in there] if len(there) > 1 else []
        batches = [rows for _, rows in alone]
        return [name for mine, _ in alone for name in mine], together(batches, keys.schema)
    if not keys.shown:
        rows = with_keys([name for name, _ in there], rows, keys, form)
    mine = own([name for name, _ in there], rows, keys, form)
    return [name for (name, _), is_mine in zip(there, mine, strict=True) if is_mine], rows.filter(pa.array(mine, pa.bool_()))


def own_rows(names: pa.Array, rows: pa.RecordBatch, which: Mask, keys: TableKeys, form: Form) -> pa.RecordBatch:
    """Those of some rows that are the table's. ``names``: the keys (large_binary) that they stand under; ``which``: the rows to look at, all of which have
    nothing but fields of the table."""
    if not which.all():
        names, rows = names.filter(pa.array(which)), rows.filter(pa.array(which))
    if len(names) == 0:
        return rows
    if keys.shown and plain_key(keys.schema):
        mine = keys.named(names, rows)
        return rows if pc.all(mine).as_py() else rows.filter(mine)
    listed = names.to_pylist()
    if not keys.shown:
        rows = with_keys(listed, rows, keys, form)
    return rows.filter(pa.array(own(listed, rows, keys, form), pa.bool_()))


def with_keys(names: Sequence[bytes], rows: pa.RecordBatch, keys: TableKeys, form: Form) -> pa.RecordBatch:
    """The rows with those columns of the key that their values do not show, out of their names."""
    said = form.meant(keys.keys_of(names), keys.schema)
    for at, column in enumerate(keys.schema.fields):
        if not column.shown:
            rows = rows.set_column(at, rows.schema.field(at), said.column(column.name))
    return rows


def own(names: Sequence[bytes], rows: pa.RecordBatch, keys: TableKeys, form: Form) -> list[bool]:
    """Whether each row's own columns name exactly the key that it stands under."""
    if not names:
        return []
    if plain_key(keys.schema):
        return [name == own for name, own in zip(names, keys.texts_of_keys(rows).to_array().to_pylist(), strict=True)]
    # Such a value can be written in several ways, so its text cannot be told from the row: it is told from the name.
    said = keys.keys_of(names)
    meant = form.meant(said, keys.schema)
    columns = [column.name for column in keys.schema.key]
    ours = zip(*(meant.column(name).to_pylist() for name in columns), strict=True)
    theirs = zip(*(rows.column(name).to_pylist() for name in columns), strict=True)
    again = keys.texts_of_keys(said).to_array().to_pylist()
    return [one == other and name == own for one, other, name, own in zip(ours, theirs, names, again, strict=True)]


def together(batches: Sequence[pa.RecordBatch], schema: TopicSchema) -> pa.RecordBatch:
    texts = audit_schema(schema)
    whole = pa.Table.from_batches(batches, texts).combine_chunks().to_batches()
    return whole[0] if whole else pa.RecordBatch.from_pylist([], schema=texts)
