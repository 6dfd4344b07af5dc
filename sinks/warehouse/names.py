"""Where a source table lies in the warehouse. Names become folders, so they are made safe and stay injective. Pure."""

from __future__ import annotations

import hashlib
import re
from typing import Final

from cdc.model.topic import TopicSchema

_SAFE: Final = re.compile(r"[a-z0-9][a-z0-9_]{0,120}")
_HASHED: Final = re.compile(r"_[0-9a-f]{16}\Z")
LEDGERS: Final = "_headwater"
STAGING: Final = "_staging"
GENERATIONS: Final = "_generations"


def place_of(schema: TopicSchema, namespace: str | None) -> tuple[tuple[str, ...], str]:
    """(namespace, table name) of the table: ``schema.table`` below the namespace."""
    above = () if namespace is None else (namespace,)
    return (*above, safe(schema.namespace)), safe(schema.name)


def safe(name: str) -> str:
    """The name itself where it is plain, else its plain letters and a hash of all of it. Never the same for two names: a plain name that
    ends as our hashes do gets a hash, too.

    >>> safe("orders")
    'orders'
    """
    if _SAFE.fullmatch(name) and not _HASHED.search(name):
        return name
    plain = re.sub("[^a-z0-9_]+", "_", name.lower()).strip("_")[:60] or "t"
    return f"{plain}_{hashlib.sha256(name.encode()).hexdigest()[:16]}"
