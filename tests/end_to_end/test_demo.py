"""The demo's parts: the year in time order, its first load, the traffic's rate and exactness. The whole demo is `make demo`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import tomllib
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import psycopg
import pyarrow as pa
import pytest

from cdc.demo import board, daemon, departures, firstload, kernels, show, tour, traffic, verdict
from cdc.demo.__main__ import main
from cdc.demo.daemon import Daemon
from cdc.demo.flights import Airport, FlightEvent, load
from cdc.demo.milestones import Milestones
from cdc.demo.stage import EVENT_STORES, STORES, set_up
from cdc.errors import WaitTimeout
from cdc.settings.file import load as load_settings
from cdc.state.status import read_follower
from sinks import options_model
from tests.conftest import Database
from tests.waiting import until


@pytest.fixture(scope="module")
def data() -> Airport:
    return load()


@pytest.fixture(scope="module")
def small(data: Airport) -> Airport:
    """Every 40th flight: the same year, quicker to load."""
    flights = data.flights
    thin = flights.at(slice(None, None, 40))
    return Airport(data.airlines, data.airports, data.planes, data.weather.slice(0, 500), thin)


# The year


def test_every_flight_of_the_package_is_there_once_and_lands_after_it_left(data: Airport) -> None:
    flights = data.flights
    assert len(flights) == 336_776
    assert (np.diff(flights.plan.scheduled_departure) >= np.timedelta64(0)).all()
    assert (flights.plan.scheduled_arrival > flights.plan.scheduled_departure).all()
    landed = ~np.isnat(flights.course.landed_at)
    assert (flights.course.landed_at[landed] > flights.course.departed_at[landed]).all()
    assert landed.sum() == 336_776 - 9_430  # the package's flights without an arrival delay


def test_times_are_utc_from_the_airports_zones(data: Airport) -> None:
    flights = data.flights
    # UA 1545 EWR → IAH on 1 January: leaves 5:15 in New York (UTC-5), due 8:19 in Houston (UTC-6).
    at = int(np.flatnonzero((flights.plan.number == 1545) & (flights.plan.day == np.datetime64("2013-01-01")))[0])
    assert flights.plan.scheduled_departure[at] == np.datetime64("2013-01-01T10:15")
    assert flights.plan.scheduled_arrival[at] == np.datetime64("2013-01-01T14:19")
    assert flights.course.departed_at[at] == np.datetime64("2013-01-01T10:17")
    assert flights.course.landed_at[at] == np.datetime64("2013-01-01T14:30")


def test_what_happens_is_in_time_order_and_each_flights_life_makes_sense(data: Airport) -> None:
    seen = data.flights.happenings
    assert (np.diff(seen.at) >= np.timedelta64(0)).all()
    lives: dict[tuple[int, ...], int] = {}
    order = np.argsort(seen.flight, kind="stable")
    kinds = np.split(seen.kind[order], np.flatnonzero(np.diff(seen.flight[order])) + 1)
    for life in kinds:
        lives[tuple(life.tolist())] = lives.get(tuple(life.tolist()), 0) + 1
    assert set(lives) == {
        (FlightEvent.SCHEDULED, FlightEvent.DEPARTED, FlightEvent.LANDED),
        (FlightEvent.SCHEDULED, FlightEvent.DEPARTED, FlightEvent.DIVERTED),
        (FlightEvent.SCHEDULED, FlightEvent.CANCELLED),
    }
    assert lives[(FlightEvent.SCHEDULED, FlightEvent.CANCELLED)] == 8_255
    assert sum(lives.values()) == len(data.flights)


# The traffic


def test_the_rate_is_followed_and_a_backlog_comes_in_bounded_transactions() -> None:
    assert traffic.due(300, 1.0, 0) == 300
    assert traffic.due(300, 1.0, 300) == 0
    assert traffic.due(300, 1.0, 400) == 0
    assert traffic.due(0, 100.0, 0) == 0
    assert traffic.due(1_000_000, 60.0, 0) == traffic.MOST_PER_TRANSACTION


def test_steps_of_any_size_are_the_same_year(small: Airport, seed: int) -> None:
    random = np.random.default_rng(seed)
    total = len(small.flights.happenings)

    def final(cuts: list[int]) -> dict[int, str]:
        rows: dict[int, str] = {}
        for after, upto in pairwise(cuts):
            for step in traffic.steps(small.flights, after, upto - after):
                _apply(rows, step)
        return rows

    whole = final([0, total])
    cuts = sorted({0, total, *random.integers(0, total, 50).tolist()})
    assert final(cuts) == whole
    expected = firstload.flights_after(small.flights, total)
    assert whole == dict(zip(expected["id"].to_pylist(), expected["status"].to_pylist(), strict=True))


def test_the_next_lap_is_the_same_year_with_other_keys(small: Airport) -> None:
    total = len(small.flights.happenings)
    first = [row for step in traffic.steps(small.flights, 0, total) if step.kind == FlightEvent.SCHEDULED for row in step.rows]
    second = [row for step in traffic.steps(small.flights, total, total) if step.kind == FlightEvent.SCHEDULED for row in step.rows]
    assert [row[0] + traffic.LAP_IDS for row in first] == [row[0] for row in second]
    natural = [(row[1], row[2], row[3], row[5]) for row in first + second]
    assert len(set(natural)) == len(natural)
    assert all(later[1] - earlier[1] == traffic.LAP.astype(object) for earlier, later in zip(first, second, strict=True))


def _apply(rows: dict[int, str], step: traffic.TrafficStep) -> None:
    """What Postgres would do with a step: strict, so that an update of a flight that is not there is seen."""
    for row in step.rows:
        flight = row[0] if step.kind == FlightEvent.SCHEDULED else row[-1]
        assert (flight in rows) == (step.kind != FlightEvent.SCHEDULED)
        if step.kind == FlightEvent.CANCELLED:
            del rows[flight]
        else:
            rows[flight] = step.kind.name.lower()


def test_traffic_on_a_real_server_goes_on_exactly_where_it_was_stopped(postgres: Database, small: Airport) -> None:
    connection = postgres.connect()
    assert not firstload.is_loaded(connection)
    assert firstload.load(connection, small) == connection.execute("select count(*) from flights").fetchone()[0]  # type: ignore[index]
    assert firstload.is_loaded(connection)
    for _ in range(2):
        running = traffic.Traffic(postgres.dsn, small.flights, rate=500)
        running.start()
        while running.sent < 200 and running.is_alive():
            running.join(0.05)
        running.end()
        running.check()
    done = connection.execute("select done from demo.progress").fetchone()[0]  # type: ignore[index]
    assert small.flights.happenings.before(firstload.BEGINS) < done < len(small.flights.happenings)
    assert _table(connection) == _expected(firstload.flights_after(small.flights, done))


def test_traffic_that_cannot_go_on_says_so(postgres: Database, small: Airport) -> None:
    running = traffic.Traffic(postgres.dsn, small.flights, rate=10)
    running.start()
    running.join(120)
    with pytest.raises(psycopg.errors.UndefinedTable):
        running.check()


def _table(connection: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    return connection.execute("select * from flights order by id").fetchall()


def _expected(table: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in table.sort_by("id").to_pylist()]


# What is around it


def test_the_hot_loops_are_compiled_by_processes_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part in kernels.PARTS:
        subprocess.run([sys.executable, "-m", "cdc.demo.kernels", part], check=True)
    monkeypatch.setattr(kernels, "PARTS", {"one that does not exist": None})
    compiling = kernels.Compiling()
    compiling.start(tmp_path / "log")
    compiling.wait()  # one that fails stops nobody
    compiling.stop()
    assert "KeyError" in (tmp_path / "log").read_text()


def test_the_stage_starts_in_a_second_and_keeps_what_it_had(opensearch: object, server_folder: Path) -> None:  # noqa: ARG001 (its worker)
    said: list[str] = []
    folder = server_folder / "demo"
    folder.mkdir(mode=0o755)
    here = set_up(folder, fresh=False, say=said.append)
    try:
        assert said[0].startswith(f"status page: {here.page}"), "what everybody waits for comes before anything is started"
        assert here.first
        with psycopg.connect(here.dsn, autocommit=True) as connection:
            connection.execute("create table kept (a int)")
        here.write_configuration()
        configuration = tomllib.loads(here.configuration.read_text())
        assert configuration["source"]["dsn"] == here.dsn
        assert folder.stat().st_mode & 0o077 == 0, "what the servers hold is nobody else's to read"
        assert {*configuration["stores"]} == {*STORES, *EVENT_STORES, "departures"}
        assert {*load_settings(here.configuration, options_model).stores} == {*STORES, *EVENT_STORES, "departures"}
        assert here.configuration.stat().st_mode & 0o077 == 0, "a secret stands in it"
        with pytest.raises(Exception, match="another demo runs"):
            set_up(folder, fresh=False, say=said.append)
        text = show.welcome(here, "python", "http://127.0.0.1:1/")
        assert here.page in text
        assert "http://127.0.0.1:1/" in text
        assert here.opensearch.url in text
        assert here.valkey.url in text
        assert all(store in text for store in EVENT_STORES)
    finally:
        here.stop()
    again = set_up(folder, fresh=False, say=said.append)
    try:
        assert not again.first
        with psycopg.connect(again.dsn) as connection:
            assert connection.execute("select to_regclass('kept') is not null").fetchone() == (True,)
    finally:
        again.stop()
    fresh = set_up(folder, fresh=True, say=said.append)
    try:
        with psycopg.connect(fresh.dsn) as connection:
            assert connection.execute("select to_regclass('kept') is not null").fetchone() == (False,)
    finally:
        fresh.stop()


class Onlooker(threading.Thread):
    """Follows the stores' status files: how many rows each has written, moment by moment."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__()
        self._run_dir = run_dir
        self._halt = threading.Event()
        self.moments: set[tuple[int, ...]] = set()

    def run(self) -> None:
        while not self._halt.wait(0.01):
            told = [read_follower(self._run_dir, store) for store in STORES]
            self.moments.add(tuple(0 if one is None else one.written for one in told))

    def end(self) -> None:
        self._halt.set()
        self.join()


@pytest.mark.timeout(1200)
def test_the_whole_demo_shows_its_page_first_and_every_stores_rows_while_it_loads(
    data: Airport,
    opensearch: object,  # noqa: ARG001 (its worker)
    server_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """At toy size: every fourth flight, and a second of traffic."""
    flights = data.flights
    thin = flights.at(slice(None, None, 4))
    monkeypatch.setattr("cdc.demo.flights.load", lambda: replace(data, flights=thin))
    folder = server_folder / "whole-demo"
    onlooker = Onlooker(folder / "run")
    before = signal.getsignal(signal.SIGTERM)
    onlooker.start()
    try:
        exit_code = main(["--seconds", "1", "--rate", "20", "--json", "--folder", str(folder)])
    finally:
        onlooker.end()
        signal.signal(signal.SIGTERM, before)
    said = capsys.readouterr()
    assert exit_code == 0, said.err
    lines = [line.partition(" s  ")[2] for line in said.err.splitlines() if " s  " in line]
    assert lines[0].startswith("status page: http://127.0.0.1:")
    order = ["status page: ", "Postgres ", "loaded ", "cdc run captures", "traffic stopped", "every store has everything"]
    at = [next(number for number, line in enumerate(lines) if line.startswith(begin)) for begin in order]
    assert at == sorted(at)
    result = json.loads(said.out.splitlines()[-1])
    assert result["page_s"] > 0
    assert set(result["views"]) == {"delays", "plane_days"}
    assert verdict.all_as_asked(result["views"])
    assert all(result["stores"][store]["first_rows_s"] > 0 for store in STORES)
    rows = [sum(table["store_rows"] for table in result["stores"][store]["tables"].values()) for store in STORES]
    for number, store in enumerate(STORES):
        early = [m for m in onlooker.moments if m[number] > 0 and any(w < 0.9 * r for w, r in zip(m, rows, strict=True))]
        assert early, (store, rows, sorted(onlooker.moments))


def _audited(store: str, equal: bool) -> dict[str, Any]:
    table = {"table": "public.flights", "equal": equal, "source_rows": 5, "store_rows": 5, "missing": 0, "extra": 0, "different": 0}
    return {"store": store, "equal": equal, "position": 9, "lsn": "0/9", "tables": [{**table, "unsettled": 0, "error": None}]}


CAME: Final = {"committed": 2, "bus": {"missing": 0, "twice": 0}, "tower": {"missing": 0, "twice": 0}}
SAME: Final = {"delays": {"search": {"source_rows": 3, "store_rows": 3, "different": 0}}}
OTHER: Final = {"delays": {"search": {"source_rows": 3, "store_rows": 3, "different": 1}}}


@pytest.mark.parametrize(
    ("equal", "audited", "exit_code", "events", "ok"),
    [
        (True, STORES, 0, CAME, True),
        (False, STORES, 0, CAME, False),
        (True, STORES[:2], 0, CAME, False),
        (True, STORES, 1, CAME, False),
        (True, STORES, None, CAME, False),
        (True, STORES, 0, {**CAME, "bus": {"missing": 1, "twice": 0}}, False),
        (True, STORES, 0, {**CAME, "bus": {"missing": 0, "twice": 1}}, False),
        (True, STORES, 0, {**CAME, "tower": {"missing": 1, "twice": 0}}, False),
        (True, STORES, 0, {**CAME, "tower": {"missing": 0, "twice": 1}}, True),
    ],
)
def test_only_equal_stores_whole_streams_and_an_orderly_daemon_pass(
    equal: bool, audited: tuple[str, ...], exit_code: int | None, events: dict[str, Any], ok: bool
) -> None:
    milestones = Milestones(iter([100.0, 130.0, 140.04, 151.0, 160.0]).__next__)
    milestones.set_up()
    for written in ([0, 0, 0], [7, 0, 0], [9, 1, 0]):
        milestones.look({"followers": [{"store": store, "written": rows} for store, rows in zip(STORES, written, strict=True)]})
    result = verdict.verdict(
        verdict.Driven(2.0, 10, 20, 5),
        waited={store: {"seconds": 0.1} for store in STORES},
        audited=[_audited(store, equal) for store in audited],
        exit_code=exit_code,
        milestones=milestones,
        events=events,
        views=SAME,
    )
    assert result["ok"] is ok
    assert verdict.all_as_asked(SAME)
    assert not verdict.all_as_asked(OTHER)
    assert result["page_s"] == 40.0
    assert [store["first_rows_s"] for store in result["stores"].values()] == [21.0, 30.0, None][: len(audited)]
    assert result["traffic"]["per_s"] == 10.0
    assert json.loads(json.dumps(result)) == result


def _follower(store: str, **facts: Any) -> dict[str, Any]:
    return {"store": store, "state": "following", "lag": {"changes": 0}, "catch_up": None, **facts}


def _cdc(script: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")


class Accidents:
    """Nothing happens; what was asked for is kept."""

    def __init__(self) -> None:
        self.happened: list[str] = []
        self.receives = True

    def damage(self) -> str:
        self.happened.append("damage")
        return "something is broken"

    def fly_nowhere(self) -> None:
        self.happened.append("flight")

    def correct(self, values: dict[str, Any]) -> str:
        self.happened.append(f"correct {values}")
        return "corrected.json"

    def divert(self) -> tuple[str, str]:
        self.happened.append("divert")
        return "one", "other"

    def heard(self, event: str) -> dict[str, int]:
        return {"bus": int(event == "one"), "tower": int(event == "one" and self.receives)}

    def tidy(self) -> None:
        self.happened.append("tidy")


SETTLED: Final = {"capture": {"alive": True, "state": "streaming"}, "followers": [_follower("search")]}
BUILT: Final = {"generation": 2, "former": 1, "swapped": True, "rows": 84_000, "seconds": 41.2}
REPAIRED: Final = {
    "equal": False,
    "whole": True,
    "stores": [{"tables": [{"source_rows": 84_000, "missing": 1, "extra": 0, "different": 2}]}],
}
LETTER: Final = {"letter": "public.flights@7", "reason": "computed.mph: division by zero"}


def _tour(answers: dict[str, Any], now: list[float]) -> tuple[tour.Tour, list[str], list[tuple[str, ...]], Accidents]:
    """``answers``: by the verb, what the command prints; text: an error."""
    said, begun, accidents = list[str](), list[tuple[str, ...]](), Accidents()

    def begin(*arguments: str) -> subprocess.Popen[str]:
        begun.append(arguments)
        answer = answers[arguments[1] if arguments[0] == "dlq" else arguments[0]]
        answer = answer.pop(0) if isinstance(answer, list) else answer
        return _cdc(f"import sys; sys.exit({answer!r})" if isinstance(answer, str) else f"print({json.dumps(answer)!r})")

    return tour.Tour(begin, said.append, accidents, lambda: now[0]), said, begun, accidents


def _to_its_end(trip: tour.Tour, now: list[float] | None = None) -> None:
    """``now``: the tour's clock, which goes on by ten seconds with each look."""
    while not trip.over:
        trip.look(SETTLED)
        if trip.running is not None:
            trip.running.wait(60)
        if now is not None:
            now[0] += 10


def test_the_tour_begins_after_the_first_minutes_and_has_three_stations() -> None:
    loading = {**SETTLED, "followers": [_follower("search", catch_up={"done": 1})]}
    now = [0.0]
    answers: dict[str, Any] = {
        "bootstrap": BUILT,
        "audit": REPAIRED,
        "ls": [{"letters": []}, {"letters": [LETTER]}],
        "replay": {"letters": [{**LETTER, "done": False, "text": "division by zero"}]},
        "edit": {"letters": [{**LETTER, "done": True, "text": "the store holds the corrected row"}]},
    }
    trip, said, begun, accidents = _tour(answers, now)
    for at, told in ((0.0, SETTLED), (tour.AFTER_S - 1, SETTLED), (tour.AFTER_S, loading), (tour.AFTER_S + 1, None)):
        now[0] = at
        trip.look(told)
    assert begun == said == accidents.happened == []
    now[0] = tour.AFTER_S + 60
    _to_its_end(trip)
    assert begun == [
        ("bootstrap", "search", "--keep-old", "10m", "--json"),
        ("audit", "board", "--table", "public.flights", "--repair", "--json"),
        ("audit", "search", "--table", "public.flights", "--repair", "--json"),
        ("dlq", "ls", "board", "--json"),
        ("dlq", "ls", "board", "--json"),
        ("dlq", "replay", "board", "public.flights@7", "--json"),
        ("dlq", "edit", "board", "public.flights@7", "corrected.json", "--json"),
    ]
    assert accidents.happened == ["damage", "flight", "correct {'mph': 0}", "tidy", "divert"]
    words = "\n".join(said)
    for expected in (
        "84,000 rows were built",
        "generation 1 is kept",
        "1 missing, 2 different; sent again",
        "replay board public.flights@7: division",
    ):
        assert expected in words
    trip.look(SETTLED)
    assert len(begun) == 7
    trip.end()


@pytest.mark.parametrize(
    ("verb", "answer", "expected"),
    [
        ("bootstrap", {**BUILT, "swapped": False}, "readers go on"),
        ("bootstrap", "error: it is down", "not built again: it is down"),
        ("audit", "error: it is down", "board was not audited: it is down"),
        ("audit", {**REPAIRED, "whole": False}, "it is not all equal yet"),
        ("edit", "error: nobody follows", "nobody follows"),
    ],
)
def test_the_tour_says_what_did_not_work_and_goes_on(verb: str, answer: Any, expected: str) -> None:
    answers: dict[str, Any] = {
        "bootstrap": BUILT,
        "audit": REPAIRED,
        "ls": {"letters": [LETTER]},
        "replay": {"letters": []},
        "edit": {"letters": []},
    }
    trip, said, _, accidents = _tour({**answers, verb: answer}, [tour.AFTER_S])
    trip.after_s = 0
    _to_its_end(trip)
    assert expected in "\n".join(said)
    assert accidents.happened[-2:] == ["tidy", "divert"]


def test_a_tour_whose_flight_is_never_set_aside_ends() -> None:
    now = [0.0]
    trip, said, _, _ = _tour({"bootstrap": BUILT, "audit": REPAIRED, "ls": {"letters": []}}, now)
    trip.after_s = 0
    _to_its_end(trip, now)
    assert "lists nothing" in "\n".join(said)


def test_a_tour_whose_event_does_not_come_to_all_ends() -> None:
    now = [0.0]
    answers: dict[str, Any] = {"ls": {"letters": [LETTER]}, "replay": {"letters": []}, "edit": {"letters": []}}
    trip, said, _, accidents = _tour({"bootstrap": BUILT, "audit": REPAIRED, **answers}, now)
    trip.after_s, accidents.receives = 0, False
    _to_its_end(trip, now)
    assert "has not come to all after 120 s: {'bus': 1, 'tower': 0}" in "\n".join(said)


def test_a_tour_that_is_under_way_ends_with_the_demo() -> None:
    trip = tour.Tour(lambda *_: _cdc("import time; time.sleep(600)"), lambda _: None, Accidents(), after_s=0)
    trip.look(SETTLED)
    trip.end()
    assert trip.running is not None
    assert trip.running.poll() is not None


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_tour_on_the_demo_itself(tmp_path: Path) -> None:
    """Each station does what it says, on the real daemon and its servers, under traffic."""
    with (tmp_path / "out").open("w") as out:
        command = [sys.executable, "-m", "cdc.demo", "--folder", str(tmp_path / "demo"), "--tour-after", "5"]
        demo = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        until(lambda: "tour: that was all" in (tmp_path / "out").read_text() or demo.poll() is not None, "the tour", timeout_s=600)
    finally:
        demo.send_signal(signal.SIGTERM)
        demo.wait(120)
    words = (tmp_path / "out").read_text()
    for expected in (
        "searches see generation 2 now",
        "rows of board compared: 1 missing, 1 different; sent again through the log, and all of it is equal now",
        "rows of search compared: 1 missing; sent again through the log, and all of it is equal now",
        "mph: division by zero",
        "the store holds the corrected row",
        "the committed one came, as often as {'bus': 1, 'tower': 1} says",
    ):
        assert expected in words, words


def test_progress_is_one_line_with_every_store() -> None:
    firstload = {"done": 4_200, "total": 10_000, "rows_per_s": 1450.4, "eta_s": 4.0}
    told = {
        "capture": {"state": "snapshot", "snapshot": [{"done": 10, "total": 5}]},
        "followers": [
            _follower("search", lag={"changes": 1200}),
            _follower("board", state="starting", lag=None),
            _follower("warehouse", lag={"changes": 5800}, catch_up=firstload),
            _follower("events", lag={"changes": 5800}, catch_up={**firstload, "rows_per_s": 0.2, "eta_s": 40_000.0}),
            _follower("other"),
        ],
    }
    line = show.progress(told, 3000, 299.6)
    assert "\n" not in line
    assert "3,000 changes made (300/s)" in line
    assert "snapshot 10 of 10 rows" in line
    assert "search 1,200 behind" in line
    assert "board starting" in line
    assert "warehouse 42 % (1,450/s, 4 s left)" in line
    assert "events 42 % (0/s)" in line
    assert line.endswith("other up to date")


def test_the_board_shows_the_next_departures_first() -> None:
    def flight(number: int, status: str, at: str) -> dict[str, Any]:
        return {
            "id": number,
            "carrier": "UA",
            "number": number,
            "origin": "EWR",
            "dest": "SFO",
            "status": status,
            "scheduled_departure": at,
        }

    shown = board.board(
        [
            flight(1, "landed", "2013-12-01T08:00:00Z"),
            flight(2, "scheduled", "2013-12-01T10:00:00Z"),
            flight(3, "scheduled", "2013-12-01T09:30:00Z"),
        ]
    ).splitlines()
    assert [line.split()[3] for line in shown[1:]] == ["3", "2"]
    assert shown[1].startswith("2013-12-01 09:30  UA 3")


def test_departures_are_shown_as_they_come() -> None:
    after = {"carrier": "UA", "number": 215, "origin": "EWR", "dest": "SEA"}
    body = json.dumps({"op": "update", "before": None, "after": after})
    shown = departures.departures([("6088-0", {"time": "2026-11-27T11:53:28.5Z", "body": body})]).splitlines()
    assert shown[1] == "2026-11-27 11:53:28  6088-0        UA 215   EWR → SEA"


@pytest.mark.parametrize("arguments", [["--json"], ["--seconds", "0"], ["--rate", "-1"], ["--nonsense"]])
def test_wrong_arguments_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(arguments)
    assert raised.value.code == 2


def test_only_a_time_in_which_nothing_moves_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"capture": None, "followers": [{"state": "following", "position": 0}]}
    now = [0.0]

    def status(_: Daemon) -> dict[str, Any]:
        now[0] += 50.0
        told["followers"][0]["position"] += 1 if now[0] < 1_000 else 0  # type: ignore[index]
        return told

    monkeypatch.setattr(Daemon, "status", status)
    monkeypatch.setattr(daemon.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(daemon.time, "sleep", lambda _: None)
    running = Daemon(tmp_path / "cdc.toml", "http://127.0.0.1:1")
    running.wait_for(lambda told: told["followers"][0]["position"] == 15, "catching up", 180)
    with pytest.raises(WaitTimeout, match="catching up: nothing has moved for 180 s"):
        running.wait_for(lambda _: False, "catching up", 180)
    assert now[0] < 1_500


def test_what_moves_is_seen_in_every_part() -> None:
    follower = {"state": "following", "position": 3}
    capture = {"state": "snapshot", "position": 7, "snapshot": [{"done": 10}]}
    seen = {
        daemon.standing(told)
        for told in (
            None,
            {"capture": None, "followers": []},
            {"capture": capture, "followers": [follower]},
            {"capture": {**capture, "snapshot": [{"done": 11}]}, "followers": [follower]},
            {"capture": capture, "followers": [{**follower, "position": 4}]},
            {"capture": capture, "followers": [{**follower, "state": "waiting"}]},
        )
    }
    assert len(seen) == 6
