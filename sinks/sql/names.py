"""Names in the target database: quoted, and where a topic's table stands. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final, Self

from cdc.errors import ConfigError
from cdc.model.topic import TopicSchema

TEMPLATE: Final = "{schema}"
LEDGER_SCHEMA: Final = "headwater_stores"
"""Not ``headwater``: that one belongs to the source's owner where the source is the target, too."""
IDENTITY: Final = "_cdc_key"
"""The column of a digest of the whole row, in the table of a topic whose rows nothing else tells apart."""
GONE: Final = "_cdc_deleted"
"""In what was staged for one statement: the row goes."""
NUMBER: Final = "_cdc_number"
"""There, too: which of the rows it is, from 0."""
LONGEST: Final = 63
"""NAMEDATALEN - 1, in bytes: Postgres cuts longer names without an error."""
_SIGN: Final = "Headwater: "


def quoted(name: str) -> str:
    """The name as SQL has it, whatever is in it."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """The text as a string constant, whatever ``standard_conforming_strings`` says."""
    escaped = text.replace("'", "''").replace("\\", "\\\\")
    return f"E'{escaped}'" if "\\" in text else f"'{escaped}'"


@dataclass(frozen=True, slots=True)
class TargetPlace:
    """A table's schema and name in the target database."""

    schema: str
    name: str

    @property
    def sql(self) -> str:
        return f"{quoted(self.schema)}.{quoted(self.name)}"

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


def place_of(schema: TopicSchema, template: str) -> TargetPlace:
    """Where the topic's table stands. Raises ConfigError for a name that the database would cut, or that is ours."""
    place = TargetPlace(template.replace(TEMPLATE, schema.namespace), schema.name)
    too_long = next((name for name in (place.schema, place.name, *schema.names) if len(name.encode()) > LONGEST), None)
    if too_long is not None:
        raise ConfigError(
            f"{schema.topic}: Postgres has no name of more than {LONGEST} bytes, as {too_long} is", hint="give it a shorter one"
        )
    if place.schema in (LEDGER_SCHEMA, "information_schema", "pg_catalog") or place.schema.startswith("pg_"):
        raise ConfigError(
            f"{schema.topic} would stand in the schema {place.schema}", hint='set namespace = "copy_{schema}" for this store'
        )
    return place


@dataclass(frozen=True, slots=True)
class TableSign:
    """The statement of a table, in its comment, whose it is, so that one that was restored, or whose ledger was lost, is known as ours."""

    store: str
    topic: str
    log: str
    number: int = 0
    """What tells the table from another one at its place, in a database that has no such number itself; 0: none."""

    def text(self) -> str:
        raw = {"store": self.store, "topic": self.topic, "log": self.log}
        return _SIGN + json.dumps(raw | ({"number": self.number} if self.number else {}), ensure_ascii=False)

    @classmethod
    def of(cls, comment: str | None) -> Self | None:
        """None for a table that is not ours."""
        if comment is None or not comment.startswith(_SIGN):
            return None
        try:
            raw = json.loads(comment[len(_SIGN) :])
            return cls(raw["store"], raw["topic"], raw["log"], raw.get("number", 0))
        except (ValueError, KeyError, TypeError):
            return None
