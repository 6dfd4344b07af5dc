"""The views of the demo: what its configuration says of them, and whether each store shows what Postgres itself answers to the same SQL."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import psycopg
import redis
from opensearchpy import OpenSearch
from opensearchpy.helpers import scan

from cdc.demo.configuration import Value
from cdc.derive.declarations import declared_views
from cdc.settings.file import load
from cdc.settings.views import topic_of
from sinks import options_model

DELAYS: Final = "delays"
PLANE_DAYS: Final = "plane_days"
HELD: Final = (DELAYS, PLANE_DAYS)
"""The views that stores hold; the third one is only read by another view."""
FLYING_DAYS: Final = "flying_days"
_SINCE: Final = "2013-03-25"
"""Planes' days before this are left out: a week of them is there when the demo begins, and is soon in every store."""
KEYS: Final[Mapping[str, tuple[str, ...]]] = {DELAYS: ("origin", "day", "hour"), PLANE_DAYS: ("tailnum", "day")}
CACHE_KEYS: Final[Mapping[str, str]] = {DELAYS: "delay:{origin}:{day}:{hour}", PLANE_DAYS: "plane_day:{tailnum}:{day}"}

_DELAYS_SQL: Final = """
select origin, day, extract(hour from scheduled_departure at time zone 'UTC')::integer as hour,
  count(*) as departed, avg(dep_delay_min)::numeric(10, 2) as avg_min, sum(dep_delay_min) as sum_min, max(dep_delay_min) as max_min
from public.flights
where dep_delay_min is not null
group by origin, day, extract(hour from scheduled_departure at time zone 'UTC')::integer
"""
_FLYING_DAYS_SQL: Final = f"""
select tailnum, day, count(*) as flights
from public.flights
where tailnum is not null and day >= date '{_SINCE}'
group by tailnum, day
"""

SECTIONS: Final[Mapping[str, Mapping[str, Value]]] = {
    f"views.{DELAYS}": {"sql": _DELAYS_SQL, "key": KEYS[DELAYS]},
    f"views.{FLYING_DAYS}": {"sql": _FLYING_DAYS_SQL, "key": KEYS[PLANE_DAYS]},
    f"views.{PLANE_DAYS}": {"root": topic_of(FLYING_DAYS), "key": KEYS[PLANE_DAYS], "columns": ["flights"]},
    f"views.{PLANE_DAYS}.one.plane": {"table": "public.planes", "columns": ["manufacturer", "model", "seats", "built"]},
    f"views.{PLANE_DAYS}.one.plane.on": {"tailnum": "tailnum"},
    f"views.{PLANE_DAYS}.many.legs": {
        "table": "public.flights",
        "where": f"day >= date '{_SINCE}'",
        "order": ["scheduled_departure", "id"],
        "columns": [
            "id",
            "carrier",
            "number",
            "origin",
            "scheduled_departure",
            "scheduled_arrival",
            "departed_at",
            "landed_at",
            "dep_delay_min",
            "arr_delay_min",
            "status",
        ],
    },
    f"views.{PLANE_DAYS}.many.legs.on": {"tailnum": "tailnum", "day": "day"},
    f"views.{PLANE_DAYS}.many.legs.totals": {
        "miles": "sum(distance_miles)",
        "landed": "count(*) filter (where landed_at is not null)",
        "late_min": "sum(arr_delay_min)",
    },
    f"views.{PLANE_DAYS}.many.legs.one.airport": {"table": "public.airports", "columns": ["faa", "name"]},
    f"views.{PLANE_DAYS}.many.legs.one.airport.on": {"dest": "faa"},
}

Key = tuple[Any, ...]
Documents = Iterator[dict[str, Any]]


def compared(configuration: Path, dsn: str, search_url: str, cache_url: str) -> dict[str, dict[str, dict[str, int]]]:
    """View → store → {``source_rows``, ``store_rows``, ``different``: rows that are in one of both alone, or not equal}.

    To be called once nothing is written and every store has everything. Raises ConfigError, psycopg.Error and the stores' own errors.
    """
    return {
        view: {
            store: difference(expected, keyed(view, rows))
            for store, rows in (("search", searched(search_url, view)), ("board", cached(cache_url, view)))
        }
        for view, expected in _answers(configuration, dsn).items()
    }


def difference(expected: Mapping[Key, Any], found: Mapping[Key, Any]) -> dict[str, int]:
    """Rows by key, in Postgres and in a store."""
    different = sum(expected.get(key) != found.get(key) for key in expected.keys() | found.keys())
    return {"source_rows": len(expected), "store_rows": len(found), "different": different}


def keyed(view: str, rows: Documents) -> dict[Key, Any]:
    """The rows by the view's key, without what is NULL: stores leave such a column of JSON out."""
    return {
        tuple(row[name] for name in KEYS[view]): {name: value for name, value in row.items() if value is not None} for row in rows
    }


def searched(url: str, view: str) -> Documents:
    """The view's rows in the search index."""
    with OpenSearch(url) as client:
        for hit in scan(client, index=topic_of(view), size=2000):
            yield {name: _unwrapped(value) for name, value in exact(json.dumps(hit["_source"])).items()}


def _unwrapped(value: Any) -> Any:
    """A column of JSON that is not an object stands in one there."""
    return value["value"] if isinstance(value, dict) and value.keys() == {"value"} else value


def cached(url: str, view: str) -> Documents:
    """The view's rows in the cache."""
    with redis.Redis.from_url(url) as client:
        names = list(client.scan_iter(re.sub(r"\{\w+\}", "*", CACHE_KEYS[view]), 5000))
        for first in range(0, len(names), 2000):
            yield from (exact(value) for value in client.mget(names[first : first + 2000]) if value is not None)


def exact(text: str | bytes) -> dict[str, Any]:
    """A row of JSON, each number as exact as it is written."""
    row: dict[str, Any] = json.loads(text, parse_float=Decimal)
    return row


def _answers(configuration: Path, dsn: str) -> dict[str, dict[Key, Any]]:
    """View → what Postgres answers to its SQL now, by key."""
    with psycopg.connect(dsn, options="-c timezone=UTC") as connection:
        return {
            view: keyed(view, (exact(text) for (text,) in connection.execute(f"select to_jsonb(v)::text from ({sql}) v")))
            for view, sql in statements(configuration).items()
        }


def statements(configuration: Path) -> dict[str, str]:
    """Each view that stores hold → a SELECT that Postgres can answer by itself. Raises ConfigError."""
    declared = declared_views(load(configuration, options_model))
    inner = f"({declared[FLYING_DAYS].query.sql})"
    named = re.compile(rf'"?views"?\."?{FLYING_DAYS}"?')
    return {view: named.sub(lambda _: inner, declared[view].query.sql) for view in HELD}
