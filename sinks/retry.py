"""The one place that decides what an error of a store means: wait and try again, or tell the operator.

Messages name the store, the place and the error's kind. A server's own text may quote rows, so only its first word (Redis), or its
type and a reason of a known form (OpenSearch, ``sinks.search.reasons``) is passed on.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, auto
from typing import Final

from cdc.errors import StoreError

ATTEMPTS_MAX: Final = 8
"""Tries of a part that a store turned away for being busy; with ``backoff_s`` about 20 s in all."""

_BACKOFF_FIRST_S: Final = 0.1
_BACKOFF_MAX_S: Final = 5.0


def backoff_s(attempt: int, chance: random.Random) -> float:
    """How long to wait after the given failed attempt (0 the first): exponential, with full jitter over its upper half."""
    ceiling: float = min(_BACKOFF_FIRST_S * 2**attempt, _BACKOFF_MAX_S)
    return ceiling * chance.uniform(0.5, 1.0)


def down(store: str, where: str, kind: str) -> StoreError:
    """Nobody answers, or the answer was cut off: what was sent may or may not have arrived, and sending again is safe."""
    return StoreError(
        f"store {store}: no answer from {where} ({kind})", retryable=True, hint="start it, or correct `url` in cdc.toml"
    )


_CLUSTER: Final = "this is a node of a Redis Cluster: set `lanes`, or use a server that is not in cluster mode"

# Redis: the error code that starts the server's answer → (worth waiting, what to do).
_REDIS: Final[Mapping[str, tuple[bool, str]]] = {
    "OOM": (
        True,
        "raise maxmemory, or free memory: the server is full, and the policy noeviction rightly refuses to drop what is there",
    ),
    "LOADING": (True, "wait until the server has loaded its data"),
    "READONLY": (True, "point `url` at the primary"),
    "MASTERDOWN": (True, "wait for the failover to end"),
    "NOREPLICAS": (True, "bring the replicas back, or lower min-replicas-to-write"),
    "BUSY": (True, "another client's script blocks the server: SCRIPT KILL"),
    "UNKILLABLE": (True, "another client's script blocks the server"),
    "MISCONF": (True, "the server cannot write its data to disk: see its log"),
    "EXECABORT": (True, "see the server's log: it has not carried out a transaction"),
    "TRYAGAIN": (True, "wait until the cluster has settled"),
    "CLUSTERDOWN": (True, "wait until the cluster is up"),
    "MOVED": (False, _CLUSTER),
    "ASK": (False, _CLUSTER),
    "CROSSSLOT": (False, _CLUSTER),
    "NOAUTH": (False, "set `username` and `password`, or put them into `url`"),
    "WRONGPASS": (False, "correct `username` and `password`"),
    "NOPERM": (
        False,
        "grant the user +@read +@write +@transaction +info (with `lanes` +cluster|slots +cluster|nodes) and all keys of the store",
    ),
    "WRONGTYPE": (False, "another program's keys have the names of the store's ledger: give the store another name"),
}


_ROTATING: Final = "correct the file with the password (`password_file` or `url_file`): it is read again for each attempt"


def redis_error(store: str, code: str, *, rotating: bool = False, again: bool = False) -> StoreError:
    """``code``: the first word of the server's error. ``rotating``: our credentials stand in a file, so wrong ones may be on their way out. ``again``: it is
    worth trying again whatever it is."""
    retryable, hint = _REDIS.get(code, (False, "see the server's log"))
    retryable |= again
    if rotating and code in ("NOAUTH", "WRONGPASS"):
        retryable, hint = True, _ROTATING
    return StoreError(f"store {store}: the server answers {code}", retryable=retryable, hint=hint)


def slot_moving(store: str, code: str) -> StoreError:
    """A node of a Redis Cluster says that another one has a slot, or will have it in a moment."""
    return StoreError(
        f"store {store}: the server answers {code}: the cluster is moving a slot, or has moved it",
        retryable=True,
        hint="wait until it stands still; which server has the slot is asked again",
    )


class Fate(IntEnum):
    """The fate of one item of a bulk request."""

    WRITTEN = auto()
    STALE = auto()
    """The store holds this row at this position or a later one."""
    AGAIN = auto()
    """Not taken for now; only such items are sent again."""
    FENCED = auto()
    """Sent to a place that is no longer the one to write to: look it up again."""
    DEAD = auto()
    """The store can never hold this row."""
    REFUSED = auto()
    """The store takes nothing from us in this state."""


def bulk_fate(status: int, error_type: str) -> Fate:
    """The fate of a bulk item of OpenSearch by its status and its error's type ("" without one)."""
    if 200 <= status < 300:
        return Fate.WRITTEN
    if status == 409:
        return Fate.STALE
    if status == 429 and error_type == "cluster_block_exception":
        return Fate.REFUSED  # the disk's flood stage, which does not pass in seconds as a busy moment does
    if status in (429, 502, 503, 504):
        return Fate.AGAIN
    if status == 404 or error_type == "index_not_found_exception":
        return Fate.FENCED
    if error_type == "index_closed_exception":
        return Fate.REFUSED
    if status in (400, 413):
        return Fate.DEAD
    return Fate.REFUSED


@dataclass(frozen=True, slots=True)
class Reason:
    """``text``: the part of a server's own reason that may be shown. ``retryable``: whether waiting can help; None: its status decides."""

    text: str
    hint: str | None = None
    retryable: bool | None = None


def search_error(
    store: str, doing: str, status: int, error_type: str, reason: Reason | None = None, *, rotating: bool = False
) -> StoreError:
    """OpenSearch answered a whole request with this status. ``rotating``: as of ``redis_error``."""
    message = f"store {store}: {doing} was answered {status} {error_type}".rstrip()
    retryable, hint = _search_verdict(status, error_type, rotating=rotating)
    if reason is not None:
        message += f": {reason.text}"
        hint = reason.hint or hint
        retryable = retryable if reason.retryable is None else reason.retryable
    return StoreError(message, retryable=retryable, hint=hint)


def _search_verdict(status: int, error_type: str, *, rotating: bool) -> tuple[bool, str]:
    """Whether waiting can help, and what to do."""
    if error_type == "cluster_block_exception" and status == 429:
        return True, "free disk space: the index is read-only above the flood stage"
    if error_type in ("cluster_block_exception", "index_create_block_exception") and status == 403:
        return True, "somebody has blocked the index or the cluster: remove its settings index.blocks.* or cluster.blocks.*"
    if error_type == "index_closed_exception":
        return True, "somebody closed the index: POST /INDEX/_open"
    if error_type == "index_not_found_exception":
        return True, "the index was deleted meanwhile: it is looked for again, and built again from the log where it is missing"
    if status in (429, 502, 503, 504) or status == 500:
        return True, "the cluster is busy or has no leader: see GET _cluster/health"
    if status == 401 and rotating:
        return True, _ROTATING
    if status == 401:
        return False, "correct `username` and `password`"
    if status == 403:
        return False, "grant the user the rights that docs/stores.md#rights-in-opensearch names"
    return False, "see the cluster's log"
