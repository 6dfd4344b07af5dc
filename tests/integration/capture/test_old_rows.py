"""Old rows from real servers: what Postgres sends is what the log had before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from cdc.log.contract import LogReader
from cdc.model.batch import BEFORE, OP, POSITION
from cdc.model.oldrows import without_old_rows
from cdc.model.position import START, Position
from cdc.replay.former import WithFormer, with_former, with_sent
from tests.integration.capture.running import Capture, changes_of
from tests.integration.capture.test_capture import lsn

Found = dict[int, tuple[str, dict[str, str | None] | None]]


class Plain:
    """A log that has no old rows, so that all are looked up."""

    def __init__(self, log: LogReader) -> None:
        self._log = log

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def read(self, *place: Any, old_rows: bool = False) -> Iterator[pa.RecordBatch]:
        return map(without_old_rows, self._log.read(*place, old_rows=old_rows))


def found(answer: Iterator[WithFormer]) -> Found:
    """Position → operation, and the row before where it is known."""
    rows: Found = {}
    for changes, former, known in answer:
        before = [None] * len(changes) if former is None else [row for _, _, row in changes_of(former)]
        heads = zip(changes.column(POSITION).to_pylist(), changes.column(OP).to_pylist(), strict=True)
        for (position, op), row, is_known in zip(heads, before, known.tolist(), strict=True):
            rows[position] = chr(op), row if is_known else None
    return rows


def test_what_postgres_sends_is_what_stood_in_the_log(pg_versions: Any, tmp_path: Path) -> None:
    with pg_versions.connect() as connection:
        connection.execute(
            "create table a (id int primary key, body text, n numeric(12,2), day date, at timestamptz, tags text[], doc jsonb, bytes bytea);"
            "alter table a alter body set storage external; alter table a replica identity full;"
            "insert into a select g, repeat(md5(g::text), 100), g, 'infinity', now(), array[g::text, null], '{\"a\": 1}', '\\x00ff'"
            " from generate_series(1, 9) g;"
            "create table p (id int primary key, v text) partition by range (id);"
            "create table p1 partition of p for values from (0) to (10); create table p2 partition of p for values from (10) to (20);"
            "alter table p replica identity full; alter table p2 replica identity full; insert into p values (1, 'a'), (11, 'a')"
        )
        capture = Capture(pg_versions.dsn, tmp_path)
        with capture.running():
            capture.until_snapshot_done()
            for statement in (
                "update a set n = 'NaN' where id < 4",
                "update a set body = body || 'x', tags = null, day = '0044-03-15 BC' where id < 3",
                "update a set id = id + 100, n = 7 where id in (1, 5)",
                "delete from a where id in (2, 101)",
                "alter table a replica identity default",
                "update a set n = n + 1 where id = 6",
                "alter table a replica identity full",
                "update a set n = n + 1 where id = 6",
                "update p set v = 'b'",
                "update p set id = id + 1",
                "delete from p",
            ):
                connection.execute(statement)
            capture.until_lsn(lsn(connection))
            log, head = capture.reader, capture.reader.head().position
            sent = found(with_sent(log, "public.a", START, head))
            looked_up = found(with_former(Plain(log), "public.a", START, head))  # type: ignore[arg-type]
            assert sent.keys() == looked_up.keys()
            replaced = [position for position, (_, row) in looked_up.items() if row is not None]
            unsent = [position for position in replaced if sent[position][1] is None]
            assert len(unsent) == 1, "the update under the default identity"
            assert len(replaced) == 3 + 2 + 2 + 2 + 1 + 1
            assert {p: row for p, row in sent.items() if p not in unsent} == {
                p: row for p, row in looked_up.items() if p not in unsent
            }
            assert found(with_former(log, "public.a", START, head)) == looked_up
            one = next(iter(with_sent(log, "public.a", Position(unsent[0]), head)))
            assert BEFORE not in one.changes.schema.names
            # One partition sends keys only, and the stream does not say which one a row is of.
            assert all(row is None for _, row in found(with_sent(log, "public.p", START, head)).values())
