"""Rows before changes: what is looked up is what reading the whole topic says."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cdc.errors import LookupBehind, StoreError
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.lookup import former
from cdc.lookup.former import looked_up
from cdc.lookup.upkeep import RunUpkeep
from cdc.model.batch import Op
from cdc.model.position import Lsn, Position
from sinks.places import by_reading
from sinks.render.rowtext import keys
from tests.contract.rows import Row, batch
from tests.unit.sinks.test_formula import TOPIC, T


def test_both_find_the_same_rows(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    writer = EmbeddedLogWriter(tmp_path)
    for _ in range(30):
        first = int(writer.next_position)
        changes: list[tuple[Op, int, Row]] = [
            (
                chance.choice([Op.UPDATE, Op.UPDATE, Op.DELETE]),
                first + at,
                {"id": str(chance.randrange(9)), "status": f"s{first + at}"},
            )
            for at in range(chance.randint(1, 4))
        ]
        writer.append(batch(T, changes if chance.random() > 0.05 else [(Op.TRUNCATE, first, {})]))
        writer.commit(Lsn(first * 10), 0)
    head = int(writer.head.position)
    reader = EmbeddedLogReader(tmp_path)
    RunUpkeep(reader, tmp_path, "public.t", lambda _: None).advance()
    one, other = looked_up(reader, tmp_path), by_reading(reader)
    asked = pa.array([str(key) for key in range(12)], pa.utf8())
    for upto in (0, 1, *(chance.randrange(head) for _ in range(15)), head):
        found = [each(TOPIC, Position(upto), asked) for each in (one, other)]
        statuses = []
        for rows, numbers in found:
            assert numbers.dtype == np.int64
            own = [] if not len(rows) else keys(rows, TOPIC).to_pylist()
            assert [own[at] for at in numbers if at >= 0] == [
                key for key, at in zip(asked.to_pylist(), numbers, strict=True) if at >= 0
            ]
            taken = pa.array(numbers, mask=numbers < 0)
            statuses.append(rows.column("status").take(taken).to_pylist() if len(rows) else [None] * len(asked))
        assert statuses[0] == statuses[1], upto
    writer.close()


def test_while_it_is_being_made_the_store_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Behind:
        def __init__(self, *_: object) -> None: ...

        def rows(self, *_: object) -> None:
            raise LookupBehind("it is being made", hint="ask again")

    monkeypatch.setattr(former, "Lookup", Behind)
    with pytest.raises(StoreError, match="it is being made") as waits:
        looked_up(EmbeddedLogReader(tmp_path), tmp_path)(TOPIC, Position(1), pa.array(["1"]))
    assert waits.value.retryable
