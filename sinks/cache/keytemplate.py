"""``key = "product:{id}"``: from a row to the name of its key, such that two rows never share one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from string import Formatter
from typing import Final
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.errors import ConfigError
from cdc.model.structure import Scalar, ScalarType
from cdc.model.topic import TopicSchema
from sinks.cache.answerkernels import same_names
from sinks.cache.lane import PLACE, Lane
from sinks.render.jsonrows import Piece, Texts, join, raw_texts
from sinks.render.rowtext import EMPTY_KEY, ESCAPE, NULL_PART, column_text, exact_values, join_key, key_part, keys
from sinks.render.texts import binary_view

DEFAULT: Final = "{schema}.{table}:{key}"
WITH_LANES: Final = "{schema}.{table}:{lane}:{key}"
"""The same where a store is divided into lanes."""
WHOLE_KEY: Final = "key"
RESERVED: Final = "cdc:"
"""What the names of our own keys begin with."""
_NEVER_RESERVED: Final = frozenset(
    Scalar(kind) for kind in (ScalarType.INT2, ScalarType.INT4, ScalarType.INT8, ScalarType.OID, ScalarType.UUID)
)
"""Types whose texts have no colon among their first characters."""


@dataclass(frozen=True, slots=True)
class TableKeys:
    """The template for one table: ``prefix``, then each column's text followed by its literal."""

    schema: TopicSchema
    prefix: str
    columns: tuple[tuple[str, str], ...]
    """(column, the literal that follows it)."""
    whole: bool
    """The one "column" is ``{key}``: the whole key as one text, whatever its columns are called."""
    lane: Lane | None = None
    """Whose rows alone these keys are of; None: all rows'."""

    @property
    def shown(self) -> bool:
        """Whether each row's own columns name its key."""
        return all(column.shown for column in self.schema.key)

    def texts(self, batch: pa.RecordBatch) -> Texts:
        """The name of each row's key."""
        if self.whole:
            return self._join([keys(batch, self.schema)])
        exact = exact_values(batch)
        return self._join([key_part(column_text(batch, name, exact), self._separators) for name, _ in self.columns])

    def texts_of_keys(self, key_texts: pa.RecordBatch) -> Texts:
        """The same, from the key's columns as canonical text."""
        if self.whole:
            parts = [key_texts.column(column.name) for column in self.schema.key]
            return self._join([join_key(parts, ":" if len(parts) > 1 else "")])
        return self._join([key_part(key_texts.column(name), self._separators) for name, _ in self.columns])

    def named(self, names: pa.Array, key_texts: pa.RecordBatch) -> pa.Array:
        """Whether each of these names (large_binary) is that of the row's key, as ``texts_of_keys`` has it."""
        if len(self.columns) == 1 and (not self.whole or len(self.schema.key) == 1):
            # Nothing separates a single column from others, so its text stands there as it is, but for what is escaped.
            texts = key_texts.column(self.schema.key[0].name if self.whole else self.columns[0][0])
            if texts.null_count == 0:
                around = [np.frombuffer(text.encode(), np.uint8) for text in (self.prefix, self.columns[0][1])]
                plain, same = same_names(*binary_view(names), around[0], *binary_view(texts), around[1])
                if plain:
                    return pa.array(same)
        return pc.equal(names, self.texts_of_keys(key_texts).to_array())

    def own_rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Those of these rows of the table, under its definition here, that have such keys."""
        return batch if self.lane is None else self.lane.rows(batch, self.schema)

    def own_keys(self, key_texts: pa.RecordBatch) -> pa.RecordBatch:
        """The same of the key's columns as canonical text."""
        return key_texts if self.lane is None else self.lane.keys(key_texts, self.schema)

    def check_reserved(self) -> None:
        """Raises ConfigError where a row could have the name of a ledger: with prefix "c" the one whose key is "dc:{cache}:ledger"."""
        first = self.schema.key[0].name if self.whole else self.columns[0][0]
        column = next(column for column in self.schema.fields if column.name == first)
        if RESERVED.startswith(self.prefix) and (column.defined or column.structure not in _NEVER_RESERVED):
            raise ConfigError(
                f"keys of {self.schema.topic} could begin with {RESERVED}, as the ledgers do",
                hint=f"let `key` begin with a text that is not the beginning of {RESERVED}",
            )

    def keys_of(self, names: Sequence[bytes]) -> pa.RecordBatch:
        """The way back: what such names say of the table's columns, NULL where they say nothing (or are no names of this template)."""
        found = [self._said(name.decode(errors="replace")) for name in names]
        texts = pa.schema([pa.field(name, pa.utf8()) for name in self.schema.names])
        return pa.RecordBatch.from_pylist(found, texts)

    def _said(self, name: str) -> dict[str, str | None]:
        if self.whole:
            columns = [(column.name, ":") for column in self.schema.key]
            columns[-1] = (columns[-1][0], self.columns[0][1])
        else:
            columns = list(self.columns)
        said: dict[str, str | None] = {}
        rest = name.removeprefix(self.prefix)
        for column, literal in columns[:-1]:
            part, _, rest = _until(rest, literal)
            said[column] = _unescaped(part)
        last, literal = columns[-1]
        said[last] = _unescaped(rest.removesuffix(literal))
        return said

    @property
    def _separators(self) -> str:
        # What follows the last column separates nothing; and an N or E escaped in a value would be what NULL and the empty key look like.
        return "".join(sorted({literal[0] for _, literal in self.columns[:-1]}))

    def _join(self, parts: list[pa.Array]) -> Texts:
        after = [literal.encode() for _, literal in self.columns]
        before = [self.prefix.encode(), *([b""] * (len(parts) - 1))]
        return join([Piece(raw_texts(p), before=b, after=a) for p, b, a in zip(parts, before, after, strict=True)])


def _until(text: str, literal: str) -> tuple[str, str, str]:
    """``str.partition`` at the first place where the literal begins with no backslash before it."""
    at = 0
    while at < len(text) and not text.startswith(literal, at):
        at += 2 if text[at] == ESCAPE else 1
    return text[:at], text[at : at + len(literal)], text[at + len(literal) :]


def _unescaped(part: str) -> str | None:
    return None if part == NULL_PART else re.sub(r"\\(.)", r"\1", part.removeprefix(EMPTY_KEY), flags=re.DOTALL)


def bind(template: str, schema: TopicSchema, lane: Lane | None = None) -> TableKeys:
    """``lane``: the only one whose keys these are to be. Raises ConfigError when the template does not give every row of the table a key of its own."""
    prefix = ""
    columns: list[tuple[str, str]] = []
    names: dict[str, str] = {"schema": _plain(schema.namespace), "table": _plain(schema.name)}
    if lane is not None:
        names[PLACE] = lane.tag
    for literal, name in _parse(template):
        piece = literal + names.get(name or "", "")
        if columns:
            columns[-1] = (columns[-1][0], columns[-1][1] + piece)
        else:
            prefix += piece
        if name is not None and name not in names:
            columns.append((name, ""))
    used = [name for name, _ in columns]
    _check(template, schema, prefix, used, [literal for _, literal in columns[:-1]])
    return TableKeys(schema, prefix, tuple(columns), used == [WHOLE_KEY], lane)


@lru_cache(maxsize=256)
def columns_of(template: str, *, lanes: bool = False) -> tuple[str, ...]:
    """The columns that it names, each once; none where it names the whole key, or is malformed. ``lanes``: {lane} is not a column."""
    others = (None, "schema", "table", PLACE) if lanes else (None, "schema", "table")
    try:
        names = dict.fromkeys(name for _, name in _parse(template) if name not in others)
    except ConfigError:
        return ()
    return () if WHOLE_KEY in names else tuple(name for name in names if name is not None)


def refuse_malformed(template: str) -> None:
    """Raises ConfigError for a text that names no table's keys."""
    literal, name = next(iter(_parse(template)), ("", None))
    if literal.startswith(RESERVED) or (not literal and name not in ("table", "schema")):
        raise _without_prefix(template)


def refuse_without_lane(template: str) -> None:
    """Raises ConfigError for a template whose keys would not all lie in the slot of their lane, which a cluster takes from the first braces in a name."""
    before = ""
    for literal, name in _parse(template):
        before += literal
        if name == PLACE:
            if "{" in before or "}" in before:
                raise _refused(template, "no brace may stand before {lane}", WITH_LANES)
            if template.count(f"{{{PLACE}}}") > 1:
                raise _refused(template, "{lane} may stand in it once", WITH_LANES)
            return
        if name not in (None, "schema", "table"):
            break
    raise _refused(template, "a store with `lanes` needs {lane} in it, before any column", WITH_LANES)


def _parse(template: str) -> list[tuple[str, str | None]]:
    try:
        parsed = list(Formatter().parse(template))
    except ValueError:
        raise _refused(template, "its braces do not match") from None
    if any(spec or conversion for _, _, spec, conversion in parsed) or "\\" in template:
        raise _refused(template, "only {column}, {key}, {table} and {schema} may stand in it, and no backslash")
    return [(literal, name) for literal, name, _, _ in parsed]


def _check(template: str, schema: TopicSchema, prefix: str, used: list[str], between: list[str]) -> None:
    key = [column.name for column in schema.key]
    if not key:
        raise ConfigError(
            f"{schema.topic} has no identity, a cache needs one", hint="give it a primary key, or leave it out of `tables`"
        )
    if not prefix or prefix.startswith(RESERVED):
        raise _without_prefix(template)
    if WHOLE_KEY in used and len(used) > 1:
        raise _refused(template, "{key} is the whole key, so no column may stand beside it")
    if used != [WHOLE_KEY]:
        foreign = [name for name in used if name not in key]
        missing = [name for name in key if name not in used]
        if unknown := [name for name in foreign if name not in schema.names]:
            raise _refused(template, f"{schema.topic} has no column {unknown[0]}")
        if missing:
            raise _refused(
                template, f"rows of {schema.topic} also differ in {missing[0]}: without it two of them could have one name"
            )
        if foreign:
            raise _refused(template, f"{schema.topic} has no column {foreign[0]} that could name the places of rows")
        if len(set(used)) < len(used):
            raise _refused(template, "it names a column twice")
    if any(not literal or literal[0].isalnum() for literal in between):
        raise _refused(template, "between two columns it needs a separator that is not a letter or digit")


def _without_prefix(template: str) -> ConfigError:
    return _refused(template, f"it must begin with a text of its own, other than {RESERVED}")


def _refused(template: str, why: str, example: str = DEFAULT) -> ConfigError:
    return ConfigError(f"key = {template!r} cannot name a cache's keys: {why}", hint=f'for example key = "{example}"')


def _plain(name: str) -> str:
    """A name in which nothing can be taken for the template's own text."""
    return quote(name, safe="").replace(".", "%2E").replace("~", "%7E")
