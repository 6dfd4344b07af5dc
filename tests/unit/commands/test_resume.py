"""`cdc resume`: what it asks of capture, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from cdc.commands.app import app
from cdc.errors import Stopped, StopState
from cdc.source.membership import publication_lost
from cdc.state import rebuilds, reloads, stops

AT = "16/B374D848"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "var" / "log").mkdir(parents=True)
    (tmp_path / "cdc.toml").write_text('[source]\ndsn = "postgresql://u@127.0.0.1/none"\n')
    return tmp_path


def resume(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["--config", str(folder / "cdc.toml"), "resume", *arguments])


def hold(folder: Path, stopped: Stopped, part: str = "capture") -> None:
    stops.record(folder / "var" / "run", part, stopped)


def asked(folder: Path) -> StopState | None:
    found = reloads.requested(folder / "var" / "log")
    return found and found.state


def is_held(folder: Path) -> bool:
    return bool(stops.held(folder / "var" / "run"))


def test_plainly(folder: Path) -> None:
    hold(folder, publication_lost("gone"))
    assert resume(folder, "publication_lost").exit_code == 0
    assert asked(folder) is None
    assert not is_held(folder)


def test_with_a_rebuild(folder: Path) -> None:
    hold(folder, publication_lost("gone"))
    done = resume(folder, "PUBLICATION_LOST:capture", "--rebuild")
    assert done.exit_code == 0, done.output
    assert "every table" in done.output
    assert asked(folder) is StopState.PUBLICATION_LOST
    assert not is_held(folder)


@pytest.mark.parametrize(
    ("state", "part"),
    [(StopState.LOG_CORRUPT, "capture"), (StopState.SCHEMA_PAUSED, "follow-search")],
)
def test_a_rebuild_that_would_not_help(folder: Path, state: StopState, part: str) -> None:
    hold(folder, Stopped(state, "…"), part)
    assert resume(folder, state, "--rebuild").exit_code != 0
    assert asked(folder) is None
    assert rebuilds.requested(folder / "var" / "run", "search") is None
    assert is_held(folder)


@pytest.mark.parametrize("state", [StopState.DIVERGED, StopState.OTHER_LOG, StopState.POSITION_GONE, StopState.STORE_REFUSES])
def test_a_store_is_built_again(folder: Path, state: StopState) -> None:
    run_dir = folder / "var" / "run"
    for store in ("search", "follow-me"):
        hold(folder, Stopped(state, "…"), f"follow-{store}")
    done = resume(folder, f"{state}:follow-follow-me", "--rebuild")
    assert done.exit_code == 0, done.output
    assert "store follow-me will be built again" in done.output
    asked_for = rebuilds.requested(run_dir, "follow-me")
    assert asked_for is not None
    assert asked_for.state is state
    assert rebuilds.requested(run_dir, "search") is None
    assert asked(folder) is None, "capture has nothing to do with it"
    assert [stop.part for stop in stops.held(run_dir)] == ["follow-search"]


def test_without_a_rebuild_nothing_is_built(folder: Path) -> None:
    hold(folder, Stopped(StopState.OTHER_LOG, "…"), "follow-search")
    assert resume(folder, "OTHER_LOG", "--skip", AT).exit_code != 0
    assert is_held(folder)
    assert resume(folder, "OTHER_LOG").exit_code == 0
    assert rebuilds.requested(folder / "var" / "run", "search") is None
    assert not is_held(folder)


def test_one_state_of_capture_and_of_a_store(folder: Path) -> None:
    """Each part gets what helps it."""
    for part in ("capture", "follow-search"):
        hold(folder, Stopped(StopState.DIVERGED, "…"), part)
    assert resume(folder, "DIVERGED", "--rebuild").exit_code == 0
    assert asked(folder) is StopState.DIVERGED
    assert rebuilds.requested(folder / "var" / "run", "search") is not None
    assert not is_held(folder)


@pytest.mark.parametrize("arguments", [("--rebuild",), ("--skip", "0/1"), ("--skip", "nonsense")])
def test_a_poison_row_is_skipped_by_its_lsn_only(folder: Path, arguments: tuple[str, ...]) -> None:
    hold(folder, Stopped(StopState.POISON_ROW, f"a change at LSN {AT} cannot be captured: …"))
    assert resume(folder, "POISON_ROW", *arguments).exit_code != 0
    assert asked(folder) is None
    assert is_held(folder)
    assert resume(folder, "POISON_ROW", "--skip", AT).exit_code == 0
    assert asked(folder) is StopState.POISON_ROW


def test_nothing_to_skip(folder: Path) -> None:
    hold(folder, publication_lost("gone"))
    assert resume(folder, "PUBLICATION_LOST", "--skip", AT).exit_code != 0
    assert is_held(folder)


def test_nothing_is_stopped(folder: Path) -> None:
    assert resume(folder, "SLOT_LOST", "--rebuild").exit_code != 0
    assert asked(folder) is None
