"""The dashboard: a page over the views, as the stores hold them. It asks the search index and the cache, never Postgres.

=============  =======================================================================================================================
``/``          the page
``/facts``     ``?plane=TAILNUM``: what the page shows, as ``DashboardFacts.take`` gives it; ``{"error"}`` while a store has no answer
=============  =======================================================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.resources import files
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import redis
from opensearchpy import OpenSearch
from opensearchpy.exceptions import OpenSearchException

from cdc.demo.flightviews import CACHE_KEYS, DELAYS, PLANE_DAYS
from cdc.demo.loopback import LoopbackServer, QuietHandler
from cdc.errors import HeadwaterError
from cdc.http.guard import HEADERS
from cdc.settings.views import topic_of

DAYS: Final = 5
_HOURS: Final = 400
"""More rows than three airports have hours in so many days."""
PLANES: Final = 12
_TIMEOUT_S: Final = 5
_OURS, _STATUS_PAGES = "cdc.demo.page", "cdc.http.page"
_FILES: Final = {
    "/": (_OURS, "dashboard.html", "text/html"),
    "/dashboard.css": (_OURS, "dashboard.css", "text/css"),
    "/dashboard.js": (_OURS, "dashboard.js", "text/javascript"),
    "/page.css": (_STATUS_PAGES, "page.css", "text/css"),
    "/parts.js": (_STATUS_PAGES, "parts.js", "text/javascript"),
    "/words.js": (_STATUS_PAGES, "words.js", "text/javascript"),
    "/icon.svg": (_STATUS_PAGES, "icon.svg", "image/svg+xml"),
}

Take = Callable[[str], dict[str, Any]]
"""The plane that the reader chose ("" for the busiest) → the facts."""
Status = Callable[[], dict[str, Any] | None]
"""The daemon's ``/v1/status``; None while it does not answer."""


class StoreSilent(HeadwaterError):
    """A store has no answer: it is down, or does not hold the view yet."""


class DashboardFacts:
    """Reads the stores. ``take`` may be called by several threads at once."""

    def __init__(self, search_url: str, cache_url: str, status: Status) -> None:
        self._search = OpenSearch(search_url, timeout=_TIMEOUT_S, max_retries=0)
        self._cache = redis.Redis.from_url(cache_url, socket_timeout=_TIMEOUT_S)
        self._status = status

    def take(self, plane: str) -> dict[str, Any]:
        """The facts. Raises StoreSilent.

        ``delays``: rows of that view of the last days, from the search index. ``planes``: the busiest planes of the last day {``tailnum``,
        ``day``, ``flights``}, from there as well. ``plane``: the chosen plane's last day as the cache holds it, or None. ``fresh``:
        view → {``position``, ``behind_s``} of the store that it was read from, None where nobody can tell.
        """
        try:
            delays = self._found(DELAYS, {"match_all": {}}, [{"day": "desc"}], _HOURS)
            days = sorted({row["day"] for row in delays})[-DAYS:]
            planes = self._busiest(days[-1]) if days else []
            shown = self._of_plane(plane)[:1] if plane else planes[:1]
            document = self._cache.get(CACHE_KEYS[PLANE_DAYS].format(**shown[0])) if shown else None
        except (OpenSearchException, redis.RedisError) as error:
            raise StoreSilent(f"a store has no answer yet ({type(error).__name__})") from None
        status = self._status()
        return {
            "delays": [row for row in delays if row["day"] in days],
            "planes": planes,
            "plane": None if document is None else json.loads(document),
            "fresh": {DELAYS: freshness(status, DELAYS, "search"), PLANE_DAYS: freshness(status, PLANE_DAYS, "board")},
        }

    def close(self) -> None:
        self._search.close()
        self._cache.close()

    def _busiest(self, day: str) -> list[dict[str, Any]]:
        fields = ["tailnum", "day", "flights"]
        return self._found(PLANE_DAYS, {"term": {"day": day}}, [{"flights": "desc"}, {"tailnum.keyword": "asc"}], PLANES, fields)

    def _of_plane(self, plane: str) -> list[dict[str, Any]]:
        return self._found(PLANE_DAYS, {"term": {"tailnum.keyword": plane}}, [{"day": "desc"}], 1, ["tailnum", "day", "flights"])

    def _found(
        self, view: str, query: dict[str, Any], sort: list[dict[str, str]], size: int, fields: list[str] | bool = True
    ) -> list[dict[str, Any]]:
        asked = {"query": query, "sort": sort, "size": size, "_source": fields}
        return [hit["_source"] for hit in self._search.search(body=asked, index=topic_of(view))["hits"]["hits"]]


def freshness(status: dict[str, Any] | None, view: str, store: str) -> dict[str, Any] | None:
    """Up to which position of the log the store shows the view, and how many seconds both together are behind."""
    if status is None:
        return None
    lags = [one["lag"] for one in status["views"] if one["view"] == view]
    held = [one for one in status["followers"] if one["store"] == store]
    lags += [one["lag"] for one in held]
    if len(lags) != 2 or None in lags:
        return None
    return {"position": held[0]["position"], "behind_s": sum(lag["seconds"] for lag in lags)}


class Dashboard(LoopbackServer):
    """Serves the page on loopback at ``port`` (0: a free one) until it is stopped."""

    def __init__(self, port: int, take: Take) -> None:
        pages = {path: (files(room).joinpath(name).read_bytes(), kind) for path, (room, name, kind) in _FILES.items()}

        class Handler(QuietHandler):
            def do_GET(self) -> None:
                asked = urlsplit(self.path)
                # Otherwise a web page elsewhere could reach the port by pointing a name of its own at it.
                if urlsplit(f"//{self.headers.get('host', '')}").hostname not in ("127.0.0.1", "localhost"):
                    self._answer(403, b"this page is for this machine alone\n", "text/plain")
                elif asked.path == "/facts":
                    self._tell(parse_qs(asked.query).get("plane", [""])[0])
                elif asked.path in pages:
                    self._answer(200, *pages[asked.path])
                else:
                    self._answer(404, b"there is no such page\n", "text/plain")

            def _tell(self, plane: str) -> None:
                try:
                    facts = take(plane)
                except StoreSilent as error:
                    # Not as a status: a browser would complain of it, and stores that load are no fault.
                    facts = {"error": str(error)}
                self._answer(200, json.dumps(facts).encode(), "application/json")

            def _answer(self, status: int, body: bytes, kind: str) -> None:
                self.send_response(status)
                for name, value in HEADERS.items():
                    self.send_header(name, value)
                self.send_header("Content-Type", f"{kind}; charset=utf-8" if kind.startswith("text/") else kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        super().__init__(port, Handler, "dashboard")

    @property
    def url(self) -> str:
        return f"{super().url}/"
