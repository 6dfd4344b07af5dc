"""Writing a table's rows: where the documents go, what is said before them, and what becomes of each."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cdc.crashpoint import crashpoint
from cdc.errors import StoreError
from cdc.model.position import Position
from cdc.model.topic import TopicSchema
from sinks.deadletters import Letter, LetterState, check_share, last_of_keys
from sinks.retry import Fate
from sinks.search import bulk
from sinks.search.conditional import Conflict
from sinks.search.letters import SearchLetters
from sinks.search.spread import TAKEN
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

    def write(self, schema: TopicSchema, place: Place, actions: bulk.Actions, positions: Positions) -> bulk.Verdicts:
        """A final verdict on every row. Rows that met a fence, or a state of the index that this process did not know, are sent again once it
        has been looked at, unless they are stale by now. Raises StoreError (retryable) when the cluster does not answer, or other processes
        replace the write alias all the time."""
        final = [actions.nameless()]
        rows = _others(len(positions), final[0])
        if len(rows) == 0:
            return final[0]
        for _ in range(LOOKUPS_MAX):
            judged = self._attempt(place, actions, rows, positions)
            crashpoint("search.bulk.answered")
            final.append(judged.without(Fate.FENCED))
            rows = np.sort(judged.of(Fate.FENCED))
            if len(rows) == 0:
                return bulk.together(final).named(schema)
            # Looked at before the place: rows that are covered may be of a definition that the place no longer takes.
            covered = positions[rows] <= self._covered(schema)
            final.append(bulk.all_of(rows[covered], Fate.STALE))
            rows = rows[~covered]
            if len(rows) == 0:
                return bulk.together(final).named(schema)
            place = self._tables.prepare(schema)
        hint = f"another process replaces it all the time: see GET _alias/{place.names.writers}*"
        raise StoreError(
            f"store {self._cluster.store}: the write alias of {schema.topic} keeps changing", retryable=True, hint=hint
        )

    def write_into(self, place: Place, actions: bulk.Actions, reach: int) -> bulk.Verdicts:
        """All of them as they are, with a verdict on each; some may have met a fence. ``reach``: their highest position."""
        nameless = actions.nameless()
        rows = _others(len(actions), nameless)
        taken = self._reached(place, actions, rows, reach)
        rows = _others(len(actions), nameless, taken)
        return bulk.together([nameless, taken, self._write_through(place, actions, rows)]).named(place.schema)

    def _reached(self, place: Place, actions: bulk.Actions, rows: bulk.Rows, reach: int) -> bulk.Verdicts:
        """Makes the parts that rows lie in and that are not there; the verdicts on those that lie in one which somebody else has."""
        if actions.parts is None:
            return bulk.together([])
        parts = actions.parts.take(pa.array(rows))
        taken = self._tables.reach(place, parts.unique().to_pylist(), reach)
        if not taken:
            return bulk.together([])
        met = rows[np.asarray(pc.is_in(parts, value_set=pa.array(sorted(taken), pa.utf8())))]
        return bulk.all_of(met, Fate.DEAD, TAKEN)

    def _write_through(self, place: Place, actions: bulk.Actions, rows: bulk.Rows) -> bulk.Verdicts:
        return self.write_all(_through(place, actions), actions, rows, _writers(place))

    def write_all(
        self, writer: str | None, actions: bulk.Actions, rows: bulk.Rows, writers: Mapping[str, str] = MappingProxyType({})
    ) -> bulk.Verdicts:
        """As they are, with a verdict on each; some may have met a fence. ``writer``: as ``bulk.send``; ``writers``: as ``bulk.Actions.lines``."""
        crashpoint("search.bulk.before_send")
        if len(rows) == 0:
            return bulk.together([])
        parts = bulk.divided(rows, self._rows_of_a_request(actions), IN_FLIGHT)
        if len(parts) == 1:
            return self._send(writer, actions, parts[0], writers)
        # All are awaited even when one fails, so that none is still under way when we say so.
        if self._senders is None:
            self._senders = ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix=f"bulk-{self._cluster.store}")
        sent = [self._senders.submit(self._send, writer, actions, part, writers) for part in parts]
        failures = [error for future in sent if (error := future.exception()) is not None]
        if failures:
            raise failures[0]
        return bulk.together([future.result() for future in sent])

    def _rows_of_a_request(self, actions: bulk.Actions) -> int:
        """By what the table's lines were like last; they are hardly shorter than the rows are in Arrow, as after small rows or DELETEs."""
        held = actions.batch.nbytes / len(actions)
        each = max(self._row_bytes.get(actions.schema.topic, WIDENED * held), held, 1.0)
        return max(1, int(self._request_bytes / each))

    def _send(self, writer: str | None, actions: bulk.Actions, rows: bulk.Rows, writers: Mapping[str, str]) -> bulk.Verdicts:
        """One part, made here. In several requests where it has turned out much larger than thought."""
        first, last = int(rows[0]), int(rows[-1])
        lines = actions.lines(first, last, writers)
        self._row_bytes[actions.schema.topic] = int(lines.offsets[-1]) / len(lines)
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

    def _attempt(self, place: Place, actions: bulk.Actions, rows: bulk.Rows, positions: Positions) -> bulk.Verdicts:
        tables, begun = self._tables, place.terms is not None
        tables.statements.settle(place)
        last = int(positions[rows[-1]])
        try:
            taken = self._reached(place, actions, rows, last)
        except Conflict:
            if begun:
                raise  # rows of this stretch may be gone
            return bulk.all_of(rows, Fate.FENCED)
        if len(taken.rows):
            rows = np.setdiff1d(rows, taken.rows)
        if len(rows) == 0:
            return taken
        return bulk.together([taken, self._sent(place, actions, rows, last)])

    def _sent(self, place: Place, actions: bulk.Actions, rows: bulk.Rows, last: int) -> bulk.Verdicts:
        tables = self._tables
        if place.terms is None or last > place.standing.reach:
            reach = last if place.terms is None else max(last, tables.followed.log.head().position)
            begun = place.terms is not None
            try:
                if len(rows) <= TOGETHER_ROWS:
                    judged = self._together(place, reach, actions, rows)
                    if judged is not None:
                        return judged
                    tables.statements.settle(place)
                tables.statements.begin_alone(place, reach)
            except Conflict:
                if begun:
                    raise  # rows of this stretch may be gone
                return bulk.all_of(rows, Fate.FENCED)
        return self._write_through(place, actions, rows)

    def _together(self, place: Place, reach: int, actions: bulk.Actions, rows: bulk.Rows) -> bulk.Verdicts | None:
        """None: they are too large for one request with what the index says, or the cluster is too busy for it."""
        first = int(rows[0])
        lines = actions.lines(first, int(rows[-1]), _writers(place))
        if int(lines.offsets[-1]) > self._request_bytes:
            return None
        written = self._tables.statements.begin(place, reach)
        place.sent = written
        crashpoint("search.bulk.before_together")
        judged = bulk.send_behind(self._cluster, _through(place, actions), written.changes, lines, rows - first)
        if judged is None:
            return None
        self._tables.statements.finish(written)
        again, judged = judged.of(Fate.AGAIN) + first, judged.without(Fate.AGAIN).moved(first)
        return bulk.together([judged, self._write_through(place, actions, np.sort(again))]) if len(again) else judged

    def _covered(self, schema: TopicSchema) -> int:
        """Rows up to this position are in the index already, or were truncated."""
        found = self._tables.find(schema)
        if found is None or found.whole is None or not found.said:
            return 0
        standing = found.whole.standing
        return max(standing.mark.cut.position, standing.floor)


def _through(place: Place, actions: bulk.Actions) -> str | None:
    return place.writer if actions.parts is None else None


def _writers(place: Place) -> Mapping[str, str]:
    return {name: unit.writer for name, unit in place.parts.items()}


def _others(count: int, *judged: bulk.Verdicts) -> bulk.Rows:
    """The numbers of rows that there is no verdict on."""
    open_ = np.ones(count, np.bool_)
    for one in judged:
        open_[one.rows] = False
    return np.flatnonzero(open_)
