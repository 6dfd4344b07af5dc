"""The effect of a schema change on one store: decided in one place, for followers and for ``cdc plan`` alike. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from cdc.model.evolution import Kind, TopicChange, differences
from cdc.model.topic import TopicField, TopicSchema
from cdc.settings.models import SchemaPolicy
from sinks.barrier import RowsBefore, emptied, rows_before_change
from sinks.reshape import rekeyed, same_origin


class Action(StrEnum):
    """The action of a store when it comes to the change."""

    NOTHING = "nothing"
    EVOLVE = "evolve in place"
    """Its place takes the new definition; the rows that are there stay as they are."""
    REWRITE = "rewrite rows"
    """As ``EVOLVE``, and every row that is there is written again under the new definition."""
    EMPTY = "empty"
    """Every row goes; those that the source has follow as reads."""
    IGNORE = "ignore"
    """Rows go on in the former shape."""
    PAUSE = "pause"
    BROKEN = "contract broken"


@dataclass(frozen=True, slots=True)
class Verdict:
    action: Action
    why: str
    """What changes, in words: names of tables and columns, nothing else."""

    @property
    def stops(self) -> bool:
        return self.action in (Action.PAUSE, Action.BROKEN)


def judge(held: TopicSchema | None, change: TopicChange, policy: SchemaPolicy, required: Sequence[str] = ()) -> Verdict:
    """held: the definition that the store's rows stand under (None: it has none yet). ``required``: what its contract wants.

    The contract counts whatever the policy: it is broken when a required column was there and no longer is.
    """
    why = described(held, change)
    there = () if held is None else {column.column_name for column in held.fields}
    gone = [name for name in required if name in there and name not in remaining(change)]
    if gone:
        return Verdict(Action.BROKEN, f"{why}; its contract requires {', '.join(gone)}")
    if held is None:
        return Verdict(Action.EMPTY if change.empties else Action.NOTHING, why)
    life = change.kind in (Kind.DROPPED, Kind.RENAMED, Kind.UNPUBLISHED) or not same_origin(held, change.schema)
    altered = life or bool(differences(held, change.schema))
    if policy == "pause" and altered:
        return Verdict(Action.PAUSE, why)
    if life:
        return Verdict(Action.EMPTY if emptied(held, change) else Action.NOTHING, why)
    if policy == "ignore" and altered:
        if rekeyed(held, change.schema):
            return Verdict(Action.PAUSE, f"{why}; without its former key, rows cannot go on in their former shape")
        return Verdict(Action.EMPTY if change.empties else Action.IGNORE, why)
    return Verdict(_ACTIONS[rows_before_change(held, change)] if altered or emptied(held, change) else Action.NOTHING, why)


_ACTIONS: Final = {RowsBefore.GONE: Action.EMPTY, RowsBefore.AGAIN: Action.REWRITE, RowsBefore.KEPT: Action.EVOLVE}


def remaining(change: TopicChange) -> tuple[str, ...]:
    """The columns, by their names at the source, that rows have from here on; none for a table that is gone."""
    gone = change.kind in (Kind.DROPPED, Kind.RENAMED)
    return () if gone else tuple(column.column_name for column in change.schema.fields)


def described(held: TopicSchema | None, change: TopicChange) -> str:
    """One clause a column: "public.orders: drops note, renames total to amount"."""
    table = change.schema.topic
    if change.kind is Kind.RENAMED:
        return f"{table}: goes on as {change.now}" if change.now else f"{table}: has another name"
    if change.kind is Kind.DROPPED:
        return f"{table}: is dropped"
    if change.kind is Kind.UNPUBLISHED:
        return f"{table}: has left the publication"
    if held is None or not same_origin(held, change.schema):
        return f"{table}: is a new table"
    clauses = [clause for found in differences(held, change.schema) for clause in _clauses(found.old, found.new)]
    if held.identity != change.schema.identity and not clauses:
        clauses.append("has another replica identity")
    if change.kind is Kind.REWRITTEN or change.empties:
        clauses.append("its rows are read again")
    return f"{table}: {', '.join(clauses) or 'no column changes'}"


def _clauses(old: TopicField | None, new: TopicField | None) -> list[str]:
    if old is None or new is None:
        return [f"adds {new.name}"] if new is not None else [f"drops {old.name}"] if old is not None else []
    found = [f"renames {old.name} to {new.name}"] if old.name != new.name else []
    if (old.source_type, old.type_name) != (new.source_type, new.type_name):
        found.append(f"changes the type of {new.name}")
    elif old.structure != new.structure:
        found.append(f"changes what the type of {new.name} is made of")
    elif old.outline != new.outline:
        found.append(f"changes what documents in {new.name} are made of")
    if old.key != new.key:
        found.append(f"{'takes' if new.key else 'no longer takes'} {new.name} into the key")
    return found
