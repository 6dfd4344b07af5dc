"""Column policies: what of a value may reach the log. Applied to every batch right before it is appended, so nothing behind the log
(stores, dead letters, backups) ever holds what a policy keeps back. Pure, but for the memory of what each table looked like.

=========  =====================================================================================================================
keep       the value as it is; with ``strict`` every column of a captured table has to be named, if only with this
drop       the column does not exist in the log
mask       ``MASKED`` instead of every value, as text; NULL stays NULL
hmac       HMAC-SHA-256 of the value's canonical text as 64 hexadecimal digits: equal values stay equal, over all tables, so it can be a key
encrypt    AES-SIV (RFC 5297) of the canonical text with ``schema.table.column`` as associated data, in base64: equal values of one
           column stay equal, so updates and the audit can compare, and the key's holder can read it (``reveal``)
=========  =====================================================================================================================

The policy of a column, with the key's id, stands in the logged table's ``Column.protected``. Both keys are derived from one secret
(HMAC-SHA-256 of a label). Where a policy's column is renamed, or its table, capture stops rather than logs it under a name without policy; and where
a policy is taken out of the configuration, until ``keep`` says that the column may be shown. A column that comes later and that nobody has decided on
(``cdc.privacy.newcolumns``) is kept out of the log as if its policy were ``drop``.
"""

from __future__ import annotations

import base64
import difflib
import hashlib
import hmac
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from cdc.errors import ConfigError, Stopped, StopState
from cdc.log.contract import LogReader, LogWriter, captured
from cdc.model.batch import EXACT, EXACT_TYPE, META_FIELDS, batch_schema, table_of
from cdc.model.evolution import schema_change_of
from cdc.model.oldrows import completed, old_rows_column, taken_apart
from cdc.model.pgtypes import TEXT, canonical_text
from cdc.model.position import Cut, Lsn, Position
from cdc.model.table import Column, Table
from cdc.privacy.decisions import Decisions, load_decisions, save_decisions
from cdc.privacy.newcolumns import UndecidedColumns
from cdc.settings.models import ColumnPolicy as Policy
from cdc.settings.models import Settings
from cdc.settings.refusals import of_privacy

MASKED: Final = "*****"


class Keys:
    """The keys that hmac and encrypt work with."""

    def __init__(self, secret: str) -> None:
        material = secret.encode()
        self._mac = hmac.digest(material, b"headwater hmac", "sha256")
        halves = (hmac.digest(material, label, "sha256") for label in (b"headwater encrypt 1", b"headwater encrypt 2"))
        self._cipher = AESSIV(b"".join(halves))
        self.id: Final = hashlib.sha256(b"headwater key id" + self._mac).hexdigest()[:8]
        """Tells keys apart without telling anything of them."""

    def hmac(self, text: str) -> str:
        return hmac.digest(self._mac, text.encode(), "sha256").hex()

    def encrypt(self, text: str, place: bytes) -> str:
        # AES-SIV takes no empty message: the first byte makes every one longer than that.
        return base64.b64encode(self._cipher.encrypt(b"=" + text.encode(), [place])).decode()

    def reveal(self, text: str, table: str, column: str) -> str:
        """The value that ``encrypt`` made this of. Raises ConfigError when the key, the table or the column is another."""
        try:
            return self._cipher.decrypt(base64.b64decode(text), [f"{table}.{column}".encode()])[1:].decode()
        except (InvalidTag, ValueError):
            raise ConfigError(f"a value of {table}.{column} was not encrypted with this privacy.key") from None


class Protection:
    """The policies of all tables: ``schema.table`` → column → policy.

    known: the logged tables, as the log's topics have them; a policy's column is followed by number from there on. decisions: those of
    an earlier start. remember: makes decisions durable.
    """

    def __init__(
        self,
        policies: Mapping[str, Mapping[str, Policy]],
        secret: str | None = None,
        *,
        strict: bool = False,
        known: Iterable[Table] = (),
        decisions: Decisions | None = None,
        remember: Callable[[Decisions], None] = lambda _: None,
    ) -> None:
        for refusal in of_privacy(policies, secret):
            raise refusal.error()
        self._policies = policies
        self._strict = strict
        self._keys = Keys(secret) if secret is not None else None
        self._known = {table.qualified: table for table in known}
        self.undecided: Final = UndecidedColumns(policies, decisions, known=self._known.values(), remember=remember)
        oids = {*(table.oid for table in self._known.values()), *(decisions.tables if decisions else ())}
        self._protected = {oid: found for oid in oids if (found := self.undecided.protected(oid))}
        self._logged: dict[Table, Table] = {}
        self._generation = 0

    @property
    def active(self) -> bool:
        return bool(self._policies or self._protected) or self._strict

    def check(self, tables: Sequence[Table]) -> None:
        """At the start: raises ConfigError when the policies do not fit the source's tables (their raw definitions), Stopped
        (PRIVACY_UNDECIDED) when one that was kept is gone."""
        here = {table.qualified: table for table in tables}
        for name, policies in self._policies.items():
            table = here.get(name)
            if table is None:
                if name not in self._known and not self.undecided.knows(name):
                    raise ConfigError(
                        f"source.columns names table {name}, which is not captured", hint=_suggestion(name, here) or "cdc doctor"
                    )
                continue
            unnamed = [column for column in table.names if column not in policies]
            missing = [column for column in policies if column not in table.names and column not in self.undecided.was_named(table)]
            if missing and unnamed:
                raise ConfigError(
                    f"source.columns names column {missing[0]} of {name}, which does not exist, and nothing is said of {unnamed[0]}",
                    hint=_suggestion(missing[0], unnamed) or f"name {unnamed[0]} too, if only with keep",
                )
        for table in tables:
            problem = self._problem(table)
            if problem is not None:
                raise ConfigError(problem[0], hint=problem[1])
        for table in tables:
            self._refuse(self._lost(table))

    def begin(self, tables: Sequence[Table]) -> None:
        """At the start, with every captured table's raw definition: raises what ``check`` does, and remembers what may be logged."""
        if self.active:
            self.check(tables)
        self.undecided.begin(tables)
        for table in tables:
            self._refuse(self.undecided.barred(table))

    def revealed(self, table: Table) -> dict[str, bool]:
        """The raw table's columns that were kept back until now, and would be logged as they are; each with whether ``keep`` says so."""
        before, policies = self._protected.get(table.oid, {}), self._policies.get(table.qualified, {})
        return {
            column.name: column.name in policies
            for column in table.columns
            if column.name in before
            and (before[column.name] == column.attnum or not (before[column.name] and column.attnum))
            and policies.get(column.name, "keep") == "keep"
        }

    def logged(self, table: Table) -> Table:
        """The table's definition as the log has it. Raises Stopped (PRIVACY_UNDECIDED) when no policy can be relied on for it."""
        if self._generation != self.undecided.generation:
            self._generation = self.undecided.generation
            self._logged.clear()
        known = self._logged.get(table)
        if known is not None:
            return known
        self._refuse(self._problem(table) or self._lost(table) or self.undecided.barred(table))
        logged, policies = self.as_it_would_be_logged(table), self._policies.get(table.qualified, {})
        self._protected[table.oid] = {c.name: c.attnum for c in table.columns if policies.get(c.name, "keep") != "keep"}
        if self._policies:
            self.undecided.decide([table])
        self._logged[table] = logged
        return logged

    def as_it_would_be_logged(self, table: Table) -> Table:
        """The same for whoever only looks, from any thread: nothing is decided, and nothing refused."""
        out = self.undecided.columns(table)
        policies = self._policies.get(table.qualified, {})
        columns = (self._column(column, policies.get(column.name, "keep")) for column in table.columns if column.name not in out)
        return replace(table, columns=tuple(column for column in columns if column is not None))

    def protect(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch of the source's values (``batch_schema`` of the raw table) as what may be logged (``batch_schema`` of ``logged``)."""
        if not self.active:
            return batch
        table = table_of(batch.schema)
        logged = self.logged(table)
        if logged == table:
            return batch
        changes, replaced, old = taken_apart(batch)
        found = self._as_logged(changes, table, logged)
        if old is None or not logged.keeps_old_rows:
            return found
        old = self._as_logged(old, table, logged)
        column = old_rows_column(logged, replaced, old.column(EXACT), old.columns[len(META_FIELDS) :])
        return completed(found, logged, column)

    def _as_logged(self, rows: pa.RecordBatch, table: Table, logged: Table) -> pa.RecordBatch:
        """Changes, or the rows that they replaced."""
        if schema_change_of(rows) is not None:
            exact: pa.Array = rows.column(EXACT)
            odd: dict[str, dict[int, str]] = {}
        else:
            exact, odd = _split(rows.column(EXACT), self.kept_back(table))
        arrays = [*rows.columns[: len(META_FIELDS)]]
        arrays[rows.schema.get_field_index(EXACT)] = exact
        for column in logged.columns:
            values = rows.column(column.name)
            if column.protected:
                values = self._transform(logged, column)(_overlaid(canonical_text(values), odd.get(column.name, {})))
            arrays.append(values)
        return pa.RecordBatch.from_arrays(arrays, schema=batch_schema(logged))

    def protect_text(self, logged: Table, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The source's own rows as text (columns by name, any of ``logged``'s) as the log would have them; for the audit."""
        arrays = []
        columns = {column.name: column for column in logged.columns}
        for name, values in zip(rows.schema.names, rows.columns, strict=True):
            column = columns.get(name)
            arrays.append(values if column is None or not column.protected else self._transform(logged, column)(values))
        return pa.RecordBatch.from_arrays(arrays, schema=rows.schema)

    def kept_back(self, table: Table) -> dict[str, bool]:
        """The raw table's columns whose values must not be written to any file of ours, each with whether anything of it is logged."""
        named = {name: policy != "drop" for name, policy in self._policies.get(table.qualified, {}).items() if policy != "keep"}
        return {**named, **dict.fromkeys(self.undecided.columns(table), False)}

    def _column(self, column: Column, policy: Policy) -> Column | None:
        match policy:
            case "keep":
                return column
            case "drop":
                return None
            case "mask":
                tag = "mask"
            case _:
                assert self._keys is not None
                tag = f"{policy}:{self._keys.id}"
        return replace(column, type_oid=TEXT, typmod=-1, type_name="", structure="", protected=tag)

    def _transform(self, logged: Table, column: Column) -> Callable[[pa.Array], pa.Array]:
        if column.protected == "mask":
            return _masked
        assert self._keys is not None
        policy, _, key = column.protected.partition(":")
        if key != self._keys.id:
            raise ConfigError(
                f"column {column.name} of {logged.qualified} was protected with another privacy.key ({key}, now {self._keys.id})",
                hint=f"cdc snapshot {shlex.quote(logged.qualified)} --replace",
            )
        if policy == "hmac":
            return partial(_each, self._keys.hmac)
        place = f"{logged.qualified}.{column.name}".encode()
        return partial(_each, partial(self._keys.encrypt, place=place))

    def _refuse(self, problem: tuple[str, str] | None) -> None:
        if problem is not None:
            raise Stopped(StopState.PRIVACY_UNDECIDED, problem[0], hint=f"{problem[1]}, then cdc resume PRIVACY_UNDECIDED")

    def _problem(self, table: Table) -> tuple[str, str] | None:
        """(what is wrong, what to do) with the policies for this definition by itself."""
        policies = self._policies.get(table.qualified, {})
        for column in table.columns:
            policy = policies.get(column.name)
            if policy is None and self._strict:
                return (
                    f"no policy names column {column.name} of {table.qualified}, and privacy.strict is on",
                    f'name it in [source.columns."{table.qualified}"], if only with keep',
                )
            if column.key and policy in ("drop", "mask"):
                return (
                    f"column {column.name} of {table.qualified} is part of the row's identity, so it cannot have the policy {policy}",
                    "use hmac or encrypt",
                )
        return None

    def _lost(self, table: Table) -> tuple[str, str] | None:
        """(what is wrong, what to do) when a column that a policy protected goes on under a name that no policy knows."""
        before = self._protected.get(table.oid)
        if not before:
            return None
        policies = self._policies.get(table.qualified, {})
        unnamed = [column for column in table.columns if column.name not in policies]
        if all(before.values()) and all(column.attnum for column in table.columns):
            leaking = [column for column in unnamed if column.attnum in before.values()]
        else:
            gone = [name for name in before if name not in table.names]
            leaking = [column for column in unnamed if gone and column.name in self.undecided.columns(table)]
        if not leaking:
            return None
        bare = [name for name, said in self.revealed(table).items() if not said]
        if bare:
            return (
                f"column {bare[0]} of {table.qualified} was kept back from the log until now, and no policy names it any more",
                f'put its policy back, or let its values be seen with {bare[0]} = "keep" in [source.columns."{table.qualified}"]',
            )
        return (
            f"column {leaking[0].name} of {table.qualified} may be a protected column under a new name, and no policy names it",
            f'name it in [source.columns."{table.qualified}"] beside the old name',
        )


def protection_of(settings: Settings, log: LogReader, *, remember: bool = False) -> Protection:
    """The configured policies; what was decided before is where they go on from. ``remember``: what is decided now is kept, too, which
    is for capture alone. Raises ConfigError."""
    key, folder = settings.privacy.key, settings.log.dir
    return Protection(
        settings.source.columns,
        None if key is None else key.get_secret_value(),
        strict=settings.privacy.strict,
        known=[topic.table for topic in captured(log)],
        decisions=load_decisions(folder),
        remember=partial(save_decisions, folder) if remember else lambda _: None,
    )


class ProtectedWriter:
    """A log's writer that nothing passes unprotected."""

    def __init__(self, writer: LogWriter, protect: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
        self._writer = writer
        self._protect = protect

    @property
    def head(self) -> Cut:
        return self._writer.head

    @property
    def next_position(self) -> Position:
        return self._writer.next_position

    def append(self, batch: pa.RecordBatch, producer: str | None = None) -> None:
        # The policies are of the source's tables; what another producer brings is not one of them.
        self._writer.append(self._protect(batch) if producer is None else batch, producer)

    def mark(self, producer: str, value: bytes) -> None:
        self._writer.mark(producer, value)

    def marks(self) -> Mapping[str, bytes]:
        return self._writer.marks()

    def commit(self, commit_lsn: Lsn | None = None, commit_ts_us: int = 0) -> Cut:
        return self._writer.commit(commit_lsn, commit_ts_us)

    def begin_history(self) -> None:
        self._writer.begin_history()

    def rollback(self) -> None:
        self._writer.rollback()

    def alarm(self) -> str | None:
        return self._writer.alarm()

    def close(self) -> None:
        self._writer.close()


def _suggestion(name: str, known: Iterable[str]) -> str | None:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else None


def _masked(values: pa.Array) -> pa.Array:
    return pc.if_else(values.is_valid(), pa.scalar(MASKED, pa.utf8()), pa.scalar(None, pa.utf8()))


def _each(function: Callable[[str], str], values: pa.Array) -> pa.Array:
    """Each distinct value once."""
    encoded = values.dictionary_encode()
    distinct = pa.array([function(value) for value in encoded.dictionary.to_pylist()], pa.utf8())
    return distinct.take(encoded.indices)


def _split(exact: pa.Array, names: Collection[str]) -> tuple[pa.Array, dict[str, dict[int, str]]]:
    """The exact texts without those columns, and what they held: column → row → text."""
    if exact.null_count == len(exact):
        return exact, {}
    taken: dict[str, dict[int, str]] = {}
    left: list[list[tuple[str, str]] | None] = []
    for row, entries in enumerate(exact.to_pylist()):
        stays = []
        for name, text in entries or ():
            if name in names:
                taken.setdefault(name, {})[row] = text
            else:
                stays.append((name, text))
        left.append(stays or None)
    return pa.array(left, EXACT_TYPE), taken


def _overlaid(values: pa.Array, instead: Mapping[int, str]) -> pa.Array:
    if not instead:
        return values
    texts = values.to_pylist()
    for row, text in instead.items():
        texts[row] = text
    return pa.array(texts, pa.utf8())
