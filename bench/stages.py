"""Where capture's CPU goes: receiving, decoding, appending, committing, each by itself over the same bytes, by size of block."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psycopg

from bench.capture import QUIET, _drain
from bench.orders import PUBLICATION, create_orders, load_changes
from bench.result import Figure, Result
from bench.workloads import SLOT
from cdc.capture.decoder import Decoder
from cdc.capture.definitions import Definitions
from cdc.capture.pace import PAUSE_S
from cdc.capture.stream import Connection, _Socket
from cdc.capture.toast import ToastMemory
from cdc.capture.warm import warm
from cdc.embedded.postgres import Postgres
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.pgtypes import PINNED_SETTINGS
from cdc.model.position import Lsn
from cdc.pgvalues.values import Bytes
from cdc.source.connection import parse

BLOCKS = (2**20, 2**18, 2**16)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench stages", description=__doc__)
    parser.add_argument("--changes", type=int, default=500_000)
    options = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="headwater-bench-"))
    folder.chmod(0o755)
    server = Postgres(folder / "pg", options=QUIET)
    result = Result("stages")
    try:
        server.start()
        with psycopg.connect(server.unix_dsn(), autocommit=True) as connection:
            create_orders(connection)
            connection.execute("select pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,))
            load_changes(connection, options.changes)
        stream = _bytes_of(server.dsn())
        for transport, dsn in (("unix", server.unix_dsn()), ("tcp", server.dsn())):
            for how, pause_s in (("eager", 0.0), ("pausing", PAUSE_S[transport == "tcp"])):
                before = time.process_time()
                _drain(dsn, int(len(stream) * 0.999), pause_s)
                _add(result, f"receive_{transport}_{how}", time.process_time() - before, options.changes)
        warm()
        for block in BLOCKS:
            for stage, seconds in _stages(stream, folder / "log", block).items():
                _add(result, f"{stage}_{block >> 10}_kb", seconds, options.changes)
    finally:
        server.stop("immediate")
        shutil.rmtree(folder, ignore_errors=True)
    print(result.line())
    return 0


def _add(result: Result, name: str, cpu_s: float, changes: int) -> None:
    per_million = round(cpu_s * 1e6 / changes, 3)
    print(f"{name}: {per_million} CPU s per million", file=sys.stderr, flush=True)
    result.figures[name] = Figure(per_million, "CPU s per million", 2.0, round(2.0 / per_million, 2) if per_million else 0.0)


def _bytes_of(dsn: str) -> Bytes:
    command = f"START_REPLICATION SLOT \"{SLOT}\" LOGICAL 0/0 (proto_version '1', publication_names '\"{PUBLICATION}\"')"
    wire = _Socket(Connection(parse(dsn), PINNED_SETTINGS, name="bench")._pg, command.encode())
    wire._timeout(1000)
    data = bytearray()
    while True:
        try:
            data += wire._socket.recv(2**20)
        except BlockingIOError:
            break
    wire.close()
    return np.frombuffer(data, np.uint8)


def _stages(stream: Bytes, folder: Path, size: int) -> dict[str, float]:
    """CPU seconds of decode, append and commit (its waiting for the disk does not count)."""
    shutil.rmtree(folder, ignore_errors=True)
    writer = EmbeddedLogWriter(folder, seal=False)
    decoder = Decoder(Definitions(lambda _: None), ToastMemory(folder / "toast.db"), lambda _rows, _missing: None, 0)
    spent = {"decode": 0.0, "append": 0.0, "commit": 0.0}
    tail = np.empty(0, np.uint8)
    for at in range(0, len(stream), size):
        block = np.concatenate([tail, stream[at : at + size]])
        began = time.process_time()
        for group in decoder.groups(block, 0, len(block), lambda: writer.next_position):
            decoded = time.process_time()
            for batch in group.batches:
                writer.append(batch)
            appended = time.process_time()
            writer.commit(Lsn(int(group.transactions.end_lsn[-1])), 0)
            done = time.process_time()
            spent["decode"] += decoded - began
            spent["append"] += appended - decoded
            spent["commit"] += done - appended
            began = done
        spent["decode"] += time.process_time() - began
        tail = block[decoder.consumed :].copy()
    writer.close()
    return spent
