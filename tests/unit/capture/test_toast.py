"""The memory of wide rows: what an update leaves out is filled in, whatever happened to the key in between."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest

from cdc.capture import assembly, toast
from cdc.capture.decoder import Decoder
from cdc.capture.definitions import Definitions
from cdc.capture.toast import ToastMemory
from cdc.ingest.intake import Intake
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model import pgtypes
from cdc.model.batch import EXACT, LSN, OP, POSITION, TS, Op, batch_schema
from cdc.model.evolution import Kind, SchemaChange, schema_record
from cdc.model.group import Group
from cdc.model.position import Lsn
from cdc.model.table import Column, Table
from tests.unit.capture import wire
from tests.unit.log.disks import QuickDisk

DOCS = Table(
    20,
    "public",
    "docs",
    (Column("id", pgtypes.TEXT, key=True), Column("body", pgtypes.TEXT), Column("meta", pgtypes.JSONB), Column("n", pgtypes.INT4)),
)
LONG = "x" * 3000


@pytest.fixture
def memory(tmp_path: Path) -> ToastMemory:
    return ToastMemory(tmp_path / "toast.db")


def decode(memory: ToastMemory, *messages: bytes, table: Table = DOCS) -> list[dict[str, object]]:
    held: list[object] = []
    decoder = Decoder(Definitions(lambda _: None, known=[table]), memory, lambda rows, _missing: held.extend(rows.to_pylist()), 0)
    block = wire.block(wire.begin(1, 100), wire.relation(table), *messages, wire.commit(100, 110))
    rows = [
        row for group in decoder.groups(block, 0, len(block), lambda: 1) for batch in group.batches for row in batch.to_pylist()
    ]
    return [{"held": held}, *rows] if held else rows


def test_an_update_is_completed_from_the_latest_row(memory: ToastMemory) -> None:
    decode(memory, wire.insert(20, ["a", LONG, '{"k": 1}', "1"]))
    (row,) = decode(memory, wire.update(20, ["a", wire.UNCHANGED, '{"k": 22222}', "2"]))
    assert (row["body"], row["meta"], row["n"]) == (LONG, '{"k": 22222}', 2)
    (row,) = decode(memory, wire.update(20, ["a", wire.UNCHANGED, wire.UNCHANGED, "3"]))
    assert (row["body"], row["meta"], row["n"]) == (LONG, '{"k": 22222}', 3)


def test_a_value_too_large_to_remember_comes_from_the_database(memory: ToastMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite takes none of more than 1 GB, and bytea has two digits for each byte; nor may the one before it be taken for it."""
    monkeypatch.setattr(toast, "MOST_BYTES", 10_000, raising=False)
    memory._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 15_000)
    decode(memory, wire.insert(20, ["a", LONG, '{"k": 1}', "1"]))
    (row,) = decode(memory, wire.update(20, ["a", "y" * 20_000, '{"k": 1}', "2"]))
    assert row["body"] == "y" * 20_000
    (held,) = decode(memory, wire.update(20, ["a", wire.UNCHANGED, '{"k": 1}', "3"]))
    assert [row["n"] for row in held["held"]] == [3]  # type: ignore[attr-defined]
    batch = pa.RecordBatch.from_pylist(
        [{POSITION: 1, OP: int(Op.READ), LSN: 1, TS: 0, EXACT: None, "id": "a", "body": "z" * 20_000, "meta": "{}", "n": 4}],
        schema=batch_schema(DOCS),
    )
    memory.learn(batch)
    (held,) = decode(memory, wire.update(20, ["a", wire.UNCHANGED, '{"k": 1}', "5"]))
    assert [row["n"] for row in held["held"]] == [5]  # type: ignore[attr-defined]


def test_within_one_transaction_and_over_a_changed_key(memory: ToastMemory) -> None:
    rows = decode(
        memory,
        wire.insert(20, ["a", LONG, None, "1"]),
        wire.update(20, ["b", wire.UNCHANGED, None, "2"], key=["a", None, None, None]),
        wire.update(20, ["b", wire.UNCHANGED, None, "3"]),
    )
    assert [(row["id"], row["_cdc_op"], row["body"]) for row in rows] == [
        ("a", Op.INSERT, LONG),
        ("a", Op.DELETE, None),
        ("b", Op.UPDATE, LONG),
        ("b", Op.UPDATE, LONG),
    ]


@pytest.mark.parametrize("most", [1, 3000, 10_000, 64 * 2**20])
@pytest.mark.parametrize("attempt", range(5))
def test_a_group_ends_where_much_is_filled_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, attempt: int, most: int
) -> None:
    """… and what comes out is the same, wherever it ends: rows, positions, and which transaction made them."""
    rng = random.Random(f"{seed}:{attempt}")
    messages, commits = [], {}
    for number in range(1, 6):
        messages += [wire.begin(number, number * 100), wire.relation(DOCS)] if number == 1 else [wire.begin(number, number * 100)]
        for _ in range(rng.randrange(12)):
            key = rng.choice("abc")
            full = [key, "".join(rng.choices("xyz", k=rng.choice((5, 3000, 5000)))), None, "1"]
            kept = [rng.choice(("a", "b", "d")), wire.UNCHANGED, None, "2"]
            old = [key, None, None, None] if kept[0] != key else None
            choices = [
                wire.insert(20, full),
                wire.update(20, kept, key=old),
                wire.update(20, kept, key=old),
                wire.delete(20, key=[key, None, None, None]),
            ]
            messages.append(rng.choice([*choices, wire.truncate(20), wire.relation(DOCS)] if rng.random() < 0.2 else choices))
        messages.append(wire.commit(number * 100, number * 100 + 10))
        commits[number] = number * 100 + 10
    block = wire.block(*messages)

    def decoded(fill_bytes: int) -> tuple[list[Group], list[dict[str, object]], list[object]]:
        monkeypatch.setattr(assembly, "FILL_BYTES", fill_bytes)
        held: list[object] = []
        memory = ToastMemory(tmp_path / f"{fill_bytes}.db")
        decoder = Decoder(Definitions(lambda _: None, known=[DOCS]), memory, lambda rows, _: held.extend(rows.to_pylist()), 0)
        groups: list[Group] = []
        position = lambda: 1 + sum(len(batch) for group in groups for batch in group.batches)  # noqa: E731
        for group in decoder.groups(block, 0, len(block), position):
            groups.append(group)
        memory.close()
        return groups, [row for group in groups for batch in group.batches for row in batch.to_pylist()], held

    (whole,), rows, held = decoded(2**40)
    groups, pieces, held_in_pieces = decoded(most)
    assert (pieces, held_in_pieces) == (rows, held)
    assert groups[-1].complete
    made_by = {}
    for group in groups:
        found = group.transactions
        assert group.complete == bool(found.end_lsn[-1])
        assert all(int(end) in (0, commits[int(xid)]) for xid, end in zip(found.xid, found.end_lsn, strict=True))
        positions = np.array([row for batch in group.batches for row in batch.column(0).to_pylist()], np.int64)
        made_by |= dict(zip(positions.tolist(), found.xid_of(positions).tolist(), strict=True))
    every = np.array(sorted(made_by), np.int64)
    assert [made_by[int(position)] for position in every] == whole.transactions.xid_of(every).tolist()
    filled = sum(row["_cdc_op"] == Op.UPDATE and len(str(row["body"])) > 100 for row in rows)
    assert most > 1 or len(groups) >= filled
    assert most < 2**20 or len(groups) == 1


def test_what_it_does_not_know_is_held_and_never_null(memory: ToastMemory) -> None:
    first, *rest = decode(memory, wire.update(20, ["z", wire.UNCHANGED, None, "2"]), wire.insert(20, ["y", "s", None, "1"]))
    assert [row["id"] for row in first["held"]] == ["z"]  # type: ignore[attr-defined]
    assert [row["id"] for row in rest] == ["y"]


def test_what_a_held_row_brought_is_newer_than_what_was_known_of_its_key(memory: ToastMemory) -> None:
    """A row that lacks one value and is held brings another; the next one has the one, and leaves the other out."""
    new = '{"k": "%s"}' % ("n" * 3000)
    decode(memory, wire.insert(20, ["a", None, '{"k": "%s"}' % ("o" * 3000), "1"]))
    (held,) = decode(memory, wire.update(20, ["a", wire.UNCHANGED, new, "2"]))
    assert [row["n"] for row in held["held"]] == [2]  # type: ignore[attr-defined]
    (row,) = decode(memory, wire.update(20, ["a", "short", wire.UNCHANGED, "3"]))
    assert (row["body"], row["meta"]) == ("short", new)


def test_what_came_whole_replaces_what_was_remembered(memory: ToastMemory) -> None:
    """A narrow row may be wide as it is stored: not all of it is published. Nothing older comes back, be it learnt from the stream or from the log."""
    decode(memory, wire.insert(20, ["a", "old" * 1000, None, "1"]))
    decode(memory, wire.update(20, ["a", "new" * 500, None, "2"]))
    (row,) = decode(memory, wire.update(20, ["a", wire.UNCHANGED, None, "3"]))
    assert row["body"] == "new" * 500
    *_, row = decode(
        memory,
        wire.insert(20, ["b", "old" * 1000, None, "1"]),
        wire.update(20, ["b", "new" * 500, None, "2"]),
        wire.update(20, ["b", wire.UNCHANGED, None, "3"]),
    )
    assert row["body"] == "new" * 500
    newer = {POSITION: 4, OP: int(Op.UPDATE), LSN: 1, TS: 0, EXACT: None, "id": "a", "body": "log" * 500, "meta": None, "n": 4}
    memory.learn(pa.RecordBatch.from_pylist([newer], schema=batch_schema(DOCS)))
    (row,) = decode(memory, wire.update(20, ["a", wire.UNCHANGED, None, "5"]))
    assert row["body"] == "log" * 500


def test_rollback_forgets_and_commit_remembers(memory: ToastMemory, tmp_path: Path) -> None:
    decode(memory, wire.insert(20, ["a", LONG, None, "1"]))
    memory.commit(1)
    decode(memory, wire.update(20, ["a", "y" * 3000, None, "1"]))
    memory.rollback()
    memory.close()
    again = ToastMemory(tmp_path / "toast.db")
    assert again.position == 1
    (row,) = decode(again, wire.update(20, ["a", wire.UNCHANGED, None, "2"]))
    assert row["body"] == LONG


def test_a_deleted_key_is_forgotten(memory: ToastMemory) -> None:
    decode(memory, wire.insert(20, ["a", LONG, None, "1"]), wire.delete(20, key=["a", None, None, None]))
    assert "held" in decode(memory, wire.update(20, ["a", wire.UNCHANGED, None, "2"]))[0]
    decode(memory, wire.insert(20, ["b", LONG, None, "1"]))
    decode(memory, wire.delete(20, key=["b", None, None, None]))
    assert "held" in decode(memory, wire.update(20, ["b", wire.UNCHANGED, None, "2"]))[0]


def test_it_learns_from_the_log(memory: ToastMemory) -> None:
    def batch(op: Op, key: str, body: str | None) -> pa.RecordBatch:
        row = {"_cdc_position": 1, "_cdc_op": op, "_cdc_lsn": 1, "id": key, "body": body, "meta": None, "n": 7}
        return pa.RecordBatch.from_pylist([row], schema=batch_schema(DOCS))

    memory.learn(batch(Op.READ, "a", LONG))
    memory.learn(batch(Op.READ, "narrow", "short"))
    (row,) = decode(memory, wire.update(20, ["a", wire.UNCHANGED, None, "2"]))
    assert row["body"] == LONG
    assert "held" in decode(memory, wire.update(20, ["narrow", wire.UNCHANGED, None, "2"]))[0]


@pytest.mark.parametrize("held", [True, False])
def test_where_rows_were_held_back_the_log_does_not_tell_what_the_stream_has_brought(
    memory: ToastMemory, tmp_path: Path, held: bool
) -> None:
    """What a crash took of the memory is read from the log, which lacks the rows that were held."""
    row = {POSITION: 1, OP: int(Op.READ), LSN: 1, TS: 0, EXACT: None, "id": "a", "body": LONG, "meta": "{}", "n": 4}
    with closing(EmbeddedLogWriter(tmp_path / "log", disk=QuickDisk())) as writer:
        writer.append(pa.RecordBatch.from_pylist([row], schema=batch_schema(DOCS)))
        writer.commit(Lsn(1), 0)
        Intake(tmp_path / "log", writer, memory, Mock(outdated=Mock(return_value=held)), Mock()).catch_up()
    assert memory.position == 1
    assert ("held" in decode(memory, wire.update(20, ["a", wire.UNCHANGED, None, "5"]))[0]) == held


def test_a_truncated_table_is_forgotten(memory: ToastMemory) -> None:
    decode(memory, wire.insert(20, ["a", LONG, None, "1"]), wire.truncate(20))
    assert "held" in decode(memory, wire.update(20, ["a", wire.UNCHANGED, None, "2"]))[0]
    decode(memory, wire.insert(20, ["b", LONG, None, "1"]))
    for change in (SchemaChange(DOCS, Kind.ALTERED), SchemaChange(DOCS, Kind.REWRITTEN)):
        memory.learn(schema_record(change, 2, 1, 1))
        (row, *_) = decode(memory, wire.update(20, ["b", wire.UNCHANGED, None, "2"]))
        assert ("held" in row) == (change.kind is Kind.REWRITTEN)


def test_columns_that_swap_their_names_keep_their_values(memory: ToastMemory) -> None:
    table = replace(
        DOCS, columns=(replace(DOCS.columns[0], attnum=1), Column("x", pgtypes.TEXT, attnum=2), Column("y", pgtypes.TEXT, attnum=3))
    )
    swapped = replace(table, columns=(table.columns[0], replace(table.columns[1], name="y"), replace(table.columns[2], name="x")))
    decode(memory, wire.insert(20, ["a", LONG, "y" * 3000]), table=table)
    (row,) = decode(memory, wire.update(20, ["a", wire.UNCHANGED, wire.UNCHANGED]), table=swapped)
    assert (row["y"], row["x"]) == (LONG, "y" * 3000)
    retyped = replace(table, columns=(*table.columns[:2], replace(table.columns[2], type_oid=pgtypes.JSON)))
    assert "held" in decode(memory, wire.update(20, ["a", wire.UNCHANGED, wire.UNCHANGED]), table=retyped)[0]


def test_a_row_that_moved_away_leaves_nothing_to_the_next_one_with_its_key(memory: ToastMemory) -> None:
    """The next one moves in as a row that is not known yet (its chunk is still to come), and must not be completed from the former one."""
    decode(memory, wire.insert(20, ["a", LONG, None, "1"]))
    decode(memory, wire.update(20, ["b", "short", None, "1"], key=["a", None, None, None]))
    assert "held" in decode(memory, wire.update(20, ["a", wire.UNCHANGED, None, "2"], key=["z", None, None, None]))[0]
    assert "held" in decode(memory, wire.update(20, ["a", wire.UNCHANGED, None, "3"]))[0]


def test_learning_deletes_forgets(memory: ToastMemory) -> None:
    decode(memory, wire.insert(20, ["a", LONG, None, "1"]))
    row = {"_cdc_position": 2, "_cdc_op": Op.DELETE, "_cdc_lsn": 1, "id": "a", "body": None, "meta": None, "n": None}
    memory.learn(pa.RecordBatch.from_pylist([row], schema=batch_schema(DOCS)))
    assert "held" in decode(memory, wire.update(20, ["a", wire.UNCHANGED, None, "2"]))[0]


def test_short_texts_of_types_that_are_long_on_disk(memory: ToastMemory) -> None:
    """An int[] of one element takes 28 bytes on disk and three as text, and Postgres moves it out of a row that is too wide."""
    int4_array = 1007
    many = Table(
        21,
        "public",
        "many",
        (
            Column("id", pgtypes.INT4, key=True),
            *(Column(f"a{index}", int4_array) for index in range(80)),
            Column("n", pgtypes.INT4),
        ),
    )
    decode(memory, wire.insert(21, ["1", *["{1}"] * 80, "1"]), table=many)
    (row,) = decode(memory, wire.update(21, ["1", *[wire.UNCHANGED] * 20, *["{1}"] * 60, "2"]), table=many)
    assert [row[f"a{index}"] for index in range(80)] == ["{1}"] * 80


def test_fixed_columns_count_as_what_they_take_on_disk(memory: ToastMemory) -> None:
    """24 (header) + 4 + 20 uuids of 16 + 20 names of 64 + a text of 500: wider than 2032."""
    columns = [Column(f"u{index}", pgtypes.UUID) for index in range(20)] + [
        Column(f"c{index}", pgtypes.NAME) for index in range(20)
    ]
    table = Table(22, "public", "fixed", (Column("id", pgtypes.INT4, key=True), *columns, Column("body", pgtypes.TEXT)))
    fixed = ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"] * 20 + ["n"] * 20
    for key in ("1", "2"):
        decode(memory, wire.insert(22, [key, *fixed, key * 500]), table=table)
    (row,) = decode(memory, wire.update(22, ["1", *fixed, wire.UNCHANGED]), table=table)
    assert row["body"] == "1" * 500


def test_fixed_columns_count_when_it_learns_too(memory: ToastMemory) -> None:
    names = [Column(f"c{index}", pgtypes.NAME) for index in range(25)]
    table = Table(22, "public", "fixed", (Column("id", pgtypes.INT4, key=True), *names, Column("body", pgtypes.TEXT)))
    row: dict[str, object] = {"_cdc_position": 1, "_cdc_op": Op.READ, "_cdc_lsn": 1, "id": 1, "body": "x" * 500}
    memory.learn(pa.RecordBatch.from_pylist([row | {column.name: "n" for column in names}], schema=batch_schema(table)))
    (row,) = decode(memory, wire.update(22, ["1", *["n"] * 25, wire.UNCHANGED]), table=table)
    assert row["body"] == "x" * 500


def test_it_learns_rows_whose_key_is_null(memory: ToastMemory) -> None:
    """Without a primary key, under FULL, every column is the key."""
    full = replace(DOCS, identity="f", columns=tuple(replace(column, key=True) for column in DOCS.columns))
    row = {"_cdc_position": 1, "_cdc_op": Op.READ, "_cdc_lsn": 1, "id": None, "body": LONG, "meta": None, "n": None}
    memory.learn(pa.RecordBatch.from_pylist([row], schema=batch_schema(full)))
    (_, found) = decode(memory, wire.update(20, [None, wire.UNCHANGED, None, "1"], old=[None, LONG, None, None]), table=full)
    assert (found["body"], found["n"]) == (LONG, 1)


def test_where_it_was_told_to_begin_is_where_it_begins_again(memory: ToastMemory, tmp_path: Path) -> None:
    memory.begin_at(41)
    memory.close()
    assert ToastMemory(tmp_path / "toast.db").position == 41


def test_a_damaged_file_is_made_anew(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "toast.db"
    memory = ToastMemory(path)
    decode(memory, *(wire.insert(20, [f"k{index}", LONG, None, "1"]) for index in range(50)))
    memory.commit(50)
    memory.close()
    data = bytearray(path.read_bytes())
    rng = np.random.default_rng(seed)
    data[: len(data) // 2] = rng.bytes(len(data) // 2)
    path.write_bytes(data)
    again = ToastMemory(path)
    assert again.position == 0
