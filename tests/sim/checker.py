"""Holds a run's history against what was promised. Every broken promise is a ``Violation`` naming its rule.

====  ==================================================================================================================
(a)   nothing committed and acknowledged is lost: what was confirmed to the server is in the log after every accident
(b)   no phantom: every row in the log was committed at the source with exactly these values
(c)   a position means one change for ever, over crashes and re-reads
(d)   the log has the commits in their order, each commit's rows in order, once
(e)   per key, a store never goes back to an older row, nor to an older cut
(f)   a store at cut N is the fold of the log up to N; that fold is the source's state then, or a part of it while a snapshot is under way
(g)   cuts are atomic: no commit is spread over two, and stores that commit as a whole show whole cuts only
(h)   only what is on the disk is confirmed
(i)   after the faults have stopped, everything becomes equal within a bounded number of steps
(j)   whatever befell a store, nobody is told that it holds what it does not
(k)   a store that another log, or another past of this one, has marked is taken for nobody else's; and this log's own is not refused
(l)   where a store takes its calls in order, whoever was replaced writes nothing more
(m)   a store whose rows are to keep their shape, or that is to ask before it changes, does
(n)   what a producer hands over through the inbox is in the log once, in its order, each group as one cut with its mark, which repeats the source's
      LSN; nothing of an opening comes that another has fenced; whoever contradicts himself is stopped, and nobody else
(o)   no row vanishes: while a store is built again, it shows every row at all times that it showed before and that the log
      still has, as its readers see it then
(p)   a view's topic is what its SQL makes of its tables' rows where its mark is; each of its changes is in the log once; its mark is a cut, never
      goes back nor beyond the head; of two processes that keep it up, only the later one's changes come; it is stopped for nothing
====  ==================================================================================================================
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import pyarrow as pa

from cdc.log.embedded.names import LogPlaces
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.model.batch import Op
from cdc.model.position import Cut, Position
from cdc.model.table import DERIVED_OID, Table
from sinks.memoryunits import Store
from tests.sim import compacted
from tests.sim.disk import ModelDisk
from tests.sim.entries import Entry, Folded, merged, of_batches, with_old_rows
from tests.sim.expected import Expected, expected_of, go_by_tag
from tests.sim.inboxcheck import InboxCheck
from tests.sim.source import Source
from tests.sim.storecheck import StoreCheck, slim
from tests.sim.tables import Key, Row, conversions, first_name, identity_of, keyless, retypes, tag_of, written_again
from tests.sim.viewcheck import TOPIC, ViewCheck
from tests.sim.violation import Violation as Violation
from tests.sim.wal import Change, Rows, State, converted


@dataclass
class Checker:
    source: Source
    disk: ModelDisk
    asked: Collection[Key] = ()
    """Keys of rows that somebody asked to be read again: for those that do not exist the log gets a delete. So it may for any row of a table that
    was read again in place of what the log had."""
    complete: dict[int, int] = field(default_factory=dict)
    """Tables whose snapshot is finished → where the WAL stood then: from that commit on all their rows are in the log (an empty table is
    finished at once, though the log may still be where it had rows)."""
    finished: dict[int, int] = field(default_factory=dict)
    """The same, of before the bytes were taken that led to the cuts that come now: holding a row back makes a table unfinished."""
    _remembered: set[int] = field(default_factory=set)
    """Those of them whose rows are known, so that none need be held back."""
    _whole: set[int] = field(default_factory=set)
    """Those of them that the log has reached."""
    undisturbed: Callable[[], AbstractContextManager[object]] = nullcontext
    """Within this all of the log can be read: a tier answers."""
    last: Cut = field(default=Cut(0, 0))  # type: ignore[arg-type]
    entries: list[Entry] = field(default_factory=list)
    """entries[p - 1] is position p's."""
    cuts: list[tuple[int, Folded]] = field(default_factory=list)
    """(position, what the log folds to there)."""
    waiting: dict[int, set[Key]] = field(default_factory=dict)
    """Held rows: the log has them in an older version, or not at all."""
    waited: int = 0
    confirmed: int = 0
    clean: dict[str, int] = field(default_factory=dict)
    """Topic → its clean point, or what it was to become: changes below it may be gone that later ones below it have superseded."""
    floors: dict[str, int] = field(default_factory=dict)
    """Topic → its floor, or what it was to become: DELETEs and TRUNCATEs below it may be gone, once nothing is left for them to take away."""
    _batches: dict[str, list[pa.RecordBatch]] = field(default_factory=dict)
    """The log as it was first read, by topic."""
    _cuts_seen: int = 0
    _commits: int = 0
    _state: State = field(default_factory=State)
    _fold: dict[int, dict[Key, Entry]] = field(default_factory=dict)
    _rewritten: dict[int, int] = field(default_factory=dict)
    """Position of each table's last REWRITTEN record, or of the cut in which a column took another type: nothing before it is remembered."""
    forgotten: dict[int, int] = field(default_factory=dict)
    """Where the log stood when capture gave up what it remembered of a table, because the log may lack what the stream has brought of it, or was away."""
    _segments: dict[tuple[str, int], Path] = field(default_factory=dict)
    _gone: set[int] = field(default_factory=set)
    """Tables that were dropped, as of the newest cut."""
    _topics: dict[int, str] = field(default_factory=dict)
    """The topic in which each table's rows stand."""
    _tables: dict[int, Table] = field(default_factory=dict)
    """Each table's newest definition in the log."""
    _defined: dict[int, Table] = field(default_factory=dict)
    """The definition of each table that was altered, as of the newest cut."""
    _dropped: dict[int, set[str]] = field(default_factory=dict)
    """Columns that tables once had, as of the newest cut."""
    _slims: dict[int, tuple[Row, Row]] = field(default_factory=dict)
    """By identity, so each with the row itself: no other one gets its identity."""

    @cached_property
    def stores(self) -> StoreCheck:
        return StoreCheck(self)

    @cached_property
    def inbox(self) -> InboxCheck:
        return InboxCheck()

    def begin(self, initial: State) -> None:
        """The log begins after these rows."""
        self._state = initial.copied()
        self._commits = len(self.source.commits)
        self._fold = {oid: {} for oid in self.source.tables}
        self.waiting = {oid: set() for oid in self.source.tables}
        self.cuts[:] = [(0, self._copied())]

    @cached_property
    def views(self) -> ViewCheck:
        return ViewCheck(self.cuts)

    @property
    def known(self) -> Collection[str]:
        """Every topic that the log has had."""
        return self._batches.keys()

    # --- the log ------------------------------------------------------------------------------------------------------------------

    def log_grew(self, reader: EmbeddedLogReader) -> None:
        """Takes in every cut that is new."""
        head = reader.head()
        if (head.position, head.commit_lsn) == (self.last.position, self.last.commit_lsn):
            return
        with self.undisturbed():
            self._grow(reader, head)

    def _grow(self, reader: EmbeddedLogReader, head: Cut) -> None:
        if head.position < self.last.position or head.commit_lsn < self.last.commit_lsn:
            raise Violation("a", f"the log went back from {self.last} to {head}")
        new = self._read(reader, head.position)
        if [entry.position for entry in new] != list(range(self.last.position + 1, head.position + 1)):
            raise Violation("d", f"positions are not dense between {self.last.position} and {head.position}")
        self.entries += new
        timeline = reader.timeline
        assert timeline is not None
        at = self.last.position
        for cut in reader.cuts(self._cuts_seen):
            entries = self.entries[at : cut.position]
            if any(entry.oid >= DERIVED_OID for entry in entries):
                self._take_handed_over(cut, entries)
                marks = reader.marks(cut.position)
                if entries[0].topic == TOPIC:
                    self.views.took(self.last, cut, entries, marks)
                else:
                    self.inbox.marked(cut, entries[0].topic, marks)
            else:
                self._take(cut, entries)
            at = cut.position
            self.last = cut
        self._cuts_seen = timeline.groups
        if self.views.models:
            self.views.marked(self.last.position, reader.marks(self.last.position))

    def reread(self, reader: EmbeddedLogReader) -> None:
        """After an accident: everything that was durable is there, and is what it was."""
        head = reader.head()
        if head.position < self.last.position or head.commit_lsn < self.last.commit_lsn:
            raise Violation("a", f"the log came back at {head}, it had been durable up to {self.last}")
        if head.commit_lsn < self.confirmed:
            raise Violation("a", f"confirmed up to {self.confirmed:X}, the log came back at {head}")
        with self.undisturbed():
            self._compare_again(reader)
        self.log_grew(reader)

    def _compare_again(self, reader: EmbeddedLogReader) -> None:
        for topic, known in self._batches.items():
            known[:] = merged(known)
            found = merged(with_old_rows(reader, topic, Position(0), self.last.position))
            # Arrow's equality first: it is quick. It takes no NaN for another, so what differs is looked at value by value.
            if topic in self.clean:
                # Only a record that stands alone in its batch tells that it empties the topic.
                entries = [replace(self.entries[one.position - 1], row=one.row) for one in of_batches(known, topic)]
                compacted.check(entries, of_batches(found, topic), self.clean[topic], self.floors[topic])
            elif found != known and [*of_batches(found, topic)] != [*of_batches(known, topic)]:
                both = zip(of_batches(found, topic), of_batches(known, topic), strict=False)
                different = next((a for a, b in both if a != b), None)
                raise Violation("c", f"read again, {different or 'the number of changes'} is not what it was")

    def _read(self, reader: EmbeddedLogReader, upto: Position) -> list[Entry]:
        timeline = reader.timeline
        assert timeline is not None
        found: list[Entry] = []
        for topic, number in timeline.numbers.items():
            if timeline.topics[number].last > self.last.position:
                batches = with_old_rows(reader, topic, self.last.position, upto)
                self._batches.setdefault(topic, []).extend(batches)
                found += of_batches(batches, topic)
        return sorted(found, key=lambda entry: entry.position)

    def _take(self, cut: Cut, entries: list[Entry]) -> None:
        self._whole = {oid for oid, lsn in self.complete.items() if lsn <= cut.commit_lsn}
        self._remembered = {oid for oid, lsn in self.finished.items() if lsn <= self.last.commit_lsn}
        expected: deque[Expected] = deque()
        ends_at = 0
        while self._commits < len(self.source.commits) and self.source.commits[self._commits].end_lsn <= cut.commit_lsn:
            commit = self.source.commits[self._commits]
            expected += expected_of(commit)
            ends_at = commit.end_lsn
            for change in commit.changes:
                self._happen(change)
                if change.kind == "A" and retypes(*change.tables):
                    self._rewritten[change.tables[1].oid] = cut.position
            self._commits += 1
        reads = 0
        for entry in entries:
            at_watermark = entry.lsn in (ends_at, cut.commit_lsn)
            looked_for = entry.key in self.asked or entry.oid in self._rewritten
            if entry.op == Op.READ or (entry.op == Op.DELETE and at_watermark and looked_for):
                reads += 1
                if not at_watermark:
                    raise Violation("g", f"{entry} entered elsewhere than at its watermark")
                self._skip_waiting(expected, None)
                self._check_read(entry, cut)
            elif entry.op == Op.SCHEMA:
                self._take_schema(entry)
                continue
            else:
                if reads:
                    raise Violation("g", f"{entry} stands behind rows of a chunk in one cut")
                self._skip_waiting(expected, entry)
                if not expected:
                    raise Violation("b", f"{entry} was never committed, or not yet, or is there twice")
                if self._goes_by_tag(entry.oid, entry.table):
                    go_by_tag(expected)
                awaited = expected.popleft()
                if not awaited.matches(entry):
                    raise Violation("d", f"{entry}, but the source has {awaited}")
            self._fold_in(entry)
        self._skip_waiting(expected, None)
        self._compare(cut)
        self.cuts.append((cut.position, self._copied()))

    def _take_handed_over(self, cut: Cut, entries: list[Entry]) -> None:
        """A producer's of the inbox."""
        if entries[0].topic != TOPIC:
            self.inbox.took(self.last, cut, entries)
        for entry in entries:
            self._fold.setdefault(entry.oid, {})
            self.waiting.setdefault(entry.oid, set())
            if entry.op == Op.SCHEMA:
                self._take_schema(entry)
            else:
                self._fold_in(entry)
        self.cuts.append((cut.position, self._copied()))

    def _happen(self, change: Change) -> None:
        """What the source has committed. The rows of a table that was dropped stay until the log says that they are gone."""
        if change.kind != "X":
            self._state.apply(change)
        if change.kind == "X":
            self._gone.add(change.tables[0].oid)
        elif change.kind == "C":
            self._fold[change.tables[0].oid], self.waiting[change.tables[0].oid] = {}, set()
        elif change.kind == "A":
            self._defined[change.tables[1].oid] = change.tables[1]
            before, after = ({first_name(name) for name in table.names} for table in change.tables)
            self._dropped.setdefault(change.tables[1].oid, set()).update(before - after)

    def _take_schema(self, entry: Entry) -> None:
        assert entry.table is not None
        if entry.rewritten:
            self._rewritten[entry.oid] = entry.position
        if entry.empties:
            self._leave(entry)
        rows, before = self._fold[entry.oid], self._tables.get(entry.oid)
        self._stand(entry)
        if entry.empties:
            rows.clear()
            self.waiting[entry.oid].clear()
        elif before is not None and (kept := written_again(before, entry.table)) is not None:
            # What was renamed is not known where the catalog had forgotten the table already; nothing is left then to be read again.
            lost = entry.oid not in self.source.tables and not all(column.attnum for column in entry.table.columns)
            for key, known in rows.items():
                assert known.row is not None
                row = {new: known.row[old] for new, old in kept.items() if old in known.row}
                rows[key] = replace(known, row=row, again=entry.position, stale=known.stale or entry.rewritten or lost)
            entry.rows = {key: known.row or {} for key, known in rows.items()}
        elif entry.rewritten:  # they are read again; until then they are as a type wrote them that another has followed since
            rows.update((key, replace(known, stale=True)) for key, known in rows.items())

    def _skip_waiting(self, expected: deque[Expected], entry: Entry | None) -> None:
        """Passes over updates that were held back."""
        while expected and (entry is None or not expected[0].matches(entry)):
            if not expected[0].may_wait:
                if entry is None:
                    raise Violation("a", f"{expected[0]} is missing in the log")
                return
            awaited = expected.popleft()
            known = self._fold[awaited.oid].get(awaited.key) if awaited.oid in self._remembered else None
            if known is not None and known.position > max(of.get(awaited.oid, 0) for of in (self._rewritten, self.forgotten)):
                raise Violation("f", f"{awaited} was held back, though the log knows its row")
            self.waiting[awaited.oid].add(awaited.key)
            self.waited += 1

    def _check_read(self, entry: Entry, cut: Cut) -> None:
        row = self._rows_of(entry.oid).get(entry.key)
        if entry.op == Op.DELETE:
            if row is not None:
                raise Violation("f", f"{entry}, which was asked for, is not the row at commit {cut.commit_lsn:X}")
            return
        if row is None:
            raise Violation("f", f"{entry}: no such row at commit {cut.commit_lsn:X}")
        if not self._is_row(entry, row) and not self._was_row(entry, row):
            raise Violation("f", f"{entry} is not the row at commit {cut.commit_lsn:X}, which is tag {row.get('tag')}")

    def _fold_in(self, entry: Entry) -> None:
        self._stand(entry)
        rows = self._fold[entry.oid]
        if entry.op == Op.TRUNCATE:
            rows.clear()
            self.waiting[entry.oid].clear()
            return
        if entry.op == Op.DELETE:
            rows.pop(entry.key, None)
        else:
            rows[entry.key] = entry
        self.waiting[entry.oid].discard(entry.key)

    def _stand(self, entry: Entry) -> None:
        """The table has this definition, in this topic: no other table may have its rows there."""
        assert entry.table is not None
        if self._topics.get(entry.oid) != entry.topic:
            for oid, topic in self._topics.items():
                if topic == entry.topic:
                    raise Violation("f", f"{entry} of table {entry.oid} stands among the rows of table {oid}")
            self._topics[entry.oid] = entry.topic
        before = self._tables.get(entry.oid)
        known = () if before is None or before is entry.table or keyless(before) else identity_of(before)
        if known and keyless(entry.table) and set(known) <= set(entry.table.names):
            raise Violation("d", f"{entry} has lost its key, which the log knew")
        self._tables[entry.oid] = entry.table

    def _leave(self, entry: Entry) -> None:
        """Every earlier row of the topic is gone, whichever table's it was."""
        for oid in [oid for oid, topic in self._topics.items() if topic == entry.topic and oid != entry.oid]:
            del self._topics[oid]
            self._fold[oid].clear()
            self.waiting[oid].clear()

    def _compare(self, cut: Cut) -> None:
        for oid, rows in self._fold.items():
            if oid >= DERIVED_OID:
                continue
            state, waiting = self._rows_of(oid), self.waiting[oid]
            waiting &= state.keys()
            for key, entry in rows.items():
                if key in waiting or (key in state and (self._is_row(entry, state[key]) or entry.stale)):
                    continue
                if key not in state or not self._was_row(entry, state[key]):
                    raise Violation("f", f"at {cut} the log says {entry}, the source has {state.get(key)!r:.200}")
            if oid in self._whole and not waiting and len(rows) != len(state):
                raise Violation("f", f"at {cut} table {oid} has {len(state)} rows, the log folds to {len(rows)}")

    def _rows_of(self, oid: int) -> Rows:
        """The source's, by what tells them apart in the log."""
        rows = self._state.get(oid, {})
        return {tag_of(row): row for row in rows.values()} if self._goes_by_tag(oid, self._tables.get(oid)) else rows

    def _goes_by_tag(self, oid: int, table: Table | None) -> bool:
        """Whether the whole row is the key in the log, though the table has one: under FULL the catalog alone tells it, and it may have had another
        name for a column of it when the row came. Once the log knows the key, all rows come again under it."""
        return oid in self.source.rekeyed and table is not None and keyless(table)

    def _is_row(self, entry: Entry, row: Row) -> bool:
        """Whether the log has this row of the source. What it still has in columns that are gone by now does not count."""
        wanted = self._slimmed(row)
        if wanted == entry.row:
            return True
        dropped = self._dropped.get(entry.oid)
        if not dropped or entry.row is None:
            return False
        return {name: value for name, value in entry.row.items() if name not in dropped} == wanted

    def _was_row(self, entry: Entry, row: Row) -> bool:
        """Whether it is the row but for the way in which values are written since a column has got another type: then it is read again."""
        now = self._defined.get(entry.oid)
        if now is None or entry.table is None or entry.row is None:
            return False
        others = {first_name(name): convert for name, convert in conversions(entry.table, now).items()}
        return bool(others) and self._is_row(replace(entry, row=converted(entry.row, others)), row)

    def _slimmed(self, row: Row) -> Row:
        """``slim`` of one of the source's rows, which are never changed in place and are asked for at every cut."""
        known = self._slims.get(id(row))
        if known is None:
            known = self._slims[id(row)] = row, slim(row)
        return known[1]

    def _copied(self) -> Folded:
        """By the topics that tables have there; a topic that a table has left, and that still is one, is not among them."""
        return {self._topics[oid]: dict(rows) for oid, rows in self._fold.items() if oid in self._topics}

    # --- what the server is told ----------------------------------------------------------------------------------------------------

    def check_confirmed(self, lsn: int, root: LogPlaces, log: EmbeddedLogReader) -> None:
        """Rule h, against what the worst power loss at this moment would leave."""
        self.confirmed = max(self.confirmed, lsn)
        timeline = log.timeline
        if timeline is None or timeline.head.commit_lsn < lsn:
            raise Violation("h", f"confirmed {lsn:X}, published is {timeline and timeline.head}")
        lengths = [*timeline.before.volumes["length"].tolist(), timeline.length]
        if any(self.disk.lacks(root.timeline(number), length) for number, length in enumerate(lengths, 1)):
            raise Violation("h", f"confirmed {lsn:X}, but the disk lacks entries of the timeline")
        for index in timeline.topics.values():
            if not index.rows:
                raise Violation("h", f"confirmed {lsn:X}, but the timeline names {index.name} without any change of it")
            last = index.parts[-1]
            path = self._segment(root, index.name, int(last["segment"]))
            if self.disk.lacks(path, int(last["end"])):
                raise Violation("h", f"confirmed {lsn:X}, but the disk lacks bytes of {path.name}")

    def _segment(self, root: LogPlaces, topic: str, first: int) -> Path:
        """Put together once: it is asked for at every word to the server."""
        path = self._segments.get((topic, first))
        if path is None:
            path = self._segments[topic, first] = root.segment(topic, first)
        return path

    # --- the end --------------------------------------------------------------------------------------------------------------------

    def differences(self, stores: Iterable[tuple[str, Store]], head: Cut) -> Iterator[str]:
        """What is not equal yet, now that the source is at rest. Rule i says that this becomes empty."""
        if self.last != head:
            yield "the checker has not seen the whole log"
        if self._commits < len(self.source.commits):
            missing = self.source.commits[self._commits :]
            if any(expected_of(commit) for commit in missing):
                yield f"{len(missing)} commits are not in the log"
        for oid, rows in self._fold.items():
            if oid >= DERIVED_OID:
                continue
            if oid not in self.complete and oid not in self._gone:
                yield f"the snapshot of table {oid} is not finished"
            visible = self.source.visible.get(oid, {})
            if rows.keys() != visible.keys() or not all(self._is_row(entry, visible[key]) for key, entry in rows.items()):
                yield f"table {oid} in the log is not the source's"
        yield from self.stores.differences(stores, head)
