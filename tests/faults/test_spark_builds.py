"""Whatever is killed while Spark's workers find the rows of a view: it comes to the rows of its tables, and nothing is left behind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final

import psutil
import pytest

from cdc.embedded.processes import kill_group
from tests import counters
from tests.faults.points import EVERYTHING
from tests.sparkbuilds import JOINED, ViewProcess, configured, written_bed
from tests.sparkcluster import command, spark_cluster
from tests.unit.derive.bed import Bed

pytestmark = [pytest.mark.faults, pytest.mark.spark]

DAEMON: Final = "pyspark.daemon"
LATER_S: Final = 2.0
"""A build takes longer than this once a worker has started."""
VICTIMS: Final = {"the view's process": "", "its JVM": "SparkSubmit", "a Python worker": DAEMON}
CHOSEN: Final = ("its JVM",)


@pytest.fixture
def bed(tmp_path: Path, seed: int) -> Iterator[Bed]:
    with written_bed(tmp_path, seed, 20_000) as found:
        yield found


def goes_on(view: ViewProcess) -> None:
    """In one process more, where the last one has ended."""
    if not view.ended:
        view.until(lambda: view.shows_all() or view.ended, ending=True)
    if view.ended:
        with view.running():
            ends(view)
    else:
        ends(view)


def ends(view: ViewProcess) -> None:
    view.until(view.shows_all)
    assert view.bed.shown() == view.bed.of_tables()
    view.bed.refuse_doubles()
    assert view.drain() == 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("victim", VICTIMS if EVERYTHING else CHOSEN)
def test_a_part_of_a_build_is_killed(bed: Bed, victim: str, seed: int) -> None:
    configured(bed.folder, {"spark": {"driver_memory": "512m"}, **JOINED})
    view = ViewProcess(bed)
    with view.running():
        view.until(lambda: view.started(DAEMON))
        time.sleep(Random(seed).uniform(0, LATER_S))
        killed: psutil.Process = view.started(VICTIMS[victim])[-1] if VICTIMS[victim] else view.own
        assert not view.shows_all(), "it was killed too late"
        killed.kill()
        if victim != "a Python worker":
            psutil.wait_procs([killed])
        goes_on(view)
    assert view.left() == []
    counters.add("killed in a build on Spark", victim)


@pytest.mark.slow
def test_a_worker_of_a_cluster_is_killed(bed: Bed, tmp_path: Path, seed: int) -> None:
    """What it had begun is done by the others."""
    with spark_cluster(tmp_path / "cluster", workers=2) as cluster:
        configured(bed.folder, {**cluster.sections, **JOINED})
        lost = Random(seed).choice(cluster.workers)
        view = ViewProcess(bed)
        with view.running():
            view.until(lambda: any(DAEMON in command(one) for one in cluster.all_of(lost)))
            assert not view.shows_all(), "it was killed too late"
            executors = cluster.executors(lost)
            kill_group(lost)
            ends(view)
        _, alive = psutil.wait_procs(executors, timeout=60)
        assert not alive
    assert view.left() == []
    counters.add("killed in a build on Spark", "a cluster's worker")
