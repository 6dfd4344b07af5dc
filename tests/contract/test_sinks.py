"""The one suite that every sink and every in-memory twin passes. A new store is one line in ``labs.LABS``."""

from __future__ import annotations

import dataclasses
from contextlib import suppress

import pyarrow as pa
import pytest

from cdc.errors import StoreError
from cdc.model.batch import Op
from cdc.model.pgtypes import INT4, INTERVAL, JSON, NUMERIC, TEXT, TIMETZ
from cdc.model.position import ZERO_CUT, Cut, Lsn, Position
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from sinks.contract import Outcome, Sink, audit_schema
from tests.contract.labs import Lab
from tests.contract.lossy_proxy import LossyProxy
from tests.contract.rows import ORDERS, PAIRS, TYPES, Row, batch, numeric, order, upserts
from tests.logs import cut


def held(sink: Sink, table: Table) -> list[Row]:
    """What the store says it holds, sorted by key."""
    sink.make_visible()
    found: list[Row] = []
    for part in sink.scan(TopicSchema.of(table)):
        assert part.schema.names == audit_schema(TopicSchema.of(table)).names
        found += part.to_pylist()
    return sorted(found, key=lambda row: [str(row[column.name]) for column in table.key])


def expect(lab: Lab, sink: Sink, table: Table, rows: list[Row]) -> None:
    if lab.readable:
        assert held(sink, table) == sorted(
            meant(sink, table, rows), key=lambda row: [str(row[column.name]) for column in table.key]
        )


def meant(sink: Sink, table: Table, rows: list[Row]) -> list[Row]:
    """The source's rows as the store has them."""
    found: list[Row] = sink.as_held(
        pa.RecordBatch.from_pylist(rows, audit_schema(TopicSchema.of(table))), TopicSchema.of(table)
    ).to_pylist()
    return found


def ready(lab: Lab, *tables: Table) -> Sink:
    sink = lab.opened()
    for table in tables or (ORDERS,):
        sink.prepare(TopicSchema.of(table))
    return sink


def feed(lab: Lab, sink: Sink, changes: pa.RecordBatch) -> Outcome:
    """The changes stand in the log first, as they do in the product."""
    lab.log.put(changes)
    outcome = sink.apply(changes)
    assert outcome.written + outcome.stale + len(outcome.dead) == len(changes), "an outcome accounts for every row"
    return outcome


def commit(lab: Lab, sink: Sink, end: Cut) -> None:
    lab.log.reach(end)
    sink.commit(end)


def too_late(lab: Lab, zombie: Sink, changes: pa.RecordBatch, end: Cut) -> None:
    """What somebody does who was replaced meanwhile: it is refused, or changes nothing."""
    with suppress(StoreError):
        feed(lab, zombie, changes)
    with suppress(StoreError):
        commit(lab, zombie, end)


def test_an_empty_store_has_applied_nothing(lab: Lab) -> None:
    assert lab.applied() == ZERO_CUT


def test_rows_arrive_and_the_cut_is_kept_in_the_store(lab: Lab) -> None:
    sink = ready(lab)
    assert feed(lab, sink, upserts(ORDERS, 1, [order(1), order(2, None, amount="-0.05")])) == Outcome(2)
    commit(lab, sink, cut(2))
    assert sink.applied() == cut(2)
    expect(lab, sink, ORDERS, [order(1), order(2, None, amount="-0.05")])
    if lab.readable:
        assert lab.applied() == cut(2)


def test_commit_never_goes_back(lab: Lab) -> None:
    sink = ready(lab)
    commit(lab, sink, cut(5))
    commit(lab, sink, cut(3))
    assert sink.applied() == cut(5)
    later = Cut(Position(5), Lsn(99), 7)
    commit(lab, sink, later)  # commits that changed nothing of ours move the LSN alone
    assert sink.applied() == later


def test_replay_changes_nothing(lab: Lab) -> None:
    sink = ready(lab)
    first = upserts(ORDERS, 1, [order(1), order(2)])
    second = batch(ORDERS, [(Op.UPDATE, 3, order(1, "paid")), (Op.DELETE, 4, order(2))])
    for again in range(3):
        for changes in (first, second):
            outcome = feed(lab, sink, changes)
            if again and lab.readable and not lab.staged:
                assert outcome == Outcome(0, stale=2)
    commit(lab, sink, cut(4))
    expect(lab, sink, ORDERS, [order(1, "paid")])
    for changes in (first, second):
        feed(lab, sink, changes)
    commit(lab, sink, cut(4))
    expect(lab, sink, ORDERS, [order(1, "paid")])


def test_batches_out_of_order(lab: Lab) -> None:
    if lab.sequenced:
        pytest.skip("takes a table's changes in order")
    sink = ready(lab)
    feed(lab, sink, batch(ORDERS, [(Op.UPDATE, 5, order(1, "newest")), (Op.DELETE, 6, order(2))]))
    feed(lab, sink, upserts(ORDERS, 1, [order(1, "oldest"), order(2), order(3)]))
    feed(lab, sink, batch(ORDERS, [(Op.UPDATE, 4, order(1, "middle"))]))
    commit(lab, sink, cut(6))
    expect(lab, sink, ORDERS, [order(1, "newest"), order(3)])


def test_the_last_change_of_a_key_wins_within_a_batch(lab: Lab) -> None:
    sink = ready(lab)
    changes = [
        (Op.INSERT, 1, order(1)),
        (Op.UPDATE, 2, order(1, "paid")),
        (Op.DELETE, 3, order(1)),
        (Op.INSERT, 4, order(1, "again")),
        (Op.INSERT, 5, order(2)),
        (Op.DELETE, 6, order(2)),
    ]
    feed(lab, sink, batch(ORDERS, changes))
    commit(lab, sink, cut(6))
    expect(lab, sink, ORDERS, [order(1, "again")])


def test_a_deleted_row_stays_deleted(lab: Lab) -> None:
    """An older upsert comes late: before the commit, after it, and from a sink that was opened long ago."""
    zombie = ready(lab)
    sink = ready(lab)
    late = upserts(ORDERS, 1, [order(1)])
    if lab.sequenced:
        feed(lab, sink, late)
    feed(lab, sink, batch(ORDERS, [(Op.DELETE, 2, order(1))]))
    feed(lab, sink, late)
    commit(lab, sink, cut(2))
    expect(lab, sink, ORDERS, [])
    feed(lab, sink, late)
    expect(lab, sink, ORDERS, [])
    if lab.readable:
        too_late(lab, zombie, late, cut(1))
    expect(lab, sink, ORDERS, [])
    assert sink.applied() == cut(2)


def test_a_key_comes_back_at_the_very_next_position(lab: Lab) -> None:
    sink = ready(lab)
    for key_position in (1, 3, 5):
        feed(lab, sink, upserts(ORDERS, key_position, [order(1, f"at {key_position}")]))
        commit(lab, sink, cut(key_position))
        expect(lab, sink, ORDERS, [order(1, f"at {key_position}")])
        feed(lab, sink, batch(ORDERS, [(Op.DELETE, key_position + 1, order(1))]))
        commit(lab, sink, cut(key_position + 1))
        expect(lab, sink, ORDERS, [])


def test_a_zombie_with_an_old_sink_changes_nothing(lab: Lab) -> None:
    if not lab.readable:
        pytest.skip("a stream of lines has no guard across sinks")
    zombie = ready(lab)
    sink = ready(lab)
    old = upserts(ORDERS, 1, [order(1, "old"), order(2, "old"), order(3, "old")])
    feed(lab, sink, old)
    feed(lab, sink, batch(ORDERS, [(Op.UPDATE, 4, order(1, "new")), (Op.DELETE, 5, order(2))]))
    commit(lab, sink, cut(5))
    commit(lab, sink, cut(6))
    too_late(lab, zombie, old, cut(3))
    too_late(lab, zombie, batch(ORDERS, [(Op.UPDATE, 4, order(1, "new"))]), cut(4))
    assert sink.applied() == cut(6)
    expect(lab, sink, ORDERS, [order(1, "new"), order(3, "old")])


def test_a_key_change_is_delete_and_upsert(lab: Lab) -> None:
    sink = ready(lab)
    feed(lab, sink, upserts(ORDERS, 1, [order(1)]))
    feed(lab, sink, batch(ORDERS, [(Op.DELETE, 2, order(1)), (Op.INSERT, 3, order(100))]))
    commit(lab, sink, cut(3))
    expect(lab, sink, ORDERS, [order(100)])


def test_keys_swap(lab: Lab) -> None:
    sink = ready(lab)
    feed(lab, sink, upserts(ORDERS, 1, [order(1, "one"), order(2, "two")]))
    swap = [
        (Op.DELETE, 3, order(1)),
        (Op.INSERT, 4, order(3, "one")),
        (Op.DELETE, 5, order(2)),
        (Op.INSERT, 6, order(1, "two")),
        (Op.DELETE, 7, order(3)),
        (Op.INSERT, 8, order(2, "one")),
    ]
    feed(lab, sink, batch(ORDERS, swap))
    commit(lab, sink, cut(8))
    expect(lab, sink, ORDERS, [order(1, "two"), order(2, "one")])


def test_truncate_empties_one_table_for_good(lab: Lab) -> None:
    zombie = ready(lab, ORDERS, PAIRS)
    sink = ready(lab, ORDERS, PAIRS)
    old = upserts(ORDERS, 1, [order(1), order(2), order(3)])
    pair = {"a": "x", "b": "y", "v": "kept"}
    feed(lab, sink, old)
    feed(lab, sink, upserts(PAIRS, 4, [pair]))
    feed(lab, sink, batch(ORDERS, [(Op.TRUNCATE, 5, {})]))
    feed(lab, sink, upserts(ORDERS, 6, [order(2, "later")]))
    feed(lab, sink, old)
    if lab.readable:
        too_late(lab, zombie, old, cut(3))
    commit(lab, sink, cut(6))
    expect(lab, sink, ORDERS, [order(2, "later")])
    expect(lab, sink, PAIRS, [pair])
    feed(lab, sink, batch(ORDERS, [(Op.TRUNCATE, 5, {})]))
    commit(lab, sink, cut(6))
    expect(lab, sink, ORDERS, [order(2, "later")])


def test_neighbouring_large_keys_stay_apart_behind_a_truncate(lab: Lab) -> None:
    sink = ready(lab)
    feed(lab, sink, batch(ORDERS, [(Op.TRUNCATE, 1, {})]))
    rows = [order(2**63 - 1 - i) for i in range(3)]
    feed(lab, sink, upserts(ORDERS, 2, rows))
    commit(lab, sink, cut(4))
    expect(lab, sink, ORDERS, rows)


def test_a_column_is_added(lab: Lab) -> None:
    sink = ready(lab)
    feed(lab, sink, upserts(ORDERS, 1, [order(1), order(2)]))
    wider = dataclasses.replace(
        ORDERS, columns=(*ORDERS.columns, Column("rank", INT4, -1, "int4"), Column("extra", TEXT, -1, "text"))
    )
    sink.prepare(TopicSchema.of(wider))
    sink.prepare(TopicSchema.of(wider))
    feed(lab, sink, upserts(wider, 3, [order(2, rank="-7", extra="x"), order(3, rank=None, extra="")]))
    feed(lab, sink, upserts(ORDERS, 5, [order(4)]))  # a replay of older changes comes under its own, older version
    commit(lab, sink, cut(5))
    unset: dict[str, str | None] = {"rank": None, "extra": None}
    rows = [order(1, **unset), order(2, rank="-7", extra="x"), order(3, rank=None, extra=""), order(4, **unset)]
    expect(lab, sink, wider, rows)


NASTY = [
    "",
    " ",
    "plain",
    'quote " backslash \\ slash / tab \t newline \n return \r',
    "".join(map(chr, range(1, 0x20))) + "\x7f",
    "e\u0301 \u202e rtl \u2028 \uffff \U0001f6eb\U0001f1e9\U0001f1ea",
    "NULL",
    "null",
    '{"_cdc_position":99,"_cdc_deleted":true}',
    "{{1,2,NULL},{3,4,5}}",
    "$1 %s {id} *[a-z]? \\N \\E ::",
    "long " + "äöü€" * 20_000,
]


def test_nasty_text(lab: Lab) -> None:
    sink = ready(lab)
    rows: list[Row] = [order(i, text, note=text) for i, text in enumerate(NASTY)] + [order(99, None, note=None)]
    feed(lab, sink, upserts(ORDERS, 1, rows))
    commit(lab, sink, cut(len(rows)))
    expect(lab, sink, ORDERS, rows)


KEYS = [
    "",
    ":",
    "\\",
    "a",
    "a:",
    ":a",
    "a\\",
    "\\a",
    "\\:",
    "N",
    "\\N",
    "\\E",
    "a:b",
    "b:c",
    "c",
    "a ",
    "*",
    "[a]",
    "k" * 600,
    "k" * 599 + ":",
]
KEYS += ["ключ" * 100, "'\"", "\n", "{x}", "%", "#", "_", "-", ".", "..", "\U0001f511"]


def test_nasty_keys(lab: Lab) -> None:
    sink = ready(lab, PAIRS)
    rows: list[Row] = [{"a": a, "b": b, "v": f"{i} {j}"} for i, a in enumerate(KEYS) for j, b in enumerate(KEYS)]
    feed(lab, sink, upserts(PAIRS, 1, rows))
    commit(lab, sink, cut(len(rows)))
    expect(lab, sink, PAIRS, rows)
    feed(lab, sink, batch(PAIRS, [(Op.DELETE, len(rows) + 1 + i, row) for i, row in enumerate(rows[::2])]))
    commit(lab, sink, cut(2 * len(rows)))
    expect(lab, sink, PAIRS, rows[1::2])
    assert_fetched(lab, sink, PAIRS, rows[1::2], rows[::2])


def test_every_type_comes_back_exactly(lab: Lab) -> None:
    sink = ready(lab, TYPES)
    usual: Row = {
        "id": "usual",
        "small": "-32768",
        "int": "2147483647",
        "big": "-9223372036854775808",
        "flag": "t",
        "real": "0.1",
        "double": "0.30000000000000004",
        "money": "1.10",
        "wide": "-1234567890123456789012345678.0000000001",
        "free": "1.1000",
        "day": "2013-01-31",
        "clock": "23:59:59.000001",
        "at": "0001-01-01 00:00:00",
        "at utc": "9999-12-31 23:59:59.999999+00",
        "bytes": "\\x00ff",
        "doc": '{"a" : 1, "a":2, "n": 1e400, "s": "\\ud83d"}',
        "docb": '{"a": 1.10}',
        "uid": "6ec0bd7f-11c0-43da-975e-2a8ad9ebae0b",
        "tags": '{a,NULL,"b,c"}',
        'we.ird "name"\n': "odd",
        "_id": "own",
    }
    rows: list[Row] = [
        usual,
        {**dict.fromkeys(usual), "id": "nulls"},
        {
            **usual,
            "id": "edges",
            "big": "9223372036854775807",
            "flag": "f",
            "real": "1e-45",
            "double": "5e-324",
            "money": "0.00",
            "wide": "0.0000000000",
            "free": "0.000",
            "clock": "00:00:00",
            "at": "1969-12-31 23:59:59.5",
            "at utc": "2000-02-29 12:00:00.12+00",
            "bytes": "\\x",
            "doc": "null",
        },
        {
            **usual,
            "id": "more",
            "real": "3.4028235e+38",
            "double": "-0",
            "money": "-9999999999.99",
            "wide": "0.0000000001",
            "bytes": "\\x010203",
        },
        {
            **usual,
            "id": "whole",
            "real": "1.6777216e+07",
            "double": "1e+16",
            "money": "-0.01",
            "free": "1" + "0" * 1200,
            "bytes": "\\x01",
        },
        {
            **usual,
            "id": "outside",
            "real": "NaN",
            "double": "-Infinity",
            "money": "NaN",
            "wide": "NaN",
            "free": "Infinity",
            "day": "infinity",
            "clock": "24:00:00",
            "at": "0044-03-15 12:00:00 BC",
            "at utc": "294276-12-31 23:59:59.999999+00",
        },
        {**usual, "id": "outside too", "double": "Infinity", "day": "5874897-12-31", "at": "-infinity", "at utc": "infinity"},
    ]
    feed(lab, sink, upserts(TYPES, 1, rows))
    commit(lab, sink, cut(len(rows)))
    expect(lab, sink, TYPES, rows)
    assert_fetched(lab, sink, TYPES, rows, [{"id": "absent"}])


WIDE = Table(
    16404,
    "public",
    "wide",
    (
        Column("id", TEXT, -1, "", key=True),
        Column("many", NUMERIC, numeric(60, 20), ""),
        Column("small", NUMERIC, numeric(2, -3), ""),
        Column("doc", JSON, -1, ""),
        Column("at", TIMETZ, -1, ""),
        Column("span", INTERVAL, -1, ""),
        Column("bits", 1562, -1, ""),
        Column("state", 90_001, -1, "public.state"),
    ),
)


def test_wide_and_odd_values_are_held_or_named(lab: Lab) -> None:
    """Digits beyond any decimal type, keywords beyond Lucene's terms, keys beyond a document's id: held as they are, all of them."""
    sink = ready(lab, WIDE)
    usual: Row = {
        "id": "k" * 2500,
        "many": "-" + "9" * 40 + "." + "1" * 20,
        "small": "12000",
        "doc": '{"a" : "' + "x" * 40_000 + '", "n": 1' + "0" * 400 + "}",
        "at": "24:00:00-15:59:59",
        "span": "-177999999 years -10 mons -3 days +04:05:06.789",
        "bits": "",
        "state": 'with "quotes", {braces}',
    }
    rows: list[Row] = [
        usual,
        {**usual, "id": "k" * 2499 + "l", "many": "NaN", "doc": '"\\ud83d"', "state": "\u00e4" * 20_000},
        {**usual, "id": "abc ", "many": "-Infinity", "doc": "null"},
        {**usual, "id": "abc", "many": "0." + "0" * 20, "doc": None},
    ]
    assert feed(lab, sink, upserts(WIDE, 1, rows)) == Outcome(4)
    commit(lab, sink, cut(4))
    expect(lab, sink, WIDE, rows)
    assert_fetched(lab, sink, WIDE, rows, [{"id": "k" * 2498}])


def assert_fetched(lab: Lab, sink: Sink, table: Table, present: list[Row], absent: list[Row]) -> None:
    names = [column.name for column in table.key]
    wanted = [*present, *absent]
    arrays = [pa.array([row[name] for row in wanted], pa.utf8()) for name in names]
    found = sink.fetch(TopicSchema.of(table), pa.RecordBatch.from_arrays(arrays, names=names))
    assert found.schema.names == audit_schema(TopicSchema.of(table)).names
    if lab.readable:
        order_of = [[row[name] for name in names] for row in present]
        rows = sorted(found.to_pylist(), key=lambda row: order_of.index([row[name] for name in names]))
        assert rows == meant(sink, table, present)


def test_a_table_without_identity_keeps_every_insert(lab: Lab) -> None:
    if lab.kind == "redis":
        pytest.skip("a cache needs keys")
    events = dataclasses.replace(
        PAIRS, name="events", columns=tuple(dataclasses.replace(c, key=False) for c in PAIRS.columns), identity="n"
    )
    sink = ready(lab, events)
    rows: list[Row] = [{"a": "same", "b": "same", "v": None}] * 3
    for _ in range(2):
        feed(lab, sink, upserts(events, 1, rows))
    commit(lab, sink, cut(3))
    expect(lab, sink, events, rows)


def test_many_rows(lab: Lab) -> None:
    sink = ready(lab)
    rows: list[Row] = [order(i, f"state {i % 7}", amount=f"{i}.{i % 100:02d}") for i in range(5000)]
    feed(lab, sink, upserts(ORDERS, 1, rows))
    feed(lab, sink, batch(ORDERS, [(Op.DELETE, 5001 + i, rows[i]) for i in range(0, 5000, 10)]))
    commit(lab, sink, cut(5500))
    expect(lab, sink, ORDERS, [row for i, row in enumerate(rows) if i % 10])


def test_an_answer_is_lost_after_the_write(lab: Lab) -> None:
    if lab.server is None or lab.spread:
        pytest.skip("has not one server")
    proxy = LossyProxy(lab.server.port)
    sink = lab.opened(url=lab.url_at(proxy.port))
    sink.prepare(TopicSchema.of(ORDERS))
    first = upserts(ORDERS, 1, [order(1), order(2)])
    second = batch(ORDERS, [(Op.DELETE, 3, order(1)), (Op.UPDATE, 4, order(2, "paid"))])
    for changes in (first, second):
        if not lab.staged:
            proxy.lose_answers = True
            with pytest.raises(StoreError) as failure:
                sink.apply(changes)
            assert failure.value.retryable
            assert proxy.lost
            proxy.lose_answers = False
        feed(lab, sink, changes)
    proxy.lose_answers = True
    with pytest.raises(StoreError) as failure:
        commit(lab, sink, cut(4))
    assert failure.value.retryable
    assert proxy.lost
    proxy.lose_answers = False
    commit(lab, sink, cut(4))
    assert sink.applied() == cut(4)
    expect(lab, sink, ORDERS, [order(2, "paid")])
    proxy.close()


def test_the_store_goes_down_and_comes_back(lab: Lab) -> None:
    if lab.server is None:
        pytest.skip("has no server")
    sink = ready(lab)
    feed(lab, sink, upserts(ORDERS, 1, [order(1)]))
    commit(lab, sink, cut(1))
    lab.server.stop()
    try:
        for attempt in (
            *(() if lab.staged else (lambda: sink.apply(upserts(ORDERS, 2, [order(2)])),)),
            lambda: commit(lab, sink, cut(2)),
            lambda: lab.applied(),
        ):
            with pytest.raises(StoreError) as failure:
                attempt()
            assert failure.value.retryable
            assert failure.value.hint
    finally:
        lab.server.start()
    assert lab.open(sink) == cut(1)
    sink.prepare(TopicSchema.of(ORDERS))
    feed(lab, sink, upserts(ORDERS, 2, [order(2)]))
    commit(lab, sink, cut(2))
    expect(lab, sink, ORDERS, [order(1), order(2)])
