"""Whole tables as an audit reads them out of their files; that Spark reads the same is in tests/integration/spark."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdc.errors import StoreError
from cdc.model.batch import Op
from cdc.model.topic import TopicSchema
from sinks.warehouse import datafiles
from sinks.warehouse.columns import IcebergField, arrow_schema, first_schema, parse_schema, to_rows
from sinks.warehouse.disk import refuse_lacking
from sinks.warehouse.owncolumns import OwnFields
from sinks.warehouse.storage import LOCAL
from sinks.warehouse.tables import refuse_missing
from sinks.warehouse.tablescan import live_rows
from tests.contract.rows import ORDERS, Row, batch, order

SCHEMA = TopicSchema.of(ORDERS)
FIELDS = parse_schema(first_schema(SCHEMA))


def written(folder: Path, rows: Sequence[Row], fields: tuple[IcebergField, ...] = FIELDS) -> str:
    """A data file of these rows."""
    changes = batch(ORDERS, [(Op.INSERT, number, row) for number, row in enumerate(rows, 1)])
    shaped = to_rows(changes, SCHEMA, arrow_schema(fields))
    return datafiles.write_table(datafiles.Folder(str(folder), "test"), pa.Table.from_batches([shaped])).path


def place_of(files: dict[str, tuple[int, list[int]]], fields: tuple[IcebergField, ...] = FIELDS) -> Any:
    """A table of these files. files: path → how many rows it has as the table says, and which of them are gone."""
    live = {
        path: SimpleNamespace(path=path, file=SimpleNamespace(rows=rows), positions=gone) for path, (rows, gone) in files.items()
    }
    return SimpleNamespace(
        folder=SimpleNamespace(storage=LOCAL),
        own=OwnFields(),
        iceberg=SimpleNamespace(fields=fields),
        live=lambda: live,
        gone=lambda one: np.array(one.positions, np.int64),
    )


def read(files: dict[str, tuple[int, list[int]]], fields: tuple[IcebergField, ...] = FIELDS) -> list[Row]:
    return [row for part in live_rows(place_of(files, fields), SCHEMA) for row in part.to_pylist()]


def test_every_row_comes_once_but_those_that_are_gone(tmp_path: Path, seed: int) -> None:
    chance = np.random.default_rng(seed)
    rows = [order(number, f"s{number}") for number in range(2 * datafiles._PIECE_ROWS + 3)]
    edges = [0, datafiles._PIECE_ROWS - 1, datafiles._PIECE_ROWS, 2 * datafiles._PIECE_ROWS - 1, len(rows) - 1]
    gone = sorted({*edges, *chance.integers(0, len(rows), 500).tolist()})
    whole, holed, empty = (written(tmp_path, some) for some in (rows[:5], rows, rows[:2]))
    kept = [row for number, row in enumerate(rows) if number not in set(gone)]
    assert read({whole: (5, []), holed: (len(rows), gone), empty: (2, [0, 1])}) == [*rows[:5], *kept]


def test_what_columns_cannot_hold_stands_in_its_row(tmp_path: Path) -> None:
    rows = [order(1, amount="NaN"), order(2, created_at="infinity"), order(3, note=None), order(4, amount="-0.01")]
    assert read({written(tmp_path, rows): (4, [2])}) == [rows[0], rows[1], rows[3]]


def test_columns_are_found_by_their_ids_in_files_of_any_age(tmp_path: Path) -> None:
    """One was renamed since, one came later, and one has become wider."""
    former = tuple(
        IcebergField(one.id, "was_status" if one.name == "status" else one.name, "int" if one.name == "customer_id" else one.kind)
        for one in FIELDS
        if one.name != "note"
    )
    folder, table = datafiles.Folder(str(tmp_path), "test"), arrow_schema(former)
    changes = to_rows(batch(ORDERS, [(Op.INSERT, 1, order(1))]), SCHEMA, arrow_schema(FIELDS))
    columns = [changes.column(one.name if one.name != "was_status" else "status").cast(one.type) for one in table]
    path = datafiles.write_table(folder, pa.Table.from_arrays(columns, schema=table)).path
    assert read({path: (1, [])}) == [order(1, note=None)]


def test_rows_that_are_wide_are_read_few_at_a_time(tmp_path: Path) -> None:
    wide = [order(number, note=np.random.default_rng(number).bytes(100_000).hex()) for number in range(100)]
    sizes = [part.num_rows for part in live_rows(place_of({written(tmp_path, wide): (100, [])}), SCHEMA)]
    assert sum(sizes) == 100
    assert max(sizes) * 200_000 <= 2 * datafiles._PIECE_BYTES


def test_a_file_with_other_rows_than_the_table_says_is_damaged(tmp_path: Path) -> None:
    path = written(tmp_path, [order(1), order(2)])
    with pytest.raises(StoreError, match=f"a file of the warehouse is damaged: .*{Path(path).name}") as refused:
        read({path: (3, [])})
    assert not refused.value.retryable


def test_a_file_that_cannot_be_unpacked_is_damaged_and_its_values_stay_unsaid(tmp_path: Path) -> None:
    path = Path(written(tmp_path, [order(number, note="canary" * 50) for number in range(3000)]))
    column = pq.ParquetFile(path).metadata.row_group(0).column(4)
    content = bytearray(path.read_bytes())
    first = column.dictionary_page_offset or column.data_page_offset
    content[first : first + 40] = b"\xff" * 40
    path.write_bytes(content)
    with pytest.raises(StoreError, match="a file of the warehouse is damaged") as refused:
        read({str(path): (3000, [])})
    assert "canary" not in refused.value.line()
    assert not refused.value.retryable


def test_a_file_that_is_gone_is_named_with_what_helps(tmp_path: Path) -> None:
    path = written(tmp_path, [order(1)])
    Path(path).unlink()
    with pytest.raises(FileNotFoundError) as raised:
        read({path: (1, [])})
    assert raised.value.errno == errno.ENOENT
    table = SimpleNamespace(refuse_lacking=partial(refuse_lacking, "public.orders", tmp_path))
    place: Any = SimpleNamespace(iceberg=table, look_again=lambda: None, missing=lambda: "0001.parquet")
    with pytest.raises(StoreError, match=r"public\.orders lacks a file that it needs: 0001\.parquet") as refused:
        refuse_missing(place)
    assert "--rebuild" in (refused.value.hint or "")
    assert not refused.value.retryable


def test_a_table_that_has_all_its_files_lacks_none() -> None:
    missing = iter(["0001.parquet", None])
    refuse_missing(SimpleNamespace(missing=lambda: next(missing), look_again=lambda: None))  # type: ignore[arg-type]
    assert next(missing, "asked twice") == "asked twice"
