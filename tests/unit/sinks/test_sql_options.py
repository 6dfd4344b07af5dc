"""The options of a store of kind sql, what docs/stores.md shows of them, and the pure parts beneath: names, types, COPY's lines."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pyarrow as pa
import pytest
from pydantic import ValidationError

from cdc.errors import ConfigError
from cdc.model.topic import TopicSchema
from cdc.settings.file import SettingsError, load
from sinks import make_sink, options_model
from sinks.sql.names import TableSign, TargetPlace, place_of, quoted
from sinks.sql.postgres.copylines import copy_lines, rows_of
from sinks.sql.postgres.kinds import column_type
from tests.contract.rows import ORDERS, TYPES

PAGE = (Path(__file__).resolve().parents[3] / "docs/stores.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## How do I shape tables in a SQL database?")[2].partition("\n## ")[0]


def test_the_page_shows_a_store_that_there_can_be() -> None:
    [given] = tomllib.loads(SECTION.partition("```toml\n")[2].partition("```")[0])["stores"].values()
    options = options_model("sql").model_validate(given)
    sink = make_sink("reports", options)
    sink.foresee([TopicSchema.of(ORDERS)])
    assert place_of(TopicSchema.of(ORDERS), given["namespace"]) == TargetPlace("copy_public", "orders")
    assert "copy_public.orders" in SECTION


def test_a_file_is_named_by_its_path() -> None:
    for url in ("duckdb:///data/my%20reports.duckdb", "duckdb:////data/my reports.duckdb"):
        options = options_model("sql").model_validate({"kind": "sql", "url": url})
        assert options.disk_path == Path("/data"), "where `cdc doctor` looks for room"


HISTORY = """
[source]
dsn = "postgresql://cdc@db.internal/shop"
[log]
{log}
[stores.reports]
kind = "sql"
url = "duckdb:///data/reports.duckdb"
[stores.reports.tables."{pattern}"]
history = true
"""


@pytest.mark.parametrize(
    ("log", "pattern"),
    [
        ('cleanup = "compact"', "public.orders"),
        ('cleanup = "delete"\nretain_hours = 1', "public.*"),
        ('[log.tables."public.o*"]\ncleanup = "compact"', "public.orders"),
        ('[log.tables."public.orders"]\ncleanup = "compact"', "public.*"),
    ],
)
def test_a_history_of_what_the_log_lets_go_is_refused_by_its_key(tmp_path: Path, log: str, pattern: str) -> None:
    file = tmp_path / "cdc.toml"
    file.write_text(HISTORY.format(log=log, pattern=pattern), encoding="utf-8")
    file.chmod(0o600)
    with pytest.raises(SettingsError) as refused:
        load(file, options_model)
    (problem,) = refused.value.problems
    assert problem.line().startswith(f"{file}: stores.reports.tables.")
    assert ".history: needs every change of" in problem.line()
    assert "[log.tables." in (problem.hint or "")


@pytest.mark.parametrize(
    ("log", "pattern"),
    [("", "public.orders"), ('cleanup = "compact"\n[log.tables."public.orders"]\ncleanup = "keep"', "public.orders")],
)
def test_a_history_of_what_the_log_keeps_is_taken(tmp_path: Path, log: str, pattern: str) -> None:
    file = tmp_path / "cdc.toml"
    file.write_text(HISTORY.format(log=log, pattern=pattern), encoding="utf-8")
    file.chmod(0o600)
    assert load(file, options_model).stores["reports"].kept_whole == {"public.orders": "history"}


def of_days(tmp_path: Path, log: str, days: str = "30", pattern: str = "public.orders") -> str | None:
    """Loads it; the refusal and its hint, if any."""
    file = tmp_path / "cdc.toml"
    file.write_text(HISTORY.format(log=log, pattern=pattern) + f"history_days = {days}\n", encoding="utf-8")
    file.chmod(0o600)
    try:
        load(file, options_model)
    except SettingsError as refused:
        (problem,) = refused.problems
        return f"{problem.line()} | {problem.hint}"
    return None


def test_a_history_of_some_days_takes_a_log_that_is_compacted_a_day_later(tmp_path: Path) -> None:
    assert of_days(tmp_path, "") is None
    assert of_days(tmp_path, 'cleanup = "compact"\nhistory_hours = 744') is None
    assert of_days(tmp_path, 'cleanup = "compact"\nhistory_hours = 36', "0.5") is None
    assert of_days(tmp_path, 'history_hours = 0\n[log.tables."public.events"]\ncleanup = "compact"') is None
    said = of_days(tmp_path, 'cleanup = "compact"\nhistory_hours = 743')
    assert said is not None
    assert "stores.reports.tables.public.orders.history_days: needs every change of public.orders for 30 days, and one more" in said
    assert "set history_hours = 744 in [log]" in said
    said = of_days(tmp_path, '[log.tables."public.orders"]\ncleanup = "delete"\nretain_hours = 10000', pattern="public.*")
    assert said is not None
    assert "needs the last change of every row of public.orders, and the log lets it go with its age" in said
    assert 'set cleanup = "compact" in [log.tables."public.orders"] and history_hours = 744' in said
    for days in ("inf", "0", "-1", "nan"):
        assert of_days(tmp_path, 'cleanup = "compact"\nhistory_hours = 10000', days) is not None, days


def test_days_of_a_table_count_for_it_alone(tmp_path: Path) -> None:
    file = tmp_path / "cdc.toml"
    text = HISTORY.format(log="{log}", pattern="public.*") + '[stores.reports.tables."public.orders"]\nhistory_days = 3\n'
    compacted = 'history_hours = 96\n[log.tables."public.orders"]\ncleanup = "compact"'
    for log, taken in ((compacted, True), (f'{compacted}\n[log.tables."public.others"]\ncleanup = "compact"', False)):
        file.write_text(text.format(log=log), encoding="utf-8")
        file.chmod(0o600)
        if taken:
            assert load(file, options_model).stores["reports"].changes_needed("public.orders") == 3
        else:
            with pytest.raises(SettingsError) as refused:
                load(file, options_model)
            (problem,) = refused.value.problems
            assert "history: needs every change of public.others" in problem.line()
            assert "history_days" in (problem.hint or "")
    alone = {"kind": "sql", "url": "postgresql://x/y", "tables": {"public.orders": {"history_days": 3}}}
    with pytest.raises(ValidationError, match="how long versions stay, and there are none: set history = true"):
        options_model("sql").model_validate(alone)


@pytest.mark.parametrize(
    "given",
    [
        {"url": "duckdb://canary"},
        {"url": "duckdb:///x", "password": "canary"},
        {"url": "mysql://me:canary@x/y"},
        {"url": "canary"},
        {"namespace": "pg_catalog"},
        {"namespace": "{table}"},
        {"namespace": ""},
    ],
)
def test_what_cannot_be_is_refused_without_its_secret(given: dict[str, str]) -> None:
    with pytest.raises(ValidationError) as refused:
        options_model("sql").model_validate({"kind": "sql", "url": "postgresql://x/y", **given})
    assert "canary" not in "".join(error["msg"] for error in refused.value.errors())


def test_two_topics_never_share_a_table() -> None:
    sink = make_sink("reports", options_model("sql").model_validate({"kind": "sql", "url": "postgresql://x/y", "namespace": "all"}))
    with pytest.raises(ConfigError, match=r"public\.orders and other\.orders would both be the table all\.orders"):
        sink.foresee([TopicSchema("public", "orders"), TopicSchema("other", "orders")])
    with pytest.raises(ConfigError, match="63 bytes"):
        sink.foresee([TopicSchema("public", "ä" * 32)])


def test_names_and_signs() -> None:
    assert quoted('a "b" c') == '"a ""b"" c"'
    sign = TableSign("s", 'public."odd" \\', "log")
    assert TableSign.of(sign.text()) == sign
    assert [TableSign.of(text) for text in (None, "", "Headwater: {", "Headwater: 7", "somebody's")] == [None] * 5


def test_types_are_the_source_s_own() -> None:
    kinds = {field.name: column_type(field) for field in TopicSchema.of(TYPES).fields}
    assert (kinds["big"], kinds["money"], kinds["at utc"]) == ("bigint", "numeric", "timestamp with time zone")
    assert (kinds["docb"], kinds["tags"], kinds["uid"], kinds["clock"]) == ("jsonb", "text[]", "uuid", "time without time zone")


def test_lines_come_back_as_they_were() -> None:
    nasty = ["", "\\", "\\N", "a\tb", "\n\r", None, "\\\\t", "ä€\U0001f6eb", "\x01\x0b"] * 50_000
    rows = pa.RecordBatch.from_arrays([pa.array(nasty, pa.utf8()), pa.array(nasty[::-1], pa.utf8())], names=["a", "b"])
    for given in (rows, rows.select(["a"]), rows.slice(3, 5)):
        pieces = list(copy_lines(given))
        assert pa.Table.from_batches(rows_of(pieces, given.schema)).equals(pa.Table.from_batches([given]))
    assert len(list(copy_lines(rows))) > 1
