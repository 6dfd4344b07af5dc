"""``transform``: what the function may do, what is said when it does something else, and that changes and audits go through the same one."""

from __future__ import annotations

import textwrap
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic import ValidationError

from cdc.errors import ConfigError, StoreError
from cdc.follow.follower import Follower
from cdc.log.memory import MemoryLog
from cdc.model.batch import OP, Op
from cdc.model.pgtypes import INT8, JSONB, TEXT, TIMESTAMPTZ
from cdc.model.position import Lsn, Position
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema
from cdc.settings import functions
from cdc.settings.models import StoreOptions
from cdc.state import letterrequests
from cdc.state.letterrequests import LetterRequest, Verb
from sinks import make_sink, options_model
from sinks import transform as transforms
from sinks.heldlog import HeldLog
from sinks.holding import bound, check, decoded, failures_of
from sinks.holdingchange import settled
from sinks.memory import STORES
from sinks.memoryunits import Store
from sinks.render.rowtext import row_text
from tests.contract.rows import Row, batch
from tests.logs import LooseLog

PEOPLE = Table(
    17300,
    "public",
    "people",
    (
        Column("id", INT8, -1, "int8", key=True, attnum=1),
        Column("email", TEXT, -1, "text", attnum=2),
        Column("visits", INT8, -1, "int8", attnum=3),
        Column("until", TIMESTAMPTZ, -1, "timestamptz", attnum=4),
        Column("notes", JSONB, -1, "jsonb", attnum=5),
    ),
)
SCHEMA = TopicSchema.of(PEOPLE)
FUNCTIONS = """
    import pyarrow as pa
    import pyarrow.compute as pc

    def changed(rows, name, values):
        at = rows.schema.get_field_index(name)
        return rows.set_column(at, rows.schema.field(at), values)

    def masked(rows):
        email = rows.column("email")
        domain = pc.replace_substring_regex(email, "^[^@]*", "***")
        rows = changed(rows, "email", domain)
        return changed(rows, "visits", pc.multiply(rows.column("visits"), 2)) if "visits" in rows.schema.names else rows

    def same(rows):
        return rows

    def fails(rows):
        if rows.num_rows:
            raise ValueError(f"no {rows.column('email')[0].as_py()}")
        return rows

    def table(rows):
        return pa.Table.from_batches([rows])

    def fewer(rows):
        return rows.slice(1) if rows.num_rows else rows

    def missing(rows):
        return rows.select([name for name in rows.schema.names if name != "visits"])

    def further(rows):
        return rows.append_column("age", rows.column("id"))

    def other_type(rows):
        return changed_type(rows)

    def changed_type(rows):
        at = rows.schema.get_field_index("visits")
        return rows.set_column(at, "visits", rows.column("visits").cast(pa.int32()))

    def other_key(rows):
        return changed(rows, "id", pc.add(rows.column("id"), 1))

    def no_json(rows):
        return changed(rows, "notes", pa.array(["{secret"] * rows.num_rows, pa.utf8()))

    def zero(rows):
        return changed(rows, "email", pa.array(["secret\\0"] * rows.num_rows, pa.utf8()))

    def within(rows):
        return rows if not rows.num_rows else changed(rows, "email", pc.cast(rows.column("email"), pa.int64()))

    number = 7
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Writes the module ``shop_rows``, as if this process had not seen it yet."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(text: str) -> None:
        (tmp_path / "shop_rows.py").write_text(textwrap.dedent(text))
        forget(monkeypatch)

    write(FUNCTIONS)
    return write


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(__import__("sys").modules, "shop_rows", raising=False)
    monkeypatch.setattr(functions, "known", {})
    __import__("importlib").invalidate_caches()


def options(function: str, **said: Any) -> StoreOptions:
    tables = {"public.people": {"transform": f"shop_rows:{function}", **said}}
    return options_model("redis").model_validate({"kind": "redis", "url": "redis://h", "tables": tables})


def person(key: int, email: str | None = "ada@example.org", **said: str | None) -> Row:
    return {"id": str(key), "email": email, "visits": "3", "until": None, "notes": '{"a": 1}', **said}


CHANGES = [
    (Op.INSERT, 1, person(1)),
    (Op.UPDATE, 2, person(2, None, notes=None)),
    (Op.DELETE, 3, {"id": "1"}),
    (Op.READ, 4, person(4, "bob@example.com", until="2026-11-22 10:00:00+00")),
]


@pytest.mark.usefixtures("module")
def test_changes_go_through_it_and_so_does_what_an_audit_expects() -> None:
    holding = bound("cache", options("masked"), SCHEMA)
    given = holding.batch(batch(PEOPLE, CHANGES))
    assert given.column("email").to_pylist() == ["***@example.org", None, None, "***@example.com"]
    assert given.column("visits").to_pylist() == [6, 6, None, 6]
    assert given.column(OP).to_pylist() == [int(op) for op, _, _ in CHANGES]
    live = [one for one in CHANGES if one[0] is not Op.DELETE]
    texts = holding.rows(row_text(batch(PEOPLE, live), SCHEMA), SCHEMA)
    assert texts.to_pylist() == row_text(holding.batch(batch(PEOPLE, live)), holding.held(SCHEMA)).to_pylist()
    assert texts.column("email").to_pylist() == ["***@example.org", None, "***@example.com"]


@pytest.mark.usefixtures("module")
def test_it_has_the_columns_that_it_is_given_under_their_own_names() -> None:
    said = {"transform_columns": ["email"], "exclude": ["visits"], "rename": {"email": "contact"}}
    holding = bound("cache", options("masked", **said), SCHEMA)
    check("cache", options("masked", **said), SCHEMA)
    given = holding.batch(batch(PEOPLE, CHANGES))
    assert given.column("contact").to_pylist() == ["***@example.org", None, None, "***@example.com"]
    wrong = options("masked", transform_columns=["emial"])
    with pytest.raises(ConfigError, match=r"transform_columns: public\.people has no column emial"):
        check("cache", wrong, SCHEMA)
    with pytest.raises(ConfigError, match=r"transform_columns: the store does not hold email of public\.people"):
        check("cache", options("same", transform_columns=["email"], exclude=["email"]), SCHEMA)


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("table", r"returned a Table, not a pyarrow\.RecordBatch"),
        ("missing", "returned no column visits"),
        ("further", "returned another column, age; what is to be added is a `computed` first"),
        ("other_type", "returned visits as int32, not int64"),
        ("nothing", "shop_rows has no function nothing"),
        ("number", "shop_rows has no function number"),
    ],
)
def test_what_it_may_not_do_is_said_at_the_start(function: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        check("cache", options(function), SCHEMA)
    assert "public.people" in str(refused.value)


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("fails", r"raised ValueError at shop_rows\.py:20"),
        ("fewer", "returned 3 rows for 4"),
        ("other_key", "changed id, which tells rows apart"),
        ("zero", "returned for email a text that is not a text"),
        ("within", r"raised ArrowInvalid at shop_rows\.py:\d+ "),
        ("no_json", "returned for notes a text that is not a jsonb"),
    ],
)
def test_what_it_does_to_rows_stops_the_store_and_no_value_is_named(function: str, message: str) -> None:
    check("cache", options(function), SCHEMA)
    holding = bound("cache", options(function), SCHEMA)
    live = [(Op.INSERT, at, person(at, "secret@example.org")) for at in range(1, 5)]
    calls: list[Callable[[], pa.RecordBatch]] = [
        lambda: holding.batch(batch(PEOPLE, live)),
        lambda: holding.rows(row_text(batch(PEOPLE, live), SCHEMA), SCHEMA),
    ]
    for call in calls:
        with pytest.raises(StoreError, match=message) as refused:
            call()
        assert not refused.value.retryable
        assert refused.value.__cause__ is None
        assert "secret" not in f"{refused.value}{refused.value.hint}"


def test_a_module_that_cannot_be_imported_is_named(module: Callable[[str], None]) -> None:
    with pytest.raises(ConfigError, match="there is no module nowhere_at_all"):
        bound("cache", StoreOptionsOf("nowhere_at_all:f"), SCHEMA)
    module("import nothing_like_it\n")
    with pytest.raises(ConfigError, match="there is no module nothing_like_it"):
        bound("cache", options("masked"), SCHEMA)
    module("\n1 / 0\n")
    with pytest.raises(ConfigError, match=r"importing shop_rows raised ZeroDivisionError at shop_rows\.py:2"):
        bound("cache", options("masked"), SCHEMA)
    module("def masked(:\n")
    with pytest.raises(ConfigError, match=r"importing shop_rows raised SyntaxError at shop_rows\.py:1"):
        bound("cache", options("masked"), SCHEMA)
    with pytest.raises(ValidationError, match="is not module:function"):
        StoreOptionsOf("shop_rows.masked")
    with pytest.raises(ValidationError, match="says something of a transform, and has none"):
        options_model("redis").model_validate(
            {"kind": "redis", "url": "redis://h", "tables": {"public.people": {"transform_version": "2"}}}
        )


def StoreOptionsOf(reference: str) -> StoreOptions:
    tables = {"public.people": {"transform": reference}}
    return options_model("redis").model_validate({"kind": "redis", "url": "redis://h", "tables": tables})


@pytest.mark.usefixtures("module")
def test_a_row_with_a_value_that_it_cannot_be_shown_is_a_dead_letter() -> None:
    """Or else what it was to hide would stay."""
    changes = [(Op.INSERT, 1, person(1, until="infinity")), (Op.INSERT, 2, person(2))]
    holding = bound("cache", options("masked"), SCHEMA)
    given = holding.batch(batch(PEOPLE, changes))
    assert given.column(OP).to_pylist() == [int(Op.DELETE), int(Op.INSERT)]
    assert failures_of(given) == {0: "transform: until has a value that no column of its Arrow type holds"}
    expected = holding.rows(row_text(batch(PEOPLE, changes), SCHEMA), SCHEMA)
    assert expected.column("id").to_pylist() == ["1", "2"]
    narrow = bound("cache", options("masked", transform_columns=["email"]), SCHEMA).batch(batch(PEOPLE, changes))
    assert failures_of(narrow) == {}
    assert row_text(narrow, SCHEMA).column("until").to_pylist() == ["infinity", None]
    assert narrow.column("email").to_pylist() == ["***@example.org"] * 2


def test_rows_of_two_versions_are_never_mixed(module: Callable[[str], None]) -> None:
    former = bound("cache", options("masked"), SCHEMA)
    kept = decoded(former.held(SCHEMA).holding)
    assert settled("cache", SCHEMA, kept, bound("cache", options("masked"), SCHEMA)).said == former.said
    module(FUNCTIONS.replace("***", "---"))
    with pytest.raises(ConfigError, match="transform is another, or another version of it"):
        settled("cache", SCHEMA, kept, bound("cache", options("masked"), SCHEMA))
    with pytest.raises(ConfigError, match="transform is another, or another version of it"):
        settled(
            "cache",
            SCHEMA,
            kept,
            bound("cache", options_model("redis").model_validate({"kind": "redis", "url": "redis://h"}), SCHEMA),
        )
    numbered = bound("cache", options("masked", transform_version="1"), SCHEMA)
    module(FUNCTIONS)
    again = bound("cache", options("masked", transform_version="1"), SCHEMA)
    assert settled("cache", SCHEMA, decoded(numbered.held(SCHEMA).holding), again).said == again.said
    with pytest.raises(ConfigError, match="another version"):
        settled("cache", SCHEMA, numbered, bound("cache", options("masked", transform_version="2"), SCHEMA))


def test_what_a_store_says_is_never_imported(module: Callable[[str], None], tmp_path: Path) -> None:
    module(FUNCTIONS)
    text = bound("cache", options("masked"), SCHEMA).held(SCHEMA).holding
    module(f"open({str(tmp_path / 'run')!r}, 'w')\n{textwrap.dedent(FUNCTIONS)}")
    with pytest.raises(StoreError, match="is not loaded"):
        decoded(text).batch(batch(PEOPLE, CHANGES))
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize("kind", ["memory", "console"])
def test_a_store_gets_rows_that_have_gone_through_it(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    log = MemoryLog()
    writer = log.writer()
    writer.append(batch(PEOPLE, CHANGES))
    writer.commit(Lsn(50), 1)
    given = options_model(kind).model_validate({"kind": kind, "tables": {"public.people": {"transform": "shop_rows:masked"}}})
    held, sink = HeldLog(log.reader(), f"t{kind}", given), make_sink(f"t{kind}", given)
    held.opened(sink, 1)
    for changes in held.read("public.people", Position(0), Position(4)):
        sink.prepare(held.held(SCHEMA))
        sink.apply(changes)
    sink.commit(held.head())
    if kind == "console":
        assert "***@example.com" in capsys.readouterr().out
    else:
        rows = [row for part in sink.scan(held.held(SCHEMA)) for row in part.to_pylist()]
        assert sorted((row["id"], row["email"], row["visits"]) for row in rows) == [("2", None, "6"), ("4", "***@example.com", "6")]
    sink.close()


@pytest.mark.usefixtures("module")
def test_a_column_that_the_source_renames_keeps_going_through_it() -> None:
    holding = bound("cache", options("same", transform_columns=["email"]), SCHEMA)
    renamed = TopicSchema.of(
        replace(PEOPLE, columns=tuple(replace(one, name="mail") if one.name == "email" else one for one in PEOPLE.columns))
    )
    held = holding.held(renamed)
    assert holding.transform is not None
    assert [one.name for one in holding.transform.fields(held, holding.origin)] == ["id", "mail"]


def test_nan_in_a_key_is_no_change() -> None:
    one = pa.array([1.0, float("nan"), None])
    assert transforms._equal(one, pa.array([1.0, float("nan"), None]))
    assert not transforms._equal(one, pa.array([1.0, float("nan"), 2.0]))
    assert not transforms._equal(one, pa.array([1.0, 2.0, None]))


@pytest.mark.usefixtures("module")
def test_a_row_that_it_cannot_be_shown_is_not_corrected_by_hand(tmp_path: Path) -> None:
    """Its other columns would be written as they are in the database."""
    log = LooseLog()
    log.put(batch(PEOPLE, [(Op.INSERT, 1, person(1)), (Op.INSERT, 2, person(2, until="infinity"))]))
    given = options_model("memory").model_validate(
        {"kind": "memory", "tables": {"public.people": {"transform": "shop_rows:masked"}}}
    )
    STORES["masked"] = Store()
    one = Follower("masked", given, tmp_path, log.reader(), tmp_path, threading.Event())
    assert one.start()
    one.follow_to(log.head)
    request = LetterRequest(Verb.EDIT, ["public.people@2"], "ops", {"until": None})
    asked = letterrequests.ask(tmp_path, "masked", request)
    one._looked_at = float("-inf")
    one.follow_to(log.head)
    [answer] = letterrequests.taken_answer(tmp_path, "masked", asked) or ()
    assert not answer.done
    assert answer.text.endswith("what the transform would have changed cannot be written as it is")
    shown = [row for _, row in STORES["masked"].rows["public.people"].values() if row is not None]
    assert [row["email"] for row in shown] == ["***@example.org"]
