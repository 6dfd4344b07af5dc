"""One source table's place in the warehouse: which files are live, where a key stands in them, and the commits.

An Iceberg data file never changes. The table's rows are those of its *live* files, without the row positions that each file's deletion vector
names. So a range of changes becomes new files, with the last row of each key, and larger vectors, which take away the rows that were replaced
or deleted; a file that loses its last row leaves the table. Where a key stands is looked up in the files themselves: their statistics rule
most of them out, and the keys of the others are cached until the table's columns change.

Rows and mark are one Iceberg transaction. Everything else follows from that:

- **Nothing is applied twice.** The mark says how far the table holds its topic, and changes at or below it are left out. A crash before the
  commit leaves files that no table names (``leftovers`` removes them); a crash after it loses nothing but this object.
- **Nothing is written onto another table.** Before each attempt the table has to carry the mark that this object found or left, and no
  higher epoch of a writer. A table that was restored, replaced or written by another raises StoreError, and the follower opens the store again.
- **A commit that met another's** (CommitConflict) was refused as a whole: its files are removed, and it is made again from what the table is now.
- **A commit whose answer was lost** (CommitUnknown) is decided by the table's mark. If it is not ours, the files stay, as the commit may yet
  turn up, and the store is opened again.

A range is several commits where the key's columns or the definition change in it; each leaves a mark of its own, from which the next goes on. The
live files and their vectors are remembered for one snapshot of the table (``_live_at``): under another they are read again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cdc.crashpoint import crashpoint
from cdc.errors import Stopped, StopState, StoreError
from cdc.model.batch import EXACT, OP, POSITION, topic_schema
from cdc.model.evolution import topic_change_of
from cdc.model.lineage import Mark
from cdc.model.position import Cut, Position
from cdc.model.topic import TopicSchema
from sinks.contract import EpochPassed
from sinks.reshape import rekeyed, reshaped, same_origin
from sinks.warehouse import datafiles
from sinks.warehouse.catalog import Changes, DataFile, IcebergTable, Pending
from sinks.warehouse.columns import (
    IcebergField,
    arrow_schema,
    carried_exact,
    evolution,
    exact_names,
    exact_texts,
    labels,
    to_rows,
    to_text,
)
from sinks.warehouse.deletionplan import Marking
from sinks.warehouse.failures import CommitConflict, CommitUnknown
from sinks.warehouse.keycache import KeyCache
from sinks.warehouse.keys import FileKeys, Int64s, concatenate
from sinks.warehouse.marks import TABLE_KEY, Signed
from sinks.warehouse.options import Options
from sinks.warehouse.owncolumns import OwnFields
from sinks.warehouse.tablefiles import NO, Live, TableFiles
from sinks.warehouse.upserts import UpsertGroup, final, groups
from sinks.warehouse.vectors import puffin, union

_ATTEMPTS: Final = 5
_NONE: Final = np.empty(0, np.int64)


@dataclass(slots=True)
class CommitPlan:
    """The files that one commit writes, and takes away. ``keys``: of the rows of each file that was written; None where nobody will look for them."""

    replace_all: bool = False
    written: list[datafiles.WrittenData] = field(default_factory=list)
    keys: list[Int64s | pa.Array | None] = field(default_factory=list)
    hits: dict[str, Int64s] = field(default_factory=dict)
    """Data file → positions of rows that go."""
    again: dict[str, datafiles.WrittenData] = field(default_factory=dict)
    """Data file → what replaces it."""

    def add(self, written: Sequence[datafiles.WrittenData], keys: Int64s | pa.Array | None) -> None:
        """``keys``: of all their rows."""
        self.written += written
        self.keys += [None if keys is None else keys[one.first : one.first + one.rows] for one in written]


class TablePlace(TableFiles):
    """Not thread-safe. After any StoreError: make a new one."""

    def __init__(
        self,
        table: IcebergTable,
        options: Options,
        cache: KeyCache,
        writer: str = "",
        own: OwnFields = OwnFields(),  # noqa: B008  # frozen
    ) -> None:
        """See ``TableFiles``."""
        super().__init__(table, cache, writer, own)
        self._options = options
        self._vector_files: tuple[str, ...] = ()
        """Of the commit that is being made."""
        self.mark = _marked(table)
        """As this object found the table, or left it. Nothing is written onto a table that says anything else."""

    @property
    def position(self) -> Position:
        """Everything up to here is in the table."""
        return self.mark.cut.position

    @property
    def name(self) -> str:
        return self.iceberg.name

    def check(self) -> None:
        """Raises StoreError when the table is gone, or was set back, replaced or brought further by another since."""
        if self.iceberg.changed():
            self._refresh()

    def known(self) -> TopicSchema | None:
        """The definition that was written last."""
        text = self.iceberg.properties.get(TABLE_KEY)
        try:
            return None if text is None else TopicSchema.from_json(text)
        except (KeyError, TypeError, ValueError):
            hint = "see who writes to it; cdc resume STORE_REFUSES --rebuild builds the store again"
            what = f"{TABLE_KEY} of the warehouse's table {self.name} is damaged, or another version's"
            raise StoreError(what, retryable=False, hint=hint) from None

    def write(self, batches: Sequence[pa.RecordBatch], signed: Signed) -> None:
        """Commits these changes (all of the table's behind its mark, up to the one given). One Iceberg commit, unless the key's columns
        change. Without any the table takes the mark alone."""
        for _ in range(_ATTEMPTS):
            self._refresh()
            self._refuse_earlier(signed)
            work = groups(batches, self.known(), self.position, apart=self._apart)
            if not work:
                self._sign(signed)
                return
            ends = [replace(signed, mark=reaching(signed.mark, self.mark.cut, group.last)) for group in work[:-1]]
            if all(self._write(group, end) for group, end in zip(work, [*ends, signed], strict=True)):
                return
        raise StoreError(f"another writer keeps changing the warehouse's table {self.name}", retryable=True)

    def _refuse_earlier(self, signed: Signed) -> None:
        if self.iceberg.epoch > signed.epoch:
            raise EpochPassed(signed.store, self.iceberg.epoch)

    def _said(self) -> Mapping[str, str]:
        """Further properties that the table takes with each commit of changes."""
        return {}

    def _sign(self, signed: Signed) -> None:
        before = self.iceberg.snapshot
        try:
            self.iceberg.commit(self.iceberg.begin(), Changes(), signed, self._said())
        except (CommitConflict, CommitUnknown) as error:
            raise StoreError(f"the warehouse's table {self.name} was changed by somebody else", retryable=True) from error
        self.mark = signed.mark
        if self._live_at == before:
            self._live_at = self.iceberg.snapshot

    def _write(self, group: UpsertGroup, signed: Signed) -> bool:
        """Whether it could be committed; if not, somebody changed the table in between and nothing of ours is left."""
        pending, replaced = self._evolved(group)
        if topic_change_of(group.batches[0]) is not None:
            self._cache.clear()  # a key column's name may stand for another column now
            self._bounds.clear()
        self._vector_files = ()
        plan = self._planned(group, pending, replaced)
        crashpoint("warehouse.files_written")
        try:
            self._commit(pending, group, plan, signed)
        except CommitConflict:
            for path in (*(piece.path for piece in (*plan.written, *plan.again.values())), *self._vector_files):
                self.folder.storage.remove(path)
            return False
        except CommitUnknown as error:
            self.iceberg.refresh()
            if self.iceberg.mark != signed.mark:
                # Its files stay: the commit may yet turn up.
                raise StoreError(f"the warehouse did not say whether {group.schema.topic} was committed", retryable=True) from error
            self.mark = signed.mark
            self._fields = self.iceberg.fields
        return True

    @property
    def _apart(self) -> bool:
        """Whether rows that go, or come again, leave something behind (``upserts.groups``)."""
        return bool(self.own)

    def _planned(self, group: UpsertGroup, pending: Pending, replaced: frozenset[str]) -> CommitPlan:
        """Writes the files of a commit. ``replaced``: the source's columns that start over in it."""
        change, known = topic_change_of(group.batches[0]), self.known()
        plan, leaving = CommitPlan(group.floor >= 0), dict[str, Int64s]()
        if group.truncates and self.own.deleted is not None and known is not None and same_origin(known, group.schema):
            self._fields = pending.fields
            return CommitPlan(again=self._truncated(group))
        if change is None:
            # Rows under a key of another type come without a word of what becomes of those that are there.
            plan.replace_all |= any(column.name in replaced for column in group.schema.key)
        elif not plan.replace_all:
            if self.own.deleted is not None and known is not None and rekeyed(known, change.schema):
                # What the new key tells apart among live rows it may not among those that are gone.
                leaving = {path: rows for path, live in list(self.live().items()) if len(rows := self.marked(live))}
            plan.again = self._written_again(change.schema, replaced, pending, leaving)
        self._fields = pending.fields
        self._plan_rows(group, plan)
        plan.hits |= {path: rows for path, rows in leaving.items() if path not in plan.again}
        return plan

    def _plan_rows(self, group: UpsertGroup, plan: CommitPlan) -> None:
        last, rows, keys = final(group, self.position), list[pa.RecordBatch](), list[Int64s | pa.Array]()
        spared: Mapping[str, Int64s] = {}
        if self.own and group.plan is not None and topic_change_of(group.batches[0]) is None:
            marking = Marking(self, self._fields, group).planned(last, self.position, emptied=plan.replace_all)
            last, rows, keys, spared = marking.last, marking.rows, marking.keys, marking.spared
        masks = [*last.upserts, *(np.ones(len(one), np.bool_) for one in rows)]
        wanted, values = arrow_schema(self._fields), self.own.values(deleted=False)

        def convert(batch: pa.RecordBatch) -> pa.RecordBatch:
            return to_rows(batch, topic_schema(batch.schema), wanted, values) if OP in batch.schema.names else batch

        written = datafiles.write(self.folder, wanted, [*group.batches, *rows], masks, convert, self._options.file_bytes)
        found = None if group.plan is None or last.written is None else concatenate([last.written, *keys])
        plan.add(written, found)
        if not plan.replace_all and group.plan is not None and last.touched is not None:
            hits = self.find(group.plan, group.schema, last.touched)
            plan.hits |= {path: np.setdiff1d(at, spared[path]) if path in spared else at for path, at in hits.items()}

    def _truncated(self, group: UpsertGroup) -> dict[str, datafiles.WrittenData]:
        """Every file that has a row which is not marked as deleted → the same with all of them marked."""
        schema, position = arrow_schema(self._fields), group.last
        field = self.own.mark_of(self._fields)
        assert field is not None

        def turned(rows: pa.Table) -> pa.Table:
            live = pc.invert(rows.column(field.name).fill_null(NO))
            for name, value in {**self.own.values(deleted=True), POSITION: pa.scalar(position, pa.int64())}.items():
                at = rows.schema.get_field_index(name)
                rows = rows.set_column(at, schema.field(name), pc.if_else(live, value, rows.column(name)))
            return rows

        found = {}
        for path, live in list(self.live().items()):
            if len(self.gone(live)) + len(self.marked(live)) < live.file.rows:
                rows = datafiles.without(self._read(path, self._fields), self.gone(live))
                found[path] = datafiles.write_table(self.folder, turned(rows))
        return found

    def _evolved(self, group: UpsertGroup) -> tuple[Pending, frozenset[str]]:
        """A commit with the columns that these rows need, and the source's columns that start over in it."""
        pending, known, replaced = self.iceberg.begin(), self._known_for(group.schema), frozenset[str]()
        for schema in dict.fromkeys(topic_schema(batch.schema) for batch in group.batches):
            found = evolution(pending.fields, schema, known)
            pending = self.iceberg.evolve(pending, found.changes)
            replaced |= found.replaced
            known = schema
        return self.iceberg.evolve(pending, self.own.missing(pending.fields)), replaced

    def _known_for(self, schema: TopicSchema) -> TopicSchema | None:  # noqa: ARG002
        """The definition whose columns may be those of this one."""
        return self.known()

    def _written_again(
        self, schema: TopicSchema, replaced: frozenset[str], pending: Pending, leaving: Mapping[str, Int64s]
    ) -> dict[str, datafiles.WrittenData]:
        """Files whose rows the change of columns alone would not show rightly → the same rows under the new definition.

        All of them where a column starts over (its values move over), else those in which ``_cdc_exact`` names a column by a name that is
        now another's or nobody's. ``leaving``: rows that do not go along, by data file.
        """
        held = self.known()
        if held is None:
            return {}
        names = exact_names(self.iceberg.fields, held, pending.fields, schema)
        moved = {name for name, now in names.items() if name != now}
        exact = next(field for field in self.iceberg.fields if field.name == EXACT)
        return {
            path: self._file_again(live, held, schema, pending.fields, leaving.get(path, _NONE))
            for path, live in list(self.live().items())
            if replaced or (moved and moved & exact_texts(self._read(path, [exact]).column(EXACT)).keys())
        }

    def _file_again(
        self, live: Live, held: TopicSchema, schema: TopicSchema, fields: Sequence[IcebergField], leaving: Int64s
    ) -> datafiles.WrittenData:
        gone, wanted = union(self.gone(live), leaving), arrow_schema(fields)
        texts = to_text(datafiles.without(self._read(live.file.path, self.iceberg.fields), gone), held)
        kept = datafiles.without(self._read(live.file.path, fields), gone)
        rows = pa.Table.from_batches(
            [to_rows(reshaped(batch, held, schema, 0), schema, wanted) for batch in texts.to_batches()], schema=wanted
        )
        # What is none of the table's columns, a dropped one and the position of each row, goes along as it is.
        mine = set(labels(schema).values())
        columns = {field.name: (rows if field.name in mine else kept).column(field.name) for field in wanted}
        names = exact_names(self.iceberg.fields, held, fields, schema)
        columns[EXACT] = carried_exact(rows.column(EXACT), kept.column(EXACT), names, schema)
        return datafiles.write_table(self.folder, pa.table(columns, schema=wanted))

    def _refresh(self) -> None:
        """Raises StoreError when the table does not carry the mark that it was found or left with."""
        self.iceberg.refresh()
        if self.iceberg.mark != self.mark:
            raise StoreError(f"the warehouse's table {self.name} was restored, or written by another", retryable=True)
        self._fields = self.iceberg.fields

    def _commit(self, pending: Pending, group: UpsertGroup, plan: CommitPlan, signed: Signed) -> None:
        added = [self.iceberg.data_file(piece.path) for piece in plan.written]
        rewritten = [self.iceberg.data_file(piece.path) for piece in plan.again.values() if piece.rows]
        properties = {TABLE_KEY: group.schema.to_json(), **self._said()}
        if plan.replace_all:
            self.iceberg.commit(pending, Changes(add=added, replace_all=True), signed, properties)
            self._live = {}
        else:
            self._take_out(pending, plan.hits, list(plan.again), [*added, *rewritten], signed, properties)
            self._live.update({file.path: Live(file) for file in rewritten})
        crashpoint("warehouse.table_committed")
        for file, keys in zip(added, plan.keys, strict=True):
            self._live[file.path] = Live(file)
            if group.plan is not None and keys is not None:
                self._cache.put(file.path, group.plan, FileKeys(keys))
        self._live_at = self.iceberg.snapshot
        self.mark = signed.mark

    def _take_out(
        self,
        pending: Pending,
        hits: Mapping[str, Int64s],
        leaving: Sequence[str],
        added: Sequence[DataFile],
        signed: Signed,
        properties: Mapping[str, str],
    ) -> None:
        """Commits that these rows and files go, and that these files are added, which are not live here yet."""
        self.live()  # what is added to it has to be all of it, also where no row is looked for
        emptied, vectors = self._vectors(hits)
        emptied += leaving
        dropped = [before for path in (*emptied, *vectors) if (before := self._live[path].vector) is not None]
        grown = [live.vector for live in vectors.values() if live.vector is not None]
        changes = Changes(added, [self._live[path].file for path in emptied], grown, dropped)
        self.iceberg.commit(pending, changes, signed, properties)
        for path in emptied:
            del self._live[path]
        self._live.update(vectors)

    def shelves(self) -> Sequence[Mapping[str, Live]]:
        """The live files, those apart that are not to be merged with each other."""
        return [self.live()]

    def merge(
        self, paths: Sequence[str], merged: Callable[[TablePlace, Sequence[Live]], datafiles.WrittenData], signed: Signed
    ) -> None:
        """Replaces these files by one. Raises CommitConflict, also where one of them has gone meanwhile, or CommitUnknown; the table is whole either way."""
        # A file's lineage is known only from the table itself, not from its writing.
        self.look_again()
        live = self.live()
        if any(path not in live for path in paths):
            raise CommitConflict
        chosen = [live[path] for path in paths]
        written = merged(self, chosen)
        added = [self.iceberg.data_file(written.path)] if written.rows else []
        vectors = [one.vector for one in chosen if one.vector is not None]
        changes = Changes(added, [one.file for one in chosen], drop_vectors=vectors, rewrite=True)
        try:
            self.iceberg.commit(self.iceberg.begin(), changes, replace(signed, mark=self.mark), {})
        except CommitConflict:
            self.folder.storage.remove(written.path)
            raise
        for one in chosen:
            del self._live[one.file.path]
            self._bounds = {key: value for key, value in self._bounds.items() if key[0] != one.file.path}
        for file in added:
            self._live[file.path] = Live(file)
        self._live_at = self.iceberg.snapshot

    def look_again(self) -> None:
        """Forgets which files are live."""
        self._refresh()
        self._live_at = None

    def _vectors(self, hits: Mapping[str, Int64s]) -> tuple[list[str], dict[str, Live]]:
        """(files that lose their last row, files with a new vector) when these positions go too."""
        emptied: list[str] = []
        grown: dict[str, Int64s] = {}
        for path, positions in hits.items():
            live = self._live[path]
            before = self.gone(live)
            gone = union(before, positions)
            if len(gone) == live.file.rows:
                emptied.append(path)
            elif len(gone) > len(before):
                grown[path] = gone
        if not grown:
            return emptied, {}
        target = self.folder.fresh("puffin")
        content, blobs = puffin({self._live[path].file.location: gone for path, gone in grown.items()})
        self._vector_files = (target,)
        with self.folder.storage.written(target) as file:
            file.write(content)
        self.folder.storage.settle(self.folder.location)
        crashpoint("warehouse.vectors_written")
        vectors = {}
        for path, gone in grown.items():
            file = self._live[path].file
            vectors[path] = Live(file, self.iceberg.vector(target, len(content), file, blobs[file.location]), gone)
        return emptied, vectors


def _marked(table: IcebergTable) -> Mark:
    """Raises Stopped for a table that carries no mark: nobody can say which log its rows are of."""
    if table.mark is None:
        raise unmarked(f"the table {table.name} of the warehouse")
    return table.mark


def unmarked(where: str) -> Stopped:
    return Stopped(
        StopState.DIVERGED,
        f"{where} was written by an earlier version, which did not say from which log",
        hint=f"cdc resume {StopState.DIVERGED} --rebuild, which builds the store again from the log",
    )


def reaching(mark: Mark, cut: Cut, position: int) -> Mark:
    """The mark of a table in the middle of a range: of the last whole cut it has the LSN."""
    return replace(mark, cut=replace(cut, position=Position(position)))
