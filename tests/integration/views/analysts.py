"""Queries as an analyst writes them, over a shop's tables, each with its key; and those that a view refuses, with what it says."""

from __future__ import annotations

from typing import Final

KEPT: Final[dict[str, tuple[str, list[str]]]] = {
    "full join of two tables": (
        "SELECT coalesce(o.id, 0) AS o, o.id AS oid, c.id AS cid, coalesce(c.name, o.note, 'nobody') AS who FROM orders o FULL OUTER JOIN customers c ON o.customer_id = c.id",
        ["oid", "cid"],
    ),
    "right join with a filter on the kept side": (
        "SELECT o.id, c.name FROM customers c RIGHT JOIN orders o ON c.id = o.customer_id WHERE o.status IN ('new', 'paid')",
        ["id"],
    ),
    "self-join to the parent": (
        "SELECT c.id, c.name, p.name AS parent_name, g.name AS grand FROM customers c LEFT JOIN customers p ON p.id = c.parent LEFT JOIN customers g ON g.id = p.parent",
        ["id"],
    ),
    "anti-join of distinct keys": (
        "SELECT c.id FROM customers c LEFT JOIN (SELECT DISTINCT customer_id FROM orders WHERE status = 'paid') o ON o.customer_id = c.id WHERE o.customer_id IS NULL",
        ["id"],
    ),
    "many to many": (
        "SELECT p.sku, t.tag_id, p.title, t.label FROM products p JOIN product_tags pt USING (sku) JOIN tags t USING (tag_id)",
        ["sku", "tag_id"],
    ),
    "quoted names": (
        """SELECT "l"."Order Id" AS "The Order", l."Line", l.qty AS "Quantity (pcs)" FROM "Order Lines" AS l WHERE l."Line" BETWEEN 1 AND 2""",
        ["The Order", "Line"],
    ),
    "case with several branches": (
        """SELECT id, CASE WHEN total IS NULL THEN 'unknown' WHEN total < 0 THEN 'refund' WHEN total BETWEEN 0 AND 2 THEN 'small' ELSE 'large' END AS size,
        CASE status WHEN 'new' THEN 1 WHEN 'paid' THEN 2 ELSE NULL END AS step FROM orders""",
        ["id"],
    ),
    "group by a case": (
        """SELECT CASE WHEN total < 0 THEN 'refund' WHEN total >= 0 THEN 'sale' ELSE 'unknown' END AS kind, count(*) AS n, sum(total) AS total
        FROM orders GROUP BY CASE WHEN total < 0 THEN 'refund' WHEN total >= 0 THEN 'sale' ELSE 'unknown' END""",
        ["kind"],
    ),
    "group by numbers": (
        "SELECT country, active, count(*) AS n, avg(credit) AS credit FROM customers GROUP BY 1, 2",
        ["country", "active"],
    ),
    "group by the alias": ("SELECT coalesce(country, '?') AS land, count(*) AS n FROM customers GROUP BY land", ["land"]),
    "having what is not shown": (
        "SELECT customer_id FROM orders GROUP BY customer_id HAVING count(*) > 1 AND sum(total) > 0",
        ["customer_id"],
    ),
    "having with an aggregate of a join": (
        """SELECT c.country, count(DISTINCT c.id) AS customers, count(o.id) AS orders FROM customers c LEFT JOIN orders o ON o.customer_id = c.id
        GROUP BY c.country HAVING count(o.id) FILTER (WHERE o.status = 'paid') >= 1 OR c.country IS NULL""",
        ["country"],
    ),
    "conditional counts": (
        """SELECT customer_id, count(*) FILTER (WHERE status = 'paid') AS paid, count(*) FILTER (WHERE status <> 'paid') AS others,
        sum(CASE WHEN status = 'cancelled' THEN 1 ELSE 0 END) AS cancelled, sum(total) FILTER (WHERE total > 0) AS gross FROM orders GROUP BY customer_id""",
        ["customer_id"],
    ),
    "totals of all rows": (
        "SELECT 1 AS one, count(*) AS n, count(credit) AS known, sum(credit) AS credit, avg(credit) AS mean, bool_or(active) AS some, bool_and(active) AS every FROM customers",
        ["one"],
    ),
    "share of a total": (
        """SELECT customer_id, round(100.0 * count(*) FILTER (WHERE status = 'paid') / count(*), 2) AS percent,
        sum(total) / nullif(count(total), 0) AS mean FROM orders GROUP BY customer_id""",
        ["customer_id"],
    ),
    "averages of integers": (
        """SELECT sku, avg(qty) AS mean, sum(qty) AS qty, min(qty) AS least, max(qty) AS most, avg("Line") AS line FROM "Order Lines" GROUP BY sku""",
        ["sku"],
    ),
    "sums of different scales": (
        """SELECT l.sku, sum(l.qty * l.price) AS amount, sum(p.cost * l.qty) AS cost, sum(l.qty * l.price - p.cost) AS margin FROM "Order Lines" l JOIN products p ON p.sku = l.sku GROUP BY l.sku""",
        ["sku"],
    ),
    "a numeric without a scale": (
        "SELECT customer_id, sum(free) AS free, avg(free) AS mean, count(free) AS n FROM orders GROUP BY customer_id",
        ["customer_id"],
    ),
    "rounded quotients": (
        "SELECT id, round(total / 3, 2) AS third, total / 7 AS seventh, trunc(total) AS whole, abs(total) AS positive, total % 2 AS rest FROM orders",
        ["id"],
    ),
    "whole quotients": (
        'SELECT "Order Id" AS o, "Line" AS l, qty / 2 AS half, qty % 2 AS odd, -qty AS minus, qty::numeric / 3 AS third FROM "Order Lines"',
        ["o", "l"],
    ),
    "by month": (
        "SELECT date_trunc('month', placed_at AT TIME ZONE 'UTC') AS month, count(*) AS n, sum(total) AS total FROM orders GROUP BY date_trunc('month', placed_at AT TIME ZONE 'UTC')",
        ["month"],
    ),
    "by day in a zone": (
        "SELECT (placed_at AT TIME ZONE 'UTC')::date AS day, count(*) AS n FROM orders WHERE placed_at IS NOT NULL GROUP BY 1",
        ["day"],
    ),
    "by year and month": (
        "SELECT extract(year FROM placed_at AT TIME ZONE 'UTC')::int AS y, extract(month FROM placed_at AT TIME ZONE 'UTC')::int AS m, count(*) AS n FROM orders GROUP BY 1, 2",
        ["y", "m"],
    ),
    "moments compared": (
        "SELECT id FROM orders WHERE placed_at >= '2024-01-01 00:00:00+00' AND placed_at < timestamptz '2024-03-01 00:00:00+00'",
        ["id"],
    ),
    "first and last moments": (
        "SELECT customer_id, min(placed_at) AS first, max(placed_at) AS last, max(due) AS due FROM orders GROUP BY customer_id",
        ["customer_id"],
    ),
    "nulls in conditions": (
        "SELECT id FROM customers WHERE NOT (active AND credit > 0) OR (country IS NULL AND active IS NOT TRUE)",
        ["id"],
    ),
    "distinct from": (
        "SELECT c.id, c.parent IS DISTINCT FROM c.id AS other, c.active IS NOT DISTINCT FROM TRUE AS on FROM customers c WHERE c.country IS DISTINCT FROM 'paid'",
        ["id"],
    ),
    "not in a list": ("SELECT id, status FROM orders WHERE status NOT IN ('new', 'paid') AND customer_id NOT IN (1, 2)", ["id"]),
    "distinct rows": ("SELECT DISTINCT country, active FROM customers", ["country", "active"]),
    "distinct expressions": (
        "SELECT DISTINCT coalesce(status, 'none') AS status, total IS NULL AS unpriced FROM orders",
        ["status", "unpriced"],
    ),
    "branches": (
        """SELECT 'order' AS source, o.id, o.note AS text, o.placed_at AS at FROM orders o
        UNION ALL SELECT 'customer', c.id, c.name, c.joined FROM customers c WHERE c.active""",
        ["source", "id"],
    ),
    "branches grouped": (
        """SELECT e.kind, e.who, count(*) AS n FROM (SELECT 'o' AS kind, id, customer_id AS who FROM orders UNION ALL SELECT 'c' AS kind, id, parent FROM customers) e
        GROUP BY e.kind, e.who""",
        ["kind", "who"],
    ),
    "first by distinct on": (
        "SELECT DISTINCT ON (customer_id) customer_id, id, placed_at, total FROM orders ORDER BY customer_id, placed_at DESC NULLS LAST, id DESC",
        ["customer_id"],
    ),
    "first three of each": (
        """SELECT r.customer_id, r.place, r.id, r.total FROM (SELECT customer_id, id, total, row_number() OVER (PARTITION BY customer_id ORDER BY total DESC NULLS LAST, id) AS place
        FROM orders WHERE status <> 'cancelled') r WHERE r.place <= 3""",
        ["customer_id", "place"],
    ),
    "named queries joined": (
        """WITH paid AS (SELECT customer_id, count(*) AS n, sum(total) AS total FROM orders WHERE status = 'paid' GROUP BY customer_id),
        open AS (SELECT customer_id, count(*) AS n FROM orders WHERE status IN ('new', '') GROUP BY customer_id)
        SELECT c.id, c.name, coalesce(p.n, 0) AS paid, coalesce(o.n, 0) AS open, p.total FROM customers c LEFT JOIN paid p ON p.customer_id = c.id LEFT JOIN open o ON o.customer_id = c.id""",
        ["id"],
    ),
    "a named query used twice": (
        """WITH n AS (SELECT parent AS id, count(*) AS children FROM customers GROUP BY parent)
        SELECT c.id, a.children AS mine, b.children AS parents FROM customers c LEFT JOIN n a ON a.id = c.id LEFT JOIN n b ON b.id = c.parent""",
        ["id"],
    ),
    "queries within queries": (
        """SELECT q.level, count(*) AS customers, sum(q.orders) AS orders FROM (
            SELECT s.customer_id, s.orders, CASE WHEN s.orders > 2 THEN 'many' ELSE 'few' END AS level FROM (
                SELECT customer_id, count(*) AS orders FROM orders GROUP BY customer_id) s WHERE s.customer_id IS NOT NULL) q
        GROUP BY q.level""",
        ["level"],
    ),
    "a group joined to its rows": (
        "SELECT o.id, o.total, s.mean, o.total - s.mean AS off FROM orders o JOIN (SELECT customer_id, avg(total) AS mean FROM orders GROUP BY customer_id) s ON s.customer_id = o.customer_id",
        ["id"],
    ),
    "documents": (
        """SELECT c.id, jsonb_build_object('id', c.id, 'name', c.name, 'joined', c.joined) AS doc, coalesce(s.orders, '[]'::jsonb) AS orders FROM customers c
        LEFT JOIN (SELECT customer_id, jsonb_agg(jsonb_build_object('id', id, 'total', total, 'free', free, 'weight', weight) ORDER BY placed_at, id) AS orders FROM orders GROUP BY customer_id) s
        ON s.customer_id = c.id""",
        ["id"],
    ),
    "a map of values": (
        "SELECT customer_id, jsonb_object_agg(id::text, total ORDER BY id) AS totals FROM orders GROUP BY customer_id",
        ["customer_id"],
    ),
    "arrays and enums carried": (
        "SELECT p.sku, p.labels, c.id, c.mood FROM products p JOIN customers c ON c.name = p.sku",
        ["sku", "id"],
    ),
    "enums as texts": ("SELECT mood::text AS mood, count(*) AS n FROM customers GROUP BY mood::text", ["mood"]),
    "bounds of texts": (
        """SELECT country, min(name COLLATE "C") AS first, max(name COLLATE "C") AS last FROM customers GROUP BY country""",
        ["country"],
    ),
    "greatest and least": (
        "SELECT id, greatest(total, 0) AS t, least(total, 1, NULL) AS u, nullif(status, '') AS status FROM orders",
        ["id"],
    ),
    "dates": ("SELECT id, due - date '2024-01-01' AS days, due + 1 AS next, due > '2024-01-01' AS later FROM orders", ["id"]),
    "using merges the column": (
        "SELECT sku, pt.tag_id, p.title FROM product_tags pt LEFT JOIN products p USING (sku)",
        ["sku", "tag_id"],
    ),
    "joined with a second condition": (
        "SELECT c.id, o.id AS o FROM customers c LEFT JOIN orders o ON o.customer_id = c.id AND o.status = 'paid' AND o.total > 0",
        ["id", "o"],
    ),
    "pairs of one customer": (
        "SELECT a.id AS a, b.id AS b FROM orders a JOIN orders b ON a.customer_id = b.customer_id AND a.id < b.id",
        ["a", "b"],
    ),
    "where on the side that may be missing": (
        "SELECT o.id, c.name FROM orders o LEFT JOIN customers c ON c.id = o.customer_id WHERE c.active IS NOT FALSE",
        ["id"],
    ),
    "bools counted": (
        "SELECT country, sum(active::int) AS n, count(*) - count(active) AS unknown FROM customers GROUP BY country",
        ["country"],
    ),
    "filter on a count distinct": (
        "SELECT country, count(DISTINCT name) FILTER (WHERE active) AS n FROM customers GROUP BY country",
        ["country"],
    ),
    "three outer joins": (
        """SELECT c.id AS customer, o.id AS "order", l."Order Id" AS of_order, l."Line" AS line, c.name, o.status, l.qty * l.price AS amount, p.title
        FROM customers c
        LEFT JOIN orders o ON o.customer_id = c.id
        LEFT JOIN "Order Lines" l ON l."Order Id" = o.id
        LEFT JOIN products p USING (sku)""",
        ["customer", "order", "of_order", "line"],
    ),
    "patterns": (
        r"""SELECT id, name LIKE 'a%' AS a, lower(name COLLATE "C") LIKE '%b%' AS b, name LIKE '\_%' AS underscore, name NOT LIKE '%''%' AS quoted FROM customers WHERE name LIKE '_%'""",
        ["id"],
    ),
    "texts": (
        """SELECT id, upper(name COLLATE "C") AS up, lower(name COLLATE "C") AS low, length(name) AS n, trim(name) AS bare, substring(name FROM 1 FOR 1) AS first, replace(name, 'a', 'o') AS o,
        name || ' <' || coalesce(country, '') || '>' AS shown, left(name, 1) AS l, split_part(name, ' ', 1) AS f, position('b' IN name) AS at, md5(name) AS m FROM customers""",
        ["id"],
    ),
    "casts": (
        "SELECT id, id::text AS t, total::bigint AS whole, total::numeric(14,1) AS short, CAST(customer_id AS text) || '/' || id AS path, (placed_at AT TIME ZONE 'UTC')::date AS day FROM orders WHERE abs(total) < 1000",
        ["id"],
    ),
    "json members": ("SELECT id, prefs -> 'a' AS a, prefs ->> 'a' AS text, prefs -> 'b' ->> 'c' AS c FROM customers", ["id"]),
    "json conditions": (
        "SELECT sku, attrs ->> 'a' AS a FROM products WHERE attrs ->> 'a' IS NOT NULL OR attrs -> 'b' -> 'c' ->> 0 = '1'",
        ["sku"],
    ),
    "the best line with its product": (
        """WITH ranked AS (SELECT l."Order Id" AS o, l.sku, l.qty, row_number() OVER (PARTITION BY l."Order Id" ORDER BY l.qty DESC NULLS LAST, l."Line") AS n FROM "Order Lines" l)
        SELECT r.o, r.n, r.sku, p.title FROM ranked r LEFT JOIN products p ON p.sku = r.sku WHERE r.n = 1""",
        ["o", "n"],
    ),
    "joined by an expression": (
        "SELECT o.id, c.id AS customer FROM (SELECT id, coalesce(status, '') AS s FROM orders) o JOIN (SELECT id, coalesce(country, '') AS s FROM customers) c ON o.s = c.s",
        ["id", "customer"],
    ),
    "joined by a cast": (
        "SELECT p.sku, c.id FROM products p JOIN (SELECT id, 'a' || id::text AS code FROM customers) c ON c.code = p.sku",
        ["sku", "id"],
    ),
    "listed once each": (
        """SELECT d.customer_id, string_agg(d.status, ',' ORDER BY d.status COLLATE "C") AS s, array_agg(d.status ORDER BY d.status COLLATE "C" DESC) AS a
        FROM (SELECT DISTINCT customer_id, status FROM orders) d GROUP BY d.customer_id""",
        ["customer_id"],
    ),
    "arrays of moments": (
        "SELECT customer_id, array_agg(placed_at ORDER BY placed_at, id) AS at, array_agg(total ORDER BY id DESC) FILTER (WHERE total > 0) AS totals FROM orders GROUP BY customer_id",
        ["customer_id"],
    ),
    "many to many, listed": (
        """SELECT p.sku, p.title, string_agg(t.label, ', ' ORDER BY t.label COLLATE "C", pt.tag_id) AS labels, array_agg(t.label ORDER BY pt.tag_id DESC) AS tags
        FROM products p LEFT JOIN product_tags pt ON pt.sku = p.sku LEFT JOIN tags t ON t.tag_id = pt.tag_id GROUP BY p.sku, p.title""",
        ["sku", "title"],
    ),
    "orphans": (
        "SELECT o.id, o.customer_id FROM orders o LEFT JOIN customers c ON c.id = o.customer_id WHERE c.id IS NULL AND o.customer_id IS NOT NULL",
        ["id"],
    ),
    "texts in conditions": (
        """SELECT id, name COLLATE "C" > 'a' AS later, name COLLATE "C" BETWEEN 'A' AND 'b' AS within FROM customers WHERE name <> '' OR name IS NULL""",
        ["id"],
    ),
    "anti-join": ("""SELECT c.id, c.name FROM customers c LEFT JOIN orders o ON o.customer_id = c.id WHERE o.id IS NULL""", ["id"]),
    "three outer joins by the shortest key": (
        """SELECT c.id AS customer, o.id AS "order", l."Line" AS line, c.name, o.status, l.qty * l.price AS amount, p.title
        FROM customers c
        LEFT JOIN orders o ON o.customer_id = c.id
        LEFT JOIN "Order Lines" l ON l."Order Id" = o.id
        LEFT JOIN products p USING (sku)""",
        ["customer", "order", "line"],
    ),
    "the best line by its order alone": (
        """WITH ranked AS (SELECT l."Order Id" AS o, l.sku, l.qty, row_number() OVER (PARTITION BY l."Order Id" ORDER BY l.qty DESC NULLS LAST, l."Line") AS n FROM "Order Lines" l)
        SELECT r.o, r.sku, p.title FROM ranked r LEFT JOIN products p ON p.sku = r.sku WHERE r.n = 1""",
        ["o"],
    ),
    "grouped by the primary key": (
        "SELECT c.id, c.name, upper(c.country COLLATE \"C\") AS land, count(o.id) AS orders, string_agg(o.note, ',' ORDER BY o.id) AS notes FROM customers c LEFT JOIN orders o ON o.customer_id = c.id GROUP BY c.id",
        ["id"],
    ),
    "grouped by a key that may be missing": (
        'SELECT p.sku, p.title, p.cost, sum(l.qty) AS qty, count(*) AS n FROM "Order Lines" l LEFT JOIN products p ON p.sku = l.sku GROUP BY p.sku HAVING p.cost IS NULL OR p.cost >= 0',
        ["sku"],
    ),
}

REFUSED: Final[dict[str, tuple[str, list[str], str]]] = {
    "any of an array": (
        "SELECT id FROM orders WHERE status = ANY (ARRAY['new', 'shipped']) OR customer_id = ANY ('{1,2}'::bigint[])",
        ["id"],
        "line 1, column 105: casts to arrays are not possible",
    ),
    "patterns": (
        r"SELECT id, name LIKE 'a%' AS a, name ILIKE '%B%' AS b, name LIKE '\_%' AS underscore, name NOT LIKE '%''%' AS quoted FROM customers WHERE name LIKE '_%'",
        ["id"],
        "line 1, column 38: ILIKE depends on the database's collation",
    ),
    "texts": (
        """SELECT id, upper(name) AS up, lower(name) AS low, length(name) AS n, trim(name) AS bare, substring(name FROM 1 FOR 1) AS first, replace(name, 'a', 'o') AS o,
        name || ' <' || coalesce(country, '') || '>' AS shown, concat(name, '-', country) AS joined, left(name, 1) AS l FROM customers""",
        ["id"],
        "line 1, column 12: upper of texts depends on the database's collation",
    ),
    "json members": (
        "SELECT id, prefs -> 'a' AS a, prefs ->> 'a' AS text, prefs -> 'b' ->> 'c' AS c, prefs #>> '{b,c,1}' AS deep FROM customers",
        ["id"],
        "line 1, column 87: #>> is not one of the functions that an expression may use",
    ),
    "json conditions": (
        "SELECT sku, attrs ->> 'a' AS a FROM products WHERE attrs ? 'a' OR attrs -> 'b' -> 'c' ->> 0 = '1'",
        ["sku"],
        "line 1, column 58: ? is not one of the functions that an expression may use",
    ),
    "json contains": (
        """SELECT sku FROM products WHERE attrs @> '{"a": "1"}'""",
        ["sku"],
        "line 1, column 38: @> is not one of the functions that an expression may use",
    ),
    "casts of columns": (
        "SELECT id, id::text AS t, total::bigint AS whole, total::numeric(14,1) AS short, CAST(customer_id AS text) || '/' || id AS path, due::text AS due, placed_at::text AS at FROM orders",
        ["id"],
        "line 1, column 133: a cast from date to text depends on the session's settings",
    ),
    "intervals": (
        "SELECT id FROM orders WHERE placed_at > timestamptz '2024-03-01 00:00:00+00' - interval '1 day'",
        ["id"],
        "line 1, column 80: casts to interval are not possible",
    ),
    "full join using": (
        "SELECT sku, p.title, pt.tag_id FROM products p FULL JOIN product_tags pt USING (sku)",
        ["sku", "tag_id"],
        "line 1, column 81: USING of a FULL JOIN makes a column of both sides",
    ),
    "joined by an expression": (
        "SELECT o.id, c.id AS customer FROM orders o JOIN customers c ON lower(c.country) = lower(o.status)",
        ["id", "customer"],
        "line 1, column 45: a join without an equality of columns of both sides is a cross join: one change could reach every row",
    ),
    "joined by a cast": (
        "SELECT p.sku, c.id FROM products p JOIN customers c ON c.id::text = p.sku",
        ["sku", "id"],
        "line 1, column 36: a join without an equality of columns of both sides is a cross join: one change could reach every row",
    ),
    "sum of distinct": (
        "SELECT customer_id, sum(DISTINCT total) AS s FROM orders GROUP BY customer_id",
        ["customer_id"],
        "line 1, column 21: sum(DISTINCT …) is not kept up",
    ),
    "listed once each": (
        """SELECT customer_id, string_agg(DISTINCT status, ',' ORDER BY status) AS s, array_agg(DISTINCT status COLLATE "C" ORDER BY status COLLATE "C") AS a FROM orders GROUP BY customer_id""",
        ["customer_id"],
        "line 1, column 21: string_agg(DISTINCT …) is not kept up",
    ),
    "ranks": (
        "SELECT id, rank() OVER (PARTITION BY customer_id ORDER BY total) AS r FROM orders",
        ["id"],
        "line 1, column 12: rank is not kept up",
    ),
    "running total": (
        "SELECT id, sum(total) OVER (PARTITION BY customer_id ORDER BY id) AS r FROM orders",
        ["id"],
        "line 1, column 12: sum as a window function is not kept up",
    ),
    "lateral": (
        "SELECT c.id, x.id AS o FROM customers c CROSS JOIN LATERAL (SELECT id FROM orders o WHERE o.customer_id = c.id ORDER BY id LIMIT 1) x",
        ["id"],
        "line 1, column 41: CROSS JOIN is not kept up: one change could reach every row",
    ),
    "natural": (
        "SELECT sku, tag_id FROM products NATURAL JOIN product_tags",
        ["sku", "tag_id"],
        "line 1, column 34: NATURAL JOIN is not possible: a column that is added later would change the view",
    ),
    "exists": (
        "SELECT c.id FROM customers c WHERE EXISTS (SELECT 1 FROM orders o WHERE o.customer_id = c.id)",
        ["id"],
        "line 1, column 36: EXISTS within an expression is not kept up",
    ),
    "in a query": (
        "SELECT id FROM customers WHERE id IN (SELECT customer_id FROM orders)",
        ["id"],
        "line 1, column 39: SELECT within an expression is not kept up",
    ),
    "a query as a column": (
        "SELECT c.id, (SELECT count(*) FROM orders o WHERE o.customer_id = c.id) AS n FROM customers c",
        ["id"],
        "line 1, column 15: SELECT within an expression is not kept up",
    ),
    "overlapping dates": (
        "SELECT a.id, b.id AS b FROM orders a JOIN orders b ON b.due BETWEEN a.due AND a.due + 1 AND a.id <> b.id",
        ["id", "b"],
        "line 1, column 38: a join without an equality of columns of both sides is a cross join: one change could reach every row",
    ),
    "regular expressions": (
        "SELECT id, name ~ '^a' AS a FROM customers",
        ["id"],
        "line 1, column 17: ~ is not possible: Postgres's regular expressions have no exact counterpart here, and some never end",
    ),
    "the month's name": (
        "SELECT id, to_char(placed_at, 'YYYY-MM') AS m FROM orders",
        ["id"],
        "line 1, column 12: to_char is not possible: its answer depends on the session",
    ),
    "medians": (
        "SELECT customer_id, percentile_cont(0.5) WITHIN GROUP (ORDER BY total) AS m FROM orders GROUP BY customer_id",
        ["customer_id"],
        "line 1, column 21: percentile_cont is not kept up",
    ),
    "grouping sets": (
        "SELECT country, count(*) AS n FROM customers GROUP BY ROLLUP (country)",
        ["country"],
        "line 1, column 55: ROLLUP is not kept up",
    ),
    "row values": (
        "SELECT id FROM orders WHERE (customer_id, status) = (1, 'paid')",
        ["id"],
        "line 1, column 29: row values are not possible",
    ),
    "order by at the end": (
        "SELECT id FROM orders ORDER BY id",
        ["id"],
        "line 1, column 23: ORDER BY has no meaning for a view, whose rows have a key and no order",
    ),
    "limit": ("SELECT id FROM orders LIMIT 10", ["id"], "line 1, column 23: LIMIT is not kept up: one change could move every row"),
    "stars": (
        "SELECT * FROM orders",
        ["id"],
        "line 1, column 8: * is not possible: a column that is added later would change the view",
    ),
    "a comma": (
        "SELECT o.id FROM orders o, customers c WHERE c.id = o.customer_id",
        ["id"],
        "line 1, column 26: a comma in FROM is a cross join: one change could reach every row",
    ),
    "now": (
        "SELECT id FROM orders WHERE placed_at > now() - interval '1 day'",
        ["id"],
        "line 1, column 41: now is not possible: its answer changes with time",
    ),
    "union": (
        "SELECT status AS s FROM orders UNION SELECT country FROM customers",
        ["s"],
        "line 1, column 32: UNION without ALL is not kept up",
    ),
    "columns of a name": (
        "WITH x(a, b) AS (SELECT id, name FROM customers) SELECT a, b FROM x",
        ["a"],
        "line 1, column 7: names of columns are not possible here",
    ),
    "coalesced array": (
        "SELECT customer_id, coalesce(array_agg(id ORDER BY id) FILTER (WHERE total > 0), '{}') AS ids FROM orders GROUP BY customer_id",
        ["customer_id"],
        "line 1, column 82: constants of type bigint[] are not possible",
    ),
    "parenthesised select": (
        "(SELECT id FROM orders)",
        ["id"],
        "line 1, column 1: parentheses around a SELECT are not possible here",
    ),
    "values": (
        "SELECT o.id, v.word FROM orders o JOIN (VALUES ('new', 1), ('paid', 2)) AS v(status, word) ON v.status = o.status",
        ["id"],
        "line 1, column 41: VALUES is not kept up",
    ),
    "overlay of nulls": (
        "SELECT concat_ws(', ', name, country) AS s, id FROM customers",
        ["id"],
        "line 1, column 8: concat_ws is not possible: its answer depends on the session",
    ),
    "split": (
        "SELECT id, split_part(name, ' ', 1) AS f, position('b' IN name) AS at, initcap(name) AS i, md5(name) AS m FROM customers",
        ["id"],
        "line 1, column 72: initcap is not possible: its answer depends on the database's collation",
    ),
    "grouped by the primary key beside a document": (
        "SELECT c.id, c.prefs, count(*) AS n FROM customers c GROUP BY c.id",
        ["id"],
        "line 1, column 14: GROUP BY of jsonb is not kept up",
    ),
}
"""The message is behind the view's name: a place, where it has one, and the construct."""
