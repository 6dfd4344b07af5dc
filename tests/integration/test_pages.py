"""The pages that a newcomer looks for: what they name exists, what they print works, and docs/README.md leads to all of them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import typer.main
from prometheus_client import CollectorRegistry, generate_latest

import sinks.warehouse as warehouse
from cdc.commands.app import app
from cdc.errors import StopState
from cdc.http.metrics import ReportCollector
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.batch import Op
from cdc.model.position import Lsn
from cdc.spark.queries import run_followers
from sinks.sparksession import use_session
from tests.contract.rows import ORDERS, batch, order
from tests.unit.http import reports

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))
NEWCOMERS = """README configuration tutorial managed-postgres stores spark warehouse service sizing monitoring backup migrating comparison faq
writing-a-sink glossary extending upgrade log inbox schema-changes privacy security"""
PAGES = tuple(ROOT / "docs" / f"{name}.md" for name in NEWCOMERS.split())
CODE = tuple(path for room in ("cdc", "sinks", "tests/contract") for path in (ROOT / room).rglob("*.py"))


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / f"{page}.md").read_text(), re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_a_page_names_exists(page: Path) -> None:
    text = page.read_text()
    for link, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", text):
        target = (page.parent / link).resolve() if link else page
        assert target.exists(), link
        headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE) if anchor else []
        assert not anchor or anchor in [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings], anchor
    for name in re.findall(r"\b(?:make bench NAME)=([\w-]+)", text):
        assert (ROOT / "bench" / f"{name.replace('-', '_')}.py").exists()
    for name in set(re.findall(r"\b[A-Z]+_[A-Z_]+\b", text)) - set(StopState):
        places = (ROOT / "README.md", ROOT / "docker-compose.yml", *CODE)
        assert any(re.search(rf"\b{name}\b", place.read_text()) for place in places), name
    root: Any = typer.main.get_command(app)
    for said in re.findall(r"`cdc ((?:--config \S+ )?[a-z][^`]*)`", text):
        words = re.sub(r"^--config \S+ ", "", said).split()
        command: Any = root
        while words and hasattr(command, "commands") and words[0] in command.commands:
            command = command.commands[words.pop(0)]
        assert command is not root, f"cdc {said}"
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        assert {word for word in words if word.startswith("--")} <= known, f"cdc {said}"


def test_a_reader_finds_every_page() -> None:
    assert "(docs/README.md)" in (ROOT / "README.md").read_text()
    index = ROOT / "docs/README.md"
    linked = {(index.parent / link).resolve() for link in re.findall(r"\]\(([^)#]+)", index.read_text())}
    assert [page.name for page in DOCS if page != index and page not in linked] == []


def test_every_metric_that_the_page_names_is_there() -> None:
    named = set(re.findall(r"\bheadwater_\w+", (ROOT / "docs/monitoring.md").read_text()))
    found = ""
    for report in (reports.healthy(), reports.stopped(), reports.bootstrapping(), reports.store_down(), reports.with_views()):
        registry = CollectorRegistry(auto_describe=False)
        registry.register(ReportCollector(report))
        found += generate_latest(registry).decode()
    assert named <= set(re.findall(r"^(headwater_\w+)", found, re.MULTILINE))
    assert json.loads((ROOT / "deploy/grafana/headwater.json").read_text())["title"] == "Headwater"


def test_a_backup_is_made_and_put_back_as_printed(tmp_path: Path) -> None:
    log, away = tmp_path / "lib" / "log", tmp_path / "backup"
    away.mkdir()
    (tmp_path / "lib" / "run").mkdir(parents=True)
    with closing(EmbeddedLogWriter(log)) as writer:
        writer.append(batch(ORDERS, [(Op.INSERT, 1, order(1, "kept"))]))
        kept = writer.commit(Lsn(1), 1)
    make, restore = (
        "set -e; systemctl() { :; }\n" + block.replace("/var/lib/headwater", str(log.parent)).replace("/backup", str(away))
        for block in blocks("backup", "sh")
    )
    subprocess.run(["bash", "-c", make], check=True)
    with closing(EmbeddedLogWriter(log)) as writer:
        writer.append(batch(ORDERS, [(Op.INSERT, 2, order(2, "later"))]))
        writer.commit(Lsn(2), 2)
    subprocess.run(["bash", "-c", restore], check=True)
    with closing(EmbeddedLogReader(log)) as reader, closing(EmbeddedLogReader(log.with_name("log.before"))) as before:
        assert reader.head() == kept
        assert before.head().position == 2


@pytest.mark.spark
def test_the_warehouse_is_read_as_printed(spark: Any, tmp_path: Path) -> None:
    use_session(lambda: spark)
    with closing(EmbeddedLogWriter(tmp_path / "log")) as writer:
        for number in (1, 2, 3):
            writer.append(batch(ORDERS, [(Op.INSERT, number, order(number, "new"))]))
            writer.commit(Lsn(number), number)
        writer.append(batch(ORDERS, [(Op.DELETE, 4, order(3, "new"))]))
        writer.commit(Lsn(4), 4)
    options = warehouse.Options(kind="iceberg", path=tmp_path / "var" / "warehouse")
    run_followers(tmp_path / "log", tmp_path / "run", {"warehouse": options}, until_caught_up=True, stop=threading.Event())
    with_spark, with_python, *_ = blocks("warehouse", "python")
    done = subprocess.run([sys.executable, "-c", with_spark], cwd=tmp_path, capture_output=True, text=True, check=True)
    counted, snapshots = done.stdout.split("+\n\n")[:2]
    assert re.search(r"\|\s+2\|", counted), done.stdout
    assert "snapshot_id" in snapshots
    subprocess.run([sys.executable, "-c", with_python + "\nassert rows.num_rows == 1"], cwd=tmp_path, check=True)
