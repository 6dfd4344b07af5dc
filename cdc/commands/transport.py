"""Who could read along: connections that leave this machine without TLS, or without asking who answers. Pure, for ``cdc doctor``."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from cdc.errors import ConfigError
from cdc.settings import Settings
from cdc.source.checks import Finding
from cdc.source.connection import is_local, parse

_VERIFIED = ("verify-full", "verify-ca")
_SECURE = {"http": "https", "redis": "rediss"}


def check_transport(settings: Settings) -> Iterator[Finding]:
    """A warning for the source and for each store that is on another machine and reached in a way that does not verify it."""
    try:
        parts = parse(settings.source.dsn.get_secret_value())
    except ConfigError:
        parts = {}  # doctor says so already where it connects
    hosts = parts.get("host", "").split(",")
    mode = parts.get("sslmode")
    if mode is not None and mode not in _VERIFIED and not all(map(is_local, hosts)):
        yield Finding(
            "warn",
            "source TLS",
            f"sslmode={mode} does not verify which server answers",
            "leave sslmode out of source.dsn: verify-full is the default",
        )
    for name, options in settings.stores.items():
        url = getattr(options, "url", None)
        if url is None:
            continue
        address = urlsplit(url if isinstance(url, str) else url.get_secret_value())
        better = _SECURE.get(address.scheme)
        if better is not None and not is_local(address.hostname or ""):
            yield Finding(
                "warn",
                f"store {name} TLS",
                f"{address.scheme} to {address.hostname} is plain text",
                f"use {better}:// in stores.{name}.url",
            )
