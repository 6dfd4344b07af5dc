"""A view's topic gets another key, or other types, before a SQL store that keeps every version, or marks what is deleted: against a model of both."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pytest

from cdc.inbox.definition import fields_of, numbered, rekeyed, table_for
from cdc.model.batch import first_position
from cdc.model.evolution import topic_change_of
from cdc.model.topic import TopicSchema
from sinks.contract import Sink
from tests.contract.labs import Lab
from tests.contract.test_marks import apply
from tests.contract.test_rebuild import rebuild
from tests.contract.test_sinks import held
from tests.integration.sqllabs import Ask, ask, lab
from tests.redefining import RedefinedTopic, Values

__all__ = ["ask", "lab"]

KEPT: Final[Mapping[str, Any]] = {"tables": {"views.*": {"history": True}}}
MARKED: Final[Mapping[str, Any]] = {"deleted": "is_deleted"}
Spans = Callable[[], list[tuple[Any, ...]] | None]
SHAPES: Final[Sequence[tuple[pa.Schema, Sequence[str]]]] = (
    (pa.schema([("id", pa.int64()), ("place", pa.utf8()), ("amount", pa.int64())]), ["id"]),
    (pa.schema([("id", pa.int64()), ("place", pa.utf8()), ("amount", pa.utf8())]), ["id"]),
    (pa.schema([("id", pa.int64()), ("place", pa.utf8()), ("amount", pa.decimal128(12, 2))]), ["id"]),
    (pa.schema([("id", pa.utf8()), ("place", pa.utf8()), ("amount", pa.int64())]), ["id"]),
    (pa.schema([("id", pa.int32()), ("place", pa.utf8()), ("amount", pa.int64())]), ["id"]),
    (pa.schema([("place", pa.utf8()), ("n", pa.int64())]), ["place"]),
    (pa.schema([("id", pa.int64()), ("place", pa.utf8()), ("amount", pa.int64())]), ["id", "place"]),
)


def drawn(schema: pa.Schema, key: Sequence[str], dice: random.Random, most: int) -> list[Values]:
    """Rows of few values, no two of one key."""
    found: dict[tuple[Any, ...], Values] = {}
    for _ in range(most):
        row = {one.name: _value(one, one.name in key, dice) for one in schema}
        found[tuple(row[name] for name in key)] = row
    return list(found.values())


def _value(one: pa.Field, key: bool, dice: random.Random) -> Any:
    number = dice.randrange(4)
    if not key and number == 0:
        return None
    return (
        f"t{number}"
        if pa.types.is_string(one.type) and one.name != "amount"
        else (str(number) if pa.types.is_string(one.type) else number)
    )


@dataclass
class Versions:
    """What a history has to be. Each version: position → the values as texts by column number, and where it ended."""

    open: dict[tuple[str, ...], tuple[dict[int, str | None], int]] = field(default_factory=dict)
    closed: list[tuple[dict[int, str | None], int, int]] = field(default_factory=list)

    def end(self, key: tuple[str, ...], position: int) -> None:
        if (known := self.open.pop(key, None)) is not None:
            self.closed.append((*known, position))

    def spans(self) -> list[tuple[int, int | None]]:
        return sorted(
            [(begin, None) for _, begin in self.open.values()] + [(begin, end) for _, begin, end in self.closed], key=repr
        )


class Stored:
    """The topic in one store, beside what has to come of it."""

    def __init__(self, lab: Lab, sink: Sink) -> None:
        self.lab, self.sink = lab, sink
        self.topic = RedefinedTopic(lab.log)
        self.rows: dict[tuple[str, ...], Values] = {}
        self.versions = Versions()

    def rekeys(self, schema: pa.Schema, key: Sequence[str]) -> bool:
        """Whether all rows go with it."""
        known = self.topic.known
        return known is not None and rekeyed(known, numbered(table_for("views.v", list(schema), key), known, 1))

    def brings(self, schema: pa.Schema, key: Sequence[str], rows: Sequence[Values], gone: Sequence[Values] = ()) -> None:
        empties = self.rekeys(schema, key)
        made = self.topic.brings(schema, key, rows, gone)
        for one in made:
            apply(self.sink, one)
        self.sink.commit(self.lab.log.head)
        if empties:
            assert topic_change_of(made[0]) is not None
            for name in list(self.rows):
                self.versions.end(name, first_position(made[0]))
            self.rows.clear()
        assert self.topic.known is not None
        numbers = {column.name: column.attnum for column in self.topic.known.columns}
        position = first_position(made[-1])
        for at, row in enumerate(rows, position):
            name = tuple(str(row[one]) for one in key)
            texts = {numbers[one.name]: _text(row[one.name], one) for one in schema}
            before = self.versions.open.get(name)
            if before is None or any(before[0].get(number) != text for number, text in texts.items()):
                self.versions.end(name, at)
                self.versions.open[name] = texts, at
            self.rows[name] = row
        for at, row in enumerate(gone, position + len(rows)):
            name = tuple(str(row[one]) for one in key)
            self.versions.end(name, at)
            self.rows.pop(name)

    def leaves(self, schema: pa.Schema, key: Sequence[str], rows: Sequence[Values], most: int) -> list[Values]:
        """So many at most of those that are there and not in the group, as it deletes them."""
        named = {tuple(str(row[one]) for one in key) for row in rows}
        found = [row for name, row in self.rows.items() if name not in named]
        return [dict.fromkeys(schema.names) | {one: row[one] for one in key} for row in found[:most]]

    def equal(self) -> None:
        assert self.topic.known is not None
        schema, known = pa.schema(fields_of(self.topic.known)), TopicSchema.of(self.topic.known)
        texts = pa.RecordBatch.from_pylist(
            [{one.name: _text(row[one.name], one) for one in schema} for row in self.rows.values()],
            pa.schema([(one.name, pa.utf8()) for one in schema]),
        )
        meant = sorted(self.sink.as_held(texts, known).to_pylist(), key=lambda row: [str(row[one.name]) for one in known.key])
        assert held(self.sink, self.topic.known) == meant


def _text(value: Any, one: pa.Field) -> str | None:
    if value is None:
        return None
    return f"{value}.00" if pa.types.is_decimal(one.type) else str(value)


def random_definitions(lab: Lab, dice: random.Random, spans: Spans, options: Mapping[str, Any], steps: int) -> None:
    """Redefines the topic over and over, and compares each time. ``spans``: what there is of the history; None: none."""
    stored = Stored(lab, lab.opened(**options))
    at = 0

    def equal() -> None:
        stored.equal()
        if (found := spans()) is not None:
            assert sorted(found, key=repr) == stored.versions.spans()

    for _ in range(steps):
        anew = stored.topic.known is None or dice.random() < 0.6
        at = dice.randrange(len(SHAPES)) if anew else at
        schema, key = SHAPES[at]
        rows = drawn(schema, key, dice, 6 if anew else 3)
        gone = [] if stored.rekeys(schema, key) else stored.leaves(schema, key, rows, 100 if anew else 1)
        stored.brings(schema, key, rows, gone)
        equal()
        if dice.random() < 0.3:
            stored.sink = lab.opened(**options)
    stored.sink = rebuild(lab, **options)
    equal()


@pytest.mark.parametrize("options", [KEPT, {**KEPT, **MARKED}], ids=["history", "history and deleted"])
def test_rows_and_versions_are_those_of_a_model_after_each_redefinition(
    lab: Lab, ask: Ask, seed: int, options: Mapping[str, Any]
) -> None:
    history = "select valid_from_position, valid_to_position from views.v_history"
    random_definitions(lab, random.Random(seed), lambda: ask(history), options, 10)
