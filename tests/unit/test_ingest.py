"""The order of a commit: nobody hears of it before the log has synced it."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from cdc.ingest import Ingest
from cdc.model.position import Cut, Lsn, Position
from cdc.status import CaptureStatus


def ingest_into(parts: Mock) -> Ingest:
    parts.writer.head = Cut(Position(0), Lsn(0))
    parts.writer.commit.return_value = Cut(Position(1), Lsn(100))
    return Ingest(parts.stream, parts.decoder, parts.writer, parts.memory, parts.feed, Mock(status=CaptureStatus()))


def called(parts: Mock) -> list[str]:
    return [name for name, _, _ in parts.mock_calls]


def test_a_commit_is_durable_then_remembered_then_confirmed() -> None:
    parts = Mock()
    ingest_into(parts)._commit(100, 0)
    order = [name for name in called(parts) if not name.startswith("decoder.")]
    assert order == ["writer.commit", "memory.commit", "feed.on_durable", "stream.confirm"]
    parts.stream.confirm.assert_called_once_with(100)


def test_a_commit_that_fails_is_not_confirmed() -> None:
    parts = Mock()
    ingest = ingest_into(parts)
    parts.writer.commit.side_effect = OSError
    with pytest.raises(OSError):
        ingest._commit(100, 0)
    assert called(parts) == ["writer.commit"]
