"""The command line's part that all verbs share: the configuration's path, and the parts that it describes."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from cdc.errors import ConfigError
from cdc.settings.file import load
from cdc.settings.models import Settings, StoreOptions

if TYPE_CHECKING:
    from cdc.log.contract import LogReader
    from sinks.contract import Sink
    from sinks.generations import Generations


KEEP_OLD: Final = "24h"
_UNITS_S: Final[Mapping[str, int]] = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True, slots=True)
class Invocation:
    """The options before the verb."""

    config: Path = Path("cdc.toml")
    debug: bool = False

    def settings(self) -> Settings:
        from sinks import options_model

        return load(self.config, options_model)


def invocation(context: typer.Context) -> Invocation:
    found = context.find_object(Invocation)
    assert found is not None
    return found


def finite(seconds: float | None) -> float | None:
    """The callback of options that take seconds: ``nan`` and ``inf`` are floats too."""
    if seconds is not None and not math.isfinite(seconds):
        raise typer.BadParameter(f"{seconds} is not a number of seconds")
    return seconds


def kept_for(text: str) -> float | None:
    """The value of ``--keep-old``, in seconds; None: without an end. Raises BadParameter."""
    found = re.fullmatch(r"([0-9]{1,9})(s|m|h|d)", text)
    if found is None and text != "forever":
        raise typer.BadParameter(f'{text} is not a time; write one such as "90s", "15m", "24h" or "7d", or "forever"')
    return None if found is None else float(int(found[1]) * _UNITS_S[found[2]])


def checked_time(text: str) -> str:
    """The callback of ``--keep-old``."""
    kept_for(text)
    return text


def store_options(settings: Settings, name: str) -> StoreOptions:
    """The store's options. Raises ConfigError when the configuration has no such store."""
    options = settings.stores.get(name)
    if options is None:
        known = ", ".join(settings.stores) or "none"
        raise ConfigError(f"there is no store {name!r} in the configuration", hint=f"known stores: {known}")
    return options


def unopened_sink(settings: Settings, name: str) -> Sink:
    from sinks import make_sink

    return make_sink(name, store_options(settings, name))


def open_log(settings: Settings) -> LogReader:
    from cdc.log.home import open_reader

    return open_reader(settings.log.dir)


@contextmanager
def generations(settings: Settings, name: str) -> Iterator[Generations]:
    """The generations of a store, and the Spark session that such a store may need. Raises ConfigError as ``store_options`` and ``sinks.generations_of`` do."""
    from sinks import generations_of, traits_of

    options = store_options(settings, name)
    with ExitStack() as stack:
        found = stack.enter_context(closing(generations_of(name, options)))
        if traits_of(options).needs_spark:
            from cdc.spark import session

            stack.enter_context(session.lent("generations", settings.run_dir, settings.spark))
        yield found
