"""The demo's dashboard in a real browser, from facts made by hand; and the same facts as a real search index and a real cache hold them."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from opensearchpy import OpenSearch as SearchClient
from opensearchpy.helpers import bulk

from cdc.demo import flightviews, verdict
from cdc.demo.dashboard import Dashboard, DashboardFacts, StoreSilent, freshness
from cdc.demo.stage import Stage
from cdc.embedded.opensearch import OpenSearch
from cdc.settings.file import load
from sinks import options_model
from tests.conftest import Cache
from tests.end_to_end import chromium
from tests.end_to_end.test_page import found_browser

Serve = Callable[..., AbstractContextManager[str]]
HOSTILE: Final = "<img src=x onerror=\"document.title='taken'\">"


def delay(origin: str, day: str, hour: int, avg_min: float, departed: int = 20) -> dict[str, Any]:
    facts = {"departed": departed, "avg_min": avg_min, "sum_min": int(avg_min * departed), "max_min": int(avg_min * 3) + 9}
    return {"origin": origin, "day": day, "hour": hour, **facts}


def leg(number: int, begins: str, ends: str, **facts: Any) -> dict[str, Any]:
    found = {"id": number, "carrier": "B6", "number": 100 + number, "origin": "JFK", "status": "scheduled"}
    found |= {"scheduled_departure": f"2013-05-0{begins}:00+00:00", "scheduled_arrival": f"2013-05-0{ends}:00+00:00"}
    found |= dict.fromkeys(("departed_at", "landed_at", "dep_delay_min", "arr_delay_min"))
    return {**found, "airport": {"faa": "BOS", "name": "General Edward Lawrence Logan Intl"}, **facts}


DOCUMENT: Final = {
    "tailnum": "N193JB",
    "day": "2013-05-05",
    "flights": 4,
    "plane": {"manufacturer": "EMBRAER", "model": "ERJ 190-100 IGW", "seats": 20, "built": 2006},
    "legs": [
        leg(
            1,
            "5T10:00",
            "5T11:14",
            departed_at="2013-05-05T09:58:00+00:00",
            landed_at="2013-05-05T11:02:00+00:00",
            arr_delay_min=-12,
        ),
        leg(
            2,
            "5T15:30",
            "5T16:45",
            departed_at="2013-05-05T16:10:00+00:00",
            landed_at="2013-05-05T17:31:00+00:00",
            arr_delay_min=46,
        ),
        leg(3, "5T20:05", "5T21:30", departed_at="2013-05-05T20:11:00+00:00", dep_delay_min=6, airport=None),
        leg(4, "6T00:40", "6T02:00"),
    ],
    "miles": 748,
    "landed": 2,
    "late_min": 34,
}
FACTS: Final[dict[str, Any]] = {
    "delays": [
        delay(origin, f"2013-05-0{day}", hour % 24, ((7 * hour + 11 * day + 5 * ord(origin[0])) % 17) ** 2 / 2 - 3)
        for origin in ("EWR", "JFK", "LGA")
        for day in range(1, 6)
        for hour in range(9, 27 if day < 5 else 21)
    ],
    "planes": [{"tailnum": "N193JB", "day": "2013-05-05", "flights": 4}, {"tailnum": "N5DHAA", "day": "2013-05-05", "flights": 3}],
    "plane": DOCUMENT,
    "fresh": {"delays": {"position": 128_400, "behind_s": 0.412}, "plane_days": {"position": 128_391, "behind_s": 12.0}},
}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Page]:
    with chromium.browser(found_browser(), tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture
def served(page: chromium.Page) -> Iterator[Serve]:
    """Serves these facts; in the end nothing stands in the browser's console."""

    @contextmanager
    def started(take: Callable[[str], dict[str, Any]]) -> Iterator[str]:
        dashboard = Dashboard(0, take)
        try:
            yield dashboard.url
            page.open("about:blank")
        finally:
            dashboard.stop()

    page.problems.clear()
    yield started
    assert [problem for problem in page.problems if not ("net::ERR_" in problem and problem.endswith("/icon.svg"))] == []


DRAWN: Final = "document.querySelectorAll('#heat td[data-name]').length > 0"
FITS: Final = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (400, True)])
def test_delays_and_a_planes_day_are_drawn(width: int, dark: bool, page: chromium.Page, served: Serve, tmp_path: Path) -> None:
    with served(lambda _: FACTS) as url:
        page.open(url, width=width, dark=dark)
        page.until(DRAWN)
        assert page.text("#verdict") == "Live from the stores"
        assert page.text("#delays-fresh") == "position 128,400 · 412 ms behind"
        assert page.text("#plane-fresh") == "position 128,391 · 12 s behind"
        assert page.run("document.querySelector('#plane-fresh').classList.contains('warn')")
        assert page.run("document.querySelectorAll('#heat td[data-name]').length") == 3 * (4 * 18 + 12)
        last = FACTS["delays"][0]
        page.run("document.querySelector('#heat td[data-name]').click()")
        assert page.text("#point").startswith(f"EWR, 1 May, 9:00: 20 flights, on average {last['avg_min']:.1f} min late, at most ")
        assert page.text("#tailnum") == "N193JB"
        assert page.text("#kind").startswith("5 May · 2 of 4 legs landed · 748 miles · 34 min late in all · EMBRAER")
        words = [page.text(f"[data-leg='{number}'] .word") for number in (1, 2, 3, 4)]
        assert words == ["11:02, 12 min early", "17:31, 46 min late", "left 20:11, 6 min late", "leaves 00:40"]
        assert page.run("[...document.querySelectorAll('.flown')].filter((one) => one.closest('.leg')).length") == 3
        assert page.run("document.querySelectorAll('.leg .flown.late').length") == 1
        assert page.run(FITS)
        page.screenshot(tmp_path / "dashboard.png")


def test_it_moves_and_a_plane_can_be_chosen(page: chromium.Page, served: Serve) -> None:
    facts, asked = deepcopy(FACTS), list[str]()

    def take(plane: str) -> dict[str, Any]:
        asked.append(plane)
        return {**facts, "plane": {**DOCUMENT, "tailnum": plane or "N193JB"}}

    with served(take) as url:
        page.open(url)
        page.until(DRAWN)
        facts["delays"][0]["avg_min"] = 345.6
        page.until("document.querySelector('#heat td[data-name]').innerText === '346'")
        page.run("(s => { s.value = 'N5DHAA'; s.dispatchEvent(new Event('change')); })(document.querySelector('#planes'))")
        page.until("document.querySelector('#tailnum').innerText === 'N5DHAA'")
        assert asked[0] == ""
        assert asked[-1] == "N5DHAA"


def test_what_a_document_holds_is_text(page: chromium.Page, served: Serve) -> None:
    bad = {**DOCUMENT, "tailnum": HOSTILE, "legs": [leg(1, "5T10:00", "5T11:14", airport={"faa": HOSTILE, "name": HOSTILE})]}
    with served(lambda _: {**FACTS, "plane": bad, "planes": [{**FACTS["planes"][0], "tailnum": HOSTILE}]}) as url:
        page.open(url)
        page.until(DRAWN)
        assert page.text("#tailnum") == HOSTILE
        assert page.run("document.querySelectorAll('main img').length") == 0


def test_before_the_stores_hold_anything_it_says_so(page: chromium.Page, served: Serve) -> None:
    empty = {"delays": [], "planes": [], "plane": None, "fresh": {"delays": None, "plane_days": None}}
    with served(lambda _: empty) as url:
        page.open(url)
        page.until("document.querySelector('#verdict').innerText === 'The stores are still empty'")
        assert page.text("#delays-fresh") == "loading"
        assert page.text("#kind") == "not in the cache yet"


def test_only_this_machine_is_answered_and_a_silent_store_is_said() -> None:
    def take(_: str) -> dict[str, Any]:
        raise StoreSilent("a store has no answer yet (NotFoundError)")

    dashboard = Dashboard(0, take)
    try:
        connection = http.client.HTTPConnection("127.0.0.1", int(dashboard.url.rpartition(":")[2].rstrip("/")), timeout=10)
        for path, host, status in (
            ("/facts", "localhost", 200),
            ("/", "evil.example", 403),
            ("/none", "127.0.0.1", 404),
            ("/", "127.0.0.1", 200),
        ):
            connection.request("GET", path, headers={"Host": host})
            answer = connection.getresponse()
            body = answer.read()
            assert answer.status == status, path
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            assert path != "/facts" or json.loads(body) == {"error": "a store has no answer yet (NotFoundError)"}
        connection.close()
    finally:
        dashboard.stop()


def test_freshness_is_the_views_and_the_stores_together() -> None:
    view, store = {"view": "delays", "lag": {"seconds": 0.25}}, {"store": "search", "position": 7, "lag": {"seconds": 0.5}}
    assert freshness({"views": [view], "followers": [store]}, "delays", "search") == {"position": 7, "behind_s": 0.75}
    assert freshness({"views": [{**view, "lag": None}], "followers": [store]}, "delays", "search") is None
    assert freshness({"views": [], "followers": [store]}, "delays", "search") is None
    assert freshness(None, "delays", "search") is None


# What the stores hold


def test_facts_come_from_the_search_index_and_the_cache(opensearch: OpenSearch, valkey: Cache) -> None:
    facts = DashboardFacts(opensearch.url, valkey.url, lambda: None)
    with SearchClient(opensearch.url) as client, valkey.client() as values:
        with pytest.raises(StoreSilent, match="NotFoundError"):
            facts.take("")
        text = {"type": "text", "fields": {"keyword": {"type": "keyword"}}}
        mappings = {"properties": {"origin": text, "tailnum": text, "day": {"type": "date"}}}
        for view in flightviews.HELD:
            client.indices.create(index=f"views.{view}", body={"mappings": mappings})
        flying = [("N1", "2013-05-05", 2), ("N2", "2013-05-05", 3), ("N3", "2013-05-04", 9)]
        days = [{"tailnum": tailnum, "day": day, "flights": flights} for tailnum, day, flights in flying]
        for view, rows in (("delays", FACTS["delays"]), ("plane_days", days)):
            bulk(client, ({"_index": f"views.{view}", "_source": row} for row in rows))
        values.mset({f"plane_day:{name}:{day}": json.dumps({**DOCUMENT, "tailnum": name}) for name, day, _ in flying})
        client.indices.refresh(index="views.*")
        found = facts.take("")
        assert len(found["delays"]) == len(FACTS["delays"])
        assert [one["tailnum"] for one in found["planes"]] == ["N2", "N1"]
        assert found["plane"] == {**DOCUMENT, "tailnum": "N2"}
        assert facts.take("N3")["plane"]["tailnum"] == "N3"
        assert facts.take("none")["plane"] is None
        assert len(list(flightviews.searched(opensearch.url, "plane_days"))) == 3
        assert len(list(flightviews.cached(valkey.url, "plane_days"))) == 3
    facts.close()


def test_a_row_that_differs_is_missing_or_extra_is_counted() -> None:
    rows = [{"origin": "JFK", "day": "2013-05-01", "hour": hour, "avg_min": Decimal("1.50")} for hour in range(4)]
    right = flightviews.keyed("delays", iter(rows))
    again = flightviews.keyed("delays", (flightviews.exact(json.dumps(row, default=float)) for row in rows))
    assert flightviews.difference(right, again) == {"source_rows": 4, "store_rows": 4, "different": 0}
    wrong = flightviews.keyed("delays", iter([{**rows[0], "avg_min": Decimal("1.51")}, *rows[1:3], {**rows[3], "hour": 9}]))
    counted = flightviews.difference(right, wrong)
    assert counted == {"source_rows": 4, "store_rows": 4, "different": 3}
    assert not verdict.all_as_asked({"delays": {"search": counted}})
    assert not verdict.all_as_asked({"delays": {"search": flightviews.difference({}, {})}})


def test_the_demos_configuration_declares_views_that_can_be_kept_up(tmp_path: Path) -> None:
    server: Any = SimpleNamespace(url="redis://127.0.0.1:1", unix_dsn="postgresql://nobody@127.0.0.1:1/{}".format)
    search: Any = SimpleNamespace(url="http://127.0.0.1:1")
    lock: Any = None
    staged = Stage(tmp_path, server, search, server, search, 8642, True, lock)
    staged.write_configuration()
    settings = load(staged.configuration, options_model)
    assert {"views.delays", "views.plane_days"} <= set(settings.stores["board"].tables)
    assert {"views.delays", "views.plane_days"} <= set(settings.stores["search"].tables)
    assert set(flightviews.statements(staged.configuration)) == {"delays", "plane_days"}
    assert not any("views." in sql for sql in flightviews.statements(staged.configuration).values())
