"""A store's ledger: one hash beside the store's keys, lost and restored together with them. Pure: fields in, facts out.

=====================  ======================================================================================================
``log``, ``history``   where the keys come from (``cdc.model.lineage``); an empty ``log`` while the store is being erased
``epoch``              the highest of a writer
``position``, ``commit_lsn``, ``commit_ts_us``  the applied cut
``projection``         how rows become keys and values: JSON of the key template and of the form of values, and of the lane where there are several
``former``             JSON of the projections that the keys are being taken out of, while that is so
``at:TOPIC``           the table's progress: its changes up to this position are there
``shape:TOPIC``        the definition that its rows stand under, after the position of the change that made it so and a space
``coming:TOPIC``       the same of a change that is being carried out
``prefix:TOPIC``       what its keys begin with; missing where the template cannot name them
``base:TOPIC``         the position of the last change that replaced the table's set of keys: ``e`` (emptied) or ``r`` (rewritten) follows
``aside:TOPIC``        why the rows of this table are set aside
``rebuilding``         JSON of the ways in which rows may stand there, while the store is built again (``sinks.cache.erasure.Way``)
=====================  ======================================================================================================
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass, field
from typing import Any, Final

from cdc.model.position import START, ZERO_CUT, Cut, Lsn, Position
from cdc.model.selection import matches
from cdc.model.topic import TopicSchema
from sinks.cache.fence import Seen
from sinks.cache.lane import Lane
from sinks.contract import Shape

LOOK: Final = ("log", "history", "epoch", "position")
"""What every write looks at; the table's ``at`` comes after."""
REBUILDING: Final = "rebuilding"
CUT: Final = ("position", "commit_lsn", "commit_ts_us")

Fields = Mapping[str, str]


OF_LANE: Final = "/"
"""Stands in an owner's text between its store's name and the number of the lane."""
_STORES: Final = "cdc:stores"


def key_of(owner: str) -> str:
    """``owner``: a store's name, or as ``CacheGenerationNames.owner`` says it."""
    return _own(owner, "ledger")


def letters_of(owner: str) -> str:
    """The hash of what could not be held."""
    return _own(owner, "dead")


def nothing_of(owner: str) -> str:
    """A key that never exists, beside the ledger."""
    return _own(owner, "none")


def stores_of(owner: str) -> str:
    """A hash whose fields are the owners that have a ledger beside this one's: on the same server, or in the same slot."""
    lane = owner.partition(OF_LANE)[2]
    return f"cdc:{{{lane}}}:stores" if lane else _STORES


def _own(owner: str, what: str) -> str:
    """A key in the slot of the owner's rows, where they are all in one."""
    store, _, lane = owner.partition(OF_LANE)
    return f"cdc:{{{lane}}}:{store}:{what}" if lane else f"cdc:{{{store}}}:{what}"


INVALIDATE: Final = "invalidate"
"""A form of values: there are none. Each change deletes the row's key, which whoever reads it fills again."""


@dataclass(frozen=True, slots=True)
class TableRule:
    """How the rows of the tables of a pattern become keys and values; None: as the store's other tables do."""

    pattern: str
    key: str | None = None
    value: str | None = None
    ttl_ms: int | None = None


@dataclass(frozen=True, slots=True)
class TableProjection:
    """How a table's rows become keys and values."""

    key: str
    value: str
    ttl_ms: int = 0
    """A row lives so long from the commit of its last change; 0: until it is deleted."""

    @property
    def keeps(self) -> bool:
        """Whether there are rows of it."""
        return self.value != INVALIDATE


@dataclass(frozen=True, slots=True)
class Projection:
    """How a row becomes a key and its value."""

    key: str
    value: str
    shown: str = ""
    """What values look like beside that (``sinks.cache.values.shown``); empty: as they did before there were such rules."""
    tables: tuple[TableRule, ...] = ()
    """What is said of single tables; of several that match, the last that says anything counts."""
    lane: Lane | None = None
    """The only one whose rows are meant; None: all rows."""

    def of(self, schema: TopicSchema) -> TableProjection:
        """How this table's rows become keys and values."""
        mine = [one for one in self.tables if matches((one.pattern,), schema)]
        key = next((one.key for one in reversed(mine) if one.key is not None), self.key)
        value = next((one.value for one in reversed(mine) if one.value is not None), self.value)
        return TableProjection(key, value, next((one.ttl_ms for one in reversed(mine) if one.ttl_ms is not None), 0))

    def encode(self) -> str:
        raw: dict[str, Any] = {"key": self.key, "value": self.value, "shown": self.shown}
        if self.tables:
            raw["tables"] = [astuple(one) for one in self.tables]
        if self.lane is not None:
            raw["lane"] = astuple(self.lane)
        return json.dumps(raw, sort_keys=True, ensure_ascii=False)

    @classmethod
    def decode(cls, text: str) -> Projection:
        raw = json.loads(text)
        rules = tuple(TableRule(*one) for one in raw.get("tables", ()))
        return cls(raw["key"], raw["value"], raw.get("shown", ""), rules, Lane(*raw["lane"]) if "lane" in raw else None)


@dataclass(frozen=True, slots=True)
class Base:
    """The position at which the set of a table's keys was last replaced. ``rewritten``: by its rows then; else by nothing."""

    position: Position = START
    rewritten: bool = False

    def encode(self) -> str:
        return f"{self.position} {'r' if self.rewritten else 'e'}"

    @classmethod
    def decode(cls, text: str) -> Base:
        position, _, kind = text.partition(" ")
        return cls(Position(int(position)), kind == "r")


@dataclass(frozen=True, slots=True)
class CacheLedger:
    """As it was read. Raises ValueError, KeyError on reading what nobody here wrote."""

    log: str
    history: str
    epoch: int
    cut: Cut
    projection: Projection
    former: tuple[Projection, ...] = ()
    at: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, Shape] = field(default_factory=dict)
    coming: Mapping[str, Shape] = field(default_factory=dict)
    prefixes: Mapping[str, str] = field(default_factory=dict)
    bases: Mapping[str, Base] = field(default_factory=dict)
    aside: Mapping[str, str] = field(default_factory=dict)
    rebuilding: bool = False

    @classmethod
    def decode(cls, fields: Fields) -> CacheLedger:
        try:
            return cls._decoded(fields)
        except RecursionError:  # whoever can write to the server can put any JSON there
            raise ValueError("nested too deep") from None

    @classmethod
    def _decoded(cls, fields: Fields) -> CacheLedger:
        of = {kind: _of_topics(fields, kind) for kind in ("at", "shape", "coming", "prefix", "base", "aside")}
        return cls(
            fields["log"],
            fields["history"],
            int(fields["epoch"]),
            cut_of(fields),
            Projection.decode(fields["projection"]),
            tuple(map(Projection.decode, json.loads(fields.get("former", "[]")))),
            {topic: int(text) for topic, text in of["at"].items()},
            {topic: decode_shape(text) for topic, text in of["shape"].items()},
            {topic: decode_shape(text) for topic, text in of["coming"].items()},
            of["prefix"],
            {topic: Base.decode(text) for topic, text in of["base"].items()},
            of["aside"],
            REBUILDING in fields,
        )

    @property
    def furthest(self) -> Cut:
        """Beyond the applied cut lies what no commit has covered yet."""
        return Cut(Position(max([self.cut.position, *self.at.values()])), self.cut.commit_lsn, self.cut.commit_ts_us)

    @property
    def left(self) -> list[str]:
        """Tables that were taken out of the store's selection: their rows still stand there."""
        return sorted(self.shapes.keys() - self.at.keys() - self.prefixes.keys() - self.aside.keys())

    def whole(self, first_changes: Mapping[str, int]) -> Cut:
        """The cut that is applied, given each selected topic's first change: nothing, when one has changes before the cut and no progress of its own."""
        lacks = any(0 < first <= self.cut.position and topic not in self.at for topic, first in first_changes.items())
        return ZERO_CUT if lacks else self.cut


def fields_of(raw: Mapping[Any, Any]) -> dict[str, str]:
    """A hash as the client reads it."""
    return {name.decode(errors="replace"): text.decode(errors="replace") for name, text in raw.items()}


def epoch_of(fields: Fields) -> int:
    """The highest of a writer; 0 where there is no ledger, or a damaged one."""
    epoch = fields.get("epoch", "")
    return int(epoch) if epoch.isascii() and epoch.isdecimal() else 0


def cut_of(fields: Fields) -> Cut:
    position, lsn, ts = (int(fields[name]) for name in CUT)
    return Cut(Position(position), Lsn(lsn), ts)


def cut_fields(cut: Cut) -> dict[str, str]:
    return dict(zip(CUT, map(str, (int(cut.position), int(cut.commit_lsn), cut.commit_ts_us)), strict=True))


def beginning(log: str, history: str, epoch: int, projection: Projection) -> dict[str, str]:
    """A new ledger's fields."""
    return {"log": log, "history": history, "epoch": str(epoch), "projection": projection.encode(), **cut_fields(ZERO_CUT)}


def of_nobody(projection: Projection, topics: Iterable[TopicSchema]) -> dict[str, str]:
    """A ledger's fields by which ``erasure`` finds rows of these."""
    shapes = {f"shape:{schema.topic}": encode_shape(Shape(schema, START)) for schema in topics}
    return {"log": "", "projection": projection.encode(), **shapes}


def taken_over(
    held: CacheLedger, history: str, epoch: int, applied: Cut, selected: Callable[[str], bool]
) -> tuple[dict[str, str], list[str]]:
    """The changes that a new writer makes to a ledger: the fields to set, and those to remove.

    A table that is no longer selected loses its progress: should it be selected again, it has missed changes; and its keys are not the store's any more, so
    that another store may have them. A table without progress is brought everything again from its first change, so nothing of what it had become counts, least of
    all that it was once emptied: what a TRUNCATE before that takes away would not be looked for. Where the store goes back to a lower cut, each table keeps its
    progress as its own.
    """
    fields = {"history": history, "epoch": str(epoch)}
    if applied != held.cut:
        fields |= {f"at:{topic}": str(max(at, held.cut.position)) for topic, at in held.at.items() if selected(topic)}
        fields |= cut_fields(applied)
    left = [topic for topic in sorted(held.at.keys() | held.prefixes.keys()) if not selected(topic)]
    again = [topic for topic in sorted(held.shapes.keys() - held.at.keys()) if selected(topic)]
    gone = [f"{kind}:{topic}" for kind in ("at", "prefix") for topic in left]
    return fields, [*gone, *(f"{kind}:{topic}" for kind in ("shape", "coming", "prefix", "base", "aside") for topic in again)]


def encode_shape(shape: Shape) -> str:
    return f"{shape.position} {shape.schema.to_json()}"


def decode_shape(text: str) -> Shape:
    position, _, schema = text.partition(" ")
    return Shape(TopicSchema.from_json(schema), Position(int(position)))


def seen(answers: list[bytes | None]) -> Seen | None:
    """The answers to ``LOOK`` and a table's ``at``; None when there is no ledger. Raises ValueError for what nobody here wrote."""
    log, history, epoch, position, *rest = answers
    if log is None or history is None or epoch is None or position is None:
        return None
    at = rest[0] if rest else None
    return Seen(log.decode(), history.decode(), int(epoch), int(position), None if at is None else int(at))


def _of_topics(fields: Fields, kind: str) -> dict[str, str]:
    return {name.removeprefix(f"{kind}:"): text for name, text in fields.items() if name.startswith(f"{kind}:")}
