"""Documents that this process changes only from the state in which it has read or written them last; a write in between is noticed.

They are written through an alias, so that a write never creates an index that was deleted. After a write whose answer was lost, the document
itself says what became of it: each write carries a word that is never used twice.
"""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cdc.errors import StoreError
from sinks.retry import ATTEMPTS_MAX, Fate, backoff_s, bulk_fate
from sinks.search.wire import Answer, Cluster

PARTS: Final = "took,errors,items.*.status,items.*._seq_no,items.*._primary_term,items.*.error.type,items.*.error.reason"
"""``took`` comes first, so that the answer is parsed even where it holds no error (``wire``)."""
_READ_AT_ONCE: Final = 1000


@dataclass(frozen=True, slots=True)
class Stand:
    """A document's state: what it was written with and where in its shard's history. No two states have the same."""

    nonce: str
    seq_no: int
    term: int


@dataclass(slots=True)
class Guarded:
    """One document. ``stand`` None: it does not exist, as far as is known."""

    alias: str
    """What it is written through."""
    index: str
    id: str
    stand: Stand | None = None
    attempt: str | None = None
    """The word of a write of which nobody knows whether it was taken."""
    called: str = ""
    """What errors call the index; empty: by its name."""

    @property
    def said(self) -> str:
        return self.called or self.index


@dataclass(frozen=True, slots=True)
class Change:
    """``content``: the new document, given the word that it has to carry."""

    document: Guarded
    content: Callable[[str], Mapping[str, Any]]
    nonce: str

    @property
    def taken(self) -> bool:
        return self.document.stand is not None and self.document.stand.nonce == self.nonce

    def lines(self) -> bytes:
        """The two lines of a bulk request (NDJSON): created where no document is known, else written over the known state only."""
        one = self.document
        where: dict[str, Any] = {"_index": one.alias, "_id": one.id, "require_alias": True}
        if one.stand is not None:
            where |= {"if_seq_no": one.stand.seq_no, "if_primary_term": one.stand.term}
        action = {"create" if one.stand is None else "index": where}
        return b"%s\n%s\n" % (json.dumps(action).encode(), json.dumps(self.content(self.nonce)).encode())


class Conflict(StoreError):
    """A document is not in the state in which this process knew it."""

    def __init__(self, store: str, index: str, why: str) -> None:
        super().__init__(f"store {store}: the index {index} {why}: it is looked at again", retryable=True)


def word() -> str:
    return uuid.uuid4().hex


def request(changes: Sequence[Change]) -> bytes:
    """The changes as lines of a bulk request. From here on nobody knows what became of them until ``take`` or ``settle``."""
    for change in changes:
        change.document.attempt = change.nonce
    return b"".join(change.lines() for change in changes)


def send(cluster: Cluster, doing: str, changes: Sequence[Change], *, sleep: Callable[[float], None] = time.sleep) -> None:
    """Writes them in one request, waiting for a cluster that is merely busy. Raises Conflict when one of them was not in the state that is
    known, StoreError."""
    lines, chance = request(changes), random.Random()
    for attempt in range(ATTEMPTS_MAX):
        answer = cluster.send("POST", "/_bulk", lines, params={"filter_path": PARTS}, ndjson=True)
        if answer.status != 429 or bulk_fate(429, answer.error_type) is not Fate.AGAIN:
            break
        if attempt + 1 < ATTEMPTS_MAX:
            sleep(backoff_s(attempt, chance))
    if answer.status >= 400:
        raise cluster.error(doing, answer)
    take(cluster, doing, changes, answer.body["items"])


def take(cluster: Cluster, doing: str, changes: Sequence[Change], items: Sequence[Mapping[str, Any]]) -> None:
    """Learns from the answer where the documents stand now. Raises as ``send`` does, once it has learnt all."""
    failures: list[StoreError] = []
    for change, item in zip(changes, items, strict=True):
        found = next(iter(item.values()))
        if found["status"] < 300:
            change.document.stand = Stand(change.nonce, found["_seq_no"], found["_primary_term"])
            change.document.attempt = None
        else:
            failures.append(_failure(cluster, doing, change.document, found))
    if failures:
        raise next((failure for failure in failures if not isinstance(failure, Conflict)), failures[0])


def read(cluster: Cluster, doing: str, wanted: Iterable[tuple[str, str]]) -> list[Mapping[str, Any]]:
    """The documents (index, id) as they are now, refreshed or not. Raises StoreError when an index cannot be read."""
    docs = [{"_index": index, "_id": identity} for index, identity in wanted]
    found: list[Mapping[str, Any]] = []
    for start in range(0, len(docs), _READ_AT_ONCE):
        found += documents(cluster, doing, "/_mget", {"docs": docs[start : start + _READ_AT_ONCE]})
    return found


def documents(
    cluster: Cluster, doing: str, path: str, wanted: Mapping[str, Any], params: Mapping[str, Any] | None = None
) -> list[Mapping[str, Any]]:
    """The documents that ``_mget`` finds. Raises StoreError when an index cannot be read: its documents are then not known to be missing."""
    found: list[Mapping[str, Any]] = cluster.ask(doing, "POST", path, wanted, params=params)["docs"]
    for doc in found:
        if (error := doc.get("error")) is not None:
            raise cluster.error(doing, Answer(503 if error.get("type") == "no_shard_available_action_exception" else 404, doc))
    return found


def settle(cluster: Cluster, doing: str, documents: Sequence[Guarded], nonce_of: Callable[[Mapping[str, Any]], str]) -> list[bool]:
    """Finds out which of the writes whose answers were lost were taken. Raises Conflict when somebody else has written since."""
    taken = []
    for one, found in zip(documents, read(cluster, doing, [(one.index, one.id) for one in documents]), strict=True):
        nonce = nonce_of(found["_source"]) if found.get("found") else None
        if nonce is not None and nonce == one.attempt:
            one.stand = Stand(nonce, found["_seq_no"], found["_primary_term"])
        elif nonce != (None if one.stand is None else one.stand.nonce):
            raise Conflict(cluster.store, one.said, "was written by another process, or is another copy")
        taken.append(nonce is not None and nonce == one.attempt)
        one.attempt = None
    return taken


def _failure(cluster: Cluster, doing: str, document: Guarded, found: Mapping[str, Any]) -> StoreError:
    kind = str(found.get("error", {}).get("type", ""))
    if found["status"] == 409:
        document.attempt = None  # it was not taken, and what stands there is not ours
        return Conflict(cluster.store, document.said, "was written by another process, or is another copy")
    if found["status"] == 404:
        document.attempt = None
        return Conflict(cluster.store, document.said, "was deleted, or its alias moved")
    if several_behind_alias(found):
        document.attempt = None
        shares = "its write alias" if document.called else f"its alias {document.alias}"
        return Conflict(cluster.store, document.said, f"shares {shares} with another index")
    return cluster.error(doing, Answer(found["status"], {"error": {"type": kind, **found.get("error", {})}}))


def several_behind_alias(item: Mapping[str, Any]) -> bool:
    """Whether a bulk item was refused because somebody has given our alias to another index, too (as a restored copy brings it)."""
    return str(item.get("error", {}).get("reason", "")).startswith("no write index is defined for alias")
