"""Views with a function, as the configuration declares them: loaded, kept up behind a runner through restarts, refused by name, and computed again with another version."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cdc.commands.preflight import view_findings
from cdc.derive.declarations import SqlView, declared_views
from cdc.derive.ports import DeclaredView
from cdc.errors import Stopped
from cdc.log.home import open_reader
from cdc.model.batch import Op
from cdc.plan.views import redefined
from cdc.settings import functions
from cdc.settings.file import load
from cdc.state import status
from sinks import options_model
from tests.unit.derive.bed import ORDERS, Bed, bed_in

MODULE = "bed_functions"
LAST = """
import pyarrow as pa

def last(orders):
    assert "secret" not in orders["note"].to_pylist()
    return pa.table({"id": orders["id"][-1:], "note": orders["note"][-1:]})
"""
TEXT = """
[views.joined]
python = "bed_functions:last"
sql = "select id, customer, note from orders where customer is not null"
by = ["customer"]
returns = { id = "bigint", note = "text" }
key = ["customer", "id"]
"""
Declare = Callable[..., SqlView]


@pytest.fixture
def declare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Declare:
    """Declares the view as another process would, whose module has this text; None: there is no module."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def said(code: str | None = LAST, more: str = "") -> SqlView:
        file = tmp_path / f"{MODULE}.py"
        file.unlink(missing_ok=True)
        if code is not None:
            file.write_text(code)
        monkeypatch.delitem(sys.modules, MODULE, raising=False)
        monkeypatch.setattr(functions, "known", {})
        importlib.invalidate_caches()
        return declared_views(settings(tmp_path, more))["joined"]

    return said


def settings(folder: Path, more: str = "") -> Any:
    config = folder / "cdc.toml"
    config.touch(0o600)
    config.write_text(f'run_dir = "run"\n[source]\ndsn = "dbname=shop"\n[log]\ndir = "log"\n{TEXT}{more}')
    return load(config, options_model)


def planned(said: Any) -> list[tuple[str, str]]:
    with closing(open_reader(said.log.dir)) as reader:
        return list(redefined(said, reader))


def expected(bed: Bed) -> dict[int, Any]:
    """The last order of each customer."""
    last = {row["customer"]: row for _, row in sorted(bed.tables["public.orders"].items()) if row.get("customer") is not None}
    return {row["id"]: {"customer": row["customer"], "id": row["id"], "note": row["note"]} for row in last.values()}


def test_it_is_kept_up_through_restarts_and_rebuilt_where_its_state_is_lost(declare: Declare, tmp_path: Path, seed: int) -> None:
    dice = Random(seed)
    with bed_in(tmp_path) as bed:
        bed.commit((ORDERS, Op.INSERT, [{"id": 1, "customer": 1, "note": "a"}]))
        for number in range(6):
            lost = dice.random() < 0.3
            with bed.runner(declare(), state=f"state{number}" if lost else "state") as runner:
                runner.begin()
                bed.keep_up(runner)
                assert bed.shown() == expected(bed)
                for _ in range(5):
                    bed.traffic(dice)
                    if dice.random() < 0.5:
                        bed.keep_up(runner)
                        assert bed.shown() == expected(bed)


def test_what_it_raises_stops_the_view_and_a_corrected_module_is_tried_again(declare: Declare, tmp_path: Path) -> None:
    with bed_in(tmp_path) as bed:
        bed.commit((ORDERS, Op.INSERT, [{"id": 1, "customer": 1, "note": "a"}]))
        with bed.runner(declare()) as runner:
            runner.begin()
            bed.commit((ORDERS, Op.INSERT, [{"id": 2, "customer": 1, "note": "secret"}]))
            with pytest.raises(Stopped) as stopped:
                bed.keep_up(runner)
        assert str(stopped.value) == (
            "VIEW_REFUSED: view joined: python = 'bed_functions:last' raised AssertionError at bed_functions.py:5"
        )
        assert str(stopped.value.hint).startswith("correct the function; change [views.joined] in cdc.toml, or cdc resume")
        assert list(bed.shown()) == [1]
        before = declare().declaration
        corrected = declare(LAST.replace("assert", "# assert"))
        assert corrected.declaration != before
        with bed.runner(corrected) as runner:
            runner.begin()
            assert runner.why == "its definition is another than that of its rows in the log"
            assert bed.shown() == expected(bed)


def test_another_version_is_computed_again_and_the_topic_gets_what_differs(declare: Declare, tmp_path: Path) -> None:
    other = LAST.replace(
        '"note": orders["note"][-1:]', '"note": pa.array([None if len(orders) > 1 else orders["note"][0].as_py()], pa.utf8())'
    )

    def began(view: DeclaredView) -> str:
        with bed.runner(view) as runner:
            runner.begin()
            return runner.why

    with bed_in(tmp_path) as bed:
        rows = [{"id": number, "customer": number // 2, "note": "a"} for number in range(1, 5)]
        bed.commit((ORDERS, Op.INSERT, rows))
        assert began(declare(more='version = "1"\n'))
        assert began(declare(other, more='version = "1"\n')) == "", "the version says that it is the same"
        assert {row["note"] for row in bed.shown().values()} == {"a"}
        changes = len(bed.history())
        assert began(declare(other, more='version = "2"\n'))
        assert {number: row["note"] for number, row in bed.shown().items()} == {1: "a", 3: None, 4: "a"}
        assert len(bed.history()) == changes + 1
        assert began(declare(other))
        assert began(declare(other)) == ""
        assert began(declare(other + "# another text")) != ""


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (None, "there is no module bed_functions"),
        ("1 / 0", "importing bed_functions raised ZeroDivisionError at bed_functions.py:1"),
        ("def first(orders): pass", "bed_functions has no function last"),
    ],
)
def test_a_module_that_cannot_be_loaded_stops_the_view_and_is_found_before(
    declare: Declare, tmp_path: Path, code: str | None, why: str
) -> None:
    view = declare(code)
    message = f"python = 'bed_functions:last': {why}"
    with bed_in(tmp_path) as bed:
        bed.commit((ORDERS, Op.INSERT, [{"id": 1, "customer": 1, "note": "a"}]))
        with bed.runner(view) as runner, pytest.raises(Stopped) as stopped:
            runner.begin()
    assert str(stopped.value) == f"VIEW_REFUSED: view joined: {message}"
    [finding] = view_findings(settings(tmp_path), [])
    assert (finding.level, finding.message) == ("fail", message)
    assert list(planned(settings(tmp_path))) == [("joined", f"stops (VIEW_REFUSED) at the next start of cdc run: {message}")]
    assert view.declaration != declare().declaration, "it is tried again once it can be loaded"
    [finding] = view_findings(settings(tmp_path), [])
    assert finding.message == "reads public.orders, and calls bed_functions:last"


def test_plan_says_that_another_text_is_computed_again(declare: Declare, tmp_path: Path) -> None:
    said = settings(tmp_path)
    status.write(said.run_dir, status.view_part("joined"), status.ViewStatus("joined", 1, declaration=declare().declaration))
    assert list(planned(said)) == []
    declare(LAST + "# another text")
    [(name, why)] = planned(said)
    assert (name, "is computed again" in why) == ("joined", True)
