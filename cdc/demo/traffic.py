"""The traffic: the rest of the year, then the year again and again, each time 53 weeks later, at a steady rate."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

import numpy as np
import psycopg

from cdc.demo.flights import FlightEvent, Flights, Times
from cdc.outbox import OutboxMessages, emit

LAP: Final = np.timedelta64(53 * 7, "D")
"""Longer than the year, so that no flight meets itself, and whole weeks, so that a Monday stays a Monday."""
LAP_IDS: Final = 1_000_000
"""A flight's id rises by so much per lap."""
TICK_S: Final = 0.02
MOST_PER_TRANSACTION: Final = 1000
OUTBOX: Final = "outbox"
"""The prefix of the messages by which the application tells others."""

STATEMENTS: Final = {
    FlightEvent.SCHEDULED: """insert into flights (id, day, carrier, number, tailnum, origin, dest, distance_miles, scheduled_departure,
        scheduled_arrival, status) values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, 'scheduled')""",
    FlightEvent.DEPARTED: "update flights set status = 'departed', departed_at = %s, dep_delay_min = %s where id = %s",
    FlightEvent.LANDED: "update flights set status = 'landed', landed_at = %s, arr_delay_min = %s, air_time_min = %s where id = %s",
    FlightEvent.DIVERTED: "update flights set status = 'diverted' where id = %s",
    FlightEvent.CANCELLED: "delete from flights where id = %s",
}

Rows = list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class TrafficStep:
    """One statement for several flights."""

    kind: FlightEvent
    rows: Rows


def steps(flights: Flights, done: int, count: int) -> list[TrafficStep]:
    """Happenings ``done`` to ``done + count`` of the endless year, grouped by kind.

    The groups stand in the order of Kind, so that a flight that is scheduled and departs within one call is there when it departs.
    """
    total = len(flights.happenings)
    at = np.arange(done, done + count)
    lap, kind, flight = at // total, flights.happenings.kind[at % total], flights.happenings.flight[at % total]
    found = []
    for wanted in FlightEvent:
        chosen = np.flatnonzero(kind == wanted)
        if len(chosen):
            found.append(TrafficStep(wanted, _rows(flights, wanted, flight[chosen], lap[chosen])))
    return found


def _rows(flights: Flights, kind: FlightEvent, flight: Any, lap: Any) -> Rows:
    ids = (flight + 1 + lap * LAP_IDS).tolist()
    shift = lap * LAP

    def times(values: Times) -> list[Any]:
        moved: list[Any] = (values[flight] + shift).tolist()
        return moved

    columns: Sequence[list[Any]]
    match kind:
        case FlightEvent.SCHEDULED:
            columns = [
                ids,
                times(flights.plan.day),
                flights.plan.carrier[flight].tolist(),
                flights.plan.number[flight].tolist(),
                flights.plan.tailnum[flight].tolist(),
                flights.plan.origin[flight].tolist(),
                flights.plan.dest[flight].tolist(),
                flights.plan.distance_miles[flight].tolist(),
                times(flights.plan.scheduled_departure),
                times(flights.plan.scheduled_arrival),
            ]
        case FlightEvent.DEPARTED:
            columns = [times(flights.course.departed_at), flights.course.dep_delay_min[flight].tolist(), ids]
        case FlightEvent.LANDED:
            delays = [flights.course.arr_delay_min[flight].tolist(), flights.course.air_time_min[flight].tolist()]
            columns = [times(flights.course.landed_at), *delays, ids]
        case FlightEvent.DIVERTED | FlightEvent.CANCELLED:
            columns = [ids]
    return list(zip(*columns, strict=True))


def diverted(connection: psycopg.Connection[Any], flight: int) -> UUID:
    """Says so to other programs, in the transaction that is open: they hear of it exactly if it is committed. Returns the event's id."""
    return emit(connection, "flight.diverted", flight, {"flight": flight}, outbox=OutboxMessages(OUTBOX))


def due(rate: float, elapsed_s: float, sent: int) -> int:
    """How many changes to make now so that ``sent`` follows ``rate`` (1/s); at most one transaction's worth."""
    return max(0, min(int(rate * elapsed_s) - sent, MOST_PER_TRANSACTION))


class Traffic(threading.Thread):
    """Makes changes until told to stop. Each transaction also records how far the year has come, so a killed demo goes on exactly."""

    def __init__(self, dsn: str, flights: Flights, rate: float) -> None:
        super().__init__(name="traffic", daemon=True)
        self._dsn = dsn
        self._flights = flights
        self._rate = rate
        self._halt = threading.Event()
        self._failed: BaseException | None = None
        self.sent = 0
        self.told: list[str] = []
        """The ids of the events that were committed: one for each flight that is diverted."""
        self.seconds = 0.0

    def run(self) -> None:
        try:
            with psycopg.connect(self._dsn, options="-c timezone=UTC") as connection:
                self._drive(connection)
        except BaseException as error:
            self._failed = error

    def end(self) -> None:
        """Returns when the transaction in progress has ended."""
        self._halt.set()
        if self.is_alive():
            self.join()

    def check(self) -> None:
        """Raises what ended the traffic, if something did."""
        if self._failed is not None:
            raise self._failed

    def _drive(self, connection: psycopg.Connection[Any]) -> None:
        row = connection.execute("select done from demo.progress").fetchone()
        assert row is not None
        done = int(row[0])
        connection.commit()
        started = time.monotonic()
        while not self._halt.is_set():
            self.seconds = time.monotonic() - started
            count = due(self._rate, self.seconds, self.sent)
            if count:
                self._apply(connection, done, count)
                done += count
                self.sent += count
            # Behind schedule there is nothing to wait for.
            if count < MOST_PER_TRANSACTION:
                self._halt.wait(TICK_S)

    def _apply(self, connection: psycopg.Connection[Any], done: int, count: int) -> None:
        told = list[str]()
        with connection.transaction(), connection.cursor() as cursor:
            with connection.pipeline():
                for step in (found := steps(self._flights, done, count)):
                    cursor.executemany(STATEMENTS[step.kind], step.rows)
                cursor.execute("update demo.progress set done = %s", [done + count])
            for flight in (row[-1] for step in found if step.kind is FlightEvent.DIVERTED for row in step.rows):
                told.append(str(diverted(connection, flight)))
        self.told += told
