"""The log alone: appending and committing prebuilt batches against a plain write + fdatasync of the same bytes (and against one that syncs a
second, short write behind each), and reading them against a plain read of the same bytes; what a tiny commit costs besides the
disk; what following costs; what sealing costs; how long it takes to open a long log, of which the timeline is made up; what compaction costs
(``bench.rewrites``); how fast Spark reads (``bench.spark_scan``).

A commit syncs the rows and, in another file, the record that makes them exist, both at the same time. ``append_as_two_files`` compares with a program
that syncs its two files one behind the other, as a commit once did.

``--part`` runs some of it: ``append`` and ``read`` are measured over the same log, as one.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from bench import rewrites
from bench.logrows import BATCH_ROWS, NoWait, orders, timed
from bench.longlog import make_up
from bench.result import Result, faster, lower
from cdc.log.embedded.names import sealed_of
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.records import RECORD_BYTES
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.position import Lsn, Position

SEAL_SEGMENT_BYTES = 16 * 2**20
END = Position(2**40)
ENTRY_BYTES = 2 * RECORD_BYTES
"""A group's records in the timeline, where it has changes of one topic."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench log", description=__doc__)
    parser.add_argument("--part", nargs="+", choices=sorted(PARTS), default=WITHOUT_SPARK, help="default: all that need no Spark")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--warm", type=int, default=2, help="runs of scan_spark before those that count")
    parser.add_argument("--cuts", type=int, default=10_000_000, help="of the long log")
    parser.add_argument("--keys", type=int, default=1_000_000, help="of the logs that are compacted")
    parser.add_argument("--memory-keys", type=int, default=5_000_000, help="of the largest log that is compacted, for memory")
    parser.add_argument("--dir", type=Path, help="where to write (default: the system's folder for temporary files)")
    options = parser.parse_args(arguments)
    result = Result("log")
    for part in options.part:
        with tempfile.TemporaryDirectory(prefix="headwater-bench-", dir=options.dir) as folder:
            PARTS[part](result, Path(folder), options)
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    result.cpu_s = round(sum(usage.ru_utime + usage.ru_stime for usage in (own, children)), 1)
    result.rss_mb = round(own.ru_maxrss / 1024)
    print(result.line())
    return 0


def _spark(result: Result, folder: Path, options: argparse.Namespace) -> None:
    from bench.spark_scan import measure as scans

    result.figures |= scans(folder, options.rows, options.runs, options.warm)


def _append(result: Result, folder: Path, options: argparse.Namespace) -> None:
    rows = options.rows
    batches = _batches(rows)
    append, plain, two, read, plain_read, cpu = [], [], [], [], [], []
    for run in range(options.runs):
        root = folder / f"log-{run}"
        seconds, cpu_s, sizes = write_log(root, batches)
        append.append(rows / seconds)
        cpu.append(cpu_s / rows * 1e6)
        portions = committed(root, sizes)
        two.append(rows / write_plain(folder / "plain", portions, folder / "entries"))
        plain.append(rows / write_plain(folder / "plain", portions))
        read.append(rows / timed(lambda at=root: read_log(at)))
        plain_read.append(rows / timed(lambda at=folder / "plain": read_plain(at)))
        shutil.rmtree(root)
    result.figures["append"] = faster(append, plain, "rows/s", bar=0.8)
    result.figures["append_as_two_files"] = faster(append, two, "rows/s")
    result.figures["append_rows_per_s"] = faster(append, [1e6], "rows/s", bar=1.0)
    result.figures["append_cpu_s_per_million"] = lower(cpu, 0.25, "CPU s")
    result.figures["read"] = faster(read, plain_read, "rows/s")
    result.orientation["bytes_per_row"] = round(sum(sizes) / rows)


def _small(result: Result, folder: Path, options: argparse.Namespace) -> None:
    del options
    commits, follow = small_commits(folder / "small")
    result.figures["small_commit_cpu_ms"] = lower(commits, 0.3, "CPU ms")
    result.figures["follow_300_rows_ms"] = lower(follow, 1.0, "ms")


def _open(result: Result, folder: Path, options: argparse.Namespace) -> None:
    opened, details = open_long(folder / "long", options.cuts, options.runs)
    result.figures["open_s"] = lower(opened, 2.0, "s")
    result.orientation["long_log"] = details


def _seal(result: Result, folder: Path, options: argparse.Namespace) -> None:
    result.orientation["seal"] = seal_cost(folder / "sealed", _batches(options.rows))


PARTS: Final[dict[str, Callable[[Result, Path, argparse.Namespace], None]]] = {
    "append": _append,
    "small": _small,
    "open": _open,
    "seal": _seal,
    "compact": lambda result, folder, options: rewrites.measure_speed(result, folder, options.keys, options.runs),
    "amplification": lambda result, folder, options: rewrites.measure_amplification(result, folder, options.keys),
    "latency": lambda result, folder, options: rewrites.measure_latency(result, folder, options.keys, options.runs),
    "memory": lambda result, folder, options: rewrites.measure_memory(result, folder, options.memory_keys),
    "scan_spark": _spark,
}
WITHOUT_SPARK: Final = [part for part in PARTS if part != "scan_spark"]


def _batches(rows: int) -> list[pa.RecordBatch]:
    return [orders(start, BATCH_ROWS) for start in range(1, rows + 1, BATCH_ROWS)]


def write_log(root: Path, batches: list[pa.RecordBatch]) -> tuple[float, float, list[int]]:
    """(seconds, CPU seconds, bytes of each commit) of one commit per batch, synced; sealing apart."""
    writer = EmbeddedLogWriter(root, seal=False)
    cpu, started = time.process_time(), time.perf_counter()
    for number, batch in enumerate(batches, 1):
        writer.append(batch)
        writer.commit(Lsn(number), 0)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    writer.close()
    reader = EmbeddedLogReader(root)
    timeline = reader.timeline
    assert timeline is not None
    assert timeline.number == 1
    sizes = np.diff(timeline.cuts["bytes"], prepend=0).tolist()
    reader.close()
    return seconds, cpu, sizes


def committed(root: Path, sizes: list[int]) -> list[memoryview]:
    """The bytes of each commit: those of the log's segments, in portions of these sizes."""
    whole = memoryview(b"".join(path.read_bytes() for path in sorted(root.rglob("*.seg"))))
    ends = np.cumsum(sizes).tolist()
    return [whole[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def write_plain(path: Path, portions: list[memoryview], entries: Path | None = None) -> float:
    """Seconds to write and sync the same bytes in the same portions to one file. ``entries``: a second file, to which as many bytes as a group's
    records have are written and synced behind each portion."""
    paths = [one for one in (path, entries) if one is not None]
    for one in paths:
        one.unlink(missing_ok=True)
    files = [os.open(one, os.O_CREAT | os.O_WRONLY) for one in paths]
    started = time.perf_counter()
    for portion in portions:
        for fd, data in zip(files, (portion, portion[:ENTRY_BYTES]), strict=False):
            os.write(fd, data)
            os.fdatasync(fd)
    seconds = time.perf_counter() - started
    for fd in files:
        os.close(fd)
    return seconds


def read_log(root: Path) -> int:
    """Opens the log and touches every batch."""
    reader = EmbeddedLogReader(root)
    rows = sum(int(batch.num_rows) for batch in reader.read("public.orders", Position(0), END))
    reader.close()
    return rows


def read_plain(path: Path) -> int:
    into = bytearray(2**21)
    total = 0
    with path.open("rb", buffering=0) as file:
        while got := file.readinto(into):
            total += got
    return total


def small_commits(root: Path) -> tuple[list[float], list[float]]:
    """(CPU ms of a commit of 10 rows besides the disk, ms to see and read 300 new rows), several times each."""
    writer, reader = EmbeddedLogWriter(root, seal=False, disk=NoWait()), EmbeddedLogReader(root)
    commits, follow = [], []
    for _ in range(20):
        start = writer.next_position
        batches = [orders(at, 10) for at in range(start, start + 1000, 10)]
        cpu = time.process_time()
        for batch in batches:
            writer.append(batch)
            writer.commit(Lsn(0), 0)
        commits.append((time.process_time() - cpu) * 1000 / len(batches))
        after = writer.head.position
        writer.append(orders(after + 1, 300))
        writer.commit(Lsn(after), 0)
        follow.append(timed(lambda at=after: list(reader.read("public.orders", at, reader.head().position))) * 1000)
    writer.close()
    reader.close()
    return commits, follow


def open_long(root: Path, cuts: int, runs: int) -> tuple[list[float], dict[str, float]]:
    """(seconds until a log of so many cuts is open for writing and a reader knows its head, several times; what else that costs)."""
    make_up(root, cuts)
    opened, read = [], []
    for _ in range(runs):
        before, started = bytes_read(), time.perf_counter()
        writer, reader = EmbeddedLogWriter(root), EmbeddedLogReader(root)
        head = reader.head().position
        opened.append(time.perf_counter() - started)
        read.append(bytes_read() - before)
        assert head == cuts
        asked = timed(lambda reader=reader: reader.cut_at_lsn(Lsn(cuts * 5)))
        writer.close()
        reader.close()
    size = sum(path.stat().st_size for path in root.glob("timeline-*"))
    return opened, {
        "cuts": cuts,
        "timeline_mb": round(size / 2**20, 1),
        "read_mb": round(max(read) / 2**20, 1),
        "cut_at_old_lsn_ms": round(asked * 1000, 1),
    }


def bytes_read() -> int:
    """What this process has read from files, wherever it lay."""
    return int(Path("/proc/self/io").read_text(encoding="ascii").split()[1])


def seal_cost(root: Path, batches: list[pa.RecordBatch]) -> dict[str, float]:
    """Closed segments become Parquet: CPU seconds per million rows, how much smaller, how fast they read."""
    # The last segment stays open, so there have to be several.
    segment_bytes = min(SEAL_SEGMENT_BYTES, sum(batch.nbytes for batch in batches) // 4)
    writer = EmbeddedLogWriter(root, segment_bytes=segment_bytes, seal=False, disk=NoWait())
    for number, batch in enumerate(batches, 1):
        writer.append(batch)
        writer.commit(Lsn(number), 0)
    writer.close()
    before = {path.stem: path.stat().st_size for path in root.rglob("*.seg")}
    cpu = time.process_time()
    writer = EmbeddedLogWriter(root, segment_bytes=segment_bytes)
    writer.drain_seals()
    cpu = time.process_time() - cpu
    writer.close()
    files = list(root.rglob("*.parquet"))
    names = [name for name in (sealed_of(path.name) for path in files) if name]
    rows = sum(name.rows for name in names)
    size = sum(path.stat().st_size for path in files)
    reader = EmbeddedLogReader(root)
    last = Position(max(name.last for name in names))
    seconds = timed(lambda: [batch.num_rows for batch in reader.read("public.orders", Position(0), last)])
    reader.close()
    return {
        "cpu_s_per_million": round(cpu / rows * 1e6, 3),
        "smaller_by": round(sum(before[f"{name.first:020d}"] for name in names) / size, 2),
        "read_rows_per_s": round(rows / seconds),
    }


if __name__ == "__main__":
    raise SystemExit(main([]))
