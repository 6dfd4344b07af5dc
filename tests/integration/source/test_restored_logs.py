"""An older copy of the log is put back, and what becomes of stores that know more than it: never wrong rows in a store that says it is well."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psycopg
import pytest

from cdc.errors import StopState
from cdc.follow.follower import Follower
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.model.topic import TopicSchema
from cdc.settings.models import StoreOptions
from cdc.state import rebuilds, status, stops
from sinks import make_sink, options_model
from tests.integration.capture.running import Capture
from tests.integration.source.test_stop_states import agrees, capture, rebuilt_once_dropped, sql

Connection = psycopg.Connection[Any]
__all__ = ["capture", "sql"]

STORES: Mapping[str, dict[str, Any]] = {
    "versioned": {"kind": "memory"},
    "sequenced": {"kind": "memory", "sequenced": True},
    "staged": {"kind": "memory", "staged": True},
}


class Stores:
    """Followers over one log, each started again for every step as processes are."""

    def __init__(self, capture: Capture, name: str) -> None:
        self.capture = capture
        self.options: Mapping[str, StoreOptions] = {
            f"{store}-{name}": options_model(given["kind"]).model_validate(given) for store, given in STORES.items()
        }

    @property
    def run_dir(self) -> Path:
        return self.capture.settings.run_dir

    def follow(self) -> dict[str, str]:
        """Every store as far as the log goes; the state that each follower is then in."""
        found = {}
        for store, options in self.options.items():
            if stops.held_by(self.run_dir, f"follow-{store}") is None:
                log = self.capture.settings.log.dir
                reader = EmbeddedLogReader(log)
                follower = Follower(store, options, log, reader, self.run_dir, threading.Event())
                if follower.start():
                    follower.follow_to(reader.head())
                follower.close()
                reader.close()
            told = status.read_follower(self.run_dir, store)
            assert told is not None
            found[store] = told.stop or told.state
        return found

    def rows(self, store: str) -> dict[str, str | None]:
        reader = EmbeddedLogReader(self.capture.settings.log.dir)
        sink = make_sink(store, self.options[store])
        try:
            assert sink.open(reader).position == reader.head().position
            [table] = [topic.table for topic in reader.topics() if topic.name == "public.t"]
            sink.make_visible()
            return {row["id"]: row["v"] for part in sink.scan(TopicSchema.of(table)) for row in part.to_pylist()}
        finally:
            sink.close()
            reader.close()

    def all_equal(self, sql: Connection) -> None:
        wanted = {str(key): value for key, value in sql.execute("select id, v from t").fetchall()}
        assert self.follow() == dict.fromkeys(self.options, "exited")
        assert {store: self.rows(store) for store in self.options} == dict.fromkeys(self.options, wanted)


@pytest.fixture
def stores(capture: Capture, postgres: Any) -> Stores:
    return Stores(capture, postgres.name.replace("_", "-"))


def test_an_older_log_is_put_back_and_its_tables_are_read_again(capture: Capture, sql: Connection, stores: Stores) -> None:
    """Eleven rows are deleted whose deletes the older log has never heard of; nobody empties a store."""
    log, copy = capture.settings.log.dir, capture.settings.log.dir.with_name("copy")
    shutil.copytree(log, copy)
    with capture.running():
        sql.execute("insert into t select n, 'later ' || n from generate_series(100, 140) n")
        agrees(capture, sql)
    stores.all_equal(sql)
    with capture.running():
        sql.execute("delete from t where id between 100 and 110")
        agrees(capture, sql)
    capture.until_released(sql)
    shutil.rmtree(log)
    shutil.move(copy, log)

    assert stores.follow() == dict.fromkeys(stores.options, "DIVERGED")
    rebuilt_once_dropped(capture, sql)

    for _ in range(2):
        # `cdc resume DIVERGED` and nothing else: the positions have passed those of the stores by now, and mean other changes.
        assert len(stops.clear(stores.run_dir, "DIVERGED")) == len(stores.options)
        assert stores.follow() == dict.fromkeys(stores.options, "DIVERGED")
    told = [status.read_follower(stores.run_dir, store) for store in stores.options]
    assert [found.position for found in told if found] == [0] * len(told), "none of what they hold is said to be applied"

    for store in stores.options:
        rebuilds.request(stores.run_dir, store, StopState.DIVERGED)
    stops.clear(stores.run_dir, "DIVERGED")
    stores.all_equal(sql)
    with capture.running():
        sql.execute("update t set v = 'the end' where id % 2 = 0")
        agrees(capture, sql)
    stores.all_equal(sql)


def test_a_store_that_had_not_passed_the_older_log_goes_on(capture: Capture, sql: Connection, stores: Stores) -> None:
    """What it holds is what the log holds, also after the tables were read again."""
    log, copy = capture.settings.log.dir, capture.settings.log.dir.with_name("copy")
    stores.all_equal(sql)
    shutil.copytree(log, copy)
    with capture.running():
        sql.execute("delete from t where id between 5 and 15")
        agrees(capture, sql)
    capture.until_released(sql)
    shutil.rmtree(log)
    shutil.move(copy, log)
    rebuilt_once_dropped(capture, sql)
    stores.all_equal(sql)
