from __future__ import annotations

import pytest

from cdc.__main__ import hoisted, main


@pytest.mark.parametrize(
    ("given", "sorted_out"),
    [
        (["status", "--config", "x.toml", "--json"], ["--config", "x.toml", "status", "--json"]),
        (["wait", "a", "--config=x", "--debug"], ["--config=x", "--debug", "wait", "a"]),
        (["--config", "x", "status"], ["--config", "x", "status"]),
        (["status", "--config"], ["--config", "status"]),
        (["log", "cat", "--", "--debug"], ["log", "cat", "--", "--debug"]),
        ([], []),
    ],
)
def test_shared_options_may_stand_anywhere(given: list[str], sorted_out: list[str]) -> None:
    assert hoisted(given) == sorted_out


@pytest.mark.parametrize("arguments", [["--help"], ["status", "--help"], ["log", "--help"], ["--version"]])
def test_help_is_no_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 0
    assert capsys.readouterr().out


@pytest.mark.parametrize("verb", ["init", "doctor", "run", "follow", "wait", "audit", "status", "log", "resume"])
def test_every_verb_explains_itself(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0
    assert f"Usage: cdc {verb}" in capsys.readouterr().out
