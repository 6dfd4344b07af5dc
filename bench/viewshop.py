"""The shop that ``bench.viewlive`` writes to: its tables, the view of them, and steady traffic in small transactions, each with a row that is looked for.

A transaction inserts 6 orders, changes 12 and deletes 2; every fifth one also renames a customer, which changes each of the customer's orders in the view. Orders
that are deleted are never looked for.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import psycopg

from bench.latency import Work

INSERTED, CHANGED, DELETED = 6, 12, 2
CHANGES: Final = INSERTED + CHANGED + DELETED
"""Of orders, in one transaction."""
RENAMED_EVERY: Final = 5
VIEW: Final = (
    "select o.id, o.version, o.status, o.amount, c.name, p.title from orders o "
    "join customers c on c.id = o.customer_id join products p on p.id = o.product_id"
)

_MADE: Final = "g, %(version)s, g * 7919 %% %(customers)s + 1, g * 104729 %% %(products)s + 1, 'new', (g %% 1000) + 0.25"
_TRAFFIC: Final = f"""
create function change_shop(version bigint, inserted bigint[], changed bigint[], deleted bigint[], renamed bigint[]) returns void language plpgsql as $$
begin
    insert into orders select {_MADE} from unnest(inserted) g;
    update orders o set version = change_shop.version, status = 'paid', amount = amount + 1 where id = any(changed);
    delete from orders where id = any(deleted);
    update customers set name = 'customer ' || id || ' as of ' || change_shop.version where id = any(renamed);
end $$"""


@dataclass(frozen=True, slots=True)
class ShopSize:
    """The rows that are there at the start."""

    customers: int
    orders: int
    products: int

    def create(self, dsn: str) -> None:
        """The tables, their rows, and the function that one transaction calls."""
        known = {"customers": self.customers, "products": self.products}
        with psycopg.connect(dsn, autocommit=True) as connection:
            for table, text, rows in (("customers", "name", self.customers), ("products", "title", self.products)):
                connection.execute(f"create table {table} (id bigint primary key, {text} text)")
                connection.execute(f"insert into {table} select g, '{text} ' || g from generate_series(1, {rows}) g")
            connection.execute(
                "create table orders (id bigint primary key, version bigint, customer_id bigint, product_id bigint, status text, "
                "amount numeric(12,2))"
            )
            made = _MADE % {**known, "version": 0}
            connection.execute(f"insert into orders select {made} from generate_series(1::bigint, {self.orders}) g")
            connection.execute(_TRAFFIC % {**known, "version": "change_shop.version"})
            connection.execute("analyze")


@dataclass(frozen=True)
class ShopWork(Work):
    """Transactions, of which each is looked for by one order: every other one by an order that it inserts."""

    size: ShopSize

    @classmethod
    def sized(cls, size: ShopSize, count: int, stores: Sequence[str]) -> ShopWork:
        made = Work.of(count, stores)
        return cls(made.count, made.begun, made.committed, made.finished, made.polling, made.seen, size)

    def id(self, number: int) -> int:
        return self.inserted(number)[0] if number % 2 == 0 else self.changed(number)[0]

    def inserted(self, number: int) -> list[int]:
        first = self.size.orders + 1 + number * INSERTED
        return list(range(first, first + INSERTED))

    def changed(self, number: int) -> list[int]:
        """Nine of ten orders are changed, now and again."""
        rows = self.size.orders // 10 * 9
        places = [(number * CHANGED + one) * 7919 % rows for one in range(CHANGED)]
        return [place // 9 * 10 + place % 9 + 1 for place in places]

    def deleted(self, number: int) -> list[int]:
        """The tenth ones, once each."""
        found = (10 * (number * DELETED + one + 1) for one in range(DELETED))
        return [one for one in found if one <= self.size.orders]

    def renamed(self, number: int) -> list[int]:
        return [number * 7919 % self.size.customers + 1] if number % RENAMED_EVERY == 0 else []


def write(dsn: str, work: ShopWork, per_s: float, first: int, upto: int) -> dict[str, float]:
    """The transactions from number ``first`` on, so many a second; returns how late they began, in ms."""
    late = np.zeros(upto - first)
    with psycopg.connect(dsn, autocommit=True) as connection:
        start = time.time()
        for number in range(first, upto):
            due = start + (number - first) / per_s
            while (left := due - time.time()) > 0:
                time.sleep(left)
            parts = (work.inserted(number), work.changed(number), work.deleted(number), work.renamed(number))
            work.begun[number] = time.time()
            late[number - first] = work.begun[number] - due
            connection.execute(
                "select change_shop(%s, %s::bigint[], %s::bigint[], %s::bigint[], %s::bigint[])", (work.version(number), *parts)
            )
            work.committed[number] = time.time()
    return {f"p{share}": round(float(np.quantile(late, share / 100)) * 1e3, 2) for share in (50, 99)}
