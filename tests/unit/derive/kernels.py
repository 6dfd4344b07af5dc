"""A kernel for tests: it keeps its sources' rows, computes the whole view again at each step, and says what differs. Small tables only."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow as pa

from cdc.derive.pieces import topic_table
from cdc.derive.ports import TextTypes
from cdc.model.position import START, Position
from cdc.model.table import Table
from cdc.model.topic import TopicSchema
from cdc.views.contract import Delta, Kernel

Row = dict[str, Any]
Rows = dict[tuple[Any, ...], Row]
Compute = Callable[[Mapping[str, list[Row]]], list[Row]]


@dataclass(frozen=True)
class WholeView:
    """``reads``: topic → its columns. ``keys``: topic → its key. ``compute``: from the rows of all of them, the view's."""

    name: str
    reads: Mapping[str, Sequence[str]]
    keys: Mapping[str, Sequence[str]]
    key: Sequence[str]
    schema: pa.Schema
    compute: Compute
    typed: TextTypes = field(default_factory=dict)

    @property
    def topics(self) -> Sequence[str]:
        return list(self.reads)

    @property
    def views(self) -> Mapping[str, WholeView]:
        return {}

    @property
    def declaration(self) -> str:
        return self.name

    @property
    def identity(self) -> str:
        return self.name

    def __post_init__(self) -> None:
        DEFINED[self.name] = self

    @property
    def definition(self) -> Mapping[str, Any]:
        return {"name": self.name}

    def former(self, definition: Mapping[str, Any]) -> WholeView | None:
        return DEFINED.get(definition["name"])

    @property
    def table(self) -> Table:
        return topic_table("views.joined", self.schema.empty_table(), self.key, self.typed)

    def bind(self, schemas: Mapping[str, TopicSchema]) -> WholeView:
        assert set(schemas) == set(self.reads)
        return self

    def open(self, folder: Path) -> Kernel:
        return WholeKernel(self, folder / "state")


DEFINED: Final[dict[str, WholeView]] = {}
"""Every definition, by its name; one that is taken out cannot be computed any more."""


def _in_order(one: tuple[tuple[Any, ...], Row]) -> list[tuple[bool, Any]]:
    """NULLs last."""
    return [(value is None, value) for value in one[0]]


_EARLIER: Final = "earlier"
"""How the files are named of which a loss of power may leave one in place of the state."""


def lose_power(folder: Path, dice: Random) -> None:
    """Of each state somewhere in this folder there is what an earlier commit has left, or nothing, unless it was synced since."""
    for state in [one for one in folder.rglob("state") if one.is_file()]:
        earlier = sorted(state.parent.glob(f"{_EARLIER}*"))
        if earlier:
            left = dice.choice(earlier).read_bytes()
            state.unlink()
            if left:
                state.write_bytes(left)


class WholeKernel:
    def __init__(self, view: WholeView, file: Path) -> None:
        self._view = view
        self._file = file
        self._cut = START
        self._sources: dict[str, Rows] = {topic: {} for topic in view.reads}
        if file.exists():
            self._cut, self._sources = pickle.loads(file.read_bytes())
        self._next: tuple[Position, dict[str, Rows]] | None = None
        self._unsynced = 0
        self.sync()

    @property
    def cut(self) -> Position:
        return self._cut

    def advance(self, deltas: Mapping[str, Delta], to: Position, partial: bool = False) -> Delta:
        assert to > self._cut, (to, self._cut)
        after = {topic: dict(rows) for topic, rows in self._sources.items()}
        for topic, delta in deltas.items():
            key = self._view.keys[topic]
            assert set(delta.rows.column_names) == set(self._view.reads[topic]), delta.rows.column_names
            if delta.emptied:
                after[topic].clear()
            for row in delta.gone.to_pylist():
                after[topic].pop(tuple(row[name] for name in key), None)
            for row in delta.rows.to_pylist():
                after[topic][tuple(row[name] for name in key)] = row
        before, now = ({}, {}) if partial else (self._output(self._sources), self._output(after))
        self._next = to, after
        changed = [row for key, row in sorted(now.items(), key=_in_order) if before.get(key) != row]
        gone = [dict(zip(self._view.key, key, strict=True)) for key in sorted(before.keys() - now.keys())]
        schema = self._view.schema
        return Delta(
            pa.Table.from_pylist(changed, schema), pa.Table.from_pylist(gone, pa.schema([schema.field(n) for n in self._view.key]))
        )

    def _output(self, sources: Mapping[str, Rows]) -> Rows:
        rows = self._view.compute({topic: list(found.values()) for topic, found in sources.items()})
        return {tuple(row[name] for name in self._view.key): row for row in rows}

    def commit(self) -> None:
        assert self._next is not None
        earlier = self._file.with_name(f"{_EARLIER}{self._unsynced}")
        earlier.write_bytes(self._file.read_bytes() if self._file.exists() else b"")
        self._unsynced += 1
        self._cut, self._sources = self._next
        self._next = None
        aside = self._file.with_suffix(".aside")
        aside.write_bytes(pickle.dumps((self._cut, self._sources)))
        aside.replace(self._file)

    def sync(self) -> None:
        for earlier in self._file.parent.glob(f"{_EARLIER}*"):
            earlier.unlink()
        self._unsynced = 0

    def rollback(self) -> None:
        self._next = None

    def rows(self) -> pa.Table:
        sources = self._sources if self._next is None else self._next[1]
        return pa.Table.from_pylist([row for _, row in sorted(self._output(sources).items(), key=_in_order)], self._view.schema)

    def kept_rows(self) -> int:
        return sum(map(len, self._sources.values()))

    def close(self) -> None:
        pass
