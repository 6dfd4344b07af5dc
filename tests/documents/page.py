"""The generated parts of docs/documents.md, from real servers.

``python -m tests.documents`` (``make docs``) writes them; a test fails while they are stale.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import psycopg
import pyarrow as pa
import redis

from cdc.embedded.valkey import Valkey
from cdc.model.batch import last_position
from cdc.model.pgtypes import PINNED_SETTINGS
from cdc.model.table import Table
from cdc.model.topic import TopicSchema
from cdc.source.catalog import load_published
from cdc.source.rows import SourceRows, snapshot
from sinks.console import ConsoleSink
from sinks.console import Options as ConsoleOptions
from sinks.contract import Sink
from tests.contract.labs import LABS, Fixture, Lab
from tests.contract.rows import Row, upserts
from tests.documents.everything import COLUMNS, ODD, QUERIES, SEARCHED, SETUP
from tests.logs import EMPTY, cut

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "documents.md"
SHOWN: Final = 90
"""Characters of a value; the rest of a longer one is left out."""

CATALOG: Final = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "hadoop", ".cache-enabled": "false"}

Connection = psycopg.Connection[Any]
Values = Mapping[str, str | None]
"""Column → how it stands in a store, None where it does not."""


def parts(connection: Connection, fixture: Fixture) -> dict[str, str]:
    """The generated parts by name. ``connection``: to an empty database; ``fixture``: gives running servers (``tests.contract.labs``)."""
    for name, value in PINNED_SETTINGS.items():
        connection.execute("select set_config(%s, %s, false)", (name, value))
    connection.execute(SETUP)
    stores = Stores(fixture)
    try:
        return {"row": _row(connection, stores), "odd": _odd(connection, stores), "queries": _queries(connection, stores)}
    finally:
        stores.close()


# --- the source --------------------------------------------------------------------------------------------------------------


def table_of(
    connection: Connection, name: str, columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[str | None]]
) -> tuple[Table, list[Row]]:
    """Creates and fills the table; its definition as the catalog tells it, and its rows as Postgres prints them."""
    connection.execute("set search_path = public, extras")
    made = ", ".join(f'"{column}" {kind}' for column, kind in columns)
    connection.execute(f"create table {name} ({made})")  # type: ignore[arg-type]
    for row in rows:
        values = ", ".join("%s::" + kind.removesuffix(" primary key") for _, kind in columns)
        connection.execute(f"insert into {name} values ({values})", row)  # type: ignore[arg-type]
    connection.execute("set search_path = ''")
    connection.execute(f"create publication {name} for table public.{name}")  # type: ignore[arg-type]
    [table] = load_published(connection, name)
    with snapshot(connection):
        [batch] = SourceRows(connection, table, name).scan()
    return table, batch.to_pylist()


# --- the stores --------------------------------------------------------------------------------------------------------------


def _hashes(server: Valkey) -> str:
    """Where the hashes are: a database of their own."""
    return f"redis://127.0.0.1:{server.port}/1"


class Stores:
    """One of each kind, filled with a table's rows and read as their users read them."""

    def __init__(self, fixture: Fixture) -> None:
        self._labs: dict[str, Lab] = {name: LABS[name](fixture) for name in ("opensearch", "redis", "redis-hash", "warehouse")}
        self._fixture = fixture

    def close(self) -> None:
        for lab in self._labs.values():
            lab.close()

    def fill(self, name: str, table: Table, rows: Sequence[Row]) -> Sink:
        lab = self._labs[name]
        # The two caches have the same keys, so each has a database of its own.
        sink = lab.opened(url=_hashes(lab.server)) if name == "redis-hash" else lab.opened()
        sink.prepare(TopicSchema.of(table))
        changes = upserts(table, lab.log.head.position + 1, rows)
        lab.log.put(changes)
        outcome = sink.apply(changes)
        assert outcome.written == len(rows), outcome
        sink.commit(cut(last_position(changes)))
        sink.make_visible()
        same = sink.as_held(
            pa.RecordBatch.from_pylist(list(rows), pa.schema([(n, pa.utf8()) for n in table.names])), TopicSchema.of(table)
        )
        held = sorted((row for part in sink.scan(TopicSchema.of(table)) for row in part.to_pylist()), key=str)
        assert held == sorted(same.to_pylist(), key=str), f"the audit of {name} is equal"
        return sink

    def search(self, table: Table, rows: Sequence[Row]) -> list[Values]:
        """What ``_source`` says, by the key's order."""
        self.fill("opensearch", table, rows)
        server = self._fixture("opensearch")
        query = {"size": 1000, "sort": [{"id": "asc"}]}
        hits = server.request("POST", f"/{table.qualified}/_search", query)["hits"]["hits"]
        found = []
        for hit in hits:
            source = raw_members(_raw(server, f"/{table.qualified}/_source/{hit['_id']}"))
            beside = raw_members(source.pop("_unindexed", "{}"))
            found.append(source | {name: f"in `_unindexed`: {text}" for name, text in beside.items()})
        return found

    def json(self, table: Table, rows: Sequence[Row]) -> list[Values]:
        self.fill("redis", table, rows)
        with self._fixture("valkey").client(decode_responses=True) as client:
            return [raw_members(client.get(f"{table.qualified}:{row['id']}")) for row in rows]

    def hash(self, table: Table, rows: Sequence[Row]) -> list[Values]:
        self.fill("redis-hash", table, rows)
        with redis.Redis.from_url(_hashes(self._fixture("valkey").server), decode_responses=True) as client:
            return [client.hgetall(f"{table.qualified}:{row['id']}") for row in rows]

    def warehouse(self, table: Table, rows: Sequence[Row]) -> Values:
        """The first row, each value after its Iceberg type."""
        sink = self.fill("warehouse", table, rows)
        spark, catalog = self._fixture("spark"), f"docs_{sink.name}"
        for key, value in CATALOG.items():
            spark.conf.set(f"spark.sql.catalog.{catalog}{key}", value)
        spark.conf.set(f"spark.sql.catalog.{catalog}.warehouse", str(sink.options.path))
        frame = spark.table(f"{catalog}.{table.qualified}")
        kinds = dict(frame.dtypes)
        row = frame.selectExpr(
            *(f"hex({n})" if kinds[n] == "binary" else f"cast({n} as string) as {n}" for n in table.names)
        ).collect()[0]
        return {name: f"{kinds[name]} {'NULL' if value is None else value}" for name, value in zip(table.names, row, strict=True)}

    def console(self, table: Table, rows: Sequence[Row]) -> str:
        out = io.BytesIO()
        sink = ConsoleSink("console", ConsoleOptions(kind="console"), out)
        sink.open(EMPTY)
        sink.prepare(TopicSchema.of(table))
        sink.apply(upserts(table, 1, rows))
        return out.getvalue().decode()


def _raw(server: Any, path: str) -> str:
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def raw_members(text: str) -> dict[str, str]:
    """An object's members as they are written."""
    found, at = {}, text.index("{") + 1
    decoder = json.JSONDecoder()
    while text[at] != "}":
        name, at = decoder.raw_decode(text, at)
        _, end = decoder.raw_decode(text, at + 1)
        found[name] = text[at + 1 : end]
        at = end + 1 if text[end] == "," else end
    return found


# --- the parts ---------------------------------------------------------------------------------------------------------------


def _row(connection: Connection, stores: Stores) -> str:
    table, rows = table_of(
        connection, "everything", [(name, kind) for name, kind, _ in COLUMNS], [[value for *_, value in COLUMNS]]
    )
    [search], [value], [fields] = stores.search(table, rows), stores.json(table, rows), stores.hash(table, rows)
    warehouse = stores.warehouse(table, rows)
    line = raw_members(stores.console(table, rows))
    assert {name: text for name, text in line.items() if name != "_cdc_position"} == value, "a console's line has the same values"
    lines = [
        "| column | type | Postgres prints | JSON (cache, console) | search | cache, `hash` | warehouse |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, kind, _ in COLUMNS:
        cells = [name, kind, _cell(rows[0][name]), _cell(value.get(name), "left out")]
        cells.append("the same" if search.get(name) == value.get(name) else _cell(search.get(name), "left out"))
        cells += [_cell(fields.get(name), "no field"), _cell(warehouse[name])]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _odd(connection: Connection, stores: Stores) -> str:
    lines = ["| | type | Postgres prints | JSON (cache, console) | search |", "|---|---|---|---|---|"]
    for number, (kind, given, what) in enumerate(ODD):
        table, rows = table_of(connection, f"odd_{number}", [("id", "int4 primary key"), ("v", kind)], [["1", given]])
        [search], [value] = stores.search(table, rows), stores.json(table, rows)
        there = "the same" if search.get("v") == value.get("v") else _cell(search.get("v"))
        lines.append(f"| {what} | {kind} | {_cell(rows[0]['v'])} | {_cell(value.get('v'))} | {there} |")
    return "\n".join(lines)


def _queries(connection: Connection, stores: Stores) -> str:
    given = [[f"{number}", text] for number, text in enumerate(SEARCHED, 1)]
    table, rows = table_of(connection, "searched", [("id", "int4 primary key"), ("attributes", "jsonb")], given)
    stores.search(table, rows)
    server = stores._fixture("opensearch")
    lines = ["| id | `attributes` |", "|---|---|", *(f"| {number} | {_cell(text)} |" for number, text in given), ""]
    lines += ["| query | finds | |", "|---|---|---|"]
    for query, what in QUERIES:
        try:
            answer = server.request("POST", f"/{table.qualified}/_search", {"query": json.loads(query), "sort": [{"id": "asc"}]})
            found = ", ".join(hit["_id"] for hit in answer["hits"]["hits"]) or "nothing"
        except ValueError:
            found = "refused"
        lines.append(f"| {_cell(query)} | {found} | {what} |")
    return "\n".join(lines)


def _cell(text: str | None, nothing: str = "NULL") -> str:
    if text is None:
        return nothing
    shown = text if len(text) <= SHOWN else f"{text[: SHOWN // 2]} … {text[-SHOWN // 4 :]}"
    shown = shown.replace("\n", "⏎").replace("|", "\\|")
    if shown.startswith("in `_unindexed`: "):
        return "in `_unindexed`: " + _code(shown.removeprefix("in `_unindexed`: "))
    return _code(shown)


def _code(text: str) -> str:
    fence = "``" if "`" in text else "`"
    space = " " if not text or text != text.strip() else ""
    return f"{fence}{space}{text}{space}{fence}" if text else "(empty)"
