"""Indexed messages → groups: what each message means under the definitions in force, in the order in which the log gets it. Pure but for what it
is handed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from cdc.capture import letters
from cdc.capture.assembly import Grouping
from cdc.capture.authenticity import WATERMARK_PREFIX, Authenticity, watermarks
from cdc.capture.ddlmessages import DDL_PREFIX
from cdc.capture.deferral import Replay
from cdc.capture.definitions import Definitions
from cdc.capture.inforce import InForce
from cdc.capture.messages import RARE, Commit, Index, body_of, scan_spooled
from cdc.capture.relations import parse_message, parse_truncate
from cdc.capture.rows import RowBatches
from cdc.model.evolution import SchemaChange
from cdc.model.group import Group, Transactions, Watermark
from cdc.pgvalues.values import Bytes


class Groups:
    """Makes groups for one connection. ``schema``: what the log says of each table. ``head_lsn``: as for the decoder."""

    def __init__(
        self, schema: Definitions, in_force: InForce, rows: RowBatches, authenticity: Authenticity, head_lsn: int = 0
    ) -> None:
        self._schema = schema
        self._in_force = in_force
        self._rows = rows
        self._authenticity = authenticity
        self._head_lsn = head_lsn
        self._watermark: Watermark | None = None
        """Seen in a group that was not complete."""

    def mark(self, block: Bytes, index: Index) -> None:
        """See ``Authenticity.mark``: to be called with a block's index before its groups are taken."""
        self._authenticity.mark(block, index)

    def pass_over(self, block: Bytes, loose: npt.NDArray[np.int64]) -> None:
        """See ``EventMessages.pass_over``."""
        self._authenticity.events.pass_over(block, loose)

    def awaits(self, torn: bytes) -> bool:
        """See ``EventMessages.awaits``."""
        return self._authenticity.events.awaits(torn)

    def cuts(self, block: Bytes, index: Index, begin: int, end: int) -> list[int]:
        """Returns where groups end: behind each transaction that carries one of our watermarks; and where the log has come to, for a group's first
        transaction may bring a definition although the rows under it come with a later one."""
        marks = watermarks(block, index, begin, end)
        passes = begin < end and int(index.commit_lsn[index.transaction[begin]]) < self._head_lsn
        if not marks and not passes:
            return []
        commits = begin + (index.kind[begin:end] == letters.COMMIT).nonzero()[0]
        found = {int(commits[commit]) + 1 for commit in np.searchsorted(commits, marks) if commit < len(commits)}
        if passes:
            found.update((commits[index.end_lsn[index.transaction[commits]] <= self._head_lsn][-1:] + 1).tolist())
        return sorted(found)

    def replay(self, replay: Replay, next_position: Callable[[], int]) -> Iterator[Group]:
        """A transaction that waited and has committed. Only the last group is complete, and says where the commit ends.

        Its descriptions of tables hold for its own rows: the server sends what each streamed transaction needs within it, and again after one
        of its subtransactions was rolled back.
        """
        commit = replay.commit
        unfinished = Commit(commit.xid, commit.commit_lsn, commit.commit_ts_us, 0)
        for piece in replay.pieces:
            index = scan_spooled(piece.block, 0, piece.stop, unfinished, replay.aborted)
            self._authenticity.mark(piece.block, index)
            if len(index.kind):
                where = piece.at
                yield from self.take(
                    piece.block,
                    index,
                    0,
                    len(index.kind),
                    next_position,
                    complete=False,
                    ordinal_at=lambda at, where=where: replay.ordinal_at(where + at),  # type: ignore[misc]
                    doubtful=replay.doubtful,
                )
        nothing = np.empty(0, np.uint8)
        yield from self.take(nothing, scan_spooled(nothing, 0, 0, commit, None), 0, 0, next_position, complete=True)
        self._in_force.replayed()

    def take(
        self,
        block: Bytes,
        index: Index,
        begin: int,
        end: int,
        next_position: Callable[[], int],
        *,
        complete: bool,
        ordinal_at: Callable[[int], int] | None = None,
        doubtful: bool = False,
    ) -> Iterator[Group]:
        """Messages [begin, end) as one group, or as several where much is filled in.

        ordinal_at: of the RELATION message at an offset of the block, where it is not the one that is current.
        doubtful: what messages say of definitions may have been rolled back.
        """
        while True:
            made = Grouping(self._rows, block, index, begin, end, next_position())
            watermark = self._take_in(made, block, index, begin, end, ordinal_at, doubtful=doubtful)
            whole = complete and made.whole
            if whole:
                watermark, self._watermark = watermark or self._watermark, None
            else:
                self._watermark, watermark = watermark or self._watermark, None
            yield made.finish(watermark, self._schema, self._authenticity.events, complete=whole)
            begin = made.end
            if begin == end:
                return

    def _take_in(
        self,
        group: Grouping,
        block: Bytes,
        index: Index,
        begin: int,
        end: int,
        ordinal_at: Callable[[int], int] | None,
        *,
        doubtful: bool,
    ) -> Watermark | None:
        """Messages from ``begin`` on until the group is full, or ``end``; RELATION and TRUNCATE messages divide them into runs of plain rows."""
        watermark = None
        if self._in_force.untold and end > begin and self._rows.wanted(index, int(index.transaction[begin])):
            for oid in np.intersect1d(list(self._in_force.untold), index.relation[begin:end]).tolist():
                if _rows_follow(block, index, begin, end, oid):
                    group.tell(self._schema.enter(self._in_force.untold.pop(oid)), begin)
        for at in (begin + RARE[index.kind[begin:end]].nonzero()[0]).tolist():
            if group.full(at):
                return watermark
            body = body_of(block, index, at)
            wanted = self._rows.wanted(index, int(index.transaction[at]))
            match chr(index.kind[at]):
                case "Y":
                    self._in_force.on_type(body)
                case "R":
                    table = self._in_force.relations.parse_relation(body)
                    if not wanted:
                        table = self._schema.standing(table)
                        if self._schema.logs(table.oid):
                            self._in_force.untold.pop(table.oid, None)  # what a replay brought back
                        else:
                            self._in_force.untold[table.oid] = table  # its rows may come without being described again
                    changes = []
                    if wanted and _rows_follow(block, index, at + 1, end, table.oid):
                        self._in_force.untold.pop(table.oid, None)
                        if (table.oid in self._schema.passed_over) == bool(table.key):
                            group.flush(at)  # rows before this are logged, or passed over, as before
                        changes = self._schema.enter(table)
                    elif wanted:
                        self._in_force.untold[table.oid] = table
                    known = self._in_force.relations.known(table)
                    if changes or self._schema.displaces or (not known and group.has_rows(table.oid, at)):
                        group.flush(at)
                    self._in_force.define(table, body, ordinal_at(int(index.body[at])) if ordinal_at else self._in_force.ordinal)
                    group.tell(changes, at)
                    group.tell(self._go_on_elsewhere(), at)
                case "T":
                    group.flush(at)
                    relations = parse_truncate(body).relations if wanted else ()
                    for oid in self._in_force.untold.keys() & set(relations):
                        group.tell(self._schema.enter(self._in_force.untold.pop(oid)), at)
                    here = [oid for oid in relations if oid not in self._schema.passed_over]
                    group.truncate([self._in_force.relations.table(oid) for oid in here], at)
                case "M":
                    message = parse_message(body)
                    if message.prefix == WATERMARK_PREFIX and message.transactional:
                        watermark = Watermark(message.content, message.lsn)
                    elif message.prefix == DDL_PREFIX and message.transactional and wanted:
                        # The log has come past it without a change. What is known by now, such as from the catalog at the start, would
                        # make one of it, in a place that has none; the next look at the catalog tells of it where it belongs.
                        passed = index.ends_by(int(index.transaction[at]), self._head_lsn)
                        self._on_facts(group, message.content, at, doubtful=doubtful or passed)
                case _:  # O: where a forwarded transaction came from; nothing of ours depends on it
                    pass
        group.full(end)
        return watermark

    def _on_facts(self, group: Grouping, content: bytes, at: int, *, doubtful: bool) -> None:
        if doubtful:
            self._schema.doubt(content)
            return
        group.flush(at)
        changes, tables = self._schema.on_message(content)
        for table in tables:
            self._in_force.relations.relabel(table)
        group.tell(changes, at)
        group.tell(self._go_on_elsewhere(), at)

    def _go_on_elsewhere(self) -> list[SchemaChange]:
        """Tables whose names others have taken: their next rows come under the names that they have now."""
        changes = []
        while displaced := self._schema.take_displaced():
            for oid, schema, name in displaced:
                if self._in_force.relations.has(oid):
                    table = replace(self._in_force.relations.table(oid), schema=schema, name=name)
                    self._in_force.relations.put(table)
                    changes += self._schema.enter(table)
        return changes


def passed(commit: Commit, position: int) -> Group:
    """A commit that the log has, and of which nothing else is known any more."""
    transactions = Transactions(
        np.array([commit.xid], np.uint32),
        np.array([commit.end_lsn], np.int64),
        np.array([commit.commit_ts_us], np.int64),
        np.array([position - 1], np.int64),
    )
    return Group((), transactions)


def _rows_follow(block: Bytes, index: Index, begin: int, end: int, oid: int) -> bool:
    """Whether a row of the table comes in messages [begin, end) before the table is described again."""
    rows = (index.relation[begin:end] == oid).nonzero()[0]
    if not len(rows):
        return False
    described = begin + (index.kind[begin : begin + int(rows[0])] == letters.RELATION).nonzero()[0]
    return all(int.from_bytes(body_of(block, index, at)[:4], "big") != oid for at in described)
