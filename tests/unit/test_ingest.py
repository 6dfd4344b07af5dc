"""The order of a commit: nobody hears of it before the log has synced it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from cdc.capture.authenticity import WATERMARK_PREFIX
from cdc.capture.ddlmessages import DDL_PREFIX
from cdc.capture.decoder import Decoder
from cdc.capture.definitions import Definitions
from cdc.capture.preparedfiles import PreparedFiles
from cdc.capture.spool import Spools
from cdc.ingest.intake import Intake
from cdc.ingest.loop import Ingest
from cdc.model.position import Cut, Lsn, Position
from cdc.pgvalues.values import Bytes
from cdc.state.status import CaptureStatus
from tests.unit.capture import wire
from tests.unit.capture.test_decoder import ORDERS, Forgetful


def ingest_into(parts: Mock) -> Ingest:
    parts.writer.head = Cut(Position(0), Lsn(0))
    parts.writer.commit.return_value = Cut(Position(1), Lsn(100))
    return Ingest(intake_of(parts), parts.stream, parts.decoder)


def intake_of(parts: Mock) -> Intake:
    return Intake(Path(), parts.writer, parts.memory, parts.feed, Mock(status=CaptureStatus()))


def called(parts: Mock) -> list[str]:
    return [name for name, _, _ in parts.mock_calls]


def test_a_commit_is_durable_then_remembered_then_confirmed() -> None:
    parts = Mock()
    ingest_into(parts)._commit(100, 0)
    order = [name for name in called(parts) if not name.startswith("decoder.")]
    assert order == ["feed.fell_behind", "writer.commit", "memory.commit", "feed.on_durable", "stream.confirm"]
    parts.stream.confirm.assert_called_once_with(100)


def test_a_commit_that_fails_is_not_confirmed() -> None:
    parts = Mock()
    ingest = ingest_into(parts)
    parts.writer.commit.side_effect = OSError
    with pytest.raises(OSError):
        ingest._commit(100, 0)
    assert called(parts) == ["feed.fell_behind", "writer.commit"]


@pytest.mark.parametrize("lacks", [True, False])
def test_what_a_cut_lacks_is_said_before_the_cut_is_there(lacks: bool) -> None:
    parts = Mock()
    ingest = ingest_into(parts)
    parts.attach_mock(ingest._gauge.lack, "lack")  # type: ignore[arg-type]
    parts.feed.fell_behind.return_value = lacks
    ingest._commit(100, 0)
    assert called(parts)[:3] == ["feed.fell_behind", *["lack"] * lacks, "writer.commit", "memory.commit"][:3]


class Pieces:
    """A stream whose bytes come in pieces of some length."""

    def __init__(self, data: bytes, length: int) -> None:
        self._left = [data[at : at + length] for at in range(0, len(data), length)]
        self.batches = self.received = 0
        self.largest = 0

    def take(self, _: float) -> Bytes:
        if not self._left:
            raise ConnectionError
        return wire.block(self._left.pop(0))

    def behind(self, torn: Bytes, taken: Bytes) -> Bytes:
        self.largest = max(self.largest, len(torn) + len(taken))
        return np.concatenate([torn, taken])

    def confirm(self, _: int) -> None: ...

    def reply_now(self) -> None: ...


def taken_in(data: bytes, length: int, folder: Path | None = None) -> tuple[list[Any], int]:
    """The rows that come to the log, and the most bytes that were put together."""
    stream = Pieces(data, length)
    spools = Spools(folder) if folder else None
    definitions = Definitions(lambda _: None, passwords=["sesame"])
    decoder = Decoder(definitions, Forgetful(), lambda *_: None, 0, spools, PreparedFiles(folder) if folder else None)
    parts = Mock()
    parts.writer.head, parts.writer.next_position = Cut(Position(0), Lsn(0)), 1
    # On a busy machine compiling takes so long that an idle stream's place is recorded meanwhile.
    parts.writer.commit.return_value = Cut(Position(0), Lsn(0))
    parts.feed.chunk_at.return_value = None
    ingest = Ingest(intake_of(parts), stream, decoder)
    with pytest.raises(ConnectionError):
        ingest.run(threading.Event())
    batches = [call.args[0] for call in parts.writer.append.call_args_list]
    return [row for batch in batches for row in batch.to_pylist()], stream.largest


def large(prefix: str, content: bytes = b"", *, transactional: bool = True) -> bytes:
    return wire.message(prefix, content + b"[" * 5000, transactional=transactional)


@pytest.mark.parametrize("prefix", [DDL_PREFIX, WATERMARK_PREFIX, "", "p" * 300])
@pytest.mark.parametrize("way", ["outside", "inside", "streamed"])
def test_a_large_message_of_somebody_else_is_not_put_together(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, prefix: str, way: str
) -> None:
    monkeypatch.setattr("cdc.capture.decoder.PASSED_BYTES", 1000)
    row = wire.relation(ORDERS) + wire.insert(ORDERS.oid, ["1", "new"])
    behind = wire.begin(702, 300) + wire.relation(ORDERS) + wire.insert(ORDERS.oid, ["2", "new"]) + wire.commit(300, 340)
    for message in (large(prefix), large(prefix, b'{"password": "guess"')):
        if way == "outside":
            data = wire.begin(700, 100) + row + wire.commit(100, 140) + large(prefix, transactional=False)
        elif way == "inside":
            data = wire.begin(700, 100) + row + message + message + wire.commit(100, 140)
        else:
            data = wire.stream(700, row, message) + wire.stream(700, message, first=False) + wire.stream_commit(700, 100, 140)
        for length in (7, 100, 1000, 3000):
            rows, largest = taken_in(data + behind, length, tmp_path)
            assert [found["id"] for found in rows] == [1, 2]
            assert largest < 1000 + 2 * length + 600


def test_a_large_message_of_ours_is_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdc.capture.decoder.PASSED_BYTES", 1000)
    heard: list[bytes] = []
    monkeypatch.setattr(Definitions, "on_message", lambda _, content: (heard.append(content), ([], []))[1])
    content = b'{"password" : "sesame"' + b" " * 5000
    data = wire.begin(700, 100) + wire.message(DDL_PREFIX, content) + wire.commit(100, 140)
    for length in (7, 100, 1000, 3000):
        taken_in(data, length)
    assert heard == [content] * 4
