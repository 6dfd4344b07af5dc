from __future__ import annotations

from pathlib import Path

import pytest

from cdc.embedded.opensearch import PRODUCTION_HEAP_MB, OpenSearch


@pytest.mark.parametrize(("asked", "given"), [(256, PRODUCTION_HEAP_MB), (4096, 4096)])
def test_a_node_that_is_measured_runs_as_one_in_production(tmp_path: Path, asked: int, given: int) -> None:
    node = OpenSearch(tmp_path, heap_mb=asked, production=True)
    assert node.heap_mb == given
    assert "-XX:+UseG1GC" in node.jvm_options
    assert not any("TieredStopAtLevel" in option for option in node.jvm_options)


def test_a_node_for_tests_stays_small(tmp_path: Path) -> None:
    node = OpenSearch(tmp_path)
    assert node.heap_mb == 256
    assert "-XX:TieredStopAtLevel=1" in node.jvm_options
