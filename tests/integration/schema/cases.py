"""DDL as it is run, and the SCHEMA records that must stand in the log: by topic, ``kind`` or ``kind!`` (empties), each with what comes after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ROWS = "insert into t select i, 'v' || i from generate_series(1, 5) i"
T = f"create table t (id int primary key, v text); {ROWS}"


@dataclass(frozen=True, slots=True)
class Case:
    """Everything runs with the case's own schema as search_path; ``%s`` in ``records`` is that schema's name."""

    name: str
    setup: str
    steps: Sequence[str]
    """Each in autocommit; several statements in one step are one transaction."""
    records: Mapping[str, Sequence[str]]
    """With the event trigger: topic → records, in order."""
    polled: Mapping[str, Sequence[str]] | None = None
    """Without it, where that differs. What a row told already may then be told again, which is not counted; ``…``: anything, as it
    depends on when the catalog was looked at."""
    version: int = 15
    """The oldest server that has it."""


def alters(
    name: str, *steps: str, records: Sequence[str] = ("altered",), polled: Sequence[str] | None = None, setup: str = T
) -> Case:
    """One table ``t`` that keeps its name."""
    return Case(name, setup, steps, {"%s.t": records}, None if polled is None else {"%s.t": polled})


CASES = (
    alters("add column", "alter table t add c int", "insert into t values (9, 'x', 1)"),
    alters("add column without a row after it", "alter table t add c int"),
    alters(
        "add column with a constant default",
        "alter table t add c int default 7",
        "insert into t values (9)",
        records=["altered", "rewritten"],
    ),
    alters("add column with a volatile default", "alter table t add c float default random()", records=["altered", "rewritten"]),
    alters(
        "add column with a volatile default that is dropped at once",
        "alter table t add c float default random(); alter table t alter c drop default",
        records=["altered", "rewritten"],
    ),
    alters("drop column", "alter table t drop v", "insert into t values (9)"),
    alters("rename column", "alter table t rename v to w", "insert into t values (9, 'x')"),
    alters(
        "swap two names",
        "begin; alter table t rename a to x; alter table t rename b to a; alter table t rename x to b; commit",
        "update t set a = 'new' where id = 1",
        setup="create table t (id int primary key, a text, b text); insert into t values (1, 'a', 'b'), (2, 'c', 'd')",
        records=["altered", "altered", "altered"],
        polled=["altered"],
    ),
    alters(
        "drop a column and add it again",
        "alter table t drop v; alter table t add v text",
        "insert into t values (9, 'x')",
        records=["altered", "altered"],
        polled=["altered", "rewritten"],
    ),
    alters(
        "type change with USING",
        "alter table t alter v type int using length(v)",
        "insert into t values (9, 1)",
        records=["altered", "rewritten"],
    ),
    alters(
        "type change to the same type with USING",
        "alter table t alter v type text using upper(v)",
        "insert into t values (9, 'x')",
        records=["rewritten"],
    ),
    alters(
        "varchar grows",
        "alter table t alter v type varchar(20)",
        "insert into t values (9, 'x')",
        setup="create table t (id int primary key, v varchar(10)); insert into t values (1, 'a')",
    ),
    alters("type of the key", "alter table t alter id type bigint", "insert into t values (9, 'x')", records=["rewritten!"]),
    alters(
        "another key",
        "alter table t drop constraint t_pkey, add primary key (id, v)",
        "insert into t values (1, 'x')",
        records=["rewritten!"],
    ),
    alters(
        "identity changes",
        "alter table t replica identity full",
        "update t set v = 'x' where id = 1",
        "alter table t replica identity default",
        "update t set v = 'y' where id = 1",
        records=["altered", "altered"],
        polled=["altered"],
    ),
    alters(
        "nothing that matters",
        "vacuum full t",
        "cluster t using t_pkey",
        "reindex table t",
        "create index on t (v)",
        "alter table t add constraint c check (id > 0)",
        "comment on table t is 'x'",
        "insert into t values (9)",
        records=[],
    ),
    alters(
        "a default",
        "alter table t alter v set default 'x'",
        "alter table t alter v set statistics 10",
        "insert into t values (9)",
        records=[],
    ),
    alters(
        "enum labels",
        "alter type m add value 'c'",
        "insert into t values (2, 'c')",
        "alter type m rename value 'a' to 'z'",
        "insert into t values (3, 'z')",
        setup="create type m as enum ('a', 'b'); create table t (id int primary key, v m); insert into t values (1, 'a')",
        records=["rewritten"],
    ),
    alters(
        "attribute of a composite in an array",
        "alter type c add attribute y int",
        "insert into t values (2, array[row(1, 2)::c])",
        setup="create type c as (x int); create table t (id int primary key, v c[]); insert into t values (1, array[row(1)::c])",
        records=["altered", "rewritten"],
    ),
    alters(
        "attribute of a composite with another name",
        "alter type c rename attribute x to y",
        "insert into t values (2, row(2)::c)",
        setup="create type c as (x int); create table t (id int primary key, v c); insert into t values (1, row(1)::c)",
    ),
    Case("drop table", T, ["drop table t"], {"%s.t": ["dropped!"]}),
    Case(
        "insert and drop in one transaction",
        T,
        ["begin; insert into t values (9, 'x'); drop table t; commit"],
        {"%s.t": ["dropped!"]},
    ),
    Case(
        "drop and create",
        T,
        ["begin; drop table t; create table t (id bigint primary key, w int); commit", "insert into t values (1, 2)"],
        {"%s.t": ["dropped!", "created!"]},
        {"%s.t": ["…", "created!"]},
    ),
    Case(
        "rename table",
        T,
        ["alter table t rename to u", "insert into u values (9, 'x')"],
        {"%s.t": ["renamed!"], "%s.u": []},
    ),
    Case(
        "swap two tables",
        f"{T}; create table u (id int primary key, w int); insert into u values (1, 10)",
        [
            "begin; alter table t rename to x; alter table u rename to t; alter table x rename to u; commit",
            "insert into t values (2, 3)",
        ],
        {"%s.t": ["renamed!", "created!"], "%s.u": ["renamed!", "created!"]},
        {"%s.t": ["…", "created!"], "%s.u": ["…", "created!"]},
    ),
    Case(
        "swap a partitioned table with another",
        "create table t (id int primary key, v text) partition by range (id); create table p1 partition of t default; insert into t values (1, 'a'); create table u (id int primary key, w int); insert into u values (1, 10)",
        [
            "insert into t values (2, 'b'); insert into u values (2, 20)",
            "begin; alter table t rename to x; alter table u rename to t; alter table x rename to u; commit",
            "begin; insert into u values (3, 'c'); insert into t values (3, 30); insert into u values (4, 'd'); insert into t values (4, 40); commit",
        ],
        {"%s.t": ["renamed!", "created!"], "%s.u": ["renamed!", "created!"]},
        {"%s.t": ["…", "created!"], "%s.u": ["…", "created!"]},
    ),
    Case("new table", "", [T, "insert into t values (9, 'x')"], {"%s.t": []}),
    Case(
        "attach a filled partition",
        "create table t (id int primary key, v text) partition by range (id); create table p1 partition of t for values from (0) to (10); insert into t values (1, 'a')",
        [
            "create table f (id int not null, v text); insert into f values (11, 'b'); alter table t attach partition f for values from (10) to (20)",
            "insert into t values (12, 'c')",
        ],
        {"%s.t": ["rewritten"]},
    ),
    Case(
        "attach a table that was captured",
        "create table t (id int primary key, v text) partition by range (id); create table p1 partition of t for values from (0) to (10); insert into t values (1, 'a'); create table f (id int primary key, v text); insert into f values (11, 'b')",
        ["alter table t attach partition f for values from (10) to (20)", "insert into t values (12, 'c')"],
        {"%s.t": ["rewritten"], "%s.f": ["dropped!"]},
    ),
    Case(
        "create a partition",
        "create table t (id int primary key, v text) partition by range (id); create table p1 partition of t for values from (0) to (10); insert into t values (1, 'a')",
        ["create table p2 partition of t for values from (10) to (20)", "insert into t values (12, 'c')"],
        {"%s.t": []},
    ),
    Case(
        "drop a filled partition",
        "create table t (id int primary key, v text) partition by range (id); create table p1 partition of t for values from (0) to (10); create table p2 partition of t for values from (10) to (20); insert into t values (1, 'a'), (11, 'b')",
        ["drop table p1", "insert into t values (12, 'c')"],
        {"%s.t": ["rewritten!"]},
    ),
    Case(
        "truncate a partition",
        "create table t (id int primary key, v text) partition by range (id); create table p1 partition of t for values from (0) to (10); create table p2 partition of t for values from (10) to (20); insert into t values (1, 'a'), (11, 'b')",
        ["truncate p1", "insert into t values (12, 'c')"],
        {"%s.t": ["rewritten!"]},
    ),
)
