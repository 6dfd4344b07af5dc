"""Headwater: change data capture from Postgres into derived stores.

One position in one log, kept inside every store. ARCHITECTURE.md draws the house.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cdc.version import VERSION

if TYPE_CHECKING:
    from cdc.client.api import Client

__version__ = VERSION


def connect(config: str | Path = "cdc.toml") -> Client:
    """The stores of one configuration, for programs: ``cdc.connect("cdc.toml").wait("search", lsn)``. See ``cdc.client.api``."""
    from cdc.client.api import connect as connect_client

    return connect_client(config)
