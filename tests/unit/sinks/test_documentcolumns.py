"""Documents read by columns: what is not left says what reading each document by itself says, and little of what we write is left."""

from __future__ import annotations

import json
import random

import numpy as np
import pyarrow as pa
import pytest

from cdc.model.topic import TopicSchema
from sinks.render.documentcolumns import Read, document_members, labels_of, rows_of_members
from sinks.render.jsonrows import Style, plain_documents
from sinks.render.jsontext import may_be_row, meant_rows, parse, row_texts
from sinks.render.meaning import canonical_json, canonical_texts
from sinks.render.rowtext import row_text
from sinks.render.texts import Texts, raw_texts
from tests.contract.rows import ORDERS, TYPES, order, upserts
from tests.unit.sinks.test_jsonrows import random_batch

SCHEMA = TopicSchema.of(TYPES)
STYLES = (Style(), Style(doubles=True))


def read(documents: list[bytes], schema: TopicSchema, style: Style) -> Read:
    texts = Texts(np.frombuffer(b"".join(documents), np.uint8).copy(), np.cumsum([0, *map(len, documents)]).astype(np.int64))
    labels = labels_of(schema, style)
    assert labels is not None
    return rows_of_members(
        document_members(texts.data, texts.offsets[:-1].copy(), texts.offsets[1:].copy(), labels), schema, labels, style
    )


def check(documents: list[bytes], schema: TopicSchema, style: Style) -> int:
    """Returns how many of them are left."""
    found = read(documents, schema, style)
    for at in np.flatnonzero(~found.left).tolist():
        document = parse(documents[at])
        assert may_be_row(document, schema, style), documents[at]
        assert found.rows.slice(at, 1).to_pylist() == row_texts([document], schema, style).to_pylist(), documents[at]
    return int(found.left.sum())


@pytest.mark.parametrize("style", STYLES, ids=["exact", "doubles"])
def test_rows_of_every_type_mean_what_each_document_by_itself_means(seed: int, style: Style) -> None:
    batch = random_batch(seed, 60)
    documents = plain_documents(batch, SCHEMA, style).to_array().to_pylist()
    assert check(documents, SCHEMA, style) < 60


@pytest.mark.parametrize("style", STYLES, ids=["exact", "doubles"])
def test_ordinary_rows_are_not_left(style: Style) -> None:
    schema = TopicSchema.of(ORDERS)
    rows = [order(1), order(2, 'q"\\\n\u00e9\U0001f600', note=None), order(3, amount="123456789.01"), order(4, amount="-0.50")]
    batch = upserts(ORDERS, 1, rows)
    found = read(plain_documents(batch, schema, style).to_array().to_pylist(), schema, style)
    assert not found.left.any()
    assert found.rows.to_pylist() == meant_rows(row_text(batch, schema), schema, style).to_pylist()


@pytest.mark.parametrize("style", STYLES, ids=["exact", "doubles"])
def test_documents_that_somebody_has_changed_are_left_or_read_as_they_are(seed: int, style: Style) -> None:
    """Bytes are changed, taken out and put in anywhere: never is something read that is not there."""
    rng = random.Random(seed)
    documents = plain_documents(random_batch(seed, 40), SCHEMA, style).to_array().to_pylist()
    changed = []
    for document in documents * 4:
        text = bytearray(document)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(text))
            what = rng.randrange(3)
            if what == 0:
                text[at] = rng.choice(b'{}[]",:\\0123456789eE+-.tfn \x00\xff\xc3\xed')
            elif what == 1:
                del text[at : at + rng.randrange(1, 5)]
            else:
                text[at:at] = rng.choice(
                    [b" ", b",", b'"', b"0", b"\\u0041", b"\\ud800", b"null", b'"id":1,', b"-", b"1e5", b"\xf0\x9f\x98\x80"]
                )
            if not text:
                text = bytearray(b"{}")
        changed.append(bytes(text))
    check([one for one in changed if _parses(one)], SCHEMA, style)
    broken = [one for one in changed if not _parses(one)]
    assert read(broken, SCHEMA, style).left.all(), "what is no document is left"


def _parses(document: bytes) -> bool:
    try:
        return isinstance(parse(document), dict)
    except ValueError:
        return False


@pytest.mark.parametrize(
    "value",
    ["1", "-0", "0.0", "-0.0", "1.10", "1e2", "1E-7", "12345678.9E3", "1.0E10", "123456789012345.6", "1e400", "true", "null", '""', '"1"', '"1.10"', '"NaN"',
     '"t"', "{}", "[]", '{"b":1,"a":2}', '{"a":1,"a":2}', "[1.50,0.00001,100000.0]", '"2013-01-31T10:00:00.5"', '"2013-01-31T10:00:00Z"', '"infinity"',
     '"2013-T1-31T10:00:00"', '"AP8="', '"AP8"', '"A==="', '"AA=A"', '"\\u00e9\\/\\n"', '"\\ud83d\\ude00"', '{"k":"\u00e9\U0001f600\\u0001\x7f"}',
     '"\U0001f600\U0001f600\U0001f600T"', "[[[[1]]]]", "[1,]", "[", '"', "01", "+1", "NaN", "9" * 5000, '{"":{"":""}}'],
)  # fmt: skip
@pytest.mark.parametrize("style", STYLES, ids=["exact", "doubles"])
def test_one_value_under_every_column(value: str, style: Style) -> None:
    documents = [f"{{{json.dumps(name)}:{value}}}".encode() for name in SCHEMA.names]
    check([one for one in documents if _parses(one)], SCHEMA, style)
    assert read([one for one in documents if not _parses(one)] or [b"{"], SCHEMA, style).left.all()


def test_canonical_json_by_columns_is_that_of_each_value(seed: int) -> None:
    rng = random.Random(seed)

    def value(depth: int) -> object:
        kind = rng.randrange(8 if depth else 5)
        if kind == 0:
            return rng.choice([0, 1, -7, 10**20, True, False, None])
        if kind == 1:
            return rng.choice([0.5, -0.0, 1.0, 1e-7, 123456.789, 1e22, 5e-324, 0.0001, 0.001])
        if kind < 5:
            return "".join(rng.choice('ab"\\/\n\x01\x7f\u00e9\u20ac\U0001f600') for _ in range(rng.randrange(5)))
        if kind == 5:
            return [value(depth - 1) for _ in range(rng.randrange(4))]
        return {
            "".join(rng.choice("abc\u00e9") for _ in range(rng.randrange(3))): value(depth - 1) for _ in range(rng.randrange(4))
        }

    texts = [json.dumps(value(3), ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 1])) for _ in range(200)]
    for doubles in (False, True):
        found, odd = canonical_texts(raw_texts(pa.array(texts, pa.utf8())), np.ones(200, np.bool_), doubles=doubles)
        assert len(odd) == 0
        assert found.to_pylist() == [canonical_json(parse(text), doubles=doubles) for text in texts]
