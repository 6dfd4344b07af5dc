"""Views kept up: what a batch of changes costs a view's kernel, its commit included, beside the rows that it has kept. No log and no database takes part.

``rows`` is the number of orders; there are a fifth as many customers, and a fiftieth as many products. A batch of ``changes`` has orders that are inserted, changed
and deleted (3 : 6 : 1), and one customer that is renamed for each hundred of them. The first build of the join is compared with Spark's (``bench.viewbuild``).
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa

from bench.result import Result, faster, lower
from cdc.model.pgtypes import INT8, TEXT
from cdc.model.position import Position
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from cdc.views.contract import Delta
from cdc.views.definition import define
from cdc.views.kernel import SqlKernel

MEMORY = "256MB"
CHUNK = 200_000
BAR = 2000
"""Changes per second."""
GROWTH = 2.0
"""The most that a batch may cost at ten times the rows."""
NUMERIC, SCALE_2 = 1700, (12 << 16 | 2) + 4

ORDERS = Table(
    1,
    "public",
    "orders",
    (
        Column("id", INT8, key=True, attnum=1),
        Column("customer_id", INT8, attnum=2),
        Column("product_id", INT8, attnum=3),
        Column("status", TEXT, attnum=4),
        Column("amount", NUMERIC, SCALE_2, attnum=5),
    ),
)
CUSTOMERS = Table(2, "public", "customers", (Column("id", INT8, key=True, attnum=1), Column("name", TEXT, attnum=2)))
PRODUCTS = Table(3, "public", "products", (Column("id", INT8, key=True, attnum=1), Column("title", TEXT, attnum=2)))
TOPICS = {one.topic: one for one in (TopicSchema.of(table) for table in (ORDERS, CUSTOMERS, PRODUCTS))}

VIEWS = {
    "join": (
        "select o.id, o.status, o.amount, c.name, p.title from orders o "
        "join customers c on c.id = o.customer_id join products p on p.id = o.product_id",
        "id",
    ),
    "sums": ("select customer_id, count(*) as orders, sum(amount) as amount from orders group by customer_id", "customer_id"),
    "documents": ("select customer_id, jsonb_agg(status order by id) as orders from orders group by customer_id", "customer_id"),
}


class Shop:
    """Tables that are made up, and one view of them. ``one``: all orders are one customer's."""

    def __init__(self, view: str, rows: int, folder: Path, one: bool = False) -> None:
        self.rows, self.customers, self.products = rows, max(rows // 5, 1), max(rows // 50, 1)
        self._one, self._next = one, rows + 1
        self._chance = np.random.default_rng(rows)
        sql, key = VIEWS[view]
        definition = define(view, sql, [key], TOPICS)
        self.definition, self._reads = definition, definition.reads
        folder.mkdir()
        self.kernel = SqlKernel(definition, folder, MEMORY)
        self._cut = 0

    def load(self) -> None:
        for table in (CUSTOMERS, PRODUCTS, ORDERS):
            topic = f"public.{table.name}"
            if topic in self._reads:
                for rows in self.first(topic):
                    self._advance({topic: Delta(rows, rows.select(["id"]).slice(0, 0))})

    def first(self, topic: str) -> Iterator[pa.Table]:
        """The topic's first rows."""
        count = {"public.customers": self.customers, "public.products": self.products, "public.orders": self.rows}[topic]
        for start in range(1, count + 1, CHUNK):
            ids = np.arange(start, min(start + CHUNK, count + 1))
            yield self._delta(topic, ids, ids[:0]).rows

    def batch(self, changes: int) -> int:
        """The number of changes. The state is as of the batch's end."""
        new, gone = changes * 3 // 10, changes // 10
        written = np.unique(self._chance.integers(1, self._next, changes - new))
        written = self._chance.permutation(written)
        ids = np.concatenate([written[gone:], np.arange(self._next, self._next + new)])
        self._next += new
        deltas = {"public.orders": self._delta("public.orders", ids, written[:gone])}
        if "public.customers" in self._reads:
            renamed = np.unique(self._chance.integers(1, self.customers + 1, max(changes // 100, 1)))
            deltas["public.customers"] = self._delta("public.customers", renamed, renamed[:0])
        self._advance(deltas)
        return sum(one.rows.num_rows + one.gone.num_rows for one in deltas.values())

    def _advance(self, deltas: dict[str, Delta]) -> None:
        self._cut += 1
        self.kernel.advance(deltas, Position(self._cut))
        self.kernel.commit()

    def _delta(self, topic: str, ids: np.ndarray, gone: np.ndarray) -> Delta:
        schema = TOPICS[topic]
        made = [pa.array(self._values(one.name, ids)).cast(one.type) for one in schema.fields if one.name in self._reads[topic]]
        names = [one.name for one in schema.fields if one.name in self._reads[topic]]
        return Delta(pa.table(dict(zip(names, made, strict=True))), pa.table({"id": pa.array(gone)}))

    def _values(self, column: str, ids: np.ndarray) -> np.ndarray | list[str]:
        match column:
            case "id":
                return ids
            case "customer_id":
                return np.ones_like(ids) if self._one else ids * 7919 % self.customers + 1
            case "product_id":
                return ids * 104_729 % self.products + 1
            case "amount":
                return np.char.add((ids % 1000).astype(str), ".25")
        version = self._cut
        return [f"{column} {number} as of {version}" for number in ids.tolist()]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench views", description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--runs", type=int, default=5, help="batches of each size, after one that warms up")
    parser.add_argument("--changes", type=int, nargs="+", default=[100, 2000], help="in one batch")
    parser.add_argument("--views", nargs="+", choices=sorted(VIEWS), default=sorted(VIEWS))
    parser.add_argument(
        "--spark",
        type=int,
        help="orders of which the join's first build is compared with Spark's join (0: it is not)",
        default=2_000_000,
    )
    parser.add_argument("--dir", type=Path, help="where to write (default: the system's folder for temporary files)")
    options = parser.parse_args(arguments)
    result = Result("views")
    with tempfile.TemporaryDirectory(prefix="headwater-bench-", dir=options.dir) as folder:
        for view in options.views:
            measure(result, Path(folder), view, options.rows, options.changes, options.runs)
        if options.spark and "join" in options.views:
            first_build(result, Path(folder), options.spark, options.runs)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    result.cpu_s, result.rss_mb = round(usage.ru_utime + usage.ru_stime, 1), round(usage.ru_maxrss / 1024)
    print(result.line())
    return 0


def measure(result: Result, folder: Path, view: str, rows: int, sizes: list[int], runs: int) -> None:
    """The view at a tenth of the rows, and at all of them; sums also of one group."""
    small = batches(result, folder, view, rows // 10, sizes, runs)
    large = batches(result, folder, view, rows, sizes, runs)
    for changes in sizes:
        result.figures[f"{view}_{changes}_per_s"] = faster(
            [done / wall for done, wall, _ in large[changes]], [BAR], "changes/s", bar=1.0 if changes >= BAR else None
        )
        growth = median(cpu for *_, cpu in large[changes]) / median(cpu for *_, cpu in small[changes])
        result.figures[f"{view}_{changes}_growth"] = lower([growth], GROWTH, "x CPU")
        result.orientation[f"{view}_{changes}_cpu_ms"] = round(median(cpu for *_, cpu in large[changes]) * 1000, 1)
    if view == "sums":
        few, many = (batches(result, folder, view, number, sizes[-1:], runs, one=True) for number in (rows // 10, rows))
        growth = median(cpu for *_, cpu in many[sizes[-1]]) / median(cpu for *_, cpu in few[sizes[-1]])
        result.figures["one_group_growth"] = lower([growth], GROWTH, "x CPU")


def first_build(result: Result, folder: Path, rows: int, runs: int) -> None:
    """The join from the beginning, beside Spark's."""
    from bench import viewbuild

    shop = Shop("join", rows, folder / "first")
    with closing(shop.kernel):
        result.figures["join_first_build"] = viewbuild.measure(
            folder, shop.definition, VIEWS["join"][0], shop.first, rows, runs, MEMORY
        )


def batches(
    result: Result, folder: Path, view: str, rows: int, sizes: list[int], runs: int, one: bool = False
) -> dict[int, list[tuple[int, float, float]]]:
    """Changes in a batch → (changes, seconds, CPU seconds) of each batch."""
    name = f"{view}_{rows}{'_in_one' if one else ''}"
    shop = Shop(view, rows, folder / name, one)
    found = {}
    with closing(shop.kernel):
        cpu = time.process_time()
        shop.load()
        result.orientation[f"{name}_load_rows_per_cpu_s"] = round(rows / (time.process_time() - cpu))
        for changes in sizes:
            found[changes] = [_timed(shop, changes) for _ in range(runs + 1)][1:]
    return found


def _timed(shop: Shop, changes: int) -> tuple[int, float, float]:
    began, cpu = time.perf_counter(), time.process_time()
    done = shop.batch(changes)
    return done, time.perf_counter() - began, time.process_time() - cpu


if __name__ == "__main__":
    raise SystemExit(main([]))
