"""What every store shows after a table's definition has changed: what the source shows, value for value."""

from __future__ import annotations

import dataclasses

import pytest

from cdc.errors import ConfigError
from cdc.model.batch import Op
from cdc.model.evolution import Kind
from cdc.model.pgtypes import BOOL, BYTEA, DATE, FLOAT8, INT4, INT8, NUMERIC, TEXT, TIMESTAMPTZ
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from sinks.contract import Outcome, Sink
from sinks.reshape import conformed
from tests.contract.labs import Lab
from tests.contract.rows import Row, batch, numeric, schema, upserts
from tests.contract.test_sinks import commit, expect, feed, ready, too_late
from tests.logs import cut

BASE = Table(
    16501,
    "public",
    "items",
    (
        Column("id", INT8, -1, "", key=True, attnum=1),
        Column("name", TEXT, -1, "", attnum=2),
        Column("price", NUMERIC, numeric(12, 2), "", attnum=3),
        Column("note", TEXT, -1, "", attnum=4),
        Column("seen", TIMESTAMPTZ, -1, "", attnum=5),
    ),
)


def item(key: int, **more: str | None) -> dict[str, str | None]:
    return {"id": str(key), "name": f"n{key}", "price": "1.10", "note": None, "seen": "2013-01-01 10:00:00.5+00", **more}


NASTY: list[Row] = [
    item(1, name='quote " \\ \n', price="NaN", seen="infinity"),
    item(2, name="", price="-0.05", seen="0044-03-15 12:00:00+00 BC"),
    item(9223372036854775807, note="\U0001f6eb {}"),
    item(-4, name=None, price=None, seen=None),
]


def altered(
    table: Table,
    *,
    drop: str = "",
    rename: dict[str, str] | None = None,
    retype: dict[str, int] | None = None,
    add: tuple[Column, ...] = (),
) -> Table:
    names, types = rename or {}, retype or {}
    kept = [
        dataclasses.replace(c, name=names.get(c.name, c.name), type_oid=types.get(c.name, c.type_oid))
        for c in table.columns
        if c.name != drop
    ]
    return dataclasses.replace(table, columns=(*kept, *add))


def renamed(rows: list[Row], names: dict[str, str]) -> list[Row]:
    return [{names.get(name, name): value for name, value in row.items()} for row in rows]


def without(rows: list[Row], *gone: str) -> list[Row]:
    return [{name: value for name, value in row.items() if name not in gone} for row in rows]


def fed(lab: Lab) -> Sink:
    """A sink with the nasty rows at 1 to 4, committed."""
    sink = ready(lab, BASE)
    feed(lab, sink, upserts(BASE, 1, NASTY))
    commit(lab, sink, cut(4))
    return sink


def change(lab: Lab, sink: Sink, to: Table, position: int, kind: Kind = Kind.ALTERED, *, empties: bool = False) -> None:
    """Applies the record (twice: a replay), and commits it."""
    record = schema(to, position, kind, empties=empties)
    assert feed(lab, sink, record) == Outcome(1)
    if lab.readable and not lab.staged:
        assert feed(lab, sink, record) == Outcome(0, stale=1)
    commit(lab, sink, cut(position))


def test_the_first_definition_is_the_shape_until_a_change(lab: Lab) -> None:
    sink = lab.opened()
    assert sink.shape(BASE.qualified) is None
    sink.prepare(TopicSchema.of(BASE))
    sink.prepare(TopicSchema.of(altered(BASE, drop="note")))
    held = sink.shape(BASE.qualified)
    assert held is not None
    assert (held.schema, held.position) == (TopicSchema.of(BASE), 0)
    feed(lab, sink, upserts(BASE, 1, NASTY))
    commit(lab, sink, cut(4))
    new = altered(BASE, drop="note")
    change(lab, sink, new, 5)
    held = sink.shape(BASE.qualified)
    assert held is not None
    assert held.schema == TopicSchema.of(new)
    if lab.readable:
        again = lab.opened().shape(BASE.qualified)
        assert again is not None
        assert again.schema == TopicSchema.of(new)
        assert lab.staged or again.position == 5


def test_a_dropped_column_is_gone_from_rows_that_nobody_writes_again(lab: Lab) -> None:
    sink = fed(lab)
    narrow = altered(BASE, drop="price")
    change(lab, sink, narrow, 5)
    expect(lab, sink, narrow, without(NASTY, "price"))
    # Under the same name comes another column: it must not inherit the dropped one's values.
    again = altered(narrow, add=(Column("price", TEXT, -1, "", attnum=6),))
    change(lab, sink, again, 6)
    expect(lab, sink, again, [{**row, "price": None} for row in without(NASTY, "price")])
    feed(lab, sink, upserts(again, 7, [item(1, price="free")]))
    commit(lab, sink, cut(7))
    expect(lab, sink, again, [item(1, price="free"), *[{**row, "price": None} for row in NASTY[1:]]])


def test_a_renamed_column_keeps_its_values(lab: Lab) -> None:
    sink = fed(lab)
    names = {"price": "cost", "seen": "last.seen"}
    new = altered(BASE, rename=names)
    change(lab, sink, new, 5)
    expect(lab, sink, new, renamed(NASTY, names))
    feed(lab, sink, upserts(new, 6, renamed([item(2, price="7.00")], names)))
    commit(lab, sink, cut(6))
    expect(lab, sink, new, renamed([NASTY[0], item(2, price="7.00"), *NASTY[2:]], names))


def test_two_columns_swap_their_names(lab: Lab) -> None:
    sink = fed(lab)
    names = {"name": "note", "note": "name"}
    new = altered(BASE, rename=names)
    for position, table, rows in ((5, new, renamed(NASTY, names)), (6, BASE, NASTY), (7, new, renamed(NASTY, names))):
        change(lab, sink, table, position)
        expect(lab, sink, table, rows)


def test_columns_of_different_types_swap_their_names(lab: Lab) -> None:
    sink = fed(lab)
    names = {"name": "price", "price": "name", "seen": "note", "note": "seen"}
    new = altered(BASE, rename=names)
    change(lab, sink, new, 5)
    expect(lab, sink, new, renamed(NASTY, names))
    feed(lab, sink, upserts(new, 6, renamed([item(8)], names)))
    commit(lab, sink, cut(6))
    expect(lab, sink, new, renamed([*NASTY, item(8)], names))


def test_a_column_is_added_and_one_renamed_at_once(lab: Lab) -> None:
    sink = fed(lab)
    new = altered(BASE, rename={"note": "remark"}, add=(Column("note", INT4, -1, "", attnum=6),))
    change(lab, sink, new, 5)
    expect(lab, sink, new, [{**row, "note": None} for row in renamed(NASTY, {"note": "remark"})])


def test_an_added_column_is_null_in_older_rows(lab: Lab) -> None:
    sink = fed(lab)
    new = altered(BASE, add=(Column("rank", INT4, -1, "", attnum=6),))
    change(lab, sink, new, 5)
    feed(lab, sink, upserts(new, 6, [item(1, rank="3")]))
    commit(lab, sink, cut(6))
    expect(lab, sink, new, [item(1, rank="3"), *[{**row, "rank": None} for row in NASTY[1:]]])


def test_the_key_column_is_renamed(lab: Lab) -> None:
    sink = fed(lab)
    new = altered(BASE, rename={"id": "item_id"})
    change(lab, sink, new, 5)
    rows = renamed(NASTY, {"id": "item_id"})
    expect(lab, sink, new, rows)
    feed(lab, sink, batch(new, [(Op.DELETE, 6, rows[0]), (Op.UPDATE, 7, {**rows[1], "note": "changed"})]))
    commit(lab, sink, cut(7))
    expect(lab, sink, new, [{**rows[1], "note": "changed"}, *rows[2:]])


def test_another_column_joins_the_key(lab: Lab) -> None:
    sink = fed(lab)
    columns = tuple(dataclasses.replace(c, key=c.name in ("id", "price")) for c in BASE.columns)
    rows: list[Row] = [dict(row, price=row["price"] or "0.00") for row in NASTY]
    feed(lab, sink, upserts(BASE, 5, [rows[3]]))
    new = dataclasses.replace(BASE, columns=columns)
    change(lab, sink, new, 6)
    expect(lab, sink, new, rows)
    twin = {**rows[2], "price": "99.00"}
    feed(lab, sink, batch(new, [(Op.DELETE, 7, rows[0]), (Op.INSERT, 8, twin), (Op.UPDATE, 9, {**rows[1], "note": "changed"})]))
    commit(lab, sink, cut(9))
    expect(lab, sink, new, [{**rows[1], "note": "changed"}, rows[2], twin, rows[3]])


@pytest.mark.parametrize(
    ("kind", "to"),
    [
        (Kind.REWRITTEN, BASE),
        (Kind.DROPPED, BASE),
        (Kind.CREATED, dataclasses.replace(BASE, oid=16502)),
        (Kind.REWRITTEN, altered(BASE, rename={"name": "price", "price": "name"})),
        (Kind.CREATED, dataclasses.replace(altered(BASE, drop="price", add=(Column("price", INT8),)), oid=16503)),
    ],
)
def test_a_change_that_empties_takes_every_earlier_row(lab: Lab, kind: Kind, to: Table) -> None:
    zombie = fed(lab)
    sink = lab.opened()
    change(lab, sink, to, 5, kind, empties=True)
    expect(lab, sink, to, [])
    later: Row = {**dict.fromkeys(to.names), "id": "1"}
    feed(lab, sink, batch(to, [(Op.READ, 6, later)]))
    commit(lab, sink, cut(6))
    if lab.readable:
        too_late(lab, zombie, upserts(BASE, 1, NASTY), cut(4))
    expect(lab, sink, to, [later])


def test_a_change_is_applied_again_after_a_crash(lab: Lab) -> None:
    """Everything since the last commit comes once more, by another process."""
    names = {"name": "note", "note": "name"}
    new = altered(BASE, rename=names)
    steps = [
        upserts(BASE, 5, [item(5), item(6)]),
        batch(BASE, [(Op.DELETE, 7, item(6))]),
        schema(new, 8),
        batch(new, [(Op.UPDATE, 9, renamed([item(5, note="later")], names)[0])]),
    ]
    first = fed(lab)
    expected = renamed([*NASTY, item(5, note="later")], names)
    for upto in range(1, len(steps) + 1):
        for step in steps[:upto]:
            feed(lab, first, step)
        if lab.readable:  # the process is gone without a commit
            first = lab.opened()
    for step in steps:
        feed(lab, first, step)
    commit(lab, first, cut(9))
    expect(lab, first, new, expected)
    feed(lab, first, steps[0])
    expect(lab, first, new, expected)


def test_wider_types_and_type_modifiers_change_nothing(lab: Lab) -> None:
    sink = fed(lab)
    new = dataclasses.replace(
        BASE,
        columns=tuple(dataclasses.replace(c, typmod=numeric(14, 2)) if c.name == "price" else c for c in BASE.columns),
    )
    change(lab, sink, new, 5)
    wide = item(7, price="999999999999.99")
    feed(lab, sink, upserts(new, 6, [wide]))
    commit(lab, sink, cut(6))
    expect(lab, sink, new, [*NASTY, wide])


def test_a_numeric_loses_its_bounds(lab: Lab) -> None:
    """Postgres rewrites nothing and sends nothing for it."""
    sink = fed(lab)
    new = dataclasses.replace(
        BASE, columns=tuple(dataclasses.replace(c, typmod=-1) if c.name == "price" else c for c in BASE.columns)
    )
    change(lab, sink, new, 5)
    exact = item(7, price="1." + "1" * 60)
    feed(lab, sink, upserts(new, 6, [exact]))
    commit(lab, sink, cut(6))
    expect(lab, sink, new, [*NASTY, exact])


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (BOOL, "t"),
        (INT8, "-7"),
        (FLOAT8, "0.5"),
        (BYTEA, "\\x00ff"),
        (NUMERIC, "1.50"),
        (TIMESTAMPTZ, "2013-01-01 10:00:00.5+00"),
        (DATE, "2013-01-01"),
    ],
)
def test_a_column_gets_a_type_that_its_values_are_not_of(lab: Lab, kind: int, value: str) -> None:
    """ALTER … TYPE … USING: rows that a store holds wait for what is read again; until then it takes the change, and the next one too."""
    sink = fed(lab)
    new = altered(BASE, retype={"name": kind})
    change(lab, sink, new, 5, Kind.REWRITTEN)
    narrow = altered(new, drop="price")
    change(lab, sink, narrow, 6)
    read = [{**row, "name": value if row["id"] != "2" else None} for row in without(NASTY, "price")]
    feed(lab, sink, batch(narrow, [(Op.READ, 7 + number, row) for number, row in enumerate(read)]))
    commit(lab, sink, cut(10))
    expect(lab, sink, narrow, read)


@pytest.mark.parametrize(("kind", "value"), [(INT8, "-7"), (FLOAT8, "0.5"), (NUMERIC, "1.50"), (DATE, "2013-01-01")])
def test_a_store_that_keeps_the_former_type_keeps_other_values_as_text(lab: Lab, kind: int, value: str) -> None:
    """What the policy ``ignore`` makes of a column that holds text from now on."""
    former = altered(BASE, retype={"name": kind})
    sink = ready(lab, former)
    rows = [item(1, name=value), item(2, name="no such value"), item(3, name=None)]
    feed(lab, sink, upserts(former, 1, rows[:1]))
    later = upserts(BASE, 2, rows[1:])
    lab.log.put(later)
    assert sink.apply(conformed(later, TopicSchema.of(former))) == Outcome(2)
    commit(lab, sink, cut(3))
    expect(lab, sink, former, rows)


def test_the_last_column_is_dropped_and_another_comes(lab: Lab) -> None:
    """What tells rows apart comes only with a new definition, under which they are read again; a cache can have no such table."""
    tags = dataclasses.replace(BASE, identity="f", columns=(Column("tag", TEXT, -1, "", key=True, attnum=1),))
    sink = ready(lab, tags)
    feed(lab, sink, upserts(tags, 1, [{"tag": "a"}, {"tag": ""}]))
    commit(lab, sink, cut(2))
    bare = dataclasses.replace(tags, columns=())
    if lab.kind == "redis":
        with pytest.raises(ConfigError, match=r"public\.items has no identity"):
            sink.apply(schema(bare, 3))
    else:
        change(lab, sink, bare, 3)
        feed(lab, sink, upserts(bare, 4, [{}]))
        commit(lab, sink, cut(4))
    again = dataclasses.replace(tags, columns=(Column("tag", TEXT, -1, "", key=True, attnum=2),))
    change(lab, sink, again, 5, Kind.REWRITTEN, empties=True)
    expect(lab, sink, again, [])
    feed(lab, sink, upserts(again, 6, [{"tag": "b"}]))
    commit(lab, sink, cut(6))
    expect(lab, sink, again, [{"tag": "b"}])


def test_a_table_without_identity_keeps_its_rows(lab: Lab) -> None:
    if lab.kind == "redis":
        pytest.skip("a cache needs keys")
    plain = dataclasses.replace(BASE, columns=tuple(dataclasses.replace(c, key=False) for c in BASE.columns), identity="n")
    sink = ready(lab, plain)
    feed(lab, sink, upserts(plain, 1, [item(1), item(1)]))
    commit(lab, sink, cut(2))
    new = altered(plain, rename={"note": "remark"})
    change(lab, sink, new, 3)
    rows = renamed([item(1), item(1)], {"note": "remark"})
    expect(lab, sink, new, rows)
    feed(lab, sink, upserts(plain, 1, [item(1), item(1)]))
    feed(lab, sink, upserts(new, 4, rows))
    commit(lab, sink, cut(5))
    expect(lab, sink, new, [*rows, *rows])
