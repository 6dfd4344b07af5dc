"""docs/configuration.md says what the settings' models say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from cdc.settings.models import Http, Source
from cdc.settings.strict import Strict
from sinks import FOR_TESTS, KINDS, options_model
from tests.documents import configuration
from tests.documents.writing import written

ROOT: Final = Path(__file__).resolve().parents[2]
STORES: Final = (ROOT / "docs/stores.md").read_text(encoding="utf-8")


def test_the_page_is_not_stale() -> None:
    assert configuration.PAGE.read_text(encoding="utf-8") == written(configuration.PAGE, configuration.parts()), (
        "run .venv/bin/python -m tests.documents configuration"
    )


def test_a_line_has_the_default_the_limits_and_the_secrets_file() -> None:
    keys = configuration.table(Source)
    assert '| `slot` | `"cdc"` |' in keys
    assert '| `tables` | `["public.*"]` |' in keys
    assert "From 1 to 32. |" in keys
    assert "| `dsn` (or `dsn_file`) | has to be given |" in keys
    assert "| `token` (or `token_file`) |" in configuration.table(Http)


def test_a_key_without_a_meaning_is_refused() -> None:
    class Mute(Strict):
        key: int = 1

    with pytest.raises(LookupError, match=r"Mute\.key"):
        configuration.table(Mute)


@pytest.mark.parametrize("kind", KINDS)
def test_every_option_of_a_store_does_something(kind: str) -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for room in ("cdc", "sinks") for path in (ROOT / room).rglob("*.py"))
    unread = [name for name in options_model(kind).model_fields if not re.search(rf"(?:options|self|store)\.{name}\b", code)]
    assert unread == [], f"nothing reads these options of kind {kind}: a store's module has to, as self._options.NAME"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in FOR_TESTS])
def test_the_page_about_changes_names_only_options_that_there_are(kind: str) -> None:
    section = STORES.partition("## What does a change do?")[2].partition("\n## ")[0]
    rows = [
        line.split(" | ")
        for line in section.splitlines()
        if line.startswith("| ") and kind in re.findall(r"[a-z-]+", line.split(" | ")[0])
    ]
    named = {name for cells in rows for name in re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", cells[1]))}
    models = (options_model(kind), configuration.table_options(kind))
    known = {field.alias or name for model in models for name, field in model.model_fields.items()}
    assert named <= known, "docs/stores.md, What does a change do?"
