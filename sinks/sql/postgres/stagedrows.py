"""Rows staged in Postgres: COPY of canonical text into a temporary table.

The temporary table has the types of the table's own columns, so the database reads each text once. A text that its column's type does not take turns the
column into text, and the rows are sent again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa

from cdc.model.pgtypes import canonical_text
from cdc.model.topic import TopicSchema
from sinks.render.rowtext import row_text
from sinks.sql.names import GONE, NUMBER, quoted
from sinks.sql.postgres.database import PostgresSession
from sinks.sql.postgres.kinds import TEXT
from sinks.sql.postgres.table import as_text
from sinks.sql.refusals import RowsRefused

_TEXTS: Final = "pg_temp.headwater_texts"


class PostgresRows:
    """See ``StagedRows``."""

    sql: Final = "pg_temp.headwater_rows"

    def __init__(
        self, session: PostgresSession, schema: TopicSchema, columns: Mapping[str, str], beside: Mapping[str, str]
    ) -> None:
        self._session = session
        self._schema = schema
        self._columns = dict(columns)
        self._listed = (*schema.names, *beside)
        made = ", ".join(
            f"{quoted(name)} {kind}" for name, kind in ({name: columns[name] for name in schema.names} | dict(beside)).items()
        )
        session.run(f"create temporary table {self.sql.split('.')[1]} ({made}) on commit drop")

    def send(self, rows: pa.RecordBatch, beside: Mapping[str, pa.Array]) -> Sequence[str]:
        own = [canonical_text(column) for column in beside.values()]
        texts = pa.RecordBatch.from_arrays([*row_text(rows, self._schema).columns, *own], names=[*self._schema.names, *beside])
        listed = ", ".join(map(quoted, texts.schema.names))
        statement = f"copy {self.sql} ({listed}) from stdin"
        try:
            self._session.copy_in(statement, [texts])
        except RowsRefused:
            odd = list(self._unfit(texts))
            for name in odd:
                self._session.run(
                    f"alter table {self.sql} alter column {quoted(name)} type text using {as_text(name, self._columns[name])}"
                )
                self._columns[name] = TEXT
            self._session.copy_in(statement, [texts])
            return odd
        return ()

    @property
    def columns(self) -> Mapping[str, str]:
        return self._columns

    def number(self) -> None:
        """In the order in which they stand, which is that of their coming: nothing has changed them since."""
        self._session.run(f"alter table {self.sql} add column {NUMBER} bigserial")
        self._session.run(f"create unique index on {self.sql} ({NUMBER})")
        self._session.run(f"analyze {self.sql}")

    def piece(self, begin: int, end: int) -> str:
        return f"r.{NUMBER} between {begin + 1} and {end}"

    def leave(self, numbers: Iterable[int]) -> None:
        listed = ", ".join(str(number + 1) for number in numbers)
        if listed:
            self._session.run(f"update {self.sql} set {GONE} = true where {NUMBER} in ({listed})")

    def drop(self) -> None:
        self._session.run(f"drop table {self.sql}")

    def _unfit(self, rows: pa.RecordBatch) -> Iterator[str]:
        """The columns with a text that is no value of their type."""
        made = ", ".join(f"{quoted(name)} text" for name in self._listed)
        self._session.run(f"create temporary table {_TEXTS.split('.')[1]} ({made}) on commit drop")
        self._session.copy_in(f"copy {_TEXTS} from stdin", [rows])
        for name in self._schema.names:
            kind = self._columns[name]
            if kind == TEXT:
                continue
            try:
                with self._session.attempt():
                    self._session.run(
                        f"create temporary table headwater_probe on commit drop as select {quoted(name)}::{kind} from {_TEXTS}"
                    )
                    self._session.run("drop table pg_temp.headwater_probe")
            except RowsRefused:
                yield name
        self._session.run(f"drop table {_TEXTS}")
