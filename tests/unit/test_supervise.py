"""What a child's end leads to, enumerated; and the supervisor over small real processes."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from cdc.daemon import supervisor as supervise
from cdc.daemon.configuration import Configuration
from cdc.daemon.supervisor import BACKOFF_S, REFUSED_RETRY_S, SETTLED_S, Child, Next, Supervisor, alone, next_step
from cdc.demo.configuration import toml
from cdc.derive.declarations import said_of_views
from cdc.errors import ConfigError, Stopped, StopState
from cdc.state import jsonfile, status, stops
from cdc.state.status import ProcessStatus
from sinks import options_model

SHORT, LONG = 1.0, SETTLED_S + 1


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for the supervisor's next look, or for the status that it writes, need not wait for seconds."""
    monkeypatch.setattr(supervise, "_TICK_S", 0.05)
    monkeypatch.setattr(supervise, "_STATUS_S", 0.2)


@pytest.mark.parametrize(
    ("code", "lived_s", "failures", "held", "then"),
    [
        (-9, SHORT, 0, False, Next("backing-off", BACKOFF_S[0], 1)),
        (1, SHORT, 1, False, Next("backing-off", BACKOFF_S[1], 2)),
        (0, SHORT, 0, False, Next("backing-off", BACKOFF_S[0], 1)),
        (-9, SHORT, 99, False, Next("backing-off", BACKOFF_S[-1], 100)),
        (-9, LONG, 99, False, Next("backing-off", BACKOFF_S[0], 1)),
        (2, SHORT, 3, False, Next("refused", REFUSED_RETRY_S, 0)),
        (4, SHORT, 3, True, Next("stopped", None, 0)),
        (4, SHORT, 0, False, Next("backing-off", BACKOFF_S[0], 1)),
        (-9, SHORT, 0, True, Next("backing-off", BACKOFF_S[0], 1)),
    ],
)
def test_every_end_has_its_next_step(code: int, lived_s: float, failures: int, held: bool, then: Next) -> None:
    assert next_step(code, lived_s, failures, held=held) == then


def child(program: str, name: str = "capture") -> Child:
    return Child(ProcessStatus(name), [sys.executable, "-c", program], frozenset({name}))


@contextmanager
def supervised(run_dir: Path, *children: Child) -> Iterator[None]:
    stop = threading.Event()
    thread = threading.Thread(target=Supervisor(run_dir, children).run, args=(stop,))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def seen(run_dir: Path) -> ProcessStatus:
    told = status.read_supervisor(run_dir)
    return told.processes[0] if told else ProcessStatus("none")


def test_a_full_disk_beneath_run_dir_ends_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default run_dir and the log share a disk, and a full one is waited for."""
    full, refusals, create = threading.Event(), [0], jsonfile.create

    def created(path: Path) -> int:
        if full.is_set():
            refusals[0] += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return create(path)

    monkeypatch.setattr(jsonfile, "create", created)
    with capture_logs() as said, supervised(tmp_path, child("import time; time.sleep(600)")):
        until(lambda: seen(tmp_path).state == "running")
        pid = seen(tmp_path).pid
        full.set()
        until(lambda: refusals[0] > 1)
        assert status.alive(pid)
        before = status.read_supervisor(tmp_path)
        full.clear()
        until(lambda: status.read_supervisor(tmp_path) != before)
        assert (seen(tmp_path).pid, seen(tmp_path).restarts) == (pid, 0)
        full.set()  # nor does it keep the service from ending
    assert not status.alive(pid)
    told = [line for line in said if "status" in line["event"]]
    assert [line["log_level"] for line in told] == ["warning"] * 2, "once each time"
    assert all("No space left on device" in line["problem"] and "free space" in line["problem"] for line in told)


def test_a_dead_child_is_restarted_and_a_running_one_drained(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    program = (
        f"import sys, time; open({str(marks)!r}, 'a').write('x'); time.sleep(0 if len(open({str(marks)!r}).read()) < 3 else 600)"
    )
    with supervised(tmp_path, child(program)):
        until(lambda: marks.exists() and marks.read_text() == "xxx")
        until(lambda: seen(tmp_path).state == "running" and seen(tmp_path).restarts == 2)
    last = status.read_supervisor(tmp_path)
    assert last is not None
    assert (last.state, last.processes[0].state, last.processes[0].exit_code) == ("exited", "exited", -15)


class Standing:
    """A clock that goes on only when it is set, but for a supervisor's own turns."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.turns = 0

    def monotonic(self) -> float:
        return self.now

    def wait(self, stop: threading.Event, seconds: float) -> bool:  # noqa: ARG002
        self.turns += 1
        return stop.wait(0.001)


def test_a_dead_child_rests_by_the_clock(tmp_path: Path) -> None:
    clock, stop = Standing(), threading.Event()
    dies = child("raise SystemExit(1)")
    thread = threading.Thread(target=Supervisor(tmp_path, [dies], clock=clock).run, args=(stop,))
    thread.start()
    try:
        for ended in (1, 2):
            until(lambda ended=ended: dies.status.restarts == ended)  # type: ignore[misc]
            turns = clock.turns
            until(lambda turns=turns: clock.turns > turns + 20)  # type: ignore[misc]
            assert (dies.process, dies.status.restarts) == (None, ended), "it rests as long as the clock stands"
            clock.now += BACKOFF_S[ended - 1]
        until(lambda: dies.status.restarts == 3)
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()


def test_a_child_that_does_not_drain_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise, "DRAIN_S", 0.2)
    ready = tmp_path / "ready"
    deaf = f"import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open({str(ready)!r}, 'w'); time.sleep(600)"
    with supervised(tmp_path, child(deaf)):
        until(ready.exists)
    assert seen(tmp_path).exit_code == -9


def test_a_stopped_child_waits_for_resume_while_the_other_runs_on(tmp_path: Path) -> None:
    stops.record(tmp_path, "capture", Stopped(StopState.SLOT_LOST, "gone"))
    other = child("import time; time.sleep(600)", "followers")
    with supervised(tmp_path, child("raise SystemExit(4)"), other):
        until(lambda: seen(tmp_path).state == "stopped")
        time.sleep(0.5)
        assert seen(tmp_path).restarts == 0
        stops.clear(tmp_path, "SLOT_LOST")
        until(lambda: seen(tmp_path).restarts > 0)
        told = status.read_supervisor(tmp_path)
        assert told is not None
        assert (told.processes[1].state, told.processes[1].restarts) == ("running", 0)


def test_one_store_is_resumed_while_the_process_of_all_ends(tmp_path: Path) -> None:
    """It ends because every store waits for an operator, and that takes it some seconds."""
    for store in ("one", "two"):
        stops.record(tmp_path, f"follow-{store}", Stopped(StopState.STORE_REFUSES, "full"))
    ready, gate = tmp_path / "ready", tmp_path / "gate"
    ends = f"import os, time; open({str(ready)!r}, 'w')\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\nraise SystemExit(4)"
    followers = Child(ProcessStatus("followers"), [sys.executable, "-c", ends], frozenset({"follow-one", "follow-two"}))
    with supervised(tmp_path, followers):
        until(ready.exists)
        stops.clear(tmp_path, "STORE_REFUSES:follow-one")
        before = status.read_supervisor(tmp_path)
        assert before is not None
        until(lambda: (now := status.read_supervisor(tmp_path)) is not None and now.updated_at > before.updated_at + 1)
        ready.unlink()
        gate.touch()
        until(ready.exists)


def test_a_part_is_resumed_as_soon_as_it_has_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two looks of the supervisor."""
    starts = tmp_path / "starts"
    program = f"open({str(starts)!r}, 'a').write('x'); raise SystemExit(4)"
    held, looks = Supervisor._stops, [0]

    def resumed_at_once(supervisor: Supervisor, child: Child) -> list[stops.Stop]:
        if child.process is not None and child.process.poll() is not None:
            looks[0] += 1
            if looks[0] == 2:  # it did so after the supervisor had looked for stops, and before it looked at the process
                stops.record(tmp_path, "capture", Stopped(StopState.SLOT_LOST, "gone"))
        elif looks[0] == 2:
            stops.clear(tmp_path, "SLOT_LOST")
        return held(supervisor, child)

    monkeypatch.setattr(Supervisor, "_stops", resumed_at_once)
    with supervised(tmp_path, child(program)):
        until(lambda: starts.exists() and len(starts.read_text()) > 1)


def test_a_process_that_cannot_be_made_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the machine has no process left to give: the others go on."""
    refusals: list[int] = []
    popen = subprocess.Popen

    def made(arguments: list[str], **options: Any) -> subprocess.Popen[bytes]:
        if "refused" in arguments and len(refusals) < 2:
            refusals.append(errno.EAGAIN)
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return popen(arguments, **options)

    monkeypatch.setattr(supervise.subprocess, "Popen", made)
    first = child("import time; time.sleep(600)")
    second = child("import time; time.sleep(600)", "followers")
    second.arguments = [*second.arguments, "refused"]
    with capture_logs() as said, supervised(tmp_path, first, second):
        until(lambda: len(refusals) == 2)
        until(lambda: (now := status.read_supervisor(tmp_path)) is not None and now.processes[1].state == "running")
        told = status.read_supervisor(tmp_path)
        assert told is not None
        assert [(one.state, one.restarts) for one in told.processes] == [("running", 0), ("running", 2)]
    assert "followers cannot be started: Resource temporarily unavailable; it is tried again in 0.2 s" in [
        line["event"] for line in said
    ]


ADOPTING = """
import ctypes, os, sys, threading, time
from pathlib import Path
from cdc.daemon import supervisor
from cdc.state.status import ProcessStatus

assert ctypes.CDLL(None).prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER: orphans come to us as to process 1
supervisor._is_first = lambda: True
orphans = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); raise SystemExit(1)"
child = supervisor.Child(ProcessStatus("capture"), [sys.executable, "-c", orphans], frozenset({"capture"}))

def dead():
    facts = [path.read_text().rpartition(")")[2].split()[:2] for path in Path("/proc").glob("[0-9]*/stat") if path.exists()]
    return sum(state == "Z" and int(parent) == os.getpid() for state, parent in facts)

stop = threading.Event()
thread = threading.Thread(target=supervisor.Supervisor(Path(sys.argv[1]), [child]).run, args=(stop,))
thread.start()
deadline = time.monotonic() + 60
while (child.status.restarts < 3 or dead()) and time.monotonic() < deadline:
    time.sleep(0.05)
print(child.status.restarts >= 3, child.status.exit_code, dead())
stop.set()
thread.join()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="process 1 of a container, and /proc")
def test_as_the_first_process_of_a_container_it_leaves_no_dead_ones(tmp_path: Path) -> None:
    """They would take the place of others: a container may have so many processes, and each restart leaves some."""
    said = subprocess.run([sys.executable, "-c", ADOPTING, str(tmp_path)], capture_output=True, text=True, timeout=120, check=True)
    assert "\nTrue 1 0\n" in said.stdout


def test_a_running_child_sees_to_a_resumed_part_by_itself(tmp_path: Path) -> None:
    """The other stores that it follows go on undisturbed."""
    stops.record(tmp_path, "capture", Stopped(StopState.STORE_REFUSES, "one of several"))
    with supervised(tmp_path, child("import time; time.sleep(600)")):
        until(lambda: seen(tmp_path).state == "running")
        first = seen(tmp_path).pid
        stops.clear(tmp_path, "STORE_REFUSES")
        before = status.read_supervisor(tmp_path)
        assert before is not None
        until(lambda: (now := status.read_supervisor(tmp_path)) is not None and now.updated_at > before.updated_at + 2)
        assert (seen(tmp_path).pid, seen(tmp_path).restarts) == (first, 0)


def test_one_supervisor_for_a_folder(tmp_path: Path) -> None:
    with alone(tmp_path), pytest.raises(ConfigError, match=f"another cdc run .pid {os.getpid()}. works in"), alone(tmp_path):
        pass
    with alone(tmp_path):
        pass


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_another_supervisor_is_refused_until_it_has_ended(tmp_path: Path, number: signal.Signals) -> None:
    """Whatever its pid: the other may be of another container."""
    program = f"from cdc.daemon.supervisor import alone\nfrom pathlib import Path\nimport time\nwith alone(Path({str(tmp_path)!r})): print('ready', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "ready\n"
            status.write(tmp_path, "supervisor", status.SupervisorStatus(pid=os.getpid()))
            with pytest.raises(ConfigError, match=f"another cdc run .pid {other.pid}. works in"), alone(tmp_path):
                pass
        finally:
            other.send_signal(number)
    with alone(tmp_path):
        pass


def test_a_pid_that_came_around_refuses_nobody(tmp_path: Path) -> None:
    """Such as that of somebody who reads the log of a daemon that was killed."""
    reader = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "/var/log/cdc.log"])
    try:
        status.write(tmp_path, "supervisor", status.SupervisorStatus(pid=reader.pid))
        with alone(tmp_path):
            pass
    finally:
        reader.kill()
        reader.wait()


@pytest.mark.parametrize(
    ("code", "held", "words"),
    [
        (-9, frozenset(), "followers was ended by SIGKILL after 12 s and starts again in 0.2 s"),
        (1, frozenset(), "followers ended with exit code 1 after 12 s and starts again in 0.2 s"),
        (2, frozenset(), "followers cannot start (the line above says why) and tries again in 30 s → cdc doctor"),
        (
            4,
            frozenset({"STORE_REFUSES:follow-cache"}),
            "followers is stopped until it is resumed → cdc resume STORE_REFUSES:follow-cache",
        ),
    ],
)
def test_the_log_says_how_a_child_ended_and_what_comes_next(code: int, held: frozenset[str], words: str) -> None:
    step = next_step(code, 12.0, 0, held=bool(held))
    assert supervise.in_words("followers", code, 12.0, step, held) == words


def configured(folder: Path, *stores: str) -> Path:
    sections = {f"stores.{name}": {"kind": "console"} for name in stores}
    aside = folder / "cdc.new"
    aside.write_text(toml({"": {"run_dir": "."}, "source": {"dsn": "host=127.0.0.1 dbname=d"}, **sections}))
    return aside.replace(folder / "cdc.toml")


def test_the_followers_process_comes_and_goes_with_the_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is left alone while it has any: it takes the change in by itself."""
    monkeypatch.setattr("cdc.daemon.configuration.LOOK_S", 0.05)
    stops.record(tmp_path, "follow-former", Stopped(StopState.STORE_REFUSES, "of a store that was taken out meanwhile"))
    configuration = Configuration(configured(tmp_path), options_model)
    program = "import os, time; os.fstat(int(os.environ['HEADWATER_CONFIGURATION'])); time.sleep(600)"
    supervisor = Supervisor(tmp_path, [child(program)], configuration=configuration, followers=lambda: child(program, "followers"))

    def processes() -> dict[str, ProcessStatus]:
        told = status.read_supervisor(tmp_path)
        return {process.name: process for process in told.processes} if told is not None else {}

    stop = threading.Event()
    thread = threading.Thread(target=supervisor.run, args=(stop,))
    thread.start()
    try:
        until(lambda: processes().keys() == {"capture"} and processes()["capture"].state == "running")
        assert stops.held(tmp_path) == []
        capture = processes()["capture"].pid
        configured(tmp_path, "one")
        until(lambda: "followers" in processes() and processes()["followers"].state == "running")
        followers = processes()["followers"].pid
        configured(tmp_path, "one", "two")
        until(lambda: list(configuration.settings.stores) == ["one", "two"])
        configured(tmp_path, "one", "two", "NO NAME")
        until(lambda: bool((told := status.read_supervisor(tmp_path)) and told.problems))
        assert processes()["followers"].pid == followers
        configured(tmp_path)
        until(lambda: processes().keys() == {"capture"})
        assert (processes()["capture"].pid, processes()["capture"].restarts) == (capture, 0)
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()


def test_a_views_process_comes_goes_and_starts_again_with_what_is_said_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are left alone."""
    monkeypatch.setattr("cdc.daemon.configuration.LOOK_S", 0.05)

    def written(**views: str) -> Path:
        sections = {f"views.{name}": {"sql": sql, "key": ["id"]} for name, sql in views.items()}
        aside = tmp_path / "cdc.new"
        aside.write_text(toml({"": {"run_dir": "."}, "source": {"dsn": "host=127.0.0.1 dbname=d"}, **sections}))
        return aside.replace(tmp_path / "cdc.toml")

    configuration = Configuration(written(a="select id from t", b="select id from t"), options_model, views_said=said_of_views)
    begun: list[str] = []

    def view(name: str) -> Child:
        begun.append(name)
        return child("import time; time.sleep(600)", f"view-{name}")

    supervisor = Supervisor(tmp_path, [view("a"), view("b")], configuration=configuration, view=view)

    def processes() -> dict[str, int]:
        told = status.read_supervisor(tmp_path)
        return {one.name: one.pid for one in told.processes if one.state == "running"} if told is not None else {}

    stop = threading.Event()
    thread = threading.Thread(target=supervisor.run, args=(stop,))
    thread.start()
    try:
        until(lambda: processes().keys() == {"view-a", "view-b"})
        first = processes()
        written(a="select id, x from t", b="select id from t", c="select id from t")
        until(lambda: processes().keys() == {"view-a", "view-b", "view-c"} and processes()["view-a"] != first["view-a"])
        assert processes()["view-b"] == first["view-b"]
        stops.record(tmp_path, "view-a", Stopped(StopState.VIEW_REFUSED, "as it was defined"))
        written(b="select id from t")
        until(lambda: processes() == {"view-b": first["view-b"]})
        until(lambda: not stops.held(tmp_path))
        written(b="select id from t", a="select id from t")
        until(lambda: processes().keys() == {"view-a", "view-b"})
        assert begun == ["a", "b", "c", "a"]
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()


def test_a_views_process_that_does_not_end_holds_up_its_new_definition_for_a_while_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as one in a function of Python that never returns, and lets nothing else run."""
    monkeypatch.setattr("cdc.daemon.configuration.LOOK_S", 0.05)
    monkeypatch.setattr(supervise, "DRAIN_S", 0.2)
    file, ready = tmp_path / "cdc.toml", tmp_path / "ready"

    def written(sql: str) -> Path:
        aside = tmp_path / "cdc.new"
        aside.write_text(
            toml({"": {"run_dir": "."}, "source": {"dsn": "host=127.0.0.1 dbname=d"}, "views.a": {"sql": sql, "key": ["id"]}})
        )
        return aside.replace(file)

    configuration = Configuration(written("select id from t"), options_model, views_said=said_of_views)
    deaf = (
        f"import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open({str(ready)!r}, 'a').write('x'); time.sleep(600)"
    )
    supervisor = Supervisor(tmp_path, [child(deaf, "view-a")], configuration=configuration)
    stop = threading.Event()
    thread = threading.Thread(target=supervisor.run, args=(stop,))
    thread.start()
    try:
        until(ready.exists)
        written("select id, x from t")
        until(lambda: ready.read_text() == "xx")
        assert (seen(tmp_path).exit_code, seen(tmp_path).restarts) == (-9, 0), (
            "it did not fail, and whoever watches for that hears nothing"
        )
    finally:
        stop.set()
        thread.join(60)
    assert not thread.is_alive()
