from __future__ import annotations

import random

import pytest

from cdc.model.pgtypes import INT8, TEXT
from cdc.model.table import Column, Table
from snapshots.catalog import SourceTable
from snapshots.plan import LAST_PAGE, RANGE_BYTES, KeyList, MissingKeys, PageRange, Pages, lock, merged, range_pages

TABLE = Table(1, "s", 'o"dd', (Column("a", INT8, key=True), Column("b", TEXT, key=True), Column("v", TEXT)))
FROM = 'COPY (SELECT "a", "b", "v" FROM ONLY "s"."o""dd" WHERE '


def source(
    *, partitioned: bool = False, row_filter: str | None = None, rows: int = 0, size: int = 0, pages: int = 0
) -> SourceTable:
    return SourceTable(TABLE, ("b", "a"), partitioned, row_filter, rows, size, pages)


def test_pages() -> None:
    assert PageRange(3, 9).query(source()) == FROM + "ctid >= '(3,0)' AND ctid < '(9,0)') TO STDOUT"
    assert PageRange(3, LAST_PAGE).query(source()) == FROM + "ctid >= '(3,0)') TO STDOUT"
    assert PageRange(3, LAST_PAGE).query(source(), binary=True) == FROM + "ctid >= '(3,0)') TO STDOUT (FORMAT binary)"


def test_row_filter_partitions_and_a_condition() -> None:
    query = PageRange(0, 5, "v = 'x' -- why").query(source(partitioned=True, row_filter="(v IS NOT NULL)"))
    assert query.endswith(
        """FROM "s"."o""dd" WHERE ctid >= '(0,0)' AND ctid < '(5,0)' AND (\nv = 'x' -- why\n) AND ((v IS NOT NULL))) TO STDOUT"""
    )
    assert lock(source(partitioned=True)) == 'LOCK TABLE "s"."o""dd" IN ACCESS SHARE MODE'


def test_keys() -> None:
    keys = [("it's \\", "1"), ("y", "2")]
    assert KeyList(keys).query(source()) == FROM + """("b", "a") IN ((E'it''s \\\\', '1'), ('y', '2'))) TO STDOUT"""
    assert KeyList(keys).query(source(), binary=True) == KeyList(keys).query(source()) + " (FORMAT binary)"
    missing = MissingKeys(keys, ("text", "bigint")).query(source(row_filter="v > ''"))
    assert '"a", "b", NULL FROM' in missing
    assert 'given."b"::text AS "b", given."a"::bigint AS "a"' in missing
    assert """WHERE (v > '')""" in missing
    assert """AND ROW(present."b", present."a")::text = ROW(wanted."b", wanted."a")::text""" in missing


@pytest.mark.parametrize("attempt", range(20))
def test_every_page_is_claimed_once_wherever_it_was_left(seed: int, attempt: int) -> None:
    chance = random.Random(f"{seed}:{attempt}")
    count = chance.choice((0, 1, 7, 100))
    claimed: list[tuple[int, int]] = []
    for _ in range(10):
        pages = Pages(count, claimed)
        for _ in range(chance.randint(0, 5)):
            got = pages.claim(chance.randint(1, 30))
            if got is None:
                break
            claimed.append(got)
    while (got := pages.claim(8)) is not None:
        claimed.append(got)
    left = sorted(claimed)
    assert [end for _, end in left[:-1]] == [first for first, _ in left[1:]]
    assert (left[0][0], left[-1][1]) == (0, LAST_PAGE)
    assert Pages(count, claimed).claim(1) is None


def test_rows_behind_the_last_known_page_are_in_the_last_range() -> None:
    pages = Pages(10)
    assert [pages.claim(4), pages.claim(4), pages.claim(4), pages.claim(4)] == [(0, 4), (4, 8), (8, LAST_PAGE), None]


def test_merged() -> None:
    assert merged([(4, 6), (0, 2), (2, 4), (9, 10), (9, 12)]) == ((0, 6), (9, 12))


def test_ranges_are_as_long_as_rows_bytes_workers_and_rate_allow() -> None:
    assert range_pages(source(), 50_000, 1, None) >= 1
    million = source(rows=1_000_000, size=100 * 2**20, pages=12_800)
    assert range_pages(million, 50_000, 1, None) == 10_240
    assert range_pages(million, 50_000, 2, None) == 1_600
    assert range_pages(million, 1_000, 1, 100) == 12
    assert range_pages(source(rows=1000, size=RANGE_BYTES * 10, pages=100), 50_000, 1, None) == 10
