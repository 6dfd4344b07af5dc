"""``id`` and ``routing`` of a search index on a real node: in whatever order rows arrive, and whoever repeats them, each has one document."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest

from cdc.errors import StoreError
from cdc.log.memory import MemoryLog
from cdc.model.batch import Op, topic_schema
from cdc.model.pgtypes import INT8, TEXT
from cdc.model.position import Lsn, Position
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from sinks import options_model
from sinks.contract import Sink
from sinks.deadletters import box_of
from sinks.heldlog import HeldLog
from tests.contract.labs import LABS, Lab
from tests.contract.rows import Row, batch

pytestmark = pytest.mark.opensearch

VISITS = Table(
    17100,
    "public",
    "visits",
    (
        Column("id", INT8, -1, "int8", key=True, attnum=1),
        Column("tenant", TEXT, -1, "text", attnum=2),
        Column("town", TEXT, -1, "text", attnum=3),
        Column("n", INT8, -1, "int8", attnum=4),
    ),
)
TENANTS = ["a", "b", "c", "", "/", "\\", None]


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    made = LABS["opensearch"](request.getfixturevalue)
    yield made
    made.close()


class Index:
    """One store of the lab, followed by hand."""

    def __init__(self, lab: Lab, *, shards: int = 3, **said: Any) -> None:
        self._lab = lab
        self.source = MemoryLog()
        self.writer = self.source.writer()
        self._given: dict[str, Any] = {"tables": {"public.visits": said}, "shards": shards}
        self.zombies: list[Sink] = []
        self.open()

    def open(self) -> None:
        lab, given = self._lab, self._given
        self.options = options_model("opensearch").model_validate({"kind": "opensearch", **lab._options, **given})
        self.log = HeldLog(self.source.reader(), lab.name, self.options)
        self.sink = lab.sink(**given)
        lab.epoch += 1
        self.applied = int(self.sink.open(self.log, lab.epoch).position)
        self.log.settle(self.sink)

    def append(self, *changes: tuple[Op, Row], table: Table = VISITS) -> None:
        first = int(self.writer.next_position)
        self.writer.append(batch(table, [(op, first + at, row) for at, (op, row) in enumerate(changes)]))
        self.writer.commit(Lsn(first * 10), 0)

    def read(self, after: int, upto: int) -> list[pa.RecordBatch]:
        return list(self.log.read("public.visits", Position(after), Position(upto)))

    def apply(self, sink: Sink, changes: pa.RecordBatch) -> int:
        sink.prepare(topic_schema(changes.schema))
        return len(sink.apply(changes).dead)

    def catch_up(self) -> int:
        """Applies what is new; returns how many rows could not be held."""
        head = self.source.head
        dead = sum(self.apply(self.sink, changes) for changes in self.read(self.applied, int(head.position)))
        self.sink.commit(head)
        self.applied = int(head.position)
        return dead

    def documents(self) -> list[tuple[str, str | None, str | None, int]]:
        self.sink.make_visible()
        body = {"size": 1000, "query": {"match_all": {}}}
        hits = self._lab.server.request("POST", "/public.visits/_search", body)["hits"]["hits"]  # type: ignore[union-attr]
        found = [(hit["_id"], hit.get("_routing"), hit["_source"].get("tenant"), hit["_source"]["n"]) for hit in hits]
        return sorted(found, key=str)

    def rows(self) -> list[Row]:
        """As the audit reads them, whole and by their keys."""
        held = self.log.held(TopicSchema.of(VISITS))
        self.sink.make_visible()
        found = [row for part in self.sink.scan(held) for row in part.to_pylist()]
        keys = pa.RecordBatch.from_pylist(
            [{one.name: row[one.name] for one in held.key} for row in found], pa.schema([(one.name, pa.utf8()) for one in held.key])
        )
        assert sorted(self.sink.fetch(held, keys).to_pylist(), key=str) == sorted(found, key=str)
        return sorted(found, key=lambda row: int(row["id"]))


def visit(key: int, tenant: str | None, n: int = 0, town: str | None = "x") -> Row:
    return {"id": str(key), "tenant": tenant, "town": town, "n": str(n)}


def name_of(tenant: str | None) -> str:
    return "\\N" if tenant is None else tenant.replace("\\", "\\\\").replace("/", "\\/")


SHAPES: list[dict[str, Any]] = [
    {"id": "{tenant}/{id}"},
    {"routing": "{tenant}"},
    {"id": "{tenant}/{id}", "routing": "{town}-{tenant}"},
]


def expected(said: dict[str, Any], there: dict[int, Row]) -> list[tuple[str, str | None, str | None, int]]:
    found = []
    for key, row in there.items():
        routing = said.get("routing", "").replace("{tenant}", row["tenant"] or ("\\N" if row["tenant"] is None else ""))
        routing = routing.replace("{town}", row["town"] or "\\N")
        identity = f"{name_of(row['tenant'])}/{key}" if "id" in said else str(key)
        found.append((identity, routing or None, row["tenant"], int(row["n"] or 0)))
    return sorted(found, key=str)


@pytest.mark.parametrize("said", SHAPES, ids=["id", "routing", "both"])
@pytest.mark.parametrize("shards", [1, 3])
def test_each_row_has_one_document_in_whatever_order_rows_arrive(lab: Lab, said: dict[str, Any], shards: int, seed: int) -> None:
    chance = random.Random(seed)
    index, there = Index(lab, shards=shards, **said), dict[int, Row]()
    late: list[tuple[Sink, pa.RecordBatch]] = []
    for _ in range(8):
        for _ in range(chance.randint(1, 3)):
            changes: list[tuple[Op, Row]] = []
            for _ in range(chance.randint(1, 8)):
                key = chance.randrange(6)
                if chance.random() < 0.2:
                    changes.append((Op.DELETE, visit(key, None)))
                    there.pop(key, None)
                else:
                    there[key] = visit(key, chance.choice(TENANTS), chance.randrange(1000), chance.choice(["x", "y"]))
                    changes.append((chance.choice([Op.READ, Op.UPDATE]), there[key]))
            index.append(*changes)
        head, ends = int(index.source.head.position), [index.applied]
        while ends[-1] < head:
            ends.append(min(head, ends[-1] + chance.randint(1, 5)))
        pieces = [piece for after, upto in itertools.pairwise(ends) for piece in index.read(after, upto)]
        chance.shuffle(pieces)
        for piece in [*pieces, *chance.sample(pieces, len(pieces) // 2)]:
            assert not index.apply(index.sink, piece)
            late.append((index.sink, piece))
        index.sink.commit(index.source.head)
        index.applied = head
        for sink, piece in chance.sample(late, min(3, len(late))):
            with suppress(StoreError):  # of a writer that was replaced meanwhile
                index.apply(sink, piece)
        assert index.documents() == expected(said, there)
        if chance.random() < 0.3:
            index.open()
            assert index.applied == head
        if chance.random() < 0.2:
            index.append((Op.TRUNCATE, {}))
            index.catch_up()
            there.clear()
            late.clear()
    assert [int(row["id"] or 0) for row in index.rows()] == sorted(there)


@pytest.mark.parametrize("said", SHAPES, ids=["id", "routing", "both"])
def test_a_row_that_cannot_be_held_where_it_goes_is_not_left_where_it_was(lab: Lab, said: dict[str, Any]) -> None:
    index = Index(lab, **said, mapping={"n": {"type": "byte", "ignore_malformed": False}})
    index.append((Op.INSERT, visit(1, "a", 1)), (Op.INSERT, visit(2, "a", 2)))
    assert index.catch_up() == 0
    index.append((Op.UPDATE, visit(1, "b", 1000)))
    assert index.catch_up() == 1
    assert [one[3] for one in index.documents()] == [2]
    box = box_of(index.sink)
    assert box is not None
    [letter] = box.letters()
    assert (int(letter.position), letter.key) == (3, "b/1" if "id" in said else "1")
    index.append((Op.UPDATE, visit(1, "c", 2000)))
    assert index.catch_up() == 1
    [letter] = box.letters()
    assert int(letter.position) == 4
    index.append((Op.UPDATE, visit(1, "a", 7)))
    assert (index.catch_up(), box.letters()) == (0, ())
    assert sorted(one[3] for one in index.documents()) == [2, 7]
    index.append((Op.UPDATE, visit(1, "a", 3000)), (Op.DELETE, visit(1, None)))
    index.catch_up()
    assert (len(index.documents()), box.letters()) == (1, ())


def test_a_search_that_names_the_routing_finds_the_rows_of_it(lab: Lab) -> None:
    index = Index(lab, shards=3, routing="{tenant}")
    index.append(*((Op.INSERT, visit(key, f"t{key % 5}", key)) for key in range(40)))
    index.append(*((Op.UPDATE, visit(key, "t9", key)) for key in range(0, 40, 2)))
    index.catch_up()
    index.sink.make_visible()
    for tenant in ("t9", "t1", "t3"):
        body = {"size": 1000, "query": {"term": {"tenant.keyword": tenant}}}
        whole = lab.server.request("POST", "/public.visits/_search", body)["hits"]["hits"]  # type: ignore[union-attr]
        routed = lab.server.request("POST", f"/public.visits/_search?routing={tenant}", body)["hits"]["hits"]  # type: ignore[union-attr]
        assert sorted(hit["_id"] for hit in routed) == sorted(hit["_id"] for hit in whole) != []
