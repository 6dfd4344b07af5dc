"""A view with a ``root`` → the SELECT that it is. Pure.

Each row of the root is joined to at most one row of each ``one``, and to one row of each ``many``: a subquery that puts the related rows of each
joined value into an array, or into totals. What a relation nests is written in the same way inside its subquery.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from cdc.errors import ConfigError
from cdc.expressions.refusal import PartRefused, near
from cdc.expressions.syntax import Cast, Syntax
from cdc.settings.relations import Many, One, Relation, Through, ordered_by
from cdc.settings.views import View
from cdc.views.contract import ViewRefused
from cdc.views.enginesql import quoted
from cdc.views.parser import parsed_part
from cdc.views.parts import walk
from cdc.views.syntax import AggregateCall, RowNumberCall

Lines = list[tuple[str, str]]
"""A line of SQL, and the place in the configuration that it comes from."""
_INDENT: Final = "  "


@dataclass(frozen=True, slots=True)
class NestedQuery:
    """``places``: of each line of the text, where in ``[views.NAME]`` it comes from. ``excluded``: what the text is further made of, once the tables' columns are known."""

    sql: str
    places: tuple[str, ...]
    excluded: tuple[str, ...] = ()


@dataclass(slots=True)
class _Table:
    """One occurrence of a table; its columns are noted as they are asked for, since a filtered one lists them."""

    alias: str
    name: str
    where: str
    place: str
    computed: Mapping[str, str] = field(default_factory=dict)
    columns: dict[str, None] = field(default_factory=dict)

    def column(self, name: str, kinds: Mapping[str, str] = {}) -> str:
        """``kinds``: the types that columns are shown as."""
        self.columns[name] = None
        shown = f"{self.alias}.{quoted(name)}"
        return f"{shown}::{kinds[name]}" if name in kinds else shown

    def lines(self) -> Lines:
        """What stands in FROM."""
        made = [name for name in self.columns if name in self.computed]
        if not self.where and not made:
            return [(f"{_named(self.name)} {self.alias}", self.place)]
        source = f"FROM {_named(self.name)}{' WHERE' if self.where else ''}"
        listed = ", ".join(quoted(name) for name in self.columns if name not in self.computed)
        found = [(f"(SELECT {listed} {source}" if not made else f"(SELECT {listed}", self.place)]
        for number, name in enumerate(made):
            first, *others = _parenthesised(self.computed[name], _below(self.place, f"computed.{name}"))
            found += [(f", {first[0]}" if number or listed else first[0], first[1]), *others]
            found[-1] = (f"{found[-1][0]} AS {quoted(name)}", found[-1][1])
        if made:
            found.append((source, self.place))
        return [*found, *(_condition(self.where, self.place) if self.where else ()), (f") {self.alias}", self.place)]


@dataclass(frozen=True, slots=True)
class _Join:
    """LEFT JOIN of a table, or of a query under an alias. ``on``: its conditions."""

    what: _Table | Lines
    alias: str
    on: str
    place: str

    def lines(self) -> Lines:
        inner = self.what.lines() if isinstance(self.what, _Table) else _in_parentheses(self.what, self.alias, self.place)
        (first, place), *others = inner
        found = [(f"LEFT JOIN {first}", place), *others]
        last, place = found[-1]
        return [*found[:-1], (f"{last} ON {self.on}", place)]


@dataclass(frozen=True, slots=True)
class _Shown:
    """A field: its SQL, its place in the configuration, and where it is shown: its name, behind those of the objects that it stands in."""

    path: tuple[str, ...]
    sql: str
    place: str

    @property
    def name(self) -> str:
        return self.path[-1]


def nested_query(name: str, view: View, columns: Mapping[str, Sequence[str]] | None = None) -> NestedQuery:
    """The SELECT of a view that has a root. ``columns``: those of each topic, which ``exclude`` needs; without them its place is held by the columns that are named.

    Raises ConfigError, which names the key, and ViewRefused where the key does not fit the columns.
    """
    writer = _Writer(name, columns)
    lines = writer.root(view)
    return NestedQuery("\n".join(text for text, _ in lines), tuple(place or "root" for _, place in lines), tuple(writer.excluded))


class _Writer:
    def __init__(self, view: str, known: Mapping[str, Sequence[str]] | None) -> None:
        self._view = view
        self._known = known
        self.excluded: list[str] = []
        self._aliases = 0

    def root(self, view: View) -> Lines:
        root = self._table(view.root, view.where, "", view.computed)
        shown, joins = self._level(root, self._own(root, view, "", view.key), view.one, view.many, "")
        shown = self._folded(shown, "")
        items = [(f"{one.sql} AS {quoted(one.name)},", one.place) for one in shown]
        last, place = items[-1]
        items[-1] = (last[:-1], place)
        return [("SELECT", "columns"), *_indented(items), *self._from(root, joins)]

    def _from(self, first: _Table, joins: Sequence[_Join]) -> Lines:
        (text, place), *others = first.lines()
        return [(f"FROM {text}", place or "root"), *others, *(line for one in joins for line in one.lines())]

    def _table(self, name: str, where: str, place: str, computed: Mapping[str, str] = {}) -> _Table:
        if where:
            self._parsed(where, _below(place, "where"))
        for one, text in computed.items():
            at = _below(place, f"computed.{one}")
            if any(isinstance(part, AggregateCall | RowNumberCall) for part in walk(self._parsed(text, at))):
                raise self._refused(at, f"{text!r} is computed over many rows", "write an aggregate in totals of a many")
        return _Table(self._alias(), name, where, place, computed)

    def _alias(self) -> str:
        self._aliases += 1
        return f"t{self._aliases}"

    # --- one level: a row's own columns, and what is nested in it

    def _own(self, table: _Table, said: View | Relation, place: str, key: Sequence[str] = ()) -> list[_Shown]:
        """The fields that are the row's columns, and those computed of it."""
        at = "columns" if said.exclude is None else "exclude"
        named = [*dict.fromkeys((*key, *said.columns))]
        others = [] if said.exclude is None else self._others(table.name, said.exclude, named, place)
        made = [] if said.columns else [one for one in said.computed if one not in key]
        shown = [*((one, at) for one in (*named, *others)), *((one, f"computed.{one}") for one in made)]
        names = [one for one, _ in shown]
        kinds = said.as_ if isinstance(said, Relation) else {}
        if self._known is not None or said.exclude is None:
            self._refuse_not_shown(said.rename, names, _below(place, "rename"))
            self._refuse_not_shown(kinds, names, _below(place, "as"))
        found: list[_Shown] = []
        for one, by_key in shown:
            path = tuple(said.rename[one].split(".")) if one in said.rename else (one,)
            of = f"rename.{one}" if one in said.rename else by_key
            found.append(_Shown(path, table.column(one, kinds), _below(place, of)))
        return found

    def _refuse_not_shown(self, said: Iterable[str], names: Sequence[str], place: str) -> None:
        for one in said:
            if one not in names:
                raise self._refused(f"{place}.{one}", f"{one} is not shown", near(one, names) or f"shown are {', '.join(names)}")

    def _others(self, topic: str, exclude: Sequence[str], named: Sequence[str], place: str) -> list[str]:
        """The columns of the topic but these. None where they are not known yet."""
        self.excluded.append(f"{_below(place, 'exclude')} = {', '.join(sorted(exclude))}")
        if self._known is None or topic not in self._known:
            return []
        columns = self._known[topic]
        for one in exclude:
            if one not in columns:
                raise ViewRefused(
                    f"view {self._view}, {_below(place, 'exclude')}: column {one} of {topic} does not exist",
                    hint=near(one, columns) or f"take it out of exclude; its columns are {', '.join(columns)}",
                )
        return [one for one in columns if one not in exclude and one not in named]

    def _folded(self, shown: Sequence[_Shown], place: str) -> list[_Shown]:
        """The fields, of which those that stand in one object are one. Raises ConfigError for two of one name."""
        found: dict[str, list[_Shown]] = {}
        for one in shown:
            found.setdefault(one.path[0], []).append(one)
        made: list[_Shown] = []
        for name, fields in found.items():
            whole = next((one for one in fields if len(one.path) == 1), None)
            if whole is None:
                inner = self._folded([replace(one, path=one.path[1:]) for one in fields], place)
                made.append(_Shown((name,), _object(inner), fields[0].place))
                continue
            if len(fields) > 1:
                places = f"{fields[0].place} and {fields[1].place}"
                raise self._refused(place, f"two fields are called {name}, of {places}", "give one another name")
            made.append(whole)
        return made

    def _level(
        self, mine: _Table, own: Sequence[_Shown], ones: Mapping[str, One], manies: Mapping[str, Many], place: str
    ) -> tuple[list[_Shown], list[_Join]]:
        """The fields, after the row's ``own``, and what the row has to be joined with for them."""
        shown = [*own]
        joins: list[_Join] = []
        for name, one in ones.items():
            fields, more = self._one(mine, name, one, _below(place, f"one.{name}"))
            shown += fields
            joins += more
        for name, many in manies.items():
            fields, more = self._many(mine, name, many, _below(place, f"many.{name}"))
            shown += fields
            joins += more
        return shown, joins

    def _one(self, mine: _Table, name: str, one: One, place: str) -> tuple[list[_Shown], list[_Join]]:
        table = self._table(one.table, one.where, place, one.computed)
        on = " AND ".join(f"{table.column(theirs)} = {mine.column(own)}" for own, theirs in one.on.items())
        join = _Join(table, table.alias, on, place)
        if one.value:
            return [_Shown((name,), table.column(one.value, one.as_), place)], [join]
        shown, more = self._level(table, self._own(table, one, place), one.one, one.many, place)
        if one.flat is not None:
            return [replace(each, path=(one.flat + each.path[0], *each.path[1:])) for each in shown], [join, *more]
        shown = self._folded(shown, place)
        there = table.column(next(iter(one.on.values())))
        return [_Shown((name,), f"CASE WHEN {there} IS NOT NULL THEN {_object(shown)} END", place)], [join, *more]

    def _many(self, mine: _Table, name: str, many: Many, place: str) -> tuple[list[_Shown], list[_Join]]:
        shown: list[_Shown] = []
        joins: list[_Join] = []
        on = many.on if many.through is None else many.through.on

        def joined(query: Lines) -> str:
            alias = self._alias()
            equal = " AND ".join(f"{alias}.{_key(number)} = {mine.column(own)}" for number, own in enumerate(on))
            joins.append(_Join(query, alias, equal, place))
            return alias

        if many.shows_rows:
            alias = joined(self._array(many, place))
            none = "{}" if many.by else "[]"
            shown.append(_Shown((name,), f"coalesce({alias}.{_VALUE}, '{none}'::jsonb)", place))
        if many.totals:
            alias = joined(self._totals(many, place))
            for total, text in many.totals.items():
                column = f"{alias}.{quoted(total)}"
                at = _below(place, f"totals.{total}")
                shown.append(_Shown((total,), f"coalesce({column}, 0)" if self._counts(text, at) else column, at))
        return shown, joins

    # --- the subqueries of many

    def _array(self, many: Many, place: str) -> Lines:
        table = self._table(many.table, many.where, place, many.computed)
        first, between = table, None
        joins: list[_Join] = []
        if many.through is not None:
            first = between = self._table(many.through.table, "", _below(place, "through"))
        own = [] if many.value else self._own(table, many, place)
        shown, joins = self._level(table, own, many.one, many.many, place)
        if between is not None and many.through is not None:
            shown += [_Shown((one,), between.column(one), _below(place, "through.columns")) for one in many.through.columns]
        shown = self._folded(shown, place)
        value = table.column(many.value, many.as_) if many.value else _object(shown)
        by = table.column(many.by) if many.by else ""
        keys = [first.column(theirs) for theirs in (many.on if many.through is None else many.through.on).values()]
        order = ", ".join(self._order(many, table, between))
        behind = [(f"WHERE {' AND '.join(f'{one} IS NOT NULL' for one in (*keys, *([by] if by else ())))}", place)]
        source = [*self._from_through(first, table, many.through), *(line for one in joins for line in one.lines()), *behind]
        named = [f"{one} AS {_key(number)}" for number, one in enumerate(keys)]
        at_order = _below(place, "order")
        if not many.limit:
            collected = f"jsonb_object_agg({by}::text, " if by else "jsonb_agg("
            return [
                (f"SELECT {', '.join(named)},", place),
                (f"{_INDENT}{collected}{value}", place),
                (f"{_INDENT}ORDER BY {order}) AS {_VALUE}", at_order),
                *source,
                (f"GROUP BY {', '.join(keys)}", place),
            ]
        rows = self._alias()
        outer = [f"{rows}.{_key(number)}" for number in range(len(keys))]
        collected = f"jsonb_object_agg({rows}.{_BY}, " if by else "jsonb_agg("
        return [
            (f"SELECT {', '.join(outer)}, {collected}{rows}.{_VALUE} ORDER BY {rows}.{_NUMBER}) AS {_VALUE}", place),
            ("FROM (", place),
            *_indented(
                [
                    (f"SELECT {', '.join(named)}, {value} AS {_VALUE},", place),
                    *([(f"{_INDENT}{by}::text AS {_BY},", _below(place, "by"))] if by else []),
                    (f"{_INDENT}row_number() OVER (PARTITION BY {', '.join(keys)} ORDER BY {order}) AS {_NUMBER}", at_order),
                    *source,
                ]
            ),
            (f") {rows} WHERE {rows}.{_NUMBER} <= {many.limit} GROUP BY {', '.join(outer)}", place),
        ]

    def _from_through(self, first: _Table, table: _Table, through: Through | None) -> Lines:
        if through is None:
            return self._from(first, ())
        on = " AND ".join(f"{table.column(theirs)} = {first.column(own)}" for own, theirs in through.to.items())
        (text, place), *others = table.lines()
        found = [*self._from(first, ()), (f"JOIN {text}", place), *others]
        last, place = found[-1]
        return [*found[:-1], (f"{last} ON {on}", place)]

    @staticmethod
    def _order(many: Many, table: _Table, between: _Table | None) -> Iterator[str]:
        for text in many.order:
            one = ordered_by(text)
            yield (between if one.through and between is not None else table).column(one.column) + one.behind

    def _totals(self, many: Many, place: str) -> Lines:
        """Over the table alone, so that its columns need nothing before their names."""
        items = [(f"{text} AS {quoted(name)}", _below(place, f"totals.{name}")) for name, text in many.totals.items()]
        if many.through is None:
            keys = [quoted(theirs) for theirs in many.on.values()]
            source: Lines = [(f"FROM {_named(many.table)}", place)]
        else:
            names = {quoted(one): _key(n) for n, one in enumerate(dict.fromkeys((*many.through.on.values(), *many.through.to)))}
            keys = [names[quoted(theirs)] for theirs in many.through.on.values()]
            listed = ", ".join(f"{one} AS {name}" for one, name in names.items())
            between, table = self._alias(), self._alias()
            on = " AND ".join(
                f"{table}.{quoted(theirs)} = {between}.{names[quoted(own)]}" for own, theirs in many.through.to.items()
            )
            source = [
                (f"FROM (SELECT {listed} FROM {_named(many.through.table)}) {between}", place),
                (f"JOIN {_named(many.table)} {table} ON {on}", place),
            ]
        there = " AND ".join(f"{one} IS NOT NULL" for one in keys)
        condition = [("AND", place), *_condition(many.where, place)] if many.where else []
        return [
            (f"SELECT {', '.join(f'{one} AS {_key(number)}' for number, one in enumerate(keys))}", place),
            *((f"{_INDENT}, {text}", at) for text, at in items),
            *source,
            (f"WHERE {there}", place),
            *condition,
            (f"GROUP BY {', '.join(keys)}", place),
        ]

    # --- refusals

    def _counts(self, text: str, place: str) -> bool:
        """Whether the total is 0, and not NULL, where there is no row."""
        found = self._parsed(text, place)
        while isinstance(found, Cast):
            found = found.value
        if not isinstance(found, AggregateCall):
            raise self._refused(place, f"{text!r} is not one aggregate", "write one, such as count(*) or sum(price)")
        return found.name == "count"

    def _parsed(self, text: str, place: str) -> Syntax:
        try:
            return parsed_part(text)
        except PartRefused as refusal:
            placed = refusal.placed(text)
            raise self._refused(place, str(placed), placed.hint) from None

    def _refused(self, place: str, what: str, hint: str | None) -> ConfigError:
        return ConfigError(f"{_below(f'views.{self._view}', place)}: {what}", hint=hint)


_VALUE: Final = '"_value"'
_NUMBER: Final = '"_number"'
_BY: Final = '"_by"'


def _key(number: int) -> str:
    return quoted(f"_{number + 1}")


def _below(place: str, name: str) -> str:
    return f"{place}.{name}" if place and name else place or name


def _named(table: str) -> str:
    return ".".join(map(quoted, table.split(".")))


def _object(shown: Sequence[_Shown]) -> str:
    pairs = ", ".join(f"'{one.name.replace(chr(39), chr(39) * 2)}', {one.sql}" for one in shown)
    return f"jsonb_build_object({pairs})"


def _condition(text: str, place: str) -> Lines:
    (first, _), *lines, (last, _) = _parenthesised(text, _below(place, "where"))
    return [(first, place), *lines, (last, place)]


def _parenthesised(text: str, place: str) -> Lines:
    return [("(", place), *((line, place) for line in text.splitlines()), (")", place)]


def _indented(lines: Lines) -> Lines:
    return [(_INDENT + text, place) for text, place in lines]


def _in_parentheses(lines: Lines, alias: str, place: str) -> Lines:
    return [("(", place), *_indented(lines), (f") {alias}", place)]
