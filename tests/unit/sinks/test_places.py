"""Rows that leave one place for another, as a store is given them: pure, over logs in memory, against a plain model."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from cdc.errors import ConfigError
from cdc.log.memory import MemoryLog
from cdc.model.batch import OP, POSITION, Op, is_truncate, topic_schema
from cdc.model.evolution import topic_change_of
from cdc.model.position import Lsn, Position
from cdc.model.topic import TopicSchema
from cdc.settings.models import StoreOptions
from sinks import options_model
from sinks.heldlog import HeldLog
from sinks.holding import bound, decoded, failures_of
from sinks.holdingchange import settled
from sinks.past import all_keys, live_rows
from sinks.render.rowtext import keys, row_text
from tests.contract.rows import Row, batch, schema, upserts
from tests.unit.sinks.test_formula import TOPIC, T, without


def options(key: str = "t:{status}:{id}", **said: Any) -> StoreOptions:
    return options_model("redis").model_validate(
        {"kind": "redis", "url": "redis://127.0.0.1:1", "tables": {"public.t": {"key": key, **said}}}
    )


def row(key: int, status: str | None, a: int | None = 6, b: int | None = 3) -> Row:
    return {"id": str(key), "status": status, "a": None if a is None else str(a), "b": None if b is None else str(b)}


class Story:
    """A log, and a store that holds it."""

    def __init__(self, said: StoreOptions | None = None) -> None:
        self.log = MemoryLog()
        self.writer = self.log.writer()
        self.held = HeldLog(self.log.reader(), "s", said or options())

    def commit(self, *changes: tuple[Op, Row]) -> None:
        first = int(self.writer.next_position)
        self.writer.append(batch(T, [(op, first + at, row) for at, (op, row) in enumerate(changes)]))
        self.writer.commit(Lsn(first * 10), 0)

    def given(self, after: int = 0, upto: int | None = None) -> list[tuple[int, str, str]]:
        """(position, operation, the key in the store)"""
        end = self.log.head.position if upto is None else Position(upto)
        found = []
        for changes in self.held.read("public.t", Position(after), end):
            names = keys(changes, topic_schema(changes.schema)).to_pylist()
            ops = [chr(op) for op in changes.column(OP).to_pylist()]
            found += list(zip(changes.column(POSITION).to_pylist(), ops, names, strict=True))
        return found


def test_a_row_that_moves_leaves_its_place_in_the_same_change() -> None:
    story = Story()
    story.commit((Op.INSERT, row(1, "new")), (Op.INSERT, row(2, "new")))
    story.commit((Op.UPDATE, row(1, "paid")), (Op.UPDATE, row(2, "new", 9)), (Op.UPDATE, row(1, None)), (Op.DELETE, row(2, None)))
    expected = [
        (1, "c", "1:new"),
        (2, "c", "2:new"),
        (3, "d", "1:new"),
        (3, "u", "1:paid"),
        (4, "u", "2:new"),
        (5, "d", "1:paid"),
        (5, "u", "1:\\N"),
        (6, "d", "2:new"),
    ]
    assert story.given() == expected
    for cut in range(7):
        assert story.given(0, cut) + story.given(cut) == expected, "however it is read"


def test_what_is_read_again_and_what_comes_back_has_one_place() -> None:
    story = Story()
    story.commit((Op.READ, row(1, "a")))
    story.commit((Op.READ, row(1, "b")), (Op.DELETE, row(1, None)), (Op.INSERT, row(1, "c")), (Op.DELETE, row(7, None)))
    assert story.given(1) == [(2, "d", "1:a"), (2, "r", "1:b"), (3, "d", "1:b"), (4, "c", "1:c"), (5, "d", "7:\\N")]


def test_after_a_truncate_there_was_nothing_before() -> None:
    story = Story()
    story.commit((Op.INSERT, row(1, "a")))
    story.writer.append(batch(T, [(Op.TRUNCATE, story.writer.next_position, {})]))
    story.writer.commit(Lsn(100), 0)
    story.commit((Op.INSERT, row(1, "b")), (Op.UPDATE, row(1, "c")))
    assert [one for one in story.given(2) if one[1] != "t"] == [(3, "c", "1:b"), (4, "d", "1:b"), (4, "u", "1:c")]


def test_a_row_that_is_left_out_by_then_leaves_the_place_that_it_had() -> None:
    story = Story(options(where="a > 5"))
    story.commit((Op.INSERT, row(1, "x")))
    story.commit((Op.UPDATE, row(1, "y", 0)), (Op.UPDATE, row(1, "z", 0)), (Op.UPDATE, row(1, "z", 7)))
    assert story.given(1) == [(2, "d", "1:x"), (2, "d", "1:y"), (3, "d", "1:y"), (3, "d", "1:z"), (4, "u", "1:z")]


def test_a_place_may_be_named_by_what_is_computed() -> None:
    story = Story(options("t:{half}:{id}", computed={"half": "a / b"}))
    story.commit((Op.INSERT, row(1, "x", 6, 3)))
    story.commit((Op.UPDATE, row(1, "x", 7, 3)), (Op.UPDATE, row(1, "x", 9, 3)), (Op.UPDATE, row(1, "x", 9, 0)))
    assert story.given(1) == [(2, "u", "1:2"), (3, "d", "1:2"), (3, "u", "1:3"), (4, "d", "1:3"), (4, "d", "1:\\N")]
    changes = next(iter(story.held.read("public.t", Position(3), Position(4))))
    assert failures_of(changes) == {1: "computed.half: division by zero (22012)"}
    story.commit((Op.UPDATE, row(1, "x", 8, 4)))
    assert story.given(4) == [(5, "d", "1:\\N"), (5, "u", "1:2")]
    assert not failures_of(next(iter(story.held.read("public.t", Position(4), Position(5)))))


def test_the_past_of_places() -> None:
    story = Story()
    story.commit((Op.INSERT, row(1, "a")), (Op.INSERT, row(2, "a")), (Op.UPDATE, row(1, "b")), (Op.UPDATE, row(1, "a", 1)))
    living = pa.Table.from_batches(list(live_rows(story.held, "public.t", story.log.head.position)))
    assert [(one["id"], one["status"], one["a"]) for one in living.to_pylist()] == [(2, "a", 6), (1, "a", 1)]
    had = {
        key
        for part in all_keys(story.held, "public.t", Position(0), story.log.head.position)
        for key in keys(part, topic_schema(part.schema)).to_pylist()
    }
    assert had == {"1:a", "2:a", "1:b"}


def test_changes_that_are_asked_for_by_their_positions_are_themselves() -> None:
    story = Story()
    story.commit((Op.INSERT, row(1, "a")), (Op.UPDATE, row(1, "b")))
    import numpy as np

    found = list(story.held.changes_at("public.t", np.array([2], np.int64)))
    assert [part.column(OP).to_pylist() for part in found] == [[Op.UPDATE]]


def histories(story: Story, chance: random.Random) -> Iterator[dict[int, str | None]]:
    """Random changes; after each commit, each row's status."""
    there: dict[int, str | None] = {}
    for _ in range(25):
        changes: list[tuple[Op, Row]] = []
        for _ in range(chance.randint(1, 6)):
            key, status = chance.randrange(5), chance.choice(["a", "b", ":", "\\", "", None])
            if chance.random() < 0.25:
                changes.append((Op.DELETE, row(key, None, None, None)))
                there.pop(key, None)
            else:
                op = chance.choice([Op.READ, Op.UPDATE if key in there else Op.INSERT])
                changes.append((op, row(key, status, chance.randrange(9))))
                there[key] = status
        story.commit(*changes)
        if chance.random() < 0.05:
            story.writer.append(batch(T, [(Op.TRUNCATE, story.writer.next_position, {})]))
            story.writer.commit(Lsn(int(story.writer.next_position) * 10), 0)
            there.clear()
        yield dict(there)


@pytest.mark.parametrize("round", range(6))
def test_a_store_of_places_holds_each_row_once(seed: int, round: int) -> None:
    """Applied one after the other, in pieces that end anywhere, some of them twice."""
    chance = random.Random(seed + round)
    story, applied = Story(), 0
    places: dict[str, str] = {}
    for there in histories(story, chance):
        head = int(story.log.head.position)
        while applied < head:
            upto = min(head, applied + chance.randint(1, 9))
            for _ in range(chance.randint(1, 2)):
                apply(places, story, applied, upto)
            applied = upto
        expected = {name_of(key, status): str(key) for key, status in there.items()}
        assert places == expected
        living = [part for part in live_rows(story.held, "public.t", story.log.head.position) if len(part)]
        assert {key for part in living for key in keys(part, topic_schema(part.schema)).to_pylist()} == set(expected)


def name_of(key: int, status: str | None) -> str:
    text = "\\N" if status is None else status.replace("\\", "\\\\").replace(":", "\\:")
    return f"{key}:{text}"


def apply(places: dict[str, str], story: Story, after: int, upto: int) -> None:
    for changes in story.held.read("public.t", Position(after), Position(upto)):
        if is_truncate(changes):
            places.clear()
            continue
        assert topic_change_of(changes) is None
        names, texts = keys(changes, topic_schema(changes.schema)), row_text(changes, topic_schema(changes.schema))
        for op, name, key in zip(changes.column(OP).to_pylist(), names.to_pylist(), texts.column("id").to_pylist(), strict=True):
            if op == int(Op.DELETE):
                places.pop(name, None)
            else:
                places[name] = key


def test_the_definition_by_which_nothing_told_rows_apart_has_no_places() -> None:
    import dataclasses

    keyless = TopicSchema.of(
        dataclasses.replace(T, identity="n", columns=tuple(dataclasses.replace(one, key=False) for one in T.columns))
    )
    some = bound("s", options(), TOPIC)
    assert [one.name for one in some.held(TOPIC).key] == ["id", "status"]
    assert some.held(keyless).key == ()
    assert decoded(some.text) == dataclasses.replace(some, store="")


def test_other_places_are_another_shape() -> None:
    before, after = bound("s", options(), TOPIC), bound("s", options("t:{a}:{id}"), TOPIC)
    with pytest.raises(ConfigError, match="places are named by a, and were not; places were named by status, and are not"):
        settled("s", TOPIC, before, after)
    assert settled("s", TOPIC, before, bound("s", options("other:{id}/{status}"), TOPIC)) == before
    assert not bound("s", options("t:{id}"), TOPIC).places


def test_a_column_of_a_place_keeps_its_name_and_a_log_that_has_let_changes_go_is_refused() -> None:
    with pytest.raises(ConfigError, match="status is part of the key in the store, which keeps its names; it cannot become state"):
        bound("s", options(rename={"status": "state"}), TOPIC).held(TOPIC)
    story = Story()
    story.commit((Op.INSERT, row(1, "a")), (Op.UPDATE, row(1, "b")), (Op.UPDATE, row(1, "c")))
    story.log.clean_from["public.t"] = Position(3)
    with pytest.raises(
        ConfigError, match=r"places of rows of public.t by status, which may change; but changes of it before position 3"
    ):
        story.held.check()


def test_a_column_that_comes_or_changes_its_type_does_not_lose_the_place() -> None:
    from cdc.model.pgtypes import TEXT

    story = Story(options("t:{a}:{id}"))
    story.commit((Op.INSERT, row(1, "x", 6)))
    text = without(a=TEXT)
    story.writer.append(schema(text, int(story.writer.next_position)))
    first = int(story.writer.next_position)
    story.writer.append(upserts(text, first, [row(1, "x", 7)]))
    story.writer.commit(Lsn(1000), 0)
    assert list(story.given(2)) == [(3, "d", "1:6"), (3, "c", "1:7")]
