"""The answers to a scroll, as they come: where each hit's id and document stand, without a Python object for any of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.model.topic import TopicSchema
from sinks.render import readkernels as kernels
from sinks.render.documentcolumns import (
    Mask,
    Members,
    Read,
    document_members,
    labels_of,
    nothing_read,
    rows_of_members,
    utf8,
)
from sinks.render.jsonkernels import Bytes, Offsets
from sinks.render.jsonrows import Style
from sinks.render.meaning import parse
from sinks.render.valuekernels import column_texts
from sinks.search.fields import WRAPPED, Field, field_of
from sinks.search.pagekernels import ID, WHOLE, scroll_page

_WRAPPED: Final = np.frombuffer(f'"{WRAPPED}"'.encode(), np.uint8)


@dataclass(frozen=True, slots=True)
class Hits:
    """One page. ``at``: where each hit stands in ``data``; ``members``: its id and its document."""

    scroll: str
    data: Bytes
    at: Offsets
    members: Members

    @classmethod
    def of(cls, answer: bytes) -> Hits:
        """Raises ValueError for what is not the answer to a scroll."""
        data = np.frombuffer(answer, np.uint8)
        scroll, scroll_end, spans, tokens, left = scroll_page(data)
        if scroll < 0:
            raise ValueError("not a page of a scroll")
        return cls(data[scroll:scroll_end].tobytes().decode(), data, spans[:, WHOLE], Members(data, spans[:, ID:], tokens, left))

    def __len__(self) -> int:
        return len(self.at)

    def rows(self, schema: TopicSchema, style: Style) -> Read:
        """The documents as rows."""
        labels = labels_of(schema, style)
        if labels is None:
            return nothing_read(len(self), schema)
        spans = self.members.spans
        found = document_members(self.data, np.ascontiguousarray(spans[:, 1, 0]), np.ascontiguousarray(spans[:, 1, 1]), labels)
        left = found.left | self.members.left | (self.members.tokens[:, 1] != kernels.IS_NESTED)
        for at, (_, kind) in enumerate(labels.columns):
            if field_of(kind) is Field.FLAT_JSON:
                kernels.unwrap(self.data, found.spans[:, at], found.tokens[:, at], _WRAPPED, left)
        return rows_of_members(found._replace(left=left), schema, labels, style)

    def ids(self) -> pa.Array | None:
        """utf8; None where one of them is not a text."""
        left = self.members.left | (self.members.tokens[:, 0] == kernels.NO_MEMBER)
        spans, tokens = self.members.spans[:, 0], self.members.tokens[:, 0]
        found = utf8(*column_texts(self.data, spans, tokens, kernels.TEXT, 0, left))
        return None if left.any() else found

    def parsed(self, which: Mask | npt.NDArray[np.bool_]) -> list[Any]:
        """Some of the hits as Python's own values."""
        return [parse(self.data[start:stop].tobytes()) for start, stop in self.at[which].tolist()]
