"""Compiling an expression, and evaluating it over a batch.

A row fails where Postgres would have raised an error, and where Postgres may have an answer that this room does not hold. It is reported with the error's class,
never with a value, and what it would have been is NULL in the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cdc.expressions.analysis import Analyst
from cdc.expressions.outside import given, handed_out, in_engine
from cdc.expressions.parser import parsed
from cdc.expressions.pgtype import BOOL, TEXT, UNKNOWN, PgType
from cdc.expressions.plan import Block, planned, run, spread
from cdc.expressions.refusal import PartRefused, line_and_column
from cdc.expressions.syntax import Syntax
from cdc.expressions.term import Term
from cdc.model.batch import EXACT


@dataclass(frozen=True, slots=True)
class Result:
    """One expression's values over a batch, all of the batch's length.

    ``values``: in the Arrow type of a column of the expression's type; NULL for a row that failed. ``exact``: utf8, the exact text of values that their Arrow
    type cannot hold (``cdc.model.batch``), or None. ``failed``: utf8, the SQLSTATE of rows that failed, or None when none did.
    """

    values: pa.Array
    exact: pa.Array | None = None
    failed: pa.Array | None = None


@dataclass(frozen=True, eq=False)
class Expression:
    """A checked expression. It is pickled as its text and compiled again elsewhere."""

    text: str
    type: PgType
    columns: tuple[str, ...]
    """The columns that it reads."""
    _of: Mapping[str, PgType]
    _expects: PgType | None
    _blocks: tuple[Block, ...] = field(repr=False)
    _term: Term = field(repr=False)

    @property
    def place(self) -> tuple[int, int]:
        """Its line and column in its text, both from 1; of an operation the operator's."""
        return line_and_column(self.text, self._term.at)

    def evaluate(self, batch: pa.RecordBatch) -> Result:
        """The values for each row of the batch, which has the columns by their names and may have ``_cdc_exact``. Raises KeyError for a missing column."""
        exact = batch.column(EXACT) if EXACT in batch.schema.names else None
        columns: dict[str, pa.Array] = {}
        unheld: list[pa.Array] = []
        for number, name in enumerate(self.columns):
            columns[f"c{number}"], states = given(self._of[name], batch.column(name), _texts(exact, name))
            if states is not None:
                unheld.append(states)
        value, failed = self._computed(columns, unheld, len(batch))
        values, texts = handed_out(self.type, value)
        return Result(values, texts, failed)

    def computed(self, columns: Mapping[str, pa.Array], length: int) -> tuple[pa.Array, pa.Array | None]:
        """The values, and the SQLSTATEs of rows that failed (utf8, or None when none did), where the columns are in the engine's form already, as the values are
        (``outside.in_engine``)."""
        value, failed = self._computed({f"c{number}": columns[name] for number, name in enumerate(self.columns)}, [], length)
        return in_engine(self.type, value), failed

    @property
    def collated(self) -> bool:
        """Texts of it have the collation "C"."""
        return self._term.collated

    def _computed(self, columns: dict[str, pa.Array], unheld: list[pa.Array], length: int) -> tuple[pa.Array, pa.Array | None]:
        found = run(self._blocks, columns, length)
        term = self._term
        value = spread(found[term.name] if term.name else term.argument, length)
        failed = self._failed(found, unheld, length)
        if failed is not None:
            value = pc.if_else(failed.is_valid(), pa.scalar(None, value.type), value)
        return value, failed

    def _failed(self, found: Mapping[str, Any], unheld: list[pa.Array], length: int) -> pa.Array | None:
        states = [*unheld]
        if self._term.error:
            states.append(spread(found[self._term.error], length).cast(pa.utf8()))
        if not states:
            return None
        failed = pc.coalesce(*states)
        return failed if failed.null_count < length else None

    def __reduce__(self) -> tuple[Any, ...]:
        return compile, (self.text, dict(self._of), self._expects)


def _texts(exact: pa.Array | None, name: str) -> dict[int, str]:
    """The exact texts of this column, by row."""
    if exact is None or exact.null_count == len(exact):
        return {}
    rows = pc.indices_nonzero(exact.is_valid()).to_pylist()
    return {row: value for row in rows for key, value in exact[row].as_py() if key == name}


def compile(text: str, columns: Mapping[str, PgType], expects: PgType | None = None) -> Expression:
    """Checks Postgres SQL over one row's columns. ``expects``: the type that it has to have, BOOL for a condition.

    Raises ExpressionRefused, which names the place and what to write instead.
    """
    try:
        return checked(parsed(text), text, columns, expects)
    except PartRefused as refusal:
        raise refusal.placed(text) from None


def checked(syntax: Syntax, text: str, columns: Mapping[str, PgType], expects: PgType | None = None) -> Expression:
    """As ``compile``, of what has been parsed as a part of ``text``. Raises PartRefused. What it gives can only be pickled where ``text`` is this expression."""
    analyst = Analyst(columns)
    term = analyst.term(syntax)
    if term.type is UNKNOWN:
        term = analyst.coerced(term, expects or TEXT)
    if term.type.name in ("own", "opaque", "enum"):
        raise PartRefused(
            term.at, f"the result is {term.type}, which an expression only compares", "write x::text, or name the column itself"
        )
    if expects is not None and term.type.name != expects.name:
        wanted = "a condition is boolean" if expects.name == BOOL.name else f"{expects} is expected"
        raise PartRefused(term.at, f"{wanted}, and this is {term.type}")
    blocks = planned(analyst.steps, analyst.read.values(), term.needs)
    return Expression(text, term.type, tuple(analyst.read), dict(columns), expects, blocks, term)
