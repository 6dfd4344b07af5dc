"""Logical messages of any content: every role that may connect can put them into the stream, under our prefixes, too."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from cdc.capture.authenticity import WATERMARK_PREFIX
from cdc.capture.ddlmessages import DDL_PREFIX
from cdc.capture.definitions import Definitions
from cdc.model.facts import FactColumn, Facts, LeafTable, Publishing
from tests.fuzz.damage import flips, outcome
from tests.unit.capture import wire
from tests.unit.capture.test_decoder import ORDERS, Run
from tests.unit.capture.test_definitions import PASSWORD, told

KNOWN = Facts(
    ORDERS.oid, ORDERS.schema, ORDERS.name, False, "d",
    tuple(FactColumn(number, c.name, c.type_oid, c.typmod, "", "", False, "1") for number, c in enumerate(ORDERS.columns, 1)),
    (1,), {ORDERS.oid: LeafTable(ORDERS.oid, True)}, {"e7": "1 new"}, Publishing(True, (1, 2), row_filter="", ways=(5,), version="1 2 3"),
)  # fmt: skip
OTHERS: list[Any] = [
    None, True, -1, 0, 2**31, 2**64, 10**4000, 1e300, float("inf"), float("nan"), "", "\0", "\ud800", "x" * 70_000, [], [[]], {}, {"a": []},
]  # fmt: skip
"""What stands where something else is expected."""
HOSTILE = [
    b"",
    b"\0",
    b"\xff\xfe",
    b"\xff" * 5000,
    b"null",
    b"[" * 1200,
    b"[" * 10**6,
    b'{"a":' * 10**5,
    b'{"password":' * 10**5,
    b"9" * 10**6,
    b'{"password": ' + b"9" * 10**6,
    b'{"password": "' + b"\\" * 10**6,
    b'{"password": "' + b'\\"' * 10**6,
    b'{"password": {"password": "sesame"}}',
    b'{"password": "sesame", "dropped": [7]}'.decode().encode("utf-16"),
    b" " * 10**6 + b'{"password": "sesame"}',
]
PREFIXES = [DDL_PREFIX, WATERMARK_PREFIX, f"{DDL_PREFIX}2", f"{DDL_PREFIX} ", "headwater-wait", "", "p" * 5000]


def knowing() -> Run:
    """A run that knows of a table and of the password."""
    definitions = Definitions(
        lambda oid: KNOWN if oid == KNOWN.oid else None,
        known=[KNOWN.table()],
        facts={KNOWN.oid: KNOWN},
        passwords=["other", PASSWORD],
    )
    return Run(definitions=definitions)


def rows_around(*messages: bytes) -> list[tuple[Any, ...]]:
    """The rows of two transactions, with the messages in the first, in one of their own and outside of any."""
    run = knowing()
    run.feed(
        b"".join(
            (
                wire.begin(700, 100), wire.relation(ORDERS), wire.insert(ORDERS.oid, ["1", "new"]), *messages,
                wire.insert(ORDERS.oid, ["2", "new"]), wire.commit(100, 140),
                *messages, wire.begin(701, 150), *messages, wire.commit(150, 160), *messages,
                wire.begin(702, 200), wire.insert(ORDERS.oid, ["3", "new"]), wire.commit(200, 240),
            )
        )
    )  # fmt: skip
    for group in run.groups:
        for batch in group.batches:
            batch.validate(full=True)
    return [row[1:] for row in run.rows]


@pytest.mark.parametrize("prefix", PREFIXES, ids=lambda prefix: prefix[:20])
@pytest.mark.parametrize("transactional", [True, False])
def test_whatever_others_say_the_rows_are_the_same(prefix: str, *, transactional: bool) -> None:
    alone = rows_around()
    assert len(alone) == 3
    for content in HOSTILE:
        message = wire.message(prefix, content, transactional=transactional)
        assert outcome("logical messages", partial(rows_around, message)) == alone


def test_a_prefix_that_is_no_utf_8() -> None:
    """As in a database of encoding SQL_ASCII."""
    raw = wire.xlog(b"M\x01" + bytes(8) + b"headwater.\xff\xfe\0" + (2).to_bytes(4, "big") + b"{}")
    assert rows_around(raw) == rows_around()


def test_many_messages_under_the_watermarks_prefix_cost_no_more_than_others() -> None:
    message = wire.message(WATERMARK_PREFIX, b"")
    found = outcome("logical messages", partial(rows_around, message * 60_000))
    assert found == rows_around()


def replaced(value: Any) -> Iterator[Any]:
    """The value with each of its parts replaced by each of ``OTHERS``, left out, or twice."""
    yield from OTHERS
    if isinstance(value, dict):
        for key, part in value.items():
            yield {k: v for k, v in value.items() if k != key}
            yield {**{k: v for k, v in value.items() if k != key}, "\ud800": part}
            for other in replaced(part):
                yield {**value, key: other}
    if isinstance(value, list):
        yield [*value, *value]
        for at, part in enumerate(value):
            yield value[:at] + value[at + 1 :]
            for other in replaced(part):
                yield [*value[:at], other, *value[at + 1 :]]


def test_the_password_with_every_wrong_shape(seed: int) -> None:
    """Whoever has the password can be believed, but makes mistakes."""
    whole = KNOWN.to_json()
    cases = [{"dropped": other} for other in replaced([ORDERS.oid])]
    cases += [{"tables": other} for other in replaced([whole])]
    print(f"seed {seed}")
    random.Random(seed).shuffle(cases)
    for case in cases:
        try:
            content = json.dumps({"password": PASSWORD, **case}).encode()
        except ValueError:
            continue
        found = outcome("logical messages", partial(rows_around, wire.message(DDL_PREFIX, content)))
        assert isinstance(found, list)
        # Nothing is missing but what comes behind a record that says why: by the message, the table can no longer be captured.
        assert len(found) >= 3 or found[-1][1] == "s", case


def test_every_bit_of_a_message_with_the_password() -> None:
    whole = json.dumps({"password": PASSWORD, "tables": [KNOWN.to_json()]}).encode()
    for content in flips(whole):
        found = outcome("logical messages", partial(rows_around, wire.message(DDL_PREFIX, content)))
        assert isinstance(found, list)


def test_a_guess_at_the_password_says_nothing() -> None:
    definitions = knowing().decoder.schema
    for guess in ("", "sesam", "sesame ", "sesames", "Sesame", "\ud800", "other\0"):
        content = json.dumps({"password": guess, "dropped": [ORDERS.oid]}).encode()
        assert definitions.on_message(content) == ([], [])
    right = json.dumps({"password": PASSWORD, "dropped": [ORDERS.oid]}).encode()
    assert told(definitions.on_message(right)[0]) == [f"{ORDERS.name} dropped!"]
