"""Rows staged in DuckDB: Arrow's columns go into a temporary table as they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from cdc.model.topic import TopicSchema
from sinks.render.rowtext import column_text, exact_values
from sinks.sql.duck.database import DuckSession
from sinks.sql.duck.kinds import JSON, TEXT, as_held
from sinks.sql.names import GONE, NUMBER, quoted

_GIVEN: Final = "headwater_given"


class DuckRows:
    """See ``StagedRows``."""

    sql: Final = "temp.headwater_rows"

    def __init__(self, session: DuckSession, schema: TopicSchema, columns: Mapping[str, str], beside: Mapping[str, str]) -> None:
        self._session = session
        self._schema = schema
        self._columns = {name: columns[name] for name in schema.names}
        made = ", ".join(f"{quoted(name)} {kind}" for name, kind in (self._columns | dict(beside) | {NUMBER: "bigint"}).items())
        self._count = 0
        session.run(f"create or replace temporary table headwater_rows ({made})")

    def send(self, rows: pa.RecordBatch, beside: Mapping[str, pa.Array]) -> Sequence[str]:
        exact = exact_values(rows)
        odd: list[str] = []
        given: dict[str, pa.Array] = {}
        for name, kind in list(self._columns.items()):
            values = as_held(rows.column(name), exact.get(name), kind)
            if values is None or (kind == JSON and not self._is_json(values)):
                self._become_text(name)
                odd.append(name)
                values = column_text(rows, name, exact)
            given[name] = values
        numbers = pa.array(np.arange(self._count, self._count + len(rows), dtype=np.int64))
        self._count += len(rows)
        with self._session.given(_GIVEN, pa.table({**given, **beside, NUMBER: numbers})):
            self._session.run(f"insert into {self.sql} select * from {_GIVEN}")
        return odd

    @property
    def columns(self) -> Mapping[str, str]:
        return self._columns

    def number(self) -> None:
        """They are."""

    def piece(self, begin: int, end: int) -> str:
        return f"r.{NUMBER} >= {begin} and r.{NUMBER} < {end}"

    def leave(self, numbers: Iterable[int]) -> None:
        listed = ", ".join(map(str, numbers))
        if listed:
            self._session.run(f"update {self.sql} set {GONE} = true where {NUMBER} in ({listed})")

    def drop(self) -> None:
        self._session.run(f"drop table {self.sql}")

    def _is_json(self, texts: pa.Array) -> bool:
        with self._session.given(_GIVEN, pa.table({"text": texts})):
            return not self._session.rows(f"select 1 from {_GIVEN} where text is not null and not json_valid(text) limit 1")

    def _become_text(self, name: str) -> None:
        """What came before is read again by the type that it had."""
        self._columns[name] = TEXT
        self._session.run(f"alter table {self.sql} alter column {quoted(name)} type {TEXT}")
