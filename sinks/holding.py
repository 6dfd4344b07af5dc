"""The share of a topic that one store holds: some of its fields, under names of the user's choice. Pure.

``[stores.NAME.tables."schema.table"]`` says it in the source's names (``columns``, ``exclude``, ``rename``). A ``Holding`` is that, bound to what
the names meant when the store took the topic up: a field goes by its number, so that one which the source renames is still the one that
was meant, and by its name where no number is known or no field has it (any more). It makes of each definition of the topic the schema that the
store has (``held``), and of each batch the rows that it is given (``batch``). Nothing behind it, sinks, barriers and policies alike, ever sees more.

What is held does not change under a store that has rows: the holding stands in the schema (``TopicSchema.holding``), so that every store keeps it with
its shape, and rows of two holdings are never taken for versions of each other (``sinks.reshape.origins``).

The key's fields are in every held schema and keep their names. Where they are not among the columns they are not ``shown``.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from cdc.errors import ConfigError, StopState
from cdc.model.batch import EXACT, META_FIELDS, OP, RESERVED, Op, topic_batch_schema, topic_schema
from cdc.model.selection import matches, named
from cdc.model.topic import TopicField, TopicSchema
from cdc.settings.models import StoreOptions, TableOptions
from sinks.render.fromtext import exact_column
from sinks.render.rowtext import exact_values

_SCHEMA: Final = int(Op.SCHEMA)


@dataclass(frozen=True, slots=True)
class Meant:
    """A column as the configuration names it, and the number of the field that this was; 0: not known."""

    name: str
    number: int = 0

    def among(self, schema: TopicSchema, origin: str) -> TopicField | None:
        """The field that is meant; ``origin``: of the rows that the numbers are of."""
        if self.number and schema.origin == origin:
            for one in schema.fields:
                if one.origin == self.number:
                    return one
        return next((one for one in schema.fields if one.name == self.name), None)


@dataclass(frozen=True, slots=True)
class Holding:
    """``columns``: None: all but ``exclude``. ``origin``: of the schema that the names were bound to."""

    columns: tuple[Meant, ...] | None = None
    exclude: tuple[Meant, ...] = ()
    rename: tuple[tuple[Meant, str], ...] = ()
    wishes: tuple[tuple[Meant, str], ...] = ()
    """Options of fields that only the store's kind has (``wishes_of``)."""
    shaping: tuple[tuple[str, str], ...] = ()
    """The same of all rows (``StoreOptions.shaping``)."""
    origin: str = ""
    keys_apart: bool = True
    """The key need not be among the columns (``StoreOptions.keys_apart``)."""
    store: str = field(default="", compare=False)
    """Whose it is, for errors."""

    @property
    def everything(self) -> bool:
        """The store holds the topic as it is."""
        return self.columns is None and not self.exclude and not self.rename and not self.wishes and not self.shaping

    @property
    def text(self) -> str:
        """As schemas keep it; ``decoded`` reads it. Empty for everything."""
        if self.everything:
            return ""
        columns = None if self.columns is None else sorted([one.name, one.number] for one in self.columns)
        exclude = sorted([one.name, one.number] for one in self.exclude)
        rename = sorted([one.name, one.number, target] for one, target in self.rename)
        raw: dict[str, Any] = {"origin": self.origin, "columns": columns, "exclude": exclude, "rename": rename}
        if self.wishes:
            raw["wishes"] = sorted([one.name, one.number, wish] for one, wish in self.wishes)
        if self.shaping:
            raw["shaping"] = sorted(self.shaping)
        return json.dumps(raw, separators=(",", ":"), ensure_ascii=False)

    @property
    def said(self) -> tuple[Any, ...]:
        """The words of the configuration, whatever they meant."""
        columns = None if self.columns is None else frozenset(one.name for one in self.columns)
        named = [frozenset((one.name, text) for one, text in texts) for texts in (self.rename, self.wishes)]
        return columns, frozenset(one.name for one in self.exclude), *named, frozenset(self.shaping)

    def held(self, schema: TopicSchema) -> TopicSchema:
        """The schema that the store has of a topic under this definition; always the same object.

        Raises ConfigError where two fields would have one name, or where the store needs a field that it is not to hold.
        """
        return schema if self.everything else _held(self, schema)

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The changes as the store is given them."""
        if self.everything:
            return batch
        held = self.held(topic_schema(batch.schema))
        columns = [batch.column(one.name) for one in META_FIELDS]
        if batch.column(EXACT).null_count < len(batch) and not (len(batch) == 1 and batch.column(OP)[0].as_py() == _SCHEMA):
            columns[_AT_EXACT] = _exact(batch, held)
        columns += [batch.column(one.column_name) for one in held.fields]
        return pa.RecordBatch.from_arrays(columns, schema=topic_batch_schema(held))

    def rows(self, rows: pa.RecordBatch, schema: TopicSchema) -> pa.RecordBatch:
        """The source's rows of text under ``schema``; further columns stay as they are. Schema: ``sinks.contract.audit_schema(held)``, and those."""
        if self.everything:
            return rows
        fields = self.held(schema).fields
        further = [name for name in rows.schema.names if name not in schema.names]
        columns = [rows.column(name) for name in (*(one.column_name for one in fields), *further)]
        return pa.RecordBatch.from_arrays(columns, names=[*(one.name for one in fields), *further])


ALL: Final = Holding()
_AT_EXACT: Final = next(at for at, one in enumerate(META_FIELDS) if one.name == EXACT)


def decoded(text: str) -> Holding:
    """Reads ``Holding.text``."""
    if not text:
        return Holding()
    raw = json.loads(text)
    return Holding(
        None if raw["columns"] is None else tuple(Meant(*one) for one in raw["columns"]),
        tuple(Meant(*one) for one in raw["exclude"]),
        tuple((Meant(name, number), target) for name, number, target in raw["rename"]),
        tuple((Meant(name, number), wish) for name, number, wish in raw.get("wishes", ())),
        tuple((name, text) for name, text in raw.get("shaping", ())),
        raw["origin"],
    )


@lru_cache(maxsize=4096)
def wishes_of(held: TopicSchema) -> Mapping[str, str]:
    """Options of fields that only the store's kind has, by the fields' names in the store. A field that the source renames keeps it."""
    holding, found = decoded(held.holding), {}
    for meant, wish in holding.wishes:
        numbered = (one for one in held.fields if meant.number and one.origin == meant.number and held.origin == holding.origin)
        one = next(numbered, None) or next((one for one in held.fields if one.column_name == meant.name), None)
        if one is not None and one.shown:
            found[one.name] = wish
    return found


def bound(store: str, options: StoreOptions, schema: TopicSchema) -> Holding:
    """The share of the topic that the store is to hold, by the names that its columns have in ``schema``. Of several patterns the last that matches and says
    anything decides; new names add up."""
    columns: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    rename: dict[str, str] = {}
    wishes: dict[str, str] = {}
    for _, said in _of_topic(options, schema):
        if said.columns is not None or said.exclude:
            columns, exclude = said.columns, said.exclude
        rename |= said.targets
        wishes |= said.of_fields
    came_from = {target: name for name, target in rename.items()}
    numbers = {one.name: one.origin for one in schema.fields}

    def meant(name: str) -> Meant:
        return Meant(name, numbers.get(name, 0))

    return Holding(
        None if columns is None else tuple(map(meant, columns)),
        tuple(map(meant, exclude)),
        tuple((meant(name), target) for name, target in rename.items()),
        tuple((meant(came_from.get(name, name)), wish) for name, wish in wishes.items()),
        tuple(options.shaping.items()),
        schema.origin,
        options.keys_apart,
        store,
    )


def check(store: str, options: StoreOptions, schema: TopicSchema) -> None:
    """Raises ConfigError where something is said of a column that the topic does not have, a new name given to one that is not held, or one name to two."""
    for pattern, said in _of_topic(options, schema):
        where = f'stores.{store}.tables."{pattern}"'
        for key, names in _naming(said).items():
            unknown = [name for name in names if name not in schema.names]
            if unknown and named((pattern,)):
                raise _unknown(f"{where}{key}", unknown[0], schema)
    holding = bound(store, options, schema)
    held = {one.column_name: one for one in holding.held(schema).fields}
    _refuse_collisions(_where(holding, schema), _fields(holding, schema))
    for pattern, said in _of_topic(options, schema):
        where = f'stores.{store}.tables."{pattern}"'
        for name in said.targets:
            if name in schema.names and (name not in held or not held[name].shown):
                raise ConfigError(
                    f"{where}{'.rename' if name in said.rename else ''}: the store does not hold {name} of {schema.topic}",
                    hint="let the store hold it, or give it no other name",
                )
        shown = {one.name for one in held.values() if one.shown}
        for name in said.of_fields:
            if name not in shown and named((pattern,)):
                raise _unknown_field(where, name, shown, schema)


def foreseen(store: str, options: StoreOptions, schemas: Sequence[TopicSchema]) -> list[TopicSchema]:
    """The schemas that the store will have of these topics, which are all of its. Raises ConfigError as ``check``, and for a pattern that says
    something of a topic or a column which none of them has."""
    for pattern, said in options.choices:
        mine = [schema for schema in schemas if matches((pattern,), schema)]
        if not mine and named((pattern,)):
            hint = f"tables: {', '.join(schema.topic for schema in schemas) or 'none'}"
            raise ConfigError(f'stores.{store}.tables."{pattern}": no such table is captured', hint=hint)
        for key, names in _naming(said).items():
            for name in names:
                if mine and not any(name in schema.names for schema in mine):
                    raise _unknown(f'stores.{store}.tables."{pattern}"{key}', name, mine[0])
    for schema in schemas:
        check(store, options, schema)
    return [bound(store, options, schema).held(schema) for schema in schemas]


def settled(store: str, topic: TopicSchema, former: Holding, wanted: Holding) -> Holding:
    """The holding that a store goes on with whose rows are of ``former``, where the configuration says ``wanted``. ``topic``: its newest definition.

    Raises ConfigError where they are not the same.
    """
    former = replace(former, keys_apart=wanted.keys_apart, store=store)
    if former.said == wanted.said:
        return former
    columns, shape = _differ(topic, former, wanted), _differ_in_shape(topic, former, wanted)
    if (former.columns is None) == (wanted.columns is None) and not columns and not shape:
        return former
    what = "; ".join([*columns, *shape]) or "columns that the table gets later are treated otherwise"
    raise ConfigError(
        f"store {store} holds {'another shape' if shape and not columns else 'other columns'} of {topic.topic} than cdc.toml says: {what}",
        hint=f"put it back; or cdc resume {StopState.STORE_REFUSES}:follow-{store} --rebuild, which builds the store again from "
        "the log; or fill a second store beside it",
    )


def _differ(topic: TopicSchema, former: Holding, wanted: Holding) -> list[str]:
    """The difference that the two make of this definition, in words."""
    before, after = (_places(one, topic) for one in (former, wanted))
    said = [f"{name} is held, and was not" for name in after if name not in before]
    said += [f"{name} was held, and is not" for name in before if name not in after]
    said += [f"{name} was {before[name]}, and is {after[name]}" for name in after if name in before and before[name] != after[name]]
    return said


def _differ_in_shape(topic: TopicSchema, former: Holding, wanted: Holding) -> list[str]:
    """The difference in the options that only the store's kind has, in words."""
    before, after = (_wished(one, topic) for one in (former, wanted))
    said = [f"{name} has other options" for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name)]
    before, after = dict(former.shaping), dict(wanted.shaping)
    return [*said, *(f"{name} is another" for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name))]


def _wished(holding: Holding, topic: TopicSchema) -> dict[str, str]:
    """By the columns' names at the source."""
    held = holding.held(topic)
    wishes = wishes_of(held)
    return {one.column_name: wishes[one.name] for one in held.fields if one.name in wishes}


def _places(holding: Holding, topic: TopicSchema) -> dict[str, str]:
    return {one.column_name: one.name for one in holding.held(topic).fields if one.shown}


def _of_topic(options: StoreOptions, schema: TopicSchema) -> Iterator[tuple[str, TableOptions]]:
    return ((pattern, said) for pattern, said in options.choices if matches((pattern,), schema))


def _naming(said: TableOptions) -> Mapping[str, Iterable[str]]:
    """The columns that are named, by the key that names them: an empty one for what the store's kind alone knows."""
    others = [name for name in said.targets if name not in said.rename]
    return {".columns": said.columns or (), ".exclude": said.exclude, ".rename": said.rename, "": others}


def _unknown(where: str, name: str, schema: TopicSchema) -> ConfigError:
    close = difflib.get_close_matches(name, schema.names, n=1, cutoff=0.6)
    hint = f"did you mean {close[0]}?" if close else f"columns: {', '.join(schema.names)}"
    return ConfigError(f"{where}: {schema.topic} has no column {name}", hint=hint)


def _unknown_field(where: str, name: str, shown: Iterable[str], schema: TopicSchema) -> ConfigError:
    close = difflib.get_close_matches(name, tuple(shown), n=1, cutoff=0.6)
    hint = f"did you mean {close[0]}?" if close else f"fields: {', '.join(sorted(shown))}"
    return ConfigError(f"{where}: the store has no field {name} of {schema.topic}", hint=hint)


def _fields(holding: Holding, schema: TopicSchema) -> list[TopicField]:
    chosen, targets = _chosen(holding, schema), _targets(holding, schema)
    fields = []
    for one in schema.fields:
        shown = one.name in chosen
        if one.key and not shown and not (holding.keys_apart and not _whole_rows(schema)):
            raise _needs_its_key(holding, schema, one)
        target = targets.get(one.name) if shown else None
        if one.key and target is not None and target != one.name:
            raise ConfigError(
                f"{_where(holding, schema)}: {one.name} is part of the key, which keeps its names; it cannot become {target}",
                hint="leave it out of rename",
            )
        if shown or one.key:
            path = tuple(target.split(".")) if target is not None and "." in target else ()
            renamed = target is not None and target != one.name
            fields.append(replace(one, name=target or one.name, shown=shown, column=one.name if renamed else "", path=path))
    return fields


@lru_cache(maxsize=4096)
def _held(holding: Holding, schema: TopicSchema) -> TopicSchema:
    fields = _without_taken(_fields(holding, schema))
    _refuse_collisions(_where(holding, schema), fields)
    return _one(replace(schema, fields=tuple(_objects_together(fields)), holding=holding.text))


def _without_taken(fields: Sequence[TopicField]) -> list[TopicField]:
    """A column whose name a renamed one has taken is not held: whoever may add columns to the table must not be able to stop the store."""
    taken = {
        place[:depth] for one in fields if one.column and (place := one.path or (one.name,)) for depth in range(1, len(place) + 1)
    }
    return [one for one in fields if one.column or one.key or (one.name,) not in taken]


@lru_cache(maxsize=4096)
def _one(schema: TopicSchema) -> TopicSchema:
    return TopicSchema.from_json(schema.to_json())  # the one that everybody has who reads it


def _chosen(holding: Holding, schema: TopicSchema) -> set[str]:
    if holding.columns is not None:
        listed = (one.among(schema, holding.origin) for one in holding.columns)
        return {one.name for one in listed if one is not None}
    gone = {one.name for one in holding.exclude}  # by its name as well: nobody wants to see a new column of that name
    gone |= {found.name for one in holding.exclude if (found := one.among(schema, holding.origin)) is not None}
    return set(schema.names) - gone


def _targets(holding: Holding, schema: TopicSchema) -> Mapping[str, str]:
    found = ((one.among(schema, holding.origin), target) for one, target in holding.rename)
    return {one.name: target for one, target in found if one is not None}


def _whole_rows(schema: TopicSchema) -> bool:
    return schema.identity == "row" and all(one.key for one in schema.fields)


def _where(holding: Holding, schema: TopicSchema) -> str:
    return f'stores.{holding.store}.tables."{schema.topic}"'


def _needs_its_key(holding: Holding, schema: TopicSchema, missing: TopicField) -> ConfigError:
    where = _where(holding, schema)
    if _whole_rows(schema):
        why = f"{where}: the table has no key, so that all of its columns tell its rows apart; {missing.name} cannot be left out"
        return ConfigError(why, hint="give the table a key, or let the store hold all of its columns")
    return ConfigError(
        f"{where}: this store finds rows by the columns of their key; {missing.name} cannot be left out",
        hint=f"add {missing.name} to columns, or take it out of exclude",
    )


def _refuse_collisions(where: str, fields: Sequence[TopicField]) -> None:
    places: dict[tuple[str, ...], TopicField] = {}
    for one in fields:
        if one.column and (one.path or (one.name,))[0].casefold() in RESERVED:
            raise ConfigError(f"{where}: {one.column} cannot become {one.name}, a name of our own", hint="rename it otherwise")
        place = one.path or (one.name,)
        other = places.setdefault(place, one)
        if other is not one:
            raise _collide(where, one, other)
    names: dict[str, TopicField] = {}
    for one in fields:
        other = names.setdefault(one.name, one)
        inside = next((places[one.path[:depth]] for depth in range(1, len(one.path)) if one.path[:depth] in places), None)
        if other is not one or inside is not None:
            raise _collide(where, one, inside or other)


def _collide(where: str, one: TopicField, other: TopicField) -> ConfigError:
    return ConfigError(
        f"{where}: {other.column_name} and {one.column_name} cannot both be there: one is {other.name}, the other {one.name}",
        hint="rename one of the two otherwise, or leave it out",
    )


def _objects_together(fields: Sequence[TopicField]) -> Iterable[TopicField]:
    """The members of an object one after the other, where the first of them stands."""
    first: dict[tuple[str, ...], int] = {}
    for at, one in enumerate(fields):
        for depth in range(1, len(one.path) + 1):
            first.setdefault(one.path[:depth], at)

    def order(numbered: tuple[int, TopicField]) -> tuple[int, ...]:
        at, one = numbered
        return tuple(first[one.path[:depth]] for depth in range(1, len(one.path) + 1)) or (at,)

    return (one for _, one in sorted(enumerate(fields), key=order))


def _exact(batch: pa.RecordBatch, held: TopicSchema) -> pa.Array:
    texts, found = exact_values(batch), {}
    for one in held.fields:
        if one.column_name in texts:
            mine = texts[one.column_name]
            found[one.name] = dict(zip(mine.rows.tolist(), mine.texts.to_pylist(), strict=True))
    return exact_column(len(batch), found)
