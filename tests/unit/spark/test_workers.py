"""What one of Spark's Python workers keeps from task to task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cdc.follow import apply
from cdc.follow.rules import Rules
from cdc.settings.models import StoreOptions
from sinks import options_model


class Opened:
    """In place of a sink."""

    def __init__(self, options: StoreOptions) -> None:
        self.options = options
        self.closed = False

    def open(self, log: object, epoch: int) -> None: ...

    def close(self) -> None:
        self.closed = True


def rules(password: str) -> Rules:
    given = {"kind": "redis", "url": "redis://127.0.0.1:1/0", "username": "cdc", "password": password}
    return Rules("cache", options_model("redis").model_validate(given))


def test_a_store_whose_options_changed_is_written_under_the_new_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Opened] = []

    def make(_: str, options: StoreOptions) -> Any:
        made.append(Opened(options))
        return made[-1]

    monkeypatch.setattr(apply, "make_sink", make)
    monkeypatch.setattr(apply, "_WORKERS", {})
    former, now = rules("former"), rules("now")
    assert repr(former.options) == repr(now.options), "what is secret does not show"
    first = apply._worker(former, tmp_path)
    first.open_for(apply.StoreWriter(tmp_path, 1, 1))
    assert apply._worker(rules("former"), tmp_path) is first
    apply._worker(now, tmp_path)
    assert [sink.options for sink in made] == [former.options, now.options]
    assert [sink.closed for sink in made] == [True, False]
    assert len(apply._WORKERS) == 1
