"""The database, as `cdc bootstrap` asks it.

*Comparing*: a generation's rows against the database's, after they were compared with the log. What the log has wrong, a store that is built from it has wrong, too. It is the audit that
`cdc audit` carries out, of a store that only this process follows: where that waits for the store's follower, here the log is waited for, and the generation is brought to its end.

*Reading*: the rows of all tables once more, for a log that no longer has all of them, or is not to be believed. Capture is asked to, as by `cdc snapshot TABLE`: it reads in chunks
between watermarks, each row enters the log behind whatever has changed it meanwhile or not at all, and every store that has the table gets rows over rows. So all that the tables hold by
then, and all that has changed since, stands in the log behind the place where it ended when capture was asked: a row that nothing says anything of there has been deleted before. A generation is
built of that alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Final

from cdc.audit.comparison import SourceSide
from cdc.audit.findings import Report, StoreAudit
from cdc.audit.stores import CATCH_UP_TIMEOUT_S, NUDGE_AFTER_S, audit_store, targets
from cdc.client.wait import capture_says, clean_point, nudge, target_of
from cdc.errors import ConfigError, SourceError, StoreError, WaitTimeout
from cdc.log.contract import selected
from cdc.log.orphans import ended_topics
from cdc.model.evolution import Kind
from cdc.model.position import Cut, Lsn, Position, format_lsn
from cdc.privacy.policies import protection_of
from cdc.settings.models import Settings
from cdc.source.connection import connect
from cdc.state import status, stops
from sinks.contract import Sink
from sinks.heldlog import HeldLog
from snapshots.requestcheck import check_request
from snapshots.requests import Request, Requests
from snapshots.session import Unreachable, open_session

_LOOK_S: Final = 0.05
_DOWN_S: Final = 60.0
"""A capture process that ends is started again within seconds, where it is at all."""


def refuse_without_capture(settings: Settings) -> None:
    """Raises ConfigError, or what stopped capture, where the log would never get as far as the database."""
    if not _capture_runs(settings):
        stops.check(settings.run_dir, "capture")
        raise ConfigError("capture does not run, so the log does not get as far as the database", hint="cdc run")


def _capture_runs(settings: Settings) -> bool:
    capture = status.read_capture(settings.run_dir)
    return capture is not None and capture.state not in ("exited", "stopped") and status.alive(capture.pid)


@dataclass(frozen=True, slots=True)
class AskedDatabase:
    """``log``: as the store sees it. ``reads``, ``compares``: what is asked for. ``stopped``: whether to end. ``timeout_s``: for the log to get as far as the database."""

    settings: Settings
    store: str
    log: HeldLog
    reads: bool
    compares: bool
    stopped: Callable[[], bool]
    timeout_s: float = CATCH_UP_TIMEOUT_S

    def compare(self, sink: Sink, bring_on: Callable[[], Cut], progress: Report) -> StoreAudit:
        """``sink``: opened, as ``bring_on`` leaves it, which brings it to the log's end. Raises SourceError, WaitTimeout, ConfigError, Stopped where capture stops,
        StoreError."""
        refuse_without_capture(self.settings)
        dsn = self.settings.source.dsn.get_secret_value()
        with closing(connect(dsn, application="headwater-bootstrap")) as connection:
            database = SourceSide(connection, self.settings.source.publication, protection_of(self.settings, self.log))
            tables = partial(targets, self.settings, self.log, database, sink.name, None)

            def caught_up(lsn: Lsn) -> Cut:
                self._await_log(lsn)
                return bring_on()

            return audit_store(database, sink, tables, caught_up, progress)

    def read_again(self, tell: Callable[[int, int], None]) -> Mapping[str, Position]:
        """Returns once every row of the store's tables is in the log again: where the log ended before, by topic. Topics of tables that are gone are among them; those that other
        producers bring are not. ``tell``: called often, with the rows that were read and how many there are about.

        Raises ConfigError, naming it, for a table that cannot be read now; SourceError where that shows only while it is read; Stopped where capture stops meanwhile, StoreError.
        """
        refuse_without_capture(self.settings)
        topics = [one for one in selected(self.log, self.settings.stores[self.store].tables) if not one.table.derived]
        gone = {name for name, kind in ended_topics(self.log).items() if kind in (Kind.DROPPED, Kind.RENAMED)}
        asked = [Request(one.name) for one in topics if one.name not in gone]
        try:
            with closing(open_session(self.settings.source.dsn.get_secret_value())) as connection:
                for request in asked:
                    check_request(connection, request, self.settings.source)
        except Unreachable as error:
            raise SourceError(str(error), hint="cdc doctor") from None
        begin = self.log.head().position
        requests = Requests(self.settings.log.dir)
        self._await_rows(requests, {requests.queue(request): request for request in asked}, tell)
        return {one.name: begin for one in topics}

    def _await_rows(self, requests: Requests, asked: Mapping[str, Request], tell: Callable[[int, int], None]) -> None:
        open_since, runs_at = dict(asked), time.monotonic()
        rows = dict.fromkeys(asked, (0, 0))
        while open_since:
            for name, request in list(open_since.items()):
                outcome = requests.outcome(name)
                rows[name] = outcome.rows, max(outcome.rows, outcome.total)
                if outcome.state == "failed":
                    raise SourceError(f"table {request.table} cannot be read again: {outcome.error}", hint="cdc doctor")
                if outcome.state == "done":
                    requests.forget(name)
                    del open_since[name]
            tell(sum(read for read, _ in rows.values()), sum(of for _, of in rows.values()))
            if self.stopped():
                raise StoreError(
                    "the tables were not read to their end; capture goes on with what it was asked for", retryable=True
                )
            stops.check(self.settings.run_dir, "capture")
            if _capture_runs(self.settings):
                runs_at = time.monotonic()
            elif time.monotonic() - runs_at >= _DOWN_S:
                refuse_without_capture(self.settings)
            time.sleep(_LOOK_S if open_since else 0)

    def _await_log(self, lsn: Lsn) -> None:
        """Returns once the log holds, and shows, everything that the database had committed at the LSN."""
        began, nudges = time.monotonic(), True
        while not self._shows(lsn):
            stops.check(self.settings.run_dir, "capture")
            if self.stopped():
                raise StoreError("the comparison with the database was not carried out to its end", retryable=True)
            waited = time.monotonic() - began
            if waited >= self.timeout_s:
                raise WaitTimeout(f"the log does not hold {format_lsn(lsn)} after {self.timeout_s:.0f} s", hint="cdc status")
            if nudges and waited >= NUDGE_AFTER_S:
                nudge(self.settings.source.dsn.get_secret_value())
                nudges = False
            time.sleep(_LOOK_S)

    def _shows(self, lsn: Lsn) -> bool:
        cut = self.log.cut_at_lsn(lsn)
        received, complete = capture_says(self.settings, self.log.head())
        target = target_of(self.log, cut, lsn, received, complete)
        if target is None:
            return False
        tables = self.settings.stores[self.store].tables
        return self.log.head().position >= max(target, clean_point(self.log, tables))
