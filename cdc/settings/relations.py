"""Rows that a view with a ``root`` nests into its own, by the columns that join them. Any depth."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from pydantic import Field, field_validator, model_validator

from cdc.settings.strict import Strict

_TABLE: Final = re.compile(r'[^."]+\.[^."]+')
_ORDER: Final = re.compile(
    r'(?:(?P<through>through)\.)?(?P<column>\w+)(?P<collated> +collate +"C")?(?P<descending> +desc| +asc)?(?P<nulls> +nulls +(?:first|last))?',
    re.IGNORECASE,
)


def checked_table(table: str) -> str:
    """The name. Raises ValueError for one without its schema."""
    if not _TABLE.fullmatch(table):
        raise ValueError('names a topic with its schema, such as "public.orders"')
    return table


def check_shown(
    columns: Sequence[str], exclude: Sequence[str] | None, computed: Mapping[str, str], rename: Mapping[str, str]
) -> None:
    """Raises ValueError where they contradict each other. Whether the table has the columns is not known here."""
    if columns and exclude is not None:
        raise ValueError("says both columns and exclude; columns alone says which are shown")
    for key, names in (("columns", columns), ("exclude", exclude or ())):
        for twice in (name for at, name in enumerate(names) if name in names[:at]):
            raise ValueError(f"{key} names {twice} twice")
    for name in computed:
        if not name or "." in name:
            raise ValueError(f"computed: {name!r} is not a name; for a place within an object, give it a plain name and rename it")
        if name in (exclude or ()):
            raise ValueError(f"computed names {name}, which exclude leaves out")
    for name, target in rename.items():
        if not all(target.split(".")):
            raise ValueError(f"rename.{name}: {target!r} is not a name; a dot stands between two names")


class OrderedBy(Strict):
    """One entry of ``order``, taken apart."""

    column: str
    through: bool
    behind: str
    """What stands behind the column, in SQL."""


def ordered_by(text: str) -> OrderedBy:
    """Raises ValueError."""
    found = _ORDER.fullmatch(text.strip())
    if found is None:
        raise ValueError(
            f'{text!r} is not an order: write a column, such as "position", "name COLLATE \\"C\\"" or "id DESC NULLS LAST"'
        )
    behind = "".join(" " + " ".join(found[part].split()) for part in ("collated", "descending", "nulls") if found[part])
    return OrderedBy(column=found["column"], through=found["through"] is not None, behind=behind)


class Through(Strict):
    table: str
    """The table between, as `schema.table`: one row of it for each pair."""
    on: Mapping[str, str] = Field(min_length=1)
    """Which of my columns equal which of its columns: `{ id = "order_id" }`."""
    to: Mapping[str, str] = Field(min_length=1)
    """Which of its columns equal which of the related table's columns: `{ tag_id = "id" }`."""
    columns: tuple[str, ...] = ()
    """Its columns that are shown in each object, beside those of the related row."""

    _names_a_table = field_validator("table")(checked_table)


class Relation(Strict):
    table: str
    """The related table or view, as `schema.table`."""
    on: Mapping[str, str] = {}
    """Which of my columns equal which of its columns: `{ customer_id = "id" }`. No FOREIGN KEY is needed."""
    where: str = ""
    """A condition on the related row ([expressions.md](expressions.md)): other rows are not shown."""
    columns: tuple[str, ...] = ()
    """Its columns that are shown, and of what is computed."""
    exclude: tuple[str, ...] | None = None
    """In place of `columns`: all of its columns are shown but these. One that it gets later is shown from the next start of `cdc run` on."""
    computed: Mapping[str, str] = {}
    """Name → an expression over its columns ([expressions.md](expressions.md)). Shown, if `columns` is empty or names it; `value`, `order`, `by` and `on` may name it, too."""
    rename: Mapping[str, str] = {}
    """Column, or what is computed → the name that it is shown under. A dot makes an object: `address_city = "address.city"`."""
    value: str = ""
    """The one column of it that is shown by itself, in place of an object."""
    as_: Mapping[str, Literal["text"]] = Field({}, alias="as")
    """Its columns that are shown as the text that Postgres prints, such as an enum: `{ status = "text" }`."""
    one: Mapping[str, One] = {}
    """What is nested in it in turn: at most one row of another table, by the field's name."""
    many: Mapping[str, Many] = {}
    """What is nested in it in turn: any number of rows of another table, by the field's name."""

    _names_a_table = field_validator("table")(checked_table)

    @model_validator(mode="after")
    def _shows_one_thing(self) -> Relation:
        check_shown(self.columns, self.exclude, self.computed, self.rename)
        if self.value and (self.columns or self.exclude is not None or self.rename or self.one or self.many):
            raise ValueError("value shows one column by itself, so columns, exclude, rename, one and many cannot stand beside it")
        for name in self.as_:
            if self.exclude is None and name not in (*(self.columns or self.computed), self.value):
                raise ValueError(f"as names {name}, which is not shown: name it in columns or value too")
        return self

    @property
    def has_fields(self) -> bool:
        """It shows an object, or objects."""
        return bool(self.columns or self.exclude is not None or (self.computed and not self.value) or self.one or self.many)


class One(Relation):
    flat: str | None = None
    """Its columns are shown beside mine, with this before their names, in place of an object. `""`: with nothing before them."""

    @model_validator(mode="after")
    def _shows_something(self) -> One:
        if not self.on:
            raise ValueError('on is missing: which of my columns equal which of its columns, such as { customer_id = "id" }')
        if not (self.value or self.has_fields):
            raise ValueError("shows nothing: give it columns, or value")
        if self.flat is not None and self.value:
            raise ValueError("flat and value cannot stand together: value is one field already")
        return self


class Many(Relation):
    order: tuple[str, ...] = ()
    """The order of the array, which is total: a unique column comes last. A text has `COLLATE "C"` behind it; a column of the table between has `through.` before it."""
    by: str = ""
    """The column by whose values the rows stand in an object, in place of an array; of rows with one value the last by `order` is shown, and none of those where it is NULL."""
    limit: int = Field(0, ge=0)
    """The most rows that are shown, the first by `order`; 0: all."""
    totals: Mapping[str, str] = {}
    """Aggregates over all rows that pass `where`, beside the array and by the field's name: `{ revenue = "sum(qty * price)" }`. With `columns = []` they stand alone."""
    through: Through | None = None
    """The table between, where each row of both sides may belong to many of the other's. It takes the place of `on`."""

    @field_validator("order")
    @classmethod
    def _orders(cls, order: tuple[str, ...]) -> tuple[str, ...]:
        for one in order:
            ordered_by(one)
        return order

    @property
    def shows_rows(self) -> bool:
        """There is an array, and not totals alone."""
        return bool(self.value or self.has_fields or (self.through is not None and self.through.columns))

    @model_validator(mode="after")
    def _is_whole(self) -> Many:
        if bool(self.on) == (self.through is not None):
            raise ValueError("needs on or through, one of them: which of my columns equal which of its columns")
        if self.through is not None and self.value and self.through.columns:
            raise ValueError("value shows one column by itself, so through.columns cannot stand beside it")
        if not self.shows_rows and not self.totals:
            raise ValueError("shows nothing: give it columns, value or totals")
        if self.shows_rows and not self.order:
            raise ValueError('order is missing: an array has an order that is total, such as ["position", "id"]')
        if not self.shows_rows and (self.order or self.limit or self.by):
            raise ValueError("has no array: order, by and limit have no meaning without columns or value")
        if self.through is None and any(ordered_by(one).through for one in self.order):
            raise ValueError("order names a column of the table between, and through is not given")
        return self


for _model in (Relation, One, Many):
    _model.model_rebuild()
