from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from cdc.errors import ConfigError, Stopped, StopState
from cdc.model.batch import EXACT_TYPE, META_FIELDS, Op, batch_schema, table_of
from cdc.model.evolution import Kind, SchemaChange, schema_change_of, schema_record
from cdc.model.oldrows import completed, logged_schema, old_rows_column, taken_apart
from cdc.model.table import Column, Table
from cdc.privacy.decisions import Decided, Decisions
from cdc.privacy.policies import MASKED, Keys, Protection

SECRET = "s" * 32
USERS = Table(
    7,
    "public",
    "users",
    (
        Column("id", 20, key=True, attnum=1),
        Column("email", 25, attnum=2),
        Column("born", 1082, attnum=3),
        Column("pay", 1700, (10 << 16 | 2) + 4, attnum=4),
        Column("note", 25, attnum=5),
    ),
)
EVERY = {"public.users": {"email": "hmac", "born": "mask", "pay": "encrypt", "note": "drop"}}


NOTE_DROPPED = Decisions({7: Decided("public.users", {"note": (5, "drop")})})


def batch(rows: list[dict[str, Any]], exact: list[Any] | None = None, table: Table = USERS) -> pa.RecordBatch:
    schema = batch_schema(table)
    count = len(rows)
    arrays = [
        pa.array(range(1, count + 1), pa.int64()),
        pa.array([row.get("op", Op.INSERT) for row in rows], pa.int8()),
        pa.array([9] * count, pa.int64()),
        pa.array([0] * count, META_FIELDS[3].type),
        pa.array(exact or [None] * count, EXACT_TYPE),
        *(pa.array([row.get(c.name) for row in rows], schema.field(c.name).type) for c in table.columns),
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def protection(policies: Any = EVERY, **options: Any) -> Protection:
    return Protection(policies, SECRET, **options)


def test_each_policy_changes_just_its_column() -> None:
    keys = Keys(SECRET)
    rows = [{"id": 1, "email": "a@x", "born": None, "pay": Decimal("1.10"), "note": "n"}, {"id": 2, "email": None}]
    out = protection().protect(batch(rows))
    assert out.schema.names[5:] == ["id", "email", "born", "pay"]
    assert out.column("id").to_pylist() == [1, 2]
    assert out.column("email").to_pylist() == [keys.hmac("a@x"), None]
    assert out.column("born").to_pylist() == [None, None]
    secret = out.column("pay").to_pylist()[0]
    assert "1.10" not in secret
    assert keys.reveal(secret, "public.users", "pay") == "1.10"
    assert [column.protected for column in table_of(out.schema).columns] == ["", f"hmac:{keys.id}", "mask", f"encrypt:{keys.id}"]
    assert out.schema.equals(batch_schema(table_of(out.schema)), check_metadata=True)


def test_a_value_outside_its_type_is_protected_too() -> None:
    exact = [[("born", "infinity"), ("pay", "NaN"), ("note", "odd"), ("id", "x")]]
    out = protection().protect(batch([{"id": None}], exact))
    assert out.column("_cdc_exact").to_pylist() == [[("id", "x")]]
    assert out.column("born").to_pylist() == [MASKED]
    assert Keys(SECRET).reveal(out.column("pay")[0].as_py(), "public.users", "pay") == "NaN"


def test_an_encrypted_value_belongs_to_its_place_and_key() -> None:
    keys = Keys(SECRET)
    text = keys.encrypt("", b"public.users.pay")
    assert keys.reveal(text, "public.users", "pay") == ""
    for stranger, table, column in (
        (keys, "public.users", "email"),
        (keys, "public.u", "pay"),
        (Keys("t" * 32), "public.users", "pay"),
    ):
        with pytest.raises(ConfigError, match="not encrypted"):
            stranger.reveal(text, table, column)


def test_equal_values_stay_equal_and_keys_differ() -> None:
    assert Keys(SECRET).hmac("a") == Keys(SECRET).hmac("a") != Keys("t" * 32).hmac("a")
    assert Keys(SECRET).encrypt("a", b"p") == Keys(SECRET).encrypt("a", b"p") != Keys(SECRET).encrypt("a", b"q")


def test_the_audits_text_gives_the_same_values() -> None:
    guard = protection()
    logged = guard.logged(USERS)
    out = guard.protect(batch([{"id": 1, "email": "a@x", "pay": Decimal("1.10")}]))
    text = pa.RecordBatch.from_arrays(
        [pa.array(["1"]), pa.array(["a@x"]), pa.array([None], pa.utf8()), pa.array(["1.10"])], names=["id", "email", "born", "pay"]
    )
    assert guard.protect_text(logged, text).column("email").equals(out.column("email"))
    assert guard.protect_text(logged, text).column("pay").equals(out.column("pay"))


def test_a_schema_record_keeps_its_facts() -> None:
    record = schema_record(SchemaChange(USERS, Kind.RENAMED, True, "public.u"), 3, 4, 5)
    policies = {"public.users": {"email": "drop"}}
    change = schema_change_of(Protection(policies).protect(record))
    assert change is not None
    assert (change.kind, change.empties, change.now) == (Kind.RENAMED, True, "public.u")
    assert "email" not in change.table.names


def renamed(table: Table, old: str, new: str) -> Table:
    return replace(table, columns=tuple(replace(c, name=new) if c.name == old else c for c in table.columns))


@pytest.mark.parametrize("numbered", [True, False])
def test_a_protected_column_under_a_new_name_stops_capture(numbered: bool) -> None:
    table = USERS if numbered else replace(USERS, columns=tuple(replace(c, attnum=0) for c in USERS.columns))
    guard = protection()
    guard.logged(table)
    with pytest.raises(Stopped, match="new name") as stopped:
        guard.logged(renamed(table, "email", "mail"))
    assert stopped.value.state is StopState.PRIVACY_UNDECIDED
    both = {"public.users": {**EVERY["public.users"], "mail": "hmac"}}
    again = protection(both, known=[guard.logged(table)])
    assert again.logged(table).columns[1].protected
    assert again.logged(renamed(table, "email", "mail")).columns[1].protected


def test_a_renamed_table_stops_capture_also_after_a_restart() -> None:
    logged = protection().logged(USERS)
    with pytest.raises(Stopped):
        protection(known=[logged]).logged(replace(USERS, name="people"))


WITHOUT = [
    {},
    {"public.users": {}},
    {"public.users": {"id": "keep"}},
    {"public.users": {name: policy for name, policy in EVERY["public.users"].items() if name != "email"}},
    {"public.users": {name: policy for name, policy in EVERY["public.users"].items() if name != "note"}},
]


@pytest.mark.parametrize("policies", WITHOUT)
def test_a_policy_that_is_taken_out_reveals_nothing(policies: Any) -> None:
    """``note`` was dropped, so nothing of it is in the log."""
    guard = protection(policies, known=[protection().logged(USERS)], decisions=NOTE_DROPPED)
    with pytest.raises(Stopped, match="no policy names it any more") as stopped:
        guard.check([USERS])
    assert stopped.value.state is StopState.PRIVACY_UNDECIDED
    assert '"keep"' in (stopped.value.hint or "")
    with pytest.raises(Stopped):
        guard.protect(batch([{"id": 1, "email": "a@x", "note": "n"}]))


def test_a_policy_that_becomes_keep_reveals_and_says_so() -> None:
    policies = {"public.users": {**EVERY["public.users"], "email": "keep", "note": "keep"}}
    guard = protection(policies, known=[protection().logged(USERS)], decisions=NOTE_DROPPED)
    guard.check([USERS])
    assert guard.revealed(USERS) == {"email": True, "note": True}
    out = guard.protect(batch([{"id": 1, "email": "a@x", "note": "n"}]))
    assert out.column("email").to_pylist() + out.column("note").to_pylist() == ["a@x", "n"]
    assert guard.revealed(USERS) == {}


def test_a_policy_of_another_kind_reveals_nothing() -> None:
    policies = {"public.users": {**EVERY["public.users"], "email": "mask", "note": "hmac"}}
    guard = protection(policies, known=[protection().logged(USERS)], decisions=NOTE_DROPPED)
    guard.check([USERS])
    assert guard.revealed(USERS) == {}


def test_a_dropped_or_added_column_does_not_stop_capture() -> None:
    guard = protection()
    guard.logged(USERS)
    changed = replace(USERS, columns=(*USERS.columns[:1], *USERS.columns[2:], Column("more", 25, attnum=6)))
    assert guard.logged(changed).names == ("id", "born", "pay"), "what came later is kept out until it is named"


def test_strict_names_every_column() -> None:
    whole = {"public.users": {"id": "keep", **EVERY["public.users"]}}
    protection(whole, strict=True).check([USERS])
    with pytest.raises(ConfigError, match="column id of"):
        protection(strict=True).check([USERS])
    guard = protection(whole, strict=True)
    guard.logged(USERS)
    with pytest.raises(Stopped, match="column more"):
        guard.logged(replace(USERS, columns=(*USERS.columns, Column("more", 25, attnum=6))))


@pytest.mark.parametrize(
    ("policies", "what", "hint"),
    [
        ({"public.user": {"email": "hmac"}}, "public.user, which is not captured", "did you mean public.users?"),
        ({"public.users": {"emial": "hmac"}}, "column emial of public.users", "did you mean email?"),
        ({"public.users": {"id": "mask"}}, "column id of public.users is part of the row's identity", "hmac"),
        ({"public.users": {"id": "drop"}}, "column id of public.users is part of the row's identity", "hmac"),
    ],
)
def test_policies_that_do_not_fit_are_refused_at_the_start(policies: Any, what: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=what) as refused:
        protection(policies).check([USERS])
    assert refused.value.hint is not None
    assert hint in refused.value.hint


def test_without_a_key_there_is_no_hmac() -> None:
    with pytest.raises(ConfigError, match="needs a key"):
        Protection({"public.users": {"email": "hmac"}})
    with pytest.raises(ConfigError, match="shorter than 32"):
        Protection({}, "short")


def test_no_policies_cost_nothing() -> None:
    untouched = batch([{"id": 1}])
    assert Protection({}).protect(untouched) is untouched
    other = batch([{"id": 1}], table=replace(USERS, oid=8, name="other"))
    assert protection().protect(other) is other


def test_old_rows_are_protected_as_the_changes_are() -> None:
    full = replace(USERS, identity="f")
    rows = batch([{"id": 1, "email": "a@x", "born": None, "note": "n"}, {"id": 2}, {"id": 3, "op": Op.DELETE}], table=full)
    secrets = batch(
        [{"id": 1, "email": "b@x", "born": None, "note": "old"}, {"id": 3, "email": "c@x", "pay": Decimal("1.10")}],
        [[("born", "infinity"), ("note", "odd")], None],
        table=full,
    )
    column = old_rows_column(full, np.array([True, False, True]), secrets.column("_cdc_exact"), secrets.columns[5:])
    raw = completed(rows, full, column)
    out = protection().protect(raw)
    logged = table_of(out.schema)
    assert out.schema.equals(logged_schema(logged), check_metadata=True)
    changes, has, old = taken_apart(out)
    assert has.tolist() == [True, False, True]
    assert old is not None
    assert changes.equals(protection().protect(rows))
    assert old.select(list(logged.names)).equals(protection().protect(secrets).select(list(logged.names)))
    assert old.column("born").to_pylist() == [MASKED, None]
    assert old.column("_cdc_exact").to_pylist() == [None, None]
    said = str(out.to_pylist())
    assert not any(secret in said for secret in ("b@x", "c@x", "old", "odd", "infinity", "1.10"))


def test_where_a_policy_leaves_nothing_but_the_key_there_are_no_old_rows() -> None:
    full = replace(USERS, identity="f")
    secrets = batch([{"id": 1, "email": "b@x"}], table=full)
    column = old_rows_column(full, np.array([True]), secrets.column("_cdc_exact"), secrets.columns[5:])
    raw = completed(batch([{"id": 1, "op": Op.DELETE}], table=full), full, column)
    policies = {"public.users": dict.fromkeys([name for name in USERS.names if name != "id"], "drop")}
    out = Protection(policies).protect(raw)
    assert out.schema.names == [*(field.name for field in META_FIELDS), "id"]


def test_a_schema_record_of_a_table_with_old_rows_passes() -> None:
    full = replace(USERS, identity="f")
    record = completed(schema_record(SchemaChange(full, Kind.ALTERED), 3, 4, 5), full)
    assert schema_change_of(protection().protect(record)) is not None
