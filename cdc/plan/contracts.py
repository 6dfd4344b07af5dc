"""Whether the data contracts name tables and columns that there are. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from cdc.errors import ConfigError
from cdc.model.table import Table
from cdc.settings.models import Contract


def check_contracts(contracts: Mapping[str, Contract], tables: Iterable[Table], excused: Iterable[str] = ()) -> None:
    """Raises ConfigError, with a suggestion, for the first name in a contract that is neither a table nor a column.

    tables: the source's, and the newest definitions in the log (a column that was just dropped there stops a store, not the start).
    excused: topics whose stores have stopped before a change already.
    """
    columns: dict[str, dict[str, None]] = {}
    for table in tables:
        columns.setdefault(table.qualified, {}).update(dict.fromkeys(table.names))
    for name, contract in contracts.items():
        if name in set(excused):
            continue
        if name not in columns:
            raise ConfigError(f"contracts names table {name}, which is not captured", hint=_suggestion(name, columns))
        for column in contract.require:
            if column not in columns[name]:
                raise ConfigError(
                    f'contracts."{name}".require names column {column}, which does not exist',
                    hint=_suggestion(column, columns[name]),
                )


def _suggestion(name: str, known: Iterable[str]) -> str:
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"known are: {', '.join(names[:20]) or 'none'}"
