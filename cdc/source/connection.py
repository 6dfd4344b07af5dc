"""A connection to the source, and its errors as one line without secrets."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from cdc.errors import ConfigError, SourceError, SourceUnreachable, presentable
from cdc.model.pgtypes import HAS_TRANSACTION_TIMEOUT, PINNED_SETTINGS
from cdc.source import authentication
from cdc.source.options import GSS_UNSAID, effective, is_remote
from cdc.source.patience import PatientConnection

CONNECT_TIMEOUT_S: Final = 10
ALIVE: Final = {
    "keepalives": "1",
    "keepalives_idle": "15",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    # What we have sent and nobody acknowledges; keepalives notice a peer that has vanished while we wait.
    "tcp_user_timeout": "30000",
}
"""libpq's parameters by which a server that vanished without a word is noticed after half a minute."""
DEFAULT_PORT: Final = "5432"
_UNSAID: Final = "prefer"
"""libpq's sslmode where nobody says one."""
_PASSING: Final = (
    "starting up",
    "shutting down",
    "recovery",
    "not yet accepting connections",
    "too many",
    "remaining connection slots",
    "terminating connection",
)
CONFIGURED: Final = "source.dsn"
"""The name that messages give the connection string, unless it came another way."""
_UNUSABLE_HINT: Final = "write it as postgresql://user@host:5432/database; reserved characters in a URL are percent-encoded"


def connect(
    dsn: str, *, application: str = "headwater", connect_timeout_s: int = CONNECT_TIMEOUT_S, given_as: str = CONFIGURED
) -> PatientConnection:
    """An autocommit connection under the pinned settings. Raises SourceError (ConfigError when the DSN itself is wrong).

    given_as: what messages call the DSN.
    Its statements may take as long as the server works on them; a link that has gone silent ends one with psycopg.OperationalError.
    """
    added = {**ALIVE, "connect_timeout": str(connect_timeout_s), "application_name": application}
    try:
        connection = _open(parse(dsn, given_as), added)
    except psycopg.Error as error:
        kind = SourceUnreachable if _may_pass(error) else SourceError
        raise kind(f"cannot connect to {address(dsn)}: {reason(error, dsn)}", hint=_connect_hint(error, given_as)) from None
    timeout = {"transaction_timeout": "0"} if connection.info.server_version >= HAS_TRANSACTION_TIMEOUT else {}
    for name, value in {**timeout, **PINNED_SETTINGS}.items():
        connection.execute("select set_config(%s, %s, false)", (name, value))
    return connection


def _open(parts: Mapping[str, str], added: Mapping[str, str]) -> PatientConnection:
    """A connection in the first of the ways to authenticate that the server takes. Raises psycopg.Error."""
    first, *others = authentication.ways(parts)
    try:
        return PatientConnection.opened(first, added)
    except psycopg.Error as error:
        if not others or not authentication.refuses_method(error):
            raise
        for other in others:
            with suppress(psycopg.Error):
                return PatientConnection.opened(other, added)
        raise


def parse(dsn: str, given_as: str = CONFIGURED) -> dict[str, str]:
    """libpq's parameters; a server on another machine is verified (``sslmode=verify-full``) where neither the DSN nor a service file nor
    the environment says otherwise: libpq's own default, ``prefer``, would also talk to any server that answers. libpq quotes pieces of a string that
    it cannot parse, so its own words are not passed on. ``cdc.source.authentication`` says what is added to authenticate.

    A URL in whose password a reserved character stands as it is can still parse, with parts of the password as port or database:
    those are refused here, as later messages show them.
    """
    unusable = f"{given_as} is not a connection string that libpq understands"
    try:
        parts = {name: str(value) for name, value in conninfo_to_dict(dsn).items() if value is not None}
    except (psycopg.Error, UnicodeError):
        raise ConfigError(unusable, hint=_UNUSABLE_HINT) from None
    ports = parts.get("port", "").split(",")
    misread = "://" in dsn and "@" in parts.get("host", "") + parts.get("dbname", "")
    if misread or not all(port == "" or (port.isascii() and port.isdecimal()) for port in ports):
        raise ConfigError(unusable, hint=_UNUSABLE_HINT)
    options = effective(parts)
    # A service file that spells out libpq's own default cannot be told from one that says nothing: verified, too.
    said = "sslmode" in parts or "PGSSLMODE" in os.environ or options.get("sslmode", _UNSAID) != _UNSAID
    if not said and is_remote(options):
        parts["sslmode"] = "verify-full"
        if "sslrootcert" not in options:
            parts["sslrootcert"] = "system"
    if options.get("gssencmode", GSS_UNSAID) != GSS_UNSAID:
        parts["gssencmode"] = options["gssencmode"]
    return authentication.with_methods(parts)


def address(dsn: str) -> str:
    """``host:port/database`` for messages, wherever libpq has them from: never the user's password, never other parameters."""
    parts = parse(dsn)
    options = {**parts, **effective(parts)}
    host = options.get("host") or options.get("hostaddr") or options.get("service") or "the local socket"
    port = options.get("port", DEFAULT_PORT)
    shown = f":{port}" if "port" in parts or port != DEFAULT_PORT else ""
    # Without a name libpq takes the user's for the database's.
    database = parts.get("dbname") or options.get("dbname", "")
    return f"{host}{shown}{f'/{database}' if 'dbname' in parts or database != options.get('user', '') else ''}"


def reason(error: psycopg.Error, dsn: str = "") -> str:
    """The message of the server or libpq, on one line, without DETAIL or CONTEXT (they may quote rows) and without the password."""
    text = presentable(error.sqlstate, error.diag.message_primary or str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    # Of several hosts, psycopg lists each failure on a line of its own after the first; libpq's further lines are advice.
    attempts = [line.removeprefix("- ") for line in lines[1:] if line.startswith("- ")]
    line = attempts[-1] if attempts else lines[0] if lines else type(error).__name__
    line = line.rsplit("FATAL:", 1)[-1].strip().removeprefix("connection failed: ")
    secret = effective(parse(dsn)).get("password") if dsn else None
    return line.replace(secret, "***") if secret else line


def _may_pass(error: psycopg.Error) -> bool:
    """Whether waiting can help. libpq has no codes here, but the server's refusals begin with FATAL, whatever its language."""
    text = str(error)
    if "FATAL" in text:
        return any(words in text for words in _PASSING)
    return not authentication.refuses_method(error) and not any(
        words in text for words in ("SSL", "certificate", "GSSAPI", "channel binding", "password")
    )


def _connect_hint(error: psycopg.Error, given_as: str) -> str:
    text = str(error)
    if (method := authentication.hint(error, given_as)) is not None:
        return method
    if "password authentication failed" in text or "no password supplied" in text:
        file = f", or the whole of it in {given_as}_file" if given_as == CONFIGURED else ""
        return (
            f"export CDC_SOURCE_PASSWORD=… and write '${{CDC_SOURCE_PASSWORD}}' as the password in {given_as}{file}; "
            "or use a passfile (~/.pgpass)"
        )
    if "pg_hba.conf" in text:
        return "allow the role in pg_hba.conf, e.g. hostssl DATABASE ROLE ADDRESS scram-sha-256"
    if "not permitted to log in" in text:
        return "ALTER ROLE … LOGIN"
    if "does not exist" in text:
        return f"check user and database in {given_as}; deploy/roles.sql creates the roles"
    return f"check host, port and database in {given_as}, and that the server runs"
