"""The audit against a real Postgres and real stores: every kind of drift is found and named, and traffic raises no alarm."""

from __future__ import annotations

import json
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pydantic import SecretStr

from cdc.audit.comparison import SourceSide, Target
from cdc.audit.findings import Progress, Repair, StoreAudit, TableAudit
from cdc.audit.settlement import LISTED_KEYS
from cdc.audit.stores import NUDGE_AFTER_S, audit, audit_store
from cdc.errors import ConfigError, Stopped, StopState, StoreError, WaitTimeout
from cdc.log.home import open_reader
from cdc.model.batch import OP, Op, batch_schema
from cdc.model.position import Cut, Lsn, Position
from cdc.model.table import Table
from cdc.model.topic import TopicSchema
from cdc.privacy.policies import MASKED, Keys, Protection
from cdc.settings.models import Privacy, Settings
from cdc.source.catalog import load_published
from cdc.source.connection import connect
from cdc.source.watch import CatalogWatch
from cdc.state import status, stops
from sinks import make_sink
from sinks.contract import Sink
from sinks.memory import MemorySink
from sinks.retry import ATTEMPTS_MAX
from sinks.sparksession import use_session
from snapshots.requests import Requests
from tests.conftest import Database
from tests.contract.labs import LABS, Lab
from tests.integration.pipeline import service, settings_of
from tests.waiting import until

Row = dict[str, Any]
DDL = "create table public.t (id bigint primary key, a text, n numeric(10,2), u numeric, c char(5), b bool, at timestamptz)"
ROWS = 500
CATCH_UP_S = 120
"""For a store to get as far as the source, on a machine with much else to do."""


def row(number: int) -> Row:
    return {
        "id": number,
        "a": ["x", None, "", "tab\tline\nback\\slash", "\\N", "ü 漢 😀"][number % 6],
        "n": Decimal(number) / 4,
        "u": "1.10",
        "c": "ab",
        "b": number % 2 == 0,
        "at": f"2024-02-29 12:00:00.{number % 1000:03d}+00",
    }


@pytest.fixture
def source(postgres: Database) -> Iterator[psycopg.Connection]:
    with connect(postgres.dsn) as connection:
        connection.execute(DDL)
        connection.execute("create publication cdc for table public.t")
        with connection.cursor() as cursor:
            cursor.executemany(
                "insert into public.t values (%(id)s, %(a)s, %(n)s, %(u)s::numeric, %(c)s, %(b)s, %(at)s)",
                [row(i) for i in range(ROWS)],
            )
        yield connection


@pytest.fixture
def table(source: psycopg.Connection) -> Table:
    return load_published(source, "cdc")[0]


@pytest.fixture(
    params=[
        "memory",
        "redis",
        "redis-hash",
        pytest.param("opensearch", marks=[pytest.mark.opensearch, pytest.mark.xdist_group("opensearch")]),
        pytest.param("warehouse", marks=[pytest.mark.spark, pytest.mark.xdist_group("spark")]),
    ]
)
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    made = LABS[request.param](request.getfixturevalue)
    yield made
    made.close()


class Writer:
    """Writes rows into a store as a follower would."""

    def __init__(self, sink: Sink, table: Table) -> None:
        self._sink = sink
        self._table = table
        self._position = 0

    def write(self, op: Op, *rows: Row) -> None:
        first = self._position + 1
        self._position += len(rows)
        columns: dict[str, list[Any]] = {
            "_cdc_position": list(range(first, self._position + 1)),
            "_cdc_op": [int(op)] * len(rows),
            "_cdc_lsn": [first] * len(rows),
            "_cdc_ts": [0] * len(rows),
            "_cdc_exact": [None] * len(rows),
        }
        schema = batch_schema(self._table)
        for field in list(schema)[5:]:
            values = pa.array([None if (value := one.get(field.name)) is None else str(value) for one in rows], pa.utf8())
            columns[field.name] = (
                values.cast(field.type) if field.name != "c" else pa.array([one.get("c") for one in rows]).cast(pa.utf8())
            )
        columns["c"] = pa.array([None if one.get("c") is None else str(one["c"]).ljust(5) for one in rows], pa.utf8())
        self._sink.prepare(TopicSchema.of(self._table))
        self._sink.apply(pa.RecordBatch.from_arrays([pa.array(columns[field.name], field.type) for field in schema], schema=schema))
        self._sink.commit(Cut(Position(self._position), Lsn(self._position)))


@pytest.fixture
def sink(lab: Lab) -> Sink:
    return lab.opened()


@pytest.fixture
def writer(sink: Sink, table: Table) -> Writer:
    filled = Writer(sink, table)
    filled.write(Op.INSERT, *(row(i) for i in range(ROWS)))
    return filled


def compare(
    source: psycopg.Connection, sink: Sink, *tables: Table, progress: Callable[[Progress], None] = lambda _: None
) -> StoreAudit:
    targets = [Target(table, ROWS) for table in tables]
    return audit_store(SourceSide(source, "cdc"), sink, lambda: targets, lambda _: sink.applied(), progress)


def found(result: TableAudit) -> set[tuple[str, str | None, tuple[str, ...]]]:
    return {(difference.kind, difference.key["id"], difference.columns) for difference in result.differences}


def test_equal_stores_are_clean(source: psycopg.Connection, sink: Sink, table: Table, writer: Writer) -> None:  # noqa: ARG001
    told: list[Progress] = []
    result = compare(source, sink, table, progress=told.append)
    assert result.equal, result
    assert result.tables[0].differences == ()
    assert (result.tables[0].scanned.source_rows, result.tables[0].scanned.store_rows) == (ROWS, ROWS)
    assert result.position == ROWS
    assert {"waiting", "scanning", "comparing"} <= {progress.phase for progress in told}


def test_every_kind_of_drift_names_key_and_column(source: psycopg.Connection, sink: Sink, table: Table, writer: Writer) -> None:
    writer.write(Op.UPDATE, {**row(12), "a": "other"})
    writer.write(Op.UPDATE, {**row(14), "a": None})
    writer.write(Op.UPDATE, {**row(13), "a": ""})
    writer.write(Op.UPDATE, {**row(15), "u": "1.11"})
    writer.write(Op.UPDATE, {**row(18), "a": "x "})
    writer.write(Op.UPDATE, {**row(19), "b": None, "n": Decimal("4.76")})
    writer.write(Op.DELETE, {"id": 20})
    writer.write(Op.INSERT, row(ROWS + 1))
    result = compare(source, sink, table)
    assert not result.equal
    [drifted] = result.tables
    assert found(drifted) == {
        ("different", "12", ("a",)),
        ("different", "14", ("a",)),
        ("different", "13", ("a",)),
        ("different", "15", ("u",)),
        ("different", "18", ("a",)),
        ("different", "19", ("n", "b")),
        ("missing", "20", ()),
        ("extra", f"{ROWS + 1}", ()),
    }
    assert (drifted.tally.missing, drifted.tally.extra, drifted.tally.different, drifted.tally.unsettled) == (1, 1, 6, 0)
    assert drifted.columns == {"a": 4, "u": 1, "n": 1, "b": 1}
    shown = str(result.to_json())
    assert "other" not in shown
    assert "漢" not in shown


def test_an_empty_store_lacks_every_row_and_lists_a_few(source: psycopg.Connection, sink: Sink, table: Table) -> None:
    sink.prepare(TopicSchema.of(table))
    [result] = compare(source, sink, table).tables
    assert (result.tally.missing, result.scanned.store_rows, len(result.differences)) == (ROWS, 0, LISTED_KEYS)


class Held:
    """A store whose content is given; for what no real store of ours would hold."""

    name = "held"

    def __init__(self, batch: pa.RecordBatch) -> None:
        self.batch = batch

    def shape(self, topic: str) -> None:
        """Nothing has changed."""

    def applied(self) -> Cut:
        return Cut(Position(1), Lsn(1))

    def make_visible(self) -> None: ...

    def as_held(self, rows: pa.RecordBatch, schema: TopicSchema) -> pa.RecordBatch:  # noqa: ARG002
        return rows

    def scan(self, schema: TopicSchema) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        yield self.batch

    def fetch(self, schema: TopicSchema, keys: pa.RecordBatch) -> pa.RecordBatch:  # noqa: ARG002
        wanted = {tuple(key.values()) for key in keys.to_pylist()}
        kept = [tuple(one[name] for name in keys.schema.names) in wanted for one in self.batch.to_pylist()]
        return self.batch.filter(pa.array(kept, pa.bool_()))


def texts(**columns: list[str | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values, pa.utf8()) for values in columns.values()], names=list(columns))


def published(connection: psycopg.Connection, name: str) -> Table:
    return next(table for table in load_published(connection, "cdc") if table.name == name)


def test_keys_of_any_shape(source: psycopg.Connection) -> None:
    """Composite keys, keys that are no value of their type, keys equal to Postgres but other text, rows without a key."""
    source.execute("create table public.k (a char(3), b numeric, v text, primary key (a, b))")
    source.execute("create table public.twins (v text, w int)")
    source.execute("alter table public.twins replica identity full")
    source.execute("alter publication cdc add table public.k, public.twins")
    source.execute("insert into public.k values ('a', 1.50, 'x'), ('b', 2, 'y')")
    source.execute("insert into public.twins values ('t', 1), ('t', 1), (null, null), (null, 2)")
    keys, twins = published(source, "k"), published(source, "twins")
    held = Held(texts(a=["a  ", "b  ", "zz "], b=["1.5", "2", "no number"], v=["x", "y", "z"]))
    [result] = compare(source, held, keys).tables  # type: ignore[arg-type]
    assert {(one.kind, one.key["a"], one.key["b"]) for one in result.differences} == {
        ("missing", "a  ", "1.50"),
        ("extra", "a  ", "1.5"),
        ("extra", "zz ", "no number"),
    }
    [clean] = compare(source, Held(texts(v=[None, "t", None, "t"], w=["2", "1", None, "1"])), twins).tables  # type: ignore[arg-type]
    assert (clean.equal, clean.distinct_rows, clean.scanned.repeated) == (True, True, 1)
    [once] = compare(source, Held(texts(v=[None, "t", None], w=["2", "1", None])), twins).tables  # type: ignore[arg-type]
    assert (once.equal, once.scanned.source_rows, once.scanned.store_rows, once.scanned.repeated) == (True, 4, 3, 1)
    [less] = compare(source, Held(texts(v=[None, None], w=["2", None])), twins).tables  # type: ignore[arg-type]
    assert (less.tally.missing, less.tally.extra, less.tally.different) == (1, 0, 0)
    assert less.differences[0].key == {"v": "t", "w": "1"}


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("char(4)", ["ab", "cd"]),
        ("bpchar", ["ab", "cd"]),
        ("char(2)[]", ["{ab}", "{cd,e}"]),
        ("bit(3)", ["010", "111"]),
        ("public.odd", ["3", "5"]),
    ],
)
def test_rows_that_are_gone_are_found_by_keys_of_types_with_a_length(
    source: psycopg.Connection, kind: str, keys: list[str]
) -> None:
    """A cast to "character" or "bit" cuts: a key that finds its row on neither side would pass for one that has settled."""
    source.execute("create domain public.odd as int check (value % 2 = 1)")
    source.execute(f"create table public.k (id {kind}, n int, primary key (id, n))".encode())
    source.execute("alter publication cdc add table public.k")
    source.execute(f"insert into public.k values ('{keys[0]}', 1), ('{keys[1]}', 2)".encode())
    with source.cursor() as cursor, cursor.copy("copy public.k (id, n) to stdout") as copy:
        copy.set_types(["text", "text"])
        rows = list(copy.rows())
    stray = ("4", "2") if kind == "public.odd" else rows[1]
    [result] = compare(source, Held(texts(id=[rows[0][0], stray[0]], n=["1", stray[1]])), published(source, "k")).tables  # type: ignore[arg-type]
    assert (result.tally.missing, result.tally.extra) == ((1, 1) if kind == "public.odd" else (0, 0))
    [result] = compare(source, Held(texts(id=[rows[0][0]], n=["1"])), published(source, "k")).tables  # type: ignore[arg-type]
    assert not result.equal
    assert [(one.kind, one.key["id"]) for one in result.differences] == [("missing", rows[1][0])]


def test_only_what_is_published_counts(source: psycopg.Connection) -> None:
    source.execute("create table public.f (id int primary key, v text)")
    source.execute("insert into public.f select g, 'v' from generate_series(1, 100) g")
    source.execute("create publication half for table public.f where (id <= 50)")
    table = load_published(source, "half")[0]
    held = Held(texts(id=[f"{i}" for i in range(1, 51)], v=["v"] * 50))
    result = audit_store(SourceSide(source, "half"), held, lambda: [Target(table)], lambda _: held.applied())  # type: ignore[arg-type]
    assert result.equal


def test_children_and_partitions_count_where_the_stream_puts_them(source: psycopg.Connection) -> None:
    """The rows of a child by INHERITS are the child's alone; those of a partition are the root's."""
    source.execute("create table public.parent (id int primary key, v text)")
    source.execute("create table public.child (primary key (id)) inherits (public.parent)")
    source.execute("create table public.root (id int primary key, v text) partition by range (id)")
    source.execute("create table public.leaf partition of public.root default")
    source.execute("insert into public.parent values (1, 'p'); insert into public.child values (1, 'c'), (2, 'c')")
    source.execute("insert into public.root values (1, 'r'), (2, 'r')")
    source.execute("create publication families for table public.parent, public.root with (publish_via_partition_root)")
    rows = {
        "parent": texts(id=["1"], v=["p"]),
        "child": texts(id=["1", "2"], v=["c", "c"]),
        "root": texts(id=["1", "2"], v=["r", "r"]),
    }
    for table in load_published(source, "families"):
        [result] = compare(source, Held(rows[table.name]), table).tables  # type: ignore[arg-type]
        assert result.equal, table.name
        [less] = compare(source, Held(rows[table.name].slice(1)), table).tables  # type: ignore[arg-type]
        assert [(one.kind, one.key["id"], one.columns) for one in less.differences] == [("missing", "1", ())], table.name


def test_protected_columns_are_compared_as_the_log_has_them(source: psycopg.Connection) -> None:
    source.execute("create table public.p (mail text primary key, pay numeric, phone text, note text)")
    source.execute("insert into public.p select 'm' || g, g, 'p', 'n' from generate_series(1, 3) g")
    source.execute("alter publication cdc add table public.p")
    policies: Any = {"public.p": {"mail": "hmac", "pay": "encrypt", "phone": "mask", "note": "drop"}}
    guard = Protection(policies, "k" * 32)
    logged = guard.logged(published(source, "p"))
    keys = Keys("k" * 32)
    place = b"public.p.pay"
    held = Held(
        texts(
            mail=[keys.hmac("m1"), keys.hmac("m2"), keys.hmac("m9")],
            pay=[keys.encrypt("1", place), keys.encrypt("7", place), keys.encrypt("9", place)],
            phone=[MASKED] * 3,
        )
    )
    database = SourceSide(source, "cdc", guard)
    [result] = audit_store(database, held, lambda: [Target(logged)], lambda _: held.applied()).tables  # type: ignore[arg-type]
    assert {(one.kind, one.key["mail"], one.columns) for one in result.differences} == {
        ("missing", keys.hmac("m3"), ()),
        ("extra", keys.hmac("m9"), ()),
        ("different", keys.hmac("m2"), ("pay",)),
    }


def test_one_table_that_cannot_be_read_does_not_end_the_others(
    source: psycopg.Connection, postgres: Database, table: Table
) -> None:
    source.execute("create table public.gone (id int primary key)")
    source.execute("alter publication cdc add table public.gone")
    gone = published(source, "gone")
    with psycopg.connect(postgres.dsn, autocommit=True) as other:
        other.execute("drop table public.gone")
        other.execute("alter table public.t drop column b")
    result = compare(source, Held(texts(**{name: [] for name in table.names})), gone, table)  # type: ignore[arg-type]
    assert not result.equal
    assert [one.error is not None for one in result.tables] == [True, True]
    assert "no table public.gone" in (result.tables[0].error or "")
    source.execute("select 1")


def test_a_store_that_fails_ends_the_audit_at_once(source: psycopg.Connection, table: Table) -> None:
    class Failing(Held):
        def scan(self, schema: TopicSchema) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
            raise ConnectionError("down")

    with pytest.raises(ConnectionError):
        compare(source, Failing(texts()), table)  # type: ignore[arg-type]
    assert source.execute("select 1").fetchone() == (1,)


# The whole way: real capture, real log, real followers, traffic all the while


@contextmanager
def traffic(dsn: str, seed: int) -> Iterator[None]:
    """Inserts, updates and deletes without a pause, a counter that every transaction writes among them; keys 100 to 199 rest."""
    dice = random.Random(seed)
    stop = threading.Event()

    def write() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not stop.is_set():
                with connection.transaction():
                    connection.execute("update public.t set n = n + 1 where id = 0")
                    for _ in range(dice.randrange(1, 20)):
                        key = dice.choice([dice.randrange(1, 100), dice.randrange(200, 3000)])
                        change = [
                            "delete from public.t where id = %(id)s",
                            "insert into public.t (id, a) values (%(id)s, %(a)s) on conflict (id) do update set a = excluded.a, u = 1.10",
                            "update public.t set a = %(a)s, at = now() where id = %(id)s",
                        ][dice.randrange(3)]
                        connection.execute(change, {"id": key, "a": dice.choice([None, "", "v", "w"])})

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.mark.usefixtures("source")
def test_traffic_raises_no_alarm_and_hides_no_drift(postgres: Database, valkey: Any, tmp_path: Path, seed: int) -> None:
    # A name of its own: the twin's stores live as long as the process.
    twin = f"twin-{postgres.name.replace('_', '-')}"
    settings = settings_of(
        postgres, tmp_path, {"cache": {"kind": "redis", "url": valkey.url, "key": "t:{id}"}, twin: {"kind": "memory"}}
    )
    with service(settings), traffic(postgres.dsn, seed):
        results = {result.store: result for result in audit(settings, timeout_s=CATCH_UP_S)}
        assert set(results) == {"cache", twin}
        for result in results.values():
            assert result.equal, result.to_json()
            assert result.tables[0].scanned.source_rows > 100
        with valkey.client() as client:
            assert client.delete("t:150") == 1
            document = client.get("t:160")
            client.set("t:160", document.replace(b'"c":"ab', b'"c":"aB'))
        for _ in range(2):
            [result] = audit(settings, "cache", timeout_s=CATCH_UP_S)
            assert found(result.tables[0]) == {("missing", "150", ()), ("different", "160", ("c",))}
            assert not result.equal
        with pytest.raises(ConfigError, match="no store 'cash'") as refused:
            audit(settings, "cash")
        assert refused.value.hint == "did you mean cache?"
        with pytest.raises(ConfigError, match="has no table"):
            audit(settings, "cache", "public.nothing")


class CacheKeys:
    """What stands under a table's keys in a Redis, for somebody who goes past us. ``hashes``: each value is one."""

    def __init__(self, valkey: Any, *, hashes: bool, prefix: str = "t") -> None:
        self.options: dict[str, Any] = {
            "kind": "redis",
            "url": valkey.url,
            "key": f"{prefix}:{{id}}",
            "value": "hash" if hashes else "json",
        }
        self._client, self._hashes, self._prefix = valkey.client(), hashes, prefix

    def read(self, key: int) -> dict[str, Any]:
        if self._hashes:
            return {name.decode(): text.decode() for name, text in self._client.hgetall(f"{self._prefix}:{key}").items()}
        found: dict[str, Any] = json.loads(self._client.get(f"{self._prefix}:{key}"), parse_float=lambda text: f"\0{text}\0")
        return found

    def write(self, key: int, value: dict[str, Any]) -> None:
        self.remove(key)
        if self._hashes:
            self._client.hset(f"{self._prefix}:{key}", mapping={name: str(text) for name, text in value.items()})
        else:
            text = json.dumps(value, ensure_ascii=False)
            self._client.set(f"{self._prefix}:{key}", re.sub(r'"\\u0000(.*?)\\u0000"', r"\1", text))  # numbers as they were

    def remove(self, key: int) -> None:
        self._client.delete(f"{self._prefix}:{key}")


class Lake:
    """The same of a warehouse, in the SQL of whoever has it open in Spark."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self.options: dict[str, Any] = {"kind": "iceberg", "path": folder}
        self._spark, catalog = spark, f"lake_{folder.parent.name.replace('-', '_')}"
        for key, value in {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "hadoop", ".warehouse": folder}.items():
            spark.conf.set(f"spark.sql.catalog.{catalog}{key}", str(value))
        spark.conf.set(f"spark.sql.catalog.{catalog}.cache-enabled", "false")
        self._table = f"{catalog}.public.t"
        use_session(lambda: spark)

    def read(self, key: int) -> dict[str, Any]:
        (found,) = self._spark.sql(f"select * from {self._table} where id = {key}").collect()
        row: dict[str, Any] = found.asDict()
        return row

    def write(self, key: int, value: dict[str, Any]) -> None:
        self.remove(key)
        columns = self._spark.table(self._table).schema
        self._past_others(lambda: self._spark.createDataFrame([value], columns).writeTo(self._table).append())

    def remove(self, key: int) -> None:
        self._past_others(lambda: self._spark.sql(f"delete from {self._table} where id = {key}"))

    def _past_others(self, commit: Callable[[], object]) -> None:
        """Again where the follower was faster: Iceberg's own commits do not try again in our tables."""
        for _ in range(100):
            try:
                commit()
            except Exception as error:
                if "Commit" not in str(error) and "Validation" not in str(error):
                    raise
            else:
                return
        raise AssertionError("the follower is always faster")


class Index:
    """The same of an index."""

    def __init__(self, opensearch: Any) -> None:
        self.options: dict[str, Any] = {"kind": "opensearch", "url": opensearch.url}
        self._server = opensearch

    def read(self, key: int) -> dict[str, Any]:
        found: dict[str, Any] = self._server.request("GET", f"{self._path}/{key}")["_source"]
        return found

    def write(self, key: int, value: dict[str, Any]) -> None:
        self._server.request("PUT", f"{self._path}/{key}?refresh=true", value)

    def remove(self, key: int) -> None:
        self._server.request("DELETE", f"{self._path}/{key}?refresh=true")

    @property
    def _path(self) -> str:
        (index,) = self._server.request("GET", "/_alias/public.t")
        return f"/{index}/_doc"


@pytest.mark.parametrize(
    "where",
    [
        "redis",
        "redis-hash",
        pytest.param("opensearch", marks=[pytest.mark.opensearch, pytest.mark.xdist_group("opensearch")]),
    ],
)
def test_whatever_somebody_does_to_rows_is_found_and_repaired(
    source: psycopg.Connection, postgres: Database, tmp_path: Path, where: str, request: pytest.FixtureRequest
) -> None:
    """A value is changed, a row taken away or added, an older one put back, a value of another type put in its place; then their rows are sent again."""
    fixture = request.getfixturevalue("opensearch" if where == "opensearch" else "valkey")
    store: CacheKeys | Index = Index(fixture) if where == "opensearch" else CacheKeys(fixture, hashes=where == "redis-hash")
    settings = settings_of(postgres, tmp_path, {"copy": store.options})
    with service(settings):
        [result] = audit(settings, timeout_s=CATCH_UP_S)
        assert result.equal, result.to_json()
        older = store.read(30)
        source.execute("update public.t set a = 'newer' where id = 30")
        [result] = audit(settings, timeout_s=CATCH_UP_S)
        assert result.equal, result.to_json()
        store.write(12, {**store.read(12), "a": "other"})
        store.remove(20)
        store.write(ROWS + 1, {**store.read(13), "id": ROWS + 1})
        store.write(30, older)
        # An index reads the text of a number as the number.
        column, value = {"redis": ("n", "10.00"), "redis-hash": ("n", "none"), "opensearch": ("a", 10)}[where]
        store.write(40, {**store.read(40), column: value})
        [result] = audit(settings, timeout_s=CATCH_UP_S)
        keys = {("different", "12", ("a",)), ("different", "30", ("a",)), ("different", "40", (column,))}
        assert found(result.tables[0]) == {*keys, ("missing", "20", ()), ("extra", f"{ROWS + 1}", ())}
        [result] = audit(settings, timeout_s=CATCH_UP_S, repair=True)
        assert result.tables[0].repair == Repair(missing=1, extra=1, different=3), result.to_json()
        assert (result.equal, result.whole) == (False, True)
        assert Requests(settings.log.dir).pending() == {}
        [result] = audit(settings, timeout_s=CATCH_UP_S, repair=True)
        assert result.equal, result.to_json()
        assert result.tables[0].repair is None


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_whatever_somebody_does_to_rows_of_a_warehouse_is_found_and_repaired(
    source: psycopg.Connection, postgres: Database, tmp_path: Path, spark: Any
) -> None:
    use_session(lambda: spark)
    settings = settings_of(postgres, tmp_path, {"lake": {"kind": "iceberg", "path": tmp_path / "lake", "commit_interval_ms": 0}})
    for key, value in {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "hadoop",
        ".warehouse": tmp_path / "lake",
        ".cache-enabled": "false",
    }.items():
        spark.conf.set(f"spark.sql.catalog.{postgres.name}{key}", str(value))
    rows = f"{postgres.name}.public.t"
    with service(settings):
        [result] = audit(settings, timeout_s=CATCH_UP_S)
        assert result.equal, result.to_json()
        source.execute("update public.t set a = 'newer' where id = 30")
        [result] = audit(settings, timeout_s=CATCH_UP_S)
        assert result.equal, result.to_json()
        for statement in (
            f"delete from {rows} where id = 20",
            f"insert into {rows} (id, a) values ({ROWS + 1}, 'by hand')",
            f"update {rows} set a = 'other' where id = 12",
            f"update {rows} set a = 'x', _cdc_position = 1 where id = 30",
        ):
            spark.sql(statement)
        [result] = audit(settings, timeout_s=CATCH_UP_S, repair=True)
        keys = {("different", "12", ("a",)), ("different", "30", ("a",)), ("missing", "20", ()), ("extra", f"{ROWS + 1}", ())}
        assert found(result.tables[0]) == keys
        assert result.tables[0].repair == Repair(missing=1, extra=1, different=2), result.to_json()
        assert result.whole
        [result] = audit(settings, timeout_s=CATCH_UP_S)
        assert result.equal, result.to_json()


def test_what_cannot_be_sent_again_is_named(source: psycopg.Connection, postgres: Database, valkey: Any, tmp_path: Path) -> None:
    """A table without a key, one whose key is protected, one whose key stores write in their own way, and a key that can be no row's."""
    source.execute("create table public.bare (v text); alter table public.bare replica identity full")
    source.execute("create table public.secret (mail text primary key)")
    source.execute("create table public.span (id interval primary key)")
    source.execute("alter publication cdc add table public.bare, public.secret, public.span")
    source.execute(
        "insert into public.bare values ('b'); insert into public.secret values ('m'); insert into public.span values ('1 day')"
    )
    cache = {"kind": "redis", "url": valkey.url}
    settings = settings_of(
        postgres, tmp_path, {"cache": cache, "hashes": {**cache, "value": "hash", "key": "h:{schema}.{table}:{key}"}}
    )
    guarded = settings.source.model_copy(update={"columns": {"public.secret": {"mail": "hmac"}}})
    settings = settings.model_copy(update={"source": guarded, "privacy": Privacy(key=SecretStr("k" * 32))})
    with service(settings), valkey.client() as client:
        assert all(result.equal for result in audit(settings, timeout_s=CATCH_UP_S))
        for pattern in ("*bare:*", "*secret:*", "*span:*"):
            for name in client.keys(pattern):
                client.delete(name)
        client.delete("public.t:7", "h:public.t:7")
        client.set("public.t:seven", client.get("public.t:8").replace(b'"id":8', b'"id":"seven"'))
        results = audit(settings, timeout_s=CATCH_UP_S, repair=True)
        for result in results:
            assert not result.whole
            problems = {one.table: one.repair and one.repair.problem for one in result.tables}
            for name, why in (("bare", "no key tells"), ("secret", "in another form"), ("span", "in their own way")):
                said = problems[f"public.{name}"] or ""
                assert why in said
                assert said.endswith(f"cdc snapshot public.{name} --replace reads the whole table again")
        [strange, clean] = [next(one.repair for one in result.tables if one.table == "public.t") for result in results]
        assert strange == Repair(missing=1, problem="1 key can be no row's in the database → delete them in the store")
        assert clean is None, "what the first repair sent again reached every store"
        client.delete("public.t:seven")
        [result] = audit(settings, "cache", "public.t", timeout_s=CATCH_UP_S, repair=True)
        assert result.equal
    with pytest.raises(ConfigError, match="capture does not run") as refused:
        audit(settings, timeout_s=CATCH_UP_S, repair=True)
    assert refused.value.hint == "cdc run"


def rows_read(settings: Settings) -> int:
    """The rows of public.t that snapshots have brought into the log."""
    with closing(open_reader(settings.log.dir)) as log:
        batches = list(log.read("public.t", Position(0), log.head().position))
    return sum(int((batch.column(OP).to_numpy() == int(Op.READ)).sum()) for batch in batches)


def no_more_read(settings: Settings, first: int = ROWS) -> bool:
    """Whether the table was read again, and is no longer being read."""
    before = rows_read(settings)
    time.sleep(3)
    return first < before == rows_read(settings)


def test_stores_with_a_choice_of_columns_are_compared_through_it(
    source: psycopg.Connection, postgres: Database, valkey: Any, tmp_path: Path
) -> None:
    """Objects, new names, and a key that only names the rows; the source's columns change meanwhile."""
    twin = f"chooses-{postgres.name.replace('_', '-')}"
    chosen = {"columns": ["a", "n", "u"], "rename": {"a": "text.a", "n": "text.n"}}
    cache = {"kind": "redis", "url": valkey.url, "key": "t:{id}", "tables": {"public.t": chosen}}
    stores = {"cache": cache, twin: {"kind": "memory", "tables": {"public.t": {"exclude": ["u", "c"], "rename": {"a": "title"}}}}}
    settings = settings_of(postgres, tmp_path, stores)
    with service(settings):
        assert all(result.equal for result in audit(settings, timeout_s=CATCH_UP_S)), "the names are those of now"
        for statement in (
            "update public.t set u = 1.20, n = 7 where id < 10",
            "alter table public.t rename a to body",
            "update public.t set body = 'later', c = 'x' where id = 11",
            "alter table public.t drop column c, add column more text default 'm'",
            "delete from public.t where id = 12",
        ):
            source.execute(statement)  # type: ignore[arg-type]
        # A column with a default brings every row again. What is changed in the store before that would be put right by it.
        until(lambda: no_more_read(settings))
        for result in audit(settings, timeout_s=CATCH_UP_S):
            assert result.equal, result.to_json()
            assert (result.tables[0].scanned.source_rows, result.tables[0].scanned.store_rows) == (ROWS - 1, ROWS - 1)
        with valkey.client() as client:
            assert json.loads(client.get("t:11")) == {"text": {"a": "later", "n": 2.75}, "u": 1.1}
            client.set("t:11", b'{"text":{"a":"x","n":2.75},"u":1.10}')
            client.delete("t:13")
            client.set("t:stranger", b'{"text":"none of ours"}')
        [result] = audit(settings, "cache", timeout_s=CATCH_UP_S)
        assert found(result.tables[0]) == {("different", "11", ("text.a",)), ("missing", "13", ())}
    # With another choice in the file nothing is compared, and nothing written, before the store is built again.
    other = settings_of(postgres, tmp_path, {"cache": {**cache, "tables": {"public.t": {"columns": ["u"]}}}})
    with pytest.raises(ConfigError, match=r"store cache holds other columns of public\.t than"):
        audit(other, timeout_s=CATCH_UP_S)
    with valkey.client() as client:
        make_sink("cache", settings.stores["cache"]).erase()
        assert list(client.scan_iter("t:*")) == [b"t:stranger"], "what is not ours stays"


@pytest.mark.usefixtures("source")
def test_a_store_that_lags_is_waited_for_and_then_named(postgres: Database, tmp_path: Path) -> None:
    twin = f"late-{postgres.name.replace('_', '-')}"
    settings = settings_of(postgres, tmp_path, {twin: {"kind": "memory"}})
    with service(settings):
        audit(settings, timeout_s=CATCH_UP_S)
    with psycopg.connect(postgres.dsn, autocommit=True) as connection:
        connection.execute("update public.t set a = 'late' where id = 1")
    began = time.monotonic()
    with pytest.raises(WaitTimeout):
        audit(settings, timeout_s=0.5)
    assert time.monotonic() - began < NUDGE_AFTER_S + 60


@pytest.mark.usefixtures("source")
@pytest.mark.parametrize("moment", ["opened", "read"])
def test_a_store_that_says_later_is_asked_again(
    moment: str, postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin = f"later-{moment}-{postgres.name.replace('_', '-')}"
    settings = settings_of(postgres, tmp_path, {twin: {"kind": "memory"}})
    answers: list[StoreError] = []

    def answer(*_: object) -> None:
        if answers:
            raise answers.pop()

    def make(store: str, options: Any) -> Sink:
        answer()
        return make_sink(store, options)

    if moment == "read":
        monkeypatch.setattr(MemorySink, "make_visible", answer)
    else:
        monkeypatch.setattr("cdc.audit.stores.make_sink", make)
    with service(settings):
        answers += [StoreError("no shard yet", retryable=True)] * 2
        [result] = audit(settings, timeout_s=CATCH_UP_S)
        assert result.equal, result.to_json()
        assert not answers
        answers += [StoreError("no rights", retryable=False)] * 2
        with pytest.raises(StoreError, match="no rights"):
            audit(settings, timeout_s=CATCH_UP_S)
        assert len(answers) == 1
        monkeypatch.setattr("cdc.audit.stores.backoff_s", lambda *_: 0.0)
        answers[:] = [StoreError("never again", retryable=True)] * 100
        with pytest.raises(StoreError, match="never again"):
            audit(settings, timeout_s=CATCH_UP_S)
        assert len(answers) == 100 - ATTEMPTS_MAX


@pytest.mark.usefixtures("source")
def test_nothing_is_waited_for_where_nothing_has_ever_run(
    postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cdc.audit.stores.BEGINS_WITHIN_S", 0.2)
    settings = settings_of(postgres, tmp_path, {"twin": {"kind": "memory"}})
    with pytest.raises(ConfigError, match="nothing has been captured into") as refused:
        audit(settings, timeout_s=CATCH_UP_S)
    assert refused.value.hint == "cdc run"
    # Beside a run that begins only then it waits, as long as it is told to.
    looks: list[None] = []

    def looked(*_: object) -> None:
        looks.append(None)
        if len(looks) == 2:
            status.write(settings.run_dir, "supervisor", status.SupervisorStatus(pid=os.getpid()))

    with monkeypatch.context() as patch:
        patch.setattr("cdc.audit.stores.BEGINS_WITHIN_S", CATCH_UP_S)
        patch.setattr(stops, "check", looked)
        with pytest.raises(WaitTimeout):
            audit(settings, timeout_s=0.1)
    # What stopped it is the answer, where something did.
    stops.record(settings.run_dir, "capture", Stopped(StopState.SLOT_MISSING, "the slot is not there"))
    status.write(settings.run_dir, "supervisor", status.SupervisorStatus(pid=0))
    with pytest.raises(Stopped, match="SLOT_MISSING"):
        audit(settings, timeout_s=CATCH_UP_S)


@pytest.mark.usefixtures("source")
def test_a_published_table_that_the_log_does_not_know_is_a_difference(
    postgres: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A look at the catalog would find the table, and have it read into the log, in the middle of the audit.
    monkeypatch.setattr(CatalogWatch, "_look", lambda *_: None)
    twin = f"new-{postgres.name.replace('_', '-')}"
    settings = settings_of(postgres, tmp_path, {twin: {"kind": "memory"}})
    with service(settings):
        audit(settings, timeout_s=CATCH_UP_S)
        with psycopg.connect(postgres.dsn, autocommit=True) as connection:
            connection.execute("create table public.unseen (id int primary key)")
            connection.execute("insert into public.unseen values (1)")
            connection.execute("alter publication cdc add table public.unseen")
        [result] = audit(settings, timeout_s=CATCH_UP_S)
    unseen = next(one for one in result.tables if one.table == "public.unseen")
    assert unseen.tally.missing == 1
    assert "the log has nothing of this table" in (unseen.error or "")
    assert not result.equal


def test_a_table_that_its_owner_has_locked_keeps_no_other_from_being_audited_and_repaired(
    source: psycopg.Connection, postgres: Database, tmp_path: Path, valkey: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Locked before the audit, it is not compared; locked when its rows are to be sent again, it is said that they are to come."""
    source.execute(
        "create table public.a (id int primary key); insert into public.a values (1), (2); alter publication cdc add table public.a"
    )
    monkeypatch.setattr("cdc.source.rows.LOCK_TIMEOUT_S", 1)
    settings = settings_of(postgres, tmp_path, {"copy": {"kind": "redis", "url": valkey.url, "key": "{table}:{id}"}})
    with service(settings), postgres.connect(autocommit=True) as owner, valkey.client() as client:
        [result] = audit(settings, timeout_s=CATCH_UP_S)
        assert result.equal, result.to_json()
        client.delete("a:1", "t:1")

        def lock(now: Progress) -> None:
            if now.phase == "repairing" and owner.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
                owner.execute("begin; lock table public.a")

        [result] = audit(settings, timeout_s=5, repair=True, progress=lock)
        first, second = (one.repair for one in result.tables)
        assert (result.tables[0].table, second) == ("public.a", Repair(missing=1)), result.to_json()
        assert first is not None
        assert (first.rows, (first.problem or "").partition(" within ")[0]) == (0, "capture has not read 1 row of public.a again")
        assert client.get("t:1") is not None
        [result] = audit(settings, timeout_s=CATCH_UP_S)
        assert "lock timeout" in (result.tables[0].error or ""), result.to_json()
        assert result.tables[1].equal
        owner.execute("rollback")
        until(lambda: client.get("a:1"))
