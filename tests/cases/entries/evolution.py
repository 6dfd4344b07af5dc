"""Schema changes while capture streams (contract lines 20, 22, 53 to 63)."""

from __future__ import annotations

from typing import Final

from tests.cases.case import ALL, Case
from tests.cases.entries.partitions import EVOLVING

_TABLE: Final = "create table t (id int primary key, v text); insert into t values (1, 'a'), (2, 'b')"

EVOLUTION: Final[tuple[Case, ...]] = tuple(
    Case(id, title, setup, steps, rows=rows, versions=versions, rig=EVOLVING, wrong=wrong)
    for id, title, setup, steps, rows, versions, wrong in (
        (
            "B53-add-column-const-default",
            "ADD COLUMN with a constant default: stored rows have it",
            _TABLE,
            """
            1: alter table t add column n int default 7
            1: update t set v = 'c' where id = 1
            1: insert into t values (3, 'd', 8)
            """,
            {"t": "1 | c | 7\n2 | b | 7\n3 | d | 8"},
            ALL,
            "",
        ),
        (
            "B53-add-column-default-full",
            "the same under FULL",
            f"{_TABLE}; alter table t replica identity full",
            """
            1: alter table t add column n int default 7
            1: update t set v = 'c' where id = 1
            """,
            {"t": "1 | c | 7\n2 | b | 7"},
            (15, 18),
            "",
        ),
        (
            "B53-add-column-null",
            "ADD COLUMN without default: stored rows are NULL there",
            _TABLE,
            """
            1: alter table t add column n numeric(6,2)
            1: insert into t values (3, 'c', 1.5)
            """,
            {"t": "1 | a | ~\n2 | b | ~\n3 | c | 1.50"},
            ALL,
            "",
        ),
        (
            "B54-add-column-volatile-default",
            "ADD COLUMN with a volatile default rewrites every row without events",
            _TABLE,
            """
            1: alter table t add column s int default (random() * 1000)::int + 1
            1: insert into t values (3, 'c', 0)
            """,
            {},
            (18,),
            "",
        ),
        (
            "B54-add-column-not-null",
            "ADD COLUMN … NOT NULL DEFAULT, and no row afterwards",
            _TABLE,
            "1: alter table t add column n text not null default 'x'",
            {"t": "1 | a | x\n2 | b | x"},
            (18,),
            "",
        ),
        (
            "B54-add-identity-column",
            "ADD COLUMN … GENERATED AS IDENTITY numbers the stored rows",
            _TABLE,
            """
            1: alter table t add column n int generated always as identity
            1: insert into t (id, v) values (3, 'c')
            """,
            {"t": "1 | a | 1\n2 | b | 2\n3 | c | 3"},
            (18,),
            "",
        ),
        (
            "B55-type-using",
            "ALTER TYPE … USING rewrites every row without events",
            "create table t (id int primary key, v text); insert into t values (1, '10'), (2, '20')",
            """
            1: alter table t alter v type int using v::int * 2
            1: insert into t values (3, 5)
            """,
            {"t": "1 | 20\n2 | 40\n3 | 5"},
            ALL,
            "",
        ),
        (
            "B55-type-widened",
            "int becomes bigint",
            "create table t (id int primary key, v int); insert into t values (1, 10)",
            """
            1: alter table t alter v type bigint
            1: insert into t values (2, 9223372036854775807)
            """,
            {"t": "1 | 10\n2 | 9223372036854775807"},
            (15, 18),
            "",
        ),
        (
            "B55-type-of-key",
            "the key becomes bigint",
            "create table t (id int primary key, v int); insert into t values (1, 10), (2, 20)",
            """
            1: alter table t alter id type bigint
            1: update t set v = 11 where id = 1
            1: insert into t values (5000000000, 1)
            1: delete from t where id = 2
            """,
            {"t": "1 | 11\n5000000000 | 1"},
            (18,),
            "",
        ),
        (
            "B55-numeric-rescaled",
            "numeric(10,2) becomes numeric(12,4): every stored text changes",
            "create table t (id int primary key, v numeric(10,2)); insert into t values (1, 1.10), (2, 2)",
            """
            1: alter table t alter v type numeric(12,4)
            1: insert into t values (3, 3.12345)
            """,
            {"t": "1 | 1.1000\n2 | 2.0000\n3 | 3.1235"},
            (18,),
            "",
        ),
        (
            "B55-timestamp-to-timestamptz",
            "timestamp becomes timestamptz",
            "create table t (id int primary key, v timestamp); insert into t values (1, '2024-01-01 00:00:00'), (2, 'infinity')",
            """
            1: set timezone = 'UTC'
            1: alter table t alter v type timestamptz
            1: insert into t values (3, '2024-06-01 12:00:00+02')
            """,
            {"t": "1 | 2024-01-01 00:00:00+00\n2 | infinity\n3 | 2024-06-01 10:00:00+00"},
            (18,),
            "",
        ),
        (
            "B56-varchar-longer",
            "varchar(10) becomes varchar(20): nothing stored changes",
            "create table t (id int primary key, v varchar(10)); insert into t values (1, 'a')",
            """
            1: alter table t alter v type varchar(20)
            1: insert into t values (2, '12345678901234567890')
            """,
            {"t": "1 | a\n2 | 12345678901234567890"},
            (15, 18),
            "",
        ),
        (
            "B57-drop-create",
            "DROP and CREATE under the same name: the old rows are gone",
            _TABLE,
            """
            1: drop table t
            1: create table t (id bigint primary key, w text, v int)
            1: insert into t values (2, 'new', 1)
            """,
            {"t": "2 | new | 1"},
            (15, 18),
            "",
        ),
        (
            "B57-drop-create-in-one-transaction",
            "the same in one transaction, with rows on both sides",
            _TABLE,
            """
            1: begin
            1: insert into t values (3, 'last of the old')
            1: drop table t
            1: create table t (id int primary key, v text)
            1: insert into t values (2, 'new')
            1: commit
            """,
            {"t": "2 | new"},
            (18,),
            "",
        ),
        (
            "B58-insert-then-drop",
            "a row is inserted and its table dropped in one transaction",
            f"{_TABLE}; create table u (id int primary key); insert into u values (1)",
            """
            1: begin
            1: insert into u values (2)
            1: drop table u
            1: insert into t values (3, 'c')
            1: commit
            """,
            {"t": "1 | a\n2 | b\n3 | c", "u": ""},
            (18,),
            "",
        ),
        (
            "B58-drop",
            "a dropped table is empty",
            f"{_TABLE}; create table u (id int primary key); insert into u values (1)",
            "1: drop table u",
            {"u": ""},
            (18,),
            "",
        ),
        (
            "B59-rename",
            "a renamed table goes on under its new name",
            _TABLE,
            """
            1: alter table t rename to u
            1: insert into u values (3, 'c')
            1: delete from u where id = 1
            """,
            {"t": "", "u": "2 | b\n3 | c"},
            (15, 18),
            "",
        ),
        (
            "B59-rename-swap",
            "two tables swap their names",
            "create table t (id int primary key, v text); create table u (id int primary key, v text); insert into t values (1, 'was t'); insert into u values (1, 'was u'), (2, 'was u')",
            """
            1: begin
            1: alter table t rename to x
            1: alter table u rename to t
            1: alter table x rename to u
            1: commit
            1: update t set v = v || '!' where id = 1
            1: insert into u values (3, 'in u')
            """,
            {"t": "1 | was u!\n2 | was u", "u": "1 | was t\n3 | in u"},
            (18,),
            "",
        ),
        (
            "B59-set-schema",
            "ALTER TABLE SET SCHEMA",
            f"{_TABLE}; create schema $S__b",
            """
            1: alter table t set schema $S__b
            1: insert into $S__b.t values (3, 'c')
            """,
            {"t": "", "b.t": "1 | a\n2 | b\n3 | c"},
            (18,),
            "",
        ),
        (
            "B59-rename-schema",
            "ALTER SCHEMA RENAME",
            "create schema $S__b; create table $S__b.t (id int primary key); insert into $S__b.t values (1)",
            """
            1: alter schema $S__b rename to $S__c
            1: insert into $S__c.t values (2)
            """,
            {"b.t": "", "c.t": "1\n2"},
            (18,),
            "",
        ),
        (
            "B59-rename-column",
            "a renamed column keeps its values under the new name",
            _TABLE,
            """
            1: alter table t rename v to w
            1: insert into t values (3, 'c')
            1: update t set w = 'a!' where id = 1
            """,
            {"t": "1 | a!\n2 | b\n3 | c"},
            (15, 18),
            "",
        ),
        (
            "B59-swap-columns",
            "two columns swap their names",
            "create table t (id int primary key, a text, b text); insert into t values (1, 'was a', 'was b')",
            """
            1: begin
            1: alter table t rename a to x
            1: alter table t rename b to a
            1: alter table t rename x to b
            1: commit
            1: insert into t values (2, 'in b', 'in a')
            """,
            {"t": "1 | was a | was b\n2 | in b | in a"},
            (18,),
            "",
        ),
        (
            "B59-drop-column",
            "a dropped column is gone from every row",
            "create table t (id int primary key, gone text, v text); insert into t values (1, 'x', 'a')",
            """
            1: alter table t drop gone
            1: insert into t values (2, 'b')
            1: update t set v = 'a!' where id = 1
            """,
            {"t": "1 | a!\n2 | b"},
            (15, 18),
            "",
        ),
        (
            "B59-drop-and-add-column",
            "a column is dropped, and another of its name added",
            "create table t (id int primary key, v text); insert into t values (1, 'old')",
            """
            1: alter table t drop v
            1: alter table t add column v text
            1: insert into t values (2, 'new')
            """,
            {"t": "1 | ~\n2 | new"},
            (18,),
            "",
        ),
        (
            "B59-key-changed",
            "another column becomes the primary key",
            "create table t (id int primary key, code text not null, v int); insert into t values (1, 'a', 1), (2, 'b', 2)",
            """
            1: alter table t drop constraint t_pkey, add primary key (code)
            1: update t set v = 9 where code = 'a'
            1: update t set code = 'c' where code = 'b'
            1: insert into t values (1, 'd', 4)
            """,
            {"t": "1 | a | 9\n2 | c | 2\n1 | d | 4"},
            (15, 18),
            "",
        ),
        (
            "B61-vacuum-full",
            "VACUUM FULL, CLUSTER, REINDEX: no events, no effect",
            _TABLE,
            """
            1: vacuum full t
            1: cluster t using t_pkey
            1: reindex table t
            1: insert into t values (3, 'c')
            """,
            {"t": "1 | a\n2 | b\n3 | c"},
            (15, 18),
            "",
        ),
        (
            "B62-harmless-ddl",
            "constraints, indexes, defaults, comments, owners, statistics: no effect on rows",
            _TABLE,
            """
            1: alter table t add constraint c check (id > 0)
            1: create index on t (v)
            1: alter table t alter v set default 'x', alter v set not null, alter v set storage external
            1: comment on table t is 'x'
            1: alter table t drop constraint c
            1: analyze t
            1: grant select on t to public
            1: insert into t (id) values (3)
            """,
            {"t": "1 | a\n2 | b\n3 | x"},
            (15, 18),
            "",
        ),
        (
            "B63-type-recreated",
            "a type is dropped and created again under its name",
            "create type mood as enum ('a', 'b'); create table t (id int primary key, v mood); insert into t values (1, 'a')",
            """
            1: alter table t drop v
            1: drop type mood
            1: create type mood as (x int, y text)
            1: alter table t add column v mood
            1: insert into t values (2, '(1,y)')
            """,
            {"t": "1 | ~\n2 | (1,y)"},
            (18,),
            "",
        ),
        (
            "B20-enum-add-value",
            "ALTER TYPE ADD VALUE between rows",
            "create type mood as enum ('sad', 'happy'); create table t (id int primary key, v mood); insert into t values (1, 'sad')",
            """
            1: alter type mood add value 'so so' before 'happy'
            1: insert into t values (2, 'so so')
            """,
            {"t": "1 | sad\n2 | so so"},
            (15, 18),
            "",
        ),
        (
            "B20-enum-rename-value",
            "ALTER TYPE RENAME VALUE: stored rows have the new label without an event",
            "create type mood as enum ('sad', 'happy'); create table t (id int primary key, v mood); insert into t values (1, 'sad'), (2, 'happy')",
            """
            1: alter type mood rename value 'sad' to 'blue'
            1: insert into t values (3, 'blue')
            """,
            {"t": "1 | blue\n2 | happy\n3 | blue"},
            (15, 18),
            "",
        ),
        (
            "B22-composite-add-attribute",
            "ALTER TYPE ADD ATTRIBUTE changes the text of stored values without an event",
            "create type pair as (a int, b text); create table t (id int primary key, v pair); insert into t values (1, '(1,x)')",
            """
            1: alter type pair add attribute c int
            1: insert into t values (2, '(2,y,3)')
            """,
            {"t": "1 | (1,x,)\n2 | (2,y,3)"},
            (18,),
            "",
        ),
        (
            "B20-enum-rename-value-of-key",
            "a label of the key is renamed: the row under the old label is gone",
            "create type mood as enum ('sad', 'ok'); create table t (id mood primary key, v int); insert into t values ('sad', 1), ('ok', 2)",
            """
            1: update t set v = v + 10
            1: alter type mood rename value 'sad' to 'blue'
            1: update t set v = 4 where id = 'blue'
            """,
            {"t": "blue | 4\nok | 12"},
            (15, 18),
            "",
        ),
        (
            "B20-enum-rename-value-inside",
            "a label that is used in arrays, domains, composites and ranges is renamed",
            "create type mood as enum ('sad', 'ok'); create domain dm as mood; create type c as (m mood, n int); create type mr as range (subtype = mood); "
            "create table t (id int primary key, a mood[], b dm, c c[], d mr); insert into t values (1, '{sad,ok}', 'sad', '{\"(sad,1)\"}', '[sad,ok]')",
            "1: alter type mood rename value 'sad' to 'blue'",
            {"t": '1 | {blue,ok} | blue | {"(blue,1)"} | [blue,ok]'},
            (18,),
            "",
        ),
        (
            "B22-composite-attributes-inside",
            "attributes of composites in arrays and in other composites are dropped and added",
            "create type c as (a int, b text); create type o as (c c, n int); create table t (id int primary key, v c[], w o); "
            "insert into t values (1, '{\"(1,y)\"}', '(\"(5,x)\",2)')",
            """
            1: alter type c drop attribute b
            1: alter type c add attribute z text
            """,
            {"t": '1 | {"(1,)"} | ("(5,)",2)'},
            (18,),
            "",
        ),
        (
            "B55-type-using-full-without-key",
            "the whole row is the key and every row is rewritten: no row is left as it was",
            "create table t (id int, v text); alter table t replica identity full; insert into t values (1, 'a'), (2, 'b')",
            """
            1: update t set v = 'c' where id = 2
            1: alter table t alter v type text using v || '!'
            1: delete from t where id = 1
            """,
            {"t": "2 | c!"},
            (15, 18),
            "",
        ),
        (
            "B29-generated-drop-expression",
            "a generated column becomes an ordinary one: its stored values, never sent before, come",
            "create table t (id int primary key, a int, g int generated always as (a * 2) stored); insert into t (id, a) values (1, 1), (2, 2)",
            """
            1: insert into t (id, a) values (3, 3)
            1: alter table t alter g drop expression
            1: insert into t values (4, 4, 99)
            """,
            {"t": "1 | 1 | 2\n2 | 2 | 4\n3 | 3 | 6\n4 | 4 | 99"},
            (15, 18),
            "",
        ),
        (
            "B58-definitions-in-one-transaction",
            "rows under four definitions in one transaction",
            _TABLE,
            """
            1: begin
            1: insert into t values (3, 'c')
            1: alter table t add n int default 1
            1: insert into t values (4, 'd', 4)
            1: alter table t drop v
            1: update t set n = 9 where id = 1
            1: alter table t rename n to m
            1: insert into t values (5, 5)
            1: commit
            """,
            {"t": "1 | 9\n2 | 1\n3 | 1\n4 | 4\n5 | 5"},
            (15, 18),
            "",
        ),
        (
            "B58-definition-rolled-back",
            "a definition that a savepoint rolled back, with rows under it, and another in its place",
            _TABLE,
            """
            1: begin
            1: savepoint s
            1: alter table t add n int default 1
            1: insert into t values (4, 'd', 4)
            1: rollback to s
            1: insert into t values (5, 'e')
            1: alter table t add k text
            1: insert into t values (6, 'f', 'k')
            1: commit
            """,
            {"t": "1 | a | ~\n2 | b | ~\n5 | e | ~\n6 | f | k"},
            (18,),
            "",
        ),
        (
            "B59-name-taken-in-one-transaction",
            "a table is renamed and truncated, and another takes its name, in one transaction",
            _TABLE,
            """
            1: begin
            1: alter table t rename to u
            1: insert into u values (3, 'c')
            1: create table t (id int primary key, w int)
            1: insert into t values (1, 1)
            1: truncate u
            1: insert into u values (7, 'g')
            1: commit
            1: insert into t values (2, 2)
            """,
            {"t": "1 | 1\n2 | 2", "u": "7 | g"},
            (18,),
            "",
        ),
        (
            "B59-rename-ring",
            "three tables pass their names on",
            "create table a (id int primary key, v text); create table b (id int primary key, v text); create table c (id int primary key, v text); "
            "insert into a values (1, 'a'); insert into b values (1, 'b'); insert into c values (1, 'c')",
            """
            1: begin
            1: alter table a rename to x
            1: alter table b rename to a
            1: alter table c rename to b
            1: alter table x rename to c
            1: commit
            1: insert into a values (2, 'in a')
            1: insert into c values (2, 'in c')
            1: update b set v = 'in b'
            """,
            {"a": "1 | b\n2 | in a", "b": "1 | in b", "c": "1 | a\n2 | in c"},
            (18,),
            "",
        ),
        (
            "B61-tablespace",
            "SET TABLESPACE and SET LOGGED move rows without events",
            _TABLE,
            """
            1: set allow_in_place_tablespaces = on
            1: create tablespace $S location ''
            1: alter table t set tablespace $S
            1: insert into t values (3, 'c')
            1: alter table t set tablespace pg_default, set logged
            1: update t set v = 'z' where id = 1
            1: drop tablespace $S
            """,
            {"t": "1 | z\n2 | b\n3 | c"},
            (15, 18),
            "",
        ),
        (
            "B52-inherit-and-no-inherit",
            "a filled table becomes a child and leaves again",
            f"{_TABLE}; create table k (id int primary key, v text); insert into k values (5, 'k')",
            """
            1: alter table k inherit t
            1: update t set v = v || '!'
            1: alter table k no inherit t
            1: update t set v = v || '?'
            """,
            {"t": "1 | a!?\n2 | b!?", "k": "5 | k!"},
            (18,),
            "",
        ),
        (
            "B63-typed-table",
            "the type of a typed table gets an attribute",
            "create type ty as (id int, v text); create table t of ty (primary key (id)); insert into t values (1, 'a')",
            """
            1: alter type ty add attribute w int cascade
            1: insert into t values (2, 'b', 3)
            """,
            {"t": "1 | a | ~\n2 | b | 3"},
            (18,),
            "",
        ),
        (
            "B32-toast-and-definitions",
            "unchanged long values while columns are added, retyped and dropped, the key moves and the table is rewritten",
            "create table t (z int, id int primary key, body text, v int); alter table t alter body set storage external; "
            "insert into t values (9, 1, repeat('x', 3000), 1), (9, 2, repeat('y', 3000), 1)",
            """
            1: begin
            1: update t set v = 2
            1: alter table t add column n text default repeat('d', 3000)
            1: update t set v = 3 where id = 1
            1: alter table t drop column z
            1: update t set id = 3 where id = 1
            1: commit
            1: vacuum full t
            1: update t set v = 4
            1: alter table t alter v type bigint
            1: update t set id = 4 where id = 2
            1: alter table t rename body to b
            1: update t set v = 5
            """,
            {"t": f"3 | {'x' * 3000} | 5 | {'d' * 3000}\n4 | {'y' * 3000} | 5 | {'d' * 3000}"},
            (15, 18),
            "",
        ),
        (
            "B96-added-to-publication",
            "a table added to the publication comes with its rows",
            "create table t (id int primary key)",
            """
            1: create table fresh (id int primary key, v text)
            1: insert into fresh values (1, 'before')
            1: alter publication cdc add table fresh
            1: insert into fresh values (2, 'after')
            """,
            {"fresh": "1 | before\n2 | after"},
            (15, 18),
            "",
        ),
        (
            "B96-column-list-while-running",
            "a column list that comes while capture runs: the columns left out are gone from every row",
            "create table t (id int primary key, v text, secret text); insert into t values (1, 'a', 'canary'), (2, 'b', 'canary')",
            """
            1: update t set v = 'c' where id = 1
            1: begin
            1: alter publication cdc drop table t
            1: alter publication cdc add table t (id, v)
            1: commit
            1: insert into t values (3, 'd', 'canary')
            """,
            {"t": "1 | c\n2 | b\n3 | d"},
            (15, 18),
            "",
        ),
        (
            "B96-row-filter-while-running",
            "a row filter that comes while capture runs: rows outside it leave the stores",
            _TABLE,
            """
            1: begin
            1: alter publication cdc drop table t
            1: alter publication cdc add table t where (id > 1)
            1: commit
            1: insert into t values (0, 'hidden'), (3, 'c')
            """,
            {"t": "2 | b\n3 | c"},
            (15, 18),
            "",
        ),
    )
)
