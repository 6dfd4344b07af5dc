"""The threads and connections of the snapshot: they drive ``agenda`` and, for each worker, ``worker``.

Nothing is decided here. ``agenda`` and ``worker`` are generators, which yield whatever takes time as a request (``steps``); ``_Hands`` answers it,
and throws the server's errors into them. So the simulator can drive the same decisions without a thread.

A session has a connection to look with, one that emits the watermarks, and one for each worker that finds work. Rows are typed in one pool of
threads and handed over in another, which first makes a part ready in the feed and only then emits its watermark: a watermark that comes back in
the stream always finds its rows. Which of these may enter there is decided by ``fence``, on the stream's side.

Sessions are cheap to lose. What a table has got durably into the log is in ``progress``, and the next session goes on from there; watermarks carry a
word of their session's own, so one that comes late from an earlier session is nobody's. What may fail, and what then:

- a lost connection, in whichever thread: the board passes it on, all workers end, and a new session begins after a pause that grows up to 5 s;
- a table that is locked or cannot be read: the generators see to that (``locks``, ``failures``), and the others go on;
- anything else, such as a DSN that cannot be used or an error of ours: it reaches ingest through the feed;
- ``stop``: waiting for the stream, the board or a pause ends with Abandoned, in the workers once the session ends.

Between sessions nothing is open: no connection, no transaction that would hold back the server's vacuum, and no worker.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from threading import Event, Thread
from typing import Final, Protocol

import psycopg
import structlog

from cdc.errors import ConfigError, SourceError
from cdc.kernels.memory import Reused
from cdc.pgvalues.binary import readable
from cdc.source.connection import reason
from cdc.source.copyout import Abandoned, copy_blocks
from cdc.source.excerpt import Reachable
from snapshots import steps
from snapshots.agenda import Agenda, Selection
from snapshots.copy import read_rows
from snapshots.feed import PREFIX, SnapshotFeed, Watermarks
from snapshots.jobs import Board
from snapshots.loggedrows import NOTHING_LOGGED, LoggedRows, next_keys
from snapshots.plan import MissingKeys
from snapshots.progress import SnapshotProgress
from snapshots.requests import Requests
from snapshots.session import Unreachable, open_session
from snapshots.steps import Request, RowsRead, drive
from snapshots.worker import Reader

MEMORY_BYTES: Final = 64 * 2**20
"""So much of each size is kept for the next blocks while a worker reads: about what its parts on their way hold."""
_RECONNECT_S: Final = (0.1, 5.0)
_WAIT_S: Final = 0.5

log = structlog.get_logger("snapshot")


class SnapshotSource(Selection, Reachable, Protocol):
    """The part of ``[source]`` that the snapshot needs."""


class SnapshotCoordinator:
    """Brings every selected table that is not finished into the stream; ``start`` once the slot and the publication exist.

    Errors that waiting does not end reach ingest through the feed. A lost connection is opened again.
    """

    def __init__(
        self,
        source: SnapshotSource,
        feed: SnapshotFeed,
        progress: SnapshotProgress,
        requests: Requests,
        stop: Event,
        *,
        log_has_begun: bool = True,
        refused: Callable[[], Collection[int]] = lambda: (),
        logged: LoggedRows = NOTHING_LOGGED,
    ) -> None:
        """``log_has_begun``, ``refused``: as an ``Agenda`` takes them. ``logged``: for tables that are read again."""
        self._source = source
        self._logged = logged
        self._feed = feed
        self._stop = stop
        self._agenda = Agenda(source, feed, progress, requests, log_has_begun=log_has_begun, refused=refused)
        self._thread = Thread(target=self._live, name="snapshot", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float | None = None) -> None:
        """After ``stop`` was set."""
        self._thread.join(timeout_s)

    @property
    def finished(self) -> bool:
        """Every selected table is in the log."""
        return self._agenda.finished

    @property
    def paused(self) -> str | None:
        """Why reading stands still now, if it does."""
        return self._agenda.paused

    @property
    def unreadable(self) -> list[SourceError]:
        """Why tables cannot be read that are to be; another look at each is taken every few seconds."""
        return self._agenda.unreadable

    def _live(self) -> None:
        pause = _RECONNECT_S[0]
        while not self._stop.is_set():
            try:
                if self._agenda.rests():
                    self._feed.wait_for_work(_WAIT_S)
                    continue
                try:
                    self._session()
                finally:
                    self._agenda.over()
                pause = _RECONNECT_S[0]
            except Abandoned:
                return
            except ConfigError as error:
                self._feed.fail(error)
                return
            except (psycopg.OperationalError, Unreachable) as error:
                text = str(error) if isinstance(error, Unreachable) else reason(error)
                log.warning("snapshot waits for the source", reason=text, again_in_s=pause)
                self._stop.wait(pause)
                pause = min(pause * 2, _RECONNECT_S[1])
            except psycopg.Error as error:
                self._feed.fail(SourceError(f"the snapshot cannot go on: {reason(error)}", hint="cdc doctor"))
                return
            except Exception as error:
                self._feed.fail(error)
                return

    def _session(self) -> None:
        connect = partial(open_session, self._source.dsn.get_secret_value())
        board, over, workers = Board(), Event(), self._source.snapshot_workers
        watermarks = Watermarks(secrets.token_hex(8))
        with (
            closing(connect()) as emitting,
            ThreadPoolExecutor(workers, thread_name_prefix="snapshot-parse") as typists,
            ThreadPoolExecutor(workers, thread_name_prefix="snapshot-emit") as emitters,
            closing(_Hands(connect, emitting, self._feed, board, self._stop, typists, emitters, self._logged)) as hands,
        ):
            readers = [
                (
                    self._agenda.reader(board, watermarks),
                    _Hands(connect, emitting, self._feed, board, over, typists, emitters, self._logged),
                )
                for _ in range(workers)
            ]
            with _threads(readers, board, over):
                drive(self._agenda.session(board, watermarks), hands.answer)


@contextmanager
def _threads(readers: list[tuple[Reader, _Hands]], board: Board, over: Event) -> Iterator[None]:
    """The workers, each in a thread."""
    threads = [
        Thread(target=_work, args=(reader, hands, board), name=f"snapshot-{number}", daemon=True)
        for number, (reader, hands) in enumerate(readers, 1)
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        board.close()
        for thread in threads:
            thread.join()


def _work(reader: Reader, hands: _Hands, board: Board) -> None:
    try:
        with closing(hands):
            drive(reader.live(), hands.answer)
    except Abandoned:
        return
    except BaseException as error:
        board.fail(error)


class _Hands:
    """Answers the requests of one thread's steps. Its connection is opened when it is first needed.

    Steps that these start are driven by a thread that types nothing: the server syncs its WAL before it answers, and the next part's blocks wait.
    """

    def __init__(
        self,
        connect: Callable[[], psycopg.Connection],
        emitting: psycopg.Connection,
        feed: SnapshotFeed,
        board: Board,
        stop: Event,
        typists: ThreadPoolExecutor,
        emitters: ThreadPoolExecutor,
        logged: LoggedRows,
    ) -> None:
        self._connect = connect
        self._connection: psycopg.Connection | None = None
        self._emitting = emitting
        self._feed = feed
        self._board = board
        self._stop = stop
        self._typists = typists
        self._emitters = emitters
        self._logged = logged
        self._memory = Reused(MEMORY_BYTES)
        self._blocks: Iterator[RowsRead] | None = None
        """While the connection is in the middle of a COPY's reply."""

    def answer(self, request: Request) -> object:
        """Raises Abandoned when the thread is to stop, and what the server says."""
        match request:
            case steps.NextBlock():
                return self._next_block()
            case steps.Query():
                return request.ask(self._connected())
            case steps.Copy():
                self._blocks = self._copied(request)
            case steps.Rollback():
                self._roll_back()
            case steps.Start(started):
                return self._emitters.submit(drive, started, self._hand_over)
            case steps.Finished(started):
                assert isinstance(started, Future)
                started.result()
            case steps.Await():
                return self._await(request)
            case steps.NextJob():
                return self._board.next()
            case steps.AwaitBoard(most_s):
                self._board.wait(most_s)
                self._go_on()
            case steps.Since(asked):
                return self._logged.since(asked.table, asked.index)
            case steps.Unread(asked, since):
                return self._logged.unread(asked.table, asked.index, since, self._go_on)
            case steps.NextKeys(keys):
                return next_keys(keys)
            case steps.Pause(seconds):
                self._stop.wait(seconds)
                self._go_on()
            case _:
                return self._hand_over(request)
        return None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _connected(self) -> psycopg.Connection:
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _go_on(self) -> None:
        if self._stop.is_set():
            raise Abandoned

    def _await(self, request: steps.Await) -> bool:
        until = float("inf") if request.most_s is None else time.monotonic() + request.most_s
        while not self._feed.wait(request.chunk, request.states, _WAIT_S):
            self._go_on()
            if time.monotonic() > until:
                return False
        return True

    def _hand_over(self, request: Request) -> object:
        """The requests of steps that were started."""
        match request:
            case steps.Typed(rows):
                return [block.content.result() for block in rows]
            case steps.Emit(content):
                self._emitting.execute("select pg_logical_emit_message(true, %s, %b)", (PREFIX, content))
                return None
            case _:
                raise TypeError(f"nothing answers {type(request).__name__}")

    # --- COPY ------------------------------------------------------------------------------------------------------------------

    def _copied(self, wanted: steps.Copy) -> Iterator[RowsRead]:
        """The rows as they come, already on their way to being typed."""
        table, part, take = wanted.source.table, wanted.part, self._memory.take
        binary = not isinstance(part, MissingKeys) and readable(table)
        query = part.query(wanted.source) if isinstance(part, MissingKeys) else part.query(wanted.source, binary=binary)
        for block in copy_blocks(self._connected(), query, self._stop, wanted.most_rows, take, binary=binary):
            yield RowsRead(block.rows, len(block.data), self._typists.submit(read_rows, block, table, wanted.op, take))

    def _next_block(self) -> RowsRead | None:
        assert self._blocks is not None, "COPY comes first"
        try:
            block = next(self._blocks, None)
        except psycopg.Error:
            # The server has answered to the end, or is gone.
            self._blocks = None
            raise
        if block is None:
            self._blocks = None
        return block

    def _roll_back(self) -> None:
        if self._blocks is None:
            self._connected().execute("ROLLBACK")
            return
        # Only its end gets a connection out of a reply.
        self._blocks = None
        self.close()
        self._connection = None
