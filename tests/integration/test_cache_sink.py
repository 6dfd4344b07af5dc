"""What only the real server shows: its refusals, its limits, and what users find under a key."""

from __future__ import annotations

import dataclasses
import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc.embedded.valkey import Valkey
from cdc.errors import ConfigError, PositionGone, StopState, StoreError
from cdc.follow.follower import Follower
from cdc.log.memory import MemoryLog
from cdc.model.batch import Op
from cdc.model.evolution import Kind, SchemaChange, schema_record
from cdc.model.pgtypes import TEXT
from cdc.model.position import ZERO_CUT, Cut, Lsn
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from cdc.settings.secretfile import SecretFile
from cdc.state import stops
from sinks.cache import ledger, rowscan, rowwriter
from sinks.cache.sink import CacheSink, Options
from sinks.cache.wire import command
from sinks.contract import Outcome
from sinks.deadletters import LetterState
from tests.contract.rows import NUMBERED, ORDERS, PAIRS, batch, order, schema, upserts
from tests.logs import LooseLog, cut

CANARY = "canary-value"


class Opened:
    """Opens sinks over one log, each as a later writer than the one before."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.log = LooseLog()
        self.epoch = 0
        self.made: list[CacheSink] = []

    def __call__(self, *, prepare: bool = True, **options: Any) -> CacheSink:
        sink = CacheSink("cache", Options.model_validate({"kind": "redis", "url": self.url, **options}))
        self.made.append(sink)
        self.open(sink)
        if prepare:
            sink.prepare(TopicSchema.of(ORDERS))
        return sink

    def open(self, sink: CacheSink) -> Cut:
        self.epoch += 1
        applied = sink.open(self.log.reader(), self.epoch)
        sink.finish()
        return applied

    def feed(self, sink: CacheSink, changes: pa.RecordBatch) -> Outcome:
        self.log.put(changes)
        return sink.apply(changes)

    def commit(self, sink: CacheSink, end: Cut) -> None:
        self.log.reach(end)
        sink.commit(end)


@pytest.fixture
def opened(valkey: Any) -> Iterator[Opened]:
    made = Opened(valkey.url)
    yield made
    for sink in made.made:
        sink.close()


def test_a_row_is_json_under_its_key(valkey: Any, opened: Opened) -> None:
    sink = opened(key="order:{id}")
    opened.feed(sink, upserts(ORDERS, 5, [order(1, None)]))
    with valkey.client() as client:
        found = json.loads(client.get("order:1"))
    assert list(found) == list(ORDERS.names), "the table's columns and nothing else"
    assert (found["amount"], found["status"], found["note"]) == (1.1, None, "")


def test_a_row_is_a_hash_when_asked_for(valkey: Any, opened: Opened) -> None:
    sink = opened(value="hash")
    opened.feed(sink, upserts(ORDERS, 5, [order(1, "new")]))
    opened.feed(sink, upserts(ORDERS, 6, [order(1, None)]))
    with valkey.client(decode_responses=True) as client:
        found = client.hgetall("public.orders:1")
    texts = {name: text for name, text in order(1, None).items() if text is not None}
    assert found == {**texts, "created_at": "2013-01-01T10:00:00Z"}


def test_hashes_are_what_the_server_itself_makes_of_their_fields(valkey: Any, opened: Opened) -> None:
    """To the byte, so that they take no more of its memory; one with a long text as well."""
    sink = opened(value="hash")
    texts = [
        *map(str, [0, 1, -1, 127, 128, -4097, 32768, 1 << 23, 1 << 40, (1 << 63) - 1, 1 << 63]),
        "",
        "-0",
        "007",
        "1.5",
        "é" * 31,
        "x" * 63,
        "x" * 65,
        "y" * 5000,
    ]
    with valkey.client() as client:
        client.config_resetstat()
        opened.feed(sink, upserts(ORDERS, 5, [order(at, text, note=None) for at, text in enumerate(texts)]))
        assert client.info("commandstats")["cmdstat_restore"]["calls"] == len(texts) - sum(
            len(text.encode()) > 63 for text in texts
        )
        client.config_set("rdbcompression", "no")
        for at in range(len(texts)):
            key = f"public.orders:{at}"
            held = client.hgetall(key)
            assert held[b"status"] == texts[at].encode()
            client.hset("plain", mapping=held)
            assert client.object("encoding", key) == client.object("encoding", "plain")
            assert client.dump(key) == client.dump("plain")
            client.delete("plain")


def test_an_account_that_may_not_restore_writes_hashes_field_by_field(valkey: Any, opened: Opened) -> None:
    """Rights that are taken away meanwhile refuse the write. Opened again, as by its follower, the store goes on without them."""
    with valkey.client() as client:
        client.acl_setuser("narrow", enabled=True, passwords="+secret", keys="*", commands=["+@all"])
        opened.url = valkey.url.replace("redis://", "redis://narrow:secret@")
        sink = opened(value="hash")
        opened.feed(sink, upserts(ORDERS, 5, [order(1, "new")]))
        client.acl_setuser("narrow", enabled=True, keys="*", commands=["+@all", "-restore"])
        with pytest.raises(StoreError) as refused:
            opened.feed(sink, upserts(ORDERS, 6, [order(1, None)]))
        assert refused.value.retryable
        opened.open(sink)
        assert sink.apply(upserts(ORDERS, 6, [order(1, None)])) == Outcome(1)
        assert b"status" not in client.hgetall("public.orders:1")
        client.acl_setuser("narrow", enabled=True, keys="*", commands=["+@all", "-restore", "-hset"])
        with pytest.raises(StoreError) as refused:
            opened.feed(sink, upserts(ORDERS, 7, [order(1, "new")]))
        assert not refused.value.retryable, "nothing is left to do without"
        client.acl_deluser("narrow")


def test_whoever_stands_before_the_server_and_lets_the_question_for_restore_drop_costs_one_attempt(
    valkey: Any, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sinks.cache.server.command", lambda *_: command("BLPOP", "none", 0))
    with pytest.raises(StoreError, match="no answer") as unanswered:
        opened(value="hash", timeout_s=1.0)
    assert unanswered.value.retryable
    sink = opened.made[-1]
    opened.open(sink)
    sink.prepare(TopicSchema.of(ORDERS))
    assert opened.feed(sink, upserts(ORDERS, 5, [order(1, "new")])) == Outcome(1)
    with valkey.client() as client:
        assert client.hget("public.orders:1", "status") == b"new"
    opened(value="json", timeout_s=1.0)  # is not asked at all


def test_a_connection_that_is_replaced_asks_anew_for_what_its_server_takes(
    valkey: Any, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is refused only at EXEC would be left out while the table's progress moves on."""
    sink = opened(value="hash")
    opened.feed(sink, upserts(ORDERS, 5, [order(1, "new")]))
    monkeypatch.setattr("sinks.cache.listpack.UNREADABLE", b"-ERR DUMP payload version or checksum are wrong\r\n")
    with valkey.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)
        client.config_resetstat()
        assert opened.feed(sink, upserts(ORDERS, 6, [order(1, None)])) == Outcome(1)
        assert client.info("commandstats")["cmdstat_restore"]["calls"] == 1, "the question"
        assert b"status" not in client.hgetall("public.orders:1")


def test_a_ledger_of_the_version_before_with_a_second_number_for_a_tables_progress_is_read(valkey: Any, opened: Opened) -> None:
    sink = opened(value="hash")
    opened.feed(sink, upserts(ORDERS, 5, [order(1), order(2)]))
    with valkey.client() as client:
        client.hset(ledger.key_of("cache"), "sure:public.orders", 4)
    again = opened(value="hash", prepare=False)
    assert again.held("public.orders") == 6, "all of its progress is true"
    assert opened.feed(again, upserts(ORDERS, 7, [order(3)])) == Outcome(1)
    opened.commit(again, cut(7))
    assert again.applied().position == 7


def test_a_truncate_that_a_later_one_makes_needless_leaves_no_key_behind_a_renamed_column(valkey: Any, opened: Opened) -> None:
    """A follower passes over what the last TRUNCATE of its range takes away anyway, but not over changes of the definition between."""
    sink = opened()
    opened.feed(sink, upserts(NUMBERED, 1, [order(1), order(2)]))
    opened.log.put(batch(NUMBERED, [(Op.TRUNCATE, 3, {})]))
    renamed = [dataclasses.replace(c, name="remark") if c.name == "note" else c for c in NUMBERED.columns]
    now = dataclasses.replace(NUMBERED, columns=tuple(renamed))
    opened.feed(sink, schema(now, 4))
    opened.feed(sink, batch(now, [(Op.TRUNCATE, 5, {})]))
    opened.commit(sink, cut(5))
    with valkey.client(decode_responses=True) as client:
        assert client.keys("public.orders:*") == []


def test_a_key_that_the_server_gives_twice_is_one_row(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = opened()
    opened.feed(sink, upserts(ORDERS, 1, [order(key) for key in range(700)]))
    page = rowscan.page_of

    def twice(answer: Any) -> tuple[bytes, pa.Array]:
        cursor, found = page(answer)
        return cursor, pa.concat_arrays([found, found])

    monkeypatch.setattr(rowscan, "page_of", twice)
    found = [row["id"] for rows in sink.scan(TopicSchema.of(ORDERS)) for row in rows.to_pylist()]
    assert sorted(found, key=int) == [str(key) for key in range(700)]


@pytest.mark.parametrize("begins_with_a_key", [True, False])
def test_a_table_that_was_without_a_key_holds_nobody_up_once_it_has_one(
    valkey: Any, tmp_path: Path, begins_with_a_key: bool
) -> None:
    """What came meanwhile could not be held; the rows that are read again with the key can. Rows that the store has stop it: nobody would
    keep them up. A table that it never held stops nothing."""
    keyless = dataclasses.replace(ORDERS, columns=tuple(dataclasses.replace(column, key=False) for column in ORDERS.columns))
    options = Options.model_validate({"kind": "redis", "url": valkey.url})
    log = MemoryLog()
    writer = log.writer()

    def follow(*batches: pa.RecordBatch) -> Follower:
        for made in batches:
            writer.append(made)
            writer.commit(Lsn(writer.next_position), 0)
        follower = Follower("cache", options, tmp_path, log.reader(), tmp_path, threading.Event())
        follower.follow_to(writer.head)
        follower.close()
        return follower

    stopped = follow(
        batch(ORDERS if begins_with_a_key else keyless, [(Op.INSERT, 1, order(1))]),
        schema_record(SchemaChange(keyless, Kind.ALTERED), 2, 2, 2),
        batch(keyless, [(Op.INSERT, 3, order(2))]),
    )
    if begins_with_a_key:
        assert stopped.status.stop == StopState.STORE_REFUSES
        stops.clear(tmp_path, "STORE_REFUSES")
    else:
        assert (stopped.status.stop, stopped.applied, stopped.status.dead) == (None, writer.head, 2)
    mended = follow(
        schema_record(SchemaChange(ORDERS, Kind.REWRITTEN, empties=True), 4, 4, 4), batch(ORDERS, [(Op.READ, 5, order(3))])
    )
    assert mended.status.stop is None
    assert mended.applied == writer.head
    with valkey.client() as client:
        assert client.keys("public*") == [b"public.orders:3"]
        if not begins_with_a_key:
            assert client.hgetall("cdc:{cache}:dead") == {}, "what was set aside of the table has been read again"


def test_nothing_is_kept_of_deleted_keys(valkey: Any, opened: Opened) -> None:
    sink = opened()
    opened.feed(sink, upserts(ORDERS, 1, [order(i) for i in range(300)]))
    opened.feed(sink, batch(ORDERS, [(Op.DELETE, 301 + i, order(i)) for i in range(300)]))
    with valkey.client() as client:
        assert sorted(client.keys()) == [b"cdc:stores", b"cdc:{cache}:ledger"]


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_server_that_evicts_is_refused(valkey: Any, opened: Opened, policy: str) -> None:
    sink = opened()
    with valkey.client() as client:
        client.config_set("maxmemory-policy", policy)
        try:
            with pytest.raises(StoreError, match="evicts") as failure:
                opened.open(sink)
        finally:
            client.config_set("maxmemory-policy", "noeviction")
    assert not failure.value.retryable
    assert "noeviction" in str(failure.value.hint)


def test_a_server_that_begins_to_evict_is_noticed(valkey: Any, opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinks.cache.server.LOOK_S", 3600.0)
    sink = opened()
    with valkey.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            assert sink.applied() == ZERO_CUT, "not asked each time"
            monkeypatch.setattr("sinks.cache.server.LOOK_S", 0.0)
            with pytest.raises(StoreError, match="evicts") as failure:
                sink.applied()
        finally:
            client.config_set("maxmemory-policy", "noeviction")
    assert not failure.value.retryable
    assert "noeviction" in str(failure.value.hint)
    assert sink.applied() == ZERO_CUT


def test_a_full_server_is_waited_for(valkey: Any, opened: Opened) -> None:
    sink = opened()
    rows = [order(i, CANARY, note="x" * 2000) for i in range(5000)]
    with valkey.client() as client:
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 2_000_000)
        try:
            with pytest.raises(StoreError, match="OOM") as failure:
                opened.feed(sink, upserts(ORDERS, 1, rows))
        finally:
            client.config_set("maxmemory", 0)
    assert failure.value.retryable
    assert CANARY not in failure.value.line()
    outcome = opened.feed(sink, upserts(ORDERS, 1, rows))
    assert outcome.written + outcome.stale == 5000
    assert sum(len(part) for part in sink.scan(TopicSchema.of(ORDERS))) == 5000


def test_an_emptied_server_says_so(valkey: Any, opened: Opened) -> None:
    sink = opened()
    opened.commit(sink, cut(9))
    with valkey.client() as client:
        client.flushall()
    assert sink.applied() == ZERO_CUT


@pytest.mark.parametrize("template", ["row:{key}", "row:{id}", "{table}:{id}"])
def test_a_table_whose_keys_cannot_be_told_apart_or_named_does_not_stop_the_others(
    valkey: Any, opened: Opened, template: str
) -> None:
    """It may have been created by anybody, at any time. What it has is counted, and named once."""
    sink = opened(key=template)
    sink.prepare(TopicSchema.of(PAIRS))
    assert opened.feed(sink, upserts(ORDERS, 1, [order(1)])) == Outcome(1)
    outcome = opened.feed(sink, upserts(PAIRS, 2, [{"a": "x", "b": "y", "v": CANARY}] * 3))
    assert (outcome.written, [letter.position for letter in outcome.dead]) == (0, [2, 3, 4])
    assert opened.feed(sink, batch(PAIRS, [(Op.DELETE, 5, {"a": "x", "b": "y"})])) == Outcome(1)
    opened.commit(sink, cut(5))
    again = opened(key=template)
    assert (again.applied(), again.held("public.pairs")) == (cut(5), 5)
    assert list(again.scan(TopicSchema.of(PAIRS))) == [] or not any(map(len, again.scan(TopicSchema.of(PAIRS))))
    again.prepare(TopicSchema.of(PAIRS))
    assert len(opened.feed(again, upserts(PAIRS, 6, [{"a": "z", "b": "", "v": CANARY}])).dead) == 1
    with valkey.client(decode_responses=True) as client:
        assert client.hget("cdc:{cache}:dead", "public.pairs@rows") == "4"
        assert sorted(client.hkeys("cdc:{cache}:dead")) == ["public.pairs@all", "public.pairs@rows"]
        assert "could be the same" in client.hget("cdc:{cache}:dead", "public.pairs@all") or "pairs" in client.hget(
            "cdc:{cache}:dead", "public.pairs@all"
        )
        assert CANARY not in str(client.hgetall("cdc:{cache}:dead"))


def test_a_letter_goes_by_the_name_that_its_row_has_now(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """An accepted one, too, so that it ends with its row; and one ends whose row the server can hold by now."""
    monkeypatch.setattr(rowwriter, "VALUE_BYTES_MAX", 500)
    sink = opened()
    sink.prepare(TopicSchema.of(ORDERS))
    opened.feed(sink, upserts(ORDERS, 1, [order(1, note="x" * 600), order(2, note="x" * 600), order(3)]))
    opened.commit(sink, cut(3))
    first, _ = sink.letters()
    sink.keep([dataclasses.replace(first, state=LetterState.ACCEPTED, by="ops")])
    again = opened(key="o:{id}")
    found = [(int(one.position), one.state, one.key) for one in again.letters()]
    assert found == [(1, LetterState.ACCEPTED, "o:1"), (2, LetterState.ASIDE, "o:2")]
    opened.feed(again, batch(ORDERS, [(Op.DELETE, 4, order(1))]))
    opened.commit(again, cut(4))
    assert [int(one.position) for one in again.letters()] == [2]
    monkeypatch.setattr(rowwriter, "VALUE_BYTES_MAX", 1 << 20)
    assert opened(key="p:{id}").letters() == ()


@pytest.mark.parametrize("value", ["json", "hash"])
def test_a_value_that_is_too_long_for_this_server_is_set_aside_and_the_others_flow(valkey: Any, opened: Opened, value: str) -> None:
    """Its own limit counts, not the usual one: it ends the connection of whoever sends more, and would do so again and again."""
    limit, note = 1 << 20, "proto-max-bulk-len"
    reason = f"value over {limit} bytes"
    with valkey.client() as client:
        usual = client.config_get(note)[note]
        try:
            sink = opened(value=value)
            sink.prepare(TopicSchema.of(ORDERS))
            client.config_set(note, limit)
            rows = [order(1), order(2, note="x" * (limit + 1)), order(3)]
            with pytest.raises(StoreError) as caught:
                opened.feed(sink, upserts(ORDERS, 1, rows))  # the limit was lowered since it was opened
            assert caught.value.retryable
            sink = opened(value=value, prepare=False)
            sink.prepare(TopicSchema.of(ORDERS))
            dead = sink.apply(upserts(ORDERS, 1, rows)).dead
            assert [(int(letter.position), letter.reason) for letter in dead] == [(2, reason)]
            opened.commit(sink, cut(3))
            assert sorted(client.keys("public.orders:*")) == [b"public.orders:1", b"public.orders:3"]
        finally:
            client.config_set(note, usual)


def test_a_server_that_does_not_say_its_limit_has_the_usual_one(
    valkey: Any, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with many providers, and for an account without +config|get."""
    with valkey.client() as client:
        client.execute_command(
            "ACL", "SETUSER", "narrow", "on", ">secret", "~*", "&*", "+@read", "+@write", "+@transaction", "+info"
        )
        try:
            opened.url = opened.url.replace("redis://", "redis://narrow:secret@")
            sink = opened()
            sink.prepare(TopicSchema.of(ORDERS))
            monkeypatch.setattr(rowwriter, "VALUE_BYTES_MAX", 500)
            (letter,) = opened.feed(sink, upserts(ORDERS, 1, [order(1), order(2, note="x" * 600)])).dead
            assert letter.reason == "value over 500 bytes"
        finally:
            client.execute_command("ACL", "DELUSER", "narrow")


def test_no_table_is_called_like_what_is_said_of_another(opened: Opened) -> None:
    """Anybody may create some without a key, which are set aside and counted; a name must not make that fail for good."""
    sink, names = opened(), ["t#rows", "t@rows", "t@all", "t", "t@1", "t@2"]
    for number, name in enumerate(names):
        table = Table(16500 + number, "public", name, (Column("v", TEXT, -1, "text"),), identity="n")
        sink.prepare(TopicSchema.of(table))
        assert len(opened.feed(sink, upserts(table, 2 * number + 1, [{"v": "x"}, {"v": "y"}])).dead) == 2
    opened.commit(sink, cut(2 * len(names)))
    for one in (sink, opened()):
        assert {letter.table: letter.rows for letter in one.letters()} == {f"public.{name}": 2 for name in names}


def test_a_table_that_was_set_aside_is_there_once_its_keys_can_be_named(valkey: Any, opened: Opened) -> None:
    """All of it: what was set aside comes from the log."""
    sink = opened(key="row:{key}")
    sink.prepare(TopicSchema.of(PAIRS))
    opened.feed(sink, upserts(ORDERS, 1, [order(1)]))
    opened.feed(sink, upserts(PAIRS, 2, [{"a": "x", "b": "y", "v": "1"}, {"a": "x", "b": "z", "v": "2"}]))
    opened.feed(sink, batch(PAIRS, [(Op.DELETE, 4, {"a": "x", "b": "z"})]))
    opened.feed(sink, schema(dataclasses.replace(ORDERS), 5, Kind.DROPPED, empties=True))
    opened.commit(sink, cut(5))
    again = opened(key="row:{key}", prepare=False)
    again.prepare(TopicSchema.of(PAIRS))
    with valkey.client(decode_responses=True) as client:
        assert sorted(client.keys()) == ["cdc:stores", "cdc:{cache}:ledger", "row:x:y"], "no letter is left"
    assert opened.feed(again, upserts(PAIRS, 6, [{"a": "n", "b": "", "v": "3"}])) == Outcome(1)


@pytest.mark.parametrize("key", ["row:{key}", "{table}:{nope}"])
def test_keys_that_cannot_be_are_foreseen(opened: Opened, key: str) -> None:
    for right in ([], [ORDERS], [ORDERS, PAIRS]):
        opened().foresee([TopicSchema.of(table) for table in right])
    wrong = CacheSink("other", Options.model_validate({"kind": "redis", "url": opened.url, "key": key}))
    opened.made.append(wrong)
    wrong.open(opened.log.reader())
    with pytest.raises(ConfigError, match=r"could be the same|has no column nope"):
        wrong.foresee([TopicSchema.of(ORDERS), TopicSchema.of(PAIRS)])


def test_keys_that_could_be_those_of_a_table_that_is_there_are_foreseen(opened: Opened) -> None:
    sink = opened(key="row:{key}")
    with pytest.raises(ConfigError, match="could be the same"):
        sink.foresee([TopicSchema.of(PAIRS)])


def test_a_kill_loses_nothing_that_was_committed(valkey_server: Valkey, opened: Opened) -> None:
    opened.url = valkey_server.url
    sink = opened()
    opened.feed(sink, upserts(ORDERS, 1, [order(i) for i in range(2000)]))
    opened.commit(sink, cut(2000))
    valkey_server.crash()
    with pytest.raises(StoreError) as failure:
        opened.feed(sink, upserts(ORDERS, 2001, [order(1)]))
    assert failure.value.retryable
    valkey_server.start()
    # The append-only file is synced once a second: what is applied may be older, never newer than the rows.
    applied = opened.open(sink).position
    assert applied in (0, 2000)
    if applied:
        assert sum(len(part) for part in sink.scan(TopicSchema.of(ORDERS))) == 2000


def test_a_connection_that_the_server_closed_meanwhile_is_replaced(valkey: Any, opened: Opened) -> None:
    """Servers end connections that are idle for some minutes (`timeout`): the next change then finds a closed one, and nothing is down."""
    sink = opened()
    opened.feed(sink, upserts(ORDERS, 1, [order(1)]))
    with valkey.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)
        assert opened.feed(sink, upserts(ORDERS, 2, [order(2)])) == Outcome(1)
        client.client_kill_filter(_type="normal", skipme=True)
        opened.commit(sink, cut(2))
        assert sorted(client.keys("public.orders:*")) == [b"public.orders:1", b"public.orders:2"]


def test_a_wrong_password_is_said_plainly(valkey_server: Valkey) -> None:
    sink = CacheSink("cache", Options.model_validate({"kind": "redis", "url": valkey_server.url, "password": CANARY}))
    with pytest.raises(StoreError) as failure:
        sink.open(LooseLog().reader())
    sink.close()
    assert not failure.value.retryable
    assert CANARY not in failure.value.line()


@pytest.mark.parametrize("value", ["json", "hash"])
def test_what_readers_find_after_columns_went_and_were_renamed(valkey: Any, opened: Opened, value: str) -> None:
    sink = opened(value=value)
    opened.feed(sink, upserts(ORDERS, 1, [order(1, "new", note="secret")]))
    names = {"status": "state"}
    kept = [dataclasses.replace(c, name=names.get(c.name, c.name)) for c in NUMBERED.columns if c.name != "note"]
    opened.feed(sink, schema(NUMBERED, 2))
    opened.feed(sink, schema(dataclasses.replace(NUMBERED, columns=tuple(kept)), 3))
    with valkey.client(decode_responses=True) as client:
        found = json.loads(client.get("public.orders:1")) if value == "json" else client.hgetall("public.orders:1")
    assert list(found) == [column.name for column in kept] if value == "json" else set(found) == {column.name for column in kept}
    assert found["state"] == "new"


def test_a_rename_that_the_key_template_names_is_told(opened: Opened) -> None:
    sink = opened(key="order:{id}")
    opened.feed(sink, upserts(ORDERS, 1, [order(1)]))
    opened.feed(sink, schema(NUMBERED, 2))
    gone = dataclasses.replace(NUMBERED.columns[0], name="order_id")
    with pytest.raises(ConfigError, match=r"public\.orders has no column id"):
        opened.feed(sink, schema(dataclasses.replace(NUMBERED, columns=(gone, *NUMBERED.columns[1:])), 3))


@pytest.mark.parametrize("whole_url", [False, True])
def test_a_rotated_password_counts_without_a_restart(valkey: Any, opened: Opened, tmp_path: Path, whole_url: bool) -> None:
    """The server keeps connections that are there; one that is made later needs what the file says by then."""
    user, secret = f"user-{uuid.uuid4().hex[:8]}", tmp_path / "secret"
    text = valkey.url.replace("redis://", f"redis://{user}:%s@") if whole_url else "%s"

    def rotate(password: str) -> None:
        client.acl_setuser(user, enabled=True, reset_passwords=True, passwords=f"+{password}", keys="*", commands=["+@all"])
        client.execute_command("CLIENT", "KILL", "USER", user)

    def refused() -> StoreError:
        """What the sink fails with once it has to connect anew."""
        sink.close()
        with pytest.raises(StoreError) as failure:
            opened.open(sink)
        return failure.value

    with valkey.client() as client:
        rotate("one")
        secret.write_text(text % "one")
        held = SecretFile(text % "one", secret)
        given = {"url": held} if whole_url else {"url": valkey.url, "username": user, "password": held}
        sink = CacheSink("cache", Options.model_validate({"kind": "redis", **given}))
        try:
            opened.open(sink)
            sink.prepare(TopicSchema.of(ORDERS))
            assert opened.feed(sink, upserts(ORDERS, 1, [order(1)])) == Outcome(1)
            rotate("two")
            assert refused().retryable, "the file may follow in a moment"
            secret.write_text(text % "two")
            opened.open(sink)
            assert opened.feed(sink, upserts(ORDERS, 2, [order(1)])) == Outcome(1)
            # A connection that ended in between, with the file changed before.
            secret.write_text(text % "three")
            rotate("three")
            assert opened.feed(sink, upserts(ORDERS, 3, [order(1)])) == Outcome(1)
        finally:
            sink.close()
            client.acl_deluser(user)


def test_wrong_credentials_that_no_file_holds_are_for_the_operator(valkey: Any) -> None:
    options = Options.model_validate({"kind": "redis", "url": valkey.url, "username": "nobody", "password": "guessed"})
    with closing(CacheSink("cache", options)) as sink, pytest.raises(StoreError, match="WRONGPASS") as failure:
        sink.open(LooseLog().reader())
    assert not failure.value.retryable


def compacted(opened: Opened) -> None:
    """Order 2 is gone, and nothing in the log tells of it any more."""
    opened.log.put(batch(ORDERS, [(Op.DELETE, 4, order(2)), (Op.UPDATE, 5, order(1, "paid"))]))
    opened.log.put(batch(ORDERS, [(Op.INSERT, 6, order(4))]))
    opened.log.forget(ORDERS.qualified, 6)


def brought(opened: Opened, sink: CacheSink) -> None:
    log = opened.log.reader()
    for changes in log.read(ORDERS.qualified, sink.held(ORDERS.qualified), log.head().position, log.lineage().history):
        sink.apply(changes)
    sink.commit(log.head())


def test_keys_without_a_ledger_go_where_their_deletes_are_gone(valkey: Any, opened: Opened) -> None:
    sink = opened(key="order:{id}")
    opened.feed(sink, upserts(ORDERS, 1, [order(1), order(2), order(3)]))
    opened.commit(sink, cut(3))
    compacted(opened)
    with valkey.client() as client:
        client.delete(ledger.key_of("cache"))
        client.set("order:x", "not ours")
        sink = opened(key="order:{id}")
        assert set(client.keys("order:*")) == {b"order:x"}
        brought(opened, sink)
        assert set(client.keys("order:*")) == {b"order:1", b"order:3", b"order:4", b"order:x"}


def test_keys_without_a_ledger_stay_where_they_are_another_store_s(valkey: Any, opened: Opened) -> None:
    sink = opened(key="order:{id}")
    opened.feed(sink, upserts(ORDERS, 1, [order(1), order(2), order(3)]))
    opened.commit(sink, cut(3))
    compacted(opened)
    other = CacheSink("other", Options.model_validate({"kind": "redis", "url": valkey.url, "key": "order:{id}"}))
    opened.made.append(other)
    with pytest.raises(StoreError, match="in store cache"):
        other.open(opened.log.reader(), 1)
    with valkey.client() as client:
        assert client.exists("order:1", "order:2", "order:3") == 3


def test_a_table_that_is_selected_again_after_its_deletes_are_gone_is_refused(opened: Opened) -> None:
    sink = opened(key="order:{id}")
    opened.feed(sink, upserts(ORDERS, 1, [order(1), order(2), order(3)]))
    opened.commit(sink, cut(3))
    opened(prepare=False, key="order:{id}", tables=["public.nothing"])
    compacted(opened)
    for _ in range(2):
        with pytest.raises(PositionGone, match="keeps DELETEs"):
            opened(prepare=False, key="order:{id}")
