"""The log read again: rows as of a place, the row before a change, net changes; each against a dict."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pyarrow as pa
import pytest

from cdc.errors import ConfigError
from cdc.log.memory import MemoryLog, MemoryReader
from cdc.model.batch import OP, POSITION, Op, topic_schema
from cdc.model.position import Lsn, Position
from cdc.replay import former
from cdc.replay.former import WithFormer, with_former
from cdc.replay.netchange import net_changes
from cdc.replay.place import before, parse_place, upto
from cdc.replay.state import rows_as_of
from sinks.render.rowtext import row_text
from tests.contract.rows import ORDERS, PAIRS, Row, batch, order, upserts
from tests.unit.replay.histories import TOPIC, history
from tests.unit.sinks.test_past import logged


def texts(rows: pa.RecordBatch) -> list[Row]:
    found: list[Row] = row_text(rows, topic_schema(rows.schema)).to_pylist()
    return found


def test_rows_as_of_every_position(seed: int) -> None:
    log, states, _ = history(seed, 90)
    for position, expected in states.items():
        found = [row for rows in rows_as_of(log, TOPIC, Position(position)) for row in texts(rows)]
        assert {str(row["id"]): row for row in found} == expected, position
        assert len(found) == len(expected)


def pairs(answer: Iterable[WithFormer]) -> list[tuple[int, Op, Row | None]]:
    found = []
    for changes, rows, known in answer:
        old = [None] * len(changes) if rows is None else texts(rows)
        for number, position in enumerate(changes.column(POSITION).to_pylist()):
            found.append((position, Op(changes.column(OP)[number].as_py()), old[number] if known[number] else None))
    return found


@pytest.mark.parametrize("window_bytes", [1, 500, 1 << 20])
def test_each_update_and_delete_with_the_row_it_replaced(seed: int, window_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(former, "ROWS", 7)
    log, states, expected = history(seed, 100)
    end = max(states)
    chance = random.Random(seed)
    for after in (0, *chance.sample(range(end), 2)):
        found = pairs(with_former(log, TOPIC, Position(after), Position(end), window_bytes=window_bytes))
        assert found == expected[after:], after


@pytest.mark.parametrize("lookup_bytes", [1, 1 << 20])
def test_net_changes_between_any_two_positions(seed: int, lookup_bytes: int) -> None:
    log, states, _ = history(seed, 120, keys=9)
    chance = random.Random(seed)
    for _ in range(12):
        low, high = sorted(chance.choices(range(121), k=2))
        now = states[high]
        # As it was, under the definition of now.
        held = _as_of(log, low, high)
        expected = {("c", key, None, row) for key, row in _frozen(now).items() if key not in held}
        expected |= {("u", key, held[key], row) for key, row in _frozen(now).items() if key in held and held[key] != row}
        expected |= {("d", key, row, None) for key, row in held.items() if key not in now}
        found = set()
        for changes, rows, known in net_changes(log, TOPIC, Position(low), Position(high), lookup_bytes=lookup_bytes):
            old = [None] * len(changes) if rows is None else texts(rows)
            for number, (op, row) in enumerate(zip(changes.column(OP).to_pylist(), texts(changes), strict=True)):
                was = old[number] if known[number] else None
                assert (chr(op), str(row["id"])) not in {one[:2] for one in found}, "each key once"
                found.add((chr(op), str(row["id"]), _key(was), None if chr(op) == "d" else _key(row)))
        assert found == expected, (low, high)


def _as_of(log: MemoryReader, low: int, high: int) -> dict[str, tuple[object, ...]]:
    from cdc.replay.state import definition_at
    from sinks.past import live_rows
    from sinks.reshape import conformed

    shape = definition_at(log, TOPIC, Position(high))
    if shape is None:
        return {}
    rows = [row for one in live_rows(log, TOPIC, Position(low)) for row in texts(conformed(one, shape))]
    return {str(row["id"]): _key(row) or () for row in rows}


def _frozen(state: dict[str, Row]) -> dict[str, tuple[object, ...]]:
    return {key: _key(row) or () for key, row in state.items()}


def _key(row: Row | None) -> tuple[object, ...] | None:
    return None if row is None else tuple(sorted(row.items()))


def test_a_key_of_two_columns_and_rows_that_only_come_back() -> None:
    log = logged(
        upserts(PAIRS, 1, [{"a": "1", "b": "2", "v": "x"}, {"a": "1", "b": "3", "v": "y"}]),
        batch(PAIRS, [(Op.UPDATE, 3, {"a": "1", "b": "2", "v": "z"})]),
        batch(PAIRS, [(Op.UPDATE, 4, {"a": "1", "b": "2", "v": "x"})]),
    )
    assert list(net_changes(log, PAIRS.qualified, Position(2), Position(4))) == [], "it is what it was"
    found = pairs(with_former(log, PAIRS.qualified, Position(2), Position(4)))
    assert found == [(3, Op.UPDATE, {"a": "1", "b": "2", "v": "x"}), (4, Op.UPDATE, {"a": "1", "b": "2", "v": "z"})]


def test_places() -> None:
    log = MemoryLog()
    writer = log.writer()
    for position in (1, 3, 5):
        writer.append(upserts(ORDERS, position, [order(position), order(position + 1)]))
        writer.commit(Lsn(position * 10 + 10), 0)
    reader = log.reader()
    assert before(reader, parse_place("3")) == 2
    assert upto(reader, parse_place("3")) == 3
    assert before(reader, parse_place("0/1F")) == 3, "within a group"
    assert upto(reader, parse_place("0/1E")) == 3
    assert upto(reader, parse_place("0/7")) == 0
    with pytest.raises(ConfigError, match="the log ends at LSN 0/3C, before 0/7000"):
        before(reader, parse_place("0/7000"))
    assert before(reader, parse_place("6")) == 5
    with pytest.raises(ConfigError, match="the log ends at position 6, before 7"):
        before(reader, parse_place("7"))
    for place in (before, upto):
        with pytest.raises(ConfigError, match="the log ends at position 6") as refused:
            place(reader, parse_place("20261122"))
        assert refused.value.hint == "2026-11-22 if a day is meant"
    assert before(reader, parse_place("1970-01-01T00:00:00Z")) == 0
    with pytest.raises(ConfigError, match="the log ends at position 6"):
        upto(reader, parse_place("7"))
    with pytest.raises(ConfigError, match="the log ends at LSN 0/3C, before 0/3D"):
        upto(reader, parse_place("0/3D"))
    for text in ("yesterday", "1/2/3", "-1", "0x3", "", "0/1_0", "-1/5", "+1/5", "0x1/2", "1/ 2", "1/123456789"):
        with pytest.raises(ConfigError, match="is not a place in the log"):
            parse_place(text)


def test_places_in_every_group(seed: int) -> None:
    """Groups of several commits, as a busy log has them: a place lies between two commits of one group, too."""
    chance, log = random.Random(seed), MemoryLog()
    writer, lsns = log.writer(), [0]
    for position in range(1, 40):
        lsns.append(lsns[-1] + chance.choice([0, 10, 10]))
        one = upserts(ORDERS, position, [order(position)])
        ours = {"_cdc_lsn": pa.array([lsns[-1]]), "_cdc_ts": pa.array([lsns[-1] * 1000]).cast(pa.timestamp("us", tz="UTC"))}
        for name, values in ours.items():
            at = one.schema.get_field_index(name)
            one = one.set_column(at, one.schema.field(at), values)
        writer.append(one)
        if chance.random() < 0.3:
            writer.commit(Lsn(lsns[-1]), lsns[-1] * 1000)
    writer.commit(Lsn(lsns[-1]), lsns[-1] * 1000)
    reader = log.reader()
    for lsn in range(1, lsns[-1] + 1):
        first = next(position for position, one in enumerate(lsns) if one >= lsn and position)
        last = max(position for position, one in enumerate(lsns) if one <= lsn)
        time = f"1970-01-01T00:00:{lsn / 1000:06.3f}Z"
        assert before(reader, parse_place(f"0/{lsn:X}")) == before(reader, parse_place(time)) == first - 1, lsn
        assert upto(reader, parse_place(f"0/{lsn:X}")) == upto(reader, parse_place(time)) == last, lsn
