"""TOAST, replica identities and keys (contract lines 29 to 43)."""

from __future__ import annotations

from typing import Final

from tests.cases.case import ALL, Case

_BODY: Final = "x" * 3000
_WIDE: Final = "create table t (id int primary key, body text, n int); alter table t alter body set storage external"

TOAST: Final[tuple[Case, ...]] = (
    Case(
        "B32-toast-from-snapshot",
        "an unchanged TOAST value of a row that came with the snapshot",
        f"{_WIDE}; insert into t values (1, repeat('x', 3000), 0)",
        "1: update t set n = 1",
        log=f"u t 1 | {_BODY} | 1",
        versions=ALL,
    ),
    Case(
        "B32-toast-from-stream",
        "an unchanged TOAST value of a row that was streamed",
        _WIDE,
        """
        1: insert into t values (1, repeat('x', 3000), 0)
        1: update t set n = 1
        1: update t set n = 2
        """,
        log=f"""
        c t 1 | {_BODY} | 0
        u t 1 | {_BODY} | 1
        u t 1 | {_BODY} | 2
        """,
        versions=ALL,
    ),
    Case(
        "B32-toast-one-transaction",
        "written, left unchanged and changed in one transaction",
        _WIDE,
        """
        1: begin
        1: insert into t values (1, repeat('x', 3000), 0)
        1: update t set n = 1
        1: update t set body = repeat('y', 2500)
        1: update t set n = 2
        1: commit
        """,
        log=f"""
        c t 1 | {_BODY} | 0
        u t 1 | {_BODY} | 1
        u t 1 | {"y" * 2500} | 1
        u t 1 | {"y" * 2500} | 2
        """,
    ),
    Case(
        "B32-toast-rolled-back",
        "a value that a rolled-back savepoint wrote is never filled in",
        f"{_WIDE}; insert into t values (1, repeat('x', 3000), 0)",
        """
        1: begin
        1: savepoint s
        1: update t set body = repeat('never', 1000)
        1: rollback to s
        1: update t set n = 1
        1: commit
        1: update t set n = 2
        """,
        log=f"""
        u t 1 | {_BODY} | 1
        u t 1 | {_BODY} | 2
        """,
    ),
    Case(
        "B32-toast-null-between",
        "NULL is a value: no older value replaces it",
        f"{_WIDE}; insert into t values (1, repeat('x', 3000), 0), (2, null, 0)",
        """
        1: update t set body = null where id = 1
        1: update t set n = 1
        1: update t set body = repeat('z', 2100) where id = 2
        1: update t set n = 2
        """,
        rows={"t": f"1 | ~ | 2\n2 | {'z' * 2100} | 2"},
    ),
    Case(
        "B32-toast-short-between",
        "a value that became short, and long again",
        f"{_WIDE}; insert into t values (1, repeat('x', 3000), 0)",
        """
        1: update t set body = 'short'
        1: update t set n = 1
        1: update t set body = repeat('y', 3000)
        1: update t set n = 2
        """,
        log=f"""
        u t 1 | short | 0
        u t 1 | short | 1
        u t 1 | {"y" * 3000} | 1
        u t 1 | {"y" * 3000} | 2
        """,
    ),
    Case(
        "B32-toast-delete-reinsert",
        "a key that was deleted and inserted again remembers its new row only",
        f"{_WIDE}; insert into t values (1, repeat('x', 3000), 0)",
        """
        1: delete from t
        1: insert into t values (1, repeat('y', 3000), 1)
        1: update t set n = 2
        """,
        log=f"""
        d t 1 | ~ | ~
        c t 1 | {"y" * 3000} | 1
        u t 1 | {"y" * 3000} | 2
        """,
    ),
    Case(
        "B32-toast-some-columns",
        "one long value changes while others stay",
        "create table t (id int primary key, a text, b text, c jsonb, d bytea, n int); "
        "alter table t alter a set storage external, alter b set storage external, alter c set storage external, alter d set storage external; "
        "insert into t select g, repeat('a', 2500), repeat('b', 2500), "
        "(select jsonb_agg(i) from generate_series(1, 2000) i), decode(repeat('00ff', 2000), 'hex'), 0 from generate_series(1, 3) g",
        """
        1: update t set a = 'new a' where id = 1
        1: update t set b = null, n = 5 where id = 2
        1: update t set c = '{"k": 1.10}' where id = 3
        1: update t set n = n + 1
        1: update t set d = '\\x00' where id = 1
        1: update t set n = n + 1
        """,
    ),
    Case(
        "B32-toast-arrays",
        "unchanged TOAST values that are arrays, numerics, ranges and composites",
        "create type pair as (a int, b text); "
        "create table t (id int primary key, a int[], b text[], c numeric, d pair, e tsvector, n int); "
        "alter table t alter a set storage external, alter b set storage external, alter c set storage external, "
        "alter d set storage external, alter e set storage external; "
        "insert into t select g, array(select i from generate_series(1, 3000) i), array(select 'é' || i from generate_series(1, 800) i), "
        "('0.' || repeat('7', 9000))::numeric, row(1, repeat('\"', 4000))::pair, "
        "(select to_tsvector('simple', string_agg('w' || i, ' ')) from generate_series(1, 900) i), 0 from generate_series(1, 2) g",
        """
        1: update t set n = 1
        1: update t set a = '{NULL}' where id = 1
        1: update t set n = 2
        """,
    ),
    Case(
        "B32-toast-compressed",
        "values that are compressed in place are sent whole",
        "create table t (id int primary key, body text, n int); insert into t values (1, repeat('x', 20000), 0)",
        "1: update t set n = 1",
        log=f"u t 1 | {'x' * 20000} | 1",
    ),
    Case(
        "B32-toast-key-column",
        "the key itself is long",
        "create table t (id text primary key, n int); insert into t select string_agg(md5(i::text), '') , 0 from generate_series(1, 70) i",
        """
        1: update t set n = 1
        1: update t set id = 'short'
        1: update t set n = 2
        """,
    ),
    Case(
        "B33-toast-full",
        "under FULL the unchanged value is in the old row",
        f"{_WIDE}; alter table t replica identity full; insert into t values (1, repeat('x', 3000), 0)",
        """
        1: update t set n = 1
        1: update t set id = 2
        """,
        log=f"""
        u t 1 | {_BODY} | 1
        d t 1 | ~ | ~
        u t 2 | {_BODY} | 1
        """,
        versions=ALL,
    ),
    Case(
        "B33-toast-full-without-key",
        "FULL and no primary key: the whole old row is the key",
        "create table t (a int, body text); alter table t alter body set storage external; alter table t replica identity full; "
        "insert into t values (1, repeat('x', 3000))",
        "1: update t set a = 2",
        log=f"""
        d t 1 | {_BODY}
        u t 2 | {_BODY}
        """,
    ),
    Case(
        "B32-toast-key-moves-in-one-transaction",
        "the key changes again and again, one long value changes, another stays, a savepoint is rolled back",
        f"{_WIDE}; alter table t add b text; alter table t alter b set storage external; "
        "insert into t values (1, repeat('x', 3000), 0, repeat('y', 3000))",
        """
        1: update t set id = 2
        1: begin
        1: savepoint s
        1: update t set id = 9, b = repeat('never', 900)
        1: rollback to s
        1: update t set id = 3, body = 'short'
        1: update t set id = 4
        1: update t set id = 2, n = 1
        1: commit
        1: update t set n = 2
        """,
        rows={"t": f"2 | short | 2 | {'y' * 3000}"},
        versions=(15, 18),
    ),
    Case(
        "B32-toast-using-index",
        "the identity is another unique index: the primary key and the identity move, long values stay",
        "create table t (id int primary key, code text not null, body text, n int); create unique index t_code on t (code); "
        "alter table t replica identity using index t_code; alter table t alter body set storage external; "
        "insert into t values (1, 'a', repeat('x', 3000), 0), (2, 'b', repeat('y', 3000), 0)",
        """
        1: update t set n = 1
        1: update t set code = 'c' where code = 'a'
        1: update t set id = 7 where id = 2
        1: update t set n = 2
        """,
        rows={"t": f"1 | c | {_BODY} | 2\n7 | b | {'y' * 3000} | 2"},
        versions=(15, 18),
    ),
    Case(
        "B32-toast-key-reused",
        "a key is deleted, taken by another row and inserted again, in one transaction",
        f"{_WIDE}; insert into t values (1, repeat('x', 3000), 0), (2, repeat('y', 3000), 0)",
        """
        1: begin
        1: delete from t where id = 1
        1: update t set id = 1 where id = 2
        1: insert into t values (2, repeat('z', 3000), 0)
        1: update t set n = 1
        1: commit
        """,
        rows={"t": f"1 | {'y' * 3000} | 1\n2 | {'z' * 3000} | 1"},
    ),
    Case(
        "B32-toast-upsert-and-merge",
        "ON CONFLICT and MERGE leave a long value unchanged",
        f"{_WIDE}; insert into t values (1, repeat('x', 3000), 0)",
        """
        1: insert into t values (1, 'y', 5) on conflict (id) do update set n = excluded.n
        1: merge into t using (values (1)) s (id) on s.id = t.id when matched then update set n = 6
        """,
        log=f"""
        u t 1 | {_BODY} | 5
        u t 1 | {_BODY} | 6
        """,
        versions=(15, 18),
    ),
    Case(
        "B32-toast-prepared",
        "a long value that a prepared transaction wrote",
        f"{_WIDE}; insert into t values (1, repeat('x', 3000), 0)",
        """
        1: begin
        1: update t set body = repeat('y', 3000)
        1: prepare transaction '$S'
        1: commit prepared '$S'
        1: update t set n = 1
        """,
        rows={"t": f"1 | {'y' * 3000} | 1"},
    ),
    Case(
        "B32-toast-small-target",
        "toast_tuple_target makes values of 200 bytes long ones",
        "create table t (id int primary key, body varchar(5000), n int); alter table t alter body set storage external; "
        "alter table t set (toast_tuple_target = 128); insert into t values (1, repeat('x', 200), 0)",
        """
        1: update t set n = 1
        1: update t set id = 2
        1: update t set n = 2
        """,
        rows={"t": f"2 | {'x' * 200} | 2"},
    ),
    Case(
        "B33-toast-full-null",
        "under FULL: an old NULL, a long value, NULL again",
        f"{_WIDE}; alter table t add b text; alter table t alter b set storage external; alter table t replica identity full; "
        "insert into t values (1, repeat('x', 3000), 0, null)",
        """
        1: update t set n = 1
        1: update t set b = repeat('y', 3000)
        1: update t set id = 2
        1: update t set body = null
        1: update t set n = 2
        """,
        rows={"t": f"2 | ~ | 2 | {'y' * 3000}"},
        versions=(15, 18),
    ),
    Case(
        "B36-toast-key-change",
        "the key changes, the long value does not",
        f"{_WIDE}; insert into t values (1, repeat('x', 3000), 0), (5, repeat('y', 3000), 0)",
        """
        1: update t set id = 2 where id = 1
        1: update t set n = 1 where id = 2
        1: update t set id = 1 where id = 5
        1: update t set n = 2
        """,
        log=f"""
        d t 1 | ~ | ~
        u t 2 | {_BODY} | 0
        u t 2 | {_BODY} | 1
        d t 5 | ~ | ~
        u t 1 | {"y" * 3000} | 0
        u t 2 | {_BODY} | 2
        u t 1 | {"y" * 3000} | 2
        """,
    ),
    Case(
        "B36-toast-swap",
        "two rows swap their keys, each keeps its long value",
        f"{_WIDE}; insert into t values (1, repeat('x', 3000), 0), (2, repeat('y', 3000), 0)",
        """
        1: begin
        1: update t set id = 3 where id = 1
        1: update t set id = 1 where id = 2
        1: update t set id = 2 where id = 3
        1: commit
        1: update t set n = 1
        """,
        rows={"t": f"2 | {_BODY} | 1\n1 | {'y' * 3000} | 1"},
    ),
    Case(
        "B32-toast-partitioned",
        "an unchanged long value of a row that stays in its partition, and of one that moves",
        "create table t (id int, r text, body text, n int, primary key (id, r)) partition by list (r); "
        "create table t_a partition of t for values in ('a'); create table t_b partition of t for values in ('b'); "
        "alter table t_a alter body set storage external; alter table t_b alter body set storage external; "
        "insert into t values (1, 'a', repeat('x', 3000), 0)",
        """
        1: update t set n = 1
        1: update t set r = 'b'
        1: update t set n = 2
        """,
        log=f"""
        u t 1 | a | {_BODY} | 1
        d t 1 | a | ~ | ~
        c t 1 | b | {_BODY} | 1
        u t 1 | b | {_BODY} | 2
        """,
    ),
)

KEYS: Final[tuple[Case, ...]] = (
    Case(
        "B34-delete-default",
        "a delete carries the key, and nothing else",
        "create table t (id int primary key, v text, w int not null); insert into t values (1, 'x', 1), (2, null, 2)",
        "1: delete from t where id = 1",
        log="d t 1 | ~ | ~",
        rows={"t": "2 | ~ | 2"},
        versions=ALL,
    ),
    Case(
        "B34-delete-full",
        "a delete under FULL names the row",
        "create table t (id int primary key, v text); alter table t replica identity full; insert into t values (1, 'x'), (2, 'y')",
        "1: delete from t where v = 'x'",
        log="d t 1 | ~",
        rows={"t": "2 | y"},
    ),
    Case(
        "B35-update-without-change",
        "an update to equal values is an update",
        "create table t (id int primary key, v text); insert into t values (1, 'x')",
        "1: update t set v = v",
        log="u t 1 | x",
    ),
    Case(
        "B35-update-of-key-to-itself",
        "setting the key to what it is changes no key",
        "create table t (id int primary key, v text); insert into t values (1, 'x')",
        "1: update t set id = id, v = 'y'",
        log="u t 1 | y",
    ),
    Case(
        "B36-key-update",
        "an update of the key: the old row goes, the new one comes, side by side",
        "create table t (id int primary key, v text); insert into t values (1, 'x')",
        "1: update t set id = 2",
        log="""
        d t 1 | ~
        u t 2 | x
        """,
        versions=ALL,
    ),
    Case(
        "B36-key-update-full",
        "an update of the key under FULL",
        "create table t (id int primary key, v text); alter table t replica identity full; insert into t values (1, 'x')",
        "1: update t set id = 2, v = null",
        log="""
        d t 1 | ~
        u t 2 | ~
        """,
    ),
    Case(
        "B36-key-shift",
        "every row takes its neighbour's key in one statement",
        "create table t (id int primary key, v text); insert into t values (2, 'b'), (3, 'c'), (4, 'd')",
        "1: update t set id = id - 1",
        log="""
        d t 2 | ~
        u t 1 | b
        d t 3 | ~
        u t 2 | c
        d t 4 | ~
        u t 3 | d
        """,
    ),
    Case(
        "B36-key-swap",
        "two rows swap their keys in one transaction",
        "create table t (id int primary key, v text); insert into t values (1, 'a'), (2, 'b')",
        """
        1: begin
        1: update t set id = -1 where id = 1
        1: update t set id = 1 where id = 2
        1: update t set id = 2 where id = -1
        1: commit
        """,
        rows={"t": "1 | b\n2 | a"},
    ),
    Case(
        "B36-key-there-and-back",
        "a key that leaves and comes back",
        "create table t (id int primary key, v text); insert into t values (1, 'a')",
        """
        1: update t set id = 2
        1: insert into t values (1, 'new')
        1: delete from t where id = 1
        1: update t set id = 1
        """,
        log="""
        d t 1 | ~
        u t 2 | a
        c t 1 | new
        d t 1 | ~
        d t 2 | ~
        u t 1 | a
        """,
    ),
    Case(
        "B37-composite-key-order",
        "a key declared (b, a) is in the table's order",
        "create table t (a text, b text, v int, primary key (b, a)); insert into t values ('a', 'b:c', 1), ('a:b', 'c', 2)",
        """
        1: update t set v = 3 where a = 'a'
        1: delete from t where a = 'a:b'
        """,
        log="""
        u t a | b:c | 3
        d t a:b | c | ~
        """,
        rows={"t": "a | b:c | 3"},
    ),
    Case(
        "B37-composite-key-injective",
        "separators, backslashes, empty and odd texts in a key never make two keys one",
        "create table t (a text, b text, v int, primary key (a, b)); insert into t values "
        "('', '', 0), ('a', 'b:c', 1), ('a:b', 'c', 2), (E'a\\\\', 'b', 3), ('a', E'\\\\b', 4), (':', ':', 5), ('', '::', 6), ('::', '', 7), "
        "(E'\\\\N', 'x', 8), (E'\\\\E', '', 9), ('\"', '', 10), ('a ', 'b', 11), ('a', ' b', 12), (E'a\\nb', '', 13), (E'a', E'\\nb', 14)",
        """
        1: update t set v = v + 100
        1: delete from t where a = 'a:b'
        1: update t set b = 'moved' where v = 109
        """,
    ),
    Case(
        "B37-wide-key",
        "a key of eight columns of eight types",
        "create table t (a int, b text, c uuid, d date, e numeric(10,2), f bool, g timestamptz, h bytea, v int, primary key (h, g, f, e, d, c, b, a)); "
        "insert into t values (1, 'x', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'infinity', 1.1, true, '-infinity', '\\x00', 0), "
        "(1, 'x', 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '2024-02-29', 1.1, false, '2024-01-01 00:00+01', '\\x', 0)",
        """
        1: update t set v = 1
        1: update t set e = 'NaN' where f
        1: delete from t where not f
        """,
        rows={"t": "1 | x | a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11 | infinity | NaN | t | -infinity | \\\\x00 | 1"},
    ),
    Case(
        "B37-numeric-key-scale",
        "a numeric key that is written with another scale is the same row",
        "create table t (id numeric primary key, v int); insert into t values (1.0, 1)",
        """
        1: update t set id = 1.00, v = 2
        1: update t set v = 3
        1: delete from t where id = 1
        1: insert into t values (1, 4)
        """,
        rows={"t": "1 | 4"},
    ),
    Case(
        "B37-citext-key",
        "a key that compares without case is the row's identity as written",
        "create table t (id citext primary key, v int); insert into t values ('Abc', 1)",
        """
        1: update t set v = 2 where id = 'ABC'
        1: update t set id = 'ABC', v = 3
        1: update t set v = 4 where id = 'abc'
        """,
        rows={"t": "ABC | 4"},
        needs="citext",
    ),
    Case(
        "B37-minus-zero-key",
        "a float key that goes from 0 to -0",
        "create table t (id float8 primary key, v int); insert into t values (0, 1)",
        """
        1: update t set id = '-0', v = 2
        1: update t set v = 3
        """,
        rows={"t": "-0 | 3"},
    ),
    Case(
        "B37-key-with-included-columns",
        "INCLUDE columns are stored in the key's index and are not part of the key",
        "create table t (id int, b text not null, n int, primary key (id) include (b)); insert into t values (1, 'a', 1); "
        "create table f (id int, b text not null, n int, primary key (id) include (b)); alter table f replica identity full; insert into f values (1, 'a', 1)",
        """
        1: update t set b = 'z'
        1: update f set b = 'z'
        1: update t set b = 'y', id = 2
        1: delete from f
        """,
        log="""
        u t 1 | z | 1
        u f 1 | z | 1
        d t 1 | ~ | ~
        u t 2 | y | 1
        d f 1 | ~ | ~
        """,
        versions=(15, 18),
    ),
    Case(
        "B18-names-that-stores-know",
        "columns called op, position, _id, a.b beside a, A beside a, with line feeds, quotes and 63 bytes",
        'create table t (id int primary key, op text, position int, "table" text, lsn text, "key" text, "_id" int, "_cdc" int, "a.b" text, "a" text, "A" text, '
        f'"select" int, """q""" int, "back\\slash" int, "line\nfeed" int, "{"é" * 31}" int); insert into t (id, "a.b", "a", "A") values (1, \'x\', \'y\', \'z\')',
        """
        1: update t set op = 'u', position = 5, "A" = null
        1: insert into t (id, "a") values (2, 'y')
        """,
    ),
    Case(
        "B18-long-names",
        "names of 63 bytes, in characters of two and three bytes",
        f'create table "{"é" * 31}" (id int primary key, "{"漢" * 21}" int); insert into "{"é" * 31}" values (1, 1)',
        f"""
        1: update "{"é" * 31}" set "{"漢" * 21}" = 2
        """,
        log=f"u {'é' * 31} 1 | 2",
    ),
    Case(
        "B40-full-all-null",
        "under FULL a row of NULLs is matched safely",
        "create table t (a int, b text); alter table t replica identity full; insert into t values (null, null), (1, null)",
        """
        1: delete from t where a is null
        1: insert into t values (null, 'x')
        1: update t set b = null where b = 'x'
        """,
        log="""
        d t ~ | ~
        c t ~ | x
        d t ~ | x
        u t ~ | ~
        """,
        rows={"t": "1 | ~\n~ | ~"},
        versions=ALL,
    ),
    Case(
        "B40-full-without-key-numeric",
        "under FULL the scale of a numeric is part of the old row",
        "create table t (a numeric, b jsonb); alter table t replica identity full; insert into t values (1.10, '{\"a\": 1}'), (1.1, null)",
        "1: delete from t where b is null",
        log="d t 1.1 | ~",
        rows={"t": '1.10 | {"a": 1}'},
    ),
    Case(
        "B41-using-index",
        "the identity is another unique index",
        "create table t (id int primary key, code text not null, v int); create unique index t_code on t (code); "
        "alter table t replica identity using index t_code; insert into t values (1, 'a', 0), (2, 'b', 0)",
        """
        1: update t set v = 1 where id = 1
        1: update t set code = 'z' where id = 1
        1: delete from t where id = 2
        1: update t set id = 9
        """,
        log="""
        u t 1 | a | 1
        d t ~ | a | ~
        u t 1 | z | 1
        d t ~ | b | ~
        u t 9 | z | 1
        """,
        versions=ALL,
    ),
    Case(
        "B42-identity-full-and-back",
        "the identity changes between rows of one table",
        "create table t (id int primary key, v text); insert into t values (1, 'a'), (2, 'b'), (3, 'c')",
        """
        1: update t set v = 'a1' where id = 1
        1: alter table t replica identity full
        1: update t set id = 10 where id = 1
        1: alter table t replica identity default
        1: delete from t where id = 10
        1: update t set v = 'b1' where id = 2
        """,
        rows={"t": "2 | b1\n3 | c"},
    ),
    Case(
        "B43-long-text-key",
        "a text key of 2500 bytes",
        "create table t (id text primary key, v int); insert into t values (repeat('k', 2500), 1), (repeat('k', 2499) || 'l', 2)",
        """
        1: update t set v = 3 where v = 1
        1: delete from t where v = 2
        """,
        log=f"""
        u t {"k" * 2500} | 3
        d t {"k" * 2499}l | ~
        """,
    ),
    Case(
        "B29-generated-stored",
        "a stored generated column is in neither stream nor snapshot",
        "create table t (id int primary key, a int, twice int generated always as (a * 2) stored, z text); insert into t values (1, 2, default, 'x')",
        """
        1: insert into t values (2, 5, default, 'y')
        1: update t set a = 6 where id = 2
        """,
        log="""
        c t 2 | 5 | y
        u t 2 | 6 | y
        """,
        versions=ALL,
    ),
    Case(
        "B29-generated-virtual",
        "a virtual generated column is in neither stream nor snapshot",
        "create table t (id int primary key, a int, twice int generated always as (a * 2)); insert into t values (1, 2)",
        "1: insert into t (id, a) values (2, 3)",
        log="c t 2 | 3",
        versions=(18,),
    ),
    Case(
        "B29-generated-as-key",
        "a generated column that nothing depends on, beside a dropped one",
        "create table t (gone int, id int primary key, g int generated always as (id + 1) stored, v text); alter table t drop gone; insert into t (id, v) values (1, 'x')",
        "1: update t set v = 'y'",
        log="u t 1 | y",
    ),
    Case(
        "B30-identity",
        "identity and serial columns carry their values; a sequence is not a table",
        "create table t (id bigint generated always as identity primary key, s serial, v text); insert into t (v) values ('a')",
        """
        1: select nextval('t_s_seq')
        1: insert into t (v) values ('b')
        """,
        log="c t 2 | 3 | b",
        versions=ALL,
    ),
    Case(
        "B31-large-object",
        "large objects, views, materialized and unlogged tables, sequences: no events",
        "create table t (id int primary key); create view v as select * from t; create materialized view m as select * from t; "
        "create unlogged table u (id int primary key); create sequence s",
        """
        1: select lo_unlink(lo_from_bytea(0, '\\xff'))
        1: insert into u values (1)
        1: refresh materialized view m
        1: create temporary table w (id int primary key)
        1: insert into w values (1)
        1: insert into v values (7)
        """,
        log="c t 7",
    ),
    Case(
        "B18-odd-names",
        "names of tables and columns with quotes, dots, spaces, capitals, percent signs",
        'create table "My ""Table"".x" ("a""b" int primary key, "c.d" text, "E f%s{}" int, "sélect" int); insert into "My ""Table"".x" values (1, \'x\', 2, 3)',
        """
        1: insert into "My ""Table"".x" values (2, 'y', 3, 4)
        1: delete from "My ""Table"".x" where "a""b" = 1
        """,
        log="""
        c My "Table".x 2 | y | 3 | 4
        d My "Table".x 1 | ~ | ~ | ~
        """,
    ),
    Case(
        "B18-names-like-ours",
        "columns whose names are almost ours",
        "create table t (\"_cdc_x\" int primary key, \"_cdc_\" text, key text, value text, position int, op text); insert into t values (1, 'a', 'b', 'c', 2, 'd')",
        """
        1: update t set _cdc_ = 'e', op = 'u'
        1: insert into t values (2, 'x', 'y', 'z', 3, 'o')
        1: update t set _cdc_x = 3 where _cdc_x = 2
        """,
        log="""
        u t 1 | e | b | c | 2 | u
        c t 2 | x | y | z | 3 | o
        d t 2 | ~ | ~ | ~ | ~ | ~
        u t 3 | x | y | z | 3 | o
        """,
    ),
    Case(
        "B18-1600-columns",
        "a table of 1,600 columns, the most there can be",
        "do $$ begin execute 'create table t (id int primary key, ' || (select string_agg('c' || i || ' int', ', ') from generate_series(1, 1599) i) || ')'; end $$; "
        "insert into t (id, c1, c1599) values (1, 2, 3)",
        """
        1: update t set c700 = 700
        1: insert into t (id, c1599) values (2, 1)
        """,
    ),
    Case(
        "B18-only-a-key",
        "a table that has only key columns",
        "create table t (id int primary key); insert into t values (1)",
        """
        1: insert into t values (2)
        1: update t set id = 3 where id = 1
        1: delete from t where id = 2
        """,
        log="""
        c t 2
        d t 1
        u t 3
        d t 2
        """,
    ),
)

ROWS: Final[tuple[Case, ...]] = (*TOAST, *KEYS)
