"""The share of a topic that one store holds: some of its rows and fields, and fields computed of them, under names of the user's choice. Pure.

``[stores.NAME.tables."schema.table"]`` says it in the source's names: first ``where``, then ``computed``, then ``columns`` or ``exclude``, then ``transform``, then
``rename``. A ``Holding`` is that, bound to what the names meant when the store took the topic up: a field goes by its number, so that one which the source renames is still the one that
was meant, and by its name where no number is known or no field has it (any more). It makes of each definition of the topic the schema that the
store has (``held``), and of each batch the rows that it is given (``batch``). Nothing behind it, sinks, barriers and policies alike, ever sees more.

What is held does not change under a store that has rows: the holding stands in the schema (``TopicSchema.holding``), so that every store keeps it with
its shape, and rows of two holdings are never taken for versions of each other (``sinks.reshape.origins``).

The key's fields are in every held schema and keep their names. Where they are not among the columns they are not ``shown``. What a store names the places of rows
by (``StoreOptions.naming``) is part of its key, though not of the source's: ``sinks.places`` says what that does to changes.

``where`` is about rows, not about changes: a change after which it is not true of the row is a DELETE to the store, at the same position. So is one of which an
expression has no value, such as a division by zero; the batch says why (``failures_of``), and whoever applies it makes it a dead letter.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, Final

import numpy as np
import pyarrow as pa

from cdc.errors import ConfigError, StopState, StoreError
from cdc.model.batch import ALONE, EXACT, FAILED, META_FIELDS, OP, RESERVED, Op, topic_schema
from cdc.model.selection import matches, named
from cdc.model.topic import TopicField, TopicSchema
from cdc.settings.models import StoreOptions
from cdc.settings.tableoptions import TableOptions
from sinks.condition import check as check_condition
from sinks.formula import COMPUTED, WHERE, Formula, column_of, evaluated, formulas, text_of, typed_column
from sinks.formula import bound as bound_formula
from sinks.givenrows import given_changes
from sinks.meant import Meant
from sinks.render.rowtext import exact_values
from sinks.transform import Transform, no_rows, transformed_changes, transformed_texts


@dataclass(frozen=True, slots=True)
class Holding:
    """``columns``: None: all but ``exclude``. ``origin``: of the schema that the names were bound to."""

    columns: tuple[Meant, ...] | None = None
    exclude: tuple[Meant, ...] = ()
    rename: tuple[tuple[Meant, str], ...] = ()
    wishes: tuple[tuple[Meant, str], ...] = ()
    """Options of fields that only the store's kind has (``wishes_of``)."""
    shaping: tuple[tuple[str, str], ...] = ()
    """The same of all rows (``StoreOptions.shaping_of``)."""
    where: Formula | None = None
    computed: tuple[tuple[str, Formula], ...] = ()
    places: tuple[Meant, ...] = ()
    """What names the places of rows beside the key (``StoreOptions.naming``): fields of the store's key, so that a row whose place changes has another key."""
    transform: Transform | None = None
    """The user's own function over the rest."""
    origin: str = ""
    keys_apart: bool = True
    """The key need not be among the columns (``StoreOptions.keys_apart``)."""
    store: str = field(default="", compare=False)
    """Whose it is, for errors."""

    @property
    def everything(self) -> bool:
        """The store holds the topic as it is."""
        chosen = self.exclude or self.rename or self.wishes or self.shaping or self.places
        return self.columns is None and self.transform is None and not chosen and not self.evaluates

    @property
    def evaluates(self) -> bool:
        """There are expressions to be evaluated over each row."""
        return self.where is not None or bool(self.computed)

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
        if self.where is not None:
            raw["where"] = self.where.raw
        if self.computed:
            raw["computed"] = [[name, formula.raw] for name, formula in self.computed]
        if self.places:
            raw["places"] = sorted([one.name, one.number] for one in self.places)
        if self.transform is not None:
            raw["transform"] = self.transform.raw
        return json.dumps(raw, separators=(",", ":"), ensure_ascii=False)

    @property
    def said(self) -> tuple[Any, ...]:
        """The words of the configuration, whatever they meant."""
        columns = None if self.columns is None else frozenset(one.name for one in self.columns)
        named = [frozenset((one.name, text) for one, text in texts) for texts in (self.rename, self.wishes)]
        expressions = frozenset((one.key, one.text) for one in formulas(self.where, self.computed))
        places = frozenset(one.name for one in self.places)
        excluded, transform = frozenset(one.name for one in self.exclude), self.transform and self.transform.said
        return columns, excluded, *named, frozenset(self.shaping), expressions, places, transform

    def held(self, schema: TopicSchema) -> TopicSchema:
        """The schema that the store has of a topic under this definition; always the same object.

        Raises ConfigError where two fields would have one name, or where the store needs a field that it is not to hold.
        """
        return schema if self.everything else _held(self, schema)

    def batch(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The changes as the store is given them."""
        if self.everything:
            return batch
        schema = topic_schema(batch.schema)
        held = self.held(schema)
        if not len(batch) or batch.column(OP)[0].as_py() in ALONE:
            return given_changes(batch, held, None)
        found = None
        if self.evaluates:
            live = batch.column(OP).to_numpy() != int(Op.DELETE)
            found = evaluated(self.where, self.computed, partial(column_of, batch), schema, live)
        given = given_changes(batch, held, found)
        return given if self.transform is None else transformed_changes(self.transform, given, held, self.origin)

    def rows(self, rows: pa.RecordBatch, schema: TopicSchema) -> pa.RecordBatch:
        """The source's rows of text under ``schema`` that the store is to hold; further columns stay as they are. A row of which an expression has no value is
        among them, for it is missing in the store. Schema: ``sinks.contract.audit_schema(held)``, and those."""
        if self.everything:
            return rows
        fields = self.held(schema).fields
        further = [name for name in rows.schema.names if name not in schema.names]
        texts = {name: rows.column(name) for name in rows.schema.names}
        names = {one.column_name: one.column_name for one in fields} | {name: name for name in further}
        if self.evaluates:
            live = np.ones(len(rows), np.bool_)
            found = evaluated(self.where, self.computed, partial(typed_column, rows), schema, live)
            # A name of ours for the computed ones: a column that has come later may be called so, too.
            texts |= {f"{COMPUTED}{name}": text_of(one.values, one.exact) for name, one in found.computed.items()}
            names |= {one.column_name: f"{COMPUTED}{one.column_name}" for one in fields if one.computed}
        columns = [texts[names[name]] for name in (*(one.column_name for one in fields), *further)]
        given = pa.RecordBatch.from_arrays(columns, names=[*(one.name for one in fields), *further])
        given = given.filter(pa.array(~found.left_out)) if self.evaluates and found.left_out.any() else given
        return given if self.transform is None else transformed_texts(self.transform, given, self.held(schema), self.origin)

    def check_transform(self, schema: TopicSchema) -> None:
        """Raises ConfigError where the user's function does not take rows of this definition, or gives something else back than it may."""
        if self.transform is not None:
            try:
                transformed_texts(self.transform, no_rows(self.held(schema)), self.held(schema), self.origin)
            except StoreError as error:
                raise ConfigError(f"{_where(self, schema)}: {error}", hint=error.hint) from None

    def unmet(self, schema: TopicSchema) -> str | None:
        """Why one of the expressions says nothing of this definition; None where all of them do."""
        return next((why for one in formulas(self.where, self.computed) if (why := one.unmet(schema)) is not None), None)

    def refuse_unmet(self, schema: TopicSchema) -> None:
        """Raises ConfigError where one of the expressions says nothing of this definition."""
        if (why := self.unmet(schema)) is not None:
            raise ConfigError(
                f"{_where(self, schema)}.{why}",
                hint=f"write it for the columns that there are; then cdc resume {StopState.STORE_REFUSES}:follow-{self.store} --rebuild, which empties the "
                "store and builds it again from the log",
            )


ALL: Final = Holding()
_AT_OP, _AT_EXACT = (next(at for at, one in enumerate(META_FIELDS) if one.name == name) for name in (OP, EXACT))


def decoded(text: str) -> Holding:
    """Reads ``Holding.text``."""
    if not text:
        return Holding()
    raw = json.loads(text)
    where, origin = raw.get("where"), raw["origin"]
    return Holding(
        None if raw["columns"] is None else tuple(Meant(*one) for one in raw["columns"]),
        tuple(Meant(*one) for one in raw["exclude"]),
        tuple((Meant(name, number), target) for name, number, target in raw["rename"]),
        tuple((Meant(name, number), wish) for name, number, wish in raw.get("wishes", ())),
        tuple((name, text) for name, text in raw.get("shaping", ())),
        None if where is None else Formula.from_raw(WHERE, where, origin),
        tuple((name, Formula.from_raw(f"{COMPUTED}{name}", one, origin)) for name, one in raw.get("computed", ())),
        tuple(Meant(*one) for one in raw.get("places", ())),
        Transform.from_raw(raw["transform"]) if "transform" in raw else None,
        origin,
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


def failures_of(batch: pa.RecordBatch) -> Mapping[int, str]:
    """Row → why an expression has no value of it, of a batch that ``Holding.batch`` has made; empty for nearly every batch."""
    found = exact_values(batch).get(FAILED)
    return {} if found is None else dict(zip(found.rows.tolist(), found.texts.to_pylist(), strict=True))


def failures_as_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The same batch, in which a row that an expression has no value of is a row, and no DELETE; ``failures_of`` still names it."""
    failures = failures_of(batch)
    if not failures:
        return batch
    ops = batch.column(OP).to_numpy().copy()
    ops[list(failures)] = int(Op.READ)
    return batch.set_column(_AT_OP, batch.schema.field(_AT_OP), pa.array(ops))


def bound(store: str, options: StoreOptions, schema: TopicSchema) -> Holding:
    """The share of the topic that the store is to hold, by the names that its columns have in ``schema``. Of several patterns the last that matches and says
    anything decides; new names add up."""
    columns: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    rename, wishes, computed = dict[str, str](), dict[str, str](), dict[str, str]()
    where: str | None = None
    transform: TableOptions | None = None
    for _, said in _of_topic(options, schema):
        transform = transform if said.transform is None else said
        if said.columns is not None or said.exclude:
            columns, exclude = said.columns, said.exclude
        where = where if said.where is None else said.where
        rename |= said.targets
        wishes |= said.of_fields
        computed |= said.computed
    came_from = {target: name for name, target in rename.items()}
    numbers = {one.name: one.origin for one in schema.fields}

    def meant(name: str) -> Meant:
        return Meant(name, numbers.get(name, 0))

    return Holding(
        None if columns is None else tuple(map(meant, columns)),
        tuple(map(meant, exclude)),
        tuple((meant(name), target) for name, target in rename.items()),
        tuple((meant(came_from.get(name, name)), wish) for name, wish in wishes.items()),
        tuple(options.shaping_of(schema).items()),
        None if where is None else bound_formula(WHERE, where, schema),
        tuple((name, bound_formula(f"{COMPUTED}{name}", text, schema)) for name, text in sorted(computed.items())),
        tuple(meant(name) for name in options.naming(schema) if name in numbers or name in computed),
        _transform(store, schema, transform, meant),
        schema.origin,
        options.keys_apart,
        store,
    )


def _transform(store: str, schema: TopicSchema, said: TableOptions | None, meant: Callable[[str], Meant]) -> Transform | None:
    if said is None or said.transform is None:
        return None
    columns = None if said.transform_columns is None else tuple(map(meant, said.transform_columns))
    try:
        return Transform.bound(said.transform, said.transform_version, columns)
    except ConfigError as error:
        raise ConfigError(f'stores.{store}.tables."{schema.topic}".{error}', hint=error.hint) from None


def check(store: str, options: StoreOptions, schema: TopicSchema) -> None:
    """Raises ConfigError where something is said of a column that the topic does not have, a new name given to one that is not held, or one name to two; and
    where an expression is none over the topic's columns, or its name is taken."""
    computed = {name for _, said in _of_topic(options, schema) for name in said.computed}
    names_there = {*schema.names, *computed}
    for pattern, said in _of_topic(options, schema):
        where = f'stores.{store}.tables."{pattern}"'
        _check_expressions(where, said, schema)
        for key, names in _naming(said).items():
            unknown = [name for name in names if name not in names_there]
            if unknown and named((pattern,)):
                raise _unknown(f"{where}{key}", unknown[0], schema)
    check_condition(store, options.when_of(schema) or None, schema)
    holding = bound(store, options, schema)
    holding.check_transform(schema)
    held = {one.column_name: one for one in holding.held(schema).fields}
    _refuse_collisions(_where(holding, schema), _fields(holding, _with_computed(holding, schema)))
    for pattern, said in _of_topic(options, schema):
        where = f'stores.{store}.tables."{pattern}"'
        renamed = ((name, ".rename" if name in said.rename else "") for name in said.targets)
        for name, key in (*renamed, *((name, ".computed") for name in said.computed)):
            if name in names_there and (name not in held or not held[name].shown):
                raise ConfigError(
                    f"{where}{key}: the store does not hold {name} of {schema.topic}",
                    hint="let the store hold it, or leave it out here",
                )
        for name in said.transform_columns or ():
            if name in names_there and name not in held:
                raise ConfigError(
                    f"{where}.transform_columns: the store does not hold {name} of {schema.topic}",
                    hint="let the store hold it, or leave it out here",
                )
        shown = {one.name for one in held.values() if one.shown}
        for name in said.of_fields:
            if name not in shown and named((pattern,)):
                raise _unknown_field(where, name, shown, schema)


def _check_expressions(where: str, said: TableOptions, schema: TopicSchema) -> None:
    for name, text in said.computed.items():
        if name in schema.names:
            raise ConfigError(
                f"{where}.computed.{name}: {schema.topic} has a column {name}", hint="give what is computed another name"
            )
        Formula(f"{COMPUTED}{name}", text).check(where, schema)
    if said.where is not None:
        Formula(WHERE, said.where).check(where, schema)


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
                if mine and name not in said.computed and not any(name in schema.names for schema in mine):
                    raise _unknown(f'stores.{store}.tables."{pattern}"{key}', name, mine[0])
    for schema in schemas:
        check(store, options, schema)
    return [bound(store, options, schema).held(schema) for schema in schemas]


def _of_topic(options: StoreOptions, schema: TopicSchema) -> Iterator[tuple[str, TableOptions]]:
    return ((pattern, said) for pattern, said in options.choices if matches((pattern,), schema))


def _naming(said: TableOptions) -> Mapping[str, Iterable[str]]:
    """The columns that are named, by the key that names them: an empty one for what the store's kind alone knows."""
    others = [name for name in said.targets if name not in said.rename]
    listed = {".columns": said.columns or (), ".exclude": said.exclude, ".transform_columns": said.transform_columns or ()}
    return {**listed, ".rename": said.rename, "": others}


def _unknown(where: str, name: str, schema: TopicSchema) -> ConfigError:
    close = difflib.get_close_matches(name, schema.names, n=1, cutoff=0.6)
    hint = f"did you mean {close[0]}?" if close else f"columns: {', '.join(schema.names)}"
    return ConfigError(f"{where}: {schema.topic} has no column {name}", hint=hint)


def _unknown_field(where: str, name: str, shown: Iterable[str], schema: TopicSchema) -> ConfigError:
    close = difflib.get_close_matches(name, tuple(shown), n=1, cutoff=0.6)
    hint = f"did you mean {close[0]}?" if close else f"fields: {', '.join(sorted(shown))}"
    return ConfigError(f"{where}: the store has no field {name} of {schema.topic}", hint=hint)


def _with_computed(holding: Holding, schema: TopicSchema) -> TopicSchema:
    """The definition with what is computed. A column that has come later under the name of that is not held: see ``_without_taken``."""
    if not holding.computed:
        return schema
    names = {name for name, _ in holding.computed}
    for one in schema.fields:
        if one.key and one.name in names:
            raise ConfigError(
                f"{_where(holding, schema)}.computed.{one.name}: the key has a column {one.name}",
                hint="give what is computed another name",
            )
    there = (one for one in schema.fields if one.name not in names)
    try:
        return replace(schema, fields=(*there, *(formula.field for _, formula in holding.computed)))
    except ConfigError as error:
        raise ConfigError(f"{_where(holding, schema)}.{error}", hint=error.hint) from None


def _fields(holding: Holding, schema: TopicSchema) -> list[TopicField]:
    """``schema``: with what is computed."""
    chosen, targets, places = _chosen(holding, schema), _targets(holding, schema), _place_names(holding, schema)
    fields = []
    for one in schema.fields:
        shown = one.name in chosen
        if one.name in places:
            one = replace(one, key=True)
        if one.key and not shown and not (holding.keys_apart and not _whole_rows(schema)):
            raise _needs_its_key(holding, schema, one)
        target = targets.get(one.name) if shown else None
        if one.key and target is not None and target != one.name:
            raise ConfigError(
                f"{_where(holding, schema)}: {one.name} is part of the key{' in the store' * (one.name in places)}, which keeps its names; "
                f"it cannot become {target}",
                hint="leave it out of rename",
            )
        if shown or one.key:
            path = tuple(target.split(".")) if target is not None and "." in target else ()
            renamed = target is not None and target != one.name
            fields.append(replace(one, name=target or one.name, shown=shown, column=one.name if renamed else "", path=path))
    return fields


@lru_cache(maxsize=4096)
def _held(holding: Holding, schema: TopicSchema) -> TopicSchema:
    fields = _without_taken(_fields(holding, _with_computed(holding, schema)))
    _refuse_collisions(_where(holding, schema), fields)
    return _one(replace(schema, fields=tuple(_objects_together(fields)), holding=holding.text))


def _without_taken(fields: Sequence[TopicField]) -> list[TopicField]:
    """A column whose name a renamed one has taken is not held: whoever may add columns to the table must not be able to stop the store."""
    ours = [one for one in fields if one.column or one.computed]
    taken = {place[:depth] for one in ours if (place := one.path or (one.name,)) for depth in range(1, len(place) + 1)}
    return [one for one in fields if one.column or one.computed or one.key or (one.name,) not in taken]


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


def _place_names(holding: Holding, schema: TopicSchema) -> set[str]:
    """By their names in ``schema``, which has what is computed. A definition by which nothing told rows apart has none: such rows never change."""
    found = (one.among(schema, holding.origin) for one in holding.places)
    return {one.name for one in found if one is not None} if schema.key else set()


def _whole_rows(schema: TopicSchema) -> bool:
    return schema.identity == "row" and all(one.key for one in schema.fields if not one.computed)


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
        if (one.column or one.computed) and (one.path or (one.name,))[0].casefold() in RESERVED:
            raise ConfigError(f"{where}: {one.column_name} cannot become {one.name}, a name of our own", hint="rename it otherwise")
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
