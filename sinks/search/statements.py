"""How what an index says of itself is written (``standing``): before the rows of a stretch, at its end, and where it changes as a whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from cdc.crashpoint import crashpoint
from cdc.errors import StoreError
from cdc.model.position import Cut, Position
from cdc.model.topic import TopicSchema
from sinks.followedlog import Followed
from sinks.search import conditional
from sinks.search.conditional import Change, Conflict, Guarded, word
from sinks.search.names import Places
from sinks.search.standing import Beside, Standing, document, nonce_of
from sinks.search.wire import Cluster

DOING: Final = "writing what the index says of itself"


@dataclass(slots=True)
class IndexUnit:
    """One index of a table's: its only one, its home, or a part beside that.

    ``documents``: what it says of itself, one for each shard; ``born``: when it was created; ``part``: the name of a part; ``part_of``: the alias of its home.
    """

    names: Places
    documents: list[Guarded]
    born: str
    part: str = ""
    part_of: str = ""

    @property
    def writer(self) -> str:
        """The alias through which documents are written."""
        return self.documents[0].alias

    def write_through(self, alias: str) -> None:
        for one in self.documents:
            one.alias = alias

    def own(self, standing: Standing) -> Standing:
        """The table's standing as this index says it."""
        if not self.part:
            return standing
        return replace(standing, born=self.born, beside=Beside(home=self.part_of))


@dataclass(slots=True)
class Place:
    """One table's index, as this process knows it; where rows are spread over several, the first is its home, and the others are its parts. ``terms``: the
    primary terms in which a stretch of writing began; None: none has."""

    schema: TopicSchema
    units: list[IndexUnit]
    standing: Standing
    terms: tuple[int, ...] | None = None
    sent: WrittenStatement | None = None
    """What was sent last, and may or may not have been taken."""

    @property
    def names(self) -> Places:
        return self.units[0].names

    @property
    def documents(self) -> list[Guarded]:
        """The documents of all of its indices."""
        return [one for unit in self.units for one in unit.documents]

    @property
    def writer(self) -> str:
        return self.units[0].writer

    @property
    def parts(self) -> Mapping[str, IndexUnit]:
        """By their names."""
        return {unit.part: unit for unit in self.units if unit.part}

    @property
    def floor(self) -> int:
        return self.standing.floor


@dataclass(frozen=True, slots=True)
class WrittenStatement:
    """A standing that is on its way into all shards' documents."""

    place: Place
    standing: Standing
    changes: tuple[Change, ...]
    begins: bool = False


class Statements:
    """Writes those of the places in ``known``: topic → its index, as this process knows it. One thread only.

    After a StoreError the store is opened again; nothing that ``known`` says counts until then.
    """

    def __init__(self, cluster: Cluster, followed: Followed) -> None:
        self.known: dict[str, Place] = {}
        self._cluster = cluster
        self._followed = followed

    @property
    def begun(self) -> list[Place]:
        """Where a stretch of writing has begun."""
        return [place for place in self.known.values() if place.terms is not None]

    def begin(self, place: Place, reach: int) -> WrittenStatement:
        """Before rows up to the position ``reach`` are written: to be sent before them, or in the same request. In the middle of a stretch it
        says that they go further than was said."""
        lineage = self._followed.lineage()
        if place.terms is not None:
            return self.written(place, replace(place.standing, reach=Position(max(reach, place.standing.reach))))
        return replace(self.written(place, place.standing.begun(lineage, reach)), begins=True)

    def end(self, place: Place, cut: Cut) -> WrittenStatement:
        """The stretch ends at this cut: to be sent once its rows have been taken. Where none has begun, nothing had to be written up to there,
        and one change says so: like the first of a stretch it is taken only by the index that this process knows."""
        lineage, standing = self._followed.lineage(), place.standing
        if place.terms is None:
            standing = standing.begun(lineage, standing.reach)
        return self.written(place, standing.ended(lineage, cut))

    def say(self, place: Place, reach: int, **changed: Any) -> None:
        """Writes what has changed in the standing but for its cut, such as its floor or its shape, once all that it stands for is written."""
        begun = self.begin(place, reach)
        written = self.written(place, replace(begun.standing, **changed))
        self.tell(replace(written, begins=begun.begins))

    def begin_alone(self, place: Place, reach: int) -> None:
        """Sends what ``begin`` says, and returns once it was taken."""
        self.tell(self.begin(place, reach))

    def finish(self, written: WrittenStatement) -> None:
        """All of its documents have been taken. Raises StoreError (retryable) when that was by other primaries than the stretch began with:
        they may lack rows, so what was written does not count."""
        place, now = written.place, tuple(term_of(one) for one in written.place.documents)
        place.sent = None
        if place.terms is not None and place.terms != now:
            self.known.pop(place.schema.topic, None)
            raise Conflict(self._cluster.store, place.names.index, "lost a primary shard, or is another copy")
        place.standing = written.standing
        if written.begins:
            place.terms = now
        elif not written.standing.writing:
            place.terms = None

    def settle(self, place: Place) -> None:
        """Finds out what became of a write whose answer was lost. Raises Conflict when only some of its documents were taken."""
        if place.sent is None or all(one.attempt is None for one in place.documents):
            place.sent = None
            return
        taken = conditional.settle(self._cluster, DOING, place.documents, nonce_of)
        if all(taken):
            self.finish(place.sent)
        elif any(taken):
            raise Conflict(self._cluster.store, place.names.index, "was written in part")
        place.sent = None

    def send(self, written: Sequence[WrittenStatement], *others: Change) -> None:
        """All of it in one request. Raises StoreError when a part was not taken."""
        failure: StoreError | None = None
        for one in written:
            one.place.sent = one
        try:
            conditional.send(self._cluster, DOING, [*(change for one in written for change in one.changes), *others])
        except StoreError as error:
            failure = error
        for one in written:
            if all(change.taken for change in one.changes):
                try:
                    self.finish(one)
                except Conflict as error:
                    failure = failure or error
        if failure is not None:
            raise failure

    def written(self, place: Place, standing: Standing) -> WrittenStatement:
        """To be sent."""
        nonce, changes = word(), list[Change]()
        terms = iter(place.terms or (None,) * len(place.documents))

        def content(unit: IndexUnit, term: int | None) -> Callable[[str], dict[str, Any]]:
            own, count = unit.own(standing), len(unit.documents)
            return lambda nonce: document(own, nonce, count, term)

        for unit in place.units:
            changes += [Change(one, content(unit, next(terms)), nonce) for one in unit.documents]
        return WrittenStatement(place, standing, tuple(changes))

    def first(self, unit: IndexUnit, standing: Standing) -> None:
        """A new part says for the first time what the others of its place do. Raises Conflict when somebody else has made it, or deleted it, meanwhile."""
        own, count = unit.own(standing), len(unit.documents)
        nonce = word()
        changes = [Change(one, lambda nonce: document(own, nonce, count), nonce) for one in unit.documents]
        conditional.send(self._cluster, DOING, changes)

    def tell(self, written: WrittenStatement) -> None:
        """Sends it, and returns once it was taken."""
        crashpoint("search.standing.before_write")
        self.send([written])
        crashpoint("search.standing.written")


def term_of(one: Guarded) -> int:
    assert one.stand is not None
    return one.stand.term
