"""The checks of `cdc doctor` that need no server."""

from __future__ import annotations

from pathlib import Path

from cdc.commands.invocation import Invocation
from cdc.commands.preflight import examine


def test_a_log_that_would_lie_below_a_file_is_a_finding(tmp_path: Path) -> None:
    config = tmp_path / "cdc.toml"
    config.write_text('[source]\ndsn = "host=/nowhere"\n[log]\ndir = "file/log"\n')
    (tmp_path / "file").touch()
    *_, last = examine(Invocation(config), fix=False)
    assert (last.level, last.check, last.message) == ("fail", "log folder", f"{tmp_path / 'file'} is not a folder")
