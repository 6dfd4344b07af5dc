"""Histories at which views go wrong easily, and those at which ours once did. Beside Postgres itself."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

import pytest

from cdc.views.held import ViewStopped
from tests.conftest import Database
from tests.integration.views.stage import Stage

SETUP: Final = """
create table customers (id int8 primary key, name text, country text, credit numeric(12,2));
create table orders (id int8 primary key, customer int4, amount numeric(12,2), big int8, free numeric, weight float8, note text, day date, share numeric(5,5));
"""
FILLED: Final = """
insert into customers values (1, 'a', 'de', 5), (2, 'b', null, null), (3, 'c', null, 1.5);
insert into orders (id, customer, amount, big, free, weight, note, day) values (1, 1, 10.50, 9223372036854775807, 1.10, 0, 'x', 'infinity'), (2, 1, null, 1, 1.1, null, null, null),
  (3, 2, -0.5, -1, 'NaN', 'NaN', '', '0044-03-15 BC'), (4, 9, 7, null, null, 1, 'B', '2024-02-29'), (5, null, 7, 3, 0.00, -0.0, 'b', '10000-01-01');
update orders set share = 0.00001 * (id - 2) where id < 4
"""
INNER: Final = "SELECT o.id, c.name, o.weight, o.day, o.share::text AS share FROM orders o JOIN customers c ON c.id = o.customer"
LEFT: Final = "SELECT o.id, c.name, c.credit FROM orders o LEFT JOIN customers c ON c.id = o.customer"
FULL: Final = "SELECT o.id, c.id AS customer, c.name FROM orders o FULL JOIN customers c ON c.id = o.customer"
SUMS: Final = "SELECT c.country, count(*) AS n, sum(o.amount) AS s, avg(o.amount) AS a, sum(o.big) AS b FROM orders o JOIN customers c ON c.id = o.customer GROUP BY c.country"
ALL: Final = "SELECT 'all' AS k, count(*) AS n, sum(amount) AS s, avg(big) AS a FROM orders"
SLICED: Final = "SELECT customer, max(amount) AS m, sum(free) AS f, count(DISTINCT day) AS d, jsonb_agg(note ORDER BY id DESC) AS j, jsonb_agg(free ORDER BY id) AS jf FROM orders GROUP BY customer"
TOP: Final = "SELECT s.customer, s.n, s.id FROM (SELECT customer, id, row_number() OVER (PARTITION BY customer ORDER BY amount DESC, id) AS n FROM orders) s WHERE s.n <= 1"
FIRST: Final = 'SELECT DISTINCT ON (customer) customer, note FROM orders ORDER BY customer, note COLLATE "C" NULLS FIRST, id'
SELF: Final = "SELECT a.id, b.id AS other FROM orders a JOIN orders b ON a.amount = b.amount WHERE a.id <> b.id"
BOTH: Final = (
    "SELECT o.id, c.id AS customer FROM orders o JOIN customers c ON c.id = o.customer AND c.credit = o.amount AND c.id = o.big"
)
BRANCHES: Final = "SELECT 'o' AS b, id, note FROM orders UNION ALL SELECT 'c', id, name FROM customers WHERE credit > 1"
OF_GROUPS: Final = "SELECT c.id, s.n, s.g FROM customers c LEFT JOIN (SELECT customer AS g, count(*) AS n FROM orders GROUP BY customer) s ON s.g = c.id"

VIEWS: Final = {
    "inner": (INNER, ["id"]),
    "left": (LEFT, ["id"]),
    "full": (FULL, ["id", "customer"]),
    "sums": (SUMS, ["country"]),
    "all": (ALL, ["k"]),
    "sliced": (SLICED, ["customer"]),
    "top": (TOP, ["customer", "n"]),
    "first": (FIRST, ["customer"]),
    "self": (SELF, ["id", "other"]),
    "both": (BOTH, ["id"]),
    "branches": (BRANCHES, ["b", "id"]),
    "of groups": (OF_GROUPS, ["id"]),
}
RESTARTED: Final = ("left", "sums", "sliced", "top")
"""With a state on disk, from which the kernel goes on now and then."""
AGAIN: Final = f"delete from orders; delete from customers; {FILLED}"
HISTORIES: Final = {
    "parent and children are deleted at once": ["delete from customers where id = 1; delete from orders where customer = 1"],
    "the last partner is deleted, and comes again": [
        "delete from customers where id = 2",
        "insert into customers values (2, 'again', 'fr', 1)",
    ],
    "keys are swapped": ["update orders set id = -id; update orders set id = case id when -1 then 2 when -2 then 1 else -id end"],
    "a parent's key changes": ["update customers set id = 9 where id = 1", "update customers set id = 1 where id = 9"],
    "deleted and inserted again in one range": [
        "delete from orders where id = 1; insert into orders values (1, 2, 3, 4, 5, 6, 'new', null)"
    ],
    "0 becomes -0": ["update orders set weight = -0.0 where id = 1", "update orders set weight = 0 where id = 5"],
    "numbers that are equal look different": ["update orders set free = 1.100 where id = 1"],
    "NULL keys": ["update orders set customer = null", "update orders set customer = 1", "update customers set country = 'de'"],
    "nothing is left": ["delete from orders", "delete from customers", "insert into orders values (7, 7, 7, 7, 7, 7, '7', null)"],
    "the first of a group moves": [
        "delete from orders where id = 1",
        "update orders set amount = 99 where id = 3",
        "update orders set customer = 2 where id = 5",
    ],
}


@pytest.mark.parametrize("view", VIEWS)
def test_the_view_is_what_postgres_answers(postgres: Database, view: str, tmp_path: Path) -> None:
    stage = Stage(postgres.connect(), SETUP, tmp_path if view in RESTARTED else None)
    stage.view(*VIEWS[view])
    rng = random.Random(1)
    stage.step(rng)
    for name, statements in HISTORIES.items():
        for number, one in enumerate((AGAIN, *statements)):
            with stage.connection.transaction():
                stage.connection.execute(one)  # type: ignore[arg-type]
            try:
                stage.step(rng)
            except AssertionError as error:
                raise AssertionError(f"{name}, statement {number}") from error
    if view in RESTARTED:
        stage.restart()
    with stage.connection.transaction():
        stage.connection.execute("truncate orders; insert into orders values (1, 1, 1, 1, 1, 1, 'last', null)")
    stage.step(rng, ["public.orders"])
    stage.close()


def test_the_first_row_of_a_partition_has_the_values_of_the_row(postgres: Database) -> None:
    stage = Stage(postgres.connect(), "create table numbers (k numeric(12,2) primary key, f float8)")
    stage.view("SELECT DISTINCT ON (k) k, f FROM numbers ORDER BY k, k DESC NULLS LAST", ["k"])
    stage.connection.execute("insert into numbers values (1, 'NaN'), (2, 0), (3, '-0')")
    stage.step(random.Random(1))
    stage.connection.execute("update numbers set f = case k when 1 then '-0' else 'Infinity' end::float8")
    stage.step(random.Random(1))


def test_an_array_has_each_element_as_postgres_quotes_it(postgres: Database) -> None:
    made = ", ".join(f"array_agg({one} ORDER BY id DESC) AS {one}" for one in ("t", "n", "f", "m", "d", "j", "u", "b"))
    stage = Stage(
        postgres.connect(),
        "create table nasty (id int8 primary key, g int4, t text, n numeric, f float8, m timestamptz, d date, j jsonb, u uuid, b bool)",
    )
    stage.view(f"SELECT g, {made}, array_agg(t ORDER BY id) FILTER (WHERE b) AS some FROM nasty GROUP BY g", ["g"])
    texts = [
        "",
        " ",
        "NULL",
        "null",
        "nULl",
        "nulls",
        'a"b',
        "a\\b",
        "{",
        "}",
        "a,b",
        "a;b",
        "a\tb",
        "a\x0bb",
        "a\nb",
        "\x01",
        "é 漢",
        None,
    ]
    for number, text in enumerate(texts):
        stage.connection.execute("insert into nasty (id, g, t) values (%s, %s, %s)", (number, number % 3, text))
    stage.step(random.Random(1))
    stage.connection.execute(
        """update nasty set n = (array['NaN', '1.10', '-0.00', 'Infinity', '12345678901234567890.5'])[1 + id % 5]::numeric,
        f = (array['NaN', '-0', '1e300', '1e-7', '-Infinity'])[1 + id % 5]::float8, d = (array['infinity', '0044-03-15 BC', '10000-01-01', null])[1 + id % 4]::date,
        m = (array['infinity', '0044-03-15 12:00:00+00 BC', '2024-02-29 06:30:00.1+00', null])[1 + id % 4]::timestamptz,
        j = (array['null', '{"a": 1.10}', '"x\\"y"', '[]', null])[1 + id % 5]::jsonb, b = (array[true, false, null])[1 + id % 3], u = gen_random_uuid()"""
    )
    stage.step(random.Random(1))
    stage.connection.execute("delete from nasty where b")
    stage.step(random.Random(1))
    stage.close()


def test_a_column_that_is_joined_by_twice_is_a_condition_of_its_own(postgres: Database) -> None:
    """Both equalities once made one column of a slice twice."""
    stage = Stage(postgres.connect(), SETUP)
    stage.view(
        "SELECT o.id, c.id AS customer FROM customers c LEFT JOIN orders o ON c.id = o.customer AND c.id = o.big",
        ["id", "customer"],
    )
    stage.connection.execute(FILLED)
    stage.step(random.Random(1))
    stage.connection.execute("update orders set big = customer")
    stage.step(random.Random(1))
    stage.close()


@pytest.mark.parametrize(
    ("sql", "statement", "message"),
    [
        (
            "SELECT customer, sum(customer) AS s FROM orders GROUP BY customer",
            "insert into orders select n, 2147483647 from generate_series(100, 102) n",
            "",
        ),
        (
            "SELECT id AS customer,\n 10 / big AS q FROM orders",
            "update orders set big = 0 where id = 1",
            "line 2, column 5: no value for 1 row: division by zero (22012)",
        ),
        (
            "SELECT id AS customer, amount FROM orders",
            "update orders set amount = 'NaN' where id = 1",
            "public.orders.amount has the value NaN",
        ),
    ],
)
def test_a_value_that_cannot_be_exact_stops_the_view_and_changes_nothing(
    postgres: Database, sql: str, statement: str, message: str
) -> None:
    stage = Stage(postgres.connect(), SETUP)
    stage.view(sql, ["customer"])
    stage.connection.execute(FILLED)
    stage.step(random.Random(1))
    before = stage.kernel.rows()
    stage.connection.execute(statement)  # type: ignore[arg-type]
    if not message:
        stage.step(random.Random(1))
        return
    with pytest.raises(ViewStopped, match=message.replace("(", r"\(").replace(")", r"\)")):
        stage.step(random.Random(1))
    assert stage.kernel.rows().equals(before)
    assert stage.kernel.cut == 1
    stage.close()
