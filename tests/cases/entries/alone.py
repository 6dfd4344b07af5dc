"""Cases that need a capture of their own: restarts, refusals, other settings (contract lines 31, 38 to 41, 47, 60, 98, 100, 116, 118).

Beside database sessions their scripts know ``capture: stop``, ``capture: start`` and ``capture: caught up``.
"""

from __future__ import annotations

from typing import Final

from tests.cases.case import ALL, Case, Rig
from tests.cases.entries.partitions import LIST

ASCII: Final = Rig("ascii", database="encoding 'SQL_ASCII' locale 'C' template template0")
ALONE_RIG: Final = Rig("alone")

_TABLE: Final = "create table t (id int primary key, v text); insert into t values (1, 'a')"
_OTHER: Final = "create table goes_on (id int primary key)"
_WIDE: Final = (
    "create table t (id int primary key, body text, n int); alter table t alter body set storage external; "
    "insert into t values (1, repeat('x', 3000), 0)"
)


def _refused(id: str, title: str, setup: str, *words: str, tables: tuple[str, ...] = (), rig: Rig = ALONE_RIG) -> Case:
    settings = {"tables": tables} if tables else {}
    return Case(id, title, setup, refusal=words, rig=rig, settings=settings)


REFUSALS: Final[tuple[Case, ...]] = (
    _refused(
        "B31-view",
        "a view that is configured",
        f"{_TABLE}; create view v as select * from t",
        "$S.v",
        "is a view",
        tables=("$S.v",),
    ),
    _refused(
        "B31-materialized-view",
        "a materialized view that is configured",
        f"{_TABLE}; create materialized view m as select * from t",
        "$S.m",
        "materialized view",
        tables=("$S.t", "$S.m"),
    ),
    _refused(
        "B31-unlogged",
        "an unlogged table that is configured",
        "create unlogged table u (id int primary key)",
        "$S.u",
        "unlogged",
        tables=("$S.u",),
    ),
    _refused("B31-absent", "a table that does not exist", _TABLE, "$S.nothing", "does not exist", tables=("$S.t", "$S.nothing")),
    _refused(
        "B38-deferrable-key",
        "a deferrable primary key is not an identity",
        "create table t (id int primary key deferrable)",
        "$S.t",
        "deferrable",
    ),
    _refused(
        "B38-deferrable-key-full",
        "a deferrable primary key under FULL: inside a transaction two rows may share it",
        "create table t (id int primary key deferrable, v text); alter table t replica identity full",
        "$S.t",
        "deferrable",
        "USING INDEX",
    ),
    _refused(
        "B39-full-with-generated",
        "FULL and a generated column that is not published, with which Postgres 18 refuses every update at the source",
        "create table t (id int primary key, a int, g int generated always as (a * 2) stored); alter table t replica identity full",
        "$S.t",
        "publish_generated_columns",
    ),
    _refused(
        "B39-no-columns",
        "a table without columns has nothing that distinguishes its rows",
        f"{_TABLE}; create table u (); alter table u replica identity full",
        "$S.u",
        "has no columns",
        "!$S.u",
    ),
    _refused(
        "B39-leaf-nothing",
        "a partition with REPLICA IDENTITY NOTHING",
        f"{LIST}; alter table t_b replica identity nothing",
        "$S.t_b",
        "REPLICA IDENTITY FULL",
    ),
    _refused(
        "B41-leaf-using-index",
        "a partition whose own replica identity leaves the root's key out of old rows",
        "create table t (id int, r text, v int not null, primary key (id, r)) partition by list (r); "
        "create table t_a partition of t for values in ('a'); create unique index x on t_a (v); "
        "alter table t_a replica identity using index x",
        "$S.t_a",
        "REPLICA IDENTITY FULL",
    ),
    _refused(
        "B31-unlogged-leaf",
        "a partition that is unlogged",
        f"{LIST}; create unlogged table t_u partition of t for values in ('u')",
        "$S.t_u",
        "unlogged",
        "SET LOGGED",
    ),
    _refused(
        "B31-foreign-leaf",
        "a partition that is a foreign table",
        "create table t (id int, r text) partition by list (r); alter table t replica identity full; "
        "create foreign data wrapper w; create server s foreign data wrapper w; "
        "create foreign table t_f partition of t for values in ('f') server s",
        "$S.t_f",
        "foreign table",
        "DETACH PARTITION",
    ),
    _refused(
        "B18-twin-names",
        "two tables whose schema and name give one topic",
        'create schema $S__x; create table $S__x."y.z" (id int primary key); create schema "$S__x.y"; create table "$S__x.y".z (id int primary key)',
        "$S__x.y.z",
        "RENAME",
    ),
    _refused(
        "B39-generated-key",
        "a primary key with a generated column, which the stream leaves out",
        "create table t (a int, b int generated always as (a % 2) stored, primary key (a, b))",
        "$S.t",
        "generated column that is not published (b)",
    ),
    _refused("B39-no-key", "no primary key", f"{_TABLE}; create table u (id int)", "$S.u", "REPLICA IDENTITY FULL"),
    _refused("B39-nothing", "REPLICA IDENTITY NOTHING", f"{_TABLE}; alter table t replica identity nothing", "$S.t", "NOTHING"),
    _refused(
        "B41-index-dropped",
        "the index that was the identity is gone",
        "create table t (id int primary key, code text not null); create unique index t_code on t (code); "
        "alter table t replica identity using index t_code; drop index t_code",
        "$S.t",
        "REPLICA IDENTITY DEFAULT",
    ),
    _refused(
        "B47-without-updates",
        "a publication that leaves updates and deletes out",
        f"{_TABLE}; create publication cdc for table t with (publish = 'insert')",
        "delete, update",
        "ALTER PUBLICATION",
    ),
    _refused(
        "B48-root-without-via-root",
        "a partitioned table whose publication names its partitions",
        f"{LIST}; create publication cdc for table t with (publish_via_partition_root = false)",
        "under their own names",
        "publish_via_partition_root",
    ),
    _refused(
        "B18-reserved-name",
        "a column with a name that Headwater uses itself",
        "create table t (id int primary key, _cdc_op text)",
        "_cdc_op",
        "RENAME COLUMN",
    ),
    _refused("B98-sql-ascii", "a database whose text has no known encoding", _TABLE, "SQL_ASCII", rig=ASCII),
)


def _stops(id: str, title: str, setup: str, steps: str, *words: str, rig: Rig = ALONE_RIG) -> Case:
    return Case(id, title, setup, steps, refusal=words, rig=rig)


def _leaves(id: str, title: str, setup: str, steps: str, *words: str) -> Case:
    return Case(id, title, f"{setup}; {_OTHER}", steps, refusal=words, rig=ALONE_RIG)


LEAVES: Final[tuple[Case, ...]] = (
    _leaves(
        "B39-no-key-later",
        "a table loses its primary key while capture runs",
        _TABLE,
        "1: alter table t drop constraint t_pkey",
        "$S.t",
        "no primary key",
    ),
    _leaves(
        "B31-unlogged-leaf-later",
        "an unlogged partition that is created while capture runs",
        LIST,
        "1: create unlogged table t_u partition of t for values in ('u')",
        "$S.t_u",
        "SET LOGGED",
    ),
    _leaves(
        "B38-deferrable-key-later",
        "a primary key that becomes deferrable under FULL while capture runs",
        f"{_TABLE}; alter table t replica identity full",
        "1: alter table t drop constraint t_pkey, add primary key (id) deferrable",
        "$S.t",
        "deferrable",
    ),
    _leaves(
        "B39-full-with-generated-later",
        "FULL gets a generated column that is not published while capture runs, with which Postgres 18 refuses every update at the source",
        "create table t (id int primary key, a int); alter table t replica identity full",
        "1: alter table t add column g int generated always as (a * 2) stored",
        "$S.t",
        "publish_generated_columns",
    ),
    _leaves(
        "B41-index-dropped-later",
        "the index that is the identity is dropped while capture runs",
        "create table t (id int primary key, code text not null); create unique index t_code on t (code); "
        "alter table t replica identity using index t_code; insert into t values (1, 'a')",
        "1: drop index t_code",
        "$S.t",
        "lost the index",
        "REPLICA IDENTITY DEFAULT",
    ),
    _leaves(
        "B41-leaf-using-index-later",
        "a partition gets a replica identity of its own while capture runs",
        "create table t (id int, r text, v int not null, primary key (id, r)) partition by list (r); "
        "create table t_a partition of t for values in ('a'); create unique index x on t_a (v); insert into t values (1, 'a', 1)",
        "1: alter table t_a replica identity using index x",
        "$S.t_a",
        "REPLICA IDENTITY FULL",
    ),
    _leaves(
        "B42-identity-nothing-later",
        "REPLICA IDENTITY NOTHING while capture runs",
        _TABLE,
        "1: alter table t replica identity nothing",
        "$S.t",
        "REPLICA IDENTITY NOTHING",
    ),
)
"""Tables that cannot be captured any more: status names each, and all others go on."""

STOPS: Final[tuple[Case, ...]] = (
    _stops(
        "B18-reserved-name-later",
        "a column gets a name that Headwater uses itself while capture runs",
        _TABLE,
        "1: alter table t add column _cdc_position int",
        "COLUMN_RESERVED",
        "_cdc_position",
    ),
    _stops(
        "B18-reserved-name-later-with-rows",
        "rows come under a name that Headwater uses itself",
        _TABLE,
        """
        1: alter table t rename column v to "_CDC_Op"
        1: insert into t values (2, 'b')
        """,
        "COLUMN_RESERVED",
        "_CDC_Op",
    ),
    _stops(
        "B18-twin-names-later",
        "a table whose schema and name give a topic that is taken, under FOR ALL TABLES",
        'create schema $S__x; create table $S__x."y.z" (id int primary key); create schema "$S__x.y"; create publication cdc for all tables',
        '1: create table "$S__x.y".z (id int primary key)',
        "$S__x.y.z",
        "RENAME",
    ),
)
"""What capture would not begin with does not go on unnoticed either."""

RESTARTS: Final[tuple[Case, ...]] = (
    Case(
        "B60-restart",
        "capture goes on where its log ends: nothing is missing, nothing comes twice",
        _TABLE,
        """
        1: insert into t values (2, 'before')
        capture: caught up
        capture: stop
        1: insert into t values (3, 'while stopped')
        1: update t set v = 'b' where id = 1
        capture: start
        1: delete from t where id = 2
        """,
        log="""
        c t 2 | before
        c t 3 | while stopped
        u t 1 | b
        d t 2 | ~
        """,
        versions=ALL,
        rig=ALONE_RIG,
    ),
    Case(
        "B60-restart-toast",
        "what was remembered for unchanged TOAST values survives a restart",
        _WIDE,
        """
        capture: stop
        1: update t set n = 1
        capture: start
        1: update t set n = 2
        """,
        log=f"""
        u t 1 | {"x" * 3000} | 1
        u t 1 | {"x" * 3000} | 2
        """,
        rig=ALONE_RIG,
    ),
    Case(
        "B60-restart-open-transaction",
        "a transaction that was open over the restart comes whole",
        _TABLE,
        """
        1: begin
        1: insert into t values (2, 'open')
        2: insert into t values (3, 'other')
        capture: caught up
        capture: stop
        1: insert into t values (4, 'open')
        capture: start
        1: commit
        """,
        log="""
        c t 3 | other
        c t 2 | open
        c t 4 | open
        """,
        rig=ALONE_RIG,
    ),
    Case(
        "B60-restart-large-transaction",
        "a large transaction that was open over the restart comes whole",
        _TABLE,
        """
        1: begin
        1: insert into t select g, repeat('x', 90) from generate_series(2, 3000) g
        2: insert into t values (-1, 'other')
        capture: caught up
        capture: stop
        1: insert into t select g, repeat('y', 90) from generate_series(3001, 4000) g
        capture: start
        1: commit
        """,
        rig=ALONE_RIG,
    ),
    Case(
        "B70-rewritten-behind-a-savepoint",
        "a large transaction that rewrites a table after a savepoint with DDL was rolled back: servers cannot decode it before it has ended",
        _TABLE,
        """
        1: begin
        1: insert into t select g, repeat('p', 200) from generate_series(100, 1500) g
        1: savepoint a
        1: alter table t add column n int default 5
        1: insert into t select g, repeat('gone', 50), 6 from generate_series(2100, 3500) g
        1: rollback to a
        1: alter table t alter v type varchar using 'r' || v
        1: insert into t select g, repeat('s', 200) from generate_series(4100, 5500) g
        1: commit
        1: update t set v = 'after' where id < 200
        """,
        rig=ALONE_RIG,
        versions=(15, 18),
    ),
    Case(
        "B71-no-end",
        "a large transaction whose session was killed leaves nothing, also after a restart",
        _TABLE,
        """
        1: begin
        1: insert into t select g, repeat('gone', 30) from generate_series(2, 3000) g
        2: insert into t values (-1, 'other')
        2: select pg_terminate_backend(pid) from pg_stat_activity where state = 'idle in transaction' and datname = current_database()
        capture: caught up
        capture: stop
        capture: start
        2: insert into t values (-2, 'other')
        """,
        log="""
        c t -1 | other
        c t -2 | other
        """,
        rig=ALONE_RIG,
    ),
    Case(
        "B69-prepared-over-restart",
        "a transaction prepared before and committed after a restart",
        _TABLE,
        """
        1: begin
        1: insert into t values (2, 'prepared')
        1: prepare transaction '$S'
        capture: caught up
        capture: stop
        2: insert into t values (3, 'while stopped')
        capture: start
        2: commit prepared '$S'
        """,
        log="""
        c t 3 | while stopped
        c t 2 | prepared
        """,
        rig=ALONE_RIG,
    ),
    Case(
        "B83-walsender-killed",
        "the walsender is terminated: capture connects again, nothing is missing or twice",
        _TABLE,
        """
        1: insert into t values (2, 'before')
        1: select pg_terminate_backend(active_pid) from pg_replication_slots where database = current_database()
        1: insert into t values (3, 'after')
        """,
        log="""
        c t 2 | before
        c t 3 | after
        """,
        rig=ALONE_RIG,
    ),
    Case(
        "B60-table-added-while-stopped",
        "a table that was created while capture was stopped comes with its rows",
        _TABLE,
        """
        capture: stop
        1: create table u (id int primary key, v text)
        1: insert into u values (1, 'x')
        capture: start
        1: insert into u values (2, 'y')
        """,
        rows={"t": "1 | a", "u": "1 | x\n2 | y"},
        rig=ALONE_RIG,
    ),
)

OTHERS: Final[tuple[Case, ...]] = (
    Case(
        "B48-move-leaves",
        "a row moves between partitions that are captured as tables of their own",
        f"{LIST}; create publication cdc for table t with (publish_via_partition_root = false)",
        "1: update t set r = 'b', v = 1 where id = 1",
        log="""
        d t_a 1 | a | ~
        c t_b 1 | b | 1
        """,
        rows={"t_a": "", "t_b": "2 | b | 0\n1 | b | 1"},
        settings={"tables": ("$S.t_a", "$S.t_b")},
        rig=ALONE_RIG,
        versions=(15, 18),
    ),
    Case(
        "B47-no-truncate",
        "a publication without truncate keeps the rows in the stores",
        f"{_TABLE}; create publication cdc for table t with (publish = 'insert, update, delete')",
        """
        1: truncate t
        1: insert into t values (5, 'e')
        """,
        log="c t 5 | e",
        rows={"t": "1 | a\n5 | e"},
        rig=Rig("alone-unequal"),
    ),
    Case(
        "B100-names",
        "a numeric slot name, a publication name with capitals, commas and quotes",
        _TABLE,
        "1: insert into t values (2, 'b')",
        log="c t 2 | b",
        settings={"slot": "0815", "publication": 'My, "Pub"\'s'},
        rig=ALONE_RIG,
        versions=(15, 18),
    ),
    Case(
        "B116-timeouts",
        "timeouts and settings of the database that would break capture are overridden in capture's sessions",
        f"{_TABLE}; insert into t select g, repeat('x', 200) from generate_series(2, 20000) g; "
        "do $$ declare name text; begin foreach name in array array['statement_timeout = ''15ms''', 'lock_timeout = ''1ms''', "
        "'idle_in_transaction_session_timeout = ''5ms''', 'datestyle = ''SQL, DMY''', 'timezone = ''Asia/Kathmandu''', "
        "'intervalstyle = ''sql_standard''', 'extra_float_digits = ''-5''', 'bytea_output = ''escape''', 'default_transaction_read_only = ''off'''] "
        "loop execute format('alter database %I set %s', current_database(), name); end loop; end $$; "
        "create table f (id int primary key, a float8, b bytea, c timestamptz, d interval, e date); "
        "insert into f values (1, 0.30000000000000004, '\\x00ff', '2024-02-29 12:00:00+00', '1 year -3 days', '2024-02-01')",
        "1: insert into f select 2, a, b, c, d, e from f",
        log="c f 2 | 0.30000000000000004 | \\\\x00ff | 2024-02-29 12:00:00+00 | 1 year -3 days | 2024-02-01",
        rig=ALONE_RIG,
        versions=(15, 18),
    ),
    Case(
        "B118-odd-tables",
        "tables without rows, with one row, with dead rows only, and without columns",
        "create table none (id int primary key); create table one (id int primary key); insert into one values (1); "
        "create table dead (id int primary key); insert into dead select generate_series(1, 500); delete from dead; "
        "create table nokey (v int); alter table nokey replica identity full; insert into nokey select generate_series(1, 300)",
        "1: insert into none values (1)",
        log="c none 1",
        settings={"snapshot_chunk_rows": 50},
        rig=ALONE_RIG,
    ),
    Case(
        "B118-collations",
        "text keys in orders other than bytes, read in small chunks",
        'create table t (id text collate "und-x-icu" primary key, v int); create table u (id varchar(20) collate "C", b int, primary key (id, b)); '
        "insert into t select c || n, n from unnest(array['a', 'A', 'ä', 'Ä', 'z', 'Z', ' ', '-', 'ß', 'ss', '😀', '', E'\\\\', '''']) c, generate_series(1, 6) n; "
        "insert into u select 'k' || (n % 3), n from generate_series(1, 40) n",
        "1: update t set v = -1 where v = 6",
        settings={"snapshot_chunk_rows": 7},
        rig=ALONE_RIG,
        versions=(15,),
    ),
    Case(
        "B118-keys-by-chunks",
        "keys of every kind of order, read in chunks of two rows",
        "create table n (id numeric primary key); insert into n values (1.10), (-0.5), ('NaN'), ('Infinity'), ('-Infinity'), (1e30), (0.00); "
        "create table d (id date, b bool, primary key (b, id)); insert into d values ('infinity', true), ('-infinity', true), ('4714-11-24 BC', false), ('2024-01-01', false), ('2024-01-01', true); "
        "create table b (id bytea primary key); insert into b values ('\\x'), ('\\x00'), ('\\x00ff'), ('\\xff'), ('\\x5c6e'); "
        "create table f (id float8 primary key); insert into f values ('NaN'), ('-Infinity'), (0), (5e-324), ('Infinity'), (0.30000000000000004); "
        "create table j (id jsonb primary key); insert into j values ('null'), ('1.10'), ('\"a\"'), ('{}'), ('[1, 2]'), ('{\"a\": 1}'); "
        "create table a (id text[] primary key); insert into a values ('{}'), ('{NULL}'), ('{\"NULL\"}'), ('{\"a,b\",\"\\\"\"}'), ('{{x}}'); "
        "create table o (id text, s char(3), primary key (id, s)); insert into o values ('', ''), (E'\\t', 'a'), (E'\\n', 'b'), (E'\\\\N', 'c'), (E'\\\\.', 'd'), ('''', '\"')",
        "1: insert into n values (7)",
        log="c n 7",
        settings={"snapshot_chunk_rows": 2},
        rig=ALONE_RIG,
        versions=(15, 18),
    ),
)

ALONE: Final[tuple[Case, ...]] = (*RESTARTS, *OTHERS)
