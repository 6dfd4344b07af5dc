"""Changes as envelopes, documents, files, and as the rows that Spark gets; and which of them somebody asked for."""

from __future__ import annotations

import errno
import json
import os
import resource
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdc.errors import ConfigError, HeadwaterError
from cdc.log.memory import MemoryReader
from cdc.model.batch import Op
from cdc.model.evolution import Kind
from cdc.model.position import Position
from cdc.model.topic import TopicSchema
from cdc.replay.envelope import documents, envelopes
from cdc.replay.export import write
from cdc.replay.former import WithFormer, with_former
from cdc.replay.match import KeyMatch, TextMatch, chosen
from cdc.replay.query import alone
from cdc.replay.rows import chosen as chosen_columns
from cdc.replay.rows import feed_schema, rows_schema, to_feed
from tests.contract.rows import NUMBERED, ORDERS, PAIRS, TYPES, batch, order, schema, upserts
from tests.unit.sinks.test_past import logged

TS_US = 1_700_000_000_000_000


def parsed(lines: bytes) -> list[Any]:
    return [json.loads(line) for line in lines.decode().split("\n")[:-1]]


def orders() -> MemoryReader:
    return logged(
        batch(ORDERS, [(Op.READ, 1, order(1)), (Op.INSERT, 2, order(2))]),
        batch(ORDERS, [(Op.UPDATE, 3, order(1, "paid")), (Op.DELETE, 4, order(2)), (Op.DELETE, 5, order(9))]),
        batch(ORDERS, [(Op.TRUNCATE, 6, {})]),
        batch(ORDERS, [(Op.INSERT, 7, order(1, "again"))]),
    )


def answer(log: MemoryReader) -> list[WithFormer]:
    return list(with_former(log, "public.orders", Position(0), log.head().position))


def test_envelopes_with_the_row_before_where_it_is_known() -> None:
    found = [one["payload"] for replaced in answer(orders()) for one in parsed(envelopes(replaced))]
    shown = [(one["op"], (one["before"] or {}).get("status"), (one["after"] or {}).get("status")) for one in found]
    assert shown == [
        ("r", None, "new"),
        ("c", None, "new"),
        ("u", "new", "paid"),
        ("d", "new", None),
        ("d", None, None),
        ("t", None, None),
        ("c", None, "again"),
    ]
    assert found[4]["before"] == {"id": 9}, "its key is all that is known"
    assert found[2]["source"] == {"schema": "public", "table": "orders", "lsn": 30, "position": 3, "ts_us": TS_US}
    assert b'"amount":1.10' in envelopes(answer(orders())[0]), "numbers keep their digits"
    assert found[0]["after"] == {
        "id": 1,
        "customer_id": 7,
        "status": "new",
        "amount": 1.1,
        "note": "",
        "created_at": "2013-01-01T10:00:00Z",
    }


def test_envelopes_without_a_look_back() -> None:
    (first,) = parsed(envelopes(alone(batch(ORDERS, [(Op.UPDATE, 3, order(1))]))))
    assert first["payload"]["before"] is None
    (deleted,) = parsed(envelopes(alone(batch(ORDERS, [(Op.DELETE, 3, order(1))]))))
    assert (deleted["payload"]["before"], deleted["payload"]["after"]) == ({"id": 1}, None)


def test_a_change_of_the_definition_says_what_happened() -> None:
    record = schema(NUMBERED, 4, Kind.REWRITTEN, empties=True)
    (told,) = parsed(envelopes(alone(record)))
    assert {name: told["payload"][name] for name in ("op", "kind", "empties", "now")} == {
        "op": "s",
        "kind": "rewritten",
        "empties": True,
        "now": None,
    }
    assert [column["name"] for column in told["payload"]["table"]["columns"]] == list(NUMBERED.names)
    (flat,) = parsed(documents(record))
    assert (flat["_cdc_op"], flat["_cdc_schema"]["columns"]) == ("s", list(NUMBERED.names))


def test_documents_and_values_of_every_kind() -> None:
    nasty = 'quote " back \\ line \n escape \x1b nine \x9b'
    row = dict.fromkeys(TYPES.names) | {
        "id": nasty,
        "docb": '{"a": [1, null]}',
        "tags": "{a,b}",
        "day": "infinity",
        "money": "-0.05",
    }
    found = documents(batch(TYPES, [(Op.INSERT, 1, row)]))
    assert b"\x1b" not in found
    (one,) = parsed(found)
    assert (one["id"], one["docb"], one["tags"], one["day"]) == (nasty, {"a": [1, None]}, ["a", "b"], "infinity")
    assert list(one)[:4] == ["_cdc_position", "_cdc_op", "_cdc_lsn", "_cdc_ts"]
    assert (one["_cdc_lsn"], one["_cdc_ts"]) == (10, "2023-11-14T22:13:20Z")
    (deleted,) = parsed(documents(batch(ORDERS, [(Op.DELETE, 2, order(5))])))
    assert deleted == {"_cdc_position": 2, "_cdc_op": "d", "_cdc_lsn": 20, "_cdc_ts": "2023-11-14T22:13:20Z", "id": 5}
    (truncated,) = parsed(documents(batch(ORDERS, [(Op.TRUNCATE, 3, {})])))
    assert list(truncated) == ["_cdc_position", "_cdc_op", "_cdc_lsn", "_cdc_ts"]


def test_a_change_feed_as_delta_names_it() -> None:
    feed = feed_schema(TopicSchema.of(ORDERS))
    rows = [row for replaced in answer(orders()) if (fed := to_feed(replaced, feed)) is not None for row in fed.to_pylist()]
    shown = [(row["_cdc_position"], row["_change_type"], row["id"], row["status"], row["_commit_version"]) for row in rows]
    assert shown == [
        (1, "insert", 1, "new", 10),
        (2, "insert", 2, "new", 20),
        (3, "update_preimage", 1, "new", 30),
        (3, "update_postimage", 1, "paid", 30),
        (4, "delete", 2, "new", 40),
        (5, "delete", 9, None, 50),
        (6, "truncate", None, None, 60),
        (7, "insert", 1, "again", 70),
    ]
    assert {row["_commit_timestamp"].timestamp() for row in rows} == {TS_US / 1e6}
    without = [to_feed(alone(replaced.changes), feed) for replaced in answer(orders())]
    assert [kind for one in without if one is not None for kind in one.column("_change_type").to_pylist()] == [
        "insert",
        "insert",
        "update_postimage",
        "delete",
        "delete",
        "truncate",
        "insert",
    ]
    assert to_feed(alone(schema(NUMBERED, 8)), feed_schema(TopicSchema.of(NUMBERED))) is None
    some = chosen_columns(feed, ["status"])
    pruned = [
        status
        for replaced in answer(orders())
        if (fed := to_feed(replaced, some)) is not None
        for status in fed.column(0).to_pylist()
    ]
    assert pruned == [row["status"] for row in rows]
    with pytest.raises(ConfigError, match="has no column 'nothing'"):
        chosen_columns(rows_schema(TopicSchema.of(ORDERS)), ["id", "nothing"])


def matched(match: KeyMatch | TextMatch, changes: pa.RecordBatch) -> list[int]:
    found = chosen(WithFormer(changes, changes, np.ones(len(changes), np.bool_)), match.rows(changes))
    assert found.former is not None
    assert len(found.changes) == len(found.former) == len(found.known)
    return list(found.changes.column(0).to_pylist())


def test_matching_by_key_and_by_text() -> None:
    changes = batch(
        ORDERS, [(Op.INSERT, 1, order(1, "a.c")), (Op.UPDATE, 2, order(11, "abc", note=None)), (Op.DELETE, 3, order(1))]
    )
    shape = TopicSchema.of(ORDERS)
    assert matched(KeyMatch.of(shape, ["1"]), changes) == matched(KeyMatch.of(shape, ["id=1"]), changes) == [1, 3]
    assert matched(TextMatch("a.c"), changes) == [1]
    assert matched(TextMatch("a.c", regex=True), changes) == [1, 2]
    assert matched(TextMatch("11", ("id",)), changes) == [2]
    assert matched(TextMatch("1", ("status",)), changes) == []
    two = TopicSchema.of(PAIRS)
    pairs = upserts(PAIRS, 1, [{"a": "1", "b": "2=x", "v": "3"}, {"a": "2=x", "b": "1", "v": "3"}])
    assert matched(KeyMatch.of(two, ["b=2=x", "a=1"]), pairs) == [1]
    everything = batch(ORDERS, [(Op.TRUNCATE, 4, {})])
    assert matched(KeyMatch.of(shape, ["1"]), everything) == [4], "it concerns every key"
    assert matched(TextMatch(""), everything) == []


def test_what_is_wrong_is_said_without_values() -> None:
    for given in (["secret"], ["a=secret"], ["a=secret", "a=other"], ["a=1", "b=2", "v=secret"]):
        with pytest.raises(ConfigError, match=r"the key of public\.pairs is a, b") as caught:
            KeyMatch.of(TopicSchema.of(PAIRS), given)
        assert "secret" not in caught.value.line()
    with pytest.raises(ConfigError, match="not a regular expression") as told:
        TextMatch("(secret", regex=True).check([])
    assert "secret" not in told.value.line()
    with pytest.raises(ConfigError, match="has a column 'stat'"):
        TextMatch("x", ("stat",)).check([TopicSchema.of(ORDERS)])


def test_a_key_goes_by_its_number_through_a_rename() -> None:
    import dataclasses

    renamed = dataclasses.replace(
        NUMBERED, columns=(dataclasses.replace(NUMBERED.columns[0], name="number"), *NUMBERED.columns[1:])
    )
    match = KeyMatch.of(TopicSchema.of(renamed), ["number=1"])
    assert matched(match, upserts(NUMBERED, 1, [order(1), order(2)])) == [1]


@pytest.mark.parametrize("form", ["parquet", "ndjson", "debezium"])
def test_a_file_is_whole_private_and_never_replaces_another(form: str, tmp_path: Path) -> None:
    path = tmp_path / "out"
    assert write(path, form, TopicSchema.of(ORDERS), answer(orders())) == 7
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    if form == "parquet":
        table = pq.read_table(path)
        assert table.schema.names == rows_schema(TopicSchema.of(ORDERS)).names
        assert table.column("_cdc_op").to_pylist() == list("rcuddtc")
    else:
        assert len(parsed(path.read_bytes())) == 7
    with pytest.raises(ConfigError, match="exists already"):
        write(path, form, TopicSchema.of(ORDERS), [])

    def breaks() -> Any:
        yield from answer(orders())[:1]
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write(tmp_path / "other", form, TopicSchema.of(ORDERS), breaks())
    assert [found.name for found in tmp_path.iterdir()] == ["out"]
    with pytest.raises(ConfigError, match="there is no folder"):
        write(tmp_path / "nowhere" / "out", form, TopicSchema.of(ORDERS), [])


def test_two_exports_to_one_file_and_a_file_that_appears_meanwhile(tmp_path: Path) -> None:
    path, shape = tmp_path / "out", TopicSchema.of(ORDERS)

    def meanwhile() -> Any:
        yield from answer(orders())[:1]
        assert write(path, "ndjson", shape, answer(orders())) == 7
        yield from answer(orders())[1:]

    with pytest.raises(ConfigError, match="out exists already"):
        write(path, "ndjson", shape, meanwhile())
    assert len(parsed(path.read_bytes())) == 7, "the other's, whole"
    assert [found.name for found in tmp_path.iterdir()] == ["out"]


def test_a_file_where_the_file_system_has_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: Any) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuses)
    assert write(tmp_path / "out", "ndjson", TopicSchema.of(ORDERS), answer(orders())) == 7
    assert [found.name for found in tmp_path.iterdir()] == ["out"]
    assert len(parsed((tmp_path / "out").read_bytes())) == 7


def test_what_cannot_be_written_is_said_of_the_file(tmp_path: Path) -> None:
    shape = TopicSchema.of(ORDERS)
    with pytest.raises(HeadwaterError, match="cannot be written: File name too long"):
        write(tmp_path / ("x" * 300), "ndjson", shape, answer(orders()))
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="link exists already"):
        write(tmp_path / "link", "ndjson", shape, answer(orders()))
    with pytest.raises(HeadwaterError, match="/proc/out cannot be written"):
        write(Path("/proc/out"), "ndjson", shape, answer(orders()))
    assert [found.name for found in tmp_path.iterdir()] == ["link"]


@pytest.mark.parametrize("form", ["parquet", "ndjson"])
def test_a_file_that_becomes_too_large(form: str, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(HeadwaterError, match="out cannot be written: File too large"):
            write(tmp_path / "out", form, TopicSchema.of(ORDERS), answer(orders()))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can write in somebody else's folder")
@pytest.mark.parametrize("form", ["parquet", "ndjson"])
def test_what_root_exports_into_somebody_elses_folder_stays_roots(tmp_path: Path, form: str) -> None:
    os.chown(tmp_path, 65534, 65534)
    write(tmp_path / "out", form, TopicSchema.of(ORDERS), answer(orders()))
    found = (tmp_path / "out").stat()
    assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (0, 0o600)
