"""Which tables a view may read."""

from __future__ import annotations

import pytest

from cdc.derive.netrange import TopicReads
from cdc.errors import Stopped
from cdc.model.pgtypes import INT8, TEXT
from cdc.model.table import Column, Table
from cdc.model.topic import TopicSchema


def _full(*, whole: bool) -> TopicSchema:
    columns = (Column("id", INT8, key=True, attnum=1), Column("name", TEXT, key=whole, attnum=2))
    return TopicSchema.of(Table(16_400, "public", "t", columns, "f"))


def test_a_table_with_a_key_and_full_identity_is_read_by_its_key() -> None:
    reads = TopicReads.of(_full(whole=False), ["name"])
    assert (reads.key, reads.columns) == (("id",), ("id", "name"))


def test_a_table_whose_key_is_the_whole_row_is_refused() -> None:
    with pytest.raises(Stopped, match=r"public\.t has no primary key, so a view cannot tell its rows apart"):
        TopicReads.of(_full(whole=True), ["name"])
