"""The guard of what is no longer in the index: deleted and truncated rows.

A document that says "deleted at p" beats every older write of its key, but it cannot stay for ever, and without it a late write by
somebody who has slept would bring the row back (OpenSearch's own delete tombstones live 60 s, in memory). So documents are written
through an alias whose name is never used twice, with ``require_alias``. Before deleted rows are purged, that alias is replaced by a new
one: a process that still writes through the old name is turned away by the server, item by item, has to look up the new name, and reads the
ledger on the way: rows that the applied cut or the table's last TRUNCATE covers are then stale.

What had passed the alias before it was replaced may still be on its way inside the cluster; therefore the purge waits ``purge_after_s``,
far longer than such a request lives. A purge takes only rows deleted *before* the cut: it leaves a tombstone with the version after
the row's, which must stay below the next position.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from cdc.model.batch import POSITION
from sinks.render.jsonrows import DELETED
from sinks.search.names import Places
from sinks.search.wire import Cluster

PURGE_TIMEOUT_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Fenced:
    """Everything at or before ``position`` was written through a name that is gone since ``at_s``."""

    position: int
    at_s: float


def new_writer(place: Places) -> str:
    return f"{place.writers}{uuid.uuid4().hex[:16]}"


def alias_actions(place: Places, old: str, new: str) -> list[dict[str, Any]]:
    return [
        {"remove": {"index": place.index, "alias": old, "must_exist": True}},
        {"add": {"index": place.index, "alias": new, "is_hidden": True}},
    ]


def replace_writers(cluster: Cluster, writers: Mapping[Places, str]) -> dict[Places, str] | None:
    """Gives each place a new write alias, all at once; None when another process has done so meanwhile."""
    fresh = {place: new_writer(place) for place in writers}
    actions = [action for place, old in writers.items() for action in alias_actions(place, old, fresh[place])]
    answer = cluster.send("POST", "/_aliases", {"actions": actions})
    if answer.status == 404:
        return None
    if answer.status >= 400:
        raise cluster.error("replacing the write alias", answer)
    return fresh


def purge(cluster: Cluster, place: Places, *, deleted_before: int = 0, written_before: int = 0) -> None:
    """Removes the documents of rows deleted before the one position, and everything written before the other."""
    deleted = {"bool": {"filter": [{"term": {DELETED: True}}, {"range": {POSITION: {"lt": deleted_before}}}]}}
    query = {"bool": {"should": [deleted, {"range": {POSITION: {"lt": written_before}}}]}}
    cluster.ask("a refresh", "POST", f"/{place.index}/_refresh")
    params = {"conflicts": "proceed", "slices": "auto"}  # a conflict is a newer write of that key: it stays
    path = f"/{place.index}/_delete_by_query"
    cluster.ask("purging deleted rows", "POST", path, {"query": query}, params=params, timeout_s=PURGE_TIMEOUT_S)
