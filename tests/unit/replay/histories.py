"""Random histories of one small table, and the plainest fold of them that there is: a dict."""

from __future__ import annotations

import dataclasses
import random

from cdc.log.memory import MemoryLog, MemoryReader
from cdc.model.batch import Op
from cdc.model.evolution import Kind
from cdc.model.pgtypes import INT4, TEXT
from cdc.model.position import Lsn
from cdc.model.table import Column, Table
from tests.contract.rows import Row, batch, schema

PEOPLE = Table(
    77,
    "public",
    "people",
    (
        Column("id", INT4, -1, "int4", key=True, attnum=1),
        Column("name", TEXT, -1, "text", attnum=2),
        Column("town", TEXT, -1, "text", attnum=3),
    ),
)
TOPIC = PEOPLE.qualified
States = dict[int, dict[str, Row]]
"""Position → the table as of that position: key → row, under the definition of then."""


def history(
    seed: int, size: int, *, keys: int = 12, barriers: bool = True
) -> tuple[MemoryReader, States, list[tuple[int, Op, Row | None]]]:
    """The log; the table at each position; and for each change (position, operation, the row that an update or a delete replaced)."""
    chance = random.Random(seed)
    log = MemoryLog()
    writer = log.writer()
    table, state = PEOPLE, dict[str, Row]()
    states: States = {0: {}}
    replaced: list[tuple[int, Op, Row | None]] = []
    for position in range(1, size + 1):
        kind = chance.random()
        if barriers and kind < 0.02:
            writer.append(batch(table, [(Op.TRUNCATE, position, {})]))
            state = {}
            replaced.append((position, Op.TRUNCATE, None))
        elif barriers and kind < 0.05:
            new = _wider(position) if table is PEOPLE else PEOPLE
            writer.append(schema(new, position, Kind.ALTERED))
            state = {key: _under(row, new) for key, row in state.items()}
            table = new
            replaced.append((position, Op.SCHEMA, None))
        else:
            key = str(chance.randrange(keys))
            row = {name: chance.choice([None, "x", f"v{position}"]) for name in table.names} | {"id": key}
            op = chance.choice([Op.UPDATE, Op.DELETE]) if key in state else chance.choice([Op.INSERT, Op.READ])
            writer.append(batch(table, [(op, position, row)]))
            replaced.append((position, op, state.get(key) if op in (Op.UPDATE, Op.DELETE) else None))
            state = {name: held for name, held in state.items() if name != key} | ({} if op is Op.DELETE else {key: row})
        if chance.random() < 0.4 or position == size:
            writer.commit(Lsn(position * 10), position * 1_000_000)
        states[position] = dict(state)
    return log.reader(), states, replaced


def _wider(number: int) -> Table:
    """A column has another name, and one is added, which no earlier one is, whatever its name: it has a number of its own."""
    city = dataclasses.replace(PEOPLE.columns[2], name="city")
    return dataclasses.replace(PEOPLE, columns=(*PEOPLE.columns[:2], city, Column("extra", TEXT, -1, "text", attnum=3 + number)))


def _under(row: Row, table: Table) -> Row:
    """A column goes by its number; one that the other definition lacks is NULL, and is not remembered."""
    by_number = {"town": "city", "city": "town"}
    return {name: row.get(name, row.get(by_number.get(name, name))) for name in table.names}
