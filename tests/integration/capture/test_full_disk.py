"""A disk that is full where transactions wait for their end: said, nothing confirmed, and gone on with as soon as there is room."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from cdc.ingest import process as capturing
from cdc.report import collector
from cdc.report.collector import gather
from cdc.report.probe import SourceProbe
from cdc.source.slot import read_slot
from tests.integration.capture.running import Capture
from tests.integration.capture.test_large import table

ROOM = "size=64m"


def mount(*arguments: str) -> bool:
    return subprocess.run(["mount", "-t", "tmpfs", *arguments], capture_output=True, check=False).returncode == 0


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    folder.mkdir(parents=True)
    if not mount("-o", f"size={size}", "tmpfs", str(folder)):
        pytest.skip("needs the right to mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.parametrize(
    ("place", "size", "says"),
    [
        ("log/prepared", "64k", "cannot keep a prepared transaction"),
        ("log", "6m", "cannot spool a transaction in progress"),
    ],
)
def test_a_full_disk_is_said_and_waited_for(
    postgres: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, size: str, says: str
) -> None:
    monkeypatch.setattr(capturing, "BACKOFF_S", (0.1,))
    prepared = place == "log/prepared"
    with small_disk(tmp_path / place, size), table(postgres) as connection:
        capture = Capture(postgres.dsn, tmp_path, slot=f"s_{postgres.name}", two_phase=prepared)
        rows = 500 if prepared else 12_000

        def holds(count: int) -> bool:
            return len(capture.rows("public.a")) == count

        def refused() -> bool:
            told = capture.status
            return (
                told.state == "retrying" and f"{says} in {tmp_path}" in (told.error or "") and "No space left" in (told.error or "")
            )

        with capture.running():
            connection.execute("insert into a values (0, 'before')")
            capture.until(lambda: "public.a" in capture.topics() and holds(1), "for the first row")
            connection.execute("begin")
            connection.execute("insert into a select n, repeat('x', 1000) from generate_series(1, %s) n", (rows,))
            end = f"prepare transaction '{postgres.name}'" if prepared else "commit"
            connection.execute(end)
            capture.until(refused, "for the full disk to be told")
            assert (read_slot(connection, f"s_{postgres.name}").confirmed_lsn or 0) <= capture.reader.head().commit_lsn
            assert holds(1)
            assert mount("-o", f"remount,{ROOM}", "tmpfs", str(tmp_path / place))
            if prepared:
                connection.execute(f"commit prepared '{postgres.name}'")
            capture.until(lambda: holds(rows + 1), "for the transaction")
            capture.until(lambda: capture.status.error is None, "for the trouble to be over")


@pytest.mark.parametrize(("what", "width", "rows"), [("the log", 600, 12_000), ("what is remembered of wide rows", 3000, 2400)])
def test_a_full_log_names_its_folder_and_what_helps(
    postgres: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, width: int, rows: int
) -> None:
    """And says nothing else beside it: a hint to start what runs would lead astray."""
    monkeypatch.setattr(capturing, "BACKOFF_S", (0.1,))
    monkeypatch.setattr(collector, "SIZE_S", 0.0)
    with small_disk(tmp_path / "log", "3m"), table(postgres) as connection:
        capture = Capture(postgres.dsn, tmp_path, slot=f"s_{postgres.name}", streaming=False)
        wanted = "No space left on device → free space there"

        def problems() -> tuple[str, ...]:
            with closing(SourceProbe(capture.settings.source.dsn, f"s_{postgres.name}")) as probe:
                return gather(capture.settings, capture.reader, probe).problems

        with capture.running():
            connection.execute("insert into a values (0, 'before')")
            capture.until(lambda: "public.a" in capture.topics() and len(capture.rows("public.a")) == 1, "for the first row")
            for first in range(1, rows, 600):
                connection.execute(
                    "insert into a select n, (select string_agg(md5(n::text || m), '') from generate_series(1, %s::int) m)"
                    " from generate_series(%s::int, %s) n",
                    (width // 32, first, first + 599),
                )
            told: tuple[str, ...] = ()

            def said() -> bool:
                nonlocal told
                told = problems()
                return any(wanted in line and f"cannot write {what} in {tmp_path / 'log'}" in line for line in told)

            capture.until(said, "for the full disk to be told")
            assert not any("cdc run" in line or "Errno" in line for line in told), told
            assert mount("-o", f"remount,{ROOM}", "tmpfs", str(tmp_path / "log"))
            capture.until(lambda: len(capture.rows("public.a")) == rows + 1, "for the rows")
            capture.until(lambda: not problems(), "for the trouble to be over")
