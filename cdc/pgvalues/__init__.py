"""Postgres's formats of values → Arrow, for the stream, the snapshot and the audit alike. Pure."""
