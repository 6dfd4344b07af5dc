"""From tables, columns and keys to the names that OpenSearch allows, such that two never share one. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from string import Formatter
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.errors import ConfigError
from cdc.model.table import Table

ID_BYTES_MAX: Final = 512
GENERATION: Final = "@"
"""Before the number at the end of an index's name: which built copy of the table it is."""
INDEX_BYTES_MAX: Final = 255 - 40
"""Of a name that we build from a table's; the rest is for our endings."""

# Names that a document's own field may not have (org.opensearch.index.mapper, metadata field mappers).
_METADATA_FIELDS: Final = frozenset(
    ("_id", "_index", "_type", "_source", "_size", "_routing", "_field_names", "_ignored", "_nested_path", "_seq_no", "_primary_term",
     "_version", "_doc_count", "_data_stream_timestamp", "_tier", "_feature", "_all", "_parent", "_timestamp", "_ttl", "_uid")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Places:
    """The names of one table's places."""

    alias: str
    """What users search: the index without the documents of deleted rows."""
    generation: int = 1
    """Which built copy stands behind the alias."""

    @property
    def index(self) -> str:
        """What holds the documents."""
        return f"{self.alias}{GENERATION}{self.generation}"

    @property
    def writers(self) -> str:
        """How the alias through which documents are written begins; its ending changes with every fence."""
        return f"{self.index}.w"


def places(template: str, table: Table) -> Places:
    """The table's first places. Raises ConfigError when the template holds anything but ``{schema}`` and ``{table}``."""
    try:
        used = {name for _, name, _, _ in Formatter().parse(template) if name is not None}
    except ValueError:
        used = {"?"}
    if not used <= {"schema", "table"}:
        raise ConfigError(
            f"index = {template!r} may hold {{schema}} and {{table}} only", hint='for example index = "{schema}.{table}"'
        )
    name = index_name(template.format(schema=table.schema, table=table.name), json.dumps([table.schema, table.name]))
    return Places(name)


def behind(alias: str, index: str) -> Places | None:
    """The places of the index that was found behind the alias; None when it is none of ours."""
    generation = index.removeprefix(alias + GENERATION)
    return Places(alias, int(generation)) if generation != index and generation.isdecimal() else None


def index_name(wanted: str, identity: str) -> str:
    """``wanted`` where OpenSearch allows it; else what is left of it and a hash of ``identity``."""
    safe = re.sub(r"[^a-z0-9_.-]", "_", wanted.lower()).lstrip("_-.+") or "t"
    if safe == wanted and len(safe) <= INDEX_BYTES_MAX:
        return safe
    return f"{safe[: INDEX_BYTES_MAX - 13]}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"


def field_names(table: Table) -> dict[str, str]:
    """Column → field, for the columns whose name a field cannot have (a dot would make an object)."""
    found = {}
    for name in table.names:
        field = re.sub(r"[%.*\x00-\x1f]", lambda match: f"%{ord(match.group()):02X}", name)
        if field in _METADATA_FIELDS:
            field = "%5F" + field[1:]
        if not field.strip():
            field = field.replace(" ", "%20")
        if field != name:
            found[name] = field
    return found


def document_ids(keys: pa.Array) -> pa.Array:
    """Key texts (``rowtext.keys``) as ``_id``: a longer one than OpenSearch takes becomes ``\\#`` and its hash; the document has the
    original in its own fields. No key text begins like that, since a backslash in one is followed by ``\\``, ``:``, ``N`` or ``E``."""
    long = pc.greater(pc.binary_length(keys), ID_BYTES_MAX)
    if not pc.any(long).as_py():
        return keys
    hashed = ["\\#" + hashlib.sha256(key.encode()).hexdigest() for key in keys.filter(long).to_pylist()]
    return pc.replace_with_mask(keys, pa.array(np.asarray(long)), pa.array(hashed, pa.utf8()))
