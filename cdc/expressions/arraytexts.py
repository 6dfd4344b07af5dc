"""Arrays made of a group's values: what ``array_agg`` writes of each, as Postgres prints it. Pure.

A timestamptz is shown as in a session whose TimeZone is UTC.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from cdc.expressions.objects import SHOWN
from cdc.expressions.outside import handed_out
from cdc.expressions.pgtype import PgType, scalar_of
from cdc.model.pgtypes import canonical_text
from cdc.model.structure import ArrayOf, Scalar, array_oid
from cdc.model.topic import TopicField

ELEMENTS: Final = tuple(one for one in SHOWN if one != "enum")
"""The names of the types whose values can stand in an array."""
_QUOTED: Final = r'^$|^(?i:null)$|[ \t\n\r\x0b\f"\\{},]'
"""Elements that stand in quotation marks (Postgres's array_out)."""


def array_field(kind: PgType) -> TopicField:
    """The field, without a name, of an array of this type, as a table's column has it. Raises KeyError for a type of which there are none here."""
    scalar = scalar_of(kind)
    return TopicField("", pa.utf8(), ArrayOf(Scalar(scalar)), type_name=array_name(kind), source_type=f"{array_oid(scalar)}.-1")


def array_name(kind: PgType) -> str:
    """The name of its arrays, which have no bounds."""
    return f"{PgType(kind.name)}[]"


def element_texts(kind: PgType, values: pa.Array) -> pa.Array:
    """``values``, in the engine's form, as elements between an array's commas: utf8, ``NULL`` for NULL."""
    typed, exact = handed_out(kind, values)
    texts = canonical_text(typed)
    if exact is not None:
        texts = pc.coalesce(exact, texts)
    escaped = pc.binary_join_element_wise('"', pc.replace_substring_regex(texts, r'(["\\])', r"\\\1"), '"', "")
    return pc.fill_null(pc.if_else(pc.match_substring_regex(texts, _QUOTED), escaped, texts), "NULL")
