"""What an operator asks about dead letters, on its way through the store's follower; and what status and audit say of them."""

from __future__ import annotations

import dataclasses
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cdc.audit.deadletters import KnownLetters, without
from cdc.audit.suspects import Differing
from cdc.commands.correctedrow import read_values
from cdc.errors import ConfigError, StoreError
from cdc.follow import letters
from cdc.follow.follower import Follower
from cdc.model.batch import Op
from cdc.model.position import Position
from cdc.model.topic import TopicSchema
from cdc.state import letterrequests, status
from cdc.state.letterrequests import LetterRequest, Verb
from cdc.state.strangers import forget
from sinks import make_sink, memory
from sinks.deadletters import CORRECTION_BYTES_MAX, Letter, LetterState
from sinks.memory import STORES, Options
from sinks.memoryunits import Store
from tests.contract.rows import ORDERS, TYPES, batch, order, schema, upserts
from tests.logs import LooseLog

OPTIONS = Options(kind="memory", row_bytes_max=400)
LETTER = "public.orders@2"


@pytest.fixture
def log() -> LooseLog:
    STORES["twin"] = Store()
    log = LooseLog()
    log.put(upserts(ORDERS, 1, [order(1), order(2, note="x" * 1000), order(3)]))
    return log


def follower(log: LooseLog, folder: Path) -> Follower:
    made = Follower("twin", OPTIONS, folder, log.reader(), folder, threading.Event())
    assert made.start()
    return made


def caught_up(log: LooseLog, one: Follower) -> None:
    one._looked_at = float("-inf")
    one.follow_to(log.head)


def asked(folder: Path, verb: Verb, **values: str | None) -> str:
    return letterrequests.ask(folder, "twin", LetterRequest(verb, [LETTER], "ops", values))


def aside(folder: Path) -> list[tuple[str, int, int, int]]:
    told = status.read_follower(folder, "twin")
    assert told is not None
    return [(one.table, one.letters, one.edited, one.accepted) for one in told.aside]


def test_the_follower_carries_out_what_is_asked(tmp_path: Path, log: LooseLog) -> None:
    one = follower(log, tmp_path)
    caught_up(log, one)
    assert aside(tmp_path) == [("public.orders", 1, 0, 0)]
    names = [asked(tmp_path, Verb.REPLAY), asked(tmp_path, Verb.EDIT, note="short")]
    caught_up(log, one)
    first, second = (letterrequests.taken_answer(tmp_path, "twin", name) for name in names)
    assert first is not None
    assert second is not None
    assert [answer.done for answer in (*first, *second)] == [False, True]
    assert aside(tmp_path) == [("public.orders", 1, 1, 0)]
    assert letterrequests.asked(tmp_path, "twin") == []
    assert list((tmp_path / "letters" / "twin").iterdir()) == [], "answers that were taken are gone"
    one.close()


def test_a_request_waits_for_a_follower_and_is_done_once_more_after_a_crash(
    tmp_path: Path, log: LooseLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = follower(log, tmp_path)
    caught_up(log, one)
    one.close()
    name = asked(tmp_path, Verb.EDIT, note="short")
    assert aside(tmp_path) == [("public.orders", 1, 0, 0)]

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    again = Follower("twin", OPTIONS, tmp_path, log.reader(), tmp_path, threading.Event())
    with monkeypatch.context() as patch:
        patch.setattr(letterrequests, "answer", crash)
        with pytest.raises(KeyboardInterrupt):
            again.start()
    again.close()
    assert letterrequests.taken_answer(tmp_path, "twin", name) is None
    last = follower(log, tmp_path)
    caught_up(log, last)
    answers = letterrequests.taken_answer(tmp_path, "twin", name)
    assert answers is not None
    assert answers[0].done
    assert aside(tmp_path) == [("public.orders", 1, 1, 0)]
    log.put(batch(ORDERS, [(Op.UPDATE, 4, order(2))]))
    caught_up(log, last)
    assert aside(tmp_path) == []
    last.close()


def test_a_damaged_request_is_named(tmp_path: Path) -> None:
    name = asked(tmp_path, Verb.DROP)
    (path,) = (tmp_path / "letters" / "twin").iterdir()
    path.write_text("{")
    with pytest.raises(StoreError, match="damaged"):
        letterrequests.request(tmp_path, "twin", name)
    forget(tmp_path, "twin")
    assert letterrequests.asked(tmp_path, "twin") == [], "nothing of a store that is configured no more waits for one of its name"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ("{}", "not a JSON object"),
        ('{"nothing": 1}', "no column"),
        ('{"id": 1}', "in the key"),
        ('{"customer_id": "canary"}', "not a value of its type"),
        ('{"status": "canary", "status": "b"}', "twice"),
        ('{"status": "canary"} {}', "not JSON"),
        ('{"status": "canary",}', "not JSON"),
        ('{"status" "canary"}', "not JSON"),
        ('{1: "canary"}', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"status": ' + "[" * 100_000, "not JSON"),
        ('{"status": "canary\\u0000"}', "not a value of its type"),
        ('{"status": "canary\\ud800"}', "not a value of its type"),
        ('"canary"', "not a JSON object"),
    ],
)
def test_a_corrected_row_is_checked_and_never_shown(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as failure:
        read_values(text, TopicSchema.of(ORDERS))
    assert "canary" not in failure.value.line()


@pytest.mark.parametrize(
    ("text", "values"),
    [
        (
            '{"docb": {"a": 1.10, "b": [12345678901234567890123], "c": "1"}}',
            {"docb": '{"a": 1.10, "b": [12345678901234567890123], "c": "1"}'},
        ),
        ('{"docb": true, "flag": true, "doc": "null"}', {"docb": "true", "flag": "t", "doc": "null"}),
        ('{"docb": "{\\"a\\":1}", "tags": "{a,b}"}', {"docb": '{"a":1}', "tags": "{a,b}"}),
        (' {"double" : NaN ,\n"wide": 1} ', {"double": "NaN", "wide": "1.0000000000"}),
    ],
)
def test_a_corrected_value_is_what_was_written(text: str, values: dict[str, str]) -> None:
    assert read_values(text, TopicSchema.of(TYPES)) == values


@pytest.mark.parametrize("text", ['{"docb": "canary"}', '{"doc": {"a": 1, "a": 2}}', '{"tags": ["canary"]}', '{"tags": "{canary"}'])
def test_what_postgres_could_not_have_is_no_correction(text: str) -> None:
    with pytest.raises(ConfigError, match="not a value of its type") as failure:
        read_values(text, TopicSchema.of(TYPES))
    assert "canary" not in failure.value.line()


def test_a_corrected_row_may_have_any_value_of_its_columns() -> None:
    text = '{"customer_id": 12345678901234567, "amount": 1.10, "note": null, "status": "é"}'
    expected = {"customer_id": "12345678901234567", "amount": "1.10", "note": None, "status": "é"}
    assert read_values(text, TopicSchema.of(ORDERS)) == expected


def test_the_audit_sets_the_keys_of_letters_apart() -> None:
    STORES["twin"] = Store()
    sink = make_sink("twin", OPTIONS)
    known = KnownLetters.of(sink)
    states = {("public.orders", key): state for key, state in zip("123", LetterState, strict=True)}
    known = KnownLetters(known.box, states)
    keys = pa.RecordBatch.from_pydict({"id": ["1", "2", "3", "4", "1", "2"]})
    differing = Differing(keys, np.array([1, 0, 1, 1, 0, 1]))
    found = known.among(differing, TopicSchema.of(ORDERS))
    assert found == [LetterState.ASIDE, LetterState.EDITED, LetterState.ACCEPTED, None, None, None]
    assert without(differing, found).keys.to_pydict() == {"id": ["4", "1", "2"]}, "what no letter says is drift"


def test_a_letter_is_named_by_its_change() -> None:
    assert Letter("public.orders", Position(2), "why").id == LETTER


def test_a_correction_names_columns_as_the_database_does(tmp_path: Path, log: LooseLog) -> None:
    held = {"public.orders": {"rename": {"note": "status", "status": "note"}}}
    options = Options.model_validate({"kind": "memory", "row_bytes_max": 400, "tables": held})
    one = Follower("twin", options, tmp_path, log.reader(), tmp_path, threading.Event())
    assert one.start()
    caught_up(log, one)
    name = asked(tmp_path, Verb.EDIT, note="short")
    caught_up(log, one)
    (answer,) = letterrequests.taken_answer(tmp_path, "twin", name) or ()
    assert answer.done, answer.text
    (row,) = [row for _, row in STORES["twin"].rows["public.orders"].values() if row is not None and row["id"] == "2"]
    assert row["status"] == "short"
    assert row["note"] == order(2)["status"]
    one.close()


def test_a_correction_means_the_column_and_not_who_has_its_name_now(tmp_path: Path, log: LooseLog) -> None:
    """Whoever may rename columns of the table must not be able to say what an operator corrects."""
    columns = tuple(dataclasses.replace(one, attnum=number) for number, one in enumerate(ORDERS.columns, 1))
    before = dataclasses.replace(ORDERS, columns=columns)
    log.put(schema(before, 4))
    log.put(upserts(before, 5, [order(9, note="x" * 1000)]))
    one = follower(log, tmp_path)
    caught_up(log, one)
    numbers = {column.name: column.attnum for column in columns}
    swapped = {"note": numbers["status"], "status": numbers["note"], "nothing": 99}
    names = [
        letterrequests.ask(tmp_path, "twin", LetterRequest(Verb.EDIT, ["public.orders@5"], "ops", {name: "short"}, {name: number}))
        for name, number in swapped.items()
    ]
    caught_up(log, one)
    answers = [letterrequests.taken_answer(tmp_path, "twin", name) or () for name in names]
    assert [answer.done for (answer,) in answers] == [False, True, False]
    (row,) = [row for _, row in STORES["twin"].rows["public.orders"].values() if row is not None and row["id"] == "9"]
    assert (row["note"], row["status"]) == ("short", order(9)["status"])
    one.close()


def test_a_letter_that_names_no_key_is_only_dropped(tmp_path: Path, log: LooseLog) -> None:
    """As the version before letters had keys left it: its row may have changed since."""
    one = follower(log, tmp_path)
    caught_up(log, one)
    unit = STORES["twin"].tables["public.orders"]
    box = one._opening._box
    assert box is not None
    (known,) = box.letters()
    box.keep([Letter(known.table, known.position, known.reason)])
    names = [asked(tmp_path, Verb.REPLAY), asked(tmp_path, Verb.EDIT, note="short"), asked(tmp_path, Verb.DROP)]
    before = dict(unit.rows)
    caught_up(log, one)
    answers = [letterrequests.taken_answer(tmp_path, "twin", name) or () for name in names]
    assert [answer.done for (answer,) in answers] == [False, False, True]
    assert unit.rows == before
    assert aside(tmp_path) == []
    one.close()


def test_a_letter_of_a_table_that_the_store_follows_no_longer_is_left_alone(tmp_path: Path, log: LooseLog) -> None:
    one = follower(log, tmp_path)
    caught_up(log, one)
    one.close()
    fewer = Follower(
        "twin", Options(kind="memory", row_bytes_max=400, tables=["other.*"]), tmp_path, log.reader(), tmp_path, threading.Event()
    )
    assert fewer.start()
    name = asked(tmp_path, Verb.EDIT, note="short")
    caught_up(log, fewer)
    (answer,) = letterrequests.taken_answer(tmp_path, "twin", name) or ()
    assert not answer.done
    fewer.close()


def test_a_correction_that_no_longer_fits_its_column_is_refused_and_the_store_goes_on(tmp_path: Path, log: LooseLog) -> None:
    """The command has checked it against the type that the column had when it was asked for."""
    one = follower(log, tmp_path)
    caught_up(log, one)
    name = asked(tmp_path, Verb.EDIT, note="short", customer_id="canary")
    caught_up(log, one)
    (answer,) = letterrequests.taken_answer(tmp_path, "twin", name) or ()
    assert not answer.done
    assert answer.text == "what is given for customer_id is not a value of its type, int8"
    assert aside(tmp_path) == [("public.orders", 1, 0, 0)]
    one.close()


def test_a_correction_that_is_too_long_to_be_kept_is_refused(tmp_path: Path, log: LooseLog) -> None:
    one = follower(log, tmp_path)
    caught_up(log, one)
    name = asked(tmp_path, Verb.EDIT, note='"' * (CORRECTION_BYTES_MAX + 1))
    caught_up(log, one)
    (answer,) = letterrequests.taken_answer(tmp_path, "twin", name) or ()
    assert (answer.done, answer.text) == (False, f"a correction may have {CORRECTION_BYTES_MAX} bytes: it is kept with the letter")
    one.close()


def test_changes_go_on_between_requests(tmp_path: Path, log: LooseLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many letters an operator replays, other rows wait no longer than a moment."""
    monkeypatch.setattr(letters, "SPENT_S", 0.0)
    one = follower(log, tmp_path)
    caught_up(log, one)
    for _ in range(3):
        asked(tmp_path, Verb.REPLAY)
    for left in (2, 1, 0):
        caught_up(log, one)
        assert len(letterrequests.asked(tmp_path, "twin")) == left
    one.close()


class Killed(BaseException):
    """As by kill -9: nothing behind it is done."""


@pytest.mark.parametrize("verb", list(Verb))
def test_killed_between_any_two_steps_it_comes_to_the_same(
    tmp_path: Path, log: LooseLog, monkeypatch: pytest.MonkeyPatch, verb: Verb
) -> None:
    """The corrected row is dropped, corrected once more, or, now that the store has room, tried again."""

    def stands() -> tuple[object, ...]:
        (row,) = [row for key, (_, row) in STORES["twin"].rows["public.orders"].items() if key == "2"] or [None]
        return row and row["note"], [(one.state, dict(one.values)) for one in make_sink("twin", OPTIONS).letters()]  # type: ignore[attr-defined]

    def decided(folder: Path, steps: int) -> bool:
        """Whether it was killed, behind so many steps."""
        STORES["twin"] = Store()
        one = follower(log, folder)
        caught_up(log, one)
        asked(folder, Verb.EDIT, note="short")
        caught_up(log, one)
        asked(folder, verb, **({"note": "other"} if verb is Verb.EDIT else {}))
        left = [steps]

        def counted(real: Callable[..., object]) -> Callable[..., object]:
            def step(*given: object) -> object:
                found = real(*given)
                left[0] -= 1
                if not left[0]:
                    raise Killed
                return found

            return step

        with monkeypatch.context() as patch:
            patch.setattr(memory, "fits", lambda *_: True)
            for name in ("keep", "put", "forget"):
                patch.setattr(memory.MemorySink, name, counted(getattr(memory.MemorySink, name)))
            patch.setattr(letterrequests, "answer", counted(letterrequests.answer))
            try:
                caught_up(log, one)
            except Killed:
                pass
            one.close()
            last = follower(log, folder)
            caught_up(log, last)
            last.close()
        assert letterrequests.asked(folder, "twin") == []
        return left[0] <= 0

    assert not decided(tmp_path / "unharmed", 100)
    expected = stands()
    assert expected[0] == {Verb.EDIT: "other", Verb.DROP: None, Verb.REPLAY: "x" * 1000}[verb]
    steps = 1
    while decided(tmp_path / str(steps), steps):
        assert stands() == expected, f"after step {steps}"
        steps += 1
    assert steps > 3


def test_two_operators_at_once_get_an_answer_each_and_the_store_is_as_the_last_one_said(
    tmp_path: Path, log: LooseLog, seed: int
) -> None:
    one = follower(log, tmp_path)
    caught_up(log, one)
    names: dict[str, LetterRequest] = {}

    def operate(who: str) -> None:
        chance = random.Random(f"{seed}{who}")
        for number in range(8):
            verb = chance.choice(list(Verb))
            values: dict[str, str | None] = {"note": f"by {who} {number}"} if verb is Verb.EDIT else {}
            request = LetterRequest(verb, [LETTER], f"{who}{number}", values)
            names[letterrequests.ask(tmp_path, "twin", request)] = request
            time.sleep(chance.random() / 100)

    operators = [threading.Thread(target=operate, args=(who,)) for who in ("ann", "bob")]
    for thread in operators:
        thread.start()
    while any(thread.is_alive() for thread in operators) or letterrequests.asked(tmp_path, "twin"):
        caught_up(log, one)
    for thread in operators:
        thread.join()
    answers = {name: letterrequests.taken_answer(tmp_path, "twin", name) or () for name in names}
    assert [[answer.letter for answer in found] for found in answers.values()] == [[LETTER]] * 16
    for name, request in names.items():
        assert answers[name][0].done == (request.verb is not Verb.REPLAY), "the row as it is in the log is always too large"
        assert "by " not in answers[name][0].text
    decided = [request for request in names.values() if request.verb is not Verb.REPLAY]
    [letter] = STORES["twin"].tables["public.orders"].letters.all
    last = next((request for request in decided if request.by == letter.by), None)
    assert (last is None) == (not decided)
    row = STORES["twin"].rows["public.orders"]["2"][1]
    assert (None if row is None else row["note"]) == (None if last is None else last.values.get("note"))
    one.close()
