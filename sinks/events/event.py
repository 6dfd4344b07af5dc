"""Events as columns, whatever will become of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

EVENTS: Final = pa.schema(
    [
        pa.field("position", pa.int64(), nullable=False),
        pa.field("topic", pa.utf8(), nullable=False),
        pa.field("op", pa.utf8(), nullable=False),
        pa.field("type", pa.utf8(), nullable=False),
        pa.field("id", pa.utf8(), nullable=False),
        pa.field("key", pa.utf8()),
        pa.field("group", pa.utf8()),
        pa.field("body", pa.large_binary()),
        pa.field("headers", pa.utf8()),
        pa.field("time", pa.timestamp("us", tz="UTC")),
        pa.field("lsn", pa.int64(), nullable=False),
        pa.field("wire_key", pa.large_binary()),
        pa.field("unfit", pa.utf8()),
    ]
)
"""One row for each event:

============  ===============================================================================================================
``position``  of its change in the log: what orders events, and no two have one
``topic``     the change's, ``schema.table``
``op``        ``insert``, ``update``, ``delete``, ``read`` or ``truncate``
``type``      what kind of event it is: as the application says, else ``TOPIC.OP``
``id``        the same however often the event is delivered: the application's, else ``TOPIC:POSITION``
``key``       what it is about: as the application says, else the row's key as text; NULL of a change of the table as a whole
``group``     what order is kept by: the key, or what ``order_by`` says; NULL where there is none, or none is asked for
``body``      as ``body`` in the options says; NULL where the application wrote none
``headers``   the application's, the text of a JSON object; NULL where there are none
``time``      of the commit
``lsn``       of the commit
``wire_key``  the key in the format of the body, where that is one that has a schema; NULL: ``key`` is as it goes
``unfit``     why the body's format cannot hold it, without a value; NULL: it can
============  ===============================================================================================================
"""


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Some events, positions rising. ``rows``: of the schema ``EVENTS``."""

    rows: pa.RecordBatch

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def positions(self) -> npt.NDArray[np.int64]:
        found: npt.NDArray[np.int64] = self.rows.column(0).to_numpy()
        return found

    def column(self, name: str) -> pa.Array:
        return self.rows.column(name)

    def slice(self, first: int, count: int) -> EventBatch:
        return EventBatch(self.rows.slice(first, count))


NO_EVENTS: Final = EventBatch(pa.RecordBatch.from_pylist([], EVENTS))
