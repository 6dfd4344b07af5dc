"""Headwater: change data capture from Postgres into derived stores.

One position in one log, kept inside every store. ARCHITECTURE.md draws the house.
"""

__version__ = "0.1.0"
