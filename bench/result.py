"""What a benchmark prints: one JSON object with figures against limits measured in the same run."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """``value`` is ours and ``limit`` what it is compared with, both in ``unit``; ``ratio`` is better when higher."""

    value: float
    unit: str
    limit: float
    ratio: float
    bar: float | None = None
    """The ratio that is aimed at."""
    runs: tuple[float, ...] = ()
    limit_runs: tuple[float, ...] = ()


def faster(ours: list[float], limit: list[float], unit: str, bar: float | None = None) -> Figure:
    """Figures where more is better (rows per second): medians and their ratio."""
    value, against = median(ours), median(limit)
    return Figure(
        _round(value), unit, _round(against), _round(value / against), bar, tuple(map(_round, ours)), tuple(map(_round, limit))
    )


def paired(ours: list[float], limit: list[float], unit: str, bar: float | None = None) -> Figure:
    """As ``faster``, where each run of ours has one of the limit beside it: the ratio is the median of the pairs' ratios, which a machine that is
    slow for a while disturbs less."""
    ratios = [one / other for one, other in zip(ours, limit, strict=True)]
    return replace(faster(ours, limit, unit, bar), ratio=_round(median(ratios)))


def lower(ours: list[float], limit: float, unit: str, bar: float | None = 1.0) -> Figure:
    """Figures where less is better (milliseconds, seconds, megabytes) against a fixed bound."""
    value = median(ours)
    ratio = _round(limit / value) if value else float("inf")
    return Figure(_round(value), unit, _round(limit), ratio, bar, tuple(map(_round, ours)))


@dataclass(slots=True)
class Result:
    name: str
    figures: dict[str, Figure] = field(default_factory=dict)
    cpu_s: float | None = None
    rss_mb: float | None = None
    orientation: dict[str, Any] = field(default_factory=dict)
    """Numbers that are printed, but not divided by."""

    def line(self) -> str:
        figures = {
            name: {key: getattr(figure, key) for key in Figure.__slots__ if getattr(figure, key) not in (None, ())}
            for name, figure in self.figures.items()
        }
        whole = {
            "name": self.name,
            "figures": figures,
            "cpu_s": self.cpu_s,
            "rss_mb": self.rss_mb,
            "orientation": self.orientation,
            "machine": machine(),
        }
        return json.dumps(whole)


def machine() -> dict[str, Any]:
    """What the numbers were obtained on."""
    memory = next((line for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), "MemTotal: 0 kB")
    cpu = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), platform.machine()
    )
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(int(memory.split()[1]) / 2**20, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
    }


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _round(value: float) -> float:
    return round(value, 3) if abs(value) < 100 else round(value)
