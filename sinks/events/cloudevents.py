"""Events as CloudEvents (specification 1.0, structured mode, JSON), column by column. Pure.

``id``, ``type``, ``time`` and ``subject`` (the key) are the event's; ``source`` is ``/TOPIC``. ``data`` is the application's payload, as JSON where it is JSON, as a string where
it is text and as ``data_base64`` where it is bytes; of a table's change it is what ``body = "change"`` gives.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from urllib.parse import quote

import numpy as np
import pyarrow as pa

from cdc.model.batch import topic_schema
from sinks.render.jsonkernels import ABSENT, VALUE
from sinks.render.jsonrows import Piece, join, members, string_texts
from sinks.render.kinds import Leaf
from sinks.render.texts import NOTHING, Texts


def cloudevent(changes: pa.RecordBatch, columns: Mapping[str, pa.Array], times: Texts, data: Sequence[Piece]) -> list[Piece]:
    """``columns``: the events' (``sinks.events.event``); ``times``: as in every document. ``data``: what follows, from its comma on."""
    rows, source = len(changes), json.dumps("/" + quote(topic_schema(changes.schema).topic), ensure_ascii=False)
    key = columns["key"]
    absent = key.is_null().to_numpy(zero_copy_only=False)
    return [
        Piece(string_texts(columns["id"]), before=b'{"specversion":"1.0","id":"', after=b'"'),
        Piece(string_texts(columns["type"]), before=b',"source":' + source.encode() + b',"type":"', after=b'"'),
        Piece(
            string_texts(key.fill_null("")),
            before=b',"subject":"',
            after=b'"',
            states=np.where(absent, ABSENT, VALUE).astype(np.uint8),
        ),
        Piece(times, before=b',"time":"', after=b'"'),
        *data,
        Piece(Texts(NOTHING, np.zeros(rows + 1, np.int64)), before=b"}"),
    ]


def of_change(change: Sequence[Piece]) -> list[Piece]:
    """``data`` that is the change itself."""
    return [Piece(join(change), before=b',"data":')]


def of_payload(changes: pa.RecordBatch) -> list[Piece]:
    """``data`` that is what an application wrote; there is none where that is NULL."""
    payload = next(one for one in members(changes, topic_schema(changes.schema)) if one.column.name == "payload")
    name = b',"data_base64":' if payload.kind is Leaf.BYTES else b',"data":'
    there = changes.column("payload").is_valid().to_numpy(zero_copy_only=False)
    return [Piece(payload.texts, name + payload.quote, payload.quote, states=np.where(there, VALUE, ABSENT).astype(np.uint8))]
