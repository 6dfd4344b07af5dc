"""This process's knowledge of each table's index: found, made, given the fields that it lacks, and replaced by another.

A table is in one of these states; ``known`` holds its ``Place`` in the second and the third:

1. *unknown*: after the store was opened. ``prepare`` finds the index, or makes it. An index without its standing documents is half made: it is
   deleted and made again, unless somebody relies on it (see below).
2. *adopted*: what the index says of itself is believed, and how far it holds the table is known.
3. *in a stretch*: rows are being written; ``terms`` says in which primary terms that began. A commit ends the stretch and leads back to 2.
4. *building*: where rows have to be written differently, another index is filled beside the one that is used. ``built`` moves
   the alias over in one request; before that, nothing counts of the new one, and an attempt that was interrupted is deleted.

An index may be deleted, restored or replaced at any moment. One that was not there may be made, but never one in place of an index that
somebody relies on. So whatever this process has passed on is remembered, and ``_lost`` is raised where an index no longer bears it out:

- rows up to ``held.applied``: the log has changes of the table up to there, and the index lacks them, or does not exist;
- a shape that was given to the follower (``_relied_on``): changes before it are not brought again;
- a stretch that has begun: its documents have to be the ones that it was begun with;
- a batch that was not taken (``failed``): no commit may pass it.

``_lost`` is retryable: the follower opens the store again, which finds out what is there and goes back to it. An index that another log has
filled, or one of a history that this log never had, is a stop state instead (``believed``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, Final

from cdc.errors import StoreError
from cdc.log.contract import Topic
from cdc.model.batch import ALONE, OP
from cdc.model.lineage import believed
from cdc.model.position import START, ZERO_CUT, Cut, Position
from cdc.model.topic import TopicSchema
from sinks.contract import Shape
from sinks.followedlog import Followed
from sinks.search.conditional import Conflict, Guarded
from sinks.search.indices import Found, Indices
from sinks.search.names import Places
from sinks.search.overview import Overview, Where, where_of
from sinks.search.placement import placement_of
from sinks.search.spread import Spreading, called
from sinks.search.standing import Beside, HeldExtent, Standing
from sinks.search.statements import IndexUnit, Place, Statements, term_of

_HOME_SHARDS: Final = {"number_of_shards": 1}
"""Of a home index: it has no rows (``sinks.search.spread``)."""


class Held:
    """How far the store holds each table."""

    def __init__(self) -> None:
        self.applied: Cut = ZERO_CUT
        self._further: dict[str, Position] = {}

    def found(self, holding: HeldExtent) -> None:
        """Takes over what a look has found of each table; what is applied does not follow from that for whoever writes."""
        self._further = dict(holding.held)

    def reaches(self, topic: str, position: Position) -> None:
        self._further[topic] = max(self.applied.position, position)

    def of(self, topic: str) -> Position:
        """The position up to which the store holds the table."""
        return max(self._further.get(topic, START), self.applied.position)


class Tables:
    """The tables of one store and their indices. One thread only."""

    def __init__(
        self,
        followed: Followed,
        indices: Indices,
        overview: Overview,
        statements: Statements,
        settings: Callable[[], dict[str, Any]],
        indices_max: int,
    ) -> None:
        """``settings``: those of a new index; ``indices_max``: so many may the rows of one table lie in."""
        self.indices = indices
        self.followed = followed
        self.overview = overview
        self.statements = statements
        self.held = Held()
        self.failed: set[str] = set()
        """The topics of which a batch was not taken, as far as is known."""
        self._relied_on: dict[str, Position] = {}
        """How far each shape reaches that was given: changes before it are not brought again."""
        self._settings = settings
        self.spreading = Spreading(indices, statements, settings, indices_max)

    def forget(self) -> None:
        """The store is opened again: nothing counts of what was known of it."""
        self.indices.log = self.followed.lineage().log
        self.statements.known.clear()
        self.failed.clear()
        self._relied_on.clear()

    @property
    def known(self) -> dict[str, Place]:
        return self.statements.known

    def shape(self, topic: str) -> Shape | None:
        """The definition that the table's documents have, and since when; None for a table that the store does not hold."""
        standing = self.known[topic].standing if topic in self.known else self.overview.seen.get(topic)
        if standing is not None and standing.shape_at > START:
            self._relied_on[topic] = max(self._relied_on.get(topic, START), standing.shape_at)
        return None if standing is None else standing.shape

    # -- places -------------------------------------------------------------------------------------------------------

    def place(self, schema: TopicSchema) -> Place:
        """As known, else as ``prepare`` finds or makes it; raises what that does."""
        return self.known.get(schema.topic) or self.prepare(schema)

    def find(self, schema: TopicSchema) -> Found | None:
        """The table's index, if there is one."""
        alias = self.overview.names(schema).alias
        return self.indices.live(alias, self.indices.of(alias), schema.topic)

    def prepare(self, schema: TopicSchema) -> Place:
        """Makes the index, or looks at it again and gives it the fields that it lacks. Raises StoreError (retryable) when somebody keeps deleting it."""
        names, topic = self.overview.names(schema), schema.topic
        for _ in range(2):
            found = self.indices.of(names.alias)
            self.indices.refuse(names.alias, found, topic)
            live = self.indices.live(names.alias, found, topic)
            if live is not None and live.said:
                place = self.adopt(live, schema)
                for unit in live.units:
                    self.indices.evolve(unit, schema)
                self.indices.point(live, found)
                return place
            self._make(names, schema, live)
        raise StoreError(f"store {self.indices.cluster.store}: the index of {topic} keeps being deleted", retryable=True)

    def adopt(self, live: Found, schema: TopicSchema) -> Place:
        """Goes on from what the index says. Raises StoreError (retryable) when it lacks what this process has taken for held."""
        assert live.whole is not None
        assert live.places is not None
        topic, standing, known = schema.topic, live.whole.standing, self.known.get(schema.topic)
        stands = [copy.stand for unit in live.units for copy in unit.copies if copy is not None]
        terms = None
        if known is not None and known.terms is not None:
            if [one.stand for one in known.documents] != stands:
                raise self._lost(topic)
            terms = known.terms
        for claim in live.whole.claims:
            believed(claim, self.followed.lineage(), f"the index of {topic} in store {self.indices.cluster.store}")
        behind = self.followed.log.last_change(topic, self.held.applied.position) > standing.mark.cut.position
        if behind or standing.shape_at < self._relied_on.get(topic, START):
            raise self._lost(topic)
        units = [self._unit(one, live.places, topic) for one in live.units]
        place = self.known[topic] = Place(schema, units, standing, terms)
        for document, stand in zip(place.documents, stands, strict=True):
            document.stand = stand
        self.overview.uses(topic, where_of(live))
        self.held.reaches(topic, standing.mark.cut.position)
        return place

    def _unit(self, found: Found, home: Places, topic: str) -> IndexUnit:
        assert found.places is not None
        writer, part = self.indices.writer(found, found.places), found.part
        documents = [Guarded(writer, found.index, identity, called=called(topic) if part else "") for identity in found.ids]
        return IndexUnit(found.places, documents, found.born, found.name, home.alias if part else "")

    def _make(self, names: Places, schema: TopicSchema, live: Found | None) -> None:
        topic = schema.topic
        known = self.known.pop(topic, None)
        relied_on = topic in self._relied_on or self.followed.log.last_change(topic, self.held.applied.position) > 0
        if relied_on or (known is not None and known.terms is not None):
            raise self._lost(topic)
        if live is not None:
            # Half made, or a copy of which nobody can say what it holds.
            self.indices.delete([live.index])
        self.indices.delete(one.index for one in self.indices.beside(names.alias))  # what has no home any more
        self.make(names, schema)
        self.begin_to_exist(names, schema, Standing.first(self.indices.cluster.store, schema, self.followed.lineage()))

    def make(self, names: Places, schema: TopicSchema) -> None:
        """Makes an index of the table. Parts of this number are what another one has left that was there before."""
        if not spread(schema):
            self.indices.create(names, schema, self._settings())
            return
        self.indices.delete(one.index for one in self.indices.beside(names.alias) if one.number == names.number)
        self.indices.create(names, schema, {**self._settings(), **_HOME_SHARDS})

    def reach(self, place: Place, parts: Iterable[str], reach: int) -> frozenset[str]:
        """Makes those of these parts that are not there (``Spreading.reach``)."""
        before = len(place.units)
        try:
            return self.spreading.reach(place, parts, reach)
        finally:
            if len(place.units) > before and self.known.get(place.schema.topic) is place:
                self.overview.uses(place.schema.topic, units_of(place))

    def begin_to_exist(self, names: Places, schema: TopicSchema, standing: Standing) -> Place | None:
        """Gives a new index its documents; None when somebody else has removed it already."""
        made = next((one for one in self.indices.of(names.alias) if one.index == names.index), None)
        if made is None:
            return None
        standing = replace(standing, born=made.born)
        place = Place(schema, [self._unit(made, names, schema.topic)], standing)
        try:
            self.statements.tell(self.statements.written(place, standing))
        except Conflict:
            return None  # another process has made it
        return place

    def building(self, old: Place, schema: TopicSchema, position: int) -> Place:
        """The table's next index, which takes rows and is not used before ``built``."""
        fresh = replace(old.names, number=old.names.number + 1)
        if any(one.index == fresh.index and one.said and fresh.alias in one.aliases for one in self.indices.of(fresh.alias)):
            raise self._lost(schema.topic)  # a later writer has built it and uses it
        self.indices.delete([fresh.index])  # what an attempt before this one has left
        self.make(fresh, schema)
        standing = replace(old.standing.begun(self.followed.lineage(), position), building=True, beside=Beside())
        place = self.begin_to_exist(fresh, schema, standing)
        if place is None:
            raise self._lost(schema.topic)
        place.terms = tuple(term_of(one) for one in place.documents)
        return place

    def built(self, old: Place, fresh: Place) -> None:
        """The alias of the table's documents leads to ``fresh`` from now on, and ``old`` is gone."""
        topic = fresh.schema.topic
        self.indices.swap([one.names for one in old.units], [one.names for one in fresh.units], topic)
        self.known[topic] = fresh
        self.overview.uses(topic, units_of(fresh))

    # -- stretches ---------------------------------------------------------------------------------------------------

    def join(self, cut: Cut) -> None:
        """Takes over the stretches that other processes have begun on this one's behalf, up to the cut."""
        for topic in self._not_begun(cut):
            live = self.find(topic.schema)
            if live is not None and live.whole is not None and live.said and live.whole.standing.writing:
                place = self._adopt_as_it_is(live, topic)
                place.terms = tuple(copy.begun_in for copy in live.copies if copy is not None)

    def passed_over(self, cut: Cut, *, by_workers: bool) -> list[Place]:
        """Where changes up to the cut have left nothing to write, such as a change of definition that a policy ignores. Asks the cluster only
        for an index that this process has not written yet.

        ``by_workers``: other processes may have written on this one's behalf. Of a range with a TRUNCATE or SCHEMA record in it they get
        nothing; in any other, an index that no stretch has begun in is not the one that they wrote.
        """
        found = []
        for topic in self._not_begun(cut):
            if by_workers and not self._changed_as_a_whole(topic.name, cut):
                continue
            place = self.known.get(topic.name)
            if place is None and (live := self.find(topic.schema)) is not None and live.said:
                place = self._adopt_as_it_is(live, topic)
            if place is not None:
                found.append(place)
        return found

    def _not_begun(self, cut: Cut) -> Iterator[Topic]:
        """The topics with changes up to the cut that the store does not hold, and that no stretch of this process covers."""
        for topic in self.overview.topics():
            known, held = self.known.get(topic.name), self.held.of(topic.name)
            if topic.last <= held or (known is not None and known.terms is not None):
                continue
            if self.followed.log.last_change(topic.name, cut.position) > held:
                if topic.name in self.failed:
                    raise self._lost(topic.name)
                yield topic

    def _changed_as_a_whole(self, topic: str, cut: Cut) -> bool:
        changes = self.followed.log.read(topic, self.held.of(topic), cut.position, self.followed.lineage().history)
        return any(batch.column(OP)[0].as_py() in ALONE for batch in changes)

    def _adopt_as_it_is(self, live: Found, topic: Topic) -> Place:
        """Under the definition that its documents have, which need not be the log's newest."""
        shape = live.whole and live.whole.standing.shape
        return self.adopt(live, shape.schema if shape else topic.schema)

    def _lost(self, topic: str) -> StoreError:
        self.known.pop(topic, None)
        return StoreError(
            f"store {self.indices.cluster.store}: the index of {topic} was deleted, or is an older copy: it is filled again from the log",
            retryable=True,
        )


def units_of(place: Place) -> tuple[Where, ...]:
    return tuple(Where(one.names.index, tuple(doc.id for doc in one.documents), one.born) for one in place.units)


def spread(schema: TopicSchema) -> bool:
    """Whether the topic's rows lie in several indices."""
    return placement_of(schema).index is not None
