"""Tables in a SQL database (Postgres), rows and marks in one transaction."""

from sinks.sql.options import Options
from sinks.sql.sink import SqlSink, make, traits

__all__ = ["Options", "SqlSink", "make", "traits"]
