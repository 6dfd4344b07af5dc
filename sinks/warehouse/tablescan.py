"""Every row of a table as its own files have it, for the audit: the files that Iceberg says are live, without the rows that their deletion vectors name.

No Spark job: Iceberg's library lists the files, and Parquet's own reader gives their columns some thousand rows at a time. tests/integration/spark holds
this against what Spark reads, so that an audit sees what every reader of the table sees.

Files are merged and expire while a reader is at them, and one that keeps to a budget may take hours. So whoever reads pins the snapshot (``Scratch.pinned``), whose
files our own upkeep leaves, in this process or another. Where somebody else expires it, or a pin cannot be written, a file is found missing and the reader begins again.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from cdc.model.batch import EXACT
from cdc.model.topic import TopicSchema
from sinks.warehouse import datafiles
from sinks.warehouse.columns import labels, to_text
from sinks.warehouse.place import TablePlace
from sinks.warehouse.tablefiles import unmarked


def live_rows(place: TablePlace, schema: TopicSchema) -> Iterator[pa.RecordBatch]:
    """Every row of the snapshot that ``place`` stands at, as ``sinks.contract.audit_schema(schema)``, but for those
    that are marked as deleted.

    Raises StoreError where a file is damaged, and OSError as the disk does: FileNotFoundError, too, where a file went meanwhile.
    """
    wanted = {*labels(schema).values(), EXACT}
    mark = place.own.mark_of(place.iceberg.fields)
    fields = [field for field in place.iceberg.fields if field.name in wanted or field == mark]
    storage = place.folder.storage
    for live in list(place.live().values()):
        gone, first = place.gone(live), 0
        for piece in datafiles.pieces(live.path, fields, live.file.rows, storage):
            inside = slice(*np.searchsorted(gone, (first, first + piece.num_rows)))
            yield from to_text(unmarked(datafiles.without(piece, gone[inside] - first), mark), schema).to_batches()
            first += piece.num_rows
