"""The end of a timed demo: every store has everything, and is equal to the database; said as one JSON object."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from typing import Any

from cdc.demo.daemon import Daemon
from cdc.demo.milestones import Milestones
from cdc.errors import HeadwaterError

WAIT_S = 600


class Disagreement(HeadwaterError):
    """A store did not get everything, or is not equal to the database."""


def wait_for_stores(daemon: Daemon, stores: tuple[str, ...]) -> dict[str, Any]:
    """``cdc wait`` for each; store → what it says. Raises Disagreement when a store does not get there."""
    return {
        store: _json(daemon.command("wait", store, "--timeout", str(WAIT_S), "--json"), f"cdc wait {store}") for store in stores
    }


def audit(daemon: Daemon) -> list[dict[str, Any]]:
    """``cdc audit`` of every store: one entry each. A difference is in the result, not an error."""
    done = daemon.command("audit", "--json")
    if done.returncode not in (0, 1):
        raise Disagreement(f"cdc audit ended with code {done.returncode}: {_last_line(done.stderr)}", hint=f"see {daemon.log}")
    told = json.loads(done.stdout)
    stores: list[dict[str, Any]] = told["stores"] if isinstance(told, dict) else told
    return stores


@dataclass(frozen=True, slots=True)
class Driven:
    """The traffic: for how many seconds, how many changes a second were wished for and how many were made in all; the rows of ``flights`` at the end."""

    seconds: float
    rate: float
    changes: int
    rows: int


def verdict(
    driven: Driven,
    *,
    waited: dict[str, Any],
    audited: list[dict[str, Any]],
    exit_code: int | None,
    milestones: Milestones,
    events: dict[str, Any],
    views: dict[str, dict[str, dict[str, int]]],
) -> dict[str, Any]:
    """The JSON object.

    ``ok``: every store is equal, also to what the database answers to the views' SQL, every event came to both who read them, and to the stream once, and the daemon ended with 0. ``events``: as ``cdc.demo.eventcount``. ``views``: as ``cdc.demo.flightviews``. ``traffic``: {``seconds``, ``wanted_per_s``, ``changes``, ``per_s``}.
    ``page_s``: seconds from the command until the status page answered. ``flights``: rows of that table at the end. ``stores``: name →
    {``equal``, ``position``, ``lsn``, ``first_rows_s``: seconds from the end of the set-up until it held rows of this run, ``waited_s``,
    ``tables``: name → {``equal``, ``source_rows``, ``store_rows``, ``missing``, ``extra``, ``different``, ``unsettled``, ``error``}}.
    """
    kept = ("equal", "source_rows", "store_rows", "missing", "extra", "different", "unsettled", "error")
    stores = {
        entry["store"]: {
            "equal": entry["equal"],
            "position": entry["position"],
            "lsn": entry["lsn"],
            "first_rows_s": _rounded(milestones.first_rows_s.get(entry["store"])),
            "waited_s": round(waited[entry["store"]]["seconds"], 3),
            "tables": {table["table"]: {key: table[key] for key in kept} for table in entry["tables"]},
        }
        for entry in audited
    }
    complete = set(stores) == set(waited) and all(store["tables"] for store in stores.values())
    return {
        "name": "demo",
        "ok": complete
        and all(store["equal"] for store in stores.values())
        and all_as_asked(views)
        and _all_came(events)
        and exit_code == 0,
        "traffic": {
            "seconds": round(driven.seconds, 3),
            "wanted_per_s": driven.rate,
            "changes": driven.changes,
            "per_s": round(driven.changes / driven.seconds, 1) if driven.seconds else 0.0,
        },
        "page_s": _rounded(milestones.page_s),
        "flights": driven.rows,
        "stores": stores,
        "views": views,
        "events": events,
        "daemon_exit_code": exit_code,
    }


def all_as_asked(views: dict[str, dict[str, dict[str, int]]]) -> bool:
    """Whether each view has rows, and each store shows all of them as the database does."""
    return all(not held["different"] and held["store_rows"] for stores in views.values() for held in stores.values())


def _all_came(events: dict[str, Any]) -> bool:
    """A receiver of requests may be given an event twice, a stream may not."""
    return bool(events["bus"] == {"missing": 0, "twice": 0} and events["tower"]["missing"] == 0)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def _json(done: subprocess.CompletedProcess[str], what: str) -> Any:
    if done.returncode != 0:
        raise Disagreement(f"{what} ended with code {done.returncode}: {_last_line(done.stderr)}")
    return json.loads(done.stdout)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no word"])[-1].removeprefix("error: ")
