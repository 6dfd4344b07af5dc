"""Every benchmark runs, at a size at which its numbers mean nothing, and prints what its readers expect. Nothing here looks at a time."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parents[2]
NOT_MEASURED: Final = {"table", "against"}
"""They print what others have measured: these, or these in two checkouts, which takes minutes at any size."""

CACHES: Final = {f"{store}_apply{what}" for store in ("redis", "redis_hash") for what in ("", "_client_cpu", "_server_cpu")}
TOYS: Final = {
    "capture": ("--changes 2000 --runs 1", {"drain_unix", "drain_tcp"}),
    "audit": ("redis redis-hash --rows 3000 --runs 1", {"redis", "redis_hash"}),
    "snapshot": ("--rows 3000 --runs 1", {"copy", "wide"}),
    "backlog": ("--changes 20000 --runs 1 --stores redis,redis-hash --alone", CACHES),
    "bootstrap": ("redis redis-hash --rows 3000 --runs 1", {"redis", "redis_swapped", "redis_hash", "redis_hash_swapped"}),
    "log": (
        "--rows 60000 --runs 1 --cuts 200000 --keys 60000 --memory-keys 200000",
        {"append", "open_s", "compact", "write_amplification", "append_p99_ms", "compact_memory_mb"},
    ),
    "lookup": ("--rows 10000 --runs 1", {"rows_per_s_10000", "keep_cpu_s_per_million"}),
    "outbox": (
        "--emits 20 --events 200 --runs 1",
        {"emit_psycopg", "emit_sqlalchemy", "emit_message", "events", "events_by_message"},
    ),
    "stages": ("--changes 2000", set()),
    "views": (
        "--rows 2000 --runs 1 --changes 100 --spark 0",
        {"join_100_per_s", "join_100_growth", "sums_100_growth", "documents_100_growth", "one_group_growth"},
    ),
    "live": ("--seconds 2 --rate 5 --rows 5", {"captured"}),
}
PARTS: Final = {
    "capture": ("--part lookup --changes 2000 --runs 2", {"beside_lookup"}),
}
"""Parts of benchmarks that run by themselves."""
STORES: Final = {
    "backlog": ("--changes 60000 --runs 1 --stores redis,warehouse --settle-s 0", {"redis", "redis_apply", "warehouse"}),
    "audit": ("warehouse --rows 3000 --runs 1", {"warehouse"}),
    "bootstrap": ("opensearch --rows 3000 --runs 1", {"opensearch", "opensearch_swapped"}),
    "latency": ("--rate 20 --seconds 1 --warm-s 1", {"redis_p50_ms", "redis_p99_ms", "redis_p50_beside_plain_ms"}),
    "log": ("--part scan_spark --rows 20000 --runs 1 --warm 0", {"scan_spark", "scan_spark_tail"}),
    "views": ("--rows 2000 --runs 1 --changes 100 --views join --spark 2000", {"join_first_build"}),
    "viewlive": (
        "--customers 50 --orders 500 --products 10 --rate 200 --seconds 1 --warm-s 1 --batches 2",
        {"sustained", "growth", "refresh", "spark_empty"},
    ),
    "live-cost": ("--reference none --runs 1 --seconds 1 --rates 0 20 --rows 200", {"idle_core", "pss_mb"}),
}
"""These start OpenSearch and Spark by themselves, one after the other …"""
LONG: Final = {"latency", "live-cost", "backlog", "audit", "views", "viewlive"}
"""… and these take most of a minute and more."""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", TOYS)
def test_toy(name: str) -> None:
    _check(name, *TOYS[name])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", PARTS)
def test_toy_of_a_part(name: str) -> None:
    _check(name, *PARTS[name])


@pytest.mark.spark
@pytest.mark.sampled(2)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in STORES])
def test_toy_with_stores(name: str) -> None:
    _check(name, *STORES[name])


def _check(name: str, options: str, figures: set[str]) -> None:
    command = [sys.executable, "-m", "bench", name, *options.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=580)
    assert done.returncode == 0, done.stderr[-3000:]
    results = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert json.loads(done.stdout.splitlines()[-1]) == results[-1], "the last line is one JSON object"
    for result in results:
        _check_result(result)
    assert figures <= {figure for result in results for figure in result["figures"]}, results


def _check_result(result: dict[str, Any]) -> None:
    assert {"name", "figures", "cpu_s", "rss_mb", "machine"} <= set(result)
    for name, figure in result["figures"].items():
        assert {"value", "unit", "limit", "ratio"} <= set(figure), name
        assert math.isfinite(figure["value"]), name
        assert figure["value"] >= 0, name
