"""Postgres's COPY text: whole, escaped, and garbage."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.errors import HeadwaterError
from cdc.pgvalues.copytext import parse

_ESCAPES = {"\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v", "\\": "\\\\"}
VALUES = (
    st.none()
    | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
    | st.sampled_from(["", "\\N", "N", "\\", "\\\\N\t"])
)


def schema(columns: int) -> pa.Schema:
    return pa.schema([pa.field(f"c{i}", pa.utf8()) for i in range(columns)])


def written(rows: list[tuple[str | None, ...]]) -> bytes:
    """What CopyAttributeOutText writes."""

    def field(value: str | None) -> str:
        return "\\N" if value is None else "".join(_ESCAPES.get(letter, letter) for letter in value)

    return "".join("\t".join(map(field, row)) + "\n" for row in rows).encode()


@given(st.integers(1, 4).flatmap(lambda columns: st.lists(st.tuples(*[VALUES] * columns), min_size=1)))
def test_every_value_comes_back(rows: list[tuple[str | None, ...]]) -> None:
    whole = schema(len(rows[0]))
    framed = b"".join(b"d\n\t\\N" + written([row]) for row in rows)
    for block, skip in ((written(rows), 0), (framed, 5)):
        batch = parse(np.frombuffer(block, np.uint8), whole, len(rows), skip)
        batch.validate(full=True)
        assert [tuple(row.values()) for row in batch.to_pylist()] == rows


def test_nothing_is_no_rows() -> None:
    assert parse(np.empty(0, np.uint8), schema(3), 0).num_rows == 0


@pytest.mark.parametrize("block", [b"a\n", b"a\tb\tc\n", b"a\tb\nc\n", b"a\tb", b"a\tb\nc\td\\"])
def test_rows_of_another_shape_are_refused(block: bytes) -> None:
    with pytest.raises(HeadwaterError):
        parse(np.frombuffer(block, np.uint8), schema(2), block.count(b"\n"))
