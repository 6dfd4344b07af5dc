"""Every version of a warehouse's rows: against a model over random changes, through crashes at every step of a commit, and what questions it answers."""

from __future__ import annotations

import datetime as dt
import random
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import StaticTable

from cdc.crashpoint import armed
from cdc.errors import ConfigError, StoreError
from cdc.model.batch import Op, topic_schema
from cdc.model.pgtypes import INT4, TEXT, TIME
from cdc.model.position import ZERO_CUT, Cut
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from tests.conftest import Database
from tests.contract.labs import Lab
from tests.contract.rows import ORDERS, batch, order, schema, upserts
from tests.contract.test_marks import bring, step
from tests.contract.test_rebuild import rebuild
from tests.integration.capture.running import Capture
from tests.integration.spark.warehouselab import Ask, ask, lab
from tests.integration.test_redefined_histories import KEPT as VIEWS
from tests.integration.test_redefined_histories import MARKED, random_definitions
from tests.integration.test_sql_history import Model, at

__all__ = ["ask", "lab"]

KEPT = {"tables": {"public.orders": {"history": True}}}
ALL: Mapping[str, Any] = {"tables": {"public.*": {"history": True}}, "compact_files": 3}
PLACE = "public/orders_history"
SPAN = ("id", "status", "valid_from_position", "valid_to_position")


def test_versions_begin_and_end_where_changes_are(lab: Lab, ask: Ask) -> None:
    sink = lab.opened(**KEPT)
    step(lab, sink, at(upserts(ORDERS, 1, [order(1), order(2)]), 1))
    assert ask(*SPAN, table=PLACE) == [(1, "new", 1, None), (2, "new", 2, None)]
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
    assert ask(*SPAN, table=PLACE) == sorted(before, key=repr), "what is read again as it is opens no version"
    step(lab, sink, at(batch(ORDERS, [(Op.TRUNCATE, 10, {})]), 4), at(upserts(ORDERS, 11, [order(1, "sent")]), 5))
    after = sorted([*((*span[:3], span[3] or 10) for span in before), (1, "sent", 11, None)], key=repr)
    assert ask(*SPAN, table=PLACE) == after
    (times,) = ask("valid_from", "valid_to", table=PLACE, where="id = 2 and status = 'new'")
    assert tuple(when.astimezone(dt.UTC).minute for when in times) == (1, 2)
    rebuilt = rebuild(lab, **KEPT)
    assert ask(*SPAN, table=PLACE) == after, "the log has them all"
    rebuilt.close()
    lab.sink(**KEPT).erase()
    assert lab.units.there() == []


def test_a_key_of_type_time_ends_its_versions(lab: Lab, ask: Ask) -> None:
    """The warehouse has no column type for it: it stands there as text."""
    slots = Table(16409, "public", "slots", (Column("at", TIME, -1, "time", key=True), Column("what", TEXT, -1, "text")))
    topic = TopicSchema.of(slots)
    kept = {"tables": {"public.slots": {"history": True}}}
    sink = lab.opened(**kept)
    step(lab, sink, upserts(slots, 1, [{"at": at, "what": "a"} for at in ("08:00:00", "09:30:00.5", "24:00:00")]))
    changes = [(Op.UPDATE, 4, {"at": "08:00:00", "what": "b"}), (Op.DELETE, 5, {"at": "24:00:00"})]
    step(lab, sink, batch(slots, changes))
    sink = lab.opened(**kept)  # no key is remembered
    step(lab, sink, batch(slots, [(Op.DELETE, 6, {"at": "09:30:00.5"})]))
    assert [row for part in sink.scan(topic) for row in part.to_pylist()] == [{"at": "08:00:00", "what": "b"}]
    spans = [("a", 1, 4), ("a", 2, 6), ("a", 3, 5), ("b", 4, None)]
    assert ask("what", "valid_from_position", "valid_to_position", table="public/slots_history") == spans


def test_to_close_a_version_writes_no_other_again(lab: Lab) -> None:
    sink = lab.opened(**KEPT)
    step(lab, sink, upserts(ORDERS, 1, [order(key) for key in range(2000)]))
    place: Any = sink._opened()[2].histories[ORDERS.qualified]  # type: ignore[attr-defined]
    (first,) = place.live()
    step(lab, sink, batch(ORDERS, [(Op.UPDATE, 3000 + key, order(key, "paid")) for key in range(10)]))
    assert first in place.live()
    assert len(place.gone(place.live()[first])) == 10
    opened, closed = place.shelves()
    assert sorted(live.file.rows for live in opened.values()) == [10, 2000]
    assert [live.file.rows for live in closed.values()] == [10]


def test_a_history_that_is_lost_is_made_again_from_the_log(lab: Lab, ask: Ask) -> None:
    sink = lab.opened(**KEPT)
    step(lab, sink, upserts(ORDERS, 1, [order(1)]))
    step(lab, sink, batch(ORDERS, [(Op.UPDATE, 2, order(1, "paid"))]))
    sink.close()
    lab.units.lose(PLACE)
    again = lab.opened(**KEPT)
    assert again.applied().position == 0
    assert again.shape(ORDERS.qualified) is None
    bring(lab, again)
    assert ask(*SPAN, table=PLACE) == [(1, "new", 1, 2), (1, "paid", 2, None)]
    assert ask("id", "status") == [(1, "paid")]
    assert again.applied() == lab.log.head


POINTS = (
    "warehouse.before_history",
    "warehouse.files_written",
    "warehouse.vectors_written",
    "warehouse.table_committed",
    "warehouse.before_table",
    "warehouse.before_ledger",
    "warehouse.ledger_written",
)


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("point", POINTS)
def test_ended_within_a_commit_it_neither_loses_nor_doubles_a_version(lab: Lab, ask: Ask, point: str, nth: int) -> None:
    sink = lab.opened(**KEPT)
    step(lab, sink, upserts(ORDERS, 1, [order(1), order(2), order(3)]))
    changes = batch(ORDERS, [(Op.UPDATE, 4, order(1, "paid")), (Op.DELETE, 5, order(2)), (Op.INSERT, 6, order(4))])
    with armed(f"{point}=error:{nth}"), suppress(StoreError):
        step(lab, sink, changes)
    again = lab.opened(**KEPT)
    bring(lab, again)
    spans = [(1, "new", 1, 4), (1, "paid", 4, None), (2, "new", 2, 5), (3, "new", 3, None), (4, "new", 6, None)]
    assert ask(*SPAN, table=PLACE) == sorted(spans, key=repr)
    assert ask("id", "status") == [(1, "paid"), (3, "new"), (4, "new")]
    assert again.applied() == lab.applied() == lab.log.head


def test_a_column_or_a_table_of_the_source_of_such_a_name_is_refused(lab: Lab) -> None:
    taken = replace(ORDERS, columns=(*ORDERS.columns, Column("valid_to", TEXT)))
    with pytest.raises(ConfigError, match=r"public\.orders has a column valid_to"):
        lab.sink(**KEPT).foresee([TopicSchema.of(taken)])
    twice = {"tables": {"public.*": {"history": "orders"}}}
    with pytest.raises(ConfigError, match=r"would both be the table public\.orders"):
        lab.sink(**twice).foresee([TopicSchema.of(ORDERS)])
    topic = TopicSchema.of(ORDERS)
    assert lab.sink(**KEPT).options.shaping_of(topic) != lab.sink().options.shaping_of(topic)  # type: ignore[attr-defined]


@pytest.mark.parametrize("round", [0, *(pytest.param(one, marks=pytest.mark.slow) for one in range(1, 8))])
def test_random_histories_are_what_a_model_says(lab: Lab, ask: Ask, seed: int, round: int) -> None:
    chance = random.Random(f"{seed} {round}")
    sink, model, position, number = lab.opened(**ALL), Model(), 0, 3
    for _ in range(6):
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
            sink = lab.opened(**ALL)
    if not (Path(str(lab._options["path"])) / "public/things_history").exists():
        return
    shown = [f"cast(`{column.name}` as string)" for column in model.table.columns]
    found = ask(*shown, "valid_from_position", "valid_to_position", table="public/things_history")
    assert found == model.versions()
    current = sorted((one[:-2] for one in model.versions() if one[-1] is None), key=repr)
    assert ask(*shown, table="public/things") == current
    rebuild(lab, **ALL).close()
    assert ask("valid_from_position", "valid_to_position", table="public/things_history") == sorted(
        (one[-2:] for one in model.versions()), key=repr
    )


def test_another_type_keeps_what_old_versions_hold(lab: Lab, ask: Ask) -> None:
    was = replace(ORDERS, columns=(*ORDERS.columns, Column("extra", TEXT, attnum=9)))
    sink = lab.opened(**KEPT)
    step(lab, sink, upserts(was, 1, [order(1, extra="12"), order(2, extra="x")]), batch(was, [(Op.DELETE, 3, order(2))]))
    now = replace(ORDERS, columns=(*ORDERS.columns, Column("extra", INT4, attnum=9)))
    step(lab, sink, schema(now, 4), batch(now, [(Op.READ, 5, order(1, extra="12"))]))
    assert ask("id", "extra", *SPAN[2:], table=PLACE) == [(1, 12, 1, None), (2, None, 2, 3)]
    place: Any = sink._opened()[2].histories[ORDERS.qualified]  # type: ignore[attr-defined]
    (old,) = [field.name for field in place.iceberg.fields if field.name.startswith("extra__")]
    assert ask("id", old, table=PLACE) == [(1, "12"), (2, "x")]


@pytest.mark.timeout(1200)  # compiling is slow on a machine with much else to do
def test_as_of_a_position_and_a_time_it_is_what_postgres_had(
    lab: Lab, spark: Any, postgres: Database, tmp_path: Path, seed: int
) -> None:
    chance, truth = random.Random(seed), dict[Cut, list[tuple[Any, ...]]]()
    capture, sink, applied = Capture(postgres.dsn, tmp_path), lab.sink(**KEPT), ZERO_CUT
    with capture.running(), postgres.connect() as sql:
        sql.execute("create table orders (id int primary key, status text, amount numeric(12, 2))")
        sql.execute("insert into orders select n, 'first', n from generate_series(1, 6) n")
        capture.until_snapshot_done()
        assert sink.open(capture.reader, 1) == applied
        for number in range(12):
            with sql.transaction():
                for _ in range(chance.randrange(1, 5)):
                    sql.execute(_statement(chance))  # type: ignore[call-overload]
            wanted = sql.execute("select id, status, amount from orders order by id").fetchall()
            (lsn,) = sql.execute("select pg_current_wal_insert_lsn() - '0/0'").fetchone() or (0,)
            capture.until_lsn(int(lsn))
            truth[head := capture.reader.head()] = wanted
            if chance.random() < 0.5 or number == 11:
                for topic in capture.reader.topics():
                    for changes in capture.reader.read(topic.name, max(applied.position, sink.held(topic.name)), head.position):
                        sink.prepare(topic_schema(changes.schema))
                        sink.apply(changes)
                sink.commit(applied := head)
        sink.close()
    page = (Path(__file__).resolve().parents[3] / "docs/warehouses.md").read_text(encoding="utf-8").partition("## Every version")[2]
    by_position, by_time = (text.partition("```")[0].replace("*", "id, status, amount") for text in page.split("```sql\n")[1:3])
    (in_python,) = re.findall(r'as_of = "(.*)"', page)
    spark.read.format("iceberg").load(str(tmp_path / "lab" / PLACE)).createOrReplaceTempView("orders_history")
    versions = (tmp_path / "lab" / PLACE / "metadata/version-hint.text").read_text(encoding="utf-8").strip()
    table = StaticTable.from_metadata(str(tmp_path / "lab" / PLACE / f"metadata/v{versions}.gz.metadata.json"))
    assert len(truth) > 5
    for cut, wanted in truth.items():
        when = (dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=cut.commit_ts_us)).isoformat(" ")
        for query in (by_position.replace("4711", str(cut.position)), by_time.replace("2026-11-27 10:15:00+00", when)):
            rows = spark.sql(query.replace("public.orders_history", "orders_history")).collect()
            assert sorted(map(tuple, rows)) == wanted, (seed, cut, query)
        found = table.scan(row_filter=in_python.replace("4711", str(cut.position))).to_arrow().to_pylist()
        assert sorted((row["id"], row["status"], row["amount"]) for row in found) == wanted


def _statement(chance: random.Random) -> str:
    key, other = chance.randrange(1, 9), chance.randrange(1, 9)
    return chance.choices(
        (
            f"insert into orders values ({key}, 's{other}', {other}) on conflict (id) do update set status = excluded.status",
            f"update orders set amount = amount + {other}, status = 's{other}' where id = {key}",
            f"update orders set id = id + 10 where id = {key} and not exists (select 1 from orders where id = {key + 10})",
            f"delete from orders where id in ({key}, {other + 10})",
            "truncate orders",
        ),
        (6, 6, 2, 4, 1),
    )[0]


@pytest.mark.sampled(4)
def test_a_view_s_topic_that_gets_another_key_or_other_types(lab: Lab, ask: Ask, seed: int) -> None:
    span = ("valid_from_position", "valid_to_position")
    random_definitions(lab, random.Random(seed), lambda: ask(*span, table="views/v_history"), {**VIEWS, **MARKED}, 7)
