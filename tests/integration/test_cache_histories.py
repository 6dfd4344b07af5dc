"""Random histories of the cache: changes of rows and definitions, servers that are flushed, restored and cut off, writers that die and others
that wake up, all at any moment. The cache never says that it is whole when it is not, and in the end it is."""

from __future__ import annotations

import dataclasses
import random
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import redis

from cdc.errors import StoreError
from cdc.follow import follower as followers
from cdc.follow.follower import Follower
from cdc.log.memory import MemoryLog
from cdc.model.batch import Op, topic_schema
from cdc.model.evolution import Kind
from cdc.model.pgtypes import INT4, TEXT
from cdc.model.position import Lsn, Position
from cdc.model.table import Column, Table
from sinks import memory, options_model
from sinks.cache import Options
from sinks.cache.resp import Limits
from sinks.cache.sink import CacheSink
from sinks.contract import Sink
from tests.contract.lossy_proxy import LossyProxy
from tests.contract.rows import Row, batch, schema

PEOPLE = Table(
    77,
    "public",
    "people",
    (
        Column("id", INT4, -1, "", key=True, attnum=1),
        Column("name", TEXT, -1, "", attnum=2),
        Column("town", TEXT, -1, "", attnum=3),
    ),
)
TOWNS = Table(78, "public", "towns", (Column("a", TEXT, -1, "", key=True, attnum=1), Column("b", TEXT, -1, "", key=True, attnum=2), Column("v", TEXT, attnum=3)))  # fmt: skip

MODULES = ("sinks.cache.sink", "sinks.cache.transactions", "sinks.cache.rowwriter", "sinks.cache.barriers", "cdc.follow.follower", "cdc.follow.apply")  # fmt: skip


class Died(BaseException):
    """The process is gone, wherever it was."""


class Source:
    """A log that random changes come into."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.log = MemoryLog()
        self.writer = self.log.writer()
        self.tables = {table.name: table for table in (PEOPLE, TOWNS)}
        self._attnum = 10

    def transaction(self) -> None:
        for _ in range(self.chance.randint(1, 3)):
            name = self.chance.choice(list(self.tables))
            dice = self.chance.random()
            if dice < 0.8:
                self._rows(name)
            elif dice < 0.87:
                self.writer.append(batch(self.tables[name], [(Op.TRUNCATE, self.writer.next_position, {})]))
            else:
                self._redefine(name)
        self.writer.commit(Lsn(int(self.writer.next_position) * 10), 0)

    def _rows(self, name: str) -> None:
        table, at = self.tables[name], int(self.writer.next_position)
        changes = []
        for number in range(self.chance.randint(1, 25)):
            row = {column.name: self._value(column) for column in table.columns}
            changes.append((self.chance.choice([Op.INSERT, Op.UPDATE, Op.DELETE, Op.UPDATE]), at + number, row))
        self.writer.append(batch(table, changes))

    def _value(self, column: Column) -> str | None:
        if column.type_oid == INT4:
            return str(self.chance.randrange(12))
        return self.chance.choice(["a", "b", ":", "", "c d", None] if not column.key else ["a", "b", ":", ""])

    def _redefine(self, name: str) -> None:
        """Another definition: columns come, go, swap their names; sometimes the table is read again."""
        table = self.tables[name]
        columns, dice = list(table.columns), self.chance.random()
        loose = [column for column in columns if not column.key]
        if dice < 0.3:
            self._attnum += 1
            columns.append(Column(f"c{self._attnum}", TEXT, -1, "", attnum=self._attnum))
        elif dice < 0.5 and len(loose) > 1:
            columns.remove(self.chance.choice(loose))
        elif dice < 0.9:
            one, two = self.chance.sample(range(len(columns)), 2)
            names = columns[one].name, columns[two].name
            if columns[one].type_oid == columns[two].type_oid:
                columns[one] = dataclasses.replace(columns[one], name=names[1])
                columns[two] = dataclasses.replace(columns[two], name=names[0])
        self.tables[name] = dataclasses.replace(table, columns=tuple(columns))
        empties = self.chance.random() < 0.3
        kind = Kind.REWRITTEN if empties else Kind.ALTERED
        self.writer.append(schema(self.tables[name], int(self.writer.next_position), kind, empties=empties))


class Forgetful(LossyProxy):
    """Loses as many answers as it is told to, each with its connection."""

    to_lose = 0

    @property
    def lose_answers(self) -> bool:
        self.to_lose -= 1
        return self.to_lose >= 0

    @lose_answers.setter
    def lose_answers(self, value: bool) -> None:
        self.to_lose = int(value)


class World:
    """The source, the server, and whoever writes to it."""

    def __init__(self, url: str, folder: Path, chance: random.Random, value: str) -> None:
        self.chance = chance
        self.source = Source(chance)
        self.folder = folder
        self.client = redis.Redis.from_url(url)
        self.proxy = Forgetful(int(url.rsplit(":", 1)[1].split("/")[0]))
        self.value = value
        self.calm = False
        self.met: list[str] = []
        self.copies: list[dict[bytes, bytes]] = []
        self.zombies: list[tuple[Follower, Sink]] = []
        self.follower = self._follower()
        self._inside = False

    # -- what goes wrong

    def at(self, point: str) -> None:
        """Called wherever the product has a crash point."""
        if self.calm or self._inside or self.chance.random() > 0.03:
            return
        self._inside = True
        try:
            self._accident(point)
        finally:
            self._inside = False

    def _accident(self, point: str) -> None:
        what = self.chance.choice(["flush", "restore", "lose the ledger", "cut off", "lose answers", "die", "replaced", "zombie"])
        self.met.append(f"{what} at {point}")
        match what:
            case "flush":
                self.client.flushall()
            case "restore":
                self._restore()
            case "lose the ledger":
                self.client.delete("cdc:{cache}:ledger")
            case "cut off":
                self.client.client_kill_filter(_type="normal", skipme=True)
            case "lose answers":
                self.proxy.to_lose = self.chance.randint(1, 2)
            case "die":
                raise Died
            case "replaced":
                self._replace()
                raise Died
            case "zombie":
                self._wake()

    def copy(self) -> None:
        self.copies.append({key: self.client.dump(key) or b"" for key in list(self.client.scan_iter())})

    def _restore(self) -> None:
        copy = self.chance.choice(self.copies) if self.copies else {}
        together = self.client.pipeline(transaction=True)
        together.flushall()
        for key, content in copy.items():
            together.restore(key, 0, content)
        together.execute()

    def _replace(self) -> None:
        """Another follower comes; what was this one's sink sleeps, and wakes up later."""
        self.zombies.append((self.follower, self.follower._sink))
        self.follower.release_lease()
        self.follower = self._follower()

    def _wake(self) -> None:
        """It goes on from where it was, or repeats some of it. Until its successor has taken over it may, and commits only what it has written."""
        if not self.zombies:
            return
        _, sink = self.chance.choice(self.zombies)
        head, refused = self.source.log.head, False
        for topic in ("public.people", "public.towns"):
            after = Position(min(self.chance.randrange(head.position + 1), sink.held(topic)))
            for changes in self.source.log.reader().read(topic, after, head.position):
                try:
                    sink.apply(changes)
                except StoreError:
                    refused = True
        if not refused:
            with suppress(StoreError):
                sink.commit(head)

    def _follower(self) -> Follower:
        options = options_model("redis").model_validate(
            {"kind": "redis", "url": f"redis://127.0.0.1:{self.proxy.port}/0", "value": self.value, "batch_rows": 40}
        )
        reader = self.source.log.reader()
        return Follower("cache", options, self.folder / "log", reader, self.folder / "run", threading.Event())

    # -- what goes on

    def step(self) -> None:
        self.proxy.to_lose = 0
        dice = self.chance.random()
        if dice < 0.6:
            self.source.transaction()
        elif dice < 0.7:
            self.copy()
        elif dice < 0.75:
            with suppress(Died):
                self.at("idle")
        try:
            self.follower.idle() if self.chance.random() < 0.2 else self.follower.follow_to(self.source.log.head)
        except Died:
            self.follower.close()
            self.follower = self._follower()

    def assert_honest(self) -> None:
        """If the store says that it holds everything, it does."""
        with closing(self._reading()) as reading, suppress(StoreError):
            if reading.open(self.source.log.reader()).position == self.source.log.head.position:
                self._assert_equal(reading)

    def _reading(self) -> CacheSink:
        options = Options.model_validate(
            {"kind": "redis", "url": f"redis://127.0.0.1:{self.proxy.target_port}/0", "value": self.value}
        )
        return CacheSink("cache", options)

    def _assert_equal(self, reading: CacheSink) -> None:
        reader, head = self.source.log.reader(), self.source.log.head
        memory.STORES["fold"] = memory.Store()
        folded = memory.MemorySink("fold", memory.Options(kind="memory"))
        folded.open(reader, 1)
        for topic in reader.topics():
            for changes in reader.read(topic.name, Position(0), head.position):
                folded.prepare(topic_schema(changes.schema))
                folded.apply(changes)
            expected = [reading.as_held(part, topic.schema) for part in folded.scan(topic.schema)]
            assert _rows(reading.scan(topic.schema)) == _rows(expected), f"{topic.name} after {self.met}"

    def finish(self) -> None:
        self.calm = True
        self.proxy.to_lose = 0
        self.source.transaction()
        self.follower.follow_to(self.source.log.head)
        assert self.follower.status.stop is None, self.follower.status.error
        assert self.follower.applied == self.source.log.head
        with closing(self._reading()) as reading:
            assert reading.open(self.source.log.reader()) == self.source.log.head, self.met
            self._assert_equal(reading)

    def close(self) -> None:
        for follower, sink in self.zombies:
            sink.close()
            follower.close()
        self.follower.close()
        self.proxy.close()
        self.client.close()


def _rows(parts: Iterator[pa.RecordBatch] | list[pa.RecordBatch]) -> list[Row]:
    return sorted((row for part in parts for row in part.to_pylist()), key=str)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("value", ["json", "hash"])
@pytest.mark.parametrize("round", range(4))
def test_a_random_history(valkey: Any, tmp_path: Path, seed: int, round: int, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "FIRST_RETRY_S", 0.001)
    monkeypatch.setattr(followers, "LONGEST_RETRY_S", 0.01)
    monkeypatch.setattr(followers, "_LOOK_AT_THE_STORE_S", 0.0)
    monkeypatch.setattr("sinks.cache.rowwriter.LIMITS", Limits(7, 1 << 20))
    monkeypatch.setattr("sinks.cache.rowwriter.SLICE_ROWS", 16)
    world = World(valkey.url, tmp_path, random.Random(seed + round), value)
    for module in MODULES:
        monkeypatch.setattr(f"{module}.crashpoint", world.at)
    with closing(world):
        for _ in range(40):
            world.step()
            world.assert_honest()
        world.finish()
