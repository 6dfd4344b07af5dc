"""What the owner's publication shows: filters, column lists, generated columns, other encodings (contract lines 29, 45, 51, 95 to 98)."""

from __future__ import annotations

from typing import Final

from tests.cases.case import ALL, Case, Rig, values

OWNERS: Final = Rig("owners", "create publication cdc with (publish_via_partition_root = true)")
"""The owner's publication; each setup adds its tables."""
GENERATED: Final = Rig("generated", "create publication cdc with (publish_generated_columns = stored)")
EUC: Final = Rig("euc", database="encoding 'EUC_JP' locale 'C' template template0")
LATIN: Final = Rig("latin", database="encoding 'LATIN1' locale 'C' template template0")

_FILTERED: Final = (
    "create table t (id int primary key, v int); insert into t values (1, 1), (2, 20); "
    "alter table t replica identity full; alter publication cdc add table t where (v > 10)"
)

PUBLICATIONS: Final[tuple[Case, ...]] = (
    Case(
        "B95-row-filter",
        "a row that enters the filter is an insert, one that leaves it a delete",
        _FILTERED,
        """
        1: update t set v = 11 where id = 1
        1: update t set v = 12 where id = 1
        1: update t set v = 2 where id = 2
        1: insert into t values (3, 3), (4, 40)
        1: delete from t where id = 3
        1: update t set v = 4 where id = 3
        """,
        log="""
        c t 1 | 11
        u t 1 | 12
        d t 2 | ~
        c t 4 | 40
        """,
        rows={"t": "1 | 12\n4 | 40"},
        rig=OWNERS,
        versions=ALL,
    ),
    Case(
        "B95-row-filter-on-key",
        "a filter on the key, under the default identity",
        "create table t (id int primary key, v int); insert into t values (1, 1), (200, 2); alter publication cdc add table t where (id >= 100)",
        """
        1: update t set id = 100 where id = 1
        1: update t set v = 3
        1: update t set id = 2 where id = 200
        1: delete from t where id = 2
        """,
        rows={"t": "100 | 3"},
        rig=OWNERS,
    ),
    Case(
        "B95-row-filter-toast",
        "a row with an unchanged long value enters the filter",
        "create table t (id int primary key, body text, v int); alter table t alter body set storage external; alter table t replica identity full; "
        "insert into t values (1, repeat('x', 3000), 1), (2, repeat('y', 3000), 20); alter publication cdc add table t where (v > 10)",
        """
        1: update t set v = 11 where id = 1
        1: update t set v = 21 where id = 2
        1: update t set v = 1 where id = 2
        1: update t set v = 30 where id = 2
        """,
        rows={"t": f"1 | {'x' * 3000} | 11\n2 | {'y' * 3000} | 30"},
        rig=OWNERS,
        versions=(15, 18),
    ),
    Case(
        "B95-column-list",
        "columns that are not listed never leave the database; updating one changes nothing that shows",
        "create table t (id int primary key, shown text, secret text, z int); insert into t values (1, 'a', 'canary', 5); "
        "alter publication cdc add table t (id, z, shown)",
        """
        1: update t set secret = 'other canary'
        1: update t set shown = 'b'
        1: insert into t values (2, 'c', 'canary', null)
        """,
        log="""
        u t 1 | a | 5
        u t 1 | b | 5
        c t 2 | c | ~
        """,
        rows={"t": "1 | b | 5\n2 | c | ~"},
        rig=OWNERS,
        versions=ALL,
    ),
    Case(
        "B45-truncate-ignores-filter",
        "TRUNCATE empties the table whatever the filter says",
        f"{_FILTERED}",
        """
        1: truncate t
        1: insert into t values (7, 70)
        """,
        log="""
        t t
        c t 7 | 70
        """,
        rows={"t": "7 | 70"},
        rig=OWNERS,
    ),
    Case(
        "B51-filter-on-root",
        "the root's filter holds for all partitions",
        "create table t (id int, r text, v int, primary key (id, r)) partition by list (r); create table t_a partition of t for values in ('a'); "
        "create table t_b partition of t default; insert into t values (1, 'a', 1), (2, 'b', 20); "
        "alter publication cdc add table t where (id > 1)",
        """
        1: insert into t values (3, 'a', 1), (0, 'b', 1)
        1: update t set id = 10 where id = 1
        1: update t set r = 'a' where id = 2
        """,
        rows={"t": "3 | a | 1\n10 | a | 1\n2 | a | 20"},
        rig=OWNERS,
        versions=(15, 18),
    ),
    Case(
        "B29-generated-published",
        "publish_generated_columns = stored brings stored ones, in stream and snapshot",
        "create table t (id int primary key, a int, twice int generated always as (a * 2) stored, thrice int generated always as (a * 3) virtual); "
        "insert into t (id, a) values (1, 2); alter publication cdc add table t",
        """
        1: insert into t (id, a) values (2, 5)
        1: update t set a = 6 where id = 2
        """,
        log="""
        c t 2 | 5 | 10
        u t 2 | 6 | 12
        """,
        rows={"t": "1 | 2 | 4\n2 | 6 | 12"},
        rig=GENERATED,
        versions=(18,),
    ),
    Case(
        "B29-generated-listed",
        "a column list that names a generated column",
        "create table t (id int primary key, a int, twice int generated always as (a * 2) stored); insert into t (id, a) values (1, 2); "
        "alter publication cdc add table t (id, twice)",
        "1: insert into t (id, a) values (2, 5)",
        log="c t 2 | 10",
        rows={"t": "1 | 4\n2 | 10"},
        rig=OWNERS,
        versions=(18,),
    ),
    values(
        "B98-latin1-text",
        "a LATIN1 database: its text arrives in UTF-8",
        "text",
        "é",
        "ÿ¡",
        ("=chr(160)", "\u00a0"),
        "Straße",
        rig=LATIN,
        versions=(15, 18),
    ),
    values("B98-latin1-json", "jsonb and arrays of a LATIN1 database", "jsonb", '{"é": "ü"}', rig=LATIN),
    values("B98-latin1-array", "a text array of a LATIN1 database", "text[]", '{é,"ü, ß"}', rig=LATIN),
    values(
        "B98-eucjp-text",
        "an EUC_JP database: two and three bytes a character, and half-width kana",
        "text",
        "日本語",
        "ｶﾅ",
        "ー。、",
        "丂丄",
        "back\\slash",
        "",
        rig=EUC,
        versions=(15, 18),
    ),
    values("B98-eucjp-json", "jsonb of an EUC_JP database", "jsonb", '{"n": [1, null], "名前": "値"}', rig=EUC),
    values("B98-eucjp-array", "a text array of an EUC_JP database", "text[]", '{東京,"大 阪",NULL}', rig=EUC),
    values("B98-eucjp-varchar", "lengths count characters, not bytes", "varchar(3)", "日本語", "ｶﾅ", rig=EUC),
    Case(
        "B98-eucjp-names",
        "names of tables and columns of an EUC_JP database",
        'create table "顧客" ("番号" int primary key, "氏名" text); insert into "顧客" values (1, \'山田\')',
        """
        1: insert into "顧客" values (2, '鈴木')
        1: delete from "顧客" where "番号" = 1
        """,
        log="""
        c 顧客 2 | 鈴木
        d 顧客 1 | ~
        """,
        rig=EUC,
        versions=(15, 18),
    ),
    Case(
        "B98-latin1-names",
        "names of tables and columns of a LATIN1 database",
        'create table "täble" ("sélect" int primary key, "ÿ" text); insert into "täble" values (1, \'é\')',
        """
        1: insert into "täble" values (2, 'ü')
        1: delete from "täble" where "sélect" = 1
        """,
        log="""
        c täble 2 | ü
        d täble 1 | ~
        """,
        rig=LATIN,
        versions=(15, 18),
    ),
)
