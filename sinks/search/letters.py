"""A store's dead letters, in a hidden index beside its ledger: a document for each."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from cdc.errors import StoreError
from cdc.model.position import Position
from sinks.deadletters import LETTERS_MAX, Letter, Letters, LetterState
from sinks.search import conditional
from sinks.search.wire import Cluster

MAPPING: Final[Mapping[str, Any]] = {"table": {"type": "keyword"}, "position": {"type": "long"}, "reason": {"type": "keyword"}}
"""What can be searched; the rest is only kept."""


class SearchLetters:
    """One store's. Not thread-safe. ``index``: theirs, ``writers``: the alias through which it is written."""

    def __init__(self, cluster: Cluster, index: str, writers: str) -> None:
        self._cluster = cluster
        self._index = index
        self._writers = writers
        self._known: Letters | None = None

    def reload(self) -> None:
        """Forgets what was known of them."""
        self._known = None

    @property
    def known(self) -> Letters:
        """As this process has read or left them."""
        if self._known is None:
            self._known = Letters(self._cluster.store, self.read())
        return self._known

    def read(self) -> tuple[Letter, ...]:
        """As they are now."""
        doing = "reading dead letters"
        answer = self._cluster.send("POST", f"/{self._index}/_refresh")
        if answer.status == 404:
            return ()
        if answer.status >= 400:
            raise self._cluster.error(doing, answer)
        body = {"size": LETTERS_MAX, "query": {"match_all": {}}, "sort": [{"position": "asc"}]}
        params = {"allow_partial_search_results": "false"}
        found = self._cluster.ask(doing, "POST", f"/{self._index}/_search", body, params=params)
        return tuple(letter for hit in found["hits"]["hits"] if (letter := _letter(hit["_source"])) is not None)

    def set_aside(self, letters: Sequence[Letter]) -> None:
        """Records them; one that is there already stays as an operator has left it. Durable on return."""
        known = self.known
        fresh = [one for one in letters if one.id not in known.by_id or not known.by_id[one.id].key]
        known.refuse_too_many(fresh)
        self._send(({"index": {"_id": one.id}}, one) for one in fresh)
        known.add(fresh)

    def keep(self, *letters: Letter) -> None:
        self._send(({"index": {"_id": one.id}}, one) for one in letters)
        self.known.add(letters)

    def forget(self, ids: Collection[str]) -> None:
        self._send(({"delete": {"_id": one}}, None) for one in ids)
        self.known.remove(ids)

    def end(self, topic: str, position: Position, *, emptied: bool) -> None:
        """A change of the table as a whole leaves nothing of what came before (``Letters.before``)."""
        if ids := self.known.before(topic, position, emptied=emptied):
            self.forget(ids)

    def compare(self, index: str, topic: str) -> None:
        """Removes those whose rows have a later change in the table's index, where others have written it."""
        mine = [one for one in self.known.of(topic) if one.key and one.state is LetterState.ASIDE]
        if mine:
            wanted = {"ids": [one.key for one in mine]}
            found = conditional.documents(self._cluster, "comparing dead letters", f"/{index}/_mget", wanted, {"_source": "false"})
            versions = {str(doc["_id"]): int(doc["_version"]) for doc in found if doc.get("found")}
            self.forget([one.id for one in mine if versions.get(one.key, 0) > one.position])

    def _send(self, actions: Iterable[tuple[Mapping[str, Any], Letter | None]]) -> None:
        """Returns once they are durable. Raises StoreError (retryable) when the cluster does not take them."""
        lines = [line for action, letter in actions for line in (json.dumps(action), _document(letter) if letter else None) if line]
        if not lines:
            return
        body, params = ("\n".join(lines) + "\n").encode(), {"require_alias": "true"}
        doing = "recording dead letters"
        found = self._cluster.ask(doing, "POST", f"/{self._writers}/_bulk", body, params=params, ndjson=True)
        items = [item for one in found.get("items", ()) for item in one.values()] if found["errors"] else ()
        if any("error" in item for item in items):
            raise StoreError(
                f"store {self._cluster.store} does not take its dead letters", retryable=True, hint="see the cluster's log"
            )


def _document(letter: Letter) -> str:
    """The whole letter as one text, as answers do not give fractions as numbers; beside it what can be searched."""
    said = {"table": letter.table, "position": int(letter.position), "reason": letter.reason, "letter": letter.to_json()}
    return json.dumps(said, ensure_ascii=False, separators=(",", ":"))


def _letter(source: Mapping[str, Any]) -> Letter | None:
    """None for what nobody here wrote. Earlier versions wrote no more than what can be searched."""
    try:
        if "letter" in source:
            return Letter.from_json(str(source["letter"]))
        return Letter(str(source["table"]), Position(int(source["position"])), str(source["reason"]))
    except (ValueError, KeyError, TypeError):
        return None
