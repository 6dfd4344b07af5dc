"""Transactions and their order (contract lines 64 to 77)."""

from __future__ import annotations

from typing import Final

from tests.cases.case import ALL, Case

_TABLE: Final = "create table t (id int primary key, v text)"
_TWO: Final = f"{_TABLE}; create table u (id int primary key, v text)"

TRANSACTIONS: Final[tuple[Case, ...]] = (
    Case(
        "B64-interleaved",
        "commit order is the order, not the order of writing",
        _TABLE,
        """
        1: begin
        1: insert into t values (1, 'first to write')
        2: begin
        2: insert into t values (2, 'first to commit')
        1: insert into t values (3, 'first to write')
        2: commit
        1: commit
        """,
        log="""
        c t 2 | first to commit
        c t 1 | first to write
        c t 3 | first to write
        """,
        versions=ALL,
    ),
    Case(
        "B64-one-key-two-sessions",
        "the last commit of a key wins, whichever transaction began first",
        f"{_TABLE}; insert into t values (1, 'old')",
        """
        1: begin
        1: select txid_current()
        2: update t set v = 'second session'
        1: update t set v = 'first session'
        1: commit
        """,
        log="""
        u t 1 | second session
        u t 1 | first session
        """,
    ),
    Case(
        "B64-blocked-writer",
        "a writer that waited for another's lock",
        f"{_TABLE}; insert into t values (1, 'old')",
        """
        1: begin
        1: update t set v = 'a'
        2&: update t set v = v || 'b'
        1: commit
        2: select 1
        """,
        log="""
        u t 1 | a
        u t 1 | ab
        """,
    ),
    Case(
        "B65-old-xid-commits-late",
        "a transaction with an older id commits after a newer one",
        _TWO,
        """
        1: begin
        1: select txid_current()
        2: insert into t values (1, 'newer id')
        1: insert into u values (1, 'older id')
        1: insert into t values (2, 'older id')
        1: commit
        """,
        log="""
        c t 1 | newer id
        c u 1 | older id
        c t 2 | older id
        """,
    ),
    Case(
        "B66-savepoint",
        "what a savepoint rolled back is gone, the rest is in order",
        _TABLE,
        """
        1: begin
        1: insert into t values (1, 'kept')
        1: savepoint a
        1: insert into t values (2, 'gone')
        1: rollback to a
        1: insert into t values (2, 'instead')
        1: savepoint b
        1: update t set v = 'changed' where id = 1
        1: release b
        1: commit
        """,
        log="""
        c t 1 | kept
        c t 2 | instead
        u t 1 | changed
        """,
        versions=ALL,
    ),
    Case(
        "B66-nested-savepoints",
        "savepoints in savepoints",
        _TABLE,
        """
        1: begin
        1: savepoint a
        1: insert into t values (1, 'in a')
        1: savepoint b
        1: insert into t values (2, 'in b')
        1: savepoint c
        1: insert into t values (3, 'in c')
        1: rollback to b
        1: insert into t values (4, 'after b')
        1: release a
        1: commit
        """,
        log="""
        c t 1 | in a
        c t 4 | after b
        """,
    ),
    Case(
        "B66-rollback",
        "a rolled-back transaction leaves nothing, and neither does one that failed",
        _TABLE,
        """
        1: begin
        1: insert into t values (1, 'gone')
        1: rollback
        1: begin
        1: insert into t values (2, 'gone too')
        1!: insert into t values (2, 'twice')
        1: commit
        1: insert into t values (3, 'kept')
        """,
        log="c t 3 | kept",
    ),
    Case(
        "B66-plpgsql-exception",
        "a function's exception block is a subtransaction",
        _TABLE,
        """
        1: do $$ begin
             insert into t values (1, 'kept');
             begin
               insert into t values (2, 'gone');
               raise exception 'x';
             exception when others then
               insert into t values (3, 'handled');
             end;
           end $$
        """,
        log="""
        c t 1 | kept
        c t 3 | handled
        """,
    ),
    Case(
        "B67-messages-like-ours",
        "others' messages under our prefixes, without a prefix, and of 100 kB",
        _TABLE,
        """
        1: select pg_logical_emit_message(true, 'headwater', 'x'), pg_logical_emit_message(false, 'headwater', decode('00ff', 'hex'))
        1: insert into t values (1, 'a')
        1: select pg_logical_emit_message(true, 'headwater.ddl', '{}'), pg_logical_emit_message(true, 'headwater.ddl', '{"password": null, "dropped": [1]}')
        1: select pg_logical_emit_message(true, '', ''), pg_logical_emit_message(true, repeat('p', 5000), repeat('x', 100000))
        1: insert into t values (2, 'b')
        """,
        log="""
        c t 1 | a
        c t 2 | b
        """,
        versions=(15, 18),
    ),
    Case(
        "B67-origin",
        "transactions that another replication origin wrote, also large, prepared and with a savepoint",
        _TABLE,
        """
        1: select pg_replication_origin_create('$S')
        1: select pg_replication_origin_session_setup('$S')
        1: begin
        1: select pg_replication_origin_xact_setup('0/123', '2001-01-01')
        1: insert into t values (-1, 'forwarded')
        1: commit
        1: begin
        1: select pg_replication_origin_xact_setup('0/124', '2001-01-01')
        1: insert into t select g, repeat('x', 100) from generate_series(1, 2000) g
        1: savepoint s
        1: insert into t select g, repeat('y', 100) from generate_series(2001, 4000) g
        1: rollback to s
        1: commit
        1: begin
        1: insert into t values (-2, 'prepared')
        1: select pg_replication_origin_xact_setup('0/125', '2001-01-01')
        1: prepare transaction '$S'
        1: commit prepared '$S'
        1: select pg_replication_origin_session_reset()
        1: select pg_replication_origin_drop('$S')
        """,
        versions=ALL,
    ),
    Case(
        "B77-rules-and-deferred-keys",
        "a rule that turns a delete into an update, deferred foreign keys, cascades",
        "create table t (id int primary key, v text); insert into t values (1, 'a'); "
        "create rule r as on delete to t do instead update t set v = 'deleted' where id = old.id; "
        "create table p (id int primary key); create table c (id int primary key, p int references p on update cascade on delete cascade deferrable initially deferred); "
        "insert into p values (1); insert into c values (1, 1)",
        """
        1: delete from t where id = 1
        1: begin
        1: insert into c values (2, 2)
        1: insert into p values (2)
        1: commit
        1: update p set id = id + 10
        1: delete from p where id = 11
        """,
        rows={"t": "1 | deleted", "p": "12", "c": "2 | 12"},
    ),
    Case(
        "B77-merge-by-source",
        "MERGE … WHEN NOT MATCHED BY SOURCE",
        f"{_TABLE}; insert into t values (1, 'a'), (2, 'b')",
        """
        1: merge into t using (values (1, 'm'), (9, 'n')) s (id, v) on s.id = t.id when matched then update set v = s.v
           when not matched then insert values (s.id, s.v) when not matched by source then delete
        """,
        rows={"t": "1 | m\n9 | n"},
        versions=(17, 18),
    ),
    Case(
        "B67-messages",
        "others' logical messages, transactional or not, change nothing and keep the order",
        _TABLE,
        """
        1: begin
        1: insert into t values (1, 'a')
        1: select pg_logical_emit_message(true, 'mine', 'inside')
        1: select pg_logical_emit_message(false, 'mine', 'outside')
        1: insert into t values (2, 'b')
        1: commit
        1: select pg_logical_emit_message(false, '', '')
        """,
        log="""
        c t 1 | a
        c t 2 | b
        """,
        versions=ALL,
    ),
    Case(
        "B68-empty",
        "transactions without changes to captured tables leave nothing",
        f"{_TABLE}; create temporary table w (id int)",
        """
        1: begin
        1: select txid_current()
        1: commit
        1: begin
        1: create temporary table w (id int) on commit drop
        1: insert into w values (1)
        1: commit
        1: update t set v = 'nobody'
        1: insert into t values (1, 'a')
        """,
        log="c t 1 | a",
        versions=ALL,
    ),
    Case(
        "B69-prepared",
        "a prepared transaction arrives at COMMIT PREPARED",
        _TABLE,
        """
        1: begin
        1: insert into t values (1, 'prepared')
        1: prepare transaction '$S'
        2: insert into t values (2, 'between')
        1: commit prepared '$S'
        2: insert into t values (3, 'after')
        """,
        log="""
        c t 2 | between
        c t 1 | prepared
        c t 3 | after
        """,
        versions=ALL,
    ),
    Case(
        "B69-prepared-rolled-back",
        "ROLLBACK PREPARED leaves nothing",
        _TABLE,
        """
        1: begin
        1: insert into t values (1, 'prepared')
        1: prepare transaction '$S'
        2: insert into t values (2, 'between')
        1: rollback prepared '$S'
        """,
        log="c t 2 | between",
    ),
    Case(
        "B70-large",
        "a transaction larger than the server's decoding memory",
        _TWO,
        """
        1: begin
        1: insert into t select g, repeat('x', 100) from generate_series(1, 4000) g
        1: insert into u values (1, 'last')
        1: commit
        """,
        versions=ALL,
    ),
    Case(
        "B70-large-with-savepoint",
        "a large subtransaction is rolled back, what is around it stays",
        _TABLE,
        """
        1: begin
        1: insert into t select g, 'kept' from generate_series(1, 2000) g
        1: savepoint a
        1: insert into t select g, 'gone' from generate_series(2001, 5000) g
        1: update t set v = 'gone'
        1: rollback to a
        1: insert into t select g, 'after' from generate_series(2001, 3000) g
        1: commit
        """,
        versions=ALL,
    ),
    Case(
        "B70-large-rolled-back",
        "a large transaction that is rolled back",
        _TABLE,
        """
        1: begin
        1: insert into t select g, repeat('gone', 20) from generate_series(1, 4000) g
        2: insert into t values (-1, 'other')
        1: rollback
        1: insert into t values (1, 'kept')
        """,
        log="""
        c t -1 | other
        c t 1 | kept
        """,
        versions=ALL,
    ),
    Case(
        "B70-large-with-small-between",
        "small transactions commit while a large one is open",
        _TABLE,
        """
        1: begin
        1: insert into t select g, repeat('large', 20) from generate_series(1, 3000) g
        2: insert into t values (10001, 'small')
        1: insert into t select g, repeat('large', 20) from generate_series(3001, 6000) g
        2: update t set v = 'small again' where id = 10001
        2: insert into t values (10002, 'small')
        1: update t set v = 'large' where id <= 10
        1: commit
        2: delete from t where id = 5
        """,
    ),
    Case(
        "B72-two-large-at-once",
        "two large transactions write one table in turn",
        _TABLE,
        """
        1: begin
        2: begin
        1: insert into t select g, 'one' || repeat('x', 90) from generate_series(1, 1500) g
        2: insert into t select g, 'two' || repeat('x', 90) from generate_series(10001, 11500) g
        1: insert into t select g, 'one' || repeat('x', 90) from generate_series(1501, 3000) g
        2: savepoint s
        2: insert into t select g, 'gone' || repeat('x', 90) from generate_series(11501, 13000) g
        2: rollback to s
        2: insert into t select g, 'two' || repeat('x', 90) from generate_series(11501, 12000) g
        2: commit
        1: insert into t values (3001, 'last of one')
        1: commit
        """,
        versions=ALL,
    ),
    Case(
        "B70-large-toast",
        "unchanged TOAST values inside a large transaction",
        "create table t (id int primary key, body text, n int); alter table t alter body set storage external; "
        "insert into t select g, repeat(md5(g::text), 80), 0 from generate_series(1, 60) g",
        """
        1: begin
        1: update t set n = 1
        1: update t set body = repeat('new', 1000) where id % 3 = 0
        1: update t set n = 2
        1: savepoint s
        1: update t set body = repeat('gone', 1000)
        1: rollback to s
        1: update t set n = 3
        1: commit
        1: update t set n = 4
        """,
    ),
    Case(
        "B70-large-with-truncate",
        "a table is truncated and filled inside a large transaction",
        f"{_TABLE}; insert into t values (1, 'before')",
        """
        1: begin
        1: insert into t select g, repeat('x', 90) from generate_series(2, 3000) g
        1: truncate t
        1: insert into t select g, repeat('y', 90) from generate_series(1, 1500) g
        1: commit
        """,
    ),
    Case(
        "B70-large-with-ddl",
        "a column is added inside a large transaction",
        _TABLE,
        """
        1: begin
        1: insert into t select g, repeat('x', 90) from generate_series(1, 2000) g
        1: alter table t add column w int
        1: insert into t select g, repeat('y', 90), g from generate_series(2001, 4000) g
        1: commit
        """,
    ),
    Case(
        "B70-large-prepared",
        "a large prepared transaction",
        _TABLE,
        """
        1: begin
        1: insert into t select g, repeat('x', 90) from generate_series(1, 3000) g
        1: prepare transaction '$S'
        2: insert into t values (0, 'between')
        2: commit prepared '$S'
        """,
    ),
    Case(
        "B74-many-savepoints",
        "5,000 subtransactions, every second one rolled back",
        _TABLE,
        """
        1: do $$ begin
             for i in 1..5000 loop
               begin
                 insert into t values (i, 'x');
                 if i % 2 = 0 then raise exception 'x'; end if;
               exception when others then null;
               end;
             end loop;
           end $$
        """,
        versions=(15, 18),
    ),
    Case(
        "B77-copy-freeze",
        "COPY FREEZE in the transaction that truncated the table",
        f"{_TABLE}; insert into t values (9, 'old')",
        """
        1: begin
        1: truncate t
        1: copy t from program 'printf "1\\tx\\n2\\t\\\\\\\\N\\n"' (freeze)
        1: commit
        """,
        log="""
        t t
        c t 1 | x
        c t 2 | ~
        """,
        versions=ALL,
    ),
    Case(
        "B77-multi-insert",
        "rows of one COPY share an LSN; each comes once, in order",
        _TABLE,
        """
        1: copy t from program 'for i in 1 2 3 4 5; do printf "$i\\tx\\n"; done'
        """,
        log="""
        c t 1 | x
        c t 2 | x
        c t 3 | x
        c t 4 | x
        c t 5 | x
        """,
    ),
    Case(
        "B77-on-conflict",
        "INSERT … ON CONFLICT: inserts, updates and nothing",
        f"{_TABLE}; insert into t values (1, 'old')",
        """
        1: insert into t values (1, 'new'), (2, 'x') on conflict (id) do update set v = excluded.v
        1: insert into t values (1, 'never') on conflict do nothing
        """,
        log="""
        u t 1 | new
        c t 2 | x
        """,
    ),
    Case(
        "B77-on-conflict-speculative",
        "a speculative insertion that was abandoned",
        f"{_TABLE}",
        """
        1: begin
        1: insert into t values (1, 'one')
        2&: insert into t values (1, 'two') on conflict (id) do update set v = t.v || ' and two'
        1: commit
        2: select 1
        """,
        log="""
        c t 1 | one
        u t 1 | one and two
        """,
        versions=ALL,
    ),
    Case(
        "B77-merge",
        "MERGE: insert, update and delete in one statement",
        f"{_TABLE}; insert into t values (1, 'old'), (2, 'go')",
        """
        1: merge into t using (values (1, 'new'), (2, null), (3, 'x')) s (id, v) on t.id = s.id
           when matched and s.v is null then delete
           when matched then update set v = s.v
           when not matched then insert values (s.id, s.v)
        """,
        rows={"t": "1 | new\n3 | x"},
        versions=ALL,
    ),
    Case(
        "B77-hot-update",
        "many updates of one row in one transaction, each of them",
        f"{_TABLE}; insert into t values (1, 'v')",
        """
        1: begin
        1: update t set v = 'a'
        1: update t set v = 'b'
        1: delete from t
        1: insert into t values (1, 'c')
        1: delete from t
        1: insert into t values (1, 'd')
        1: commit
        """,
        log="""
        u t 1 | a
        u t 1 | b
        d t 1 | ~
        c t 1 | c
        d t 1 | ~
        c t 1 | d
        """,
    ),
    Case(
        "B77-trigger-and-cascade",
        "what triggers and foreign keys do comes in the order in which it happened",
        "create table p (id int primary key); create table c (id int primary key, p int references p on delete cascade); "
        "create table audit (id serial primary key, what text); "
        "create function note() returns trigger language plpgsql as $$ begin insert into $S.audit (what) values (tg_op || ' ' || old.id); return old; end $$; "
        "create trigger note after delete on c for each row execute function note(); insert into p values (1); insert into c values (10, 1)",
        "1: delete from p",
        log="""
        d p 1
        d c 10 | ~
        c audit 1 | DELETE 10
        """,
    ),
    Case(
        "B77-session-replica",
        "rows written under session_replication_role = replica",
        _TABLE,
        """
        1: set session_replication_role = replica
        1: insert into t values (1, 'x')
        """,
        log="c t 1 | x",
    ),
    Case(
        "B77-writable-cte",
        "a data-modifying WITH",
        f"{_TWO}; insert into t values (1, 'a'), (2, 'b')",
        "1: with moved as (delete from t where id = 1 returning *) insert into u select * from moved",
        rows={"t": "2 | b", "u": "1 | a"},
    ),
    Case(
        "B76-async-commit",
        "asynchronous commits arrive like others",
        _TABLE,
        """
        1: set synchronous_commit = off
        1: insert into t values (1, 'x')
        1: insert into t values (2, 'y')
        """,
        log="""
        c t 1 | x
        c t 2 | y
        """,
    ),
    Case(
        "B77-select-for-update",
        "locks are not changes",
        f"{_TABLE}; insert into t values (1, 'x')",
        """
        1: select * from t for update
        1: begin
        1: select * from t for key share
        1: update t set v = 'y'
        1: commit
        """,
        log="u t 1 | y",
    ),
)
