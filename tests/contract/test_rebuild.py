"""A store that is built again from the log: no row that stays is missing for a moment, and what is left over is gone at the end."""

from __future__ import annotations

import threading
from binascii import crc_hqx
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import redis

from cdc.crashpoint import Fault, armed, decided_by
from cdc.errors import HeadwaterError, Stopped, StoreError
from cdc.follow.rebuild import Rebuilding
from cdc.follow.rules import Rules
from cdc.model.batch import Op
from cdc.model.pgtypes import INT8, TEXT
from cdc.model.position import ZERO_CUT
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from sinks.contract import Sink
from sinks.heldlog import HeldLog
from sinks.memory import STORES
from sinks.render.rowtext import row_text
from tests.contract.labs import LANES, Lab
from tests.contract.rows import ORDERS, PAIRS, batch, order, schema, upserts
from tests.contract.test_marks import FIRST, SECOND, bring, pair, step
from tests.contract.test_sinks import held
from tests.logs import LooseLog

STAYS = [str(key) for key in range(100, 140)]


@pytest.fixture(autouse=True)
def _can_be_read(lab: Lab) -> None:
    if not lab.readable:
        pytest.skip("what was printed is there for good")


def rebuild(lab: Lab, **options: Any) -> Sink:
    """As the follower does that finds the request; gives the sink, opened."""
    sink = lab.sink(**options)
    lab.epoch += 1
    given = sink._options if hasattr(sink, "_options") else sink.options  # type: ignore[attr-defined]
    reader = HeldLog(lab.log.reader(), lab.name, given)
    rebuilding = Rebuilding(Rules(lab.name, given), reader, threading.Event(), lambda: None)
    rebuilding.carry_out(sink, lab.epoch)
    reader.forget()
    assert sink.open(reader, lab.epoch) == lab.log.head
    reader.settle(sink)
    rebuilding.name_failed(sink)
    return sink


def seen(lab: Lab, log: LooseLog) -> Callable[[], set[str]]:
    """Asks the store itself which rows of ``STAYS`` it shows. ``log``: the one that has filled it."""
    if lab.kind == "memory":
        return lambda: {key for key in STAYS if STORES[lab.name].rows[ORDERS.qualified].get(key, (0, None))[1] is not None}
    if lab.spread:
        divided = redis.RedisCluster.from_url(lab._options["url"])
        names = {key: f"public.orders:{{{crc_hqx(key.encode(), 0) % LANES}}}:{key}" for key in STAYS}
        return lambda: {key for key, name in names.items() if divided.exists(name)}
    if lab.kind == "redis":
        client = redis.Redis.from_url(lab._options["url"])
        return lambda: {key for key in STAYS if client.exists(f"public.orders:{key}")}
    if lab.kind == "opensearch":

        def found() -> set[str]:
            answer = lab.server.request("POST", "/public.orders/_mget", {"ids": STAYS})  # type: ignore[union-attr]
            return {doc["_id"] for doc in answer["docs"] if doc.get("found")}

        return found
    reading = lab.sink()
    reading.open(log.reader())
    wanted = row_text(batch(ORDERS, [(Op.READ, 1, order(int(key))) for key in STAYS]), TopicSchema.of(ORDERS)).select(["id"])
    return lambda: {row["id"] for row in reading.fetch(TopicSchema.of(ORDERS), wanted).to_pylist()}


@contextmanager
def watched(lab: Lab, log: LooseLog | None = None) -> Iterator[list[str]]:
    """Looks all the time, and once more at the end. Yields what was missing, which the caller wants to be nothing."""
    look, done, missing, looks = seen(lab, log or lab.log), threading.Event(), list[str](), list[int]()

    def watch() -> None:
        while not done.is_set():
            missing.extend(set(STAYS) - look())
            looks.append(1)
            done.wait(0.02)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield missing
    finally:
        done.set()
        watcher.join()
    assert looks
    assert set(STAYS) == look()


def fill(lab: Lab) -> None:
    """A history in which every row has gone once and come again."""
    sink = lab.opened()
    step(lab, sink, *FIRST)
    step(lab, sink, *SECOND)
    step(lab, sink, batch(ORDERS, [(Op.TRUNCATE, 14, {})]))
    step(lab, sink, upserts(ORDERS, 20, [order(int(key)) for key in STAYS]))
    step(lab, sink, batch(ORDERS, [(Op.DELETE, 70 + at, order(int(key))) for at, key in enumerate(STAYS)]))
    step(lab, sink, upserts(ORDERS, 120, [order(int(key), "again") for key in STAYS]), upserts(PAIRS, 170, [pair(7)]))
    sink.close()


def whole(sink: Sink) -> None:
    sink.make_visible()
    assert held(sink, ORDERS) == [order(int(key), "again") for key in STAYS]
    assert held(sink, PAIRS) == [pair(1, "w"), pair(2), pair(3), pair(7)]


def leave_over(lab: Lab) -> LooseLog:
    """Rows that the log has not (any more): somebody's who followed another one, further than this."""
    theirs, mine = LooseLog(), lab.log
    lab.sink().erase()
    lab.log, lab.epoch = theirs, 0
    sink = lab.opened()
    step(
        lab,
        sink,
        upserts(ORDERS, 1000, [order(int(key), "theirs") for key in (*STAYS, "1", "999")]),
        upserts(PAIRS, 1100, [pair(99)]),
    )
    sink.close()
    lab.log = mine
    return theirs


def test_rows_stay_and_what_is_left_over_goes(lab: Lab) -> None:
    fill(lab)
    with watched(lab, leave_over(lab)) as missing:
        sink = rebuild(lab)
    assert missing == []
    whole(sink)
    step(lab, sink, batch(ORDERS, [(Op.UPDATE, 200, order(100, "later")), (Op.DELETE, 201, order(101))]))
    sink.make_visible()
    assert [row["id"] for row in held(sink, ORDERS)] == [STAYS[0], *STAYS[2:]]
    step(lab, sink, batch(ORDERS, [(Op.TRUNCATE, 210, {})]), upserts(ORDERS, 211, [order(5)]))
    sink.make_visible()
    assert held(sink, ORDERS) == [order(5)]


def test_a_second_one_finds_a_store_that_is_right(lab: Lab) -> None:
    fill(lab)
    with watched(lab) as missing:
        rebuild(lab).close()
        whole(rebuild(lab))
    assert missing == []


POINTS = {
    "memory": [],
    "redis": ["rebuilding.cache_begun", "rebuilding.cache_written", "rebuilding.cache_swept"],
    "opensearch": [
        "rebuilding.search_ledger_removed", "rebuilding.search_begun", "rebuilding.search_written", "rebuilding.search_filled",
        "rebuilding.search_swapped", "rebuilding.search_others_removed",
    ],
    "iceberg": ["rebuild.ledger_removed", "rebuild.files_written", "rebuild.table_replaced"],
    "sql": ["rebuilding.sql_begun", "rebuilding.sql_table_replaced"],
}  # fmt: skip


def test_interrupted_anywhere_it_is_done_again(lab: Lab) -> None:
    fill(lab)
    with watched(lab, leave_over(lab)) as missing:
        for point in POINTS[lab.kind]:
            for occurrence in (1, 2):
                with armed(f"{point}=error:{occurrence}"), suppress(Fault, StoreError):
                    rebuild(lab).close()
                assert says_nothing_wrong(lab), point
        sink = rebuild(lab)
    assert missing == []
    whole(sink)


def says_nothing_wrong(lab: Lab) -> bool:
    """Until it is built nobody who looks is told that it holds anything; or it is built."""
    try:
        return lab.applied() in (ZERO_CUT, lab.log.head)
    except HeadwaterError:
        return True  # it is another log's, in part


class Copying:
    """Copies the whole store when the point is first reached, and lets the work go on."""

    def __init__(self, lab: Lab, point: str) -> None:
        self._lab = lab
        self._point = point
        self.copy: Any = None
        self.held: list[str] = []

    def reach(self, name: str) -> None:
        if name == self._point and not self.held:
            self.copy, self.held = self._lab.units.copy(), self._lab.units.there()


def test_a_copy_from_while_it_was_built_is_never_taken_for_whole(lab: Lab) -> None:
    """It comes back in the place of the store that was built to its end, under the same epoch: its rows are of two times."""
    fill(lab)
    for point in POINTS[lab.kind]:
        copying = Copying(lab, point)
        with decided_by(copying):
            sink = rebuild(lab)
        assert copying.held, point
        lab.units.restore(copying.copy, *{*copying.held, *lab.units.there()})
        assert says_nothing_wrong(lab), point
        with suppress(StoreError, Stopped):
            bring(lab, sink)  # the follower that is at work
        with suppress(StoreError, Stopped):
            bring(lab, sink := lab.opened())
            assert sink.applied() == lab.log.head, point
            whole(sink)
        with suppress(HeadwaterError):
            if lab.applied() == lab.log.head:
                whole(lab.opened())
        whole(rebuild(lab))


def test_who_wrote_before_changes_nothing_more(lab: Lab) -> None:
    fill(lab)
    zombie = lab.opened()
    late = batch(ORDERS, [(Op.DELETE, 180, order(100)), (Op.INSERT, 181, order(3, "late"))])
    lab.log.put(late)
    sink = rebuild(lab)
    with suppress(StoreError):
        zombie.prepare(TopicSchema.of(ORDERS))
        zombie.apply(batch(ORDERS, [(Op.INSERT, 150, order(100, "older")), (Op.INSERT, 151, order(2, "gone"))]))
    with suppress(StoreError):
        zombie.commit(lab.log.head)
    sink.make_visible()
    assert {row["id"] for row in held(sink, ORDERS)} == {"3", *STAYS[1:]}
    assert sink.applied() == lab.log.head


T = Table(
    17000, "public", "shaped", (Column("id", INT8, key=True, attnum=1), Column("a", TEXT, attnum=2), Column("b", TEXT, attnum=3))
)
RETYPED = Table(
    17000, "public", "shaped", (Column("id", INT8, key=True, attnum=1), Column("c", TEXT, attnum=2), Column("b", INT8, attnum=4))
)


def test_rows_from_before_a_change_of_definition_are_as_they_were(lab: Lab) -> None:
    """What the rebuilt store holds is what the one held that followed the change."""
    sink = lab.opened()
    step(lab, sink, upserts(T, 1, [{"id": "1", "a": "x", "b": "1"}, {"id": "2", "a": "y", "b": None}]))
    lab.log.put(schema(RETYPED, 5))
    sink.apply(schema(RETYPED, 5))
    sink.commit(lab.log.head)
    step(lab, sink, upserts(RETYPED, 6, [{"id": "3", "c": "z", "b": "7"}]))
    sink.make_visible()
    before, shape = held(sink, RETYPED), sink.shape("public.shaped")
    again = rebuild(lab)
    again.make_visible()
    assert held(again, RETYPED) == before
    assert again.shape("public.shaped") == shape or lab.staged
    step(lab, again, batch(RETYPED, [(Op.DELETE, 9, {"id": "1"}), (Op.UPDATE, 10, {"id": "2", "c": "new", "b": "8"})]))
    again.make_visible()
    assert held(again, RETYPED) == [{"id": "2", "c": "new", "b": "8"}, {"id": "3", "c": "z", "b": "7"}]
