"""Keyed look-ups: rows of random keys by batches of many sizes, out of a log of which most is sealed; and what it costs to make the runs.
``capture --part lookup`` measures what keeping them costs capture.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.log import NoWait, orders
from bench.result import Result, faster, lower
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.lookup.entries import hashed
from cdc.lookup.lookup import Lookup, key_texts
from cdc.lookup.upkeep import RunUpkeep
from cdc.model.position import Lsn

TOPIC = "public.orders"
BATCH_ROWS = 20_000
BATCHES = (100, 10_000, 100_000)
"""Keys in one question."""
MANY = 10_000
"""A question of fewer keys costs about as much as one of so many."""
BAR = 200_000


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench lookup", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--segment-mb", type=int, default=16)
    parser.add_argument("--dir", type=Path, help="where to write (default: the system's folder for temporary files)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="headwater-bench-", dir=options.dir) as folder:
        print(measure(Path(folder), options.rows, options.runs, options.segment_mb * 2**20).line())
    return 0


def measure(folder: Path, rows: int, runs: int, segment_bytes: int) -> Result:
    result = Result("lookup")
    batches = [orders(start, min(BATCH_ROWS, rows + 1 - start)) for start in range(1, rows + 1, BATCH_ROWS)]
    root = folder / "log"
    append(root, batches, segment_bytes)
    hashed(pa.array(["compiled"]), 0)
    with closing(EmbeddedLogReader(root)) as reader:
        cpu = time.process_time()
        upkeep = RunUpkeep(reader, root, TOPIC)
        while upkeep.advance():
            pass
        result.figures["keep_cpu_s_per_million"] = lower([(time.process_time() - cpu) / rows * 1e6], 0.5, "CPU s")
        size = sum(path.stat().st_size for path in (root / "lookup").rglob("*.run"))
        result.orientation["bytes_per_change"] = round(size / rows, 1)
    for asked in BATCHES:
        if asked <= rows:
            warm, cold = look_up(root, rows, asked, runs)
            result.figures[f"rows_per_s_{asked}"] = faster(warm, [BAR], "rows/s", bar=1.0 if asked >= MANY else None)
            result.orientation[f"first_{asked}_rows_per_s"] = round(cold)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    result.cpu_s, result.rss_mb = round(usage.ru_utime + usage.ru_stime, 1), round(usage.ru_maxrss / 1024)
    return result


def append(root: Path, batches: list[pa.RecordBatch], segment_bytes: int) -> None:
    """Everything that is closed becomes Parquet."""
    with closing(EmbeddedLogWriter(root, segment_bytes=segment_bytes, disk=NoWait())) as writer:
        for number, batch in enumerate(batches, 1):
            writer.append(batch)
            writer.commit(Lsn(number), 0)
        writer.drain_seals()


def look_up(root: Path, rows: int, asked: int, runs: int) -> tuple[list[float], float]:
    """(rows per CPU second of one question after another, those of the first, which decodes what the others find decoded)."""
    chance = np.random.default_rng(asked)
    found = []
    with closing(EmbeddedLogReader(root)) as reader, closing(Lookup(reader, root, tail_rows=0)) as lookup:
        head = reader.head().position
        for _ in range(runs + 1):
            questions = [key_texts([pa.array(chance.integers(1, rows, asked))]) for _ in range(min(20, max(1, 100_000 // asked)))]
            cpu, answers = time.process_time(), 0
            for question in questions:
                answer = lookup.rows(TOPIC, head, question)
                answers += int(answer.found.sum())
            found.append(answers / (time.process_time() - cpu))
            assert answers == asked * len(questions)
    return found[1:], found[0]


if __name__ == "__main__":
    raise SystemExit(main([]))
