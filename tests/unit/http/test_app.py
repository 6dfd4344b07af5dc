"""The HTTP port's answers, with reports made by hand."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import structlog
from starlette.testclient import TestClient

from cdc.client import wait as waiting
from cdc.client.wait import Waited
from cdc.commands.logsetup import configure_logs
from cdc.errors import HeadwaterError, LogCorrupt, SourceError, Stopped, StopState, WaitTimeout
from cdc.http import app as port
from cdc.http import events
from cdc.http.events import PERIOD_S, Feed
from cdc.http.serve import serving
from cdc.http.waits import LOOK_S, SOURCE_CONNECTIONS, wait_while_asked
from cdc.log.memory import MemoryLog
from cdc.model.position import Lsn, Position
from cdc.report.shape import Report
from cdc.settings.models import Http, Settings, StoreOptions
from tests.unit.http import reports

Wait = Callable[[str, Lsn | None, float], Waited]


def settings(folder: Path, **http: object) -> Settings:
    return Settings(
        source={"dsn": "postgresql://nobody@127.0.0.1:1/none"},
        log={"dir": folder / "log"},
        run_dir=folder / "run",
        stores={"cache": StoreOptions(kind="memory")},
        http=Http(**http),  # type: ignore[arg-type]
    )  # type: ignore[arg-type]


@pytest.fixture
def client(tmp_path: Path) -> Callable[..., TestClient]:
    def made(take: Callable[[], Report] = reports.healthy, wait: Wait | None = None, **http: object) -> TestClient:
        return TestClient(port.make_app(settings(tmp_path, **http), take=take, wait=wait), base_url="http://127.0.0.1:8642")

    return made


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The feed's next report is made within a moment, be it seen or not."""
    monkeypatch.setattr(events, "PERIOD_S", 0.1)
    monkeypatch.setattr(events, "UNSEEN_PERIOD_S", 0.2)


def test_the_page_and_its_parts_come_from_here_alone(client: Callable[..., TestClient]) -> None:
    with client() as asked:
        page = asked.get("/")
        assert page.status_code == 200
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert page.headers["x-content-type-options"] == "nosniff"
        for name in ("page.css", "page.js", "parts.js", "words.js", "draw.js", "stream.js", "icon.svg"):
            assert name in page.text or name in asked.get("/page.js").text
            part = asked.get(f"/{name}")
            assert part.status_code == 200
            assert "http://" not in part.text.replace("http://www.w3.org/", "")
            assert "https://" not in part.text
        again = asked.get("/", headers={"If-None-Match": page.headers["etag"]})
        assert again.status_code == 304
        assert asked.get("/nothing").status_code == 404
        assert asked.post("/v1/status").status_code == 405


def test_status_is_the_report(client: Callable[..., TestClient]) -> None:
    report = reports.healthy()
    with client(lambda: report) as asked:
        answer = asked.get("/v1/status")
        assert answer.json() == json.loads(json.dumps(report.to_json()))
        assert answer.headers["cache-control"] == "no-store"


def test_many_askers_share_one_look(client: Callable[..., TestClient]) -> None:
    taken = []

    def take() -> Report:
        taken.append(time.monotonic())
        return reports.healthy()

    began = time.monotonic()
    with client(take) as asked:
        for _ in range(30):
            asked.get("/v1/status")
    # One each half of a period at most, asked for or not, and one at either end.
    assert len(taken) <= 2 * (time.monotonic() - began) / PERIOD_S + 2


@pytest.mark.usefixtures("_soon")
def test_a_log_that_cannot_be_read_is_said(client: Callable[..., TestClient]) -> None:
    def take() -> Report:
        raise LogCorrupt("timeline: damage at byte 77")

    with client(take) as asked:
        for path in ("/v1/status", "/metrics"):
            answer = asked.get(path)
            assert answer.status_code == 503
            assert answer.json() == {"error": "LOG_CORRUPT: timeline: damage at byte 77", "hint": "cdc resume LOG_CORRUPT"}
        assert asked.get("/readyz").json()["reasons"] == ["LOG_CORRUPT: timeline: damage at byte 77"]
        assert asked.get("/healthz").status_code == 200
        assert "event: failure" in first_events(asked, 3)[2]


@pytest.mark.parametrize(
    ("report", "reasons"),
    [
        (reports.healthy(), []),
        (reports.snapshotting(), []),
        (reports.store_down(), list(reports.store_down().problems)),
        (reports.stopped(), list(reports.stopped().problems)),
    ],
)
def test_ready(client: Callable[..., TestClient], report: Report, reasons: list[str]) -> None:
    with client(lambda: report) as asked:
        answer = asked.get("/readyz")
        assert answer.json() == ({"ready": True} if not reasons else {"ready": False, "reasons": reasons})
        assert answer.status_code == (503 if reasons else 200)


def test_metrics_in_both_formats(client: Callable[..., TestClient]) -> None:
    with client() as asked:
        plain = asked.get("/metrics")
        assert plain.headers["content-type"].startswith("text/plain")
        assert 'headwater_store_lag_seconds{store="warehouse"} 3.6' in plain.text
        newer = asked.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
        assert newer.headers["content-type"].startswith("application/openmetrics-text")
        assert newer.text.endswith("# EOF\n")


@pytest.mark.usefixtures("_soon")
def test_an_unforeseen_error_ends_neither_the_feed_nor_an_answer(
    client: Callable[..., TestClient], capsys: pytest.CaptureFixture[str]
) -> None:
    fails = [True]

    def take() -> Report:
        if fails[0]:
            raise ValueError("canary-row-value")
        return reports.healthy()

    configure_logs()
    try:
        with client(take) as asked:
            answer = asked.get("/v1/status")
            assert answer.status_code == 503
            assert answer.json()["error"] == "the report cannot be made: unexpected ValueError"
            assert asked.get("/readyz").status_code == 503
            assert "event: failure" in first_events(asked, 3)[2]
            fails[0] = False
            deadline = time.monotonic() + 60
            while asked.get("/v1/status").status_code != 200:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert asked.get("/readyz").status_code == 200
    finally:
        structlog.reset_defaults()
    said = capsys.readouterr().err
    assert "canary" not in said
    assert said.count("the report cannot be made") == 1


@pytest.mark.usefixtures("_soon")
def test_the_feed_goes_on_by_itself_after_an_unforeseen_error() -> None:
    async def scene() -> None:
        asked: list[int] = []

        def take() -> Report:
            asked.append(1)
            if len(asked) == 1:
                raise TypeError("canary-row-value")
            return reports.healthy()

        feed = Feed(take)
        running = asyncio.create_task(feed.run())
        while len(asked) < 2 and not running.done():
            await asyncio.sleep(0.01)
        assert not running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scene())


def first_events(asked: TestClient, number: int) -> list[str]:
    """The stream runs until the reader goes; the test client reads whole answers, so the feed is ended once there were some reports."""
    ending = threading.Thread(target=end_after_two_reports, args=(asked.app.state.feed,))  # type: ignore[attr-defined]
    ending.start()
    try:
        return asked.get("/v1/events").text.split("\n\n")[:number]
    finally:
        ending.join()


def end_after_two_reports(feed: Feed) -> None:
    while not feed.readers.count:
        time.sleep(0.01)
    seen = feed._version
    while feed._version < seen + 2:
        time.sleep(0.01)
    feed.end()


@pytest.mark.usefixtures("_soon")
def test_events(client: Callable[..., TestClient]) -> None:
    with client() as asked:
        history, past, status = first_events(asked, 3)
    assert history.startswith("event: history\ndata: [")
    sample = json.loads(history.partition("data: ")[2])[-1]
    assert sample["stores"]["warehouse"] == {"written": 1_480_273, "lag_s": 3.6, "lag_changes": 1_840}
    assert past.startswith("event: past\n")
    assert json.loads(past.partition("data: ")[2])["minutes"][-1]["stores"]["warehouse"] == [0, 3.6]
    assert status.startswith("event: status\n")
    assert json.loads(status.partition("data: ")[2])["log"]["position"] == 1_482_113


def waited(store: str, lsn: Lsn | None, timeout_s: float, gone: threading.Event) -> Waited:  # noqa: ARG001
    assert (store, timeout_s) == ("cache", 7.5)
    return Waited(store, lsn or Lsn(1), Position(99), 0.25)


def test_wait(client: Callable[..., TestClient]) -> None:
    with client(wait=waited) as asked:
        answer = asked.get("/v1/wait?store=cache&lsn=16/B374D848&timeout=7.5")
        assert answer.status_code == 200
        assert answer.json() == {"reached": True, "store": "cache", "lsn": "16/B374D848", "position": 99, "seconds": 0.25}
        assert asked.get("/v1/wait?store=cache&timeout=7.5").json()["lsn"] == "0/1"


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("", 400),
        ("store=", 400),
        ("store=cache&lsn=nonsense", 400),
        ("store=cache&lsn=", 400),
        ("store=cache&timeout=nan", 400),
        ("store=cache&timeout=-1", 400),
        ("store=cache&timeout=301", 400),
        ("store=cache&timeout=soon", 400),
        ("store=cache&lns=0/1", 400),
        ("store=nothing", 404),
    ],
)
def test_bad_input(client: Callable[..., TestClient], query: str, status: int) -> None:
    with client(wait=waited) as asked:
        answer = asked.get(f"/v1/wait?{query}")
        assert answer.status_code == status
        assert answer.json()["reached"] is False
        assert answer.json()["error"]


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (WaitTimeout("cache does not show 0/1", hint="cdc status"), 504),
        (Stopped(StopState.SLOT_LOST, "gone"), 409),
        (SourceError("the source does not answer"), 503),
        (HeadwaterError("run/stops/x.json is not a record of a stop state", hint="remove it"), 503),
    ],
)
def test_what_ends_a_wait(client: Callable[..., TestClient], error: Exception, status: int) -> None:
    def wait(store: str, lsn: Lsn | None, timeout_s: float, gone: threading.Event) -> Waited:  # noqa: ARG001
        raise error

    with client(wait=wait) as asked:
        answer = asked.get("/v1/wait?store=cache")
        assert (answer.status_code, answer.json()["error"]) == (status, str(error))


@contextmanager
def parked(number: int, asked: TestClient, release: threading.Event) -> Iterator[None]:
    threads = [threading.Thread(target=asked.get, args=("/v1/wait?store=cache",)) for _ in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        release.set()
        for thread in threads:
            thread.join()


def test_waiting_takes_no_more_than_its_share(client: Callable[..., TestClient]) -> None:
    """Thirty-two wait; one more is told to come again, and status answers all the same."""
    release, arrived = threading.Event(), threading.Semaphore(0)

    def wait(store: str, lsn: Lsn | None, timeout_s: float, gone: threading.Event) -> Waited:  # noqa: ARG001
        arrived.release()
        release.wait(240)
        return Waited(store, Lsn(1), Position(1), 0.0)

    with client(wait=wait) as asked, parked(port.MAX_WAITERS, asked, release):
        for _ in range(port.MAX_WAITERS):
            assert arrived.acquire(timeout=60)
        assert asked.get("/v1/status").status_code == 200
        refused = asked.get("/v1/wait?store=cache")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")


def test_a_token_opens_the_facts(client: Callable[..., TestClient]) -> None:
    token = "0123456789abcdef"
    with client(token=token) as asked:
        assert asked.get("/").status_code == 200
        refused = asked.get("/v1/status")
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert asked.get("/v1/status", headers={"Authorization": f"Bearer {token}"}).status_code == 200


def test_a_wait_ends_with_the_daemon(tmp_path: Path) -> None:
    """At once, and with an answer: what else keeps it from ending is nothing that a program should wait for."""
    begun = threading.Event()

    def wait(store: str, lsn: Lsn | None, timeout_s: float, gone: threading.Event) -> Waited:
        begun.set()
        assert gone.wait(60)
        raise WaitTimeout(f"{store} does not show {lsn} after {timeout_s} s")

    chosen = settings(tmp_path, listen="127.0.0.1:0")
    with ThreadPoolExecutor(1) as asking:
        with serving(chosen, port.make_app(chosen, take=reports.healthy, wait=wait)) as url:
            answer = asking.submit(httpx.get, f"{url}/v1/wait?store=cache", timeout=60)
            assert begun.wait(60)
        told = answer.result()
    assert told.status_code == 503
    assert told.json() == {"reached": False, "error": "this daemon is ending", "hint": None}
    assert told.headers["retry-after"] == "5"


def test_a_wait_whose_client_has_gone_ends_at_its_next_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = threading.Event()
    looks: list[float] = []

    def looked(*_: object, timeout_s: float, **__: object) -> Waited:
        looks.append(timeout_s)
        if len(looks) == 3:
            gone.set()
        assert len(looks) < 10, "it goes on"
        raise WaitTimeout("cache does not show 0/1 after 0.5 s: it waits", hint="cdc status")

    monkeypatch.setattr(waiting, "wait", looked)
    with pytest.raises(WaitTimeout, match="after 300 s: it waits"):
        wait_while_asked(settings(tmp_path), MemoryLog().reader(), "cache", Lsn(1), 300, gone)
    assert looks == [LOOK_S] * 3


def test_few_waits_ask_the_source_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Capture connects again with what the role has left of its connections."""
    release, arrived, gone = threading.Event(), threading.Semaphore(0), threading.Event()
    lock, under_way, most = threading.Lock(), [0], [0]

    def asked(_: str) -> Lsn:
        with lock:
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
        arrived.release()
        release.wait(120)
        with lock:
            under_way[0] -= 1
        return Lsn(1)

    def shown(*_: object, **__: object) -> Waited:
        return Waited("cache", Lsn(1), Position(1), 0.0)

    monkeypatch.setattr(waiting, "current_lsn", asked)
    monkeypatch.setattr(waiting, "wait", shown)

    def wait(timeout_s: float, lsn: Lsn | None = None) -> Waited:
        return wait_while_asked(settings(tmp_path), MemoryLog().reader(), "cache", lsn, timeout_s, gone)

    with ThreadPoolExecutor(3 * SOURCE_CONNECTIONS) as waiters:
        try:
            waits = [waiters.submit(wait, 300) for _ in range(3 * SOURCE_CONNECTIONS)]
            for _ in range(SOURCE_CONNECTIONS):
                assert arrived.acquire(timeout=60)
            with pytest.raises(WaitTimeout, match="the source is being asked for 4 others"):
                wait(0)
            assert wait(0, Lsn(1)).lsn == 1, "who names an LSN needs no connection"
        finally:
            release.set()
        assert [one.result().lsn for one in waits] == [1] * len(waits)
    assert most == [SOURCE_CONNECTIONS]
    assert wait(0).lsn == 1, "each gives its turn back"
