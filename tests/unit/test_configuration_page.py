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
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| ") and kind in line.split(" | ")[0]]
    named = {name for cells in rows for name in re.findall(r"`(\w+)`", re.sub(r"\([^)]*\)", "", cells[1]))}
    models = (options_model(kind), configuration.table_options(kind))
    known = {field.alias or name for model in models for name, field in model.model_fields.items()}
    assert named <= known, "docs/stores.md, What does a change do?"


def _snippets() -> list[tuple[str, dict[str, Any]]]:
    """Of docs/stores.md, each with the heading that it stands under."""
    parts = STORES.split("\n## ")
    return [
        (part.partition("\n")[0], tomllib.loads(said))
        for part in parts
        for said in re.findall(r"```toml\n(.*?)```", part, re.DOTALL)
    ]


ELSEWHERE: Final[Mapping[str, Mapping[str, str]]] = {
    "search": {"kind": "opensearch", "url": "http://127.0.0.1:9"},
    "cache": {"kind": "redis", "url": "redis://127.0.0.1:9"},
    "warehouse": {"kind": "iceberg", "path": "lake"},
}
"""Said of these stores on the page once, and not in every snippet."""


@pytest.mark.parametrize(("heading", "said"), [pytest.param(*one, id=f"{at} {one[0]}") for at, one in enumerate(_snippets())])
def test_every_snippet_of_the_page_is_taken(
    heading: str, said: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in re.findall(r"\$\{(\w+)\}", str(said)):
        monkeypatch.setenv(name, "a secret")
    text = next(one for one in re.findall(r"```toml\n(.*?)```", STORES, re.DOTALL) if tomllib.loads(one) == said)
    for name, store in said.get("stores", {}).items():
        left = "".join(f'{key} = "{value}"\n' for key, value in ELSEWHERE.get(name, {}).items() if key not in store)
        heads = f"[stores.{name}]\n"
        text = text.replace(heads, heads + left) if heads in text else f"{heads}{left}{text}"
    config = tmp_path / "cdc.toml"
    config.touch(0o600)
    config.write_text(text if "source" in said else f'[source]\ndsn = "host=h"\n{text}', encoding="utf-8")
    settings = load(config, options_model)
    assert set(said.get("stores", {})) <= set(settings.stores), heading


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in FOR_TESTS])
def test_every_key_is_shown_in_a_snippet(kind: str) -> None:
    of_kind, of_tables = set[str](), set[str]()
    for _, said in _snippets():
        for name, store in said.get("stores", {}).items():
            if store.get("kind", ELSEWHERE.get(name, {}).get("kind")) in (kind, None) or kind == "console":
                of_kind |= store.keys()
            of_tables |= {key for table in _tables(store) for key in table}
    common = {key for _, said in _snippets() for store in said.get("stores", {}).values() for key in store}
    shared = {field.alias or name for name, field in StoreOptions.model_fields.items()}
    keys = {field.alias or name for name, field in options_model(kind).model_fields.items()}
    assert keys - shared <= of_kind, f"docs/stores.md shows these of no store of kind {kind}"
    assert keys & shared <= common, "docs/stores.md shows these of no store"
    of_table = {field.alias or name for name, field in configuration.table_options(kind).model_fields.items()}
    assert of_table <= of_tables, f"docs/stores.md shows these of no table in a store of kind {kind}"


def _tables(store: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    tables = store.get("tables", [])
    return list(tables.values()) if isinstance(tables, dict) else []
