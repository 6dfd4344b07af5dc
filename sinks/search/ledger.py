"""What the store says of itself, inside the store: the applied cut, each table's last TRUNCATE, and the dead letters.

A hidden index per store, ``.headwater-<store>``: the document ``applied`` (position, commit_lsn, commit_ts_us), one document
``floor:<schema.table>`` (position) per truncated table, and one ``shape:<schema.table>`` (position, and the definition that the documents
stand under) per table; and ``.headwater-<store>@dead``, a document per dead letter. Numbers only
ever rise: each write names the version of the document that it has read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import quote

from cdc.crashpoint import crashpoint
from cdc.errors import StoreError
from cdc.model.position import ZERO_CUT, Cut, Lsn, Position
from cdc.model.table import Table
from sinks.contract import DeadLetter, Shape
from sinks.deadletters import letter_id, letter_json
from sinks.search.naming import index_name
from sinks.search.wire import Cluster

_RACES_MAX: Final = 20
_SHAPES_MAX: Final = 10_000
"""What one search gives at most (index.max_result_window)."""


class Ledger:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._index = f".headwater-{index_name(cluster.store, cluster.store)}"
        self._dead = f"{self._index}@dead"  # no store's name becomes one with an @

    def create(self) -> None:
        """Idempotent."""
        hidden = {"index": {"hidden": True, "number_of_shards": 1}}
        self._create(self._index, {"settings": hidden, "mappings": {"dynamic": False}})
        dead = {"table": {"type": "keyword"}, "position": {"type": "long"}, "reason": {"type": "keyword"}}
        self._create(self._dead, {"settings": hidden, "mappings": {"dynamic": False, "properties": dead}})

    def applied(self) -> Cut:
        found = self._read("applied")[0]
        return ZERO_CUT if found is None else _cut(found)

    def commit(self, cut: Cut) -> Cut:
        """Returns what is recorded afterwards: the cut, or what was there when that is further."""
        value = {"position": cut.position, "commit_lsn": cut.commit_lsn, "commit_ts_us": cut.commit_ts_us}
        return _cut(
            self._raise("applied", value, lambda held: (held["position"], held["commit_lsn"]) < (cut.position, cut.commit_lsn))
        )

    def floor(self, table: str) -> int:
        """The position of the table's last TRUNCATE; 0 without one."""
        found = self._read(f"floor:{table}")[0]
        return 0 if found is None else int(found["position"])

    def raise_floor(self, table: str, position: int) -> int:
        return int(self._raise(f"floor:{table}", {"position": position}, lambda held: held["position"] < position)["position"])

    def shape(self, table: str) -> Shape | None:
        found = self._read(f"shape:{table}")[0]
        return None if found is None else Shape(Table.from_json(found["table"]), Position(found["position"]))

    def set_shape(self, table: Table, position: int) -> None:
        """Unless the shape is of this position, or a later one, already."""
        value = {"position": position, "table": table.to_json()}
        self._raise(f"shape:{table.qualified}", value, lambda held: held["position"] < position)

    def shapes(self) -> list[Table]:
        """The definitions of all topics."""
        self._cluster.ask("reading the ledger", "POST", f"/{self._index}/_refresh")  # what was just written is not found without it
        body = {"size": _SHAPES_MAX, "query": {"match_all": {}}}
        params = {"filter_path": "hits.hits._source.table"}
        found = self._cluster.ask("reading the ledger", "POST", f"/{self._index}/_search", body, params=params)
        return [Table.from_json(hit["_source"]["table"]) for hit in found.get("hits", {}).get("hits", ()) if hit]

    def forget(self, topics: Sequence[str]) -> bool:
        """The store has lost the rows of these topics: nothing counts as applied any more. Whether it did until now.

        The cut goes first: what follows is repeated by whoever finds the shape of a topic without an index.
        """
        lost = [topic for topic in topics if self.shape(topic) is not None]
        applied = bool(lost) and self.applied() != ZERO_CUT
        if applied:
            self._remove("applied")
        for topic in lost:
            self._remove(f"shape:{topic}")
        return applied

    def _remove(self, identity: str) -> None:
        answer = self._cluster.send("DELETE", self._path(identity), params={"refresh": "true"})
        if answer.status >= 400 and answer.status != 404:
            raise self._cluster.error("writing the ledger", answer)

    def bury(self, letters: Sequence[DeadLetter]) -> None:
        """Records dead letters; returns once they are durable."""
        lines = [text for letter in letters for text in (json.dumps({"index": {"_id": letter_id(letter)}}), letter_json(letter))]
        body = ("\n".join(lines) + "\n").encode()
        found = self._cluster.ask("recording dead letters", "POST", f"/{self._dead}/_bulk", body, ndjson=True)
        if found["errors"]:
            raise StoreError(
                f"store {self._cluster.store} does not take its dead letters", retryable=True, hint="see the cluster's log"
            )

    def _create(self, index: str, definition: Any) -> None:
        if self._cluster.send("GET", f"/{index}", params={"filter_path": "*.settings.index.uuid"}).status == 200:
            return
        answer = self._cluster.send("PUT", f"/{index}", definition)
        if answer.status >= 400 and answer.error_type != "resource_already_exists_exception":
            raise self._cluster.error("creating the ledger", answer)

    def _path(self, identity: str) -> str:
        return f"/{self._index}/_doc/{quote(identity, safe='')}"

    def _read(self, identity: str) -> tuple[dict[str, Any] | None, dict[str, Any]]:
        """(document, what a write must name so that nobody else's comes between)."""
        answer = self._cluster.send("GET", self._path(identity))
        if answer.status == 404:
            return None, {"op_type": "create"}
        if answer.status >= 400:
            raise self._cluster.error("reading the ledger", answer)
        return answer.body["_source"], {"if_seq_no": answer.body["_seq_no"], "if_primary_term": answer.body["_primary_term"]}

    def _raise(self, identity: str, value: dict[str, Any], lower: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        for _ in range(_RACES_MAX):
            held, guard = self._read(identity)
            if held is not None and not lower(held):
                return held
            crashpoint("search.ledger.before_write")
            answer = self._cluster.send("PUT", self._path(identity), value, params=guard)
            crashpoint("search.ledger.written")
            if answer.status < 400:
                return value
            if answer.status != 409:
                raise self._cluster.error("writing the ledger", answer)
        raise StoreError(f"store {self._cluster.store}: its ledger is written by too many at once", retryable=True)


def _cut(held: dict[str, Any]) -> Cut:
    return Cut(Position(held["position"]), Lsn(held["commit_lsn"]), held["commit_ts_us"])
