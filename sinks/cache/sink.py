"""The cache: every write is a compare-and-set by position inside the server, a hundred keys a call, calls in a pipeline.

What a reader finds under a key: ``value = "json"``: the document of ``sinks.jsonrows``, beginning with ``_cdc_position``;
``value = "hash"``: one field per column: a scalar's text, the JSON of everything else, a NULL column's field left out ('' is an empty field).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import redis
from pydantic import Field, SecretStr
from redis.backoff import NoBackoff
from redis.retry import Retry

from cdc.crashpoint import crashpoint
from cdc.errors import ConfigError, StoreError
from cdc.log.contract import LogReader
from cdc.model.batch import OP, POSITION, Op, first_position, table_of
from cdc.model.evolution import SchemaChange, schema_change_of
from cdc.model.position import ZERO_CUT, Cut, Lsn, Position
from cdc.model.table import Table
from cdc.settings import StoreOptions
from sinks import jsonrows
from sinks.cache import resp, scripts
from sinks.cache.credentials import Credentials, url_parts
from sinks.cache.keytemplate import DEFAULT, TableKeys, bind
from sinks.cache.resp import Calls, Script, script_calls
from sinks.contract import NOTHING, DeadLetter, Outcome, Shape
from sinks.deadletters import letter_id, letter_json
from sinks.jsonrows import Piece, Texts, documents, field_pieces, join, position_texts, raw_texts
from sinks.jsontext import from_fields, meant_rows, parse_all, row_texts
from sinks.policy import emptied
from sinks.render.meaning import plain_key
from sinks.reshape import reshaped, rewrites
from sinks.retry import down, redis_error
from sinks.rowtext import rows_with_keys

KEYS_PER_CALL: Final = 100
BYTES_PER_CALL: Final = 1 << 20
SEND_BYTES: Final = 1 << 19
"""Calls go out in pieces of about this size; the answers of one are read when the next has been sent."""
VALUE_BYTES_MAX: Final = 512 << 20
"""The server's own limit of one value (proto-max-bulk-len)."""
SCAN_COUNT: Final = 2000
LOOK_S: Final = 10.0
"""How often ``applied`` looks whether somebody has let the server evict keys."""


class Options(StoreOptions):
    """``url`` may hold user and password; ``rediss://`` is TLS, verified against ``ca_certs`` or the system's authorities."""

    url: SecretStr
    username: str | None = None
    password: SecretStr | None = None
    ca_certs: Path | None = None
    key: str = DEFAULT
    value: Literal["json", "hash"] = "json"
    timeout_s: float = Field(30.0, gt=0)
    workers_from_rows: int = Field(0, ge=0)
    """Never: the server runs its scripts in one thread, which one client keeps busy (several were three times slower)."""


class CacheSink:
    """See ``sinks.contract.Sink``. One connection, held from ``open`` to ``close``."""

    parallel = True

    def __init__(self, name: str, options: Options) -> None:
        self.name = name
        self._options = options
        self._applied_key, self._graves, self._tables, self._shapes, self._dead = (
            f"cdc:{{{name}}}:{part}" for part in ("applied", "graves", "tables", "shapes", "dead")
        )
        self._credentials = _credentials(name, options)
        self._client = _client(options, self._credentials)
        self._bound: dict[Table, TableKeys] = {}
        self._connection: Any = None
        self._sha: dict[str, bytes] = {}
        self._looked_at = 0.0

    def open(self, log: LogReader, epoch: int | None = None) -> Cut:  # noqa: ARG002
        jsonrows.warm_up()
        resp.warm_up()
        self._drop_connection()
        self._refuse_server()
        return self.applied()

    def _refuse_server(self) -> None:
        """Raises StoreError for a server that could lose rows without a word, or that cannot take any."""
        info = self._ask(self._client.info)
        self._looked_at = time.monotonic()
        if info.get("maxmemory_policy", "noeviction") != "noeviction":
            policy = info["maxmemory_policy"]
            hint = "CONFIG SET maxmemory-policy noeviction: any other policy drops rows without a word; cdc audit finds those that have gone"
            raise StoreError(f"store {self.name}: the server evicts keys ({policy})", retryable=False, hint=hint)
        if info.get("cluster_enabled"):
            raise redis_error(self.name, "MOVED")
        if info.get("role") == "slave":
            raise redis_error(self.name, "READONLY")

    def prepare(self, table: Table) -> None:
        keys = self.check(table)
        self._ask(lambda: self._client.hset(self._tables, table.qualified, keys.prefix))
        crashpoint("cache.prepared")
        self._set_shape(table, 0)
        self._bound[table] = keys

    def check(self, table: Table) -> TableKeys:
        """Raises ConfigError when the table's keys are not what they were, or could be another table's."""
        keys = bind(self._options.key, table)
        held: dict[bytes, bytes] = self._ask(lambda: self._client.hgetall(self._tables))
        mine = keys.prefix.encode()
        for other, prefix in held.items():
            if other == table.qualified.encode():
                if prefix != mine:
                    hint = f"empty the store, or give it another name: its keys begin with {prefix.decode()!r}"
                    raise ConfigError(f"store {self.name}: the key of {table.qualified} has changed", hint=hint)
            elif prefix.startswith(mine) or mine.startswith(prefix):
                hint = 'put {schema} and {table} into `key`, each followed by ":"'
                raise ConfigError(f"store {self.name}: keys of {table.qualified} and {other.decode()} could be the same", hint=hint)
        return keys

    def foresee(self, tables: Sequence[Table]) -> None:
        """Raises ConfigError when the keys of these tables, which are to come, cannot be told apart, or are not what they were."""
        found = [self.check(table) for table in tables]
        for keys, after in pairwise(sorted(found, key=lambda keys: keys.prefix)):
            if after.prefix.startswith(keys.prefix):
                hint = 'put {schema} and {table} into `key`, each followed by ":"'
                names = f"{keys.table.qualified} and {after.table.qualified}"
                raise ConfigError(f"store {self.name}: keys of {names} could be the same", hint=hint)

    def shape(self, topic: str) -> Shape | None:
        held: bytes | None = self._ask(lambda: self._client.hget(self._shapes, topic))
        if held is None:
            return None
        position, _, table = held.partition(b" ")
        return Shape(Table.from_json(table), Position(int(position)))

    def apply(self, changes: pa.RecordBatch) -> Outcome:
        table = table_of(changes.schema)
        if len(changes) == 0:
            return NOTHING
        if changes.column(OP)[0].as_py() == Op.TRUNCATE:
            return self._truncate(table, first_position(changes))
        if (change := schema_change_of(changes)) is not None:
            return self._reshape(change, first_position(changes))
        return self._upsert(changes, table)

    def _upsert(self, changes: pa.RecordBatch, table: Table) -> Outcome:
        keys, values = self._keys(table).texts(changes), self._values(changes, table)
        dead: tuple[DeadLetter, ...] = ()
        sizes = np.diff(values.offsets)
        if sizes.max() > VALUE_BYTES_MAX:
            fits = sizes <= VALUE_BYTES_MAX
            positions = changes.column(POSITION).to_numpy()[~fits].tolist()
            dead = self._bury([DeadLetter(table.qualified, Position(p), f"value over {VALUE_BYTES_MAX} bytes") for p in positions])
            keys, values = _filtered(keys, fits), _filtered(values, fits)
        stale = self._write(table, keys, values) if len(keys) else 0
        return Outcome(len(keys) - stale, stale, dead)

    def commit(self, cut: Cut) -> None:
        crashpoint("cache.commit.begun")
        given = (cut.position, cut.commit_lsn, cut.commit_ts_us)
        self._ask(lambda: self._client.eval(scripts.COMMIT, 2, self._applied_key, self._graves, *map(str, given)))
        crashpoint("cache.commit.done")

    def applied(self) -> Cut:
        if time.monotonic() - self._looked_at >= LOOK_S:
            self._refuse_server()
        fields = ("position", "commit_lsn", "commit_ts_us")
        held: list[bytes | None] = self._ask(lambda: self._client.hmget(self._applied_key, *fields))
        if held[0] is None:
            return ZERO_CUT
        position, lsn, ts = (int(value or 0) for value in held)
        return Cut(Position(position), Lsn(lsn), ts)

    def make_visible(self) -> None: ...

    def as_held(self, rows: pa.RecordBatch, table: Table) -> pa.RecordBatch:
        return meant_rows(rows, table)

    def scan(self, table: Table) -> Iterator[pa.RecordBatch]:
        seen: set[bytes] = set()  # SCAN may give a key twice
        for found in self._scan_keys(self._keys(table).prefix):
            fresh = [key for key in dict.fromkeys(found) if key not in seen]
            seen.update(fresh)
            if fresh:
                yield self._rows(fresh, table)

    def fetch(self, table: Table, keys: pa.RecordBatch) -> pa.RecordBatch:
        if not plain_key(table):
            return rows_with_keys(self.scan(table), keys, table)
        return self._rows(self._keys(table).texts_of_keys(keys).to_array().to_pylist(), table)

    def close(self) -> None:
        self._drop_connection()
        self._client.close()

    # -- writing ------------------------------------------------------------------------------------------------------

    def _keys(self, table: Table) -> TableKeys:
        if table not in self._bound:
            self._bound[table] = bind(self._options.key, table)
        return self._bound[table]

    def _values(self, batch: pa.RecordBatch, table: Table) -> Texts:
        """One text per row: its document, or the bare position for a delete."""
        whole = documents(batch, table) if self._options.value == "json" else join(field_pieces(batch, table))
        deleted = batch.column(OP).to_numpy() == int(Op.DELETE)
        if not deleted.any():
            return whole
        digits, kept = position_texts(batch), np.zeros(len(batch), np.uint8)
        absent = np.full(len(batch), 2, np.uint8)
        return join([Piece(whole, states=np.where(deleted, absent, kept)), Piece(digits, states=np.where(deleted, kept, absent))])

    def _write(self, table: Table, keys: Texts, values: Texts) -> int:
        """Sends all rows through the script; returns how many were stale."""
        for _ in range(2):
            script = Script(self._load(), (self._applied_key.encode(), self._graves.encode()), _floor_field(table).encode())
            calls = script_calls(script, keys, values, keys_per_call=KEYS_PER_CALL, bytes_per_call=BYTES_PER_CALL)
            crashpoint("cache.write.before_send")
            with self._failures():
                try:
                    return self._send(calls)
                except redis.exceptions.NoScriptError:  # SCRIPT FLUSH, or another server behind the same address
                    self._sha.clear()
        raise redis_error(self.name, "NOSCRIPT")

    def _send(self, calls: Calls) -> int:
        """Writes the calls in pieces and reads one answer per call; the answers of a piece while the next is on its way."""
        if self._connection is None:
            self._connection = self._client.connection_pool.get_connection()
        wire, view = self._connection, memoryview(calls.data.data)
        stale, sent, unread, failure = 0, 0, 0, None
        ends = calls.ends
        done = 0
        while done < len(ends) or unread:
            waiting = unread
            if done < len(ends):
                upto = max(int(np.searchsorted(ends, sent + SEND_BYTES)), done + 1)
                upto = min(upto, len(ends))
                wire.send_packed_command([view[sent : int(ends[upto - 1])]], check_health=False)
                sent, unread, done = int(ends[upto - 1]), unread + upto - done, upto
            crashpoint("cache.write.sent")
            for _ in range(waiting):
                try:
                    stale += wire.read_response()
                except redis.ResponseError as error:
                    failure = failure or error
                unread -= 1
        if failure is not None:
            raise failure
        return stale

    def _load(self) -> bytes:
        if "write" not in self._sha:
            loaded = self._ask(lambda: self._client.script_load(scripts.WRITE[self._options.value]))
            self._sha["write"] = loaded.encode() if isinstance(loaded, str) else loaded
        return self._sha["write"]

    def _truncate(self, table: Table, position: int) -> Outcome:
        floor = self._ask(lambda: self._client.eval(scripts.RAISE_FLOOR, 1, self._applied_key, _floor_field(table), str(position)))
        if not floor:
            return Outcome(0, stale=1)
        crashpoint("cache.truncate.floor_raised")
        sweep = scripts.SWEEP[self._options.value]
        for found in self._scan_keys(self._keys(table).prefix):
            if found:
                self._ask(partial(self._client.eval, sweep, 1 + len(found), self._applied_key, *found, str(position)))
        return Outcome(1)

    def _reshape(self, change: SchemaChange, position: int) -> Outcome:
        """Every value that an older definition wrote is written again at the change's position, then what is older still goes.

        Done twice, or by two at once, it comes to the same: a value at or beyond the position is left alone.
        """
        table, held = change.table, self.shape(change.table.qualified)
        if position <= self.applied().position or (held is not None and position <= held.position):
            return Outcome(0, stale=1)
        gone = emptied(None if held is None else held.table, change)
        dead: tuple[DeadLetter, ...] = ()
        self.prepare(table)
        if not gone and held is not None and rewrites(held.table, table):
            for found in self._scan_keys(self._keys(table).prefix):
                rows = self._rows(found, held.table, before=position)
                if rows.num_rows:
                    dead += self._upsert(reshaped(rows, held.table, table, position), table).dead
            crashpoint("cache.schema.rewritten")
            gone = True
        if gone:
            self._truncate(table, position)
        self._set_shape(table, position)
        return Outcome(1, 0, dead)

    def _set_shape(self, table: Table, position: int) -> None:
        self._ask(lambda: self._client.eval(scripts.SET_SHAPE, 1, self._shapes, table.qualified, str(position), table.to_json()))

    def _bury(self, letters: list[DeadLetter]) -> tuple[DeadLetter, ...]:
        held = [text for letter in letters for text in (letter_id(letter), letter_json(letter))]
        self._ask(lambda: self._client.hset(self._dead, items=held))
        return tuple(letters)

    # -- reading ------------------------------------------------------------------------------------------------------

    def _scan_keys(self, prefix: str) -> Iterator[list[bytes]]:
        pattern = "".join("\\" + c if c in "*?[]\\^-" else c for c in prefix) + "*"
        cursor = 0
        while True:
            cursor, found = self._ask(partial(self._client.scan, cursor, match=pattern, count=SCAN_COUNT))
            yield found
            if cursor == 0:
                return

    def _rows(self, keys: list[bytes], table: Table, *, before: int = 2**63) -> pa.RecordBatch:
        """The rows under these keys that were written before the position."""
        if self._options.value == "json":
            values = self._ask(lambda: self._client.mget(keys)) if keys else []
            held = parse_all([value for value in values if value is not None])
            return row_texts([row for row in held if row.get(POSITION, 0) < before], table)
        pipeline = self._client.pipeline(transaction=False)
        for key in keys:
            pipeline.hgetall(key)
        hashes = [{k.decode(): v.decode() for k, v in row.items()} for row in self._ask(pipeline.execute) if row]
        hashes = [row for row in hashes if int(row.get(POSITION, 0)) < before]
        return row_texts([from_fields(row, table) for row in hashes], table)

    # -- the connection -----------------------------------------------------------------------------------------------

    def _ask(self, question: Callable[[], Any]) -> Any:
        with self._failures():
            return question()

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Turns the client's errors into ours; after one, the connection's state is unknown, so it is dropped."""
        try:
            yield
        except redis.exceptions.NoScriptError:
            raise
        except redis.exceptions.AuthenticationError:
            self._drop_connection()
            raise redis_error(self.name, "WRONGPASS", rotating=self._credentials.rotating) from None
        except redis.exceptions.BusyLoadingError:
            self._drop_connection()
            raise redis_error(self.name, "LOADING") from None
        except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
            self._drop_connection()
            raise down(self.name, _address(self._client), type(error).__name__) from None
        except redis.ResponseError as error:
            self._drop_connection()
            raise redis_error(self.name, _code(error)) from None

    def _drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.disconnect()
            self._client.connection_pool.release(self._connection)
            self._connection = None


def make(name: str, options: Options) -> CacheSink:
    return CacheSink(name, options)


def _client(options: Options, credentials: Credentials) -> redis.Redis:
    given: dict[str, Any] = {"socket_timeout": options.timeout_s, "socket_connect_timeout": min(options.timeout_s, 5.0)}
    if options.ca_certs is not None:
        given["ssl_ca_certs"] = str(options.ca_certs)
    given |= url_parts(options.url)
    for secret in ("username", "password"):
        given.pop(secret, None)
    if credentials.needed:
        given["credential_provider"] = credentials
    # Trying again is the follower's business: it knows what else waits.
    return redis.Redis.from_pool(redis.ConnectionPool(protocol=2, retry=Retry(NoBackoff(), 0), **given))


def _credentials(name: str, options: Options) -> Credentials:
    try:
        return Credentials(options.url, options.username, options.password)
    except ValueError:
        raise ConfigError(f"stores.{name}.url is no Redis address", hint="for example redis://cache.internal:6379/0") from None


def _address(client: redis.Redis) -> str:
    given = client.connection_pool.connection_kwargs
    return str(given.get("path") or f"{given.get('host', 'localhost')}:{given.get('port', 6379)}")


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


def _code(error: redis.ResponseError) -> str:
    """The server's error code; redis-py cuts it off where it has a class of its own for it."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    word = str(error).split(" ", 1)[0]
    return word if word.isupper() and word.isalpha() else "ERR"


def _floor_field(table: Table) -> str:
    return f"floor:{table.qualified}"


def _filtered(texts: Texts, mask: npt.NDArray[np.bool_]) -> Texts:
    return raw_texts(texts.to_array().filter(pa.array(mask)))
