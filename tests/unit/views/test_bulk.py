"""Rows that come by the many, beside those that come by the few: the same answers, whatever was forgotten, killed, full or damaged."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cdc.model.position import Position
from cdc.views import bulk, columnfiles, hashes, state
from cdc.views.cells import rows_of
from cdc.views.contract import StateDamaged, StateFull
from cdc.views.hashes import HashRun, hashed, merged
from cdc.views.rows import distinct, joined
from cdc.views.state import KeptRelation, KernelState

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("part", pa.utf8()),
        ("owner", pa.int32()),
        ("paid", pa.decimal128(10, 2)),
        ("sure", pa.bool_()),
        ("octets", pa.binary()),
    ]
)
Row = tuple[Any, ...]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handful of rows is many."""
    monkeypatch.setattr(state, "BULK_ROWS", 3)
    monkeypatch.setattr(bulk, "PIECE", 4)
    monkeypatch.setattr(bulk, "_MERGED", 5)


def opened(folder: Path) -> tuple[KernelState, KeptRelation]:
    kept = KernelState(folder, "x")
    return kept, kept.relation("orders", SCHEMA, ("id", "part"), {"owner": ("owner",), "part": ("part", "sure")})


def table(rows: list[Row], schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)


def model_of(rows: pa.Table) -> dict[Row, Row]:
    found = rows_of(rows, SCHEMA.names)
    assert len({row[:2] for row in found}) == len(found)
    return {row[:2]: row for row in found}


def a_row(chance: random.Random, key: Row) -> Row:
    paid = pa.scalar(chance.randrange(10**6), pa.int64()).cast(pa.decimal128(21, 2)).cast(pa.decimal128(10, 2)).as_py()
    octets = chance.choice([None, b"", b"\x00\xff" * chance.randrange(5)])
    return (*key, chance.choice([None, 1, 2, 3]), chance.choice([None, paid]), chance.choice([None, True, False]), octets)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("collide", [False, True], ids=["hashes", "hashes that collide"])
def test_random_changes_are_those_of_a_dictionary(
    tmp_path: Path, seed: int, collide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if collide:
        monkeypatch.setattr(hashes, "hashed", lambda columns, rows: hashed(columns, rows) % np.uint64(3))
        monkeypatch.setattr(bulk, "hashed", lambda columns, rows: hashed(columns, rows) % np.uint64(3))
        monkeypatch.setattr(state, "hashed", lambda columns, rows: hashed(columns, rows) % np.uint64(3))
    chance = random.Random(seed)
    kept, relation = opened(tmp_path)
    model: dict[Row, Row] = {}
    for step in range(80):
        before = dict(model)
        kept.begin()
        most = chance.choice([2, 8, 25])
        keys = list({(chance.randrange(25), chance.choice(["", "a", None, "ä"])) for _ in range(chance.randrange(most))})
        gone = [key for key in keys if chance.random() < 0.3]
        written = table([a_row(chance, key) for key in keys if key not in gone])
        emptied = chance.random() < 0.04
        change = relation.apply(written, table(gone, pa.schema(list(SCHEMA)[:2])), emptied)
        assert model_of(change.before) == {key: row for key, row in before.items() if emptied or key in keys}, (seed, step)
        model = {} if emptied else {key: row for key, row in model.items() if key not in gone}
        model |= model_of(written)
        roll = chance.random()
        if roll < 0.25:
            kept.rollback()
            model = before
        else:
            kept.commit(Position(step + 1))
        if roll > 0.85 or roll < 0.05:
            kept.close()
            kept, relation = opened(tmp_path)
        compare(relation, model, (seed, step))
        assert kept.kept_rows == len(model), (seed, step)
    kept.close()


def compare(relation: KeptRelation, model: dict[Row, Row], where: object) -> None:
    assert model_of(relation.rows()) == model, where
    owners = pa.table({"owner": pa.array([2, None, 2], pa.int32())})
    assert model_of(relation.of("owner", owners)) == {key: row for key, row in model.items() if row[2] in (2, None)}, where
    parts = pa.table({"part": pa.array(["ä", None]), "sure": pa.array([True, None])})
    wanted = {("ä", 1), (None, None)}
    assert model_of(relation.of("part", parts)) == {key: row for key, row in model.items() if (row[1], row[4]) in wanted}, where


@pytest.mark.usefixtures("few")
def test_rows_that_are_gone_give_their_room_back(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    kept, relation = opened(tmp_path)
    with kept:
        for step in range(20):
            kept.begin()
            relation.apply(table([a_row(chance, (number, "a")) for number in range(50)]))
            kept.commit(Position(step + 1))
        files = list((tmp_path / "bulk").iterdir())
        assert sum(path.stat().st_size for path in files if ".run" not in path.name) < 3 * 50 * 80
        assert len([path for path in files if ".run" in path.name]) <= 3 * 8
        assert kept.kept_rows == 50


@pytest.mark.usefixtures("few")
def test_many_appends_leave_few_runs(tmp_path: Path) -> None:
    kept, relation = opened(tmp_path)
    with kept:
        for step in range(64):
            kept.begin()
            relation.apply(table([(5 * step + number, "a", step, None, None, None) for number in range(5)]))
            kept.commit(Position(step + 1))
        assert len([path for path in (tmp_path / "bulk").iterdir() if ".run" in path.name]) == 3
        owners = pa.table({"owner": pa.array([7, 63], pa.int32())})
        assert relation.of("owner", owners).column("id").to_pylist() == [*range(35, 40), *range(315, 320)]


@pytest.mark.usefixtures("few")
def test_a_file_that_is_not_whole_is_damage_and_what_lies_beyond_is_not(tmp_path: Path) -> None:
    kept, relation = opened(tmp_path)
    rows = table([(number, "abc", 1, None, None, None) for number in range(10)])
    kept.begin()
    relation.apply(rows)
    kept.commit(Position(1))
    kept.close()
    path = tmp_path / "bulk" / "orders.0.1.values"
    path.write_bytes(path.read_bytes() + b"left by a process that was killed")
    (tmp_path / "bulk" / "orders.0.run99").write_bytes(b"left, too")
    (tmp_path / "bulk" / "orders.1.0.values").write_bytes(b"left, too")
    kept, relation = opened(tmp_path)
    assert model_of(relation.rows()) == model_of(rows)
    assert not [name for name in ("orders.0.run99", "orders.1.0.values") if (tmp_path / "bulk" / name).exists()]
    kept.close()
    path.write_bytes(path.read_bytes()[:29])
    with KernelState(tmp_path, "x") as kept, pytest.raises(StateDamaged, match=r"orders\.0\.1\.values is not whole"):
        kept.relation("orders", SCHEMA, ("id", "part"))


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("part", ["1.ends", "run2"])
def test_bytes_that_turn_later_are_damage_and_never_read_beyond_the_files_end(tmp_path: Path, part: str) -> None:
    kept, relation = opened(tmp_path)
    kept.begin()
    relation.apply(table([(number, "abc", 1, None, None, None) for number in range(10)]))
    kept.commit(Position(1))
    path = tmp_path / "bulk" / f"orders.0.{part}"
    with path.open("r+b") as file:
        half = path.stat().st_size // 2
        file.seek(half)
        file.write(b"\x7f" * half)
    asked = {"1.ends": ("", ["id", "part"]), "run2": ("part", ["part", "sure"])}[part]
    with kept, pytest.raises(StateDamaged, match="the state is damaged"):
        relation.of(asked[0], table([(9, "abc", 1, None, None, None)]).select(asked[1]))


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("part", ["0.values", "1.values", "1.ends", "2.nulls", "run0", "run2"])
def test_a_bit_that_turned_is_damage_and_no_other_row(tmp_path: Path, part: str) -> None:
    kept, relation = opened(tmp_path)
    for cut in (1, 2):
        kept.begin()
        relation.apply(table([(100 * cut + number, "abc", number % 2 or None, None, None, None) for number in range(10 // cut)]))
        kept.commit(Position(cut))
    kept.close()
    path = tmp_path / "bulk" / f"orders.0.{part}"
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 1
    path.write_bytes(whole)
    with KernelState(tmp_path, "x") as kept, pytest.raises(StateDamaged, match=rf"orders\.0\.{part} "):
        kept.relation("orders", SCHEMA, ("id", "part"), {"owner": ("owner",), "part": ("part", "sure")})


@pytest.mark.usefixtures("few")
def test_files_of_another_state_are_damage(tmp_path: Path) -> None:
    """Of the same view in another log, or from a backup: each is as long as it has to be."""
    for folder, owner in ((tmp_path / "one", 1), (tmp_path / "other", 2)):
        folder.mkdir()
        kept, relation = opened(folder)
        kept.begin()
        relation.apply(table([(number, "abc", owner, None, None, None) for number in range(10)]))
        kept.commit(Position(1))
        kept.close()
    (tmp_path / "one" / "bulk").rename(tmp_path / "away")
    (tmp_path / "other" / "bulk").rename(tmp_path / "one" / "bulk")
    with KernelState(tmp_path / "one", "x") as kept, pytest.raises(StateDamaged, match="not as it was written"):
        kept.relation("orders", SCHEMA, ("id", "part"))


@pytest.mark.usefixtures("few")
def test_files_of_another_format_are_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, relation = opened(tmp_path)
    kept.begin()
    relation.apply(table([(number, "a", 1, None, None, None) for number in range(10)]))
    kept.commit(Position(1))
    kept.close()
    monkeypatch.setattr(bulk, "_FORMAT", 99)
    with KernelState(tmp_path, "x") as kept, pytest.raises(StateDamaged, match="another version"):
        kept.relation("orders", SCHEMA, ("id", "part"))


def test_hashes_stay_as_they_are_in_files() -> None:
    """Where they have to change, so does ``cdc.views.bulk._FORMAT``."""
    columns = [pa.array([1, None]), pa.array(["a", None]), pa.array([b"\x00", None]), pa.array([1, None], pa.decimal128(5, 0))]
    assert hashed(columns, 2).tolist() == PINNED
    assert hashed([pa.array([7], pa.int32())], 1) == hashed([pa.array([7], pa.int64())], 1)


PINNED = [17528848854049672081, 5995022323619418032]


@pytest.mark.usefixtures("few")
def test_a_full_disk_is_named_and_leaves_the_cut_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, relation = opened(tmp_path)
    rows = table([(number, "a", 1, None, None, None) for number in range(10)])
    kept.begin()
    relation.apply(rows)
    kept.commit(Position(1))
    pwrite, left = columnfiles.os.pwrite, [3]

    def full(fd: int, data: memoryview, at: int) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise OSError(28, "No space left on device")
        return pwrite(fd, data[:5], at)

    with monkeypatch.context() as patch:
        patch.setattr(columnfiles.os, "pwrite", full)
        kept.begin()
        with pytest.raises(StateFull, match="does not fit on its disk"):
            relation.apply(table([(number, "b", 1, None, None, None) for number in range(10)]))
        kept.rollback()
    assert model_of(relation.rows()) == model_of(rows)
    kept.begin()
    more = table([(number, "b", 1, None, None, None) for number in range(10)])
    relation.apply(more)
    kept.commit(Position(2))
    assert model_of(relation.rows()) == model_of(rows) | model_of(more)
    kept.close()


@pytest.mark.usefixtures("few")
def test_files_are_durable_before_the_store_counts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    fsync = columnfiles.os.fsync

    def noted(fd: int) -> None:
        fsync(fd)
        happened.append(Path(f"/proc/self/fd/{fd}").readlink().name)

    kept, relation = opened(tmp_path)
    with kept:
        monkeypatch.setattr(columnfiles.os, "fsync", noted)
        kept._store.set_trace_callback(happened.append)
        kept.begin()
        relation.apply(table([(number, "a", 1, None, None, None) for number in range(10)]))
        kept.commit(Position(1))
        files = {path.name for path in (tmp_path / "bulk").iterdir()}
        assert len(files) > 8
        before = happened[: happened.index("COMMIT")]
        assert files <= set(before)
        assert before.index("bulk") > max(before.index(name) for name in files), "the folder comes last"


KILLED = """
import sys
from pathlib import Path
import tests.unit.views.test_bulk as here
here.state.BULK_ROWS, here.bulk._MERGED = 3, 50
kept, relation = here.opened(Path(sys.argv[1]))
cut = kept.cut
while True:
    cut += 1
    kept.begin()
    relation.apply(*here.one_cut(int(sys.argv[2]), cut))
    kept.commit(here.Position(cut))
    print("goes on", flush=True)
"""


def one_cut(seed: int, cut: int) -> tuple[pa.Table, pa.Table, bool]:
    """A cut's rows, keys that are gone, and whether it empties the relation."""
    chance = random.Random(f"{seed} {cut}")
    keys = sorted({(chance.randrange(60), chance.choice(["", "a", "ä"])) for _ in range(chance.choice([3, 40]))})
    gone = [key for key in keys if chance.random() < 0.2]
    written = table([a_row(chance, key) for key in keys if key not in gone])
    return written, table(gone, pa.schema(list(SCHEMA)[:2])), chance.random() < 0.02


def test_a_process_that_is_killed_anywhere_leaves_the_state_of_its_last_commit(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    model: dict[Row, Row] = {}
    at = 0
    for _ in range(4):
        process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path), str(seed)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"goes on\n"
        time.sleep(chance.random() * 0.3)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        kept, relation = opened(tmp_path)
        assert kept.cut > at
        for cut in range(at + 1, kept.cut + 1):
            written, gone, emptied = one_cut(seed, cut)
            lost = set(rows_of(gone, gone.column_names))
            model = {} if emptied else {key: row for key, row in model.items() if key not in lost}
            model |= model_of(written)
        at = kept.cut
        compare(relation, model, (seed, at))
        kept.close()


def test_runs_are_merged_in_pieces(seed: int) -> None:
    chance = np.random.default_rng(seed)
    runs, first = [], 0
    for size in (100, 1, 37, 0, 64):
        runs.append(HashRun.of(chance.integers(0, 40, size).astype(np.uint64) << np.uint64(24), first))
        first += size
    pieces = list(merged(runs, 10))
    assert len(pieces) > 3
    values = np.concatenate([one.hashes for one in pieces])
    places = np.concatenate([one.places for one in pieces])
    assert (values[:-1] <= values[1:]).all()
    expected = {(int(value), int(place)) for run in runs for value, place in zip(run.hashes, run.places, strict=True)}
    assert set(zip(values.tolist(), places.tolist(), strict=True)) == expected
    assert len(values) == first


@pytest.mark.parametrize("kind", ["inner", "left", "right", "full"])
def test_many_rows_are_joined_as_few_are(kind: Any, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)

    def side(name: str, width: pa.DataType, precision: int) -> pa.Table:
        rows = [(number, *value_pair(chance), chance.choice([0.0, -0.0, None])) for number in range(60)]
        names = [name, f"{name}_a", f"{name}_b", f"{name}_c"]
        types = [pa.int64(), width, pa.decimal128(precision, 2), pa.float64()]
        return table(rows, pa.schema(list(zip(names, types, strict=True))))

    left, right = side("l", pa.int32(), 10), side("r", pa.int64(), 20)
    on = [("l_a", "r_a"), ("l_b", "r_b"), ("l_c", "r_c")]
    few = joined(kind, left, right, on)
    monkeypatch.setattr("cdc.views.rows.FEW", 0)
    many = joined(kind, left, right, on)
    names = few.schema.names
    assert sorted(rows_of(many, names), key=repr) == sorted(rows_of(few, names), key=repr), seed
    assert few.num_rows


def value_pair(chance: random.Random) -> Row:
    return chance.choice([None, 1, 2, -3]), chance.choice([None, 1, 2])


def test_what_is_there_twice_is_left_out_alike_of_few_and_of_many(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    rows = table([a_row(chance, (chance.randrange(4), chance.choice([None, "a"]))) for _ in range(100)])
    few = distinct(rows, ["id", "part", "owner"])
    monkeypatch.setattr("cdc.views.rows.FEW", 0)
    many = distinct(rows, ["id", "part", "owner"])
    assert set(rows_of(few, few.schema.names)) == set(rows_of(many, many.schema.names))
    assert len(few) == len(many) == len(set(rows_of(rows, few.schema.names)))
