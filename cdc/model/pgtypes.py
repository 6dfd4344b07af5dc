"""Postgres types as Arrow types where that loses nothing, and back to exactly the text that Postgres gives.

Pinned settings (``PINNED_SETTINGS``) make that text canonical: stream and snapshot connections both set them.
A value that its Arrow type cannot hold (NaN numeric, infinity, BC and five-digit years, 24:00:00) is NULL in the typed
column and stands as text in the batch's ``_cdc_exact`` map; see ``cdc.model.batch``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.model.table import Column

PINNED_SETTINGS: Final[Mapping[str, str]] = {
    "TimeZone": "UTC",
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "search_path": "",
    "client_encoding": "UTF8",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
    "default_transaction_read_only": "off",
}
"""Settings that neither the role nor the database may change on a connection of ours. ``transaction_timeout`` belongs to them, but older
servers do not know it (``HAS_TRANSACTION_TIMEOUT``)."""
HAS_TRANSACTION_TIMEOUT: Final = 170_000
"""The first server version that has it."""

BOOL, BYTEA, CHAR, NAME, INT8, INT2, INT4, TEXT, OID = 16, 17, 18, 19, 20, 21, 23, 25, 26
JSON, XML, POINT, FLOAT4, FLOAT8, MONEY, BPCHAR, VARCHAR = 114, 142, 600, 700, 701, 790, 1042, 1043
DATE, TIME, TIMESTAMP, TIMESTAMPTZ, INTERVAL, TIMETZ, NUMERIC, UUID, JSONB = (
    1082, 1083, 1114, 1184, 1186, 1266, 1700, 2950, 3802,
)  # fmt: skip

MAX_DECIMAL_PRECISION = 38

FEW_ROWS: Final = 32
"""Up to this many values become text faster one by one than by Arrow's functions, which cost the same for one as for hundreds."""

_SIMPLE: Final[dict[int, pa.DataType]] = {
    BOOL: pa.bool_(),
    INT2: pa.int16(),
    INT4: pa.int32(),
    INT8: pa.int64(),
    FLOAT4: pa.float32(),
    FLOAT8: pa.float64(),
    DATE: pa.date32(),
    TIME: pa.time64("us"),
    TIMESTAMP: pa.timestamp("us"),
    TIMESTAMPTZ: pa.timestamp("us", tz="UTC"),
    BYTEA: pa.binary(),
}


def numeric_precision_scale(typmod: int) -> tuple[int, int] | None:
    """(precision, scale) of numeric(p,s); None when unconstrained. The scale is an 11-bit signed field (numeric.h)."""
    if typmod < 4:
        return None
    raw = typmod - 4
    return raw >> 16 & 0xFFFF, ((raw & 0x7FF) ^ 0x400) - 0x400


def arrow_type(column: Column) -> pa.DataType:
    """The Arrow type that holds the column's values without loss; text (``utf8``) for every other type."""
    if column.type_oid == NUMERIC:
        bounds = numeric_precision_scale(column.typmod)
        if bounds is not None and 0 <= bounds[1] <= bounds[0] <= MAX_DECIMAL_PRECISION:
            return pa.decimal128(*bounds)
        return pa.utf8()
    return _SIMPLE.get(column.type_oid, pa.utf8())


def canonical_text(values: pa.Array) -> pa.Array:
    """Exactly the text that Postgres gives for these typed values under the pinned settings.

    values: an array of one of the types that ``arrow_type`` returns. Returns utf8 of the same length, NULL for NULL.
    """
    kind = values.type
    if pa.types.is_string(kind):
        return values
    if pa.types.is_integer(kind):
        if len(values) > FEW_ROWS:
            return values.cast(pa.utf8())
        return pa.array([None if v is None else str(v) for v in values.to_pylist()], pa.utf8())
    if pa.types.is_boolean(kind):
        if len(values) <= FEW_ROWS:
            return pa.array([None if v is None else "ft"[v] for v in values.to_pylist()], pa.utf8())
        # Not made when this module is loaded: Arrow's first value loads pandas, for which a verb like `cdc wait` would wait.
        return pc.if_else(values, pa.scalar("t", pa.utf8()), pa.scalar("f", pa.utf8()))
    if pa.types.is_floating(kind):
        return _float_texts(values, 4 if pa.types.is_float32(kind) else 8)
    if pa.types.is_binary(kind):
        if len(values) > FEW_ROWS:
            return _digits(values)
        return pa.array([None if v is None else "\\x" + v.hex() for v in values.to_pylist()], pa.utf8())
    if pa.types.is_timestamp(kind):
        # Held in UTC, so that the same number without its zone is the same time; a cast would ask the zone for each value.
        naive = values.view(pa.timestamp("us")) if kind.unit == "us" else values.cast(pa.timestamp("us"))
        few = _few_times(naive, "+00" if kind.tz else "") if len(naive) <= FEW_ROWS else None
        if few is not None:
            return few
        return _timestamps(naive, "+00" if kind.tz else "")
    if pa.types.is_time64(kind):
        return _times(values) if len(values) > FEW_ROWS else _trim_fraction(values.cast(pa.utf8()))
    if pa.types.is_decimal(kind):
        if len(values) > FEW_ROWS:
            return _digits(values)
        # Arrow's cast writes small values in scientific notation, Postgres never does.
        return pa.array([None if v is None else f"{v:f}" for v in values.to_pylist()], pa.utf8())
    return values.cast(pa.utf8())


def _digits(values: pa.Array) -> pa.Array:
    """Of decimals and bytes."""
    from cdc.kernels.digits import decimal_text, hex_text  # compiled loops, for which a verb like `cdc wait` would wait

    if pa.types.is_decimal(values.type):
        words = np.frombuffer(values.buffers()[1], np.uint64, 2 * len(values), 16 * values.offset)
        data, ends = decimal_text(words, values.type.scale)
    else:
        _, offsets, buffer = values.buffers()
        starts = np.frombuffer(offsets, np.int32, len(values) + 1, 4 * values.offset).astype(np.int64)
        data, ends = hex_text(np.frombuffer(buffer or b"", np.uint8), starts)
    return _texts(values, data, ends)


def _timestamps(values: pa.Array, zone: str) -> pa.Array:
    """values: microseconds without a zone."""
    from cdc.kernels.moments import FIRST_US, LAST_US, timestamp_text

    micros = _int64s(values)
    told = pc.min_max(values.view(pa.int64())).as_py()
    if told["min"] is not None and (told["min"] < FIRST_US or told["max"] > LAST_US):
        text = _trim_fraction(pc.strftime(values, format="%Y-%m-%d %H:%M:%S"))
        return pc.binary_join_element_wise(text, zone, "") if zone else text
    return _texts(values, *timestamp_text(micros, ord(" "), np.frombuffer(b"+00", np.uint8)[: len(zone)]))


def _times(values: pa.Array) -> pa.Array:
    from cdc.kernels.moments import time_text

    return _texts(values, *time_text(_int64s(values)))


def _int64s(values: pa.Array) -> npt.NDArray[np.int64]:
    """The buffer of values of 64 bits each."""
    return np.frombuffer(values.buffers()[1], np.int64, len(values), 8 * values.offset)


def _texts(values: pa.Array, data: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]) -> pa.Array:
    """A text column of a kernel as utf8, NULL where the values are."""
    texts = pa.Array.from_buffers(pa.large_utf8(), len(values), [None, pa.py_buffer(ends), pa.py_buffer(data)]).cast(pa.utf8())
    return pc.if_else(values.is_valid(), texts, pa.scalar(None, pa.utf8())) if values.null_count else texts


def _float_texts(values: pa.Array, width: int) -> pa.Array:
    if len(values) <= FEW_ROWS:
        return pa.array([None if v is None else _float_text(v, width) for v in values.to_pylist()], pa.utf8())
    # Between these Arrow, too, writes the shortest digits without an exponent.
    size = np.abs(values.to_numpy(zero_copy_only=False))
    odd = ~((size >= 1e-4) & (size < (1e9 if width == 8 else 1e6))) & values.is_valid().to_numpy(zero_copy_only=False)
    texts = pc.replace_substring_regex(values.cast(pa.utf8()), pattern=r"\.0$", replacement="")
    if not odd.any():
        return texts
    others = [_float_text(v, width) for v in values.filter(pa.array(odd)).to_pylist()]
    return pc.replace_with_mask(texts, pa.array(odd), pa.array(others, pa.utf8()))


def _few_times(values: pa.Array, zone: str) -> pa.Array | None:
    """None when a year among them is one that Python's own type does not reach."""
    try:
        times = values.to_pylist()
    except OverflowError:
        return None
    return pa.array([None if time is None else _time_text(time) + zone for time in times], pa.utf8())


def _time_text(time: datetime) -> str:
    text = time.isoformat(" ")
    return text.rstrip("0") if time.microsecond else text


def _trim_fraction(text: pa.Array) -> pa.Array:
    """Postgres leaves trailing zeros of the fraction out, and the point with them."""
    return pc.replace_substring_regex(text, pattern=r"(?:\.0+|(\.\d*[1-9])0+)$", replacement=r"\1")


def _float_text(value: float, width: int) -> str:
    """float4out / float8out: the shortest digits that read back equal; fixed notation for exponents from -4 up to
    the type's decimal digits (15, or 6 for float4)."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0:
        return "-0" if math.copysign(1.0, value) < 0 else "0"
    digits, exponent = _shortest_digits(value, width)
    sign = "-" if value < 0 else ""
    if -4 <= exponent < (15 if width == 8 else 6):
        if exponent < 0:
            return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
        whole = digits[: exponent + 1].ljust(exponent + 1, "0")
        fraction = digits[exponent + 1 :]
        return f"{sign}{whole}.{fraction}" if fraction else sign + whole
    mantissa = digits[0] + ("." + digits[1:] if len(digits) > 1 else "")
    return f"{sign}{mantissa}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"


def _shortest_digits(value: float, width: int) -> tuple[str, int]:
    """(significant digits, decimal exponent of the first) of the shortest text that reads back to the same float."""
    shortest = Decimal(repr(abs(value)) if width == 8 else str(np.float32(abs(value))))
    _, digits, exponent = shortest.as_tuple()
    text = "".join(map(str, digits))
    assert isinstance(exponent, int)
    return text.rstrip("0") or "0", len(text) - 1 + exponent
