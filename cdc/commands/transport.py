"""Who could read along: connections that leave this machine without TLS, or without asking who answers. Pure, for ``cdc doctor``."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from cdc.errors import ConfigError
from cdc.settings.models import Settings
from cdc.source.checks import Finding
from cdc.source.connection import parse
from cdc.source.options import VERIFIED, effective, is_local, is_remote


def check_transport(settings: Settings) -> Iterator[Finding]:
    """A line for the source and a warning for each store that is on another machine and reached in a way that does not verify it."""
    try:
        source = effective(parse(settings.source.dsn.get_secret_value()))
    except ConfigError:
        source = {}  # doctor says so already where it connects
    if is_remote(source):
        yield _source(source.get("sslmode", ""))
    for name, options in settings.stores.items():
        for option, url in options.server_urls.items():
            address = urlsplit(url.get_secret_value())
            better = options.plain_schemes.get(address.scheme)
            if better is not None and not is_local(address.hostname or ""):
                yield Finding(
                    "warn",
                    f"store {name} TLS",
                    f"{address.scheme} to {address.hostname} is plain text",
                    f"use {better}:// in stores.{name}.{option}",
                )


def _source(mode: str) -> Finding:
    """mode: libpq's effective sslmode, wherever it is set."""
    if mode in VERIFIED:
        return Finding("ok", "source TLS", f"sslmode={mode}: the server is verified")
    return Finding(
        "warn",
        "source TLS",
        f"sslmode={mode} does not verify which server answers",
        "write sslmode=verify-full in source.dsn, or leave it out there, in the service file and in PGSSLMODE: it is the default",
    )
