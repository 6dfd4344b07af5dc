"""A condition on changes: ``when`` of a store that hands them on, such as ``op = 'update' AND changed(status) AND old.status = 'pending'``. Pure.

It sees the table's columns by their own names, as the change leaves them, and beside them

- ``op``: ``insert``, ``update``, ``delete``, ``read`` or ``truncate``;
- ``old.x``: what column x was before; NULL where there was no row, or nobody knows it;
- ``changed(x, y)``: whether an update has given one of these columns another value, as Postgres prints it. What an update does not send, since it is stored apart and is
  the same, has not changed. NULL of anything but an update.

To an expression these are columns like any other: ``seen`` is the topic's schema with them. So a column that is renamed at the source is still the one that was meant
(``sinks.formula``), and one that is dropped is named. A change of which the condition is not true, NULL included, is none for the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.errors import ConfigError, StopState, StoreError
from cdc.model.batch import OP, POSITION, Op, topic_schema
from cdc.model.structure import Scalar, ScalarType
from cdc.model.topic import TopicField, TopicSchema
from sinks.formula import WHEN, Formula, Values, bound, column_of
from sinks.render.rowtext import column_text, exact_values

OLD: Final = "old."
CHANGED: Final = "changed."
OPERATION: Final = "op"
OPERATIONS: Final[Mapping[int, str]] = {
    int(Op.INSERT): "insert",
    int(Op.UPDATE): "update",
    int(Op.DELETE): "delete",
    int(Op.READ): "read",
    int(Op.TRUNCATE): "truncate",
}
_APART: Final = 1 << 20
"""More than any column's number."""

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ReplacedRows:
    """The rows that changes have replaced. ``has``: which changes; ``rows``: theirs, one behind the other, under the changes' definition."""

    has: Mask
    rows: pa.RecordBatch | None = None

    @property
    def numbers(self) -> pa.Array:
        """For each change the number of its row, or NULL."""
        return pa.array(np.cumsum(self.has) - 1, mask=~self.has)

    def filter(self, kept: Mask) -> ReplacedRows:
        """The same of these changes only."""
        rows = None if self.rows is None else self.rows.filter(pa.array(kept[self.has]))
        return ReplacedRows(self.has[kept], rows)


@dataclass(frozen=True, slots=True)
class Condition:
    """Bound to what its names meant when the store took the topic up. ``where``: the place of the key, for errors."""

    store: str
    formula: Formula

    @classmethod
    def of(cls, store: str, text: str, schema: TopicSchema) -> Condition:
        return cls(store, bound(WHEN, text, seen(schema)))

    @property
    def asks_old_rows(self) -> bool:
        return asks_old_rows(self.formula.text)

    def refuse_unmet(self, schema: TopicSchema) -> None:
        """Raises ConfigError for a definition of which it says nothing."""
        why = self.formula.unmet(seen(schema))
        if why is not None:
            raise ConfigError(f"stores.{self.store}: {why}", hint=f"correct `when` in stores.{self.store}")

    def true_of(self, changes: pa.RecordBatch, replaced: ReplacedRows) -> Mask:
        """Which of the changes, rows or one TRUNCATE, it is true of. Raises StoreError where it has no value of one."""
        schema = topic_schema(changes.schema)
        found = self.formula.values(_Columns(changes, replaced), seen(schema), len(changes))
        if found.states:
            row = min(found.states)
            position = changes.column(POSITION)[row].as_py()
            raise StoreError(
                f"store {self.store}: `when` has no value of the change {schema.topic}@{position} ({found.states[row]})",
                retryable=False,
                hint=f"write it so that it has one of every row, with nullif or CASE; then cdc resume {StopState.STORE_REFUSES}:follow-{self.store}",
            )
        true: Mask = found.values.fill_null(False).to_numpy(zero_copy_only=False)
        return true


@lru_cache(maxsize=1024)
def asks_old_rows(text: str) -> bool:
    """Whether a condition sees rows as they were before changes. False for what is none."""
    from cdc.expressions import ExpressionRefused, named

    if not text:
        return False
    try:
        return any(name.startswith((OLD, CHANGED)) for name in named(text))
    except ExpressionRefused:
        return False


def check(store: str, text: str | None, schema: TopicSchema) -> None:
    """Raises ConfigError where it is not a condition on this topic's changes."""
    if text is None:
        return
    Formula(WHEN, text).check(f"stores.{store}", seen(schema))
    keyless = not schema.key or (schema.identity == "row" and all(one.key for one in schema.fields))
    if Condition.of(store, text, schema).asks_old_rows and keyless:
        raise ConfigError(
            f"stores.{store}.when: {schema.topic} has no key that tells which row a change has replaced, so there is no old.… and no changed(…)",
            hint="give the table a primary key, or leave it out of the store's tables",
        )


@lru_cache(maxsize=1024)
def seen(schema: TopicSchema) -> TopicSchema:
    """The topic's schema with what a condition sees beside its columns."""
    own = [one for one in schema.fields if one.name != OPERATION]
    op = TopicField(OPERATION, pa.utf8(), Scalar(ScalarType.TEXT), type_name="text")
    before = [replace(one, name=OLD + one.name, key=False, origin=one.origin and one.origin + _APART) for one in schema.fields]
    flags = [
        TopicField(
            CHANGED + one.name, pa.bool_(), Scalar(ScalarType.BOOL), origin=one.origin and one.origin + 2 * _APART, type_name="bool"
        )
        for one in schema.fields
    ]
    return replace(schema, fields=(*own, op, *before, *flags))


@dataclass(frozen=True, slots=True)
class _Columns:
    changes: pa.RecordBatch
    replaced: ReplacedRows

    def __call__(self, field: TopicField) -> Values:
        if field.name == OPERATION:
            return op_names(self.changes), {}
        if field.name.startswith(OLD):
            return self._old(field.name.removeprefix(OLD), field.type)
        if field.name.startswith(CHANGED):
            return self._changed(field.name.removeprefix(CHANGED)), {}
        return column_of(self.changes, field)

    def _old(self, name: str, kind: pa.DataType) -> Values:
        rows = self.replaced.rows
        if rows is None:
            return pa.nulls(len(self.changes), kind), {}
        exact = exact_values(rows).get(name)
        at = np.flatnonzero(self.replaced.has)
        odd = {} if exact is None else dict(zip(at[exact.rows].tolist(), exact.texts.to_pylist(), strict=True))
        return rows.column(name).take(self.replaced.numbers), odd

    def _changed(self, name: str) -> pa.Array:
        rows = self.replaced.rows
        if rows is None:
            return pa.nulls(len(self.changes), pa.bool_())
        now = column_text(self.changes, name, exact_values(self.changes))
        before = column_text(rows, name, exact_values(rows)).take(self.replaced.numbers)
        same = pc.or_(pc.fill_null(pc.equal(now, before), False), pc.and_(now.is_null(), before.is_null()))
        updated = self.replaced.has & (self.changes.column(OP).to_numpy() == int(Op.UPDATE))
        return pc.if_else(pa.array(updated), pc.invert(same), pa.scalar(None, pa.bool_()))


def op_names(changes: pa.RecordBatch) -> pa.Array:
    """Each change's operation as a word, utf8."""
    codes = pa.array(list(OPERATIONS), pa.int8())
    return pa.array(list(OPERATIONS.values()), pa.utf8()).take(pc.index_in(changes.column(OP), value_set=codes))
