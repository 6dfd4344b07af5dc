"""Relations between cuts: found by key and by slice, in two versions, the same after a restart."""

from __future__ import annotations

import random
import shutil
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from cdc.errors import HeadwaterError
from cdc.model.position import Position
from cdc.views.contract import StateFull
from cdc.views.state import KeptRelation, KernelState

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("part", pa.utf8()),
        ("owner", pa.int32()),
        ("paid", pa.decimal128(10, 2)),
        ("at", pa.timestamp("us", tz="UTC")),
    ]
)


def _relation(state: KernelState) -> KeptRelation:
    return state.relation("orders", SCHEMA, ("id", "part"), {"owner": ("owner",)})


def _rows(*rows: tuple[object, ...]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA)


def _keys(*keys: tuple[object, ...]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(("id", "part"), key, strict=True)) for key in keys], schema=pa.schema(list(SCHEMA)[:2]))


def _owners(*owners: int | None) -> pa.Table:
    return pa.table({"owner": pa.array(owners, pa.int32())})


def test_a_change_has_the_rows_before_and_after_in_the_order_of_the_key() -> None:
    with KernelState(None, "x") as state:
        relation = _relation(state)
        state.begin()
        first = relation.apply(_rows((2, "b", 7, Decimal("1.50"), None), (1, None, None, None, None)))
        assert first.before.num_rows == 0
        assert [(one["id"], one["part"]) for one in first.after.to_pylist()] == [(1, None), (2, "b")]
        change = relation.apply(_rows((1, None, 7, Decimal("0.10"), None)), _keys((2, "b"), (9, "nobody")))
        assert change.before.equals(first.after)
        assert change.after.to_pylist() == [{"id": 1, "part": None, "owner": 7, "paid": Decimal("0.10"), "at": None}]
        assert relation.rows().equals(change.after)
        emptied = relation.apply(_rows((5, "", None, None, None)), emptied=True)
        assert emptied.before.equals(change.after)
        assert relation.rows().equals(emptied.after)


def test_rows_are_found_by_slice_and_null_is_a_value() -> None:
    with KernelState(None, "x") as state:
        relation = _relation(state)
        relation.apply(_rows((1, "a", 7, None, None), (2, "a", None, None, None), (3, "a", 8, None, None), (4, "a", 7, None, None)))
        assert relation.of("owner", _owners(7, 7)).column("id").to_pylist() == [1, 4]
        assert relation.of("owner", _owners(None)).column("id").to_pylist() == [2]
        assert relation.of("owner", _owners()).num_rows == 0
        assert relation.of("owner", _owners(*range(301))).column("id").to_pylist() == [1, 3, 4]


def test_every_type_comes_back_as_it_was_and_is_found_by_its_value() -> None:
    values = {
        "truth": pa.array([True, False, None]),
        "small": pa.array([-(2**15), 2**15 - 1, None], pa.int16()),
        "large": pa.array([-(2**63), 2**63 - 1, None], pa.int64()),
        "bits": pa.array([0, 2**64 - 1, None], pa.uint64()),
        "single": pa.array([-0.0, float("nan"), None], pa.float32()),
        "double": pa.array([-0.0, float("inf"), None], pa.float64()),
        "day": pa.array([-(2**31), 2**31 - 1, None], pa.int32()).cast(pa.date32()),
        "time": pa.array([0, 86_399_999_999, None], pa.int64()).cast(pa.time64("us")),
        "moment": pa.array([-(2**63), 2**63 - 1, None], pa.int64()).cast(pa.timestamp("us", tz="UTC")),
        "paid": pa.array([Decimal("-0.01"), Decimal("9" * 36 + ".99"), None], pa.decimal128(38, 2)),
        "text": pa.array(["", "1\u00e4\U0001f600", None]),
        "octets": pa.array([b"", b"\x00\xff", None]),
    }
    rows = pa.table(values)
    with KernelState(None, "x") as state:
        for name in rows.column_names:
            relation = state.relation(f"by {name}", rows.schema, [name], {"slice": list(dict.fromkeys([name, "truth"]))})
            relation.apply(rows)
            assert bits(relation.of("", rows)) == bits(rows.sort_by(name)), name
            for row in range(rows.num_rows):
                assert bits(relation.of("slice", rows.slice(row, 1))) == bits(rows.slice(row, 1)), (name, row)
            assert relation.apply(rows.slice(0, 0), rows.select([name])).before.num_rows == 3
            assert relation.rows().num_rows == 0


def bits(rows: pa.Table) -> list[tuple[object, ...]]:
    """The rows, of which NaN is equal to itself, and 0 is not equal to -0."""
    columns = [rows.column(one.name).combine_chunks() for one in rows.schema]
    days = {pa.date32(): pa.int32(), pa.timestamp("us", tz="UTC"): pa.int64()}
    whole = {pa.float32(): pa.int32(), pa.float64(): pa.int64()} | days
    return list(zip(*((one.view(whole.get(one.type, one.type))).to_pylist() for one in columns), strict=True))


def test_a_relation_without_a_key_has_one_row() -> None:
    schema = pa.schema([("total", pa.int64())])
    with KernelState(None, "x") as state:
        relation = state.relation("totals", schema, [])
        first, second = (pa.table({"total": [number]}, schema=schema) for number in (1, 2))
        relation.replace(schema.empty_table(), first)
        relation.replace(first, second)
        assert relation.rows().equals(second)


@pytest.mark.parametrize("slice", ["", "owner"])
def test_what_a_look_up_costs_is_not_by_the_rows_that_are_kept(slice: str) -> None:
    """Each key is one way down an index."""
    with KernelState(None, "x") as state:
        _relation(state)
        names = {"": '"id" IS ? AND "part" IS ?', "owner": '"owner" IS ?'}[slice]
        plan = state.found(
            f'EXPLAIN QUERY PLAN SELECT * FROM "orders" WHERE {names}',
            [(None,) * names.count("?")],
            pa.schema([("id", pa.int64()), ("parent", pa.int64()), ("unused", pa.int64()), ("detail", pa.utf8())]),
        )
        assert plan.column("detail").to_pylist()[0].startswith("SEARCH orders USING INDEX"), plan


def test_rows_that_are_many_are_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.views.state._PIECE", 3)
    with KernelState(None, "x") as state:
        relation = _relation(state)
        relation.apply(_rows(*((number, "a", number % 2, None, None) for number in range(20))))
        assert relation.rows().column("id").to_pylist() == list(range(20))
        assert relation.of("owner", _owners(1, 0)).column("id").to_pylist() == list(range(20))


def test_what_is_not_committed_is_forgotten_and_the_rest_survives_a_restart(tmp_path: Path) -> None:
    with KernelState(tmp_path, "x") as state:
        relation = _relation(state)
        state.begin()
        relation.apply(_rows((1, "a", 7, None, None)))
        state.commit(Position(5))
        state.begin()
        relation.apply(_rows((2, "a", 7, None, None)), _keys((1, "a")))
        assert relation.of("owner", _owners(7)).column("id").to_pylist() == [2]
        state.rollback()
        assert relation.of("owner", _owners(7)).column("id").to_pylist() == [1]
        state.begin()
        relation.apply(_rows((3, "a", 7, None, None)), emptied=True)
    with KernelState(tmp_path, "x") as state:
        assert state.cut == 5
        assert _relation(state).rows().column("id").to_pylist() == [1]
        assert _relation(state).of("owner", _owners(7)).column("id").to_pylist() == [1]


def test_a_state_of_another_definition_or_of_no_database_is_refused(tmp_path: Path) -> None:
    KernelState(tmp_path, "x").close()
    with pytest.raises(HeadwaterError, match="another definition"):
        KernelState(tmp_path, "y")
    KernelState(tmp_path, "x").close()
    (tmp_path / "state.sqlite").write_bytes(b"no database" * 1000)
    with pytest.raises(HeadwaterError, match="cannot be read"):
        KernelState(tmp_path, "x")


def test_random_changes_are_those_of_a_dictionary(seed: int) -> None:
    chance = random.Random(seed)
    state = KernelState(None, "x")
    relation = _relation(state)
    model: dict[tuple[int, str | None], tuple[object, ...]] = {}
    for step in range(120):
        before = dict(model)
        state.begin()
        keys = list({(chance.randrange(12), chance.choice(["", "a", None, "ä"])) for _ in range(chance.randrange(8))})
        gone = [key for key in keys if chance.random() < 0.4]
        rows = [(*key, chance.choice([None, 1, 2]), Decimal(chance.randrange(100)) / 100, None) for key in keys if key not in gone]
        emptied = chance.random() < 0.1
        if emptied:
            model.clear()
        for key in gone:
            model.pop(key, None)
        model.update({row[:2]: row for row in rows})
        change = relation.apply(_rows(*rows), _keys(*gone), emptied)
        assert _held(change.before) == {key: row for key, row in before.items() if emptied or key in keys}, (seed, step)
        assert _held(change.after) == {row[:2]: row for row in rows}, (seed, step)
        if chance.random() < 0.3:
            state.rollback()
            model = before
        else:
            state.commit(Position(step))
        assert _held(relation.rows()) == model, (seed, step)
        assert _held(relation.of("owner", _owners(2, None))) == {key: row for key, row in model.items() if row[2] in (2, None)}


def _held(rows: pa.Table) -> dict[tuple[int, str | None], tuple[object, ...]]:
    found = [tuple(row.values()) for row in rows.to_pylist()]
    assert len({row[:2] for row in found}) == len(found)
    return {row[:2]: row for row in found}


def test_a_full_disk_is_named_and_leaves_the_cut_before(tmp_path: Path) -> None:
    with KernelState(tmp_path, "full") as state:
        orders = _relation(state)
        state.begin()
        orders.apply(_rows((1, "a", 1, Decimal("1.00"), None)))
        state.commit(Position(1))
        [(pages,)] = state._store.execute("PRAGMA page_count")
        state._store.execute(f"PRAGMA max_page_count = {pages + 2}").close()
        state.begin()
        with pytest.raises(StateFull, match="does not fit on its disk"):
            orders.apply(_rows(*((number, "b" * 500, 2, None, None) for number in range(2, 200))))
        state.rollback()
        assert (state.cut, state.kept_rows, orders.rows().num_rows) == (1, 1, 1)
        state._store.execute("PRAGMA max_page_count = 100000").close()
        state.begin()
        orders.apply(_rows((2, "b", 2, None, None)))
        state.commit(Position(2))
        assert (state.cut, state.kept_rows) == (2, 2)


def test_a_loss_of_power_leaves_the_whole_state_of_an_earlier_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is as if the store's journal had never been written since. Files of columns that the earlier state counts must still be there."""
    monkeypatch.setattr("cdc.views.state.BULK_ROWS", 10)
    live, left = tmp_path / "live", tmp_path / "left"
    live.mkdir()
    many = _rows(*((n, "a", n % 3, None, None) for n in range(30)))
    shown = {}
    with KernelState(live, "x") as state:
        relation = _relation(state)
        for cut in range(1, 8):
            state.begin()
            # The second time the first ones are buried, and go.
            relation.apply(many if cut in (1, 5) else _rows((cut, "c", cut, None, None)))
            state.commit(Position(cut))
            if cut == 3:
                state.sync()
            shown[cut] = relation.rows()
            shutil.rmtree(left, ignore_errors=True)
            shutil.copytree(live, left, ignore=shutil.ignore_patterns("*-wal", "*-shm"))
            with KernelState(left, "x") as after:
                assert after.cut == max(one for one in (1, 3, 5) if one <= cut)
                assert _relation(after).rows().equals(shown[after.cut])
