"""Which tables a store holds, and what of each (``[stores.NAME.tables]``), as typed values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Self

from pydantic import AfterValidator, ConfigDict, Field, field_validator, model_validator

from cdc.model.display import As
from cdc.model.selection import matches, named
from cdc.settings.functions import check_reference
from cdc.settings.strict import Strict


def _select_something(patterns: tuple[str, ...]) -> tuple[str, ...]:
    if all(pattern.startswith("!") for pattern in patterns):
        why = "every pattern in it only takes tables out" if patterns else "it is empty"
        raise ValueError(f'selects no table: {why}; write a pattern such as "public.*" first')
    return patterns


Patterns = Annotated[tuple[str, ...], AfterValidator(_select_something)]
"""Patterns of ``schema.table`` (``cdc.model.selection``)."""


class TableOptions(Strict):
    """``[stores.NAME.tables."schema.table"]``: what a store makes of one table (* and ? match)."""

    where: str | None = None
    """The rows that the store holds: those for which this is true, an expression of Postgres's SQL over the table's columns
    ([expressions.md](expressions.md)). A row for which it stops being true is deleted from the store. Left out: all of them."""
    computed: Mapping[str, str] = {}
    """Name → an expression over the table's columns, whose value the store holds under this name."""
    columns: tuple[str, ...] | None = None
    """The columns that the store holds, and of what is computed; a column that the table gets later is not one of them. Left out: all of them. What tells
    rows apart is known in any case, and shown if it is listed."""
    exclude: tuple[str, ...] = ()
    """Columns that it does not hold; one that the table gets later is held. Instead of `columns`."""
    transform: str | None = None
    """A function of your own over what the store holds of rows, `"module:function"` ([stores.md](stores.md#may-i-change-values-with-python)): an Arrow record batch in, the
    same rows and columns out."""
    transform_columns: tuple[str, ...] | None = None
    """The columns that `transform` is given and may change, beside those of the key, which it may not. Left out: all that the store holds."""
    transform_version: str | None = None
    """Which version of `transform` this is: with another one, the store's rows are of another shape. Left out: the text of its module says it."""
    rename: Mapping[str, str] = {}
    """Column → the name that it has in the store. A dot makes an object: `address_city = "address.city"`."""
    as_: Mapping[str, As] = Field({}, alias="as")
    """Column → `text` (exactly as Postgres prints it) or `json` (a text that holds JSON); see [documents.md](documents.md)."""

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> Self:
        if self.columns is not None and self.exclude:
            raise ValueError("says both columns and exclude; columns alone says which are held")
        for key, names in (("columns", self.columns or ()), ("exclude", self.exclude)):
            for twice in (name for at, name in enumerate(names) if name in names[:at]):
                raise ValueError(f"{key} names {twice} twice")
        return self

    @field_validator("computed")
    @classmethod
    def _has_plain_names(cls, computed: Mapping[str, str]) -> Mapping[str, str]:
        for name in computed:
            if not name or "." in name:
                raise ValueError(f"{name!r} is not a name; for a place within an object, give it a plain name and rename it")
        return computed

    @field_validator("transform")
    @classmethod
    def _names_a_function(cls, transform: str | None) -> str | None:
        return None if transform is None else check_reference(transform, "shop.rows:tidy")

    @model_validator(mode="after")
    def _says_more_of_a_transform_that_there_is(self) -> Self:
        if self.transform is None and (self.transform_columns is not None or self.transform_version is not None):
            raise ValueError('says something of a transform, and has none; set transform = "module:function"')
        return self

    @field_validator("columns", "transform_columns")
    @classmethod
    def _lists_something(cls, columns: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if columns == ():
            raise ValueError("is empty; leave it out, or the table out of the store's tables")
        return columns

    @field_validator("rename")
    @classmethod
    def _gives_each_its_own_place(cls, rename: Mapping[str, str]) -> Mapping[str, str]:
        for name, target in rename.items():
            if not target or ("." in target and not all(_PART.fullmatch(part) for part in target.split("."))):
                raise ValueError(
                    f"{target!r}, for {name}, is not a name; with dots, each part begins with a letter or digit, and holds these, _ and -"
                )
            for other, place in rename.items():
                if other != name and (place == target or place.startswith(f"{target}.")):
                    raise ValueError(f"{name} and {other} cannot both be there: one is {target}, the other {place}")
        return rename

    @property
    def targets(self) -> Mapping[str, str]:
        """Column → the name that it has in the store, where that is not its own. A kind of store may have further ways to say one."""
        return self.rename

    @property
    def of_fields(self) -> Mapping[str, str]:
        """Name in the store → options of that field that only this kind of store has (``sinks.holding.wishes_of``)."""
        return {}

    @property
    def chooses(self) -> bool:
        """Whether the store holds the table otherwise than all of it, as it is."""
        chosen = self.exclude or self.targets or self.of_fields or self.computed
        return any(one is not None for one in (self.columns, self.where, self.transform)) or bool(chosen)


_PART: Final = re.compile(r"[^\W_][\w-]*")
"""A part of a dotted name: what can be a field's name in any store that makes objects."""


class StoreTables(Strict):
    """``tables`` of a store: a list of patterns; or a table, whose ``select`` is that list and whose other keys are tables with options."""

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[str, TableOptions] = Field(init=False)

    select: Patterns = ("*",)

    @model_validator(mode="before")
    @classmethod
    def _is_a_list_for_short(cls, raw: Any) -> Any:
        if not isinstance(raw, dict):
            return raw if isinstance(raw, StoreTables) else {"select": raw}
        for key in raw:
            if key != "select" and "." not in str(key):
                raise ValueError(f"{key} is neither `select` nor a table, which is written schema.table")
        return raw

    @model_validator(mode="after")
    def _options_are_of_tables_that_are_held(self) -> Self:
        for pattern in self.options:
            if named((pattern,)) and not matches(self.select, pattern):
                raise ValueError(f"{pattern} has options here, but is not a table of this store; add it to tables.select")
        return self

    @property
    def options(self) -> Mapping[str, TableOptions]:
        return self.__pydantic_extra__ or {}
