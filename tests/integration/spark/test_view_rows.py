"""The rows that a view is first computed from, found by Spark's workers: the same as without them, and nothing left behind."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from cdc.derive.around import Around, StepLimits
from cdc.derive.computation import Computation
from cdc.derive.declarations import declared_views
from cdc.derive.inforce import in_force
from cdc.derive.netrange import TopicReads
from cdc.derive.sourcerows import RowWorkers, SourcePiece, read_here
from cdc.derive.statefolder import StateFolder
from cdc.derive.viewgenerations import ViewGenerations
from cdc.errors import HeadwaterError, PositionGone, Stopped
from cdc.model.batch import Op
from cdc.model.position import Position
from cdc.replay.state import definition_at
from cdc.settings.file import load
from cdc.settings.models import Settings
from cdc.spark import session, viewrows
from cdc.spark.viewrows import TopicTask, ViewRowWorkers
from cdc.views.contract import Delta, StateFull
from sinks import options_model
from tests.unit.derive.bed import CUSTOMERS, ORDERS, Bed, bed_in
from tests.unit.replay.test_inparts import rekey

pytestmark = pytest.mark.spark

JOINED = "select o.id, c.name, o.note from orders o left join customers c on c.id = o.customer where o.id <> 3"


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    with bed_in(tmp_path) as found:
        yield found


@pytest.fixture
def workers(bed: Bed, spark: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[ViewRowWorkers]:
    """With small slices."""
    monkeypatch.setattr(viewrows, "SLICE_BYTES", 100_000)
    found = ViewRowWorkers(bed.folder / "log", bed.folder / "spark", 1)
    yield found
    found.end()
    assert session.running() is spark, "whoever has not started Spark does not end it"


def written(bed: Bed, seed: int) -> None:
    """Everything that a log may hold of tables."""
    dice = Random(seed)
    bed.commit((CUSTOMERS, Op.INSERT, [{"id": 1, "name": None}]), (ORDERS, Op.INSERT, [{"id": 1, "note": "x" * 300_000}]))
    for number in range(90):
        bed.traffic(dice)
        if number == 30:
            bed.compact()
        if number == 60:
            bed.alter(400_000)
    bed.commit((ORDERS, Op.UPDATE, [{"id": n, "customer": n % 6, "note": None} for n in range(50, 5_000)]))


def reads(bed: Bed, *topics: str) -> list[TopicReads]:
    head = bed.reader.head().position
    found = {topic: definition_at(bed.reader, topic, head) for topic in topics or ("public.customers", "public.orders")}
    return [TopicReads.of(one, [field.name for field in one.fields]) for one in found.values() if one is not None]


def rows(found: Iterator[SourcePiece]) -> list[tuple[str, dict[str, Any]]]:
    kept = [(one.reads, batch.select([*one.reads.columns])) for one in found for batch in one.batches]
    return [(of.topic, row) for of, batch in kept for row in batch.to_pylist()]


def by_workers(bed: Bed, workers: ViewRowWorkers, of: Sequence[TopicReads]) -> list[tuple[str, dict[str, Any]]]:
    return rows(workers.rows(bed.reader, of, bed.reader.head().position, bed.folder / "scratch"))


def loaded(bed: Bed, workers: RowWorkers | None, folder: str) -> tuple[pa.Table, int, pa.Table]:
    """The view's rows, the state's number of rows, and what a change makes of the view."""
    configuration = bed.folder / "cdc.toml"
    configuration.write_text(
        f'[source]\ndsn = "postgresql://nobody@127.0.0.1/x"\n[log]\ndir = "{bed.folder / "log"}"\n[views.joined]\nsql = "{JOINED}"\nkey = ["id"]\n'
    )
    settings: Settings = load(configuration, options_model)
    view = in_force(declared_views(settings)["joined"], bed.reader, bed.reader.head().position)
    around = Around(bed.reader, bed.folder / "log", bed.folder / "run", lambda: None, workers=workers)
    with closing(StateFolder(bed.folder / folder, "joined")) as states:
        generations = ViewGenerations(states)
        computation = Computation("joined", view, generations.made(), around, StepLimits())
        for _ in computation.load(bed.reader.head().position, StepLimits(rows=1_000)):
            pass
        kernel = computation.kernel
        whole, kept = kernel.rows(), kernel.kept_rows()
        renamed = Delta(pa.table({"id": pa.array([4]), "name": pa.array(["new"])}), pa.table({"id": pa.array([0, 1, 2])}))
        change = kernel.advance({"public.customers": renamed}, Position(10**9))
        kernel.rollback()
        generations.close()
        return whole, kept, change.rows


def test_the_state_and_the_rows_are_those_of_a_build_without_spark(bed: Bed, workers: ViewRowWorkers) -> None:
    written(bed, 1)
    with_workers, without = loaded(bed, workers, "with"), loaded(bed, None, "without")
    assert with_workers[1:] == without[1:]
    assert with_workers[0].equals(without[0])
    assert without[0].num_rows > 4_000
    workers.end()
    assert not list((bed.folder / "with" / "joined" / "g1" / "scratch").iterdir())


def test_a_table_with_another_key_than_before_is_read_by_one_reader(bed: Bed, workers: ViewRowWorkers) -> None:
    bed.commit((CUSTOMERS, Op.INSERT, [{"id": n, "name": f"n{n % 2}"} for n in range(4)]))
    rekey(bed)
    of = reads(bed, "public.customers")
    found = by_workers(bed, workers, of)
    assert found == rows(read_here(bed.reader, of, bed.reader.head().position))
    assert len(found) == 2


def test_a_beginning_that_is_gone_is_position_gone_as_without_workers(bed: Bed, workers: ViewRowWorkers) -> None:
    written(bed, 4)
    cut = Position(3)
    with pytest.raises(PositionGone) as here:
        rows(read_here(bed.reader, reads(bed), cut))
    with pytest.raises(PositionGone) as there:
        rows(workers.rows(bed.reader, reads(bed), cut, bed.folder / "scratch"))
    assert str(here.value) == str(there.value)


def _fails(_task: TopicTask, _number: int) -> None:
    raise ValueError("a row has 4711")


def _is_killed(_task: TopicTask, _number: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _finds_the_disk_full(_task: TopicTask, _number: int) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("does", [_fails, _is_killed])
def test_what_befalls_a_worker_is_an_error_without_a_value(
    bed: Bed, workers: ViewRowWorkers, does: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    bed.commit((CUSTOMERS, Op.INSERT, [{"id": 1, "name": "a"}]))
    with monkeypatch.context() as patch:
        patch.setattr(viewrows, "_rows", does)
        with pytest.raises(HeadwaterError, match=r"Spark's workers could not read public\.") as failed:
            by_workers(bed, workers, reads(bed, "public.customers"))
    assert "4711" not in failed.value.line()
    assert not isinstance(failed.value, Stopped)
    assert by_workers(bed, workers, reads(bed, "public.customers")), "it can be asked again"


def test_a_full_disk_of_a_worker_is_one_of_the_state(bed: Bed, workers: ViewRowWorkers, monkeypatch: pytest.MonkeyPatch) -> None:
    bed.commit((CUSTOMERS, Op.INSERT, [{"id": 1, "name": "a"}]))
    monkeypatch.setattr(viewrows, "_newest", _finds_the_disk_full)
    with pytest.raises(StateFull):
        by_workers(bed, workers, reads(bed, "public.customers"))
