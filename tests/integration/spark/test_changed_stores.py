"""Stores that are added, changed, removed and resumed while a real followers' process runs: the others go on undisturbed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import redis

from cdc.errors import Stopped, StopState
from cdc.settings.models import StoreOptions
from cdc.spark.queries import run_followers
from cdc.state import stops
from cdc.state.status import read_follower
from sinks import memory
from tests.conftest import Cache
from tests.integration.spark.process import FollowersProcess
from tests.integration.spark.traffic import Traffic

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture
def traffic(tmp_path: Path, seed: int) -> Iterator[Traffic]:
    made = Traffic(tmp_path / "log", seed, truncates=False)
    yield made
    made.close()


def test_stores_come_change_and_go_while_the_process_runs(traffic: Traffic, tmp_path: Path, valkey: Cache) -> None:
    cache = {"kind": "redis", "url": valkey.url, "tables": ["public.orders"]}
    other = {**cache, "key": "other:{id}"}
    traffic.transactions(20)
    with FollowersProcess(tmp_path, {"cache": cache}) as followers, redis.Redis.from_url(valkey.url) as client:

        def follows(store: str) -> bool:
            told = followers.status(store)
            return told.state == "following" and told.position >= traffic.writer.head.position

        followers.until(lambda: follows("cache"), "the first store")
        followers.until(lambda: followers.words("store cache"), "a word of it")  # said behind the status
        before = followers.status("cache"), followers.words("store cache")

        followers.configure({"cache": cache, "second": other})
        followers.until(lambda: follows("second"), "a store that was added")
        assert any(name.startswith(b"other:") for name in client.scan_iter())
        assert "was changed; stores: added second" in followers.words("cdc.toml")

        # It names another column: the rows that are there would have to go to other places, which is refused by the rule that refuses it at a start.
        followers.configure({"cache": cache, "second": {**other, "key": "other:{note}"}})
        followers.until(lambda: any("options" in words for words in followers.words("store second")), "a word of the change")
        traffic.transactions(20)
        resume = "cdc resume STORE_REFUSES:follow-second"
        followers.until(lambda: resume in followers.words("store second")[-1], "the rule")
        assert followers.status("second").state == "stopped"
        assert "places are named by note" in followers.words("store second")[-1]

        followers.configure({"cache": cache, "second": other})
        followers.until(lambda: len(followers.words("cdc.toml")) == 3, "the way back")
        stops.clear(tmp_path / "run", "STORE_REFUSES:follow-second")
        followers.until(lambda: follows("second"), "the store to be resumed")

        followers.write("broken = [")
        followers.until(lambda: "is not valid TOML" in followers.words("cdc.toml")[-1], "a word about the broken file")
        traffic.transactions(2)
        followers.until(lambda: follows("cache") and follows("second"), "both to go on")

        held = client.dbsize()
        followers.configure({"cache": cache})
        followers.until(lambda: read_follower(tmp_path / "run", "second") is None, "the status of a removed store to go")
        assert client.dbsize() == held
        followers.until(lambda: "is no longer in the configuration" in followers.words("store second")[-1], "a word of it")
        assert stops.held(tmp_path / "run") == []

        traffic.transactions(5)
        followers.until(lambda: follows("cache"), "the store that was there all the time")
        after = followers.status("cache")
        assert (after.pid, after.stale) == (before[0].pid, before[0].stale)
        assert after.batches > before[0].batches, "counted since the same beginning"
        assert followers.words("store cache") == before[1], "it was neither closed nor opened"
    assert followers.process.returncode == 0


class Running:
    """``run_followers`` in a thread of this process; ``stores`` may be replaced."""

    def __init__(self, traffic: Traffic, run_dir: Path, stores: Mapping[str, StoreOptions]) -> None:
        self.stores = stores
        self.run_dir = run_dir
        self.stop = threading.Event()
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, args=(traffic.folder,))

    def _run(self, folder: Path) -> None:
        try:
            run_followers(folder, self.run_dir, self.stores, stop=self.stop, wanted=lambda: self.stores)
        except BaseException as error:
            self._failed.append(error)

    def __enter__(self) -> Running:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        self._thread.join(120)
        assert not self._thread.is_alive()
        assert self._failed == []

    def state(self, store: str) -> str | None:
        told = read_follower(self.run_dir, store)
        return told.state if told is not None else None

    def until(self, done: Callable[[], Any]) -> None:
        deadline = time.monotonic() + 150
        while not done():
            assert self._failed == []
            assert time.monotonic() < deadline, {store: self.state(store) for store in self.stores}
            time.sleep(0.02)


def thread_of(store: str) -> threading.Thread | None:
    return next((thread for thread in threading.enumerate() if thread.name == f"follow-{store}"), None)


def test_the_other_stores_keep_their_threads_and_their_sinks(
    traffic: Traffic, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    real = memory.MemorySink.open
    monkeypatch.setattr(memory.MemorySink, "open", lambda sink, *given: opened.append(sink.name) or real(sink, *given))
    kept, changing, added = (f"{name}-{tmp_path.name[-8:].lower()}" for name in ("kept", "changing", "added"))
    options = memory.Options(kind="memory")
    traffic.transactions(5)
    with Running(traffic, tmp_path / "run", {kept: options, changing: options}) as running:
        running.until(lambda: running.state(kept) == running.state(changing) == "following")
        thread = thread_of(kept)
        former = thread_of(changing)
        other = memory.Options(kind="memory", tables=("public.orders",))
        running.stores = {kept: options, changing: other, added: options}
        running.until(lambda: running.state(added) == "following" and opened.count(changing) == 2)
        running.until(lambda: thread_of(changing) not in (None, former))
        running.stores = {kept: options, added: options}
        running.until(lambda: running.state(changing) is None and thread_of(changing) is None)
        assert memory.STORES[changing].rows, "what it holds stays in it"
        assert thread_of(kept) is thread
        assert opened.count(kept) == 1
        cut = traffic.transactions(3)
        running.until(lambda: (told := read_follower(tmp_path / "run", kept)) and told.position == cut.position)


def test_a_resumed_store_is_opened_again_while_the_others_go_on(traffic: Traffic, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    running_store, stopped_store, late = (f"{name}-{tmp_path.name[-8:].lower()}" for name in ("runs", "stands", "late"))
    options = memory.Options(kind="memory")
    stops.record(run_dir, f"follow-{stopped_store}", Stopped(StopState.STORE_REFUSES, "it says no"))
    with Running(traffic, run_dir, {running_store: options, stopped_store: options}) as running:
        cut = traffic.transactions(3)
        running.until(lambda: (told := read_follower(run_dir, running_store)) and told.position == cut.position)
        thread = thread_of(running_store)
        assert thread_of(stopped_store) is None
        stops.record(run_dir, f"follow-{late}", Stopped(StopState.STORE_REFUSES, "it says no"))
        running.stores = {**running.stores, late: options}
        stops.clear(run_dir, f"STORE_REFUSES:follow-{stopped_store}")
        running.until(lambda: running.state(stopped_store) == "following")
        assert thread_of(late) is None, "one that is added and stopped waits for its operator"
        assert thread_of(running_store) is thread
        running.stores = {running_store: options, stopped_store: options}
        running.until(lambda: stops.held(run_dir) == [])
