"""What a difference of two looks at the catalog means; the real catalog's side is in tests/integration/schema."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from cdc.model.facts import FactColumn, Facts, LeafTable, Publishing, StoredChange, hidden
from cdc.model.table import Column
from cdc.source.facts import FACTS
from tests import roles

ID = FactColumn(1, "id", 23, -1, "", "", True, "10")
V = FactColumn(2, "v", 25, -1, "", "", False, "10")
G = FactColumn(3, "g", 23, -1, "", "s", True, "10")
PLAIN = Facts(
    7, "public", "t", False, "d", (ID, V), (1,), {7: LeafTable(70, True)}, {"e1": "a", "a5.1": "23 -1 false"}, Publishing(True)
)
PARTED = replace(PLAIN, partitioned=True, leaves={8: LeafTable(80, True), 9: LeafTable(90, True)})
OPTIONS = replace(PLAIN, publishing=Publishing(True, version="12 owner options"))
OVERLAY, VANISHED = StoredChange(False), StoredChange(True)


def _moved(facts: Facts) -> Facts:
    return replace(facts, leaves={oid: replace(leaf, filenode=leaf.filenode + 1000) for oid, leaf in facts.leaves.items()})


def _with(*columns: FactColumn) -> Callable[[Facts], Facts]:
    return lambda facts: replace(facts, columns=columns)


@pytest.mark.parametrize(
    ("before", "change", "verdict"),
    [
        (PLAIN, lambda facts: facts, None),
        (PLAIN, _moved, None),  # VACUUM FULL; a TRUNCATE is in the stream
        (PARTED, _moved, VANISHED),
        (PLAIN, _with(ID, replace(V, version="11")), None),
        (PLAIN, lambda facts: _moved(_with(ID, replace(V, version="11"))(facts)), OVERLAY),
        (PLAIN, lambda facts: _moved(_with(replace(ID, version="11"), V)(facts)), VANISHED),
        (PLAIN, _with(ID, replace(V, type_oid=1043, version="11")), OVERLAY),
        (PLAIN, _with(replace(ID, type_oid=20, version="11"), V), VANISHED),
        (PLAIN, _with(ID, V, FactColumn(3, "w", 25, -1, "", "", False, "11")), None),
        (PLAIN, _with(ID, V, FactColumn(3, "w", 25, -1, "", "", True, "11")), OVERLAY),
        (PLAIN, lambda facts: _moved(_with(ID, V, FactColumn(3, "w", 25, -1, "", "", False, "11"))(facts)), OVERLAY),
        (PLAIN, _with(ID, FactColumn(3, "v", 25, -1, "", "", False, "11")), OVERLAY),
        (PLAIN, _with(ID), None),
        (PARTED, lambda facts: facts.without(8), VANISHED),
        (PARTED, lambda facts: replace(facts, leaves={**facts.leaves, 11: LeafTable(11, True)}), None),
        (PARTED, lambda facts: replace(facts, leaves={**facts.leaves, 11: LeafTable(110, True)}), VANISHED),  # truncated since
        (PARTED, lambda facts: replace(facts, leaves={**facts.leaves, 11: LeafTable(11, False)}), OVERLAY),
        (PARTED, lambda facts: replace(facts, leaves={**facts.leaves, 8: replace(facts.leaves[8], joined="10")}), VANISHED),
        (PARTED.with_leaf(11), lambda facts: replace(facts, leaves={**facts.leaves, 11: LeafTable(11, True, "10")}), None),
        (PARTED.with_leaf(11), lambda facts: facts.without(11), VANISHED),
        (PARTED.with_leaf(8), lambda facts: facts, None),
        (
            PLAIN,
            _with(replace(ID, version="11"), replace(V, version="11")),
            VANISHED,
        ),  # attached to another table and detached again
        (PLAIN, lambda facts: replace(_with(replace(ID, version="11"), replace(V, version="11"))(facts), attached=True), None),
        (replace(PLAIN, attached=True), lambda facts: replace(facts, attached=False), VANISHED),
        (PLAIN, lambda facts: replace(facts, types={**facts.types, "e2": "b"}), None),
        (PLAIN, lambda facts: replace(facts, types={**facts.types, "e1": "z"}), OVERLAY),
        (PLAIN, lambda facts: replace(facts, types={**facts.types, "a5.2": "25 -1 false"}), OVERLAY),
        (PLAIN, lambda facts: replace(facts, types={**facts.types, "a6.1": "25 -1 false"}), None),
        (PLAIN, lambda facts: replace(facts, publishing=Publishing(True, row_filter="x")), VANISHED),
        (OPTIONS, lambda facts: replace(facts, publishing=Publishing(True, version="13 owner options")), VANISHED),
        (OPTIONS, lambda facts: replace(facts, publishing=Publishing(True, version="13 owner others")), VANISHED),
        (OPTIONS, lambda facts: replace(facts, publishing=Publishing(True, version="13 another others")), VANISHED),
        (OPTIONS, lambda facts: replace(facts, publishing=Publishing(True, version="13 another options")), None),
        (
            replace(PLAIN, publishing=Publishing(True, ways=(1, 2))),
            lambda facts: replace(facts, publishing=Publishing(True, ways=(2, 3))),
            None,
        ),
        (
            replace(PLAIN, publishing=Publishing(True, ways=(1, 2))),
            lambda facts: replace(facts, publishing=Publishing(True, ways=(3,))),
            VANISHED,
        ),
        (
            replace(PLAIN, publishing=Publishing(True, (1,))),
            lambda facts: replace(facts, publishing=Publishing(True, (1, 2))),
            OVERLAY,
        ),
        (PLAIN, lambda facts: replace(facts, name="u", identity="f"), None),
    ],
)
def test_what_the_stream_does_not_tell(before: Facts, change: Callable[[Facts], Facts], verdict: StoredChange | None) -> None:
    assert hidden(before, change(before)) == verdict


def test_facts_come_back_from_json() -> None:
    for facts in (PLAIN, PARTED, replace(PLAIN, publishing=None), replace(PLAIN, publishing=Publishing(True, (1,), True, "f"))):
        assert Facts.from_json(json.loads(json.dumps(facts.to_json()))) == facts


def test_the_definition_has_what_is_published() -> None:
    generated = replace(PLAIN, columns=(ID, V, G))
    assert generated.table().names == ("id", "v")
    assert replace(generated, publishing=Publishing(True, stored=True)).table().names == ("id", "v", "g")
    assert replace(generated, publishing=Publishing(True, (1, 3))).table().names == ("id", "g")


@pytest.mark.parametrize(
    ("identity", "index", "key"), [("d", (1,), ["id"]), ("n", (1,), []), ("f", (), ["id", "v"]), ("f", (1,), ["id"]), ("d", (), [])]
)
def test_the_definition_has_the_key_of_its_identity(identity: str, index: tuple[int, ...], key: list[str]) -> None:
    table = replace(PLAIN, identity=identity, index=index).table()
    assert [column.name for column in table.key] == key
    assert table.columns[0] == Column("id", 23, -1, "", key="id" in key, attnum=1)


@pytest.mark.parametrize(
    ("identity", "index", "keyless"), [("f", (), True), ("f", (1,), False), ("d", (1,), False), ("d", (), False)]
)
def test_rows_are_told_apart_by_all_of_their_columns_where_no_index_does(
    identity: str, index: tuple[int, ...], keyless: bool
) -> None:
    """Equal rows are one in the stores then, which doctor, plan and status say."""
    assert replace(PLAIN, identity=identity, index=index).keyless is keyless


def test_the_event_trigger_asks_the_same_queries() -> None:
    """`make roles` writes them there."""
    text = roles.FILE.read_text(encoding="utf-8")
    assert roles.with_queries(text) == text
    assert FACTS in text
    for query in ("'attached', c.relispartition", "select unnest(tables)", "select unnest(retyped)", "as unsent) identity"):
        other = text.replace(query, "'changed'")
        assert other != text
        assert roles.with_queries(other) == text


@pytest.mark.parametrize(
    ("what", "home"),
    [
        (r"\bwith\s+recursive\b", "cdc/source/descent.py"),
        (r"\bcase\s+\S+relreplident\b", "cdc/source/replicaidentity.py"),
        (r"\bpubgencols\b", "cdc/source/replicaidentity.py"),
        (r"\batthasmissing\b", "cdc/source/facts.py"),
    ],
)
def test_each_question_about_the_catalog_is_written_once(what: str, home: str) -> None:
    """Recursions, the index that identifies rows, whether generated columns are published, and the facts of a table's columns."""
    root = roles.FILE.parents[1]
    files = [
        path
        for room in ("cdc", "sinks", "snapshots", "deploy")
        for path in (root / room).rglob("*")
        if path.suffix in (".py", ".sql")
    ]
    texts = {str(path.relative_to(root)): path.read_text(encoding="utf-8") for path in files}
    texts["deploy/roles.sql"] = roles.without_queries(texts["deploy/roles.sql"])
    assert [name for name, text in texts.items() if re.search(what, text, re.IGNORECASE)] == [home]
