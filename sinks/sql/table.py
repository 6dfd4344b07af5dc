"""One table in a target database: its columns as the catalog has them, and the changes that make them fit a definition.

A column keeps its name and takes the type that the dialect has for it. Where a value is none of that type, the column becomes text, which holds everything.
Columns that somebody has added by himself stay.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from cdc.errors import StopState, StoreError
from cdc.model.topic import TopicField, TopicSchema
from sinks.contract import audit_schema
from sinks.reshape import origins, rekeyed, reshaped
from sinks.sql.dialect import Dialect, SqlSession, StagedRows
from sinks.sql.names import GONE, IDENTITY, TableSign, TargetPlace, quoted
from sinks.sql.owncolumns import OwnColumns
from sinks.sql.refusals import RowRefusal


def refused(place: TargetPlace, whose: str) -> StoreError:
    """``whose``: what is said of the table that stands where the store's is to be."""
    return StoreError(
        f"the table {place} in the database {whose}",
        retryable=False,
        hint='give this store another database, or a schema of its own: namespace = "copy_{schema}"',
    )


def digested(schema: TopicSchema) -> bool:
    """Whether rows are told apart by all they hold."""
    return schema.identity == "row" and bool(schema.key) and all(field.key for field in schema.fields)


class TargetTable(ABC):
    """Lives as long as one transaction."""

    def __init__(self, session: SqlSession, place: TargetPlace) -> None:
        self.place = place
        self._session = session
        self.columns: dict[str, str] = {}
        """Name → type, as the catalog has them now."""
        self.own = OwnColumns()
        self._look()

    # --- what each dialect brings ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def _look(self) -> None:
        """Reads the catalog."""

    @abstractmethod
    def retype(self, name: str, kind: str, using: str) -> None: ...

    @abstractmethod
    def _retype_what_fits(self, name: str, kind: str) -> None:
        """A value that is none of the new type becomes NULL: the rows of such a change are read again."""

    @abstractmethod
    def tell_apart(self, schema: TopicSchema, *, again: bool = False) -> None:
        """Makes what tells the schema's rows apart. ``again``: the rows that are there have it of other columns."""

    @abstractmethod
    def told_apart(self, schema: TopicSchema) -> bool:
        """Whether ``tell_apart`` would change nothing."""

    @abstractmethod
    def compared(self, name: str) -> tuple[str, str]:
        """A type, and the expression for a column of the row ``t`` as that type: two values are the same one where these are."""

    @abstractmethod
    def become_text(self, name: str) -> None:
        """The column holds the same texts as a column of text."""

    @abstractmethod
    def sign(self, sign: TableSign) -> None:
        """Writes into the table's comment whose it is."""

    @abstractmethod
    def put(self, schema: TopicSchema, staged: StagedRows, which: str = "true") -> None:
        """Writes the staged rows ``r`` that do not go, each over the row of its key. ``which``: a condition on them."""

    @abstractmethod
    def foreseen(self, schema: TopicSchema, staged: StagedRows) -> Mapping[int, RowRefusal]:
        """The staged rows, by number, of which it is known without trying that the table refuses them."""

    @abstractmethod
    def match(self, schema: TopicSchema, staged: str) -> str:
        """The condition that the row ``t`` has the key of the row ``staged``."""

    @abstractmethod
    def texts(self, schema: TopicSchema) -> Iterator[pa.RecordBatch]:
        """All rows, as ``sinks.contract.audit_schema(schema)``: canonical text."""

    @abstractmethod
    def found(self, schema: TopicSchema, keys: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """As ``texts``, the rows with these keys. ``keys``: the key's columns as text."""

    # --- what is the same everywhere -------------------------------------------------------------------------------------------------

    @property
    def number(self) -> int:
        found = self._dialect.standing(self._session, self.place)
        assert found is not None
        return found.number

    @property
    def _dialect(self) -> Dialect:
        return self._session.dialect

    def take(self, own: OwnColumns) -> None:
        """From now on the table has these columns beside the source's."""
        for name, kind in own.definitions():
            if name not in self.columns:
                self._add(name, kind)
        self.own = own

    def remove(self, schema: TopicSchema, staged: StagedRows) -> None:
        """Removes the rows of the staged keys that go, or marks them as deleted."""
        if self.own.deleted is None:
            self._session.run(f"delete from {self.place.sql} t using {staged.sql} r where r.{GONE} and {self.match(schema, 'r')}")
        else:
            self._mark_deleted(f" from {staged.sql} r where r.{GONE} and {self.match(schema, 'r')}")

    def remove_one(self, schema: TopicSchema, texts: Mapping[str, str | None]) -> None:
        """Removes one row of those that are so. ``texts``: canonical text, by column."""
        row = reshaped(pa.RecordBatch.from_pylist([dict(texts)], audit_schema(schema)), schema, schema, 0)
        found = {name: self.compared(name) for name in schema.names}
        staged = self._dialect.stage(self._session, schema, {name: kind for name, (kind, _) in found.items()}, {})
        staged.send(row, {})
        same = " and ".join(f"{value} is not distinct from r.{quoted(name)}" for name, (_, value) in found.items()) or "true"
        one = f"select t.{self._dialect.row_id} from {self.place.sql} t, {staged.sql} r where {same} limit 1"
        self._session.run(f"delete from {self.place.sql} where {self._dialect.row_id} in ({one})")
        staged.drop()

    def keep_only(self, schema: TopicSchema, staged: StagedRows) -> None:
        """Removes the rows whose key is not staged, or marks them as deleted."""
        others = f"not exists (select 1 from {staged.sql} r where {self.match(schema, 'r')})"
        if self.own.deleted is None:
            self._session.run(f"delete from {self.place.sql} t where {others}")
        else:
            self._mark_deleted(f" where {others}")

    def truncate(self) -> None:
        """Removes all rows, or marks them as deleted."""
        if self.own.deleted is None:
            self.empty()
        else:
            self._mark_deleted(" where true")

    def empty(self) -> None:
        """DELETE: unlike TRUNCATE it waits for no reader, and whoever has begun to read goes on."""
        self._session.run(f"delete from {self.place.sql}")

    def _mark_deleted(self, which: str) -> None:
        self._session.run(f"update {self.place.sql} t set {', '.join(self.own.set(deleted=True))}{which} and {self.own.live}")

    def evolve(self, old: TopicSchema, new: TopicSchema, *, emptied: bool) -> None:
        """Rows under ``old`` become what they would be under ``new``. ``emptied``: there are none."""
        if self.own.deleted is not None and not emptied and rekeyed(old, new):
            # What the new key has told apart among live rows it may not among those that are gone.
            self._session.run(f"delete from {self.place.sql} t where not ({self.own.live})")
        came = {} if emptied and old.holding != new.holding else origins(old, new)
        self._keep_columns(
            old, {name: field.name for name, field in came.items() if field is not None and field.name in self.columns}
        )
        for field in new.fields:
            before = came.get(field.name)
            same = before is not None and before.structure == field.structure and self._stays(before, field)
            if (
                not same or emptied
            ):  # one that became text goes on holding values that its type does not, and a type of somebody's own stays
                self._fit(field, emptied=emptied)
        self.tell_apart(new, again=digested(new) and not emptied and (not digested(old) or set(came) != set(old.names)))

    def _stays(self, before: TopicField, field: TopicField) -> bool:
        """Whether the field's column is of the type that it is to have, or of one that somebody else wants it to have."""
        there, type_of = self.columns.get(field.name), self._dialect.column_type
        return there == self._dialect.text or (there is not None and type_of(before) == type_of(field))

    def replace_columns(self, known: Sequence[str], schema: TopicSchema) -> None:
        """Makes those of an empty table what the schema wants. ``known``: columns that were the store's before."""
        wanted = {field.name: self._dialect.column_type(field) for field in schema.fields}
        fresh = [name for name in schema.names if name not in self.columns]
        for name in fresh:
            self._add(name, wanted[name])  # first: a table has at least one column
        for name in known:
            if name in self.columns and self.columns[name] != wanted.get(name):
                self._drop(name)
        for field in schema.fields:
            if self.columns.get(field.name) not in (None, wanted[field.name]):
                self._drop(field.name)
            self._fit(field, emptied=True)
        self.tell_apart(schema)

    def fits(self, schema: TopicSchema) -> bool:
        """Whether nothing has to change before rows of the schema are written, whatever else is there."""
        return all(self.columns.get(field.name) == self._dialect.column_type(field) for field in schema.fields) and (
            self.told_apart(schema)
        )

    def admit(self, schema: TopicSchema) -> None:
        """Adds the columns that rows of the schema have and the table lacks."""
        for field in schema.fields:
            if field.name not in self.columns:
                self._add(field.name, self._dialect.column_type(field))

    def _keep_columns(self, old: TopicSchema, kept: Mapping[str, str]) -> None:
        """``kept``: new name → the name until now. The others that were the definition's go."""
        staying = set(kept.values())
        for name in old.names:
            if name in self.columns and name not in staying:
                self._drop(name)
        moved = {now: new for new, now in kept.items() if new != now}
        for number, now in enumerate(moved):
            self.rename(now, f"_cdc_moving_{number}")
        for number, new in enumerate(moved.values()):
            if new in self.columns:  # somebody's own
                raise refused(self.place, f"has a column {new} of its own, which a column of the source is called now")
            self.rename(f"_cdc_moving_{number}", new)

    def _fit(self, field: TopicField, *, emptied: bool) -> None:
        name, wanted = field.name, self._dialect.column_type(field)
        there = self.columns.get(name)
        if there is None:
            self._add(name, wanted)
        elif there != wanted:
            if wanted == self._dialect.text:
                self.become_text(name)
            elif emptied:
                self.retype(name, wanted, f"cast(null as {wanted})")
            else:
                self._retype_what_fits(name, wanted)

    def _add(self, name: str, kind: str) -> None:
        self._session.run(f"alter table {self.place.sql} add column {quoted(name)} {kind}")
        self.columns[name] = kind.partition(" default ")[0]

    def _drop(self, name: str) -> None:
        self._session.run(f"alter table {self.place.sql} drop column {quoted(name)}")
        del self.columns[name]

    def rename(self, name: str, new: str) -> None:
        self._session.run(f"alter table {self.place.sql} rename column {quoted(name)} to {quoted(new)}")
        self.columns[new] = self.columns.pop(name)


def make_schema(session: SqlSession, name: str) -> None:
    """Asks first: making one that is there already takes a right that is not needed otherwise."""
    if not session.dialect.has_schema(session, name):
        session.run(f"create schema if not exists {quoted(name)}")


def definitions(dialect: Dialect, schema: TopicSchema) -> Iterator[str]:
    """The columns of a new table."""
    if IDENTITY in schema.names:
        raise StoreError(
            f"{schema.topic} has a column {IDENTITY}, which is ours", retryable=False, hint=f"cdc resume {StopState.STORE_REFUSES}"
        )
    for field in schema.fields:
        yield f"{quoted(field.name)} {dialect.column_type(field)}"
    if not schema.fields and not dialect.has_empty_tables:
        yield f"{IDENTITY} {dialect.text}"


def made(
    session: SqlSession, schema: TopicSchema, place: TargetPlace, sign: TableSign, beside: Mapping[str, str] | None = None
) -> TargetTable:
    """A new, empty table. ``beside``: name → type of columns that it has further, as a history has, in which nothing tells rows apart."""
    dialect = session.dialect
    make_schema(session, place.schema)
    session.run(
        f"create table {place.sql} ({', '.join((*definitions(dialect, schema), *(f'{name} {kind}' for name, kind in (beside or {}).items())))})"
    )
    table = dialect.table(session, place)
    table.sign(sign)
    if beside is None:
        table.tell_apart(schema)
    return table
