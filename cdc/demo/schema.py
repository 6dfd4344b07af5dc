"""The airport database: what the demo's application would have."""

from __future__ import annotations

from typing import Final

TABLES: Final = """
create table airlines (
    carrier text primary key,
    name    text not null
);
create table airports (
    faa         text primary key,
    name        text not null,
    lat         double precision not null,
    lon         double precision not null,
    altitude_ft integer not null,
    zone        text
);
create table planes (
    tailnum      text primary key,
    built        integer,
    type         text not null,
    manufacturer text not null,
    model        text not null,
    engines      integer not null,
    seats        integer not null,
    engine       text not null
);
create table weather (
    origin             text not null,
    at                 timestamptz not null,
    temperature_f      double precision,
    dew_point_f        double precision,
    humidity_pct       double precision,
    wind_direction_deg integer,
    wind_speed_mph     double precision,
    wind_gust_mph      double precision,
    precipitation_in   double precision,
    pressure_mbar      double precision,
    visibility_miles   double precision,
    primary key (origin, at)
);
create table flights (
    id                  bigint primary key,
    day                 date not null,
    carrier             text not null,
    number              integer not null,
    tailnum             text,
    origin              text not null,
    dest                text not null,
    distance_miles      integer not null,
    scheduled_departure timestamptz not null,
    scheduled_arrival   timestamptz not null,
    departed_at         timestamptz,
    landed_at           timestamptz,
    dep_delay_min       integer,
    arr_delay_min       integer,
    air_time_min        integer,
    status              text not null check (status in ('scheduled', 'departed', 'landed', 'diverted'))
);
create schema demo;
create table demo.progress (done bigint not null);
comment on table demo.progress is 'How much of the year has happened; written with every change that the demo makes.';
"""

CONSTRAINTS: Final = """
alter table weather add foreign key (origin) references airports;
alter table flights
    add unique (day, carrier, number, origin),
    add foreign key (carrier) references airlines,
    add foreign key (origin) references airports,
    add foreign key (dest) references airports;
create index on flights (scheduled_departure);
analyze;
"""
"""Added after the first load, which they would slow down."""
