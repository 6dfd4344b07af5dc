"""Refusals of settings of which each key by itself can be read. Pure: whoever reads the file asks here, and whoever acts on the values."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from cdc.errors import ConfigError
from cdc.model.selection import matches, named
from cdc.settings.implications import of_outbox, of_views
from cdc.settings.models import ColumnPolicy, Http, Log, Settings
from cdc.settings.sparkoptions import SparkOptions

MIN_TOKEN_CHARS: Final = 16
MIN_SECRET_BYTES: Final = 32
MARGIN_DAYS: Final = 1
"""A store that is built again from a compacted log reads it for hours, while compaction goes on behind it."""
_MAKE_ONE: Final = "make one with: openssl rand -hex 32"


@dataclass(frozen=True, slots=True)
class RefusedSetting:
    """``at``: the key, as the path to it. Holds no value of a secret."""

    at: tuple[str, ...]
    what: str
    hint: str

    def error(self) -> ConfigError:
        return ConfigError(f"{'.'.join(self.at)}: {self.what}", hint=self.hint)


def refusals(settings: Settings) -> Iterator[RefusedSetting]:
    """Everything that is refused of the settings as a whole."""
    key = settings.privacy.key
    yield from of_privacy(settings.source.columns, None if key is None else key.get_secret_value())
    yield from of_http(settings.http)
    yield from of_spark(settings.spark)
    for what, hint in of_outbox(settings):
        yield RefusedSetting(("outbox",), what, hint)
    for at, what, helps in of_views(settings):
        yield RefusedSetting(at, what, helps)
    yield from of_histories(settings)


def of_histories(settings: Settings) -> Iterator[RefusedSetting]:
    """A store that needs changes of a table which the log lets go."""
    for name, options in settings.stores.items():
        for pattern, option in options.kept_whole.items():
            within = [
                other for other in (*options.kept_whole, *settings.log.tables) if other != pattern and matches((pattern,), other)
            ]
            held = [one for one in (pattern, *within) if not named((one,)) or matches(options.tables, one)]
            found = next((why for one in held if (why := _lacking(settings.log, one, options.changes_needed(one)))), None)
            if found is not None:
                yield RefusedSetting(("stores", name, "tables", pattern, option), *found)


def _lacking(log: Log, table: str, days: float | None) -> tuple[str, str] | None:
    """Says why the log does not keep what a store needs of the table, and what helps; None where it does. ``days``: see ``StoreOptions.changes_needed``."""
    cleanup = log.cleanup_of(table)
    if days is None or cleanup == "keep":
        return None
    keep = f'set cleanup = "keep" in [log.tables."{table}"]'
    if math.isinf(days):
        what = f'needs every change of {table}, and the log lets some of them go (cleanup = "{cleanup}")'
        return what, f'{keep}; or say with history_days for how many days versions stay: then "compact" will do'
    hours = 24 * (days + MARGIN_DAYS)
    if cleanup == "delete":
        what = f'needs the last change of every row of {table}, and the log lets it go with its age (cleanup = "delete")'
        return (
            what,
            f'set cleanup = "compact" in [log.tables."{table}"] and history_hours = {hours:g} in [log], or {keep.removeprefix("set ")}',
        )
    if log.history_hours >= hours:
        return None
    what = f"needs every change of {table} for {days:g} days, and one more to be built again in, and the log keeps {log.history_hours:g} hours"
    return what, f"set history_hours = {hours:g} in [log], or {keep.removeprefix('set ')}"


def of_privacy(policies: Mapping[str, Mapping[str, ColumnPolicy]], secret: str | None) -> Iterator[RefusedSetting]:
    """A key that is too short, or missing where a policy needs one."""
    if secret is not None:
        if len(secret.encode()) < MIN_SECRET_BYTES:
            yield RefusedSetting(("privacy", "key"), f"is shorter than {MIN_SECRET_BYTES} bytes", _MAKE_ONE)
        return
    for table, columns in policies.items():
        needy = [column for column, policy in columns.items() if policy in ("hmac", "encrypt")]
        if needy:
            what = f"column {needy[0]} of {table} has the policy {columns[needy[0]]}, which needs a key"
            yield RefusedSetting(("source", "columns"), what, f"set key_file in [privacy]; {_MAKE_ONE}")


def of_http(http: Http) -> Iterator[RefusedSetting]:
    """A port that others could reach without a token and TLS, and halves of what belongs together."""
    token = http.token.get_secret_value().strip() if http.token else None
    if token is not None and len(token) < MIN_TOKEN_CHARS:
        yield RefusedSetting(("http", "token"), f"is shorter than {MIN_TOKEN_CHARS} characters", _MAKE_ONE)
    if (http.tls_cert is None) != (http.tls_key is None):
        yield RefusedSetting(("http", "tls_cert"), "tls_cert and tls_key need each other", "set both in [http]")
        return
    host, _ = host_and_port(http.listen)
    given = (("token_file", token), ("tls_cert", http.tls_cert), ("tls_key", http.tls_key))
    missing = [name for name, value in given if value is None]
    if missing and not is_loopback(host):
        what = f"{host!r} is not a loopback address, so others can reach it"
        yield RefusedSetting(("http", "listen"), what, f"set {', '.join(missing)} in [http], or listen on 127.0.0.1")


def of_spark(spark: SparkOptions) -> Iterator[RefusedSetting]:
    """A cluster that others could use as well, or whose workers could not reach this process; and keys that a local Spark has no use for."""
    secret = spark.secret.get_secret_value().strip() if spark.secret else None
    if secret is not None and len(secret) < MIN_TOKEN_CHARS:
        yield RefusedSetting(("spark", "secret"), f"is shorter than {MIN_TOKEN_CHARS} characters", _MAKE_ONE)
    if secret is not None and not spark.standalone:
        what = "only a cluster at spark://… is given one; all others make theirs"
        yield RefusedSetting(("spark", "secret"), what, "leave secret out, or name such a master")
    if spark.standalone and secret is None:
        what = "whoever reaches a cluster without a secret runs programs there, and reads the stores' secrets that are sent to its workers"
        hint = "set secret_file in [spark], and spark.authenticate, spark.authenticate.secret and spark.network.crypto.enabled on the cluster's machines"
        yield RefusedSetting(("spark", "master"), what, hint)
    for key in ("host", "bind", "python") if not spark.cluster else ():
        if getattr(spark, key) is not None:
            what = "counts for a cluster only: a local Spark stays on this machine, with this Python"
            yield RefusedSetting(("spark", key), what, f"leave {key} out, or name a cluster's master")
    here = spark.standalone and all(is_loopback(host) for host, _ in spark.standalone)
    if spark.cluster and spark.host is None and not here:
        what = "the cluster's workers have to reach this process, and nothing says where"
        yield RefusedSetting(
            ("spark", "host"), what, "set host in [spark] to this machine's name or address in the cluster's network"
        )


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of ``host:port`` (an IPv6 host in brackets). Raises ConfigError."""
    host, colon, port = address.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not bare or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"http.listen: {address!r} is not an address", hint="write host:port, such as 127.0.0.1:8642")
    return bare, int(port)


def is_loopback(host: str) -> bool:
    """Whether the host is this machine by its name: nobody can read along on the way to it."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
