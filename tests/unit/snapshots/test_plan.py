from __future__ import annotations

import pytest

from cdc.model.pgtypes import INT8, TEXT
from cdc.model.table import Column, Table
from snapshots.catalog import SourceTable
from snapshots.plan import CHUNK_BYTES, KeyList, KeyRange, PageRange, first_rows, fitting_rows, lock, page_ranges

TABLE = Table(1, "s", 'o"dd', (Column("a", INT8, key=True), Column("b", TEXT, key=True), Column("v", TEXT)))


def source(
    *, partitioned: bool = False, row_filter: str | None = None, rows: int = 0, size: int = 0, pages: int = 0
) -> SourceTable:
    return SourceTable(TABLE, ("b", "a"), partitioned, row_filter, rows, size, pages)


def test_the_first_chunk_and_the_ones_behind_it() -> None:
    columns = 'COPY (SELECT "a", "b", "v" FROM ONLY "s"."o""dd"'
    assert KeyRange(None, 10).query(source()) == columns + ' ORDER BY "b", "a" LIMIT 10) TO STDOUT'
    assert (
        KeyRange(("it's \\", "1"), 10).query(source())
        == columns + """ WHERE ("b", "a") > (E'it''s \\\\', '1') ORDER BY "b", "a" LIMIT 10) TO STDOUT"""
    )


def test_row_filter_and_partitions() -> None:
    query = KeyRange(("x", "1"), 5).query(source(partitioned=True, row_filter="(v IS NOT NULL)"))
    assert query.endswith(
        """FROM "s"."o""dd" WHERE ("b", "a") > ('x', '1') AND ((v IS NOT NULL)) ORDER BY "b", "a" LIMIT 5) TO STDOUT"""
    )
    assert lock(source(partitioned=True)) == 'LOCK TABLE "s"."o""dd" IN ACCESS SHARE MODE'


def test_key_list() -> None:
    assert """WHERE ("b", "a") IN (('x', '1'), ('y', '2')))""" in KeyList([("x", "1"), ("y", "2")]).query(source())


@pytest.mark.parametrize(("pages", "rows"), [(0, 0), (1, 10), (7, 70), (100, 1000), (10_000, 10)])
def test_page_ranges_cover_the_table_and_what_grows_behind_it(pages: int, rows: int) -> None:
    ranges = list(page_ranges(source(pages=pages, rows=rows), 100))
    assert ranges[0].first == 0
    assert ranges[-1].end is None
    assert [one.end for one in ranges[:-1]] == [one.first for one in ranges[1:]]
    assert ranges[-1].first <= max(0, pages - 1)


def test_page_range_query() -> None:
    assert "WHERE ctid >= '(3,0)' AND ctid < '(9,0)'" in PageRange(3, 9).query(source())
    assert PageRange(3, None).query(source()).count("ctid") == 1


def test_wide_rows_make_short_chunks() -> None:
    assert fitting_rows(100 * 10, 10, 50_000) == 50_000
    assert fitting_rows(CHUNK_BYTES * 10, 10, 50_000) == 1
    assert fitting_rows(0, 0, 50_000) == 50_000
    assert first_rows(source(), 50_000) == 2_000
    assert first_rows(source(rows=1000, size=CHUNK_BYTES * 2), 50_000) == 500
