"""The declared view as the runner of views asks for it, whichever way it is declared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from cdc.model.table import Table
from cdc.model.topic import TopicSchema
from cdc.views.contract import Kernel

TextTypes = Mapping[str, Mapping[bytes, bytes]]
"""Column → the metadata that says in the inbox what its texts are (``cdc.inbox.definition.typed``)."""


class DeclaredView(Protocol):
    """A view as ``cdc.toml`` declares it, read but not yet brought together with the tables that it names."""

    @property
    def topics(self) -> Sequence[str]:
        """The topics that it reads, each once."""
        ...

    @property
    def views(self) -> Mapping[str, DeclaredView]:
        """Those of them that are views, as they are declared, by topic."""
        ...

    @property
    def declaration(self) -> str:
        """Stands for all that ``cdc.toml`` says of it: where it is another, so is the view."""
        ...

    @property
    def definition(self) -> Mapping[str, Any]:
        """The whole of what its rows follow from, readable, as JSON holds it: what ``former`` takes."""
        ...

    def former(self, definition: Mapping[str, Any]) -> DeclaredView | None:
        """The view of this name as it was once defined so; None where that cannot be computed any more."""
        ...

    def bind(self, schemas: Mapping[str, TopicSchema]) -> BoundView:
        """The view over these topics as they are defined. Raises ViewRefused, ConfigError."""
        ...


class BoundView(Protocol):
    """A view over its topics as they are defined now. As long as ``identity`` is the same, and the columns in ``reads`` are, so are its rows."""

    @property
    def identity(self) -> str:
        """Another text is another view: its rows have to be computed from the beginning."""
        ...

    @property
    def reads(self) -> Mapping[str, Sequence[str]]:
        """The columns that it needs of each topic, those of the topic's key among them."""
        ...

    @property
    def key(self) -> Sequence[str]:
        """The key's columns."""
        ...

    @property
    def table(self) -> Table:
        """The view's topic, as its first rows would define it."""
        ...

    @property
    def typed(self) -> TextTypes:
        """The columns of the view whose texts are values of another type."""
        ...

    def open(self, folder: Path) -> Kernel:
        """The kernel, whose state lies in this folder, which exists; an empty folder is a state as of 0. Raises whatever a damaged one leads to."""
        ...
