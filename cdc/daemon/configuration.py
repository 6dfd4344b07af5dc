"""The configuration that `cdc run` goes by, and what becomes of a ``cdc.toml`` that is changed while it runs.

What the file says of stores and of views takes effect at once; all else at the next start, and a file that cannot be used never. So that the
daemon's processes agree, whenever one of them starts again, the supervisor judges the file and hands what is in force to the others: in a file
without a name, since a configuration may hold secrets and no second copy of it belongs on a disk.

Views wait for the next start where capture has to know of them first: the first ones of all, since it makes tables without rows known to the log for
views only, and those whose topics ``source.tables`` selects.

Variables of the environment are those that the daemon was started with.
"""

from __future__ import annotations

import os
import tempfile
import time
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

import structlog

from cdc.clock import MACHINE, Clock
from cdc.errors import ConfigError
from cdc.model.selection import matches
from cdc.settings.file import WrittenFile, load, read
from cdc.settings.implications import own_topics
from cdc.settings.models import Settings, StoreOptions
from cdc.settings.views import topic_of
from cdc.state import jsonfile

VARIABLE: Final = "HEADWATER_CONFIGURATION"
"""In the children's environment: the descriptor of what the supervisor hands them."""
LOOK_S: Final = 1.0
_NEXT_START: Final = "restart cdc run"
_NO_VARIABLE: Final = "the environment has no variable"

OptionsModel = Callable[[str], type[StoreOptions]]
ViewsSaid = Callable[[Settings], Mapping[str, str]]
"""View → a text that stands for all that the configuration says of it. Raises ConfigError for views that cannot be declared so."""
_Stamp = tuple[int, int, int, int] | None


@dataclass(frozen=True, slots=True)
class NameChanges:
    """Names in one section."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    @classmethod
    def between(cls, before: Mapping[str, object], now: Mapping[str, object]) -> Self:
        return cls(
            added=tuple(name for name in now if name not in before),
            changed=tuple(name for name in now if name in before and now[name] != before[name]),
            removed=tuple(name for name in before if name not in now),
        )

    def words(self) -> str:
        """Empty where nothing changes."""
        named = [("added", self.added), ("changed", self.changed), ("removed", self.removed)]
        return "; ".join(f"{what} {', '.join(names)}" for what, names in named if names)


@dataclass(frozen=True, slots=True)
class ConfigurationChange:
    """The part of a changed file that takes effect at once. ``views.changed``: also views that are computed from changed ones."""

    stores: NameChanges = NameChanges()
    views: NameChanges = NameChanges()

    def words(self) -> str:
        """One line for the log."""
        parts = [
            f"{section}: {words}" for section, words in (("stores", self.stores.words()), ("views", self.views.words())) if words
        ]
        return "; ".join(parts) or "no store and no view is affected"


@dataclass(frozen=True, slots=True)
class _Texts:
    """The file as it was: at the start, and when what it says of stores, and of views, came in force. ``said``: of views."""

    begun: str
    stores: str
    views: str
    said: Mapping[str, str]


class Configuration:
    """``cdc.toml``, watched. ``settings``, ``problem`` and ``pending`` may be read by any thread; ``look`` is called by one."""

    def __init__(
        self, path: Path, options_model: OptionsModel, clock: Clock = MACHINE, *, views_said: ViewsSaid = lambda _: {}
    ) -> None:
        """Raises ConfigError when the file cannot be used."""
        self._path = path
        self._options_model = options_model
        self._views_said = views_said
        self._clock = clock
        self._stamp = self._judged = _stamp(path)
        self._looked_at = self._clock.monotonic()
        written = read(path)
        self.begun = self.settings = load(path, options_model, written=written)
        """``begun``: what the daemon began with."""
        self._texts = _Texts(written.text, written.text, written.text, views_said(self.settings))
        self.problem: str | None = None
        """Why the file as it is now cannot be used, with what helps."""
        self.pending: tuple[str, ...] = ()
        """The keys in it that take effect at the next start, one line."""

    def look(self) -> ConfigurationChange | None:
        """Takes the file in when it was changed and nobody is writing to it any more. Looks once a second at most.

        One that could not be used is tried again and again: what it lacks may lie elsewhere, such as a file with a secret.
        """
        now = self._clock.monotonic()
        if now - self._looked_at < LOOK_S:
            return None
        self._looked_at = now
        before, self._stamp = self._stamp, _stamp(self._path)
        changed = self._stamp != self._judged
        if self._stamp != before or not (changed or self.problem):
            return None
        self._judged = self._stamp
        return self._take(changed)

    def encoded(self) -> bytes:
        """The configuration in force, for ``Handed``."""
        texts = self._texts
        return jsonfile.encode({"begun": texts.begun, "stores": texts.stores, "views": texts.views}).encode()

    def _take(self, changed: bool) -> ConfigurationChange | None:
        log = structlog.get_logger(self._path.name)
        try:
            written = read(self._path)
            found = load(self._path, self._options_model, written=written)
            said = self._views_said(found)
        except ConfigError as error:
            before, self.problem = self.problem, _unusable(self._path, error)
            if changed or self.problem != before:
                log.error(self.problem)
            return None
        self.problem = None
        texts, views = self._texts, self.settings.views
        self._texts = replace(texts, stores=written.text)
        at_once = self.begun.views == found.views or self._views_at_once(found)
        if at_once:
            views = found.views
            self._texts = replace(self._texts, views=written.text, said=said)
        self.pending = tuple(self._pending(written.text, found, but=("stores", "views") if at_once else ("stores",)))
        change = ConfigurationChange(
            NameChanges.between(self.settings.stores, found.stores), NameChanges.between(texts.said, self._texts.said)
        )
        log.info(f"was changed; {change.words()}")
        for line in self.pending:
            log.warning(line)
        if change == ConfigurationChange():
            return None
        self.settings = self.begun.model_copy(update={"stores": found.stores, "views": views})
        return change

    def _views_at_once(self, found: Settings) -> bool:
        begun = self.begun
        new = [topic_of(name) for name in found.views if name not in begun.views]
        return bool(begun.views) and not any(matches(own_topics(begun), topic) for topic in new)

    def _pending(self, text: str, found: Settings, *, but: Collection[str]) -> Iterator[str]:
        names = list(_differing(tomllib.loads(self._texts.begun), tomllib.loads(text), self.begun, found, but))
        if names:
            yield f"{self._path}: {', '.join(names)} {'takes' if len(names) == 1 else 'take'} effect at the next start → {_NEXT_START}"


class Handout:
    """The configuration as the supervisor hands it to its children: ``descriptor`` is to be inherited by them."""

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration
        self.descriptor = _nameless()
        self.write()

    def write(self) -> None:
        """Puts what is in force now in its place. A child that reads meanwhile finds that the checksum differs, and reads again."""
        content = self._configuration.encoded()
        os.pwrite(self.descriptor, content, 0)
        os.ftruncate(self.descriptor, len(content))

    def close(self) -> None:
        os.close(self.descriptor)


class Handed:
    """The configuration as a child was handed it. One thread only."""

    def __init__(self, descriptor: int, path: Path, options_model: OptionsModel, clock: Clock = MACHINE) -> None:
        """Raises ConfigError when it cannot be used any more, as when a file with a secret is gone."""
        self._descriptor = descriptor
        self._path = path
        self._options_model = options_model
        self._clock = clock
        self._seen = b""
        self._problem: str | None = None
        self._looked_at = float("-inf")
        self.settings: Settings
        self.begun: Settings
        """As the daemon began with it."""
        while not self._take(self._read()):
            time.sleep(0.01)  # the supervisor is writing at this moment

    def look(self) -> None:
        """Takes in what the supervisor has put there, once a second at most."""
        now = self._clock.monotonic()
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        content = self._read()
        if content != self._seen:
            try:
                self._take(content)
            except ConfigError as error:  # right a moment ago, when the supervisor read it; so it may be in a moment
                before, self._problem = self._problem, _unusable(self._path, error)
                if self._problem != before:
                    structlog.get_logger(self._path.name).error(self._problem)

    def _read(self) -> bytes:
        return os.pread(self._descriptor, os.fstat(self._descriptor).st_size, 0)

    def _take(self, content: bytes) -> bool:
        try:
            told = jsonfile.decode(content)
        except ValueError:
            return False
        texts = [told[name] for name in ("begun", "stores", "views")]  # nearly always one and the same
        loaded = {text: load(self._path, self._options_model, written=WrittenFile(text)) for text in dict.fromkeys(texts)}
        begun, stores, views = (loaded[text] for text in texts)
        self.begun, self.settings = begun, begun.model_copy(update={"stores": stores.stores, "views": views.views})
        self._seen, self._problem = content, None
        return True


def of_capture(configuration: Configuration | Handed) -> Settings:
    """The configuration that capture begins with, whenever it starts: with the views that the daemon began with. They may all be out by now, and be declared again
    at once, over tables without rows that only capture makes known to the log."""
    return configuration.settings.model_copy(update={"views": configuration.begun.views})


def _differing(
    before: Mapping[str, Any], now: Mapping[str, Any], begun: Settings, found: Settings, but: Collection[str]
) -> Iterator[str]:
    """The keys, but those of some sections, at which the two files differ in what they mean."""
    for key in sorted((before.keys() | now.keys()) - set(but)):
        if getattr(begun, key) == getattr(found, key):
            continue
        old, new = before.get(key, {}), now.get(key, {})
        if not isinstance(old, dict) or not isinstance(new, dict):
            yield key
            continue
        yield from (f"{key}.{inner}" for inner in sorted(old.keys() | new.keys()) if old.get(inner) != new.get(inner))


def _unusable(path: Path, error: ConfigError) -> str:
    problems = getattr(error, "problems", (error,))
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    hint = problems[0].hint or "correct it"
    if _NO_VARIABLE in str(problems[0]):
        hint = f"use KEY_file, or {_NEXT_START} with it: a process keeps the environment that it was started with"
    return f"{path} was changed and cannot be used; the former configuration stays in force: {problems[0]}{more} → {hint}"


def _stamp(path: Path) -> _Stamp:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino  # the second changes with the rights, too


def _nameless() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("headwater-configuration")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
