"""Texts of values of another type, as values of a column's type."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from cdc.model.pgtypes import BOOL, BYTEA, DATE, INT4, NUMERIC, TIME, TIMESTAMPTZ
from cdc.model.table import Column
from cdc.model.topic import TopicField
from sinks.render.fromtext import retyped
from tests.contract.rows import numeric


@pytest.mark.parametrize(
    ("oid", "typmod", "texts", "values", "odd"),
    [
        (INT4, -1, ["7", None, "007"], ["7", None, "7"], {}),
        (INT4, -1, ["7", "none", "12.50", "99999999999"], ["7", None, None, None], {}),
        (NUMERIC, numeric(12, 2), ["7", "12.5", None], ["7.00", "12.50", None], {}),
        (NUMERIC, numeric(12, 2), ["7", "none", "NaN", "Infinity", "12.505"], ["7.00", None, None, None, None], {2: "NaN"}),
        (BOOL, -1, ["t", "f", "yes", "none"], ["true", "false", "true", None], {}),
        (DATE, -1, ["2026-11-30", "infinity", "none"], ["2026-11-30", None, None], {1: "infinity"}),
        (TIME, -1, ["10:00:00", "24:00:00", "12.5", "infinity"], [None, None, None, None], {0: "10:00:00", 1: "24:00:00"}),
        (TIMESTAMPTZ, -1, ["2026-11-30 10:00:00+00", "7"], ["2026-11-30 10:00:00.000000Z", None], {}),
        (BYTEA, -1, ["\\x01", "01"], ["\x01", None], {}),
    ],
)
def test_what_is_not_a_value_of_the_type_is_null(
    oid: int, typmod: int, texts: list[str | None], values: list[Any], odd: dict[int, str]
) -> None:
    found, beside = retyped(pa.array(texts, pa.utf8()), TopicField.of(Column("v", oid, typmod)))
    assert (found.cast(pa.utf8()).to_pylist(), beside) == (values, odd)
