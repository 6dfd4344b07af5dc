"""Which SCHEMA records come of RELATION messages and of the catalog's facts, in which order, and what is read again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pytest

from cdc.capture.definitions import CapturedPart, Definitions, Outside
from cdc.errors import Stopped, StopState
from cdc.model.evolution import Kind, SchemaChange
from cdc.model.facts import FactColumn, Facts, LeafTable, Publishing
from cdc.model.table import Column, Table

PASSWORD = "sesame"


def facts(oid: int, name: str, *columns: tuple[int, str, int], index: tuple[int, ...] = (1,), **changes: object) -> Facts:
    found = tuple(FactColumn(attnum, label, type_oid, -1, "", "", False, "1") for attnum, label, type_oid in columns)
    return replace(Facts(oid, "s", name, False, "d", found, index, {oid: LeafTable(oid, True)}, {}, Publishing(True)), **changes)  # type: ignore[arg-type]


def sent(table: Table) -> Table:
    """As a RELATION message has it: without numbers."""
    return replace(table, columns=tuple(replace(column, attnum=0) for column in table.columns))


ID, A, B = (1, "id", 23), (2, "a", 25), (3, "b", 25)
OLD = facts(7, "t", ID, A, B)


class Run:
    def __init__(
        self,
        *before: Facts,
        live: Iterable[Facts] = (),
        ended: Sequence[str] = (),
        tables: Iterable[Table] = (),
        logged: Callable[[Table], Table] = lambda table: table,
    ) -> None:
        self.live = {one.oid: one for one in live}
        self.kept: list[set[int]] = []
        self.looks = self.unread = 0
        self.noted: list[int] = []
        self.definitions = Definitions(
            lambda oid: self.live.get(oid),
            known=[*(one.table() for one in before), *tables],
            ended=ended,
            facts={one.oid: one for one in before},
            passwords=[PASSWORD],
            selection=CapturedPart(wanted=lambda name: not name.endswith("unwanted"), logged=logged),
            outside=Outside(
                look=self._look,
                unread=self._unread,
                note=self.noted.append,
                unpublished=lambda name: Stopped(StopState.TABLE_UNPUBLISHED, name),
                keep=lambda found: self.kept.append(set(found)),
            ),
        )

    def _look(self) -> None:
        self.looks += 1

    def _unread(self) -> None:
        self.unread += 1

    def relation(self, table: Table) -> list[str]:
        return told(self.definitions.enter(self.definitions.number(sent(table))))

    def message(self, *tables: Facts, dropped: Sequence[int] = (), password: str = PASSWORD) -> list[str]:
        content = {"password": password, "tables": [one.to_json() for one in tables], "dropped": list(dropped)}
        return told(self.definitions.on_message(json.dumps(content).encode())[0])

    @property
    def again(self) -> list[int]:
        return list(self.definitions.take_again())


def told(changes: Sequence[SchemaChange]) -> list[str]:
    return [
        f"{change.table.name} {change.kind}{'!' * change.empties}" + (f" {change.now}" if change.now else "") for change in changes
    ]


def test_a_definition_with_one_of_our_names_is_never_logged_but_looked_at() -> None:
    named = facts(7, "t", ID, A, (3, "_cdc_op", 25))
    run = Run(OLD)
    assert run.message(named) == []
    assert run.looks == 1
    assert run.again == []
    assert run.message(OLD) == [], "the column has its name back"


def test_a_reconnect_with_equal_definitions_says_nothing() -> None:
    run = Run(OLD)
    assert run.relation(OLD.table()) == []
    assert run.relation(OLD.table()) == []
    assert run.again == []


def test_swapped_names_keep_their_numbers() -> None:
    swapped = facts(7, "t", ID, (2, "b", 25), (3, "a", 25))
    run = Run(OLD, live=[swapped])
    (change,) = run.definitions.enter(run.definitions.number(sent(swapped.table())))
    assert change == SchemaChange(swapped.table(), Kind.ALTERED)


def test_facts_of_this_place_in_the_stream_go_before_the_live_catalog() -> None:
    run = Run(OLD, live=[facts(7, "t", ID, (2, "a", 25), (4, "b", 25))])
    assert run.definitions.number(sent(OLD.table())) == OLD.table()


def test_where_the_catalog_has_moved_on_the_table_is_read_again() -> None:
    """c was added, and has another name by now."""
    middle = Table(7, "s", "t", (*OLD.table().columns, Column("c", 25)))
    run = Run(OLD, live=[facts(7, "t", ID, A, B, (4, "d", 25))])
    numbered = run.definitions.number(middle)
    assert [column.attnum for column in numbered.columns] == [1, 2, 3, 0]
    assert told(run.definitions.enter(numbered)) == ["t rewritten"]
    assert run.again == [7]


def test_numbers_that_do_not_rise_are_not_guessed() -> None:
    sources = facts(7, "t", ID, (2, "b", 25), (3, "a", 25), (4, "x", 23))
    run = Run(live=[sources])
    numbered = run.definitions.number(Table(7, "s", "t", (Column("id", 23), Column("a", 25), Column("b", 25))))
    assert [column.attnum for column in numbered.columns] == [0, 0, 0]


def test_a_key_is_known_whole_or_not_at_all() -> None:
    """Under FULL the catalog alone tells it. Where it has another name for one of two columns by now, the other does not tell rows apart."""
    live = facts(7, "t", ID, (2, "renamed", 25), B, index=(1, 2), identity="f")
    run = Run(live=[live])
    columns = tuple(Column(name, kind, key=True) for name, kind in (("id", 23), ("a", 25), ("b", 25)))
    numbered = run.definitions.number(Table(7, "s", "t", columns, "f"))
    assert [column.name for column in numbered.key] == ["id", "a", "b"], "the whole row"


def test_the_key_before_is_the_key_where_the_catalog_has_another_name_for_it() -> None:
    """Under FULL, and c was added before the key was renamed."""
    before = facts(7, "t", ID, A, B, identity="f")
    run = Run(before, live=[facts(7, "t", (1, "renamed", 23), A, B, (4, "c", 25), identity="f")])
    columns = tuple(Column(name, kind, key=True) for name, kind in (("id", 23), ("a", 25), ("b", 25), ("c", 25)))
    numbered = run.definitions.number(Table(7, "s", "t", columns, "f"))
    assert [column.name for column in numbered.key] == ["id"]
    assert told(run.definitions.enter(numbered)) == ["t rewritten"], "nothing is emptied"
    assert run.again == [7]


def test_a_table_that_is_gone_keeps_the_definition_before() -> None:
    run = Run(tables=[OLD.table()])
    assert run.relation(OLD.table()) == []


def test_a_changed_key_empties_the_topic() -> None:
    other = replace(OLD, index=(1, 2))
    run = Run(OLD, live=[other])
    assert run.message(other) == ["t rewritten!"]
    assert run.again == [7]
    assert run.relation(other.table()) == []


def test_a_renamed_table_goes_on_in_another_topic() -> None:
    run = Run(OLD)
    assert run.relation(replace(OLD.table(), name="u")) == ["t renamed! s.u"]
    assert run.again == [7]
    assert run.message(replace(OLD, name="u")) == []
    assert run.relation(replace(OLD.table(), name="t")) == ["u renamed! s.t", "t created!"]


def test_two_tables_swap_their_names() -> None:
    other = facts(8, "u", ID, A)
    run = Run(OLD, other)
    assert run.message(replace(OLD, name="u"), replace(other, name="t")) == ["t renamed! s.u", "u created!", "t created!"]
    assert sorted(run.again) == [7, 8]


@pytest.mark.parametrize("drop_first", [True, False])
def test_another_table_of_the_same_name(drop_first: bool) -> None:
    run, new = Run(OLD), facts(9, "t", ID)
    if drop_first:
        assert run.message(dropped=[7]) == ["t dropped!"]
    assert run.message(new) == ["t created!"]
    assert run.message(dropped=[7]) == []
    assert set(run.again) == {7, 9}


def test_a_name_that_ended_before_the_start_is_taken_anew() -> None:
    run = Run(tables=[OLD.table()], ended=["s.t"])
    assert run.relation(facts(9, "t", ID).table()) == ["t created!"]


def test_a_table_that_joins_is_read_without_a_record() -> None:
    run = Run()
    assert run.message(OLD) == []
    assert run.again == [7]


def test_a_table_that_joins_is_read_although_one_of_its_rows_came_before_its_facts() -> None:
    run = Run(live=[OLD])
    assert run.relation(OLD.table()) == []
    assert run.message(OLD) == []
    assert run.again == [7]


def test_a_table_that_takes_anothers_name_is_read_once() -> None:
    new = facts(9, "t", ID)
    run = Run(OLD, live=[new])
    assert run.relation(new.table()) == ["t created!"]
    assert 9 in run.again
    assert run.message(new) == []
    assert run.again == []


def test_what_is_still_being_read_of_a_table_may_not_come_when_another_has_its_name() -> None:
    """A part of it may be on its way when the table is dropped, before anything has said so: it would take the name back."""
    new = facts(9, "t", ID)
    run = Run(OLD, live=[new])
    assert run.relation(new.table()) == ["t created!"]
    assert run.definitions.take_again() == {9: True, 7: False}


def test_a_dropped_partition_takes_rows_of_its_root_away() -> None:
    root = replace(OLD, partitioned=True, leaves={20: LeafTable(20, True), 21: LeafTable(21, True)})
    run = Run(root)
    assert run.message(dropped=[20]) == ["t rewritten!"]
    assert run.again == [7]
    assert run.message(dropped=[7, 21]) == ["t dropped!"]


def test_rows_of_a_partition_that_no_look_has_seen_are_taken_away_when_it_is_gone() -> None:
    root = replace(OLD, partitioned=True, leaves={20: LeafTable(20, True)})
    run = Run(root)
    run.relation(root.table())
    run.definitions.number(sent(facts(30, "leaf", ID, A, B).table()))
    assert run.noted == [7]
    run.definitions.settle()
    assert run.kept == [{7}]
    assert run.message(root) == ["t rewritten!"]
    assert run.again == [7]


def test_a_partition_that_a_look_finds_is_nothing_new() -> None:
    root = replace(OLD, partitioned=True, leaves={20: LeafTable(20, True)})
    run = Run(root)
    run.relation(root.table())
    run.definitions.number(sent(facts(30, "leaf", ID, A, B).table()))
    assert run.message(replace(root, leaves={**root.leaves, 30: LeafTable(30, True)})) == []
    run.relation(root.table())
    run.definitions.number(sent(facts(30, "leaf", ID, A, B).table()))
    assert (run.again, run.noted) == ([], [7])


def test_a_new_column_may_not_be_the_one_that_the_catalog_has_under_its_name() -> None:
    run = Run(OLD, live=[facts(7, "t", ID, A, B, (5, "c", 25))])
    assert run.relation(facts(7, "t", ID, A, B, (4, "c", 25)).table()) == ["t rewritten"]
    assert run.again == [7]


def test_facts_are_kept_when_they_are_durable() -> None:
    run = Run(OLD)
    run.definitions.settle()
    run.message(OLD)
    run.definitions.settle()
    assert run.kept == []
    run.message(facts(7, "t", ID, A))
    run.definitions.settle()
    assert run.kept == [{7}]


def test_a_trigger_does_not_know_of_the_publication() -> None:
    run = Run(replace(OLD, publishing=Publishing(True, (1, 2))))
    assert run.message(replace(OLD, columns=(*OLD.columns, FactColumn(4, "c", 25, -1, "", "", True, "1")), publishing=None)) == []
    assert run.message(facts(9, "new", ID, publishing=None)) == []
    assert (run.again, run.looks) == ([], 1)


def test_who_leaves_the_publication_stops_capture_after_the_record() -> None:
    run = Run(OLD)
    assert run.message(replace(OLD, publishing=Publishing(False))) == ["t unpublished"]
    with pytest.raises(Stopped, match="TABLE_UNPUBLISHED"):
        run.definitions.settle()
    attached = Run(OLD)
    assert attached.message(replace(OLD, publishing=Publishing(False), attached=True)) == ["t dropped!"]
    attached.definitions.settle()
    other = Run(facts(8, "unwanted", ID))
    assert other.message(facts(8, "unwanted", ID, publishing=Publishing(False))) == ["unwanted unpublished"]
    other.definitions.settle()


@pytest.mark.parametrize(
    "content",
    [b"", b"\xff", b"[]", b"{}", b"[" * 1200, b'{"a":' * 1200, b'{"look": true, "password": "sesame"}', b'{"password": "sesam'],
)
def test_what_is_not_ours_is_passed_over(content: bytes) -> None:
    run = Run(OLD)
    assert run.definitions.on_message(content) == ([], [])
    assert run.message(dropped=[7], password="guess") == []
    assert (run.looks, run.unread) == (0, 0)


@pytest.mark.parametrize(
    "rest",
    [
        "1",
        '"tables": [{}]}',
        '"tables": 1}',
        '"dropped": [null]}',
        '"dropped": [Infinity]}',
        f'"dropped": [1{"0" * 5000}]}}',
        f'"dropped": {"[" * 100_000}',
        f'"tables": {"[" * 100_000}',
        '"dropped": ["7"]}',
    ],
    ids=range(9),
)
def test_what_bears_the_password_and_cannot_be_read_is_asked_of_the_catalog(rest: str) -> None:
    run = Run(OLD)
    for take in (run.definitions.on_message, run.definitions.doubt):
        take(f'{{"password" : "{PASSWORD}", {rest}'.encode())
    assert run.again == []
    assert (run.looks, run.unread) == (2, 2)


def test_nothing_is_parsed_before_the_password_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(OLD)
    monkeypatch.setattr("cdc.capture.ddlmessages.json.loads", lambda _: pytest.fail("parsed"))
    run.definitions.on_message(b'{"password": "guess", "tables": ' + b"[" * 10**6)
    run.definitions.doubt(b'{"password": "' + b"x" * 10**6)


def test_a_message_too_long_to_be_parsed_is_asked_of_the_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.capture.ddlmessages.MOST_BYTES", 1000)
    run = Run(OLD)
    assert run.message(dropped=[*range(100, 300), 7]) == []
    assert (run.looks, run.unread) == (1, 1)


def test_a_password_that_json_writes_otherwise() -> None:
    odd = 'say "é\\ß"\x01'
    definitions = Definitions(lambda _: None, known=[OLD.table()], facts={7: OLD}, passwords=["other", odd])
    content = json.dumps({"password": odd, "dropped": [7]}, ensure_ascii=False).encode()
    assert told(definitions.on_message(content)[0]) == ["t dropped!"]


def test_what_may_have_been_rolled_back_is_asked_of_the_catalog() -> None:
    run = Run(OLD)
    told_of = {"password": PASSWORD, "tables": [facts(8, "new", ID).to_json()], "dropped": [7]}
    run.definitions.doubt(json.dumps(told_of).encode())
    assert (run.noted, run.looks, run.again) == ([7], 1, []), "the look finds new tables by itself"
    run.definitions.doubt(json.dumps(told_of | {"password": "guess"}).encode())
    run.definitions.doubt(b"")
    assert len(run.noted) == 1


def protecting(**policies: str | None) -> Callable[[Table], Table]:
    """None: the column is dropped."""

    def logged(table: Table) -> Table:
        kept = [column for column in table.columns if policies.get(column.name, "") is not None]
        return replace(table, columns=tuple(replace(column, protected=policies.get(column.name) or "") for column in kept))

    return logged


@pytest.mark.parametrize(
    ("former", "present", "expected"),
    [
        (protecting(a="hmac:1"), protecting(a="hmac:2"), ["t rewritten"]),
        (protecting(a=None), protecting(), ["t rewritten"]),
        (protecting(), protecting(a="mask"), ["t rewritten"]),
        (protecting(), protecting(a=None), ["t altered"]),
        (protecting(id="hmac:1"), protecting(id="hmac:2"), ["t rewritten!"]),
    ],
)
@pytest.mark.parametrize("by_message", [False, True])
def test_another_policy_for_a_column(
    former: Callable[[Table], Table], present: Callable[[Table], Table], expected: list[str], by_message: bool
) -> None:
    """What was logged under the former policy would stand in the stores beside what is logged from now on."""
    run = Run(OLD, tables=[former(OLD.table())], logged=present)
    assert (run.message(OLD) if by_message else run.relation(OLD.table())) == expected
    assert run.again == ([7] if expected != ["t altered"] else [])
    assert (run.message(OLD), run.relation(OLD.table()), run.again) == ([], [], [])


def test_a_column_that_is_added_is_no_other_policy() -> None:
    wider = facts(7, "t", ID, A, B, (4, "c", 25))
    run = Run(OLD, live=[wider], tables=[protecting(a=None)(OLD.table())], logged=protecting(a=None))
    assert run.relation(wider.table()) == ["t altered"]
    assert (run.message(wider), run.again) == ([], [])


def test_whose_name_another_takes_goes_on_under_its_own() -> None:
    """A partitioned table is not described again when it is renamed."""
    root, other = facts(7, "t", ID, A), facts(8, "u", ID, B)
    run = Run(root, other, live=[replace(root, name="u"), replace(other, name="t")])
    assert run.relation(replace(other, name="t").table()) == ["u renamed! s.t", "t created!"]
    assert run.definitions.take_displaced() == [(7, "s", "u")]
    assert run.definitions.take_displaced() == []
    assert told(run.definitions.enter(replace(root, name="u").table())) == ["u created!"]
    assert sorted(run.again) == [7, 8]


def test_the_catalog_may_not_show_yet_that_another_has_the_name() -> None:
    """With a synchronous standby the stream has a transaction before anybody else sees what it has done."""
    new = facts(9, "t", ID)
    run = Run(OLD, live=[OLD])
    assert run.relation(new.table()) == ["t created!"]
    assert run.definitions.take_displaced() == []


def test_what_the_log_has_already_is_as_it_was_at_its_end() -> None:
    run = Run(facts(7, "u", ID, A, identity="f"))
    assert run.definitions.standing(facts(7, "t", ID, A).table()) == facts(7, "u", ID, A, identity="f").table()
    narrower = facts(7, "t", ID).table()
    assert run.definitions.standing(narrower) == narrower


def test_a_table_that_comes_back_has_joined() -> None:
    run = Run(replace(OLD, publishing=Publishing(True, ways=(1,))))
    run.message(replace(OLD, publishing=Publishing(True, ways=(2,))))
    assert run.definitions.take_again() == {7: True}, "out and back between two looks"
    other = Run(OLD)
    other.message(replace(OLD, publishing=Publishing(False), attached=True))
    other.message(OLD)
    assert other.definitions.take_again() == {7: True}, "both in one group"
    other.message(replace(OLD, columns=(*OLD.columns[:1], replace(OLD.columns[1], type_oid=23, version="9"), *OLD.columns[2:])))
    assert other.definitions.take_again() == {7: False}, "a rewrite"


def test_a_table_whose_facts_were_lost_is_emptied_and_read_again_once() -> None:
    """Nobody knows what became of its stored rows since they were logged: as without catalog.json."""
    run = Run(tables=[OLD.table()])
    assert run.relation(OLD.table()) == [], "its rows go on"
    assert run.again == []
    assert run.message(OLD) == ["t rewritten!"]
    assert run.again == [7]
    run.definitions.settle()
    assert run.kept == [{7}]
    assert run.message(OLD) == []
    assert run.again == []


def test_what_takes_the_place_of_a_table_whose_facts_were_lost_empties_it_once() -> None:
    run = Run(tables=[OLD.table()])
    assert run.message(facts(7, "t", (1, "id", 20), A)) == ["t rewritten!"], "it has another key"
    assert run.again == [7]
    run = Run(tables=[OLD.table()])
    assert run.message(dropped=[7]) == ["t dropped!"]
    assert run.message(facts(8, "t", ID, A)) == ["t created!"]
    assert run.again == [7, 8]


def test_a_table_that_the_stream_has_shown_first_is_not_emptied_when_its_facts_come() -> None:
    run = Run(live=[OLD])
    assert run.relation(OLD.table()) == []
    assert run.message(OLD) == []
    assert run.again == [7]
