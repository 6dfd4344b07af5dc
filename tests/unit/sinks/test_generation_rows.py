"""What the rows of a SQL catalog say of generations, where somebody else has written them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import pytest

from cdc.errors import StoreError
from sinks.warehouse.catalogdatabase import CatalogDatabase
from sinks.warehouse.generationrows import GenerationRows


class Rows:
    """A catalog whose properties are these."""

    def __init__(self, properties: Mapping[str, str | None]) -> None:
        self._properties = properties

    @contextmanager
    def transaction(self, doing: str) -> Iterator[Any]:  # noqa: ARG002
        yield self

    def rows(self, statement: str, *_: str) -> Sequence[Mapping[str, str | None]]:
        if "to_regclass" in statement:
            return [{"number": "2"}]
        if "iceberg_namespace_properties" in statement:
            return [{"key": key, "value": value} for key, value in self._properties.items()]
        return []


def found(properties: Mapping[str, str | None]) -> Any:
    return GenerationRows("lake", "main", cast(CatalogDatabase, Rows(properties))).found()


def test_what_stands_there_is_read() -> None:
    said = found(
        {"headwater.live.lake": "3", "headwater.kept.lake@2": "", "headwater.kept.lake@1": "17.5", "headwater.kept.lake@x": "y"}
    )
    assert (said.live, said.kept) == (3, {2: None, 1: 17.5})
    assert found({}).live == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("live.lake", "two"),
        ("live.lake", ""),
        ("live.lake", None),
        ("live.lake", "0"),
        ("live.lake", "-1"),
        ("kept.lake@2", "soon"),
    ],
)
def test_what_nobody_here_wrote_is_named(key: str, value: str | None) -> None:
    with pytest.raises(StoreError, match=f"headwater.{key} of the namespace _headwater .* is not as it was written") as refused:
        found({f"headwater.{key}": value})
    assert not refused.value.retryable
    assert value is None or len(value) < 2 or value not in str(refused.value)
