"""COPY's text format: fields, escapes, NULL, and what is refused."""

from __future__ import annotations

import random

import numpy as np
import pytest

from cdc.errors import ProtocolError
from cdc.model.batch import EXACT, OP, Op
from cdc.model.pgtypes import INT8, TEXT
from cdc.model.table import Column, Table
from cdc.pgvalues.fields import whole_rows
from cdc.source.copyout import Block
from snapshots.copy import read_rows

ESCAPES = {"\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v", "\\": r"\\"}


def escape(value: str | None) -> bytes:
    """As the server's CopyAttributeOutText does it."""
    return rb"\N" if value is None else "".join(ESCAPES.get(letter, letter) for letter in value).encode()


def block(rows: list[list[str | None]], *, framed: bool) -> Block:
    lines = [b"\t".join(map(escape, row)) + b"\n" for row in rows]
    if framed:
        lines = [b"d" + (len(line) + 4).to_bytes(4, "big") + line for line in lines]
    data = np.frombuffer(bytearray(b"".join(lines)), np.uint8)
    return Block(data, len(rows), 5 if framed else 0)


def table(columns: int) -> Table:
    return Table(1, "public", "t", tuple(Column(f"c{i}", TEXT, key=i == 0) for i in range(columns)))


@pytest.mark.parametrize("framed", [True, False])
def test_any_text_comes_back(seed: int, framed: bool) -> None:
    chance = random.Random(seed)
    letters = [*ESCAPES, "N", "n", "t", "b", ".", "x", "é", "😀", "\x01", "\x7f"]
    for _ in range(60):
        width = chance.randint(1, 4)
        rows = [
            [None if chance.random() < 0.2 else "".join(chance.choices(letters, k=chance.randint(0, 6))) for _ in range(width)]
            for _ in range(chance.randint(1, 30))
        ]
        made = block(rows, framed=framed)
        batch = read_rows(made, table(width))
        assert [[row[f"c{i}"] for i in range(width)] for row in batch.to_pylist()] == rows
        assert set(batch.column(OP).to_pylist()) == {int(Op.READ)}


@pytest.mark.parametrize("special", ["\t", "\\", "\n", "\x8a\x89", ""])
def test_a_long_text_ends_where_it_ends_wherever_it_lies(special: str) -> None:
    """Long texts are passed over in words of eight bytes: each length at each place in a word, and each place of an escape in it."""
    rows = [["a" * before, "b" * length + special + "c" * (length % 11)] for before in range(9) for length in range(40)]
    batch = read_rows(block(rows, framed=True), table(2))
    assert [list(row) for row in zip(*(batch.column(f"c{i}").to_pylist() for i in range(2)), strict=True)] == rows


def test_text_that_looks_like_the_null_mark_is_text() -> None:
    assert read_rows(block([[r"\N"], [None], ["N"], [""]], framed=True), table(1)).column("c0").to_pylist() == [
        r"\N",
        None,
        "N",
        "",
    ]


def test_values_that_do_not_fit_are_exact() -> None:
    numbers = Table(1, "public", "t", (Column("n", INT8, key=True),))
    batch = read_rows(block([["5"], ["99999999999999999999"]], framed=False), numbers)
    assert batch.column("n").to_pylist() == [5, None]
    assert batch.column(EXACT).to_pylist() == [None, [("n", "99999999999999999999")]]


@pytest.mark.parametrize("columns", [1, 3])
def test_another_number_of_columns_is_refused(columns: int) -> None:
    with pytest.raises(ProtocolError, match="another shape"):
        read_rows(block([["a", "b"]], framed=True), table(columns))


@pytest.mark.parametrize("most", [1, 2, 9])
def test_rows_are_taken_whole_wherever_the_bytes_end(most: int) -> None:
    made = block([["a", "bb"], ["", None], ["ccc", "d"]], framed=True)
    ends = [0]
    for row in range(3):
        at = ends[row]
        ends.append(at + 1 + int.from_bytes(made.data[at + 1 : at + 5].tobytes(), "big"))
    for cut in range(len(made.data) + 1):
        whole = min(most, sum(end <= cut for end in ends[1:]))
        assert whole_rows(made.data, 0, cut, most) == (whole, ends[whole])
