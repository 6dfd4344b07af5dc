"""The connections to one server, and its errors in our words."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from cdc.errors import ConfigError, StoreError
from sinks.cache import ledger, listpack
from sinks.cache.credentials import Credentials, url_parts
from sinks.cache.options import Options
from sinks.cache.wire import RedisWire, Refused, command
from sinks.retry import down, redis_error, slot_moving

LOOK_S: Final = 10.0
"""How often it is looked whether somebody has let the server evict keys."""

_LONGEST: Final = "proto-max-bulk-len"

Found = TypeVar("Found")


Address = tuple[str, int]


class Route(Protocol):
    """The way to a server that may be another one later."""

    @property
    def slot(self) -> int | None:
        """The slot that is looked for there; None: none, as any node answers."""
        ...

    def address(self) -> Address:
        """Raises StoreError."""
        ...

    def forget(self) -> None:
        """It may be another one by now."""
        ...


class Server:
    """One connection for transactions, held from the first one to ``drop``, and the client's own for questions."""

    def __init__(self, store: str, options: Options, owner: str = "", route: Route | None = None) -> None:
        """``owner``: whose keys are asked for (``CacheGenerationNames.owner``; the store's by default). ``route``: to a node of a cluster; None: the server is
        the one at the options' address."""
        self._store = store
        self._owner = owner or store
        self._route = route
        self._options = options
        self._credentials = _credentials(store, options)
        self._made: redis.Redis | None = None
        self._connection: Any = None
        self._wire: RedisWire | None = None
        self._looked_at = 0.0
        self._asks = True
        """Whether the next connection's server is asked whether it takes packed hashes: not after one that has left the question without an answer, as a
        proxy may, or has taken the right away since."""
        self.takes_packed = False
        """Whether the connection's server takes hashes as ``sinks.cache.listpack`` makes them."""
        self.value_bytes_max: int | None = None
        """The longest value that the server takes; None where it does not say so to this account, as many providers do not let it."""

    @property
    def wire(self) -> RedisWire:
        """For use within ``errors`` only, from the first command of a transaction to its last answer."""
        if self._wire is not None and not self._wire.usable:
            self.drop()  # servers end connections that were idle for long
        if self._wire is None:
            pool = self._client.connection_pool
            self._connection = pool.connection_class(**pool.connection_kwargs)
            self._connection.connect()
            # Its handshake has been answered, so nothing is left in the client's own reader; ours takes hundreds of answers at a time.
            self._wire = RedisWire(self._connection._sock)
            self.takes_packed = self._asked_for_packed(self._wire)
        return self._wire

    def _asked_for_packed(self, wire: RedisWire) -> bool:
        """Changes nothing. Of every connection anew: another server may answer at the address, or the account's rights be others."""
        if self._options.keys_apart or not self._asks:
            self._asks = True
            return False
        self._asks = False
        wire.send(command("RESTORE", ledger.nothing_of(self._owner), 0, listpack.asking()))
        answered = wire.lines(1)
        self._asks = True
        return answered == listpack.UNREADABLE

    @contextmanager
    def reading(self) -> Iterator[RedisWire]:
        """A connection of its own, for questions that are asked ahead of their answers."""
        with self.errors():
            pool = self._client.connection_pool
            connection = pool.connection_class(**pool.connection_kwargs)
            try:
                connection.connect()
                yield RedisWire(connection._sock)
            finally:
                connection.disconnect()

    def ask(self, question: Callable[[redis.Redis], Found]) -> Found:
        with self.errors():
            return question(self._client)

    def refuse_unfit(self, *, again: bool = False) -> None:
        """Raises StoreError for a server that could lose rows without a word, or that cannot take any. ``again``: now and then is enough."""
        if again and time.monotonic() - self._looked_at < LOOK_S:
            return
        info: dict[str, Any] = self.ask(lambda client: client.info())
        if not again:
            self.value_bytes_max = self.ask(_longest_value)
        self._looked_at = time.monotonic()
        if info.get("maxmemory_policy", "noeviction") != "noeviction":
            policy = info["maxmemory_policy"]
            hint = "CONFIG SET maxmemory-policy noeviction: any other policy drops rows without a word; cdc audit finds those that have gone"
            raise StoreError(f"store {self._store}: the server evicts keys ({policy})", retryable=False, hint=hint)
        if self._route is None and (info.get("cluster_enabled") or info.get("redis_mode") == "cluster"):
            raise StoreError(
                f"store {self._store}: {self.address} is a node of a Redis Cluster, where no transaction spans the keys of two slots",
                retryable=False,
                hint=f"divide the store: lanes = 16 in [stores.{self._store}], and {{lane}} in its `key`; or use a server that is not in cluster mode",
            )
        if info.get("role") == "slave":
            raise redis_error(self._store, "READONLY")

    def refuse_moving(self) -> None:
        """Raises StoreError (retryable) while the slot that is looked for moves, or has moved: no command says of a look at all keys that some of them are
        another server's by now. To be asked before such a look, and behind it."""
        if self._route is None or (slot := self._route.slot) is None:
            return
        nodes: dict[str, dict[str, Any]] = self.ask(lambda client: client.execute_command("CLUSTER NODES"))  # type: ignore[no-untyped-call]
        mine = next(one for one in nodes.values() if "myself" in one["flags"])
        if any(int(one["slot"]) == slot for one in mine["migrations"]):
            self.drop()
            raise slot_moving(self._store, "ASK")
        if not any(int(part[0]) <= slot <= int(part[-1]) for part in mine["slots"]):
            self.drop()
            raise slot_moving(self._store, "MOVED")

    @property
    def address(self) -> str:
        given = self._client.connection_pool.connection_kwargs
        return str(given.get("path") or f"{given.get('host', 'localhost')}:{given.get('port', 6379)}")

    @property
    def host(self) -> str:
        return str(self._client.connection_pool.connection_kwargs.get("host", "localhost"))

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turns the client's and the wire's errors into ours; after one, the connection's state is unknown, so it is dropped."""
        try:
            yield
        except BaseException as error:
            self.drop()
            if (ours := self._in_our_words(error)) is None:
                raise
            raise ours from None

    def drop(self) -> None:
        """Drops the connection: the server forgets a transaction that it has not been told to carry out."""
        if self._connection is not None:
            self._connection.disconnect()
        self._connection = self._wire = None
        if self._route is not None and self._made is not None:
            # Another server may have the slot by now.
            self._made.close()
            self._made = None
            self._route.forget()

    def close(self) -> None:
        self.drop()
        if self._made is not None:
            self._made.close()

    @property
    def _client(self) -> redis.Redis:
        if self._made is None:
            address = None if self._route is None else self._route.address()
            self._made = client_of(self._options, self._credentials, address)
        return self._made

    def _in_our_words(self, error: BaseException) -> StoreError | None:
        if self._route is not None and (code := _redirection(error)) is not None:
            return slot_moving(self._store, code)
        if isinstance(error, Refused):
            if error.code == "NOPERM" and self.takes_packed:
                # Perhaps it is RESTORE alone that the account may no longer do: the next connection does without.
                self._asks = self.takes_packed = False
                return redis_error(self._store, error.code, again=True)
            return redis_error(self._store, error.code, rotating=self._credentials.rotating)
        if isinstance(error, redis.exceptions.AuthenticationError):
            return redis_error(self._store, "WRONGPASS", rotating=self._credentials.rotating)
        if isinstance(error, redis.exceptions.BusyLoadingError):
            return redis_error(self._store, "LOADING")
        if isinstance(error, redis.ConnectionError | redis.TimeoutError | OSError):
            return down(self._store, self.address, type(error).__name__)
        if isinstance(error, redis.ResponseError):
            return redis_error(self._store, _code(error))
        return None


def client_of(options: Options, credentials: Credentials, address: tuple[str, int] | None = None) -> redis.Redis:
    """``address``: instead of the options' own."""
    given: dict[str, Any] = {"socket_timeout": options.timeout_s, "socket_connect_timeout": min(options.timeout_s, 5.0)}
    if options.ca_certs is not None:
        given["ssl_ca_certs"] = str(options.ca_certs)
    given |= url_parts(options.url)
    for secret in ("username", "password"):
        given.pop(secret, None)
    if address is not None:
        given["host"], given["port"] = address
    if credentials.needed:
        given["credential_provider"] = credentials
    # Trying again is the follower's business: it knows what else waits.
    return redis.Redis.from_pool(redis.ConnectionPool(protocol=2, retry=Retry(NoBackoff(), 0), **given))


def _credentials(name: str, options: Options) -> Credentials:
    try:
        return Credentials(options.url, options.username, options.password)
    except ValueError:
        raise ConfigError(f"stores.{name}.url is not a Redis address", hint="for example redis://cache.internal:6379/0") from None


_CODES: Final[tuple[tuple[type[Exception], str], ...]] = (
    (redis.exceptions.OutOfMemoryError, "OOM"),
    (redis.exceptions.ReadOnlyError, "READONLY"),
    (redis.exceptions.NoPermissionError, "NOPERM"),
    (redis.exceptions.ClusterDownError, "CLUSTERDOWN"),
    (redis.exceptions.MasterDownError, "MASTERDOWN"),
    (redis.exceptions.MovedError, "MOVED"),
    (redis.exceptions.AskError, "ASK"),
    (redis.exceptions.TryAgainError, "TRYAGAIN"),
)


def _longest_value(client: redis.Redis) -> int | None:
    try:
        said = client.config_get(_LONGEST).get(_LONGEST)
    except redis.ResponseError:
        return None
    return None if said is None else int(said)


def _redirection(error: BaseException) -> str | None:
    """Its code, where a node of a cluster says that another one has the slot."""
    code = error.code if isinstance(error, Refused) else _code(error) if isinstance(error, redis.ResponseError) else ""
    return code if code in ("MOVED", "ASK", "TRYAGAIN") else None


def _code(error: redis.ResponseError) -> str:
    """The server's error code; redis-py cuts it off where it has a class of its own for it."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    word = str(error).split(" ", 1)[0]
    return word if word.isupper() and word.isalpha() else "ERR"
