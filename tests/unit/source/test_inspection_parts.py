"""What the looks at the catalog remember from one to the next: what was shown, what is refused, what has left the publication."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from structlog.testing import capture_logs

from cdc.model.facts import FactColumn, Facts, LeafTable
from cdc.source.absent import Absent
from cdc.source.announcements import PREFIX, Announcements
from cdc.source.problems import Refusal
from cdc.source.refusals import Refusals
from cdc.source.trigger import SetAside

TABLE = Facts(7, "public", "t", False, "d", (FactColumn(1, "id", 23, -1, "", "", True, "10"),), (1,), {7: LeafTable(70, True)})


class Emitted:
    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    def execute(self, _: str, given: tuple[str, str]) -> None:
        assert given[0] == PREFIX
        self.messages.append(json.loads(given[1]))


def test_a_table_is_outdated_until_it_was_shown_as_it_is() -> None:
    announcements, connection = Announcements([7], "secret"), Emitted()
    to: Any = connection
    assert announcements.outdated(TABLE)
    announcements.show(to, [TABLE])
    assert announcements.outdated(TABLE), "the transaction may still fail"
    announcements.shown(TABLE)
    assert not announcements.outdated(TABLE)
    announcements.note(7)
    assert not announcements.outdated(TABLE), "until the next look takes it up"
    announcements.take_noted()
    assert announcements.outdated(TABLE)
    assert connection.messages == [{"password": "secret", "tables": [TABLE.to_json()]}]


def test_a_noted_table_that_is_gone_is_dropped() -> None:
    announcements, connection = Announcements([], "secret"), Emitted()
    to: Any = connection
    announcements.drop(to, [])
    assert not connection.messages
    announcements.note(9)
    announcements.take_noted()
    assert announcements.oids == {9}
    announcements.drop(to, [9])
    assert not announcements.oids
    assert connection.messages == [{"password": "secret", "dropped": [9]}]


def test_a_refusal_is_logged_once_whichever_way_it_came() -> None:
    refusals, why = Refusals(), Refusal("public.t", "has no primary key", "add one")
    with capture_logs() as logged:
        for _ in range(2):
            refusals.pass_over({7: why})
        refusals.bar({7: why})
        refusals.bar({8: why})
        refusals.bar({8: why})
    assert [line["event"] for line in logged] == ["a table is not captured", "a new table is not captured"]
    assert refusals.all == {7: why, 8: why}
    refusals.pass_over({})
    assert refusals.all == {8: why}


def test_what_leaves_is_durable_first_and_may_return_only_as_it_was() -> None:
    kept: list[Mapping[int, SetAside]] = []
    absent = Absent({1: SetAside(None, False)}, lambda out: kept.append(dict(out)))
    absent.learn({2: SetAside(None, True), 3: SetAside(30, True)})
    assert absent.oids == {1, 2}
    assert not kept, "the trigger remembers its own"
    absent.leaves(4, again=False)
    assert kept == [{1: SetAside(None, False), 2: SetAside(None, True), 4: SetAside(None, False)}]
    assert [oid for oid in (1, 2, 4, 5) if absent.may_return(oid)] == [2, 5]
    absent.stays(4)
    absent.stays(5)
    assert 4 not in absent
