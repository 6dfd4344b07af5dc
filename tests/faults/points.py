"""Every crash point that the product has, found in its sources, so that none can be forgotten; and a process that is killed at one."""

from __future__ import annotations

import multiprocessing
import os
import re
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from cdc.crashpoint import KILLED, CrashKind, Fault, armed
from tests import counters

ROOT: Final = Path(__file__).parents[2]
_CALL: Final = re.compile(r'\bcrashpoint\(\s*"([^"]+)"\s*\)')

ROOMS: Final = {
    "capture": ("log", "seal", "recover", "toast", "stream", "ingest", "capture", "identity", "slot", "publication", "snapshot", "status"),
    "compaction": ("compaction",),
    "cache": ("follower", "cache"),
    "lanes": ("lanes",),
    "search": ("search",),
    "spreading": ("spreading",),
    "warehouse": ("warehouse",),
    "sql": ("sql",),
    "rebuild": ("rebuild",),
    "rebuilding": ("rebuilding",),
    "newstore": ("newstore",),
    "stops": ("stops",),
    "supervise": ("supervise",),
    "inbox": ("inbox",),
    "derive": ("derive",),
    "tier": ("tier",),
    "lookup": ("lookup",),
    "states": ("states",),
    "generations": ("generations",),
    "outbox": ("outbox",),
    "kafka": ("kafka",),
    "events": ("events", "redisstream"),
    "webhook": ("webhook",),
}  # fmt: skip
"""Where the points of which first word are reached: the test module's scenario → first words."""

EVERYTHING: Final = "HEADWATER_FAULTS" in os.environ
"""Whether every case is wanted (`make faults`), or a few of each kind (`make test`)."""


def places() -> Counter[str]:
    """Each name, and in how many places it stands."""
    found: Counter[str] = Counter()
    for room in ("cdc", "sinks", "snapshots"):
        for path in sorted((ROOT / room).rglob("*.py")):
            if path.name != "crashpoint.py":
                found.update(_CALL.findall(path.read_text(encoding="utf-8")))
    return found


def of(room: str) -> list[str]:
    """The names that this scenario has to reach."""
    return sorted(name for name in places() if name.partition(".")[0] in ROOMS[room])


def generation_steps(kind: str) -> list[str]:
    """The steps in which the next generation of a store of this kind ("cache"; "catalog": a warehouse in a SQL catalog) is built of the log alone, and put in place."""
    others = tuple(f"generations.{one}_" for one in ("search", "cache", "warehouse", "catalog") if one != kind)
    apart = (
        "generations.read_again",
        "generations.search_indices_removed",
        "generations.cache_erased",
        "generations.warehouse_erased",
        "generations.catalog_table_made",
        "generations.catalog_moved",  # within the transaction of a JVM that dies with its process
    )
    return [one for one in of("generations") if not one.startswith(others) and one not in apart]


def killed(work: Callable[[], None], points: str) -> int | None:
    """The exit code of a process that does the work with these points armed (``cdc.crashpoint.armed``)."""

    def run() -> None:
        with armed(points):
            work()
        os._exit(0)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join(120)
    return process.exitcode


def broken_off(work: Callable[[], object], point: str, kind: CrashKind, nth: int) -> None:
    """Has the work killed, or fail, when it comes to the point for the nth time. ``work``: returns None, or what stopped it by itself, which nothing may."""

    def whole() -> None:
        assert work() is None

    if kind is CrashKind.KILL:
        assert killed(whole, f"{point}=kill:{nth}") == KILLED
    else:
        with armed(f"{point}=error:{nth}") as fault:
            with suppress(Fault):
                work()
            assert fault.hit
    counters.add("crash points", str(kind))
