"""``index`` of a search store's table on a real node: in whatever order rows arrive, each lies in the index that its values name, and in no other."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc.crashpoint import KILLED
from cdc.errors import StoreError
from cdc.follow.rebuild import Rebuilding
from cdc.follow.rules import Rules
from cdc.generations.bootstrap import Bootstrap
from cdc.model.batch import ALONE, OP, Op
from cdc.model.pgtypes import TEXT
from cdc.model.position import Lsn
from cdc.model.table import Column, Table
from sinks import generations_of
from sinks.contract import Sink
from sinks.deadletters import box_of
from tests.contract.labs import LABS, Lab
from tests.contract.rows import Row, schema
from tests.faults import points
from tests.integration.test_search_places import VISITS, Index, visit

pytestmark = pytest.mark.opensearch

TENANTS = ["a", "b", "c.d", "A", "", None]
"""The last three can be in no index's name."""


@pytest.fixture
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    made = LABS["opensearch"](request.getfixturevalue)
    yield made
    made.close()


class Spread(Index):
    """A store of the lab whose rows lie in several indices. Their names begin with the lab's, so that tests do not meet."""

    def __init__(self, lab: Lab, template: str = "{tenant}", **said: Any) -> None:
        self.prefix = f"{lab.name}-"
        super().__init__(lab, shards=said.pop("shards", 1), index=f"{self.prefix}{template}", **said)

    def request(self, method: str, path: str, body: Any = None) -> Any:
        return self._lab.server.request(method, path, body)  # type: ignore[union-attr]

    def close_and_open(self, **given: Any) -> None:
        self.sink.close()
        self._given |= given
        self.open()

    def apply(self, sink: Sink, changes: pa.RecordBatch) -> int:
        if changes.column(OP)[0].as_py() in ALONE:
            return len(sink.apply(changes).dead)
        return super().apply(sink, changes)

    def alter(self, table: Table) -> None:
        position = int(self.writer.next_position)
        self.writer.append(schema(table, position))
        self.writer.commit(Lsn(position * 10), 0)

    def rebuild(self) -> None:
        self._lab.epoch += 1
        self.log.forget()
        Rebuilding(Rules(self._lab.name, self.options), self.log, threading.Event(), lambda: None).carry_out(
            self.sink, self._lab.epoch
        )
        self.open()

    def found(self, alias: str) -> list[tuple[str, Any]]:
        """(id, n) of what a search through the alias finds."""
        hits = self.request("POST", f"/{alias}/_search", {"size": 1000, "query": {"match_all": {}}})["hits"]["hits"]
        return sorted((hit["_id"], hit["_source"]["n"]) for hit in hits)

    def by_index(self) -> dict[str, list[tuple[str, Any]]]:
        """What readers find: by the name that they search."""
        self.sink.make_visible()
        aliases = self.request("GET", f"/_alias/{self.prefix}*?expand_wildcards=all")
        shown = {name for held in aliases.values() for name, one in held["aliases"].items() if "filter" in one}
        names = {name.removeprefix(self.prefix) for name in shown}
        return {name: found for name in sorted(names) if (found := self.found(self.prefix + name))}


def holdable(tenant: str | None) -> bool:
    return tenant in TENANTS[:3]


def expected(there: Mapping[int, Row]) -> dict[str, list[tuple[str, int]]]:
    found: dict[str, list[tuple[str, int]]] = {}
    for key, row in sorted(there.items(), key=lambda one: str(one[0])):
        if holdable(row["tenant"]):
            found.setdefault(str(row["tenant"]), []).append((str(key), int(row["n"] or 0)))
    return dict(sorted(found.items()))


def test_a_row_lies_where_its_values_say_and_moves_with_them(lab: Lab) -> None:
    index = Spread(lab)
    index.append(*((Op.INSERT, visit(key, "ab"[key % 2], key)) for key in range(4)))
    assert index.catch_up() == 0
    assert index.by_index() == {"a": [("0", 0), ("2", 2)], "b": [("1", 1), ("3", 3)]}
    index.append((Op.UPDATE, visit(0, "b", 10)), (Op.UPDATE, visit(1, "c", 11)), (Op.DELETE, visit(2, None)))
    assert index.catch_up() == 0
    assert index.by_index() == {"b": [("0", 10), ("3", 3)], "c": [("1", 11)]}
    assert index.found("public.visits") == [("0", 10), ("1", 11), ("3", 3)]
    assert [row["n"] for row in index.rows()] == ["10", "11", "3"]


@pytest.mark.parametrize("shards", [1, 2])
def test_each_row_lies_in_one_index_in_whatever_order_rows_arrive(lab: Lab, shards: int, seed: int) -> None:
    chance = random.Random(seed)
    index, there = Spread(lab, shards=shards), dict[int, Row]()
    late: list[tuple[Sink, pa.RecordBatch]] = []
    for _ in range(6):
        for _ in range(chance.randint(1, 3)):
            changes: list[tuple[Op, Row]] = []
            for _ in range(chance.randint(1, 8)):
                key = chance.randrange(6)
                if chance.random() < 0.2:
                    changes.append((Op.DELETE, visit(key, None)))
                    there.pop(key, None)
                else:
                    there[key] = visit(key, chance.choice(TENANTS), chance.randrange(1000))
                    changes.append((chance.choice([Op.READ, Op.UPDATE]), there[key]))
            index.append(*changes)
        head, ends = int(index.source.head.position), [index.applied]
        while ends[-1] < head:
            ends.append(min(head, ends[-1] + chance.randint(1, 5)))
        pieces = [piece for after, upto in itertools.pairwise(ends) for piece in index.read(after, upto)]
        chance.shuffle(pieces)
        for piece in [*pieces, *chance.sample(pieces, len(pieces) // 2)]:
            index.apply(index.sink, piece)
            late.append((index.sink, piece))
        for piece in index.read(index.applied, head):  # a row that cannot be held has no version to tell whether it is late
            index.apply(index.sink, piece)
        index.sink.commit(index.source.head)
        index.applied = head
        for sink, piece in chance.sample(late, min(3, len(late))):
            with suppress(StoreError):  # of a writer that was replaced meanwhile
                index.apply(sink, piece)
        assert index.by_index() == expected(there)
        box = box_of(index.sink)
        assert box is not None
        bad = {str(key) for key, row in there.items() if not holdable(row["tenant"])}
        # A row that came late, or from a writer that was replaced, may have left one more: a row without a place has no version to lose by.
        assert {one.key for one in box.letters()} >= bad
        if chance.random() < 0.3:
            index.open()
            assert index.applied == head
        if chance.random() < 0.2:
            index.append((Op.TRUNCATE, {}))
            index.catch_up()
            there.clear()
            late.clear()
    assert [int(row["id"] or 0) for row in index.rows()] == sorted(key for key, row in there.items() if holdable(row["tenant"]))


def test_an_index_that_is_lost_is_noticed_and_all_of_them_are_filled_again(lab: Lab) -> None:
    index = Spread(lab)
    index.append(*((Op.INSERT, visit(key, "ab"[key % 2], key)) for key in range(4)))
    index.catch_up()
    index.request("DELETE", f"/{index.prefix}a@1")
    index.append((Op.UPDATE, visit(1, "b", 5)))
    with pytest.raises(StoreError) as lost:
        index.catch_up()
    assert lost.value.retryable
    index.open()
    assert index.applied == 0
    index.append((Op.UPDATE, visit(0, "b", 10)))
    assert index.catch_up() == 0
    assert index.by_index() == {"a": [("2", 2)], "b": [("0", 10), ("1", 5), ("3", 3)]}
    index.request("DELETE", "/public.visits@1")
    index.open()
    assert index.applied == 0
    index.catch_up()
    assert index.by_index() == {"a": [("2", 2)], "b": [("0", 10), ("1", 5), ("3", 3)]}


def test_more_indices_than_are_allowed_stop_the_store_and_no_value_is_named(lab: Lab) -> None:
    index = Spread(lab)
    index.close_and_open(indices_max=2)
    index.append((Op.INSERT, visit(1, "a")), (Op.INSERT, visit(2, "secret1")), (Op.INSERT, visit(3, "secret2")))
    with pytest.raises(StoreError, match=r"the rows of public\.visits would lie in more than 2 indices") as refused:
        index.catch_up()
    assert not refused.value.retryable
    assert "secret" not in f"{refused.value}{refused.value.hint}"
    index.close_and_open(indices_max=3)
    assert index.catch_up() == 0
    assert sorted(index.by_index()) == ["a", "secret1", "secret2"]


def test_a_name_that_somebody_else_has_is_a_dead_letter_until_it_is_free(lab: Lab) -> None:
    index = Spread(lab)
    index.request("PUT", f"/{index.prefix}theirs", {})
    index.request("PUT", f"/{index.prefix}other", {"aliases": {f"{index.prefix}alias": {}}})
    index.append(*((Op.INSERT, visit(key, tenant)) for key, tenant in enumerate(["a", "theirs", "alias", "x" * 300], 1)))
    assert index.catch_up() == 3
    box = box_of(index.sink)
    assert box is not None
    assert {one.key: one.reason for one in box.letters()} == {
        "2": "index: its name is taken by an index that is not one of this table's",
        "3": "index: its name is taken by an index that is not one of this table's",
        "4": "index: with tenant it is not a name of at most 215 letters a to z, digits, _, . and -",
    }
    assert index.request("GET", f"/{index.prefix}theirs/_count")["count"] == 0
    index.request("DELETE", f"/{index.prefix}theirs,{index.prefix}other")
    index.append((Op.UPDATE, visit(2, "theirs")), (Op.UPDATE, visit(3, "a")), (Op.DELETE, visit(4, None)))
    assert index.catch_up() == 0
    assert box.letters() == ()
    assert {name: len(found) for name, found in index.by_index().items()} == {"a": 2, "theirs": 1}


def test_a_column_that_changes_its_type_takes_other_indices_and_a_rebuild_too(lab: Lab) -> None:
    index = Spread(lab)
    index.append(*((Op.INSERT, visit(key, "ab"[key % 2], key)) for key in range(4)))
    index.catch_up()
    wider = replace(VISITS, columns=(*VISITS.columns[:3], Column("n", TEXT, -1, "text", attnum=4)))
    index.alter(wider)
    index.append((Op.UPDATE, {**visit(0, "c"), "n": "many"}), table=wider)
    assert index.catch_up() == 0
    assert index.by_index() == {"a": [("2", "2")], "b": [("1", "1"), ("3", "3")], "c": [("0", "many")]}
    assert sorted(index.request("GET", f"/_cat/indices/{index.prefix}*?format=json&expand_wildcards=all&h=index"), key=str) == [
        {"index": f"{index.prefix}{name}@2"} for name in "abc"
    ]
    index.append((Op.DELETE, visit(2, None)), table=wider)
    index.catch_up()
    index.rebuild()
    assert index.by_index() == {"b": [("1", "1"), ("3", "3")], "c": [("0", "many")]}
    assert sorted(index.request("GET", f"/_cat/indices/{index.prefix}*?format=json&expand_wildcards=all&h=index"), key=str) == [
        {"index": f"{index.prefix}{name}@3"} for name in "bc"
    ]
    index.append((Op.UPDATE, {**visit(0, "b"), "n": "few"}), table=wider)
    assert index.catch_up() == 0
    assert index.by_index() == {"b": [("0", "few"), ("1", "1"), ("3", "3")]}


def test_a_generation_has_indices_of_its_own_and_readers_find_its_rows_by_the_same_names(lab: Lab, tmp_path: Path) -> None:
    index = Spread(lab)
    index.append(*((Op.INSERT, visit(key, "ab"[key % 2], key)) for key in range(4)))
    index.catch_up()
    before = index.by_index()
    with closing(generations_of(lab.name, index.options)) as generations:
        built = Bootstrap(
            tmp_path, tmp_path / "run", index.log, generations, Rules(lab.name, index.options), None, threading.Event()
        ).carry_out()
        assert (built.swapped, built.rows) == (True, 4)
        assert generations.size(2).rows == 4
        assert index.by_index() == before
        assert index.found("public.visits") == [(str(key), key) for key in range(4)]
        index.open()
        index.append((Op.UPDATE, visit(0, "c", 10)))
        assert index.catch_up() == 0
        assert index.by_index() == {"a": [("2", 2)], "b": [("1", 1), ("3", 3)], "c": [("0", 10)]}
        generations.drop(1)
    assert index.by_index() == {"a": [("2", 2)], "b": [("1", 1), ("3", 3)], "c": [("0", 10)]}
    assert index.found("public.visits") == [("0", 10), *((str(key), key) for key in (1, 2, 3))]
    assert [row["n"] for row in index.rows()] == ["10", "1", "2", "3"]


@pytest.mark.parametrize("point", points.of("spreading"))
def test_a_kill_while_an_index_is_made_leaves_nothing_that_counts(lab: Lab, point: str) -> None:
    index = Spread(lab)
    index.append((Op.INSERT, visit(1, "a", 1)), (Op.INSERT, visit(2, "b", 2)))
    index.catch_up()
    index.append((Op.UPDATE, visit(1, "c", 10)), (Op.INSERT, visit(3, "d", 3)))

    def follow() -> None:
        index.open()
        index.catch_up()

    assert points.killed(follow, f"{point}=kill") == KILLED
    follow()
    assert index.by_index() == {"b": [("2", 2)], "c": [("1", 10)], "d": [("3", 3)]}
    assert index.found("public.visits") == [("1", 10), ("2", 2), ("3", 3)]


def test_a_document_in_an_index_that_it_does_not_name_is_found(lab: Lab) -> None:
    """As somebody leaves it who copies documents, or moves them."""
    index = Spread(lab)
    index.append(*((Op.INSERT, visit(key, "ab"[key % 2], key)) for key in range(4)))
    index.catch_up()
    for key in (0, 2):
        found = index.request("GET", f"/{index.prefix}a@1/_doc/{key}")["_source"]
        index.request("PUT", f"/{index.prefix}b@1/_doc/{key}", {**found, "_cdc_position": key + 1})
    index.request("DELETE", f"/{index.prefix}a@1/_doc/2")
    rows = [(row["id"], row["tenant"]) for row in index.rows()]
    assert sorted(rows, key=str) == [("0", "a"), ("0", None), ("1", "b"), ("2", None), ("3", "b")]
