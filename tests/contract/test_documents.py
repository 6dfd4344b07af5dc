"""Values of every structured type, however nasty: each store takes them all, and gives back what they mean; one that differs is seen."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from cdc.model.pgtypes import INTERVAL, JSON, JSONB, NUMERIC, OID, POINT, TEXT
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from sinks.contract import Outcome, Sink, audit_schema
from tests.contract.labs import Lab
from tests.contract.rows import Row, upserts
from tests.contract.test_sinks import cut, feed, held, meant, ready
from tests.unit.render import nasty

PAIR: Any = {"row": [["a", 23], ['b.c "d"', 25], ["n", 1700], ["j", 3802], ["", 1009]]}
NUMRANGE, INT4RANGES, TSTZRANGE, TSTZMULTIRANGE = 3906, 3905, 3910, 4534
BOOLS, BYTEAS, INTS, TEXTS, POINTS, BOXES, DATES, MOMENTS, INTERVALS, NUMERICS, JSONBS, FLOATS = (
    1000, 1001, 1007, 1009, 1017, 1020, 1182, 1185, 1187, 1231, 3807, 1022,
)  # fmt: skip


def own(name: str, structure: Any, number: int) -> Column:
    return Column(name, 90_000 + number, -1, "public.own", structure=json.dumps(structure, separators=(",", ":")))


LONG = "x" * 40_000
VALUES: Mapping[Column, tuple[str, ...]] = {
    Column("j", JSON): nasty.DOCUMENTS,
    Column("b", JSONB): (
        *("null", "{}", "[]", '""', '"text"', "1.10", "12345678901234567890.123", "true", '["a", 1, null, ["b"]]', '[{"a": 1}, {"a": 2}]'),
        *('{"value": 1}', '{"value": {"value": []}}', '{"b": 2, "value": 1}', '{"": {"": ""}}', '{"a": {"b": 2}, "a.b": 1}', '{".": 1, "..": 2}'),
        *('{"a": null, "b": [null]}', '{"a": [1, {"b": 2}, [3, "x"], null]}', f'{{"a": "{LONG}", "b": 1}}', f'["{LONG}"]', f'"{LONG}"'),
        *('{"' + "k" * 32_700 + '": null}', '{"a": ' * 99 + "1" + "}" * 99, '{"a": ' * 700 + "1" + "}" * 700, "[" * 3000 + "]" * 3000),
        *('{"a": 1' + "0" * 400 + "}", '{"a": 1' + "0" * 1200 + "}", '{"a": 0.' + "1" * 1100 + "}", '{"a": 12345678901234567890.123, "b": "x"}'),
        "{" + ", ".join(f'"k{i}": {i}' for i in range(3000)) + "}",
        '{"e": "é漢😀", "esc": "\\" \\\\ \\n \\u0001"}',
    ),
    Column("ints", INTS): ("{}", "{1,2,NULL}", "{{1,2},{3,4}}", "{NULL}", "[2:3]={1,2}", "{{{{{{1}}}}}}"),
    Column("texts", TEXTS): ("{}", '{"NULL",NULL,"a,b","q\\"q","b\\\\s","{}",""," "}', f"{{{LONG}}}", "[0:0]={x}", '{"line\nfeed"}'),
    Column("nums", NUMERICS): ("{1.10,NaN,Infinity,-0.05}", "{12345678901234567890.123,1}", "{" + "9" * 1100 + "}", "[0:0]={1}"),
    Column("floats", FLOATS): ("{0.30000000000000004,5e-324,-0,NaN,-Infinity,1e+20}", "{}"),
    Column("flags", BOOLS): ("{t,f,NULL}", "{}", "[0:1]={t,f}", "{{t},{f}}"),
    Column("moments", MOMENTS): ('{"2024-02-29 06:30:00+00",infinity,"0001-01-01 00:00:00+00 BC","294276-12-31 23:59:59+00"}', "[0:0]={infinity}"),
    Column("dates", DATES): ('{2024-02-29,-infinity,"4714-11-24 BC",5874897-12-31}', "{}"),
    Column("bytes", BYTEAS): ('{"\\\\x00ff","\\\\x",NULL}', '[0:0]={"\\\\x00"}'),
    Column("jsons", JSONBS): ('{"{\\"a\\": 1.10}",NULL,[1]}', '{"null",NULL}', "{}", f'{{"\\"{LONG}\\""}}'),
    Column("boxes", BOXES): ("{(1,1),(0,0);(2,2),(1,1)}",),
    Column("spans", INTERVALS): ('{"1 mon -3 days",00:00:01,NULL}', "{}"),
    Column("points", POINTS): ('{"(1,2)","(NaN,Infinity)",NULL}', '[0:0]={"(1,2)"}'),
    own("pair", PAIR, 1): ('(1,"a,""b",1.10,"{""x"": [1]}","{q,NULL}")', "(,,,,)", '(1,2)', f"(1,{LONG},1,null,)", '(2,"",NaN,,{})'),
    own("pairs", {"array": PAIR}, 2): ('{"(1,a,1.5,,)",NULL}', "{}", '{{"(,,,,)"}}', '[0:0]={"(,,,,)"}'),
    own("hs", "hstore", 3): ('"a"=>"1", "b.c"=>NULL, ""=>"q\\"q"', "", f'"a"=>"{LONG}"', '"value"=>"1"'),
    own("price", 1700, 4): ("1.10", "NaN", "12345678901234567890.1"),
    own("day", 1082, 5): ("2024-02-29", "infinity", "0044-03-15 BC"),
    own("moment", 1184, 6): ("2024-02-29 06:30:00.5+00", "infinity"),
    own("flag", 16, 7): ("t", "f"),
    own("real", 701, 8): ("1e+20", "NaN", "-0", "0.1"),
    own("raw", 17, 9): ("\\x00ff", "\\x"),
    Column("rng", NUMRANGE): ("[1.10,2.20]", "(-Infinity,Infinity)", "empty", "(,)", "[12345678901234567890.123,)"),
    Column("tsr", TSTZRANGE): ('["2024-01-01 00:00:00+00",infinity]', '(,"0001-01-01 00:00:00+00 BC")', "empty"),
    Column("rngs", INT4RANGES): ('{"[1,3)",empty,NULL}', "{}", '[0:0]={"[1,3)"}'),
    Column("many", TSTZMULTIRANGE): ('{["2024-01-01 00:00:00+00","2024-01-02 00:00:00+00"),["2024-02-01 00:00:00+00",)}', "{}", "{(,)}"),
    Column("pt", POINT): ("(1,2.5)", "(-0,1e+300)", "(NaN,Infinity)"),
    Column("span", INTERVAL): nasty.INTERVALS,
    Column("num", NUMERIC): nasty.NUMBERS,
    Column("o", OID): ("4294967295", "0"),
}  # fmt: skip
DOCUMENTS = Table(16500, "public", "documents", (Column("id", TEXT, key=True), *VALUES))


def rows() -> list[Row]:
    """So many that every value occurs; the last has nothing but its key."""
    count = max(map(len, VALUES.values()))
    found: list[Row] = [{"id": f"{i}", **{c.name: values[i % len(values)] for c, values in VALUES.items()}} for i in range(count)]
    return [*found, {"id": "nothing", **{column.name: None for column in VALUES}}]


def test_every_store_takes_every_value_and_gives_back_what_it_means(lab: Lab) -> None:
    sink = ready(lab, DOCUMENTS)
    given = rows()
    assert feed(lab, sink, upserts(DOCUMENTS, 1, given)) == Outcome(len(given)), "none is a dead letter"
    sink.commit(cut(len(given)))
    if not lab.readable:
        return
    wanted = {row["id"]: row for row in meant(sink, DOCUMENTS, given)}
    found = {row["id"]: row for row in held(sink, DOCUMENTS)}
    assert found.keys() == wanted.keys()
    for key, row in wanted.items():
        differ = [name for name, value in row.items() if found[key][name] != value]
        assert not differ, (key, [(name, row[name], found[key][name]) for name in differ])
    keys = pa.RecordBatch.from_arrays([pa.array([row["id"] for row in given], pa.utf8())], ["id"])
    assert sorted(sink.fetch(TopicSchema.of(DOCUMENTS), keys).to_pylist(), key=lambda row: str(row["id"])) == sorted(
        wanted.values(), key=lambda row: str(row["id"])
    )


def test_drift_of_every_kind_shows(lab: Lab) -> None:
    """What a store holds is compared with what the source has: a value that is another one never means the same."""
    sink = ready(lab, DOCUMENTS)
    for column, values in VALUES.items():
        said = meaning(sink, column, values)
        for at, one in enumerate(said):
            for where, two in enumerate(said):
                if at != where and not same(column, values[at], values[where]):
                    assert one != two, (column.name, values[at][:60], values[where][:60])


def meaning(sink: Sink, column: Column, values: tuple[str, ...]) -> list[str | None]:
    given = [{**dict.fromkeys(audit_schema(TopicSchema.of(DOCUMENTS)).names), "id": "x", column.name: value} for value in values]
    found: list[str | None] = [row[column.name] for row in meant(sink, DOCUMENTS, given)]
    return found


def same(column: Column, one: str, two: str) -> bool:
    """Whether two of the values above are one number, written in two ways."""
    if column.name == "num":
        return Decimal(one) == Decimal(two)
    return column.name == "j" and {one, two} == {"-0", "-0.0"}


@pytest.mark.parametrize("name", ["b", "hs"])
def test_null_is_not_empty(lab: Lab, name: str) -> None:
    sink = ready(lab, DOCUMENTS)
    column = next(column for column in VALUES if column.name == name)
    said = meaning(sink, column, ("", "{}", "null") if name == "b" else ("",))
    assert None not in said
    assert len(set(said)) == len(said)
