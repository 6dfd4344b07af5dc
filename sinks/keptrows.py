"""Options of stores whose tables can keep more than the rows of now: rows that are deleted, when a row was written, every version of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Self

from pydantic import Field, field_validator, model_validator

from cdc.errors import ConfigError
from cdc.model.selection import Qualified, matches
from cdc.model.topic import TopicSchema
from cdc.settings.models import StoreOptions
from cdc.settings.tableoptions import StoreTables, TableOptions


class KeptTable(TableOptions):
    """Options of a table that only such a store has."""

    deleted: str | None = Field(None, min_length=1, max_length=63)
    """As of the store, for these tables."""
    loaded_at: str | None = Field(None, min_length=1, max_length=63)
    """As of the store, for these tables."""
    history: bool | str = False
    """Whether every version of the rows is kept, too, in the table `NAME_history` beside the current one; or that table's name
    ([warehouses.md](warehouses.md#every-version-of-a-row)). The log has to keep the table's changes (`cleanup = "keep"`), unless `history_days` is set."""
    history_days: float | None = Field(None, gt=0)
    """For so many days a version stays in the history after it has ended ([warehouses.md](warehouses.md#a-history-of-some-days)). The log may then be compacted,
    if its `history_hours` are a day more than that. Left out, or `inf`: for ever."""

    @field_validator("history")
    @classmethod
    def _names_a_table(cls, history: bool | str) -> bool | str:
        if history == "":
            raise ValueError('is empty; write true, or a name such as "orders_history"')
        return history


class KeptTables(StoreTables):
    """``tables`` of such a store."""

    __pydantic_extra__: dict[str, KeptTable] = Field(init=False)  # type: ignore[assignment]  # nobody adds to it


class KeptOptions(StoreOptions):
    """The options that such a store has."""

    held: KeptTables = Field(KeptTables(), alias="tables")
    """As in every store."""

    deleted: str | None = Field(None, min_length=1, max_length=63)
    """A column that the tables get beside the source's: a row that is deleted, or goes with a TRUNCATE, stays there, and this is true
    ([warehouses.md](warehouses.md#keep-deleted-rows)). Left out: deleted rows go."""
    loaded_at: str | None = Field(None, min_length=1, max_length=63)
    """A column that the tables get beside the source's: when the row was written here. Left out: there is none."""

    def deleted_of(self, topic: str) -> str | None:
        """The option ``deleted`` of the topic."""
        found = self.deleted
        for pattern, said in self.held.options.items():
            if isinstance(said, KeptTable) and matches((pattern,), topic):
                found = said.deleted or found
        return found

    def loaded_at_of(self, topic: str) -> str | None:
        """The option ``loaded_at`` of the topic."""
        found = self.loaded_at
        for pattern, said in self.held.options.items():
            if isinstance(said, KeptTable) and matches((pattern,), topic):
                found = said.loaded_at or found
        return found

    def history_of(self, topic: Qualified | str) -> bool | str:
        """The option ``history`` of the topic."""
        found: bool | str = False
        for pattern, said in self.held.options.items():
            if isinstance(said, KeptTable) and matches((pattern,), topic) and "history" in said.model_fields_set:
                found = said.history
        return found

    def shaping_of(self, schema: TopicSchema) -> Mapping[str, str]:
        """Without the column, rows that are deleted would be among the others."""
        deleted, history = self.deleted_of(schema.topic), self.history_of(schema.topic)
        return ({} if deleted is None else {"deleted": deleted}) | ({} if not history else {"history": str(history)})

    def history_days_of(self, topic: Qualified | str) -> float:
        """The option ``history_days`` of the topic; ``math.inf`` where versions stay for ever."""
        found = math.inf
        for pattern, said in self.held.options.items():
            if isinstance(said, KeptTable) and matches((pattern,), topic):
                found = said.history_days or found
        return found

    @property
    def kept_whole(self) -> Mapping[str, str]:
        return {
            pattern: "history_days" if said.history_days is not None else "history"
            for pattern, said in self.held.options.items()
            if isinstance(said, KeptTable) and (said.history or said.history_days is not None)
        }

    @property
    def version_days(self) -> Mapping[str, float]:
        said = {pattern: one.history_days for pattern, one in self.held.options.items() if isinstance(one, KeptTable)}
        return {pattern: 0 if math.isinf(days) else days for pattern, days in said.items() if days is not None}

    def changes_needed(self, table: Qualified | str) -> float | None:
        return self.history_days_of(table) if self.history_of(table) else None

    @model_validator(mode="after")
    def _versions_stay_where_there_are_some(self) -> Self:
        said = {pattern: one for pattern, one in self.held.options.items() if isinstance(one, KeptTable)}
        histories = [pattern for pattern, one in said.items() if one.history]
        for pattern, one in said.items():
            if one.history_days is not None and not any(
                matches((p,), q) for other in histories for p, q in ((pattern, other), (other, pattern))
            ):
                raise ValueError(
                    f"tables.{pattern}.history_days says how long versions stay, and there are none: set history = true"
                )
        return self

    def refuse_own_names(self, store: str, schema: TopicSchema) -> None:
        """Raises ConfigError where the source has a column of a name that the store's own has, or two of these have one name."""
        own = [name for name in (self.deleted_of(schema.topic), self.loaded_at_of(schema.topic)) if name is not None]
        theirs = set(map(str.lower, schema.names))
        taken = next((name for name in own if name.lower() in theirs), None)
        if taken is not None:
            raise ConfigError(
                f"stores.{store}: {schema.topic} has a column {taken} itself", hint="give the store's own column another name"
            )
