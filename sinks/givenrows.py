"""Changes of the source as the store is given them, once it is known what it holds and what its expressions say (``sinks.holding``). Pure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from cdc.model.batch import ALONE, EXACT, FAILED, META_FIELDS, OP, Op, topic_batch_schema
from cdc.model.topic import TopicSchema
from sinks.formula import Evaluation
from sinks.render.fromtext import exact_column
from sinks.render.rowtext import exact_values

_AT_OP, _AT_EXACT = (next(at for at, one in enumerate(META_FIELDS) if one.name == name) for name in (OP, EXACT))


def given_changes(batch: pa.RecordBatch, held: TopicSchema, found: Evaluation | None) -> pa.RecordBatch:
    """``found``: None where nothing was evaluated."""
    columns = [batch.column(one.name) for one in META_FIELDS]
    alone = len(batch) == 1 and batch.column(OP)[0].as_py() in ALONE
    odd = found is not None and (found.failures or any(one.exact for one in found.computed.values()))
    if odd or (batch.column(EXACT).null_count < len(batch) and not alone):
        columns[_AT_EXACT] = _exact(batch, held, found)
    if found is not None and (found.failures or found.left_out.any()):
        gone = found.left_out.copy()
        gone[list(found.failures)] = True
        columns[_AT_OP] = pa.array(np.where(gone, np.int8(Op.DELETE), batch.column(OP).to_numpy()))
    for one in held.fields:
        if not one.computed:
            columns.append(batch.column(one.column_name))
        else:
            columns.append(pa.nulls(len(batch), one.type) if found is None else found.computed[one.column_name].values)
    return pa.RecordBatch.from_arrays(columns, schema=topic_batch_schema(held))


def _exact(batch: pa.RecordBatch, held: TopicSchema, evaluation: Evaluation | None) -> pa.Array:
    texts, found = exact_values(batch), dict[str, Mapping[int, str]]()
    for one in held.fields:
        if one.computed:
            found[one.name] = {} if evaluation is None else evaluation.computed[one.column_name].exact
        elif one.column_name in texts:
            mine = texts[one.column_name]
            found[one.name] = dict(zip(mine.rows.tolist(), mine.texts.to_pylist(), strict=True))
    if evaluation is not None:
        found[FAILED] = evaluation.failures
    return exact_column(len(batch), found)
