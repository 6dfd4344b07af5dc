"""The part of ``[source]`` that rooms which talk to Postgres need; ``cdc.settings.models.Source`` is all of it, and tests give less."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Secret(Protocol):
    def get_secret_value(self) -> str: ...


class PublicationSource(Protocol):
    """Names the publication and the tables that are to be in it."""

    @property
    def publication(self) -> str: ...
    @property
    def tables(self) -> Sequence[str]: ...


class Reachable(PublicationSource, Protocol):
    """… and says where the source is."""

    @property
    def dsn(self) -> Secret: ...


class Slot(Protocol):
    """Names the slot. ``failover``: of one that is made here."""

    @property
    def slot(self) -> str: ...
    @property
    def failover(self) -> bool: ...
