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

from cdc import stops
from cdc.embedded.valkey import Valkey
from cdc.errors import ConfigError, StopState, StoreError
from cdc.log.memory import MemoryLog
from cdc.model.batch import Op
from cdc.model.evolution import Kind, SchemaChange, schema_record
from cdc.model.position import ZERO_CUT, Cut, Lsn, Position
from cdc.settings import SecretFile
from cdc.spark.follower import Follower
from sinks.cache.sink import CacheSink, Options
from sinks.contract import Outcome
from tests.contract.rows import NUMBERED, ORDERS, PAIRS, batch, order, schema, upserts
from tests.logs import EMPTY

CANARY = "canary-value"


def cut(position: int) -> Cut:
    return Cut(Position(position), Lsn(position), 0)


@pytest.fixture
def opened(valkey: Any) -> Iterator[Any]:
    made: list[CacheSink] = []

    def make(url: str = valkey.url, **options: Any) -> CacheSink:
        sink = CacheSink("cache", Options.model_validate({"kind": "redis", "url": url, **options}))
        made.append(sink)
        sink.open(EMPTY)
        sink.prepare(ORDERS)
        return sink

    yield make
    for sink in made:
        sink.close()


def test_a_row_is_json_under_its_key(valkey: Any, opened: Any) -> None:
    sink = opened(key="order:{id}")
    sink.apply(upserts(ORDERS, 5, [order(1, None)]))
    with valkey.client() as client:
        found = json.loads(client.get("order:1"))
    assert found["_cdc_position"] == 5
    assert (found["amount"], found["status"], found["note"]) == (1.1, None, "")


def test_a_row_is_a_hash_when_asked_for(valkey: Any, opened: Any) -> None:
    sink = opened(value="hash")
    sink.apply(upserts(ORDERS, 5, [order(1, "new")]))
    sink.apply(upserts(ORDERS, 6, [order(1, None)]))
    with valkey.client(decode_responses=True) as client:
        found = client.hgetall("public.orders:1")
    texts = {name: text for name, text in order(1, None).items() if text is not None}
    assert found == {"_cdc_position": "6", **texts, "created_at": "2013-01-01T10:00:00Z"}


@pytest.mark.parametrize("begins_with_a_key", [True, False])
def test_a_table_that_was_without_a_key_holds_nobody_up_once_it_has_one(
    valkey: Any, tmp_path: Path, begins_with_a_key: bool
) -> None:
    """What came meanwhile could not be held; the rows that are read again with the key can."""
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
    assert stopped.status.stop == StopState.STORE_REFUSES
    stops.clear(tmp_path, "STORE_REFUSES")
    mended = follow(
        schema_record(SchemaChange(ORDERS, Kind.REWRITTEN, empties=True), 4, 4, 4), batch(ORDERS, [(Op.READ, 5, order(3))])
    )
    assert mended.status.stop is None
    assert mended.applied == writer.head
    with valkey.client() as client:
        assert client.keys("public*") == [b"public.orders:3"]


def test_nothing_is_kept_of_deleted_keys_once_the_cut_has_passed(valkey: Any, opened: Any) -> None:
    sink = opened()
    sink.apply(upserts(ORDERS, 1, [order(i) for i in range(300)]))
    sink.apply(batch(ORDERS, [(Op.DELETE, 301 + i, order(i)) for i in range(300)]))
    with valkey.client() as client:
        assert client.zcard("cdc:{cache}:graves") == 300
        sink.commit(cut(600))
        assert sorted(client.keys()) == [b"cdc:{cache}:applied", b"cdc:{cache}:shapes", b"cdc:{cache}:tables"]


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_server_that_evicts_is_refused(valkey: Any, opened: Any, policy: str) -> None:
    sink = opened()
    with valkey.client() as client:
        client.config_set("maxmemory-policy", policy)
        try:
            with pytest.raises(StoreError, match="evicts") as failure:
                sink.open(EMPTY)
        finally:
            client.config_set("maxmemory-policy", "noeviction")
    assert not failure.value.retryable
    assert "noeviction" in str(failure.value.hint)


def test_a_server_that_begins_to_evict_is_noticed(valkey: Any, opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sinks.cache.sink.LOOK_S", 3600.0)
    sink = opened()
    with valkey.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            assert sink.applied() == ZERO_CUT, "not asked each time"
            monkeypatch.setattr("sinks.cache.sink.LOOK_S", 0.0)
            with pytest.raises(StoreError, match="evicts") as failure:
                sink.applied()
        finally:
            client.config_set("maxmemory-policy", "noeviction")
    assert not failure.value.retryable
    assert "noeviction" in str(failure.value.hint)
    assert sink.applied() == ZERO_CUT


def test_a_full_server_is_waited_for(valkey: Any, opened: Any) -> None:
    sink = opened()
    rows = [order(i, CANARY, note="x" * 2000) for i in range(5000)]
    with valkey.client() as client:
        client.config_set("maxmemory", client.info("memory")["used_memory"] + 2_000_000)
        try:
            with pytest.raises(StoreError, match="OOM") as failure:
                sink.apply(upserts(ORDERS, 1, rows))
        finally:
            client.config_set("maxmemory", 0)
    assert failure.value.retryable
    assert CANARY not in failure.value.line()
    outcome = sink.apply(upserts(ORDERS, 1, rows))
    assert outcome.written + outcome.stale == 5000
    assert sum(len(part) for part in sink.scan(ORDERS)) == 5000


def test_scripts_that_the_server_forgot_are_loaded_again(valkey: Any, opened: Any) -> None:
    sink = opened()
    sink.apply(upserts(ORDERS, 1, [order(1)]))
    with valkey.client() as client:
        client.script_flush()
    assert sink.apply(upserts(ORDERS, 2, [order(i) for i in range(2, 500)])) == Outcome(498)


def test_an_emptied_server_says_so(valkey: Any, opened: Any) -> None:
    sink = opened()
    sink.commit(cut(9))
    with valkey.client() as client:
        client.flushall()
    assert sink.applied() == ZERO_CUT


def test_keys_of_another_program_are_not_overwritten_by_force(valkey: Any, opened: Any) -> None:
    sink = opened()
    with valkey.client() as client:
        client.lpush("public.orders:1", "theirs")
    with pytest.raises(StoreError, match="WRONGTYPE") as failure:
        sink.apply(upserts(ORDERS, 1, [order(1)]))
    assert not failure.value.retryable


def test_two_tables_that_could_share_keys_are_refused(opened: Any) -> None:
    sink = opened(key="row:{key}")
    with pytest.raises(ConfigError, match="could be the same"):
        sink.prepare(PAIRS)


@pytest.mark.parametrize("key", ["row:{key}", "{table}:{nope}"])
def test_keys_that_cannot_be_are_foreseen(opened: Any, key: str) -> None:
    sink = opened()
    for right in ([], [ORDERS], [ORDERS, PAIRS]):
        sink.foresee(right)
    sink._options = sink._options.model_copy(update={"key": key})
    with pytest.raises(ConfigError, match=r"could be the same|nope is not part of the key"):
        sink.foresee([dataclasses.replace(table, name=f"new_{table.name}") for table in (ORDERS, PAIRS)])


def test_a_store_filled_under_other_keys_is_refused(opened: Any) -> None:
    opened(key="order:{id}")
    with pytest.raises(ConfigError, match="has changed"):
        opened(key="o:{id}")


def test_truncate_spares_keys_that_only_look_alike(valkey: Any, opened: Any) -> None:
    sink = opened()
    odd = dataclasses.replace(ORDERS, oid=2, name="orders*")
    sink.prepare(odd)
    sink.apply(upserts(odd, 1, [order(1)]))
    with valkey.client() as client:
        client.set("public.orders:theirs", "not ours")
        sink.apply(upserts(ORDERS, 2, [order(i) for i in range(3000)]))
        assert sink.apply(batch(ORDERS, [(Op.TRUNCATE, 4000, {})])) == Outcome(1)
        assert [len(part) for part in sink.scan(odd) if len(part)] == [1]
        client.delete("public.orders:theirs")
    assert not any(len(part) for part in sink.scan(ORDERS))


def test_a_kill_loses_nothing_that_was_committed(valkey_server: Valkey, opened: Any) -> None:
    sink = opened(valkey_server.url)
    sink.apply(upserts(ORDERS, 1, [order(i) for i in range(2000)]))
    sink.commit(cut(2000))
    valkey_server.crash()
    with pytest.raises(StoreError) as failure:
        sink.apply(upserts(ORDERS, 2001, [order(1)]))
    assert failure.value.retryable
    valkey_server.start()
    # The append-only file is synced once a second: what is applied may be older, never newer than the rows.
    applied = sink.open(EMPTY).position
    assert applied in (0, 2000)
    if applied:
        assert sum(len(part) for part in sink.scan(ORDERS)) == 2000


def test_a_wrong_password_is_said_plainly(valkey_server: Valkey) -> None:
    sink = CacheSink("cache", Options.model_validate({"kind": "redis", "url": valkey_server.url, "password": CANARY}))
    with pytest.raises(StoreError) as failure:
        sink.open(EMPTY)
    sink.close()
    assert not failure.value.retryable
    assert CANARY not in failure.value.line()


@pytest.mark.parametrize("value", ["json", "hash"])
def test_what_readers_find_after_columns_went_and_were_renamed(valkey: Any, opened: Any, value: str) -> None:
    sink = opened(value=value)
    sink.apply(upserts(ORDERS, 1, [order(1, "new", note="secret")]))
    names = {"status": "state"}
    kept = [dataclasses.replace(c, name=names.get(c.name, c.name)) for c in NUMBERED.columns if c.name != "note"]
    sink.apply(schema(NUMBERED, 2))
    sink.apply(schema(dataclasses.replace(NUMBERED, columns=tuple(kept)), 3))
    with valkey.client(decode_responses=True) as client:
        found = json.loads(client.get("public.orders:1")) if value == "json" else client.hgetall("public.orders:1")
    assert set(found) == {"_cdc_position", *(column.name for column in kept)}
    assert (int(found["_cdc_position"]), found["state"]) == (3, "new")


def test_a_rename_that_the_key_template_names_is_told(opened: Any) -> None:
    sink = opened(key="order:{id}")
    sink.apply(upserts(ORDERS, 1, [order(1)]))
    sink.apply(schema(NUMBERED, 2))
    gone = dataclasses.replace(NUMBERED.columns[0], name="order_id")
    with pytest.raises(ConfigError, match="id is not part of the key"):
        sink.apply(schema(dataclasses.replace(NUMBERED, columns=(gone, *NUMBERED.columns[1:])), 3))


@pytest.mark.parametrize("whole_url", [False, True])
def test_a_rotated_password_counts_without_a_restart(valkey: Any, tmp_path: Path, whole_url: bool) -> None:
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
            sink.open(EMPTY)
        return failure.value

    with valkey.client() as client:
        rotate("one")
        secret.write_text(text % "one")
        held = SecretFile(text % "one", secret)
        given = {"url": held} if whole_url else {"url": valkey.url, "username": user, "password": held}
        sink = CacheSink("cache", Options.model_validate({"kind": "redis", **given}))
        try:
            sink.open(EMPTY)
            sink.prepare(ORDERS)
            assert sink.apply(upserts(ORDERS, 1, [order(1)])) == Outcome(1)
            rotate("two")
            assert refused().retryable, "the file may follow in a moment"
            secret.write_text(text % "two")
            sink.open(EMPTY)
            assert sink.apply(upserts(ORDERS, 2, [order(1)])) == Outcome(1)
            # A connection that breaks in the middle of the work, with the file changed before.
            secret.write_text(text % "three")
            rotate("three")
            with pytest.raises(StoreError, match="no answer"):
                sink.apply(upserts(ORDERS, 3, [order(1)]))
            assert sink.apply(upserts(ORDERS, 3, [order(1)])) == Outcome(1)
        finally:
            sink.close()
            client.acl_deluser(user)


def test_wrong_credentials_that_no_file_holds_are_for_the_operator(valkey: Any) -> None:
    options = Options.model_validate({"kind": "redis", "url": valkey.url, "username": "nobody", "password": "guessed"})
    with closing(CacheSink("cache", options)) as sink, pytest.raises(StoreError, match="WRONGPASS") as failure:
        sink.open(EMPTY)
    assert not failure.value.retryable
