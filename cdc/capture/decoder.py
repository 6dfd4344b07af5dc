"""A block of the walsender's bytes → groups of whole transactions as Arrow batches. Pure but for what it is handed.

The stream is a row of *turns*. A turn is a run of whole transactions, BEGIN to COMMIT, or one message about a transaction whose messages come
before its end (``cdc.capture.deferral``), or a span of such a transaction's frames. Where the stream may be, and which message leads from where
to where, is a table (``cdc.capture.messages``); a block may end anywhere, and the decoder remembers between two blocks only where that was:

- within a frame: what is torn comes again, with more bytes behind it (``consumed``, ``lacks``);
- in a transaction whose COMMIT has not come: all of it comes again, until it is larger than ``OPEN_BYTES``. From then on what has come becomes
  groups that are not ``complete``, and ``_open`` says which transaction the next block goes on with;
- in a block of a streamed transaction, or in one that is being prepared (``Deferred.inside``): the next bytes are a span.

A turn becomes groups in three steps, each a room of its own, none of which knows the one before: the messages are looked at one by one where they
are rare, and otherwise only divided (``groups``); the definitions in force change on the way (``inforce``); runs of plain rows between them become
batches (``grouping``, ``rows``). One block usually holds many small transactions, which become one group; a transaction larger than
``OPEN_BYTES`` comes out in several of which only the last is ``complete``. The caller appends each group to the log before it asks for the next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from cdc.capture import letters
from cdc.capture.authenticity import NOBODYS, Authenticity, Expected
from cdc.capture.control import parse_control
from cdc.capture.ddlmessages import DDL_PREFIX
from cdc.capture.deferral import Deferred, Replay
from cdc.capture.definitions import Definitions
from cdc.capture.eventmessages import MOST_PREFIX_BYTES
from cdc.capture.groups import Groups, passed
from cdc.capture.inforce import InForce
from cdc.capture.messages import SPAN, SPOOLING, Commit, Index, Inside, Open, Scan, body_of, scan
from cdc.capture.preparedfiles import PreparedFiles
from cdc.capture.rows import Hold, Memory, RowBatches
from cdc.capture.spool import Spools
from cdc.model.group import Group
from cdc.pgvalues.values import Bytes

OPEN_BYTES: Final = 8 * 2**20
"""An unfinished transaction is kept as bytes up to this size; beyond it, its rows go to the log's staging as they come."""

PASSED_BYTES: Final = 2**20
"""A logical message of somebody else's that lacks more than this is not put together: everybody may emit such of up to 1 GB."""
HEAD_BYTES: Final = 5 + 25 + 1 + 9 + MOST_PREFIX_BYTES + 1 + 4
"""The bytes of a logical message up to its content: frame header, XLogData header, letter, flags and LSN, prefix, length."""


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
        prepared: PreparedFiles | None = None,
        expected: Expected = NOBODYS,
        head_lsn: int = 0,
    ) -> None:
        """``expected``: which logical messages are ours. ``head_lsn``: how far the log has come: transactions up to there that are not in it have
        changed nothing."""
        self.schema = definitions
        """The definitions that the log has of each table."""
        in_force = InForce(definitions)
        authenticity = Authenticity(definitions.ours, expected)
        self._deferred = Deferred(spools, prepared, in_force)
        self._made = Groups(
            definitions, in_force, RowBatches(in_force.relations, memory, hold, durable_lsn), authenticity, head_lsn
        )
        self._open: Open | None = None
        self._heard = 0
        """How much of the next block was in the last one and has been looked at."""
        self.consumed = 0
        """Offset up to which the last block was used up; what follows must come again, with more bytes behind it."""
        self.lacks = 0
        """With fewer bytes than this behind what follows ``consumed``, coming again is in vain: a message is torn."""
        self.foreign = 0
        """The number of bytes at the block's end that begin a message of which nothing is to be read: they, and the ``lacks`` bytes
        behind them, need not come again."""
        self.keepalive_lsn = 0
        """Everything before this LSN has been sent, as far as keepalives said; 0 while a transaction is open.

        A transaction that is only spooled does not hold it back: it has not committed before this LSN, or its end would have come before
        (the server sends ends in commit order), and the server keeps the WAL of a running transaction (restart_lsn), whatever is
        confirmed, and sends all of it again when it commits behind the confirmed LSN. A prepared one is durable here since its PREPARE.
        """
        self.reply_requested = False
        self.notices: list[bytes] = []
        """The fields of each notice and warning that the last block brought, and no earlier one."""
        self.ended = -1
        """Offset of the message that ended the stream, or -1."""

    def groups(self, block: Bytes, start: int, stop: int, next_position: Callable[[], int]) -> Iterator[Group]:
        """Decodes ``block[start:stop]``. ``next_position`` is asked at the beginning of each group.

        What the decoder tells beside groups is known before the first of them, but for ``keepalive_lsn``, which is after the last.
        Raises ProtocolError, and nothing else, on bytes that the protocol does not allow.
        """
        found = scan(block, start, stop, self._open, self._deferred.inside)
        index = found.messages
        self._made.mark(block, index)
        count = len(index.kind)
        commits = index.kind == letters.COMMIT
        ends = (commits | SPOOLING[index.kind] if found.spooling else commits).nonzero()[0]
        whole = int(ends[-1]) + 1 if len(ends) else 0
        self._deferred.inside = found.inside if found.inside in (Inside.STREAM, Inside.PREPARED) else Inside.NOTHING
        self.reply_requested = found.reply_requested
        self.ended, self.lacks, self.foreign = found.ended, found.lacks, 0
        if found.lacks >= PASSED_BYTES:
            self._look_at_torn(block[found.scanned : stop])
        self.notices = [_fields(block, int(at)) for at in found.notices if at >= start + self._heard]
        self._made.pass_over(block, found.loose[found.loose >= start + self._heard])
        used = int(index.end[whole - 1]) if whole else start
        partial = whole < count and found.scanned - used >= OPEN_BYTES
        self.consumed = found.scanned if partial or whole == count else used
        self._heard = found.scanned - self.consumed
        return self._groups(block, found, whole, next_position, partial=partial)

    def _look_at_torn(self, torn: Bytes) -> None:
        """The beginning of a large message: whose it is has to be known before it is put together."""
        head = torn[: HEAD_BYTES + (4 if self._deferred.inside is Inside.STREAM else 0) + self.schema.ours.head_bytes].tobytes()
        if (lacks := HEAD_BYTES + 4 + self.schema.ours.head_bytes - len(torn)) > 0:
            self.lacks = min(self.lacks, lacks)
        elif head[30:31] == b"M":
            message = head[35 if self._deferred.inside is Inside.STREAM else 31 :]
            prefix, _, content = message[9:].partition(b"\0")
            of_facts = prefix == DDL_PREFIX.encode() and self.schema.ours.bears_password(content[4:])
            if not of_facts and not self._made.awaits(message):
                self.foreign = len(torn)

    def settle(self, durable_lsn: int) -> None:
        """The log holds every commit that ends at or before this LSN: nothing of them need be kept."""
        self._deferred.settle(durable_lsn)
        self.schema.settle()

    def _groups(self, block: Bytes, found: Scan, whole: int, next_position: Callable[[], int], *, partial: bool) -> Iterator[Group]:
        """Messages [0, whole) are whole turns; ``partial``: what follows is a group, too."""
        index = found.messages
        begin = 0
        turns = SPOOLING[index.kind[:whole]].nonzero()[0].tolist() if found.spooling else []
        for turn in (*turns, whole):
            for end in (*self._made.cuts(block, index, begin, turn), turn):
                if end > begin:
                    yield from self._made.take(block, index, begin, end, next_position, complete=True)
                    self._open = None
                begin = end
            if turn < whole:
                yield from self._turn(block, index, turn, next_position)
                begin = turn + 1
        if partial:
            last = len(index.xid) - 1
            yield from self._made.take(block, index, whole, len(index.kind), next_position, complete=False)
            self._open = Open(int(index.xid[last]), int(index.commit_lsn[last]), int(index.commit_ts_us[last]))
        self.keepalive_lsn = found.keepalive_lsn if self._open is None and self._deferred.inside is Inside.NOTHING else 0

    def _turn(self, block: Bytes, index: Index, at: int, next_position: Callable[[], int]) -> Iterator[Group]:
        """One message of a ``SPOOLING`` kind, or a span of frames to be spooled."""
        if index.kind[at] == SPAN:
            self._deferred.add(block[index.body[at] : index.end[at]])
            return
        with self._deferred.turn(parse_control(chr(index.kind[at]), body_of(block, index, at))) as ended:
            match ended:
                case Replay():
                    yield from self._made.replay(ended, next_position)
                case Commit():
                    yield passed(ended, next_position())
                case None:
                    pass


def _fields(block: Bytes, at: int) -> bytes:
    """The body of the frame at this offset."""
    length = int.from_bytes(block[at + 1 : at + 5].tobytes(), "big")
    return block[at + 5 : at + 1 + length].tobytes()
