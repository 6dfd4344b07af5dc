"""How the source may ask who we are: so that nobody else who answers is given the password.

libpq by itself sends the password to any server that asks for it, in clear text or as MD5. By default we let it prove that it knows the password
(SCRAM) or show a ticket (GSS), and let a server be that asks for nothing (trust, peer, a client certificate). Over TLS the proof is bound to
the connection (SCRAM-SHA-256-PLUS), so that it is worth nothing to a proxy that ended TLS in between.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

import psycopg

from cdc.source.options import CERTAINLY_TLS, effective

REQUIRE_AUTH: Final = "scram-sha-256,gss,none"
"""libpq's require_auth where nobody says one."""
_BOUND: Final = {"require_auth": "scram-sha-256", "channel_binding": "require"}
_WITHOUT_PASSWORD: Final = {"require_auth": "gss,none"}
_UNSAID_BINDING: Final = "prefer"


def with_methods(parts: Mapping[str, str]) -> dict[str, str]:
    """The parameters with ``require_auth``: the user's own, wherever it is set, else ours."""
    said = "require_auth" in effective(parts)
    return dict(parts) if said else {**parts, "require_auth": REQUIRE_AUTH}


def ways(parts: Mapping[str, str]) -> tuple[dict[str, str], ...]:
    """The parameters to connect with; the next ones where ``refuses_method`` says so of the error.

    channel_binding=require refuses a server that asks for no password at all, so the two are asked for after each other: a bound proof
    first, then no password.
    """
    options = effective(parts)
    said = "channel_binding" in parts or "PGCHANNELBINDING" in os.environ or options.get("channel_binding") != _UNSAID_BINDING
    if said or options.get("require_auth") != REQUIRE_AUTH or options.get("sslmode") not in CERTAINLY_TLS:
        return (dict(parts),)
    return {**parts, **_BOUND}, {**parts, **_WITHOUT_PASSWORD}


def refuses_method(error: psycopg.Error) -> bool:
    """Whether libpq broke off because of how the server asked who we are. libpq has no codes, but it names the requirement as it stands."""
    return any(f'"{given}"' in str(error) for given in (REQUIRE_AUTH, *_BOUND.values(), *_WITHOUT_PASSWORD.values()))


def hint(error: psycopg.Error, given_as: str) -> str | None:
    """The hint for an error in authentication; None for any other error."""
    text = str(error)
    if "channel binding" in text:
        return (
            "TLS ends before Postgres, in a proxy or with somebody who listens; if it is a proxy of yours, "
            f"allow it with channel_binding=prefer in {given_as}"
        )
    if not refuses_method(error):
        return None
    if "hashed password" in text:
        return (
            "give the role a SCRAM password (SET password_encryption = 'scram-sha-256', then \\password), "
            f"or allow MD5 with require_auth=md5 in {given_as}"
        )
    if "cleartext password" in text:
        return (
            "use scram-sha-256 in pg_hba.conf; where it has to be password, ldap, pam or radius, allow it with "
            f"require_auth=password in {given_as}, over TLS only"
        )
    return f"allow what the server asks for with require_auth= in {given_as} (libpq's manual lists the methods)"
