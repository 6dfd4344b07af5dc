"""Values as Postgres' text: few of them are written one by one, many by Arrow's functions or kernels, and both write the same."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from cdc.model.pgtypes import FEW_ROWS, canonical_text

_TIMES = (
    0, 1, 120_000, 500_000, 100, -1, 1_700_000_000_000_000, 951_782_400_000_000, None,
    -62_135_596_800_000_000, -30_000_000_000_000_001, 253_402_300_799_999_999, 253_402_300_799_000_000,
)  # fmt: skip
"""From the first microsecond of the year 1 to the last one of 9999."""
_LATER = (253_402_300_800_000_000, 9_000_000_000_000_000_000 // 1_000)
_CLOCK = (0, 1, 120_000, 500_000, 100, None, 86_399_999_999, 86_399_000_000, 3_600_000_000)
_WHOLE = (0, -1, 7, None, 32_767, -32_768)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.timestamp("us"), _TIMES),
        (pa.timestamp("us", tz="UTC"), _TIMES),
        (pa.timestamp("us", tz="UTC"), (*_TIMES, *_LATER)),
        (pa.time64("us"), _CLOCK),
        (pa.int16(), _WHOLE),
        (pa.int32(), _WHOLE),
        (pa.int64(), (*_WHOLE, 2**63 - 1, -(2**63))),
    ],
    ids=str,
)
def test_few_values_and_many_are_the_same_text(kind: pa.DataType, values: tuple[int | None, ...]) -> None:
    numbers = pa.array([*values] * (FEW_ROWS // len(values) + 1), pa.int64())
    many = numbers.view(kind) if pa.types.is_temporal(kind) else numbers.cast(kind)
    assert len(many) > FEW_ROWS
    together = canonical_text(many)
    alone = [text for at in range(len(many)) for text in canonical_text(many.slice(at, 1)).to_pylist()]
    assert together.type == canonical_text(many.slice(0, 1)).type == pa.utf8()
    assert together.to_pylist() == alone
    assert (None in alone) == (None in values)


def test_moments_that_only_a_null_stands_for_make_no_difference() -> None:
    """What stands at a NULL may be anything, such as a moment that no year has."""
    far = np.array([2**63 - 1, -(2**63), 0] * FEW_ROWS, np.int64)
    bitmap = pa.py_buffer(np.packbits(np.arange(len(far)) % 3 == 2, bitorder="little"))
    for kind, text in ((pa.timestamp("us", tz="UTC"), "1970-01-01 00:00:00+00"), (pa.time64("us"), "00:00:00")):
        values = pa.Array.from_buffers(kind, len(far), [bitmap, pa.py_buffer(far)])
        assert canonical_text(values).to_pylist() == [None, None, text] * FEW_ROWS


def test_floats_decimals_and_bytes_are_the_same_text_whether_few_or_many(seed: int) -> None:
    chance = np.random.default_rng(seed)
    bits = chance.integers(0, 2**63, 2000, np.int64)
    bounds = [
        0.0,
        -0.0,
        1e-4,
        9.999e-5,
        1e15,
        999999999999999.9,
        1e6,
        999999.9,
        1.0,
        -2.5,
        0.1,
        5e-324,
        float("nan"),
        float("inf"),
        float("-inf"),
    ]
    doubles = [*bits.view(np.float64).tolist(), *(chance.random(500) * 10.0 ** chance.integers(-6, 18, 500)).tolist(), *bounds]
    for kind in (pa.float64(), pa.float32()):
        with np.errstate(over="ignore"):
            numbers = np.array(doubles, kind.to_pandas_dtype())
        _same(pa.array([None, *numbers], kind))
    for scale in (0, 2, 38):
        unscaled = [0, 1, -1, 10**38 - 1, -(10**38) + 1, *(int(one) for one in bits[:200])]
        _same(
            pa.array(
                [None, *(Decimal((int(one < 0), tuple(map(int, str(abs(one)))), -scale)) for one in unscaled)],
                pa.decimal128(38, scale),
            )
        )
    _same(pa.array([None, b"", b"\x00\xff", *(chance.bytes(int(size)) for size in chance.integers(0, 40, 200))], pa.binary()))


def _same(values: pa.Array) -> None:
    for some in (values, values.slice(3)):
        assert len(some) > FEW_ROWS
        alone = [text for at in range(len(some)) for text in canonical_text(some.slice(at, 1)).to_pylist()]
        found = canonical_text(some)
        assert found.type == pa.utf8()
        assert found.to_pylist() == alone
