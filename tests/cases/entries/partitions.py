"""TRUNCATE, partitions and inheritance (contract lines 44 to 52)."""

from __future__ import annotations

from typing import Final

from tests.cases.case import ALL, Case, Rig

EVERYTHING: Final = Rig("everything", "create publication cdc for all tables with (publish_via_partition_root = true)")
EVOLVING: Final = Rig("evolving")
"""Tables whose definitions change; stored rows may have to be read again."""

_PAIR: Final = (
    "create table p (id int primary key, v text); create table c (id int primary key, p int references p); "
    "insert into p values (1, 'x'); insert into c values (10, 1)"
)
LIST: Final = (
    "create table t (id int, r text, v int, primary key (id, r)) partition by list (r); "
    "create table t_a partition of t for values in ('a'); create table t_b partition of t for values in ('b'); "
    "insert into t values (1, 'a', 0), (2, 'b', 0)"
)

TRUNCATES: Final[tuple[Case, ...]] = (
    Case(
        "B44-truncate-cascade",
        "TRUNCATE CASCADE empties each table once, at its place in the order",
        _PAIR,
        """
        1: insert into p values (2, 'y')
        1: truncate p cascade
        1: insert into p values (3, 'z')
        """,
        log="""
        c p 2 | y
        t p
        t c
        c p 3 | z
        """,
        rows={"p": "3 | z", "c": ""},
        versions=ALL,
    ),
    Case(
        "B44-truncate-restart-identity",
        "RESTART IDENTITY: the keys begin again after the truncation",
        "create table t (id serial primary key, v text); insert into t (v) values ('old'), ('old')",
        """
        1: truncate t restart identity
        1: insert into t (v) values ('new')
        """,
        log="""
        t t
        c t 1 | new
        """,
        versions=ALL,
    ),
    Case(
        "B44-truncate-inside",
        "TRUNCATE between rows of one transaction",
        "create table t (id int primary key, v text); insert into t values (1, 'old')",
        """
        1: begin
        1: insert into t values (2, 'before')
        1: truncate t
        1: insert into t values (1, 'after')
        1: commit
        """,
        log="""
        c t 2 | before
        t t
        c t 1 | after
        """,
    ),
    Case(
        "B44-truncate-rolled-back",
        "a TRUNCATE that is rolled back by a savepoint, and one by its transaction",
        "create table t (id int primary key, v text); insert into t values (1, 'kept')",
        """
        1: begin
        1: savepoint s
        1: truncate t
        1: insert into t values (1, 'gone')
        1: rollback to s
        1: insert into t values (2, 'x')
        1: commit
        1: begin
        1: truncate t
        1: rollback
        """,
        log="c t 2 | x",
        rows={"t": "1 | kept\n2 | x"},
    ),
    Case(
        "B44-truncate-empty",
        "TRUNCATE of an empty table, and of one twice",
        "create table t (id int primary key, v text)",
        """
        1: truncate t
        1: insert into t values (1, 'x')
        1: truncate t, t
        1: truncate t
        """,
        log="""
        t t
        c t 1 | x
        t t
        t t
        """,
    ),
    Case(
        "B44-truncate-several",
        "one TRUNCATE of several tables that have nothing in common",
        "create table a (id int primary key); create table b (id text primary key); insert into a values (1); insert into b values ('x')",
        """
        1: truncate b, a
        1: insert into b values ('y')
        """,
        rows={"a": "", "b": "y"},
    ),
    Case(
        "B44-truncate-toast",
        "long values from before a TRUNCATE are forgotten",
        "create table t (id int primary key, body text, n int); alter table t alter body set storage external; "
        "insert into t values (1, repeat('old', 1000), 0)",
        """
        1: truncate t
        1: insert into t values (1, repeat('new', 1000), 1)
        1: update t set n = 2
        """,
        rows={"t": f"1 | {'new' * 1000} | 2"},
    ),
    Case(
        "B44-truncate-root",
        "TRUNCATE of a partitioned table",
        LIST,
        """
        1: truncate t
        1: insert into t values (3, 'a', 1)
        """,
        rows={"t": "3 | a | 1"},
        rig=EVOLVING,
    ),
    Case(
        "B44-truncate-leaf",
        "TRUNCATE of one partition: the others' rows stay",
        LIST,
        "1: truncate t_a",
        rows={"t": "2 | b | 0"},
        rig=EVOLVING,
    ),
    Case(
        "B44-truncate-only",
        "TRUNCATE ONLY of a table with children",
        "create table t (id int primary key, v text); create table k (primary key (id)) inherits (t); "
        "insert into t values (1, 'parent'); insert into k values (2, 'child')",
        "1: truncate only t",
        log="t t",
        rows={"t": "", "k": "2 | child"},
    ),
)

PARTITIONS: Final[tuple[Case, ...]] = (
    Case(
        "B48-move",
        "a row that moves to another partition is deleted and inserted under the root's name",
        LIST,
        """
        1: update t set r = 'b', v = 1 where id = 1
        1: update t set v = 2
        """,
        log="""
        d t 1 | a | ~
        c t 1 | b | 1
        u t 2 | b | 2
        u t 1 | b | 2
        """,
        versions=ALL,
    ),
    Case(
        "B48-direct",
        "rows written to a partition directly come under the root's name",
        LIST,
        """
        1: insert into t_b values (5, 'b', 5)
        1: update t_a set v = 9
        1: delete from t_b where id = 2
        """,
        log="""
        c t 5 | b | 5
        u t 1 | a | 9
        d t 2 | b | ~
        """,
    ),
    Case(
        "B48-column-order",
        "a partition whose columns stand in another order and have other numbers",
        "create table t (id int, r text, v int, primary key (id, r)) partition by list (r); "
        "create table leaf (gone int, v int, r text not null, id int not null); alter table leaf drop gone; "
        "alter table t attach partition leaf for values in ('a'); insert into t values (1, 'a', 10)",
        """
        1: insert into leaf (id, r, v) values (2, 'a', 20)
        1: update t set v = v + 1
        1: delete from leaf where id = 1
        """,
        log="""
        c t 2 | a | 20
        u t 1 | a | 11
        u t 2 | a | 21
        d t 1 | a | ~
        """,
        versions=ALL,
    ),
    Case(
        "B51-multi-level",
        "partitions of partitions, by list, range and hash, with a default",
        "create table t (id int, r text, v int, primary key (id, r)) partition by list (r); "
        "create table t_a partition of t for values in ('a') partition by range (id); "
        "create table t_a1 partition of t_a for values from (0) to (100); create table t_a2 partition of t_a default; "
        "create table t_x partition of t default partition by hash (id); "
        "create table t_x0 partition of t_x for values with (modulus 2, remainder 0); create table t_x1 partition of t_x for values with (modulus 2, remainder 1); "
        "insert into t select g, case when g % 2 = 0 then 'a' else 'x' || g end, 0 from generate_series(1, 20) g",
        """
        1: insert into t values (500, 'a', 1), (501, 'zzz', 1)
        1: update t set id = id + 1000 where r = 'a' and id <= 100
        1: update t set r = 'a' where r = 'zzz'
        1: delete from t where id = 3
        """,
        versions=(15, 18),
    ),
    Case(
        "B51-new-partition",
        "a partition that is created later holds rows of the root from its first row on",
        LIST,
        """
        1: create table t_c partition of t for values in ('c')
        1: insert into t values (7, 'c', 7)
        """,
        log="c t 7 | c | 7",
    ),
    Case(
        "B51-leaf-keys",
        "partitions without a primary key of their own, the root under FULL",
        "create table t (id int, v int) partition by range (id); create table t1 partition of t for values from (0) to (10); "
        "create table t2 partition of t default; alter table t replica identity full; alter table t1 replica identity full; "
        "alter table t2 replica identity full; insert into t values (1, 1), (11, null)",
        """
        1: update t set id = 12 where id = 1
        1: delete from t where v is null
        """,
        rows={"t": "12 | 1"},
    ),
    Case(
        "B49-detach",
        "DETACH PARTITION: the rows leave the root without a delete",
        LIST,
        "1: alter table t detach partition t_a",
        rows={"t": "2 | b | 0"},
        rig=EVOLVING,
    ),
    Case(
        "B49-drop-partition",
        "DROP TABLE of a partition",
        LIST,
        "1: drop table t_b",
        rows={"t": "1 | a | 0"},
        rig=EVOLVING,
    ),
    Case(
        "B49-attach",
        "ATTACH of a filled table brings its rows without an insert",
        f"{LIST}; create table extra (id int not null, r text not null, v int, primary key (id, r)); insert into extra values (7, 'c', 7)",
        """
        1: alter table t attach partition extra for values in ('c')
        1: insert into t values (8, 'c', 8)
        """,
        rows={"t": "1 | a | 0\n2 | b | 0\n7 | c | 7\n8 | c | 8"},
        rig=EVOLVING,
    ),
    Case(
        "B50-detached-under-all-tables",
        "a detached partition under FOR ALL TABLES is a table of its own, never mixed into the root",
        LIST,
        """
        1: alter table t detach partition t_a
        1: insert into t_a values (9, 'a', 9)
        1: insert into t values (10, 'b', 10)
        """,
        rows={"t": "2 | b | 0\n10 | b | 10", "t_a": "1 | a | 0\n9 | a | 9"},
        rig=EVERYTHING,
    ),
    Case(
        "B97-new-table-under-all-tables",
        "a table created later under FOR ALL TABLES is captured from its first row",
        "create table t (id int primary key)",
        """
        1: create table fresh (id int primary key, v text)
        1: insert into fresh values (1, 'x')
        1: update fresh set v = 'y'
        """,
        rows={"fresh": "1 | y"},
        rig=EVERYTHING,
    ),
    Case(
        "B97-new-table-in-one-transaction",
        "a table created and filled in one transaction under FOR ALL TABLES",
        "create table t (id int primary key)",
        """
        1: begin
        1: create table fresh (id int primary key, v text)
        1: insert into fresh values (1, 'x')
        1: commit
        """,
        rows={"fresh": "1 | x"},
        rig=EVERYTHING,
    ),
    Case(
        "B52-inherits",
        "INHERITS children are tables of their own: the parent's rows are its own only",
        "create table t (id int primary key, v text); create table k (extra int, primary key (id)) inherits (t); "
        "insert into t values (1, 'parent'); insert into k values (2, 'child', 5)",
        """
        1: insert into k values (3, 'child', 6)
        1: update t set v = v || '!'
        """,
        rows={"t": "1 | parent!", "k": "2 | child! | 5\n3 | child! | 6"},
        versions=(15, 18),
    ),
    Case(
        "B52-inherits-moved",
        "the same key in parent and child is two rows",
        "create table t (id int primary key, v text); create table k (primary key (id)) inherits (t); insert into t values (1, 'parent'); insert into k values (1, 'child')",
        "1: delete from only t where id = 1",
        rows={"t": "", "k": "1 | child"},
    ),
)

TABLES: Final[tuple[Case, ...]] = (*TRUNCATES, *PARTITIONS)
