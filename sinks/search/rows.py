"""Writing a table's rows: where the documents go, what is said before them, and what becomes of each."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cdc.crashpoint import crashpoint
from cdc.errors import StoreError
from cdc.model.position import Position
from cdc.model.topic import TopicSchema
from sinks.deadletters import Letter, LetterState, check_share, last_of_keys
from sinks.retry import Fate
from sinks.search import bulk
from sinks.search.conditional import Conflict
from sinks.search.letters import SearchLetters
from sinks.search.statements import Place
from sinks.search.tables import Tables
from sinks.search.wire import Cluster

Positions = npt.NDArray[np.int64]

IN_FLIGHT: Final = 3
"""Bulk requests at once: while the cluster works on two, the next is made and on its way."""
WIDENED: Final = 3
"""A row's lines have about so many times its size in Arrow, until some of the table's have been made."""
LOOKUPS_MAX: Final = 10
TOGETHER_ROWS: Final = 500
"""Up to so many rows go in one request with what the index says before them: all of its answer is read."""
DEAD_ROWS_MIN: Final = 20


class Rows:
    """Writes rows of one store. Thread-safe only as far as its own requests go out side by side."""

    def __init__(
        self, cluster: Cluster, letters: SearchLetters, tables: Tables, *, request_bytes: int, dead_share_max: float
    ) -> None:
        self._cluster = cluster
        self.letters = letters
        self._tables = tables
        self._request_bytes = request_bytes
        self._dead_share_max = dead_share_max
        self._senders: ThreadPoolExecutor | None = None
        self._row_bytes: dict[str, float] = {}
        """Topic → how large its rows' lines were last, on average."""

    def close(self) -> None:
        """Closes what is open; a later write opens what it needs again."""
        if self._senders is not None:
            self._senders.shutdown()
            self._senders = None

    def write(self, schema: TopicSchema, place: Place, body: bulk.Body, positions: Positions) -> bulk.Verdicts:
        """A final verdict on every row. Rows that met a fence, or a state of the index that this process did not know, are sent again once it
        has been looked at, unless they are stale by now. Raises StoreError (retryable) when the cluster does not answer, or other processes
        replace the write alias all the time."""
        rows = np.arange(len(positions))
        final: list[bulk.Verdicts] = []
        for _ in range(LOOKUPS_MAX):
            judged = self._attempt(place, body, rows, positions)
            crashpoint("search.bulk.answered")
            final.append(judged.without(Fate.FENCED))
            rows = np.sort(judged.of(Fate.FENCED))
            if len(rows) == 0:
                return bulk.together(final)
            # Looked at before the place: rows that are covered may be of a definition that the place no longer takes.
            covered = positions[rows] <= self._covered(schema)
            final.append(bulk.all_of(rows[covered], Fate.STALE))
            rows = rows[~covered]
            if len(rows) == 0:
                return bulk.together(final)
            place = self._tables.prepare(schema)
        hint = f"another process replaces it all the time: see GET _alias/{place.names.writers}*"
        raise StoreError(
            f"store {self._cluster.store}: the write alias of {schema.topic} keeps changing", retryable=True, hint=hint
        )

    def write_all(self, writer: str, body: bulk.Body, rows: bulk.Rows) -> bulk.Verdicts:
        """As they are, with a verdict on each; some may have met a fence."""
        crashpoint("search.bulk.before_send")
        if len(rows) == 0:
            return bulk.together([])
        parts = bulk.divided(rows, self._rows_of_a_request(body), IN_FLIGHT)
        if len(parts) == 1:
            return self._send(writer, body, parts[0])
        # All are awaited even when one fails, so that none is still under way when we say so.
        if self._senders is None:
            self._senders = ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix=f"bulk-{self._cluster.store}")
        sent = [self._senders.submit(self._send, writer, body, part) for part in parts]
        failures = [error for future in sent if (error := future.exception()) is not None]
        if failures:
            raise failures[0]
        return bulk.together([future.result() for future in sent])

    def _rows_of_a_request(self, body: bulk.Body) -> int:
        """By what the table's lines were like last; they are hardly shorter than the rows are in Arrow, as after small rows or DELETEs."""
        held = body.batch.nbytes / len(body)
        each = max(self._row_bytes.get(body.schema.topic, WIDENED * held), held, 1.0)
        return max(1, int(self._request_bytes / each))

    def _send(self, writer: str, body: bulk.Body, rows: bulk.Rows) -> bulk.Verdicts:
        """One part, made here. In several requests where it has turned out much larger than thought."""
        first, last = int(rows[0]), int(rows[-1])
        lines = body.part(first, last)
        self._row_bytes[body.schema.topic] = int(lines.offsets[-1]) / len(lines)
        requests = bulk.split(lines, rows - first, 2 * self._request_bytes)
        return bulk.together([bulk.send(self._cluster, writer, lines, request) for request in requests]).moved(first)

    def bury(
        self,
        schema: TopicSchema,
        verdicts: bulk.Verdicts,
        positions: Positions,
        ids: Callable[[], pa.Array],
        *,
        edited_stay: bool = False,
    ) -> tuple[Letter, ...]:
        """Records the rows that the index can never hold, but for those that a later row of the batch replaces. ``positions``: of their
        changes in the log; ``ids``: gives the documents' ids; ``edited_stay``: see ``Letters.refused``. Raises StoreError when they are too large a
        share of the batch, not counting those that an operator has accepted."""
        dead = np.sort(verdicts.of(Fate.DEAD)).tolist()
        if not dead:
            return ()
        named, now = ids(), time.time()
        found = [
            Letter(schema.topic, Position(int(positions[row])), verdicts.reasons[row], named[row].as_py(), now) for row in dead
        ]
        last = set(last_of_keys(named, dead))
        letters = tuple(letter for row, letter in zip(dead, found, strict=True) if row in last)
        self.letters.set_aside(letters, edited_stay=edited_stay)
        # Once they are there: an operator who cannot change the index accepts them.
        known = self.letters.known.by_id
        undecided = [one.as_outcome() for one in letters if known[one.id].state is not LetterState.ACCEPTED]
        check_share(self._cluster.store, undecided, len(positions), share_max=self._dead_share_max, rows_min=DEAD_ROWS_MIN)
        return letters

    def _attempt(self, place: Place, body: bulk.Body, rows: bulk.Rows, positions: Positions) -> bulk.Verdicts:
        tables = self._tables
        tables.statements.settle(place)
        last = int(positions[rows[-1]])
        if place.terms is None or last > place.standing.reach:
            reach = last if place.terms is None else max(last, tables.followed.log.head().position)
            begun = place.terms is not None
            try:
                if len(rows) <= TOGETHER_ROWS:
                    judged = self._together(place, reach, body, rows)
                    if judged is not None:
                        return judged
                    tables.statements.settle(place)
                tables.statements.begin_alone(place, reach)
            except Conflict:
                if begun:
                    raise  # rows of this stretch may be gone
                return bulk.all_of(rows, Fate.FENCED)
        return self.write_all(place.writer, body, rows)

    def _together(self, place: Place, reach: int, body: bulk.Body, rows: bulk.Rows) -> bulk.Verdicts | None:
        """None: they are too large for one request with what the index says, or the cluster is too busy for it."""
        first = int(rows[0])
        lines = body.part(first, int(rows[-1]))
        if int(lines.offsets[-1]) > self._request_bytes:
            return None
        written = self._tables.statements.begin(place, reach)
        place.sent = written
        crashpoint("search.bulk.before_together")
        judged = bulk.send_behind(self._cluster, place.writer, written.changes, lines, rows - first)
        if judged is None:
            return None
        self._tables.statements.finish(written)
        again, judged = judged.of(Fate.AGAIN) + first, judged.without(Fate.AGAIN).moved(first)
        return bulk.together([judged, self.write_all(place.writer, body, np.sort(again))]) if len(again) else judged

    def _covered(self, schema: TopicSchema) -> int:
        """Rows up to this position are in the index already, or were truncated."""
        found = self._tables.find(schema)
        if found is None or found.whole is None or not found.said:
            return 0
        standing = found.whole.standing
        return max(standing.mark.cut.position, standing.floor)
