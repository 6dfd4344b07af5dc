"""A topic's schema: all that a store needs of a table's definition, and nothing of Postgres's catalog."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from cdc.model.batch import META_FIELDS, batch_schema, topic_batch_schema, topic_schema
from cdc.model.evolution import Kind, SchemaChange, TopicChange, schema_record, topic_change_of
from cdc.model.pgtypes import INT8, JSONB, NUMERIC, TEXT, VARCHAR
from cdc.model.structure import ArrayOf, Composite, Hstore, MultirangeOf, RangeOf, Scalar, ScalarType, Structure, decoded, encoded
from cdc.model.table import Column, Identity, Table
from cdc.model.topic import TopicField, TopicSchema
from tests.contract.rows import ORDERS, PAIRS, TYPES, numeric

ROOT = Path(__file__).resolve().parents[2]

FIELDS = Table(
    16500,
    "app",
    "odd.name",
    (
        Column("id", INT8, key=True, attnum=1),
        Column("price", NUMERIC, numeric(12, 2), attnum=3),
        Column("mood", 17001, type_name="app.mood", attnum=4),
        Column("items", 17002, structure='{"array":{"row":[["n",23],["at",1184]]},"by":";"}', attnum=5),
        Column("secret", TEXT, attnum=6, protected="hmac:k1"),
    ),
    "f",
    epoch=2,
)


def test_a_table_becomes_its_topics_schema() -> None:
    schema = TopicSchema.of(FIELDS)
    assert (schema.topic, schema.parts, schema.identity) == ("app.odd.name", ("app", "odd.name"), "row")
    assert schema.names == FIELDS.names
    assert [field.name for field in schema.key] == ["id"]
    assert [field.type for field in schema.fields] == [pa.int64(), pa.decimal128(12, 2), pa.utf8(), pa.utf8(), pa.utf8()]
    assert [field.origin for field in schema.fields] == [1, 3, 4, 5, 6]
    assert [field.defined for field in schema.fields] == [False, False, True, True, False]
    assert schema.fields[2].type_name == "app.mood"
    row = Composite((("n", Scalar(ScalarType.INT4)), ("at", Scalar(ScalarType.TIMESTAMPTZ))))
    assert schema.fields[3].structure == ArrayOf(row, ";")


@pytest.mark.parametrize("identity", ["d", "n", "f", "i"])
def test_each_way_of_telling_rows_apart_is_another(identity: Identity) -> None:
    others = {TopicSchema.of(replace(FIELDS, identity=other)).identity for other in ("d", "n", "f", "i") if other != identity}
    assert TopicSchema.of(replace(FIELDS, identity=identity)).identity not in others
    assert len(others) == 3


@pytest.mark.parametrize("table", [ORDERS, PAIRS, TYPES, FIELDS], ids=lambda table: table.name)
def test_what_a_store_keeps_is_read_back_as_the_same(table: Table) -> None:
    schema = TopicSchema.of(table)
    assert TopicSchema.from_json(schema.to_json()) is schema
    assert TopicSchema.from_json(schema.to_json()).fields == schema.fields


def test_as_long_as_a_schema_is_in_use_there_is_one_of_it_however_many_others_come() -> None:
    table = replace(FIELDS, oid=16999)
    schema, batches = TopicSchema.of(table), topic_schema(batch_schema(table))
    for number in range(5_000):
        TopicSchema.of(replace(FIELDS, oid=20_000 + number))
    assert TopicSchema.of(table) is schema
    assert topic_schema(batch_schema(table)) is batches is schema
    assert TopicSchema.from_json(schema.to_json()) is schema


@pytest.mark.parametrize("table", [ORDERS, PAIRS, TYPES, FIELDS], ids=lambda table: table.name)
def test_what_a_store_of_an_earlier_version_keeps_is_read_as_the_same(table: Table) -> None:
    assert TopicSchema.from_json(table.to_json()) is TopicSchema.of(table)


@pytest.mark.parametrize(
    "changed",
    [
        replace(FIELDS, oid=16501),
        replace(FIELDS, epoch=3),
        replace(FIELDS, name="other"),
        replace(FIELDS, identity="d"),
        *(
            replace(FIELDS, columns=(replace(FIELDS.columns[0], **changed), *FIELDS.columns[1:]))
            for changed in (
                {"name": "key"},
                {"type_oid": 23},
                {"typmod": 7},
                {"type_name": "app.id"},
                {"key": False},
                {"attnum": 9},
                {"protected": "mask"},
                {"structure": '"hstore"'},
            )
        ),
    ],
)
def test_equal_schemas_are_of_equal_tables_only(changed: Table) -> None:
    """Whatever makes another definition makes another schema, so that no store misses it."""
    assert TopicSchema.of(FIELDS) is TopicSchema.of(replace(FIELDS))
    assert TopicSchema.of(changed) != TopicSchema.of(FIELDS)


def test_two_types_that_nobody_treats_in_a_way_of_its_own_are_two() -> None:
    xid, cidr = (TopicField.of(Column("c", oid)) for oid in (28, 650))
    assert xid.structure != cidr.structure
    assert xid.value_type != cidr.value_type


@pytest.mark.parametrize(
    "structure",
    [
        *(Scalar(kind) for kind in ScalarType if kind is not ScalarType.OTHER),
        Scalar(ScalarType.OTHER, 650),
        Hstore(),
        ArrayOf(Scalar(ScalarType.TEXT)),
        ArrayOf(Scalar(ScalarType.OTHER, 603), ";"),
        Composite((("a", Hstore()), ("b", ArrayOf(Scalar(ScalarType.DATE))))),
        RangeOf(Scalar(ScalarType.NUMERIC)),
        MultirangeOf(Scalar(ScalarType.INT8)),
    ],
)
def test_a_structure_is_read_back_from_json(structure: Structure) -> None:
    assert decoded(encoded(structure)) == structure


def test_a_batch_says_what_it_is_of_wherever_it_was_made() -> None:
    schema = TopicSchema.of(TYPES)
    assert topic_schema(batch_schema(TYPES)) is schema
    made = topic_batch_schema(schema)
    assert topic_schema(made) is schema
    assert made == batch_schema(TYPES)
    assert made.names[: len(META_FIELDS)] == [field.name for field in META_FIELDS]
    with pytest.raises(KeyError):
        topic_schema(pa.schema([("a", pa.int64())], metadata={"other": "one"}))


def test_a_schema_record_is_read_alike_from_the_log_and_from_a_store() -> None:
    change = SchemaChange(FIELDS, Kind.RENAMED, empties=True, now="app.new")
    read = topic_change_of(schema_record(change, 5, 50, 0))
    assert read == TopicChange.of(change) == TopicChange(TopicSchema.of(FIELDS), Kind.RENAMED, True, "app.new")
    assert read is not None
    assert topic_change_of(schema_record(read, 5, 50, 0)) == read


@pytest.mark.parametrize("path", sorted((ROOT / "sinks").rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_store_looks_at_the_sources_tables(path: Path) -> None:
    # A SQL store's own tables stand in a catalog of this kind, too.
    text = path.read_text().replace("a.atttypmod", "").replace("a.attnum", "")
    for word in ("table_of(", "schema_change_of(batch", "SchemaChange", "type_oid", "typmod", "attnum", "relreplident"):
        assert word not in text, word


def test_a_varchar_and_its_longer_self_are_two_types_that_are_held_alike() -> None:
    short, long = (TopicField.of(Column("c", VARCHAR, typmod)) for typmod in (14, 24))
    assert (short.type, short.structure) == (long.type, long.structure)
    assert short.value_type != long.value_type
    assert TopicField.of(Column("c", JSONB)).structure == Scalar(ScalarType.JSONB)
