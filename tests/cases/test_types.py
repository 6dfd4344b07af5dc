"""Types beyond their own case: random rows over many types at once, and the whole matrix in the real stores."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pytest

from cdc.model.batch import POSITION
from tests.cases import bench
from tests.cases.bench import Result, applied, kept, meant
from tests.cases.case import Case, Rig
from tests.cases.conftest import Benches, log_folder
from tests.cases.entries import TOGETHER
from tests.cases.test_cases import parameters, result_of, shown
from tests.contract.labs import LABS

TYPED: Final = [case for case in TOGETHER if case.texts and 18 in case.versions and case.rig.name == "plain"]
POOL: Final = [
    case
    for case in TYPED
    if not case.needs and case.setup.startswith("create table t (id int") and "$S" not in "".join(case.literals)
]
"""Types that every database has."""
COLUMNS: Final = 40
ROWS: Final = 150
"""Before the start, and as many again behind it."""


def test_random_rows_of_40_types_are_alike_from_copy_snapshot_and_stream(benches: Benches, seed: int) -> None:
    chance = random.Random(seed)
    chosen = chance.sample(POOL, COLUMNS)
    columns = ", ".join(f"c{number} {case.kind}" for number, case in enumerate(chosen))

    def rows(first: int) -> str:
        return ",\n".join(
            f"({number}, {', '.join(chance.choice(case.literals) for case in chosen)})" for number in range(first, first + ROWS)
        )

    some = " + ".join(["0", *(f"(c{number} is null)::int" for number in range(0, COLUMNS, 7))])
    case = Case(
        "B119-random",
        "random rows",
        f"create table t (id int primary key, {columns}); insert into t values {rows(0)}",
        f"1: insert into t values {rows(ROWS)}\n"
        f"1: update t set id = id + 1000 where id % 5 = 0\n1: delete from t where ({some}) > 3\n1: update t set c0 = null where id % 3 = 1",
        rig=Rig("random"),
    )
    with log_folder() as folder:
        made = bench.run(case.rig, [case], benches.server(18), folder)
    found = made.results[case.id]
    for error in (found.error, made.error):
        if error is not None:
            raise error
    assert len(found.source["t"]) > ROWS / 2
    assert shown(found.store) == shown(found.source)
    assert shown(found.again) == shown(found.source)


@pytest.mark.parametrize("value", ["redis", "redis-hash"])
@pytest.mark.parametrize(("case", "version"), [one for one in parameters(TYPED) if one.values[1] == 18][::3])
def test_a_cache_holds_every_text(case: Case, version: int, value: str, benches: Benches, request: pytest.FixtureRequest) -> None:
    found = result_of(benches, case, version)
    lab = LABS[value](request.getfixturevalue)
    try:
        sink = lab.opened()
        assert shown(applied(sink, case, found.batches)) == shown(meant(sink, case, found.batches, found.source))
    finally:
        lab.close()


def _matrix() -> tuple[Case, list[Case]]:
    """One table with a column for each type; each row has one value, so that each value stands or falls alone."""
    columns = ", ".join(f"c{number} {case.kind}" for number, case in enumerate(POOL))
    statements = [
        f"insert into t (id, c{number}) values "
        + ", ".join(f"({number * 1000 + index}, {literal})" for index, literal in enumerate(case.literals))
        for number, case in enumerate(POOL)
    ]
    setup = f"create table t (id int primary key, {columns}); " + "; ".join(statements)
    return Case("B119-matrix", "every type in one table", setup, "1: update t set id = id", rig=Rig("matrix")), POOL


@pytest.mark.parametrize(
    "store",
    [
        pytest.param("opensearch", marks=[pytest.mark.opensearch, pytest.mark.xdist_group("opensearch")]),
        pytest.param("warehouse", marks=[pytest.mark.spark, pytest.mark.xdist_group("spark")]),
    ],
)
def test_a_store_holds_the_matrix_or_names_what_it_cannot(store: str, benches: Benches, request: pytest.FixtureRequest) -> None:
    case, types = _matrix()
    with log_folder() as folder:
        made = bench.run(case.rig, [case], benches.server(18), folder)
    found = made.results[case.id]
    for error in (found.error, made.error):
        if error is not None:
            raise error
    lab = LABS[store](request.getfixturevalue)
    options = {"dead_share_max": 1.0} if store == "opensearch" else {}
    try:
        sink = lab.opened(**options)
        dead, content = kept(sink, case, found.batches)
        source = meant(sink, case, found.batches, found.source)["t"]
    finally:
        lab.close()
    assert len(found.source["t"]) > 250
    where = dict(_rows_by_position(found))
    aside = {where[letter.position] for letter in dead}
    assert all(letter.reason for letter in dead)
    assert content["t"] == [row for row in source if row[0] not in aside]
    kinds = {types[int(row or 0) // 1000].kind for row in aside}
    assert kinds <= SET_ASIDE[store], kinds - SET_ASIDE[store]


SET_ASIDE: Final[dict[str, set[str]]] = {"opensearch": set(), "warehouse": set()}
"""The types of which a store cannot hold every value."""


def _rows_by_position(found: Result) -> Iterator[tuple[int, str]]:
    for batch in found.batches:
        ids: Sequence[Any] = batch.column("id").to_pylist()
        for position, row in zip(batch.column(POSITION).to_pylist(), ids, strict=True):
            yield position, str(row)
