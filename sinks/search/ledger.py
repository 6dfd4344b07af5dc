"""The ledger of a store, inside the store: how far it is applied, who writes it, and its dead letters.

A hidden index, ``.headwater-<store>``, with one document (log, history, cut, the writer's epoch), and ``.headwater-<store>@dead``, a
document per dead letter. The cut is a claim: it counts as far as the indices hold it (``standing``), which are lost and restored apart from
the ledger. Each generation of the store has its own; an alias on one of them says which is live (``shown``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cdc.model.lineage import Mark
from cdc.model.position import Cut, Lsn, Position
from sinks.search import letters
from sinks.search.conditional import Change, Guarded, Stand, settle, word
from sinks.search.names import Owner
from sinks.search.shown import GenerationReplaced, Shown, change_aliases
from sinks.search.wire import Cluster

_ID: Final = "applied"
_READING: Final = "reading the ledger"


@dataclass(frozen=True, slots=True)
class Entry:
    """The content of the ledger. ``epoch``: the highest of a writer that it has seen."""

    mark: Mark
    epoch: int


class SearchLedger:
    """One generation's. Changes are made only from the state that ``read`` saw last (``conditional``)."""

    def __init__(self, cluster: Cluster, shown: Shown) -> None:
        self._cluster = cluster
        self._shown = shown
        self._index = shown.names.ledger
        self._dead = f"{self._index}@dead"
        self.document = Guarded(_writers(self._index), self._index, _ID)
        self.claiming: Cut | None = None
        """The cut of a commit whose answer has not come."""

    @property
    def indices(self) -> tuple[str, str]:
        return self._index, self._dead

    def letters(self) -> letters.SearchLetters:
        """The store's dead letters, which stand beside it."""
        return letters.SearchLetters(self._cluster, self._dead, _writers(self._dead))

    def create(self, log: str) -> None:
        """Idempotent. Raises StoreError (retryable) where this generation was to be the live one, and another is."""
        meta = Owner(self._cluster.store, log, "").meta()
        names = self._shown.names
        aliases = self._aliases()
        live = [names.live] if self._shown.live else []
        if live and any(
            names.leaving in alias or (alias == names.live and names.of(index) not in (None, names)) for index, alias in aliases
        ):
            raise GenerationReplaced(self._cluster.store)
        # Where it says so already, it is not to be said again once that is no longer true.
        condition = self._shown.condition() if (self._index, names.live) in aliases else []
        self._create(self._index, {"_meta": meta, "dynamic": False}, [_writers(self._index), *live], aliases, condition)
        self._create(
            self._dead, {"_meta": meta, "dynamic": False, "properties": letters.MAPPING}, [_writers(self._dead)], aliases, []
        )

    def _aliases(self) -> set[tuple[str, str]]:
        """The aliases of the store's ledgers, and of copies that somebody has made of them: (index, alias)."""
        ledgers = self._shown.names.ledgers
        # By their aliases, not as `_alias`: that looks at every index, on which an account may have no rights.
        params = {"expand_wildcards": "all", "filter_path": "*.aliases"}
        held = self._cluster.ask(_READING, "GET", f"/{ledgers}@*", params=params)
        return {
            (index, alias) for index, found in held.items() for alias in found.get("aliases", {}) if alias.startswith(f"{ledgers}@")
        }

    def read(self) -> Entry | None:
        """Reads it; None when it does not exist, or was damaged. Later changes are made from this state."""
        found = self._found(self._index)
        entry = _entry(found)
        self.document.attempt = None
        self.document.stand = None
        if found.get("found"):
            self.document.stand = Stand(_nonce(found["_source"]), found["_seq_no"], found["_primary_term"])
        return entry

    def peek(self) -> Entry | None:
        """Reads it, and leaves the state that later changes are made from as it is. Raises StoreError (retryable) when the generation was live, and
        another is now."""
        if not self._shown.live:
            return _entry(self._found(self._index))
        found = self._found(self._shown.names.live)
        if found.get("_index", self._index) != self._index:
            raise GenerationReplaced(self._cluster.store)
        return _entry(found)

    def _found(self, index: str) -> Mapping[str, Any]:
        """The document as it is now, refreshed or not; empty when there is none, be it that there is no index."""
        answer = self._cluster.send("GET", f"/{index}/_doc/{_ID}")
        if answer.status == 404:
            return {}
        if answer.status == 400 and index != self._index:
            return self._found(self._index)  # a copy of it, which somebody has made, has the alias, too
        if answer.status >= 400:
            raise self._cluster.error(_READING, answer)
        found: Mapping[str, Any] = answer.body
        return found

    def settle(self) -> bool:
        """Whether a change of which the answer was lost was taken."""
        return self.document.attempt is not None and settle(self._cluster, _READING, [self.document], _nonce)[0]

    def change(self, entry: Entry) -> Change:
        """The write that makes ``entry`` what the ledger says; ``conditional.send`` sends it."""
        cut = entry.mark.cut
        said = {
            "log": entry.mark.log,
            "history": entry.mark.history,
            "position": cut.position,
            "commit_lsn": cut.commit_lsn,
            "commit_ts_us": cut.commit_ts_us,
            "epoch": entry.epoch,
        }
        return Change(self.document, lambda nonce: {**said, "nonce": nonce}, word())

    def _create(
        self,
        index: str,
        mappings: Mapping[str, Any],
        wanted: Sequence[str],
        there: Collection[tuple[str, str]],
        condition: Sequence[Mapping[str, Any]],
    ) -> None:
        """``wanted``: its aliases, ``there``: those that there are."""
        others = sorted((holder, alias) for holder, alias in there if alias in wanted and holder != index)
        if not others and all((index, alias) in there for alias in wanted):
            return
        settings = {"index": {"hidden": True, "number_of_shards": 1}}
        answer = self._cluster.send("PUT", f"/{index}", {"settings": settings, "mappings": mappings})
        if answer.status >= 400 and answer.error_type != "resource_already_exists_exception":
            raise self._cluster.error("creating the ledger", answer)
        # A copy that somebody made of the ledger has its aliases, too.
        removed: list[dict[str, Any]] = [{"remove": {"index": holder, "alias": alias}} for holder, alias in others]
        added = [{"add": {"index": index, "alias": alias, "is_hidden": True}} for alias in wanted]
        change_aliases(self._cluster, "pointing the ledger's alias to it", [*condition, *removed, *added])


def _writers(index: str) -> str:
    """The alias through which the index is written, so that a write never creates it."""
    return f"{index}@w"


def _entry(found: Mapping[str, Any]) -> Entry | None:
    if not found.get("found"):
        return None
    said = found["_source"]
    try:
        cut = Cut(Position(int(said["position"])), Lsn(int(said["commit_lsn"])), int(said["commit_ts_us"]))
        return Entry(Mark(str(said["log"]), str(said["history"]), cut), int(said["epoch"]))
    except (KeyError, TypeError, ValueError):
        return None


def _nonce(source: Mapping[str, Any]) -> str:
    return str(source.get("nonce", ""))
