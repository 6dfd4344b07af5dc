"""The status page in a real browser, served by the real app from reports made by hand.

Installs nothing: skips where there is no Chromium ($CHROMIUM, chromium, chromium-browser or google-chrome on the PATH), unless
HEADWATER_BROWSER=required.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from cdc.http.app import make_app
from cdc.http.past import Past, save
from cdc.http.serve import serving
from cdc.report.shape import Lag, Report, SnapshotReport, StopReport, TopicReport, ViewGenerationReport
from cdc.settings.models import Http, Settings
from tests.end_to_end import chromium
from tests.unit.http import reports

TOKEN = "a-token-of-some-length"
Serve = Callable[..., AbstractContextManager[str]]


def found_browser() -> str:
    """Skips the test where there is none, or fails it where one is required."""
    program = chromium.find()
    if program is None:
        missing = f"no browser: neither $CHROMIUM nor any of {', '.join(chromium.NAMES)} on the PATH"
        if os.environ.get("HEADWATER_BROWSER") == "required":
            pytest.fail(missing)
        pytest.skip(missing)
    return program


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Page]:
    with chromium.browser(found_browser(), tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(autouse=True)
def _no_complaints(page: chromium.Page) -> Iterator[None]:
    """Nothing in the console: no error, no request refused by the page's own policy."""
    page.problems.clear()
    yield
    # The browser fetches the tab's icon in its own time: the test's server may have ended by then.
    assert [problem for problem in page.problems if not ("net::ERR_" in problem and problem.endswith("/icon.svg"))] == []


@pytest.fixture
def served(tmp_path: Path, page: chromium.Page) -> Serve:
    @contextmanager
    def started(take: Callable[[], Report], **http: object) -> Iterator[str]:
        settings = Settings(
            source={"dsn": "postgresql://nobody@127.0.0.1:1/none"},
            log={"dir": tmp_path / "log"},
            run_dir=tmp_path,
            http=Http(listen="127.0.0.1:0", **http),  # type: ignore[arg-type]
        )  # type: ignore[arg-type]
        with serving(settings, make_app(settings, take=take)) as url:
            yield url + "/"
            page.open("about:blank")  # a page that is still open would ask for a server that is gone, and complain

    return started


READY = "!document.body.classList.contains('waiting')"


def test_a_healthy_service(page: chromium.Page, served: Serve) -> None:
    with served(reports.healthy) as url:
        page.open(url)
        page.until(READY)
        assert page.text("#verdict") == "Healthy"
        assert page.text("#log-position") == "1,482,113"
        assert page.text("#store-cache .big") == "in step"
        assert page.text("#store-search .big") == "31 ms"
        assert page.text("#store-warehouse .under") == "behind: 1.8 k changes, 331 kB"
        assert page.text("#budget-value") == "330 MB of 4.0 GB"
        assert page.text("#tables tr:first-child td:first-child") == "public.flights"
        assert page.run("document.querySelectorAll('#rivers .bed').length") == 4
        for gone in ("#stops", "#problems", "#snapshot", "#token"):
            assert page.text(gone) == ""


def test_views_stand_between_the_log_and_their_stores(page: chromium.Page, served: Serve) -> None:
    def take() -> Report:
        report = reports.with_views()
        [delays, busiest] = report.views
        return replace(report, views=(delays, replace(busiest, state="waiting", error="public.planes is not in the log yet")))

    with served(take) as url:
        page.open(url)
        page.until(READY)
        assert page.text("#view-delays .big") == "in step"
        assert page.text("#view-delays .facts") == "480 changes/s in, 13 out · state 7.3 MB, 61 k rows · last step 12 ms"
        assert page.text("#view-busiest .chip") == "waiting"
        assert page.text("#view-busiest .error") == "public.planes is not in the log yet"
        assert page.run("document.querySelectorAll('#rivers .bed').length") == 4 + 3 + 3, (
            "a trunk with two branches, and on to each store"
        )
        assert page.run("document.querySelectorAll('#rivers .dam.warn').length") == 2, "to the view that waits, and behind it"
        assert page.run(
            "document.getElementById('log').getBoundingClientRect().bottom < document.getElementById('view-delays').getBoundingClientRect().top"
        )
        assert page.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_a_views_generations_are_shown_while_there_are_several(page: chromium.Page, served: Serve) -> None:
    live = ViewGenerationReport(3, "live", 1_482_113, 0, 0, 7_300_000, None, None)
    building = replace(live, number=4, state="building", done=120_000, total=480_000, bytes=1_900_000, eta_s=95.0)
    kept = replace(live, number=2, state="kept", until=1_800_000_000.0)
    refused = replace(live, number=4, state="refused", bytes=0, error="view busiest: column id of the view's key is NULL")
    hint = "choose a key whose columns are never NULL; then cdc resume VIEW_REFUSED"
    stop = StopReport("VIEW_REFUSED:view-busiest@next", "VIEW_REFUSED", "view-busiest@next", str(refused.error), hint, 1.0)

    def take() -> Report:
        report = reports.with_views()
        delays, busiest = (
            replace(view, generations=found)
            for view, found in zip(report.views, ((live, building), (live, refused, kept)), strict=True)
        )
        problem = f"{stop.part} stopped: {stop.state}: {stop.message} → {hint}"
        return replace(report, healthy=False, problems=(problem,), stops=(stop,), views=(delays, busiest))

    with served(take) as url:
        page.open(url)
        page.until(READY)
        assert page.text("#view-delays .generations li:first-child") == "generation 3 is live, 7.3 MB"
        built = "generation 4 is being built: 25 %, 120 k of at most 480 k rows, about 95 s left, 1.9 MB"
        assert page.text("#view-delays .generations li:last-child") == built
        assert page.run("document.querySelector('#view-delays .generations i').style.width") == "25%"
        assert page.text("#view-busiest .chip") == "following"
        assert page.text("#view-busiest .generations .refused") == f"generation 4 is refused: {refused.error}"
        assert page.text("#view-busiest .generations li:last-child").startswith("generation 2 is the former one, kept until ")
        assert page.text("#stops h2").startswith("VIEW_REFUSED · next generation of view busiest")
        assert page.text("#problems") == ""
        assert page.run("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


HOSTILE = "public.<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"


def test_a_tables_name_is_text_whatever_it_holds(page: chromium.Page, served: Serve) -> None:
    """Whoever may create tables chooses their names."""

    def take() -> Report:
        report = reports.snapshotting()
        assert report.capture is not None
        return replace(
            report,
            problems=(f"table {HOSTILE} is not captured",),
            log=replace(report.log, tables=(TopicReport(HOSTILE, 1, 1, 1, 1),)),
            capture=replace(report.capture, snapshot=(SnapshotReport(HOSTILE, 1, 2, False),)),
        )

    with served(take) as url:
        page.open(url)
        page.until(READY)
        assert page.text("#tables tr:first-child td:first-child") == HOSTILE
        assert HOSTILE in page.text("#snapshot")
        assert HOSTILE in page.text("#problems")
        assert page.run("document.title") != "taken"
        assert page.run("document.querySelectorAll('#tables img, #snapshot img, #problems img').length") == 0


def test_a_name_cannot_reorder_the_line_that_it_stands_in(page: chromium.Page, served: Serve) -> None:
    name = "public.\u202egnihton\u2066\x1b[2J\u200b"

    def take() -> Report:
        report = reports.healthy()
        return replace(report, log=replace(report.log, tables=(TopicReport(name, 1, 1, 1, 1),)), problems=(f"table {name} waits",))

    with served(take) as url:
        page.open(url)
        page.until(READY)
        for place in ("#tables tr:first-child td:first-child", "#problems li"):
            assert r"public.\u202egnihton\u2066\u001b[2J\u200b" in page.text(place)


def test_numbers_move_while_one_looks(page: chromium.Page, served: Serve) -> None:
    position = [1_000_000]

    def take() -> Report:
        position[0] += 500
        return reports.healthy(position=position[0])

    with served(take) as url:
        page.open(url)
        page.until(READY)
        before = page.text("#log-position")
        page.until(f"document.querySelector('#log-position').innerText > {before!r}")
        page.until("parseFloat(document.querySelector('#source-rate').innerText) > 100")
        page.until("document.querySelectorAll('#rivers .current.flows').length === 4")
        page.until("document.querySelector('#throughput .captured').getAttribute('d').includes('L')")


def test_the_page_goes_on_when_the_daemons_clock_is_set_back(page: chromium.Page, served: Serve) -> None:
    position, off_s = [1_000_000], [0.0]
    rate = "parseFloat(document.querySelector('#source-rate').innerText)"

    def take() -> Report:
        position[0] += 0 if off_s[0] else 500
        return replace(reports.healthy(position=position[0], at=time.time() + off_s[0]), problems=("it hurts → rest",))

    with served(take) as url:
        page.open(url)
        page.until(READY)
        page.until(f"{rate} > 100")
        off_s[0] = -3 * 3600.0
        page.until(f"!({rate} > 1)")


def test_a_snapshot_shows_its_progress(page: chromium.Page, served: Serve) -> None:
    with served(reports.snapshotting) as url:
        page.open(url)
        page.until(READY)
        assert page.text("#verdict") == "Healthy, taking a snapshot"
        assert page.text("#snapshot-state") == "3 of 5 tables done"
        bars = "[...document.querySelectorAll('#snapshot [role=progressbar]')].map(bar => bar.getAttribute('aria-valuetext'))"
        assert page.run(bars) == ["done", "done", "42 %", "0 %", "done"]


def test_a_first_load_shows_how_far_it_has_come(page: chromium.Page, served: Serve) -> None:
    with served(reports.loading) as url:
        page.open(url)
        page.until(READY)
        assert page.text("#verdict") == "Healthy, loading search"
        assert page.text("#store-search .big") == "42 %"
        assert page.text("#store-search .under") == "loading: 64.7 k of 154 k, 8.2 k/s, about 11 s left".replace("64.7 k", "65 k")
        assert page.run("document.querySelector('#store-search progress').value") == 64_700
        assert page.run("document.querySelector('#store-cache progress').hidden")


def test_the_last_day_and_what_was_wrong_in_it(page: chromium.Page, served: Serve, tmp_path: Path) -> None:
    now = time.time()
    past = Past()
    for minute in range(600, 0, -1):
        lag = 90.0 if 200 < minute < 260 else 0.2 + minute % 7 / 10
        problems = ("store search waits: connection refused",) if 200 < minute < 260 else ()
        report = reports.healthy(at=now - 60 * minute)
        search, *others = report.followers
        report = replace(
            report, problems=problems, followers=(replace(search, lag=Lag(1, 1, lag), written=60_000 - 100 * minute), *others)
        )
        past.take(report)
    save(tmp_path, past.to_json())
    with served(reports.store_down) as url:
        page.open(url)
        page.until(READY)
        page.until("document.querySelector('.dayrow .edge')?.getAttribute('d').includes('L')")
        assert page.text(".dayrow p") == "search"
        assert "at most 7 min" in page.text(".dayrow .fine"), "the report that is there now counts, too"
        episodes = page.run(
            "[...document.querySelectorAll('#episodes li')].map((e) => [e.className, e.lastElementChild.innerText])"
        )
        assert ["", "store search waits: connection refused"] in episodes
        assert [kind for kind, _ in episodes].count("open") == 2
        lasted = page.run("[...document.querySelectorAll('#episodes li')].at(-1).firstElementChild.innerText")
        assert lasted.endswith("59 min")


def test_a_store_that_is_down(page: chromium.Page, served: Serve) -> None:
    with served(reports.store_down) as url:
        page.open(url)
        page.until(READY)
        assert page.text("#verdict") == "2 problems"
        assert "connection refused" in page.text("#problems")
        assert page.text("#store-search .chip") == "waiting"
        assert page.text("#store-search .big") == "7 min"
        assert "2 set aside" in page.text("#store-search .facts")
        assert page.run("document.querySelectorAll('#rivers .dam circle').length") == 1
        assert page.text("#store-cache .chip") == "following"


def test_what_the_continuous_audit_says(page: chromium.Page, served: Serve) -> None:
    with served(reports.drifting) as url:
        page.open(url)
        page.until(READY)
        assert page.text("#verdict") == "1 problem"
        assert "3 rows differ from the log, round 50 %" in page.text("#store-cache .facts")
        assert "cdc audit cache --table public.flights" in page.text("#problems")
        assert "round" not in page.text("#store-warehouse .facts"), "it is not compared"


def test_a_stop_state_with_its_way_out(page: chromium.Page, served: Serve) -> None:
    with served(reports.stopped) as url:
        page.open(url)
        page.until(READY)
        assert page.text("#verdict") == "Stopped: an operator has to decide"
        assert page.text("#stops h2").startswith("SLOT_LOST · capture")
        assert "exceeded the maximum reserved size" in page.text("#stops")
        assert page.text("#stops code") == "cdc resume SLOT_LOST"
        assert "exceeded" not in page.text("#problems")
        assert page.text("#source-state") == "stopped"
        assert page.run("document.title") == "■ stopped · Headwater"


def test_names_and_messages_are_text_and_nothing_else(page: chromium.Page, served: Serve) -> None:
    """A store's error is somebody else's text."""
    nasty = "<img src=x onerror=alert(1)><b>bold</b>"

    def take() -> Report:
        report = reports.store_down()
        first, *others = report.followers
        return replace(report, followers=(replace(first, error=nasty), *others), problems=(nasty,))

    with served(take) as url:
        page.open(url)
        page.until(READY)
        assert page.text("#store-search .error") == nasty
        assert page.text("#problems li") == nasty


@pytest.mark.parametrize("make", [reports.healthy, reports.snapshotting, reports.loading, reports.store_down, reports.stopped])
def test_it_fits_every_width(page: chromium.Page, served: Serve, make: Callable[[], Report]) -> None:
    with served(make) as url:
        for width in (320, 390, 820, 1280, 1400):
            page.open(url, width=width, height=800, dark=width in (390, 1280))
            page.until(READY)
            assert page.run("document.documentElement.scrollWidth") <= width
            assert page.run(CUT_OFF) == []


CUT_OFF = """[...document.querySelectorAll('main *')]
  .filter((e) => e.offsetWidth && !e.closest('.scroll, .hidden, svg') && getComputedStyle(e).display !== 'inline')
  .filter((e) => e.scrollWidth > e.clientWidth + 1)
  .map((e) => e.id || e.className || e.tagName)"""


@pytest.mark.parametrize("width", [390, 820, 1280, 1400])
def test_a_long_address_breaks_behind_its_slashes(page: chromium.Page, served: Serve, width: int) -> None:
    """A socket's folder, the port, the database."""
    address = "/var/tmp/headwater-0/24f186a12597:54642/airport"
    report = replace(reports.healthy(), source=replace(reports.healthy().source, address=address))
    with served(lambda: report) as url:
        page.open(url, width=width)
        page.until(READY)
        assert page.run("document.querySelector('#source-address').textContent") == address
        lines = page.run(
            """(() => {
              const walker = document.createTreeWalker(document.querySelector('#source-address'), NodeFilter.SHOW_TEXT);
              const lines = {};
              while (walker.nextNode()) {
                const node = walker.currentNode, range = document.createRange();
                range.setStart(node, 0);
                range.setEnd(node, node.length);
                lines[node.data] = range.getClientRects().length;
              }
              return lines;
            })()"""
        )
        assert lines == dict.fromkeys(("/", "var/", "tmp/", "headwater-0/", "24f186a12597:54642/", "airport"), 1)


@pytest.mark.parametrize("make", [reports.healthy, reports.loading, reports.store_down, reports.stopped])
@pytest.mark.parametrize("dark", [False, True])
def test_text_can_be_read(page: chromium.Page, served: Serve, dark: bool, make: Callable[[], Report]) -> None:
    """WCAG AA: 4.5 to 1 for every piece of text, in both themes."""
    with served(make) as url:
        page.open(url, dark=dark)
        page.until(READY)
        found = page.run(CONTRAST)
        assert found["seen"] > 40
        assert found["faint"] == []


CONTRAST = """(() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => {
    const [r, g, b] = parts(colour).map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if (parts(colour)[3] !== 0) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  const faint = [];
  let seen = 0;
  for (const e of document.body.querySelectorAll('*')) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    if (!own || !e.offsetWidth || e.closest('svg, noscript, .hidden')) continue;
    seen++;
    const [a, b] = [light(getComputedStyle(e).color), light(ground(e))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) faint.push([e.textContent, (a + 0.05) / (b + 0.05)]);
  }
  return { seen, faint };
})()"""


def test_everything_has_a_name_for_those_who_listen(page: chromium.Page, served: Serve) -> None:
    with served(reports.snapshotting) as url:
        page.open(url)
        page.until(READY)
        nodes = page.call("Accessibility.getFullAXTree")["nodes"]
        named = {"img", "image", "button", "link", "progressbar", "meter", "textbox", "region"}
        for node in nodes:
            role = node.get("role", {}).get("value")
            if not node.get("ignored") and role in named:
                assert node.get("name", {}).get("value"), node
        roles = [node.get("role", {}).get("value") for node in nodes if not node.get("ignored")]
        assert roles.count("progressbar") == 5
        assert {"main", "banner", "contentinfo", "heading", "table"} <= set(roles)


def test_a_token_is_asked_for(page: chromium.Page, served: Serve) -> None:
    def give(token: str) -> None:
        page.until("!document.querySelector('#token').hidden")
        page.run(f"document.querySelector('#secret').value = {token!r}; document.querySelector('#token').requestSubmit()")

    with served(reports.healthy, token=TOKEN) as url:
        page.open(url)
        give("a wrong one of some length")
        page.until("document.querySelector('#token-error').innerText !== ''")
        assert "1,482,113" not in page.run("document.body.innerText")
        give(TOKEN)
        page.until(READY)
        assert page.text("#token") == ""
        # The two refusals are what this test is about.
        page.problems[:] = [problem for problem in page.problems if "401" not in problem]


def test_a_service_that_goes_and_comes_back(page: chromium.Page, tmp_path: Path) -> None:
    def settings(port: str) -> Settings:
        return Settings(
            source={"dsn": "postgresql://nobody@127.0.0.1:1/none"},
            log={"dir": tmp_path},
            run_dir=tmp_path,
            http={"listen": f"127.0.0.1:{port}"},
        )  # type: ignore[arg-type]

    first = settings("0")
    with serving(first, make_app(first, take=reports.healthy)) as url:
        page.open(url + "/")
        page.until(READY)
    page.until("document.body.classList.contains('lost')")
    assert page.text("#verdict") == "Connection lost, trying again"
    again = settings(url.rpartition(":")[2])
    with serving(again, make_app(again, take=reports.store_down)):
        page.until("document.querySelector('#verdict').innerText === '2 problems'")
    # The connection that is refused, or breaks off, is what this test is about.
    page.problems[:] = [problem for problem in page.problems if "net::ERR_" not in problem]


def test_an_open_page_does_not_hold_up_the_end(page: chromium.Page, served: Serve) -> None:
    ended = threading.Event()
    with served(reports.healthy) as url:
        page.open(url)
        page.until(READY)
        timer = threading.Timer(60, ended.set)
        timer.start()
    timer.cancel()
    assert not ended.is_set()
    page.open("about:blank")
