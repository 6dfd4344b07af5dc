r"""Data types made of others: arrays, enums, composites, ranges, domains, extensions' types (contract lines 12, 13, 20 to 23, 28)."""

from __future__ import annotations

from typing import Final

from tests.cases.case import ALL, Case, values

ARRAYS: Final[tuple[Case, ...]] = (
    values(
        "B12-int-array",
        "arrays: dimensions, NULLs, lower bounds",
        "int4[]",
        "{{1,2,NULL},{3,4,5}}",
        "{}",
        "[2:4][-1:0]={{1,2},{3,4},{5,6}}",
        "{NULL}",
        "[0:0]={7}",
        "{{{{{{1}}}}}}",
        versions=ALL,
    ),
    values(
        "B12-text-array",
        'the text "NULL" is not NULL; quotes, backslashes, braces, commas, spaces, nothing',
        "text[]",
        '{"NULL",NULL,"a,b","q\\"q","b\\\\s","{}",""," ",null2}',
        '{{"a b"},{"c\\\\\\"d"}}',
        '{"line\nfeed\ttab"}',
        "{é,😀}",
        versions=ALL,
    ),
    values(
        "B13-array-dimensions",
        "one column holds arrays of one and of two dimensions",
        "int4[3]",
        "{1}",
        "{{1,2},{3,4}}",
        "{1,2,3,4,5}",
    ),
    values(
        "B12-numeric-array",
        "numerics in an array keep scale, NaN and Infinity",
        "numeric[]",
        ("{1.10,NaN,Infinity,-0.00}", "{1.10,NaN,Infinity,0.00}"),
    ),
    values("B12-numeric-scaled-array", "numeric(10,2)[]", "numeric(10,2)[]", ("{1,2.345}", "{1.00,2.35}")),
    values("B12-float-array", "floats in an array", "float8[]", "{0.30000000000000004,5e-324,-0,NaN,-Infinity}"),
    values("B12-bytea-array", "bytes in an array: their backslashes are escaped", "bytea[]", '{"\\\\x00ff","\\\\x"}'),
    values(
        "B12-timestamptz-array",
        "timestamps in an array, in UTC",
        "timestamptz[]",
        '{"2024-02-29 06:30:00+00",infinity,"0001-01-01 00:00:00+00 BC"}',
    ),
    values("B12-date-array", "dates in an array", "date[]", '{2024-02-29,-infinity,"4714-11-24 BC"}'),
    values("B12-bool-array", "bools in an array", "bool[]", "{t,f,NULL}"),
    values("B12-uuid-array", "uuids in an array", "uuid[]", "{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}"),
    values("B12-char-array", "char(3)[] is padded", "char(3)[]", ("{a,bb}", '{"a  ","bb "}')),
    values(
        "B12-json-array",
        "json in an array",
        "json[]",
        ('{"{\\"a\\":1, \\"a\\":2}",NULL}', '{"{\\"a\\":1, \\"a\\":2}",NULL}'),
        keyed=False,
    ),
    values(
        "B12-jsonb-array", "jsonb in an array", "jsonb[]", ('{"{\\"a\\": 1.10}","null",NULL}', '{"{\\"a\\": 1.10}","null",NULL}')
    ),
    values("B12-interval-array", "intervals in an array", "interval[]", '{"1 mon -3 days",00:00:01}'),
    values("B12-inet-array", "addresses in an array", "inet[]", "{1.2.3.4,10.0.0.1/8}"),
    values("B12-box-array", "boxes are separated by semicolons", "box[]", "{(1,1),(0,0);(2,2),(1,1)}", keyed=False),
    values("B12-name-array", "names in an array", "name[]", "{a,b}"),
    values("B12-oidvector", "oidvector and int2vector", "oidvector", "1 2 4294967295", keyed=False),
    values("B12-int2vector", "int2vector", "int2vector", "1 -2 3", keyed=False),
    values(
        "B12-wide-array",
        "an array of 5000 elements",
        "int4[]",
        ("=array(select g from generate_series(1, 5000) g)", "{" + ",".join(map(str, range(1, 5001))) + "}"),
        keyed=False,
    ),
)

_MOOD: Final = "create type mood as enum ('sad', 'it''s, \"fine\"', '{a,b}', ' ', 'ünï')"
_PAIR: Final = "create type pair as (a int, b text, c text)"

OWN: Final[tuple[Case, ...]] = (
    values(
        "B20-enum",
        "an enum is its label, however odd",
        "mood",
        "sad",
        'it\'s, "fine"',
        "{a,b}",
        " ",
        "ünï",
        setup=_MOOD,
        versions=ALL,
    ),
    values("B21-enum-array", "enums in an array", "mood[]", '{sad,"it\'s, \\"fine\\"","{a,b}"," ",NULL}', setup=_MOOD),
    values(
        "B22-composite",
        "composites: nothing is NULL, quotes are doubled",
        "pair",
        '(1,"a,""b",)',
        "(,,)",
        '(,"",x)',
        '(2,"(x)","\\\\")',
        '(3," ","é\n")',
        setup=_PAIR,
        versions=ALL,
    ),
    values(
        "B22-composite-nested",
        "a composite in a composite, and an array of them",
        "outerone",
        '("(1,""a,""""b"",)",{1,2})',
        '(,"{NULL,3}")',
        '("(,,)",{})',
        setup=f"{_PAIR}; create type outerone as (p pair, n int[])",
    ),
    values("B22-composite-array", "an array of composites", "pair[]", '{"(1,\\"a,\\"\\"b\\",)",NULL,"(,,)"}', setup=_PAIR),
    values(
        "B22-composite-numeric",
        "numbers, dates and bytes in a composite",
        "facts",
        '(1.10,NaN,2024-02-29,"\\\\x00ff",t)',
        '(,,infinity,"\\\\x",f)',
        setup="create type facts as (n numeric, f float8, d date, b bytea, o bool)",
    ),
    values(
        "B22-row-type",
        "a table's row type as a column",
        "rowlike",
        '(1,"a b")',
        setup="create table rowlike (id int primary key, v text)",
    ),
    values(
        "B21-domain",
        "a domain is its base type's value",
        "short",
        "abc",
        "a ",
        setup="create domain short as varchar(3)",
        versions=ALL,
    ),
    values(
        "B21-domain-numeric",
        "a domain over numeric(10,2)",
        "price",
        ("1.1", "1.10"),
        "-0.01",
        setup="create domain price as numeric(10,2) check (value < 1000)",
    ),
    values(
        "B21-domain-of-domain",
        "a domain over a domain over an integer",
        "tiny",
        "1",
        "-2147483648",
        setup="create domain small as int; create domain tiny as small",
    ),
    values(
        "B21-domain-timestamptz",
        "a domain over timestamptz",
        "moment",
        "2024-02-29 06:30:00+00",
        "infinity",
        setup="create domain moment as timestamptz",
    ),
    values(
        "B21-domain-array",
        "a domain over an array, and an array of a domain",
        "ids",
        "{1,2}",
        "{}",
        setup="create domain ids as int[]",
    ),
    values(
        "B21-array-of-domain",
        "an array of a domain",
        "price[]",
        ("{1.1,NULL}", "{1.10,NULL}"),
        setup="create domain price as numeric(10,2)",
    ),
    values("B21-domain-enum", "a domain over an enum", "feeling", "sad", "{a,b}", setup=f"{_MOOD}; create domain feeling as mood"),
    values(
        "B21-domain-composite",
        "a domain over a composite",
        "dpair",
        '(1,"a,""b",)',
        setup=f"{_PAIR}; create domain dpair as pair check ((value).a > 0)",
    ),
    values(
        "B21-odd-type-names",
        "types whose names need quotes",
        '"My ""Type"""',
        "a",
        setup='create type "My ""Type""" as enum (\'a\')',
    ),
)

RANGES: Final[tuple[Case, ...]] = (
    values(
        "B23-int4range",
        "int4range in canonical form",
        "int4range",
        ("(1,5]", "[2,6)"),
        "empty",
        "(,)",
        ("[,5]", "(,6)"),
        versions=ALL,
    ),
    values("B23-int8range", "int8range", "int8range", "[-9223372036854775808,9223372036854775807)"),
    values("B23-numrange", "numrange keeps its bounds and scale", "numrange", "(1.10,2.20]", "[1.0,1.0]", "(-Infinity,Infinity)"),
    values(
        "B23-daterange", "daterange", "daterange", ("[2024-01-01,2024-12-31]", "[2024-01-01,2025-01-01)"), "[-infinity,infinity)"
    ),
    values("B23-tsrange", "tsrange with quotes", "tsrange", '["2024-01-01 00:00:00","2024-01-02 00:00:00.5")'),
    values(
        "B23-tstzrange",
        "tstzrange with quotes, in UTC",
        "tstzrange",
        '["2024-01-01 00:00:00+00",)',
        ("[2024-01-01 00:00:00+02,infinity]", '["2023-12-31 22:00:00+00",infinity]'),
        versions=ALL,
    ),
    values(
        "B23-own-range",
        "a range type of the user's",
        "textrange",
        '(a,"b,c"]',
        '["",x]',
        setup="create type textrange as range (subtype = text)",
    ),
    values("B23-range-array", "an array of ranges", "int4range[]", '{"[1,3)",empty,NULL}'),
    values(
        "B23-int4multirange",
        "multirange, also of nothing",
        "int4multirange",
        "{[1,3),[7,9)}",
        "{}",
        ("{[1,2],[2,5]}", "{[1,6)}"),
        versions=ALL,
    ),
    values(
        "B23-tstzmultirange", "tstzmultirange", "tstzmultirange", '{["2024-01-01 00:00:00+00","2024-01-02 00:00:00+00")}', "{(,)}"
    ),
    values("B23-nummultirange", "nummultirange", "nummultirange", "{[1.10,2.20],(5,)}"),
)

EXTENDED: Final[tuple[Case, ...]] = (
    values(
        "B28-hstore",
        "hstore",
        "hstore",
        ('b=>NULL, a=>"x, \\"y\\""', '"a"=>"x, \\"y\\"", "b"=>NULL'),
        "",
        keyed=False,
        needs="hstore",
        versions=ALL,
    ),
    values("B28-citext", "citext keeps its case", "citext", "Straße", "x ", "", needs="citext", versions=ALL),
    values("B28-ltree", "ltree", "ltree", "Top.Science.Astronomy", "", needs="ltree", versions=ALL),
    values("B28-lquery", "lquery", "lquery", "Top.*{1,2}.!a|b", keyed=False, needs="ltree"),
    values("B28-cube", "cube", "cube", "(1, 2.5),(3, 4)", "(0)", needs="cube"),
    values("B28-seg", "seg keeps its digits", "seg", "1.50", "<5.0", needs="seg"),
    values("B28-isbn", "isbn", "isbn13", "978-0-393-04002-9", needs="isn"),
    values("B28-vector", "vector", "vector(3)", "[1,2.5,-0.1]", needs="vector", versions=(16, 18)),
    values("B28-halfvec", "halfvec and sparsevec", "sparsevec(5)", "{1:1,3:2.5}/5", needs="vector", versions=(18,)),
    values("B28-hstore-array", "an extension's type in an array", "hstore[]", '{"\\"a\\"=>\\"1\\""}', keyed=False, needs="hstore"),
    values(
        "B28-citext-domain",
        "a domain over an extension's type",
        "email",
        "A@B.c",
        needs="citext",
        setup="create domain email as citext",
    ),
)

STRUCTURED: Final[tuple[Case, ...]] = (*ARRAYS, *OWN, *RANGES, *EXTENDED)
