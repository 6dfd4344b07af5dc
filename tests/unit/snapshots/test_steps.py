"""Steps go on with their answers, and with the errors of those who answer."""

from __future__ import annotations

import pytest

from snapshots.steps import Emit, Pause, Request, Steps, drive


def test_an_answer_is_what_the_request_becomes() -> None:
    def asking() -> Steps[list[str]]:
        first: str = yield Pause(1.0)
        second: str = yield Emit(b"x")
        return [first, second]

    assert drive(asking(), lambda request: type(request).__name__) == ["Pause", "Emit"]


def test_an_error_is_raised_where_the_request_was_made() -> None:
    def failing(_: Request) -> None:
        raise ValueError

    def resigned() -> Steps[str]:
        try:
            yield Pause(1.0)
        except ValueError:
            return "caught"
        return "not raised"

    def careless() -> Steps[None]:
        yield Pause(1.0)

    assert drive(resigned(), failing) == "caught"
    with pytest.raises(ValueError):
        drive(careless(), failing)
