"""Rows as columns of single values, for formats that say in a schema what each value is. Pure.

Whatever has a type of its own keeps it; everything else is text: numerics without bounds as Postgres prints them, arrays, objects and json as the text of their JSON. Dates
and times are numbers, days or microseconds since 1970-01-01 or midnight, infinities the least and the greatest number, as Postgres itself holds them. A value for which there is no number
(a year beyond 9999, NaN in a ``numeric(12, 2)``) makes its row *unfit*.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.errors import ConfigError
from cdc.model.structure import Scalar
from cdc.model.topic import TopicField, TopicSchema
from sinks.condition import ReplacedRows
from sinks.events.debezium import shown_whole, text_fields
from sinks.render.jsonkernels import VALUE
from sinks.render.jsonrows import Style, fields, place_of
from sinks.render.kinds import JSON_KINDS, Leaf, List, Object, Pairs
from sinks.render.rowtext import ExactValues, exact_values

INT4: Final = (-(2**31), 2**31 - 1)
INT8: Final = (-(2**63), 2**63 - 1)
_MIDNIGHT: Final = {"24:00:00": 86_400_000_000}


@dataclass(frozen=True, slots=True)
class FlatField:
    """``type``: the Arrow type that says what its values are. ``meaning``: of text, ``json``, ``uuid``, ``interval`` or nothing more. ``required``: it is never NULL."""

    column: str
    name: str
    type: pa.DataType
    meaning: str = ""
    required: bool = False
    key: bool = False


@dataclass(frozen=True, slots=True)
class FlatForm:
    """The fields of a topic's rows. ``texts``: those that are text."""

    fields: tuple[FlatField, ...]
    texts: TopicSchema
    style: Style

    @property
    def key(self) -> tuple[FlatField, ...]:
        return tuple(one for one in self.fields if one.key)


@dataclass(frozen=True, slots=True)
class FlatRows:
    """``columns``: by the column's name; integers stand for dates and times. ``unfit``: row → why."""

    columns: Mapping[str, pa.Array]
    unfit: Mapping[int, str]


def as_connect(column: TopicField) -> bool:
    """Whether the column is text where Debezium's JSON has it as text: decimals and moments with a time zone."""
    return pa.types.is_decimal(column.type) or _zoned(column.type)


@lru_cache(maxsize=256)
def flat_form(schema: TopicSchema, style: Style, *, connect: bool) -> FlatForm:
    """``connect``: types as Debezium's JSON has them (``as_connect``)."""
    found, texts = [], []
    chosen = {**text_fields(schema), **style.as_}
    for column in schema.fields:
        if not column.shown:
            continue
        own = column.name not in style.as_ and not pa.types.is_string(column.type) and not _odd_decimal(column.type)
        typed = own and not (connect and as_connect(column))
        zoned = connect and own and _zoned(column.type)
        meaning = "zoned" if zoned else "" if typed else _meaning(column, Style(as_=chosen))
        found.append(
            FlatField(
                column.name,
                "_".join(place_of(column, style)),
                column.type if typed else pa.utf8(),
                meaning,
                column.key and schema.identity in ("key", "index"),
                column.key,
            )
        )
        if not typed and not zoned:
            texts.append(replace(column, path=()))
    return FlatForm(tuple(found), replace(schema, fields=tuple(texts)), Style(as_=chosen))


def refuse_equal_names(where: str, fields: Sequence[FlatField], form: str, name_of: Callable[[str], str] = str) -> None:
    """Raises ConfigError where two fields would have one name. ``form``: the format's name; ``name_of``: a field's name → that in the format."""
    seen: dict[str, str] = {}
    for one in fields:
        name = name_of(one.name)
        if name in seen:
            raise ConfigError(
                f"{where}: the columns {seen[name]} and {one.column} would both be the field {name} in {form}",
                hint="give one of them another name: `rename` in the store's tables",
            )
        seen[name] = one.column


def flat_rows(rows: pa.RecordBatch, form: FlatForm) -> FlatRows:
    """Each row with all of its fields, those that a DELETE does not have as NULL."""
    shown, exact = shown_whole(rows), exact_values(rows)
    found, unfit = dict(_texts(shown, form)), dict[int, str]()
    for one in form.fields:
        if one.column not in found:
            values, wrong = _typed(rows.column(one.column), one, exact.get(one.column))
            found[one.column] = values
            for row in wrong:
                unfit[row] = f"its column {one.column} has a value that is not a {_NAMES.get(one.type.id, one.type)} of the format"
    return FlatRows(found, unfit)


_NAMES: Final = {
    pa.date32().id: "date",
    pa.time64("us").id: "time",
    pa.timestamp("us").id: "timestamp",
    pa.decimal128(1).id: "decimal",
}


def _texts(shown: pa.RecordBatch, form: FlatForm) -> Iterator[tuple[str, pa.Array]]:
    if not form.texts.fields:
        return
    for member, own in fields(shown, form.texts, form.style):
        # An array with bounds of its own is a string of JSON, so that whoever reads the text as JSON can.
        made = member.kind is Leaf.POINT or isinstance(member.kind, List | Object | Pairs)
        values = (member.texts if made else own).to_array()
        if member.states is not None:
            values = pc.if_else(pa.array(member.states == VALUE), values, None)
        yield member.column.name, values.cast(pa.large_utf8()).cast(pa.utf8())


def _typed(values: pa.Array, one: FlatField, exact: ExactValues | None) -> tuple[pa.Array, list[int]]:
    """Also the rows that have no value of the type."""
    if one.meaning == "zoned":
        texts = pc.strftime(values, format="%Y-%m-%dT%H:%M:%SZ")
        return (texts if exact is None else exact.put_into(texts)), []
    if not pa.types.is_temporal(one.type):
        return values, [] if exact is None else exact.rows.tolist()
    narrow = pa.types.is_date32(one.type)
    numbers = values.view(pa.int32() if narrow else pa.int64())
    if exact is None:
        return numbers, []
    least, most = INT4 if narrow else INT8
    known = _MIDNIGHT if pa.types.is_time(one.type) else {"-infinity": least, "infinity": most}
    given = [known.get(text) for text in exact.texts.to_pylist()]
    wrong = [int(row) for row, number in zip(exact.rows, given, strict=True) if number is None]
    return ExactValues(exact.rows, pa.array([number or 0 for number in given], numbers.type)).put_into(numbers), wrong


def _meaning(column: TopicField, style: Style) -> str:
    kind = style.kind(column)
    if kind in JSON_KINDS or kind is Leaf.POINT or isinstance(kind, List | Object | Pairs) or _is(column, "json", "jsonb"):
        return "json"
    if kind is Leaf.INTERVAL:
        return "interval"
    return "uuid" if _is(column, "uuid") else ""


def _is(column: TopicField, *types: str) -> bool:
    return isinstance(column.structure, Scalar) and column.structure.type in types


def _odd_decimal(kind: pa.DataType) -> bool:
    """Whether it has a scale that formats do not know, which Postgres does."""
    return bool(pa.types.is_decimal(kind) and not 0 <= kind.scale <= kind.precision)


def _zoned(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.tz is not None)


class RowsTaken:
    """Makes the rows of changes, and of those that they replaced, flat, and gathers which changes are unfit by either."""

    def __init__(self, changes: pa.RecordBatch, replaced: ReplacedRows, form: FlatForm) -> None:
        self._changes, self._replaced, self._form = changes, replaced, form
        self._unfit: dict[int, str] = {}

    def __call__(self, rows: pa.RecordBatch) -> FlatRows:
        """``rows``: one of the two."""
        flat = flat_rows(rows, self._form)
        at = np.arange(len(rows)) if rows is self._changes else np.flatnonzero(self._replaced.has)
        self._unfit |= {int(at[row]): why for row, why in flat.unfit.items()}
        return flat

    @property
    def unfit(self) -> pa.Array:
        """The reason why each change is unfit, utf8; NULL for those that are not."""
        count = len(self._changes)
        if not self._unfit:
            return pa.nulls(count, pa.utf8())
        return pa.array([self._unfit.get(row) for row in range(count)], pa.utf8())
