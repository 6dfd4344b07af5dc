"""The database's first content: everything that happened before the demo begins, in one transaction."""

from __future__ import annotations

import io
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import psycopg
import pyarrow as pa
from psycopg import sql
from pyarrow import csv

from cdc.demo import schema
from cdc.demo.flights import Airport, FlightEvent, Flights, Times

BEGINS: Final = np.datetime64("2013-04-01T00:00:00", "us")
"""Flights before this are there when the daemon starts; the rest of the year is the traffic. A quarter is enough to see every store load,
and few enough rows that it is followed live within the first minute."""


def is_loaded(connection: psycopg.Connection[Any]) -> bool:
    row = connection.execute("select to_regclass('demo.progress') is not null").fetchone()
    return row is not None and bool(row[0])


def load(connection: psycopg.Connection[Any], data: Airport) -> int:
    """Creates the schema and loads it; all or nothing. Returns the number of rows in ``flights``."""
    done = data.flights.happenings.before(BEGINS)
    flights = flights_after(data.flights, done)
    with connection.transaction():
        connection.execute(schema.TABLES)
        for name, table in (("airlines", data.airlines), ("airports", data.airports), ("planes", data.planes)):
            _copy(connection, name, table)
        _copy(connection, "weather", data.weather)
        _copy(connection, "flights", flights)
        connection.execute(schema.CONSTRAINTS)
        connection.execute("insert into demo.progress values (%s)", [done])
    return len(flights)


def flights_after(flights: Flights, done: int) -> pa.Table:
    """The table ``flights`` after the first ``done`` happenings; columns in the table's order."""
    status = np.full(len(flights), -1, np.int8)
    seen = flights.happenings
    # Time order within one flight is the order of Kind, so the greatest that happened is the last.
    np.maximum.at(status, seen.flight[:done], seen.kind[:done])
    there = (status >= 0) & (status != FlightEvent.CANCELLED)
    left = status >= FlightEvent.DEPARTED
    landed = status == FlightEvent.LANDED
    columns = {
        "id": pa.array(np.arange(1, len(flights) + 1)),
        "day": pa.array(flights.plan.day),
        "carrier": pa.array(flights.plan.carrier),
        "number": pa.array(flights.plan.number),
        "tailnum": pa.array(flights.plan.tailnum),
        "origin": pa.array(flights.plan.origin),
        "dest": pa.array(flights.plan.dest),
        "distance_miles": pa.array(flights.plan.distance_miles),
        "scheduled_departure": _timestamps(flights.plan.scheduled_departure),
        "scheduled_arrival": _timestamps(flights.plan.scheduled_arrival),
        "departed_at": _timestamps(flights.course.departed_at, left),
        "landed_at": _timestamps(flights.course.landed_at, landed),
        "dep_delay_min": pa.array(flights.course.dep_delay_min, mask=~left),
        "arr_delay_min": pa.array(flights.course.arr_delay_min, mask=~landed),
        "air_time_min": pa.array(flights.course.air_time_min, mask=~landed),
        "status": pa.array(np.array([kind.name.lower() for kind in FlightEvent])[np.maximum(status, 0)]),
    }
    return pa.table(columns).filter(pa.array(there))


def _timestamps(values: Times, known: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    missing = np.isnat(values) if known is None else np.isnat(values) | ~known
    return pa.array(values, pa.timestamp("us"), mask=missing).cast(pa.timestamp("us", tz="UTC"))


def _copy(connection: psycopg.Connection[Any], name: str, table: pa.Table) -> None:
    content = io.BytesIO()
    csv.write_csv(table, content, csv.WriteOptions(include_header=False))
    statement = sql.SQL("copy {} from stdin (format csv)").format(sql.Identifier(name))
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        copy.write(content.getbuffer())
