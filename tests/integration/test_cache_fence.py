"""The cache's fence on the real server: what is written when the ledger is lost, older, another's, or has seen a later writer."""

from __future__ import annotations

import dataclasses
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis

from cdc.embedded.processes import free_port, spawn, wait_until
from cdc.embedded.valkey import server_binary
from cdc.errors import Stopped, StopState, StoreError
from cdc.follow.follower import Follower
from cdc.log.memory import MemoryLog
from cdc.model.batch import Op
from cdc.model.evolution import Kind
from cdc.model.position import ZERO_CUT, Cut, Lsn, Position
from cdc.model.topic import TopicSchema
from sinks import options_model
from sinks.cache import Options
from sinks.cache.resp import Limits
from sinks.cache.sink import CacheSink
from sinks.contract import EpochPassed, Outcome
from tests.contract.rows import NUMBERED, ORDERS, PAIRS, batch, order, schema, upserts
from tests.logs import LooseLog, cut

LEDGER = "cdc:{cache}:ledger"
STORES = "cdc:stores"
RENAMED = dataclasses.replace(
    NUMBERED, columns=tuple(dataclasses.replace(c, name="state") if c.name == "status" else c for c in NUMBERED.columns)
)


class Site:
    """One place on the server, and the log that is written into it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = redis.Redis.from_url(url, decode_responses=True)
        self.log = LooseLog()
        self.epoch = 10
        self._made: list[CacheSink] = []

    def sink(self, **options: Any) -> CacheSink:
        sink = CacheSink("cache", Options.model_validate({"kind": "redis", "url": self.url, **options}))
        self._made.append(sink)
        return sink

    def opened(self, **options: Any) -> CacheSink:
        self.epoch += 10
        sink = self.sink(**options)
        sink.open(self.log.reader(), self.epoch)
        sink.finish()
        return sink

    def feed(self, sink: CacheSink, changes: pa.RecordBatch) -> Outcome:
        self.log.put(changes)
        return sink.apply(changes)

    def commit(self, sink: CacheSink, end: Cut) -> None:
        self.log.reach(end)
        sink.commit(end)

    def everything(self) -> dict[str, Any]:
        """What the server holds."""
        read = {"string": self.client.get, "hash": self.client.hgetall, "list": lambda key: self.client.lrange(key, 0, -1)}
        return {key: read[self.client.type(key)](key) for key in sorted(self.client.keys())}

    def rows(self) -> dict[str, Any]:
        return {key: value for key, value in self.everything().items() if not key.startswith("cdc:")}

    def close(self) -> None:
        for sink in self._made:
            sink.close()
        self.client.close()


@pytest.fixture
def site(valkey: Any) -> Iterator[Site]:
    with closing(Site(valkey.url)) as one:
        yield one


# -- the decision table, for every call that changes something ---------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Call:
    """A change at position 11, made by a sink that has applied and committed ten rows of the orders."""

    name: str
    make: Callable[[Site, CacheSink], object]
    moves: bool = True


CALLS = [
    Call("rows", lambda site, sink: site.feed(sink, upserts(ORDERS, 11, [order(1, "changed"), order(99)]))),
    Call("delete", lambda site, sink: site.feed(sink, batch(ORDERS, [(Op.DELETE, 11, order(1))]))),
    Call("truncate", lambda site, sink: site.feed(sink, batch(ORDERS, [(Op.TRUNCATE, 11, {})]))),
    Call("re-read", lambda site, sink: site.feed(sink, schema(NUMBERED, 11, Kind.REWRITTEN, empties=True))),
    Call("rename", lambda site, sink: site.feed(sink, schema(RENAMED, 11))),
    Call("add", lambda site, sink: site.feed(sink, schema(dataclasses.replace(NUMBERED, identity="f"), 11))),
    Call("aside", lambda site, sink: site.feed(sink, upserts(KEYLESS, 11, [{"a": "x"}]))),
    Call("prepare", lambda _, sink: sink.prepare(TopicSchema.of(PAIRS)), moves=False),
    Call("commit", lambda site, sink: site.commit(sink, cut(11)), moves=False),
]
KEYLESS = dataclasses.replace(PAIRS, name="keyless", columns=tuple(dataclasses.replace(c, key=False) for c in PAIRS.columns))


def begun(site: Site) -> CacheSink:
    sink = site.opened()
    sink.prepare(TopicSchema.of(NUMBERED))
    sink.prepare(TopicSchema.of(KEYLESS))
    site.feed(sink, upserts(NUMBERED, 1, [order(i) for i in range(10)]))
    site.commit(sink, cut(10))
    return sink


def made(call: Call, site: Site, sink: CacheSink) -> StoreError | None:
    try:
        call.make(site, sink)
    except StoreError as error:
        return error
    return None


@pytest.fixture(params=CALLS, ids=lambda call: call.name)
def call(request: pytest.FixtureRequest) -> Call:
    found: Call = request.param
    return found


def test_it_is_done_where_the_ledger_is_as_it_was_left(call: Call, site: Site) -> None:
    sink = begun(site)
    before = site.everything()
    assert made(call, site, sink) is None
    assert site.everything() != before
    assert site.client.hget(LEDGER, "epoch") == str(site.epoch)


def test_a_later_writer_s_epoch_refuses_it(call: Call, site: Site) -> None:
    sink = begun(site)
    later = site.opened()
    before = site.everything()
    error = made(call, site, sink)
    assert isinstance(error, EpochPassed)
    assert error.seen == site.epoch
    assert site.everything() == before
    assert later.applied() == cut(10)


def test_an_older_epoch_is_an_older_copy_which_may_be_another_configurations(call: Call, site: Site) -> None:
    """However far it has come: its keys may be named otherwise, and it may count on tables that nobody has followed since."""
    sink = begun(site)
    site.client.hset(LEDGER, "epoch", 3)
    before = site.everything()
    error = made(call, site, sink)
    assert error is not None
    assert error.retryable
    assert site.everything() == before
    with pytest.raises(StoreError, match="flushed, restored or replaced"):
        sink.applied()
    assert sink.open(site.log.reader(), site.epoch) == cut(10)
    assert made(call, site, sink) is None
    assert site.client.hget(LEDGER, "epoch") == str(site.epoch), "or a writer of then could go on"


def test_a_copy_from_before_another_template_is_named_anew(site: Site) -> None:
    """Nothing has come meanwhile, so that copy and store are equally far."""
    begun(site)
    copy = _copied(site)
    sink = site.opened(key="x:{key}")
    after = site.rows()
    _put_back(site, copy)
    with pytest.raises(StoreError, match="flushed, restored or replaced"):
        sink.applied()
    assert sink.open(site.log.reader(), site.epoch) == cut(10)
    sink.finish()
    assert site.rows() == after
    assert sink.applied() == cut(10)


def test_a_copy_from_before_a_table_was_taken_out_vouches_for_nothing_that_came_to_it_since(site: Site) -> None:
    begun(site)
    copy = _copied(site)
    without = site.opened(tables=["public.pairs"])
    _put_back(site, copy)
    pair = upserts(PAIRS, 12, [{"a": "x", "b": "y", "v": "z"}])
    for changes in (upserts(NUMBERED, 11, [order(1, "changed")]), pair):
        site.log.put(changes)
    site.log.reach(cut(12))

    def bring() -> None:
        without.apply(pair)
        without.commit(cut(12))

    try:
        bring()
    except StoreError:
        without.open(site.log.reader(), site.epoch)
        bring()
    assert without.applied() == cut(12)
    assert site.opened().applied() == ZERO_CUT, "the orders have changed while nobody followed them"


def _copied(site: Site) -> dict[bytes, Any]:
    with redis.Redis.from_url(site.url) as client:
        return {key: client.dump(key) for key in client.scan_iter()}


def _put_back(site: Site, copy: dict[bytes, Any]) -> None:
    with redis.Redis.from_url(site.url) as client:
        client.flushall()
        for key, content in copy.items():
            client.restore(key, 0, content)


@pytest.mark.parametrize(
    ("loss", "found"),
    [
        (lambda client: client.flushdb(), None),
        (lambda client: client.delete(LEDGER), None),
        (lambda client: client.rename(LEDGER, "cdc:{other}:ledger"), None),
        (lambda client: client.hset(LEDGER, "log", "0" * 16), StopState.OTHER_LOG),
        (lambda client: client.hset(LEDGER, "history", "0" * 32), StopState.DIVERGED),
        (lambda client: client.hset(LEDGER, "log", ""), None),
    ],
    ids=["flushed", "ledger deleted", "ledger renamed", "another log", "another history", "being erased"],
)
def test_a_ledger_that_is_not_ours_refuses_it(call: Call, site: Site, loss: Callable[[Any], Any], found: StopState | None) -> None:
    sink = begun(site)
    loss(site.client)
    before = site.everything()
    error = made(call, site, sink)
    assert error is not None
    assert error.retryable
    assert site.everything() == before
    if found is None:
        assert sink.open(site.log.reader(), site.epoch) == ZERO_CUT
        return
    for what in (lambda: sink.open(site.log.reader(), site.epoch), sink.applied, lambda: site.sink().open(site.log.reader())):
        with pytest.raises(Stopped) as stopped:
            what()
        assert stopped.value.state is found
    assert site.everything() == before


@pytest.mark.parametrize("progress", ["less", "nothing"])
def test_a_ledger_that_is_behind_refuses_it(call: Call, site: Site, progress: str) -> None:
    """An older copy of the server: what the sink has written since is not there."""
    sink = begun(site)
    older = {"position": "4", "commit_lsn": "40"} if progress == "less" else {"position": "0", "commit_lsn": "0"}
    site.client.hset(LEDGER, mapping=older)
    site.client.hset(LEDGER, "at:public.orders", 4) if progress == "less" else site.client.hdel(LEDGER, "at:public.orders")
    before = site.everything()
    error = made(call, site, sink)
    assert error is not None
    assert error.retryable
    assert site.everything() == before
    applied = sink.open(site.log.reader(), site.epoch)
    assert applied == (Cut(Position(4), Lsn(40), 10_000_000) if progress == "less" else Cut(Position(0), Lsn(0), 10_000_000))


def test_what_was_done_already_is_not_done_again(call: Call, site: Site) -> None:
    """The answer was lost, and the sink does not know that the ledger moved on."""
    if not call.moves:
        pytest.skip("moves no table")
    sink = begun(site)
    topic = "public.keyless" if call.name == "aside" else "public.orders"
    site.client.hset(LEDGER, f"at:{topic}", 99)
    before = site.everything()
    assert made(call, site, sink) is None
    assert site.everything() == before


def test_whoever_slept_between_looking_and_writing_changes_nothing(call: Call, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that was stopped wakes up with the look at the ledger already behind it: also in the middle of a sweep."""
    zombie = begun(site)
    later: list[dict[str, Any]] = []

    def sleep(name: str) -> None:
        if name in ("cache.write.sent", "cache.change.looked") and not later:
            later.append({})
            awake = site.opened()
            awake.prepare(TopicSchema.of(NUMBERED))
            site.feed(awake, upserts(NUMBERED, 50, [order(i, "later") for i in range(5, 15)]))
            site.commit(awake, cut(60))
            later[0] = site.everything()

    monkeypatch.setattr("sinks.cache.transactions.crashpoint", sleep)
    assert made(call, site, zombie) is not None
    assert later
    assert site.everything() == later[0]


def test_a_flush_between_looking_and_writing_is_noticed(call: Call, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = begun(site)
    flushed: list[str] = []

    def flush(name: str) -> None:
        if name in ("cache.write.sent", "cache.change.looked") and not flushed:
            flushed.append(name)
            site.client.flushdb()

    monkeypatch.setattr("sinks.cache.transactions.crashpoint", flush)
    assert made(call, site, sink) is not None
    assert flushed
    assert site.everything() == {}


def test_another_database_in_its_place_between_looking_and_writing_is_noticed(
    call: Call, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SWAPDB, as it is used to put a server that was prepared elsewhere into service at once."""
    sink = begun(site)
    former = site.everything()
    swapped: list[str] = []

    def swap(name: str) -> None:
        if name in ("cache.write.sent", "cache.change.looked") and not swapped:
            swapped.append(name)
            site.client.swapdb(0, 9)

    monkeypatch.setattr("sinks.cache.transactions.crashpoint", swap)
    try:
        assert made(call, site, sink) is not None
        assert swapped
        assert site.everything() == {}
        site.client.swapdb(0, 9)
        assert site.everything() == former
    finally:
        site.client.flushall()


# -- streams of transactions -------------------------------------------------------------------------------------------


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinks.cache.rowwriter.LIMITS", Limits(10, 1 << 20))


@pytest.fixture(params=["packed", "plain"])
def either_form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashes for a server that takes them packed, and for one that does not."""
    if request.param == "plain":
        monkeypatch.setattr("sinks.cache.listpack.UNREADABLE", b"-ERR DUMP payload version or checksum are wrong\r\n")


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("value", ["json", "hash"])
def test_a_refused_write_holds_back_those_behind_it(site: Site, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """The server is out of memory for one transaction, and has some again when the next one comes."""
    sink = site.opened(value=value)
    sink.prepare(TopicSchema.of(ORDERS))
    sent = 0

    def squeeze(name: str) -> None:
        nonlocal sent
        if name == "cache.write.sent":
            sent += 1
            site.client.config_set("maxmemory", 1 if sent == 4 else 0)

    monkeypatch.setattr("sinks.cache.transactions.crashpoint", squeeze)
    changes = upserts(ORDERS, 1, [order(i) for i in range(100)])
    try:
        with pytest.raises(StoreError, match="OOM") as failure:
            site.feed(sink, changes)
    finally:
        site.client.config_set("maxmemory", 0)
    assert failure.value.retryable
    there = len(site.rows())
    assert there in (30, 40), "some were there before, and none behind the one that was refused"
    assert site.client.hget(LEDGER, "at:public.orders") == str(there)
    monkeypatch.undo()
    site.feed(sink, changes)
    assert len(site.rows()) == 100
    site.commit(sink, cut(100))


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("value", ["json", "hash"])
@pytest.mark.parametrize("reopened", [False, True])
def test_a_stream_that_breaks_off_anywhere_is_finished_by_the_next_attempt(
    site: Site, monkeypatch: pytest.MonkeyPatch, value: str, reopened: bool
) -> None:
    rows = [order(i % 70, f"{i}") for i in range(100)]
    changes = upserts(ORDERS, 1, rows)
    for broken in range(1, 11):
        site.client.flushdb()
        sink = site.opened(value=value)
        sink.prepare(TopicSchema.of(ORDERS))
        sent = 0

        def cut_off(name: str, broken: int = broken) -> None:
            nonlocal sent
            sent += name == "cache.write.sent"
            if sent == broken:
                raise ConnectionResetError

        with monkeypatch.context() as patched:
            patched.setattr("sinks.cache.transactions.crashpoint", cut_off)
            with pytest.raises(StoreError, match="no answer"):
                site.feed(sink, changes)
        if reopened:
            sink = site.opened(value=value)
            assert sink.held("public.orders") <= 10 * broken
        site.feed(sink, changes)
        site.commit(sink, cut(100))
        held = sorted(row["status"] or "" for part in sink.scan(TopicSchema.of(ORDERS)) for row in part.to_pylist())
        assert held == sorted(str(i) for i in range(30, 100))


@pytest.mark.usefixtures("small_parts", "either_form")
def test_a_key_of_another_type_is_replaced_and_no_row_behind_it_is_lost(site: Site) -> None:
    sink = site.opened(value="hash")
    sink.prepare(TopicSchema.of(ORDERS))
    site.feed(sink, upserts(ORDERS, 1, [order(i) for i in range(40)]))
    for key, other in ((3, "list"), (25, "string")):
        site.client.delete(f"public.orders:{key}")
        site.client.lpush(f"public.orders:{key}", "theirs") if other == "list" else site.client.set(
            f"public.orders:{key}", "theirs"
        )
    assert site.feed(sink, upserts(ORDERS, 41, [order(i, "again") for i in range(40)])) == Outcome(40)
    site.commit(sink, cut(80))
    assert {row["status"] for row in site.rows().values()} == {"again"}
    assert len(site.rows()) == 40


@pytest.mark.usefixtures("either_form")
def test_a_field_that_a_row_no_longer_has_is_gone_from_its_hash(site: Site) -> None:
    sink = site.opened(value="hash")
    sink.prepare(TopicSchema.of(ORDERS))
    site.feed(sink, upserts(ORDERS, 1, [order(1, "new", note="a")]))
    site.feed(sink, upserts(ORDERS, 2, [order(1, None, note=None), order(2)]))
    assert set(site.rows()["public.orders:1"]) == set(ORDERS.names) - {"status", "note"}
    assert set(site.rows()["public.orders:2"]) == set(ORDERS.names)


@pytest.mark.usefixtures("either_form")
@pytest.mark.parametrize("ops", [[Op.INSERT], [Op.READ], [Op.UPDATE], [Op.INSERT, Op.UPDATE]], ids=str)
def test_a_row_keeps_nothing_of_what_stood_under_its_key(site: Site, ops: list[Op]) -> None:
    """A store of another name was there before, when the table had another column; its ledger was deleted, as the error asks for. Or somebody
    has set a time to live, which would take the new row away."""
    site.client.hset("public.orders:1", mapping={"dropped": "a field that the audit does not look for", "status": "former"})
    site.client.expire("public.orders:1", 3600)
    sink = site.opened(value="hash")
    sink.prepare(TopicSchema.of(ORDERS))
    site.feed(sink, batch(ORDERS, [(op, position, order(1, "new")) for position, op in enumerate(ops, 1)]))
    assert set(site.rows()["public.orders:1"]) == set(ORDERS.names)
    assert site.client.ttl("public.orders:1") == -1


def test_a_row_that_cannot_be_held_is_counted_and_leaves_nothing_older_behind(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = site.opened()
    sink.prepare(TopicSchema.of(ORDERS))
    site.feed(sink, upserts(ORDERS, 1, [order(1), order(2)]))
    monkeypatch.setattr("sinks.cache.rowwriter.VALUE_BYTES_MAX", 500)
    outcome = site.feed(sink, upserts(ORDERS, 3, [order(1, note="x" * 500), order(2, "paid")]))
    assert (outcome.written, [letter.position for letter in outcome.dead]) == (1, [3])
    assert list(site.rows()) == ["public.orders:2"], "an older value under the key would be taken for the row"
    assert json.loads(site.client.hget("cdc:{cache}:dead", "public.orders@3") or "")["reason"] == "value over 500 bytes"
    site.commit(sink, cut(4))
    everything = dataclasses.replace(PAIRS, columns=tuple(dataclasses.replace(c, key=True) for c in PAIRS.columns), identity="f")
    hashes = site.opened(value="hash", tables=("public.pairs",))
    hashes.prepare(TopicSchema.of(everything))
    outcome = site.feed(hashes, upserts(everything, 5, [{"a": None, "b": None, "v": None}, {"a": None, "b": None, "v": ""}]))
    assert [letter.position for letter in outcome.dead] == [5]
    assert site.rows()["public.pairs:\\N:\\N:"] == {"v": ""}


# -- opening -----------------------------------------------------------------------------------------------------------


def test_whoever_only_reads_makes_no_ledger_and_cannot_write(site: Site) -> None:
    reading = site.sink()
    assert reading.open(site.log.reader()) == ZERO_CUT
    assert site.everything() == {}
    for attempt in (lambda: reading.prepare(TopicSchema.of(ORDERS)), lambda: reading.apply(upserts(ORDERS, 1, [order(1)]))):
        with pytest.raises(StoreError):
            attempt()
    assert site.everything() == {}


def test_an_earlier_epoch_does_not_get_in(site: Site) -> None:
    begun(site)
    with pytest.raises(EpochPassed) as passed:
        site.sink().open(site.log.reader(), site.epoch - 1)
    assert passed.value.seen == site.epoch
    assert site.sink().open(site.log.reader(), site.epoch) == cut(10), "its own may open again"


def test_a_table_that_is_selected_again_has_missed_nothing(site: Site) -> None:
    sink = begun(site)
    sink.prepare(TopicSchema.of(PAIRS))
    pair = {"a": "x", "b": "y", "v": "1"}
    site.feed(sink, upserts(PAIRS, 11, [pair]))
    site.commit(sink, cut(11))
    orders = site.opened(tables=("public.orders",))
    site.log.put(batch(PAIRS, [(Op.DELETE, 12, pair)]))
    site.feed(orders, upserts(NUMBERED, 13, [order(50)]))
    site.commit(orders, cut(13))
    again = site.sink()
    assert again.open(site.log.reader()) == ZERO_CUT, "also to one who only reads"
    again = site.opened()
    assert (again.applied(), again.held("public.pairs"), again.held("public.orders")) == (ZERO_CUT, 0, 13)
    again.apply(upserts(PAIRS, 11, [pair]))
    again.apply(batch(PAIRS, [(Op.DELETE, 12, pair)]))
    again.commit(cut(12))
    half_way = site.opened()
    assert (half_way.applied(), half_way.held("public.orders")) == (cut(12), 13)
    half_way.commit(cut(13))
    assert "public.pairs:x:y" not in site.rows()


def test_a_history_that_begins_is_in_the_ledger_before_its_first_change_is(site: Site) -> None:
    """So whoever writes has to open the store again: its place may be one from which this history cannot be followed."""
    sink = begun(site)
    site.log.begin_history()
    with pytest.raises(StoreError, match="another history") as refused:
        site.feed(sink, upserts(NUMBERED, 11, [order(11)]))
    assert refused.value.retryable
    sink = site.opened()
    for position in (11, 12):
        site.feed(sink, upserts(NUMBERED, position, [order(position)]))
        assert site.client.hget(LEDGER, "history") == site.log.lineage.history
    again = site.opened()
    assert again.held("public.orders") == 12, "or it would be of a history that was left at position 10"


def test_a_damaged_ledger_is_said_to_be_damaged(site: Site) -> None:
    sink = begun(site)
    for field, text in (("projection", "{"), ("position", "x"), ("at:public.orders", "x"), ("shape:public.orders", "7 {}")):
        held = site.client.hget(LEDGER, field)
        site.client.hset(LEDGER, field, text)
        with pytest.raises(StoreError, match="damaged") as failure:
            sink.open(site.log.reader(), site.epoch)
        assert not failure.value.retryable
        assert held is not None
        site.client.hset(LEDGER, field, held)
    assert sink.open(site.log.reader(), site.epoch) == cut(10)


def test_a_cluster_is_refused_by_name(site: Site, tmp_path: Path) -> None:
    port = free_port()
    argv: list[str | Path] = [server_binary(), "--port", str(port), "--bind", "127.0.0.1", "--dir", tmp_path, "--save", ""]
    log = tmp_path / "log"
    # By itself it takes the port 10,000 further, which need not be free, or a port at all.
    process = spawn([*argv, "--cluster-enabled", "yes", "--cluster-port", str(free_port())], log=log)

    def answers() -> bool:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False

    try:
        wait_until(answers, process, what="Valkey", log=log)
        site.url = f"redis://127.0.0.1:{port}/0"
        with pytest.raises(StoreError, match="Redis Cluster") as failure:
            site.opened()
        assert not failure.value.retryable
    finally:
        process.terminate()
        process.wait(30)


# -- with a follower ---------------------------------------------------------------------------------------------------


class Following:
    """A follower of a log in memory, into the server."""

    def __init__(self, url: str, folder: Path) -> None:
        self.log = MemoryLog()
        self.writer = self.log.writer()
        options = options_model("redis").model_validate({"kind": "redis", "url": url})
        self.follower = Follower("cache", options, folder / "log", self.log.reader(), folder / "run", threading.Event())

    def write(self, *batches: Any) -> None:
        for one in batches:
            self.writer.append(one)
        self.writer.commit(Lsn(int(self.writer.next_position) * 10), 0)
        self.follower.follow_to(self.writer.head)

    def close(self) -> None:
        self.follower.close()


@pytest.fixture
def following(valkey: Any, tmp_path: Path) -> Iterator[Following]:
    with closing(Following(valkey.url, tmp_path)) as one:
        yield one


def test_a_server_that_is_flushed_while_changes_come_is_filled_again(valkey: Any, following: Following) -> None:
    """The table that changes is not the one that would be missing."""
    pairs = [{"a": str(i), "b": "", "v": "0"} for i in range(500)]
    following.write(upserts(ORDERS, 1, [order(i) for i in range(3000)]), upserts(PAIRS, 3001, pairs))
    with valkey.client() as client:
        client.flushdb()
        for n in range(5):
            following.write(batch(PAIRS, [(Op.UPDATE, 3501 + n, {**pairs[n], "v": "1"})]))
        assert following.follower.applied == following.writer.head
        assert following.follower.status.stop is None
        assert len(client.keys("public.orders:*")) == 3000
        assert len(client.keys("public.pairs:*")) == 500


def test_a_commit_is_refused_where_rows_before_it_are_gone_again(site: Site) -> None:
    """An older copy that has the same applied position: it lacks what came since, and no single call has failed."""
    sink = begun(site)
    site.feed(sink, upserts(ORDERS, 11, [order(11)]))
    copy = {key: site.client.hgetall(key) if key in (LEDGER, STORES) else site.client.get(key) for key in site.client.scan_iter()}
    site.feed(sink, upserts(ORDERS, 12, [order(12)]))
    site.client.hset(LEDGER, mapping=copy[LEDGER])
    site.client.delete("public.orders:12")
    with pytest.raises(StoreError) as failure:
        site.commit(sink, cut(12))
    assert failure.value.retryable
    assert (sink.open(site.log.reader(), site.epoch), sink.held("public.orders")) == (cut(10), 11)
