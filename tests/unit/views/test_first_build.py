"""A view that is computed from the beginning, in pieces of which each key comes once: its rows are those that its tables' changes lead to, in whichever order."""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from cdc.model.pgtypes import INT4, INT8, TEXT
from cdc.model.position import Position
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from cdc.views import bulk, rows, state
from cdc.views.contract import Delta
from cdc.views.definition import ViewDefinition, define
from cdc.views.kernel import SqlKernel

ORDERS = Table(
    1, "public", "orders", (Column("id", INT8, key=True, attnum=1), Column("who", INT8, attnum=2), Column("what", INT4, attnum=3))
)
PEOPLE = Table(2, "public", "people", (Column("id", INT4, key=True, attnum=1), Column("name", TEXT, attnum=2)))
GOODS = Table(3, "public", "goods", (Column("id", INT8, key=True, attnum=1), Column("name", TEXT, attnum=2)))
TOPICS = {one.topic: one for one in map(TopicSchema.of, (ORDERS, PEOPLE, GOODS))}

ALL_THREE = (
    "select o.id, p.id as person, p.name, g.id as good, g.name as title from orders o "
    "{0} join people p on p.id = o.who {0} join goods g on g.id = o.what"
)
VIEWS = {kind: (ALL_THREE.format(kind), ["id", "person", "good"]) for kind in ("inner", "left", "right")} | {
    "full": ("select o.id, p.id as person, p.name from orders o full join people p on p.id = o.who", ["id", "person"]),
    "by the many": ("select p.id, o.id as told, p.name from people p join orders o on o.who = p.id", ["told"]),
    "counted": ("select p.name, count(*) as n from orders o join people p on p.id = o.who group by p.name", ["name"]),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("few", [3, 10**6], ids=["in files", "in the store"])
def test_rows_that_are_new_come_to_the_same_as_changes(
    view: str, few: int, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "BULK_ROWS", few)
    monkeypatch.setattr(bulk, "PIECE", 7)
    monkeypatch.setattr(rows, "FEW", 5)
    chance = random.Random(seed)
    tables = _tables(chance)
    definition = define("v", *VIEWS[view], TOPICS)
    changed = _built(tmp_path / "changed", definition, tables, list(reversed(definition.reads)), 1_000, fresh=False)
    assert _built(tmp_path / "new", definition, tables, list(definition.reads), 6, fresh=True).equals(changed), seed
    shuffled = chance.sample(list(definition.reads), len(definition.reads))
    assert _built(tmp_path / "shuffled", definition, tables, shuffled, 6, fresh=True).equals(changed), seed
    assert changed.num_rows


def test_the_tables_that_rows_find_by_key_are_read_first() -> None:
    orders, people, goods = (f"public.{one.name}" for one in (ORDERS, PEOPLE, GOODS))
    assert list(define("v", *VIEWS["inner"], TOPICS).reads) == [goods, people, orders]
    assert list(define("v", *VIEWS["left"], TOPICS).reads) == [goods, people, orders]
    assert list(define("v", *VIEWS["right"], TOPICS).reads) == [orders, people, goods]
    assert list(define("v", *VIEWS["by the many"], TOPICS).reads) == [people, orders]


def _tables(chance: random.Random) -> dict[str, pa.Table]:
    """Rows of all three, some of which have no partner."""
    orders = [
        {"id": number, "who": chance.choice([None, *range(-2, 12)]), "what": chance.choice([None, *range(9)])}
        for number in range(40)
    ]
    chance.shuffle(orders)
    named = [{"id": number, "name": chance.choice([None, "", "ä", "b"])} for number in range(10)]
    found = {}
    for table, listed in ((ORDERS, orders), (PEOPLE, named), (GOODS, named)):
        schema = TopicSchema.of(table)
        found[schema.topic] = pa.Table.from_pylist(listed, pa.schema([(one.name, one.type) for one in schema.fields]))
    return found


def _built(
    folder: Path, definition: ViewDefinition, tables: Mapping[str, pa.Table], order: list[str], piece: int, *, fresh: bool
) -> pa.Table:
    folder.mkdir()
    cut = 0
    with closing(SqlKernel(definition, folder)) as kernel:
        for topic in order:
            whole = tables[topic].select(definition.reads[topic])
            for at in range(0, len(whole), piece):
                cut += 1
                some = whole.slice(at, piece)
                delta = Delta(some, some.select(["id"]).slice(0, 0), fresh=fresh)
                kernel.advance({topic: delta}, Position(cut), partial=fresh)
                kernel.commit()
        kernel.advance({}, Position(cut + 1))
        kernel.commit()
        return kernel.rows()
