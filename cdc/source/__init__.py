"""The source's side in SQL: what capture, the snapshot, `cdc doctor` and `cdc init` ask of Postgres and set up there.

Ordinary connections only; the replication stream is ``cdc.capture``'s.
"""

from cdc.source.catalog import CatalogTable, find_tables, load_published, select_tables
from cdc.source.connection import connect
from cdc.source.publication import Publication, ensure_publication, read_publication
from cdc.source.slot import SlotFacts, ensure_slot, read_slot

__all__ = [
    "CatalogTable",
    "Publication",
    "SlotFacts",
    "connect",
    "ensure_publication",
    "ensure_slot",
    "find_tables",
    "load_published",
    "read_publication",
    "read_slot",
    "select_tables",
]
