"""The place of a table's history (``sinks.rowversions``): every version of its rows.

Open versions and closed ones lie in data files of their own. To close a version takes it out of its file, by that file's deletion vector, and writes it to
a new file of closed ones, which is not looked at again: so a commit costs what its changes do, and no more as the history grows. Which file is which is read
from the files' own statistics; one in which somebody else has merged both is looked through like an open one.

A TRUNCATE, and a definition under which no earlier row is left, close every version: all open files are written again as closed ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.model.batch import POSITION, TS, first_position
from cdc.model.evolution import topic_change_of
from cdc.model.topic import TopicSchema
from sinks.render.rowtext import row_text
from sinks.reshape import same_origin
from sinks.rowversions import FROM, FROM_POSITION, SPAN, TO, TO_POSITION, VersionedChanges, gone, versioned
from sinks.versionage import ended, later, time_of, time_text, without_ended
from sinks.warehouse import datafiles
from sinks.warehouse.catalog import Pending
from sinks.warehouse.columns import IcebergField, arrow_schema, first_schema, parse_schema, to_rows, to_text
from sinks.warehouse.deletionplan import equal_texts
from sinks.warehouse.failures import CommitConflict
from sinks.warehouse.keys import Int64s, KeyPlan, Mask, encode, select
from sinks.warehouse.marks import COMPLETE_KEY, Signed
from sinks.warehouse.names import safe
from sinks.warehouse.place import CommitPlan, TablePlace
from sinks.warehouse.tablefiles import Live
from sinks.warehouse.upserts import UpsertGroup

_KINDS: Final = {FROM_POSITION: "long", TO_POSITION: "long", FROM: "timestamptz", TO: "timestamptz"}


def history_name(name: str, said: bool | str) -> str:
    """The history's name beside the table of this one. ``said``: the option's value, which is not False."""
    return safe(f"{name}_history" if said is True else str(said))


def history_schema(schema: TopicSchema) -> str:
    """The Iceberg schema (JSON) of a new history."""
    raw = json.loads(first_schema(schema))
    fields = [field for field in raw["fields"] if field["name"] != POSITION]
    last = max(max(field.id, field.key_id, field.value_id) for field in parse_schema(json.dumps(raw)))
    spans = [{"id": last + at, "name": name, "required": False, "type": _KINDS[name]} for at, name in enumerate(SPAN, 1)]
    return json.dumps({**raw, "fields": [*fields, *spans]})


class HistoryPlace(TablePlace):
    """See ``TablePlace``; its changes are those of the topic, all of them."""

    _closed: dict[str, bool] | None = None
    _ends: dict[str, tuple[int, int] | None] | None = None
    """Data file → when the first and the last of the versions in it ended that have ended."""
    horizon_us: int | None = None
    """Versions that ended at or before it are not needed (``sinks.versionage``); None: all are."""
    complete_from_us: int | None = None
    """The next commit of changes says that the history has every version from here on, unless it says a later time already."""

    @property
    def _apart(self) -> bool:
        return True

    def forget(self, horizon_us: int, signed: Signed, most_files: int) -> bool:
        """Takes away versions that ended at or before the horizon: files of nothing else as they are, and rows of others, of so many at most, by their deletion
        vectors. Whether that was all of them. Raises CommitConflict or CommitUnknown; the table is whole either way."""
        self._refresh()
        self._fields = self.iceberg.fields
        hits, field, looked_into = dict[str, Int64s](), self._end_field, 0
        for path, live in list(self.live().items()):
            ends = self._ends_within(path)
            if ends is None or ends[0] > horizon_us:
                continue
            if ends[1] <= horizon_us and self._is_closed(path):
                found = np.arange(live.file.rows)
            elif looked_into < most_files:
                looked_into += 1
                found = np.flatnonzero(ended(self._read(path, [field]).column(TO), horizon_us).to_numpy(zero_copy_only=False))
            else:
                looked_into += 1
                continue
            found = np.setdiff1d(found, self.gone(live))
            if len(found):
                hits[path] = found
        if hits:
            self.complete_from_us = later(self.complete_from_us, horizon_us)
            self._vector_files = ()
            try:
                self._take_out(self.iceberg.begin(), hits, (), (), replace(signed, mark=self.mark), self._said())
            except CommitConflict:
                for path in self._vector_files:
                    self.folder.storage.remove(path)
                raise
            self._live_at = self.iceberg.snapshot
        return looked_into <= most_files

    def _said(self) -> Mapping[str, str]:
        since = later(self.complete_from_us, _time_or_none(self.iceberg.properties.get(COMPLETE_KEY)))
        return {} if since is None else {COMPLETE_KEY: time_text(since)}

    @property
    def _end_field(self) -> IcebergField:
        return next(one for one in self._fields if one.name == TO)

    def _ends_within(self, path: str) -> tuple[int, int] | None:
        """When the first and the last of the versions in the file ended, by its own statistics; None where none has, or nobody knows."""
        if self._ends is None:
            self._ends = {}
        if path not in self._ends:
            found = datafiles.bounds(path, self._end_field.id, self.folder.storage, nulls_apart=True)
            self._ends[path] = None if found is None else (_microseconds(found[0]), _microseconds(found[1]))
        return self._ends[path]

    def shelves(self) -> Sequence[Mapping[str, Live]]:
        closed = {path for path in list(self.live()) if self._is_closed(path)}
        return [{path: live for path, live in self.live().items() if (path in closed) is wanted} for wanted in (False, True)]

    def _planned(self, group: UpsertGroup, pending: Pending, replaced: frozenset[str]) -> CommitPlan:
        change, plan = topic_change_of(group.batches[0]), CommitPlan()
        rekeyed = change is None and any(column.name in replaced for column in group.schema.key)
        closes = group.floor >= 0 or rekeyed
        if not closes and change is not None:
            plan.again = self._written_again(change.schema, replaced, pending, {})
        self._fields = pending.fields
        if closes:
            first = group.batches[0]
            end = group.floor if group.floor >= 0 else first_position(first) - 1
            plan.again = self._all_closed(pa.scalar(end, pa.int64()), first.column(TS)[0])
        if change is None and not group.truncates:
            for batch in _whole(group, self.position):
                self._plan_versions(group.schema, group.plan, batch, plan, emptied=closes)
        return plan

    def _known_for(self, schema: TopicSchema) -> TopicSchema | None:
        """Columns of another table that had the name go by their names: old versions keep what they hold."""
        known = self.known()
        return known if known is not None and same_origin(known, schema) else None

    def _all_closed(self, position: pa.Scalar, when: pa.Scalar) -> dict[str, datafiles.WrittenData]:
        """Every file with open versions → the same with all of them closed."""
        found = {}
        for path, live in list(self.live().items()):
            if self._is_closed(path):
                continue
            rows = datafiles.without(self._read(path, self._fields), self.gone(live))
            is_open = rows.column(TO_POSITION).is_null()
            for name, value in ((TO_POSITION, position), (TO, when)):
                at = rows.schema.get_field_index(name)
                rows = rows.set_column(at, rows.schema.field(at), pc.if_else(is_open, value, rows.column(name)))
            found[path] = datafiles.write_table(self.folder, without_ended(rows, self.horizon_us))
        return found

    def _plan_versions(
        self, schema: TopicSchema, keyed: KeyPlan | None, batch: pa.RecordBatch, plan: CommitPlan, *, emptied: bool
    ) -> None:
        """``emptied``: nothing is open before the batch."""
        changes = versioned(batch, schema)
        rows = batch.take(pa.array(changes.rows))
        going, same = gone(rows), np.zeros(len(rows), np.bool_)
        ends: list[pa.Table] = []
        if keyed is not None and not emptied:
            ends.append(self._ended(schema, keyed, batch, rows, changes, same, plan))
        begun = self._begun(schema, batch, rows, changes, np.flatnonzero(~going & ~same))
        opened = begun.column(TO_POSITION).is_null().to_numpy(zero_copy_only=False)
        write = partial(
            datafiles.write, self.folder, arrow_schema(self._fields), convert=_as_it_is, file_bytes=self._options.file_bytes
        )
        keys = None if keyed is None else select(encode(keyed, rows.column, len(rows)), ~going & ~same)
        plan.add(write([begun], [opened]), None if keys is None else select(keys, opened))
        closed = without_ended(
            pa.concat_tables([pa.Table.from_batches([begun.filter(pa.array(~opened))]), *ends]), self.horizon_us
        ).to_batches()
        plan.add(write(closed, [np.ones(len(piece), np.bool_) for piece in closed]), None)

    def _begun(
        self, schema: TopicSchema, batch: pa.RecordBatch, rows: pa.RecordBatch, changes: VersionedChanges, numbers: Int64s
    ) -> pa.RecordBatch:
        """The versions that these of the rows begin, and where they end within the batch."""
        chosen = rows.take(pa.array(numbers))
        ends = changes.ends.take(pa.array(numbers))
        beside = {
            FROM_POSITION: chosen.column(POSITION),
            TO_POSITION: batch.column(POSITION).take(ends),
            FROM: chosen.column(TS),
            TO: batch.column(TS).take(ends),
        }
        return to_rows(chosen, schema, arrow_schema(self._fields), beside)

    def _ended(
        self,
        schema: TopicSchema,
        keyed: KeyPlan,
        batch: pa.RecordBatch,
        rows: pa.RecordBatch,
        changes: VersionedChanges,
        same: Mask,
        plan: CommitPlan,
    ) -> pa.Table:
        """The versions that are open in the table and end with these rows; marks rows that say what such a version says in ``same``."""
        firsts = np.flatnonzero(changes.first)
        keys = select(encode(keyed, rows.column, len(rows)), changes.first)
        there = self.standing(self.find(keyed, schema, keys), self._fields)
        is_open = np.flatnonzero(there.rows.column(TO_POSITION).is_null().to_numpy())
        versions = there.rows.take(pa.array(is_open))
        theirs = self.keys_of(versions, keyed, schema)
        at = firsts[pc.index_in(pa.array(theirs), value_set=pa.array(keys)).to_numpy(zero_copy_only=False)]
        came = rows.take(pa.array(at))
        equal = ~gone(came) & equal_texts(to_text(versions, schema), pa.Table.from_batches([row_text(came, schema)]))
        same[at[equal]] = True
        # One that comes as it is ends where the next change of its key is; any other one where the key's first change is.
        later = changes.ends.take(pa.array(at))
        chosen = pa.array(equal)
        position = pc.if_else(chosen, batch.column(POSITION).take(later), came.column(POSITION))
        when = pc.if_else(chosen, batch.column(TS).take(later), came.column(TS))
        ending = ~equal | later.is_valid().to_numpy(zero_copy_only=False)
        for name, values in ((TO_POSITION, position), (TO, when)):
            column = versions.schema.get_field_index(name)
            versions = versions.set_column(column, versions.schema.field(column), values)
        plan.hits |= there.hits(is_open[ending])
        return versions.filter(pa.array(ending))

    def _may_hold(self, path: str, plan: KeyPlan, schema: TopicSchema, wanted: Int64s | pa.Array) -> bool:
        return not self._is_closed(path) and super()._may_hold(path, plan, schema, wanted)

    def _is_closed(self, path: str) -> bool:
        """Whether no version in the file is open."""
        if self._closed is None:
            self._closed = {}
        if path not in self._closed:
            field = next(one for one in self._fields if one.name == TO_POSITION)
            self._closed[path] = not datafiles.has_nulls(path, field.id, self.folder.storage)
        return self._closed[path]


def _whole(group: UpsertGroup, held: int) -> list[pa.RecordBatch]:
    """The group's changes behind its floor and what is held, as one batch; none where there are none."""
    table = pa.Table.from_batches(group.batches)
    behind = np.searchsorted(table.column(POSITION).to_numpy(), max(group.floor, held), side="right")
    found: list[pa.RecordBatch] = table.slice(int(behind)).combine_chunks().to_batches()
    assert len(found) <= 1  # a group is far smaller than what Arrow cannot hold in one piece
    return found


def _as_it_is(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def _microseconds(time: datetime) -> int:
    found: int = pa.scalar(time, pa.timestamp("us", tz="UTC")).cast(pa.int64()).as_py()
    return found


def _time_or_none(text: str | None) -> int | None:
    """None also for a text that somebody else has put there."""
    try:
        return time_of(text) if text else None
    except (ValueError, TypeError):
        return None
