"""Which changes somebody asks for: those of one key, or those that hold a text in a column. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.errors import ConfigError
from cdc.model.batch import ALONE, OP, topic_schema
from cdc.model.topic import TopicField, TopicSchema
from cdc.replay.former import WithFormer
from sinks.render.fromtext import alike, is_by_text, spelled
from sinks.render.rowtext import column_text, exact_values

NAMED_COLUMNS: Final = 50
"""In an error that lists the columns there are."""


@dataclass(frozen=True, slots=True)
class KeyMatch:
    """Changes of one row, by its key. Changes of the table as a whole concern every key."""

    origin: str
    """Of which table the key is, at its newest definition."""
    parts: tuple[tuple[TopicField, str], ...]
    """Each field of the key at that definition, and the text that was given for it."""

    @classmethod
    def of(cls, schema: TopicSchema, given: Sequence[str]) -> KeyMatch:
        """given: ``value`` for a key of one column, ``column=value`` for each column of another; in any spelling of the column's type.

        Raises ConfigError, which shows no value.
        """
        names = [column.name for column in schema.key]
        found = {}
        for text in given:
            name, equals, value = text.partition("=")
            if equals and name in names:
                found[name] = value
            elif len(names) == 1:
                found[names[0]] = text
        if set(found) != set(names) or len(given) != len(names) or not names:
            key = ", ".join(names) or "nothing"
            hint = " ".join(f"--key {name}=…" for name in names) or "cdc log grep searches all columns"
            raise ConfigError(f"the key of {schema.topic} is {key}: name the value of each of its columns", hint=hint)
        for column in schema.key:
            if spelled(found[column.name], column) is None:
                named = column.type_name or str(column.type)
                raise ConfigError(
                    f"what is given for {column.name} of {schema.topic} is not a value of its type, {named}",
                    hint="cdc log cat --help",
                )
        return cls(schema.origin, tuple((column, found[column.name]) for column in schema.key))

    def absence(self) -> str:
        """Says that nothing was found, and how the key has to be spelled where that matters. Shows no value."""
        said = "no change of this key in what was searched"
        for column, _ in self.parts:
            if is_by_text(column):
                said += (
                    f"; {column.name} is compared as text: it has to be spelled as Postgres prints a value of its type, "
                    f"{column.type_name or column.type} (SELECT {column.name}::text)"
                )
        return said

    def rows(self, changes: pa.RecordBatch) -> pa.Array:
        """A mask."""
        if changes.column(OP)[0].as_py() in ALONE:
            return pa.array([True] * len(changes))
        schema, exact = topic_schema(changes.schema), exact_values(changes)
        by_number = schema.origin == self.origin
        mask = pa.array(np.ones(len(changes), np.bool_))
        for wanted, given in self.parts:
            held = next((one for one in schema.fields if _same(one, wanted, by_number)), None)
            text = None if held is None else spelled(given, held)
            if held is None or text is None:
                return pa.array(np.zeros(len(changes), np.bool_))
            mask = pc.and_(mask, pc.fill_null(alike(column_text(changes, held.name, exact), text, held), False))
        return mask


@dataclass(frozen=True, slots=True)
class TextMatch:
    """Changes with a column whose text holds something."""

    pattern: str
    columns: tuple[str, ...] = ()
    """Only these; none: all."""
    regex: bool = False

    def check(self, schemas: Sequence[TopicSchema]) -> None:
        """Raises ConfigError for a column that no topic has, and for a pattern that cannot be one."""
        for name in self.columns:
            if not any(name in schema.names for schema in schemas):
                known = list(dict.fromkeys(column for schema in schemas for column in schema.names))
                more = ", …" if len(known) > NAMED_COLUMNS else ""
                raise ConfigError(
                    f"no topic that is searched has a column {name!r}", hint=f"one of {', '.join(known[:NAMED_COLUMNS])}{more}"
                )
        try:
            self._holds(pa.array([""], pa.utf8()))
        except pa.ArrowInvalid:
            raise ConfigError("the pattern is not a regular expression", hint="its syntax is RE2's") from None

    def rows(self, changes: pa.RecordBatch) -> pa.Array:
        """A mask."""
        mask = pa.array(np.zeros(len(changes), np.bool_))
        if changes.column(OP)[0].as_py() in ALONE:
            return mask
        exact = exact_values(changes)
        for field in topic_schema(changes.schema).fields:
            if not self.columns or field.name in self.columns:
                found = self._holds(column_text(changes, field.name, exact))
                mask = pc.or_(mask, pc.fill_null(found, False))
        return mask

    def _holds(self, texts: pa.Array) -> pa.Array:
        search = pc.match_substring_regex if self.regex else pc.match_substring
        return search(texts, self.pattern)


def chosen(replaced: WithFormer, mask: pa.Array) -> WithFormer:
    """The changes of the mask, each with what it replaced."""
    former = None if replaced.former is None else replaced.former.filter(mask)
    return WithFormer(replaced.changes.filter(mask), former, replaced.known[mask.to_numpy(zero_copy_only=False)])


def _same(one: TopicField, other: TopicField, by_number: bool) -> bool:
    """by_number: both are of one table; the columns of two tables of one name are the same when their names are."""
    return one.origin == other.origin if by_number and one.origin and other.origin else one.name == other.name
