"""An expression that a store's configuration has of a table's rows (``where``, ``computed``), and its values for rows. Pure.

A ``Formula`` is the text and what its names meant when the store took the topic up: a column goes by its number, as in ``sinks.holding``, and has the type that it
had then. So it says the same of every definition that the log has of the topic:

- an earlier definition that does not have the column yet gives NULL, as the source would; one that has it under another type gives the value as the type reads it
  (rows that the source has rewritten meanwhile come again as reads);
- a later definition that has lost the column, or has it under another type, is refused (``unmet``): nobody here guesses what was meant.

``cdc.expressions`` computes. It loads an engine, so it is imported once something is to be computed: most stores have no expression.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.errors import ConfigError
from cdc.model.batch import EXACT
from cdc.model.pgtypes import canonical_text
from cdc.model.structure import Scalar
from cdc.model.topic import COMPUTED_TYPE, TopicField, TopicSchema
from sinks.render.fromtext import exact_column, spelled, typed
from sinks.render.rowtext import exact_values

if TYPE_CHECKING:
    from cdc.expressions import Expression, PgType

WHERE: Final = "where"
WHEN: Final = "when"
"""A condition on changes (``sinks.condition``)."""
COMPUTED: Final = "computed."

Values = tuple[pa.Array, Mapping[int, str]]
"""A column, and row → the exact text of a value that its type does not hold."""
ColumnValues = Callable[[TopicField], Values]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class FormulaColumn:
    """A column that a formula reads. ``number`` 0: not known; ``type_name`` empty: the topic did not have it. The type is as ``cdc.expressions`` has it."""

    name: str
    number: int = 0
    type_name: str = ""
    bounds: tuple[int, int] | None = None
    label: str = ""

    def among(self, schema: TopicSchema, origin: str) -> TopicField | None:
        """The field; another one of its name is not it, where numbers tell. ``origin``: of the rows that the numbers are of."""
        numbered = self.number and schema.origin == origin
        return next((one for one in schema.fields if (one.origin == self.number if numbered else one.name == self.name)), None)

    @property
    def type(self) -> PgType:
        from cdc.expressions import PgType

        return PgType(self.type_name, self.bounds, self.label)

    def is_of(self, field: TopicField) -> bool:
        """Whether the field has this type, as far as expressions tell types apart: of one that the database defines they only see the text."""
        from cdc.expressions import type_of

        found = type_of(field)
        return (found.name, found.bounds) == (self.type_name, self.bounds)


@dataclass(frozen=True, slots=True)
class Formula:
    """``key``: where it stands among a table's options. ``origin``: of the schema that its columns were bound to."""

    key: str
    text: str
    columns: tuple[FormulaColumn, ...] = ()
    origin: str = field(default="", compare=False)

    @property
    def raw(self) -> list[Any]:
        """For JSON; ``from_raw`` reads it."""
        return [self.text, [[one.name, one.number, one.type_name, one.bounds, one.label] for one in self.columns]]

    @classmethod
    def from_raw(cls, key: str, raw: Sequence[Any], origin: str) -> Formula:
        text, columns = raw
        found = (
            FormulaColumn(name, number, kind, bounds and tuple(bounds), label) for name, number, kind, bounds, label in columns
        )
        return cls(key, text, tuple(found), origin)

    @property
    def field(self) -> TopicField:
        """The field that a store holds of a computed one. Raises ConfigError."""
        return _field(self)

    @property
    def meant(self) -> Any:
        """Equal for two texts that say the same of the same columns."""
        from cdc.expressions import ExpressionRefused, said

        numbers = {one.name: f"#{one.number}" for one in self.columns if one.number}
        try:
            return said(self.text, numbers)
        except ExpressionRefused:
            return self.text

    def unmet(self, schema: TopicSchema) -> str | None:
        """Why it says nothing of this definition; None where it does."""
        from cdc.expressions import type_of

        for one in self.columns:
            found = one.among(schema, self.origin)
            if found is None:
                return f"{self.key} uses {one.name}, which {schema.topic} no longer has"
            if not one.is_of(found):
                return f"{self.key} uses {found.name}, whose type was {one.type} and is {type_of(found)}"
        return None

    def check(self, where: str, schema: TopicSchema) -> None:
        """Raises ConfigError, with the place, where it is not an expression over this definition's columns. ``where``: the table's options."""
        from cdc.expressions import BOOL, ExpressionRefused, compile, type_of

        try:
            compile(self.text, {one.name: type_of(one) for one in schema.fields}, BOOL if self.key in (WHERE, WHEN) else None)
        except ExpressionRefused as refused:
            raise ConfigError(f"{where}.{self.key}: {schema.topic}: {refused}", hint=refused.hint) from None

    def values(self, column_values: ColumnValues, schema: TopicSchema, rows: int) -> FormulaValues:
        """Its values for rows of this definition."""
        expression = _compiled(self)
        arrays, exact = [], {}
        for one in self.columns:
            arrays.append(pa.nulls(rows, one.type.arrow))
            found = one.among(schema, self.origin)
            if found is not None:
                arrays[-1], exact[one.name] = _as_type(*column_values(found), found, one)
        names = [one.name for one in self.columns]
        batch = pa.RecordBatch.from_arrays([*arrays, exact_column(rows, exact)], names=[*names, EXACT])
        result = expression.evaluate(batch)
        states = {} if result.failed is None else _by_row(result.failed)
        return FormulaValues(result.values, {} if result.exact is None else _by_row(result.exact), states)


@dataclass(frozen=True, slots=True)
class FormulaValues:
    """``exact``: row → the exact text of a value that the type does not hold. ``states``: row → why it fails (SQLSTATE)."""

    values: pa.Array
    exact: Mapping[int, str]
    states: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The verdict of a store's expressions on rows. ``left_out``: ``where`` is not true of them. ``failures``: row → which of its expressions have no value, and why.
    ``computed``: by name."""

    left_out: Mask
    failures: Mapping[int, str]
    computed: Mapping[str, FormulaValues]


def bound(key: str, text: str, schema: TopicSchema) -> Formula:
    """The expression as this definition's columns are called; one that is wrong is refused by ``check``."""
    from cdc.expressions import ExpressionRefused, named, type_of

    fields = {one.name: one for one in schema.fields}
    try:
        names = named(text)
    except ExpressionRefused:
        names = ()
    columns = []
    for name in names:
        found = fields.get(name)
        kind = None if found is None else type_of(found)
        number = 0 if found is None else found.origin
        columns.append(
            FormulaColumn(name, number) if kind is None else FormulaColumn(name, number, kind.name, kind.bounds, kind.label)
        )
    return Formula(key, text, tuple(columns), schema.origin)


def evaluated(
    where: Formula | None,
    computed: Sequence[tuple[str, Formula]],
    column_values: ColumnValues,
    schema: TopicSchema,
    live: Mask,
) -> Evaluation:
    """Evaluates them for rows. ``live``: those that there is something to be said of; of the others nothing is left out and nothing fails.

    As in a SELECT: what ``where`` leaves out is not computed, so it cannot fail.
    """
    rows = len(live)
    left_out, failures = np.zeros(rows, np.bool_), dict[int, str]()
    if where is not None:
        found = where.values(column_values, schema, rows)
        left_out = live & ~found.values.fill_null(False).to_numpy(zero_copy_only=False)
        for row, state in found.states.items():
            if live[row]:
                left_out[row] = False
                failures[row] = _reason(where, state)
    values: dict[str, FormulaValues] = {}
    for name, formula in computed:
        found = values[name] = formula.values(column_values, schema, rows)
        for row, state in found.states.items():
            if live[row] and not left_out[row]:
                failures[row] = f"{failures[row]}, {_reason(formula, state)}" if row in failures else _reason(formula, state)
    return Evaluation(left_out, failures, values)


def is_named(column: str, failure: str) -> bool:
    """Whether a row's failure (``Evaluation.failures``) is one of this computed column, too."""
    return f"{COMPUTED}{column}: " in failure


def _reason(formula: Formula, state: str) -> str:
    from cdc.expressions import MEANINGS

    return f"{formula.key}: {MEANINGS.get(state, 'it has no value')} ({state})"


def _as_type(values: pa.Array, exact: Mapping[int, str], found: TopicField, wanted: FormulaColumn) -> Values:
    """The values as the type that the expression was bound to reads them; NULL where it does not have such a value."""
    from cdc.expressions import scalar_of

    if wanted.is_of(found):
        return values, exact
    texts = text_of(values, exact)
    if wanted.type_name in ("own", "opaque"):
        return texts, {}
    as_field = TopicField(wanted.name, wanted.type.arrow, Scalar(scalar_of(wanted.type)))
    read, odd = typed(texts, as_field.type)
    return read, {row: text for row, text in odd.items() if spelled(text, as_field) is not None}


def _by_row(texts: pa.Array) -> dict[int, str]:
    rows = pc.indices_nonzero(texts.is_valid())
    return dict(zip(rows.to_pylist(), texts.take(rows).to_pylist(), strict=True))


@lru_cache(maxsize=1024)
def _compiled(formula: Formula) -> Expression:
    from cdc.expressions import BOOL, compile

    columns = {one.name: one.type for one in formula.columns if one.type_name}
    return compile(formula.text, columns, BOOL if formula.key in (WHERE, WHEN) else None)


@lru_cache(maxsize=1024)
def _field(formula: Formula) -> TopicField:
    from cdc.expressions import ExpressionRefused, scalar_of

    try:
        kind = _compiled(formula).type
    except ExpressionRefused as refused:
        raise ConfigError(f"{formula.key}: {refused}", hint=refused.hint) from None
    name = formula.key.removeprefix(COMPUTED)
    return TopicField(name, kind.arrow, Scalar(scalar_of(kind)), type_name=str(kind), source_type=f"{COMPUTED_TYPE}{kind}")


def formulas(where: Formula | None, computed: Sequence[tuple[str, Formula]]) -> Iterator[Formula]:
    """All of them."""
    if where is not None:
        yield where
    yield from (one for _, one in computed)


def column_of(batch: pa.RecordBatch, column: TopicField) -> Values:
    """A column of changes."""
    exact = exact_values(batch).get(column.name)
    return batch.column(column.name), {} if exact is None else dict(zip(exact.rows.tolist(), exact.texts.to_pylist(), strict=True))


def typed_column(rows: pa.RecordBatch, column: TopicField) -> Values:
    """A column of text."""
    return typed(rows.column(column.name), column.type)


def text_of(values: pa.Array, exact: Mapping[int, str]) -> pa.Array:
    """Values as canonical text. ``exact``: row → the text of one that its type does not hold."""
    texts = canonical_text(values)
    if not exact:
        return texts
    mask = np.zeros(len(texts), np.bool_)
    mask[list(exact)] = True
    return pc.replace_with_mask(texts, pa.array(mask), pa.array([exact[row] for row in sorted(exact)], pa.utf8()))
