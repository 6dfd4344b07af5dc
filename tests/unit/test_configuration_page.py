"""docs/configuration.md says what the settings' models say."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from cdc.settings.file import load
from cdc.settings.models import Http, Source, StoreOptions
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
        line.split(" | ") for line in section.splitlines() if line.startswith("| ") and kind in line.split(" | ")[0][2:].split(", ")
    ]
    named = {name for cells in rows for name in re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", cells[1]))}
    models = (options_model(kind), configuration.table_options(kind))
    known = {field.alias or name for model in models for name, field in model.model_fields.items()}
    assert named <= known, "docs/stores.md, What does a change do?"


def _snippets() -> list[tuple[str, str]]:
    """Those of the pages about stores, each with the heading that it stands under."""
    parts = [part for page in PAGES for part in (ROOT / "docs" / page).read_text(encoding="utf-8").split("\n## ")]
    return [(part.partition("\n")[0], said) for part in parts for said in re.findall(r"```toml\n(.*?)```", part, re.DOTALL)]


PAGES: Final = ("stores.md", "warehouse.md", "warehouses.md", "event-stores.md", "webhooks.md", "views.md")
SAID: Final = [tomllib.loads(said) for _, said in _snippets()]


ELSEWHERE: Final[Mapping[str, Mapping[str, str]]] = {
    "search": {"kind": "opensearch", "url": "http://127.0.0.1:9"},
    "cache": {"kind": "redis", "url": "redis://127.0.0.1:9"},
    "warehouse": {"kind": "iceberg", "path": "lake"},
    "reports": {"kind": "sql", "url": "postgresql://me@127.0.0.1:9/reports"},
}
"""Said of these stores on their pages once, and not in every snippet."""


@pytest.mark.parametrize("text", [pytest.param(said, id=f"{at} {heading}") for at, (heading, said) in enumerate(_snippets())])
def test_every_snippet_of_the_pages_is_taken(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in re.findall(r"\$\{(\w+)\}", text):
        monkeypatch.setenv(name, "a secret")
    for path in re.findall(r'_file = "(.+?)"', text):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("a secret")
        (tmp_path / path).chmod(0o600)
    said = tomllib.loads(text)
    for name, store in said.get("stores", {}).items():
        left = "".join(f'{key} = "{value}"\n' for key, value in ELSEWHERE.get(name, {}).items() if key not in store)
        heads = f"[stores.{name}]\n"
        text = text.replace(heads, heads + left) if heads in text else f"{heads}{left}{text}"
    config = tmp_path / "cdc.toml"
    config.touch(0o600)
    config.write_text(text if "source" in said else f'[source]\ndsn = "host=h"\n{text}', encoding="utf-8")
    assert set(said.get("stores", {})) <= set(load(config, options_model).stores)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in FOR_TESTS])
def test_every_key_is_shown_in_a_snippet(kind: str) -> None:
    stores = [(name, store) for said in SAID for name, store in said.get("stores", {}).items()]
    shown = {
        key for name, store in stores if store.get("kind", ELSEWHERE.get(name, {}).get("kind")) == kind for key in _keys(store)
    }
    shared = {field.alias or name for name, field in StoreOptions.model_fields.items()}
    keys = {field.alias or name for name, field in options_model(kind).model_fields.items()}
    assert keys - shared <= shown, f"{PAGES} show these of no store of kind {kind}"
    assert keys & shared <= {key for _, store in stores for key in _keys(store)}, f"{PAGES} show these of no store"
    of_table = {field.alias or name for name, field in configuration.table_options(kind).model_fields.items()}
    assert of_table <= {key for _, store in stores for table in _tables(store) for key in table}, f"{PAGES} show these of no table"


def _keys(store: Mapping[str, Any]) -> set[str]:
    """A secret may stand in a file."""
    return {key.removesuffix("_file") for key in store}


def _tables(store: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    tables = store.get("tables", [])
    return list(tables.values()) if isinstance(tables, dict) else []
