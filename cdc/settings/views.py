"""``[views.NAME]``: topics that are computed from other topics."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from cdc.errors import ConfigError
from cdc.settings.functions import check_reference
from cdc.settings.relations import Many, One, check_shown, checked_table
from cdc.settings.strict import Strict

VIEWS: Final = "views"
"""The first part of the name of every view's topic."""
_OF_ROOTS: Final = ("columns", "exclude", "computed", "rename", "where", "one", "many")
_OF_FUNCTIONS: Final = ("by", "returns", "version")
_LACKING: Final = (
    "no sql; write the SELECT whose rows the function is given",
    "no by; name the columns of sql whose values make a group",
    'no returns; say which columns it returns, such as { score = "numeric(12,2)" }',
)
_NAME: Final = re.compile(r"[a-z_][a-z0-9_]{0,47}")


def topic_of(view: object) -> str:
    """The topic that a view is."""
    return f"{VIEWS}.{view}"


def topics_of(names: Iterable[object]) -> list[str]:
    """The topics of these views."""
    return list(map(topic_of, names))


def can_name_a_view(name: str) -> bool:
    """Whether a view can have the name: it is part of its topic's."""
    return _NAME.fullmatch(name) is not None


def _says_something(sql: str) -> str:
    if not sql.strip():
        raise ValueError("is empty; write a SELECT")
    return sql


class ViewQuery(Strict):
    """The rows of a view that is a SELECT, and the function that computes its rows from them."""

    sql: Annotated[str, AfterValidator(_says_something)] = ""
    """One SELECT over captured tables, and over other views as `views.NAME`: what the view shows, in Postgres's SQL ([views.md](views.md))."""
    python: str = ""
    """A function of your own, `"module:function"`, that computes the view's rows from those of `sql`, a group at a time
    ([views.md](views.md#compute-rows-with-python)): a pyarrow.Table in, a pyarrow.Table out."""
    by: tuple[str, ...] = ()
    """With `python`: the columns of `sql` whose values make a group. They are columns of the view, and of its key."""
    returns: Mapping[str, str] = {}
    """With `python`: the columns that the function returns, each with its type in Postgres's words, such as `"numeric(12,2)"`."""
    version: str | None = None
    """Which version of `python` this is: with another one the view is computed again. Left out: the text of its module says it."""
    key: tuple[str, ...]
    """The columns of the SELECT, of the root, or of `by` and `returns`, that tell the view's rows apart. They are never NULL."""

    @field_validator("python")
    @classmethod
    def _names_a_function(cls, python: str) -> str:
        return check_reference(python, "shop.scores:score")

    @field_validator("key", "by")
    @classmethod
    def _tells_rows_apart(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if not names:
            raise ValueError('is empty; name the columns that tell rows apart, such as ["id"]')
        for twice in (name for at, name in enumerate(names) if name in names[:at]):
            raise ValueError(f"names {twice} twice")
        return names

    @model_validator(mode="after")
    def _says_all_of_its_function(self) -> Self:
        if not self.python:
            beside = next((name for name in _OF_FUNCTIONS if getattr(self, name)), None)
            if beside:
                raise ValueError(f"{beside} belongs to a view with python, and this one has none")
            return self
        for lacking, given in zip(_LACKING, (self.sql, self.by, self.returns), strict=True):
            if not given:
                raise ValueError(f"has python and {lacking}")
        for name in (one for one in self.by if one in self.returns):
            raise ValueError(f"returns names {name}, which is of by; the columns of by are added to what the function returns")
        for name in (one for one in self.by if one not in self.key):
            raise ValueError(f"key does not name {name}, which is of by; two groups could have rows with one key")
        for name in (one for one in self.key if one not in (*self.by, *self.returns)):
            raise ValueError(f"key names {name}, which is neither of by nor of returns")
        return self


class View(ViewQuery):
    root: Annotated[str, AfterValidator(checked_table)] = ""
    """In place of `sql`: the table or view of which each row becomes one row of the view, with related rows nested in it ([views.md](views.md#nest-related-rows))."""
    columns: tuple[str, ...] = ()
    """The root's columns that are shown, beside the key, and of what is computed."""
    exclude: tuple[str, ...] | None = None
    """In place of `columns`: all of the root's columns are shown but these. One that it gets later is shown from the next start of `cdc run` on."""
    computed: Mapping[str, str] = {}
    """Name → an expression over the root's columns ([expressions.md](expressions.md)). Shown, if `columns` is empty or names it; `on` may name it, too."""
    rename: Mapping[str, str] = {}
    """Column of the root, or what is computed → the name that it is shown under. A dot makes an object: `address_city = "address.city"`."""
    where: str = ""
    """A condition on the root's row ([expressions.md](expressions.md)): other rows are not shown."""
    one: Mapping[str, One] = {}
    """At most one related row, as an object or NULL, by the field's name."""
    many: Mapping[str, Many] = {}
    """Related rows, as an array, by the field's name."""
    batch_rows: int = Field(200_000, ge=2)
    """The most changes of its tables that one step takes, unless one transaction has more."""
    batch_bytes: int = Field(64 * 2**20, ge=1)
    """The most bytes of them."""
    keep_former_hours: float = Field(24.0, ge=0)
    """For how long the state of the former definition is kept once the view is followed by another one: until then the way back is short."""
    workers_from_rows: int = Field(0, ge=0)
    """Where its tables have at least this many changes in the log, Spark's workers find the rows that it is first computed from, and computed again from
    ([views.md](views.md#build-it-on-sparks-workers)); 0: never."""

    @model_validator(mode="after")
    def _is_declared_one_way(self) -> View:
        if bool(self.sql) == bool(self.root):
            raise ValueError("has both sql and root; take one of them out" if self.sql else "has neither sql nor root")
        beside = next((name for name in _OF_ROOTS if getattr(self, name) or (name == "exclude" and self.exclude is not None)), None)
        if self.sql and beside:
            raise ValueError(f"{beside} belongs to a view with root, and this one has sql")
        check_shown(self.columns, self.exclude, self.computed, self.rename)
        for key, names in (("exclude", self.exclude or ()), ("rename", self.rename)):
            for name in (one for one in names if one in self.key):
                raise ValueError(f"{key} names {name}, which is of the key; the key's columns are shown, under their own names")
        return self


def view_named(views: Mapping[str, View], name: str) -> View:
    """Raises ConfigError where there is none."""
    if name not in views:
        raise ConfigError(f"there is no view {name!r} in the configuration", hint=f"known views: {', '.join(views) or 'none'}")
    return views[name]
