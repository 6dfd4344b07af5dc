"""``transform``: a function of the user's own, in Python, over what a store is to hold of rows.

``transform = "shop.rows:tidy"`` names a function ``RecordBatch -> RecordBatch``: the same rows in the same order, the same columns with the same types, and the key as
it was. It is called wherever a store's share of rows is made (``sinks.holding``): for changes, for what is written again, for what an audit expects, in this process
and in Spark's. So what it returns for a row has to follow from that row alone.

Which function that is comes from ``cdc.toml`` and from nowhere else (``cdc.settings.functions``): a store keeps the name with its shape, to be compared, and nothing is ever
imported because of what a store says.

A value that a column's Arrow type does not hold (such as the timestamp ``infinity``) cannot be shown to the function, and so is nothing that it could have changed: such a
row is one that the transform has no value of, and becomes a dead letter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.errors import StoreError
from cdc.model.batch import EXACT, FAILED, OP, Op
from cdc.model.pgtypes import canonical_text
from cdc.model.structure import Scalar, ScalarType
from cdc.model.topic import TopicField, TopicSchema
from cdc.settings import functions
from sinks.meant import Meant
from sinks.render.correction import checked
from sinks.render.fromtext import exact_column, typed
from sinks.render.rowtext import ExactValues, exact_values

TRANSFORM: Final = "transform"
_PLAIN: Final = frozenset(Scalar(one) for one in (ScalarType.TEXT, ScalarType.VARCHAR, ScalarType.NAME))
"""Of these every text is a value, but for one with a zero byte."""


@dataclass(frozen=True, slots=True)
class Transform:
    """``mark``: what tells one version of the function from another; ``columns``: what it is given beside the key, None: all that the store holds."""

    reference: str
    mark: str
    columns: tuple[Meant, ...] | None = None

    @classmethod
    def bound(cls, reference: str, version: str | None, columns: tuple[Meant, ...] | None) -> Transform:
        """Loads the function. Raises ConfigError where there is none, or nobody can say which version of it this is."""
        return cls(reference, functions.mark_of(reference, version, TRANSFORM, "transform_version"), columns)

    @property
    def raw(self) -> list[Any]:
        columns = None if self.columns is None else sorted([one.name, one.number] for one in self.columns)
        return [self.reference, self.mark, columns]

    @classmethod
    def from_raw(cls, raw: Sequence[Any]) -> Transform:
        reference, mark, columns = raw
        return cls(str(reference), str(mark), None if columns is None else tuple(Meant(*one) for one in columns))

    @property
    def said(self) -> tuple[Any, ...]:
        return self.reference, self.mark, None if self.columns is None else frozenset(one.name for one in self.columns)

    def fields(self, held: TopicSchema, origin: str) -> tuple[TopicField, ...]:
        """The fields that it is given, the key among them. ``origin``: of the rows that the columns' numbers are of."""
        if self.columns is None:
            return held.fields
        by_column = {one.column_name: one for one in held.fields}
        listed = set[str]()
        for meant in self.columns:
            numbered = (one for one in held.fields if meant.number and one.origin == meant.number and held.origin == origin)
            found = next(numbered, None) or by_column.get(meant.name)
            listed |= set() if found is None else {found.name}
        return tuple(one for one in held.fields if one.key or one.name in listed)

    def values(self, given: Mapping[str, pa.Array], fields: Sequence[TopicField], topic: str) -> Mapping[str, pa.Array]:
        """The values that it makes of the columns that are not of the key, by the fields' names. ``given``: those of ``fields``, by the same names.

        Raises StoreError (not retryable) where it fails, or returns something else than it may. No value is in it.
        """
        rows = pa.RecordBatch.from_arrays(
            [given[one.name] for one in fields], schema=pa.schema([pa.field(one.column_name, one.type) for one in fields])
        )
        function = functions.loaded_before(self.reference)
        if function is None:
            raise StoreError(f"{TRANSFORM} = {self.reference!r} of {topic} is not loaded", retryable=False)
        try:
            found = function.function(rows)
        except (Exception, SystemExit) as error:
            raise self._refused(topic, f"raised {type(error).__name__}{function.where(error)}") from None
        self._check(rows, found, fields, topic)
        made = {one.name: (found.column(at), one) for at, one in enumerate(fields) if not one.key}
        return {
            name: given[name] if values.equals(given[name]) else self._spelled(values, one, topic)
            for name, (values, one) in made.items()
        }

    def _check(self, rows: pa.RecordBatch, found: object, fields: Sequence[TopicField], topic: str) -> None:
        if not isinstance(found, pa.RecordBatch):
            raise self._refused(topic, f"returned a {type(found).__name__}, not a pyarrow.RecordBatch")
        if found.num_rows != rows.num_rows:
            raise self._refused(topic, f"returned {found.num_rows} rows for {rows.num_rows}")
        if found.schema.names != rows.schema.names:
            raise self._refused(topic, _other_columns(rows.schema.names, found.schema.names))
        for at, one in enumerate(fields):
            if found.schema.field(at).type != one.type:
                raise self._refused(topic, f"returned {one.column_name} as {found.schema.field(at).type}, not {one.type}")
            if one.key and not _equal(found.column(at), rows.column(at)):
                raise self._refused(topic, f"changed {one.column_name}, which tells rows apart")
        try:
            found.validate(full=True)
        except pa.ArrowInvalid:
            raise self._refused(topic, "returned a batch that is damaged") from None

    def _spelled(self, values: pa.Array, field: TopicField, topic: str) -> pa.Array:
        """Texts as the column's type at the source spells them."""
        if not pa.types.is_string(field.type):
            return values
        if field.structure in _PLAIN and not pc.any(pc.match_substring(values, "\0")).as_py():
            return values
        unique = values.dictionary_encode()
        texts = [None if text is None else checked(text, field) for text in unique.dictionary.to_pylist()]
        if None in texts:
            raise self._refused(topic, f"returned for {field.column_name} a text that is not a {field.type_name or field.type}")
        return pa.array(texts, pa.utf8()).take(unique.indices)

    def _refused(self, topic: str, why: str) -> StoreError:
        return StoreError(
            f"{TRANSFORM} = {self.reference!r} {why} ({topic})",
            retryable=False,
            hint="correct the function; cdc preview calls it for rows of the log",
        )


def transformed_changes(transform: Transform, batch: pa.RecordBatch, held: TopicSchema, origin: str) -> pa.RecordBatch:
    """Changes as the store is given them, of which the function has seen those that leave a row. One that it cannot be shown is a DELETE, and says why
    (``sinks.holding.failures_of``). ``origin``: as ``Transform.fields`` takes it."""
    live = np.flatnonzero(batch.column(OP).to_numpy() != int(Op.DELETE))
    if not len(live):
        return batch
    fields, texts = transform.fields(held, origin), exact_values(batch)
    hidden = {one.name: set(texts[one.name].rows.tolist()) for one in fields if one.name in texts and not one.key}
    failed: dict[int, str] = {}
    for row in live.tolist() if hidden else ():
        if odd := [one.column_name for one in fields if row in hidden.get(one.name, ())]:
            failed[row] = _unseen(odd)
    shown = np.setdiff1d(live, list(failed)) if failed else live
    rows = batch if len(shown) == len(batch) else batch.take(pa.array(shown))
    found = transform.values({one.name: rows.column(one.name) for one in fields}, fields, held.topic)
    if len(shown) < len(batch):
        at = np.arange(len(batch))
        at[shown] = np.arange(len(shown)) + len(batch)
        order = pa.array(at)
        found = {name: pa.concat_arrays([batch.column(name), values]).take(order) for name, values in found.items()}
    columns = [found.get(name, batch.column(name)) for name in batch.schema.names]
    if failed:
        ops = batch.column(OP).to_numpy().copy()
        ops[list(failed)] = int(Op.DELETE)
        columns[batch.schema.get_field_index(OP)] = pa.array(ops)
        columns[batch.schema.get_field_index(EXACT)] = _with_failures(len(batch), texts, failed)
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def transformed_texts(transform: Transform, rows: pa.RecordBatch, held: TopicSchema, origin: str) -> pa.RecordBatch:
    """The same of rows of text, as an audit expects them; further columns stay as they are. A row that the function cannot be shown stays as it is: the store
    does not have it."""
    fields = transform.fields(held, origin)
    values = {one.name: typed(rows.column(one.name), one.type) for one in fields}
    unseen = np.zeros(len(rows), np.bool_)
    for one in fields:
        if not one.key:
            unseen[list(values[one.name][1])] = True
    shown = pa.array(~unseen)
    given = {name: found if not unseen.any() else found.filter(shown) for name, (found, _) in values.items()}
    made = transform.values(given, fields, held.topic)
    for name, found in made.items():
        texts = canonical_text(found)
        if unseen.any():
            texts = pc.replace_with_mask(rows.column(name), shown, texts)
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.schema.field(at), texts)
    return rows


def no_rows(held: TopicSchema) -> pa.RecordBatch:
    """No rows of text."""
    return pa.RecordBatch.from_pylist([], pa.schema([(one.name, pa.utf8()) for one in held.fields]))


def _unseen(columns: Sequence[str]) -> str:
    return f"{TRANSFORM}: {' and '.join(columns)} has a value that no column of its Arrow type holds"


def is_unseen(failure: str) -> bool:
    """Whether a row's failure is that it cannot be shown to the function."""
    return f"{TRANSFORM}: " in failure


def _with_failures(rows: int, texts: Mapping[str, ExactValues], failed: Mapping[int, str]) -> pa.Array:
    left = {name: dict(zip(one.rows.tolist(), one.texts.to_pylist(), strict=True)) for name, one in texts.items()}
    before = left.get(FAILED, {})
    left[FAILED] = {**before, **{row: f"{before[row]}, {why}" if row in before else why for row, why in failed.items()}}
    return exact_column(rows, left)


def _other_columns(wanted: Sequence[str], found: Sequence[str]) -> str:
    if missing := [name for name in wanted if name not in found]:
        return f"returned no column {missing[0]}"
    if further := [name for name in found if name not in wanted]:
        return f"returned another column, {further[0]}; what is to be added is a `computed` first"
    return "returned the columns in another order, or one of them twice"


def _equal(one: pa.Array, other: pa.Array) -> bool:
    if one.equals(other):
        return True
    if not pa.types.is_floating(one.type):
        return False
    return bool(
        pc.all(pc.or_(pc.equal(one, other), pc.and_(pc.is_nan(one), pc.is_nan(other))).fill_null(True)).as_py()
    ) and one.is_null().equals(other.is_null())
