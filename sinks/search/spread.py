"""``index`` of a table: rows spread over several indices by their values.

A table's *home* index has no rows then. It says of itself what any index does (``standing``), and which *parts* there are: the indices that rows lie in, one for each
name that ``index`` makes. A part says of itself what the home does, and is written, fenced, emptied and replaced together with it: to all that counts a table's
rows are whole, they are those of one index with more shards. So a part that is deleted, restored or replaced is noticed as a shard would be.

A part comes to be when the first change is written that names it. It is made, says what the home says, gets the aliases by which readers find it, and only then does
the home say that it is there; rows come after that. What a crash in between leaves is not a part of anything, and is removed when the next one is made. A part stays
until the table is built again, though its last row may have left it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from cdc.crashpoint import crashpoint
from cdc.errors import StoreError
from sinks.search.conditional import Conflict, Guarded
from sinks.search.indices import Indices
from sinks.search.names import Places
from sinks.search.standing import Beside
from sinks.search.statements import IndexUnit, Place, Statements, term_of

TAKEN: Final = "index: its name is taken by an index that is not one of this table's"


class Spreading:
    """Makes the parts of one store's tables. ``settings``: those of a new index; ``most``: so many parts may a table have."""

    def __init__(self, indices: Indices, statements: Statements, settings: Callable[[], Mapping[str, Any]], most: int) -> None:
        self._indices = indices
        self._statements = statements
        self._settings = settings
        self._most = most

    def reach(self, place: Place, wanted: Iterable[str], reach: int) -> frozenset[str]:
        """Makes the parts of these names that are not there yet, before rows up to the position ``reach`` are written. Returns the names that cannot be made,
        because somebody else has them. Raises Conflict when another process has been at it, StoreError where there would be too many."""
        missing = sorted(set(wanted) - place.parts.keys())
        if not missing:
            return frozenset()
        topic = place.schema.topic
        names = {part: self._indices.part_names(place.names, part) for part in missing}
        taken = frozenset(part for part, places in names.items() if self._indices.taken(places, topic))
        fresh = [part for part in missing if part not in taken]
        if len(place.parts) + len(fresh) > self._most:
            store = self._indices.cluster.store
            raise StoreError(
                f"store {store}: the rows of {topic} would lie in more than {self._most} indices",
                retryable=False,
                hint=f"choose other columns for its `index`, or raise indices_max in [stores.{store}]",
            )
        for part in fresh:
            self._make(place, part, names[part])
        if fresh:
            self._statements.say(place, reach, beside=Beside(tuple(sorted(place.parts))))
            crashpoint("spreading.part_known")
        return taken

    def _make(self, place: Place, part: str, names: Places) -> None:
        topic = place.schema.topic
        self._indices.create(names, place.schema, self._settings(), part_of=place.names.alias)
        made = next((one for one in self._indices.made(names) if one.index == names.index), None)
        if made is None:
            raise Conflict(self._indices.cluster.store, called(topic), "was removed by another process")
        writer = self._indices.writer(made, names)
        documents = [Guarded(writer, made.index, identity, called=called(topic)) for identity in made.ids]
        unit = IndexUnit(names, documents, made.born, part, place.names.alias)
        self._statements.first(unit, place.standing)
        crashpoint("spreading.part_made")
        if not place.standing.building:
            self._indices.show(names, place.names, topic)
        # Where it will be found: parts stand by their names.
        at = 1 + sum(one < part for one in place.parts)
        if place.terms is not None:
            before = sum(len(one.documents) for one in place.units[:at])
            place.terms = (*place.terms[:before], *(term_of(one) for one in documents), *place.terms[before:])
        place.units.insert(at, unit)


def called(topic: str) -> str:
    """The name that errors give a part: its own is made of values."""
    return f"part of {topic}"
