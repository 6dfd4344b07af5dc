"""1,000,000 changes waiting in the log, into each store alone, against what the same store takes from us at best.

Ours is ``cdc follow NAME``, a process of its own, over a log whose head at first shows the first few ten thousand changes only. When
they are applied (so that neither the JVM's start nor what Spark and its Python workers load for their first batch counts) the head
shows all at once, and the time runs until the follower says that the log's end is applied. What the start takes is printed, too.
Ours and the limit alternate, each on the emptied store, and the one that comes second in one pair comes first in the next: a server that gets
faster while it runs favours neither. The ratio is the median of the pairs'.

- OpenSearch: prebuilt ``_bulk`` bodies of the same rows as plain ``index`` actions, as many at once and as large as is fastest of several ways
  that are tried first, into an index that the sink itself made; what is turned away for being busy is sent again.
- Redis: prebuilt ``SET`` of the same JSON values, or ``HSET`` of the same fields (``DEL`` for deleted rows), pipelined over one raw
  connection, answers counted. It neither reads a log nor makes a value, and never waits for an answer, so no real client is faster. Beside
  the follower the sink alone is measured (``_apply``), with the CPU seconds of the client and of the server.
- Tables in Postgres: COPY of prebuilt lines of the same rows into a table without a key; in DuckDB: one statement that takes the same Arrow
  batches. Both are given a table that finds nothing and replaces nothing.
- Warehouse: Spark with the same session settings, warm, writing the same rows as plain Parquet; the better of rows that come from
  Parquet and from the log. A warehouse that upserts has to find and mark what it replaces besides.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, Final
from urllib.parse import urlsplit

import duckdb
import numpy as np
import psutil
import psycopg
import pyarrow as pa
import redis

from bench.orders import create_orders, load_changes
from bench.result import Figure, Result, faster, paired
from bench.workloads import SLOT
from cdc.embedded.opensearch import OpenSearch
from cdc.embedded.postgres import Postgres
from cdc.embedded.valkey import Valkey
from cdc.log.embedded.format import decode_head
from cdc.log.embedded.names import LogPlaces
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.records import RECORD_BYTES
from cdc.log.embedded.timeline import Timeline
from cdc.log.home import open_reader
from cdc.model.batch import OP, Op, topic_schema
from cdc.model.position import Position
from cdc.model.topic import TopicField
from cdc.state.status import FollowerStatus, read_follower
from sinks import make_sink, options_model
from sinks.cache.keytemplate import bind
from sinks.cache.values import Hash
from sinks.render.choices import Choices
from sinks.render.jsonkernels import ABSENT, VALUE, Bytes, integer_text
from sinks.render.jsonrows import Piece, Texts, documents, join, plain_documents, string_texts
from sinks.render.rowtext import keys, row_text
from sinks.render.texts import readonly
from sinks.search.rows import IN_FLIGHT
from sinks.sql.choice import dialect_of
from sinks.sql.names import quoted
from sinks.sql.postgres.copylines import copy_lines

TOPIC: Final = "public.orders"
POLL_S: Final = 0.003
SAMPLE_S: Final = 0.25
SETTLE_S: Final = 3.0
FIRST_CHANGES: Final = 30_000
"""Enough for Spark's workers to take part, so that they have loaded everything."""
SEND_BYTES: Final = 1 << 19
TIMEOUT_S: Final = 900


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench backlog", description=__doc__)
    parser.add_argument("--changes", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--stores", default=",".join(STORES), help="which of them, with commas")
    parser.add_argument("--alone", action="store_true", help="of Redis the sink alone, without a follower and so without Spark")
    parser.add_argument("--settle-s", type=float, default=SETTLE_S, help="seconds between the first changes and all of them")
    parser.add_argument("--heap-mb", type=int, default=1024, help="OpenSearch's heap, at least 1024")
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="headwater-bench-"))
    folder.chmod(0o755)
    try:
        fill_log(folder, options.changes)
        result = Result("backlog", orientation={"changes": options.changes, "heap_mb": options.heap_mb})
        usage = []
        for store in options.stores.split(","):
            usage.append(STORES[store](folder, options).measure(result, options.runs))
        result.cpu_s = round(sum(cpu for cpu, _ in usage), 2)
        result.rss_mb = round(max(rss for _, rss in usage))
        print(result.line())
        return 0
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def fill_log(folder: Path, changes: int) -> None:
    """The waiting changes, captured once: ``folder/log``."""
    from bench.capture import _child

    server = Postgres(folder / "pg", options={"wal_sender_timeout": "0"})
    server.start()
    try:
        with psycopg.connect(server.unix_dsn(), autocommit=True) as connection:
            create_orders(connection)
            connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,))
            print(f"writing {changes} changes …", file=sys.stderr, flush=True)
            load_changes(connection, changes)
        # Unsealed: a head that hides the end of a segment does not fit the segment's sealed form.
        _child("unsealed", server.unix_dsn(), changes, folder)
        (folder / "log-0").rename(folder / "log")
    finally:
        server.stop("immediate")
        shutil.rmtree(folder / "pg", ignore_errors=True)


def batches(log: Path) -> Iterator[pa.RecordBatch]:
    reader = EmbeddedLogReader(log)
    return reader.read(TOPIC, Position(0), reader.head().position)


@dataclass(slots=True)
class Follow:
    """One run of our follower."""

    seconds: float
    changes: int
    first_s: float
    """From the start of its process until the store had the first changes, and had noted that."""
    start_s: float
    """From its first word that the store is open until the first changes were applied."""
    cpu_s: float
    """Of its whole process tree, per million changes."""
    rss_mb: float


@dataclass
class Store:
    """One store's two sides. Subclasses give the server, the limit and the count of what is there."""

    folder: Path
    options: argparse.Namespace
    name: str = ""
    bar: float | None = None
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def changes(self) -> int:
        return int(self.options.changes)

    @property
    def living(self) -> int:
        """Rows that are left when everything is applied: 60 % are inserted, 10 % deleted."""
        return self.changes // 2

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def measure(self, result: Result, runs: int) -> tuple[float, float]:
        """Adds the figure; returns (CPU seconds, peak MB) of our follower."""
        self.start()
        ours: list[float] = []
        limit: list[float] = []
        followed: list[Follow] = []
        try:
            for pair in range(runs):
                for follows in (pair % 2 == 0, pair % 2 == 1):
                    self.empty()
                    if not follows:
                        limit.append(self.changes / self.limit())
                        continue
                    followed.append(self.follow())
                    ours.append(followed[-1].changes / followed[-1].seconds)
                    self.verify(self.rows(), self.living, "our rows")
                print(f"{self.name}: ours {ours[-1]:.0f}/s, limit {limit[-1]:.0f}/s", file=sys.stderr, flush=True)
        finally:
            self.stop()
        result.figures[self.name] = paired(ours, limit, "changes/s", self.bar)
        return self._tell(result, followed)

    def _tell(self, result: Result, followed: list[Follow]) -> tuple[float, float]:
        cpu, rss = median(run.cpu_s for run in followed), max(run.rss_mb for run in followed)
        result.orientation[self.name] = {
            **result.orientation.get(self.name, {}),
            "cpu_s_per_million": round(cpu, 2),
            "rss_mb": round(rss),
            "first_s": [round(run.first_s, 2) for run in followed],
            "start_s": [round(run.start_s, 2) for run in followed],
            "seconds": [round(run.seconds, 2) for run in followed],
            **self.more(),
        }
        return cpu, rss

    def verify(self, found: int, expected: int, what: str) -> None:
        if found != expected:
            raise AssertionError(f"{self.name}: {what} are {found}, not {expected}")

    def follow(self) -> Follow:
        """``cdc follow`` on the waiting log, watched through its status file."""
        run_dir = self.folder / "run"
        shutil.rmtree(run_dir, ignore_errors=True)
        toml = self.folder / "cdc.toml"
        lines = [f'run_dir = "{run_dir}"', "[source]", 'dsn = "postgresql://nobody@127.0.0.1:1/none"', "[log]"]
        lines += [f'dir = "{self.log}"', f"[stores.{self.name}]", f'kind = "{self.kind}"']
        lines += [f"{key} = {json.dumps(value)}" for key, value in self.settings.items()]
        toml.write_text("\n".join(lines) + "\n")
        curtain = Curtain(self.log)
        first = curtain.close(min(FIRST_CHANGES, self.changes // 2))
        spawned = time.perf_counter()
        process = subprocess.Popen([sys.executable, "-m", "cdc", "--config", str(toml), "follow", self.name])
        usage = Usage(psutil.Process(process.pid))
        try:
            self._reached(run_dir, process, 0)
            opened = time.perf_counter()
            self._reached(run_dir, process, 1)
            began_to_show = time.perf_counter()
            self._reached(run_dir, process, first)
            started = time.perf_counter()
            time.sleep(self.options.settle_s)
            usage.begin()
            began = time.perf_counter()
            curtain.open()
            self._reached(run_dir, process, self.changes, usage)
            seconds = time.perf_counter() - began
            changes = self.changes - first
            return Follow(seconds, changes, began_to_show - spawned, started - opened, usage.cpu_s() * 1e6 / changes, usage.rss_mb)
        finally:
            curtain.open()
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _reached(self, run_dir: Path, process: subprocess.Popen[bytes], position: int, usage: Usage | None = None) -> None:
        """Returns when the follower has applied this position, and samples its ``usage`` meanwhile."""
        deadline = time.monotonic() + TIMEOUT_S
        sampled = time.monotonic()
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(POLL_S)
            status: FollowerStatus | None = read_follower(run_dir, self.name)
            if status is None:
                continue
            if status.state == "stopped":
                raise AssertionError(f"{self.name}: {status.error}")
            if status.state == "following" and status.position >= position:
                return
            if usage is not None and time.monotonic() - sampled > SAMPLE_S:
                usage.cpu_s()
                sampled = time.monotonic()
        raise AssertionError(f"{self.name}: the follower ended, or took more than {TIMEOUT_S} s to position {position}")

    @property
    def store_options(self) -> Any:
        """The settings as the sink gets them."""
        return options_model(self.kind)(kind=self.kind, **self.settings)

    kind = ""

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def empty(self) -> None:
        raise NotImplementedError

    def limit(self) -> float:
        """Seconds that the store takes at best."""
        raise NotImplementedError

    def rows(self) -> int:
        """Living rows in the store after our follower."""
        raise NotImplementedError

    def more(self) -> dict[str, Any]:
        return {}


class Curtain:
    """Hides the later part of a log that nobody writes: readers believe its head, 64 bytes overwritten in place."""

    def __init__(self, log: Path) -> None:
        self._places = LogPlaces(log)
        self._whole = self._places.head.read_bytes()

    def close(self, rows: int) -> int:
        """Shows the first cut of at least so many changes, and returns its position."""
        head = decode_head(self._whole)
        assert head is not None
        timeline = self._file_with(rows)
        shown = timeline.head
        self._show(
            replace(
                head,
                position=shown.position,
                commit_lsn=shown.commit_lsn,
                commit_ts_us=shown.commit_ts_us,
                timeline=timeline.number,
                timeline_bytes=timeline.length,
                timeline_crc=timeline.crc,
            ).encode()
        )
        return int(shown.position)

    def _file_with(self, rows: int) -> Timeline:
        """The timeline's first file that comes so far, taken in up to there."""
        for number in self._places.timelines():
            records = self._places.timeline(number).read_bytes()
            if Timeline.whole(records).head.position >= rows:
                break
        timeline = Timeline.beginning(records)
        end = timeline.length
        while timeline.head.position < rows:
            end += RECORD_BYTES
            timeline.extend(records[timeline.length : end])
        return timeline

    def open(self) -> None:
        self._show(self._whole)

    def _show(self, head: bytes) -> None:
        with self._places.head.open("r+b", buffering=0) as file:
            file.write(head)


class Usage:
    """CPU and memory of a process and all below it, also of those that end meanwhile."""

    def __init__(self, root: psutil.Process) -> None:
        self._root = root
        self._cpu: dict[int, float] = {}
        self._before = 0.0
        self.rss_mb = 0.0

    def begin(self) -> None:
        self._sample()
        self._before = sum(self._cpu.values())

    def cpu_s(self) -> float:
        """Since ``begin``."""
        self._sample()
        return sum(self._cpu.values()) - self._before

    def _sample(self) -> None:
        resident = 0
        try:
            tree = [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return
        for process in tree:
            try:
                times = process.cpu_times()
                resident += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
            self._cpu[process.pid] = times.user + times.system
        self.rss_mb = max(self.rss_mb, resident / 2**20)


@dataclass(frozen=True, slots=True)
class PlainClient:
    """A way to send ``_bulk`` requests."""

    request_bytes: int
    at_once: int


CLIENTS: Final = (PlainClient(1_000_000, IN_FLIGHT), PlainClient(2_000_000, 4), PlainClient(5_000_000, 2))


class Search(Store):
    kind = "opensearch"

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        super().__init__(folder, options, "opensearch", 0.9)
        self._server = OpenSearch(folder / "opensearch", heap_mb=options.heap_mb, production=True)
        self._client = CLIENTS[0]
        self._writer = ""
        self._bodies: list[bytes] = []
        self._documents = 0
        self._again = 0

    def start(self) -> None:
        self._server.start()
        self.settings = {"url": self._server.url}
        self._documents = len({key for batch in batches(self.log) for key in keys(batch, topic_schema(batch.schema)).to_pylist()})
        self._client = self._fastest()
        self._bodies = list(self._made(self._client, self.changes))

    def _fastest(self) -> PlainClient:
        """Each client writes a part of the changes, twice; what the server did before the last round of them does not count."""
        took: dict[PlainClient, float] = {}
        for client in (*CLIENTS, *CLIENTS):
            bodies = list(self._made(client, self.changes // 4))
            self.empty()
            took[client] = self._send_all(client, bodies)
        return min(took, key=lambda client: took[client])

    def _made(self, client: PlainClient, changes: int) -> Iterator[bytes]:
        """The bodies of about so many changes."""
        for batch in batches(self.log):
            texts = index_actions(batch.slice(0, changes))
            changes -= len(texts)
            for start, end in _pieces(texts.offsets, client.request_bytes):
                yield texts.data[start:end].tobytes()
            if changes <= 0:
                return

    def stop(self) -> None:
        self._server.stop()

    def empty(self) -> None:
        for index in self._server.request("GET", "/_cat/indices?format=json&expand_wildcards=all"):
            self._server.request("DELETE", f"/{index['index']}")

    def rows(self) -> int:
        self._server.request("POST", f"/{TOPIC}/_refresh")
        return int(self._server.request("GET", f"/{TOPIC}/_count")["count"])

    def limit(self) -> float:
        seconds = self._send_all(self._client, self._bodies)
        # Not by the alias, which hides rows that were deleted: to the limit those are documents like all others.
        self._server.request("POST", f"/{self._writer}/_refresh")
        found = self._server.request("GET", f"/{self._writer}/_count?q=_exists_:id")["count"]
        self.verify(int(found), self._documents, "the limit's documents")
        return seconds

    def _index_made(self) -> str:
        """The alias that the sink writes through, into an index that it makes."""
        sink: Any = make_sink(self.name, self.store_options)
        reader = open_reader(self.log)
        sink.open(reader, 1)
        place = sink._tables.prepare(topic_schema(next(batches(self.log)).schema))
        sink.close()
        reader.close()
        return str(place.writer)

    def _send_all(self, client: PlainClient, bodies: list[bytes]) -> float:
        """Seconds that the server takes for them."""
        self._writer = self._index_made()
        path = f"/{self._writer}/_bulk?filter_path=errors,items.*.status"
        self._again = 0
        local = threading.local()

        def send(body: bytes) -> None:
            if not hasattr(local, "connection"):
                local.connection = http.client.HTTPConnection("127.0.0.1", urlsplit(self._server.url).port, timeout=TIMEOUT_S)
            while True:
                local.connection.request("POST", path, body, {"Content-Type": "application/x-ndjson"})
                response = local.connection.getresponse()
                answer = response.read()
                if response.status == 429 or (response.status == 200 and b'"status":429' in answer):
                    # All of it again: index actions may be repeated.
                    self._again += 1
                    time.sleep(0.05)
                    continue
                assert response.status == 200, f"a bulk request was answered {response.status}"
                assert answer.startswith(b'{"errors":false'), "a bulk request was answered with errors"
                statuses = re.findall(rb'"status":(\d+)', answer)
                assert len(statuses) == body.count(b'{"index":{'), f"{len(statuses)} answers"
                return

        began = time.perf_counter()
        with ThreadPoolExecutor(client.at_once) as senders:
            list(senders.map(send, bodies))
        return time.perf_counter() - began

    def more(self) -> dict[str, Any]:
        client = self._client
        return {"limit_sent_again": self._again, "limit_request_bytes": client.request_bytes, "limit_at_once": client.at_once}


def index_actions(batch: pa.RecordBatch) -> Texts:
    """Per row an index action without a version, and the row's document."""
    schema = topic_schema(batch.schema)
    head = Piece(string_texts(keys(batch, schema)), before=b'{"index":{"_id":"', after=b'"}}\n')
    return join([head, Piece(documents(batch, schema), after=b"\n")])


class Cache(Store):
    """Measured twice: as the follower does it, and the sink alone, which takes the same changes from the log in this very process."""

    kind = "redis"
    value = "json"

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        super().__init__(folder, options, "redis" if self.value == "json" else f"redis_{self.value}", 0.9)
        self._server = Valkey(folder / f"valkey-{self.value}")
        self._commands: list[memoryview] = []

    def start(self) -> None:
        self._server.start()
        self.settings = {"url": self._server.url, "key": "order:{id}", "value": self.value}
        for batch in batches(self.log):
            texts = self.plain_commands(batch, bind(self.store_options.key, topic_schema(batch.schema)).texts(batch))
            data = memoryview(texts.data)
            self._commands += [data[start:end] for start, end in _pieces(texts.offsets, SEND_BYTES)]

    def plain_commands(self, batch: pa.RecordBatch, names: Texts) -> Texts:
        return set_commands(batch, names)

    def measure(self, result: Result, runs: int) -> tuple[float, float]:
        """Each run: the follower, the sink alone, and the plain client, one after the other."""
        self.start()
        followed: list[Follow] = []
        ways: dict[str, list[Spent]] = {"apply": [], "limit": []}
        try:
            for _ in range(runs):
                if not self.options.alone:
                    self.empty()
                    followed.append(self.follow())
                    self.verify(self.rows(), self.living, "our rows")
                for way, work in (("apply", self.apply), ("limit", self.plain)):
                    self.empty()
                    work(ways[way])
                    self.verify(self.rows(), self.living, f"the rows of {way}")
                rates = [f"{way} {self.changes / spent[-1].seconds:.0f}/s" for way, spent in ways.items()]
                rates += [f"follower {run.changes / run.seconds:.0f}/s" for run in followed[-1:]]
                print(f"{self.name}: {', '.join(rates)}", file=sys.stderr, flush=True)
        finally:
            self.stop()
        ours, limit = ways["apply"], ways["limit"]
        rates_of = {way: [self.changes / spent.seconds for spent in found] for way, found in ways.items()}
        result.figures[f"{self.name}_apply"] = faster(rates_of["apply"], rates_of["limit"], "changes/s", self.bar)
        for whose in ("client_s", "server_s"):
            mine, theirs = (median(getattr(spent, whose) for spent in found) * 1e6 / self.changes for found in (ours, limit))
            ratio = round(theirs / mine, 3) if mine else 0.0
            name = f"{self.name}_apply_{whose.removesuffix('_s')}_cpu"
            result.figures[name] = Figure(round(mine, 3), "CPU s per million", round(theirs, 3), ratio)
        result.orientation[self.name] = {"pair_ratios": [round(b.seconds / a.seconds, 3) for a, b in zip(ours, limit, strict=True)]}
        if not followed:
            return median(spent.client_s for spent in ours), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        result.figures[self.name] = faster(
            [run.changes / run.seconds for run in followed], rates_of["limit"], "changes/s", self.bar
        )
        return self._tell(result, followed)

    @contextmanager
    def _spending(self, into: list[Spent]) -> Iterator[None]:
        """Adds what passes inside."""
        server = psutil.Process(self._server.pid)

        def now() -> Spent:
            return Spent(time.perf_counter(), time.process_time(), sum(server.cpu_times()[:2]))

        before = now()
        yield
        after = now()
        into.append(Spent(*(getattr(after, name) - getattr(before, name) for name in Spent.__slots__)))

    def apply(self, spent: list[Spent]) -> None:
        """The sink alone takes the whole log, read as the follower reads it."""
        reader, sink = open_reader(self.log), make_sink(self.name, self.store_options)
        try:
            sink.open(reader, 1)
            head, done = reader.head(), Position(0)
            sink.prepare(topic_schema(next(reader.read(TOPIC, done, head.position)).schema))
            with self._spending(spent):
                while done < head.position:
                    cut = reader.cut_within(done, self.store_options.batch_rows, self.store_options.batch_bytes)
                    for batch in reader.read(TOPIC, done, cut.position):
                        sink.apply(batch)
                    sink.commit(cut)
                    done = cut.position
        finally:
            sink.close()
            reader.close()

    def stop(self) -> None:
        self._server.stop()

    def empty(self) -> None:
        with redis.Redis.from_url(self._server.url) as client:
            client.execute_command("FLUSHALL", "SYNC")  # by default the rows are freed beside, at the cost of the next run
            # A long file from the runs before would be rewritten in the middle of the next.
            client.config_set("auto-aof-rewrite-percentage", 0)

    def rows(self) -> int:
        with redis.Redis.from_url(self._server.url) as client:
            return int(client.dbsize()) - sum(1 for _ in client.scan_iter("cdc:*", count=10_000))  # type: ignore[arg-type]

    def plain(self, spent: list[Spent]) -> None:
        """Sends the prebuilt commands."""
        answers = self.changes
        with socket.create_connection(("127.0.0.1", self._server.port)) as wire:
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            failed: list[bytes] = []

            def count() -> None:
                into = bytearray(1 << 16)
                left = answers
                while left:
                    got = wire.recv_into(into)
                    assert got, "the server hung up"
                    left -= into.count(b"\n", 0, got)
                    if into.find(b"-", 0, got) >= 0:
                        failed.append(bytes(into[:got]))

            reader = threading.Thread(target=count)
            with self._spending(spent):
                reader.start()
                for piece in self._commands:
                    wire.sendall(piece)
                reader.join()
        assert not failed, "the server refused a command"


class HashCache(Cache):
    value = "hash"

    def plain_commands(self, batch: pa.RecordBatch, names: Texts) -> Texts:
        return hset_commands(batch, names, self.store_options)


@dataclass(frozen=True, slots=True)
class Spent:
    seconds: float
    client_s: float
    """CPU seconds of the process that writes."""
    server_s: float


def hset_commands(batch: pa.RecordBatch, names: Texts, options: Any) -> Texts:
    """Per row ``HSET key field text …``, or ``DEL key`` for a delete, as the bytes on the wire."""
    kept, gone = _kept_and_gone(batch)
    written = Hash(Choices("", options.as_rules)).write(batch, topic_schema(batch.schema))
    assert written.items is not None
    count = Texts(*integer_text(readonly(2 + written.items)))
    nothing = Texts(np.empty(0, np.uint8), np.zeros(len(batch) + 1, np.int64))
    return join(
        [
            Piece(count, before=b"*", after=b"\r\n$4\r\nHSET\r\n", states=kept),
            Piece(nothing, before=b"*2\r\n$3\r\nDEL\r\n", states=gone),
            Piece(_lengths(names), before=b"$", after=b"\r\n"),
            Piece(names, after=b"\r\n"),
            Piece(written.texts, states=kept),
        ]
    )


def set_commands(batch: pa.RecordBatch, names: Texts) -> Texts:
    """Per row ``SET key document``, or ``DEL key`` for a delete, as the bytes on the wire."""
    kept, gone = _kept_and_gone(batch)
    values = plain_documents(batch, topic_schema(batch.schema))
    nothing = Texts(np.empty(0, np.uint8), np.zeros(len(batch) + 1, np.int64))
    return join(
        [
            Piece(nothing, before=b"*3\r\n$3\r\nSET\r\n", states=kept),
            Piece(nothing, before=b"*2\r\n$3\r\nDEL\r\n", states=gone),
            Piece(_lengths(names), before=b"$", after=b"\r\n"),
            Piece(names, after=b"\r\n"),
            Piece(_lengths(values), before=b"$", after=b"\r\n", states=kept),
            Piece(values, after=b"\r\n", states=kept),
        ]
    )


def _kept_and_gone(batch: pa.RecordBatch) -> tuple[Bytes, Bytes]:
    """States of a piece that stands in written rows, and of one in deleted rows."""
    deleted = batch.column(OP).to_numpy() == int(Op.DELETE)
    return np.where(deleted, ABSENT, VALUE).astype(np.uint8), np.where(deleted, VALUE, ABSENT).astype(np.uint8)


def _lengths(texts: Texts) -> Texts:
    return Texts(*integer_text(readonly(np.diff(texts.offsets))))


def _pieces(offsets: Any, size: int) -> Iterator[tuple[int, int]]:
    """(start, end) of whole rows in pieces of about so many bytes."""
    start, row = int(offsets[0]), 0
    while row < len(offsets) - 1:
        row = max(row + 1, int(np.searchsorted(offsets, start + size, side="right")) - 1)
        yield start, int(offsets[row])
        start = int(offsets[row])


class Lake(Store):
    kind = "iceberg"

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        super().__init__(folder, options, "warehouse", 0.3)
        self._path = folder / "warehouse"
        self._source = folder / "rows"
        self._writes: dict[str, list[float]] = {}

    def start(self) -> None:
        import pyarrow.parquet as pq

        from cdc.replay.rows import rows_schema, to_rows

        self.settings = {"path": str(self._path)}
        first = next(batches(self.log))
        schema = rows_schema(topic_schema(first.schema))
        self._source.mkdir()
        # Two files, one for each core.
        writers = [pq.ParquetWriter(self._source / f"{number}.parquet", schema) for number in range(2)]
        done = 0
        for batch in batches(self.log):
            writers[done * 2 // self.changes].write_batch(to_rows(batch, schema))
            done += batch.num_rows
        for writer in writers:
            writer.close()

    def empty(self) -> None:
        shutil.rmtree(self._path, ignore_errors=True)

    def rows(self) -> int:
        return int(on_spark("rows", str(self._path), self.folder)["rows"])

    def limit(self) -> float:
        answer = on_spark("parquet", str(self._source), str(self.log), str(self.folder / "written"), self.folder)
        self.verify(int(answer.pop("rows")), self.changes, "the limit's rows")
        for how, seconds in answer.items():
            self._writes.setdefault(how, []).append(self.changes / seconds)
        return float(min(answer.values()))

    def more(self) -> dict[str, Any]:
        return {"parquet": {how: round(median(rates)) for how, rates in self._writes.items()}}


class Tables(Store):
    """Postgres as a target, against its own COPY of the same rows into a table without a key."""

    kind = "sql"

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        super().__init__(folder, options, "sql")
        self._server = Postgres(folder / "target")
        self._lines: list[bytes] = []

    def start(self) -> None:
        self._server.start()
        self.settings = {"url": self._server.dsn()}
        for batch in batches(self.log):
            self._lines += [bytes(lines) for lines in copy_lines(row_text(batch, topic_schema(batch.schema)))]

    def stop(self) -> None:
        self._server.stop("immediate")

    def empty(self) -> None:
        with psycopg.connect(self._server.dsn(), autocommit=True) as connection:
            connection.execute("drop schema if exists headwater_stores cascade")
            connection.execute("drop table if exists public.orders, public.plain")
            connection.execute("checkpoint")

    def rows(self) -> int:
        with psycopg.connect(self._server.dsn()) as connection:
            return int(connection.execute("select count(*) from public.orders").fetchall()[0][0])

    def limit(self) -> float:
        schema = topic_schema(next(batches(self.log)).schema)
        columns = ", ".join(f"{quoted(field.name)} {self._type_of(field)}" for field in schema.fields)
        with psycopg.connect(self._server.dsn(), autocommit=True) as connection:
            connection.execute(f"create table public.plain ({columns})".encode())
            began = time.perf_counter()
            with connection.cursor() as cursor, cursor.copy("copy public.plain from stdin") as copy:
                for lines in self._lines:
                    copy.write(lines)
            seconds = time.perf_counter() - began
            self.verify(connection.execute("select count(*) from public.plain").fetchall()[0][0], self.changes, "the limit's rows")
        return seconds

    def _type_of(self, field: TopicField) -> str:
        return dialect_of(self.store_options).column_type(field)


class TablesInAFile(Store):
    """DuckDB as a target, against one INSERT of the same Arrow batches into a table without a key, and the checkpoint."""

    kind = "sql"

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        super().__init__(folder, options, "duckdb")
        self._path = folder / "target.duckdb"

    def start(self) -> None:
        self.settings = {"url": f"duckdb://{self._path}"}

    def empty(self) -> None:
        for path in self.folder.glob(f"{self._path.name}*"):
            path.unlink()

    def rows(self) -> int:
        with duckdb.connect(str(self._path), read_only=True) as connection:
            return int(connection.execute("select count(*) from public.orders").fetchall()[0][0])

    def limit(self) -> float:
        names = topic_schema(next(batches(self.log)).schema).names
        rows = pa.Table.from_batches([batch.select(names) for batch in batches(self.log)])
        began = time.perf_counter()
        with duckdb.connect(str(self._path)) as connection:
            connection.register("given", rows)
            connection.execute("create table plain as select * from given")
        seconds = time.perf_counter() - began
        self.verify(len(rows), self.changes, "the limit's rows")
        return seconds


STORES: Final[dict[str, Callable[[Path, argparse.Namespace], Store]]] = {
    "opensearch": Search,
    "redis": Cache,
    "redis-hash": HashCache,
    "warehouse": Lake,
    "sql": Tables,
    "duckdb": TablesInAFile,
}


def on_spark(what: str, *given: object) -> dict[str, float]:
    """Work for Spark, in a process of its own."""
    command = [sys.executable, "-m", "bench.backlog", what, *map(str, given)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=TIMEOUT_S)
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def count_rows(warehouse: str, scratch: str) -> dict[str, float]:
    """The rows of the orders' table, as any reader of Iceberg sees them."""
    from cdc.spark import session as sessions

    spark = sessions.session(warehouse=Path(warehouse), scratch=Path(scratch) / "spark-reader")
    (found,) = spark.sql(f"select count(*), count(distinct id) from warehouse.{TOPIC}").collect()
    assert found[0] == found[1], "a row is there twice"
    return {"rows": found[0]}


def write_parquet(rows: str, log: str, into: str, scratch: str) -> dict[str, float]:
    """Seconds that Spark takes for the same rows, warm; from Parquet and from the log."""
    from cdc.spark import session as sessions
    from cdc.spark.source import CdcSource

    spark = sessions.session(scratch=Path(scratch) / "spark-writer", iceberg_sql=False)
    spark.dataSource.register(CdcSource)
    frames = {
        "from_parquet": lambda: spark.read.parquet(rows),
        "from_log": lambda: spark.read.format("cdc").option("log", log).option("table", TOPIC).load(),
    }
    answer: dict[str, float] = {}
    for how, frame in frames.items():
        frame().limit(20_000).write.mode("overwrite").parquet(into)
        frame().limit(20_000).write.mode("overwrite").parquet(into)
        shutil.rmtree(into)
        began = time.perf_counter()
        frame().write.parquet(into)
        answer[how] = time.perf_counter() - began
    answer["rows"] = spark.read.parquet(into).count()
    shutil.rmtree(into)
    return answer


if __name__ == "__main__":
    work = {"rows": count_rows, "parquet": write_parquet}[sys.argv[1]]
    print(json.dumps(work(*sys.argv[2:])), flush=True)
