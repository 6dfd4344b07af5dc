"""Waiting through views: a store that holds a view shows a commit once the view reflects it and the store has what the view made of it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from cdc.inbox.verdicts import InboxMark
from cdc.log.contract import LogReader
from cdc.model.position import START, Position
from cdc.model.selection import matches
from cdc.settings.models import Settings
from cdc.settings.views import VIEWS, topic_of
from cdc.state import status, stops
from cdc.views.marks import ViewMark, producer_of


class ViewLags(Exception):
    """A view does not reflect yet what is waited for; the message says how far it is."""


def held_views(settings: Settings, tables: Sequence[str]) -> list[str]:
    """The views that these patterns select."""
    return [name for name in settings.views if matches(tables, topic_of(name))]


class ThroughViews:
    """One waiting for a store of these tables (patterns).

    A view that has come to reflect a cut is not asked about it again, and what it writes after that is not waited for: under steady traffic a view of this
    view would else be waited for up to ever later changes.
    """

    def __init__(self, settings: Settings, log: LogReader, tables: Sequence[str]) -> None:
        self._settings = settings
        self._log = log
        self._views = held_views(settings, tables)
        self._shown: dict[tuple[str, Position], Position] = {}
        """(a view, a cut that it reflects) → where its last change was when that was found."""

    def shown_at(self, target: Position) -> Position:
        """Where the store has to be to show all that the source had at ``target``, which is a cut. Raises ViewLags, Stopped."""
        return max([target, *(self._through(view, target) for view in self._views)])

    def _through(self, view: str, target: Position) -> Position:
        """Where the view's last change is, once it reflects ``target``."""
        if (view, target) not in self._shown:
            self._shown[view, target] = self._reflecting(view, target)
        return self._shown[view, target]

    def _reflecting(self, view: str, target: Position) -> Position:
        settings, log = self._settings, self._log
        saved = status.read_view(settings.run_dir, view)
        stops.check(settings.run_dir, status.view_part(view))
        if saved is None:
            raise ViewLags(f"view {view} has never run")
        needed = max((self._needed(topic, target) for topic in saved.topics), default=START)
        reflected = reflected_by(log, view)
        if reflected == START or reflected < needed:
            why = "" if status.alive(saved.pid) else ", and its process does not run"
            waits = f" ({saved.error})" if saved.error else ""
            raise ViewLags(f"view {view} lags: it shows position {reflected} of {needed}{waits}{why}")
        # Asked after the mark: whatever came out up to it is in the log by now.
        return log.last_change(topic_of(view), log.head().position)

    def _needed(self, topic: str, target: Position) -> Position:
        """How far whoever reads the topic has to be for that."""
        schema, _, name = topic.partition(".")
        if schema == VIEWS and name in self._settings.views:
            return self._through(name, target)
        return self._log.last_change(topic, target)


def reflected_by(log: LogReader, view: str) -> Position:
    """Up to here the view's topic shows what its sources had; 0 where it is not built."""
    with suppress(ValueError):
        mark = ViewMark.read(InboxMark.decode(log.marks().get(producer_of(view))).to)
        if mark is not None:
            return mark.reflected
    return START
