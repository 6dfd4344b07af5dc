"""An application that writes while other things happen to its database."""

from __future__ import annotations

import random
import threading
import time
from typing import Any

import psycopg


class Traffic(threading.Thread):
    """Small random transactions until told to stop. A database that is away is waited for."""

    pause_s = 0.02
    """Between two transactions."""

    def __init__(self, dsn: str, seed: int) -> None:
        super().__init__(name="traffic", daemon=True)
        self._dsn = dsn
        self.chance = random.Random(seed)
        self._ending = threading.Event()
        self.failure: BaseException | None = None
        self.done = 0
        """Transactions known to have been committed."""

    def run(self) -> None:
        try:
            while not self._ending.is_set():
                try:
                    with psycopg.connect(self._dsn) as connection:
                        self._drive(connection)
                except psycopg.OperationalError:
                    time.sleep(0.05)
        except BaseException as failure:
            self.failure = failure

    def check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def stop(self) -> None:
        self._ending.set()
        self.join(120)

    def end(self) -> None:
        self.stop()
        assert not self.is_alive()
        self.check()

    def _drive(self, connection: psycopg.Connection[Any]) -> None:
        while not self._ending.wait(self.pause_s):
            self.transaction(connection)

    def transaction(self, connection: psycopg.Connection[Any]) -> None:
        for _ in range(self.chance.randint(1, 4)):
            self._change(connection)
        connection.commit()
        self.done += 1

    def _change(self, connection: psycopg.Connection[Any]) -> None:
        pick, at = self.chance.randint, self.chance.random()
        account, doc = pick(1, 4000), f"d{pick(1, 300)}"
        if at < 0.30:
            connection.execute("insert into accounts values (%s, 'new', 1) on conflict (id) do update set amount = 0", [account])
        elif at < 0.55:
            connection.execute("update accounts set amount = amount + 1, owner = %s where id = %s", [str(at), account])
        elif at < 0.65:
            connection.execute("delete from accounts where id = %s", [account])
        elif at < 0.75:
            other = pick(1, 4000)
            free = "not exists (select from accounts where id = %s)"
            connection.execute(f"update accounts set id = %s where id = %s and {free}", [other, account, other])
        elif at < 0.85:  # leaves the TOASTed body out of the stream
            connection.execute("update docs set n = n + 1 where id = %s", [doc])
        elif at < 0.88:  # moves the row, body left out
            connection.execute(
                "update docs set id = id || 'm' where id = %s and not exists (select from docs where id = %s || 'm')", [doc, doc]
            )
        elif at < 0.93:
            body = str(at) * 300
            connection.execute(
                "insert into docs values (%s, %s, 0) on conflict (id) do update set body = excluded.body", [doc, body]
            )
        elif at < 0.96:
            connection.execute("delete from docs where id = %s", [doc])
        elif at < 0.963:
            connection.execute("truncate board")
            connection.execute("insert into board select n, %s from generate_series(1, 20) n", [str(at)])
        else:
            connection.execute("update board set line = %s where id <= 5", [str(at)])
