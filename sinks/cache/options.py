"""The options of ``[stores.NAME]`` with ``kind = "redis"``, and of its tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Self, cast

from pydantic import Field, SecretStr, field_validator, model_validator

from cdc.errors import ConfigError
from cdc.model.selection import matches
from cdc.model.topic import TopicSchema
from cdc.settings.models import StoreOptions
from cdc.settings.tableoptions import StoreTables, TableOptions
from sinks.cache.generationnames import begins_like_a_generation
from sinks.cache.keytemplate import DEFAULT, RESERVED, WITH_LANES, columns_of, refuse_malformed, refuse_without_lane
from sinks.cache.ledger import INVALIDATE, Projection, TableRule

_UNITS: Final[Mapping[str, int]] = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LONGEST_MS: Final = 100 * 366 * 86_400_000


class CacheTable(TableOptions):
    """``[stores.NAME.tables."schema.table"]`` of a cache."""

    key: str | None = None
    """As of the store, for these tables."""
    value: Literal["json", "hash", "invalidate"] | None = None
    """As of the store, for these tables."""
    ttl: int | str | None = None
    """A row's key expires so long after the commit of the row's last change: seconds, or a text such as `"90s"`, `"15m"`, `"12h"`, `"7d"`. Left out: never."""
    publish: str | None = Field(None, min_length=1)
    """A channel on which each key is published that was written or deleted, at least once, in the transaction that does it."""

    _key = field_validator("key")(lambda key: _template(key))

    @field_validator("ttl", mode="before")
    @classmethod
    def _is_a_time(cls, ttl: Any) -> Any:
        if ttl is not None and not 0 < _milliseconds(ttl) <= _LONGEST_MS:
            raise ValueError('is not a time; write seconds, or a text such as "90s", "15m", "12h" or "7d"')
        return ttl

    @model_validator(mode="after")
    def _what_is_not_there_does_not_expire(self) -> Self:
        if self.value == INVALIDATE and self.ttl is not None:
            raise ValueError('ttl: with value = "invalidate" nothing is written; the application says how long its values live')
        return self

    @property
    def ttl_ms(self) -> int | None:
        return None if self.ttl is None else _milliseconds(self.ttl)


def _template(key: str | None) -> str | None:
    if key is not None:
        try:
            refuse_malformed(key)
        except ConfigError as error:
            raise ValueError(error.line()) from None
    return key


def _milliseconds(ttl: Any) -> int:
    """0 for what is not a time."""
    if isinstance(ttl, int) and not isinstance(ttl, bool):
        return ttl * 1000
    found = re.fullmatch(r"([1-9][0-9]{0,11})(ms|s|m|h|d)", ttl) if isinstance(ttl, str) else None
    return 0 if found is None else int(found[1]) * _UNITS[found[2]]


class CacheTables(StoreTables):
    """``tables`` of a cache."""

    __pydantic_extra__: dict[str, CacheTable] = Field(init=False)  # type: ignore[assignment]  # nobody adds to it


class Options(StoreOptions):
    """The options that only a cache has."""

    renders = True
    plain_schemes: ClassVar[Mapping[str, str]] = {"redis": "rediss"}
    example = ("cache", 'url = "redis://127.0.0.1:6379/0"')

    held: CacheTables = Field(CacheTables(), alias="tables")
    """As in every store."""
    url: SecretStr
    """`redis://` or `rediss://`, which is TLS, verified. It may hold user and password."""
    username: str | None = None
    """The user, where the URL has none."""
    password: SecretStr | None = None
    """The password, where the URL has none."""
    ca_certs: Path | None = None
    """PEM: the authorities that count instead of the system's."""
    key: str = DEFAULT
    """Makes the key's name from the row's columns. When the template changes, every key is written again under its new name. A second
    store on the same server that would write another's keys waits and says so."""
    value: Literal["json", "hash", "invalidate"] = "json"
    """One string of JSON per row, a hash with one field per column, or nothing: with `invalidate` each change deletes the row's key, for a cache that the
    application fills."""
    pointer: str | None = Field(None, min_length=1)
    """A key that holds what stands before every row's key: nothing, or the prefix of the generation that `cdc bootstrap` has put in the former one's place
    ([stores.md](stores.md#how-do-i-build-one-beside-the-live-one)). Whoever reads the cache reads it first. Left out: keys are as `key` says, always, and
    `cdc bootstrap` builds in place."""
    lanes: int | None = Field(None, ge=2, le=256)
    """For a Redis Cluster, in which no transaction spans two slots: into how many parts the store is divided, each in a slot of its own, with its own position.
    Several times as many as the cluster will ever have primaries. Each key then has the number of its row's lane in it, where `key` has `{lane}`
    ([stores.md](stores.md#a-redis-cluster)); `key` left out is `{schema}.{table}:{lane}:{key}`. Another number needs a rebuild. Left out: the server is not
    in cluster mode."""
    timeout_s: float = Field(30.0, gt=0)
    """How long one answer of the server may take."""
    workers_from_rows: int = Field(0, ge=0)
    """As for every store. By default never: one chain of writes per table keeps the server's one thread busy."""

    _key = field_validator("key")(lambda key: _template(key))

    @field_validator("pointer")
    @classmethod
    def _is_a_key_of_its_own(cls, pointer: str | None) -> str | None:
        if pointer is not None and (pointer.startswith(RESERVED) or begins_like_a_generation(pointer)):
            raise ValueError(f'begins with "{RESERVED}", or like a generation\'s keys ("g2:")')
        return pointer

    @model_validator(mode="after")
    def _generations_hold_rows(self) -> Self:
        if self.pointer is not None and INVALIDATE in (self.value, *(one.value for one in self._of_tables.values())):
            raise ValueError(
                f'pointer and "{INVALIDATE}" exclude each other: of what the application puts there no generation can be built'
            )
        return self

    @model_validator(mode="after")
    def _fits_a_cluster(self) -> Self:
        if self.lanes is None:
            return self
        if self.pointer is not None:
            raise ValueError(
                "lanes and pointer exclude each other: no transaction puts one generation in another's place in every slot at once; "
                "leave pointer out, and cdc bootstrap builds in place"
            )
        if INVALIDATE in (self.value, *(one.value for one in self._of_tables.values())):
            raise ValueError(
                f'lanes and value = "{INVALIDATE}" exclude each other; leave value out, or use a server that is not in cluster mode'
            )
        for template in (self.template, *(one.key for one in self._of_tables.values())):
            if template is not None:
                try:
                    refuse_without_lane(template)
                except ConfigError as error:
                    raise ValueError(error.line()) from None
        return self

    @property
    def template(self) -> str:
        """The store's ``key``."""
        return WITH_LANES if self.lanes is not None and "key" not in self.model_fields_set else self.key

    @property
    def generational(self) -> bool:
        return self.pointer is not None

    @property
    def keys_apart(self) -> bool:
        # A hash without a field does not exist.
        return self.value != "hash" and all(one.value != "hash" for one in self._of_tables.values())

    def naming(self, schema: TopicSchema) -> tuple[str, ...]:
        own = {one.name for one in schema.key}
        said = (
            one.key
            for pattern, one in reversed(list(self._of_tables.items()))
            if one.key is not None and matches((pattern,), schema)
        )
        names = columns_of(next(said, self.template), lanes=self.lanes is not None)
        return tuple(name for name in names if name not in own) if own else ()

    def keeps(self, schema: TopicSchema) -> bool:
        return Projection(self.template, self.value, "", self.table_rules).of(schema).keeps

    @property
    def table_rules(self) -> tuple[TableRule, ...]:
        """How the rows of single tables become keys and values, where it is said of them."""
        rules = (TableRule(pattern, one.key, one.value, one.ttl_ms) for pattern, one in self._of_tables.items())
        return tuple(one for one in rules if one != TableRule(one.pattern))

    def channel(self, topic: str) -> bytes:
        """Where this topic's keys are published; empty: nowhere."""
        said = [one.publish for pattern, one in self._of_tables.items() if one.publish is not None and matches((pattern,), topic)]
        return said[-1].encode() if said else b""

    @property
    def _of_tables(self) -> Mapping[str, CacheTable]:
        return cast(Mapping[str, CacheTable], self.held.options)

    @property
    def server_urls(self) -> Mapping[str, SecretStr]:
        return {"url": self.url}
