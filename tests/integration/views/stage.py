"""A database and a kernel side by side: the same history, cut by cut, and the same question at each cut."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa

from cdc.model.batch import EXACT
from cdc.model.pgtypes import PINNED_SETTINGS, canonical_text
from cdc.model.position import Position
from cdc.model.table import Table
from cdc.model.topic import TopicSchema
from cdc.source.catalog import load_published
from cdc.views.contract import Delta
from cdc.views.definition import define
from cdc.views.kernel import SqlKernel
from tests.contract.rows import upserts

Connection = psycopg.Connection[Any]
Texts = tuple[str | None, ...]


class Stage:
    """Tables of a database, and one view of them in a kernel. ``folder``: of the kernel's state; None: in memory."""

    def __init__(self, connection: Connection, setup: str, folder: Path | None = None) -> None:
        self.connection, self._folder = connection, folder
        for name, value in PINNED_SETTINGS.items():
            connection.execute("select set_config(%s, %s, false)", (name, value))
        connection.execute("set search_path = public")
        connection.execute(setup)
        connection.execute("drop publication if exists staged")
        connection.execute("create publication staged for all tables")
        self.tables: dict[str, Table] = {f"{one.schema}.{one.name}": one for one in load_published(connection, "staged")}
        self.topics = {name: TopicSchema.of(one) for name, one in self.tables.items()}
        connection.execute("set search_path = public")
        self._before: dict[str, dict[Texts, Texts]] = {name: {} for name in self.tables}
        self.cut = 0
        self.shown: dict[Texts, Texts] = {}

    def view(self, sql: str, key: Sequence[str]) -> None:
        self.definition = define("v", sql, key, self.topics)
        self.kernel = SqlKernel(self.definition, self._folder)

    def restart(self) -> None:
        self.kernel.close()
        self.kernel = SqlKernel(self.definition, self._folder)
        assert self.kernel.cut == self.cut

    def close(self) -> None:
        self.kernel.close()

    # --- a cut

    def deltas(self, rng: random.Random | None = None, emptied: Sequence[str] = ()) -> dict[str, Delta]:
        """What happened to the tables since the last time. ``rng``: adds rows that were written and stayed equal, and keys that never were."""
        found = {}
        for name, table in self.tables.items():
            before, after = self._before[name], self._rows(table)
            self._before[name] = after
            if name not in self.definition.reads:
                continue
            written = [
                row
                for key, row in after.items()
                if name in emptied or before.get(key) != row or (rng is not None and rng.random() < 0.1)
            ]
            gone = [key for key in before if key not in after] if name not in emptied or rng is None or rng.random() < 0.3 else []
            if written or gone or name in emptied:
                found[name] = Delta(self._batch(table, written), self._keys(table, gone), name in emptied)
        return found

    def _rows(self, table: Table) -> dict[Texts, Texts]:
        keys = [number for number, one in enumerate(table.columns) if one.key]
        rows = self._texts(f'select * from public."{table.name}"', table.names)
        return {tuple(row[number] for number in keys): row for row in rows}

    def _texts(self, sql: str, names: Sequence[str]) -> list[Texts]:
        shown = ", ".join(f'case when q."{one}" is not null then format(\'%%s\', q."{one}") end' for one in names)
        return [tuple(row) for row in self.connection.execute(f"select {shown} from ({sql.replace('%', '%%')}) q", ()).fetchall()]

    def _batch(self, table: Table, rows: Sequence[Texts]) -> pa.Table:
        columns = [*self.definition.reads[f"{table.schema}.{table.name}"], EXACT]
        made = upserts(table, 1, [dict(zip(table.names, row, strict=True)) for row in rows])
        return pa.Table.from_batches([made]).select(columns)

    def _keys(self, table: Table, keys: Sequence[Texts]) -> pa.Table:
        names = [one.name for one in table.columns if one.key]
        made = upserts(table, 1, [dict.fromkeys(table.names) | dict(zip(names, key, strict=True)) for key in keys])
        return pa.Table.from_batches([made]).select([*names, EXACT])

    # --- both answers

    def step(self, rng: random.Random, emptied: Sequence[str] = ()) -> None:
        """Feeds the kernel what happened, and asks both."""
        deltas = self.deltas(rng, emptied)
        self.cut += 1
        delta = self.kernel.advance(deltas, Position(self.cut))
        if rng.random() < 0.3:
            self.kernel.rollback()
            again = self.kernel.advance(deltas, Position(self.cut))
            # As texts: NaN is not equal to itself.
            assert self.held(again.rows) == self.held(delta.rows), "the second time another answer"
            assert again.gone.equals(delta.gone), "the second time other keys are gone"
        self._show(delta)
        self.kernel.commit()
        if self._folder is not None and rng.random() < 0.15:
            self.restart()
        theirs = self.answer()
        ours = self.held(self.kernel.rows())
        assert sorted(ours, key=repr) == theirs, difference(ours, theirs)
        assert sorted(self.shown.values(), key=repr) == theirs, "the deltas add up to something else"

    def answer(self) -> list[Texts]:
        """What Postgres answers to the view's SQL now, in some order that equal answers share."""
        return sorted(self._texts(self.definition.sql, list(self.definition.columns)), key=repr)

    def _show(self, delta: Delta) -> None:
        key = [list(self.definition.columns).index(one) for one in self.definition.key]
        for gone in self.held(delta.gone, self.definition.key):
            assert gone in self.shown, "a key is gone that was not there"
            del self.shown[gone]
        for row in self.held(delta.rows):
            name = tuple(row[number] for number in key)
            assert self.shown.get(name) != row, "an equal row is in the delta"
            self.shown[name] = row

    def held(self, rows: pa.Table, names: Sequence[str] = ()) -> list[Texts]:
        """The view's rows as Postgres would write them."""
        names = names or list(self.definition.columns)
        types = {one.name: one.type for one in self.definition.fields}
        exact = rows.column(EXACT).to_pylist() if EXACT in rows.column_names else [None] * rows.num_rows
        columns = []
        for name in names:
            values = rows.column(name).combine_chunks()
            assert values.type == types[name], f"{name} is {values.type}, its field {types[name]}"
            columns.append(canonical_text(values).to_pylist())
        return [
            tuple(dict(exact[row] or ()).get(name, columns[number][row]) for number, name in enumerate(names))
            for row in range(rows.num_rows)
        ]


def difference(ours: Sequence[Texts], theirs: Sequence[Texts]) -> str:
    return f"only ours: {[one for one in ours if one not in theirs][:5]}; only Postgres's: {[one for one in theirs if one not in ours][:5]}"
