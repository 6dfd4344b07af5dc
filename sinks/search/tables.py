"""This process's knowledge of each table's index, and how it writes what the index says of itself (``standing``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from cdc.crashpoint import crashpoint
from cdc.errors import StoreError
from cdc.log.contract import LogReader, Topic, selected
from cdc.model.batch import ALONE, OP
from cdc.model.lineage import Lineage, Mark, believed
from cdc.model.position import START, ZERO_CUT, Cut, Position
from cdc.model.table import Table
from sinks.contract import Shape
from sinks.render.jsonrows import Style
from sinks.search import conditional
from sinks.search.conditional import Change, Conflict, Guarded, word
from sinks.search.indices import Found, Indices, by_alias
from sinks.search.naming import Places, places
from sinks.search.standing import Holding, Standing, copy_of, document, holding, nonce_of, whole_of
from sinks.search.wire import Cluster

_DOING: Final = "writing what the index says of itself"


@dataclass(slots=True)
class Place:
    """One table's index, as this process knows it. ``terms``: the primary terms in which a stretch of writing began; None: none has."""

    table: Table
    names: Places
    documents: list[Guarded]
    """What the index says of itself: one document for each shard."""
    standing: Standing
    terms: tuple[int, ...] | None = None
    sent: Written | None = None
    """What was sent last, and may or may not have been taken."""

    @property
    def writer(self) -> str:
        """The alias through which documents are written."""
        return self.documents[0].alias

    def write_through(self, alias: str) -> None:
        for one in self.documents:
            one.alias = alias

    @property
    def floor(self) -> int:
        return self.standing.floor


@dataclass(frozen=True, slots=True)
class Where:
    """Where a table's index says something of itself."""

    index: str
    ids: tuple[str, ...]
    born: str


@dataclass(frozen=True, slots=True)
class Written:
    """A standing that is on its way into all shards' documents."""

    place: Place
    standing: Standing
    changes: tuple[Change, ...]
    begins: bool = False


class Tables:
    """The tables of one store and their indices. One thread only.

    After a StoreError the store is opened again; nothing that ``known`` says counts until then.
    """

    def __init__(
        self,
        cluster: Cluster,
        template: str,
        patterns: Sequence[str],
        settings: Callable[[], dict[str, Any]],
        style: Callable[[Table], Style],
    ) -> None:
        """``style``: how a table's documents are written."""
        self.style = style
        self.indices = Indices(cluster, style)
        self.applied: Cut = ZERO_CUT
        self.held: dict[str, Position] = {}
        self.known: dict[str, Place] = {}
        self.failed: set[str] = set()
        """The topics of which a batch was not taken, as far as is known."""
        self._seen: dict[str, Standing] = {}
        self._relied_on: dict[str, Position] = {}
        """How far each shape reaches that was given: changes before it are not brought again."""
        self._live: dict[str, Where] = {}
        self._cluster = cluster
        self._template = template
        self._patterns = patterns
        self._settings = settings
        self._writing = False
        self._log: LogReader | None = None
        self._lineage: Lineage | None = None

    def open(self, log: LogReader, lineage: Lineage, *, writing: bool) -> None:
        """Forgets what was known of the store. ``writing``: a log that has begun another history since is refused (``lineage``)."""
        self._log, self._lineage, self._writing = log, lineage, writing
        self.indices.log = lineage.log
        self.known.clear()
        self.failed.clear()
        self._relied_on.clear()

    @property
    def begun(self) -> list[Place]:
        """Where a stretch of writing has begun."""
        return [place for place in self.known.values() if place.terms is not None]

    @property
    def log(self) -> LogReader:
        """Raises StoreError (retryable) before ``open``."""
        if self._log is None:
            raise StoreError(f"store {self._cluster.store} is not open", retryable=True)
        return self._log

    def lineage(self) -> Lineage:
        """The log's. For a writer it raises StoreError when it is no longer the one that the store was opened with."""
        now = self.log.lineage()
        if now is None or (now != self._lineage and self._writing):
            raise StoreError(f"store {self._cluster.store}: the log has begun another history: it is opened again", retryable=True)
        return now

    # -- looking ------------------------------------------------------------------------------------------------------

    def look(self, claimed: Mark | None, *, point: bool) -> Holding:
        """Finds how much of its ledger's claim the store really holds. ``point``: aliases that an operator has moved are put right.

        Raises Stopped when an index is fed by another log or holds a history that this log never had.
        """
        lineage = self.lineage()
        found = self.indices.all()
        for one in found:
            if one.owner is not None and self.indices.mine(one):
                believed(
                    Mark(one.owner.log, lineage.history, ZERO_CUT), lineage, f"the index {one.index} of store {self._cluster.store}"
                )
        together = by_alias(found)
        topics = selected(self.log, self._patterns)
        said = {}
        self._live.clear()
        for topic in topics:
            alias = places(self._template, topic.table).alias
            live = self.indices.live(alias, together.get(alias, ()), topic.name)
            if live is not None and live.said and live.whole is not None:
                said[topic.name] = live.whole
                if point:
                    self.indices.point(live, together[alias])
                self._live[topic.name] = _where(live)
        self._seen = {topic: whole.standing for topic, whole in said.items()}
        return holding(self.log, lineage, self._cluster.store, claimed, [topic.name for topic in topics], said)

    def glance(self, claimed: Mark | None) -> Holding:
        """The same of the indices that were there when it was looked last, in one request: what was created or moved since is not noticed."""
        wanted = [(one.index, identity) for one in self._live.values() for identity in one.ids]
        docs = iter(conditional.read(self._cluster, _DOING, wanted))
        said = {}
        for topic, one in self._live.items():
            whole = whole_of([copy_of(next(docs)) for _ in one.ids], one.born)
            if whole is not None and not whole.standing.building:
                said[topic] = whole
        topics = [topic.name for topic in selected(self.log, self._patterns)]
        return holding(self.log, self.lineage(), self._cluster.store, claimed, topics, said)

    def shape(self, topic: str) -> Shape | None:
        """The definition that the table's documents have, and since when; None for a table that the store does not hold."""
        standing = self.known[topic].standing if topic in self.known else self._seen.get(topic)
        if standing is not None and standing.shape_at > START:
            self._relied_on[topic] = max(self._relied_on.get(topic, START), standing.shape_at)
        return None if standing is None else standing.shape

    def held_of(self, topic: str) -> Position:
        """The position up to which the store holds the table."""
        return max(self.held.get(topic, Position(0)), self.applied.position)

    # -- places -------------------------------------------------------------------------------------------------------

    def place(self, table: Table) -> Place:
        """As known, else as ``prepare`` finds or makes it; raises what that does."""
        return self.known.get(table.qualified) or self.prepare(table)

    def find(self, table: Table) -> Found | None:
        """The table's index, if there is one."""
        alias = places(self._template, table).alias
        return self.indices.live(alias, self.indices.of(alias), table.qualified)

    def prepare(self, table: Table) -> Place:
        """Makes the index, or looks at it again and gives it the fields that it lacks. Raises StoreError (retryable) when somebody keeps deleting it."""
        names, topic = places(self._template, table), table.qualified
        for _ in range(2):
            found = self.indices.of(names.alias)
            self.indices.refuse(names.alias, found, topic)
            live = self.indices.live(names.alias, found, topic)
            if live is not None and live.said:
                place = self.adopt(live, table)
                self.indices.evolve(live, table)
                self.indices.point(live, found)
                return place
            self._make(names, table, live)
        raise StoreError(f"store {self._cluster.store}: the index of {topic} keeps being deleted", retryable=True)

    def adopt(self, live: Found, table: Table) -> Place:
        """Goes on from what the index says. Raises StoreError (retryable) when it lacks what this process has taken for held."""
        assert live.whole is not None
        assert live.places is not None
        topic, standing, known = table.qualified, live.whole.standing, self.known.get(table.qualified)
        stands = [copy.stand for copy in live.copies if copy is not None]
        terms = None
        if known is not None and known.terms is not None:
            if [one.stand for one in known.documents] != stands:
                raise self._lost(topic)
            terms = known.terms
        for claim in live.whole.claims:
            believed(claim, self.lineage(), f"the index of {topic} in store {self._cluster.store}")
        behind = self.log.last_change(topic, self.applied.position) > standing.mark.cut.position
        if behind or standing.shape_at < self._relied_on.get(topic, START):
            raise self._lost(topic)
        writer = self.indices.writer(live, live.places)
        documents = [Guarded(writer, live.index, i, stand) for i, stand in zip(live.ids, stands, strict=True)]
        place = self.known[topic] = Place(table, live.places, documents, standing, terms)
        self._live[topic] = _where(live)
        self.held[topic] = max(self.applied.position, standing.mark.cut.position)
        return place

    def _make(self, names: Places, table: Table, live: Found | None) -> None:
        topic = table.qualified
        known = self.known.pop(topic, None)
        relied_on = topic in self._relied_on or self.log.last_change(topic, self.applied.position) > 0
        if relied_on or (known is not None and known.terms is not None):
            raise self._lost(topic)
        if live is not None:
            # Half made, or a copy of which nobody can say what it holds.
            self.indices.delete([live.index])
        self.indices.create(names, table, self._settings())
        self._begin_to_exist(names, table, Standing.first(self._cluster.store, table, self.lineage()))

    def _begin_to_exist(self, names: Places, table: Table, standing: Standing) -> Place | None:
        """Gives a new index its documents; None when somebody else has removed it already."""
        made = next((one for one in self.indices.of(names.alias) if one.index == names.index), None)
        if made is None:
            return None
        standing = replace(standing, born=str(made.held["settings"]["index"]["creation_date"]))
        documents = [Guarded(self.indices.writer(made, names), made.index, identity) for identity in made.ids]
        place = Place(table, names, documents, standing)
        try:
            self._tell(self._written(place, standing))
        except Conflict:
            return None  # another process has made it
        return place

    def building(self, old: Place, table: Table, position: int) -> Place:
        """The next generation of the index, which takes rows and is not used before ``built``."""
        fresh = replace(old.names, generation=old.names.generation + 1)
        if any(one.index == fresh.index and one.said and fresh.alias in one.aliases for one in self.indices.of(fresh.alias)):
            raise self._lost(table.qualified)  # a later writer has built it and uses it
        self.indices.delete([fresh.index])  # what an attempt before this one has left
        self.indices.create(fresh, table, self._settings(), aliased=False)
        standing = replace(old.standing.begun(self.lineage(), position), building=True)
        place = self._begin_to_exist(fresh, table, standing)
        if place is None:
            raise self._lost(table.qualified)
        place.terms = tuple(_term(one) for one in place.documents)
        return place

    def built(self, old: Place, fresh: Place) -> None:
        """The alias of the table's documents leads to ``fresh`` from now on, and ``old`` is gone."""
        self.indices.swap(old.names, fresh.names, fresh.table.qualified)
        topic, standing = fresh.table.qualified, fresh.standing
        self.known[topic] = fresh
        self._live[topic] = Where(fresh.names.index, tuple(one.id for one in fresh.documents), standing.born)

    # -- what an index says -------------------------------------------------------------------------------------------

    def begin(self, place: Place, reach: int) -> Written:
        """Before rows up to the position ``reach`` are written: to be sent before them, or in the same request. In the middle of a stretch it
        says that they go further than was said."""
        lineage = self.lineage()
        if place.terms is not None:
            return self._written(place, replace(place.standing, reach=Position(max(reach, place.standing.reach))))
        return replace(self._written(place, place.standing.begun(lineage, reach)), begins=True)

    def end(self, place: Place, cut: Cut) -> Written:
        """The stretch ends at this cut: to be sent once its rows have been taken. Where none has begun, nothing had to be written up to there,
        and one change says so: like the first of a stretch it is taken only by the index that this process knows."""
        lineage, standing = self.lineage(), place.standing
        if place.terms is None:
            standing = standing.begun(lineage, standing.reach)
        return self._written(place, standing.ended(lineage, cut))

    def say(self, place: Place, reach: int, **changed: Any) -> None:
        """Writes what has changed in the standing but for its cut, such as its floor or its shape, once all that it stands for is written."""
        begun = self.begin(place, reach)
        written = self._written(place, replace(begun.standing, **changed))
        self._tell(replace(written, begins=begun.begins))

    def begin_alone(self, place: Place, reach: int) -> None:
        """Sends what ``begin`` says, and returns once it was taken."""
        self._tell(self.begin(place, reach))

    def finish(self, written: Written) -> None:
        """All of its documents have been taken. Raises StoreError (retryable) when that was by other primaries than the stretch began with:
        they may lack rows, so what was written does not count."""
        place, now = written.place, tuple(_term(one) for one in written.place.documents)
        place.sent = None
        if place.terms is not None and place.terms != now:
            self.known.pop(place.table.qualified, None)
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
        taken = conditional.settle(self._cluster, _DOING, place.documents, nonce_of)
        if all(taken):
            self.finish(place.sent)
        elif any(taken):
            raise Conflict(self._cluster.store, place.names.index, "was written in part")
        place.sent = None

    def join(self, cut: Cut) -> None:
        """Takes over the stretches that other processes have begun on this one's behalf, up to the cut."""
        for topic in self._not_begun(cut):
            live = self.find(topic.table)
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
            if place is None and (live := self.find(topic.table)) is not None and live.said:
                place = self._adopt_as_it_is(live, topic)
            if place is not None:
                found.append(place)
        return found

    def _not_begun(self, cut: Cut) -> Iterator[Topic]:
        """The topics with changes up to the cut that the store does not hold, and that no stretch of this process covers."""
        for topic in selected(self.log, self._patterns):
            known, held = self.known.get(topic.name), self.held_of(topic.name)
            if topic.last <= held or (known is not None and known.terms is not None):
                continue
            if self.log.last_change(topic.name, cut.position) > held:
                if topic.name in self.failed:
                    raise self._lost(topic.name)
                yield topic

    def _changed_as_a_whole(self, topic: str, cut: Cut) -> bool:
        changes = self.log.read(topic, self.held_of(topic), cut.position)
        return any(batch.column(OP)[0].as_py() in ALONE for batch in changes)

    def _adopt_as_it_is(self, live: Found, topic: Topic) -> Place:
        """Under the definition that its documents have, which need not be the log's newest."""
        shape = live.whole and live.whole.standing.shape
        return self.adopt(live, shape.table if shape else topic.table)

    def send(self, written: Sequence[Written], *others: Change) -> None:
        """All of it in one request. Raises StoreError when a part was not taken."""
        failure: StoreError | None = None
        for one in written:
            one.place.sent = one
        try:
            conditional.send(self._cluster, _DOING, [*(change for one in written for change in one.changes), *others])
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

    def _written(self, place: Place, standing: Standing) -> Written:
        nonce, count = word(), len(place.documents)
        terms = place.terms or (None,) * count

        def content(term: int | None) -> Callable[[str], dict[str, Any]]:
            return lambda nonce: document(standing, nonce, count, term)

        changes = tuple(Change(one, content(term), nonce) for one, term in zip(place.documents, terms, strict=True))
        return Written(place, standing, changes)

    def _tell(self, written: Written) -> None:
        crashpoint("search.standing.before_write")
        self.send([written])
        crashpoint("search.standing.written")

    def _lost(self, topic: str) -> StoreError:
        self.known.pop(topic, None)
        return StoreError(
            f"store {self._cluster.store}: the index of {topic} was deleted, or is an older copy: it is filled again from the log",
            retryable=True,
        )


def _where(live: Found) -> Where:
    return Where(live.index, live.ids, str(live.held["settings"]["index"]["creation_date"]))


def _term(one: Guarded) -> int:
    assert one.stand is not None
    return one.stand.term
