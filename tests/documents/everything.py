"""One row of a table with every kind of type, values that JSON does not hold, and documents to search in."""

from __future__ import annotations

from typing import Final

SETUP: Final = """
create schema if not exists extras;
create extension if not exists hstore schema extras;
set search_path = public, extras;
create type mood as enum ('glad', 'sad');
create type address as (street text, "no" int, zip varchar(9));
create domain amount as numeric(12,2);
"""
COLUMNS: Final[tuple[tuple[str, str, str | None], ...]] = (
    ("id", "int8 primary key", "9007199254740993"),
    ("small", "int2", "-7"),
    ("active", "bool", "true"),
    ("price", "numeric(12,2)", "19.90"),
    ("weight", "numeric", "0.1500"),
    ("total", "amount", "-0.05"),
    ("ratio", "float8", "0.30000000000000004"),
    ("score", "float4", "1e-45"),
    ("name", "text", 'Åse "Ace" \\ 😀'),
    ("code", "char(5)", "ab"),
    ("mood", "mood", "glad"),
    ("day", "date", "2024-02-29"),
    ("opens", "time", "08:30:00"),
    ("opens_there", "timetz", "08:30:00+05:30"),
    ("made", "timestamp", "2024-02-29 12:00:00.5"),
    ("changed", "timestamptz", "2024-02-29 12:00:00+05:30"),
    ("lasts", "interval", "1 year 2 mons -3 days 04:05:06.789"),
    ("picture", "bytea", "\\x00ff10"),
    ("uid", "uuid", "6EC0BD7F-11C0-43DA-975E-2A8AD9EBAE0B"),
    ("host", "inet", "10.0.0.1/8"),
    ("bits", "bit(4)", "0101"),
    ("cash", "money", "1234.5"),
    ("attributes", "jsonb", '{"color": "red", "size": {"w": 10, "h": 2.50}, "tags": ["a", "b"], "stock": null}'),
    ("raw", "json", '{ "b" : 1.10,\n  "a" : [ ] }'),
    ("tags", "text[]", '{new,"on sale",NULL,"a,\\"b\\""}'),
    ("grid", "numeric[]", "{{1.50,2},{3,NaN}}"),
    ("times", "timestamptz[]", "{2024-02-29 12:00:00+00,infinity}"),
    ("notes", "jsonb[]", '{"{\\"by\\": \\"Bo\\"}","[1]"}'),
    ("home", "address", '("Main St, 5",7,)'),
    ("homes", "address[]", '{"(\\"A \\"\\"B\\"\\"\\",1,0150)",NULL}'),
    ("valid", "tstzrange", "[2024-01-01 00:00:00+00,infinity)"),
    ("pages", "int4multirange", "{[1,3],[7,9)}"),
    ("labels", "hstore", "color=>red, empty=>NULL"),
    ("spot", "point", "(13.4,52.5)"),
    ("area", "polygon", "((0,0),(1,1),(2,0))"),
    ("words", "tsvector", "'cat':2 'it''s':1A"),
    ("nothing", "int4", None),
    ("nothing_json", "jsonb", None),
    ("null_json", "jsonb", "null"),
)

ODD: Final[tuple[tuple[str, str, str], ...]] = (
    ("numeric", "NaN", "a number that JSON does not have"),
    ("float8", "-0", "a sign that readers of whole numbers lose"),
    ("numeric", "12345678901234567890.123", "more digits than a double holds"),
    ("jsonb", '{"n": 12345678901234567890.123}', "the same inside JSON"),
    ("numeric", "12345678901234567890", "a whole number"),
    ("json", '{"a":1,"a":2}', "a name twice"),
    ("json", "1e400", "beyond a double"),
    ("date", "0044-03-15 BC", "before year 1"),
    ("timestamptz", "infinity", "no moment"),
    ("timestamp", "10000-01-01 00:00:00", "beyond year 9999"),
    ("int4[]", "[2:3]={7,8}", "an array that does not begin at 1"),
    ("bool[]", "[0:1]={t,f}", "the same, of booleans"),
    ("jsonb[]", '{"null",NULL}', "JSON's null beside SQL's"),
    ("jsonb", "null", "JSON's null"),
    ("jsonb", '["a", "b"]', "JSON that is not an object"),
    ("jsonb", '{"value": 1}', 'an object whose only name is "value"'),
    ("jsonb", '{"a": "' + "x" * 33_000 + '"}', "a leaf too long for an index"),
    ("jsonb", "[" * 101 + "]" * 101, "nested too deep"),
    ("numrange", "empty", "a range of nothing"),
    ("numrange", "(,1.50]", "a range without an end"),
)
"""(type, value, what is odd about it)"""

SEARCHED: Final[tuple[str, ...]] = (
    '{"color": "red", "size": {"w": 10}, "tags": ["a", "b"], "price": 9.5, "sold": true}',
    '{"color": "Red wine", "size": {"w": 9}, "price": 10, "note": null}',
    '["a", "c"]',
    '"red"',
    '{"items": [{"sku": "x1", "qty": 2}, {"sku": "x2", "qty": 3}], "a.b": "dotted"}',
)
"""``attributes`` of rows 1, 2, 3 …"""
QUERIES: Final[tuple[tuple[str, str], ...]] = (
    ('{"term": {"attributes.color": "red"}}', "a leaf, exactly"),
    ('{"term": {"attributes.size.w": 10}}', "below other names; numbers are texts here"),
    ('{"terms": {"attributes.color": ["red", "Red wine"]}}', "one of several"),
    ('{"term": {"attributes.tags": "b"}}', "an element of an array"),
    ('{"term": {"attributes.items.sku": "x2"}}', "in objects in an array"),
    ('{"term": {"attributes.sold": true}}', "a boolean"),
    ('{"term": {"attributes.a.b": "dotted"}}', "a name with a dot in it"),
    ('{"term": {"attributes.value": "a"}}', "JSON that is not an object"),
    ('{"term": {"attributes": "red"}}', "any leaf"),
    ('{"prefix": {"attributes.color": "Red"}}', "how a leaf begins"),
    ('{"wildcard": {"attributes.color": "*wine"}}', "a pattern"),
    ('{"exists": {"field": "attributes.color"}}', "whether a leaf is there"),
    ('{"exists": {"field": "attributes.size"}}', "an object inside is not a leaf"),
    ('{"exists": {"field": "attributes"}}', "whether anything is there"),
    ('{"match": {"attributes.color": "wine"}}', "a word: a leaf is one term, not words"),
    ('{"range": {"attributes.price": {"gte": 9, "lte": 9.9}}}', "an order of texts: 10 stands before 9"),
    ('{"query_string": {"query": "attributes.color:red"}}', "in a query's own language"),
)
