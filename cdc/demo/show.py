"""The lines that the demo prints while it runs. Pure: text from facts."""

from __future__ import annotations

import json
import shlex
from typing import Any

from cdc.demo.stage import Stage

_QUESTION = {
    "query": {"bool": {"filter": [{"term": {"dest": "SFO"}}, {"term": {"status": "landed"}}]}},
    "sort": [{"arr_delay_min": "desc"}],
    "size": 3,
    "aggs": {"by_airline": {"terms": {"field": "carrier"}, "aggs": {"late_min": {"avg": {"field": "arr_delay_min"}}}}},
}


def welcome(stage: Stage, python: str, dashboard: str) -> str:
    """The pages' addresses and a command for each store, to be copied."""
    return f"""
  status page   {stage.page}
  dashboard     {dashboard} (delays by airport and hour, and each plane's day: views, as the stores hold them)
  to stop       Ctrl-C

  Search index: the latest arrivals in San Francisco, and how late each airline is there
    {search_command(stage)}

  Cache: the departure board
    {board_command(stage, python)}

  Stream: the latest departures, as events
    {departures_command(stage, python)}

  Warehouse: delays by airline (starts Spark: some seconds)
    {warehouse_command(stage, python)}

  The stores bus (a stream) and tower (POST requests) get the events of diverted flights, which the end of the tour looks for.
"""


def search_command(stage: Stage) -> str:
    question = json.dumps(_QUESTION, separators=(",", ":"))
    return f"curl -s '{stage.opensearch.url}/public.flights/_search?pretty' -H 'content-type: application/json' -d {shlex.quote(question)}"


def board_command(stage: Stage, python: str) -> str:
    return f"{python} -m cdc.demo.board {stage.valkey.url}"


def departures_command(stage: Stage, python: str) -> str:
    return f"{python} -m cdc.demo.departures {stage.valkey.url}"


def warehouse_command(stage: Stage, python: str) -> str:
    return f"{python} -m cdc.demo.delays {shlex.quote(str(stage.folder / 'warehouse'))}"


def progress(told: dict[str, Any] | None, sent: int, per_s: float) -> str:
    """One line: what the traffic made, where the snapshot is, how far each store lies behind."""
    traffic = f"{sent:>9,} changes made ({per_s:,.0f}/s)"
    if told is None:
        return f"{traffic} · the daemon is starting"
    parts = [traffic]
    capture = told["capture"]
    if capture is not None and capture["state"] == "snapshot":
        done = sum(table["done"] for table in capture["snapshot"])
        total = sum(max(table["total"], table["done"]) for table in capture["snapshot"])
        parts.append(f"snapshot {done:,} of {total:,} rows")
    for follower in told["followers"]:
        parts.append(f"{follower['store']} {_standing(follower)}")
    return " · ".join(parts)


def _standing(follower: dict[str, Any]) -> str:
    lag, loading = follower["lag"], follower["catch_up"]
    if follower["state"] in ("starting", "waiting"):
        return "starting"
    if loading is not None:
        left = "" if loading["eta_s"] is None or loading["rows_per_s"] < 1 else f", {loading['eta_s']:.0f} s left"
        return f"{100 * loading['done'] // max(loading['total'], 1)} % ({loading['rows_per_s']:,.0f}/s{left})"
    if lag is None:
        return "starting"
    return "up to date" if lag["changes"] == 0 else f"{lag['changes']:,} behind"
