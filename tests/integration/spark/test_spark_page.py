"""docs/spark.md: what it prints is run, on a log that has one of each kind of change."""

from __future__ import annotations

import inspect
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cdc.inbox.writerside import Inbox
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.batch import META_FIELDS, Op
from cdc.model.position import Lsn, Position
from cdc.spark import source
from tests.contract.rows import ORDERS, batch, order
from tests.unit.inbox.parts import served

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/spark.md").read_text()


@pytest.mark.spark
@pytest.mark.usefixtures("spark")
def test_the_log_is_read_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    writer = EmbeddedLogWriter(tmp_path / "var" / "log")
    changes = [
        (Op.INSERT, 1, order(9, "before the truncate")),
        (Op.TRUNCATE, 2, {}),
        (Op.READ, 3, order(1, "new")),
        (Op.INSERT, 4, order(2, "new")),
        (Op.UPDATE, 5, order(1, "paid")),
        (Op.DELETE, 6, order(2)),
    ]
    for change in changes:
        writer.append(batch(ORDERS, [change]))
        writer.commit(Lsn(change[1]), change[1])
    # As capture does: the log's writer serves the inbox.
    inbox = Inbox(tmp_path / "var" / "log", writer, tmp_path / "var" / "run", source="postgres", tables=["public.*"])
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    shown = []
    with served(inbox):
        for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
            # Spark's JVM may have been started elsewhere, and would leave the checkpoint there.
            exec(block.replace("var/checkpoint", str(tmp_path / "checkpoint")), names)
            shown.append(capsys.readouterr().out)
    writer.close()
    in_batch, newest, scanned, feed, as_of, stream, _ = shown
    with closing(EmbeddedLogReader(tmp_path / "var" / "log")) as log:
        written = [row for rows in log.read("derived.states", Position(0), log.head().position) for row in rows.to_pylist()]
    assert [(chr(row["_cdc_op"]), row["id"], row["status"]) for row in written] == [
        ("u", 9, "before the truncate"), ("u", 1, "paid"), ("d", 2, None)
    ]  # fmt: skip
    assert "|-- _cdc_position: long" in in_batch
    assert "|-- amount: decimal(12,2)" in in_batch
    counts = {"c": "2", "d": "1", "r": "1", "t": "1", "u": "1"}
    assert dict(re.findall(r"\|\s*([a-z])\|\s*(\d)\|", in_batch)) == counts
    assert re.findall(r"\|\s*(\d)\|\s*([ru])\|\s*(\w+)\|", in_batch) == [("3", "r", "new"), ("5", "u", "paid")]
    assert re.findall(r"\|\s*(\d+)\|\s*(\w+)\|", newest) == [("1", "paid")]
    assert dict(re.findall(r"\|\s*([a-z])\|\s*(\d)\|", scanned)) == {"c": "2", "r": "1", "u": "1"}
    assert re.findall(r"\|\s*(\d+)\|\s*(\w+)\|", scanned) == [("1", "paid"), ("2", "new"), ("2", "NULL")]
    assert re.findall(r"\|\s*(\w+)\|\s*(\d+)\|\s*(\w+)\|\s*([\w ]+)\|", feed) == [
        ("insert", "10", "9", "before the truncate"),
        ("truncate", "20", "NULL", "NULL"),
        ("insert", "30", "1", "new"),
        ("insert", "40", "2", "new"),
        ("update_postimage", "50", "1", "paid"),
        ("update_preimage", "50", "1", "new"),
        ("delete", "60", "2", "new"),
    ]
    assert re.findall(r"\|\s*(\d+)\|\s*(\w+)\|", as_of) == [("1", "new"), ("2", "new")]
    assert dict(re.findall(r"\|\s*([a-z])\|\s*(\d)\|", stream)) == counts


def test_the_tables_name_every_column_and_option() -> None:
    options = set(re.findall(r"^``(\w+)``", inspect.getdoc(source) or "", re.MULTILINE))
    assert options
    assert {field.name for field in META_FIELDS} | options <= set(re.findall(r"`(\w+)`", PAGE))
