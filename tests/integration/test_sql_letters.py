"""Rows that a table of a SQL store refuses: each way in which somebody can narrow a table there, what depends on what, and bounds.

What every store does with dead letters is in tests/contract/test_dead_letters.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from cdc.audit.stores import audit
from cdc.crashpoint import armed
from cdc.errors import StoreError
from cdc.follow.letters import Deciding
from cdc.model.batch import Op
from cdc.source.connection import connect
from cdc.state import status
from cdc.state.letterrequests import LetterRequest, Verb
from sinks.contract import Sink
from sinks.deadletters import LetterState, box_of
from tests.conftest import Database
from tests.contract.labs import Lab
from tests.contract.rows import ORDERS, PAIRS, batch, order, schema, upserts
from tests.contract.test_marks import apply, pair, step
from tests.contract.test_rebuild import rebuild
from tests.contract.test_sinks import held
from tests.integration.pipeline import service, settings_of
from tests.integration.sqllabs import Ask, ask, lab
from tests.integration.test_sql_store import CATCH_UP_S
from tests.waiting import until

__all__ = ["ask", "lab"]

CANARY = "canary"
Do = Callable[[str], object]


@pytest.fixture
def server(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Do]:
    """Somebody else's statements, in Postgres."""
    if "duckdb" in lab._options["url"]:
        pytest.skip("DuckDB has no such thing")
    with request.getfixturevalue("postgres").connect() as connection:
        yield connection.execute


def letters(sink: Sink) -> list[tuple[str, int, str]]:
    found = box_of(sink)
    assert found is not None
    return sorted((one.table, int(one.position), one.reason) for one in found.letters())


def ids(sink: Sink) -> list[str | None]:
    return [row["id"] for row in held(sink, ORDERS)]


def decide(lab: Lab, sink: Sink, verb: Verb, *names: str) -> list[bool]:
    box = box_of(sink)
    assert box is not None
    request = LetterRequest(verb, names, "ops")
    return [one.done for one in Deciding(sink, box, lab.log.reader(), sink.applied()).answers(request)]


NARROWED: dict[str, tuple[str, dict[str, str | None], str]] = {
    "length": ("alter column note type varchar(5)", {"note": CANARY}, "the table does not take its values (SQLSTATE 22001)"),
    "overflow": (
        "alter column amount type numeric(4, 2)",
        {"amount": "100.25"},
        "the table does not take its values (SQLSTATE 22003)",
    ),
    "other type": (
        "alter column status type date using null",
        {"status": CANARY},
        "the table does not take its values (SQLSTATE 22007)",
    ),
    "domain": ("alter column note type short", {"note": CANARY}, "the constraint short_check refuses it (SQLSTATE 23514)"),
    "null": ("alter column note set not null", {"note": None}, "the column note takes no NULL (SQLSTATE 23502)"),
    "unique": ("add constraint one_of_each unique (note)", {"note": "a"}, "the constraint one_of_each refuses it (SQLSTATE 23505)"),
    "excluded": (
        "add constraint apart exclude using btree (note with =)",
        {"note": "a"},
        "the constraint apart refuses it (SQLSTATE 23P01)",
    ),
    "deferred": (
        "add constraint one_of_each unique (note) deferrable initially deferred",
        {"note": "a"},
        "the constraint one_of_each refuses it (SQLSTATE 23505)",
    ),
}


@pytest.mark.parametrize("how", NARROWED)
def test_each_way_to_narrow_a_table_sets_aside_the_row_alone(lab: Lab, server: Do, how: str) -> None:
    statement, wrong, reason = NARROWED[how]
    sink = lab.opened()
    step(lab, sink, upserts(ORDERS, 1, [order(9, "2013-01-01", note="a")]))
    server("create domain short as text check (length(value) < 6)")
    server(f"alter table public.orders {statement}")
    some = [order(key, "2013-01-01", note=f"n{key}") for key in range(1, 7)]
    step(lab, sink, upserts(ORDERS, 2, [*some[:4], {**some[4], **wrong}, some[5]]))
    assert ids(sink) == ["1", "2", "3", "4", "6", "9"]
    assert letters(sink) == [("public.orders", 6, reason)]
    assert letters(lab.sink()) == letters(sink)
    step(lab, sink, batch(ORDERS, [(Op.UPDATE, 8, some[4])]))
    assert (len(ids(sink)), letters(sink)) == (7, [])


def test_an_index_that_has_no_room_and_a_trigger_refuse_rows_too(lab: Lab, server: Do) -> None:
    import random

    sink = lab.opened()
    step(lab, sink, upserts(ORDERS, 1, [order(9)]))
    server("create index on public.orders (note)")
    server(
        """create function public.picky() returns trigger language plpgsql as $$ begin
        if new.status = 'canary' then raise exception 'no % here', new.status; end if; return new; end $$"""
    )
    server("create trigger picky before insert or update on public.orders for each row execute function public.picky()")
    long = "".join(chr(random.Random(7).randrange(0x4E00, 0x9000)) for _ in range(4)) + "".join(
        chr(random.Random(seed).randrange(0x4E00, 0x9000)) for seed in range(4000)
    )
    step(lab, sink, upserts(ORDERS, 2, [order(1), order(2, CANARY), order(3, note=long), order(4)]))
    assert ids(sink) == ["1", "4", "9"]
    assert letters(sink) == [
        ("public.orders", 3, "a trigger of the table refuses it (SQLSTATE P0001)"),
        ("public.orders", 4, "the table does not take its values (SQLSTATE 54000)"),
    ]


def test_a_narrower_column_stays_and_its_rows_are_set_aside(lab: Lab, ask: Ask) -> None:
    sink = lab.opened()
    step(lab, sink, upserts(ORDERS, 1, [order(9)]))
    ask("alter table public.orders alter column customer_id type smallint")
    ask("alter table public.orders alter column note set not null")
    wrong = [order(2, customer_id="70000"), order(3, note=None), order(4)]
    step(lab, sink, upserts(ORDERS, 2, [order(1), *wrong]))
    assert ids(sink) == ["1", "4", "9"]
    assert [(position, reason.partition(" (")[0]) for _, position, reason in letters(sink)] == [
        (3, "the table does not take its values" if lab.server else "the column customer_id does not take its value"),
        (4, "the column note takes no NULL"),
    ]
    # A change of another column leaves the type that somebody has chosen; so the rows stay aside.
    later = replace(ORDERS, columns=tuple(c for c in ORDERS.columns if c.name != "status"))
    step(lab, sink, schema(later, 7))
    assert [position for _, position, _ in letters(sink)] == [3, 4]
    kinds = ask("select data_type from information_schema.columns where table_name = 'orders' and column_name = 'customer_id'")
    assert [kind.lower() for (kind,) in kinds] == ["smallint"]
    # One of the column itself makes it the source's.
    wider = replace(
        later, columns=tuple(replace(c, type_oid=25, type_name="text") if c.name == "customer_id" else c for c in later.columns)
    )
    step(lab, sink, schema(wider, 8))
    assert [position for _, position, _ in letters(sink)] == [4]


def test_values_that_change_places_are_no_letters(lab: Lab, server: Do) -> None:
    sink = lab.opened()
    step(lab, sink, upserts(ORDERS, 1, [order(1, note="a"), order(2, note="b"), order(3, note="c")]))
    server("alter table public.orders add unique (note)")
    step(lab, sink, batch(ORDERS, [(Op.UPDATE, 4, order(1, note="b")), (Op.UPDATE, 5, order(2, note="a"))]))
    assert [(row["id"], row["note"]) for row in held(sink, ORDERS)] == [("1", "b"), ("2", "a"), ("3", "c")]
    assert letters(sink) == []


CHILDREN = replace(PAIRS, oid=16999, name="aaa_children")
"""Comes before its parents in every order."""


def referring(lab: Lab, server: Do, how: str = "") -> Sink:
    """Each row of one table refers to one of the other: a is the order's number."""
    sink = lab.opened()
    step(lab, sink, upserts(CHILDREN, 1, [pair(9)]), upserts(ORDERS, 2, [order(9)]))
    server("alter table public.orders add unique (note)")
    server("alter table public.aaa_children add column parent bigint generated always as (a::bigint) stored")
    server(f"alter table public.aaa_children add constraint has_parent foreign key (parent) references public.orders {how}")
    server("alter table public.orders add constraint short check (length(status) < 5)")
    return sink


def children(sink: Sink) -> list[str | None]:
    return [row["a"] for row in held(sink, CHILDREN)]


@pytest.mark.parametrize("how", ["", "deferrable initially deferred"])
def test_a_row_whose_parent_is_a_letter_is_one_too(lab: Lab, server: Do, how: str) -> None:
    sink = referring(lab, server, how)
    step(
        lab,
        sink,
        upserts(CHILDREN, 3, [pair(1), pair(2), pair(3)]),
        upserts(ORDERS, 6, [order(1, note="x"), order(2, "canary", note="y")]),
    )
    assert (ids(sink), children(sink)) == (["1", "9"], ["1", "9"])
    assert letters(sink) == [
        ("public.aaa_children", 4, "the constraint has_parent refuses it (SQLSTATE 23503)"),
        ("public.aaa_children", 5, "the constraint has_parent refuses it (SQLSTATE 23503)"),
        ("public.orders", 7, "the constraint short refuses it (SQLSTATE 23514)"),
    ]
    assert decide(lab, sink, Verb.REPLAY, "public.aaa_children@4") == [False]
    server("alter table public.orders drop constraint short")
    assert decide(lab, sink, Verb.REPLAY, "public.orders@7", "public.aaa_children@4") == [True, True]
    assert (ids(sink), children(sink)) == (["1", "2", "9"], ["1", "2", "9"])
    assert [position for _, position, _ in letters(sink)] == [5]
    # A parent and its child go with one commit, the parent's table first.
    deletes = [batch(ORDERS, [(Op.DELETE, 8, order(1))]), batch(CHILDREN, [(Op.DELETE, 9, pair(1))])]
    step(lab, sink, *deletes)
    assert (ids(sink), children(sink)) == (["2", "9"], ["2", "9"])


def test_a_row_that_others_refer_to_cannot_be_set_aside_and_that_is_named(lab: Lab, server: Do) -> None:
    sink = referring(lab, server)
    with pytest.raises(StoreError, match=r"rows of public\.orders are to go, and cannot: the constraint has_parent") as failure:
        step(lab, sink, batch(ORDERS, [(Op.UPDATE, 3, order(9, "canary"))]))
    assert not failure.value.retryable
    assert "canary" not in failure.value.line()
    assert lab.applied().position == 2, "nothing of it is there"


def test_a_row_that_had_to_wait_is_there_in_the_end(lab: Lab, server: Do) -> None:
    """Row 1 waits for the value that row 2 gives up, and what stood in its place cannot go while others refer to it."""
    second, third = replace(PAIRS, oid=16998, name="second"), replace(PAIRS, oid=16997, name="third")
    sink = lab.opened()
    begun = [order(1, note="a"), order(2, note="b")]
    step(lab, sink, upserts(ORDERS, 1, begun), upserts(second, 3, [pair(1)]), upserts(third, 4, [pair(1)]))
    server("alter table public.orders add unique (note)")
    for name in ("second", "third"):
        server(f"alter table public.{name} add column of bigint generated always as (a::bigint) stored")
    server("alter table public.second add foreign key (of) references public.orders, add unique (of)")
    server("alter table public.third add column up bigint generated always as (case when a::int < 5 then a::bigint end) stored")
    server("alter table public.third add column top bigint generated always as (case when a::int > 5 then a::bigint end) stored")
    server(
        "alter table public.third add foreign key (up) references public.second (of), add foreign key (top) references public.orders"
    )
    step(
        lab,
        sink,
        batch(
            ORDERS,
            [(Op.UPDATE, 5, order(1, note="b")), (Op.UPDATE, 6, order(2, note="c")), (Op.INSERT, 7, order(7, note="z"))],
        ),
        batch(second, [(Op.DELETE, 8, pair(1))]),
        batch(third, [(Op.DELETE, 9, pair(1)), (Op.INSERT, 10, pair(7))]),
    )
    assert [(row["id"], row["note"]) for row in held(sink, ORDERS)] == [("1", "b"), ("2", "c"), ("7", "z")]
    assert letters(sink) == []


@pytest.mark.parametrize("where", ["orders", "orders_history"])
@pytest.mark.parametrize("how", ["", "using constraint = new.status, column = new.status", "using errcode = 'HW001'"])
def test_what_somebodys_trigger_says_of_a_row_is_repeated_nowhere(lab: Lab, server: Do, where: str, how: str) -> None:
    sink = lab.opened(tables={"public.orders": {"history": True}})
    step(lab, sink, upserts(ORDERS, 1, [order(9)]))
    server(
        f"""create function public.telling() returns trigger language plpgsql as $$ begin
        if new.status = 'canary' then raise exception 'no % here', new.status {how}; end if; return new; end $$"""
    )
    server(f"create trigger telling before insert or update on public.{where} for each row execute function public.telling()")
    told = ""
    try:
        step(lab, sink, upserts(ORDERS, 2, [order(1, CANARY), order(2)]))
    except StoreError as error:
        told = error.line() + repr(error) + str(error.hint)
    assert told or len(letters(sink)) == 1
    assert CANARY not in told + str(letters(sink))


@pytest.mark.parametrize("ends", ["delete", "truncate"])
def test_a_letter_whose_row_goes_with_the_same_commit_is_gone_too(lab: Lab, ask: Ask, ends: str) -> None:
    sink = lab.opened()
    step(lab, sink, upserts(ORDERS, 1, [order(1, note="a"), order(2, note="b")]))
    ask("alter table public.orders alter column note set not null")
    last = (Op.DELETE, 5, order(1)) if ends == "delete" else (Op.TRUNCATE, 5, {})
    step(lab, sink, batch(ORDERS, [(Op.UPDATE, 3, order(1, note=None)), (Op.INSERT, 4, order(3, note="c"))]), batch(ORDERS, [last]))
    assert (ids(sink), letters(sink)) == (["2", "3"] if ends == "delete" else [], [])
    step(lab, sink, upserts(ORDERS, 6, [order(1, note=None)]))
    assert len(letters(sink)) == 1
    step(lab, sink, batch(ORDERS, [(Op.TRUNCATE, 7, {})]))
    assert (ids(sink), letters(sink), letters(lab.sink())) == ([], [], [])


def test_a_row_that_is_tried_again_and_refused_otherwise_says_so(lab: Lab, server: Do) -> None:
    sink = lab.opened()
    step(lab, sink, upserts(ORDERS, 1, [order(1, note="a")]))
    server("alter table public.orders add constraint first_rule check (length(note) < 5)")
    step(lab, sink, upserts(ORDERS, 2, [order(2, note=CANARY)]))
    server("alter table public.orders drop constraint first_rule, alter column note type varchar(5)")
    assert decide(lab, sink, Verb.REPLAY, "public.orders@2") == [False]
    assert letters(sink) == [("public.orders", 2, "the table does not take its values (SQLSTATE 22001)")] == letters(lab.sink())
    server("alter table public.orders alter column note type text")
    assert decide(lab, sink, Verb.REPLAY, "public.orders@2") == [True]
    assert (ids(sink), letters(sink)) == (["1", "2"], [])


def test_a_store_that_refuses_every_row_stops_soon(lab: Lab, server: Do) -> None:
    """Whether a row may be tried again or not."""
    sink = lab.opened()
    step(lab, sink, upserts(ORDERS, 1, [order(9999)]))
    server("create function public.never() returns trigger language plpgsql as $$ begin raise exception 'no'; end $$")
    server("create trigger never before insert or update on public.orders for each row execute function public.never()")
    begun = time.process_time()
    with pytest.raises(StoreError, match=r"refuses \d+ of 2000 rows of public\.orders") as failure:
        step(lab, sink, upserts(ORDERS, 2, [order(key) for key in range(2000)]))
    assert "cdc dlq ls" in str(failure.value.hint)
    assert time.process_time() - begun < 10
    assert ids(sink) == ["9999"]


def test_a_store_of_which_too_much_is_refused_stops_once_its_letters_are_there(lab: Lab, ask: Ask) -> None:
    sink = lab.opened()
    step(lab, sink, upserts(ORDERS, 1, [order(999)]))
    ask("alter table public.orders alter column note set not null")
    rows = [order(key, note=None if key % 4 == 0 else "n") for key in range(200)]
    with pytest.raises(StoreError, match=r"refuses \d+ of 200 rows of public\.orders \(the column note takes no NULL") as failure:
        step(lab, sink, upserts(ORDERS, 2, rows))
    assert not failure.value.retryable
    assert ids(sink) == ["999"], "nothing of it is there"
    stopped = lab.opened()
    known = letters(stopped)
    assert 20 <= len(known) <= 50
    for _ in range(3):  # each time some more of them are known
        again = lab.opened()
        box = box_of(again)
        assert box is not None
        decide(lab, again, Verb.DROP, *(one.id for one in box.letters()))
        try:
            apply(again, upserts(ORDERS, 2, rows))
            again.commit(lab.log.head)
        except StoreError:
            continue
        break
    assert len(ids(again)) == 151
    assert [one.state for one in box.letters()].count(LetterState.ACCEPTED) >= 20
    assert len(box.letters()) == 50


def test_a_history_has_what_the_table_refuses(lab: Lab, ask: Ask) -> None:
    sink = lab.opened(tables={"public.orders": {"history": True}})
    step(lab, sink, upserts(ORDERS, 1, [order(1, note="a"), order(2, note="b")]))
    ask("alter table public.orders alter column note set not null")
    step(lab, sink, batch(ORDERS, [(Op.UPDATE, 3, order(1, note=None))]))
    step(lab, sink, batch(ORDERS, [(Op.UPDATE, 4, order(1, note="c"))]))
    spans = (
        "select note, valid_from_position, valid_to_position from public.orders_history where id = 1 order by valid_from_position"
    )
    assert ask(spans) == [("a", 1, 3), (None, 3, 4), ("c", 4, None)]
    assert (ids(sink), letters(sink)) == (["1", "2"], [])


def test_a_store_that_is_built_again_tries_all_rows_and_keeps_what_was_accepted(lab: Lab, ask: Ask) -> None:
    sink = lab.opened()
    step(lab, sink, upserts(ORDERS, 1, [order(1), order(2), order(3)]))
    ask("alter table public.orders alter column note set not null")
    step(lab, sink, upserts(ORDERS, 4, [order(4, note=None), order(5, note=None), order(6)]))
    assert decide(lab, sink, Verb.DROP, "public.orders@4") == [True]
    again = rebuild(lab)
    assert ids(again) == ["1", "2", "3", "6"]
    box = box_of(again)
    assert box is not None
    assert [(int(one.position), one.state) for one in box.letters()] == [(4, LetterState.ACCEPTED), (5, LetterState.ASIDE)]
    ask("alter table public.orders alter column note drop not null")
    again.close()
    again = rebuild(lab)
    assert (ids(again), letters(again)) == ([str(key) for key in range(1, 7)], [])


def test_what_is_soft_deleted_counts_as_nothing_in_its_place(lab: Lab, ask: Ask) -> None:
    sink = lab.opened(deleted="gone")
    step(lab, sink, upserts(ORDERS, 1, [order(1, note="a"), order(2, note="b")]))
    ask("alter table public.orders alter column note set not null")
    step(lab, sink, batch(ORDERS, [(Op.UPDATE, 3, order(1, note=None))]))
    assert ids(sink) == ["2"]
    assert ask("select id, note, gone from public.orders order by id") == [(1, "a", True), (2, "b", False)]
    step(lab, sink, batch(ORDERS, [(Op.UPDATE, 4, order(1, note="c"))]))
    assert (ids(sink), letters(sink)) == (["1", "2"], [])


@pytest.mark.parametrize("point", ["sql.table_written", "sql.before_commit", "sql.committed"])
def test_rows_letters_and_marks_are_there_together_or_not_at_all(lab: Lab, ask: Ask, point: str) -> None:
    sink = lab.opened()
    step(lab, sink, upserts(ORDERS, 1, [order(1, note="a")]))
    ask("alter table public.orders alter column note set not null")
    changes = upserts(ORDERS, 2, [order(2, note=None), order(3)])
    lab.log.put(changes)
    apply(sink, changes)
    with armed(f"{point}=error"), pytest.raises((OSError, StoreError)):
        sink.commit(lab.log.head)
    there = point == "sql.committed"
    assert (len(letters(lab.sink())), lab.applied().position) == ((1, 3) if there else (0, 1))
    sink.commit(lab.log.head)  # the answer was lost, or it is done again
    assert (ids(sink), [position for _, position, _ in letters(sink)]) == (["1", "3"], [2])
    assert letters(lab.sink()) == letters(sink)


def test_a_ledger_of_before_there_were_letters_gets_their_table(lab: Lab, ask: Ask) -> None:
    sink = lab.opened()
    step(lab, sink, upserts(ORDERS, 1, [order(1)]))
    sink.close()
    ask("drop table headwater_stores.letters")
    assert letters(lab.sink()) == []
    sink = lab.opened()
    ask("alter table public.orders alter column note set not null")
    step(lab, sink, upserts(ORDERS, 2, [order(2, note=None)]))
    assert len(letters(lab.sink())) == 1
    lab.sink().erase()
    assert letters(lab.sink()) == []


def test_the_follower_counts_them_and_the_audit_reports_them_apart(postgres: Database, tmp_path: Any) -> None:
    with connect(postgres.dsn) as source:
        source.execute("create table public.items (id int primary key, note text); create publication cdc for table public.items")
        source.execute("insert into public.items values (1, 'a')")
        given = {"kind": "sql", "url": postgres.dsn, "namespace": "copy_{schema}"}
        settings = settings_of(postgres, tmp_path, {"reports": given})
        with service(settings) as followers:
            until(lambda: _count(source) == 1, "the first row")
            source.execute("alter table copy_public.items add constraint short check (length(note) < 5)")
            source.execute("insert into public.items values (2, 'canary'), (3, 'b')")
            until(lambda: _count(source) == 2, "the rows that fit")
            [result] = audit(settings, timeout_s=CATCH_UP_S)
            until(lambda: bool(followers["reports"].status.aside), "the letter to be reported")
    assert result.equal, result.to_json()
    [table] = result.to_json()["tables"]
    assert (table["aside"], table["missing"], table["different"]) == (1, 0, 0)
    seen = status.read_follower(settings.run_dir, "reports")
    assert seen is not None
    assert ([(one.table, one.letters) for one in seen.aside], seen.dead) == ([("public.items", 1)], 1)
    assert "canary" not in str(seen)


def _count(source: Any) -> int:
    found: Sequence[Any] = source.execute("select to_regclass('copy_public.items') is not null").fetchall()
    return int(source.execute("select count(*) from copy_public.items").fetchall()[0][0]) if found[0][0] else 0
