"""Which columns wait for somebody's decision (``cdc.privacy.newcolumns``), and that decisions outlive a restart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cdc.errors import ConfigError, Stopped, StopState
from cdc.model.table import Column, Table
from cdc.privacy.decisions import Decisions
from cdc.privacy.policies import Protection

SECRET = "s" * 32
POLICIES: Any = {"app.users": {"email": "hmac", "phone": "mask"}}


def table(name: str, *columns: str, oid: int = 1, schema: str = "app", key: str = "id", numbered: bool = True) -> Table:
    made = tuple(Column(c, 25, key=c == key, attnum=number if numbered else 0) for number, c in enumerate(columns, 1))
    return Table(oid, schema, name, made)


USERS = table("users", "id", "email", "phone", "plain")


class Starts:
    """One start after the other, each with what the one before has made durable."""

    def __init__(self) -> None:
        self.decisions: Decisions | None = None

    def next(self, policies: Any = POLICIES, *, known: Any = ()) -> Protection:
        return Protection(policies, SECRET, known=known, decisions=self.decisions, remember=self._keep)

    def _keep(self, decisions: Decisions) -> None:
        self.decisions = decisions


def begun(*tables: Table, policies: Any = POLICIES) -> tuple[Starts, Protection]:
    starts = Starts()
    guard = starts.next(policies)
    guard.begin([USERS, *tables])
    return starts, guard


def with_column(before: Table, name: str, number: int) -> Table:
    return replace(before, columns=(*before.columns, Column(name, 25, attnum=number)))


def test_what_is_there_at_the_first_start_is_taken_as_it_was_written() -> None:
    orders = table("orders", "id", "email", oid=2)
    starts, guard = begun(orders)
    for again in (guard, starts.next()):
        assert again.logged(USERS).names == ("id", "email", "phone", "plain")
        assert again.logged(orders).names == ("id", "email")
        assert not again.undecided.columns(USERS)


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("numbered", [False, True])
def test_a_column_that_comes_after_its_tables_policies_is_kept_out(restarted: bool, numbered: bool) -> None:
    starts, guard = begun()
    wider = with_column(USERS, "mail", 5)
    if not numbered:
        wider = replace(wider, columns=tuple(replace(c, attnum=0) for c in wider.columns))
    for _ in range(3 if restarted else 1):
        assert guard.logged(wider).names == USERS.names
        assert guard.kept_back(wider)["mail"] is False, "not in any other file either"
        (line,) = guard.undecided.lines(wider)
        assert 'put mail = "…"' in line
        assert '[source.columns."app.users"]' in line
        guard = starts.next(known=[guard.logged(wider)])
        guard.begin([wider])
    named = starts.next({"app.users": {**POLICIES["app.users"], "mail": "keep"}})
    named.begin([wider])
    assert named.logged(wider).names == (*USERS.names, "mail")
    assert not named.undecided.lines(wider)


def test_a_table_that_never_had_a_row_is_remembered_too() -> None:
    """No topic of the log tells of it."""
    starts, _ = begun()
    again = starts.next()
    again.begin([with_column(USERS, "mail", 5)])
    assert starts.next().logged(with_column(USERS, "mail", 5)).names == USERS.names


def test_a_column_of_another_table_under_a_protected_name_is_kept_out() -> None:
    starts, guard = begun(table("orders", "id", "total", oid=2))
    wider = table("orders", "id", "total", "EMail", oid=2)
    assert guard.logged(wider).names == ("id", "total")
    assert guard.logged(table("orders", "id", "total", "note", oid=2)).names == ("id", "total", "note")
    backup = table("users_backup", "id", "email", "phone", "plain", oid=3)
    assert guard.logged(backup).names == ("id", "plain")
    assert starts.next(known=[guard.logged(backup)]).logged(backup).names == ("id", "plain")
    keep = starts.next({**POLICIES, "app.users_backup": {"email": "keep", "phone": "drop"}})
    assert keep.logged(backup).names == ("id", "email", "plain")


def test_a_rename_to_a_protected_name_hides_nothing_that_was_shown_all_along() -> None:
    _, guard = begun(table("orders", "id", "mail", oid=2))
    assert guard.logged(table("orders", "id", "email", oid=2)).names == ("id", "email")


def test_a_column_that_takes_the_name_of_one_that_was_shown_is_another_one() -> None:
    starts, guard = begun()
    again = replace(USERS, columns=(*USERS.columns[:3], Column("plain", 25, attnum=5)))
    assert guard.logged(again).names == ("id", "email", "phone")
    assert starts.next().logged(again).names == ("id", "email", "phone")


def test_an_undecided_column_of_a_key_bars_the_table() -> None:
    _, guard = begun()
    addresses = table("addresses", "email", "since", oid=4, key="email")
    why, help_ = guard.undecided.barred(addresses) or ("", "")
    assert "column email of app.addresses" in why
    assert '[source.columns."app.addresses"]' in help_
    with pytest.raises(Stopped) as stopped:
        guard.logged(addresses)
    assert stopped.value.state is StopState.PRIVACY_UNDECIDED


def test_what_came_out_of_a_protected_table_shows_what_that_shows() -> None:
    starts, guard = begun()
    guard.undecided.note_kin({9: "app.users"})
    child = table("users_2024", "id", "contact", "plain", oid=9)
    for again in (guard, starts.next()):
        assert again.logged(child).names == ("id", "plain")
    assert starts.next({**POLICIES, "app.users_2024": {"contact": "hmac"}}).logged(child).names == child.names


def test_a_child_is_not_shown_at_the_first_start_either() -> None:
    starts = Starts()
    guard = starts.next()
    guard.undecided.note_kin({9: "app.users"})
    child = table("users_old", "id", "email", "plain", oid=9)
    guard.begin([child, USERS])
    assert guard.logged(child).names == ("id", "plain")


def test_a_table_that_becomes_a_child_is_decided_on_again() -> None:
    archive = table("archive", "id", "email", oid=9)
    starts, guard = begun(archive)
    assert guard.logged(archive).names == ("id", "email")
    guard.undecided.note_kin({9: "app.users"})
    assert guard.logged(archive).names == ("id",), "what it holds now came from there"
    assert starts.next(known=[archive]).logged(archive).names == ("id",)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_table_that_is_made_again_shows_what_the_former_one_showed(restarted: bool) -> None:
    starts, guard = begun()
    made_again = table("users", "id", "mail", "plain", oid=5)
    for _ in range(3 if restarted else 1):
        assert guard.logged(made_again).names == ("id", "plain")
        guard = starts.next(known=[guard.logged(made_again)])
        guard.begin([made_again])


def test_a_table_that_comes_later_has_to_have_the_columns_of_its_policies() -> None:
    starts = Starts()
    starts.next({}).begin([USERS])
    policies: Any = {"app.people": {"email": "drop"}}
    guard = starts.next(policies)
    with pytest.raises(ConfigError, match=r"app\.people, which is not captured"):
        guard.begin([USERS])
    with pytest.raises(Stopped, match="may be email, which has a policy"):
        guard.logged(table("people", "id", "mail", oid=6))
    assert guard.logged(table("people", "id", "email", oid=7)).names == ("id",)


def test_a_mistyped_column_is_refused_also_when_the_log_has_the_right_one() -> None:
    starts = Starts()
    starts.next({}).begin([USERS])
    guard = starts.next({"app.users": {"emial": "hmac"}}, known=[USERS])
    with pytest.raises(ConfigError, match="emial") as refused:
        guard.begin([USERS])
    assert refused.value.hint == "did you mean email?"


def test_a_policy_for_a_column_that_was_dropped_or_renamed_does_no_harm() -> None:
    starts, guard = begun()
    shorter = replace(USERS, columns=tuple(c for c in USERS.columns if c.name != "phone"))
    for _ in range(2):
        guard.begin([shorter])
        guard.logged(shorter)
        guard = starts.next(known=[guard.logged(shorter)])
    both: Any = {"app.users": {**POLICIES["app.users"], "mail": "hmac"}}
    renamed = replace(shorter, columns=tuple(replace(c, name="mail") if c.name == "email" else c for c in shorter.columns))
    for _ in range(3):
        guard = starts.next(both)
        guard.begin([renamed])
        assert guard.logged(renamed).columns[1].protected


def test_what_was_dropped_is_not_shown_when_its_policy_goes() -> None:
    starts = Starts()
    starts.next({"app.users": {"phone": "drop"}}).begin([USERS])
    with pytest.raises(Stopped, match=r"column phone of app\.users was kept back"):
        starts.next({}).begin([USERS])
    starts.next({"app.users": {"phone": "keep"}}).begin([USERS])


def test_without_policies_nothing_is_undecided() -> None:
    starts = Starts()
    starts.next({}).begin([USERS])
    assert starts.next({}).logged(with_column(USERS, "mail", 5)).names == (*USERS.names, "mail")


def test_tables_that_are_gone_are_forgotten() -> None:
    starts, guard = begun(table("orders", "id", oid=2))
    guard.begin([table("orders", "id", oid=3)])
    assert starts.decisions is not None
    assert set(starts.decisions.tables) == {1, 3}, "users has policies, and may come again"


@pytest.mark.parametrize(("column", "key"), [("e-mail", "e-mail"), ('a "b"', '"a \\"b\\""'), ("Straße", '"Straße"')])
def test_the_line_to_put_into_the_configuration_is_valid_toml(column: str, key: str) -> None:
    import tomllib

    _, guard = begun()
    odd = with_column(USERS, column, 5)
    (line,) = guard.undecided.lines(odd)
    assert f"put {key} = " in line
    assert tomllib.loads(f'[source.columns."app.users"]\n{key} = "keep"')["source"]["columns"]["app.users"] == {column: "keep"}
