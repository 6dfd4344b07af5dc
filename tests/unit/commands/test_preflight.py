"""The checks of `cdc doctor` that need no server."""

from __future__ import annotations

from pathlib import Path

from pydantic import SecretStr

from cdc.commands.invocation import Invocation
from cdc.commands.preflight import examine, view_findings
from cdc.settings.models import Log, Settings, Source
from cdc.settings.views import View
from tests.contract.rows import ORDERS


def test_a_log_that_would_lie_below_a_file_is_a_finding(tmp_path: Path) -> None:
    config = tmp_path / "cdc.toml"
    config.write_text('[source]\ndsn = "host=/nowhere"\n[log]\ndir = "file/log"\n')
    (tmp_path / "file").touch()
    *_, last = examine(Invocation(config), fix=False)
    assert (last.level, last.check, last.message) == ("fail", "log folder", f"{tmp_path / 'file'} is not a folder")


def test_a_view_of_a_table_that_nobody_captures_is_a_finding(tmp_path: Path) -> None:
    views = {"mine": View(sql="select id from ordrs", key=("id",)), "over": View(sql="select id from views.mine", key=("id",))}
    settings = Settings(source=Source(dsn=SecretStr("host=/nowhere")), log=Log(dir=tmp_path / "log")).model_copy(
        update={"views": views}
    )
    found = {one.check: one for one in view_findings(settings, [ORDERS])}
    assert (found["view mine"].level, found["view over"].level) == ("fail", "ok")
    assert "public.ordrs, which is not captured" in found["view mine"].message
    assert found["view mine"].hint == f"do you mean {ORDERS.qualified}?"
    assert {one.level for one in view_findings(settings, [])} == {"ok"}, "nobody knows"
