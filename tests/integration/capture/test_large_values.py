"""Values of many megabytes on their way into a cache, and the largest that its server takes."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import redis

from cdc.capture import toast
from cdc.client.wait import wait
from cdc.errors import WaitTimeout
from cdc.ingest import meter
from cdc.model.position import Lsn
from cdc.settings.models import Settings, StoreOptions
from cdc.state import status
from sinks.cache import rowwriter
from snapshots.feed import SnapshotFeed
from tests.integration.capture.cached import Cache
from tests.integration.capture.running import DEADLINE_S, Capture

LIMIT: Final = 1 << 20
"""The least that a server takes for its own limit."""
VALUE_BYTES: Final = 250_000_000 if "HEADWATER_FAULTS" in os.environ else 8_000_000


@pytest.fixture
def limited(valkey: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A server, and a sink, that take values of ``LIMIT`` bytes at most in place of 512 MB."""
    monkeypatch.setattr(rowwriter, "VALUE_BYTES_MAX", LIMIT)
    with valkey.client() as client:
        usual = client.config_get("proto-max-bulk-len")["proto-max-bulk-len"]
        assert int(usual) == 512 << 20, "what the sink takes for the limit"
        client.config_set("proto-max-bulk-len", LIMIT)
        yield valkey
        client.config_set("proto-max-bulk-len", usual)


def test_the_largest_value_that_a_cache_takes_and_one_byte_more(postgres: Any, limited: Any, tmp_path: Path) -> None:
    """What is too large is set aside, whether read or streamed, and leaves no older value behind; the rows around it go on."""
    with limited.client() as client, pytest.raises(redis.RedisError):
        client.set("one byte more", b"x" * (LIMIT + 1))
    with postgres.connect() as connection:
        connection.execute("create table t (id int primary key, v text)")
        room = LIMIT - len(json.dumps({"id": 1, "v": ""}, separators=(",", ":")))
        insert = "insert into t select id, repeat('x', n) from unnest(%s::int[], %s::int[]) as rows(id, n)"
        connection.execute(insert, ([1, 2, 3], [room, room + 1, 5]))
        with Capture(postgres.dsn, tmp_path).running() as capture:
            cache = Cache(capture, limited)
            capture.until_snapshot_done()
            assert lengths(cache.follow()) == {"public.t:1": room, "public.t:3": 5}
            assert cache.dead == 1
            with limited.client() as client:
                assert client.strlen("public.t:1") == LIMIT
                [letter] = [json.loads(value) for value in client.hvals("cdc:{cache}:dead") if value.startswith(b"{")]
                assert letter["reason"] == f"value over {LIMIT} bytes"
            connection.execute(insert, ([4, 5, 6], [room + 1, room, 7]))
            connection.execute("update t set v = v || 'x' where id = 1")  # one byte too many by now
            connection.execute("update t set v = 'short' where id = 2")
            capture.until(lambda: capture.rows("public.t")["2",]["v"] == "short")
            assert lengths(cache.follow()) == {"public.t:2": 5, "public.t:3": 5, "public.t:5": room, "public.t:6": 7}
            assert cache.dead == 3


def test_a_wait_lasts_until_a_row_whose_large_value_the_stream_left_out_was_read(
    postgres: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its update is in none of the log's changes until then, and the cut that covers it is there before."""
    monkeypatch.setattr(toast, "MOST_BYTES", 1_000)  # larger values are not remembered
    may_enter = threading.Event()
    may_enter.set()
    ready = SnapshotFeed.ready

    def once_it_may(*arguments: Any) -> None:
        assert may_enter.wait(DEADLINE_S)
        ready(*arguments)

    monkeypatch.setattr(SnapshotFeed, "ready", once_it_may)
    with postgres.connect() as connection:
        connection.execute("create table t (id int primary key, v text, n int)")
        connection.execute("create table last (id int primary key)")
        connection.execute("alter table t alter v set storage external")
        connection.execute("insert into t values (1, repeat('x', 5000), 0)")
        with Capture(postgres.dsn, tmp_path).running() as capture:
            capture.until_snapshot_done()
            capture.until(lambda: capture.status.complete_position is not None, "for the rows that were there")
            settings = capture.settings.model_copy(update={"stores": {"cache": StoreOptions(kind="redis")}})
            monkeypatch.setattr(meter, "STATUS_S", 3600.0)  # the status file is not written by itself meanwhile
            may_enter.clear()
            connection.execute("update t set n = 1")
            lsn = Lsn(int(connection.execute("select pg_current_wal_insert_lsn() - '0/0'").fetchone()[0]))
            connection.execute("insert into last values (1)")
            capture.until(lambda: bool(capture.rows("public.last")), "for what came later")
            assert capture.rows("public.t")["1",]["n"] == "0"
            follows(settings, 1 << 40)
            with pytest.raises(WaitTimeout, match="rows are still being read"):
                wait(settings, capture.reader, "cache", lsn=lsn, timeout_s=0.01)
            monkeypatch.setattr(meter, "STATUS_S", 0.1)
            may_enter.set()
            capture.until(lambda: capture.rows("public.t")["1",]["n"] == "1", "for the row")
            capture.until(lambda: capture.status.complete_position is not None, "for capture to say so")
            follows(settings, 1 << 40)
            reached = wait(settings, capture.reader, "cache", lsn=lsn, timeout_s=DEADLINE_S).position
            assert reached >= capture.changes("public.t")[-1][0], "the cut that has the row"


def follows(settings: Settings, position: int) -> None:
    """A follower of its store says that it has applied everything up to there."""
    told = status.FollowerStatus("cache", pid=os.getpid(), state="following", position=position, said_at=time.monotonic())
    status.write(settings.run_dir, "follow-cache", told)


@pytest.mark.faults
@pytest.mark.timeout(900)
def test_values_of_many_megabytes_reach_a_cache_whole(postgres: Any, valkey: Any, tmp_path: Path) -> None:
    """Read, streamed, and streamed again with the value left as it is: 250 MB each by `make faults`."""
    with postgres.connect() as connection:
        connection.execute("create table t (id int primary key, v bytea, n int)")
        connection.execute("alter table t alter v set storage external")
        connection.execute("create table last (id int primary key)")
        insert = "insert into t values (%s, decode(repeat(%s, %s), 'hex'), 0)"
        block = os.urandom(100)
        wanted = hashlib.sha256(block * (VALUE_BYTES // len(block))).hexdigest()

        def held(cache: Cache) -> dict[str, str]:
            found = {key: value for key, value in cache.follow().items() if value is not None}
            return {key: hashlib.sha256(base64.b64decode(value)).hexdigest() for key, value in found.items()}

        connection.execute(insert, (1, block.hex(), VALUE_BYTES // len(block)))
        with Capture(postgres.dsn, tmp_path).running() as capture:
            cache = Cache(capture, valkey)
            capture.until_snapshot_done(deadline_s=600)
            assert held(cache) == {"public.t:1": wanted}
            connection.execute(insert, (2, block.hex(), VALUE_BYTES // len(block)))
            connection.execute("update t set n = 1 where id = 1")
            connection.execute("insert into t values (3, %s, 0)", (block,))
            connection.execute("insert into last values (1)")
            capture.until(lambda: bool(capture.rows("public.last")), "for what came last", deadline_s=600)
            # The first one's value is too large to be remembered: its row is read again.
            capture.until(lambda: capture.status.complete_position is not None, "for all rows", deadline_s=600)
            assert held(cache) == {"public.t:1": wanted, "public.t:2": wanted, "public.t:3": hashlib.sha256(block).hexdigest()}
            assert cache.dead == 0
            with valkey.client() as client:
                assert json.loads(client.get("public.t:1"))["n"] == 1


def lengths(values: dict[str, Any]) -> dict[str, int]:
    return {key: len(value) for key, value in values.items()}
