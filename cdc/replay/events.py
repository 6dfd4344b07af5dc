"""The events of a topic's range of the log, as they were written: each with its payload to the letter."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from cdc.log.contract import LogReader, left_between, present_history
from cdc.model.batch import LSN, OP, POSITION, TS, Op, table_of
from cdc.model.pgtypes import BYTEA, JSON, JSONB, canonical_text
from cdc.model.position import Position, format_lsn
from cdc.outbox.router import ids_of


@dataclass(frozen=True, slots=True, repr=False)
class LoggedEvent:
    """``payload``: the text that was written, or the bytes of a payload of type bytea. ``json``: whether that text is JSON's. ``headers``: JSON's text."""

    position: int
    lsn: int
    committed: str
    """When its transaction was committed, as ISO 8601 in UTC."""
    id: str
    key: str
    type: str
    headers: str | None
    payload: str | bytes | None
    json: bool

    def line(self) -> str:
        """One JSON object on one line. The payload stands in it to the letter, but for line breaks between its tokens."""
        head = {"position": self.position, "lsn": format_lsn(self.lsn), "committed": self.committed, "id": self.id}
        members = [f'"{name}":{_dumped(value)}' for name, value in {**head, "key": self.key, "type": self.type}.items()]
        if self.headers is not None:
            members.append(f'"headers":{_one_line(self.headers)}')
        if self.payload is not None:
            text = "\\x" + self.payload.hex() if isinstance(self.payload, bytes) else self.payload
            members.append(f'"payload":{_one_line(text) if self.json else _dumped(text)}')
        return "{" + ",".join(members) + "}\n"


def events(log: LogReader, topic: str, after: Position, upto: Position, key: str | None = None) -> Iterator[LoggedEvent]:
    """Those in (after, upto], of one key or of all, in the log's order."""
    for part in left_between(log, (topic,), after, upto):
        for batch in log.read(part.topic, part.after, part.upto, present_history(log)):
            mask = pc.equal(batch.column(OP), int(Op.INSERT))
            yield from _of_rows(batch.filter(mask if key is None else pc.and_(mask, pc.equal(batch.column("key"), key))))


def _of_rows(batch: pa.RecordBatch) -> Iterator[LoggedEvent]:
    payload_type = next(column.type_oid for column in table_of(batch.schema).columns if column.name == "payload")
    payloads = batch.column("payload")
    texts = payloads if payload_type == BYTEA else canonical_text(payloads)
    is_json = payload_type in (JSON, JSONB)
    committed = [moment.isoformat() for moment in batch.column(TS).to_pylist()]
    heads = zip(*(batch.column(name).to_pylist() for name in (POSITION, LSN)), committed, strict=True)
    values = zip(*(batch.column(name).to_pylist() for name in ("key", "type", "headers")), strict=True)
    rows = zip(heads, ids_of(batch).to_pylist(), values, texts.to_pylist(), strict=True)
    for (position, lsn, time), id, (key, type, headers), payload in rows:
        yield LoggedEvent(position, lsn, time, id, key, type, headers, payload, is_json)


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _one_line(text: str) -> str:
    """JSON's text has line breaks between its tokens only."""
    return text.replace("\r", " ").replace("\n", " ")
