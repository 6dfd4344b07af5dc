"""A sink's knowledge of its store: the ledger as it was read and, from there on, as this writer left it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from cdc.errors import ConfigError
from cdc.model.position import ZERO_CUT, Cut, Position
from cdc.model.topic import TopicSchema
from sinks.cache.generationnames import CacheGenerationNames
from sinks.cache.keytemplate import TableKeys, bind
from sinks.cache.ledger import Base, CacheLedger, Projection
from sinks.cache.transactions import Chain
from sinks.contract import Shape


@dataclass(slots=True)
class CacheStanding:
    """``applied`` may be lower than the ledger's cut for one who only reads: then a table lacks its past."""

    names: CacheGenerationNames
    projection: Projection
    applied: Cut = ZERO_CUT
    chains: dict[str, Chain] = field(default_factory=dict)
    shapes: dict[str, Shape] = field(default_factory=dict)
    coming: dict[str, Shape] = field(default_factory=dict)
    prefixes: dict[str, str] = field(default_factory=dict)
    bases: dict[str, Base] = field(default_factory=dict)
    aside: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    """What the keys of tables begin with that are no longer selected, and whose rows still stand there."""
    touched: set[str] = field(default_factory=set)
    """Tables that were written since the last commit."""
    _bound: dict[tuple[Projection, TopicSchema], TableKeys] = field(default_factory=dict)

    @classmethod
    def of(cls, names: CacheGenerationNames, held: CacheLedger, applied: Cut) -> CacheStanding:
        least = 0 if applied == held.cut else held.cut.position
        return cls(
            names,
            held.projection,
            applied,
            {topic: Chain(topic, at, max(at, least)) for topic, at in held.at.items()},
            dict(held.shapes),
            dict(held.coming),
            dict(held.prefixes),
            dict(held.bases),
            dict(held.aside),
            {topic: prefix for topic in held.left if (prefix := _prefix(held, topic)) is not None},
        )

    @property
    def store(self) -> str:
        """Whose the ledger is."""
        return self.names.owner

    def chain(self, topic: str) -> Chain:
        return self.chains.setdefault(topic, Chain(topic))

    def progress(self, topic: str) -> Position:
        chain = self.chains.get(topic)
        return Position(max(self.applied.position, chain.upto if chain is not None else 0))

    def holds(self, topic: str) -> bool:
        """Whether the store has keys for this table: then it must be able to name them."""
        return topic in self.prefixes

    def keys(self, schema: TopicSchema, projection: Projection | None = None) -> TableKeys:
        """Raises ConfigError when the template cannot name the table's rows."""
        which = (projection or self.projection, schema)
        if which not in self._bound:
            self._bound[which] = bind(which[0].of(schema).key, schema, which[0].lane)
        return self._bound[which]

    def keys_there(self, schema: TopicSchema) -> TableKeys | None:
        """None where the table's rows are set aside: what has the names of its keys is another table's."""
        with suppress(ConfigError):
            return None if schema.topic in self.aside else self.keys(schema)
        return None

    def check(self, schema: TopicSchema, prefixes: dict[str, str] | None = None) -> TableKeys:
        """The table's keys. Raises ConfigError when there are none, or when one of them could be another table's, another generation's, the
        pointer or a ledger."""
        keys = self.keys(schema)
        keys.check_reserved()
        self.names.refuse(keys)
        for other, prefix in ({**self.left, **self.prefixes} if prefixes is None else prefixes).items():
            if other != schema.topic and (prefix.startswith(keys.prefix) or keys.prefix.startswith(prefix)):
                raise could_be_the_same(self.store, schema.topic, other)
        return keys

    def refuse_misplaced(self) -> None:
        """Raises ConfigError where rows that are there already stand where ``check`` would let none: a pointer was not said yet."""
        for topic in self.prefixes:
            self.names.refuse(self.keys(self.shapes[topic].schema))


def _prefix(held: CacheLedger, topic: str) -> str | None:
    try:
        schema = held.shapes[topic].schema
        return bind(held.projection.of(schema).key, schema, held.projection.lane).prefix
    except ConfigError:
        return None


def could_be_the_same(store: str, one: str, other: str) -> ConfigError:
    return ConfigError(
        f"store {store}: keys of {one} and {other} could be the same",
        hint='put {schema} and {table} into `key`, each followed by ":"',
    )
