"""COPY's two formats give the same rows, on real servers."""

from __future__ import annotations

from threading import Event
from typing import Any

import psycopg
import pyarrow as pa
import pytest

import cdc.source.copyout
import snapshots.copy
from cdc.pgvalues.binary import readable
from cdc.source import connect
from snapshots.catalog import SourceTable, load_tables
from snapshots.plan import LAST_PAGE, PageRange

CREATE = r"""
create table t (id bigint primary key, yes bool, small smallint, whole int, near real, far double precision, day date, clock time, rounded time(3),
  local timestamp, at timestamptz, raw bytea, note text, short varchar(20), padded char(5),
  n0 numeric(5,0), n2 numeric(12,2), n5 numeric(6,5), n8 numeric(18,8), n18 numeric(18,18));
insert into t
  select i, i % 3 = 0, i - 1000, i * 1000003 % 2147483647, 1.0 / i, 1e300 / i, date '4000-01-01 BC' + i * 2500, time '00:00' + i * interval '61.7 s',
    time '00:00' + i * interval '61.7 s', timestamp '4000-01-01 BC' + i * interval '2500 days 7.123456 s',
    timestamptz '4000-01-01 BC' + i * interval '2499 days 3.5 s', decode(md5(i::text), 'hex'), repeat('é' || i || E'\t\\\n', i % 50), 'v' || i, 'p',
    i, i * 1234567.89, i / 500.0, i * -1234567.00000891, 1.0 / (i + 1)
  from generate_series(1, 2000) i;
insert into t (id) values (-1);
insert into t select -2, true, -32768, -2147483648, 'NaN', 'NaN', 'infinity', '24:00', '24:00', 'infinity', 'infinity', '', '', '', '', 99999, 'NaN', 'NaN', 'NaN', 'NaN';
insert into t select -3, true, 32767, 2147483647, '-Infinity', '-0', '-infinity', '23:59:59.999999', '00:00', '-infinity', '-infinity', '\xffff', 'PG', 'PG', 'abcde',
  -99999, -9999999999.99, -9.99999, 9999999999.99999999, -0.999999999999999999;
"""


def blocks(
    connection: psycopg.Connection[Any], source: SourceTable, *, binary: bool, first: int, most_rows: int
) -> list[pa.RecordBatch]:
    query = PageRange(first, LAST_PAGE).query(source, binary=binary)
    found = cdc.source.copyout.copy_blocks(connection, query, Event(), most_rows, binary=binary)
    return [snapshots.copy.read_rows(block, source.table) for block in found]


@pytest.mark.parametrize("plain", [True, False])
def test_both_formats_give_the_same_rows(pg_versions: Any, monkeypatch: pytest.MonkeyPatch, plain: bool) -> None:
    """Straight from the socket, and row by row out of libpq as with TLS."""
    monkeypatch.setattr(cdc.source.copyout, "_is_plain", lambda _: plain)
    with pg_versions.connect() as sql:
        sql.execute(CREATE)
        sql.execute("create publication p for table t")
    with connect(pg_versions.unix_dsn) as connection:
        connection.execute("set search_path = ''")
        (source,) = load_tables(connection, ("public.t",), "p")
        assert readable(source.table)
        for most_rows in (2**31, 300):
            text, binary = (
                pa.Table.from_batches(blocks(connection, source, binary=binary, first=0, most_rows=most_rows))
                for binary in (False, True)
            )
            assert text.num_rows == 2003
            for name in text.schema.names:
                assert list(map(repr, binary[name].to_pylist())) == list(map(repr, text[name].to_pylist())), name
        # No row at all; and the connection can be used again.
        assert blocks(connection, source, binary=True, first=2**31, most_rows=9) == []
        assert connection.execute("select 1").fetchone() == (1,)
