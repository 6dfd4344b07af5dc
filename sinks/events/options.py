"""The options that every kind of event store has."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from cdc.settings.models import StoreOptions

MB = 2**20
Body = Literal["payload", "change", "cloudevents"]
"""The form of an event's body."""


class EventOptions(StoreOptions):
    """What the events of a store look like, in which order they go, and where it begins."""

    renders = True

    body: Body | None = None
    """`payload`: what the application wrote, byte for byte, which only topics of events have; `change`: an object with `op`, `before`, `after`, `position`, `lsn` and
    `time`; `cloudevents`: a CloudEvent in JSON. Left out: `payload` of topics of events, `change` of tables."""
    begin: Literal["now", "start"] = "now"
    """Where the store begins when it is opened for the first time: with what comes from then on, or with the first change that the log has. The store notes it: later
    it makes no difference."""
    reads: bool | None = None
    """Whether rows that a snapshot reads are events, too (`op` is `read`). Left out: if `begin = "start"`."""
    staged_bytes: int = Field(64 * MB, ge=1)
    """Events that wait for their turn, in memory; beyond this they go to a temporary file."""
    workers_from_rows: int = Field(0, ge=0, le=0)
    """Never: events go in order."""

    @property
    def keys_apart(self) -> bool:
        return True

    @property
    def delivers_reads(self) -> bool:
        """Whether rows that a snapshot reads are events."""
        return self.begin == "start" if self.reads is None else self.reads

    def keeps(self, schema: object) -> bool:  # noqa: ARG002
        return False

    @model_validator(mode="after")
    def _hands_changes_on_as_they_are(self) -> Self:
        for pattern, options in self.choices:
            for key in ("where", "transform"):
                if getattr(options, key) is not None:
                    raise ValueError(f"tables.{pattern}.{key}: a store of kind {self.kind} hands changes on and holds no rows")
            if options.computed:
                raise ValueError(f"tables.{pattern}.computed: a store of kind {self.kind} hands changes on as they were made")
        if {self.schema_policy, *self.schema_for.values()} != {"apply"}:
            raise ValueError(
                f"a store of kind {self.kind} hands each change on under the definition that it was made with: "
                'it knows no other `schema` than "apply"'
            )
        return self
