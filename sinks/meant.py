"""A column as a store's configuration names it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from cdc.model.topic import TopicField, TopicSchema


@dataclass(frozen=True, slots=True)
class Meant:
    """A column as the configuration names it, and the number of the field that this was; 0: not known."""

    name: str
    number: int = 0

    def among(self, schema: TopicSchema, origin: str) -> TopicField | None:
        """The field that is meant; ``origin``: of the rows that the numbers are of."""
        if self.number and schema.origin == origin:
            for one in schema.fields:
                if one.origin == self.number:
                    return one
        return next((one for one in schema.fields if one.name == self.name), None)
