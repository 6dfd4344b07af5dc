"""The indices of a store as the cluster has them: found, made, told apart from other people's, given their aliases, removed.

A table's index is found by its name and by what it says of itself. An alias proves nothing: it comes back with a restored copy, and goes
where an operator points it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from cdc.crashpoint import crashpoint
from cdc.errors import StoreError
from cdc.model.topic import TopicSchema
from sinks.render.jsonrows import DELETED, Style
from sinks.search import fence, mapping
from sinks.search.conditional import read
from sinks.search.names import ANY_NUMBERED, NUMBERED, Owner, Places, named, owner_of
from sinks.search.shown import Shown, change_aliases
from sinks.search.standing import FIELD, MAPPING, IndexCopy, Whole, copy_of, spread_whole, standing_id, whole_of
from sinks.search.wire import Cluster

LIVING: Final[dict[str, Any]] = {"bool": {"must_not": {"term": {DELETED: True}}}}
APART: Final = 'index = "{schema}.{table}"'
_LOOKING: Final = "looking at the indices"
_MEASURING: Final = "measuring the indices"
_BRIEF: Final = (
    f"*.aliases,*.mappings._meta,*.mappings.properties.{FIELD},"
    "*.settings.index.creation_date,*.settings.index.number_of_shards,*.settings.index.provided_name"
)
_NAMES_AT_ONCE: Final = 20


@dataclass(frozen=True, slots=True)
class Found:
    """One index. ``whole``: what it says, None where nothing of that counts."""

    index: str
    places: Places | None
    """None: the index has none of our names; an alias of ours points to it."""
    owner: Owner | None
    held: Mapping[str, Any]
    """As the cluster describes it."""
    copies: tuple[IndexCopy | None, ...] = ()
    ids: tuple[str, ...] = ()
    whole: Whole | None = None
    parts: tuple[Found, ...] = ()
    """Of a home index: the parts beside it, and ``whole`` is what all of them say together."""
    name: str = ""
    """Of a part that was found with its home: what that calls it."""

    @property
    def units(self) -> tuple[Found, ...]:
        return self, *self.parts

    @property
    def part(self) -> bool:
        """Whether it is a part beside a home index."""
        return self.owner is not None and bool(self.owner.part_of)

    @property
    def called(self) -> str:
        """The name that errors give it: that of a part is made of values."""
        return f"part of {self.owner.table}" if self.part and self.owner is not None else self.index

    @property
    def said(self) -> bool:
        """Its rows may be used."""
        return self.whole is not None and not self.whole.standing.building

    @property
    def says(self) -> bool:
        """It was made for what it says of itself: a field is never taken out of a mapping."""
        return FIELD in self.held.get("mappings", {}).get("properties", {})

    @property
    def born(self) -> str:
        """When it was created. A snapshot keeps that."""
        return str(self.held["settings"]["index"]["creation_date"])

    @property
    def number(self) -> int:
        return 0 if self.places is None else self.places.number

    @property
    def renamed(self) -> bool:
        """It was restored under another name than it was made with."""
        return bool(self.held["settings"]["index"].get("provided_name", self.index) != self.index)

    @property
    def aliases(self) -> Mapping[str, Any]:
        """Alias → its options, as `GET INDEX` gives them."""
        found: Mapping[str, Any] = self.held.get("aliases", {})
        return found


@dataclass(slots=True)
class Indices:
    """Those of one generation of a store. ``log``: the id of the log that they are fed by."""

    cluster: Cluster
    style: Callable[[TopicSchema], Style]
    shown: Shown
    pattern: str = ANY_NUMBERED
    """Of the names that the store's indices have as it is configured now."""
    log: str = ""
    _ids: dict[int, tuple[str, ...]] = field(default_factory=dict)

    # -- finding ------------------------------------------------------------------------------------------------------

    def all(self, *, standings: bool = True) -> list[Found]:
        """Every index that has a name of our form, or an alias of such a name. ``standings``: with what they say."""
        params = {"expand_wildcards": "all", "filter_path": _BRIEF}
        held = every_index(self.cluster, _LOOKING, self.pattern, params)
        return self._with_parts(self._read(held, standings=standings))

    def of(self, alias: str) -> list[Found]:
        """The indices of one table, and others that its alias points to."""
        return self._with_parts(self._named(dict.fromkeys((alias, f"{alias}{NUMBERED}*", self.shown.names.searched(alias)))))

    def beside(self, alias: str) -> list[Found]:
        """Every part that was ever made for the table with this alias, and is there."""
        return [one for one in self.all(standings=False) if self.mine(one) and one.owner is not None and one.owner.part_of == alias]

    def made(self, names: Places) -> list[Found]:
        """The index of these names, if it is there."""
        return self._named([names.index])

    def part_names(self, home: Places, part: str) -> Places:
        """The places of the part of this name beside a home index."""
        return Places(self.shown.names.own(part), home.number)

    def _named(self, names: Iterable[str]) -> list[Found]:
        params = {"expand_wildcards": "all", "ignore_unavailable": "true"}
        held: dict[str, Mapping[str, Any]] = {}
        for path in _paths(names):
            held |= self.cluster.ask(_LOOKING, "GET", path, params=params)
        return self._read(held)

    def _with_parts(self, found: list[Found]) -> list[Found]:
        """The same, where home indices have their parts."""
        wanted = {
            one.index: {part: self.part_names(one.places, part).index for part in one.whole.standing.beside.parts}
            for one in found
            if one.whole is not None and one.places is not None and one.whole.standing.beside.parts
        }
        there = {one.index: one for one in found}
        if missing := {index for parts in wanted.values() for index in parts.values() if index not in there}:
            there |= {one.index: one for one in self._named(missing)}
        return [
            self._composed(one, {part: there.get(index) for part, index in wanted[one.index].items()})
            if one.index in wanted
            else one
            for one in found
        ]

    def _composed(self, home: Found, parts: Mapping[str, Found | None]) -> Found:
        """``parts``: by their names."""
        assert home.places is not None
        mine = {
            name: replace(one, name=name)
            for name, one in parts.items()
            if one is not None and self.mine(one) and one.owner is not None and one.owner.part_of == home.places.alias
        }
        said = {name: one.whole for name, one in mine.items()}
        return replace(home, parts=tuple(mine.values()), whole=spread_whole(home.whole, said))

    def mine(self, found: Found) -> bool:
        """Whether this store made it."""
        return found.owner is not None and found.owner.store == self.cluster.store

    def _read(self, held: Mapping[str, Mapping[str, Any]], *, standings: bool = True) -> list[Found]:
        found = [Found(index, named(index), owner_of(one), one) for index, one in held.items()]
        asked = [(one, self._ids_of(one) if self._ask(one, standings) else ()) for one in found]
        docs = iter(read(self.cluster, _LOOKING, [(one.index, identity) for one, ids in asked for identity in ids]))
        return [_said(one, tuple(copy_of(next(docs)) for _ in ids), ids) if ids else one for one, ids in asked]

    def _ask(self, found: Found, standings: bool) -> bool:
        """Of an index without an owner it has to be asked whose it is: a mapping changed by hand loses that. Not of one that nobody of us has
        made, which may be closed, or for others to read."""
        return found.places is not None and (found.says if found.owner is None else standings and self.mine(found))

    def _ids_of(self, found: Found) -> tuple[str, ...]:
        """An id for each shard of the index: documents go to shards by a hash of their id, of which the cluster is asked."""
        shards = int(found.held["settings"]["index"]["number_of_shards"])
        if shards == 1:
            return (standing_id(0),)
        if found.owner is None:
            return self._asked_ids(found.index, shards)
        if shards not in self._ids:
            self._ids[shards] = self._asked_ids(found.index, shards)
        return self._ids[shards]

    def _asked_ids(self, index: str, shards: int) -> tuple[str, ...]:
        known: dict[int, str] = {}
        number = 0
        while len(known) < shards:
            params = {"routing": standing_id(number), "expand_wildcards": "all"}
            answer = self.cluster.ask(_LOOKING, "GET", f"/{index}/_search_shards", params=params)
            known.setdefault(int(answer["shards"][0][0]["shard"]), standing_id(number))
            number += 1
        return tuple(known[shard] for shard in range(shards))

    def live(self, alias: str, found: Iterable[Found], topic: str) -> Found | None:
        """The index that the topic's rows are in: of those that say something the one behind the alias, or the newest. None: it is not
        there, or somebody else's (``refuse``)."""
        mine = [one for one in found if one.places is not None and one.places.alias == alias and one.owner is not None]
        mine = [one for one in mine if self.mine(one) and one.owner is not None and one.owner.table == topic and not one.part]
        return max(mine, key=lambda one: (one.said, alias in one.aliases, one.number), default=None)

    def refuse(self, alias: str, found: Iterable[Found], topic: str) -> None:
        """Raises StoreError when one of these indices has the topic's place and is not ours, or another topic's."""
        for one in found:
            owner = one.owner
            if one.index == alias or (owner is None and (one.places is None or one.places.alias == alias)):
                hint = f"delete or rename the index {one.index}, or set `index` in cdc.toml"
                raise self._refused(f"{one.index} exists and is not ours", hint)
            if owner is None or one.places is None or one.places.alias != alias:
                continue
            if owner.store != self.cluster.store:
                store = self.shown.names.store
                hint = f'set another `index` in [stores.{store}], such as index = "{store}.{{schema}}.{{table}}"'
                raise self._refused(f"the index {one.index} belongs to store {owner.store}", hint)
            if owner.table != topic or owner.part_of:
                hint = f"set {APART} in [stores.{self.shown.names.store}]"
                raise self._refused(f"the index {one.index} holds {owner.table}, not {topic}", hint)

    def taken(self, names: Places, topic: str) -> bool:
        """Whether somebody else has the place of a part of the topic, or an alias of ours would lead to other people's rows beside it. What an attempt
        before this one has left of the part is removed."""
        wanted = dict.fromkeys((names.alias, f"{names.alias}{NUMBERED}*", self.shown.names.searched(names.alias)))
        found = self._named(wanted)
        self.delete(one.index for one in found if one.index == names.index and self._part_of(one, topic) and self.mine(one))
        return not all(self._part_of(one, topic) for one in found)

    def _part_of(self, found: Found, topic: str) -> bool:
        """Whether a generation of this store has made it as a part of the topic's."""
        return self._related(found) and found.part and found.owner is not None and found.owner.table == topic

    # -- making -------------------------------------------------------------------------------------------------------

    def create(self, places: Places, schema: TopicSchema, settings: Mapping[str, Any], part_of: str = "") -> None:
        """Makes the index; ``point`` gives it the aliases by which it is found. A second caller finds it there. ``part_of``: the alias of its home index."""
        index = {
            "hidden": True,  # a pattern that matches it would find deleted rows; the alias does not
            "mapping.total_fields.limit": mapping.FIELDS_DEFAULT_MAX,
            **mapping.limits(schema, self.style(schema), {}),
            **settings,
        }
        aliases = {fence.new_writer(places): {"is_hidden": True}}
        wanted = mapping.mappings(schema, self.style(schema))
        mappings = {**wanted, "_meta": self._meta(schema, part_of), "properties": {**wanted["properties"], **MAPPING}}
        answer = self.cluster.send(
            "PUT", f"/{places.index}", {"settings": {"index": index}, "mappings": mappings, "aliases": aliases}
        )
        crashpoint("search.index.created")
        if answer.status >= 400 and answer.error_type != "resource_already_exists_exception":
            raise self.cluster.error(f"creating the index of {schema.topic}", answer)

    def contradicted(self, found: Found, schema: TopicSchema) -> list[str]:
        """The fields that would have to change their type."""
        return mapping.contradicted(self._properties(schema), found.held["mappings"].get("properties", {}))

    def evolve(self, found: Found, schema: TopicSchema) -> None:
        """Adds the fields that the index lacks. Raises StoreError where a field would have to change its type."""
        if wrong := self.contradicted(found, schema):
            index = found.owner.part_of + NUMBERED + "*" if found.part and found.owner is not None else found.index
            hint = f"a field's type never changes: DELETE /{index}, so that it is built again from the log"
            raise self._refused(f"{schema.topic} has a new type for {wrong[0]}", hint)
        there = found.held["mappings"].get("properties", {})
        added = mapping.missing(self._properties(schema), there)
        if not added and owner_of(found.held) is not None:
            return
        higher = mapping.limits(schema, self.style(schema), found.held["settings"]["index"].get("mapping", {}), there)
        if higher:
            raised = {f"index.{name}": limit for name, limit in higher.items()}
            self.cluster.ask("allowing more fields", "PUT", f"/{found.index}/_settings", raised)
        part_of = "" if found.owner is None else found.owner.part_of
        # A change of the mapping that does not name its _meta removes that.
        changed = {"_meta": self._meta(schema, part_of), "properties": added}
        self.cluster.ask(f"adding columns of {schema.topic}", "PUT", f"/{found.index}/_mapping", changed)

    def point(self, live: Found, others: Iterable[Found]) -> None:
        """Gives the table's aliases to this index, as they should be, and takes them from the store's other indices, whatever they are called."""
        assert live.places is not None
        wanted = {one.index: self._found_by(one.places, live.places) for one in live.units if one.places is not None}
        names = {alias for aliases in wanted.values() for alias in aliases}
        actions: list[dict[str, Any]] = []
        for one in {one.index: one for one in others}.values():
            if one.index not in wanted and self._related(one):
                astray = [name for name in one.aliases if name in names or any(_writes(name, unit) for unit in live.units)]
                actions += [{"remove": {"index": one.index, "alias": name}} for name in astray]
        for unit in live.units:
            for alias, options in wanted[unit.index].items():
                if not _as_wanted(unit.aliases.get(alias), options):
                    actions.append({"add": {"index": unit.index, "alias": alias, **options}})
        if actions:
            self._change_aliases(f"pointing {live.places.alias} to its index", actions)

    def writer(self, found: Found, places: Places) -> str:
        """The alias through which documents are written."""
        aliases = [alias for alias in found.aliases if alias.startswith(places.writers)]
        if aliases:
            return max(aliases)
        fresh = fence.new_writer(places)
        action = {"add": {"index": found.index, "alias": fresh, "is_hidden": True}}
        self.cluster.ask("adding the write alias", "POST", "/_aliases", {"actions": [action]})
        return fresh

    def show(self, part: Places, home: Places, topic: str) -> None:
        """Gives a new part its aliases."""
        if actions := [*self._adding([part], home)]:
            self._change_aliases(f"pointing the aliases of {topic} to a new index", actions)

    def swap(self, old: Sequence[Places], fresh: Sequence[Places], topic: str) -> None:
        """The new index takes the place of the old one, at once; of each, the first is the home where there are parts."""
        actions = [*({"remove_index": {"index": one.index}} for one in old), *self._adding(fresh, fresh[0])]
        self._change_aliases(f"replacing the index of {topic}", actions)

    def move(self, former: Iterable[Found], fresh: Sequence[Places], topic: str, with_it: Iterable[Mapping[str, Any]]) -> None:
        """The table's aliases lead to the new index from now on. ``with_it``: further aliases that change, or nothing does.

        The former ones stay: while a node takes in that an index is gone, whoever searches through the alias there still asks for it.
        """
        names = {alias for one in fresh for alias in self._found_by(one, fresh[0])}
        left = [
            (one.index, alias)
            for one in former
            for alias in one.aliases
            if alias in names or (one.part and self.shown.live and searched(one.aliases[alias]))
        ]
        actions = [
            *with_it,
            *self._adding(fresh, fresh[0]),
            *({"remove": {"index": index, "alias": alias}} for index, alias in left),
        ]
        self._change_aliases(f"moving the alias of {topic}", actions)

    def _found_by(self, places: Places, home: Places) -> Mapping[str, Mapping[str, Any]]:
        """The aliases by which the table's index is found, with their options: its own, and those that users search while the generation is live. ``home``: the
        same, or of the home index where it is a part, which is found by the table's alias, too."""
        names = self.shown.names
        own = {} if names.searched(places.alias) == places.alias else {places.alias: _HIDDEN}
        shown = dict.fromkeys((names.searched(places.alias), names.searched(home.alias)), _SEARCHED)
        return {**own, **shown} if self.shown.live else own

    def _adding(self, units: Iterable[Places], home: Places) -> Iterator[dict[str, Any]]:
        for one in units:
            for alias, options in self._found_by(one, home).items():
                yield {"add": {"index": one.index, "alias": alias, **options}}

    def _change_aliases(self, doing: str, actions: Iterable[Mapping[str, Any]]) -> None:
        """Where readers see the generation: only as long as they do."""
        condition = self.shown.condition() if self.shown.live else []
        change_aliases(self.cluster, doing, [*condition, *actions])

    def _related(self, found: Found) -> bool:
        """Whether a generation of this store made it."""
        return found.owner is not None and self.shown.names.related(found.owner.store)

    def delete(self, indices: Iterable[str]) -> None:
        """Those that are there."""
        for names in _paths(indices):
            params = {"ignore_unavailable": "true", "expand_wildcards": "all"}
            self.cluster.ask("removing indices", "DELETE", names, params=params)

    def refresh(self, indices: Iterable[str]) -> None:
        """Lets every search find from now on what was written so far, in those that are there."""
        for names in _paths(indices):
            self.cluster.ask("a refresh", "POST", f"{names}/_refresh", params={"ignore_unavailable": "true"})

    def _properties(self, schema: TopicSchema) -> dict[str, Any]:
        return {**mapping.properties(schema, self.style(schema)), **MAPPING}

    def _meta(self, schema: TopicSchema, part_of: str) -> dict[str, Any]:
        return Owner(self.cluster.store, self.log, schema.topic, part_of).meta()

    def _refused(self, what: str, hint: str) -> StoreError:
        return StoreError(f"store {self.cluster.store}: {what}", retryable=False, hint=hint)


_SEARCHED: Final[dict[str, Any]] = {"filter": LIVING, "is_hidden": False}


_HIDDEN: Final[dict[str, Any]] = {"is_hidden": True}


def searched(alias: Mapping[str, Any] | None) -> bool:
    """Whether the alias shows living rows only."""
    return alias is not None and alias.get("filter") == LIVING


def searching(index: str, alias: str) -> dict[str, Any]:
    """The action by which users find the index's living rows through the alias."""
    return {"add": {"index": index, "alias": alias, **_SEARCHED}}


def _as_wanted(alias: Mapping[str, Any] | None, options: Mapping[str, Any]) -> bool:
    return alias is not None and alias.get("filter") == options.get("filter")


def _writes(alias: str, live: Found) -> bool:
    return live.places is not None and alias.startswith(live.places.writers)


def _said(found: Found, copies: tuple[IndexCopy | None, ...], ids: tuple[str, ...]) -> Found:
    here = [copy for copy in copies if copy is not None]
    owner = found.owner
    if owner is None and here:  # its _meta was removed with a change of its mapping
        one = here[0].standing
        owner = Owner(one.store, one.mark.log, one.topic, one.beside.home)
    whole = whole_of(copies, found.born)
    return replace(found, owner=owner, copies=copies, ids=ids, whole=whole)


def every_index(cluster: Cluster, doing: str, pattern: str, params: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """All indices with a name of our form, those among them that the store made under other names than it is configured with now. Where the account may not
    look at every index, those of the store's own pattern (``Options.index_pattern``): of others it could remove none either."""
    answer = cluster.send("GET", f"/{ANY_NUMBERED}", params=params)
    if answer.status == 403 and pattern != ANY_NUMBERED:
        answer = cluster.send("GET", f"/{pattern}", params=params)
    if answer.status >= 400:
        raise cluster.error(doing, answer)
    held: Mapping[str, Mapping[str, Any]] = answer.body
    return held


def measured(cluster: Cluster, indices: Iterable[str]) -> tuple[int, int]:
    """How many rows those have that are there, the latest of them too, and how many bytes."""
    there = {"expand_wildcards": "all", "ignore_unavailable": "true"}
    parts = {"filter_path": "_all.primaries.store.size_in_bytes", "expand_wildcards": "all"}
    rows = size = 0
    for names in _paths(indices):
        cluster.ask("a refresh", "POST", f"{names}/_refresh", params=there)
        rows += int(cluster.ask(_MEASURING, "POST", f"{names}/_count", {"query": LIVING}, params=there)["count"])
        found = cluster.ask(_MEASURING, "GET", f"{names}/_stats/store", params=parts)
        size += int(found.get("_all", {}).get("primaries", {}).get("store", {}).get("size_in_bytes", 0))
    return rows, size


def _paths(indices: Iterable[str]) -> Iterator[str]:
    """Paths that name all of them, none too long for a request."""
    names = sorted(indices)
    for start in range(0, len(names), _NAMES_AT_ONCE):
        yield "/" + ",".join(names[start : start + _NAMES_AT_ONCE])


def by_alias(found: Iterable[Found]) -> dict[str, list[Found]]:
    """The indices of each table, and those that its aliases point to."""
    together: dict[str, list[Found]] = {}
    for one in found:
        names = {alias.partition(NUMBERED)[0] for alias in one.aliases}
        names |= {one.places.alias} if one.places is not None else set()
        for name in names:
            together.setdefault(name, []).append(one)
    return together
