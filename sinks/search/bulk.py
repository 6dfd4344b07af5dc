"""A batch as ``_bulk`` requests, built column by column as bytes, and the verdict on each of their items. Pure but for ``send``.

Every row, deletes too, is an ``index`` action with its position as external version: of two rows of one key the later position wins,
by any sender and however late. A deleted row is a document that says so, until the guard moves to the applied cut (``fence``).
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.errors import StoreError
from cdc.model.batch import OP, POSITION, Op
from cdc.model.topic import TopicSchema
from sinks.render.jsonrows import Piece, Style, Texts, join, position_texts, raw_texts, string_texts
from sinks.retry import ATTEMPTS_MAX, Fate, backoff_s, bulk_fate
from sinks.search import conditional
from sinks.search.conditional import Change
from sinks.search.fields import document_pieces
from sinks.search.names import field_names
from sinks.search.placement import former, placement_of
from sinks.search.wire import Answer, Cluster

Rows = npt.NDArray[np.int64]
"""Row numbers within the batch."""

SMALLER: Final = 8
"""The last requests of many may be so many times smaller than the others."""
_ANSWER_PARTS: Final = "errors,items.*.status,items.*.error.type,items.*.error.reason,items.*.error.caused_by.type"


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The verdicts on ``rows``: their fates (numbers of ``Fate``), and why the dead ones are dead, without their values."""

    rows: Rows
    fates: npt.NDArray[np.int8]
    reasons: Mapping[int, str] = field(default_factory=dict)
    """Row → reason."""
    fields: Mapping[int, str] = field(default_factory=dict)
    """Row → the field that the cluster names. Below a column of JSON that is made of the row's own keys: to be shown only after ``named``."""

    def of(self, fate: Fate) -> Rows:
        """The rows of this fate."""
        found: Rows = self.rows[self.fates == fate]
        return found

    def count(self, fate: Fate) -> int:
        return int(np.count_nonzero(self.fates == fate))

    def without(self, fate: Fate) -> Verdicts:
        """Those of every other fate."""
        kept = self.fates != fate
        return Verdicts(self.rows[kept], self.fates[kept], self.reasons, self.fields)

    def named(self, schema: TopicSchema) -> Verdicts:
        """The same, with reasons that say the column at fault, and nothing below it."""
        if not self.fields:
            return self
        names = field_names(schema)
        known = {".".join(one.path) if one.path else names.get(one.name, one.name) for one in schema.fields}
        known |= {path[: at.start()] for path in list(known) for at in re.finditer(r"\.", path)}

        def at_fault(path: str) -> str:
            ways = (path[: at.start()] for at in reversed([*re.finditer(r"\.|\Z", path)]))
            return next((way for way in ways if way in known), "")

        found = {row: at_fault(path) for row, path in self.fields.items()}
        reasons = {row: ": ".join(part for part in (why, found.get(row, "")) if part) for row, why in self.reasons.items()}
        return Verdicts(self.rows, self.fates, reasons)

    def moved(self, by: int) -> Verdicts:
        """The same of rows that are so many further on."""
        return Verdicts(self.rows + by, self.fates, {row + by: reason for row, reason in self.reasons.items()}) if by else self


def all_of(rows: Rows, fate: Fate, reason: str = "") -> Verdicts:
    """The same verdict on every row."""
    return Verdicts(rows, np.full(len(rows), fate, np.int8), dict.fromkeys(rows.tolist(), reason) if reason else {})


def together(parts: Sequence[Verdicts]) -> Verdicts:
    """The verdicts of several requests; no row may be in two of them."""
    reasons = {row: reason for part in parts for row, reason in part.reasons.items()}
    fields = {row: name for part in parts for row, name in part.fields.items()}
    none = all_of(np.empty(0, np.int64), Fate.WRITTEN)
    return Verdicts(
        np.concatenate([p.rows for p in (none, *parts)]), np.concatenate([p.fates for p in (none, *parts)]), reasons, fields
    )


def ids_of(batch: pa.RecordBatch, schema: TopicSchema, ids: pa.Array | None = None) -> pa.Array:
    """The rows' documents' ids. ``ids``: where they are not those of the rows' keys."""
    return placement_of(schema).ids(batch) if ids is None else ids


class Actions:
    """Rows that are to be written, of which each part is made where it is sent: beside the requests that are under way, and never all at once. ``ids``: as
    ``ids_of``; ``over_equal``: also in the place of a document of the same version.

    ``parts``: the name of each row's index, NULL where it has none; None: all of them lie in one.
    """

    def __init__(
        self, batch: pa.RecordBatch, schema: TopicSchema, style: Style, ids: pa.Array | None = None, *, over_equal: bool = False
    ) -> None:
        self.batch = batch
        self.schema = schema
        self._style = style
        self._ids = ids
        self._over_equal = over_equal
        self.parts: pa.Array | None = placement_of(schema).indices(batch)

    def __len__(self) -> int:
        return len(self.batch)

    def lines(self, first: int, last: int, writers: Mapping[str, str]) -> Texts:
        """The rows from ``first`` to ``last`` as lines of a request, and one more where the last one's version depends on it (``placement.former``).
        ``writers``: the alias through which each index is written; a row of any other is not to be sent."""
        count = last + 1 - first
        if len(after := self.batch.slice(last, 2)) == 2 and former(after)[0]:
            count += 1
        rows, ids = self.batch.slice(first, count), None if self._ids is None else self._ids.slice(first, count)
        through = None if self.parts is None else _written_through(self.parts.slice(first, count), writers)
        return actions(rows, self.schema, self._style, ids, over_equal=self._over_equal, through=through)

    def nameless(self) -> Verdicts:
        """The verdicts on rows that lie in no index: nothing is taken out of one, and the rest cannot be held."""
        if self.parts is None or not self.parts.null_count:
            return together([])
        rows = np.flatnonzero(np.asarray(self.parts.is_null()))
        gone = self.batch.column(OP).to_numpy()[rows] == int(Op.DELETE)
        why = placement_of(self.schema).nameless
        return together([all_of(rows[gone], Fate.STALE), all_of(rows[~gone], Fate.DEAD, why)])


def _written_through(parts: pa.Array, writers: Mapping[str, str]) -> pa.Array:
    found = parts.dictionary_encode()
    aliases = pa.array([writers.get(name, "") for name in found.dictionary.to_pylist()], pa.utf8())
    return aliases.take(found.indices).fill_null("")


def actions(
    batch: pa.RecordBatch,
    schema: TopicSchema,
    style: Style,
    ids: pa.Array | None = None,
    *,
    over_equal: bool = False,
    through: pa.Array | None = None,
) -> Texts:
    """Per row: the action's line and the document's. ``ids``: as ``ids_of``. ``over_equal``: also in the place of a document of the same
    version. ``through``: the alias that each row is written through, where that is not the request's."""
    ids = ids_of(batch, schema, ids)
    indices = [] if through is None else [Piece(string_texts(through), before=b',"_index":"', after=b'"')]
    routings, left = placement_of(schema).routings(batch), former(batch)
    routed = [] if routings is None else [Piece(string_texts(routings), before=b',"routing":"', after=b'"')]
    head = [
        _version(batch, left, over_equal=over_equal),
        *indices,
        *routed,
        Piece(string_texts(ids), before=b',"_id":"', after=b'"}}\n'),
    ]
    document = document_pieces(batch, schema, style)
    document[-1] = Piece(document[-1].texts, before=b"}\n")
    return join([*head, *document])


def _version(batch: pa.RecordBatch, left: npt.NDArray[np.bool_], *, over_equal: bool) -> Piece:
    """``left``: as ``placement.former`` gives it."""
    begins = b'{"index":{"version_type":"%s","version":'
    if not left.any():
        return Piece(position_texts(batch), before=begins % (b"external_gte" if over_equal else b"external"))
    versions = (batch.column(POSITION).to_numpy() - left).tolist()
    kinds = ("external_gte" if over_equal or one else "external" for one in left)
    return Piece(
        raw_texts(pa.array([f'{kind}","version":{one}' for kind, one in zip(kinds, versions, strict=True)], pa.utf8())),
        before=b'{"index":{"version_type":"',
    )


def divided(rows: Rows, most: int, at_once: int) -> list[Rows]:
    """The rows in parts of ``most`` at most, to be sent so many at once. The last ones are smaller and smaller: what is sent alone while all else is done
    costs the time of a small part only."""
    parts, least = list[Rows](), -(-most // SMALLER)
    while len(rows):
        size = min(most, max(least, len(rows) // (at_once + 1)))
        parts.append(rows[:size])
        rows = rows[size:]
    return parts


def split(body: Texts, rows: Rows, bytes_max: int) -> list[Rows]:
    """The rows in requests of about so many bytes each."""
    sizes = np.diff(body.offsets)[rows]
    request = np.cumsum(sizes) // bytes_max
    return np.split(rows, np.flatnonzero(np.diff(request)) + 1) if len(rows) else []


def send(
    cluster: Cluster,
    alias: str | None,
    body: Texts,
    rows: Rows,
    *,
    sleep: Callable[[float], None] = time.sleep,
    chance: random.Random | None = None,
) -> Verdicts:
    """Writes these rows and returns a final verdict on each (never AGAIN). ``alias``: what they are written through; None: each line says it.

    Rows that the cluster turned away for being busy are sent again, in halves, with growing pauses. Raises StoreError when it stays
    busy, does not answer, or refuses the request.
    """
    chance = chance or random.Random()
    final: list[Verdicts] = []
    waiting = [rows]
    attempt = 0
    while waiting:
        part = waiting.pop()
        answer = cluster.send("POST", _path(alias), payload(body, part), params=_PARAMS, ndjson=True)
        if answer.status == 413:
            if len(part) == 1:
                final.append(all_of(part, Fate.DEAD, "larger than http.max_content_length"))
            waiting += _halves(part) if len(part) > 1 else []
            continue
        if answer.status == 429 and len(part) == 1 and (why := never_fits(answer, attempt)):
            final.append(all_of(part, Fate.DEAD, why))
            continue
        judged = judge(answer, part)
        if judged.count(Fate.REFUSED):
            raise cluster.error("a bulk request", _refusal(answer))
        final.append(judged.without(Fate.AGAIN))
        if len(again := judged.of(Fate.AGAIN)):
            attempt += 1
            if attempt == ATTEMPTS_MAX:
                raise StoreError(
                    f"store {cluster.store}: {cluster.where} is too busy", retryable=True, hint="give the cluster more room"
                )
            sleep(backoff_s(attempt - 1, chance))
            waiting += _halves(again)
    return together(final)


def _path(alias: str | None) -> str:
    return "/_bulk" if alias is None else f"/{alias}/_bulk"


def send_behind(cluster: Cluster, alias: str | None, changes: Sequence[Change], body: Texts, rows: Rows) -> Verdicts | None:
    """Writes these rows in one request behind conditional changes of documents of the same index; some may have to be sent AGAIN. None: the
    cluster is too busy for a request like this.

    Raises Conflict when one of the changes was not taken, whatever became of the rows; StoreError.
    """
    lines = conditional.request(changes) + payload(body, rows)
    params = {"require_alias": "true", "filter_path": f"{conditional.PARTS},items.*.error.caused_by.type"}
    answer = cluster.send("POST", _path(alias), lines, params=params, ndjson=True)
    if bulk_fate(answer.status, answer.error_type) is Fate.AGAIN:
        return None
    if answer.status >= 400:
        raise cluster.error("a bulk request", answer)
    items = answer.body["items"]
    conditional.take(cluster, "a bulk request", changes, items[: len(changes)])
    judged = judge(Answer(200, {"errors": answer.body["errors"], "items": items[len(changes) :]}), rows)
    if judged.count(Fate.REFUSED):
        raise cluster.error("a bulk request", _refusal(Answer(200, {"items": items[len(changes) :]})))
    return judged


_PRESSURE: Final = re.compile(r"coordinating_operation_bytes=(\d+), max_coordinating_and_primary_bytes=(\d+)")
_RESERVED: Final = re.compile(r"new bytes reserved: \[(\d+)/")
BREAKER_TRIES: Final = 3


def never_fits(answer: Answer, attempt: int) -> str | None:
    """Why the one row of a request that was turned away (429) will be turned away for ever; None when the cluster is merely busy.

    attempt: how often the cluster has turned something away before. The memory of a node comes and goes: only a row that takes more than a
    third of it, several times, is at fault itself.
    """
    error = answer.body.get("error", {}) if isinstance(answer.body, dict) else {}
    reason = str(error.get("reason", "")) if isinstance(error, dict) else ""
    if (pressure := _PRESSURE.search(reason)) is not None and int(pressure[1]) > int(pressure[2]):
        return "larger than the cluster's indexing pressure limit"
    reserved, limit = _RESERVED.search(reason), error.get("bytes_limit") if isinstance(error, dict) else None
    if attempt >= BREAKER_TRIES and reserved is not None and isinstance(limit, int) and 3 * int(reserved[1]) > limit:
        return "larger than the cluster's memory allows"
    return None


_PARAMS: Final = {"require_alias": "true", "filter_path": _ANSWER_PARTS}


def payload(body: Texts, rows: Rows) -> bytes:
    """The body's bytes for these rows, which are not empty and rise."""
    if rows[-1] - rows[0] + 1 == len(rows):
        return body.data[body.offsets[rows[0]] : body.offsets[rows[-1] + 1]].tobytes()
    return b"".join(body.data[body.offsets[row] : body.offsets[row + 1]].tobytes() for row in rows)


def judge(answer: Answer, rows: Rows) -> Verdicts:
    """The verdict on each item; the answer's items stand in the request's order."""
    if answer.status >= 400:
        fate = bulk_fate(answer.status, answer.error_type)
        return all_of(rows, fate if fate is Fate.AGAIN else Fate.REFUSED)
    if not answer.body["errors"]:
        return all_of(rows, Fate.WRITTEN)
    items = [next(iter(item.values())) for item in answer.body["items"]]
    fates = np.array([_item_fate(item) for item in items], np.int8)
    dead = [(row, item) for row, item, fate in zip(rows.tolist(), items, fates, strict=True) if fate == Fate.DEAD]
    return Verdicts(
        rows,
        fates,
        {row: _reason(item["error"]) for row, item in dead},
        {row: name for row, item in dead if (name := _field(item["error"]))},
    )


def _item_fate(item: Mapping[str, Any]) -> Fate:
    if conditional.several_behind_alias(item):
        return Fate.FENCED
    return bulk_fate(item["status"], str(item.get("error", {}).get("type", "")))


_TOO_MANY: Final = re.compile(r"The number of nested documents has exceeded the allowed limit of \[(\d+)\]")


def _reason(error: Mapping[str, Any]) -> str:
    if (found := _TOO_MANY.match(str(error.get("reason", "")))) is not None:
        return f"its lists have more than {found[1]} objects together (index.mapping.nested_objects.limit)"
    cause = str(error.get("caused_by", {}).get("type", ""))
    return ": ".join(part for part in (str(error["type"]), cause) if part)


def _field(error: Mapping[str, Any]) -> str:
    # The reason quotes the value; the field's name before it is all that we may keep.
    named = re.match(r"failed to parse field \[([^\]]*)\] of type", str(error.get("reason", "")))
    return named.group(1) if named else ""


def _refusal(answer: Answer) -> Answer:
    """The answer to a whole request, or the first item of it that says why nothing is taken."""
    if answer.status >= 400:
        return answer
    items = (next(iter(item.values())) for item in answer.body["items"])
    refused = next(item for item in items if _item_fate(item) is Fate.REFUSED)
    return Answer(refused["status"], refused)


def _halves(rows: Rows) -> list[Rows]:
    middle = max(len(rows) // 2, 1)
    return [half for half in (rows[middle:], rows[:middle]) if len(half)]
