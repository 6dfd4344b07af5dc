"""The statement that an index keeps about itself: how far it holds its table, and when that is believed. Pure.

Each shard of a table's index carries a hidden document, its *standing*: the mark (log, history, cut), the position of the table's last
TRUNCATE, and the definition that the rows stand under. All of that can be lost and restored with the index only, and together. A shard
is what OpenSearch loses, copies and restores by itself: a snapshot is of one moment within a shard, not across them. Where a table's rows are spread
over several indices (``sinks.search.spread``), the shards of all of them are those of one: the home index says which parts there are.

A standing is changed only from the state that this process has read or written last (``conditional``), first before the first rows of each
stretch of writing and again at its end. So what was lost between the two, however it was lost, is noticed:

- an older copy, or an index that somebody else has written, has another document, and the second change is refused;
- a copy from in between, a stale primary, or a node that lost the end of its translog begins a new *primary term*: the second change names the
  term that the first was made in, and counts only where it was made in the same one;
- an index that was filled from another (reindex, clone, split) has another date of creation: nothing in it counts, for such a copy has lost
  the rows' versions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from cdc.log.contract import LogReader, Topic
from cdc.model.lineage import Lineage, Mark, believed
from cdc.model.position import START, ZERO_CUT, Cut, Lsn, Position
from cdc.model.topic import TopicSchema
from sinks.contract import Shape
from sinks.followedlog import refuse_missed
from sinks.render.jsonrows import DELETED
from sinks.search.conditional import Stand

FIELD: Final = "%standing"
"""No column becomes a field of this name (``naming.field_names``)."""
MAPPING: Final[Mapping[str, Any]] = {FIELD: {"type": "object", "enabled": False}}


def standing_id(number: int) -> str:
    """No row's id begins with a backslash and an @ (``rowtext.keys``)."""
    return f"\\@{number}"


@dataclass(frozen=True, slots=True)
class Beside:
    """The other indices that a table's rows lie in. ``parts``: of a home index, the names of its parts; ``home``: of a part, the alias of its home index."""

    parts: tuple[str, ...] = ()
    home: str = ""


@dataclass(frozen=True, slots=True)
class Standing:
    """The content of one shard's document. ``since``: the cut before the stretch that is being, or was last, written."""

    store: str
    topic: str
    born: str
    """The index's date of creation. A snapshot keeps it."""
    mark: Mark
    since: Cut
    reach: Position
    """No row stands beyond this position, also while a stretch is being written."""
    floor: Position
    """The position of the topic's last TRUNCATE; 0 without one."""
    shape: Shape | None
    shape_since: Position
    """The shape's position before that stretch."""
    writing: bool = False
    """A stretch has begun and not ended."""
    building: bool = False
    """It is not to be used yet, if at all: its rows are being written from the log."""
    beside: Beside = Beside()

    @property
    def shape_at(self) -> Position:
        return START if self.shape is None else self.shape.position

    @classmethod
    def first(cls, store: str, schema: TopicSchema, lineage: Lineage) -> Standing:
        """An index without rows says this."""
        zero = Position(0)
        return cls(store, schema.topic, "", lineage.mark(ZERO_CUT), ZERO_CUT, zero, zero, Shape(schema, zero), zero)

    def begun(self, lineage: Lineage, reach: int) -> Standing:
        """Before the first rows of a stretch, which go as far as ``reach``."""
        further = Position(max(reach, self.reach))
        return replace(
            self, mark=lineage.mark(self.mark.cut), since=self.mark.cut, reach=further, shape_since=self.shape_at, writing=True
        )

    def ended(self, lineage: Lineage, cut: Cut) -> Standing:
        """Once everything up to the cut has been written."""
        mark = max(self.mark.cut, cut, key=order)
        return replace(self, mark=lineage.mark(mark), reach=Position(max(self.reach, mark.position)), writing=False)


@dataclass(frozen=True, slots=True)
class IndexCopy:
    """One shard's document as it was read."""

    standing: Standing
    shards: int
    written_in: int | None
    """The primary term that it must have been written in to count; None: in any."""
    stand: Stand

    @property
    def begun_in(self) -> int:
        """The primary term that the stretch began in."""
        return self.stand.term if self.written_in is None else self.written_in

    @property
    def counts(self) -> bool:
        return self.written_in is None or self.written_in == self.stand.term


def document(standing: Standing, nonce: str, shards: int, written_in: int | None = None) -> dict[str, Any]:
    """The document of one shard. It passes for a deleted row, so that nobody finds it."""
    mark, shape = standing.mark, standing.shape
    said = {
        "store": standing.store,
        "table": standing.topic,
        "born": standing.born,
        "log": mark.log,
        "history": mark.history,
        "cut": _numbers(mark.cut),
        "since": _numbers(standing.since),
        "reach": standing.reach,
        "floor": standing.floor,
        "shape": None if shape is None else shape.schema.to_json(),
        "shape_position": 0 if shape is None else shape.position,
        "shape_since": standing.shape_since,
        "writing": standing.writing,
        "building": standing.building,
        "nonce": nonce,
        "shards": shards,
        "term": written_in,
    }
    if standing.beside.parts:
        said["parts"] = list(standing.beside.parts)
    if standing.beside.home:
        said["part_of"] = standing.beside.home
    return {DELETED: True, FIELD: said}


def nonce_of(source: Mapping[str, Any]) -> str:
    return str(source.get(FIELD, {}).get("nonce", ""))


def copy_of(found: Mapping[str, Any]) -> IndexCopy | None:
    """A document as ``_mget`` gives it; None when there is none."""
    if not found.get("found"):
        return None
    said = found["_source"].get(FIELD)
    try:
        shape = None if said["shape"] is None else Shape(TopicSchema.from_json(said["shape"]), Position(said["shape_position"]))
        standing = Standing(
            store=str(said["store"]),
            topic=str(said["table"]),
            born=str(said["born"]),
            mark=Mark(str(said["log"]), str(said["history"]), _cut(said["cut"])),
            since=_cut(said["since"]),
            reach=Position(int(said["reach"])),
            floor=Position(int(said["floor"])),
            shape=shape,
            shape_since=Position(int(said["shape_since"])),
            writing=bool(said["writing"]),
            building=bool(said["building"]),
            beside=Beside(tuple(str(name) for name in said.get("parts", ())), str(said.get("part_of", ""))),
        )
        stand = Stand(str(said["nonce"]), int(found["_seq_no"]), int(found["_primary_term"]))
        return IndexCopy(standing, int(said["shards"]), None if said["term"] is None else int(said["term"]), stand)
    except (KeyError, TypeError, ValueError, json.JSONDecodeError):
        return None  # not what we wrote: as good as lost


@dataclass(frozen=True, slots=True)
class Whole:
    """The statement of all shards of an index together. ``claims``: to be believed, every one of them (the history and how far rows reach)."""

    standing: Standing
    claims: frozenset[Mark]


def whole_of(copies: Sequence[IndexCopy | None], born: str) -> Whole | None:
    """Reads what an index states, given the documents of all of its shards; None when that does not count: one is missing, or it is not the
    index that they were written in."""
    here = [copy for copy in copies if copy is not None]
    if not here or len(here) < len(copies) or any(copy.shards != len(copies) or copy.standing.born != born for copy in here):
        return None
    said = [_what_counts(copy) for copy in here]
    found = [standing for standing in said if standing is not None]
    if len(found) < len(said):
        return None
    reaching = (replace(one.mark, cut=Cut(max(one.reach, one.mark.cut.position), Lsn(0))) for one in found)
    return Whole(_together(found), frozenset(reaching))


def spread_whole(home: Whole | None, parts: Mapping[str, Whole | None]) -> Whole | None:
    """Reads what a table's home index and all parts beside it (by their names) say together; None when one of them is missing or does not count."""
    if home is None or not home.standing.beside.parts:
        return home
    beside = [parts.get(name) for name in home.standing.beside.parts]
    there = [home, *(one for one in beside if one is not None)]
    if len(there) <= len(beside):
        return None
    mine = replace(_together([one.standing for one in there]), born=home.standing.born, beside=home.standing.beside)
    return Whole(mine, frozenset().union(*(one.claims for one in there)))


def _together(found: Sequence[Standing]) -> Standing:
    least = min(found, key=lambda standing: standing.mark.cut.position)
    shape = min((standing.shape for standing in found), key=lambda shape: -1 if shape is None else shape.position)
    return replace(
        least,
        reach=max(standing.reach for standing in found),
        shape=shape,
        floor=max(standing.floor for standing in found),
        writing=any(standing.writing for standing in found),
        building=any(standing.building for standing in found),
    )


def _what_counts(copy: IndexCopy) -> Standing | None:
    """None where rows may be missing that the shape is said to stand for."""
    standing = copy.standing
    if copy.counts:
        return standing
    if standing.building or standing.shape_at != standing.shape_since:
        return None
    return replace(standing, mark=replace(standing.mark, cut=standing.since))


@dataclass(frozen=True, slots=True)
class HeldExtent:
    """The extent of what a store holds: ``applied`` is the highest cut that all of it holds; ``held``: per topic how far its own rows are there."""

    applied: Cut
    held: Mapping[str, Position]


def holding(
    log: LogReader, lineage: Lineage, store: str, claimed: Mark | None, topics: Sequence[Topic], said: Mapping[str, Whole]
) -> HeldExtent:
    """Compares what the ledger claims (None: it is lost, or was never there) with what the indices say and with the log.

    Raises Stopped as ``believed`` and ``refuse_missed`` do.
    """
    for topic, whole in said.items():
        for mark in whole.claims:
            believed(mark, lineage, f"the index of {topic} in store {store}")
    for one in topics:
        if (there := said.get(one.name)) is not None:
            written = [mark.history for mark in there.claims if mark.cut.position]
            refuse_missed(one, there.standing.mark.cut.position, written, lineage, f"the index of {one.name} in store {store}")
    cuts = {topic: whole.standing.mark.cut for topic, whole in said.items()}
    claim = max(cuts.values(), key=order, default=ZERO_CUT) if claimed is None else believed(claimed, lineage, f"store {store}")
    applied, held = claim, dict[str, Position]()
    for topic in (one.name for one in topics):
        cut = cuts.get(topic, ZERO_CUT)
        if log.last_change(topic, claim.position) <= cut.position:
            held[topic] = max(claim.position, cut.position)
        else:
            held[topic] = cut.position
            applied = min(applied, cut, key=order)
    return HeldExtent(applied, held)


def order(cut: Cut) -> tuple[int, int]:
    return cut.position, cut.commit_lsn


def _numbers(cut: Cut) -> list[int]:
    return [cut.position, cut.commit_lsn, cut.commit_ts_us]


def _cut(numbers: Sequence[int]) -> Cut:
    position, lsn, ts = numbers
    return Cut(Position(int(position)), Lsn(int(lsn)), int(ts))
