"""Views whose rows a function computes: at each cut the kernel has what the function makes of the groups as they are, however it came there; and what is refused of
functions, without a value of a row."""

from __future__ import annotations

import datetime
import random
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from cdc.model.batch import EXACT, EXACT_TYPE
from cdc.model.pgtypes import DATE, INT8, NUMERIC, TEXT
from cdc.model.position import Position
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from cdc.settings.functions import Loaded
from cdc.views import calledgroups
from cdc.views.contract import Delta, ViewRefused
from cdc.views.definition import ViewDefinition, define
from cdc.views.groupcall import DeclaredFunction
from cdc.views.held import ViewStopped
from cdc.views.kernel import SqlKernel

Row = dict[str, Any]
Key = tuple[Any, ...]
MONEY: Final = pa.decimal128(12, 2)
ORDERS: Final = Table(
    1,
    "public",
    "orders",
    (
        Column("id", INT8, key=True, attnum=1),
        Column("customer_id", INT8, attnum=2),
        Column("amount", NUMERIC, (12 << 16 | 2) + 4, attnum=3),
        Column("status", TEXT, attnum=4),
        Column("due", DATE, attnum=5),
    ),
)
CUSTOMERS: Final = Table(2, "public", "customers", (Column("id", INT8, key=True, attnum=1), Column("name", TEXT, attnum=2)))
TOPICS: Final = {f"public.{one.name}": TopicSchema.of(one) for one in (ORDERS, CUSTOMERS)}
SCHEMAS: Final = {name: pa.schema([(one.name, one.type) for one in schema.fields]) for name, schema in TOPICS.items()}
SQL: Final = "select id, customer_id, amount, status from orders where customer_id is not null"
JOINED: Final = (
    "select o.id, o.amount, o.status, c.name, o.customer_id from orders o left join customers c on c.id = o.customer_id "
    "where o.customer_id is not null and o.status is not null"
)
RETURNS: Final = {"rank": "int", "share": "numeric(12,4)", "best": "text"}


def ranked(rows: pa.Table) -> pa.Table:
    """The three largest of the group, and each one's part of the sum. Only of groups whose orders are not all small."""
    best = rows.sort_by([("amount", "descending"), ("id", "ascending")]).slice(0, 3)
    total = pc.sum(rows.column("amount")).as_py() or Decimal(1)
    if total < 5:
        best = best.slice(0, 0)
    shares = [((one or 0) / total).quantize(Decimal("0.0001")) for one in best.column("amount").to_pylist()]
    return pa.table(
        {
            "best": best.column("name" if "name" in rows.column_names else "status"),
            "rank": pa.array(range(1, len(best) + 1), pa.int64()),
            "share": pa.array(shares, pa.decimal128(12, 4)),
        }
    )


def declared(
    function: Callable[[pa.Table], Any] = ranked, by: Sequence[str] = ("customer_id",), returns: Mapping[str, str] = RETURNS
) -> DeclaredFunction:
    return DeclaredFunction("shop.scores:ranked", Loaded(function, "", __file__), "version 1", tuple(by), returns)


def defined(
    function: Callable[[pa.Table], Any] = ranked,
    sql: str = SQL,
    by: Sequence[str] = ("customer_id",),
    returns: Mapping[str, str] = RETURNS,
    key: Sequence[str] = (),
) -> ViewDefinition:
    return define("v", sql, key or (*by, "rank"), TOPICS, function=declared(function, by, returns))


def order(number: int, customer: int | None = 1, amount: str = "1.00", status: str | None = "new", **more: Any) -> Row:
    return {"id": number, "customer_id": customer, "amount": Decimal(amount), "status": status, "due": None, **more}


class Bench:
    """Tables, one view of them in a kernel, and what a reader of its changes would have."""

    def __init__(self, definition: ViewDefinition, folder: Path | None = None) -> None:
        self.definition, self._folder = definition, folder
        self.kernel = SqlKernel(definition, folder)
        self.tables: dict[str, dict[int, Row]] = {name: {} for name in TOPICS}
        self.shown: dict[Key, Row] = {}
        self.cut = 0

    def close(self) -> None:
        self.kernel.close()

    def reopen(self) -> None:
        self.kernel.close()
        self.kernel = SqlKernel(self.definition, self._folder)
        assert self.kernel.cut == self.cut

    def begin_again(self, folder: Path, dice: random.Random) -> None:
        """As when the state was lost: from the tables' rows, in pieces."""
        self.kernel.close()
        self._folder = folder
        self.kernel = SqlKernel(self.definition, folder)
        pieces = []
        for topic in self.definition.reads:
            rows = list(self.tables[topic].values())
            while rows:
                some = dice.randrange(1, 6)
                pieces.append((topic, rows[:some]))
                rows = rows[some:]
        for topic, rows in pieces:
            self.cut += 1
            self.kernel.advance({topic: self._delta(topic, rows, [])}, Position(self.cut), partial=True)
            self.kernel.commit()
        self.cut += 1
        delta = self.kernel.advance({}, Position(self.cut))
        if dice.random() < 0.5:
            self.kernel.rollback()
            delta = self.kernel.advance({}, Position(self.cut))
        self.kernel.commit()
        assert self._by_key(delta.rows) == self.expected()

    def _delta(self, topic: str, rows: Sequence[Row], gone: Sequence[int], emptied: bool = False) -> Delta:
        names = self.definition.reads[topic]
        whole = pa.Table.from_pylist(list(rows), SCHEMAS[topic])
        return Delta(whole.select(list(names)), pa.table({"id": pa.array(gone, pa.int64())}), emptied)

    def step(self, dice: random.Random, written: Mapping[str, Mapping[int, Row | None]], emptied: Sequence[str] = ()) -> None:
        """``written``: rows by key, None for those that are gone."""
        deltas = {}
        for topic in {*written, *emptied}:
            rows = written.get(topic, {})
            if topic in emptied:
                self.tables[topic].clear()
            for key, row in rows.items():
                self.tables[topic].pop(key, None)
                if row is not None:
                    self.tables[topic][key] = row
            if topic in self.definition.reads:
                gone = [key for key, row in rows.items() if row is None]
                deltas[topic] = self._delta(topic, [row for row in rows.values() if row is not None], gone, topic in emptied)
        self.cut += 1
        self._take(deltas, dice)

    def _take(self, deltas: Mapping[str, Delta], dice: random.Random) -> None:
        delta = self.kernel.advance(deltas, Position(self.cut))
        if dice.random() < 0.3:
            self.kernel.rollback()
            again = self.kernel.advance(deltas, Position(self.cut))
            assert again.rows.equals(delta.rows)
            assert again.gone.equals(delta.gone)
        self.kernel.commit()
        key = self.definition.key
        for gone in delta.gone.to_pylist():
            del self.shown[tuple(gone[name] for name in key)]
        for row in delta.rows.to_pylist():
            found = tuple(row[name] for name in key)
            assert self.shown.get(found) != row, "an equal row is in the delta"
            self.shown[found] = row

    def held(self) -> dict[Key, Row]:
        return self._by_key(self.kernel.rows())

    def _by_key(self, rows: pa.Table) -> dict[Key, Row]:
        return {tuple(row[name] for name in self.definition.key): row for row in rows.to_pylist()}

    def expected(self) -> dict[Key, Row]:
        """Each group by itself, of the tables as they are."""
        groups: dict[int, list[Row]] = {}
        for _, row in sorted(self.tables["public.orders"].items()):
            joined = "name" in self.definition.sql
            if row["customer_id"] is None or (joined and row["status"] is None):
                continue
            customer = self.tables["public.customers"].get(row["customer_id"], {"name": None})
            groups.setdefault(row["customer_id"], []).append(row | ({"name": customer["name"]} if joined else {}))
        found = {}
        for customer_id, rows in groups.items():
            schema = SCHEMAS["public.orders"]
            if "name" in rows[0]:
                schema = schema.append(pa.field("name", pa.utf8()))
            for row in ranked(pa.Table.from_pylist(rows, schema)).to_pylist():
                found[customer_id, row["rank"]] = {"customer_id": customer_id, **row}
        return found

    def check(self) -> None:
        assert self.held() == self.expected()
        assert self.shown == self.expected(), "the changes add up to something else"


def history(dice: random.Random) -> dict[str, dict[int, Row | None]]:
    """Inserts, updates, moves from one group to another, and deletes."""
    written: dict[str, dict[int, Row | None]] = {}
    for _ in range(dice.randrange(1, 8)):
        number = dice.randrange(40)
        if dice.random() < 0.2:
            some: Row | None = {"id": number % 8, "name": dice.choice(("a", "b", None))}
            written.setdefault("public.customers", {})[number % 8] = some if dice.random() < 0.8 else None
            continue
        row = order(number, dice.choice((None, *range(8))), f"{dice.randrange(800) / 100:.2f}", dice.choice(("new", "paid", None)))
        written.setdefault("public.orders", {})[number] = row if dice.random() < 0.7 else None
    return written


@pytest.mark.parametrize("sql", [SQL, JOINED])
def test_the_view_is_what_the_function_makes_of_each_group(
    sql: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(f"{seed} {sql}")
    monkeypatch.setattr(calledgroups, "_FIRST", dice.choice((1, 1_000)))
    monkeypatch.setattr(calledgroups, "_AT_ONCE", dice.choice((3, 100_000)))
    folder = None if dice.random() < 0.3 else tmp_path / "0"
    if folder is not None:
        folder.mkdir()
    bench = Bench(defined(sql=sql), folder)
    for cut in range(40):
        emptied = [dice.choice(list(TOPICS))] if dice.random() < 0.05 else []
        bench.step(dice, history(dice), emptied)
        bench.check()
        if folder is not None and dice.random() < 0.15:
            bench.reopen()
        if dice.random() < 0.1:
            folder = tmp_path / f"again{cut}"
            folder.mkdir()
            bench.begin_again(folder, dice)
            bench.check()
    bench.close()


def test_only_touched_groups_are_given_to_the_function_once_and_in_the_order_of_the_key() -> None:
    given: list[tuple[list[int], list[int]]] = []

    def noted(rows: pa.Table) -> pa.Table:
        given.append((sorted(set(rows.column("customer_id").to_pylist())), rows.column("id").to_pylist()))
        assert rows.schema.equals(SCHEMAS["public.orders"].remove(4))
        return ranked(rows)

    bench, dice = Bench(defined(noted)), random.Random(1)
    bench.step(dice, {"public.orders": {number: order(number, number % 3) for number in (5, 4, 3, 2, 1, 0)}})
    assert given[-3:] == [([0], [0, 3]), ([1], [1, 4]), ([2], [2, 5])]
    del given[:]
    bench.step(random.Random(1), {"public.orders": {3: order(3, 1), 9: None}})
    assert set(map(repr, given)) == {repr(([0], [0])), repr(([1], [1, 3, 4]))}
    bench.check()
    del given[:]
    bench.step(random.Random(1), {"public.orders": {3: order(3, 1)}})
    assert given == [], "nothing has changed"
    bench.step(random.Random(1), {"public.orders": {0: None}})
    assert given == [], "a group without rows is not given to it"
    bench.check()


def test_pieces_of_the_first_rows_are_not_given_to_the_function(tmp_path: Path) -> None:
    """Of a group that comes in pieces it would see a part, as it never was."""
    given: list[int] = []

    def noted(rows: pa.Table) -> pa.Table:
        given.append(rows.num_rows)
        return ranked(rows)

    bench = Bench(defined(noted))
    bench.tables["public.orders"] = {number: order(number, number % 2) for number in range(30)}
    bench.begin_again(tmp_path, random.Random(7))
    assert set(given) == {15}
    assert bench.held() == bench.expected()


INPUTS: Final = {
    "select customer_id, count(*) as n from orders group by customer_id": ("n", {1: [(2,), (3,)], 2: [(1,)]}),
    "select count(*) as n, sum(id) as s from orders": ("n", {4: [(10,)]}),
    "select distinct customer_id, status from orders": ("status", {"new": [(1,), (2,), (3,)]}),
    "select 1 as branch, id, customer_id from orders union all select 2, id, 7::bigint from customers": (
        "customer_id",
        {1: [(1, 1), (1, 2)], 2: [(1, 3)], 3: [(1, 4)], 7: [(2, 7)]},
    ),
    "select id, customer_id, row_number() over (partition by customer_id order by id) as n from orders": (
        "n",
        {1: [(1, 1), (3, 2), (4, 3)], 2: [(2, 1)]},
    ),
}


@pytest.mark.parametrize("sql", INPUTS)
def test_its_input_is_any_select_that_a_view_may_be(sql: str) -> None:
    by, expected = INPUTS[sql]
    groups: dict[Any, list[tuple[Any, ...]]] = {}

    def noted(rows: pa.Table) -> pa.Table:
        [value] = set(rows.column(by).to_pylist())
        others = rows.drop_columns([by])
        groups[value] = [tuple(map(_number, row.values())) for row in others.to_pylist()]
        return pa.table({"rank": pa.array([len(rows)], pa.int64())})

    bench = Bench(defined(noted, sql, (by,), {"rank": "bigint"}))
    rows = {number: order(number, customer) for number, customer in ((1, 1), (2, 1), (3, 2), (4, 3))}
    bench.step(random.Random(1), {"public.orders": rows, "public.customers": {7: {"id": 7, "name": "a"}}})
    assert groups == expected
    assert {key[0]: row["rank"] for key, row in bench.held().items()} == {value: len(rows) for value, rows in expected.items()}
    bench.step(random.Random(1), {"public.orders": dict.fromkeys(rows), "public.customers": {7: None}})
    assert bench.held() == bench.shown
    assert len(bench.shown) == ("sum" in sql), "of no rows count is 0"


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, Decimal | str) and str(value).isdigit() else value


def test_a_function_that_is_not_pure_leaves_nothing_behind() -> None:
    calls = 0

    def impure(_: pa.Table) -> pa.Table:
        nonlocal calls
        calls += 1
        return pa.table({"rank": pa.array([calls], pa.int32())})

    bench = Bench(defined(impure, returns={"rank": "int"}))
    once = random.Random()
    once.random = lambda: 1.0  # type: ignore[method-assign]
    for number in range(20):
        bench.step(once, {"public.orders": {number % 4: order(number % 4, number % 3)}})
        assert bench.held() == bench.shown
        assert len(bench.shown) == len({row["customer_id"] for row in bench.tables["public.orders"].values()})


EVERY_TYPE: Final = {
    "rank": "integer",
    "big": "bigint",
    "flag": "boolean",
    "real": "real",
    "double": "double precision",
    "money": "numeric(12,2)",
    "any": "numeric",
    "word": "varchar",
    "id": "uuid",
    "day": "date",
    "at": "timestamp",
    "zoned": "timestamptz",
    "json": "jsonb",
}
UUID: Final = "0A0B0C0D-0000-4000-8000-000000000001"


def test_values_of_each_type_are_as_postgres_has_them() -> None:
    at = datetime.datetime(2026, 1, 2, 3, 4, 5, 6)
    values = {
        "json": pa.array(['{"b":1,  "a":[1.50]}'], pa.large_utf8()),
        "rank": pa.array([1], pa.int64()),
        "big": pa.array([2], pa.int8()),
        "flag": pa.array([True]),
        "real": pa.array([1.5], pa.float32()),
        "double": pa.array([1.5], pa.float32()),
        "money": pa.array([Decimal("1.5")], pa.decimal128(3, 1)),
        "any": pa.array([Decimal("1.50")], pa.decimal128(10, 2)),
        "word": pa.array(["a"]).dictionary_encode(),
        "id": pa.array([UUID]),
        "day": pa.array([at.date()], pa.date64()),
        "at": pa.array([at], pa.timestamp("ns")),
        "zoned": pa.array([at.replace(tzinfo=datetime.UTC)], pa.timestamp("us", tz="Europe/Berlin")),
    }
    definition = defined(lambda _: pa.table(values), returns=EVERY_TYPE)
    bench = Bench(definition)
    bench.step(random.Random(1), {"public.orders": {1: order(1)}})
    rows = bench.kernel.rows()
    assert [(one.name, one.type) for one in rows.schema] == [(one.name, one.type) for one in definition.fields]
    [row] = rows.to_pylist()
    assert row == {
        "customer_id": 1,
        "rank": 1,
        "big": 2,
        "flag": True,
        "real": 1.5,
        "double": 1.5,
        "money": Decimal("1.50"),
        "any": "1.50",
        "word": "a",
        "id": UUID.lower(),
        "day": at.date(),
        "at": at,
        "zoned": at.replace(tzinfo=datetime.UTC),
        "json": '{"a": [1.50], "b": 1}',
    }
    for whole in (7, -7):
        integers = {name: pa.array([whole], pa.int64()) for name in ("rank", "money", "any")}
        bench = Bench(defined(lambda _, one=integers: pa.table(one), returns={name: EVERY_TYPE[name] for name in integers}))  # type: ignore[misc]
        bench.step(random.Random(1), {"public.orders": {1: order(1)}})
        assert list(bench.shown.values()) == [{"customer_id": 1, "rank": whole, "money": Decimal(whole), "any": str(whole)}]
    nulls = defined(lambda _: pa.table({name: [7] if name == "rank" else pa.nulls(1) for name in EVERY_TYPE}), returns=EVERY_TYPE)
    bench = Bench(nulls)
    bench.step(random.Random(1), {"public.orders": {1: order(1)}})
    assert list(bench.shown.values()) == [dict.fromkeys(EVERY_TYPE) | {"customer_id": 1, "rank": 7}]


SECRET: Final = "a secret"


def raises(rows: pa.Table) -> pa.Table:
    raise KeyError(f"{SECRET} {rows}")


def exits(_: pa.Table) -> pa.Table:
    raise SystemExit(SECRET)


def made(**columns: Any) -> Callable[[pa.Table], pa.Table]:
    return lambda _: pa.table(columns)


RANK: Final = pa.array([1], pa.int32())
BAD: Final[dict[str, tuple[Callable[[pa.Table], Any], dict[str, str], str]]] = {
    "raises": (raises, {}, r"raised KeyError at test_called.py:\d+$"),
    "exits": (exits, {}, r"raised SystemExit at test_called.py:\d+$"),
    "no table": (lambda _: [SECRET], {}, "returned a list, not a pyarrow.Table$"),
    "missing": (made(rank=RANK), {"score": "int"}, "returned no column score$"),
    "another": (made(rank=RANK, more=[SECRET]), {}, "returned another column, more, which is not in returns$"),
    "by": (made(rank=RANK, customer_id=[2]), {}, "returned customer_id, which is of by; these columns are added to what it returns$"),
    "twice": (lambda _: pa.Table.from_arrays([RANK, RANK], ["rank", "rank"]), {}, "returned two columns with one name$"),
    "type": (made(rank=[SECRET]), {}, "returned rank as string; integer is int32$"),
    "float": (made(rank=RANK, score=[1.5]), {"score": "numeric(12,4)"}, r"returned score as double; numeric\(12,4\) is decimal128\(12, 4\)$"),
    "large": (made(rank=[2**40]), {}, "returned for rank a value that integer does not hold$"),
    "digits": (
        made(rank=RANK, score=pa.array([Decimal("1.23456")])),
        {"score": "numeric(12,4)"},
        r"returned for score a value that numeric\(12,4\) does not hold$",
    ),
    "json": (made(rank=RANK, score=["{secret"]), {"score": "jsonb"}, "returned for score a text that is not a value of jsonb$"),
    "zero": (made(rank=RANK, score=["secret\0"]), {"score": "text"}, "returned for score a text that is not a value of text$"),
    "far": (
        made(rank=RANK, score=pa.array([2**60], pa.timestamp("us"))),
        {"score": "timestamp"},
        "returned for score a timestamp that a topic cannot hold$",
    ),
    "null": (made(rank=pa.nulls(1, pa.int32())), {}, "returned NULL for rank, which is of the view's key$"),
    "double": (made(rank=[5, 5]), {}, r"returned two rows with one key \(customer_id, rank\)$"),
    "damaged": (
        made(rank=RANK, score=pa.Array.from_buffers(pa.utf8(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])),
        {"score": "text"},
        "returned a table that is damaged$",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_a_function_may_not_do_stops_the_view_without_a_value(name: str) -> None:
    function, more, why = BAD[name]
    bench = Bench(defined(function, returns={"rank": "int", **more}))
    with pytest.raises(ViewStopped, match=rf"^python = 'shop\.scores:ranked' {why}") as stopped:
        bench.step(random.Random(1), {"public.orders": {1: order(1, status=SECRET)}})
    assert "secret" not in str(stopped.value)
    assert stopped.value.hint == "correct the function"
    assert stopped.value.__cause__ is None
    assert bench.kernel.rows().num_rows == 0, "nothing of the range is applied"


def test_a_group_of_null_is_refused() -> None:
    bench = Bench(defined(sql="select id, customer_id, amount, status from orders"))
    bench.step(random.Random(1), {"public.orders": {1: order(1)}})
    with pytest.raises(ViewStopped, match=r"^customer_id, by which rows are grouped, is NULL in a row of its sql$"):
        bench.step(random.Random(1), {"public.orders": {2: order(2, None)}})
    assert bench.held() == bench.shown


def test_a_value_that_no_arrow_value_stands_for_is_not_given_to_a_function() -> None:
    bench = Bench(defined(sql="select id, customer_id, amount, status, due from orders"))
    rows = pa.Table.from_pylist([order(1)], SCHEMAS["public.orders"]).append_column(
        EXACT, pa.array([[("due", "infinity")]], EXACT_TYPE)
    )
    with pytest.raises(ViewStopped, match=r"^due has a value in its sql that no Arrow value stands for, such as infinity"):
        bench.kernel.advance({"public.orders": Delta(rows, pa.table({"id": pa.array([], pa.int64())}))}, Position(1))


@pytest.mark.parametrize(
    ("said", "why", "hint"),
    [
        ({"by": ["customer"]}, "view v: customer of by is not a column of its sql", "customer_id"),
        ({"sql": "select id, customer_id::float as customer_id, amount, status from orders"}, "by names customer_id, which is double", "x::text"),
        ({"returns": {"rank": "real"}}, "key names rank, which is real", "text"),
        ({"returns": {"rank": "money"}}, "returns says that rank is money, which is not a type that it can have", "possible are"),
        ({"returns": {"rank": "int + 1"}}, r"returns says that rank is int \+ 1", "a type alone"),
        ({"returns": {"rank": "int::text"}}, "returns says that rank is int::text", "a type alone"),
        ({"returns": {"rank": ""}}, "returns says that rank is ", "a type alone"),
    ],
)  # fmt: skip
def test_a_declaration_that_cannot_be_is_refused(said: dict[str, Any], why: str, hint: str) -> None:
    with pytest.raises(ViewRefused, match=why) as refused:
        defined(**said)
    assert hint in (refused.value.hint or "")


def test_another_function_or_version_is_another_view() -> None:
    first = defined()
    others = [
        define("v", SQL, ("customer_id", "rank"), TOPICS, function=one)
        for one in (
            DeclaredFunction("shop.scores:other", Loaded(ranked, "", ""), "version 1", ("customer_id",), RETURNS),
            DeclaredFunction("shop.scores:ranked", Loaded(ranked, "", ""), "version 2", ("customer_id",), RETURNS),
            declared(returns={**RETURNS, "share": "numeric"}),
        )
    ]
    assert len({one.identity for one in (first, *others)}) == 4
    assert first.identity == defined().identity
