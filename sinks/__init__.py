"""Adapters to derived stores. A new sink is one module (or folder) with ``Options``, ``traits`` and ``make`` (and ``generations``, where
a store can have several, which its options say: ``generational``), and one line in ``KINDS``."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from cdc.errors import ConfigError

if TYPE_CHECKING:
    from cdc.settings.models import StoreOptions
    from sinks.contract import Sink, Traits
    from sinks.generations import Generations

KINDS: Final[Mapping[str, str]] = {
    "opensearch": "sinks.search",
    "redis": "sinks.cache",
    "iceberg": "sinks.warehouse",
    "sql": "sinks.sql",
    "redis-stream": "sinks.events.redisstream",
    "webhook": "sinks.events.webhook",
    "kafka": "sinks.events.kafka",
    "console": "sinks.console",
    "memory": "sinks.memory",
}
"""``kind`` in ``cdc.toml`` → the module that serves it, imported only when a store of that kind is used. Nothing else names a kind."""
FOR_TESTS: Final = frozenset(("memory",))
"""Kinds that no user has: neither hints nor pages name them."""


def options_model(kind: str) -> type[StoreOptions]:
    """The settings model of this kind of store. Raises ConfigError for a kind that does not exist."""
    model: type[StoreOptions] = _module(kind).Options
    return model


def traits_of(options: StoreOptions) -> Traits:
    """The traits of a store with these options, which need not be made for that."""
    found: Traits = _module(options.kind).traits(options)
    return found


def make_sink(name: str, options: StoreOptions) -> Sink:
    """An unopened sink for the store ``name``; ``options`` is an instance of ``options_model(options.kind)``."""
    sink: Sink = _module(options.kind).make(name, options)
    return sink


def refuse_without_rows(name: str, options: StoreOptions, what: str) -> None:
    """Raises ConfigError for a store that hands events on. ``what``: what there are no rows for."""
    if traits_of(options).events:
        raise ConfigError(
            f"store {name} of kind {options.kind} hands changes on as events and keeps no rows: {what}",
            hint="docs/event-stores.md says where such a store begins, and how it begins again",
        )


def generations_of(name: str, options: StoreOptions) -> Generations:
    """The generations of the store ``name``. Raises ConfigError for a kind of store that has one only."""
    refuse_without_rows(name, options, "nothing can be built again")
    if not options.generational:
        why = options.why_not_generational
        raise ConfigError(
            f"store {name} of kind {options.kind} has no generations beside each other{why and ': '}{why}",
            hint=f"cdc bootstrap {name} --in-place builds it again where it stands; one of kind opensearch has, one of kind iceberg in a `sql` catalog,"
            " and one of kind redis, or of kind iceberg in a `hadoop` catalog, with a `pointer`",
        )
    found: Generations = _module(options.kind).generations(name, options)
    return found


def _module(kind: str) -> Any:
    if kind not in KINDS:
        raise ConfigError(f"there is no store of kind {kind!r}", hint=f"use one of {', '.join(sorted(KINDS.keys() - FOR_TESTS))}")
    return import_module(KINDS[kind])
