"""docs/performance.md names every benchmark and shows what was measured last, and every benchmark has a toy size."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Final

import pytest

from bench.__main__ import names
from bench.table import DOCS, rendered
from tests.bench.test_toys import NOT_MEASURED, STORES, TOYS

PAGE: Final = (DOCS / "performance.md").read_text(encoding="utf-8")
MEASURED: Final = sorted((DOCS / "benchmarks").glob("*.json"))
BENCHMARKS: Final = sorted(set(names()) - NOT_MEASURED)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_has_a_toy_size(name: str) -> None:
    assert name in {*TOYS, *STORES}, (
        f"add {name!r} to TOYS in tests/bench/test_toys.py (to STORES if it starts OpenSearch or Spark): options of a size at which it "
        "takes seconds, and figures that it has to print"
    )


def test_every_toy_is_of_a_benchmark() -> None:
    assert sorted({*TOYS, *STORES} - set(BENCHMARKS)) == [], "toy sizes in tests/bench/test_toys.py without a bench/NAME.py"


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_is_named_on_the_page(name: str) -> None:
    listed = PAGE.partition("\n| to know |")[0]
    assert re.search(rf"`(make bench NAME=)?{name}`", listed), f"name `{name}` in the first lines of docs/performance.md"


def test_the_table_is_not_stale() -> None:
    assert rendered([json.loads(path.read_text(encoding="utf-8")) for path in MEASURED]) in PAGE, "run `python -m bench table`"


@pytest.mark.parametrize("path", MEASURED, ids=lambda path: path.stem)
def test_what_was_measured_is_one_result(path: Path) -> None:
    assert {"name", "figures", "machine"} <= json.loads(path.read_text(encoding="utf-8")).keys(), (
        "the last line of a benchmark, as it is"
    )
