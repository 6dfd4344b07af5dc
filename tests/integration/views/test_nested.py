"""Views with a root beside Postgres itself: at each cut the kernel has what Postgres answers to the SELECT that they are."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from cdc.settings.views import View
from cdc.views.rootquery import nested_query
from tests.conftest import Database
from tests.integration.views.generated import EQUAL, SETUP, GeneratedTable, History, tables
from tests.integration.views.stage import Connection, Stage

CUTS: Final = 12
SHOWN: Final = (*EQUAL, "numeric", "float8", "jsonb", "mood")
"""Types that can stand in a jsonb …"""
AS_TEXT: Final = ("mood",)
"""… and those of them that have to be shown as text there."""
LABELS: Final = ("int2", "int4", "int8", "text", "bool", "uuid", "mood")
"""Types by whose values an object's members can be called."""


class Nestings:
    """Random views with a root over the tables, as ``cdc.toml`` declares them."""

    def __init__(self, rng: random.Random, of: list[GeneratedTable]) -> None:
        self._rng, self._tables = rng, of
        self._names = 0

    def view(self) -> View:
        root = self._rng.choice(self._tables)
        shown = self._some([one for one in root.columns if one not in root.key])
        made: dict[str, Any] = {"root": f"public.{root.name}", "key": root.key}
        chosen = self._chosen(root, shown, [one for one in root.columns if one not in (*root.key, *shown)], root.key)
        return View(**made, **chosen, **self._where(root), **self._nested(root, 3))

    def _chosen(self, table: GeneratedTable, shown: list[str], left_out: list[str], fixed: Sequence[str] = ()) -> dict[str, Any]:
        """The same columns as a list, or as all but the others; some under other names, and others computed beside them."""
        made: dict[str, Any] = {"exclude": left_out} if self._rng.random() < 0.3 else {"columns": shown}
        if self._rng.random() < 0.4:
            column = self._rng.choice(list(table.columns))
            whole = table.columns[column] in ("int2", "int4")
            made["computed"] = {self._name("made"): f"{column}::int8\n + 1" if whole else f"{column} IS NULL"}
            shown = [*shown, *made["computed"]]
            if made.get("columns"):
                made["columns"] = shown
        if self._rng.random() < 0.4:
            within = self._name("object")
            kinds = [one for one in SHOWN if not fixed or one not in AS_TEXT]
            renamed = self._some([one for one in shown if one not in fixed and table.columns.get(one, "bool") in kinds])
            made["rename"] = {one: f"{within}.{one}" if self._rng.random() < 0.6 else self._name("other") for one in renamed}
        return made

    def _name(self, kind: str) -> str:
        self._names += 1
        return f"{kind}{self._names}"

    def _some(self, names: list[str]) -> list[str]:
        return self._rng.sample(names, self._rng.randrange(len(names) + 1))

    def _where(self, table: GeneratedTable) -> dict[str, str]:
        if self._rng.random() < 0.7:
            return {}
        return {"where": f"{self._rng.choice(list(table.columns))} IS {self._rng.choice(('', 'NOT '))}NULL"}

    def _nested(self, mine: GeneratedTable, deep: int) -> dict[str, Any]:
        if not deep:
            return {}
        found: dict[str, Any] = {"one": {}, "many": {}}
        for _ in range(self._rng.choice((1, 1, 2) if deep == 3 else (0, 0, 1))):
            other = self._rng.choice(self._tables)
            one = self._rng.random() < 0.4 and self._one(mine, other, deep)
            if one:
                found["one"][self._name("one")] = one
            many = self._many(mine, other, deep)
            if many:
                found["many"][self._name("many")] = many
        return found

    def _on(self, mine: GeneratedTable, theirs: GeneratedTable, names: list[str]) -> dict[str, str]:
        """A column of mine for each of these; nothing where one has none that it can equal."""
        found: dict[str, str] = {}
        for name in names:
            fit = [own for own, kind in mine.columns.items() if kind == theirs.columns[name] and kind in EQUAL and own not in found]
            if not fit:
                return {}
            found[self._rng.choice(fit)] = name
        return found

    def _one(self, mine: GeneratedTable, other: GeneratedTable, deep: int) -> dict[str, Any]:
        on = self._on(mine, other, list(other.key))
        if not on:
            return {}
        made: dict[str, Any] = {"table": f"public.{other.name}", "on": on, **self._where(other)}
        if self._rng.random() < 0.2:
            return made | self._as_text(other, {"value": self._shown(other)[-1]})
        if self._rng.random() < 0.3:
            made["flat"] = self._name("flat")
        return made | self._fields(other) | self._nested(other, deep - 1)

    def _fields(self, table: GeneratedTable) -> dict[str, Any]:
        shown = self._shown(table)
        return self._as_text(table, self._chosen(table, shown, [one for one in table.columns if one not in shown]), shown)

    def _as_text(self, table: GeneratedTable, made: dict[str, Any], shown: Sequence[str] = ()) -> dict[str, Any]:
        names = [made["value"]] if "value" in made else shown
        return made | {"as": {one: "text" for one in names if table.columns[one] in AS_TEXT}}

    def _shown(self, table: GeneratedTable) -> list[str]:
        return [table.key[0], *self._some([one for one, kind in table.columns.items() if kind in SHOWN and one != table.key[0]])]

    def _many(self, mine: GeneratedTable, other: GeneratedTable, deep: int) -> dict[str, Any]:
        made: dict[str, Any] = {"table": f"public.{other.name}", **self._where(other)}
        order = [
            self._ordered(other, one)
            for one in (*self._some([n for n, k in other.columns.items() if k in EQUAL and n not in other.key]), *other.key)
        ]
        between = self._rng.choice(self._tables)
        through = self._rng.random() < 0.25 and self._on(between, other, list(other.key))
        names = [one for one, kind in (between if through else other).columns.items() if kind in EQUAL]
        on = self._on(mine, between if through else other, [self._rng.choice(names)])
        if not on:
            return {}
        if through:
            made["through"] = {"table": f"public.{between.name}", "on": on, "to": through}
            order += [f"through.{self._ordered(between, one)}" for one in between.key]
        else:
            made["on"] = on
        if self._rng.random() < 0.5:
            integers = [one for one, kind in other.columns.items() if kind in ("int2", "int4", "numeric(12,2)")]
            made["totals"] = {self._name("n"): "count(*)"} | {self._name("s"): f"sum({one})" for one in integers[:1]}
            if self._rng.random() < 0.3:
                return made
        if self._rng.random() < 0.4:
            made["limit"] = self._rng.choice((1, 2))
        labels = [one for one, kind in other.columns.items() if kind in LABELS]
        if labels and self._rng.random() < 0.4:
            made["by"] = self._rng.choice(labels)
        if self._rng.random() < 0.2:
            return made | self._as_text(other, {"order": order, "value": self._shown(other)[-1]})
        return made | {"order": order} | self._fields(other) | self._nested(other, deep - 1)

    def _ordered(self, table: GeneratedTable, name: str) -> str:
        collated = ' COLLATE "C"' if table.columns[name] == "text" else ""
        return f"{name}{collated}{self._rng.choice(('', ' DESC', ' nulls first', ' DESC NULLS LAST'))}"


def run(connection: Connection, seed: int, folder: Path | None) -> None:
    rng = random.Random(seed)
    made = tables(rng)
    stage = Stage(connection, "; ".join([SETUP, *(one.ddl for one in made)]), folder)
    view = Nestings(rng, made).view()
    query = nested_query("v", view, {f"public.{one.name}": list(one.columns) for one in made})
    try:
        stage.view(query.sql, view.key)
        history = History(rng, made)
        for _ in range(CUTS):
            statements, emptied = history.statements()
            with connection.transaction():
                for one in statements:
                    connection.execute(one)  # type: ignore[arg-type]
            stage.step(rng, emptied)
        stage.close()
    except Exception as error:
        raise AssertionError(f"seed {seed}: {query.sql} by {view.key}: {error!r}") from error


def _cases(connection: Connection, seed: int, count: int, folder: Path) -> None:
    for number in range(count):
        chance = random.Random(f"{seed} {number}").randrange(2**32)
        (folder / str(number)).mkdir()
        run(connection, chance, folder / str(number) if number % 4 == 0 else None)


def test_some_generated_nestings_have_what_postgres_has(postgres: Database, seed: int, tmp_path: Path) -> None:
    _cases(postgres.connect(), seed, 5, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_generated_nestings_have_what_postgres_has(postgres: Database, seed: int, tmp_path: Path) -> None:
    _cases(postgres.connect(), seed, 200, tmp_path)
