"""The table and the work that the benchmarks share: 60 % inserts, 30 % updates, 10 % deletes in transactions of 100."""

from __future__ import annotations

import psycopg

PUBLICATION = "bench"
TRANSACTION = 100


def create_orders(connection: psycopg.Connection) -> None:
    connection.execute(
        "create table orders (id bigint primary key, customer_id bigint, status text, amount numeric(12,2), note text, "
        "created_at timestamptz)"
    )
    connection.execute(f"create publication {PUBLICATION} for table orders")


ROW = (
    "g, g % 97777, (array['new','paid','shipped','returned'])[1 + g % 4], (g % 100000) * 0.25, 'note for order ' || g, "
    "timestamptz '2026-01-01 00:00:00.123456+00' + g * interval '1 second'"
)


def fill_orders(connection: psycopg.Connection, rows: int) -> None:
    connection.execute(f"insert into orders select {ROW} from generate_series(1, {int(rows)}) g")
    connection.execute("vacuum (freeze, analyze) orders")


def load_changes(connection: psycopg.Connection, changes: int) -> None:
    """``changes`` changes in all; a multiple of 1,000."""
    assert changes % 1000 == 0
    connection.execute("set synchronous_commit = off")
    connection.execute(
        f"""
        create or replace procedure load(thousands int) language plpgsql as $$
        declare k int;
        begin
            for k in 0 .. thousands * 6 - 1 loop
                insert into orders select {ROW} from generate_series(k * {TRANSACTION} + 1, (k + 1) * {TRANSACTION}) g;
                commit;
            end loop;
            for k in 0 .. thousands * 3 - 1 loop
                update orders set status = 'changed', amount = amount + 1
                where id between k * {TRANSACTION} + 1 and (k + 1) * {TRANSACTION};
                commit;
            end loop;
            for k in 0 .. thousands - 1 loop
                delete from orders where id between k * {TRANSACTION} + 1 and (k + 1) * {TRANSACTION};
                commit;
            end loop;
        end $$"""
    )
    connection.execute(f"call load({changes // 1000})")
    connection.execute("set synchronous_commit = on")
    connection.execute("select pg_logical_emit_message(true, 'bench', 'end')")
