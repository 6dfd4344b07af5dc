"""Changes as lines of JSON, column by column: Debezium-style envelopes, and flat documents. Pure.

Values stand as they do in every store (``sinks.render``): numbers with their exact digits, JSON as JSON, arrays as arrays.

>>> envelopes(replaced)
b'{"payload":{"before":null,"after":{"id":1,"amount":1.10},"source":{"schema":"public","table":"orders","lsn":10,"position":7,"ts_us":0},"op":"c"}}\\n'
>>> documents(batch)
b'{"_cdc_position":7,"_cdc_op":"c","_cdc_lsn":10,"_cdc_ts":"2013-01-31T10:00:00Z","id":1,"amount":1.10}\\n'
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.model.batch import LSN, META_FIELDS, OP, POSITION, TS, Op, is_truncate, op_letters, topic_schema
from cdc.model.evolution import schema_change_of
from cdc.model.pgtypes import canonical_text
from cdc.replay.former import WithFormer
from sinks.render.jsonkernels import ABSENT, NULL, VALUE
from sinks.render.jsonrows import Piece, join, members, object_pieces, plain_documents
from sinks.render.rowtext import column_text, exact_values
from sinks.render.texts import Texts, raw_texts


def envelopes(replaced: WithFormer) -> bytes:
    """One envelope a line. ``before`` is the whole row where it is known; of a DELETE else its key, of anything else null."""
    changes, former = replaced.changes, replaced.former
    special = _of_whole_table(changes)
    if special is not None:
        return special
    schema, rows = topic_schema(changes.schema), len(changes)
    deleted = changes.column(OP).to_numpy() == int(Op.DELETE)
    known = replaced.known if former is not None else np.zeros(rows, np.bool_)
    own = plain_documents(changes, schema)
    pieces = [
        Piece(_nothing(rows), before=b'{"payload":{"before":'),
        Piece(own, null=b"null", states=_states(deleted & ~known, ~deleted & ~known)),
    ]
    if former is not None:
        pieces.append(Piece(plain_documents(former, schema), states=_states(known, np.zeros(rows, np.bool_))))
    pieces += [
        Piece(_nothing(rows), before=b',"after":'),
        Piece(own, null=b"null", states=_states(~deleted, deleted)),
        Piece(_nothing(rows), before=f',"source":{{"schema":{_json(schema.namespace)},"table":{_json(schema.name)}'.encode()),
        Piece(_numbers(changes.column(LSN)), before=b',"lsn":'),
        Piece(_numbers(changes.column(POSITION)), before=b',"position":'),
        Piece(_numbers(changes.column(TS).view(pa.int64())), before=b',"ts_us":'),
        Piece(_letters(changes), before=b'},"op":"', after=b'"}}\n'),
    ]
    return bytes(join(pieces).data.tobytes())


def documents(changes: pa.RecordBatch) -> bytes:
    """One flat object a line: our own fields but ``_cdc_exact``, then the columns; of a DELETE the key's only. A change of the table as a whole has
    no columns, one of its definition has ``_cdc_schema``."""
    schema, rows = topic_schema(changes.schema), len(changes)
    head = [
        Piece(_numbers(changes.column(POSITION)), before=f'{{"{POSITION}":'.encode()),
        Piece(_letters(changes), before=f',"{OP}":"'.encode(), after=b'"'),
        Piece(_numbers(changes.column(LSN)), before=f',"{LSN}":'.encode()),
        Piece(_times(changes.column(TS)), before=f',"{TS}":'.encode()),
    ]
    change = schema_change_of(changes)
    if change is not None:
        facts = {"kind": str(change.kind), "empties": change.empties, "now": change.now, "columns": list(schema.names)}
        head.append(Piece(_nothing(rows), before=f',"_cdc_schema":{_json(facts)}'.encode()))
    elif not is_truncate(changes):
        return bytes(join([*object_pieces(members(changes, schema), head, rows=rows), _line_ends(rows)]).data.tobytes())
    return bytes(join([*head, Piece(_nothing(rows), before=b"}"), _line_ends(rows)]).data.tobytes())


def values(batch: pa.RecordBatch) -> dict[str, list[Any]]:
    """The columns' values for people: integers and booleans as themselves, everything else as Postgres's text, NULL as None."""
    exact = exact_values(batch)
    found = {}
    for name in batch.schema.names[len(META_FIELDS) :]:
        column = batch.column(name)
        whole = name not in exact and (pa.types.is_integer(column.type) or pa.types.is_boolean(column.type))
        found[name] = list(column.to_pylist() if whole else column_text(batch, name, exact).to_pylist())
    return found


def _of_whole_table(changes: pa.RecordBatch) -> bytes | None:
    """The envelope of a TRUNCATE or SCHEMA record: no row, but of the latter what happened, and the definition from here on."""
    change = schema_change_of(changes)
    if change is None and not is_truncate(changes):
        return None
    schema = topic_schema(changes.schema)
    position, lsn, ts_us = (changes.column(name).cast(pa.int64())[0].as_py() for name in (POSITION, LSN, TS))
    source = {"schema": schema.namespace, "table": schema.name, "lsn": lsn, "position": position, "ts_us": ts_us}
    payload: dict[str, Any] = {"before": None, "after": None, "source": source, "op": chr(changes.column(OP)[0].as_py())}
    if change is not None:
        table = json.loads(change.table.to_json())
        payload |= {"kind": str(change.kind), "empties": change.empties, "now": change.now, "table": table}
    return (_json({"payload": payload}) + "\n").encode()


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _states(value: npt.NDArray[np.bool_], null: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    return np.where(value, VALUE, np.where(null, NULL, ABSENT)).astype(np.uint8)


def _numbers(numbers: pa.Array) -> Texts:
    return raw_texts(numbers.cast(pa.utf8()).fill_null("null"))


def _times(times: pa.Array) -> Texts:
    texts = pc.replace_substring(pc.replace_substring(canonical_text(times), " ", "T"), "+00", "Z")
    return raw_texts(pc.binary_join_element_wise('"', texts, '"', "").fill_null("null"))


def _letters(changes: pa.RecordBatch) -> Texts:
    return raw_texts(op_letters(changes))


def _line_ends(rows: int) -> Piece:
    return Piece(_nothing(rows), before=b"\n")


def _nothing(rows: int) -> Texts:
    return Texts(np.empty(0, np.uint8), np.zeros(rows + 1, np.int64))
