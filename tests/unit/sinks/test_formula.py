"""Which rows a store holds, and what it computes of them: pure, over definitions and batches."""

from __future__ import annotations

import dataclasses
from typing import Any

import pyarrow as pa
import pytest

from cdc.errors import ConfigError
from cdc.model.batch import OP, Op, topic_schema
from cdc.model.pgtypes import INT4, INT8, TEXT
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from cdc.settings.models import StoreOptions
from sinks import options_model
from sinks.heldlog import HeldLog
from sinks.holding import Holding, bound, check, decoded, failures_of, foreseen
from sinks.holdingchange import settled
from sinks.render.rowtext import keys, row_text
from tests.contract.rows import Row, batch, schema, upserts
from tests.logs import LooseLog
from tests.unit.sinks.test_holding import ROWS, SCHEMA, TABLE

T = Table(
    7,
    "public",
    "t",
    (
        Column("id", INT8, key=True, attnum=1),
        Column("status", TEXT, attnum=2),
        Column("a", INT4, attnum=3),
        Column("b", INT4, attnum=4),
    ),
)
TOPIC = TopicSchema.of(T)
SAID: dict[str, Any] = {"where": "status = 'x'", "computed": {"ratio": "a / b"}}


def options(pattern: str = "public.t", **said: Any) -> StoreOptions:
    return options_model("redis").model_validate({"kind": "redis", "url": "redis://127.0.0.1:1", "tables": {pattern: said}})


def holding(**said: Any) -> Holding:
    return bound("s", options(**said), TOPIC)


def row(key: int, status: str | None, a: str | None = "6", b: str | None = "3") -> Row:
    return {"id": str(key), "status": status, "a": a, "b": b}


def given(changes: pa.RecordBatch) -> list[tuple[str, str | None]]:
    """(operation, ratio)"""
    texts = row_text(changes, topic_schema(changes.schema)).to_pylist()
    return [(chr(op), one.get("ratio")) for op, one in zip(changes.column(OP).to_pylist(), texts, strict=True)]


def without(*names: str, **types: int) -> Table:
    columns = tuple(dataclasses.replace(one, type_oid=types.get(one.name, one.type_oid)) for one in T.columns)
    return dataclasses.replace(T, columns=tuple(one for one in columns if one.name not in names))


def test_a_change_after_which_the_condition_is_not_true_is_a_delete_at_its_position() -> None:
    changes = holding(**SAID).batch(
        batch(
            T,
            [
                (Op.INSERT, 1, row(1, "x")),
                (Op.UPDATE, 2, row(2, "y")),
                (Op.READ, 3, row(3, None)),
                (Op.UPDATE, 4, row(4, "x", "7")),
                (Op.DELETE, 5, row(5, "x")),
            ],
        )
    )
    assert given(changes) == [("c", "2"), ("d", "2"), ("d", "2"), ("u", "2"), ("d", None)]
    assert changes.column(0).to_pylist() == [1, 2, 3, 4, 5], "the store's progress does not depend on what is left out"
    assert not failures_of(changes)


def test_a_row_fails_alone_and_what_is_left_out_cannot_fail() -> None:
    changes = holding(**SAID).batch(upserts(T, 1, [row(1, "x", b="0"), row(2, "y", b="0"), row(3, "x"), row(4, "x", b=None)]))
    assert given(changes) == [("d", None), ("d", None), ("c", "2"), ("c", None)]
    assert failures_of(changes) == {0: "computed.ratio: division by zero (22012)"}
    failing = holding(where="a / b > 1").batch(upserts(T, 1, [row(1, "x", b="0"), row(2, "x")]))
    assert failures_of(failing) == {0: "where: division by zero (22012)"}
    assert not failures_of(failing.slice(1)), "a part of the batch knows of its own rows"
    deletes = holding(computed={"x": "1 / coalesce(a, 0)"}).batch(batch(T, [(Op.DELETE, 1, row(1, "x"))]))
    assert not failures_of(deletes), "a delete's record has its key only"


def test_the_audit_sees_the_rows_that_the_store_is_given() -> None:
    rows = [row(1, "x"), row(2, "y"), row(3, None), row(4, "x", b="0"), row(5, "x", "9")]
    some = holding(**SAID, exclude=["a"], rename={"ratio": "r"})
    held = some.held(TOPIC)
    assert held.names == ("id", "status", "b", "r")
    texts = row_text(upserts(T, 1, rows), TOPIC).append_column("_cdc_xmin", pa.array([str(n) for n in range(5)]))
    found = some.rows(texts, TOPIC)
    assert found.schema.names == [*held.names, "_cdc_xmin"]
    assert [(one["id"], one["r"], one["_cdc_xmin"]) for one in found.to_pylist()] == [
        ("1", "2", "0"),
        ("4", None, "3"),
        ("5", "3", "4"),
    ], "a row that fails is expected, and missing"


def test_values_that_no_arrow_type_holds() -> None:
    """NaN of a numeric with a scale stands beside its column."""
    some = bound("s", options("public.people", where="cost > 1", computed={"same": "cost"}), SCHEMA)
    changes = some.batch(upserts(TABLE, 1, ROWS))
    assert changes.column(OP).to_pylist() == [Op.INSERT, Op.INSERT], "NaN is more than any number"
    texts = row_text(changes, some.held(SCHEMA))
    assert texts.column("same").to_pylist() == ["NaN", "1.10"]
    assert some.rows(row_text(upserts(TABLE, 1, ROWS), SCHEMA), SCHEMA).to_pylist() == texts.to_pylist()


def test_a_row_without_a_key_is_told_apart_by_its_position() -> None:
    keyless = dataclasses.replace(T, identity="n", columns=tuple(dataclasses.replace(one, key=False) for one in T.columns))
    some = bound("s", options(where="status = 'x'"), TopicSchema.of(keyless))
    changes = some.batch(upserts(keyless, 1, [row(1, "y"), row(2, "x"), row(3, None)]))
    assert keys(changes, some.held(TopicSchema.of(keyless))).to_pylist() == ["1", "2", "3"]
    assert changes.column(OP).to_pylist() == [Op.DELETE, Op.INSERT, Op.DELETE]


def test_rows_of_the_table_as_a_whole_are_what_they_are() -> None:
    some = holding(**SAID)
    truncate = some.batch(batch(T, [(Op.TRUNCATE, 3, {})]))
    assert (truncate.column(OP).to_pylist(), topic_schema(truncate.schema)) == ([Op.TRUNCATE], some.held(TOPIC))
    assert topic_schema(some.batch(schema(T, 4)).schema).names[-1] == "ratio"
    assert len(some.batch(upserts(T, 1, []))) == 0


# --- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"where": "statuss = 'x'"}, r'stores\.s\.tables\."public\.t"\.where: public\.t: line 1, column 1: column statuss does not exist'),
        ({"where": "a + b"}, r"where: public\.t: line 1, column \d+: a condition is boolean, and this is integer"),
        ({"where": " "}, r"where: public\.t: line 1, column"),
        ({"computed": {"x": ""}}, r"computed\.x: public\.t: line 1, column 1"),
        ({"where": "a >"}, r"where: public\.t: line 1, column 4"),
        ({"computed": {"x": "a +\n  lower(status)"}}, r"computed\.x: public\.t: line 2, column 3"),
        ({"computed": {"a": "b"}}, r"computed\.a: public\.t has a column a"),
        ({"computed": {"x": "a"}, "rename": {"b": "x"}}, "b and x cannot both be there"),
        ({"computed": {"x": "a"}, "rename": {"x": "b"}}, "b and x cannot both be there: one is b, the other b|x and b cannot both"),
        ({"computed": {"x": "a"}, "columns": ["id"]}, r"\.computed: the store does not hold x of public\.t"),
        ({"computed": {"_cdc_op": "a"}}, "_cdc_op cannot become _cdc_op, a name of our own"),
        ({"where": "status IN (SELECT 1)"}, "line 1, column"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name_and_place(said: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check("s", options(**said), TOPIC)
    with pytest.raises(ConfigError, match=message):
        foreseen("s", options(**said), [TOPIC])


@pytest.mark.parametrize("said", [{"computed": {"x.y": "1"}}, {"computed": {"": "1"}}])
def test_what_cannot_be_a_name_is_refused_as_it_is_read(said: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is not a name"):
        options(**said)


def test_a_pattern_s_condition_has_to_fit_every_table_that_it_matches() -> None:
    other = TopicSchema.of(Table(1, "public", "other", (Column("id", INT8, key=True, attnum=1),)))
    with pytest.raises(ConfigError, match=r'"public\.\*"\.where: public\.other: line 1, column 1: column status does not exist'):
        foreseen("s", options("public.*", where="status = 'x'"), [TOPIC, other])


def test_the_later_of_two_patterns_decides_which_rows_and_what_is_computed_adds_up() -> None:
    raw = {
        "select": ["*"],
        "public.*": {"where": "a = 1", "computed": {"x": "a", "y": "a"}},
        "public.t": {"where": "a = 2", "computed": {"y": "b"}},
    }
    found = bound("s", options_model("console").model_validate({"kind": "console", "tables": raw}), TOPIC)
    assert found.where is not None
    assert (found.where.text, [(name, one.text) for name, one in found.computed]) == ("a = 2", [("x", "a"), ("y", "b")])


# --- a configuration that changes --------------------------------------------------------------------------------------


def test_the_text_says_all_of_it() -> None:
    some = holding(**SAID, columns=["id", "ratio"])
    again = decoded(some.text)
    assert (again.text, again.held(TOPIC)) == (some.text, some.held(TOPIC))
    assert TopicSchema.from_json(some.held(TOPIC).to_json()) == some.held(TOPIC)
    changes = upserts(T, 1, [row(1, "x"), row(2, "y")])
    assert again.batch(changes).to_pylist() == some.batch(changes).to_pylist()


@pytest.mark.parametrize(
    ("former", "wanted", "differs"),
    [
        ({}, {"where": "a = 1"}, "other rows of public.t than cdc.toml says: where is said, and was not"),
        ({"where": "a = 1"}, {}, "other rows of public.t than cdc.toml says: where was said, and is not"),
        ({"where": "a = 1"}, {"where": "a = 2"}, "other rows of public.t than cdc.toml says: where is another expression"),
        ({"where": "a = 1"}, {"where": "b = 1"}, "where is another expression"),
        (
            {"computed": {"x": "a"}},
            {"computed": {"x": "b"}},
            "other columns of public.t than cdc.toml says: computed.x is another expression",
        ),
        ({"computed": {"x": "a"}}, {"computed": {"y": "a"}}, "y is held, and was not; x was held, and is not"),
        ({}, {"computed": {"y": "a"}}, "y is held, and was not"),
    ],
)
def test_another_choice_of_rows_is_refused_and_says_what_differs(
    former: dict[str, Any], wanted: dict[str, Any], differs: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        settled("s", TOPIC, holding(**former), holding(**wanted))
    assert differs in str(refused.value)
    assert "--rebuild" in (refused.value.hint or "")


def test_the_same_condition_in_other_words_goes_on() -> None:
    former = holding(where="a = 1 AND (b < 2)")
    assert settled("s", TOPIC, former, holding(where="a=1\n  and b<2")).text == former.text


# --- definitions that change -------------------------------------------------------------------------------------------


def test_a_column_that_the_source_renames_is_still_the_one_that_was_meant() -> None:
    former = holding(**SAID)
    names = {"status": "state", "b": "status"}
    later = dataclasses.replace(T, columns=tuple(dataclasses.replace(one, name=names.get(one.name, one.name)) for one in T.columns))
    topic = TopicSchema.of(later)
    assert former.unmet(topic) is None
    changes = former.batch(upserts(later, 1, [{"id": "1", "state": "x", "a": "6", "status": "2"}, {"id": "2", "state": "y", "a": "6", "status": "2"}]))  # fmt: skip
    assert given(changes) == [("c", "3"), ("d", "3")]
    assert settled("s", topic, former, bound("s", options(**SAID), topic)).text == former.text, "the file as it was"
    corrected: dict[str, Any] = {"where": "state = 'x'", "computed": {"ratio": "a / status"}}
    assert settled("s", topic, former, bound("s", options(**corrected), topic)).text == former.text


def test_an_earlier_definition_that_lacks_the_column_gives_null() -> None:
    before = without("status")
    changes = bound("s", options(where="status IS NULL"), TOPIC).batch(upserts(before, 1, [{"id": "1", "a": "1", "b": "1"}]))
    assert changes.column(OP).to_pylist() == [Op.INSERT]
    other = dataclasses.replace(before, columns=(*before.columns, Column("status", TEXT, attnum=9)))
    changes = holding(where="status IS NULL").batch(upserts(other, 1, [row(1, "x")]))
    assert changes.column(OP).to_pylist() == [Op.INSERT], "a column that only has the name is another"


def test_an_earlier_type_is_read_as_the_later_one() -> None:
    before = without(a=TEXT)
    changes = holding(**SAID).batch(upserts(before, 1, [row(1, "x", "6"), row(2, "x", "six")]))
    assert given(changes) == [("c", "2"), ("c", None)]


@pytest.mark.parametrize(
    ("later", "why"),
    [
        (without("status"), r"where uses status, which public\.t no longer has"),
        (without("b"), r"computed\.ratio uses b, which public\.t no longer has"),
        (without(a=TEXT), r"computed\.ratio uses a, whose type was integer and is text"),
        (dataclasses.replace(without("a"), columns=(*without("a").columns, Column("a", INT4, attnum=8))), "uses a, which"),
    ],
)
def test_a_later_definition_that_an_expression_says_nothing_of_stops_the_store(later: Table, why: str) -> None:
    log = LooseLog()
    log.put(upserts(T, 1, [row(1, "x")]))
    held = HeldLog(log.reader(), "s", options(**SAID))
    assert [len(one) for one in held.read("public.t", 0, 1)] == [1]  # type: ignore[arg-type]
    log.put(schema(later, 2))
    with pytest.raises(ConfigError, match=why) as refused:
        list(held.read("public.t", 1, 2))  # type: ignore[arg-type]
    assert "--rebuild" in (refused.value.hint or "")
    assert str(refused.value).startswith('stores.s.tables."public.t".')
    with pytest.raises(ConfigError, match=why):
        settled("s", TopicSchema.of(later), holding(**SAID), bound("s", options(**SAID), TopicSchema.of(later)))


def test_a_definition_from_before_is_read_through() -> None:
    """What a store that is built again goes through is no reason to stop, if the newest definition has all that is used."""
    log = LooseLog()
    log.put(upserts(without("status"), 1, [{"id": "1", "a": "1", "b": "1"}]))
    log.put(schema(T, 2))
    log.put(upserts(T, 3, [row(2, "x")]))
    held = HeldLog(log.reader(), "s", options(**SAID))
    found = list(held.read("public.t", 0, 3))  # type: ignore[arg-type]
    assert [one.column(OP).to_pylist() for one in found] == [[Op.DELETE], [Op.SCHEMA], [Op.INSERT]]


def test_a_column_that_comes_later_under_the_name_of_what_is_computed_is_not_held_and_stops_nothing() -> None:
    some = holding(**SAID)
    later = dataclasses.replace(T, columns=(*T.columns, Column("ratio", TEXT, attnum=8)))
    topic = TopicSchema.of(later)
    assert some.held(topic).names == some.held(TOPIC).names
    rows = row_text(upserts(later, 1, [{**row(1, "x"), "ratio": "theirs"}]), topic)
    assert some.rows(rows, topic).to_pylist()[0]["ratio"] == "2"
    with pytest.raises(ConfigError, match=r"public\.t has a column ratio"):
        check("s", options(**SAID), topic)
