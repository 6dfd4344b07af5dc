"""The stores that one process follows, each by itself: begun, ended and opened again one at a time, while the others go on undisturbed.

Why that happens: the configuration has got another store, has changed or lost one, or an operator has resumed one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import structlog

from cdc.errors import StopState, StoreError
from cdc.follow.access import Ports
from cdc.follow.follower import Follower
from cdc.follow.storelog import StoreLog
from cdc.log.contract import LogReader
from cdc.settings.models import Contract, StoreOptions
from cdc.state import status, stops
from cdc.state.lease import LeaseHeld
from cdc.state.strangers import forget


class Runner(Protocol):
    """The thread that keeps a follower going until it is halted."""

    @property
    def ended(self) -> bool: ...

    def start(self) -> None: ...

    def join(self) -> None: ...

    def check(self) -> None: ...


@dataclass(slots=True)
class _Standing:
    """One store that is followed."""

    follower: Follower
    runner: Runner
    halt: threading.Event
    lines: StoreLog
    leaving: bool = False
    waits: bool = False
    """Another process follows the store: this one stands by, and takes its place once that is gone, or stands still."""

    def leave(self) -> None:
        self.leaving = True
        self.halt.set()


@dataclass(slots=True)
class Fleet:
    """One thread only. ``runner``: makes the thread of a follower that ends when the event is set. ``ports``: every follower's."""

    log_dir: Path
    run_dir: Path
    reader: LogReader
    contracts: Mapping[str, Contract]
    runner: Callable[[Follower, threading.Event], Runner]
    ports: Ports = field(default_factory=Ports)
    _stores: dict[str, _Standing] = field(default_factory=dict)
    _wanted: Mapping[str, StoreOptions] = field(default_factory=dict)
    _left_out: dict[str, StoreOptions] = field(default_factory=dict)
    """Wanted, and in a stop state since before they were begun here."""
    _renewing: bool = False
    """Every store is closed first, and opened again with what then stands in the log's folder."""

    @property
    def followers(self) -> Iterator[Follower]:
        return (one.follower for one in self._followed())

    def _followed(self) -> Iterator[_Standing]:
        return (one for one in list(self._stores.values()) if not one.waits)

    @property
    def stopped(self) -> bool:
        """Every store waits for an operator."""
        return bool(self._wanted) and all(
            store in self._left_out or (store in self._stores and self._halted(self._stores[store])) for store in self._wanted
        )

    def begin(self, wanted: Mapping[str, StoreOptions], *, stand_by: bool = True) -> None:
        """``stand_by``: for the stores that another process follows. Raises HeadwaterError otherwise when there is one, or when every store is in a stop
        state; then nothing was begun."""
        self._wanted = wanted
        running = [store for store in wanted if not self._leave_out(store)]
        if not running and self._left_out:
            stop = next(stop for store in wanted if (stop := self._stop_of(store)) is not None)
            raise stop.error()
        made = {store: self._made(store) for store in running}
        try:
            for store, one in made.items():
                self._take(store, one, stand_by=stand_by)
        except BaseException:
            for one in made.values():
                one.follower.release_lease()
            raise
        self._stores = made
        for one in self._followed():
            self._start(one)

    def _take(self, store: str, one: _Standing, *, stand_by: bool = True) -> None:
        try:
            one.follower.take_lease()
        except LeaseHeld as held:
            if not stand_by:
                raise
            if not one.waits:
                _log(store).info(f"{held}: this one stands by", facts={"store": store})
            one.waits = True
        else:
            if one.waits:
                _log(store).warning(
                    "whoever followed it has ended, or no longer renews its lease: taken over", facts={"store": store}
                )
            one.waits = False

    def _start(self, one: _Standing) -> None:
        one.follower.report()
        one.runner.start()

    def look(self) -> None:
        """Raises what ended a store's thread where nothing should; writes the log's lines."""
        capture = self._capture()
        for one in self._followed():
            one.runner.check()
            one.lines.look(capture)

    def adapt(self, wanted: Mapping[str, StoreOptions]) -> None:
        """Brings what is followed nearer to what is wanted; never waits. To be called again and again."""
        changed, self._wanted = wanted is not self._wanted, wanted
        for store, one in list(self._stores.items()):
            if one.waits:
                self._stand_by(store, one)
            elif one.leaving:
                if one.runner.ended:
                    self._end(store, one)
            elif store not in wanted:
                one.leave()
            elif one.follower.lost:
                _log(store).warning("another process follows it by now: this one had not renewed its lease", facts={"store": store})
                one.leave()
            elif changed and wanted[store] != one.follower.options:
                _log(store).info("its options in the configuration have changed: it is closed and opened again")
                one.leave()
            elif one.follower.stopped and self._stop_of(store) is None:
                _log(store).info("was resumed: it is opened again")
                one.leave()
                # The reader, which all of them share, has the damaged file open.
                self._renewing |= one.follower.status.stop == StopState.LOG_CORRUPT
        if self._renewing and not self._renewed():
            return
        self._begin_missing()

    def report(self) -> None:
        """To be called now and then."""
        for one in self._followed():
            one.follower.report(when_due=True)

    def close(self) -> None:
        """Finishes the batches under way, and closes every store."""
        ended = [(store, one) for store, one in self._stores.items() if not one.waits]
        for _, one in ended:
            one.halt.set()
        for _, one in ended:
            one.runner.join()
        for store, one in ended:
            self._end(store, one)
        for _, one in ended:
            one.runner.check()

    def _renewed(self) -> bool:
        """Has the reader let go of the log's files once no store reads any more."""
        for one in self._followed():
            one.leave()
        self._renewing = any(self._followed())
        if not self._renewing:
            self.reader.close()  # it opens what stands there now
        return not self._renewing

    def _begin_missing(self) -> None:
        for store in [store for store in self._left_out if store not in self._wanted]:
            del self._left_out[store]
            self._forget(store)
        for store in self._wanted:
            if store in self._stores or (store in self._left_out and self._stop_of(store) is not None):
                continue
            self._left_out.pop(store, None)
            if not self._leave_out(store):
                self._stores[store] = self._made(store)
                self._enter(store, self._stores[store])

    def _enter(self, store: str, one: _Standing) -> None:
        with suppress(StoreError):  # the log's folder is not there at present: its thread waits for it
            self._take(store, one)
        if not one.waits:
            self._start(one)

    def _stand_by(self, store: str, one: _Standing) -> None:
        if self._wanted.get(store) == one.follower.options and self._stop_of(store) is None:
            self._enter(store, one)
        else:
            del self._stores[store]  # and is begun again where it is still wanted

    def _made(self, store: str) -> _Standing:
        halt = threading.Event()
        options = self._wanted[store]
        follower = Follower(store, options, self.log_dir, self.reader, self.run_dir, halt, self.contracts, self.ports)
        return _Standing(follower, self.runner(follower, halt), halt, StoreLog(follower, self.reader))

    def _leave_out(self, store: str) -> bool:
        stop = self._stop_of(store)
        if stop is None:
            return False
        self._left_out[store] = self._wanted[store]
        _log(store).warning(
            f"stays stopped: {stop.state}: {stop.message} → cdc resume {stop.name}", facts={"store": store, "stop": str(stop.state)}
        )
        return True

    def _capture(self) -> Callable[[], status.CaptureStatus | None]:
        """Reads capture's status when it is first called: once for all stores."""
        return cache(lambda: status.read_capture(self.run_dir))

    def _stop_of(self, store: str) -> stops.Stop | None:
        return stops.held_by(self.run_dir, f"follow-{store}")

    def _halted(self, one: _Standing) -> bool:
        return one.follower.stopped and not one.leaving and self._stop_of(one.follower.store) is not None

    def _end(self, store: str, one: _Standing) -> None:
        one.follower.close()
        one.lines.look(self._capture())
        if one.leaving:
            del self._stores[store]
            if store not in self._wanted:
                self._forget(store)

    def _forget(self, store: str) -> None:
        """Of a store that is no longer configured nothing is shown any more. Nothing in the store itself is touched."""
        forget(self.run_dir, store)
        _log(store).info("is no longer in the configuration and no longer followed; what it holds stays in it")


def _log(store: str) -> Any:
    return structlog.get_logger(f"store {store}")
