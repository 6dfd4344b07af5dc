"""Views that Spark's workers help to build, where there is no Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.commands.preflight import view_findings
from cdc.plan.views import redefined
from cdc.settings.file import load
from cdc.settings.models import Settings
from sinks import options_model
from tests.logs import EMPTY

VIEW = '[views.one]\nsql = "select id from public.orders"\nkey = ["id"]\n'


def settings(folder: Path, more: str) -> Settings:
    config = folder / "cdc.toml"
    config.touch(0o600)
    config.write_text(f'run_dir = "run"\n[source]\ndsn = "dbname=shop"\n[log]\ndir = "log"\n{VIEW}{more}')
    found: Settings = load(config, options_model)
    return found


@pytest.mark.parametrize("workers_from_rows", [0, 1])
def test_doctor_and_plan_name_a_view_whose_builds_need_a_spark_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers_from_rows: int
) -> None:
    monkeypatch.setenv("HEADWATER_JAVA_HOME", str(tmp_path))
    given = settings(tmp_path, f"workers_from_rows = {workers_from_rows}\n")
    failed = [one.message for one in view_findings(given, []) if one.level == "fail"]
    said = [text for _, text in redefined(given, EMPTY) if "Spark" in text]
    assert len(failed) == len(said) == workers_from_rows
    assert all("has no bin/java" in one for one in (*failed, *said))
