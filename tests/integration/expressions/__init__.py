"""Expressions beside Postgres itself."""
