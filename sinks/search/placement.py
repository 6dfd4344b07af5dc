"""``id``, ``routing`` and ``index``: how a table's documents are called, and what they are distributed among shards, and among indices, by. Pure.

All of them stand in the schema that the store holds (``Holding.shaping``), so they are part of the shape of an index. Columns beside the source's key that they name are part of
the store's key (``sinks.places``): a row of which one changes comes as a DELETE of the document at the former place and a document at the new one.

Both places may be one document, as when a routing changes and its shard does not. So the DELETE's version is one less than the row's (``former``): no less
than that of any document that the row has had there, which came with an earlier change, and less than that of the document which takes its place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from string import Formatter
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.errors import ConfigError
from cdc.model.batch import OP, POSITION, Op
from cdc.model.topic import TopicSchema
from sinks.holding import decoded
from sinks.render.rowtext import NULL_PART, SEPARATOR, column_text, exact_values, join_key, key_part
from sinks.search.names import INDEX_BYTES_MAX, document_ids

ID: Final = "id"
ROUTING: Final = "routing"
INDEX: Final = "index"
_NAME: Final = r"[a-z0-9_.-]+"
"""In an index's name: less than OpenSearch allows, so that a name is the same in paths, patterns and aliases."""

ColumnText = Callable[[str], pa.Array]
"""A column's name → its canonical texts."""


@dataclass(frozen=True, slots=True)
class NameTemplate:
    """A text with columns in it: ``before``, then each column and the literal that follows it."""

    before: str
    columns: tuple[tuple[str, str], ...]

    @property
    def columns_named(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for name, _ in self.columns))

    def names(self, text_of: ColumnText) -> pa.Array:
        """As names of indices; NULL where a row's values are in none."""
        texts = [text_of(name) for name, _ in self.columns]
        fit = [pc.match_substring_regex(text, rf"\A{_NAME}\z").fill_null(False) for text in texts]
        found = self._join([text.fill_null("") for text in texts])
        all_fit = pc.less_equal(pc.binary_length(found), INDEX_BYTES_MAX)
        for one in fit:
            all_fit = pc.and_(all_fit, one)
        return pc.if_else(all_fit, found, pa.scalar(None, pa.utf8()))

    def joined(self, text_of: ColumnText) -> pa.Array:
        """As plain texts; NULL is ``\\N``."""
        return self._join([text_of(name).fill_null(NULL_PART) for name, _ in self.columns])

    def apart(self, text_of: ColumnText) -> pa.Array:
        """The same, such that two rows with different values never have one: what could be taken for a separator has a backslash before it."""
        separators = "".join(sorted({literal[0] for _, literal in self.columns[:-1]}))
        return self._join([key_part(text_of(name), separators) for name, _ in self.columns])

    def _join(self, parts: list[pa.Array]) -> pa.Array:
        around = [piece for part, (_, after) in zip(parts, self.columns, strict=True) for piece in (part, after)]
        return pc.binary_join_element_wise(self.before, *around, "")


@dataclass(frozen=True, slots=True)
class Placement:
    """One table's. ``own``: the columns of the source's key. ``called``: a column that a template names → the field that it is; None: this definition does
    not have it yet, so that it is NULL."""

    schema: TopicSchema
    own: tuple[str, ...]
    called: Mapping[str, str | None]
    id: NameTemplate | None = None
    routing: NameTemplate | None = None
    index: NameTemplate | None = None

    def indices(self, batch: pa.RecordBatch) -> pa.Array | None:
        """The name of each row's index, NULL where its values make none; None: all rows lie in one."""
        return None if self.index is None else self.index.names(self._texts(batch))

    def indices_of_keys(self, keys: pa.RecordBatch) -> pa.Array | None:
        return None if self.index is None else self.index.names(self._of_keys(keys))

    @property
    def nameless(self) -> str:
        """Why a row lies in none."""
        columns = "" if self.index is None else " and ".join(self.index.columns_named)
        return f"index: with {columns} it is not a name of at most {INDEX_BYTES_MAX} letters a to z, digits, _, . and -"

    def ids(self, batch: pa.RecordBatch) -> pa.Array:
        """Each row's ``_id``."""
        return self._ids(self._texts(batch)) if self.schema.key else document_ids(batch.column(POSITION).cast(pa.utf8()))

    def ids_of_keys(self, keys: pa.RecordBatch) -> pa.Array:
        """The same. ``keys``: the key's columns as canonical text."""
        return self._ids(self._of_keys(keys))

    def routings(self, batch: pa.RecordBatch) -> pa.Array | None:
        """Each row's routing; None: there is none but the id."""
        return None if self.routing is None else self.routing.joined(self._texts(batch))

    def routings_of_keys(self, keys: pa.RecordBatch) -> pa.Array | None:
        return None if self.routing is None else self.routing.joined(self._of_keys(keys))

    def _texts(self, batch: pa.RecordBatch) -> ColumnText:
        exact = exact_values(batch)
        return self._called(lambda name: column_text(batch, name, exact), len(batch))

    def _of_keys(self, keys: pa.RecordBatch) -> ColumnText:
        return self._called(keys.column, keys.num_rows)

    def _called(self, text_of: ColumnText, rows: int) -> ColumnText:
        def text(name: str) -> pa.Array:
            field = self.called.get(name, name)
            return pa.nulls(rows, pa.utf8()) if field is None else text_of(field)

        return text

    def _ids(self, text_of: ColumnText) -> pa.Array:
        if self.id is not None:
            return document_ids(self.id.apart(text_of))
        return document_ids(join_key([text_of(name) for name in self.own], SEPARATOR if len(self.own) > 1 else ""))


@lru_cache(maxsize=4096)
def place_fields(held: TopicSchema) -> Mapping[str, str | None]:
    """The columns of a store's key that are not of the source's, but of the places of rows (``sinks.places``), by their names in the configuration → the fields
    that they are in this definition; None where it has none."""
    holding = decoded(held.holding)
    found = {meant.name: meant.among(held, holding.origin) for meant in holding.places}
    return {name: None if one is None else one.name for name, one in found.items()}


@lru_cache(maxsize=4096)
def placement_of(schema: TopicSchema) -> Placement:
    """Raises ConfigError where a template does not fit the table."""
    said, others = dict(decoded(schema.holding).shaping), place_fields(schema)
    there = set(others.values())
    own = tuple(one.name for one in schema.key if one.name not in there)
    found = {name: parsed(name, said[name]) for name in (ID, ROUTING, INDEX) if name in said}
    if schema.key or not others:  # a definition by which nothing told rows apart: they are called by their positions
        for name, template in found.items():
            _check(name, said[name], template, schema, {**others, **{one: one for one in own}})
    return Placement(schema, own, others, *(found.get(name) if schema.key else None for name in (ID, ROUTING, INDEX)))


def refuse_shared(store: str, schemas: Iterable[TopicSchema]) -> None:
    """Raises ConfigError where two of these tables would put rows under the same names. (Of names that only some values share, the first keeps them.)"""
    seen: dict[str, str] = {}
    for schema in schemas:
        template = dict(decoded(schema.holding).shaping).get(INDEX)
        other = schema.topic if template is None else seen.setdefault(template, schema.topic)
        if other != schema.topic:
            raise ConfigError(
                f"stores.{store}: index = {template!r} gives {other} and {schema.topic} the same indices",
                hint=f'for example index = "{schema.name}-…" for {schema.topic}',
            )


def former(batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """Which changes take a row out of the place that it leaves for the one that the next change names. (Rows that a changed definition writes again
    share its position, too.)"""
    positions = batch.column(POSITION).to_numpy()
    found: npt.NDArray[np.bool_] = batch.column(OP).to_numpy() == int(Op.DELETE)
    found[:-1] &= positions[:-1] == positions[1:]
    found[-1:] = False
    return found


def columns_of(template: str) -> tuple[str, ...]:
    """The columns that it names, each once."""
    return parsed("", template).columns_named


@lru_cache(maxsize=256)
def parsed(key: str, template: str) -> NameTemplate:
    """Raises ConfigError for what names no column. ``key``: what it is for."""
    try:
        pieces = list(Formatter().parse(template))
    except ValueError:
        raise _refused(key, template, "its braces do not match") from None
    if any(spec or conversion for _, _, spec, conversion in pieces) or "\\" in template:
        raise _refused(key, template, "only {column} may stand in it, and no backslash")
    before, columns = "", list[tuple[str, str]]()
    for literal, name in ((literal, name) for literal, name, _, _ in pieces):
        if columns:
            columns[-1] = columns[-1][0], columns[-1][1] + literal
        else:
            before += literal
        if name is not None:
            columns.append((name, ""))
    if not columns or any(not name for name, _ in columns):
        raise _refused(key, template, "it names no column" if not columns else "a column has no name")
    found = NameTemplate(before, tuple(columns))
    if key == INDEX:
        _check_index(template, found)
    return found


def _check_index(text: str, template: NameTemplate) -> None:
    literals = [template.before, *(literal for _, literal in template.columns)]
    if not re.match("[a-z0-9]", template.before):
        raise _refused(INDEX, text, "it has to begin with a letter a to z or a digit, so that no value names an index of others")
    if not all(re.fullmatch(f"({_NAME})?", one) for one in literals):
        raise _refused(INDEX, text, "between columns only the letters a to z, digits, _, . and - may stand")


def _check(key: str, text: str, template: NameTemplate, schema: TopicSchema, there: Mapping[str, str | None]) -> None:
    if not schema.key:
        raise _refused(key, text, f"{schema.topic} has no key, by which rows are found again")
    own = [one for one in there if there[one] == one and one not in place_fields(schema)]
    if unknown := [name for name in template.columns_named if name not in there]:
        raise _refused(key, text, f"{schema.topic} has no column {unknown[0]}")
    if hidden := [one.name for one in schema.key if not one.shown]:
        raise _refused(key, text, f"the store does not show {hidden[0]}, by which documents are told apart: add it to columns")
    if key == ID:
        if missing := [name for name in own if name not in template.columns_named]:
            raise _refused(
                key, text, f"rows of {schema.topic} also differ in {missing[0]}: without it two of them could have one id"
            )
        if any(not literal or literal[0].isalnum() for _, literal in template.columns[:-1]):
            raise _refused(key, text, "between two columns it needs a separator that is not a letter or digit")


def _refused(key: str, template: str, why: str) -> ConfigError:
    example = {ID: '"{tenant}-{id}"', INDEX: '"orders-{tenant}"'}.get(key, '"{tenant}"')
    return ConfigError(f"{key} = {template!r} cannot name documents' places: {why}", hint=f"for example {key} = {example}")
