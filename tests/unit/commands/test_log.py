"""`cdc log`, over a small log."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from cdc.commands.app import app
from cdc.errors import ConfigError
from cdc.log.embedded.writer import EmbeddedLogWriter
from cdc.model.batch import Op
from cdc.model.evolution import Kind
from cdc.model.facts import FactColumn, Facts, Publishing
from cdc.model.pgtypes import INT8, TEXT
from cdc.model.position import Lsn
from cdc.model.table import Column, Table
from cdc.source.facts import save_facts
from tests.contract.rows import ORDERS, PAIRS, batch, order, replacing, schema

TS_US = 1_763_812_800_123_456


def test_stat_says_when_and_how_much_in_words_of_people(tmp_path: Path) -> None:
    writer = EmbeddedLogWriter(tmp_path / "log")
    writer.commit(Lsn(7), TS_US)
    writer.close()
    config = tmp_path / "cdc.toml"
    config.write_text('[source]\ndsn = "host=h"\n[log]\ndir = "log"\n')
    said = CliRunner().invoke(app, ["--config", str(config), "log", "stat"])
    assert said.exit_code == 0, said.output
    assert "commit_ts: 2025-11-22 12:00:00Z\n" in said.stdout
    assert re.search(r"^disk_bytes: \d+ B$", said.stdout, re.MULTILINE)
    assert str(TS_US) not in said.stdout
    as_json = CliRunner().invoke(app, ["--config", str(config), "log", "stat", "--json"])
    assert f'"commit_ts_us": {TS_US}' in as_json.stdout


@pytest.fixture
def shop(tmp_path: Path) -> Callable[..., Result]:
    """Runs `cdc log …` over two tables: position 1 to 6, each a commit of its own, one second after the other."""
    writer = EmbeddedLogWriter(tmp_path / "log")
    escape = "a\x1b[2Jb\x9b\u202e"
    changes = [
        (ORDERS, Op.READ, order(1)),
        (ORDERS, Op.INSERT, order(2, escape)),
        (PAIRS, Op.INSERT, {"a": "1", "b": "2", "v": "paid"}),
        (ORDERS, Op.UPDATE, order(1, "paid")),
        (ORDERS, Op.DELETE, order(2)),
        (ORDERS, Op.INSERT, order(3)),
    ]
    for position, (table, op, row) in enumerate(changes, 1):
        writer.append(batch(table, [(op, position, row)]))
        writer.commit(Lsn(position * 10), 1_700_000_000_000_000)
    writer.close()
    config = tmp_path / "cdc.toml"
    config.write_text('[source]\ndsn = "host=h"\n[log]\ndir = "log"\n')

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["--config", str(config), "log", *arguments])

    return run


def positions(result: Result) -> list[int]:
    assert result.exit_code == 0, result.output
    return [int(line.split()[0]) for line in result.stdout.splitlines()]


def test_cat_by_position_lsn_time_and_key(shop: Callable[..., Result]) -> None:
    assert positions(shop("cat")) == [1, 2, 3, 4, 5, 6]
    assert positions(shop("cat", "public.orders", "--from", "2", "--to", "4")) == [2, 4]
    assert positions(shop("cat", "--from", "0/28", "--to", "0/32")) == [4, 5]
    assert positions(shop("cat", "--from", "2023-11-14T22:13:20Z")) == [1, 2, 3, 4, 5, 6]
    assert positions(shop("cat", "--from", "2023-11-14T22:13:21")) == []
    assert positions(shop("cat", "public.orders", "--key", "1")) == [1, 4]
    assert positions(shop("cat", "public.pairs", "--key", "b=2", "--key", "a=1")) == [3]
    assert positions(shop("cat", "public.orders", "--at", "4")) == [2, 4]
    assert positions(shop("cat", "public.orders", "--at", "0/32")) == [4]


def test_a_key_that_was_not_found_is_said(shop: Callable[..., Result]) -> None:
    said = shop("cat", "public.orders", "--key", "4711")
    assert (said.exit_code, said.stdout) == (0, "")
    assert said.stderr == "no change of this key in what was searched\n"
    assert shop("cat", "public.orders", "--key", "1").stderr == ""


def test_no_value_acts_on_the_terminal(shop: Callable[..., Result]) -> None:
    for arguments in (
        ["cat"],
        ["cat", "--format", "json"],
        ["grep", "b", "public.orders", "--json"],
        ["diff", "public.orders", "--from", "0", "--to", "2"],
    ):
        said = shop(*arguments)
        assert said.exit_code == 0, said.output
        assert "2Jb" in said.stdout, "the value is shown"
        assert not set(said.stdout) & {"\x1b", "\x9b", "\u202e"}


def test_cat_as_envelopes(shop: Callable[..., Result]) -> None:
    found = [json.loads(line)["payload"] for line in shop("cat", "--format", "json").stdout.splitlines()]
    assert [(one["op"], one["source"]["table"], one["source"]["position"]) for one in found] == [
        ("r", "orders", 1),
        ("c", "orders", 2),
        ("c", "pairs", 3),
        ("u", "orders", 4),
        ("d", "orders", 5),
        ("c", "orders", 6),
    ]
    assert found[1]["after"]["status"] == "a\x1b[2Jb\x9b\u202e"
    assert shop("cat", "--json").stdout == shop("cat", "--format", "json").stdout


def test_envelopes_show_the_row_before_where_the_log_has_it(shop: Callable[..., Result], tmp_path: Path) -> None:
    full = replace(ORDERS, identity="f")
    writer = EmbeddedLogWriter(tmp_path / "log")
    writer.append(schema(full, 7, Kind.ALTERED))
    changes = batch(full, [(Op.UPDATE, 8, order(3, "paid")), (Op.DELETE, 9, order(3))])
    writer.append(replacing(changes, full, [order(3), order(3, "paid")]))
    writer.commit(Lsn(90), 1_700_000_000_000_000)
    writer.close()

    def before(*arguments: str) -> dict[int, str | None]:
        said = shop(*arguments)
        assert said.exit_code == 0, said.output
        found = [json.loads(line)["payload"] for line in said.stdout.splitlines()]
        return {one["source"]["position"]: (one["before"] or {}).get("status") for one in found if one["op"] in "ud"}

    assert before("cat", "--json") == {4: None, 5: None, 8: "new", 9: "paid"}
    assert before("cat", "public.orders", "--key", "3", "--json") == {8: "new", 9: "paid"}
    assert before("grep", "paid", "public.orders", "--json") == {4: None, 8: "new"}
    export = ("export", "public.orders", "-", "--format", "debezium")
    assert before(*export, "--no-before") == {4: None, 5: None, 8: "new", 9: "paid"}
    assert before(*export) == {4: "new", 5: "a\x1b[2Jb\x9b\u202e", 8: "new", 9: "paid"}
    assert "_cdc_before" not in shop("cat").stdout + shop("export", "public.orders", "-", "--format", "ndjson").stdout
    assert shop("export", "public.orders", str(tmp_path / "orders.parquet")).exit_code == 0
    assert "_cdc_before" not in pq.read_schema(tmp_path / "orders.parquet").names


def test_grep(shop: Callable[..., Result]) -> None:
    assert positions(shop("grep", "paid")) == [3, 4]
    assert positions(shop("grep", "paid", "--column", "status")) == [4]
    assert positions(shop("grep", "(?i)^PAID$", "-E", "public.pairs")) == [3]
    assert shop("grep", "nowhere").exit_code == 1
    assert shop("grep", "x", "--column", "nothing").exit_code != 0


def test_diff(shop: Callable[..., Result]) -> None:
    said = shop("diff", "public.orders", "--from", "2")
    assert said.exit_code == 0
    lines = said.stdout.splitlines()
    assert lines[0] == "~ id=1 status='new' → 'paid'"
    assert lines[1].startswith("+ id=3 ")
    assert lines[2].startswith("- id=2 ")
    assert said.stderr.splitlines()[-1] == "1 inserted, 1 updated, 1 deleted"
    as_json = [json.loads(line)["payload"] for line in shop("diff", "public.orders", "--from", "2", "--json").stdout.splitlines()]
    assert [(one["op"], one["before"] is None, one["after"] is None) for one in as_json] == [
        ("u", False, False),
        ("c", True, False),
        ("d", False, True),
    ]
    assert shop("diff", "public.orders", "--from", "6").stdout == ""


def test_export(shop: Callable[..., Result], tmp_path: Path) -> None:
    assert shop("export", "public.orders", str(tmp_path / "o.parquet")).exit_code == 0
    assert pq.read_table(tmp_path / "o.parquet").column("_cdc_position").to_pylist() == [1, 2, 4, 5, 6]
    assert shop("export", "public.orders", str(tmp_path / "rows.parquet"), "--at", "5").exit_code == 0
    assert pq.read_table(tmp_path / "rows.parquet").column("id").to_pylist() == [1]
    flat = shop("export", "public.orders", "-", "--format", "ndjson", "--from", "5")
    assert [json.loads(line)["_cdc_op"] for line in flat.stdout.splitlines()] == ["d", "c"]
    full = [
        json.loads(line)["payload"] for line in shop("export", "public.orders", "-", "--format", "debezium").stdout.splitlines()
    ]
    assert (full[2]["before"]["status"], full[2]["after"]["status"]) == ("new", "paid")
    assert full[3]["before"]["status"].startswith("a")
    bare = [
        json.loads(line)["payload"]
        for line in shop("export", "public.orders", "-", "--format", "debezium", "--no-before").stdout.splitlines()
    ]
    assert (bare[2]["before"], bare[3]["before"]) == (None, {"id": 2})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["cat", "public.nothing"], "the log has no change of public.nothing"),
        (["cat", "--key", "1"], "are of one table"),
        (["cat", "public.orders", "--at", "2", "--from", "1"], "--at asks for rows"),
        (["cat", "--from", "5", "--to", "2"], "2 lies before 5"),
        (["cat", "--to", "99"], "the log ends at position 6"),
        (["diff", "public.orders", "--from", "5", "--to", "2"], "2 lies before 5"),
        (["export", "public.orders", "out.csv"], "does not say its format"),
        (["export", "public.orders", "-", "--format", "parquet"], "cannot be written to standard output"),
    ],
)
def test_what_is_wrong_is_said(shop: Callable[..., Result], arguments: list[str], says: str) -> None:
    result = shop(*arguments)
    assert isinstance(result.exception, ConfigError)
    assert says in str(result.exception)
    assert result.exception.hint


@pytest.mark.parametrize("file", [".", "/", "", "..", "log"])
def test_a_folder_is_not_written_to(
    shop: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    result = shop("export", "public.orders", file, "--format", "ndjson")
    assert isinstance(result.exception, ConfigError)
    assert result.exception.line() == f"{Path(file)} is a folder → name a file in it"
    assert sorted(tmp_path.iterdir()) == before


def test_there_is_no_log(tmp_path: Path) -> None:
    config = tmp_path / "cdc.toml"
    config.write_text('[source]\ndsn = "host=h"\n[log]\ndir = "log"\n')
    result = CliRunner().invoke(app, ["--config", str(config), "log", "cat"])
    assert isinstance(result.exception, ConfigError)
    assert "there is no log yet" in str(result.exception)


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize("verb", [["cat"], ["cat", "--json"], ["grep", "new"]])
def test_a_reader_that_leaves_is_no_failure(verb: list[str], tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "cdc", "--config", str(tmp_path / "cdc.toml"), "log", *verb]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, timeout=60)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (0, b"")


@pytest.fixture
def rewritten(tmp_path: Path) -> Path:
    """A configuration whose log has one row, changed again and again, in segments that are sealed; and another that was deleted long ago."""
    writer = EmbeddedLogWriter(tmp_path / "log", segment_bytes=4096)
    writer.append(batch(ORDERS, [(Op.INSERT, 1, order(2)), (Op.DELETE, 2, order(2))]))
    for position in range(3, 200):
        writer.append(batch(ORDERS, [(Op.UPDATE, position, order(1, "again"))]))
        writer.commit(Lsn(position), 1_700_000_000_000_000 + position)
    writer.drain_seals()
    writer.close()
    config = tmp_path / "cdc.toml"
    config.write_text(
        '[source]\ndsn = "host=h"\n[log]\ndir = "log"\nsegment_bytes = 4096\ncleanup = "compact"\nhistory_hours = 0\npin_hours = 0\nreserve_mb = 0\n'
    )
    return config


def test_compact_drops_what_was_superseded_and_stat_says_from_where_on_the_log_is_whole(rewritten: Path) -> None:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, ["--config", str(rewritten), "log", *arguments])

    assert "public.orders: compact, 199 changes, whole\n" in run("stat").stdout
    done = run("compact")
    assert done.exit_code == 0, done.output
    dropped = re.search(r"^public\.orders: (\d+) of (\d+) changes were superseded; ", done.stdout, re.MULTILINE)
    assert dropped is not None
    assert int(dropped[1]) == int(dropped[2]) - 2 > 100, "one row is left of all closed segments, and a DELETE"
    (kept,) = json.loads(run("stat", "--json").stdout)["kept"]
    assert kept["rows"] == 199 - int(dropped[1])
    assert kept["clean_from"] > 100
    found = run("cat", "public.orders")
    assert len(found.stdout.splitlines()) == kept["rows"]


def test_what_is_kept_whole_is_not_compacted_and_whoever_lags_is_named(rewritten: Path) -> None:
    text = rewritten.read_text()
    rewritten.write_text(text + '[log.tables."public.orders"]\ncleanup = "keep"\n')
    said = CliRunner().invoke(app, ["--config", str(rewritten), "log", "compact", "public.orders"])
    assert isinstance(said.exception, ConfigError)
    assert "kept whole" in str(said.exception)
    rewritten.write_text(text.replace("pin_hours = 0", "pin_hours = 9e6") + '[stores.console]\nkind = "console"\n')
    said = CliRunner().invoke(app, ["--config", str(rewritten), "log", "compact"])
    assert "public.orders: 0 of 0 changes" in said.stdout, said.output
    assert "held back by console (at 0)" in CliRunner().invoke(app, ["--config", str(rewritten), "log", "stat"]).stdout


def test_a_captured_table_without_a_change_is_listed(shop: Callable[..., Result], tmp_path: Path) -> None:
    def known(oid: int, name: str, **more: Any) -> Facts:
        columns = (FactColumn(1, "id", INT8, -1, "bigint", "", False, "1"),)
        return Facts(oid, "public", name, False, "d", columns, (1,), {}, publishing=Publishing(True), **more)

    facts = [
        known(1, "empty"),
        known(2, "orders"),
        known(3, "part", attached=True),
        replace(known(4, "gone"), publishing=Publishing(False)),
    ]
    save_facts(tmp_path / "log", {one.oid: one for one in facts})
    said = shop("ls").stdout.splitlines()
    assert [line.split()[0] for line in said] == ["public.empty", "public.orders", "public.pairs"]
    assert said[0] == "public.empty rows=0 bytes=0 disk_bytes=0 segments=0 sealed=0 first=0 last=0"
    listed = json.loads(shop("ls", "--json").stdout)
    assert listed[0].keys() == listed[1].keys()


def test_names_cannot_be_taken_for_anything_else(tmp_path: Path) -> None:
    """As any client of the database can make them."""
    odd = 'a=1 x\n7 0/46 c "b'
    table = Table(
        99,
        "public",
        "t x='1'\u202e",
        (Column("id", INT8, key=True, attnum=1), Column(odd, TEXT, attnum=2), Column("größe", TEXT, attnum=3)),
    )
    writer = EmbeddedLogWriter(tmp_path / "log")
    writer.append(batch(table, [(Op.INSERT, 1, {"id": "1", odd: "v 'w", "größe": "xl"})]))
    writer.append(batch(table, [(Op.UPDATE, 2, {"id": "1", odd: "other", "größe": "xl"})]))
    writer.commit(Lsn(10), 1)
    writer.close()
    config = tmp_path / "cdc.toml"
    config.write_text('[source]\ndsn = "host=h"\n[log]\ndir = "log"\n')

    def lines(*arguments: str) -> list[str]:
        said = CliRunner().invoke(app, ["--config", str(config), "log", *arguments])
        assert said.exit_code == 0, said.output
        return said.stdout.splitlines()

    first, _ = lines("cat")
    position, _, op, rest = first.split(" ", 3)
    assert (position, op) == ("1", "c")
    topic = repr(f"public.{table.name}")
    assert rest == f"{topic} id=1 {odd!r}=\"v 'w\" größe='xl'"
    assert lines("ls")[0].startswith(f"{topic} rows=2 ")
    assert lines("diff", f"public.{table.name}", "--from", "1")[0] == f"~ id=1 {odd!r}=\"v 'w\" → 'other'"


def test_compacting_makes_no_log(tmp_path: Path) -> None:
    config = tmp_path / "cdc.toml"
    config.write_text('[source]\ndsn = "host=h"\n[log]\ndir = "log"\n')
    said = CliRunner().invoke(app, ["--config", str(config), "log", "compact"])
    assert isinstance(said.exception, ConfigError)
    assert "there is no log in" in str(said.exception)
    assert not (tmp_path / "log").exists()
