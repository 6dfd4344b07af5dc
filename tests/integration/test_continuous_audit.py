"""The audit that goes on in the daemon, over real capture, real followers and real stores: it finds every kind of drift and nothing else."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest

from cdc.audit.rounds import ContinuousAudit
from cdc.audit.stores import audit
from cdc.commands.status import lines
from cdc.errors import StopState
from cdc.http.metrics import ReportCollector
from cdc.log.home import open_reader
from cdc.report.collector import gather
from cdc.report.probe import SourceProbe
from cdc.report.shape import AuditedTableReport, Report
from cdc.settings.models import Audit, Settings
from cdc.state import auditstate, rebuilds
from cdc.state.auditstate import AuditStanding
from snapshots.requests import Request, Requests
from tests.conftest import Database
from tests.integration.pipeline import service, settings_of
from tests.integration.test_audit import CATCH_UP_S, ROWS, CacheKeys, Index, Lake, source  # noqa: F401 (source is a fixture)
from tests.waiting import until

WITHIN_S = 240
"""For a round, on a machine with much else to do."""
RANGE_ROWS = 150
SHARE = 0.2


class Recorded(ContinuousAudit):
    """Keeps every standing that it has shown."""

    def __init__(self, settings: Settings, stop: threading.Event) -> None:
        super().__init__(settings, lambda: settings.stores, stop, range_rows=RANGE_ROWS)
        self.shown: list[AuditStanding] = []
        self.used_s: list[float] = []
        """CPU time of its thread, each time that it has shown one."""
        self.until: Callable[[AuditStanding], bool] = lambda _: False
        """It is stopped with the first standing of which this is true."""

    def show(self, name: str, known: Any, standing: AuditStanding) -> None:
        self.shown.append(standing)
        self.used_s.append(time.thread_time())
        super().show(name, known, standing)
        if self.until(standing):
            self._stop.set()


@contextmanager
def auditing(settings: Settings) -> Iterator[Recorded]:
    stop = threading.Event()
    audit = Recorded(settings, stop)
    audit.start()
    try:
        yield audit
    finally:
        stop.set()
        audit.join(WITHIN_S)
    assert audit.alarm() is None


def eager(postgres: Database, folder: Path, stores: Mapping[str, Mapping[str, object]]) -> Settings:
    """Round after round, with just enough between them for ``compared_since`` to see that one has ended."""
    return settings_of(postgres, folder, stores).model_copy(update={"audit": Audit(core_share=1.0, pause_s=1.0)})


@contextmanager
def traffic(dsn: str, seed: int) -> Iterator[None]:
    """Inserts, updates and deletes; keys 100 to 199 rest."""
    dice, stop = random.Random(seed), threading.Event()

    def write() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            while not stop.wait(0.03):
                key = dice.choice([dice.randrange(100), dice.randrange(200, 700)])
                connection.execute("delete from public.t where id = %s", (key,))
                connection.execute("update public.t set a = a || 'x' where id between %s and %s", (key + 1, min(key + 3, 99)))
                connection.execute(
                    "insert into public.t (id, a) values (%s, 'new') on conflict do nothing", (key if key < 99 else key + 1,)
                )

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def reported(settings: Settings) -> Report:
    with closing(open_reader(settings.log.dir)) as reader, closing(SourceProbe(settings.source.dsn, settings.source.slot)) as probe:
        return gather(settings, reader, probe)


def audited(settings: Settings) -> AuditedTableReport | None:
    audit = reported(settings).followers[0].audit
    return audit.tables[0] if audit is not None and audit.tables else None


def compared_since(settings: Settings, moment: float) -> bool:
    """Whether all of the table has been compared in a round that began later."""
    standing = auditstate.load(settings.run_dir, next(iter(settings.stores)))
    return standing is not None and standing.ended_at >= standing.round_at > moment


def metrics(report: Report) -> str:
    registry = CollectorRegistry()
    registry.register(ReportCollector(report))
    return generate_latest(registry).decode()


def again(settings: Settings, *keys: int) -> None:
    requests = Requests(settings.log.dir)
    name = requests.queue(Request("public.t", keys=tuple((str(key),) for key in keys)))
    until(lambda: requests.outcome(name).state in ("done", "failed"), "the keys are not read again")
    assert requests.outcome(name).state == "done", requests.outcome(name)


@pytest.mark.parametrize(
    "where",
    [
        "redis",
        "redis-hash",
        pytest.param("opensearch", marks=[pytest.mark.opensearch, pytest.mark.xdist_group("opensearch")]),
        pytest.param("warehouse", marks=[pytest.mark.slow, pytest.mark.spark, pytest.mark.xdist_group("spark")]),
    ],
)
@pytest.mark.usefixtures("source")
def test_every_kind_of_drift_is_found_and_named_and_goes_with_its_repair(
    postgres: Database, tmp_path: Path, where: str, request: pytest.FixtureRequest, seed: int
) -> None:
    fixture = request.getfixturevalue({"opensearch": "opensearch", "warehouse": "spark"}.get(where, "valkey"))
    store: CacheKeys | Index | Lake
    match where:
        case "opensearch":
            store = Index(fixture)
        case "warehouse":
            store = Lake(fixture, tmp_path / "warehouse")
        case _:
            store = CacheKeys(fixture, hashes=where == "redis-hash")
    settings = eager(postgres, tmp_path, {"copy": store.options})
    with service(settings), auditing(settings), traffic(postgres.dsn, seed):
        # Before, while the rows come, it is whole with fewer.
        until(
            lambda: (one := audited(settings)) is not None and one.whole_at is not None and one.rows > 300, "it is not found whole"
        )
        one = audited(settings)
        assert one is not None
        assert (one.table, one.differing, one.problem) == ("public.t", 0, None)
        # Keys 100 to 199 rest.
        store.write(112, {**store.read(112), "a": "other"})
        store.remove(120)
        store.write(10_001, {**store.read(113), "id": 10_001})
        until(lambda: (one := audited(settings)) is not None and one.differing >= 3, "the drift is not found")
        one = audited(settings)
        assert one is not None
        assert (one.missing, one.extra, one.different, one.at_least) == (1, 1, 1, False)
        report = reported(settings)
        (problem,) = (line for line in report.problems if "differs" in line)
        assert problem == (
            "store copy differs from the log in 3 rows of public.t (1 missing, 1 extra, 1 different) → cdc audit copy --table public.t lists them, "
            "and sends them again with --repair"
        )
        assert any(line.startswith("audit copy: 1 of 1 table with drift, round ") for line in lines(report))
        for kind in ("missing", "extra", "different"):
            assert f'headwater_store_drift_rows{{kind="{kind}",store="copy",table="public.t"}} 1.0' in metrics(report)
        again(settings, 112, 120, 10_001)
        until(lambda: (one := audited(settings)) is not None and one.differing == 0, "the repair is not seen")
        assert not any("differs" in line for line in reported(settings).problems)


@pytest.mark.usefixtures("source")
def test_a_finding_goes_with_its_repair_and_does_not_wait_for_the_next_round(
    postgres: Database, tmp_path: Path, valkey: Any
) -> None:
    store = CacheKeys(valkey, hashes=False)
    settings = eager(postgres, tmp_path, {"copy": store.options, "other": {"kind": "redis", "url": valkey.url, "key": "o:{id}"}})
    hours = settings.model_copy(update={"audit": Audit(core_share=1.0, pause_s=9e9)})

    def differing() -> int:
        found = reported(settings).followers[0].audit
        return 0 if found is None else sum(one.differing for one in found.tables)

    with service(settings):
        with auditing(settings):
            until(lambda: (one := audited(settings)) is not None and one.rows == ROWS, "it is not compared")
            store.write(112, {**store.read(112), "a": "other"})
            store.remove(120)
            until(lambda: differing() == 2, "the drift is not found")
        began = time.time()
        with auditing(hours) as late:
            store.remove(130)
            time.sleep(3)
            assert differing() == 2, "nothing is compared before its time"
            (one, _) = audit(hours, timeout_s=CATCH_UP_S, repair=True)
            assert one.whole
            until(lambda: differing() == 0, "the repair is not seen")
            until(lambda: not any(auditstate.asked_again(settings.run_dir, name) for name in settings.stores), "it stays asked for")
            assert all(one.ended_at < began for one in late.shown), "that was no round"


@pytest.mark.usefixtures("source")
def test_a_store_that_is_behind_emptied_rebuilt_or_down_gives_no_false_finding(
    postgres: Database, tmp_path: Path, valkey: Any, seed: int
) -> None:
    settings = eager(postgres, tmp_path, {"copy": CacheKeys(valkey, hashes=False).options})
    with auditing(settings) as audit:
        with service(settings), traffic(postgres.dsn, seed):
            until(lambda: compared_since(settings, 0.0), "no round ends")
            with valkey.client() as client:
                client.flushall()
            began = time.time()
            until(lambda: compared_since(settings, began), "no round ends after the store was emptied")
            valkey.server.stop()
            until(lambda: any(one.waits for one in audit.shown[-3:]), "it is not said that the store is down")
            valkey.server.start()
            began = time.time()
            until(lambda: compared_since(settings, began), "no round ends after the store came again")
            rebuilds.request(settings.run_dir, "copy", StopState.DIVERGED)
            with valkey.client() as client:
                client.hset("cdc:{copy}:ledger", "epoch", "999999")  # so that it is opened again
            began = time.time()
            until(
                lambda: rebuilds.requested(settings.run_dir, "copy") is None and compared_since(settings, began),
                "no round ends after the store was built again",
            )
        with psycopg.connect(postgres.dsn, autocommit=True) as connection:
            connection.execute("update public.t set a = 'nobody follows'")
        until(lambda: audit.shown[-1].waits is not None, "it is not said that nobody follows")
        with service(settings):
            began = time.time()
            until(lambda: compared_since(settings, began), "no round ends after the store was behind")
    found = [table.drift for standing in audit.shown for table in standing.tables if table.drift.differing]
    assert not found
    assert any("follower" in (standing.waits or "") for standing in audit.shown)


@pytest.mark.usefixtures("source")
def test_a_restart_goes_on_where_the_audit_stood_and_keeps_within_its_share(postgres: Database, tmp_path: Path) -> None:
    twin = f"resumes-{postgres.name.replace('_', '-')}"
    settings = eager(postgres, tmp_path, {twin: {"kind": "memory"}})
    with service(settings):
        with auditing(settings) as first:
            first.until = lambda standing: any(one.work and one.work.done for one in standing.tables)
            until(first._stop.is_set, "no range")
        left = auditstate.load(settings.run_dir, twin)
        assert left is not None
        slow = settings.model_copy(update={"audit": Audit(core_share=SHARE, pause_s=0.0)})
        with auditing(slow) as second:
            until(lambda: any(standing.tables and standing.tables[0].compared_at for standing in second.shown), "no round ends")
            before, began = second.used_s[-1], time.monotonic()
            until(lambda: second.used_s[-1] - before > 0.5, "it stands still")
            used, took = second.used_s[-1] - before, time.monotonic() - began
            assert used - 0.1 <= SHARE * took, "more than its share, but for a piece that it is yet to rest for"
    work = left.tables[0].work
    assert work is not None
    assert work.ranges == -(-ROWS // RANGE_ROWS)
    begun = next(one.work for standing in second.shown for one in standing.tables if one.work is not None)
    assert (begun.seed, begun.ranges) == (work.seed, work.ranges)
    assert begun.done >= work.done
    assert second.shown[0].round_at == left.round_at
