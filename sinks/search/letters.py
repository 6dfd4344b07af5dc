"""A store's dead letters, in a hidden index beside its ledger: a document for each."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from cdc.errors import StoreError
from cdc.model.position import Position
from sinks.deadletters import Letter, Letters, LetterState
from sinks.search import conditional
from sinks.search.wire import Cluster

MAPPING: Final[Mapping[str, Any]] = {"table": {"type": "keyword"}, "position": {"type": "long"}, "reason": {"type": "keyword"}}
"""What can be searched; the rest is only kept."""
_PAGE: Final = 1000
"""So many are read, or looked at, at once."""


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
        body: dict[str, Any] = {"size": _PAGE, "query": {"match_all": {}}, "sort": [{"position": "asc"}]}
        params = {"allow_partial_search_results": "false"}
        letters: list[Letter] = []
        while True:
            hits = self._cluster.ask(doing, "POST", f"/{self._index}/_search", body, params=params)["hits"]["hits"]
            letters += (letter for hit in hits if (letter := _letter(hit["_source"])) is not None)
            if len(hits) < _PAGE:
                return tuple(letters)
            body["search_after"] = hits[-1]["sort"]  # no two have one position

    def set_aside(self, letters: Sequence[Letter], *, edited_stay: bool) -> None:
        """Records them (``Letters.refused``). Durable on return. Raises StoreError when there are more than a store may have: then the first of
        them are there, so that an operator can decide about them."""
        known = self.known
        fresh = known.refused(letters, edited_stay=edited_stay)
        fitting = known.fitting(fresh)
        self._send(({"index": {"_id": one.id}}, one) for one in fitting)
        known.add(fitting)
        if len(fitting) < len(fresh):
            raise known.too_many()

    def keep(self, letters: Collection[Letter]) -> None:
        self._send(({"index": {"_id": one.id}}, one) for one in letters)
        self.known.add(letters)

    def forget(self, ids: Collection[str]) -> None:
        self._send(({"delete": {"_id": one}}, None) for one in ids)
        self.known.remove(ids)

    def end(self, topic: str, position: Position, *, emptied: bool, again: Collection[int] = ()) -> None:
        """A change of the table as a whole leaves nothing of what came before (``Letters.before``), and nothing that an operator has corrected."""
        if ids := self.known.before(topic, position, emptied=emptied, again=again):
            self.forget(ids)
        self.keep([one.undecided() for one in self.known.of(topic) if one.failed and one.state is LetterState.EDITED])

    def compare(self, index: str, topic: str) -> None:
        """Removes those whose rows have a later change in the table's index, where others have written it."""
        mine = [(one, one.key) for one in self.known.of(topic) if one.key is not None]
        for at in range(0, len(mine), _PAGE):
            page = mine[at : at + _PAGE]
            wanted = {"ids": [key for _, key in page]}
            found = conditional.documents(self._cluster, "comparing dead letters", f"/{index}/_mget", wanted, {"_source": "false"})
            versions = {str(doc["_id"]): int(doc["_version"]) for doc in found if doc.get("found")}
            self.forget([one.id for one, key in page if versions.get(key, 0) > max(one.position, one.stands_at)])

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
