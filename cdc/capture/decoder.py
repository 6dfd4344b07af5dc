"""A block of the walsender's bytes → groups of whole transactions as Arrow batches. Pure but for what it is handed.

One block usually holds many small transactions, which become one group; a transaction larger than ``OPEN_BYTES`` comes out in
several groups of which only the last is ``complete``. The caller appends each group to the log before it asks for the next.

Transactions that the server sends before they have ended go to a spool as they come; their end brings them back through the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Final, assert_never

import numpy as np

from cdc.capture.authenticity import PASSED, WATERMARK_PREFIX, Authenticity, watermarks
from cdc.capture.control import (
    BeginPrepare,
    CommitPrepared,
    Prepare,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamStart,
    StreamStop,
    parse_control,
)
from cdc.capture.definitions import DDL_PREFIX, Definitions
from cdc.capture.grouping import Grouping
from cdc.capture.messages import SPAN, SPOOLING, Aborted, Commit, Index, Inside, Open, Scan, scan, scan_spooled
from cdc.capture.prepared import Prepared
from cdc.capture.relations import Relations, parse_message, parse_truncate
from cdc.capture.rows import Hold, Memory, Rows
from cdc.capture.spool import Piece, Spool, Spools
from cdc.errors import ProtocolError
from cdc.model.evolution import SchemaChange
from cdc.model.group import Group, Transactions, Watermark
from cdc.model.table import Table
from cdc.pgvalues.values import Bytes

OPEN_BYTES: Final = 8 * 2**20
"""An unfinished transaction is kept as bytes up to this size; beyond it, its rows go to the log's staging as they come."""

PASSED_BYTES: Final = 2**20
"""A logical message of somebody else's that lacks more than this is not put together: everybody may emit such of up to 1 GB."""
HEAD_BYTES: Final = 5 + 25 + 1 + 9 + len(DDL_PREFIX) + 1 + 4
"""Of a logical message, up to its content: frame header, XLogData header, letter, flags and LSN, prefix, length."""

_COMMIT = ord("C")
_RARE: Final = np.ones(256, np.bool_)
_RARE[[ord("I"), ord("U"), ord("D"), ord("B"), _COMMIT, PASSED]] = False


class Decoder:
    """Decodes one connection's stream. ``durable_lsn``: transactions that end at or before it are in the log already.

    spools, prepared: where transactions wait for their end; without them a server that sends such is refused (ProtocolError).
    """

    def __init__(
        self,
        definitions: Definitions,
        memory: Memory,
        hold: Hold,
        durable_lsn: int,
        spools: Spools | None = None,
        prepared: Prepared | None = None,
        awaits: Callable[[bytes], bool] = lambda _: True,
    ) -> None:
        """``awaits``: whether a watermark with this content is on its way; another is somebody else's."""
        self._authenticity = Authenticity(definitions, awaits)
        self.schema = definitions
        """What the log says of each table."""
        self._relations = Relations(definitions)
        self._memory = memory
        self._rows = Rows(self._relations, memory, hold, durable_lsn)
        self._spools = spools
        self._prepared = prepared
        self._open: Open | None = None
        self._inside = Inside.NOTHING
        """STREAM or PREPARED between two blocks of bytes, with the spool that is being filled:"""
        self._filling: Spool | None = None
        self._ordinal = 0
        """Odd within a streamed block, even between two: orders RELATION messages as they came, whenever their rows are decoded."""
        self._said: dict[int, int] = {}
        """Table OID → ordinal of the RELATION message in force."""
        self._returning: dict[int, Table] = {}
        """Definitions newer than those of the transaction that is being replayed, to be in force again after it."""
        self._described: dict[int, Table] = {}
        """Definitions in force of which the log has not been told: no row has come under them. Where rows come under the partitioned table's
        name, the server describes the partition as well, and never sends a row of it."""
        self._definitions: dict[tuple[str, int], bytes] = {}
        """The newest RELATION and TYPE messages, by letter and OID."""
        self._before: dict[tuple[str, int], bytes] = {}
        """The same as it was before the transaction being prepared, which may have altered tables; what it relies on is kept with it."""
        self._used: set[int] = set()
        """OIDs of the tables that the transaction being prepared has changed before it described them itself."""
        self._within: set[int] = set()
        """Those that it has described."""
        self._watermark: Watermark | None = None
        """Seen in a group that was not complete."""
        self.consumed = 0
        """Offset up to which the last block was used up; what follows must come again, with more bytes behind it."""
        self.lacks = 0
        """With fewer bytes than this behind what follows ``consumed``, coming again is in vain: a message is torn."""
        self.foreign = 0
        """So many bytes at the block's end are the beginning of a message that nothing is to be read of: they, and the ``lacks`` bytes
        behind them, need not come again."""
        self.keepalive_lsn = 0
        """Everything before this LSN has been sent, as far as keepalives told; 0 while a transaction is open.

        A transaction that is only spooled does not hold it back: it has not committed before this LSN, or its end would have come before
        (the server sends ends in commit order), and the server keeps the WAL of a running transaction (restart_lsn), whatever is
        confirmed, and sends all of it again when it commits behind the confirmed LSN. A prepared one is durable here since its PREPARE.
        """
        self.reply_requested = False
        self.notices: list[bytes] = []
        """The fields of each notice and warning that the last block brought, and no earlier one."""
        self._heard = 0
        """How much of the next block was in the last one and has been looked at."""
        self.ended = -1
        """Offset of the message that ended the stream, or -1."""

    def groups(self, block: Bytes, start: int, stop: int, next_position: Callable[[], int]) -> Iterator[Group]:
        """Decodes ``block[start:stop]``. ``next_position`` is asked at the beginning of each group.

        What the decoder tells beside groups is known before the first of them, but for ``keepalive_lsn``, which is after the last.
        Raises ProtocolError, and nothing else, on bytes that the protocol does not allow.
        """
        found = scan(block, start, stop, self._open, self._inside)
        index = found.messages
        self._authenticity.mark(block, index)
        count = len(index.kind)
        commits = index.kind == _COMMIT
        ends = (commits | SPOOLING[index.kind] if found.spooling else commits).nonzero()[0]
        whole = int(ends[-1]) + 1 if len(ends) else 0
        self._inside = found.inside if found.inside in (Inside.STREAM, Inside.PREPARED) else Inside.NOTHING
        self.reply_requested = found.reply_requested
        self.ended, self.lacks, self.foreign = found.ended, found.lacks, 0
        if found.lacks >= PASSED_BYTES:
            self._look_at_torn(block[found.scanned : stop])
        self.notices = [_fields(block, int(at)) for at in found.notices if at >= start + self._heard]
        used = int(index.end[whole - 1]) if whole else start
        partial = whole < count and found.scanned - used >= OPEN_BYTES
        self.consumed = found.scanned if partial or whole == count else used
        self._heard = found.scanned - self.consumed
        return self._groups(block, found, whole, next_position, partial=partial)

    def _look_at_torn(self, torn: Bytes) -> None:
        """The beginning of a large message: whose it is has to be known before it is put together."""
        head = torn[: HEAD_BYTES + (4 if self._inside is Inside.STREAM else 0) + self.schema.head_bytes].tobytes()
        if (lacks := HEAD_BYTES + 4 + self.schema.head_bytes - len(torn)) > 0:
            self.lacks = min(self.lacks, lacks)
        elif head[30:31] == b"M":
            prefix, _, content = head[44 if self._inside is Inside.STREAM else 40 :].partition(b"\0")
            if prefix != DDL_PREFIX.encode() or not self.schema.bears_password(content[4:]):
                self.foreign = len(torn)

    def settle(self, durable_lsn: int) -> None:
        """The log holds every commit that ends at or before this LSN: nothing of them need be kept."""
        if self._prepared is not None:
            self._prepared.settle(durable_lsn)
        self.schema.settle()

    def _groups(self, block: Bytes, found: Scan, whole: int, next_position: Callable[[], int], *, partial: bool) -> Iterator[Group]:
        """Messages [0, whole) are whole transactions and what concerns spooled ones; ``partial``: what follows is a group, too."""
        index = found.messages
        count = len(index.kind)
        begin = 0
        turns = SPOOLING[index.kind[:whole]].nonzero()[0].tolist() if found.spooling else []
        for turn in (*turns, whole):
            for end in (*self._cuts(block, index, begin, turn), turn):
                if end > begin:
                    yield from self._group(block, index, begin, end, next_position, complete=True)
                    self._open = None
                begin = end
            if turn < whole:
                yield from self._turn(block, index, turn, next_position)
                begin = turn + 1
        if partial:
            last = len(index.xid) - 1
            yield from self._group(block, index, whole, count, next_position, complete=False)
            self._open = Open(int(index.xid[last]), int(index.commit_lsn[last]), int(index.commit_ts_us[last]))
        self.keepalive_lsn = found.keepalive_lsn if self._open is None and self._inside is Inside.NOTHING else 0

    def _cuts(self, block: Bytes, index: Index, begin: int, end: int) -> list[int]:
        """A group ends behind each transaction that carries one of our watermarks."""
        marks = watermarks(block, index, begin, end)
        if not marks:
            return []
        commits = begin + (index.kind[begin:end] == _COMMIT).nonzero()[0]
        return sorted({int(commits[commit]) + 1 for commit in np.searchsorted(commits, marks) if commit < len(commits)})

    def _turn(self, block: Bytes, index: Index, at: int, next_position: Callable[[], int]) -> Iterator[Group]:
        """One message of a ``SPOOLING`` kind, or a span of frames to be spooled."""
        if self._spools is None or self._prepared is None:
            raise ProtocolError("the server sends a transaction before its end, which was not asked for")
        if index.kind[at] == SPAN:
            assert self._filling is not None, "a span stands behind the message that begins it"
            span = block[index.body[at] : index.end[at]]
            self._filling.add(span, self._ordinal)
            if not self._filling.prefixed:
                self._define_now(span)
            return
        control = parse_control(chr(index.kind[at]), _body(block, index, at))
        match control:
            case StreamStart():
                self._ordinal += 1
                self._filling = self._spools.begin(control.xid, first=control.first)
            case StreamStop():
                self._ordinal += 1
                self._filling = None
            case StreamAbort():
                self._spools.abort(control.xid, control.subxid)
            case StreamCommit():
                # Also when the log has it already: the server takes the definitions in it for known from here on.
                spool = self._spools.ended(control.xid)
                commit = Commit(control.xid, control.commit_lsn, control.commit_ts_us, control.end_lsn)
                aborted = spool.aborted if spool.prefixed else None
                yield from self._replay(spool.pieces(), commit, aborted, spool.ordinal_at, next_position)
                self._spools.drop(control.xid)
            case BeginPrepare():
                self._used.clear()
                self._within.clear()
                self._before = dict(self._definitions)
                self._filling = self._spools.begin(control.xid, first=True, prefixed=False)
            case Prepare():
                self._filling = None
                definitions = b"" if control.streamed else self._definitions_used()
                self._prepared.keep(self._spools.ended(control.xid), definitions, control.gid, control.end_lsn)
                self._spools.drop(control.xid)
            case CommitPrepared():
                commit = Commit(control.xid, control.commit_lsn, control.commit_ts_us, control.end_lsn)
                if control.end_lsn <= self._prepared.settled_lsn and not self._prepared.holds(control.xid):
                    yield _passed(commit, next_position())
                else:
                    with self._prepared.ending(control.xid, control.gid, control.end_lsn) as kept:
                        yield from self._replay(kept.pieces(), commit, kept.aborted, lambda _: -1, next_position)
            case RollbackPrepared():
                self._prepared.rolled_back(control.xid)
            case _:
                assert_never(control)

    def _replay(
        self,
        pieces: Iterator[Piece],
        commit: Commit,
        aborted: Aborted | None,
        ordinal_at: Callable[[int], int],
        next_position: Callable[[], int],
    ) -> Iterator[Group]:
        """A spooled transaction that has committed. Only the last group is complete, and says where the commit ends.

        Its RELATION messages hold for its own rows: the server sends what each streamed transaction needs within it, and again after one
        of its subtransactions was rolled back. Afterwards the latest definition holds in the order in which they came, because the server
        takes it for known once this transaction has committed.

        A message carries the top-level transaction's xid, whichever subtransaction said it (pgoutput_message in pgoutput.c), so behind one that was
        rolled back no message can be relied on.
        """
        doubtful = aborted is not None and len(aborted) > 0
        unfinished = Commit(commit.xid, commit.commit_lsn, commit.commit_ts_us, 0)
        for piece in pieces:
            index = scan_spooled(piece.block, 0, piece.stop, unfinished, aborted)
            self._authenticity.mark(piece.block, index)
            if len(index.kind):
                where = piece.at
                yield from self._group(
                    piece.block,
                    index,
                    0,
                    len(index.kind),
                    next_position,
                    complete=False,
                    ordinal_at=lambda at, where=where: ordinal_at(where + at),  # type: ignore[misc]
                    doubtful=doubtful,
                )
        nothing = np.empty(0, np.uint8)
        yield from self._group(nothing, scan_spooled(nothing, 0, 0, commit, None), 0, 0, next_position, complete=True)
        for table in self._returning.values():
            self._relations.put(table)
        self._described |= self._returning
        self._returning.clear()

    def _define_now(self, span: Bytes) -> None:
        """Of a transaction being prepared: the definitions in it hold for what follows, although its rows wait."""
        index = scan_spooled(span, 0, len(span), Commit(0, 0, 0, 0), None)
        begin = 0
        for at in map(int, np.flatnonzero(_RARE[index.kind])):
            body = _body(span, index, at)
            self._use(index.relation[begin:at].tolist())
            begin = at
            match chr(index.kind[at]):
                case "Y":
                    self._on_type(body)
                case "R":
                    table = self._relations.parse_relation(body)
                    self._define(table, body, self._ordinal)
                    self._within.add(table.oid)
                case "T":
                    self._use(parse_truncate(body).relations)
                case _:
                    pass
        self._use(index.relation[begin:].tolist())

    def _use(self, oids: Iterable[int]) -> None:
        self._used.update(set(oids) - self._within)

    def _definitions_used(self) -> bytes:
        """Of the transaction being prepared, as frames: those in force when it began to come."""
        chosen = [(letter, body) for (letter, oid), body in self._before.items() if letter == "Y" or oid in self._used]
        messages = [b"w" + bytes(24) + letter.encode() + body for letter, body in sorted(chosen, reverse=True)]
        return b"".join(b"d" + (len(message) + 4).to_bytes(4, "big") + message for message in messages)

    def _on_type(self, body: bytes) -> None:
        self._relations.on_type(body)
        self._definitions["Y", int.from_bytes(body[:4], "big")] = body

    def _define(self, table: Table, body: bytes, ordinal: int) -> None:
        """The table has this definition from here on, or while the replayed transaction lasts."""
        if self._said.get(table.oid, -1) > ordinal:
            self._returning.setdefault(table.oid, self._relations.table(table.oid))
        else:
            self._said[table.oid] = ordinal
            self._returning.pop(table.oid, None)
            self._definitions["R", table.oid] = body
        self._relations.put(table)

    def _on_facts(self, group: Grouping, content: bytes, at: int, *, doubtful: bool) -> None:
        if doubtful:
            self.schema.doubt(content)
            return
        group.flush(at)
        changes, tables = self.schema.on_message(content)
        for table in tables:
            self._relations.relabel(table)
        group.tell(changes, at)
        group.tell(self._go_on_elsewhere(), at)

    def _go_on_elsewhere(self) -> list[SchemaChange]:
        """Tables whose names others have taken: their next rows come under the names that they have now."""
        changes = []
        while displaced := self.schema.take_displaced():
            for oid, schema, name in displaced:
                if self._relations.has(oid):
                    table = replace(self._relations.table(oid), schema=schema, name=name)
                    self._relations.put(table)
                    changes += self.schema.enter(table)
        return changes

    def _group(
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
            made = Grouping(self._rows, self._memory, block, index, begin, end, next_position())
            watermark = self._take_in(made, block, index, begin, end, ordinal_at, doubtful=doubtful)
            whole = complete and made.whole
            if whole:
                watermark, self._watermark = watermark or self._watermark, None
            else:
                self._watermark, watermark = watermark or self._watermark, None
            yield made.finish(watermark, self.schema, complete=whole)
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
        if self._described and end > begin and self._rows.wanted(index, int(index.transaction[begin])):
            for oid in np.intersect1d(list(self._described), index.relation[begin:end]).tolist():
                if _rows_follow(block, index, begin, end, oid):
                    group.tell(self.schema.enter(self._described.pop(oid)), begin)
        for at in (begin + _RARE[index.kind[begin:end]].nonzero()[0]).tolist():
            if group.full(at):
                return watermark
            body = _body(block, index, at)
            wanted = self._rows.wanted(index, int(index.transaction[at]))
            match chr(index.kind[at]):
                case "Y":
                    self._on_type(body)
                case "R":
                    table = self._relations.parse_relation(body)
                    if not wanted:
                        table = self.schema.standing(table)
                        self._described.pop(table.oid, None)  # what a replay brought back
                    changes = []
                    if wanted and _rows_follow(block, index, at + 1, end, table.oid):
                        self._described.pop(table.oid, None)
                        if (table.oid in self.schema.passed_over) == bool(table.key):
                            group.flush(at)  # rows before this are logged, or passed over, as before
                        changes = self.schema.enter(table)
                    elif wanted:
                        self._described[table.oid] = table
                    known = self._relations.known(table)
                    if changes or self.schema.displaces or (not known and group.has_rows(table.oid, at)):
                        group.flush(at)
                    self._define(table, body, ordinal_at(int(index.body[at])) if ordinal_at else self._ordinal)
                    group.tell(changes, at)
                    group.tell(self._go_on_elsewhere(), at)
                case "T":
                    group.flush(at)
                    relations = parse_truncate(body).relations if wanted else ()
                    for oid in self._described.keys() & set(relations):
                        group.tell(self.schema.enter(self._described.pop(oid)), at)
                    here = [oid for oid in relations if oid not in self.schema.passed_over]
                    group.truncate([self._relations.table(oid) for oid in here], at)
                case "M":
                    message = parse_message(body)
                    if message.prefix == WATERMARK_PREFIX and message.transactional:
                        watermark = Watermark(message.content, message.lsn)
                    elif message.prefix == DDL_PREFIX and message.transactional and wanted:
                        self._on_facts(group, message.content, at, doubtful=doubtful)
                case _:  # O: where a forwarded transaction came from; nothing of ours depends on it
                    pass
        group.full(end)
        return watermark


def _passed(commit: Commit, position: int) -> Group:
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
    described = begin + (index.kind[begin : begin + int(rows[0])] == ord("R")).nonzero()[0]
    return all(int.from_bytes(_body(block, index, at)[:4], "big") != oid for at in described)


def _body(block: Bytes, index: Index, at: np.int64 | int) -> bytes:
    return block[index.body[at] : index.end[at]].tobytes()


def _fields(block: Bytes, at: int) -> bytes:
    """The body of the frame at this offset."""
    length = int.from_bytes(block[at + 1 : at + 5].tobytes(), "big")
    return block[at + 5 : at + 1 + length].tobytes()
