"""Capture with an outbox, and what the log has of its events."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from cdc.settings.implications import with_implied
from cdc.settings.outbox import Outbox
from tests.integration.capture.running import Capture

CREATE = (
    "create table outbox (id uuid primary key, aggregatetype text, aggregateid text, type text, payload jsonb, headers jsonb,"
    " created_at timestamptz default now())"
)
Change = tuple[int, str, dict[str, str | None]]


class OutboxCapture(Capture):
    def __init__(self, dsn: str, folder: Path, outbox: Outbox | None = None, **source: Any) -> None:
        super().__init__(dsn, folder, **source)
        # By itself nothing is removed: tests of that say so.
        chosen = outbox or Outbox(keep="")
        self.settings = with_implied(self.settings.model_copy(update={"outbox": chosen}))

    def event_topics(self) -> list[str]:
        return [name for name in self.topics() if name.startswith("outbox.")]

    def events(self, topic: str) -> list[Change]:
        return self.changes(topic)

    def ids(self, topic: str) -> list[str | None]:
        """In the log's order."""
        return [values["id"] for _, op, values in self.events(topic) if op == "c"]

    def positions(self) -> list[int]:
        """Of every change of every topic."""
        return sorted(
            position for topic in self.topics() for batch in self.batches(topic) for position in batch.column(0).to_pylist()
        )


def write(
    connection: psycopg.Connection[Any], route: str | None, key: str | None, payload: Any = None, type: str = "happened"
) -> str:
    """One row, in the transaction that is open, if one is. Returns its id."""
    id = str(uuid.uuid4())
    connection.execute(
        "insert into public.outbox (id, aggregatetype, aggregateid, type, payload) values (%s, %s, %s, %s, %s)",
        [id, route, key, type, Jsonb({} if payload is None else payload)],
    )
    return id
