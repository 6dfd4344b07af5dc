"""cdc.toml as text, for the demo, and for the tests and benchmarks that start the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final

Value = str | int | float | Sequence[str]
NO_NOTES: Final[Mapping[str, str]] = MappingProxyType({})


def toml(sections: Mapping[str, Mapping[str, Value]], notes: Mapping[str, str] = NO_NOTES) -> str:
    """``sections``: keys and values by the section's name, in order; first, named "", those that stand in none.

    ``notes``: a comment by the name of the section that it stands above.
    """
    return "\n".join(line for name, values in sections.items() for line in _section(name, values, notes.get(name)))


def _section(name: str, values: Mapping[str, Value], note: str | None) -> Iterator[str]:
    if note:
        yield f"# {note}"
    if name:
        yield f"[{name}]"
    for key, value in values.items():
        yield f"{key} = {json.dumps(value, ensure_ascii=False)}"  # such JSON is TOML
    yield ""
