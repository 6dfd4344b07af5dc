"""Whatever a file in the inbox says wrongly is refused in words, without a value of a row, and
nothing of it is in the log.
"""

from __future__ import annotations

import errno
import json
import os
import random
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cdc.inbox import groupfile
from cdc.inbox.definition import ARRAYS
from cdc.inbox.folder import InboxFolder
from cdc.inbox.groupfile import GroupHeader, GroupName, GroupRefused, decode, digest_of, encode
from cdc.log.contract import LogWriter
from cdc.model.pgtypes import INT8
from tests.unit.inbox.parts import KEY, TOPIC, deadline, handover, inbox_of, logged, rows, serve_all, written

SECRET = "a value that nobody may see"
HONEST = GroupHeader("job", "", "1", TOPIC, KEY, 2)
JSONB = {b"cdc.type": b"jsonb"}


def named(raw: bytes, producer: str = "job") -> GroupName:
    return GroupName(producer, 1, 1, digest_of(raw))


def reason(raw: bytes, name: GroupName | None = None) -> str:
    with pytest.raises(GroupRefused) as refused:
        decode(raw, name or named(raw))
    assert SECRET not in str(refused.value)
    return str(refused.value)


def columns(**more: Any) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pydict({"_cdc_op": ["u", "u"], "id": [1, 2], **more})]


def typed(field: pa.Field, values: list[Any]) -> list[pa.RecordBatch]:
    schema = pa.schema([pa.field("_cdc_op", pa.utf8()), pa.field("id", pa.int64()), field])
    return [pa.RecordBatch.from_arrays([pa.array(["u", "u"]), pa.array([1, 2]), pa.array(values, field.type)], schema=schema)]


LIES: dict[str, tuple[list[pa.RecordBatch], str]] = {
    "no operation": ([pa.RecordBatch.from_pydict({"id": [1, 2]})], "first column"),
    "an operation of another type": ([pa.RecordBatch.from_pydict({"_cdc_op": [1, 2], "id": [1, 2]})], "first column"),
    "an unknown operation": ([pa.RecordBatch.from_pydict({"_cdc_op": ["u", "t"], "id": [1, 2]})], "_cdc_op is u or d"),
    "no operation in a row": ([pa.RecordBatch.from_pydict({"_cdc_op": ["u", None], "id": [1, 2]})], "_cdc_op is u or d"),
    "a key that is NULL": ([pa.RecordBatch.from_pydict({"_cdc_op": ["u", "u"], "id": [1, None]})], "key is NULL"),
    "a key twice": ([pa.RecordBatch.from_pydict({"_cdc_op": ["u", "d"], "id": [1, 1]})], "two rows"),
    "a key twice, in two batches": (rows(1) + rows(1), "two rows"),
    "a deleted row with more than its key": (
        [pa.RecordBatch.from_pydict({"_cdc_op": ["u", "d"], "id": [1, 2], "text": [SECRET, SECRET]})],
        "a deleted row carries column text",
    ),
    "no column of the key": ([pa.RecordBatch.from_pydict({"_cdc_op": ["u", "u"], "other": [1, 2]})], "the key does not name"),
    "one of our names": (columns(_cdc_position=[1, 2]), "a name that Headwater uses itself"),
    "an empty name": (columns(**{"": [1, 2]}), "a column's name"),
    "a long name": (columns(**{"é" * 32: [1, 2]}), "a column's name"),
    "control characters in a name": (columns(**{"a\x1b[2J": [1, 2]}), "a column's name"),
    "a nested type": (columns(deep=[[1], [2]]), "a type that a topic cannot have"),
    "no type at all": (columns(nothing=pa.nulls(2)), "a type that a topic cannot have"),
    "an unsigned type": (columns(n=pa.array([1, 2], pa.uint64())), "a type that a topic cannot have"),
    "JSON that is none": (typed(pa.field("doc", pa.utf8(), metadata=JSONB), ["{}", f'{{"a": {SECRET}']), "not JSON"),
    "JSON with NaN": (typed(pa.field("doc", pa.utf8(), metadata=JSONB), ["{}", "[NaN]"]), "not JSON"),
    **{
        f"{text} as {kind}": (typed(pa.field("list", pa.utf8(), metadata={b"cdc.type": kind.encode()}), ["{}", text]), f"not {kind}")
        for kind, text in (
            ("bigint[]", SECRET),
            ("bigint[]", "{1,2"),
            ("bigint[]", "{1,}"),
            ("bigint[]", "{9223372036854775808}"),
            ("bigint[]", "{{1},2}"),
            ("bigint[]", "{{1},{2,3}}"),
            ("bigint[]", "{{},{}}"),
            ("boolean[]", "{true}"),
            ("jsonb[]", '{"{"}'),
            ("jsonb[]", "{NaN}"),
            ("timestamptz[]", '{"2024-02-29 06:30:00"}'),
        )
    },
    **{
        f"the outline {text[:40]}": (
            typed(pa.field("doc", pa.utf8(), metadata={**JSONB, b"cdc.outline": text.encode()}), ["{}", "{}"]),
            "an outline that cannot be read",
        )
        for text in (SECRET, "{}", '"int"', '{"items": 7}', '{"members": {"a": []}}', '{"items":' * 1000, '{"items":' * 30 + "null" + "}" * 30)
    },
    "JSON without a bottom": (typed(pa.field("doc", pa.utf8(), metadata=JSONB), ["{}", "[" * 100_000]), "not JSON"),
    "a time behind all years": (typed(pa.field("at", pa.timestamp("us", tz="UTC")), [0, 2**62]), "the years 1 to 9999"),
    "a date before all years": (typed(pa.field("at", pa.date32()), [date(1, 1, 1), -(2**31)]), "the years 1 to 9999"),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_rows_that_are_not_rows_of_a_topic(lie: str) -> None:
    batches, why = LIES[lie]
    assert why in reason(encode(HONEST, batches))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"rows": 3}, "another number of rows"),
        ({"rows": True}, "a header cannot say"),
        ({"rows": -1}, "another number of rows"),
        ({"producer": "other"}, "another producer"),
        ({"format": 2}, "its format is not 1"),
        ({"from": "1"}, "a header cannot say"),
        ({"to": ""}, "a header cannot say"),
        ({"to": "x" * 513}, "a header cannot say"),
        ({"to": "\x1b[2J"}, "a header cannot say"),
        ({"topic": "derived.Delays"}, "the topic's name"),
        ({"topic": "delays"}, "the topic's name"),
        ({"topic": "../../etc"}, "the topic's name"),
        ({"topic": ""}, "names no topic"),
        ({"key": []}, "the key does not name"),
        ({"key": ["id", "id"]}, "the key does not name"),
        ({"key": [{}]}, "a header cannot say"),
        ({"key": "id"}, "a header cannot say"),
        ({"key": None}, "cannot be read"),
        ({"more": 1}, "a header cannot say"),
        ({"open": "0" * 32}, "a header cannot say"),
        ({"open": "short"}, "a header cannot say"),
    ],
)
def test_a_header_that_lies(change: dict[str, Any], why: str) -> None:
    facts = json.loads(HONEST.encode()) | change
    assert why in reason(with_header(json.dumps(facts).encode()))


def with_header(header: bytes | None, batches: list[pa.RecordBatch] | None = None, **options: Any) -> bytes:
    batches = rows(1, 2) if batches is None else batches
    metadata = None if header is None else {b"cdc.group": header}
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema.with_metadata(metadata), options=pa.ipc.IpcWriteOptions(**options)) as stream:
        for batch in batches:
            stream.write_batch(batch.replace_schema_metadata(metadata))
    raw: bytes = sink.getvalue().to_pybytes()
    return raw


def test_a_stream_that_is_none() -> None:
    header = HONEST.encode()
    assert "no header" in reason(with_header(None))
    assert "cannot be read" in reason(with_header(b"[" * 100_000))
    assert "no header" in reason(with_header(b" " * 2**19))
    assert "cannot be read" in reason(with_header(b"[]"))
    assert "compressed" in reason(with_header(header, compression="zstd"))
    assert "compressed" in reason(with_header(header, compression="lz4"))
    letters = pa.RecordBatch.from_pydict({"_cdc_op": pa.array(["u", "u"]).dictionary_encode(), "id": [1, 2]})
    assert "a type that a topic cannot have" in reason(with_header(header, [letters]))
    honest = encode(HONEST, rows(1, 2))
    assert "not those that its name says" in reason(honest, GroupName("job", 1, 1, "0" * 64))
    assert "not a whole Arrow stream" in reason(b"")
    assert "another number of rows" in reason(with_header(header, [rows(1, 2)[0].slice(0, 0)]))
    assert decode(honest, named(honest)).header == HONEST


def test_sizes_are_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    honest = encode(HONEST, rows(1, 2))
    monkeypatch.setattr(groupfile, "MAX_GROUP_ROWS", 1)
    assert "at most 1 rows" in reason(honest)
    monkeypatch.setattr(groupfile, "MAX_GROUP_BYTES", 100)
    assert "at most 100 bytes" in reason(honest)
    folder = InboxFolder(tmp_path)
    name = folder.hand_over("job", 1, 1, b"")
    os.truncate(tmp_path / "inbox" / name.file, 2**40)
    with pytest.raises(GroupRefused, match="bytes long"):
        folder.read(name)


def test_any_bytes_are_refused_in_words(seed: int) -> None:
    """A group with bytes flipped, cut, doubled and moved: it is refused, or is still one whose
    every value can be read.
    """
    chance = random.Random(seed)
    honest = encode(HONEST, typed(pa.field("doc", pa.utf8(), metadata=JSONB), ["{}", json.dumps(SECRET)]))
    taken, said = 0, set[str]()
    for _ in range(3000):
        raw = bytearray(honest)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(len(raw))
            match chance.randrange(5):
                case 0:
                    raw[at] ^= 1 << chance.randrange(8)
                case 1:
                    raw[at] = chance.choice((0, 1, 127, 128, 255))
                case 2:
                    del raw[at : at + chance.randint(1, 64)]
                case 3:
                    raw[at:at] = raw[at : at + chance.randint(1, 64)]
                case _:
                    raw[at : at + 4] = chance.choice((b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x00\x00\x00\x80"))
            if not raw:
                break
        changed = bytes(raw)
        try:
            group = decode(changed, named(changed))
        except GroupRefused as refused:
            said.add(str(refused))
        else:
            taken += 1
            assert all(len(batch.to_pylist()) == len(batch) for batch in group.batches)
    assert len(said) > 2
    assert not any(SECRET in reason for reason in said)
    print(f"{taken} of them were groups all the same")


def test_a_group_of_the_opening_before_all_others_is_not_taken(tmp_path: Path) -> None:
    with written(tmp_path) as writer:
        inbox = inbox_of(tmp_path, writer)
        folder = InboxFolder(tmp_path / "log")
        name = folder.hand_over("job", 0, 1, encode(HONEST, rows(1, 2)))
        serve_all(inbox)
        assert "never opened" in (folder.reason(name) or "")
        assert writer.marks() == {}
        goes_on(tmp_path, writer)


PLANTED: dict[str, Callable[[Path], object]] = {
    "a link": lambda path: path.symlink_to("/etc/passwd"),
    "a link to nothing": lambda path: path.symlink_to("/nonexistent"),
    "a folder": lambda path: path.mkdir(),
    "a pipe": lambda path: os.mkfifo(path),
}


@pytest.mark.parametrize("what", PLANTED)
def test_a_file_that_is_not_an_ordinary_one_of_ours(tmp_path: Path, what: str) -> None:
    with written(tmp_path) as writer:
        inbox = inbox_of(tmp_path, writer)
        name = GroupName("job", 1, 1, "0" * 64)
        PLANTED[what](tmp_path / "log/inbox" / name.file)
        serve_all(inbox)
        assert InboxFolder(tmp_path / "log").reason(name) == "it is not an ordinary file"
        goes_on(tmp_path, writer)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_another_account(tmp_path: Path) -> None:
    with written(tmp_path) as writer:
        inbox = inbox_of(tmp_path, writer)
        folder = InboxFolder(tmp_path / "log")
        name = folder.hand_over("job", 1, 1, encode(GroupHeader("job", token="0" * 32)))
        os.chown(tmp_path / "log/inbox" / name.file, 65534, 65534)
        serve_all(inbox)
        assert "another account" in (folder.reason(name) or "")
        assert writer.marks() == {}


@pytest.mark.parametrize(
    "name", ["x.arrow", "job~1~1~0.arrow", "../job", ".hidden", f"job~{1:010d}~{1:010d}~{'A' * 64}.arrow", "é\udcff"]
)
def test_a_name_that_is_not_a_groups(tmp_path: Path, name: str) -> None:
    with written(tmp_path) as writer:
        inbox = inbox_of(tmp_path, writer)
        (tmp_path / "log/inbox" / name.replace("/", "_")).write_bytes(b"")
        serve_all(inbox)
        assert [path.name for path in (tmp_path / "log/inbox").iterdir()] == ["refused"]
        goes_on(tmp_path, writer)


@pytest.mark.parametrize("operation", ["read", "remove", "put_aside", "waiting"])
def test_a_disk_that_refuses_a_file_of_the_inbox_stops_nobody(
    tmp_path: Path, operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with written(tmp_path) as writer:
        inbox = inbox_of(tmp_path, writer)
        folder = InboxFolder(tmp_path / "log")
        folder.hand_over("bad", 1, 0, encode(GroupHeader("bad", token="0" * 32)))
        folder.hand_over("bad", 9, 0, b"nothing that is a group")
        with monkeypatch.context() as patch:

            def fails(*_: object) -> None:
                raise OSError(errno.EIO, "no")

            patch.setattr(InboxFolder, operation, fails)
            for _ in range(10):
                inbox.serve()
        goes_on(tmp_path, writer)


def goes_on(folder: Path, writer: LogWriter) -> None:
    """Nothing is in the log, and an honest producer is served."""
    assert writer.head.position == 0
    given = handover(folder, inbox_of(folder, writer), "honest")
    given.open(deadline())
    given.give("1", TOPIC, KEY, rows(1), deadline())
    assert [one for _, _, one, _ in logged(folder)] == [1]


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        ("bigint[]", ["{}", "{1,NULL,-9223372036854775808}", "{{1,2},{3,NULL}}", "[0:1]={1,2}", "[1:1][-2:-1]={{1,2}}", None]),
        ("text[]", ['{"",NULL,"NULL","a\\"b","a\\\\b","{,}"}']),
        ("numeric[]", ["{NaN,1.10,-Infinity,0.00}"]),
        ("double precision[]", ["{NaN,-0,1e+300,1e-07,Infinity,0.1}"]),
        ("timestamptz[]", ['{infinity,"0044-03-15 12:00:00+00 BC","12024-02-29 06:30:00.1+00"}']),
        ("jsonb[]", ['{"{\\"a\\": 1.10}","null",NULL}']),
        ("uuid[]", ["{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}"]),
    ],
)
def test_arrays_are_taken_as_postgres_prints_them(kind: str, texts: list[str | None]) -> None:
    metadata = {b"cdc.type": kind.encode()}
    for text in texts:
        raw = encode(HONEST, typed(pa.field("list", pa.utf8(), metadata=metadata), ["{}", text]))
        assert [column.type_oid for column in decode(raw, named(raw)).table.columns] == [INT8, ARRAYS[kind]]
