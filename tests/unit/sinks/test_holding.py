"""What a store holds of a topic: pure, over definitions and batches."""

from __future__ import annotations

import dataclasses
from typing import Any

import pyarrow as pa
import pytest

from cdc.errors import ConfigError
from cdc.model.batch import Op, topic_schema
from cdc.model.evolution import Kind, TopicChange, topic_change_of
from cdc.model.pgtypes import INT8, JSONB, NUMERIC, TEXT
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from cdc.settings.models import StoreOptions
from sinks import options_model
from sinks.holding import Holding, bound, check, decoded, foreseen
from sinks.holdingchange import settled
from sinks.policy import Action, judge
from sinks.render.jsonrows import lines, plain_documents
from sinks.render.jsontext import may_be_row, parse, row_texts
from sinks.render.rowtext import keys, row_text, split_keys
from sinks.reshape import conformed, reshaped
from tests.contract.rows import Row, batch, numeric, schema, upserts

TABLE = Table(
    16700,
    "public",
    "people",
    (
        Column("id", INT8, -1, "", key=True, attnum=1),
        Column("name", TEXT, -1, "", attnum=2),
        Column("city", TEXT, -1, "", attnum=3),
        Column("cost", NUMERIC, numeric(12, 2), "", attnum=4),
        Column("zip", TEXT, -1, "", attnum=5),
        Column("more", JSONB, -1, "", attnum=6),
    ),
)
SCHEMA = TopicSchema.of(TABLE)
ROWS: list[Row] = [
    {"id": "1", "name": "Ada", "city": "Köln", "cost": "NaN", "zip": "50667", "more": '{"a":1}'},
    {"id": "2", "name": None, "city": None, "cost": "1.10", "zip": None, "more": None},
]
ADDRESS = {"city": "address.city", "zip": "address.zip", "more": "address.more"}


def options(kind: str = "opensearch", /, pattern: str = "public.people", **said: Any) -> StoreOptions:
    needed = {"opensearch": {"url": "http://127.0.0.1:1"}, "redis": {"url": "redis://127.0.0.1:1"}, "iceberg": {"path": "w"}}
    raw = {"kind": kind, **needed.get(kind, {}), "tables": {pattern: said}}
    return options_model(kind).model_validate(raw)


def holding(kind: str = "opensearch", /, **said: Any) -> Holding:
    return bound("s", options(kind, **said), SCHEMA)


def altered(**names: str) -> TopicSchema:
    """Columns with other names."""
    columns = tuple(dataclasses.replace(column, name=names.get(column.name, column.name)) for column in TABLE.columns)
    return TopicSchema.of(dataclasses.replace(TABLE, columns=columns))


def texts(rows: pa.RecordBatch) -> list[dict[str, str | None]]:
    return row_text(rows, topic_schema(rows.schema)).to_pylist()


def test_a_store_without_a_choice_holds_the_topic_as_it_is() -> None:
    every = bound("s", options(), SCHEMA)
    changes = upserts(TABLE, 1, ROWS)
    assert (every.text, every.held(SCHEMA)) == ("", SCHEMA)
    assert every.batch(changes) is changes
    assert not any(word in SCHEMA.to_json() for word in ("holding", "shown", "path")), "what stores keep stays as it was"


def test_columns_exclude_and_rename() -> None:
    some = holding(columns=["id", "name", "cost"], rename={"name": "title"})
    changes = some.batch(upserts(TABLE, 1, ROWS))
    assert texts(changes) == [{"id": "1", "title": "Ada", "cost": "NaN"}, {"id": "2", "title": None, "cost": "1.10"}]
    assert topic_schema(changes.schema) is some.held(SCHEMA), "equal schemas are one object"
    assert topic_schema(holding(exclude=["cost", "more"]).batch(changes_of()).schema).names == ("id", "name", "city", "zip")
    renamed = holding(exclude=["name"], rename={"cost": "price"}).batch(changes_of())
    assert texts(renamed)[0]["price"] == "NaN", "exact values go by the new name"
    rows = row_text(changes_of(), SCHEMA)
    assert some.rows(rows, SCHEMA).to_pylist() == texts(changes), "the audit sees what the store is given"


def changes_of() -> pa.RecordBatch:
    return upserts(TABLE, 1, ROWS)


def test_a_key_that_is_not_listed_is_known_and_not_shown() -> None:
    some = holding(columns=["name"])
    changes = some.batch(batch(TABLE, [(Op.INSERT, 1, ROWS[0]), (Op.DELETE, 2, ROWS[1])]))
    held = topic_schema(changes.schema)
    assert [(one.name, one.key, one.shown) for one in held.fields] == [("id", True, False), ("name", False, True)]
    assert keys(changes, held).to_pylist() == ["1", "2"]
    assert plain_documents(changes.slice(0, 1), held).data.tobytes() == b'{"name":"Ada"}'
    for kind in ("iceberg", "console"):
        with pytest.raises(ConfigError, match="id cannot be left out"):
            bound("s", options(kind, columns=["name"]), SCHEMA).held(SCHEMA)


def test_rows_without_a_key_are_told_apart_by_all_of_their_columns() -> None:
    columns = tuple(dataclasses.replace(column, key=True) for column in TABLE.columns)
    whole = TopicSchema.of(dataclasses.replace(TABLE, columns=columns, identity="f"))
    with pytest.raises(
        ConfigError, match="the table has no key, so that all of its columns tell its rows apart; cost cannot be left out"
    ):
        bound("s", options(exclude=["cost"]), whole).held(whole)


def test_a_dotted_name_makes_an_object() -> None:
    some = holding(exclude=["cost"], rename=ADDRESS)
    held = some.held(SCHEMA)
    assert held.names == ("id", "name", "address.city", "address.zip", "address.more"), "members stand together"
    changes = some.batch(changes_of())
    documents = [parse(line) for line in lines(changes, held).splitlines()]
    assert [document["address"] for document in documents] == [
        {"city": "Köln", "zip": "50667", "more": {"a": 1}},
        {"city": None, "zip": None},
    ]
    assert row_texts(documents, held).to_pylist()[0]["address.zip"] == "50667"
    gone = some.batch(batch(TABLE, [(Op.DELETE, 2, ROWS[1])]))
    assert b"address" not in lines(gone, held)
    deep = bound("s", options(rename={"zip": "a.b.c", "city": "a.d"}), SCHEMA)
    assert parse(plain_documents(deep.batch(changes_of()), deep.held(SCHEMA)).to_array()[0].as_py())["a"] == {
        "d": "Köln",
        "b": {"c": "50667"},
    }


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"columns": ["id", "nmae"]}, r'stores.s.tables."public.people".columns: public.people has no column nmae'),
        ({"exclude": ["nmae"]}, r"exclude: public.people has no column nmae"),
        ({"rename": {"nmae": "x"}}, r"rename: public.people has no column nmae"),
        ({"columns": ["id"], "rename": {"name": "title"}}, "the store does not hold name of public.people"),
        ({"exclude": ["name"], "rename": {"name": "title"}}, "the store does not hold name"),
        ({"rename": {"name": "city"}}, "name and city cannot both be there"),
        ({"rename": {"name": "city.name"}}, "city and name cannot both be there|name and city cannot both be there"),
        ({"rename": {"id": "number"}}, "id is part of the key, which keeps its names"),
        ({"rename": {"name": "_cdc_position"}}, "a name of our own"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_by_name(said: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        check("s", options(**said), SCHEMA)
    assert refused.value.hint
    with pytest.raises(ConfigError):
        foreseen("s", options(**said), [SCHEMA])


def test_a_swap_of_names_is_no_collision() -> None:
    held = holding(rename={"name": "city", "city": "name"}).held(SCHEMA)
    assert [(one.column_name, one.name) for one in held.fields][1:3] == [("name", "city"), ("city", "name")]


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"columns": ["id"], "exclude": ["cost"]}, "both columns and exclude"),
        ({"columns": []}, "is empty"),
        ({"columns": ["id", "id"]}, "names id twice"),
        ({"rename": {"name": "x", "city": "x"}}, "name and city cannot both be there"),
        ({"rename": {"name": "x", "city": "x.y"}}, "name and city cannot both be there"),
        ({"rename": {"name": "x..y"}}, "is not a name"),
        ({"rename": {"name": "_x.y"}}, "is not a name"),
    ],
)
def test_what_contradicts_itself_is_refused_as_it_is_read(said: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        options(**said)


def test_a_warehouse_has_columns_and_no_objects() -> None:
    assert options("iceberg", rename={"name": "title"})
    with pytest.raises(ValueError, match=r"a store of kind iceberg has columns, not objects: it cannot hold address.city"):
        options("iceberg", rename=ADDRESS)


def test_a_pattern_may_say_it_of_tables_that_have_it() -> None:
    other = TopicSchema.of(Table(1, "public", "other", (Column("id", INT8, key=True, attnum=1),)))
    given = options(pattern="public.*", exclude=["cost"])
    assert [one.names for one in foreseen("s", given, [SCHEMA, other])] == [("id", "name", "city", "zip", "more"), ("id",)]
    with pytest.raises(ConfigError, match="has no column cots"):
        foreseen("s", options(pattern="public.*", exclude=["cots"]), [SCHEMA, other])
    with pytest.raises(ConfigError, match="no such table is captured"):
        foreseen("s", options(pattern="public.peple", exclude=["cost"]), [SCHEMA])


def test_the_later_of_two_patterns_decides() -> None:
    raw = {
        "select": ["*"],
        "public.*": {"exclude": ["cost"], "rename": {"zip": "code"}},
        "public.people": {"columns": ["id", "zip"]},
    }
    given = options_model("console").model_validate({"kind": "console", "tables": raw})
    assert bound("s", given, SCHEMA).held(SCHEMA).names == ("id", "code")


# --- definitions that change -------------------------------------------------------------------------------------------


def test_a_list_keeps_a_new_column_out_and_exclude_lets_it_in() -> None:
    more = TopicSchema.of(dataclasses.replace(TABLE, columns=(*TABLE.columns, Column("new", TEXT, attnum=7))))
    assert holding(columns=["id", "name"]).held(more).names == ("id", "name")
    assert holding(exclude=["cost"]).held(more).names == ("id", "name", "city", "zip", "more", "new")
    change = TopicChange(holding(columns=["id", "name"]).held(more), Kind.ALTERED)
    for policy in ("apply", "pause", "ignore"):
        assert judge(holding(columns=["id", "name"]).held(SCHEMA), change, policy).action is Action.NOTHING, (
            "nothing changes for this store"
        )


def test_a_column_that_the_source_renames_is_still_the_one_that_was_meant() -> None:
    later = altered(name="full_name", cost="price")
    assert holding(columns=["id", "name"]).held(later).names == ("id", "full_name")
    assert holding(rename={"name": "title"}).held(later).names[1] == "title"
    assert "price" not in holding(exclude=["cost"]).held(later).names, "a name that comes later never shows what was left out"
    swapped = altered(name="city", city="name")
    assert [one.origin for one in holding(columns=["id", "name"]).held(swapped).fields] == [1, 2]


def test_what_is_left_out_stays_out_when_its_name_comes_back() -> None:
    again = dataclasses.replace(
        TABLE, columns=(*(one for one in TABLE.columns if one.name != "cost"), Column("cost", TEXT, attnum=9))
    )
    assert "cost" not in holding(exclude=["cost"]).held(TopicSchema.of(again)).names
    assert "cost" in holding(columns=["id", "cost"]).held(TopicSchema.of(again)).names
    recreated = dataclasses.replace(again, oid=16999)
    assert "cost" not in holding(exclude=["cost"]).held(TopicSchema.of(recreated)).names


def test_a_contract_counts_for_the_column_whatever_a_store_calls_it() -> None:
    some = holding(rename={"name": "title"})
    gone = TopicSchema.of(dataclasses.replace(TABLE, columns=tuple(one for one in TABLE.columns if one.name != "name")))
    change = TopicChange(some.held(gone), Kind.ALTERED)
    assert judge(some.held(SCHEMA), change, "apply", ["name"]).action is Action.BROKEN
    without = holding(exclude=["name"])
    assert judge(without.held(SCHEMA), TopicChange(without.held(gone), Kind.ALTERED), "apply", ["name"]).action is Action.NOTHING


def test_a_schema_record_comes_under_the_held_definition() -> None:
    some = holding(columns=["id", "name"])
    record = some.batch(schema(dataclasses.replace(TABLE, columns=TABLE.columns[:2]), 7, Kind.REWRITTEN, empties=True))
    change = topic_change_of(record)
    assert change is not None
    assert (change.kind, change.empties, change.schema.names) == (Kind.REWRITTEN, True, ("id", "name"))


# --- a configuration that changes --------------------------------------------------------------------------------------


def test_the_text_says_all_of_it() -> None:
    some = holding(columns=["id", "city", "zip"], rename={"city": "address.city"})
    again = decoded(some.text)
    assert (again.text, again.held(SCHEMA)) == (some.text, some.held(SCHEMA))
    assert TopicSchema.from_json(some.held(SCHEMA).to_json()) == some.held(SCHEMA)
    assert decoded("") == Holding()


def test_rows_of_two_holdings_are_never_mixed() -> None:
    one, other = holding(exclude=["cost"]).held(SCHEMA), holding(exclude=["zip"]).held(SCHEMA)
    for old, new in ((one, other), (SCHEMA, one), (one, SCHEMA)):
        changes = upserts(TABLE, 1, ROWS) if old is SCHEMA else decoded(old.holding).batch(upserts(TABLE, 1, ROWS))
        with pytest.raises(ConfigError, match="would be mixed"):
            conformed(changes, new)
        with pytest.raises(ConfigError, match="would be mixed"):
            reshaped(row_text(changes, old), old, new, 9)


def test_another_choice_is_refused_and_says_what_differs() -> None:
    former = holding(exclude=["cost"], rename={"zip": "code"})
    with pytest.raises(ConfigError) as refused:
        settled("s", SCHEMA, former, holding(exclude=["city"], rename={"zip": "plz"}))
    assert str(refused.value) == (
        "store s holds other columns of public.people than cdc.toml says: "
        "cost is held, and was not; city was held, and is not; zip was code, and is plz"
    )
    assert "--rebuild" in (refused.value.hint or "")
    with pytest.raises(ConfigError, match="cost was held, and is not"):
        settled("s", SCHEMA, Holding(), holding(exclude=["cost"]))
    with pytest.raises(ConfigError, match="columns that the table gets later are treated otherwise"):
        settled("s", SCHEMA, Holding(), holding(columns=list(TABLE.names)))


def test_the_same_choice_in_other_words_goes_on() -> None:
    former = holding(columns=["id", "name"])
    later = altered(name="full_name")
    unchanged = bound("s", options(columns=["id", "name"]), later)
    assert settled("s", later, former, unchanged).text == former.text, "the file is as it was"
    corrected = bound("s", options(columns=["id", "full_name"]), later)
    assert settled("s", later, former, corrected).text == former.text, "and so what it keeps stays the same"
    with pytest.raises(ConfigError, match="city is held, and was not"):
        settled("s", later, former, bound("s", options(columns=["id", "full_name", "city"]), later))


def test_what_may_be_a_row_has_fields_of_rows_and_no_others() -> None:
    held = holding(columns=["name", "city", "more"], rename={"city": "at.city"}).held(SCHEMA)
    for ours in ('{"name":"x","at":{"city":null}}', '{"at":{"city":"x"},"more":{"a":1}}', '{"name":"older than a column"}'):
        assert may_be_row(parse(ours), held)
    for theirs in ("{}", '{"name":"x","foreign":1}', '{"at":{"town":1}}', '{"id":1,"name":"x"}'):
        assert not may_be_row(parse(theirs), held)
    assert may_be_row({}, holding(columns=["more"]).held(SCHEMA)), "NULL in JSON is left out"


def test_keys_come_back_out_of_their_text() -> None:
    pairs = Table(1, "p", "q", (Column("a", TEXT, key=True), Column("b", TEXT, key=True)))
    odd: list[Row] = [{"a": a, "b": b} for a in ("", ":", "\\", "a:b", "\\N", "\n", None) for b in ("", "x:", ":\\", "\\:", None)]
    changes = upserts(pairs, 1, odd)
    assert split_keys(keys(changes, TopicSchema.of(pairs)), TopicSchema.of(pairs)).to_pylist() == odd
    one = Table(1, "p", "q", (Column("a", TEXT, key=True),))
    single: list[Row] = [{"a": a} for a in ("", "a:b", "\\E", "\\N", "\\\\", None)]
    changes = upserts(one, 1, single)
    assert split_keys(keys(changes, TopicSchema.of(one)), TopicSchema.of(one)).to_pylist() == single


def test_a_column_that_comes_under_a_name_that_is_taken_is_not_held_and_stops_nothing() -> None:
    """Whoever may add columns to the table must not be able to stop the store."""
    renamed = holding(rename={"name": "remark", "city": "address.city"})
    later = TopicSchema.of(
        dataclasses.replace(
            TABLE,
            columns=(
                *TABLE.columns,
                *(
                    dataclasses.replace(TABLE.columns[1], name=name, attnum=90 + at)
                    for at, name in enumerate(("remark", "address"))
                ),
            ),
        )
    )
    held = renamed.held(later)
    assert held.names == renamed.held(SCHEMA).names
    with pytest.raises(ConfigError, match="cannot both be there"):
        check("s", options(rename={"name": "remark"}), later)
    excluded = bound("s", options(rename={"name": "remark", "city": "address.city"}, exclude=["remark", "address"]), later)
    assert settled("s", later, renamed, excluded).text == renamed.text
