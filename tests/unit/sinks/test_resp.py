from __future__ import annotations

import pyarrow as pa
import pytest

from sinks.cache.resp import Script, script_calls
from sinks.jsonrows import raw_texts

SCRIPT = Script(b"f" * 40, (b"applied", b"graves"), b"floor:t")


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


@pytest.mark.parametrize(("rows", "keys_per_call"), [(1, 100), (9, 100), (10, 10), (11, 10), (250, 100)])
def test_calls_are_what_the_server_expects(rows: int, keys_per_call: int) -> None:
    keys = [f"key {i}".encode() for i in range(rows)]
    values = [b"v\r\n" * i for i in range(rows)]
    calls = script_calls(
        SCRIPT, raw_texts(pa.array(keys)), raw_texts(pa.array(values)), keys_per_call=keys_per_call, bytes_per_call=10**9
    )
    found = commands(calls.data.tobytes())
    assert len(found) == len(calls.ends) == -(-rows // keys_per_call)
    at = 0
    for call in found:
        count = int(call[2]) - 2
        assert call[:5] == [b"EVALSHA", SCRIPT.sha, b"%d" % (count + 2), b"applied", b"graves"]
        assert call[5 : 5 + count] == keys[at : at + count]
        assert call[5 + count :] == [b"floor:t", *values[at : at + count]]
        at += count
    assert at == rows
    assert calls.ends[-1] == len(calls.data)


def test_large_values_make_small_calls() -> None:
    values = [b"x" * 60, b"y" * 60, b"z" * 500, b"w"]
    calls = script_calls(
        SCRIPT, raw_texts(pa.array([b"k"] * 4)), raw_texts(pa.array(values)), keys_per_call=100, bytes_per_call=130
    )
    assert [call[6 + int(call[2]) - 2 :] for call in commands(calls.data.tobytes())] == [values[:2], values[2:3], values[3:]]
