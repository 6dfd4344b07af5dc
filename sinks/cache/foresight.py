"""A cache's options before anything is written: whether they fit its tables, what they change of the rows that are there, what they make of a row."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import pyarrow as pa

from cdc.errors import ConfigError
from cdc.model.batch import topic_schema
from cdc.model.selection import matches, named
from cdc.model.topic import TopicSchema
from sinks.cache.ledger import INVALIDATE, Projection
from sinks.cache.options import Options
from sinks.cache.standing import CacheStanding, could_be_the_same
from sinks.cache.values import form_of


def refuse_misfit(name: str, options: Options, now: CacheStanding, held: Mapping[str, str], schemas: Sequence[TopicSchema]) -> None:
    """Raises ConfigError when the keys of these tables, which are to come, cannot be named, or cannot be told apart. ``now``: empty, under the options'
    projection; ``held``: the prefixes of the tables whose keys are there under it."""
    for pattern in named(list(options.held.options)):
        if not any(matches((pattern,), schema) for schema in schemas):
            hint = f"tables: {', '.join(schema.topic for schema in schemas) or 'none'}"
            raise ConfigError(f'stores.{name}.tables."{pattern}": no such table is captured', hint=hint)
    found = [now.check(schema, dict(held)) for schema in schemas]
    for keys, after in pairwise(sorted(found, key=lambda keys: keys.prefix)):
        if after.prefix.startswith(keys.prefix):
            raise could_be_the_same(name, keys.schema.topic, after.schema.topic)


def changed(known: CacheStanding, wanted: Projection) -> str | None:
    """The change that the next writer makes to every row, in words; None: none. Raises ConfigError where it cannot."""
    held = known.projection
    if held == wanted:
        return None
    later = CacheStanding(known.names, wanted)
    for topic in known.prefixes:
        later.prefixes[topic] = later.check(known.shapes[topic].schema).prefix
    if held.key != wanted.key:
        return f'every key is written again under key = "{wanted.key}", and deleted under "{held.key}"'
    if held.value != wanted.value and wanted.value == INVALIDATE:
        return "every key is deleted, and what stands there is the application's from then on"
    if held.value != wanted.value:
        return f"every value is written again as {wanted.value}, until now {held.value}"
    if held.tables != wanted.tables:
        return "every row whose `key`, `value` or `ttl` is said otherwise is written again"
    return "every value is written again, as its columns are shown otherwise"


def previewed(options: Options, now: CacheStanding, rows: pa.RecordBatch) -> Iterator[Mapping[str, str]]:
    """As ``Sink.preview``. ``now``: empty, under the options' projection."""
    schema = topic_schema(rows.schema)
    names = now.check(schema).texts(rows).to_array().to_pylist()
    form, channel = form_of(now.projection, schema), options.channel(schema.topic).decode()
    expire_at = form.write(rows, schema).expire_at
    for at, (key, value) in enumerate(zip(names, form.shown(rows, schema), strict=True)):
        expires = {} if expire_at is None else {"expires": _moment(int(expire_at[at]))}
        yield {
            "command": form.command,
            "key": key.decode(),
            **({"value": value} if form.keeps else {}),
            **expires,
            **({"publish": channel} if channel else {}),
            **({"pointer": f"what {options.pointer} holds stands before the key"} if options.pointer else {}),
        }


def _moment(ms: int) -> str:
    return dt.datetime.fromtimestamp(ms / 1000, dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
