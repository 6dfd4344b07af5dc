"""Writes that the ledger lets through, or that change nothing: WATCH, look, MULTI … EXEC.

The server carries out what stands between MULTI and EXEC as one piece, and only when the ledger, watched before it was looked at, is still
untouched. The decision between the two is ours (``sinks.cache.fence``), so a write reaches the data only from a process that has just seen
that it may; one that slept in between, was replaced, or talks to a server that was flushed or restored meanwhile gets nothing done. Nothing
of a transaction that the server has no memory for is carried out.

In a stream of writes nobody waits: the data of one is on its way while the one before is carried out, and only its EXEC is held back until
its look at the ledger has been answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Final

from cdc.crashpoint import crashpoint
from cdc.errors import StoreError
from sinks.cache import ledger
from sinks.cache.fence import FenceAnswer, Seen, Writer, answer
from sinks.cache.resp import EXEC, MULTI, Frame, RequestPart
from sinks.cache.server import Server
from sinks.cache.wire import RedisWire, Refused, Reply, bulk, command
from sinks.contract import EpochPassed

_DISCARD: Final = command("DISCARD")
_UNWATCH: Final = command("UNWATCH")
_OK: Final = b"+OK\r\n"
_QUEUED: Final = b"+QUEUED\r\n"
_NOTHING: Final = bulk(b"")
_TRIES: Final = 5
"""Of a change to the ledger that others touched meanwhile."""

Commands = Sequence[bytes]
Answers = list[bytes | None]


class OddKey(StoreError):
    """A write failed for the key that it came to, one of another type than ours; the others of its transaction were made."""

    def __init__(self, store: str) -> None:
        super().__init__(
            f"store {store}: a key of another program is in the way",
            retryable=False,
            hint="give the store another `key`, or another name",
        )


@dataclass(slots=True)
class Chain:
    """One table's writes. ``at``: its progress, as the writer left it in the ledger (None: there is none yet)."""

    topic: str
    at: int | None = None
    upto: int = 0
    """The progress that answers have confirmed."""


class RedisTransactions:
    """The transactions of one sink, as one writer. Not thread-safe."""

    def __init__(self, store: str, server: Server) -> None:
        self._store = store
        self._server = server
        self._key = ledger.key_of(store)
        self.writer = Writer("", "", 0)
        self.position = 0
        """The applied position, as the writer left it in the ledger."""

    @property
    def takes_packed(self) -> bool:
        """Whether the server takes hashes by RESTORE. For use within ``stream`` only: each connection asks it again."""
        return self._server.takes_packed

    @property
    def value_bytes_max(self) -> int | None:
        """See ``Server``."""
        return self._server.value_bytes_max

    def progress(self, chain: Chain) -> int:
        return max(self.position, chain.upto)

    def frame(self, topic: str, *, moves: bool, channel: bytes = b"") -> Frame:
        """Around a table's parts. ``channel``: where its keys are published."""
        look = command("WATCH", self._key) + command("HMGET", self._key, *ledger.LOOK, f"at:{topic}") + MULTI
        move = command("HSET", self._key, "epoch", self.writer.epoch, f"at:{topic}", "").removesuffix(_NOTHING)
        return Frame(look, move if moves else b"", channel)

    def part(self, topic: str, commands: Commands, upto: int | None = None) -> RequestPart:
        """A part of a few commands."""
        moved = [self.set({f"at:{topic}": str(upto)})] if upto is not None else []
        data = EXEC + self.frame(topic, moves=False).look + b"".join([*commands, *moved])
        return RequestPart(memoryview(data), len(commands) + len(moved), upto)

    def set(self, fields: dict[str, str]) -> bytes:
        """The command that sets these fields of the ledger, and the writer's epoch."""
        items = [item for pair in {"epoch": str(self.writer.epoch), **fields}.items() for item in pair]
        return command("HSET", self._key, *items)

    def remove(self, *fields: str) -> bytes:
        return command("HDEL", self._key, *fields)

    def stream(self, chain: Chain, parts: Iterable[RequestPart], until: int | None = None) -> None:
        """Carries them out, one after the other. ``chain`` moves with each that was. Raises StoreError, EpochPassed.

        until: the position of the change that parts belong to which move nothing; where the table is past it, they are not carried out.
        """
        with self._server.errors():
            wire = self._server.wire
            before: RequestPart | None = None
            closing = b""
            for part in parts:
                self._send(wire, part, closing)
                if before is not None:
                    self._finish(wire, chain, before, closing)
                closing = EXEC if self._may(wire, chain, part, until) else _DISCARD
                before = part
                crashpoint("cache.write.sent")
            if before is not None:
                wire.send(closing)
                self._finish(wire, chain, before, closing)

    def change(self, fields: Sequence[str], decide: Callable[[Answers], Commands | None]) -> bool:
        """A change to the ledger: ``decide`` sees these fields of it and says what to do, None for nothing. Whether it was done."""
        return self._decided(command("HMGET", self._key, *fields), lambda reply: decide(_strings(reply)))

    def settle(self, *commands: bytes, progress: Mapping[str, int] = MappingProxyType({})) -> None:
        """A change to the ledger that is this writer's to make, and moves nothing. ``progress``: what tables must still have in the ledger."""

        def decide(found: Answers) -> Commands:
            seen = ledger.seen(found[: len(ledger.LOOK)])
            decided = answer(seen, self.writer, self.position, self.position)
            self.refuse(FenceAnswer.LOST if decided is FenceAnswer.ALREADY else decided, seen)
            if found[len(ledger.LOOK) :] != [b"%d" % at for at in progress.values()]:
                raise lost(self._store)
            return commands

        self.change([*ledger.LOOK, *(f"at:{topic}" for topic in progress)], decide)

    def change_whole(self, decide: Callable[[ledger.Fields], Commands | None]) -> bool:
        """The same over every field; none where there is no ledger."""
        return self._decided(command("HGETALL", self._key), lambda reply: decide(fields_of(reply)))

    def refuse(self, found: FenceAnswer, seen: Seen | None) -> None:
        """Raises what this answer means, when it means that the write was not made."""
        if found is FenceAnswer.FENCED and seen is not None:
            raise EpochPassed(self._store, seen.epoch)
        if found in (FenceAnswer.LOST, FenceAnswer.GAP):
            raise lost(self._store)

    def _send(self, wire: RedisWire, part: RequestPart, closing: bytes) -> None:
        if closing == EXEC:
            wire.send(part.data)  # begins with it
        else:
            wire.send(closing)
            wire.send(part.data[len(EXEC) :])

    def _may(self, wire: RedisWire, chain: Chain, part: RequestPart, until: int | None) -> bool:
        """Reads the ledger's answer in this part. False when the part was carried out before."""
        if not wire.expect(_OK):
            wire.reply()
        end = until if part.upto is None else part.upto
        if not wire.expect(self._expected(chain)):
            self._compare(chain, end, ledger.seen(_strings(wire.reply())))
        return end is None or end > self.progress(chain)

    def _compare(self, chain: Chain, end: int | None, seen: Seen | None) -> None:
        """The ledger is not quite where this writer left it."""
        after = max(self.position, chain.at or 0)
        found = answer(seen, self.writer, after, after if end is None else end)
        self.refuse(FenceAnswer.LOST if end is None and found is FenceAnswer.ALREADY else found, seen)
        if seen is not None:
            self.position, chain.at = seen.position, seen.at
            chain.upto = max(chain.upto, seen.progress)

    def _expected(self, chain: Chain) -> bytes:
        at = bulk(b"%d" % chain.at) if chain.at is not None else b"$-1\r\n"
        return _ledger_answer(self.writer, self.position) + at

    def _finish(self, wire: RedisWire, chain: Chain, part: RequestPart, closing: bytes) -> None:
        """Reads what is left of a part's answers. Raises Refused, StoreError when it was not carried out."""
        queued = wire.expect(_OK + _QUEUED * part.commands)
        refused = None if queued else _first_error(wire.lines(1 + part.commands))
        if closing != EXEC:
            wire.lines(1)
            return
        answered = wire.lines(1)
        if refused is not None:
            raise refused
        if answered.startswith(b"-"):
            raise Refused(answered)
        if answered != b"*%d\r\n" % part.commands:
            raise lost(self._store)  # somebody touched the ledger after we had looked at it
        failed = _first_error(wire.lines(part.commands))
        if part.upto is not None:
            chain.at = part.upto
        if failed is not None:
            raise OddKey(self._store)
        if part.upto is not None:
            chain.upto = part.upto

    def _decided(self, question: bytes, decide: Callable[[Reply], Commands | None]) -> bool:
        with self._server.errors():
            wire = self._server.wire
            for _ in range(_TRIES):
                wire.send(command("WATCH", self._key) + question)
                wire.reply()
                commands = decide(wire.reply())
                if commands is None:
                    wire.send(_UNWATCH)
                    wire.reply()
                    return False
                crashpoint("cache.change.looked")
                wire.send(MULTI + b"".join(commands) + EXEC)
                refused = _first_error(wire.lines(1 + len(commands)))
                answered = wire.lines(1)
                if refused is not None:
                    raise refused
                if answered == b"*%d\r\n" % len(commands):
                    if (failed := _first_error(wire.lines(len(commands)))) is not None:
                        raise failed
                    return True
                if answered.startswith(b"-"):
                    raise Refused(answered)
        raise lost(self._store)


@lru_cache(maxsize=16)
def _ledger_answer(writer: Writer, position: int) -> bytes:
    """How the answer to a look begins, where the ledger is as this writer left it."""
    return b"*5\r\n" + command(writer.log, writer.history, writer.epoch, position).removeprefix(b"*4\r\n")


def lost(store: str) -> StoreError:
    return StoreError(
        f"store {store}: the server's ledger is gone, or is not where this writer left it: it was flushed, restored or replaced",
        retryable=True,
        hint="it is looked at again, and what is missing is written again",
    )


def fields_of(reply: Reply) -> dict[str, str]:
    """An answer to HGETALL."""
    items = [item.decode(errors="replace") for item in _strings(reply) if item is not None]
    return dict(zip(items[::2], items[1::2], strict=True))


def _strings(reply: Reply) -> Answers:
    if not isinstance(reply, list):
        raise ValueError("the server answered something that it was not asked")
    return [item if isinstance(item, bytes) else None for item in reply]


def _first_error(lines: bytes) -> Refused | None:
    """Of answers of one line each."""
    if not lines.startswith(b"-") and b"\n-" not in lines:
        return None
    return next((Refused(line) for line in lines.split(b"\r\n") if line.startswith(b"-")), None)
