"""Walsender bytes → Arrow batches of whole transactions. ``stream.py`` is the only file here that waits; the rest is pure."""
