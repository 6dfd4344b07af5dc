"""The columnar encoder against Python's json, and there and back to Postgres's text."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import random
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from cdc.kernels.digits import decimal_text
from cdc.model.batch import EXACT, LSN, OP, POSITION, TS, Op, batch_schema
from cdc.model.pgtypes import FLOAT8, INT8, NUMERIC, TEXT
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from sinks.render.jsonrows import documents, lines
from sinks.render.jsontext import meant_rows, parse, row_texts
from sinks.render.rowtext import keys, row_text
from tests.contract.rows import ORDERS, TYPES, batch, numeric, order, upserts

ALPHABET = 'aZ09 "\\/\b\f\n\r\t\x01\x1f\x7fé€\uffff\U0001f600{}:,'


def decimal(unscaled: int, scale: int) -> Decimal:
    """Exactly, whatever the context's precision."""
    return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))


def random_batch(seed: int, rows: int) -> pa.RecordBatch:
    """Rows of ``TYPES`` with every typed value drawn from its type's whole range, one in five NULL."""
    rng = random.Random(seed)

    def value(kind: pa.DataType) -> object:
        if rng.random() < 0.2:
            return None
        if pa.types.is_boolean(kind):
            return rng.random() < 0.5
        if pa.types.is_integer(kind):
            bits = kind.bit_width - 1
            return rng.choice([0, -1, 2**bits - 1, -(2**bits), rng.randrange(-(2**bits), 2**bits), rng.randrange(-1000, 1000)])
        if pa.types.is_float32(kind):
            return float(np.frombuffer(rng.randbytes(4), np.float32)[0])
        if pa.types.is_float64(kind):
            return rng.choice([0.0, -0.0, float("inf"), rng.random(), float(np.frombuffer(rng.randbytes(8), np.float64)[0])])
        if pa.types.is_decimal(kind):
            digits = rng.randrange(10 ** rng.randrange(1, kind.precision + 1))
            return decimal(rng.choice((1, -1)) * digits, kind.scale)
        if pa.types.is_date(kind):
            return dt.date.fromordinal(rng.randrange(1, dt.date.max.toordinal() + 1))
        if pa.types.is_time(kind):
            return rng.choice([0, 86_399_999_999, rng.randrange(86_400_000_000), rng.randrange(86_400) * 1_000_000])
        if pa.types.is_timestamp(kind):
            micros = rng.randrange(-62_135_596_800_000_000, 253_402_300_800_000_000)
            return micros - micros % 10 ** rng.randrange(7)
        if pa.types.is_binary(kind):
            return rng.randbytes(rng.randrange(9))
        return "".join(rng.choice(ALPHABET) for _ in range(rng.randrange(12)))

    schema = batch_schema(TYPES)
    columns = [pa.array([value(schema.field(name).type) for _ in range(rows)], schema.field(name).type) for name in TYPES.names]
    meta = {POSITION: range(1, rows + 1), OP: [int(Op.INSERT)] * rows, LSN: [1] * rows, TS: [0] * rows, EXACT: [None] * rows}
    return pa.RecordBatch.from_arrays([*(pa.array(meta[f.name], f.type) for f in list(schema)[:5]), *columns], schema=schema)


@pytest.mark.parametrize("start", [0, 3])
def test_every_value_is_valid_json_and_comes_back_as_its_text(seed: int, start: int) -> None:
    whole = random_batch(seed, 400)
    given = whole.slice(start, 300)  # a slice's buffers begin elsewhere
    found = documents(given, TopicSchema.of(TYPES)).to_array().to_pylist()
    assert [json.loads(document)[POSITION] for document in found] == given.column(POSITION).to_pylist()
    assert (
        row_texts([parse(one) for one in found], TopicSchema.of(TYPES)).to_pydict()
        == meant_rows(row_text(given, TopicSchema.of(TYPES)), TopicSchema.of(TYPES)).to_pydict()
    )


def test_a_document_reads_as_documented() -> None:
    changes = [(Op.INSERT, 7, order(1, 'a"b\n', note=None)), (Op.DELETE, 8, order(2)), (Op.UPDATE, 9, order(3, amount="NaN"))]
    assert lines(batch(ORDERS, changes), TopicSchema.of(ORDERS)).decode().splitlines() == [
        '{"_cdc_position":7,"id":1,"customer_id":7,"status":"a\\"b\\n","amount":1.10,"note":null,"created_at":"2013-01-01T10:00:00Z"}',
        '{"_cdc_position":8,"_cdc_deleted":true,"id":2}',
        '{"_cdc_position":9,"id":3,"customer_id":7,"status":"new","amount":"NaN","note":"","created_at":"2013-01-01T10:00:00Z"}',
    ]
    assert (
        lines(batch(ORDERS, [(Op.TRUNCATE, 3, {})]), TopicSchema.of(ORDERS))
        == b'{"_cdc_position":3,"_cdc_truncated":"public.orders"}\n'
    )


def test_every_character_is_escaped_as_json_wants() -> None:
    texts = [chr(code) for code in range(1, 0x300)] + ["\u2028", "\uffff", "\U0001f600"]
    for document, text in zip(
        documents(upserts(ORDERS, 1, [order(1, t) for t in texts]), TopicSchema.of(ORDERS)).to_array().to_pylist(),
        texts,
        strict=True,
    ):
        assert json.loads(document)["status"] == text


@pytest.mark.parametrize("scale", [0, 1, 10, 37, 38])
def test_decimals_at_the_edges_of_their_type(scale: int) -> None:
    edge = 10**38 - 1
    numbers = [0, 1, -1, 9, 10, 10**9, 10**9 - 1, 10**18, 2**63, 2**64, 2**64 - 1, 2**64 + 1, 10**37, edge]
    values = [decimal(sign * n, scale) for n in numbers for sign in (1, -1)]
    data, offsets = decimal_text(np.frombuffer(pa.array(values, pa.decimal128(38, scale)).buffers()[1], np.uint64), scale)
    found = [data[offsets[i] : offsets[i + 1]].tobytes().decode() for i in range(len(values))]
    assert found == [f"{value:.{scale}f}" if value else f"{0:.{scale}f}" for value in values]


def test_an_exact_value_stands_beside_nulls_and_deletes() -> None:
    table = Table(
        1, "s", "t", (Column("id", NUMERIC, numeric(5, 2), key=True), Column("f", FLOAT8), Column("n", NUMERIC, numeric(5, 2)))
    )
    changes = [
        (Op.INSERT, 1, {"id": "NaN", "f": "NaN", "n": None}),
        (Op.DELETE, 2, {"id": "NaN"}),
        (Op.INSERT, 3, {"id": "1.50", "f": None, "n": "NaN"}),
    ]
    assert documents(batch(table, changes), TopicSchema.of(table)).to_array().to_pylist() == [
        b'{"_cdc_position":1,"id":"NaN","f":"NaN","n":null}',
        b'{"_cdc_position":2,"_cdc_deleted":true,"id":"NaN"}',
        b'{"_cdc_position":3,"id":1.50,"f":null,"n":"NaN"}',
    ]


def test_an_empty_batch_is_no_document() -> None:
    assert len(documents(upserts(ORDERS, 1, []), TopicSchema.of(ORDERS))) == 0


def test_keys_are_injective(seed: int) -> None:
    rng = random.Random(seed)
    parts = ["", ":", "\\", "\\N", "\\E", "N", "a", "::", "\\\\", ":\\", None]
    columns = tuple(Column(name, TEXT, key=True) for name in "abc")
    for width in (1, 2, 3):
        table = Table(1, "s", "t", columns[:width])
        rows = {tuple(rng.choice(parts) for _ in range(width)) for _ in range(600)}
        found = keys(upserts(table, 1, [dict(zip("abc", row, strict=False)) for row in rows]), TopicSchema.of(table)).to_pylist()
        assert len(set(found)) == len(rows)
        assert all(found)


def test_the_key_of_a_table_without_identity_is_the_position() -> None:
    table = dataclasses.replace(ORDERS, columns=(Column("id", INT8),))
    assert keys(upserts(table, 41, [{"id": "1"}, {"id": "1"}]), TopicSchema.of(table)).to_pylist() == ["41", "42"]
