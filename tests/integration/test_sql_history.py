"""Every version of a SQL store's rows, in Postgres and in DuckDB: against a model over random changes, and what questions it answers."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc.errors import ConfigError
from cdc.model.batch import TS, Op
from cdc.model.pgtypes import INT4, INT8, TEXT
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from sinks.rowversions import history_topic
from tests.contract.labs import Lab
from tests.contract.rows import ORDERS, Row, batch, order, schema, upserts
from tests.contract.test_marks import heal, step
from tests.contract.test_rebuild import rebuild
from tests.contract.test_sinks import held
from tests.integration.sqllabs import Ask, ask, lab

__all__ = ["ask", "lab"]

KEPT = {"tables": {"public.orders": {"history": True}}}
PAGE = (Path(__file__).resolve().parents[2] / "docs/warehouses.md").read_text(encoding="utf-8")


SPANS = "select id, status, valid_from_position, valid_to_position from public.orders_history order by id, valid_from_position"


def at(changes: pa.RecordBatch, minute: int) -> pa.RecordBatch:
    """As committed in that minute."""
    when = dt.datetime(2026, 11, 27, 10, minute, tzinfo=dt.UTC)
    return changes.set_column(
        changes.schema.get_field_index(TS), changes.schema.field(TS), pa.array([when] * len(changes), pa.timestamp("us", tz="UTC"))
    )


def test_versions_begin_and_end_where_changes_are(lab: Lab, ask: Ask) -> None:
    sink = lab.opened(**KEPT)
    step(lab, sink, at(upserts(ORDERS, 1, [order(1), order(2)]), 1))
    assert ask(SPANS) == [(1, "new", 1, None), (2, "new", 2, None)]
    changes = [
        (Op.UPDATE, 3, order(1, "paid")),
        (Op.UPDATE, 4, order(1, "sent")),
        (Op.DELETE, 5, order(2)),
        (Op.INSERT, 6, order(2, "back")),
    ]
    step(lab, sink, at(batch(ORDERS, changes), 2))
    reread = [(Op.READ, 7, order(1, "sent")), (Op.READ, 8, order(2, "other")), (Op.READ, 9, order(2, "other"))]
    step(lab, sink, at(batch(ORDERS, reread), 3))
    before = [(1, "new", 1, 3), (1, "paid", 3, 4), (1, "sent", 4, None), (2, "new", 2, 5), (2, "back", 6, 8), (2, "other", 8, None)]
    assert ask(SPANS) == before, "what is read again as it is opens no version"
    step(lab, sink, at(batch(ORDERS, [(Op.TRUNCATE, 10, {})]), 4), at(upserts(ORDERS, 11, [order(1, "sent")]), 5))
    after = [(*span[:3], span[3] or 10) for span in before]
    assert ask(SPANS) == sorted([*after, (1, "sent", 11, None)], key=lambda one: (one[0], one[2]))
    times = "select valid_from, valid_to from public.orders_history where id = 2 and status = 'new'"
    assert ask(times) == [tuple(dt.datetime(2026, 11, 27, 10, minute, tzinfo=dt.UTC) for minute in (1, 2))]
    assert held(sink, ORDERS) == [order(1, "sent")]
    rebuilt = rebuild(lab, **KEPT)
    assert ask(SPANS) == sorted([*after, (1, "sent", 11, None)], key=lambda one: (one[0], one[2])), "the log has them all"
    rebuilt.close()


def test_the_page_asks_as_of_a_position_and_a_time(lab: Lab, ask: Ask) -> None:
    sink = lab.opened(**KEPT)
    step(lab, sink, at(upserts(ORDERS, 1, [order(1), order(2)]), 0))
    step(lab, sink, at(batch(ORDERS, [(Op.UPDATE, 4711, order(1, "paid")), (Op.DELETE, 4712, order(2))]), 30))
    by_position, by_time = (text.partition("```")[0] for text in PAGE.partition("## Every version")[2].split("```sql\n")[1:3])
    assert sorted(ask(by_position.replace("*", "id, status"))) == [(1, "paid"), (2, "new")]
    assert sorted(ask(by_time.replace("*", "id, status"))) == [(1, "new"), (2, "new")]


def test_a_history_that_is_lost_is_made_again_from_the_log(lab: Lab, ask: Ask) -> None:
    sink = lab.opened(**KEPT)
    step(lab, sink, upserts(ORDERS, 1, [order(1)]))
    step(lab, sink, batch(ORDERS, [(Op.UPDATE, 2, order(1, "paid"))]))
    sink.close()
    lab.units.lose(history_topic("public.orders"))
    assert lab.opened(**KEPT).applied().position == 0
    options = lab._options
    lab._options = {**options, **KEPT}
    heal(lab)
    assert ask(SPANS) == [(1, "new", 1, 2), (1, "paid", 2, None)]
    lab.sink().erase()
    assert lab.units.there() == []


def test_a_column_of_the_source_of_such_a_name_is_refused(lab: Lab) -> None:
    taken = replace(ORDERS, columns=(*ORDERS.columns, Column("valid_to", TEXT)))
    with pytest.raises(ConfigError, match=r"public\.orders has a column valid_to"):
        lab.sink(**KEPT).foresee([TopicSchema.of(taken)])
    twice = {"tables": {"public.*": {"history": "orders"}}}
    with pytest.raises(ConfigError, match=r"would both be the table public\.orders"):
        lab.sink(**twice).foresee([TopicSchema.of(ORDERS)])


BASE = Table(
    16409,
    "public",
    "things",
    (Column("id", INT8, key=True, attnum=1), Column("a", TEXT, attnum=2), Column("b", INT4, attnum=3)),
)


@dataclass
class Model:
    """What the history has to be. Versions: origin of a column → value, and the span."""

    table: Table = BASE
    open: dict[str, tuple[dict[int, str | None], int]] = field(default_factory=dict)
    closed: list[tuple[dict[int, str | None], int, int]] = field(default_factory=list)

    def change(self, op: Op, position: int, row: Row) -> None:
        values = {column.attnum: row.get(column.name) for column in self.table.columns}
        known = self.open.get(str(row["id"]))
        if op != Op.DELETE and known is not None and all(known[0].get(number) == value for number, value in values.items()):
            return
        self.close(str(row["id"]), position)
        if op != Op.DELETE:
            self.open[str(row["id"])] = values, position

    def close(self, key: str, position: int) -> None:
        if (known := self.open.pop(key, None)) is not None:
            self.closed.append((*known, position))

    def versions(self) -> list[tuple[Any, ...]]:
        """As far as the columns of now can show them, which old versions may lack."""
        numbers = [column.attnum for column in self.table.columns]
        spans = [*((values, begin, None) for values, begin in self.open.values()), *self.closed]
        return sorted(((*map(values.get, numbers), begin, end) for values, begin, end in spans), key=repr)


@pytest.mark.parametrize("round", range(2))
def test_random_histories_are_what_a_model_says(lab: Lab, ask: Ask, seed: int, round: int) -> None:
    chance = random.Random(f"{seed} {round}")
    options: Mapping[str, Any] = {"tables": {"public.*": {"history": True}}}
    sink, model, position, number = lab.opened(**options), Model(), 0, 3
    for _ in range(8):
        changes: list[Any] = []
        for _ in range(chance.randrange(1, 4)):
            position += 1
            kind = chance.random()
            if kind < 0.1:
                changes.append(batch(model.table, [(Op.TRUNCATE, position, {})]))
                for key in list(model.open):
                    model.close(key, position)
            elif kind < 0.3:
                number += 1
                columns = list(model.table.columns)
                which = chance.randrange(1, len(columns)) if len(columns) > 1 else 0
                match chance.choice(["add", "drop", "rename"]) if which else "add":
                    case "add":
                        columns.append(Column(f"c{number}", TEXT, attnum=number))
                    case "drop":
                        del columns[which]
                    case _:
                        columns[which] = replace(columns[which], name=f"r{number}")
                model.table = replace(model.table, columns=tuple(columns))
                changes.append(schema(model.table, position))
            else:
                made = []
                for _ in range(chance.randrange(1, 12)):
                    row = {
                        column.name: chance.choice([None, "1", "2"]) if not column.key else str(chance.randrange(6))
                        for column in model.table.columns
                    }
                    op = chance.choice([Op.INSERT, Op.UPDATE, Op.READ, Op.DELETE])
                    made.append((op, position, row))
                    model.change(op, position, row)
                    position += 1
                changes.append(batch(model.table, made))
        step(lab, sink, *changes)
        for one in changes:
            assert sink.apply(one).written == 0, "comes again"
        if chance.random() < 0.3:
            sink = lab.opened(**options)
        shown = ", ".join(f'"{column.name}"::text' for column in model.table.columns)
        if ask("select 1 from information_schema.tables where table_name = 'things_history'"):
            found = ask(f"select {shown}, valid_from_position, valid_to_position from public.things_history")
            assert sorted(found, key=repr) == model.versions()
            current = ask(f"select {shown} from public.things")
            assert sorted(current, key=repr) == sorted((one[:-2] for one in model.versions() if one[-1] is None), key=repr)
