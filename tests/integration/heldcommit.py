"""A commit that is in the WAL, and so in the stream, while nobody sees it yet: held up by a synchronous standby that never answers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import psycopg

from cdc.embedded.postgres import Postgres


@contextmanager
def held_commit(server: Postgres, statement: str, dsn: str = "") -> Iterator[None]:
    """The statement's commit is in the WAL for the whole block, and becomes visible at its end. ``dsn``: of another database than the server's first."""
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute("alter system set synchronous_standby_names = 'nobody'")
        admin.execute("select pg_reload_conf()")
        committing = Thread(target=_execute, args=(dsn or server.dsn(), statement))
        try:
            while admin.execute("show synchronous_standby_names").fetchone() != ("nobody",):
                time.sleep(0.01)
            # It is the checkpointer that tells the others whether commits wait, as soon as it has read the setting; it does so before its work.
            admin.execute("checkpoint")
            committing.start()
            while not admin.execute("select 1 from pg_stat_activity where wait_event = 'SyncRep'").fetchone():
                time.sleep(0.01)
            yield
        finally:
            admin.execute("alter system reset synchronous_standby_names")
            admin.execute("select pg_reload_conf()")
            committing.join()


def _execute(dsn: str, statement: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as sql:
        sql.execute(statement)
