"""A model of one replication connection: the walsender's bytes, cut anywhere, and what the client says back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from random import Random
from typing import Final

import numpy as np

from cdc.capture.ddlmessages import DDL_PREFIX
from cdc.capture.feedback import Feedback
from cdc.model.table import Table
from cdc.pgvalues.values import Bytes
from tests.sim.source import Source
from tests.sim.tables import Row
from tests.sim.wal import Abort, Change, Commit, End, Prepare, RolledBack
from tests.unit.capture import wire

PREFIX: Final = "headwater"
_XID: Final = 0xFFFFFFFF
_NOTHING: Final[Bytes] = np.empty(0, np.uint8)

Meet = Callable[[str], None]

Sent = dict[int, Table]
"""Table → its definition as it was last sent."""


@dataclass(slots=True)
class _Streamed:
    """What of a transaction in progress has been sent."""

    relations: Sent = field(default_factory=dict)
    begun: bool = False
    known: set[int] = field(default_factory=set)
    changes: list[Change] = field(default_factory=list)
    """Kept, so that no other change takes the identity of a sent one."""


class Walsender:
    """Server's side: emits commits in order, each table's RELATION before its first row and whenever it has changed."""

    def __init__(
        self, source: Source, chance: Random, start_lsn: int, *, empty_transactions: bool, streams: bool, two_phase: bool, met: Meet
    ) -> None:
        """``two_phase``: PREPARE is told when it happens, not with the commit. ``met``: told of rare things that were sent."""
        self._source = source
        self._chance = chance
        self._empty_transactions = empty_transactions
        self._streams = streams
        self._two_phase = two_phase
        self._met = met
        self._relations: Sent = {}
        self._streamed: dict[int, _Streamed] = {}
        """By xid: transactions of which a part has been sent before their end (protocol 2)."""
        start = max(start_lsn, source.slot.confirmed)
        self._next = next((n for n, end in enumerate(source.wal) if end.lsn >= start), len(source.wal))
        self._over = {end.xid for end in source.wal[: self._next] if self._ends(end)}
        """Transactions whose end has been decoded, or came before the start."""
        self._gone = {end.gone for end in source.wal[: self._next] if isinstance(end, Abort)}
        self.sent_lsn = start

    @property
    def caught_up(self) -> bool:
        return self._next >= len(self._source.wal) or self._source.wal[self._next].end_lsn > self._source.flushed_lsn

    def send(self) -> bytes:
        """Up to the next transaction's end."""
        out = b""
        while not self.caught_up:
            end = self._source.wal[self._next]
            self._next += 1
            if self._ends(end):
                self._over.add(end.xid)
            if isinstance(end, Abort):
                out += self._abort(end)
                continue
            self.sent_lsn = max(self.sent_lsn, end.end_lsn)
            return out + self._end(end)
        return out

    def stream(self) -> bytes:
        """Part of a transaction that is in progress where decoding is, be it over by now: everything that ended before has been sent."""
        if not self._streams:
            return b""
        behind = not self.caught_up
        until = self._source.wal[self._next].lsn if behind else self._source.flushed_lsn
        running = [
            xid
            for xid, changes in self._source.trails.items()
            if xid not in self._over and changes[:1] and changes[0].lsn < until and changes[0].kind != "M"
        ]
        if not running:
            return b""
        xid = self._chance.choice(running)
        block = self._block(xid, self._source.trails[xid], until)
        if block and behind:
            self._met("blocks ahead of earlier ends")
        return block

    def _ends(self, end: End) -> bool:
        if isinstance(end, Abort):
            return end.xid == end.gone
        return not isinstance(end, Prepare) or self._two_phase

    def _end(self, end: Commit | Prepare | RolledBack) -> bytes:
        match end:
            case Prepare():
                return self._prepare(end) if self._two_phase else b""
            case RolledBack():
                if self._two_phase:
                    return wire.rollback_prepared(end.xid & _XID, end.gid)
                return self._abort(Abort(end.xid, end.xid, end.lsn, end.end_lsn))
            case Commit():
                if self._two_phase and end.gid:
                    return wire.commit_prepared(end.xid & _XID, end.commit_lsn, end.end_lsn, end.gid, end.ts_us)
                return self._commit(end)

    def _commit(self, commit: Commit) -> bytes:
        if self._streams_it(commit):
            rest = self._block(commit.xid, commit.changes, commit.lsn)
            streamed = self._streamed.pop(commit.xid, None)
            if streamed is not None:
                self._relations.update(streamed.relations)
                return rest + wire.stream_commit(commit.xid & _XID, commit.commit_lsn, commit.end_lsn, commit.ts_us)
        return self._whole(commit)

    def _prepare(self, prepare: Prepare) -> bytes:
        """What a streamed one has told of definitions is told again to others, unlike after its commit."""
        xid = prepare.xid & _XID
        self._met("prepared transactions sent")
        if self._streams_it(prepare):
            rest = self._block(prepare.xid, prepare.changes, prepare.lsn)
            if self._streamed.pop(prepare.xid, None) is not None:
                self._met("prepared transactions streamed")
                return rest + wire.prepare(xid, prepare.lsn, prepare.end_lsn, prepare.gid, streamed=True)
        begin = wire.begin_prepare(xid, prepare.lsn, prepare.end_lsn, prepare.gid)
        content = b"".join(self._changes(prepare.changes))
        return begin + content + wire.prepare(xid, prepare.lsn, prepare.end_lsn, prepare.gid)

    def _streams_it(self, end: Commit | Prepare) -> bool:
        watermark = any(change.kind == "M" for change in end.changes)
        return end.xid in self._streamed or (self._streams and not watermark and self._chance.random() < 0.1)

    def _abort(self, end: Abort) -> bytes:
        self._gone.add(end.gone)
        if end.xid not in self._streamed:
            return b""
        if end.xid == end.gone:
            del self._streamed[end.xid]
        else:
            # pgoutput forgets what it sent within the transaction, whichever subtransaction was rolled back.
            self._streamed[end.xid].relations.clear()
        return wire.stream_abort(end.xid & _XID, end.gone & _XID)

    def _block(self, xid: int, changes: Sequence[Change], until: int) -> bytes:
        """What of the changes has not been sent, was not taken back, and stands in the WAL before ``until``, as one block."""
        known = self._streamed.get(xid)
        sent = known.known if known is not None else set()
        fresh = [
            change
            for change in changes
            if change.lsn < until and change.xid not in self._gone and id(change) not in sent and not change.silent
        ]
        if not fresh:
            return b""
        streamed = self._streamed.setdefault(xid, _Streamed())
        pieces = [wire.by(change.xid & _XID, *self._relations_of(change, streamed.relations), _encoded(change)) for change in fresh]
        first, streamed.begun = not streamed.begun, True
        streamed.known.update(id(change) for change in fresh)
        streamed.changes += fresh
        return wire.stream(xid & _XID, *pieces, first=first)

    def _whole(self, commit: Commit) -> bytes:
        content = self._changes(commit.changes)
        if not content and not self._empty_transactions:
            return wire.keepalive(self.sent_lsn) if self._chance.random() < 0.3 else b""
        begin = wire.begin(commit.xid & 0xFFFFFFFF, commit.commit_lsn, commit.ts_us)
        return begin + b"".join(content) + wire.commit(commit.commit_lsn, commit.end_lsn, commit.ts_us)

    def keepalive(self, *, reply: bool) -> bytes:
        if self.caught_up:
            self.sent_lsn = max(self.sent_lsn, self._source.flushed_lsn)
        return wire.keepalive(self.sent_lsn, reply=reply)

    def relations_changed(self) -> None:
        """Something invalidated the cache of relations (a GRANT, an index …): they are sent again."""
        self._relations.clear()

    def _changes(self, changes: Sequence[Change]) -> list[bytes]:
        pieces = []
        for change in changes:
            if change.silent:
                continue
            pieces += [*self._relations_of(change, self._relations), _encoded(change)]
            if self._chance.random() < 0.02:
                pieces.append(wire.keepalive(self.sent_lsn, reply=self._chance.random() < 0.5))
        return pieces

    def _relations_of(self, change: Change, sent: Sent) -> list[bytes]:
        """What has to be sent before the change."""
        return [self._relation(table, sent) for table in change.published if sent.get(table.oid) != table]

    def _relation(self, table: Table, sent: Sent) -> bytes:
        sent[table.oid] = table
        return _relation_message(table)


@lru_cache(maxsize=256)
def _relation_message(table: Table) -> bytes:
    if table.identity == "f":
        table = replace(table, columns=tuple(replace(column, key=True) for column in table.columns))
    return wire.relation(table)


def _encoded(change: Change) -> bytes:
    if change.kind == "M":
        return wire.message(PREFIX, change.content, lsn=change.lsn)
    if change.kind in "ACLPX":
        return wire.message(DDL_PREFIX, change.content, lsn=change.lsn)
    if change.kind == "T":
        return wire.truncate(*(table.oid for table in change.published))
    table = change.table
    assert table is not None
    if change.kind == "I":
        assert change.new is not None
        return wire.insert(table.oid, _whole(table, change.new))
    assert change.old is not None
    full = _whole(table, change.old) if table.identity == "f" else None
    key = [change.old.get(column.name) if column.key else None for column in table.columns]
    if change.kind == "D":
        return wire.delete(table.oid, old=full) if full else wire.delete(table.oid, key=key)
    assert change.new is not None
    new = [wire.UNCHANGED if column.name in change.unchanged else change.new.get(column.name) for column in table.columns]
    return wire.update(table.oid, new, old=full, key=key if full is None and change.moves else None)


def _whole(table: Table, row: Row) -> list[wire.Value]:
    return [row.get(name) for name in table.names]


class Link:
    """What ``cdc.capture.stream.Stream`` is to ingest: bytes that have come, and an LSN that may be confirmed."""

    def __init__(self, feedback: Feedback, chance: Random) -> None:
        self.feedback = feedback
        self.broken = False
        self.received = 0
        self.asked = 0
        self._chance = chance
        self._wire = bytearray()
        self.batches = 0
        self.on_confirm: Callable[[int], None] = lambda _: None
        """Told what ingest allows to be said, at that moment."""

    def send(self, data: bytes) -> None:
        self._wire += data

    @property
    def waiting(self) -> int:
        return len(self._wire)

    def take(self, timeout_s: float) -> Bytes:  # noqa: ARG002
        """Raises ConnectionError when the connection is gone and everything that came has been taken."""
        if not self._wire:
            if self.broken:
                raise ConnectionError("the connection broke")
            return _NOTHING
        length = len(self._wire)
        if self._chance.random() < 0.5:
            length = self._chance.randrange(1, length + 1)
        taken = bytes(self._wire[:length])
        del self._wire[:length]
        self.received += length
        return np.frombuffer(bytearray(taken), np.uint8)

    def behind(self, torn: Bytes, taken: Bytes) -> Bytes:
        return np.concatenate([torn, taken])

    def confirm(self, lsn: int) -> None:
        self.on_confirm(lsn)
        self.feedback.confirm(lsn)

    def reply_now(self) -> None:
        self.asked += 1

    def cut(self, *, lose: bool) -> None:
        """The connection is gone; what was under way comes, or does not."""
        self.broken = True
        if lose:
            del self._wire[self._chance.randrange(len(self._wire) + 1) :]
