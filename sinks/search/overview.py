"""A look at all indices of a store: how much of its ledger's claim they hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from cdc.log.contract import Topic, selected
from cdc.model.lineage import Mark, believed
from cdc.model.position import ZERO_CUT
from cdc.model.topic import TopicSchema
from sinks.followedlog import Followed
from sinks.search import conditional
from sinks.search.indices import Found, Indices, by_alias
from sinks.search.names import NUMBERED, Places, places
from sinks.search.standing import HeldExtent, Standing, copy_of, holding, spread_whole, whole_of
from sinks.search.statements import DOING


@dataclass(frozen=True, slots=True)
class Where:
    """Where one of a table's indices says something of itself."""

    index: str
    ids: tuple[str, ...]
    born: str


class Overview:
    """``template`` and ``patterns``: how indices are called, and of which tables there are any."""

    def __init__(self, indices: Indices, followed: Followed, template: str, patterns: Sequence[str]) -> None:
        self.seen: dict[str, Standing] = {}
        """Topic → what its index said when it was looked last."""
        self._live: dict[str, tuple[Where, ...]] = {}
        self._indices = indices
        self._followed = followed
        self._template = template
        self._patterns = patterns

    def topics(self) -> Sequence[Topic]:
        """Those of the log that the store holds."""
        return selected(self._followed.log, self._patterns)

    def names(self, schema: TopicSchema) -> Places:
        found = places(self._template, schema)
        return replace(found, alias=self._indices.shown.names.own(found.alias))

    def uses(self, topic: str, where: tuple[Where, ...]) -> None:
        """The topic's rows are in these indices from now on, of which the first is its home where there are several."""
        self._live[topic] = where

    def look(self, claimed: Mark | None, *, point: bool) -> HeldExtent:
        """Finds how much of its ledger's claim the store really holds. ``point``: aliases that an operator has moved are put right.

        Raises Stopped when an index is fed by another log or holds a history that this log never had.
        """
        lineage = self._followed.lineage()
        found = self._indices.all()
        for one in found:
            if one.owner is not None and self._indices.mine(one):
                believed(
                    Mark(one.owner.log, lineage.history, ZERO_CUT),
                    lineage,
                    f"the index {one.called} of store {self._indices.cluster.store}",
                )
        together = by_alias(found)
        topics = self.topics()
        said = {}
        self._live.clear()
        for topic in topics:
            alias = self.names(topic.schema).alias
            live = self._indices.live(alias, together.get(alias, ()), topic.name)
            if live is not None and live.said and live.whole is not None:
                said[topic.name] = live.whole
                if point:
                    self._indices.point(live, [*together[alias], *together.get(self._indices.shown.names.searched(alias), ())])
                self._live[topic.name] = where_of(live)
        self.seen = {topic: whole.standing for topic, whole in said.items()}
        return holding(self._followed.log, lineage, self._indices.cluster.store, claimed, topics, said)

    def glance(self, claimed: Mark | None) -> HeldExtent:
        """The same of the indices that were there when it was looked last, in one request: what was created or moved since is not noticed."""
        wanted = [(one.index, identity) for units in self._live.values() for one in units for identity in one.ids]
        docs = iter(conditional.read(self._indices.cluster, DOING, wanted))
        said = {}
        for topic, units in self._live.items():
            home, *parts = [(one, whole_of([copy_of(next(docs)) for _ in one.ids], one.born)) for one in units]
            whole = spread_whole(home[1], {self._part(one): found for one, found in parts})
            if whole is not None and not whole.standing.building:
                said[topic] = whole
        lineage, topics = self._followed.lineage(), self.topics()
        return holding(self._followed.log, lineage, self._indices.cluster.store, claimed, topics, said)

    def _part(self, where: Where) -> str:
        return self._indices.shown.names.searched(where.index.rpartition(NUMBERED)[0])


def where_of(live: Found) -> tuple[Where, ...]:
    return tuple(Where(one.index, one.ids, one.born) for one in live.units)
