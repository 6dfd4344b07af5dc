"""Compaction of a log whose rows are changed again and again: how fast it merges, what is written for it, what appending feels of it, and the
memory and the temporary files that it takes.

It is driven as ``cdc run`` drives it, without the wait between two looks: ``amplification`` looks whenever a segment is full, which is as often
as there can be anything new.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import threading
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.logrows import BATCH_ROWS, TOPIC, NoWait, changes, commit, orders, timed
from bench.result import Result, faster, lower
from cdc.background import lower_priority
from cdc.compaction.bounds import Settled, TopicPoints, bounds, due
from cdc.compaction.merge import Merged, compact
from cdc.compaction.worker import RECORDED_S
from cdc.log.contract import ClosedRange, LogUpkeep
from cdc.log.embedded.disk import Disk
from cdc.log.embedded.names import ASIDE, sealed_of
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.batch import POSITION
from sinks.newest import _FILES

REWRITES: Final = 10
AMPLIFICATION_LIMIT: Final = 4.0
ADDED_P99_LIMIT_MS: Final = 20.0
MEMORY_LIMIT_MB: Final = 512.0
"""Above what the process takes before it begins. The keys may take 64 MB (``cdc.compaction.survivors``), and what is read and written comes on top."""
APPENDS_PER_S: Final = 100
APPEND_ROWS: Final = 100
SETTLE_S: Final = 0.5
SAMPLE_S: Final = 0.005
SEGMENT_BYTES: Final = 64 * 2**20
"""As ``log.segment_bytes`` by default. A log that has less than 32 segments of it gets smaller ones."""


class Counting(NoWait):
    """Counts what is written: appended to segments, by sealing and by compaction."""

    def __init__(self) -> None:
        self.written: Counter[str] = Counter()
        self._kinds: dict[int, str] = {}

    def create(self, path: Path) -> int:
        fd = super().create(path)
        sealed = sealed_of(path.name.removeprefix(ASIDE))
        if sealed is not None:
            self._kinds[fd] = "compaction" if sealed.generation else "sealing"
        elif path.suffix == ".seg":
            self._kinds[fd] = "appended"
        return fd

    def write(self, fd: int, parts: Any, offset: int) -> None:
        super().write(fd, parts, offset)
        if fd in self._kinds:
            self.written[self._kinds[fd]] += sum(len(part) for part in parts)

    def close(self, fd: int) -> None:
        self._kinds.pop(fd, None)
        super().close(fd)


# --- write amplification -----------------------------------------------------------------------------------------------


def measure_amplification(result: Result, folder: Path, keys: int) -> None:
    disk = Counting()
    segment_bytes = _segment_bytes(keys * (REWRITES + 1))
    writer = EmbeddedLogWriter(folder / "rewritten", segment_bytes=segment_bytes, disk=disk)
    done: list[Merged] = []
    with closing(EmbeddedLogReader(folder / "rewritten")) as reader:
        looked, examined = 0, 0
        for number in range(REWRITES + 1):
            ids = np.random.default_rng(number).permutation(keys) + 1
            for batch in changes(number * keys + 1, ids):
                commit(writer, batch)
                if disk.written["appended"] - looked >= segment_bytes:
                    looked = disk.written["appended"]
                    examined = _look(writer, reader, examined, segment_bytes, done)
    writer.close()
    shutil.rmtree(folder / "rewritten")
    appended, sealing, compaction = (disk.written[what] for what in ("appended", "sealing", "compaction"))
    result.figures["write_amplification"] = lower([(sealing + compaction) / appended], AMPLIFICATION_LIMIT, "bytes per byte")
    # Sealed files are compressed, so rows that compress well flatter the above: this is what it would be of rows that do not compress.
    result.figures["write_amplification_of_sealed"] = lower(
        [(sealing + compaction) / sealing], AMPLIFICATION_LIMIT, "bytes per byte"
    )
    result.orientation["write_amplification"] = {
        "keys": keys,
        "rewrites": REWRITES,
        "segment_bytes": segment_bytes,
        "compactions": len(done),
        **{f"{what}_mb": round(size / 1e6, 1) for what, size in disk.written.items()},
        "changes_left": round(1 - sum(one.dropped for one in done) / (keys * (REWRITES + 1)), 3),
    }


def _look(writer: EmbeddedLogWriter, reader: EmbeddedLogReader, examined: int, target_bytes: int, done: list[Merged]) -> int:
    """Compacts when it is time to; returns how far the topic has been examined."""
    writer.drain_seals()
    topic = next(iter(reader.topics()))
    ranges = writer.upkeep.ranges(TOPIC)
    points = _points(writer, ranges, TopicPoints(topic.clean_from, topic.floor))
    if not due(ranges, points.clean_from, examined):
        return examined
    done.append(compact(writer.upkeep, TOPIC, points, writer.commit, target_bytes=target_bytes))
    writer.upkeep.remove_replaced()
    return points.clean_from - 1


def _points(writer: EmbeddedLogWriter, ranges: list[ClosedRange], now: TopicPoints) -> TopicPoints:
    """With everything old enough, and nobody who holds it back."""
    return bounds(ranges, Settled(writer.head.position, writer.head.position), [], now)


def _segment_bytes(rows: int) -> int:
    return max(2**16, min(SEGMENT_BYTES, rows * 100 // 32))


# --- a log to compact --------------------------------------------------------------------------------------------------


def make_up(root: Path, keys: int) -> int:
    """So many rows inserted, and as many changes of some of them: most keys have a superseded change, wherever one looks. Returns the bytes of
    a segment."""
    segment_bytes = _segment_bytes(2 * keys)
    with closing(EmbeddedLogWriter(root, segment_bytes=segment_bytes, disk=NoWait())) as writer:
        for batch in changes(1, np.arange(1, keys + 1)):
            commit(writer, batch)
        chosen = np.random.default_rng(keys)
        for start in range(0, keys, BATCH_ROWS):
            ids = chosen.integers(1, keys + 1, min(BATCH_ROWS, keys - start))
            commit(writer, orders(keys + 1 + start, len(ids), ids))
        writer.drain_seals()
    os.sync()
    return segment_bytes


def _copy(root: Path, into: Path) -> Path:
    """Another log of the same. Sealed files are never written to, so they are the same files."""

    def copied(old: str, new: str) -> object:
        return os.link(old, new) if old.endswith(".parquet") else shutil.copy2(old, new)

    shutil.copytree(root, into, copy_function=copied)
    return into


# --- how fast ----------------------------------------------------------------------------------------------------------


def measure_speed(result: Result, folder: Path, keys: int, runs: int) -> None:
    base = folder / "compact"
    segment_bytes = make_up(base, keys)
    ours, plain = [], []
    for run in range(runs):
        with closing(EmbeddedLogWriter(_copy(base, folder / f"compact-{run}"), segment_bytes=segment_bytes)) as writer:
            ranges = writer.upkeep.ranges(TOPIC)
            points = _points(writer, ranges, TopicPoints(0, 0))
            size = sum(closed.bytes for closed in ranges) / 1e6
            began = time.perf_counter()
            done = compact(writer.upkeep, TOPIC, points, writer.commit, target_bytes=segment_bytes)
            ours.append(size / (time.perf_counter() - began))
        shutil.rmtree(folder / f"compact-{run}")
        stays = (done.read - done.dropped) / done.read
        plain.append(size / timed(lambda stays=stays: rewrite_plain(base, folder / "plain", stays)))
        shutil.rmtree(folder / "plain")
    shutil.rmtree(base)
    result.figures["compact"] = faster(ours, plain, "MB/s")
    result.orientation["compact"] = {
        "keys": keys,
        "changes": done.read,
        "dropped": done.dropped,
        "mb": round(size, 1),
        "written_mb": round(done.written / 1e6, 1),
        "changes_per_s": round(done.read / size * median(ours)),
        "limit": "pyarrow reads the same files once, drops as many rows, and writes the others, synced",
    }


def rewrite_plain(root: Path, into: Path, stays: float) -> None:
    """As many rows of the same files, by pyarrow alone."""
    into.mkdir()
    for path in sorted(root.rglob("*.parquet")):
        file = pq.ParquetFile(path)
        with (into / path.name).open("xb") as out:
            with pq.ParquetWriter(out, file.schema_arrow, compression="zstd", compression_level=1, use_dictionary=False) as writer:
                for batch in file.iter_batches(batch_size=2**16, use_threads=False):
                    # Neighbours do not stay together, as they do not in a log.
                    shares = pc.bit_wise_and(pc.multiply(batch.column(POSITION), 7919), 1023)
                    writer.write_batch(batch.filter(pc.less(shares, int(stays * 1024))))
            out.flush()
            os.fdatasync(out.fileno())


# --- what appending feels ----------------------------------------------------------------------------------------------


def measure_latency(result: Result, folder: Path, keys: int, runs: int) -> None:
    """The 99th percentile from when an append is due until it is durable, of 100 changes 100 times a second, with and without a compaction beside
    it, in turn and for the same time. The limit is what it is without, and 20 ms more."""
    base = folder / "latency"
    segment_bytes = make_up(base, keys)
    beside: list[float] = []
    alone: list[float] = []
    seconds = []
    for run in range(runs):
        for compacts in (True, False):
            root = _copy(base, folder / f"latency-{run}-{compacts}")
            took, waits = _appending(root, segment_bytes, seconds[-1] if not compacts else None)
            (beside if compacts else alone).append(float(np.quantile(waits, 0.99)))
            if compacts:
                seconds.append(took)
            shutil.rmtree(root)
        print(f"append p99 ms: {beside[-1]:.1f} beside compaction, {alone[-1]:.1f} alone", file=sys.stderr, flush=True)
    shutil.rmtree(base)
    result.figures["append_p99_ms"] = lower(beside, median(alone) + ADDED_P99_LIMIT_MS, "ms")
    result.orientation["append_p99_ms"] = {
        "beside_compaction": [round(one, 2) for one in beside],
        "alone": [round(one, 2) for one in alone],
        "seconds": [round(one, 1) for one in seconds],
    }


def _appending(root: Path, segment_bytes: int, seconds: float | None) -> tuple[float, list[float]]:
    """(seconds, milliseconds of each append) while a compaction goes on (``seconds`` None) or for so long."""
    writer = EmbeddedLogWriter(root, segment_bytes=segment_bytes)
    points = _points(writer, writer.upkeep.ranges(TOPIC), TopicPoints(0, 0))
    failed: list[Exception] = []
    thread = threading.Thread(target=_compacting, args=(writer.upkeep, points, segment_bytes, failed))
    waits: list[float] = []
    tick = 0
    began = time.perf_counter()
    warm = began + SETTLE_S
    while True:
        at = began + tick / APPENDS_PER_S
        time.sleep(max(0.0, at - time.perf_counter()))
        if at >= warm:
            if seconds is None and thread.ident is None:
                thread.start()
            if not thread.is_alive() if seconds is None else at - warm >= seconds:
                break
        commit(writer, orders(writer.head.position + 1, APPEND_ROWS))
        if at >= warm:
            waits.append((time.perf_counter() - at) * 1000)
        tick += 1
    took = time.perf_counter() - warm
    writer.close()
    if failed:
        raise failed[0]
    return took, waits


def _compacting(upkeep: LogUpkeep, points: TopicPoints, target_bytes: int, failed: list[Exception]) -> None:
    """As the daemon's thread does it (``cdc.compaction.worker``)."""
    lower_priority()

    def recorded() -> None:
        while upkeep.waiting():
            time.sleep(RECORDED_S)

    try:
        compact(upkeep, TOPIC, points, recorded, target_bytes=target_bytes)
    except Exception as error:
        failed.append(error)


# --- memory ------------------------------------------------------------------------------------------------------------


def measure_memory(result: Result, folder: Path, keys: int) -> None:
    """At a fifth of the keys, and at all of them."""
    found = {size: _memory(folder / f"memory-{size}", size) for size in (keys // 5, keys)}
    small, large = found[keys // 5], found[keys]
    result.figures["compact_memory_mb"] = lower([large["added_mb"]], MEMORY_LIMIT_MB, "MB")
    # Five times the keys must not take five times the memory; of small logs even the buffers are small.
    result.orientation["compact_memory"] = {
        "buckets": _FILES,
        "by_keys": {str(size): one for size, one in found.items()},
        "bytes_spilled_per_change": round(large["spilled_mb"] * 1e6 / large["changes"], 1),
        "memory_of_5_times_the_keys": round(large["added_mb"] / small["added_mb"], 2),
    }


def _memory(root: Path, keys: int) -> dict[str, float]:
    segment_bytes = make_up(root, keys)
    spawn = multiprocessing.get_context("spawn")
    receiver, sender = spawn.Pipe(duplex=False)
    process = spawn.Process(target=_compact_alone, args=(str(root), segment_bytes, sender))
    process.start()
    sender.close()
    try:
        answer: dict[str, float] = receiver.recv()
    finally:
        process.join()
    shutil.rmtree(root)
    print(f"{keys} keys: {answer}", file=sys.stderr, flush=True)
    return answer


def _compact_alone(root: str, segment_bytes: int, sender: Any) -> None:
    """In a process of its own: the most that it holds, above what it holds before it begins."""
    with closing(EmbeddedLogWriter(Path(root), segment_bytes=segment_bytes, disk=Disk())) as writer:
        ranges = writer.upkeep.ranges(TOPIC)
        points = _points(writer, ranges, TopicPoints(0, 0))
        next(iter(writer.upkeep.batches(ranges[0])))  # the libraries are loaded
        before, written = _memory_mb(), _bytes_written()
        spilled: list[int] = []

        def recorded() -> None:
            if not spilled:
                spilled.append(_bytes_written() - written)  # nothing of the log has been written until now
            writer.commit()

        peak = _Peak()
        began = time.perf_counter()
        with peak:
            done = compact(writer.upkeep, TOPIC, points, recorded, target_bytes=segment_bytes)
        sender.send(
            {
                "changes": done.read,
                "dropped": done.dropped,
                "seconds": round(time.perf_counter() - began, 1),
                "added_mb": round(peak.rss_mb - before, 1),
                "peak_rss_mb": round(peak.rss_mb, 1),
                "peak_anonymous_mb": round(peak.anonymous_mb, 1),
                "arrow_mb": round((pa.default_memory_pool().max_memory() or 0) / 1e6, 1),
                "spilled_mb": round(spilled[0] / 1e6, 1),
            }
        )


class _Peak:
    """The most memory that this process has held since it began to look. The kernel keeps the sum; what is its own is sampled."""

    def __init__(self) -> None:
        self.rss_mb = self.anonymous_mb = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.rss_mb = _status_mb("VmHWM")

    def _watch(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            self.anonymous_mb = max(self.anonymous_mb, _status_mb("RssAnon"))


def _memory_mb() -> float:
    return _status_mb("VmRSS")


def _status_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024 / 1e6


def _bytes_written() -> int:
    """What this process has written to files and pipes."""
    return int(Path("/proc/self/io").read_text(encoding="ascii").splitlines()[1].split()[1])
