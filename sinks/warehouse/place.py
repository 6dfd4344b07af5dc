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

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa

from cdc.crashpoint import crashpoint
from cdc.errors import Stopped, StopState, StoreError
from cdc.model.batch import EXACT, topic_schema
from cdc.model.evolution import topic_change_of
from cdc.model.lineage import Mark
from cdc.model.position import Cut, Position
from cdc.model.topic import TopicSchema
from sinks.contract import EpochPassed
from sinks.reshape import reshaped
from sinks.warehouse import datafiles
from sinks.warehouse.catalog import Changes, DataFile, IcebergTable, Pending, Vector, name_of
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
from sinks.warehouse.disk import reading
from sinks.warehouse.failures import CommitConflict, CommitUnknown
from sinks.warehouse.keys import FileKeys, Int64s, KeyPlan, encode
from sinks.warehouse.marks import TABLE_KEY, Signed
from sinks.warehouse.options import Options
from sinks.warehouse.storage import Storage
from sinks.warehouse.upserts import Final as LastChanges
from sinks.warehouse.upserts import UpsertGroup, final, groups
from sinks.warehouse.vectors import decode, puffin, union

_ATTEMPTS: Final = 5
_NONE_GONE: Final = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Live:
    """A live data file, its vector in the table, and the positions that the vector names."""

    file: DataFile
    vector: Vector | None = None
    gone: Int64s | None = None

    @property
    def path(self) -> str:
        return self.file.path


class KeyCache:
    """Keys of data files (which never change) by file and key columns; the least recently used go first."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._bytes = 0
        self._keys: OrderedDict[tuple[str, KeyPlan], FileKeys] = OrderedDict()

    def get(self, path: str, plan: KeyPlan) -> FileKeys | None:
        found = self._keys.get((path, plan))
        if found is not None:
            self._keys.move_to_end((path, plan))
        return found

    def clear(self) -> None:
        self._keys.clear()
        self._bytes = 0

    def put(self, path: str, plan: KeyPlan, keys: FileKeys) -> None:
        if keys.bytes > self._limit_bytes:
            return
        replaced = self._keys.pop((path, plan), None)
        self._bytes += keys.bytes - (replaced.bytes if replaced else 0)
        self._keys[path, plan] = keys
        while self._bytes > self._limit_bytes:
            self._bytes -= self._keys.popitem(last=False)[1].bytes


class TablePlace:
    """Not thread-safe. After any StoreError: make a new one."""

    def __init__(self, table: IcebergTable, options: Options, cache: KeyCache, writer: str = "") -> None:
        """``writer``: whose name new files carry; whoever only reads needs none."""
        self.iceberg = table
        self.folder = datafiles.Folder(f"{table.place}/data", writer, table.storage)
        self._options = options
        self._cache = cache
        self._live: dict[str, Live] = {}
        self._live_at: int | None = None
        self._bounds: dict[tuple[str, KeyPlan], tuple[int, int] | None] = {}
        self._fields = table.fields
        self._files_seen: tuple[object, int | None] | None = None
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

    @property
    def _writes(self) -> bool:
        """An audit, which only reads, keeps to its own thread: its time is counted."""
        return bool(self.folder.writer)

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
            work = groups(batches, self.known(), self.position)
            if not work:
                self._sign(signed)
                return
            ends = [replace(signed, mark=_reaching(signed.mark, self.mark.cut, group.last)) for group in work[:-1]]
            if all(self._write(group, end) for group, end in zip(work, [*ends, signed], strict=True)):
                return
        raise StoreError(f"another writer keeps changing the warehouse's table {self.name}", retryable=True)

    def _refuse_earlier(self, signed: Signed) -> None:
        if self.iceberg.epoch > signed.epoch:
            raise EpochPassed(signed.store, self.iceberg.epoch)

    def _sign(self, signed: Signed) -> None:
        before = self.iceberg.snapshot
        try:
            self.iceberg.commit(self.iceberg.begin(), Changes(), signed, {})
        except (CommitConflict, CommitUnknown) as error:
            raise StoreError(f"the warehouse's table {self.name} was changed by somebody else", retryable=True) from error
        self.mark = signed.mark
        if self._live_at == before:
            self._live_at = self.iceberg.snapshot

    def _write(self, group: UpsertGroup, signed: Signed) -> bool:
        """Whether it could be committed; if not, somebody changed the table in between and nothing of ours is left."""
        last = final(group, self.position)
        pending, replaced = self._evolved(group)
        change = topic_change_of(group.batches[0])
        again: dict[str, datafiles.WrittenData] = {}
        replace_all = group.floor >= 0
        if change is None:
            # Rows under a key of another type come without a word of what becomes of those that are there.
            replace_all |= any(column.name in replaced for column in group.schema.key)
        else:
            self._cache.clear()  # a key column's name may stand for another column now
            self._bounds.clear()
            if not replace_all:
                again = self._written_again(change.schema, replaced, pending)
        self._fields, self._vector_files = pending.fields, ()
        written = self._write_rows(group, last)
        crashpoint("warehouse.files_written")
        try:
            self._commit(pending, group, last, written, again, replace_all, signed)
        except CommitConflict:
            for path in (*(piece.path for piece in (*written, *again.values())), *self._vector_files):
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

    def _evolved(self, group: UpsertGroup) -> tuple[Pending, frozenset[str]]:
        """A commit with the columns that these rows need, and the source's columns that start over in it."""
        pending, known, replaced = self.iceberg.begin(), self.known(), frozenset[str]()
        for schema in dict.fromkeys(topic_schema(batch.schema) for batch in group.batches):
            found = evolution(pending.fields, schema, known)
            pending = self.iceberg.evolve(pending, found.changes)
            replaced |= found.replaced
            known = schema
        return pending, replaced

    def _written_again(self, schema: TopicSchema, replaced: frozenset[str], pending: Pending) -> dict[str, datafiles.WrittenData]:
        """Files whose rows the change of columns alone would not show rightly → the same rows under the new definition.

        All of them where a column starts over (its values move over), else those in which ``_cdc_exact`` names a column by a name that is
        now another's or nobody's.
        """
        held = self.known()
        if held is None:
            return {}
        names = exact_names(self.iceberg.fields, held, pending.fields, schema)
        moved = {name for name, now in names.items() if name != now}
        exact = next(field for field in self.iceberg.fields if field.name == EXACT)
        return {
            path: self._file_again(live, held, schema, pending.fields)
            for path, live in list(self.live().items())
            if replaced or (moved and moved & exact_texts(self._read(path, [exact]).column(EXACT)).keys())
        }

    def _file_again(
        self, live: Live, held: TopicSchema, schema: TopicSchema, fields: Sequence[IcebergField]
    ) -> datafiles.WrittenData:
        gone, wanted = self.gone(live), arrow_schema(fields)
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

    def _write_rows(self, group: UpsertGroup, last: LastChanges) -> list[datafiles.WrittenData]:
        wanted = arrow_schema(self._fields)

        def convert(batch: pa.RecordBatch) -> pa.RecordBatch:
            return to_rows(batch, topic_schema(batch.schema), wanted)

        return datafiles.write(self.folder, wanted, group.batches, last.upserts, convert, self._options.file_bytes)

    def _commit(
        self,
        pending: Pending,
        group: UpsertGroup,
        last: LastChanges,
        written: Sequence[datafiles.WrittenData],
        again: Mapping[str, datafiles.WrittenData],
        replace_all: bool,
        signed: Signed,
    ) -> None:
        """``again``: file → what replaces it; such a commit has no rows of its own."""
        added = [self.iceberg.data_file(piece.path) for piece in written]
        rewritten = [self.iceberg.data_file(piece.path) for piece in again.values() if piece.rows]
        properties = {TABLE_KEY: group.schema.to_json()}
        if replace_all:
            self.iceberg.commit(pending, Changes(add=added, replace_all=True), signed, properties)
            self._live = {}
        else:
            self.live()  # what is added to it below has to be all of it, also where no row is looked for
            hits = {} if last.touched is None or group.plan is None else self.find(group.plan, group.schema, last.touched)
            emptied, vectors = self._vectors(hits)
            emptied += again
            dropped = [before for path in (*emptied, *vectors) if (before := self._live[path].vector) is not None]
            grown = [live.vector for live in vectors.values() if live.vector is not None]
            changes = Changes([*added, *rewritten], [self._live[path].file for path in emptied], grown, dropped)
            self.iceberg.commit(pending, changes, signed, properties)
            for path in emptied:
                del self._live[path]
            self._live.update(vectors)
            self._live.update({file.path: Live(file) for file in rewritten})
        crashpoint("warehouse.table_committed")
        for file, piece in zip(added, written, strict=True):
            self._live[file.path] = Live(file)
            if group.plan is not None and last.written is not None:
                keys = last.written[piece.first : piece.first + piece.rows]
                self._cache.put(file.path, group.plan, FileKeys(keys))
        self._live_at = self.iceberg.snapshot
        self.mark = signed.mark

    @property
    def listed(self) -> bool:
        """Whether it is known which files are live, so that nobody has to be asked."""
        return self._live_at is not None and self._live_at == self.iceberg.snapshot

    def missing(self) -> str | None:
        """The name of a file that the table needs and that is not there, if any. Looks only where files came or went since the last time."""
        storage = self.folder.storage
        now = storage.stamp(self.folder.location), self.iceberg.snapshot
        if now == self._files_seen:
            return None
        present = storage.names(self.folder.location)
        needed = [path for live in self.live().values() for path in (live.path, live.vector and live.vector.path) if path]
        for path in needed:
            if name_of(path) not in present and not storage.exists(path):
                return name_of(path)
        self._files_seen = now
        return None

    def merge(
        self, paths: Sequence[str], merged: Callable[[TablePlace, Sequence[Live]], datafiles.WrittenData], signed: Signed
    ) -> None:
        """Replaces these files by one. Raises CommitConflict or CommitUnknown; the table is whole either way."""
        # A file's lineage is known only from the table itself, not from its writing.
        self.look_again()
        chosen = [self.live()[path] for path in paths if path in self.live()]
        written = merged(self, chosen)
        added = [self.iceberg.data_file(written.path)] if written.rows else []
        vectors = [live.vector for live in chosen if live.vector is not None]
        changes = Changes(added, [live.file for live in chosen], drop_vectors=vectors, rewrite=True)
        try:
            self.iceberg.commit(self.iceberg.begin(), changes, replace(signed, mark=self.mark), {})
        except CommitConflict:
            self.folder.storage.remove(written.path)
            raise
        for live in chosen:
            del self._live[live.file.path]
            self._bounds = {key: value for key, value in self._bounds.items() if key[0] != live.file.path}
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

    def live(self) -> Mapping[str, Live]:
        """The live files at the table's current snapshot."""
        if self._live_at is None or self._live_at != self.iceberg.snapshot:
            self._live = {file.path: Live(file, vector) for file, vector in self.iceberg.files()}
            self._live_at = self.iceberg.snapshot
        return self._live

    def gone(self, live: Live) -> Int64s:
        if live.gone is not None:
            return live.gone
        gone = positions_of(live.vector, self.folder.storage)
        if live.vector is None:
            return gone
        self._live[live.file.path] = Live(live.file, live.vector, gone)
        return gone

    def find(self, plan: KeyPlan, schema: TopicSchema, wanted: Int64s | pa.Array) -> dict[str, Int64s]:
        """Where these keys stand: data file → row positions, rising. Deleted rows are found too."""
        found: dict[str, Int64s] = {}
        for path in list(self.live()):
            if self._may_hold(path, plan, schema, wanted):
                positions = self._file_keys(path, plan, schema).find(wanted)
                if len(positions):
                    found[path] = positions
        return found

    def _may_hold(self, path: str, plan: KeyPlan, schema: TopicSchema, wanted: Int64s | pa.Array) -> bool:
        """False when the file's own statistics rule all of these keys out."""
        if not plan.numeric or not len(wanted):
            return bool(len(wanted))
        if (path, plan) not in self._bounds:
            self._bounds[path, plan] = datafiles.bounds(path, self._key_field(plan.names[0], schema).id, self.folder.storage)
        limits = self._bounds[path, plan]
        return limits is None or bool(np.any((wanted >= limits[0]) & (wanted <= limits[1])))

    def _key_field(self, name: str, schema: TopicSchema) -> IcebergField:
        label = labels(schema)[name]
        return next(field for field in self._fields if field.name == label)

    def _file_keys(self, path: str, plan: KeyPlan, schema: TopicSchema) -> FileKeys:
        cached = self._cache.get(path, plan)
        if cached is not None:
            return cached
        fields = {name: self._key_field(name, schema) for name in plan.names}
        exact = next(field for field in self._fields if field.name == EXACT)
        rows = self._read(path, [*fields.values(), *(() if plan.numeric or plan.plain else (exact,))])

        def column(name: str) -> pa.Array:
            values = rows.column(EXACT if name == EXACT else fields[name].name).combine_chunks()
            return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values

        keys = FileKeys(encode(plan, column, rows.num_rows))
        self._cache.put(path, plan, keys)
        return keys

    def _read(self, path: str, fields: Sequence[IcebergField]) -> pa.Table:
        return datafiles.read(path, fields, storage=self.folder.storage, threads=self._writes)

    def rows(self, path: str, positions: Int64s, schema: TopicSchema) -> pa.Table:
        """These rows of a file, those deleted left out, as ``sinks.contract.audit_schema(schema)``."""
        names = {*labels(schema).values(), EXACT}
        kept = np.setdiff1d(positions, self.gone(self.live()[path]))
        rows = self._read(path, [field for field in self._fields if field.name in names])
        return to_text(rows.take(pa.array(kept)), schema)


def positions_of(vector: Vector | None, storage: Storage) -> Int64s:
    """The positions of the rows that are gone, rising."""
    if vector is None:
        return _NONE_GONE
    with reading(vector.path), storage.opened(vector.path) as file:
        file.seek(vector.offset)
        return decode(file.read(vector.length))


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


def _reaching(mark: Mark, cut: Cut, position: int) -> Mark:
    """What a table is marked with in the middle of a range: of the last whole cut it has the LSN."""
    return replace(mark, cut=replace(cut, position=Position(position)))
