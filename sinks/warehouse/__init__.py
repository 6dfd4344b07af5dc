"""The warehouse: current tables in Apache Iceberg, position and commit LSN in the same commit as the rows."""

from sinks.warehouse.generations import WarehouseGenerations as generations
from sinks.warehouse.options import Options
from sinks.warehouse.sink import Warehouse, make, traits

__all__ = ["Options", "Warehouse", "generations", "make", "traits"]
