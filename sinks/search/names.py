"""From tables, columns and keys to the names that OpenSearch allows, such that two never share one. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from string import Formatter
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.errors import ConfigError
from cdc.model.topic import TopicSchema

ID_BYTES_MAX: Final = 512
NUMBERED: Final = "@"
"""Before the number at the end of an index's name: which of the table's indices it is, one after the other."""
ANY_NUMBERED: Final = f"*{NUMBERED}*"
"""The pattern of every index with such a name."""
INDEX_BYTES_MAX: Final = 255 - 40
"""Of a name that we build from a table's; the rest is for our endings."""
_META: Final = "headwater"
_HASHED: Final = re.compile(r"-[0-9a-f]{16}\Z")

# Names that a document's own field may not have (org.opensearch.index.mapper, metadata field mappers).
_METADATA_FIELDS: Final = frozenset(
    ("_id", "_index", "_type", "_source", "_size", "_routing", "_field_names", "_ignored", "_nested_path", "_seq_no", "_primary_term",
     "_version", "_doc_count", "_data_stream_timestamp", "_tier", "_feature", "_all", "_parent", "_timestamp", "_ttl", "_uid")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Places:
    """The names of one table's places."""

    alias: str
    """What leads to the table's index. In a store's first generation it is what users search: the index without the documents of deleted rows."""
    number: int = 1
    """Rises with each index that has taken the place of another."""

    @property
    def index(self) -> str:
        """The index that holds the documents."""
        return f"{self.alias}{NUMBERED}{self.number}"

    @property
    def writers(self) -> str:
        """How the alias through which documents are written begins; its ending changes with every fence."""
        return f"{self.index}.w"


@dataclass(frozen=True, slots=True)
class Owner:
    """Who made an index, and for which table; kept in its mapping, since a name alone proves nothing."""

    store: str
    log: str
    """The id of the log that feeds it."""
    table: str
    part_of: str = ""
    """The alias of the table's home index, where this is one of the parts beside it (``sinks.search.spread``)."""

    def meta(self) -> dict[str, Any]:
        part = {"part_of": self.part_of} if self.part_of else {}
        return {_META: {"store": self.store, "log": self.log, "table": self.table, **part}}


def owner_of(held: Mapping[str, Any]) -> Owner | None:
    """The owner of an index as the cluster describes it; None when it was not made by Headwater."""
    raw = held.get("mappings", {}).get("_meta", {}).get(_META)
    try:
        return None if raw is None else Owner(str(raw["store"]), str(raw["log"]), str(raw["table"]), str(raw.get("part_of", "")))
    except (KeyError, TypeError):
        return None


def places(template: str, schema: TopicSchema) -> Places:
    """The table's first places. Raises ConfigError when the template holds anything but ``{schema}`` and ``{table}``.

    Under ``{schema}.{table}`` no two tables have the same; ``shared`` finds those that have under another template.
    """
    try:
        used = {name for _, name, _, _ in Formatter().parse(template) if name is not None}
    except ValueError:
        used = {"?"}
    if not used <= {"schema", "table"}:
        raise ConfigError(
            f"index = {template!r} may hold {{schema}} and {{table}} only", hint='for example index = "{schema}.{table}"'
        )
    wanted = template.format(schema=schema.namespace, table=schema.name)
    # With a dot inside a name, "{schema}.{table}" could be read in two ways.
    plain = "." not in schema.namespace and "." not in schema.name
    return Places(index_name(wanted, json.dumps([schema.namespace, schema.name]), plain=plain))


def pattern(template: str) -> str:
    """A pattern of all indices that have their names by this template, narrow enough for an account with rights on these alone.

    >>> pattern("shop-{schema}.{table}")
    'shop-*@*'
    """
    safe = re.sub(r"[^a-z0-9_.-]", "_", template.partition("{")[0].lower()).lstrip("_-.+")
    return f"{safe[: INDEX_BYTES_MAX - 17]}*{NUMBERED}*"


def shared(template: str, schemas: Iterable[TopicSchema]) -> tuple[TopicSchema, TopicSchema] | None:
    """Two of the topics that would have the same places."""
    found: dict[str, TopicSchema] = {}
    for schema in schemas:
        other = found.setdefault(places(template, schema).alias, schema)
        if other.topic != schema.topic:
            return other, schema
    return None


def named(index: str) -> Places | None:
    """The places that have this index; None when its name is not of our form."""
    alias, _, number = index.rpartition(NUMBERED)
    return Places(alias, int(number)) if alias and number.isascii() and number.isdecimal() else None


def index_name(wanted: str, identity: str, *, plain: bool = True) -> str:
    """``wanted`` where OpenSearch allows it (and it is ``plain``); else what is left of it and a hash of ``identity``.

    Only names with a hash end like one, so that a name without never equals another's name with one.
    """
    safe = re.sub(r"[^a-z0-9_.-]", "_", wanted.lower()).lstrip("_-.+") or "t"
    if plain and safe == wanted and len(safe) <= INDEX_BYTES_MAX and not _HASHED.search(safe):
        return safe
    return f"{safe[: INDEX_BYTES_MAX - 17]}-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"


def field_names(schema: TopicSchema) -> dict[str, str]:
    """Column → field, for the columns whose name a field cannot have (a dot would make an object)."""
    found = {}
    for name in (column.name for column in schema.fields if not column.path):
        field = re.sub(r"[%.*\x00-\x1f]", lambda match: f"%{ord(match.group()):02X}", name)
        if field in _METADATA_FIELDS:
            field = "%5F" + field[1:]
        if not field.strip():
            field = field.replace(" ", "%20")
        if field != name:
            found[name] = field
    return found


HASHED_ID: Final = "\\#"


def document_ids(keys: pa.Array) -> pa.Array:
    """Key texts (``rowtext.keys``) as ``_id``: a longer one than OpenSearch takes becomes ``\\#`` and its hash; the document has the
    original in its own fields. No key text begins like that, since a backslash in one is followed by ``\\``, ``:``, ``N`` or ``E``."""
    long = pc.greater(pc.binary_length(keys), ID_BYTES_MAX)
    if not pc.any(long).as_py():
        return keys
    hashed = [HASHED_ID + hashlib.sha256(key.encode()).hexdigest() for key in keys.filter(long).to_pylist()]
    return pc.replace_with_mask(keys, pa.array(np.asarray(long)), pa.array(hashed, pa.utf8()))
