"""The audit by meaning: a table with every kind of type is equal in every store, and a value that drifted is found in each of its columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import psycopg
import pytest

from cdc.audit import settlement as settle
from cdc.audit.comparison import SourceSide, Target
from cdc.audit.stores import audit_store
from cdc.model.batch import Op
from cdc.model.pgtypes import PINNED_SETTINGS
from cdc.model.position import Cut, Lsn, Position
from cdc.model.table import Table
from cdc.model.topic import TopicSchema
from cdc.source.catalog import load_published
from tests.conftest import Database
from tests.contract.labs import LABS, Lab
from tests.contract.rows import Row, batch, upserts
from tests.documents.everything import COLUMNS, SETUP
from tests.documents.page import table_of

DRIFTED: Final[dict[str, str | None]] = {
    "small": "-8",
    "active": "f",
    "price": "19.91",
    "weight": "0.1501",
    "total": "-0.06",
    "ratio": "0.3",
    "score": "3e-45",
    "name": 'Åse "Ace" \\  😀',
    "code": "abc  ",
    "mood": "sad",
    "day": "2024-03-01",
    "opens": "08:30:00.000001",
    "opens_there": "08:30:00+05",
    "made": "2024-02-29 12:00:00.500001",
    "changed": "infinity",
    "lasts": "1 year 2 mons -3 days +04:05:06.788",
    "picture": "\\x00ff11",
    "uid": "6ec0bd7f-11c0-43da-975e-2a8ad9ebae0c",
    "host": "10.0.0.1",
    "bits": "0100",
    "cash": "$1,234.51",
    "attributes": '{"size": {"h": 2.51, "w": 10}, "tags": ["a", "b"], "color": "red", "stock": null}',
    "raw": '{ "b" : "1.10",\n  "a" : [ ] }',
    "tags": '{new,"on sale","NULL","a,\\"b\\""}',
    "grid": "{{1.50,2},{3,Infinity}}",
    "times": '{"2024-02-29 12:00:00+00","2024-02-29 12:00:00+00"}',
    "notes": '{"{\\"by\\": \\"Bo\\"}","[\\"1\\"]"}',
    "home": '("Main St, 5",7,"")',
    "homes": '{"(\\"A \\"\\"B\\"\\"\\",1,0150)","(,,)"}',
    "valid": '["2024-01-01 00:00:00+00",infinity]',
    "pages": "{[1,4)}",
    "labels": '"color"=>"red", "empty"=>""',
    "spot": "(13.4,52.50001)",
    "area": "((0,0),(1,1),(2,1))",
    "words": "'cat':2 'it''s':1",
    "nothing": "0",
    "nothing_json": "null",
    "null_json": None,
}
"""Another value of every column but the key, as little different as can be."""


@pytest.fixture
def source(postgres: Database) -> psycopg.Connection[Any]:
    connection = postgres.connect()
    for name, value in PINNED_SETTINGS.items():
        connection.execute("select set_config(%s, %s, false)", (name, value))
    connection.execute(SETUP)
    return connection


STORES = [name for name in LABS if name not in ("console", "memory-staged", "memory-sequenced")]
MARKS = {"opensearch": pytest.mark.opensearch, "warehouse": pytest.mark.spark}


@pytest.fixture(
    params=[pytest.param(name, marks=[mark for kind, mark in MARKS.items() if name.startswith(kind)]) for name in STORES]
)
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    made = LABS[request.param](request.getfixturevalue)
    if made.kind == "sql":  # the source's tables stand in the same database
        made._options = {**made._options, "namespace": "copy_{schema}"}
    yield made
    made.close()


def test_every_kind_of_value_is_equal_and_every_kind_of_drift_is_found(
    source: psycopg.Connection[Any], lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settle, "LISTED_KEYS", len(DRIFTED))
    assert list(DRIFTED) == [name for name, *_ in COLUMNS if name != "id"]
    given = [[f"{number}", *(value for *_, value in COLUMNS[1:])] for number in range(len(DRIFTED) + 1)]
    table, rows = table_of(source, "everything", [(name, kind) for name, kind, _ in COLUMNS], given)
    rows.sort(key=lambda row: int(str(row["id"])))
    sink = lab.opened()
    sink.prepare(TopicSchema.of(table))
    first = upserts(table, 1, rows)
    lab.log.put(first)
    sink.apply(first)
    sink.commit(cut(len(rows)))
    audit = audited(source, sink, table, "everything")
    assert audit() == {}, "whatever a store makes of a value, it means the same"
    drift: list[Row] = [{**row, name: value} for row, (name, value) in zip(rows, DRIFTED.items(), strict=False)]
    changes = batch(table, [(Op.UPDATE, len(rows) + at, row) for at, row in enumerate(drift, 1)])
    lab.log.put(changes)
    sink.apply(changes)
    sink.commit(cut(len(rows) + len(drift)))
    assert audit() == {f"{number}": (name,) for number, name in enumerate(DRIFTED)}


def cut(position: int) -> Cut:
    return Cut(Position(position), Lsn(position * 10), position * 1_000_000)


def audited(
    source: psycopg.Connection[Any], sink: Any, table: Table, publication: str
) -> Callable[[], dict[str | None, tuple[str, ...]]]:
    """Audits the table in the store: key → the columns that differ."""

    def run() -> dict[str | None, tuple[str, ...]]:
        database = SourceSide(source, publication)
        result = audit_store(database, sink, lambda: [Target(table)], lambda _: sink.applied())
        [found] = result.tables
        assert found.error is None
        assert (found.tally.missing, found.tally.extra) == (0, 0)
        assert result.equal == (not found.tally.different)
        return {one.key["id"]: one.columns for one in found.differences}

    return run


KEYED: Final = (
    ("period", "int4range"),
    ("tags", "text[]"),
    ("doc", "jsonb"),
    ("lasts", "interval"),
    ("n", "numeric"),
    ("v", "text"),
)


def test_keys_of_any_structure_are_found_again(source: psycopg.Connection[Any], lab: Lab) -> None:
    """Such a key can be written in several ways, so the few suspects are looked for by what they mean."""
    given = [[f"[{n},{n + 9})", f"{{a,{n}}}", f'{{"a": {n}.10}}', f"{n} mons", f"{n}.50", "v"] for n in range(40)]
    table, rows = table_of(source, "keyed", KEYED, given)
    source.execute("alter table public.keyed add primary key (period, tags, doc, lasts, n)")
    table = next(found for found in load_published(source, "keyed"))
    rows.sort(key=lambda row: str(row["n"]))
    sink = lab.opened()
    sink.prepare(TopicSchema.of(table))
    stray = {**rows[0], "period": "[100,200)"}
    missing, drifted, *kept = rows
    held = upserts(table, 1, [stray, {**drifted, "v": "w"}, *kept])
    lab.log.put(held)
    sink.apply(held)
    sink.commit(cut(len(held)))
    result = audit_store(SourceSide(source, "keyed"), sink, lambda: [Target(table)], lambda _: sink.applied())
    [found] = result.tables
    assert (found.tally.missing, found.tally.extra, found.tally.different, found.tally.unsettled) == (1, 1, 1, 0)
    assert {one.kind: one.columns for one in found.differences} == {"missing": (), "extra": (), "different": ("v",)}
    assert next(one for one in found.differences if one.kind == "missing").key["n"] == missing["n"]
