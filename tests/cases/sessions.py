"""Runs a case's steps on as many sessions as it names, in the order of the script."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing

import psycopg

from tests.cases.case import EXTENSIONS, Case, script

STEP_S = 120.0
"""No step takes longer unless a script forgot to end what blocks it."""

PATIENT = "-c statement_timeout=0 -c lock_timeout=0 -c idle_in_transaction_session_timeout=0"
"""Options of the test's own sessions: what a case lets its database set is meant for capture's."""
_BLOCKED = "select 1 from pg_stat_activity where pid = %s and wait_event_type = 'Lock'"


class Sessions:
    """The sessions of one case, each with a connection and a thread of its own; ended, with what they left open, at the end."""

    def __init__(self, dsn: str, case: Case) -> None:
        self._dsn = dsn
        self._case = case
        self._open = ExitStack()
        self._threads: dict[str, ThreadPoolExecutor] = {}
        self._connections: dict[str, psycopg.Connection] = {}
        self._last: dict[str, Future[None]] = {}

    def __enter__(self) -> Sessions:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def run(self, text: str, actors: Mapping[str, Callable[[str], None]] | None = None) -> None:
        """``actors``: sessions that are no database sessions."""
        for step in script(text):
            if actors and step.session in actors:
                actors[step.session](step.text)
                continue
            connection = self._connection(step.session)
            sql = self._case.sql(step.text)
            work = self._refused if step.fails else self._execute
            self._last[step.session] = future = self._threads[step.session].submit(work, connection, sql)
            if step.waits:
                future.result(STEP_S)
            else:
                self._until_blocked(step.session, future)
        for future in self._last.values():
            future.result(STEP_S)

    def _until_blocked(self, name: str, future: Future[None]) -> None:
        """Only then is it certain that the next step comes after it."""
        deadline = time.monotonic() + STEP_S
        pid = self._connections[name].info.backend_pid
        with closing(psycopg.connect(self._dsn, autocommit=True, options=PATIENT)) as looking:
            while not future.done() and looking.execute(_BLOCKED, (pid,)).fetchone() is None:
                assert time.monotonic() < deadline, "the step neither ends nor waits for another session"
                time.sleep(0.005)

    def _connection(self, name: str) -> psycopg.Connection:
        if name not in self._connections:
            self._threads[name] = self._open.enter_context(ThreadPoolExecutor(1, thread_name_prefix=f"session-{name}"))
            connection = self._open.enter_context(
                closing(psycopg.connect(self._dsn, autocommit=True, client_encoding="utf8", options=PATIENT))
            )
            connection.execute(f"set search_path = {self._case.schema}, {EXTENSIONS}")
            self._connections[name] = connection
        return self._connections[name]

    @staticmethod
    def _execute(connection: psycopg.Connection, sql: str) -> None:
        connection.execute(sql.encode())

    @staticmethod
    def _refused(connection: psycopg.Connection, sql: str) -> None:
        try:
            connection.execute(sql.encode())
        except psycopg.Error:
            return
        raise AssertionError(f"the server took what it should refuse: {sql}")
