"""``where`` and ``computed`` in a store's configuration, the same in every kind: which rows are held, what is computed of them, and what becomes of a row that fails."""

from __future__ import annotations

import dataclasses
from binascii import crc_hqx
from collections.abc import Mapping
from typing import Any

import pytest

from cdc.errors import StoreError
from cdc.follow.apply import Prepared, apply_range
from cdc.follow.letters import Deciding
from cdc.follow.rules import Rules
from cdc.follow.survey import survey
from cdc.model.batch import Op
from cdc.model.evolution import Kind
from cdc.model.pgtypes import INT4, INT8, TEXT
from cdc.model.position import Position
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from cdc.state.letterrequests import LetterAnswer, LetterRequest, Verb
from sinks import deadletters, options_model
from sinks.contract import Deferring, Outcome
from sinks.deadletters import LetterBox, LetterState, box_of
from tests.contract.labs import LANES, Lab
from tests.contract.rows import Row, batch, schema, upserts
from tests.contract.test_holding import HeldStore
from tests.contract.test_rebuild import rebuild
from tests.logs import cut

TABLE = Table(
    16800,
    "public",
    "people",
    (
        Column("id", INT8, key=True, attnum=1),
        Column("status", TEXT, attnum=2),
        Column("a", INT4, attnum=3),
        Column("b", INT4, attnum=4),
        Column("note", TEXT, attnum=5),
    ),
)
LATER = dataclasses.replace(TABLE, columns=tuple(one for one in TABLE.columns if one.name != "note"))
SAID: Mapping[str, Any] = {"where": "status = 'x'", "computed": {"ratio": "a / b"}, "exclude": ["b"], "rename": {"ratio": "r"}}
TOPIC = "public.people"


def row(key: int, status: str | None = "x", a: str | None = "6", b: str | None = "3") -> dict[str, str | None]:
    return {"id": str(key), "status": status, "a": a, "b": b, "note": "n"}


class Followed(HeldStore):
    """As its follower applies what is in the log."""

    def __init__(self, lab: Lab, **said: Any) -> None:
        super().__init__(lab, **said)
        given = {"kind": lab.kind, **lab._options, "tables": {TOPIC: said}}
        self.rules = Rules(lab.name, options_model(lab.kind).model_validate(given))
        self.prepared = Prepared()

    def take(self, upto: int) -> Outcome:
        """Everything up to there that it does not have yet; not committed."""
        self._lab.log.reach(cut(upto))
        seen = survey(self.log, {TOPIC: self.sink.held(TOPIC)}, Position(upto))
        return apply_range(self.sink, self.log, seen, self.prepared, self.rules)

    def takes(self, *changes: Any) -> Outcome:
        for one in changes:
            self._lab.log.put(one)
        upto = changes[-1].column(0)[-1].as_py()
        outcome = self.take(upto)
        self.commit(upto)
        return outcome

    @property
    def box(self) -> LetterBox:
        found = box_of(self.sink)
        assert found is not None
        return found

    @property
    def letters(self) -> list[tuple[int, LetterState]]:
        return sorted((int(one.position), one.state) for one in self.box.letters())

    def decide(self, verb: Verb, position: int, **values: str | None) -> LetterAnswer:
        request = LetterRequest(verb, [f"{TOPIC}@{position}"], "ops", values)
        (answer,) = Deciding(self.sink, self.box, self.log, self.sink.applied()).answers(request)
        return answer


def test_the_store_holds_the_rows_of_which_the_condition_is_true(lab: Lab) -> None:
    store = Followed(lab, **SAID)
    outcome = store.takes(upserts(TABLE, 1, [row(1), row(2, "y"), row(3, None), row(4)]))
    assert (outcome.written + outcome.stale, outcome.dead) == (4, ())
    assert store.log.held(TopicSchema.of(TABLE)).names == ("id", "status", "a", "note", "r")
    store.expect(TABLE, [row(1), row(2, "y"), row(3, None), row(4)])
    # One leaves, one enters, one is deleted, one stays, one changes its key.
    store.takes(
        batch(
            TABLE,
            [
                (Op.UPDATE, 5, row(1, "y")),
                (Op.UPDATE, 6, row(2)),
                (Op.DELETE, 7, row(3)),
                (Op.UPDATE, 8, row(4, a="9")),
                (Op.DELETE, 9, row(4)),
                (Op.UPDATE, 10, row(5, a="9")),
            ],
        )
    )
    store.expect(TABLE, [row(1, "y"), row(2), row(5, a="9")])
    store.takes(schema(LATER, 11))
    rows: list[Row] = [{name: one[name] for name in LATER.names} for one in (row(1, "y"), row(2), row(5, a="9"))]
    store.expect(LATER, rows)
    if lab.readable:
        assert [one["r"] for one in sorted(_held(store, LATER), key=str)] == ["2", "3"], "what is computed outlasts a rewriting"
        again = Followed(lab, **SAID)
        again.takes(batch(LATER, [(Op.UPDATE, 12, {**rows[0], "status": "x"}), (Op.UPDATE, 13, {**rows[1], "status": "z"})]))
        again.expect(LATER, [{**rows[0], "status": "x"}, {**rows[1], "status": "z"}, rows[2]])
        again.takes(batch(LATER, [(Op.TRUNCATE, 14, {})]))
        again.expect(LATER, [])


def _held(store: HeldStore, table: Table) -> list[Mapping[str, str | None]]:
    store.sink.make_visible()
    return [one for part in store.sink.scan(store.log.held(TopicSchema.of(table))) for one in part.to_pylist()]


def _ids(store: HeldStore, table: Table = TABLE) -> list[str]:
    return sorted(str(one["id"]) for one in _held(store, table))


@pytest.fixture
def failed(lab: Lab) -> Followed:
    """Row 2 fails at position 4, after the store has held it."""
    if lab.kind in ("iceberg", "console"):
        pytest.skip("keeps no dead letters")
    store = Followed(lab, **SAID)
    store.takes(upserts(TABLE, 1, [row(1), row(2), row(3, "y", b="0")]))
    outcome = store.takes(batch(TABLE, [(Op.UPDATE, 4, row(2, b="0")), (Op.UPDATE, 5, row(1, a="9"))]))
    assert [(one.table, one.position, one.reason) for one in outcome.dead] == [
        (TOPIC, 4, "computed.ratio: division by zero (22012)")
    ]
    assert outcome.written + outcome.stale == 1
    return store


def test_a_row_that_fails_is_a_dead_letter_and_those_around_it_go_on(lab: Lab, failed: Followed) -> None:
    assert (_ids(failed), failed.letters) == (["1"], [(4, LetterState.ASIDE)])
    again = Followed(lab, **SAID)
    assert again.letters == failed.letters, "whoever opens the store knows it"
    again.takes(batch(TABLE, [(Op.UPDATE, 6, row(2, b="2")), (Op.UPDATE, 7, row(1, b="0"))]))
    assert (_ids(again), again.letters) == (["2"], [(7, LetterState.ASIDE)]), "a later change of the row ends its letter"


@pytest.mark.parametrize("ends", ["delete", "leaves", "truncate", "fails again", "dropped"])
def test_what_ends_its_letter(failed: Followed, ends: str) -> None:
    if ends == "dropped":
        failed.takes(schema(TABLE, 6, Kind.DROPPED, empties=True))
        assert failed.letters == []
        return
    change = {
        "delete": (Op.DELETE, 6, row(2)),
        "leaves": (Op.UPDATE, 6, row(2, "y", b="0")),
        "truncate": (Op.TRUNCATE, 6, {}),
        "fails again": (Op.UPDATE, 6, row(2, a="7", b="0")),
    }[ends]
    failed.takes(batch(TABLE, [change]))
    assert failed.letters == ([(6, LetterState.ASIDE)] if ends == "fails again" else [])


def test_a_change_that_writes_the_rows_again_keeps_the_letter(failed: Followed) -> None:
    failed.takes(schema(LATER, 6))
    assert (_ids(failed, LATER), failed.letters) == (["1"], [(4, LetterState.ASIDE)])
    failed.takes(batch(LATER, [(Op.UPDATE, 7, row(2))]))
    assert (_ids(failed, LATER), failed.letters) == (["1", "2"], [])


def test_what_an_operator_corrected_goes_with_a_change_that_writes_the_rows_again(failed: Followed) -> None:
    assert failed.decide(Verb.EDIT, 4, ratio="42").done
    failed.takes(schema(LATER, 6))
    assert (_ids(failed, LATER), failed.letters) == (["1"], [(4, LetterState.ASIDE)])


def test_a_row_that_fails_keeps_its_letter_under_another_key(failed: Followed) -> None:
    columns = tuple(dataclasses.replace(one, key=one.name in ("id", "a")) for one in TABLE.columns)
    rekeyed = dataclasses.replace(TABLE, columns=columns)
    failed.takes(schema(rekeyed, 6))
    assert (_ids(failed, rekeyed), failed.letters) == (["1"], [(4, LetterState.ASIDE)])
    failed.takes(batch(rekeyed, [(Op.UPDATE, 7, row(2))]))
    assert (_ids(failed, rekeyed), failed.letters) == (["1", "2"], [])


@pytest.mark.parametrize("interrupted", [False, True])
@pytest.mark.parametrize("decided", [False, True])
def test_a_letter_that_ends_right_before_the_key_changes_is_gone(
    lab: Lab, failed: Followed, decided: bool, interrupted: bool
) -> None:
    """Both with one commit, where the store commits."""
    if lab.staged and not isinstance(failed.sink, Deferring):
        pytest.skip("the store of tests that commits names its letters before that")
    columns = tuple(dataclasses.replace(one, key=one.name in ("id", "a")) for one in TABLE.columns)
    rekeyed = dataclasses.replace(TABLE, columns=columns)
    if decided:
        assert failed.decide(Verb.EDIT, 4, ratio="42").done
    for one in (batch(TABLE, [(Op.UPDATE, 6, row(2, b="2"))]), schema(rekeyed, 7)):
        lab.log.put(one)
    if interrupted:
        failed.take(7)
        failed = Followed(lab, **SAID)
    failed.take(7)
    failed.commit(7)
    assert (_ids(failed, rekeyed), failed.letters) == (["1", "2"], [])


def test_a_row_that_fails_keeps_its_letter_under_another_name(lab: Lab, failed: Followed) -> None:
    """Where the configuration names keys otherwise, all rows are written again, and what an operator has corrected is gone."""
    if lab.kind != "redis":
        pytest.skip("names no keys")
    assert failed.decide(Verb.EDIT, 4, ratio="42").done
    lane = f"{{{crc_hqx(b'2', 0) % LANES}}}:" if lab.spread else ""
    lab._options = {**lab._options, "key": "o:{lane}:{id}" if lab.spread else "o:{id}"}
    again = Followed(lab, **SAID)
    assert [(one.key, one.state, one.values) for one in again.box.letters()] == [(f"o:{lane}2", LetterState.ASIDE, {})]
    assert _ids(again) == ["1"]
    again.takes(batch(TABLE, [(Op.UPDATE, 6, row(2))]))
    assert (_ids(again), again.letters) == (["1", "2"], [])


def test_they_are_among_the_letters_that_a_store_may_have(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on once an operator has accepted those that are there."""
    if lab.kind in ("iceberg", "console"):
        pytest.skip("keeps no dead letters")
    monkeypatch.setattr(deadletters, "LETTERS_MAX", 2)
    store = Followed(lab, **SAID)
    lab.log.put(upserts(TABLE, 1, [row(1, b="0"), row(2), row(3, b="0"), row(4, b="0")]))
    with pytest.raises(StoreError, match="dead letters") as failure:
        store.take(4)
    assert (failure.value.retryable, [position for position, _ in store.letters]) == (False, [1, 3])
    again = Followed(lab, **SAID)
    assert [again.decide(Verb.DROP, position).done for position in (1, 3)] == [True, True]
    again.take(4)
    again.commit(4)
    accepted = [(1, LetterState.ACCEPTED), (3, LetterState.ACCEPTED)]
    assert (_ids(again), again.letters) == (["2"], [*accepted, (4, LetterState.ASIDE)])


def test_a_batch_that_comes_again_leaves_the_same_letter(lab: Lab) -> None:
    if lab.kind in ("iceberg", "console"):
        pytest.skip("keeps no dead letters")
    store = Followed(lab, **SAID)
    lab.log.put(upserts(TABLE, 1, [row(1, b="0"), row(2), row(1), row(3, b="0")]))
    store.take(4)
    again = Followed(lab, **SAID)  # nothing was committed
    again.take(4)
    again.commit(4)
    assert (_ids(again), again.letters) == (["1", "2"], [(4, LetterState.ASIDE)])


def test_what_an_operator_can_decide(failed: Followed) -> None:
    tried = failed.decide(Verb.REPLAY, 4)
    assert (tried.done, tried.text) == (False, "computed.ratio: division by zero (22012)")
    assert failed.decide(Verb.DROP, 4).done
    assert failed.letters == [(4, LetterState.ACCEPTED)]
    assert failed.decide(Verb.EDIT, 4, ratio="42").done
    assert (_ids(failed), failed.letters) == (["1", "2"], [(4, LetterState.EDITED)])
    (mine,) = (one for one in _held(failed, TABLE) if one["id"] == "2")
    assert (mine["r"], mine["a"]) == ("42", "6")
    assert failed.decide(Verb.DROP, 4).done
    assert _ids(failed) == ["1"]


def test_a_store_that_keeps_no_letters_stops_and_says_so(lab: Lab) -> None:
    if lab.kind == "console":
        outcome = Followed(lab, **SAID).takes(upserts(TABLE, 1, [row(1, b="0"), row(2)]))
        assert ([one.position for one in outcome.dead], outcome.written) == ([1], 1)
    if lab.kind != "iceberg":
        pytest.skip("keeps dead letters")
    store = Followed(lab, **SAID)
    lab.log.put(upserts(TABLE, 1, [row(1, b="0"), row(2)]))
    with pytest.raises(StoreError, match=rf"cannot hold the change {TOPIC}@1 and keeps no dead letters: computed\.ratio: division"):
        store.take(2)


def test_a_store_that_is_built_again_names_the_rows_that_fail(lab: Lab) -> None:
    """They are not among the rows that it is built of: unless a letter says so, they are missing and nobody knows."""
    if lab.kind == "console":
        pytest.skip("what was printed is there for good")
    lab.log.put(upserts(TABLE, 1, [row(1), row(2, b="0"), row(3, "y", b="0"), row(4, b="0")]))
    lab.log.put(batch(TABLE, [(Op.UPDATE, 5, row(4)), (Op.UPDATE, 6, row(2, a="7", b="0"))]))
    if lab.kind == "iceberg":
        with pytest.raises(
            StoreError, match=rf"cannot hold the change {TOPIC}@6 and keeps no dead letters: computed\.ratio: division"
        ):
            rebuild(lab, tables={TOPIC: SAID})
        return
    rebuild(lab, tables={TOPIC: SAID}).close()
    again = Followed(lab, **SAID)
    assert (_ids(again), again.letters) == (["1", "4"], [(6, LetterState.ASIDE)])
    again.takes(batch(TABLE, [(Op.UPDATE, 7, row(2))]))
    assert (_ids(again), again.letters) == (["1", "2", "4"], [])


def test_a_correction_gives_every_value_that_cannot_be_computed(failed: Followed) -> None:
    """Otherwise the store would show NULL where nobody has said so."""
    answer = failed.decide(Verb.EDIT, 4, note="corrected")
    assert (answer.done, answer.text) == (False, "computed.ratio: division by zero (22012): give ratio a value, too")
    assert (_ids(failed), failed.letters) == (["1"], [(4, LetterState.ASIDE)])
    assert failed.decide(Verb.EDIT, 4, note="corrected", ratio="7").done
    assert failed.decide(Verb.EDIT, 4, note="corrected again").done, "it adds to what was corrected before"
