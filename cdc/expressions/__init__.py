"""The part of Postgres's SQL that configuration may use: conditions and computed values over one row's columns, exactly as Postgres computes them.

- **One whitelist** (``whitelist``): an operator or function with the types that it takes. What does not stand in it is refused, by name and place; what stands in
  it is held against Postgres's own answers by a property test.
- **Columnar**: ``parser`` reads the text, ``analysis`` finds the entries, ``plan`` makes queries of an embedded engine (``engine``) and, for numbers of type
  numeric, which no engine has, kernels over Arrow (``decimals``).
- **A row fails alone.** Where Postgres would raise an error, the row's SQLSTATE is reported and the others have their values. Nothing becomes NULL silently.
- **Values are strangers'.** An expression is configuration; the values are written by whoever may write to the table. None of them can make an evaluation
  crash, or take more than time and memory in proportion to its length: patterns are RE2's, texts may grow to a limit, and nothing recurses over a value.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cdc.expressions.entry import MEANINGS
    from cdc.expressions.expression import Expression, Result, compile
    from cdc.expressions.names import named, said
    from cdc.expressions.pgtype import BOOL, PgType, scalar_of, type_of
    from cdc.expressions.refusal import ExpressionRefused

__all__ = [
    "BOOL",
    "MEANINGS",
    "Expression",
    "ExpressionRefused",
    "PgType",
    "Result",
    "compile",
    "named",
    "said",
    "scalar_of",
    "type_of",
]

_HOMES = {
    "entry": ("MEANINGS",),
    "expression": ("Expression", "Result", "compile"),
    "names": ("named", "said"),
    "pgtype": ("BOOL", "PgType", "scalar_of", "type_of"),
    "refusal": ("ExpressionRefused",),
}


def __getattr__(name: str) -> object:
    """Imported when it is first asked for: who only parses, such as a supervisor that checks the text of views, need not hold the engine, which is 8 MB."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
