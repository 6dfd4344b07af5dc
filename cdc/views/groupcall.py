"""A function of the user's own that computes a view's rows, called for one group of rows at a time, and what it may return.

Which groups are given to it, and when, is ``cdc.views.calledgroups``'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from cdc.expressions.outside import given, handed_out
from cdc.expressions.valuetexts import spelled
from cdc.model.batch import EXACT
from cdc.model.pgtypes import canonical_text
from cdc.settings.functions import Loaded
from cdc.views.held import ViewStopped, released, schema_of
from cdc.views.plan import PlanColumn
from cdc.views.rows import distinct

PYTHON: Final = "python"
_EVERY_INTEGER: Final = pa.decimal128(20)


@dataclass(frozen=True, slots=True)
class DeclaredFunction:
    """As ``cdc.toml`` declares it. ``mark``: what tells one version of it from another; ``returns``: column → its type in Postgres's words."""

    reference: str
    loaded: Loaded
    mark: str
    by: tuple[str, ...]
    returns: Mapping[str, str]

    @property
    def identity(self) -> str:
        """Equal for two that compute the same rows."""
        return repr((self.reference, self.mark, self.by, list(self.returns.items())))


@dataclass(frozen=True, eq=False, slots=True)
class GroupCall:
    """The function between the SELECT's columns and the view's. ``given``, ``made``: by the names that it sees; ``key``: the view's, in the kernel's names."""

    declared: DeclaredFunction
    given: Mapping[str, PlanColumn]
    made: Mapping[str, PlanColumn]
    key: tuple[str, ...]

    @property
    def by(self) -> tuple[str, ...]:
        """The columns whose values make a group, in the kernel's names."""
        return tuple(dict.fromkeys(self.given[name].name for name in self.declared.by))

    @property
    def schema(self) -> pa.Schema:
        """The schema of the rows that are made, in the kernel's names and types."""
        groups = {one.name: one for one in (self.given[name] for name in self.declared.by)}
        return schema_of([*groups.values(), *self.made.values()])

    def rows(self, rows: pa.Table, order: Sequence[str]) -> pa.Table:
        """The rows of ``schema`` that it makes of these, which are whole groups.

        ``order``: the columns by which the rows of a group are ordered. Raises ViewStopped; no value is in it.
        """
        schema = self.schema
        if not rows.num_rows:
            return schema.empty_table()
        rows = rows.sort_by([(name, "ascending") for name in dict.fromkeys([*self.by, *order])])
        starts = self._starts(rows)
        shown = self._shown(rows)
        wanted = pa.schema([(name, one.kind.arrow) for name, one in self.made.items()])
        ends = [*starts[1:].tolist(), rows.num_rows]
        found = [self._called(shown.slice(start, end - start), wanted) for start, end in zip(starts.tolist(), ends, strict=True)]
        groups = rows.select(self.by).take(pa.array(np.repeat(starts, [one.num_rows for one in found])))
        values = self._held(pa.concat_tables(found))
        made = pa.Table.from_arrays(
            [groups.column(one.name) if one.name in self.by else values[one.name] for one in schema], schema=schema
        )
        self._check_key(made)
        return made

    def _starts(self, rows: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Where each group begins."""
        differs = np.zeros(rows.num_rows, np.bool_)
        differs[0] = True
        for shown in self.declared.by:
            values = rows.column(self.given[shown].name).combine_chunks()
            if values.null_count:
                raise ViewStopped(
                    f"{shown}, by which rows are grouped, is NULL in a row of its sql",
                    hint=f"leave such rows out (WHERE {shown} IS NOT NULL), or give them a value (coalesce)",
                )
            places = values.dictionary_encode().indices.to_numpy()
            differs[1:] |= places[1:] != places[:-1]
        return np.flatnonzero(differs)

    def _shown(self, rows: pa.Table) -> pa.Table:
        """As the function sees them: with the types that the log has."""
        shown = released(rows, self.given)
        if EXACT not in shown.column_names:
            return shown
        names = {name for entries in shown.column(EXACT).drop_null().to_pylist() for name, _ in entries}
        raise ViewStopped(
            f"{min(names)} has a value in its sql that no Arrow value stands for, such as infinity, so {self._name} cannot be given it",
            hint="correct it in the database, or let the view's sql leave it out",
        )

    # --- what it returns

    def _called(self, rows: pa.Table, wanted: pa.Schema) -> pa.Table:
        loaded = self.declared.loaded
        try:
            found = loaded.function(rows)
        except (Exception, SystemExit) as error:
            raise self._refused(f"raised {type(error).__name__}{loaded.where(error)}") from None
        if not isinstance(found, pa.Table):
            raise self._refused(f"returned a {type(found).__name__}, not a pyarrow.Table")
        if found.schema.equals(wanted):
            return found
        names = found.schema.names
        if sorted(names) != sorted(wanted.names):
            raise self._refused(self._other_columns(names))
        return pa.Table.from_arrays([self._fitted(found.column(one.name), one) for one in wanted], schema=wanted)

    def _fitted(self, values: pa.ChunkedArray, wanted: pa.Field) -> pa.ChunkedArray:
        """The same values in the type of the column, where that has them all."""
        if values.type == wanted.type:
            return values
        kind = self.made[wanted.name].kind
        try:
            if kind.name == "numeric" and pa.types.is_string(wanted.type) and _is_number(values.type):
                return pa.chunked_array([canonical_text(values.combine_chunks())], pa.utf8())
            if pa.types.is_decimal(wanted.type) and pa.types.is_integer(values.type):
                values = values.cast(_EVERY_INTEGER)  # Arrow casts to no decimal that could not hold the type's largest
            if _fits(values.type, wanted.type):
                return values.cast(wanted.type)
        except pa.ArrowInvalid:
            raise self._refused(f"returned for {wanted.name} a value that {kind} does not hold") from None
        raise self._refused(f"returned {wanted.name} as {values.type}; {kind} is {wanted.type}")

    def _held(self, made: pa.Table) -> dict[str, pa.Array]:
        """The returned values in the kernel's names and form."""
        try:
            made.validate(full=True)
        except pa.ArrowInvalid:
            raise self._refused("returned a table that is damaged") from None
        found = {}
        for name, column in self.made.items():
            values = made.column(name).combine_chunks()
            if pa.types.is_string(values.type):
                values = spelled(column.kind, values)
                if values is None:
                    raise self._refused(f"returned for {name} a text that is not a value of {column.kind}")
            held = given(column.kind, values, {})[0].cast(column.held)
            if handed_out(column.kind, held)[1] is not None:
                raise self._refused(f"returned for {name} a {column.kind} that a topic cannot hold")
            found[column.name] = held
        return found

    def _check_key(self, made: pa.Table) -> None:
        shown = {self.given[name].name: name for name in self.declared.by} | {one.name: name for name, one in self.made.items()}
        for name in self.key:
            if made.column(name).null_count:
                raise self._refused(f"returned NULL for {shown[name]}, which is of the view's key")
        if distinct(made, self.key).num_rows < made.num_rows:
            raise self._refused(f"returned two rows with one key ({', '.join(shown[name] for name in self.key)})")

    def _other_columns(self, names: Sequence[str]) -> str:
        if missing := [name for name in self.made if name not in names]:
            return f"returned no column {missing[0]}"
        if added := [name for name in names if name in self.declared.by]:
            return f"returned {added[0]}, which is of by; these columns are added to what it returns"
        if further := [name for name in names if name not in self.made]:
            return f"returned another column, {further[0]}, which is not in returns"
        return "returned two columns with one name"

    @property
    def _name(self) -> str:
        return f"{PYTHON} = {self.declared.reference!r}"

    def _refused(self, why: str) -> ViewStopped:
        return ViewStopped(f"{self._name} {why}", hint="correct the function")


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_decimal(kind) or pa.types.is_integer(kind))


def _fits(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether values of one type are values of the other, as far as that has room for them."""
    types = pa.types
    if types.is_null(kind):
        return True
    if types.is_dictionary(kind):
        return _fits(kind.value_type, wanted)
    if types.is_integer(wanted):
        return bool(types.is_integer(kind))
    if types.is_decimal(wanted):
        return _is_number(kind)
    if types.is_string(wanted):
        return bool(types.is_large_string(kind) or types.is_string_view(kind) or types.is_string(kind))
    if types.is_float64(wanted):
        return bool(types.is_float32(kind) or types.is_float16(kind))
    if types.is_timestamp(wanted):
        return bool(types.is_timestamp(kind) and (kind.tz is None) == (wanted.tz is None))
    return bool(types.is_date(wanted) and types.is_date(kind))
