"""Keys of a cache that name columns which change: on a real server, against what a plain model says, through every accident that there is."""

from __future__ import annotations

import dataclasses
import json
import random
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from cdc.errors import StoreError
from cdc.follow import follower as followers
from cdc.follow.follower import Follower
from cdc.log.contract import LogReader
from cdc.model.batch import topic_schema
from cdc.model.evolution import Kind
from cdc.model.position import Position
from cdc.model.table import Column
from sinks import memory
from sinks.cache import Options
from sinks.cache.resp import Limits
from sinks.cache.sink import CacheSink
from sinks.heldlog import HeldLog
from tests.contract.rows import Row, schema
from tests.integration.test_cache_histories import MODULES, Source, World

TABLES = {"public.people": {"key": "people/{town}/{id}"}, "public.towns": {"key": "towns/{v}/{a}|{b}"}}


class MovingSource(Source):
    """Rows change their places; the columns that name them stay."""

    def _redefine(self, name: str) -> None:
        table = self.tables[name]
        if self.chance.random() < 0.7:
            self._attnum += 1
            columns = (*table.columns, Column(f"c{self._attnum}", 25, -1, "", attnum=self._attnum))
        else:
            columns = tuple(one for one in table.columns if not one.name.startswith("c"))
        self.tables[name] = dataclasses.replace(table, columns=columns)
        empties = self.chance.random() < 0.3
        kind = Kind.REWRITTEN if empties else Kind.ALTERED
        self.writer.append(schema(self.tables[name], int(self.writer.next_position), kind, empties=empties))


class MovingWorld(World):
    def __init__(self, url: str, folder: Path, chance: random.Random, value: str) -> None:
        super().__init__(url, folder, chance, value)
        self.follower.close()
        self.source = MovingSource(chance)
        self.follower = self._follower()

    def _options(self, port: int) -> Options:
        said = {"kind": "redis", "url": f"redis://127.0.0.1:{port}/0", "value": self.value, "batch_rows": 40, "tables": TABLES}
        return Options.model_validate(said)

    def _follower(self) -> Follower:
        import threading

        reader = self.source.log.reader()
        folder = self.folder
        return Follower("cache", self._options(self.proxy.port), folder / "log", reader, folder / "run", threading.Event())

    def _reading(self) -> CacheSink:
        return CacheSink("cache", self._options(self.proxy.target_port))

    def _log(self) -> HeldLog:
        return HeldLog(self.source.log.reader(), "cache", self._options(self.proxy.target_port))

    def _wake(self) -> None:
        if not self.zombies:
            return
        _, sink = self.chance.choice(self.zombies)
        head, refused = self.source.log.head, False
        for topic in ("public.people", "public.towns"):
            after = Position(min(self.chance.randrange(head.position + 1), sink.held(topic)))
            for changes in self._log().read(topic, after, head.position):
                try:
                    sink.apply(changes)
                except StoreError:
                    refused = True
        if not refused:
            with suppress(StoreError):
                sink.commit(head)

    def assert_honest(self) -> None:
        with closing(self._reading()) as reading, suppress(StoreError):
            if reading.open(self._log()).position == self.source.log.head.position:
                self._assert_equal(reading)

    def finish(self) -> None:
        self.calm = True
        self.proxy.to_lose = 0
        self.source.transaction()
        self.follower.follow_to(self.source.log.head)
        assert self.follower.status.stop is None, self.follower.status.error
        with closing(self._reading()) as reading:
            assert reading.open(self._log()) == self.source.log.head, self.met
            self._assert_equal(reading)

    def _assert_equal(self, reading: CacheSink) -> None:
        expected = expected_keys(self.source.log.reader(), int(self.source.log.head.position))
        there = {name.decode() for name in self.client.scan_iter() if not name.startswith(b"cdc:")}
        assert there == expected.keys(), self.met
        held = self._log()
        for topic in held.topics():
            rows = [row for part in reading.scan(topic.schema) for row in part.to_pylist()]
            assert len(rows) == sum(name.startswith(topic.name.removeprefix("public.")) for name in expected)
        if self.value == "json":
            for name, row in expected.items():
                found = json.loads(self.client.get(name) or b"{}")
                assert found.keys() <= row.keys(), self.met
                said = {column: found.get(column) for column in row}
                assert {column: None if one is None else str(one) for column, one in said.items()} == row, self.met


def expected_keys(reader: LogReader, head: int) -> dict[str, Row]:
    """The keys that there are to be, and their rows: of a plain fold of the log, and a template written by hand."""
    memory.STORES["fold"] = memory.Store()
    folded = memory.MemorySink("fold", memory.Options(kind="memory"))
    folded.open(reader, 1)
    found: dict[str, Row] = {}
    for topic in reader.topics():
        for changes in reader.read(topic.name, Position(0), Position(head)):
            folded.prepare(topic_schema(changes.schema))
            folded.apply(changes)
        for part in folded.scan(topic.schema):
            for row in part.to_pylist():
                name = (
                    f"people/{part_of(row['town'], '/')}/{row['id']}"
                    if topic.name == "public.people"
                    else f"towns/{part_of(row['v'], '/|')}/{part_of(row['a'], '/|')}|{part_of(row['b'], '/|')}"
                )
                found[name] = row
    return found


def part_of(text: str | None, separators: str) -> str:
    return "\\N" if text is None else "".join("\\" + one if one in separators + "\\" else one for one in text)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("value", ["json", "hash"])
@pytest.mark.parametrize("round", range(4))
def test_a_random_history_of_rows_that_move(
    valkey: Any, tmp_path: Path, seed: int, round: int, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followers, "FIRST_RETRY_S", 0.001)
    monkeypatch.setattr(followers, "LONGEST_RETRY_S", 0.01)
    monkeypatch.setattr(followers, "_LOOK_AT_THE_STORE_S", 0.0)
    monkeypatch.setattr("sinks.cache.rowwriter.LIMITS", Limits(7, 1 << 20))
    monkeypatch.setattr("sinks.cache.rowwriter.SLICE_ROWS", 16)
    world = MovingWorld(valkey.url, tmp_path, random.Random(seed + round), value)
    for module in MODULES:
        monkeypatch.setattr(f"{module}.crashpoint", world.at)
    with closing(world):
        for _ in range(40):
            world.step()
            world.assert_honest()
        world.finish()
