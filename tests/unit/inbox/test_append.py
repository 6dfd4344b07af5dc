"""`cdc log append` where nobody else writes to the log: what it reads of a file, and that nothing
comes twice.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from cdc.commands.app import app
from cdc.errors import ConfigError, HeadwaterError, Stopped, WaitTimeout
from cdc.inbox import fileappend
from cdc.inbox.folder import InboxFolder
from cdc.inbox.groupfile import GroupHeader, encode
from cdc.inbox.rows import read_rows
from cdc.inbox.verdicts import InboxMark
from cdc.log.home import open_reader
from cdc.model.position import Lsn
from cdc.model.table import Table
from tests.unit.inbox.parts import TOPIC, logged, rows, written

Append = Callable[..., Result]


@pytest.fixture
def append(tmp_path: Path) -> Append:
    """`cdc log append` in a folder whose log has begun. What it raises, it raises."""
    with written(tmp_path) as writer:
        writer.commit(Lsn(7), 0)
    config = tmp_path / "cdc.toml"
    config.write_text(f'run_dir = "{tmp_path}/run"\n[source]\ndsn = "postgresql://nobody"\n[log]\ndir = "{tmp_path}/log"\n')

    def run(*arguments: object) -> Result:
        command = ["--config", str(config), "log", "append", *map(str, arguments)]
        return CliRunner().invoke(app, command, standalone_mode=False, catch_exceptions=False)

    return run


def ndjson(folder: Path, *rows: object, name: str = "rows.ndjson") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_rows_of_a_file_are_appended_once(tmp_path: Path, append: Append) -> None:
    file = ndjson(tmp_path, {"id": 1, "text": "a"}, {"id": 2, "text": "b"})
    said = append(TOPIC, file, "--key", "id")
    assert "2 rows are in derived.delays at position 2" in said.output
    again = append(TOPIC, file)
    assert "nothing to append" in again.output
    more = ndjson(tmp_path, {"op": "d", "id": 1}, {"id": 3, "text": "c"}, name="more.ndjson")
    told = json.loads(append(TOPIC, more, "--json").output)
    assert (told["rows"], told["position"], told["producer"]) == (2, 4, "append:derived.delays")
    assert logged(tmp_path) == [(1, "u", 1, "a"), (2, "u", 2, "b"), (3, "d", 1, None), (4, "u", 3, "c")]
    assert json.loads(append(TOPIC, more, "--from", told["mark"], "--json").output)["position"] == 6
    with pytest.raises(ConfigError, match="mark of this producer is"):
        append(TOPIC, file, "--from", told["mark"])


def test_a_large_file_is_several_groups_and_goes_on_where_it_ended(
    tmp_path: Path, append: Append, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = ndjson(tmp_path, *({"id": number, "text": "x" * 20} for number in range(100)))
    monkeypatch.setattr(fileappend, "MAX_GROUP_BYTES", 2500)
    given, real = 0, fileappend.Handover.give_encoded

    def fails_later(*arguments: Any) -> Any:
        nonlocal given
        given += 1
        if given == 4:
            raise HeadwaterError("the command ends here")
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(fileappend.Handover, "give_encoded", fails_later)
        with pytest.raises(HeadwaterError, match="ends here"):
            append(TOPIC, file, "--key", "id")
    assert 0 < len(logged(tmp_path)) < 100
    append(TOPIC, file, "--key", "id")
    assert [one for _, _, one, _ in logged(tmp_path)] == list(range(100))


def test_a_producer_of_another_program_is_left_alone(tmp_path: Path, append: Append) -> None:
    file = ndjson(tmp_path, {"id": 1})
    with pytest.raises(ConfigError, match="is new"):
        append(TOPIC, file)
    with pytest.raises(HeadwaterError, match=r"source\.tables selects"):
        append("public.delays", file, "--key", "id")
    with pytest.raises(ConfigError, match="topic's name"):
        append("delays", file, "--key", "id")
    with pytest.raises(ConfigError, match="producer's name"):
        append(TOPIC, file, "--key", "id", "--producer", "a b")
    append(TOPIC, file, "--key", "id")
    with pytest.raises(HeadwaterError, match="is brought by"):
        append(TOPIC, file, "--producer", "other")
    assert len(logged(tmp_path)) == 1


def test_a_writer_that_does_not_answer_is_waited_for_until_the_timeout(tmp_path: Path, append: Append) -> None:
    file = ndjson(tmp_path, {"id": 1})
    with written(tmp_path), pytest.raises(WaitTimeout, match="waits in the inbox") as late:
        append(TOPIC, file, "--key", "id", "--timeout", 0)
    assert late.value.exit_code == 3
    assert "1 rows are in" in append(TOPIC, file, "--key", "id").output
    assert len(logged(tmp_path)) == 1


def test_a_stopped_producer_says_so_until_it_is_resumed(tmp_path: Path, append: Append) -> None:
    file = ndjson(tmp_path, {"id": 1})
    append(TOPIC, file, "--key", "id")
    with closing(open_reader(tmp_path / "log")) as reader:
        mark = InboxMark.decode(reader.marks()["append:derived.delays"])
    folder = InboxFolder(tmp_path / "log")
    header = GroupHeader("append:derived.delays", "", mark.to, TOPIC, ("id",), 1)
    folder.hand_over(header.producer, mark.epoch, 7, encode(header, rows(2)))
    with pytest.raises(Stopped, match="INBOX_CONFLICT") as stopped:
        append(TOPIC, file)
    assert stopped.value.exit_code == 4
    command = stopped.value.hint.rpartition("cdc ")[2] if stopped.value.hint else ""
    assert command == "resume INBOX_CONFLICT:inbox-append:derived.delays"
    with pytest.raises(Stopped):
        append(TOPIC, file)
    config = ["--config", str(tmp_path / "cdc.toml")]
    assert CliRunner().invoke(app, [*config, *command.split()]).exit_code == 0
    assert "nothing to append" in append(TOPIC, file).output
    assert [one for _, _, one, _ in logged(tmp_path)] == [1]


def known(folder: Path) -> Table | None:
    with closing(open_reader(folder / "log")) as reader:
        return next((topic.table for topic in reader.topics() if topic.name == TOPIC), None)


def types(folder: Path) -> dict[str, int]:
    table = known(folder)
    assert table is not None
    return {column.name: column.type_oid for column in table.columns}


def test_types_of_ndjson(tmp_path: Path, append: Append) -> None:
    rows = [
        {"id": "a", "b": True, "i": 1, "f": 1, "t": "x", "j": {"deep": [1]}, "mixed": [1], "n": None},
        {"id": "b", "f": 0.5, "mixed": "text"},
    ]
    append(TOPIC, ndjson(tmp_path, *rows), "--key", "id")
    assert types(tmp_path) == {"id": 25, "b": 16, "i": 20, "f": 701, "t": 25, "j": 3802, "mixed": 3802}
    append(TOPIC, ndjson(tmp_path, {"id": "c", "f": 2, "j": 1, "n": 5, "i": None}, name="more.ndjson"))
    assert types(tmp_path) == {"id": 25, "b": 16, "i": 20, "f": 701, "t": 25, "j": 3802, "mixed": 3802, "n": 20}


def test_types_of_parquet(tmp_path: Path, append: Append) -> None:
    at = datetime(2013, 1, 1, 5, tzinfo=UTC)
    columns = {
        "id": pa.array([1], pa.uint32()),
        "small": pa.array([1], pa.int16()),
        "at": pa.array([at], pa.timestamp("ms", tz="Europe/Berlin")),
        "day": pa.array([at.date()]),
        "cost": pa.array([Decimal("1.50")], pa.decimal128(8, 2)),
        "word": pa.array(["x"]).dictionary_encode(),
        "raw": pa.array([b"\x00"]),
        "list": pa.array([[1, 2]]),
    }
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    append(TOPIC, tmp_path / "rows.parquet", "--key", "id")
    assert types(tmp_path) == {"id": 20, "small": 21, "at": 1184, "day": 1082, "cost": 1700, "word": 25, "raw": 17, "list": 3802}
    append(TOPIC, ndjson(tmp_path, {"id": 2, "at": "2013-01-01T06:00:00Z", "day": "2013-01-02", "cost": "2.25"}))
    with closing(open_reader(tmp_path / "log")) as reader:
        rows = [row for batch in reader.read(TOPIC, 0, reader.head().position) for row in batch.to_pylist()]  # type: ignore[arg-type]
    assert [(row["id"], row["at"].hour, row["day"].day, row["cost"]) for row in rows] == [
        (1, 5, 1, Decimal("1.50")),
        (2, 6, 2, Decimal("2.25")),
    ]
    pq.write_table(pa.table({name: columns[name] for name in ("id", "word")}), tmp_path / "fewer.parquet")
    append(TOPIC, tmp_path / "fewer.parquet")
    assert list(types(tmp_path)) == ["id", "word"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "line 1 is not JSON"),
        ('{"id": 1}\n\n[1]', "line 3 is not an object"),
        ('{"id": NaN}', "line 1 is not JSON"),
        ('{"id": 1, "a": {"b": 12345678901234567.89}}', "line 1 has a number that double precision does not hold exactly"),
        ('{"id": 1}\n{"id": 2, "a": 0.1000000000000000000001}', "line 2 has a number that double precision"),
        ('{"id": 1, "a": 1e400}', "line 1 has a number that double precision"),
        ('{"id": 1, "a": 1e-400}', "line 1 has a number that double precision"),
        ('{"id": 1, "a": 1e-99999999999999999999}', "line 1 has a number that double precision"),
        ("[" * 100_000, "line 1 is not JSON"),
        ('{"id": 1, "op": "x"}', 'line 1: op is "u" or "d"'),
        ('{"id": 1, "op": ["u"]}', 'line 1: op is "u" or "d"'),
        ('{"id": 1, "op": "d", "text": "a"}', "the key and nothing else"),
        ('{"text": "a"}', "line 1 has no id"),
        ('{"id": null}', "line 1 has no id"),
        ('{"id": 1}\n{"id": 1}', "lines 1 and 2 have the same key"),
        ('{"id": 1, "a": 1}\n{"id": 2, "a": "x"}', "column a has values of several kinds"),
        ('{"id": 1, "a": 9223372036854775808}', "column a holds something that is not bigint"),
        ('{"id": 1, "a": 9007199254740993}\n{"id": 2, "a": 0.5}', "column a holds something that is not double precision"),
        ('{"id": 1, "a": "\\ud800"}', "column a holds something that is not text"),
        ('{"id": 0.5}', "column id cannot be in the key"),
        ('{"id": 1, "_cdc_lsn": 1}', "a name that Headwater uses itself"),
        ("PAR1 and nothing behind it", "cannot be read"),
    ],
)
def test_files_that_cannot_be_read_name_the_line_and_no_value(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "rows"
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        read_rows(path, TOPIC, ["id"], None)
    assert why in str(refused.value)
