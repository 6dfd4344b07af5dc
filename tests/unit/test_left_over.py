"""The look for processes that tests have left running goes on where one of the machine's ends while it is looked at."""

from __future__ import annotations

import psutil
import pytest

from tests import conftest


@pytest.mark.parametrize("error", [ProcessLookupError(), psutil.NoSuchProcess(1)], ids=lambda error: type(error).__name__)
def test_a_process_that_ends_meanwhile_is_not_left_over(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def ended(_: psutil.Process) -> dict[str, str]:
        raise error

    monkeypatch.setattr(psutil.Process, "environ", ended)
    assert conftest._left_over("any run's") == []
