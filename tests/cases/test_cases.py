"""Every entry of the table, on every server version it names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests import counters
from tests.cases.bench import Content, Result, agree
from tests.cases.case import Case, line, lines, record, records
from tests.cases.conftest import Benches
from tests.cases.entries import TOGETHER


def parameters(cases: Sequence[Case]) -> list[Any]:
    found = []
    for case in cases:
        for version in case.versions:
            # One worker does all cases of a rig on one version.
            marks = [pytest.mark.xdist_group(f"cases-{case.rig.name}-{version}")]
            if case.wrong:
                marks.append(pytest.mark.xfail(reason=case.wrong, strict=True))
            found.append(pytest.param(case, version, id=f"{case.id}-pg{version}", marks=marks))
    return found


def shown(content: Content) -> dict[str, list[str]]:
    return {table: [line(row) for row in rows] for table, rows in content.items() if rows}


def result_of(benches: Benches, case: Case, version: int) -> Result:
    bench = benches.of(case.rig, version)
    if case.id in bench.skipped:
        pytest.skip(bench.skipped[case.id])
    found = bench.results[case.id]
    if found.error is not None:
        raise found.error
    if bench.error is not None:
        raise bench.error
    return found


@pytest.mark.parametrize(("case", "version"), parameters(TOGETHER))
def test_case(case: Case, version: int, benches: Benches) -> None:
    found = result_of(benches, case, version)
    if case.log is not None:
        assert [record(one) for one in found.records] == records(case.log)
    assert shown(found.store) == shown(found.source), "a store, from the stream"
    assert agree(found.source, found.store)
    assert shown(found.again) == shown(found.source), "a store, from a snapshot"
    for table, text in case.rows.items():
        assert sorted(map(line, found.store.get(table, ()))) == sorted(lines(text)), table
    if case.texts:
        check_values(case, found)
    counters.add("cases", f"Postgres {version}")


def check_values(case: Case, found: Result) -> None:
    """Literally the canonical texts, by every way that leads to the store."""
    texts = dict(enumerate(case.texts))
    rows = {row[0]: row[1] for row in found.store["t"]}
    for base in (1, 101, 201):
        assert {number: rows[str(base + number)] for number in texts} == texts, base
    if case.keyed:
        keys = [text for text in case.texts if text is not None]
        assert {row[0]: row[1] for row in found.store["k"]} == dict.fromkeys(keys, "1") | {keys[0]: "2"}
        return
    moved = {row[0]: row[1] for row in found.store["f"]}
    assert {number: moved[str(1101 + number)] for number in texts} == texts
    gone = {one.values[0]: one.values[1] for one in found.records if one.table == "f" and one.op == "d"}
    for base in (1, 101):
        assert {number: gone[str(base + number)] for number in texts} == texts, f"deleted, {base}"
