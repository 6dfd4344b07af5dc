"""The life of a process that follows a store: the product's follower, driven a step at a time, under a lease that is taken from it unseen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event

from cdc.follow.access import Ports
from cdc.follow.follower import Follower, Rest, Step
from cdc.log.embedded.reader import EmbeddedLogReader
from cdc.state import rebuilds, stops
from cdc.state.approvals import approved
from sinks.contract import Sink
from tests.sim.clock import Clock
from tests.sim.stores import Died, FlakySink, Lease, Site


class Life:
    """``steps`` ends by dying (Died) only. ``run_dir``: shared by all that follow the store, one after the other."""

    def __init__(self, site: Site, log: EmbeddedLogReader, run_dir: Path, clock: Clock) -> None:
        self._site = site
        self._log = log
        self._run_dir = run_dir
        self._ports = Ports(clock, self._sink, self._take_lease, lambda *_: None)
        self._lease: Lease | None = None
        self._halt = Event()

    def steps(self) -> Iterator[str]:
        """Says each time what has just been done."""
        site = self._site
        while True:
            stop = stops.held_by(self._run_dir, f"follow-{site.name}")
            if stop is not None:
                self._operate(stop)
                yield "resumed"
            follower = Follower(site.name, site.options, self._run_dir, self._log, self._run_dir, self._halt, ports=self._ports)
            while not follower.stopped:
                yield from self._round(follower)
            follower.close()

    def _round(self, follower: Follower) -> Iterator[str]:
        """What a store's thread does when it looks at the log."""
        site, head = self._site, self._log.head()
        behind = head.position > follower.applied.position and site.chance.random() < 0.8
        for step in follower.pursue(head) if behind else follower.keep_up():
            if step is Step.OPENED:
                site.claimed(follower.applied.position)
            yield "waits" if isinstance(step, Rest) else step.value
            if step is Step.APPLIED and site.chance.random() < site.moods.dies:
                site.met("follower died before its commit")
                raise Died
        yield "idle"

    def _operate(self, stop: stops.Stop) -> None:
        """What an operator does about the state in which the store's follower has stopped."""
        site = self._site
        if site.stopped(stop.state, stop.message):
            rebuilds.request(self._run_dir, site.name, stop.state)
        site.terms.approved = approved(self._run_dir, site.name)
        stops.clear(self._run_dir, stop.name)

    def _take_lease(self, *_: object) -> Lease:
        if self._lease is not None and self._lease is not self._site.leases[-1]:
            self._site.met("follower was replaced")
            raise Died  # another process has it, and keeps it
        self._lease = Lease(self._site)
        return self._lease

    def _sink(self, *_: object) -> Sink:
        return FlakySink(self._site)  # type: ignore[return-value]
