"""Rows as transactions: what the server reads of them, told by a plain reader of RESP and a dict."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from sinks.cache.resp import EXEC, MULTI, Frame, Limits, RequestPart, RowFrames, deletions, hashes_of, parts_of
from sinks.cache.wire import bulk, command
from sinks.render.jsonrows import raw_texts
from tests.unit.sinks.listpacks import unpacked

LOOK = command("WATCH", "L") + command("HMGET", "L", "log") + MULTI
MOVE = command("HSET", "L", "at", "").removesuffix(b"$0\r\n\r\n")
MOVING, STANDING = Frame(LOOK, MOVE), Frame(LOOK, b"")


def commands(data: bytes) -> list[list[bytes]]:
    """RESP 2 arrays of bulk strings, read the plain way."""
    found = []
    while data:
        assert data[:1] == b"*"
        head, data = data[1:].split(b"\r\n", 1)
        items = []
        for _ in range(int(head)):
            assert data[:1] == b"$"
            size, data = data[1:].split(b"\r\n", 1)
            items.append(data[: int(size)])
            assert data[int(size) : int(size) + 2] == b"\r\n"
            data = data[int(size) + 2 :]
        found.append(items)
    return found


def queued(part: RequestPart, frame: Frame) -> list[list[bytes]]:
    """The commands between MULTI and EXEC."""
    data = bytes(part.data)
    assert data.startswith(EXEC + frame.look)
    found = commands(data.removeprefix(EXEC + frame.look))
    assert len(found) == part.commands
    return found


def rows(changes: list[tuple[bytes, bytes | None]], first: int = 1) -> RowFrames:
    """(key, value; None: deleted) at rising positions, every second position left out."""
    keys, values = zip(*changes, strict=True)
    gone = np.array([value is None for value in values], np.uint8)
    texts = raw_texts(pa.array([value or b"" for value in values], pa.binary()))
    return RowFrames(raw_texts(pa.array(keys, pa.binary())), texts, gone, first + 2 * np.arange(len(keys)))


def carried_out(parts: list[RequestPart], frame: Frame) -> dict[bytes, object]:
    held: dict[bytes, object] = {}
    for part in parts:
        for name, *given in queued(part, frame):
            if name == b"DEL":
                for key in given:
                    held.pop(key, None)
            elif name == b"MSET":
                held |= dict(zip(given[::2], given[1::2], strict=True))
            elif name == b"RESTORE":
                key, lives_ms, value, replace = given
                assert (lives_ms, replace) == (b"0", b"REPLACE")
                held[key] = unpacked(value)
            elif given[0] == b"L":
                held[b"L"] = dict(zip(given[1::2], map(int, given[2::2]), strict=True))
            else:
                fields = held.setdefault(given[0], {})
                assert isinstance(fields, dict)
                fields |= dict(zip(given[1::2], given[2::2], strict=True))
    return held


@pytest.mark.parametrize(("count", "limit"), [(1, 100), (9, 100), (10, 10), (11, 10), (250, 100)])
def test_parts_hold_so_many_rows_and_say_up_to_where(count: int, limit: int) -> None:
    changes: list[tuple[bytes, bytes | None]] = [(b"key %d" % i, b"v\r\n" * i) for i in range(count)]
    parts = parts_of(MOVING, rows(changes), Limits(limit, 10**9))
    assert len(parts) == -(-count // limit)
    assert [part.upto for part in parts] == [2 * min(end, count) - 1 for end in range(limit, count + limit, limit)]
    assert carried_out(parts, MOVING) == {**dict(changes), b"L": {b"at": 2 * count - 1}}


def test_large_values_make_small_parts() -> None:
    parts = parts_of(MOVING, rows([(b"a", b"x" * 60), (b"b", b"y" * 60), (b"c", b"z" * 500), (b"d", b"w")]), Limits(100, 130))
    assert [part.upto for part in parts] == [3, 5, 7]


def test_parts_that_move_nothing_do_not_touch_the_ledger() -> None:
    (part,) = parts_of(STANDING, rows([(b"a", b"1"), (b"b", None)]), Limits(9, 99))
    assert part.upto is None
    assert queued(part, STANDING) == [[b"DEL", b"b"], [b"MSET", b"a", b"1"]]
    keys = raw_texts(pa.array([b"a", b"b", b"a", b"c"]))
    assert [queued(one, STANDING) for one in deletions(STANDING, keys, Limits(2, 99))] == [
        [[b"DEL", b"a", b"b"]],
        [[b"DEL", b"a", b"c"]],
    ]
    assert deletions(STANDING, raw_texts(pa.array([], pa.binary())), Limits(2, 99)) == []


def test_a_key_stands_once_in_a_part_with_its_last_change() -> None:
    changes: list[tuple[bytes, bytes | None]] = [(b"a", b"1"), (b"b", b"1"), (b"a", None), (b"b", None), (b"b", b"2"), (b"a", b"")]
    (part,) = parts_of(MOVING, rows(changes), Limits(9, 99))
    assert queued(part, MOVING) == [[b"MSET", b"b", b"2", b"a", b""], [b"HSET", b"L", b"at", b"11"]]


@pytest.mark.parametrize("hashes", [False, True])
def test_any_changes_come_to_what_a_dict_makes_of_them(seed: int, hashes: bool) -> None:
    chance = random.Random(seed)
    for _ in range(40):
        count, names = chance.randint(1, 200), chance.choice([1, 3, 50])
        # Names that begin alike, and some that are empty or long.
        pool = [b"", b"k" * 300, *(b"key:%d" % i for i in range(names))]
        changes = [(chance.choice(pool), None if chance.random() < 0.3 else b"%d" % i) for i in range(count)]
        made = rows(changes)
        last = {key: i for i, (key, _) in enumerate(changes)}
        last = {key: i for key, i in last.items() if changes[i][1] is not None}
        expected: dict[bytes, object] = {key: changes[i][1] for key, i in last.items()}
        if hashes:
            # Every third row has a field more, which the others have to take away.
            fields = [b"" if value is None else bulk(b"f") + bulk(value) for _, value in changes]
            more = [value is not None and i % 3 == 0 for i, (_, value) in enumerate(changes)]
            fields = [text + bulk(b"g") + bulk(b"1") if has else text for text, has in zip(fields, more, strict=True)]
            items = np.array([0 if value is None else 4 if has else 2 for (_, value), has in zip(changes, more, strict=True)])
            made = RowFrames(made.keys, raw_texts(pa.array(fields, pa.binary())), made.gone, made.positions, items)
            expected = {key: {b"f": b"%d" % i} | ({b"g": b"1"} if more[i] else {}) for key, i in last.items()}
        parts = parts_of(MOVING, made, Limits(chance.randint(1, 60), chance.choice([50, 10**6])))
        assert carried_out(parts, MOVING) == {**expected, b"L": {b"at": 2 * count - 1}}


def test_fields_are_pairs_of_items_where_there_is_a_value(seed: int) -> None:
    chance = random.Random(seed)
    rows = chance.randint(1, 300)
    names = [b"id", "größe".encode(), b""]
    held = [[chance.choice([None, b"", b"\r\n", b"x" * chance.randint(1, 2000)]) for _ in range(rows)] for _ in names]
    given = []
    for name, values in zip(names, held, strict=True):
        states = np.array([value is None for value in values], np.uint8)
        given.append((name, raw_texts(pa.array([value or b"" for value in values], pa.binary())), states if states.any() else None))
    made = hashes_of(given, rows, packed=False)
    for row, text in enumerate(made.texts.to_array().to_pylist()):
        expected = [
            part for name, values in zip(names, held, strict=True) if (value := values[row]) is not None for part in (name, value)
        ]
        assert (made.items[row], made.packed[row]) == (len(expected), 0)
        assert text == b"".join(map(bulk, expected))


def test_packed_hashes_stand_beside_others_in_a_part(seed: int) -> None:
    """Only the others are deleted first; a deleted row is, whatever its value would be."""
    chance = random.Random(seed)
    for _ in range(40):
        count = chance.randint(1, 100)
        changes = [
            (b"k%d" % chance.randint(0, 20), None if chance.random() < 0.3 else b"%d" % i * chance.choice([1, 40]))
            for i in range(count)
        ]
        made = rows(changes)
        fields = hashes_of([(b"f", made.values, None)], count, packed=True)
        frames = RowFrames(made.keys, fields.texts, made.gone, made.positions, fields.items, packed=fields.packed)
        parts = parts_of(MOVING, frames, Limits(chance.randint(1, 60), 10**6))
        expected: dict[bytes, object] = {}
        for key, value in changes:
            expected.pop(key, None)
            if value is not None:
                expected[key] = {b"f": value}
        assert carried_out(parts, MOVING) == {**expected, b"L": {b"at": 2 * count - 1}}
        for part in parts:
            found = queued(part, MOVING)
            deleted = {key for name, *keys in found if name == b"DEL" for key in keys}
            assert not deleted & {given[0] for name, *given in found if name == b"RESTORE"}


@pytest.mark.parametrize("hashes", [False, True])
def test_a_written_key_expires_and_every_key_is_published(hashes: bool) -> None:
    """Once for each key of a part, behind what is done to it and before the progress moves."""
    seed = random.randrange(1 << 30)
    chance = random.Random(seed)
    told = Frame(LOOK, MOVE, b"channel \xc3\xa9")
    for _ in range(50):
        count = chance.randint(1, 40)
        changes = [(b"k%d" % chance.randint(0, 12), None if chance.random() < 0.3 else b"v%d" % at) for at in range(count)]
        made = rows(changes)
        at = np.array([chance.choice([1, 999, 10**12, 10**15]) + row for row in range(count)], np.int64)
        values, items, packed = made.values, None, None
        if hashes:
            fields = hashes_of([(b"f", made.values, None)], count, packed=chance.random() < 0.5)
            values, items, packed = fields.texts, fields.items, fields.packed
        frames = RowFrames(made.keys, values, made.gone, made.positions, items, at, packed)
        limits = Limits(chance.randint(1, 15), 1 << 20)
        start = 0
        for part in parts_of(told, frames, limits):
            mine = changes[start : start + limits.rows]
            last = {key: start + row for row, (key, _) in enumerate(mine)}
            found = queued(part, told)
            expires = [(given[0], int(given[1])) for name, *given in found if name == b"PEXPIREAT"]
            assert sorted(expires) == sorted((key, int(at[row])) for key, row in last.items() if changes[row][1] is not None), seed
            published = [given for name, *given in found if name == b"PUBLISH"]
            assert sorted(published) == sorted([told.channel, key] for key in last), seed
            order = [name for name, *_ in found]
            assert order[-1] == b"HSET", seed
            assert order[-1 - len(published) : -1] == [b"PUBLISH"] * len(published), seed
            start += len(mine)
        assert start == count, seed
    swept = deletions(told, raw_texts(pa.array([b"a", b"b"], pa.binary())), Limits(10, 1 << 20))
    assert [name for name, *_ in queued(swept[0], told)] == [b"DEL", b"PUBLISH", b"PUBLISH", b"HSET"]


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_what_is_of_one_position_is_never_parted(limit: int) -> None:
    changes: list[tuple[bytes, bytes | None]] = [(b"a", b"1"), (b"a", None), (b"b", b"2"), (b"c", b"3"), (b"c", None), (b"d", b"4")]
    made = rows(changes)
    moving = RowFrames(made.keys, made.values, made.gone, np.array([1, 2, 2, 3, 4, 4]))
    parts = parts_of(MOVING, moving, Limits(limit, 1 << 20))
    assert [part.upto for part in parts] == {1: [1, 2, 3, 4], 2: [2, 4], 3: [2, 4]}[limit]
    assert carried_out(parts, MOVING) == {b"b": b"2", b"d": b"4", b"L": {b"at": 4}}
    standing = RowFrames(made.keys, made.values, made.gone, np.full(6, 7))
    assert len(parts_of(STANDING, standing, Limits(limit, 1 << 20))) == -(-6 // limit), "rows that are written again share theirs"
