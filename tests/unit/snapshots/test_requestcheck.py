"""What a request is refused with."""

from __future__ import annotations

import shlex
from types import SimpleNamespace
from typing import Any

import pytest

from snapshots.requestcheck import _not_captured


class Catalog:
    """Answers in place of the server: the publication is there, and the table is a partition of this one."""

    def __init__(self, parent: str) -> None:
        self._parent = parent

    def execute(self, query: str, parameters: object) -> Catalog:  # noqa: ARG002
        return self

    def fetchone(self) -> tuple[str]:
        return (self._parent,)


@pytest.mark.parametrize("parent", ["public.x; rm -rf ~", "public.$(id)", "public.a'b", "public.a b"])
def test_a_tables_name_in_a_command_is_one_word_to_the_shell(parent: str) -> None:
    connection: Any = Catalog(parent)
    source = SimpleNamespace(tables=("*",), publication="cdc")
    error = _not_captured(connection, "public.part", [parent], source)
    assert shlex.split(error.hint or "") == ["cdc", "snapshot", parent, "--where", "…"]
