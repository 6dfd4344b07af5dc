"""The options of ``[stores.NAME]`` with ``kind = "opensearch"``, and of its tables."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self, cast

from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator

from cdc.errors import ConfigError
from cdc.model.selection import matches
from cdc.model.topic import TopicSchema
from cdc.settings.models import StoreOptions
from cdc.settings.strict import Strict
from cdc.settings.tableoptions import StoreTables, TableOptions
from sinks.render.choices import Choices
from sinks.search import fields, mapping, names, placement, settings, wishes
from sinks.search.wire import Address


class Coordinates(Strict):
    """Two columns that are a point."""

    lat: str
    """The column with the latitude, in degrees."""
    lon: str
    """The column with the longitude, in degrees."""


class SearchTable(TableOptions):
    """``[stores.NAME.tables."schema.table"]`` of a search index."""

    mapping: Mapping[str, Mapping[str, Any]] = {}
    """Name in the store → what OpenSearch's mapping says of the field: `{ analyzer = "english" }` beside the type that it has, or another `type`."""
    geo: Mapping[str, Coordinates | str] = {}
    """Name in the store → the columns of which it is a `geo_point`: `{ lat = "latitude", lon = "longitude" }`, or one column of type point (x is the longitude)."""

    id: str | None = None
    """Makes documents' ids from columns, among which are all of the key's: `"{tenant}-{id}"`. Left out: the key."""
    routing: str | None = None
    """Distributes documents among an index's shards by these columns, instead of by their ids: `"{tenant}"`. Searches may then name it."""

    index: str | None = None
    """Spreads the table's rows over several indices, which are called by these columns: `"orders-{region}"`. Left out: one index."""

    @field_validator("id", "routing", "index")
    @classmethod
    def _names_columns(cls, template: str | None, info: ValidationInfo) -> str | None:
        if template is not None:
            try:
                placement.parsed(str(info.field_name), template)
            except ConfigError as error:
                raise ValueError(error.line()) from None
        return template

    @field_validator("mapping")
    @classmethod
    def _says_what_json_can(cls, mapping: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
        for name, fragment in mapping.items():
            settings.as_json(name, fragment)
            try:
                wishes.check_fragment(fragment)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        return mapping

    @model_validator(mode="after")
    def _each_place_is_said_once(self) -> Self:
        seen: set[str] = set(self.rename)
        for target, of in self.geo.items():
            for column in (of,) if isinstance(of, str) else (of.lat, of.lon):
                if column in seen:
                    raise ValueError(f"geo: {column} has another place already")
                seen.add(column)
            if target in self.mapping:
                raise ValueError(f"mapping: {target} is a geo_point, as geo says")
        return self

    @property
    def chooses(self) -> bool:
        return super().chooses or any(one is not None for one in (self.id, self.routing, self.index))

    @property
    def targets(self) -> Mapping[str, str]:
        found = dict(self.rename)
        for target, of in self.geo.items():
            found |= {of: target} if isinstance(of, str) else {of.lat: f"{target}.{wishes.LAT}", of.lon: f"{target}.{wishes.LON}"}
        return found

    @property
    def of_fields(self) -> Mapping[str, str]:
        found = {name: wishes.of_mapping(fragment, self.as_.get(name)) for name, fragment in self.mapping.items()}
        for target, of in self.geo.items():
            if isinstance(of, str):
                found[target] = wishes.of_mapping({"type": wishes.GEO_POINT}, None)
            else:
                found |= {f"{target}.{which}": wishes.of_coordinate(which) for which in (wishes.LAT, wishes.LON)}
        return found


class SearchTables(StoreTables):
    """``tables`` of a search index."""

    __pydantic_extra__: dict[str, SearchTable] = Field(init=False)  # type: ignore[assignment]  # nobody adds to it


class Options(Address, StoreOptions):
    """The options that only a search index has."""

    renders = True
    plain_schemes: ClassVar[Mapping[str, str]] = {"http": "https"}
    example = ("search", 'url = "http://127.0.0.1:9200"')

    held: SearchTables = Field(SearchTables(), alias="tables")
    """As in every store."""
    index: str = "{schema}.{table}"
    """The alias to search. A template under which two tables would share an index is refused."""
    shards: int = Field(1, ge=1)
    """Primary shards of a new index."""
    replicas: int | None = Field(None, ge=0)
    """Replicas of a new index; the cluster's own default when left out."""
    indices_max: int = Field(100, ge=1, le=1000)
    """So many indices the rows of one table may lie in, where its `index` names them by columns; a row that would need one more stops the store."""
    refresh_interval: str = "1s"
    """How often a new index makes changes visible to searches."""
    settings: Mapping[str, Any] | Path = Field({})
    """Further settings of a new index, such as `analysis`, as a table or as the path of a JSON file that holds them."""
    request_bytes: int = Field(1_000_000, ge=1)
    """Size of one bulk request, about."""
    purge_after_s: float = Field(120.0, ge=0)
    """How long documents of deleted rows stay after their name was fenced; no request may live longer inside the cluster."""
    dead_share_max: float = Field(0.1, ge=0, le=1)
    """A batch of which a larger share cannot be held, not counting what `cdc dlq drop` has accepted, stops the store."""
    workers_from_rows: int = Field(0, ge=0)
    """As for every store. By default never: building requests is a small part of their cost, and several of them are under way at once
    anyway. A cluster of several nodes may want Spark's workers."""

    @model_validator(mode="after")
    def _one_process_writes_what_is_routed(self) -> Self:
        if self.workers_from_rows and any(one.routing is not None for one in self._of_tables.values()):
            raise ValueError("workers_from_rows: documents with a routing are written by one process; leave it at 0")
        if self.workers_from_rows and any(one.index is not None for one in self._of_tables.values()):
            raise ValueError("workers_from_rows: rows in several indices (`index`) are written by one process; leave it at 0")
        return self

    @model_validator(mode="after")
    def _settings_can_be_chosen(self) -> Self:
        if isinstance(self.settings, Mapping):
            try:
                found = settings.flat(self.settings)
                settings.check(found)
            except ValueError as error:
                raise ValueError(f"settings: {error}") from None
            if twice := self._said_twice(found):
                raise ValueError(f"settings: {twice}")
        return self

    @cached_property
    def further_settings(self) -> Mapping[str, Any]:
        """``settings``, flat; a file is read once. Raises ConfigError where it cannot be, or says what cannot be chosen."""
        if isinstance(self.settings, Mapping):
            return settings.flat(self.settings)
        found = settings.read(self.settings)
        if twice := self._said_twice(found):
            raise ConfigError(f"settings: {self.settings}: {twice}")
        return found

    @property
    def shaping(self) -> Mapping[str, str]:
        return settings.shaping(self.further_settings)

    def shaping_of(self, schema: TopicSchema) -> Mapping[str, str]:
        return {**self.shaping, **self._placement(schema)}

    def remade(self, before: TopicSchema, after: TopicSchema) -> str:
        choices = Choices(self.kind, self.as_rules, fields.style_of)
        had, has = (mapping.properties(one, choices.style(one)) for one in (before, after))
        others = mapping.contradicted(has, had)
        return f"another index is filled from the log, as fields of {', '.join(others)} have other types" if others else ""

    def naming(self, schema: TopicSchema) -> tuple[str, ...]:
        own = {one.name for one in schema.key}
        named = (name for template in self._placement(schema).values() for name in placement.columns_of(template))
        return tuple(dict.fromkeys(name for name in named if name not in own)) if own else ()

    @property
    def index_pattern(self) -> str:
        """The pattern of all names that the store's indices have (``names.pattern``)."""
        templates = (self.index, *(one.index for one in self._of_tables.values() if one.index is not None))
        found = dict.fromkeys(map(names.pattern, templates))
        return names.ANY_NUMBERED if names.ANY_NUMBERED in found else ",".join(found)

    @property
    def generational(self) -> bool:
        return True

    @property
    def keys_apart(self) -> bool:
        return True

    @property
    def server_urls(self) -> Mapping[str, SecretStr]:
        return {"url": self.url}

    @property
    def _of_tables(self) -> Mapping[str, SearchTable]:
        return cast(Mapping[str, SearchTable], self.held.options)

    def _placement(self, schema: TopicSchema) -> Mapping[str, str]:
        """``id`` and ``routing`` as they are said of this topic: of several patterns that match the last that says anything counts."""
        found: dict[str, str] = {}
        for pattern, one in self._of_tables.items():
            if matches((pattern,), schema):
                said = {placement.ID: one.id, placement.ROUTING: one.routing, placement.INDEX: one.index}
                found |= {name: template for name, template in said.items() if template is not None}
        return found

    def _said_twice(self, found: Mapping[str, Any]) -> str | None:
        """A setting that has an option of its own beside."""
        for name, option in (
            ("number_of_shards", "shards"),
            ("number_of_replicas", "replicas"),
            ("refresh_interval", "refresh_interval"),
        ):
            if name in found and option in self.model_fields_set:
                return f"{name} is said by the option {option} already"
        return None
