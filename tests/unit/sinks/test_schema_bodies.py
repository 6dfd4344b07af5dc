"""Bodies that come with a schema: Avro, read by fastavro, and Connect's JSON, read by its own schema."""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
import random
from dataclasses import replace
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import numpy as np
import pyarrow as pa
import pytest

from cdc.errors import ConfigError
from cdc.model.batch import Op
from cdc.model.pgtypes import DATE, INT4, NUMERIC, POINT, TEXT, TIME, TIMESTAMP, TIMESTAMPTZ
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from sinks.condition import ReplacedRows
from sinks.events.avro import Avro, counted, varints
from sinks.events.avroschema import valid_name
from sinks.events.bodyformat import Encoding
from sinks.events.connectjson import ConnectJson
from sinks.events.eventcolumns import EventForm, events_of
from sinks.render.jsonrows import Style
from tests.contract.rows import ORDERS, batch, numeric
from tests.unit.sinks.test_debezium_bodies import MANY, ROW

NAME = "shop.public.many"
KEY = {"a": "7", "day": "2020-01-02"}
SHOWN = {
    "a": 7,
    "day": dt.date(2020, 1, 2),
    "ok": True,
    "f": 1.5,
    "n": Decimal("12.50"),
    "t": 'a "b"',
    "b": b"\x01\x02\xff",
    "at": dt.datetime(2020, 1, 2, 3, 4, 5, 123456),
    "tz": dt.datetime(2020, 1, 2, 3, 4, 5, 500000, tzinfo=dt.UTC),
    "clock": dt.time(13, 45, 30, 1),
    "doc": '{"a": 1}',
    "u": UUID("00000000-0000-7000-8000-000000000001"),
    "i2": 3,
    "i8": 9007199254740993,
    "r4": float(np.float32(0.1)),
    "j": '{"z":  1.0}',
    "iv": "P1M2DT3H4M5S",
    "ia": "[1,null,3]",
    "ta": '["a",null]',
    "ir": "[1,5)",
    "ttz": "10:00:00+02",
    "c10": "ab        ",
    "x": "10.0.0.1",
    "free": "10000000000",
}


class Schemas:
    """Registers in memory, and decodes."""

    def __init__(self) -> None:
        self.subjects: list[str] = []
        self.texts: list[str] = []

    def schema_id(self, subject: str, schema: str) -> int:
        if schema not in self.texts:
            self.texts.append(schema)
            self.subjects.append(subject)
        return self.texts.index(schema) + 300

    def read(self, message: bytes) -> Any:
        assert message[0] == 0
        given = io.BytesIO(message[5:])
        schema = fastavro.parse_schema(json.loads(self.texts[int.from_bytes(message[1:5], "big") - 300]))
        found = fastavro.schemaless_reader(given, schema, None)
        assert not given.read()
        return found


def made(encoding: Encoding, *changes: Any, table: Table = MANY) -> list[dict[str, Any]]:
    form = EventForm(Style(), "debezium", store="bus", encoding=encoding)
    found: list[dict[str, Any]] = events_of(batch(table, list(changes)), form).rows.to_pylist()
    return found


def avro(schemas: Schemas, table: Table = MANY, name: str = NAME) -> Avro:
    return Avro(TopicSchema.of(table), Style(), "bus", name, schemas.schema_id)


def test_another_reader_of_avro_reads_every_type() -> None:
    schemas = Schemas()
    changes = (Op.INSERT, 1, ROW), (Op.UPDATE, 2, dict.fromkeys(ROW) | KEY), (Op.DELETE, 5, KEY), (Op.TRUNCATE, 6, {})
    found = made(avro(schemas), *changes[:3]) + made(avro(schemas), changes[3])
    assert schemas.subjects == [f"{NAME}-value", f"{NAME}-key"]
    inserted, updated, deleted, emptied = (schemas.read(one["body"]) for one in found)
    nothing = dict.fromkeys(SHOWN) | {"a": 7, "day": SHOWN["day"]}
    assert (inserted["before"], inserted["after"], inserted["op"]) == (None, SHOWN, "c")
    assert (updated["before"], updated["after"], updated["op"]) == (None, nothing, "u")
    assert (deleted["before"], deleted["after"], deleted["op"]) == (nothing, None, "d")
    assert (emptied["before"], emptied["after"], emptied["op"], found[3]["wire_key"]) == (None, None, "t", None)
    assert [schemas.read(one["wire_key"]) for one in found[:3]] == [{"a": 7, "day": SHOWN["day"]}] * 3
    source = inserted["source"]
    assert (source["name"], source["schema"], source["table"], source["lsn"], source["snapshot"]) == (
        "bus",
        "public",
        "many",
        10,
        "false",
    )
    assert source["ts_us"] == inserted["ts_us"] == inserted["ts_ms"] * 1000 == inserted["ts_ns"] // 1000
    assert json.loads(found[0]["key"]) == {"a": 7, "day": 18263}


def test_random_rows_come_back() -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    table = Table(
        900_100,
        "public",
        "some",
        (
            Column("id", INT4, -1, "int4", key=True),
            Column("n", NUMERIC, numeric(38, 10), "numeric"),
            Column("s", NUMERIC, numeric(3, 0), "numeric"),
            Column("t", TEXT, -1, "text"),
            Column("d", DATE, -1, "date"),
            Column("at", TIMESTAMPTZ, -1, "timestamptz"),
        ),
    )

    def row(number: int) -> dict[str, Any]:
        moment = dt.datetime(1, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=rng.randrange(10**16, 3 * 10**17))
        given: dict[str, Any] = {
            "n": Decimal(rng.randrange(-(10**38) + 1, 10**38)).scaleb(-10),
            "s": Decimal(rng.randrange(-999, 1000)),
            "t": "".join(rng.choices("aé\n🚲", k=rng.choice((0, 1, 63, 64, 9000)))),
            "d": moment.date(),
            "at": moment,
        }
        return {"id": number} | {name: None if rng.random() < 0.2 else value for name, value in given.items()}

    rows = [row(rng.randrange(-(2**31), 2**31)) for _ in range(40)]
    texts = [
        {name: None if value is None else f"{value:f}" if isinstance(value, Decimal) else str(value) for name, value in one.items()}
        for one in rows
    ]
    schemas = Schemas()
    found = made(avro(schemas, table), *((Op.INSERT, at, one) for at, one in enumerate(texts, 1)), table=table)
    assert [schemas.read(one["body"])["after"] for one in found] == rows
    assert [schemas.read(one["wire_key"]) for one in found] == [{"id": one["id"]} for one in rows]


def test_integers_are_avros() -> None:
    numbers = [0, -1, 1, 63, 64, -64, -65, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63)]
    data = varints(np.array(numbers)).data.tobytes()
    given = io.BytesIO(data)
    assert [fastavro.schemaless_reader(given, {"type": "long"}, None) for _ in numbers] == numbers
    assert len(varints(np.array([], np.int64))) == 0
    assert counted(pa.array(["a", None, ""])).data.tobytes() == b"\x02a\x00\x00"


ODD = Table(
    900_101,
    "Odd",
    "t",
    (
        Column("1 ä", TEXT, -1, "text", key=True),
        Column("a-b", DATE, -1, "date"),
        Column("b", TIME, -1, "time"),
        Column("c", TIMESTAMP, -1, "timestamp"),
        Column("n", NUMERIC, numeric(5, 2), "numeric"),
    ),
)


def test_names_are_made_valid_and_must_differ() -> None:
    schemas = Schemas()
    [one] = made(avro(schemas, ODD, "Odd-x.1t"), (Op.INSERT, 1, {"1 ä": "x"} | dict.fromkeys(("a-b", "b", "c", "n"))), table=ODD)
    assert schemas.read(one["wire_key"]) == {"_1__": "x"}
    assert json.loads(schemas.texts[0])["namespace"] == "Odd_x._1t"
    assert valid_name("") == "_"
    both = Table(900_102, "public", "t", (Column("a b", TEXT, -1, "text", key=True), Column("a-b", TEXT, -1, "text")))
    with pytest.raises(ConfigError, match="the columns a b and a-b would both be the field a_b in Avro"):
        avro(schemas, both)


def test_what_stands_as_json_is_json() -> None:
    table = Table(
        900_104,
        "public",
        "t",
        (
            Column("id", INT4, -1, "int4", key=True),
            Column("a", 1007, -1, "int4[]"),
            Column("p", POINT, -1, "point"),
        ),
    )
    values = [("{1,NULL}", "(1,2)"), ("[0:1]={1,2}", "(NaN,1)"), (None, None)]
    given = [(Op.INSERT, at, {"id": "1", "a": a, "p": p}) for at, (a, p) in enumerate(values, 1)]
    schemas = Schemas()
    rows = [schemas.read(one["body"])["after"] for one in made(avro(schemas, table), *given, table=table)]
    assert [one["a"] and json.loads(one["a"]) for one in rows] == [[1, None], "[0:1]={1,2}", None]
    assert [one["p"] and json.loads(one["p"]) for one in rows][::2] == [{"x": 1, "y": 2}, None]
    json.loads(rows[1]["p"])


def test_a_place_within_an_object_cannot_be_the_name_of_another_column() -> None:
    table = Table(900_103, "public", "t", (Column("a_b", TEXT, -1, "text", key=True), Column("x", TEXT, -1, "text")))
    plain = TopicSchema.of(table)
    placed = replace(plain, fields=(plain.fields[0], replace(plain.fields[1], path=("a", "b"))))
    with pytest.raises(
        ConfigError, match=r"stores\.bus\.tables: public\.t: the columns a_b and x would both be the field a_b in Connect's JSON"
    ):
        ConnectJson(placed, Style(), "bus", NAME)


@pytest.mark.parametrize("kind", ["avro", "json"])
def test_infinity_is_postgres_number_and_what_is_no_number_is_unfit(kind: str) -> None:
    schemas = Schemas()
    given: Encoding = avro(schemas, ODD) if kind == "avro" else ConnectJson(TopicSchema.of(ODD), Style(), "bus", NAME)
    row = {"1 ä": "x", "a-b": "infinity", "b": "24:00:00", "c": "-infinity", "n": None}
    far = row | {"c": "infinity", "a-b": "20000-01-01"}
    plain, odd, number = made(given, (Op.INSERT, 1, row), (Op.INSERT, 2, far), (Op.INSERT, 3, row | {"n": "NaN"}), table=ODD)
    assert plain["unfit"] is None
    assert odd["unfit"] == "its column a-b has a value that is not a date of the format"
    assert number["unfit"] == ("its column n has a value that is not a decimal of the format" if kind == "avro" else None)
    if kind == "json":
        after = json.loads(plain["body"])["payload"]["after"]
        assert (after["a-b"], after["b"], after["c"]) == (2**31 - 1, 86_400_000_000, -(2**63))


def test_a_row_before_is_encoded_and_may_be_unfit() -> None:
    schemas = Schemas()
    changes = batch(ODD, [(Op.UPDATE, at, {"1 ä": "x", **dict.fromkeys(("a-b", "b", "c", "n"))}) for at in (1, 2, 3)])
    old = batch(
        ODD, [(Op.READ, 1, {"1 ä": "y", "a-b": day, **dict.fromkeys(("b", "c", "n"))}) for day in ("2020-01-02", "0044-03-15 BC")]
    )
    found = avro(schemas, ODD).of_changes(changes, ReplacedRows(np.array([False, True, True]), old))
    befores = [schemas.read(one)["before"] for one in found["body"].to_pylist()]
    assert befores[0] is None
    assert (befores[1]["a_b"], befores[1]["_1__"]) == (dt.date(2020, 1, 2), "y")
    assert [one is None for one in found["unfit"].to_pylist()] == [True, True, False]


def checked(schema: Any, value: Any) -> Any:
    """The value as Connect's JSON converter reads it by its schema. Fails where it would."""
    if value is None:
        assert schema["optional"], schema
        return None
    match schema["type"]:
        case "struct":
            assert list(value) == [one["field"] for one in schema["fields"]]
            return {one["field"]: checked(one, value[one["field"]]) for one in schema["fields"]}
        case "string":
            assert isinstance(value, str)
        case "boolean":
            assert isinstance(value, bool)
        case "bytes":
            return base64.b64decode(value, validate=True)
        case "float" | "double":
            assert isinstance(value, float)
        case kind:
            bits = int(kind.removeprefix("int"))
            assert type(value) is int
            assert -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)
    return value


def test_connects_json_agrees_with_its_schema() -> None:
    given = ConnectJson(TopicSchema.of(MANY), Style(), "bus", NAME)
    inserted, updated, deleted = made(given, (Op.INSERT, 1, ROW), (Op.UPDATE, 2, dict.fromkeys(ROW) | KEY), (Op.DELETE, 5, KEY))
    for one in (inserted, updated, deleted):
        body, key = json.loads(one["body"]), json.loads(one["wire_key"])
        assert body["schema"]["name"] == f"{NAME}.Envelope"
        found = checked(body["schema"], body["payload"])
        assert checked(key["schema"], key["payload"]) == {"a": 7, "day": 18263}
        assert body["payload"]["source"]["name"] == "bus"
    assert found["before"] == dict.fromkeys(SHOWN) | {"a": 7, "day": 18263}
    schema = json.loads(inserted["body"])["schema"]
    meanings = {one["field"]: one.get("name") for one in schema["fields"][1]["fields"]}
    assert meanings["at"] == "io.debezium.time.MicroTimestamp"
    assert meanings["u"] == "io.debezium.data.Uuid"


def test_what_applications_wrote_is_a_string_or_bytes() -> None:
    schemas = Schemas()
    keys, texts, raw = pa.array(["k", None]), pa.array(['{"a":1}', None]), pa.array([b"\xff", None], pa.large_binary())
    found = avro(schemas).of_payloads(texts, keys)
    assert schemas.read(found["body"][0].as_py()) == '{"a":1}'
    assert schemas.read(found["wire_key"][0].as_py()) == "k"
    assert (found["body"][1].as_py(), found["wire_key"][1].as_py()) == (None, None)
    assert schemas.read(avro(schemas).of_payloads(raw, keys)["body"][0].as_py()) == b"\xff"
    given = ConnectJson(TopicSchema.of(ORDERS), Style(), "bus", "x").of_payloads(raw, keys)
    assert json.loads(given["body"][0].as_py()) == {"schema": {"type": "bytes", "optional": False}, "payload": "/w=="}
    assert json.loads(given["wire_key"][0].as_py()) == {"schema": {"type": "string", "optional": False}, "payload": "k"}
