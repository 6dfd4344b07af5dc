"""libpq's effective options: what it makes of a connection string together with its environment and its service files.

A host may come from PGHOST, PGHOSTADDR or a service, and so may sslmode: only libpq knows in which order they count, so it is asked.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import Final

from psycopg import pq
from psycopg.conninfo import make_conninfo

VERIFIED: Final = ("verify-full", "verify-ca")
"""The values of sslmode with which libpq asks who answers."""
CERTAINLY_TLS: Final = (*VERIFIED, "require")
"""… and those with which it talks to nobody without TLS."""
GSS_UNSAID: Final = next(
    ((option.compiled or b"").decode() for option in pq.Conninfo.get_defaults() if option.keyword == b"gssencmode"), "disable"
)
"""libpq's gssencmode where nobody says one; it depends on how libpq was built."""
_BEFORE_CONNECTING: Final = {"target_session_attrs": "headwater-only-asks"}
"""libpq checks its options once all of them are gathered and before it opens a socket; this one it refuses there."""


def effective(parts: Mapping[str, str]) -> dict[str, str]:
    """Every option but target_session_attrs that has a value, by libpq's own word, without connecting. Holds secrets.

    Empty when libpq cannot gather them (a service that does not exist): then it refuses to connect, too.
    """
    started = pq.PGconn.connect_start(make_conninfo(**{**parts, **_BEFORE_CONNECTING}).encode())
    try:
        options = {option.keyword.decode(): option.val.decode("utf-8", "replace") for option in started.info if option.val}
    finally:
        started.finish()
    return {name: value for name, value in options.items() if name not in _BEFORE_CONNECTING}


def is_remote(options: Mapping[str, str]) -> bool:
    """Whether any server that these effective options name may be on another machine. hostaddr counts whatever host says."""
    hosts = [*options.get("host", "").split(","), *options.get("hostaddr", "").split(",")]
    return not all(map(is_local, hosts))


def is_local(host: str) -> bool:
    """Whether libpq's host is on this machine: a Unix socket (libpq: a path, or nothing), or this machine's loopback interface."""
    if not host or host.startswith(("/", "@")) or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
