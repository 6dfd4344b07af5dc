"""The settings that a new index is given beside those that Headwater needs. Pure but for reading their file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from cdc.errors import ConfigError
from cdc.settings.secretfile import MAX_FILE_BYTES

READ_AT_ONCE: Final = 2000
"""Documents that the audit asks for in one page: an index has to give as many."""
_SAID_MAX: Final = 60
"""Longer texts are kept as their digest."""

_OURS: Final[Mapping[str, str]] = {
    "append_only": "rows change and are deleted",
    "blocks": "the store has to write to the index",
    "creation_date": "a copy of an index is recognised by it",
    "default_pipeline": "documents are the rows as they are",
    "derived_source": "documents are the rows as they are",
    "final_pipeline": "documents are the rows as they are",
    "hidden": "a pattern that matches the index would find deleted rows",
    "provided_name": "a copy of an index is recognised by it",
    "routing_partition_size": "a document is found by its id alone",
    "search.default_pipeline": "the audit reads the documents as they are",
    "uuid": "the cluster gives it",
    "version": "the cluster gives it",
}
"""Settings that nobody may choose, themselves or any below them, and why."""

_CHANGEABLE: Final = (
    "allocation", "analyze", "auto_expand_replicas", "gc_deletes", "highlight", "indexing", "mapping", "max_", "merge", "number_of_replicas",
    "priority", "query", "refresh_interval", "requests", "routing.allocation", "search", "soft_deletes.retention", "translog", "unassigned",
)  # fmt: skip
"""What the names of settings begin with that an index takes over at any time: rows do not depend on them."""


def flat(said: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Each setting by its whole name, without ``index.`` before it. Raises ValueError for one that is said twice."""
    found: dict[str, Any] = {}
    for name, value in _leaves(said, before):
        short = name.removeprefix("index.")
        if short in found:
            raise ValueError(f"says {short} twice")
        found[short] = value
    return found


def _leaves(said: Mapping[str, Any], before: str) -> Iterator[tuple[str, Any]]:
    for name, value in said.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def check(settings: Mapping[str, Any]) -> None:
    """``settings``: flat. Raises ValueError for one that is ours to choose, or that JSON cannot say."""
    for name, value in settings.items():
        for ours, why in _OURS.items():
            if name == ours or name.startswith(f"{ours}."):
                raise ValueError(f"{name} cannot be chosen: {why}")
        if name == "max_result_window" and _is_below(value, READ_AT_ONCE):
            raise ValueError(f"{name} has to be at least {READ_AT_ONCE}: the audit reads so many documents at once")
        as_json(name, value)


def shaping(settings: Mapping[str, Any]) -> dict[str, str]:
    """``settings``: flat. What an index cannot take over once it is there, by the settings' first names → their texts, or digests of these."""
    groups: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        if not name.startswith(_CHANGEABLE):
            groups.setdefault(name.partition(".")[0], {})[name] = value
    texts = {first: as_json(first, group) for first, group in groups.items()}
    return {
        f"settings.{first}": text if len(text) <= _SAID_MAX else hashlib.sha256(text.encode()).hexdigest()[:16]
        for first, text in texts.items()
    }


def read(path: Path) -> dict[str, Any]:
    """The file's settings, flat. Raises ConfigError where it cannot be read, or says what ``check`` refuses."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(MAX_FILE_BYTES + 1)
        said = json.loads(text) if len(text) <= MAX_FILE_BYTES else None
    except OSError as error:
        raise ConfigError(f"settings: cannot read {path}: {(error.strerror or type(error).__name__).lower()}") from None
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict):
        raise ConfigError(f"settings: {path} does not hold one JSON object of at most {MAX_FILE_BYTES} bytes")
    if isinstance(said.get("settings"), dict) and len(said) == 1:
        said = said["settings"]  # as `GET INDEX/_settings` and the body of `PUT INDEX` have it
    try:
        found = flat(said)
        check(found)
    except ValueError as error:
        raise ConfigError(f"settings: {path} {error}") from None
    return found


def as_json(name: str, value: Any) -> str:
    """Raises ValueError for what JSON does not have, such as TOML's dates."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError):
        raise ValueError(f"{name} holds a value that JSON does not have, such as a date") from None


def _is_below(value: Any, least: int) -> bool:
    try:
        return int(value) < least
    except (TypeError, ValueError):
        return False  # the cluster says what is wrong with it
