"""Whatever state a part is in: status, the page's data, metrics, ``/readyz`` and waiting say the same of it.

Healthy is what streams or follows and has nothing wrong with it. Everything else has a line that names the part, says what is wrong, and
what helps.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from pydantic import SecretStr
from starlette.testclient import TestClient

from cdc.client.wait import wait
from cdc.errors import Stopped, StopState, WaitTimeout
from cdc.http.app import make_app
from cdc.http.metrics import ReportCollector
from cdc.log.memory import MemoryLog
from cdc.model.position import Lsn
from cdc.report import probe
from cdc.report.collector import gather
from cdc.report.probe import SourceProbe
from cdc.report.shape import Report
from cdc.settings.models import Log, Settings, Source, StoreOptions
from cdc.settings.views import View
from cdc.source.slot import SlotFacts, SlotReader
from cdc.state import status, stops
from tests.unit.log.changes import ORDERS, changes

ROOT = Path(__file__).resolve().parents[2]
GONE = 2**22 + 1
"""No process has this id."""
HEALTHY = {"capture": {"streaming", "snapshot"}, "follow-cache": {"following"}, "view-totals": {"following"}}


@pytest.fixture(autouse=True)
def _time_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy this machine is."""
    monkeypatch.setattr(status, "slowness", lambda: 1.0)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "RETRY_SOURCE_S", 3600.0)


class Probe(SourceProbe):
    """A source with this slot, or (None) one that does not answer."""

    def __init__(self, facts: SlotFacts | None) -> None:
        super().__init__(SecretStr("postgresql://h/d"), "cdc")
        self.facts = facts
        self._error = "Connection refused"

    def _facts(self) -> SlotFacts | None:
        return self.facts


SLOT = SlotFacts(name="cdc", exists=True, server_lsn=Lsn(9 << 20), reader=SlotReader(7), wal_status="reserved")


@dataclass
class Scene:
    folder: Path
    facts: SlotFacts | None = SLOT

    @property
    def settings(self) -> Settings:
        made = Settings(
            source=Source(dsn=SecretStr("postgresql://u@127.0.0.1:1/d")),
            log=Log(dir=self.folder / "log"),
            run_dir=self.folder / "run",
        )
        views = {"totals": View(sql="select id from orders", key=("id",))}
        return made.model_copy(update={"stores": {"cache": StoreOptions(kind="redis", tables=["public.*"])}, "views": views})

    def capture(self, **told: Any) -> None:
        status.write(
            self.folder / "run", "capture", status.CaptureStatus(**{"pid": os.getpid(), "said_at": time.monotonic(), **told})
        )

    def follower(self, **told: Any) -> None:
        made = status.FollowerStatus("cache", "redis", **{"pid": os.getpid(), "said_at": time.monotonic(), **told})
        status.write(self.folder / "run", "follow-cache", made)

    def view(self, **told: Any) -> None:
        made = status.ViewStatus("totals", **{"pid": os.getpid(), "said_at": time.monotonic(), **told})
        status.write(self.folder / "run", "view-totals", made)

    def part(self, name: str, **told: Any) -> None:
        {"capture": self.capture, "follow-cache": self.follower, "view-totals": self.view}[name](**told)

    def child(self, name: str, state: str, **told: Any) -> None:
        child = status.ProcessStatus("followers" if name == "follow-cache" else name, state=state, **told)
        status.write(self.folder / "run", "supervisor", status.SupervisorStatus(pid=os.getpid(), processes=[child]))

    def stopped(self, name: str) -> None:
        stops.record(self.folder / "run", name, Stopped(StopState.DIVERGED, "the server lacks it"))

    def report(self) -> Report:
        return gather(self.settings, MemoryLog().reader(), Probe(self.facts))


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    made = Scene(tmp_path)
    made.capture(state="streaming")
    made.follower(state="following")
    made.view(state="following")
    return made


def agree(scene: Scene, *, healthy: bool, names: str = "") -> Report:
    """Everything that looks at the parts says that; ``names``: what one of the problems says."""
    report = scene.report()
    assert report.healthy is healthy, report.problems
    assert bool(report.problems) is not healthy
    assert any(names in line for line in report.problems) or healthy, report.problems
    for line in report.problems:
        assert re.fullmatch(r".+ → .+", line), "says what helps, in one line"
        assert line.isprintable()
    with TestClient(make_app(scene.settings, take=lambda: report), base_url="http://127.0.0.1:8642") as asked:
        ready = asked.get("/readyz")
        assert ready.status_code == (200 if healthy else 503)
        assert ready.json() == ({"ready": True} if healthy else {"ready": False, "reasons": list(report.problems)})
        shown = asked.get("/v1/status").json()
    assert (shown["healthy"], shown["problems"]) == (healthy, list(report.problems))
    found = metrics(report)
    assert found["headwater_healthy"] == [(1.0 if healthy else 0.0, "")]
    assert found["headwater_problems"] == [(float(len(report.problems)), "")]
    if report.capture is not None:
        assert [label for value, label in found["headwater_capture_state"] if value] == [report.capture.state]
    assert [label for value, label in found["headwater_store_state"] if value] == [report.followers[0].state]
    assert [label for value, label in found["headwater_view_state"] if value] == [report.views[0].state]
    waiting(scene, report)
    return report


def metrics(report: Report) -> dict[str, list[tuple[float, str]]]:
    registry = CollectorRegistry()
    registry.register(ReportCollector(report))
    return {
        family.name: [(sample.value, sample.labels.get("state", "")) for sample in family.samples] for family in registry.collect()
    }


def waiting(scene: Scene, report: Report) -> None:
    """It says at once when an operator has to decide, else who is late."""
    held = {stop.part for stop in report.stops}
    with pytest.raises(Stopped if held & {"capture", "follow-cache"} else WaitTimeout):
        wait(scene.settings, MemoryLog().reader(), "cache", lsn=Lsn(100), timeout_s=0.0)
    waiting_for_what_it_has_applied(scene, report)


def waiting_for_what_it_has_applied(scene: Scene, report: Report) -> None:
    """It succeeds if the follower is well, and only then: of other followers nobody knows what their stores still hold."""
    log = MemoryLog()
    writer = log.writer()
    writer.append(changes(ORDERS, [1]))
    writer.commit(Lsn(50), 0)
    told = status.read_follower(scene.folder / "run", "cache")
    if told is not None:
        status.write(scene.folder / "run", "follow-cache", replace(told, position=1))
    scene.capture(state="stopped", received_lsn=50, complete_position=0)  # it may be as it likes
    well = told is not None and report.followers[0].alive and (told.state, told.error) == ("following", None)
    if "follow-cache" in {stop.part for stop in report.stops}:
        with pytest.raises(Stopped):
            wait(scene.settings, log.reader(), "cache", lsn=Lsn(50), timeout_s=0.0)
    elif well:
        assert wait(scene.settings, log.reader(), "cache", lsn=Lsn(50), timeout_s=0.0).position == 1
    else:
        with pytest.raises(WaitTimeout, match="follower cache ") as late:
            wait(scene.settings, log.reader(), "cache", lsn=Lsn(50), timeout_s=0.0)
        assert "lags" not in str(late.value), "it has the position"


# --- every state of a part ------------------------------------------------------------------------------------------------


STATES = [
    *(("capture", state) for state in status.CAPTURE_STATES),
    *(("follow-cache", state) for state in status.FOLLOWER_STATES),
    *(("view-totals", state) for state in status.VIEW_STATES),
]


def named(part: str) -> str:
    """What the problems call it."""
    return part.removeprefix("follow-").removeprefix("view-")


@pytest.mark.parametrize("error", [None, "no route to host", "it is down → cdc doctor"])
@pytest.mark.parametrize(("part", "state"), STATES)
def test_a_part_that_lives(scene: Scene, part: str, state: str, error: str | None) -> None:
    scene.part(part, state=state, error=error)
    agree(scene, healthy=state in HEALTHY[part] and error is None, names=named(part))


@pytest.mark.parametrize("stop", [None, "DIVERGED"])
@pytest.mark.parametrize(("part", "state"), STATES)
def test_a_part_that_has_ended(scene: Scene, part: str, state: str, stop: str | None) -> None:
    """Whatever its last word was; a stop state that has been resumed since is none any more."""
    scene.part(part, pid=GONE, state=state, stop=stop)
    agree(scene, healthy=False, names="cdc run")


@pytest.mark.parametrize(("part", "state"), [(part, state) for part, state in STATES if state != "starting"])
def test_a_part_that_says_nothing_any_more(scene: Scene, part: str, state: str) -> None:
    scene.part(part, state=state, said_at=time.monotonic() - 2 * status.STALE_S)
    agree(scene, healthy=False, names="has reported nothing for")


@pytest.mark.parametrize(("part", "state"), STATES)
def test_a_part_that_is_stopped(scene: Scene, part: str, state: str) -> None:
    scene.part(part, pid=GONE, state=state, stop="DIVERGED")
    scene.stopped(part)
    report = agree(scene, healthy=False, names="cdc resume")
    assert len(report.problems) == 1, "said once"


@pytest.mark.parametrize("state", status.PROCESS_STATES)
@pytest.mark.parametrize("part", list(HEALTHY))
def test_a_child_of_the_daemon(scene: Scene, part: str, state: str) -> None:
    """What to do about a part that does not live depends on whether the daemon does."""
    scene.part(part, pid=GONE, state="exited", error="SourceError")
    scene.child(part, state, restarts=2)
    report = agree(scene, healthy=False, names=named(part))
    if state in ("starting", "running", "backing-off", "refused"):
        assert not any(line.endswith("→ cdc run") for line in report.problems), "it runs"


def test_parts_that_have_never_run(tmp_path: Path) -> None:
    agree(Scene(tmp_path, replace(SLOT, exists=False)), healthy=False, names="capture has never run")


def test_a_stop_state_of_a_store_that_is_configured_no_more(scene: Scene) -> None:
    scene.stopped("follow-search")
    agree(scene, healthy=False, names="follow-search stopped")


# --- what else can be wrong -----------------------------------------------------------------------------------------------


def test_the_source(scene: Scene) -> None:
    scene.facts = None
    agree(scene, healthy=False, names="the source is unreachable")


@pytest.mark.parametrize("active", [True, False])
@pytest.mark.parametrize("wal_status", ["reserved", "extended", "unreserved", "lost", None])
def test_the_slot(scene: Scene, wal_status: str | None, active: bool) -> None:
    scene.facts = replace(SLOT, wal_status=wal_status, reader=SlotReader(7) if active else None)
    agree(scene, healthy=wal_status in ("reserved", None), names="replication slot")


def test_a_slot_that_is_gone(scene: Scene) -> None:
    scene.facts = replace(SLOT, exists=False)
    agree(scene, healthy=False, names="does not exist")


def test_tables_that_are_left_out(scene: Scene) -> None:
    scene.capture(state="streaming", left_out=["table public.x\n! all is well\x1b[2J is not captured: it has no key → add one"])
    agree(scene, healthy=False, names="is not captured")


def test_changes_that_were_set_aside(scene: Scene) -> None:
    scene.follower(state="following", aside=[status.TableLetters("public.t", 6, 2, 1, 5.0)])
    agree(scene, healthy=False, names="set 3 changes aside")


# --- there are no other states --------------------------------------------------------------------------------------------


VIEW_ENDS = {"starting", "never started", "stopped", "exited"}
"""A view's process ends with the last two."""


def words(path: str, pattern: str) -> set[str]:
    return {word for line in re.findall(pattern, (ROOT / path).read_text()) for word in re.findall(r'"([a-z-]+)"', line)}


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (
            status.CAPTURE_STATES,
            lambda: (
                words("cdc/ingest/process.py", r"\.say\(.*|state, problem.* = .*")
                | words("cdc/ingest/meter.py", r"status\.state.* = .*")
            ),
        ),
        (status.FOLLOWER_STATES, lambda: words("cdc/follow/reporter.py", r"status\.state.* = .*") | {"starting", "never started"}),
        (status.VIEW_STATES, lambda: words("cdc/derive/reporter.py", r"(?:self\._|one\.)status\.state.* = .*") | VIEW_ENDS),
        (status.PROCESS_STATES, lambda: words("cdc/daemon/supervisor.py", r"status\.state.* = .*|Next\(.*") | {"starting"}),
    ],
    ids=["capture", "follower", "view", "process"],
)
def test_every_state_that_the_code_says_is_known(known: tuple[str, ...], said: Callable[[], set[str]]) -> None:
    assert said() <= {*known, "draining"}
    assert said() >= {*known} - {"snapshot"}


def test_the_page_has_a_tone_for_every_state() -> None:
    script = files("cdc.http.page").joinpath("page.js").read_text()
    tones = re.search(r"const TONES = \{(.*?)\};", script)
    assert tones is not None
    known = set(re.findall(r'"?([a-z ]+?)"?: "', tones[1]))
    assert {*status.CAPTURE_STATES, *status.FOLLOWER_STATES, *status.VIEW_STATES} <= {name.strip() for name in known}
