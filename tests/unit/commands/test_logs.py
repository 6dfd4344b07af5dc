from __future__ import annotations

import io

import pytest
import structlog

from cdc.commands.logs import configure_logs


def test_a_logger_outlives_the_stream_it_first_wrote_to(monkeypatch: pytest.MonkeyPatch) -> None:
    log = structlog.get_logger("part")
    first, second = io.StringIO(), io.StringIO()
    try:
        monkeypatch.setattr("sys.stderr", first)
        configure_logs()
        log.info("one")
        assert "one" in first.getvalue()
        first.close()
        monkeypatch.setattr("sys.stderr", second)
        log.info("two")
        assert "two" in second.getvalue()
    finally:
        structlog.reset_defaults()
