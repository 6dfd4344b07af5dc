"""The outbox: what ``emit`` costs its caller's transaction, and how fast events come from there into the log.

``emit_…``: events written by ``emit``, some hundred in a transaction, against a plain INSERT of such a row by the same driver, in turns: each run of one has
one of the other beside it. ``emit_message`` writes no row, and is compared with the same INSERT.

``events``, ``events_by_message``: a procedure in the database writes events as fast as it can, a few in a transaction, while capture makes events of them and is
done when the last one is durable; against the procedure's own speed. Procedure, walsender and capture share the processors. Rows stay in the table.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import psycopg
import sqlalchemy
from psycopg.types.json import Jsonb
from sqlalchemy.orm import Session

from bench.capture import QUIET
from bench.result import Result, faster, paired
from cdc.demo.configuration import toml
from cdc.embedded.postgres import Postgres
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.outbox import OutboxMessages, emit

EMIT_BAR: Final = 0.833
"""At most 1.2 times the time of an INSERT."""
TOPIC: Final = "outbox.order"
PREFIX: Final = "outbox"
START_S: Final = 180
PAYLOAD: Final = {"id": 4711, "customer": 815, "total": "129.90", "lines": [{"sku": "A-1", "count": 2}, {"sku": "B-7", "count": 1}]}
_TABLE: Final = (
    "create table outbox (id uuid primary key, aggregatetype text not null, aggregateid text not null, type text not null, payload jsonb, headers jsonb, "
    "created_at timestamptz not null default now())"
)
_INSERT: Final = "insert into public.outbox (id, aggregatetype, aggregateid, type, payload, headers) values ({})"
_STREAMS: Final = (
    "select 1 from pg_replication_slots join pg_stat_replication on pid = active_pid where slot_name = %s and state = 'streaming'"
)
"""A slot is active while it is being created, too: what commits then is from before it."""
_WRITE: Final = f"""
create procedure write_events(count int, each int, by_message bool) language plpgsql as $$
declare
    body text := '{json.dumps(PAYLOAD)}';
begin
    for n in 0 .. count / each - 1 loop
        if by_message then
            perform pg_logical_emit_message(true, '{PREFIX}', format('{{"id":"%s","aggregate":"order","key":"%s","type":"order.placed","payload":%s}}',
                gen_random_uuid(), n, body)) from generate_series(1, each);
        else
            insert into outbox select gen_random_uuid(), 'order', n, 'order.placed', body::jsonb from generate_series(1, each);
        end if;
        commit;
    end loop;
end $$"""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench outbox", description=__doc__)
    parser.add_argument("--emits", type=int, default=2000, help="of one run")
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--each", type=int, default=10, help="events of one transaction")
    parser.add_argument("--runs", type=int, default=9)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="headwater-bench-") as folder:
        server = Postgres(Path(folder) / "pg", options=QUIET)
        server.start()
        try:
            result = measure(server, Path(folder), options)
        finally:
            server.stop("immediate")
    print(result.line())
    return 0


def measure(server: Postgres, folder: Path, options: argparse.Namespace) -> Result:
    result = Result("outbox")
    with psycopg.connect(server.unix_dsn(), autocommit=True) as connection:
        connection.execute(_TABLE)
        connection.execute(_WRITE)
        # The same for both sides, and else most of the time.
        connection.execute("alter database postgres set synchronous_commit = off")
    for name, ours, plain in _emitters(server):
        runs = [(_rate(ours, options.emits), _rate(plain, options.emits)) for _ in range(options.runs + 1)][1:]
        result.figures[name] = paired([one for one, _ in runs], [other for _, other in runs], "events/s", bar=EMIT_BAR)
    for name, by_message in (("events", False), ("events_by_message", True)):
        wrote_s, taken_s = _through(server, folder / name, options.events, options.each, by_message=by_message)
        result.figures[name] = faster([options.events / taken_s], [options.events / wrote_s], "events/s")
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    result.cpu_s, result.rss_mb = round(usage.ru_utime + usage.ru_stime, 1), round(usage.ru_maxrss / 1024)
    result.orientation = {"events": options.events, "events_a_transaction": options.each}
    return result


def _emitters(server: Postgres) -> list[tuple[str, Callable[[int], None], Callable[[int], None]]]:
    """(name, what writes so many events in one transaction, what inserts so many rows)."""
    engine = sqlalchemy.create_engine(server.dsn().replace("postgresql://", "postgresql+psycopg://"))
    session, connection = Session(engine), psycopg.connect(server.dsn())
    inserted = sqlalchemy.text(_INSERT.format(":id, :route, :key, :type, cast(:payload as jsonb), null"))

    def by_psycopg(count: int, **more: Any) -> None:
        for number in range(count):
            emit(connection, "order.placed", number, PAYLOAD, **more)
        connection.commit()

    def plain_psycopg(count: int) -> None:
        for number in range(count):
            row = (uuid.uuid4(), "order", str(number), "order.placed", Jsonb(PAYLOAD), None)
            connection.execute(_INSERT.format("%s, %s, %s, %s, %s, %s"), row)
        connection.commit()

    def by_sqlalchemy(count: int) -> None:
        for number in range(count):
            emit(session, "order.placed", number, PAYLOAD)
        session.commit()

    def plain_sqlalchemy(count: int) -> None:
        for number in range(count):
            row = {"id": uuid.uuid4(), "route": "order", "key": str(number), "type": "order.placed", "payload": json.dumps(PAYLOAD)}
            session.execute(inserted, row)
        session.commit()

    return [
        ("emit_psycopg", by_psycopg, plain_psycopg),
        ("emit_sqlalchemy", by_sqlalchemy, plain_sqlalchemy),
        ("emit_message", lambda count: by_psycopg(count, outbox=OutboxMessages(PREFIX)), plain_psycopg),
    ]


def _rate(write: Callable[[int], None], count: int) -> float:
    began = time.perf_counter()
    write(count)
    return count / (time.perf_counter() - began)


def _through(server: Postgres, folder: Path, events: int, each: int, *, by_message: bool) -> tuple[float, float]:
    """Seconds in which the events were written, and in which all of them were durable in the log."""
    folder.mkdir()
    config = folder / "cdc.toml"
    outbox = {"table": "public.outbox", "keep": "", **({"prefix": PREFIX} if by_message else {})}
    source = {"dsn": server.unix_dsn(), "slot": folder.name, "publication": folder.name}
    config.write_text(toml({"": {"run_dir": "run"}, "source": source, "log": {"dir": "log"}, "outbox": outbox}))
    config.chmod(0o600)
    with psycopg.connect(server.unix_dsn(), autocommit=True) as connection:
        connection.execute("truncate outbox")
        capture = multiprocessing.get_context("spawn").Process(target=_capture, args=(str(config),))
        capture.start()
        try:
            _wait_for(lambda: connection.execute(_STREAMS, (folder.name,)).fetchone() is not None, "capture did not begin")
            connection.execute("call write_events(%s, %s, %s)", (each, each, by_message))
            before = _until(folder / "log", each)  # everything is loaded and compiled
            began = time.perf_counter()
            connection.execute("call write_events(%s, %s, %s)", (events, each, by_message))
            wrote_s = time.perf_counter() - began
            _until(folder / "log", before + events // each * each)
            return wrote_s, time.perf_counter() - began
        finally:
            capture.terminate()
            capture.join(60)
            connection.execute("select pg_drop_replication_slot(slot_name) from pg_replication_slots where not active")


def _until(log: Path, events: int) -> int:
    """Returns how many the log has, once it has so many."""
    with closing(EmbeddedLogReader(log)) as reader:

        def found() -> int:
            return next((topic.rows for topic in reader.topics() if topic.name == TOPIC), 0)

        _wait_for(lambda: found() >= events, f"the log does not have {events} events")
        return found()


def _wait_for(condition: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + START_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{otherwise} within {START_S} s")
        time.sleep(0.02)


def _capture(config: str) -> None:
    from cdc.ingest.process import run_capture
    from cdc.settings.file import load
    from sinks import options_model

    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    run_capture(load(Path(config), options_model), stop)


if __name__ == "__main__":
    raise SystemExit(main([]))
