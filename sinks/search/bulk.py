"""A batch as ``_bulk`` requests, built column by column as bytes, and the verdict on each of their items. Pure but for ``send``.

Every row, deletes too, is an ``index`` action with its position as external version: of two rows of one key the later position wins,
whoever sends it and however late. A deleted row is a document that says so, until the guard moves to the applied cut (``fence``).
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.errors import StoreError
from cdc.model.table import Table
from sinks.jsonrows import Piece, Texts, document_pieces, join, position_texts, string_texts
from sinks.retry import ATTEMPTS_MAX, Fate, backoff_s, bulk_fate
from sinks.rowtext import keys
from sinks.search.naming import document_ids, field_names
from sinks.search.wire import Answer, Cluster

Rows = npt.NDArray[np.int64]
"""Row numbers within the batch."""

_ANSWER_PARTS: Final = "errors,items.*.status,items.*.error.type,items.*.error.reason,items.*.error.caused_by.type"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one row; ``reason`` only when it is dead, and without its values."""

    row: int
    fate: Fate
    reason: str = ""


def actions(batch: pa.RecordBatch, table: Table) -> Texts:
    """Per row: the action's line and the document's."""
    ids = document_ids(keys(batch, table))
    head = [
        Piece(string_texts(ids), before=b'{"index":{"version_type":"external","_id":"', after=b'","version":'),
        Piece(position_texts(batch), after=b"}}\n"),
    ]
    document = document_pieces(batch, table, field_names(table))
    document[-1] = Piece(document[-1].texts, before=b"}\n")
    return join([*head, *document])


def split(body: Texts, rows: Rows, bytes_max: int) -> list[Rows]:
    """The rows in requests of about so many bytes each."""
    sizes = np.diff(body.offsets)[rows]
    request = np.cumsum(sizes) // bytes_max
    return np.split(rows, np.flatnonzero(np.diff(request)) + 1) if len(rows) else []


def send(
    cluster: Cluster,
    alias: str,
    body: Texts,
    rows: Rows,
    *,
    sleep: Callable[[float], None] = time.sleep,
    chance: random.Random | None = None,
) -> list[Verdict]:
    """Writes these rows and returns a final verdict on each (never AGAIN).

    Rows that the cluster turned away for being busy are sent again, in halves, with growing pauses. Raises StoreError when it stays
    busy, does not answer, or refuses the request.
    """
    chance = chance or random.Random()
    verdicts: list[Verdict] = []
    waiting = [rows]
    attempt = 0
    while waiting:
        part = waiting.pop()
        answer = cluster.send("POST", f"/{alias}/_bulk", payload(body, part), params=_PARAMS, ndjson=True)
        if answer.status == 413:
            if len(part) == 1:
                verdicts.append(Verdict(int(part[0]), Fate.DEAD, "larger than http.max_content_length"))
            else:
                waiting += _halves(part)
            continue
        judged = judge(answer, part)
        again = np.array([verdict.row for verdict in judged if verdict.fate is Fate.AGAIN], np.int64)
        verdicts += [verdict for verdict in judged if verdict.fate is not Fate.AGAIN]
        if any(verdict.fate is Fate.REFUSED for verdict in judged):
            raise cluster.error("a bulk request", _refusal(answer))
        if len(again):
            attempt += 1
            if attempt == ATTEMPTS_MAX:
                raise StoreError(
                    f"store {cluster.store}: {cluster.where} is too busy", retryable=True, hint="give the cluster more room"
                )
            sleep(backoff_s(attempt - 1, chance))
            waiting += _halves(again)
    return verdicts


_PARAMS: Final = {"require_alias": "true", "filter_path": _ANSWER_PARTS}


def payload(body: Texts, rows: Rows) -> bytes:
    if rows[-1] - rows[0] + 1 == len(rows):
        return body.data[body.offsets[rows[0]] : body.offsets[rows[-1] + 1]].tobytes()
    return b"".join(body.data[body.offsets[row] : body.offsets[row + 1]].tobytes() for row in rows)


def judge(answer: Answer, rows: Sequence[int] | Rows) -> list[Verdict]:
    """The verdict on each item; the answer's items stand in the request's order."""
    if answer.status >= 400:
        fate = bulk_fate(answer.status, answer.error_type)
        return [Verdict(int(row), fate if fate is Fate.AGAIN else Fate.REFUSED) for row in rows]
    if not answer.body["errors"]:
        return [Verdict(int(row), Fate.WRITTEN) for row in rows]
    return [_judge_item(next(iter(item.values())), int(row)) for item, row in zip(answer.body["items"], rows, strict=True)]


def _judge_item(item: dict[str, Any], row: int) -> Verdict:
    error = item.get("error", {})
    kind = str(error.get("type", ""))
    fate = bulk_fate(item["status"], kind)
    if fate is not Fate.DEAD:
        return Verdict(row, fate)
    cause = str(error.get("caused_by", {}).get("type", ""))
    # The reason quotes the value; the field's name before it is all that we may keep.
    field = re.match(r"failed to parse field \[([^\]]*)\] of type", str(error.get("reason", "")))
    return Verdict(row, fate, ": ".join(part for part in (kind, cause, field.group(1) if field else "") if part))


def _refusal(answer: Answer) -> Answer:
    """The answer to a whole request, or the first item of it that says why nothing is taken."""
    if answer.status >= 400:
        return answer
    for item in answer.body["items"]:
        found = next(iter(item.values()))
        if bulk_fate(found["status"], str(found.get("error", {}).get("type", ""))) is Fate.REFUSED:
            return Answer(found["status"], found)
    return answer


def _halves(rows: Rows) -> list[Rows]:
    middle = max(len(rows) // 2, 1)
    return [half for half in (rows[middle:], rows[:middle]) if len(half)]
