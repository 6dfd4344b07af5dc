"""One store's rules for schema changes, from its configuration, and which of them an operator has let through."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cdc.errors import Stopped, StopState
from cdc.follow.survey import Survey
from cdc.model.evolution import TopicChange
from cdc.model.position import Position
from cdc.model.topic import TopicSchema
from cdc.settings.models import Contract, SchemaPolicy, StoreOptions
from sinks.contract import Shape
from sinks.policy import Action, Verdict, judge
from sinks.reshape import same_origin


@dataclass(frozen=True, slots=True)
class SchemaPause:
    """A schema change that waits for an operator."""

    topic: str
    position: Position
    stopped: Stopped


@dataclass(frozen=True, slots=True)
class Rules:
    """``approved``: topic → the position up to which its schema changes have been let through (``cdc resume``)."""

    store: str
    options: StoreOptions
    contracts: Mapping[str, Contract] = field(default_factory=dict)
    approved: Mapping[str, int] = field(default_factory=dict)

    def policy(self, topic: str) -> SchemaPolicy:
        return self.options.policy(topic)

    def verdict(self, held: TopicSchema | None, change: TopicChange, position: int) -> Verdict:
        """The store's verdict on this change; ``held``: the definition that its rows stand under."""
        topic = change.schema.topic
        if self._let_through(topic, position):
            return judge(held, change, "apply")
        contract = self.contracts.get(topic)
        return judge(held, change, self.policy(topic), contract.require if contract is not None else ())

    def keeps_shape(self, held: TopicSchema, change: TopicChange, position: int) -> bool:
        """Whether rows go on in their former shape after this change."""
        topic = change.schema.topic
        return self.policy(topic) == "ignore" and not self._let_through(topic, position) and same_origin(held, change.schema)

    def first_pause(self, seen: Survey, shapes: Mapping[str, Shape | None]) -> SchemaPause | None:
        """The first change that stops the store. ``shapes``: of every topic with changes in the survey."""
        found = [pause for topic in seen.topics if (pause := self._pause(topic.changes, shapes.get(topic.topic))) is not None]
        return min(found, key=lambda pause: pause.position, default=None)

    def _pause(self, changes: list[tuple[Position, TopicChange]], shape: Shape | None) -> SchemaPause | None:
        held = None if shape is None else shape.schema
        for position, change in changes:
            if shape is not None and position <= shape.position:
                continue
            verdict = self.verdict(held, change, position)
            if verdict.stops:
                return SchemaPause(change.schema.topic, position, self.stopped(verdict, position))
            if verdict.action is not Action.IGNORE and not (held is not None and self.keeps_shape(held, change, position)):
                held = change.schema
        return None

    def stopped(self, verdict: Verdict, position: int) -> Stopped:
        state = StopState.CONTRACT_BROKEN if verdict.action is Action.BROKEN else StopState.SCHEMA_PAUSED
        message = f"store {self.store} waits before position {position}: {verdict.why}"
        return Stopped(state, message, hint=f"cdc resume {state}:follow-{self.store} applies the change")

    def _let_through(self, topic: str, position: int) -> bool:
        return position <= self.approved.get(topic, 0)
