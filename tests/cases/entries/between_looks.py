"""Histories of one transaction, whose middle no look at the catalog sees: what went there and came back (contract lines 20, 48 to 50, 57 to 59)."""

from __future__ import annotations

from typing import Final

from tests.cases.case import Case
from tests.cases.entries.partitions import EVERYTHING, EVOLVING, LIST

_TABLE: Final = "create table t (id int primary key, v text); insert into t values (1, 'a'), (2, 'b')"
_BESIDE: Final = (
    f"{LIST}; create table x (id int not null, r text not null, v int, primary key (id, r)); insert into x values (7, 'c', 7)"
)
_DEEP: Final = (
    "create table t (id int, r text, v int, primary key (id, r)) partition by list (r); "
    "create table t_a partition of t for values in ('a') partition by range (id); create table t_a1 partition of t_a for values from (0) to (100); "
    "create table t_a2 partition of t_a default; create table t_b partition of t default; insert into t values (1, 'a', 1), (200, 'a', 2), (3, 'b', 3)"
)
_MOOD: Final = "create type mood as enum ('sad', 'ok')"


def _case(id: str, title: str, setup: str, *steps: str, rows: dict[str, str], versions: tuple[int, ...] = (18,)) -> Case:
    script = "\n".join(f"1: {step}" for step in ("begin", *steps, "commit"))
    return Case(id, title, setup, script, rows=rows, versions=versions, rig=EVOLVING)


BETWEEN_LOOKS: Final[tuple[Case, ...]] = (
    _case(
        "B49-leaf-made-filled-dropped",
        "a partition is created, filled and dropped",
        LIST,
        "create table t_c partition of t for values in ('c')",
        "insert into t values (7, 'c', 7)",
        "drop table t_c",
        rows={"t": "1 | a | 0\n2 | b | 0"},
        versions=(15, 18),
    ),
    _case(
        "B49-leaf-attached-changed-detached",
        "a captured table is a partition of another one for a while: its changes come under that one's name only",
        _BESIDE,
        "insert into x values (8, 'c', 8)",
        "alter table t attach partition x for values in ('c')",
        "update t set v = 70 where id = 7",
        "insert into t values (9, 'c', 9)",
        "alter table t detach partition x",
        "insert into x values (10, 'c', 10)",
        rows={"t": "1 | a | 0\n2 | b | 0", "x": "7 | c | 70\n8 | c | 8\n9 | c | 9\n10 | c | 10"},
        versions=(15, 18),
    ),
    _case(
        "B49-leaf-detached-changed-attached",
        "a partition is detached, changed and attached again",
        f"{LIST}; insert into t values (3, 'a', 3)",
        "alter table t detach partition t_a",
        "delete from t_a where id = 1",
        "update t_a set v = 33 where id = 3",
        "alter table t attach partition t_a for values in ('a')",
        rows={"t": "2 | b | 0\n3 | a | 33"},
        versions=(15, 18),
    ),
    _case(
        "B49-level-detached-changed-attached",
        "the same with a partition that has partitions",
        _DEEP,
        "alter table t detach partition t_a",
        "delete from t_a where id = 1",
        "alter table t attach partition t_a for values in ('a')",
        rows={"t": "3 | b | 3\n200 | a | 2"},
    ),
    _case(
        "B49-leaf-of-two-roots",
        "a partition goes to another table, is changed there, and comes back",
        f"{LIST}; create table s (id int, r text, v int, primary key (id, r)) partition by list (r); create table s_b partition of s default",
        "alter table t detach partition t_a",
        "alter table s attach partition t_a for values in ('a')",
        "update s set v = 9",
        "insert into s values (61, 'a', 1)",
        "alter table s detach partition t_a",
        "alter table t attach partition t_a for values in ('a')",
        rows={"t": "1 | a | 9\n2 | b | 0\n61 | a | 1", "s": ""},
    ),
    _case(
        "B49-leaf-made-again",
        "a partition is dropped and another created in its place",
        LIST,
        "drop table t_a",
        "create table t_a partition of t for values in ('a')",
        "insert into t values (9, 'a', 9)",
        rows={"t": "2 | b | 0\n9 | a | 9"},
    ),
    Case(
        "B49-leaf-made-filled-truncated",
        "a partition is created, filled, truncated and filled again",
        LIST,
        """
        1: create table t_c partition of t for values in ('c')
        1: insert into t values (7, 'c', 7)
        1: truncate t_c
        1: insert into t values (8, 'c', 8)
        """,
        rows={"t": "1 | a | 0\n2 | b | 0\n8 | c | 8"},
        rig=EVOLVING,
        versions=(15, 18),
    ),
    Case(
        "B50-partitions-under-all-tables",
        "under FOR ALL TABLES a table is a partition and a table of its own in turn",
        LIST,
        """
        1: begin
        1: alter table t detach partition t_a
        1: insert into t_a values (50, 'a', 1)
        1: create table t_a2 partition of t for values in ('a')
        1: insert into t values (51, 'a', 2)
        1: commit
        1: insert into t_a values (52, 'a', 3)
        1: begin
        1: drop table t_a2
        1: delete from t_a where id = 1
        1: alter table t attach partition t_a for values in ('a')
        1: insert into t values (53, 'a', 3)
        1: commit
        """,
        rows={"t": "2 | b | 0\n50 | a | 1\n52 | a | 3\n53 | a | 3"},
        rig=EVERYTHING,
    ),
    _case(
        "B20-enum-label-there-and-back",
        "a label is renamed, used, and renamed back: what was written in between shows the old one",
        f"{_MOOD}; create table t (id int primary key, v mood); insert into t values (1, 'sad')",
        "alter type mood rename value 'sad' to 'blue'",
        "insert into t values (2, 'blue')",
        "update t set v = 'blue' where id = 1",
        "alter type mood rename value 'blue' to 'sad'",
        rows={"t": "1 | sad\n2 | sad"},
        versions=(15, 18),
    ),
    _case(
        "B20-enum-label-of-key-there-and-back",
        "a label of the key is renamed, used, and renamed back",
        f"{_MOOD}; create table t (id mood primary key, v int); insert into t values ('sad', 1)",
        "alter type mood rename value 'sad' to 'blue'",
        "update t set v = 2",
        "alter type mood rename value 'blue' to 'sad'",
        rows={"t": "sad | 2"},
    ),
    _case(
        "B59-column-added-dropped-added",
        "a column is added, written and dropped, and another of its name added: nothing of the first stays",
        _TABLE,
        "alter table t add column n text default 'n'",
        "update t set n = 'nn', v = 'vv'",
        "alter table t drop column n",
        "alter table t add column n text",
        "insert into t values (3, 'c', 'later')",
        rows={"t": "1 | vv | ~\n2 | vv | ~\n3 | c | later"},
        versions=(15, 18),
    ),
    _case(
        "B55-type-there-and-back",
        "a column gets another type and its old one again, with rows under each",
        "create table t (id int primary key, v int); insert into t values (1, 5)",
        "alter table t alter v type text using 'x' || v",
        "insert into t values (2, 'y')",
        "alter table t alter v type int using 7",
        "insert into t values (3, 8)",
        rows={"t": "1 | 7\n2 | 7\n3 | 8"},
    ),
    _case(
        "B42-identity-there-and-back",
        "the identity is another index for a while, under which the primary key moves without an old row",
        "create table t (id int primary key, code int not null unique, v text); insert into t values (1, 10, 'a'), (2, 20, 'b')",
        "alter table t replica identity using index t_code_key",
        "update t set id = 5 where code = 10",
        "update t set code = 30 where code = 20",
        "alter table t replica identity default",
        rows={"t": "2 | 30 | b\n5 | 10 | a"},
        versions=(15, 18),
    ),
    _case(
        "B59-name-lent",
        "another table has the name for a while",
        _TABLE,
        "alter table t rename to y",
        "create table t (id int primary key, v text)",
        "insert into t values (9, 'interloper')",
        "insert into y values (8, 'real')",
        "drop table t",
        "alter table y rename to t",
        "insert into t values (7, 'real')",
        rows={"t": "1 | a\n2 | b\n7 | real\n8 | real"},
    ),
    _case(
        "B59-names-swapped-in-a-large-transaction",
        "two tables swap their names inside a transaction that streams while it is open, rows on both sides",
        "create table a (id int primary key, v text); create table b (id int primary key, v text); insert into a values (1, 'a'); insert into b values (1, 'b')",
        "insert into a select g, repeat('in a', 50) from generate_series(100, 1100) g",
        "insert into b select g, repeat('in b', 50) from generate_series(100, 1100) g",
        "alter table a rename to x",
        "alter table b rename to a",
        "alter table x rename to b",
        "insert into a select g, repeat('new a', 50) from generate_series(2100, 3100) g",
        "update b set v = 'upd b' where id <= 105",
        "delete from b where id between 110 and 1100",
        "delete from a where id >= 100",
        rows={
            "a": "1 | b",
            "b": "\n".join(f"{id} | upd b" for id in (1, *range(100, 106)))
            + "\n"
            + "\n".join(f"{id} | {'in a' * 50}" for id in range(106, 110)),
        },
    ),
    _case(
        "B57-dropped-and-made-in-a-large-transaction",
        "a table is dropped and created again inside a transaction that streams while it is open, rows on both sides",
        _TABLE,
        "insert into t select g, repeat('p', 200) from generate_series(100, 1500) g",
        "drop table t",
        "create table t (id int primary key, v text, w int)",
        "insert into t select g, repeat('q', 200), g from generate_series(1, 1500) g",
        "delete from t where id > 2",
        rows={"t": f"1 | {'q' * 200} | 1\n2 | {'q' * 200} | 2"},
    ),
)
