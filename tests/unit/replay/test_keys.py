"""What a change of a table's key means for net changes and for `--key`."""

from __future__ import annotations

import dataclasses

import pytest

from cdc.errors import ConfigError
from cdc.log.memory import MemoryReader
from cdc.model.batch import OP, Op, topic_schema
from cdc.model.pgtypes import (
    BOOL,
    BPCHAR,
    BYTEA,
    DATE,
    FLOAT8,
    INT4,
    NUMERIC,
    TEXT,
    TIME,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
)
from cdc.model.position import Position
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from cdc.replay.match import KeyMatch, TextMatch
from cdc.replay.netchange import net_changes
from sinks.render.rowtext import row_text
from tests.contract.rows import Row, batch, schema
from tests.unit.sinks.test_past import logged

INET = 869
A = Column("a", INT4, -1, "int4", key=True, attnum=1)
B = Column("b", INT4, -1, "int4", attnum=2)
BY_A = Table(900, "public", "pairs", (A, B))
BY_B = dataclasses.replace(BY_A, columns=(dataclasses.replace(A, key=False), dataclasses.replace(B, key=True)))
RENAMED = dataclasses.replace(BY_A, columns=(dataclasses.replace(A, name="number"), B))


def nets(log: MemoryReader, after: int, upto: int) -> list[tuple[str, Row]]:
    return [
        (chr(op), row)
        for one in net_changes(log, "public.pairs", Position(after), Position(upto))
        for op, row in zip(
            one.changes.column(OP).to_pylist(), row_text(one.changes, topic_schema(one.changes.schema)).to_pylist(), strict=True
        )
    ]


def test_a_row_that_came_back_under_its_keys_new_name_is_not_gone() -> None:
    log = logged(
        batch(BY_A, [(Op.INSERT, 1, {"a": "1", "b": "2"})]),
        batch(BY_A, [(Op.DELETE, 2, {"a": "1"})]),
        schema(RENAMED, 3),
        batch(RENAMED, [(Op.INSERT, 4, {"number": "1", "b": "3"})]),
    )
    assert nets(log, 1, 4) == [("u", {"number": "1", "b": "3"})]


def test_a_key_that_was_another_one_in_between() -> None:
    log = logged(
        batch(BY_A, [(Op.INSERT, 1, {"a": "3", "b": "5"}), (Op.INSERT, 2, {"a": "5", "b": "9"})]),
        schema(BY_B, 3),
        batch(BY_B, [(Op.DELETE, 4, {"b": "5"})]),
        schema(BY_A, 5),
    )
    assert nets(log, 2, 5) == [("d", {"a": "3", "b": "5"})], "and not the row whose a is 5"


def test_a_key_goes_by_its_name_where_the_table_was_another_one() -> None:
    former = Table(1, "public", "r", (dataclasses.replace(A, name="id"), dataclasses.replace(B, name="quantity")))
    now = Table(2, "public", "r", (dataclasses.replace(A, name="quantity", key=False), dataclasses.replace(B, name="id", key=True)))
    changes = batch(
        former,
        [
            (Op.INSERT, 1, {"id": "7", "quantity": "1"}),
            (Op.INSERT, 2, {"id": "8", "quantity": "7"}),
            (Op.DELETE, 3, {"id": "7"}),
        ],
    )
    assert KeyMatch.of(TopicSchema.of(now), ["7"]).rows(changes).to_pylist() == [True, False, True]


@pytest.mark.parametrize(
    ("kind", "modifier", "held", "spellings"),
    [
        (INT4, -1, "1", ["01", " 1 "]),
        (NUMERIC, 10 << 16 | 2 + 4, "1.00", ["1", "1.0", "1e0"]),
        (NUMERIC, 10 << 16 | 2 + 4, "NaN", ["nan"]),
        (NUMERIC, -1, "1.00", ["1", "1.0", "01.000", "1e0", "100e-2"]),
        (NUMERIC, -1, "100", ["100.0", "1e2"]),
        (NUMERIC, -1, "-1.50", ["-1.5"]),
        (NUMERIC, -1, "0.00", ["0", "-0"]),
        (NUMERIC, -1, "NaN", ["nan"]),
        (FLOAT8, -1, "1", ["1.0", "1e0"]),
        (BOOL, -1, "t", ["true", "yes"]),
        (BYTEA, -1, "\\x00ff", ["\\x00FF"]),
        (UUID, -1, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", ["A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11"]),
        (DATE, -1, "2026-11-22", ["2026-11-22 "]),
        (TIME, -1, "10:00:00", ["10:00"]),
        (TIMESTAMP, -1, "2026-11-22 10:00:00", ["2026-11-22T10:00:00"]),
        (TIMESTAMP, -1, "infinity", []),
        (TIMESTAMPTZ, -1, "2026-11-22 10:00:00+00", ["2026-11-22T10:00:00Z", "2026-11-22 12:00:00+02"]),
    ],
)
def test_a_key_may_be_spelled_in_any_way_that_its_type_has(kind: int, modifier: int, held: str, spellings: list[str]) -> None:
    table = Table(900, "public", "keyed", (Column("id", kind, modifier, "some", key=True, attnum=1),))
    changes = batch(table, [(Op.INSERT, 1, {"id": held})])
    for given in (held, *spellings):
        assert KeyMatch.of(TopicSchema.of(table), [given]).rows(changes).to_pylist() == [True], given
    with pytest.raises(ConfigError, match="not a value of its type, some") as refused:
        KeyMatch.of(TopicSchema.of(table), ["secret"])
    assert "secret" not in refused.value.line()


def test_a_text_is_its_own_key_with_its_spaces_and_case() -> None:
    table = Table(900, "public", "keyed", (Column("id", TEXT, -1, "text", key=True, attnum=1),))
    changes = batch(table, [(Op.INSERT, 1, {"id": "A "}), (Op.INSERT, 2, {"id": "a"}), (Op.INSERT, 3, {"id": "A"})])
    assert KeyMatch.of(TopicSchema.of(table), ["A "]).rows(changes).to_pylist() == [True, False, False]


def test_an_unknown_column_is_answered_with_those_there_are() -> None:
    with pytest.raises(ConfigError) as refused:
        TextMatch("x", ("c",)).check([TopicSchema.of(BY_A), TopicSchema.of(RENAMED)])
    assert refused.value.hint == "one of a, b, number"


@pytest.mark.parametrize(("held", "others"), [("100", ["10", "1"]), ("1.05", ["1.5", "1.005"]), ("0", ["1"])])
def test_another_number_is_another_key(held: str, others: list[str]) -> None:
    table = Table(900, "public", "keyed", (Column("id", NUMERIC, -1, "numeric", key=True, attnum=1),))
    changes = batch(table, [(Op.INSERT, 1, {"id": held})])
    for given in others:
        assert KeyMatch.of(TopicSchema.of(table), [given]).rows(changes).to_pylist() == [False], given
    with pytest.raises(ConfigError, match="not a value of its type, numeric"):
        KeyMatch.of(TopicSchema.of(table), ["1e999999999"])


def test_what_pads_a_character_column_is_not_part_of_its_key() -> None:
    table = Table(900, "public", "keyed", (Column("id", BPCHAR, 7, "bpchar", key=True, attnum=1),))
    changes = batch(table, [(Op.INSERT, 1, {"id": "A  "}), (Op.INSERT, 2, {"id": "a  "}), (Op.INSERT, 3, {"id": " A "})])
    for given in ("A", "A  ", "A     "):
        assert KeyMatch.of(TopicSchema.of(table), [given]).rows(changes).to_pylist() == [True, False, False]


def test_a_key_that_is_not_there_is_told_how_its_type_is_spelled() -> None:
    table = Table(
        900,
        "public",
        "keyed",
        (Column("id", INT4, -1, "int4", key=True, attnum=1), Column("host", INET, -1, "inet", key=True, attnum=2)),
    )
    said = KeyMatch.of(TopicSchema.of(table), ["id=4711", "host=10.0.0.1/32"]).absence()
    assert said == (
        "no change of this key in what was searched; host is compared as text: it has to be spelled as Postgres prints a value of its type, "
        "inet (SELECT host::text)"
    )
    of_a_number = KeyMatch.of(TopicSchema.of(BY_A), ["4711"]).absence()
    assert of_a_number == "no change of this key in what was searched"
