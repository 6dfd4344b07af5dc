"""A shop that is killed between its commit and its event, three ways: which events are lost, and which are of orders that do not exist.

    python examples/dual_write/dual_write.py

It starts a Postgres of its own in a temporary folder, and Headwater beside it. The "broker" is a file with a line for each event.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

import psycopg

from cdc.embedded.postgres import Postgres
from cdc.outbox import emit

STEPS: Final = 4
"""The service may be killed at any of so many places."""
START_S: Final = 300
CONFIGURATION: Final = """
run_dir = "run"
[source]
dsn = "{dsn}"
[log]
dir = "log"
[outbox]
table = "public.outbox"
"""


def killed_at(place: int, here: int) -> None:
    if place == here:
        os.kill(os.getpid(), signal.SIGKILL)


def commit_then_publish(connection: psycopg.Connection[Any], broker: Path, order: int, place: int) -> None:
    connection.execute("insert into orders values (%s)", [order])
    killed_at(place, 0)
    connection.commit()
    killed_at(place, 1)  # the order is there, and nobody will ever hear of it
    publish(broker, order)
    killed_at(place, 2)


def publish_then_commit(connection: psycopg.Connection[Any], broker: Path, order: int, place: int) -> None:
    connection.execute("insert into orders values (%s)", [order])
    killed_at(place, 0)
    publish(broker, order)
    killed_at(place, 1)  # everybody has heard of an order that will never be there
    connection.commit()
    killed_at(place, 2)


def with_an_outbox(connection: psycopg.Connection[Any], _: Path, order: int, place: int) -> None:
    connection.execute("insert into orders values (%s)", [order])
    killed_at(place, 0)
    emit(connection, "order.placed", order, {"id": order})
    killed_at(place, 1)
    connection.commit()  # both, or neither
    killed_at(place, 2)


def publish(broker: Path, order: int) -> None:
    with broker.open("a") as sent:
        sent.write(f"{order}\n")


def serve(
    service: Callable[[psycopg.Connection[Any], Path, int, int], None], dsn: str, broker: Path, order: int, place: int
) -> None:
    with psycopg.connect(dsn) as connection:
        service(connection, broker, order, place)
    killed_at(place, STEPS - 1)


def work(service: Callable[[psycopg.Connection[Any], Path, int, int], None], dsn: str, broker: Path, first: int) -> None:
    """An order for each place at which the service is killed, and one that it brings to its end; each in a process of its own."""
    for place in range(STEPS + 1):
        process = get_context("fork").Process(target=serve, args=(service, dsn, broker, first + place, place))
        process.start()
        process.join()


def events(configuration: Path) -> set[int]:
    """The orders of the events that the log has."""
    done = cdc(configuration, "outbox", "replay", "outbox.order")
    return {json.loads(line)["payload"]["id"] for line in done.stdout.splitlines()}


def cdc(configuration: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cdc", "--config", str(configuration), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + START_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} after {START_S} s")
        time.sleep(0.2)


def show(name: str, orders: set[int], told: set[int]) -> None:
    lost, ghosts = sorted(orders - told), sorted(told - orders)
    print(f"{name:22}  orders {len(orders)}  events {len(told)}  lost {lost or 'none'}  ghosts {ghosts or 'none'}", flush=True)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="dual-write-") as folder:
        postgres = Postgres(Path(folder) / "pg")
        postgres.start()
        try:
            run(postgres.dsn(), Path(folder))
        finally:
            postgres.stop("immediate")


def run(dsn: str, folder: Path) -> None:
    configuration, broker = folder / "cdc.toml", folder / "broker"
    configuration.write_text(CONFIGURATION.format(dsn=dsn))
    configuration.chmod(0o600)
    with psycopg.connect(dsn, autocommit=True) as connection:

        def orders(first: int) -> set[int]:
            found = connection.execute("select id from orders where id between %s and %s", [first, first + STEPS]).fetchall()
            return {row[0] for row in found}

        connection.execute("create table orders (id int primary key)")
        for first, service in ((10, commit_then_publish), (20, publish_then_commit)):
            broker.write_text("")
            work(service, dsn, broker, first)
            show(service.__name__.replace("_", " "), orders(first), {int(line) for line in broker.read_text().split()})
        made = cdc(configuration, "outbox", "init")
        assert made.returncode == 0, made.stderr
        daemon = subprocess.Popen(
            [sys.executable, "-m", "cdc", "--config", str(configuration), "run"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            work(with_an_outbox, dsn, broker, 30)
            until(lambda: events(configuration) >= orders(30), "the log does not have all events")
            show(with_an_outbox.__name__.replace("_", " "), orders(30), events(configuration))
        finally:
            daemon.terminate()
            daemon.wait(60)


if __name__ == "__main__":
    main()
