"""The meaning of a topic's definitions, and of its changes as a whole, for look-ups as of a cut. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import pyarrow as pa

from cdc.model.batch import first_position, is_truncate, topic_schema
from cdc.model.evolution import topic_change_of
from cdc.model.topic import TopicSchema
from sinks.barrier import emptied
from sinks.reshape import rekeyed


class TurnEffect(StrEnum):
    """The fate of the rows before."""

    DEFINES = "defines"
    """Nothing: they stand under another definition."""
    EMPTIES = "empties"
    """They are gone."""
    REKEYS = "rekeys"
    """Other columns tell them apart: a chapter begins."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A place from which on ``schema`` is in force."""

    at: int
    effect: TurnEffect
    schema: TopicSchema


class RunStanding(NamedTuple):
    """How a topic stands at a position, and so how what follows is to be taken. ``chapter``: where the present one began; 0: the first.
    ``last``: position and LSN of its last change there; zeros: none."""

    at: int
    chapter: int
    held: TopicSchema | None
    last: tuple[int, int] = (0, 0)


class AsOf(NamedTuple):
    """The changes that count as of a cut: those behind ``floor`` in the runs of ``chapter``. ``shape``: the definition there; None: there is no table yet."""

    floor: int
    chapter: int
    shape: TopicSchema | None


BEGINNING = RunStanding(0, 0, None)


def turn_of(batch: pa.RecordBatch, held: TopicSchema | None) -> Turn | None:
    """The turn that this batch is, or that its first row shows; None where everything is as it was. ``held``: the definition before."""
    schema, change = topic_schema(batch.schema), topic_change_of(batch)
    at = first_position(batch)
    if is_truncate(batch) or (change is not None and emptied(held, change)):
        return Turn(at, TurnEffect.EMPTIES, schema)
    if change is not None and held is not None and (rekeyed(held, schema) or tells_rows_apart(held) != tells_rows_apart(schema)):
        # Also where the key's columns are the same: changes under a definition that does not tell rows apart have no entries.
        return Turn(at, TurnEffect.REKEYS, schema)
    return None if schema == held else Turn(at, TurnEffect.DEFINES, schema)


def as_of(turns: Sequence[Turn], cut: int) -> AsOf:
    """turns: in order, from the topic's beginning."""
    floor = chapter = 0
    shape = None
    for turn in turns:
        if turn.at > cut:
            break
        shape = turn.schema
        if turn.effect is TurnEffect.EMPTIES:
            floor = turn.at
        elif turn.effect is TurnEffect.REKEYS:
            chapter = turn.at
    return AsOf(floor, chapter, shape)


def definitions_between(turns: Iterable[Turn], after: int, upto: int) -> list[TopicSchema]:
    """The definitions that came into force in (after, upto], in order."""
    return [turn.schema for turn in turns if after < turn.at <= upto]


def tells_rows_apart(schema: TopicSchema) -> bool:
    """Whether a key is one row's: not where there is none, nor where it is the whole row, which may be there several times."""
    return bool(schema.key) and not (schema.identity == "row" and all(field.key for field in schema.fields))
