"""One log that has seen everything, and what a store that follows it must hold in the end."""

from __future__ import annotations

import random
import threading
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from cdc.follow.follower import Follower
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.batch import LSN, OP, POSITION, Op, batch_schema
from cdc.model.evolution import Kind as Change
from cdc.model.evolution import SchemaChange, schema_record
from cdc.model.pgtypes import TEXT
from cdc.model.position import Lsn
from cdc.model.table import Column
from sinks.contract import Sink
from tests.faults.lab import Lab
from tests.faults.truth import LogFold, Tables
from tests.faults.workload import Workload


@dataclass(frozen=True)
class Written:
    """A log that has seen everything, and what a store that follows it must hold in the end."""

    folder: Path
    tables: Tables


def change_definitions(log: Path) -> None:
    """A column comes and another goes, with rows before and behind it; a second table is rewritten with a column of another type, and read again."""
    with closing(EmbeddedLogReader(log)) as reader:
        tables = {topic.name: topic.table for topic in reader.topics()}
    with closing(EmbeddedLogWriter(log)) as writer:
        accounts, items = tables["public.accounts"], tables["public.items"]
        wider = replace(accounts, columns=(*accounts.columns, Column("extra", TEXT, attnum=len(accounts.columns) + 1)))
        narrower = replace(wider, columns=tuple(column for column in wider.columns if column.name != "seen"))
        retyped = replace(items, columns=tuple(replace(c, type_oid=TEXT) if c.name == "price" else c for c in items.columns))
        for change, row in (
            (SchemaChange(wider, Change.ALTERED), {"id": 7_000_001, "owner": "new", "extra": "more"}),
            (SchemaChange(narrower, Change.ALTERED), {"id": 7_000_002, "owner": "newer", "extra": None}),
            (SchemaChange(retyped, Change.REWRITTEN, empties=True), {"shop": 1, "code": "again", "price": "1e3"}),
        ):
            lsn, position = writer.head.commit_lsn + 8, writer.next_position
            meta = {POSITION: position + 1, OP: int(Op.READ), LSN: lsn}
            writer.append(schema_record(change, position, lsn, 0))
            writer.append(pa.RecordBatch.from_pylist([meta | row], schema=batch_schema(change.table)))
            writer.commit(Lsn(lsn), 0)


def held_by(sink: Sink, folder: Path) -> Tables:
    """Every table as the store has it, as text."""
    with closing(EmbeddedLogReader(folder / "log")) as reader:
        sink.make_visible()
        found: Tables = {}
        for topic in reader.topics():
            rows = [row for batch in sink.scan(topic.schema) for row in batch.to_pylist()]
            if rows:
                found[topic.name] = sorted((tuple(sorted(row.items())) for row in rows), key=repr)
        return found


def apply_all(options: Any, reader: EmbeddedLogReader, written: Written, folder: Path) -> None:
    """The log in ranges of some hundred changes, each with a commit."""
    follower = Follower("store", options, written.folder / "log", reader, folder / "run", threading.Event())
    with closing(follower):  # a process that ends gives its lease back, however it ends
        assert follower.start(), follower.status
        follower.follow_to(reader.head())
        assert follower.applied.position == reader.head().position, follower.status


def write_everything(one: Lab) -> Written:
    """Makes the log, with capture over the lab's database."""
    one.start()
    # Before the workload, so that it finds the same rows in the log however slow the snapshot is.
    one.converge()
    work = Workload(random.Random("written"))
    for _ in range(12):
        work.step(one.connection)
    one.connection.execute("truncate events")
    for _ in range(30):
        work.step(one.connection)
    # More rows than a store's batch, and then half of them again: whatever the dice said, a file of the warehouse keeps some and loses some.
    one.connection.execute("insert into accounts select g, 'many', 0, null, null from generate_series(8000001, 8000500) g")
    one.connection.execute("update accounts set owner = 'half' where id > 8000250")
    one.converge()
    assert one.ask_to_stop() == 0
    one.process = None
    change_definitions(one.folder / "log")
    with closing(EmbeddedLogReader(one.folder / "log")) as reader, closing(LogFold(one.folder / "log")) as fold:
        assert reader.head().position > 500
        return Written(one.folder, {name: rows for name, rows in fold.tables().items() if rows})
