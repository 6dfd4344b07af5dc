"""Steps → blocks: what the engine computes in one query, and between the queries what kernels compute. Pure but for the engine.

Each operator's value and each error of its own is a named column, made from columns that are there already. So nothing is computed twice, whatever the
templates repeat, and a query's text grows with the expression and no faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from cdc.expressions.engine import queried
from cdc.expressions.entry import Kernel, Value


@dataclass(frozen=True, slots=True)
class PlanStep:
    """Makes the column ``name`` from the columns ``needs``: by SQL, or by a kernel of ``arguments`` (columns' names and constants).

    ``state``: the column of SQLSTATEs that a kernel makes as well.
    """

    name: str
    needs: tuple[str, ...]
    sql: str = ""
    kernel: Kernel | None = None
    arguments: tuple[Any, ...] = ()
    state: str = ""

    @property
    def makes(self) -> tuple[str, ...]:
        return (self.name, self.state) if self.state else (self.name,)


@dataclass(frozen=True, slots=True)
class _Query:
    sql: str
    reads: tuple[str, ...]
    makes: tuple[str, ...]


Block = _Query | PlanStep

_ROW: Final = "one"
"""A column that is always there, so that an expression of constants has rows, too."""


def planned(steps: Sequence[PlanStep], columns: Iterable[str], wanted: Sequence[str]) -> tuple[Block, ...]:
    """The blocks in order. ``columns``: there from the beginning; ``wanted``: read at the end."""
    known = set(columns)
    left = list(steps)
    rounds: list[list[PlanStep]] = []
    while left:
        ready = [step for step in left if known.issuperset(step.needs)]
        queries = [step for step in ready if step.kernel is None]
        taken = queries or ready  # kernels wait until the engine has nothing to do
        assert taken, "a step needs a column that nothing makes"
        rounds.append(taken)
        known.update(name for step in taken for name in step.makes)
        left = [step for step in left if step not in taken]
    blocks: list[Block] = []
    of_kernels = [(taken[0].kernel is not None, taken) for taken in rounds]
    groups = [(kernels, [taken for _, taken in of]) for kernels, of in groupby(of_kernels, lambda pair: pair[0])]
    for number, (kernels, levels) in enumerate(groups):
        if kernels:
            blocks += [step for level in levels for step in level]
        else:
            later = {name for _, more in groups[number + 1 :] for level in more for step in level for name in step.needs}
            blocks.append(_query(levels, later.union(wanted)))
    return tuple(blocks)


def _query(levels: Sequence[Sequence[PlanStep]], later: set[str]) -> _Query:
    made = [step.name for level in levels for step in level]
    reads = sorted({name for level in levels for step in level for name in step.needs} - set(made))
    kept = [*reads, _ROW]
    sql = "rows"
    for level in levels:
        sql = f"(SELECT {', '.join([*kept, *(f'{step.sql} AS {step.name}' for step in level)])} FROM {sql})"
        kept += [step.name for step in level]
    makes = tuple(name for name in made if name in later)
    return _Query(f"SELECT {', '.join(makes)} FROM {sql}", tuple(reads), makes)


def run(blocks: Sequence[Block], columns: dict[str, pa.Array], length: int) -> dict[str, Value]:
    """All columns that the blocks make, beside those that are given."""
    found: dict[str, Value] = dict(columns)
    for block in blocks:
        if isinstance(block, PlanStep):
            _run_kernel(block, found)
        else:
            rows = {name: spread(found[name], length) for name in block.reads} | {_ROW: pa.nulls(length, pa.int8())}
            made = queried(pa.table(rows), block.sql)
            # Columns of equal names cannot be told apart by name.
            found.update((name, made.column(number).combine_chunks()) for number, name in enumerate(block.makes))
    return found


def _run_kernel(step: PlanStep, found: dict[str, Value]) -> None:
    assert step.kernel is not None
    values = [found[one] if isinstance(one, str) else one for one in step.arguments]
    found[step.name], states = step.kernel(*values)
    if step.state:
        found[step.state] = pa.scalar(None, pa.utf8()) if states is None else states


def spread(value: Value, length: int) -> pa.Array:
    """A constant as a column."""
    if not isinstance(value, pa.Scalar):
        return value
    return pa.repeat(value, length) if value.is_valid else pa.nulls(length, value.type)


def any_valid(value: Value) -> bool:
    return bool(value.is_valid if isinstance(value, pa.Scalar) else pc.any(value.is_valid()).as_py())
