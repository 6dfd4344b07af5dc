"""``python -m tests.kernels``: compiles the kernels of audits and lanes, which the workers of a test run would otherwise all compile at the same time."""

from __future__ import annotations

from cdc.audit.engine import Side, key_indices, suspects
from cdc.model.topic import TopicSchema
from sinks.cache.lane import warm_up
from sinks.contract import audit_schema
from sinks.render.documentcolumns import document_members, labels_of, rows_of_members
from sinks.render.jsonrows import Style, plain_documents
from sinks.render.texts import raw_texts
from sinks.search.pages import Hits
from tests.contract.rows import TYPES
from tests.unit.sinks.test_jsonrows import random_batch


def compile_all() -> None:
    schema = TopicSchema.of(TYPES)
    for style in (Style(), Style(doubles=True)):
        labels = labels_of(schema, style)
        assert labels is not None
        documents = raw_texts(plain_documents(random_batch(1, 60), schema, style).to_array())
        starts, stops = documents.offsets[:-1].copy(), documents.offsets[1:].copy()
        read = rows_of_members(document_members(documents.data, starts, stops, labels), schema, labels, style)
        sides = [Side(audit_schema(schema), key_indices(schema), seed=1) for _ in range(2)]
        for side in sides:
            side.add(read.rows)
        suspects(*sides)
        for side in sides:
            side.close()
    warm_up()
    Hits.of(b'{"_scroll_id":"","hits":{"hits":[{"_id":"1","_source":{"id":1}}]}}').rows(schema, Style())


if __name__ == "__main__":
    compile_all()
