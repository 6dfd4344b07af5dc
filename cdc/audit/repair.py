"""Rows that an audit found to differ, sent again.

Nothing is written to a store beside its follower. Capture is asked to read the rows from the database once more, by their keys, as `cdc snapshot --keys`
asks it: a row enters the log behind whatever has changed it meanwhile or not at all (``snapshots.fence``), a key that no row has becomes a DELETE, and
every store that has the table gets both from there. So it does not matter whether the store or the log was wrong.

A table whose rows cannot be asked for by their keys is left as it is, and named.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import psycopg

from cdc.audit.comparison import TableInWork
from cdc.audit.findings import Repair
from cdc.audit.suspects import Differing, Settling
from cdc.errors import ConfigError, HeadwaterError, WaitTimeout
from cdc.model.topic import TopicSchema
from cdc.settings.models import Settings
from cdc.state import status, stops
from cdc.terminal import counted
from sinks.render.meaning import plain_key
from snapshots.catalog import SourceTable, load_tables
from snapshots.plan import Key
from snapshots.requestcheck import WrongKey, check_request
from snapshots.requests import Request, RequestOutcome, Requests

KEYS_AT_ONCE: Final = 20_000
"""In one request: capture looks at a request's file several times a second while it waits."""
WRONG_MAX: Final = 100
"""So many keys that can be no row's are looked for one by one."""
_LOOK_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Sent:
    """One table's rows that were sent again. ``differing``: those, as they were found; ``problem``: why others were not, and what helps."""

    table: TableInWork
    differing: Differing
    problem: str | None = None

    def repair(self, seen: Settling, aside: int) -> Repair:
        """``seen``: what another look at them has found; ``aside``: how many of them the store has set aside."""
        surplus = self.differing.surplus
        return Repair(
            missing=int((surplus > 0).sum()),
            extra=int((surplus < 0).sum()),
            different=int((surplus == 0).sum()),
            left=seen.differ,
            aside=aside,
            problem=self.problem,
        )


def refuse_without_capture(settings: Settings) -> None:
    """Raises ConfigError, or what stopped capture, where nobody would read anything."""
    capture = status.read_capture(settings.run_dir)
    if capture is None or capture.state in ("exited", "stopped") or not status.alive(capture.pid):
        stops.check(settings.run_dir, "capture")
        raise ConfigError("capture does not run, and it is what sends rows again", hint="cdc run")


class Repairer:
    """``connection``: to the source, as ``snapshots.session.open_session`` gives it. ``timeout_s``: for each request."""

    def __init__(self, settings: Settings, connection: psycopg.Connection, timeout_s: float) -> None:
        self._settings = settings
        self._connection = connection
        self._timeout_s = timeout_s
        self._requests = Requests(settings.log.dir)
        self._tables: dict[str, SourceTable] | None = None

    def send(self, found: TableInWork, tell: Callable[[], None]) -> Sent:
        """Returns once all that can be sent again is durable in the log, or capture has not come to it in time. ``tell`` is called often.

        Raises Stopped where capture stops meanwhile, SourceError where the tables cannot be looked at.
        """
        schema = TopicSchema.of(found.target.table)  # by its own key, whatever else names the places of rows in the store
        differing = found.differing
        if not differing.keys.num_rows or not found.target.captured:
            return Sent(found, differing.only(()))  # of a table that the log does not have, the audit says so
        problem = self._unaskable(schema)
        if problem is not None:
            return Sent(found, differing.only(()), problem)
        differing, problem = self._askable(differing, schema)
        keys = self._keys(differing, schema)
        for first in range(0, len(keys), KEYS_AT_ONCE):
            wanted = tuple(dict.fromkeys(keys[first : first + KEYS_AT_ONCE]))  # a row may differ at two places
            try:
                failed = self._ask(Request(schema.topic, keys=wanted), tell)
            except WaitTimeout as late:
                return Sent(found, differing.only(range(first)), late.line())
            if failed is not None:
                return Sent(found, differing.only(range(first)), f"they cannot be read again: {failed} → cdc doctor")
        return Sent(found, differing, problem)

    def _unaskable(self, schema: TopicSchema) -> str | None:
        """Why no row of the table can be asked for by what the audit knows of its key."""
        instead = f"cdc snapshot {schema.topic} --replace reads the whole table again"
        if schema.topic not in self._source_tables():
            return "it is not read from the source now → cdc status"
        if not schema.key or {one.name for one in schema.key} != set(self._index(schema)):
            return f"no key tells its rows apart → {instead}"
        if any(one.protected for one in schema.key):
            return f"the log has its key in another form than the database → {instead}"
        if not plain_key(schema):
            return f"its key is of a type that stores write in their own way → {instead}"
        return None

    def _askable(self, differing: Differing, schema: TopicSchema) -> tuple[Differing, str | None]:
        """Without the keys that can be no row's: somebody else has put something under them, and no change of the table would take it away."""
        known = np.ones(differing.keys.num_rows, np.bool_)
        for name in self._index(schema):
            known &= differing.keys.column(name).is_valid().to_numpy(zero_copy_only=False)
        at = np.flatnonzero(known)
        wrong = differing.keys.num_rows - at.size
        while at.size:
            keys = self._keys(differing.only(at), schema)
            try:
                check_request(self._connection, Request(schema.topic, keys=keys), self._settings.source)
                break
            except WrongKey as found:
                at = np.delete(at, found.place)
                wrong += 1
            if wrong > WRONG_MAX:
                at = at[:0]
                break
        if not wrong:
            return differing, None
        what = f"more than {WRONG_MAX} of its keys" if wrong > WRONG_MAX else counted(wrong, "key")
        return differing.only(at), f"{what} can be no row's in the database → delete them in the store"

    def _keys(self, differing: Differing, schema: TopicSchema) -> tuple[Key, ...]:
        return tuple(zip(*(differing.keys.column(name).to_pylist() for name in self._index(schema)), strict=True))

    def _index(self, schema: TopicSchema) -> Sequence[str]:
        return self._source_tables()[schema.topic].index

    def _source_tables(self) -> dict[str, SourceTable]:
        if self._tables is None:
            source = self._settings.source
            self._tables = {one.name: one for one in load_tables(self._connection, source.tables, source.publication)}
        return self._tables

    def _ask(self, request: Request, tell: Callable[[], None]) -> str | None:
        """Returns once the request is done: why it failed, if it did."""
        name, until = self._requests.queue(request), time.monotonic() + self._timeout_s
        while (outcome := self._outcome(name)).state not in ("done", "failed"):
            tell()
            stops.check(self._settings.run_dir, "capture")
            if time.monotonic() >= until:
                raise WaitTimeout(
                    f"capture has not read {counted(len(request.keys or ()), 'row')} of {request.table} again within {self._timeout_s:.0f} s; "
                    f"request {name} is kept, and carried out when capture comes to it",
                    hint="cdc status",
                )
            time.sleep(_LOOK_S)
        self._requests.forget(name)
        return outcome.error if outcome.state == "failed" else None

    def _outcome(self, name: str) -> RequestOutcome:
        try:
            return self._requests.outcome(name)
        except HeadwaterError as error:
            return RequestOutcome("failed", error=str(error))
