"""A log whose two tables a test writes, its inbox, and runners of one view over both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from cdc.compaction.bounds import Settled, TopicPoints, bounds
from cdc.compaction.merge import compact
from cdc.derive.around import Around, StepLimits
from cdc.derive.ports import DeclaredView
from cdc.derive.runner import ViewRunner
from cdc.derive.statefolder import StateFolder
from cdc.inbox.writerside import Inbox
from cdc.log.contract import LogReader, LogWriter
from cdc.log.home import open_reader, open_writer
from cdc.model.batch import EXACT_TYPE, META_FIELDS, Op, batch_schema
from cdc.model.evolution import Kind, SchemaChange, schema_record
from cdc.model.pgtypes import INT8, TEXT, VARCHAR
from cdc.model.position import Lsn, Position
from cdc.model.table import Column, Table
from cdc.replay.state import rows_as_of
from cdc.state import status
from tests.unit.derive.kernels import Row, WholeView
from tests.unit.inbox.parts import Ticking, serve_all

ORDERS = Table(
    101,
    "public",
    "orders",
    (Column("id", INT8, key=True, attnum=1), Column("customer", INT8, attnum=2), Column("note", TEXT, attnum=3)),
)
CUSTOMERS = Table(102, "public", "customers", (Column("id", INT8, key=True, attnum=1), Column("name", TEXT, attnum=2)))
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.utf8()), ("note", pa.utf8())])


def joined(rows: Mapping[str, list[Row]]) -> list[Row]:
    """Orders with their customers' names."""
    names = {row["id"]: row["name"] for row in rows["public.customers"]}
    return [
        {"id": row["id"], "name": names[row["customer"]], "note": row["note"]}
        for row in rows["public.orders"]
        if row["customer"] in names
    ]


VIEW = WholeView(
    "joined",
    {"public.orders": ("id", "customer", "note"), "public.customers": ("id", "name")},
    {"public.orders": ("id",), "public.customers": ("id",)},
    ("id",),
    SCHEMA,
    joined,
)

OTHER = replace(VIEW, name="even", compute=lambda rows: [row | {"note": "even"} for row in joined(rows) if row["id"] % 2 == 0])
"""Another definition of the same view."""


RETYPED = replace(
    VIEW,
    name="retyped",
    schema=pa.schema([("id", pa.int64()), ("name", pa.utf8()), ("note", pa.int64())]),
    compute=lambda rows: [
        row | {"note": None if row["id"] % 3 == 0 else row["id"]} for row in VIEW.compute(rows) if row["id"] != 4
    ],
)
"""Its notes are numbers."""


def batch_of(table: Table, op: Op, rows: Sequence[Row], position: int, lsn: int) -> pa.RecordBatch:
    count = len(rows)
    meta = [
        pa.array(np.arange(position, position + count)),
        pa.array(np.full(count, int(op), np.int8)),
        pa.array(np.full(count, lsn)),
        pa.array(np.full(count, lsn)).view(META_FIELDS[3].type),
        pa.nulls(count, EXACT_TYPE),
    ]
    schema = batch_schema(table)
    own = [pa.array([row.get(one.name) for row in rows], schema.field(one.name).type) for one in table.columns]
    return pa.RecordBatch.from_arrays([*meta, *own], schema=schema)


@dataclass
class Bed:
    folder: Path
    writer: LogWriter
    inbox: Inbox
    reader: LogReader
    tables: dict[str, dict[int, Row]] = field(default_factory=lambda: {"public.orders": {}, "public.customers": {}})
    lsn: int = 10
    now: float = 1_000_000.0
    """The time of day."""

    def commit(self, *changes: tuple[Table, Op, Sequence[Row]]) -> None:
        """One transaction."""
        position = self.writer.next_position
        self.lsn += 10
        for table, op, rows in changes:
            rows = rows if op is not Op.TRUNCATE else [{}]
            self.writer.append(batch_of(table, op, rows, position, self.lsn))
            position = Position(position + len(rows))
            held = self.tables[table.qualified]
            if op is Op.TRUNCATE:
                held.clear()
            for row in rows if op is not Op.TRUNCATE else ():
                held.pop(row["id"], None)
                if op is not Op.DELETE:
                    held[row["id"]] = dict(row)
        self.writer.commit(Lsn(self.lsn), self.lsn)

    def alter(self, most: int) -> Table:
        """Orders' notes are varchar(most) from now on."""
        *others, note = ORDERS.columns
        table = replace(ORDERS, columns=(*others, replace(note, type_oid=VARCHAR, typmod=most + 4)))
        self.lsn += 10
        self.writer.append(schema_record(SchemaChange(table, Kind.ALTERED), self.writer.next_position, self.lsn, self.lsn))
        self.writer.commit(Lsn(self.lsn), self.lsn)
        return table

    def whole(self, *, complete: bool = True) -> None:
        saved = status.CaptureStatus(complete_position=0 if complete else None)
        if not complete:
            saved.snapshot = [status.TableProgress("public.orders", 1, 2)]
        status.write(self.folder / "run", "capture", saved)

    @contextmanager
    def runner(
        self, view: DeclaredView = VIEW, state: str = "state", limits: StepLimits | None = None, name: str = "joined"
    ) -> Iterator[ViewRunner]:
        with closing(StateFolder(self.folder / state, name)) as folder:
            pump, clock = (lambda: serve_all(self.inbox)), Ticking()
            around = Around(self.reader, self.folder / "log", self.folder / "run", pump, clock, now=lambda: self.now)
            runner = ViewRunner(name, view, around, folder, limits)
            with closing(runner):
                yield runner

    def keep_up(self, runner: ViewRunner) -> None:
        while runner.step() or runner.build():
            pass
        serve_all(self.inbox)

    def compact(self) -> None:
        """Of both tables, everything up to here that later changes superseded goes, as where no follower holds it."""
        upkeep, end = self.writer.upkeep, self.writer.head.position
        for table in (ORDERS, CUSTOMERS):
            upkeep.close_newest(table.qualified, end)
        self.writer.commit()
        self.commit(*((table, Op.INSERT, [{"id": 1_000 + end}]) for table in (ORDERS, CUSTOMERS)))  # in other segments
        self.writer.drain_seals()
        for table in (ORDERS, CUSTOMERS):
            points = bounds(upkeep.ranges(table.qualified), Settled(end, end), (), TopicPoints(0, 0))
            assert points.clean_from
            compact(upkeep, table.qualified, points, self._record, at_least=0.0)

    def _record(self) -> None:
        self.writer.commit()

    def expected(self, view: WholeView = VIEW) -> dict[Any, Row]:
        rows = {
            topic: [{name: row.get(name) for name in columns} for row in self.tables[topic].values()]
            for topic, columns in view.reads.items()
        }
        return {row["id"]: row for row in view.compute(rows)}

    def shown(self, topic: str = "views.joined") -> dict[Any, Row]:
        """The view's topic, folded."""
        batches = rows_as_of(self.reader, topic, self.reader.head().position)
        return {row["id"]: {k: v for k, v in row.items() if not k.startswith("_")} for one in batches for row in one.to_pylist()}

    def of_tables(self, view: WholeView = VIEW) -> dict[Any, Row]:
        """What the view shows by the log's own rows of its tables."""
        rows = {
            topic: [
                {name: row[name] for name in columns}
                for one in rows_as_of(self.reader, topic, self.reader.head().position)
                for row in one.to_pylist()
            ]
            for topic, columns in view.reads.items()
        }
        return {row["id"]: row for row in view.compute(rows)}

    def refuse_doubles(self) -> None:
        """No change repeats what its key showed already, under one definition."""
        held: dict[int, object] = {}
        for position, op, row in self.history():
            if op == chr(Op.SCHEMA):
                held = {key: row and ... for key, row in held.items()}  # all of them come again
                continue
            new = None if op == "d" else row
            assert held.get(row["id"]) != new, f"position {position} changes nothing"
            held[row["id"]] = new

    def history(self) -> list[tuple[int, str, Row]]:
        """Every change of the view's topic."""
        return [
            (row["_cdc_position"], chr(row["_cdc_op"]), {k: v for k, v in row.items() if not k.startswith("_")})
            for one in self.reader.read("views.joined", Position(0), self.reader.head().position)
            for row in one.to_pylist()
        ]

    def traffic(self, dice: Random) -> None:
        """One random transaction."""
        changes: list[tuple[Table, Op, Sequence[Row]]] = []
        if dice.random() < 0.02:
            changes.append((dice.choice((ORDERS, CUSTOMERS)), Op.TRUNCATE, ()))
        for _ in range(dice.randrange(1, 5)):
            table, number = dice.choice((ORDERS, CUSTOMERS)), dice.randrange(12)
            gone = number in self.tables[table.qualified] and dice.random() < 0.4
            new: Row = {"id": number, "customer": dice.randrange(6), "note": str(dice.randrange(3))}
            if table is CUSTOMERS:
                new = {"id": number, "name": f"n{dice.randrange(4)}"}
            changes.append((table, Op.DELETE if gone else Op.UPDATE, [{"id": number} if gone else new]))
        self.commit(*changes)


@contextmanager
def bed_in(folder: Path) -> Iterator[Bed]:
    with closing(open_writer(folder / "log", segment_bytes=1 << 20)) as writer, closing(open_reader(folder / "log")) as reader:
        inbox = Inbox(folder / "log", writer, folder / "run", source="postgres", tables=("public.*",), clock=Ticking())
        bed = Bed(folder, writer, inbox, reader)
        bed.whole()
        yield bed
