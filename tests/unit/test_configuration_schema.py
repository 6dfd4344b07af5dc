"""The JSON Schema of cdc.toml: what the product takes validates with it, and what it refuses by its keys does not."""

from __future__ import annotations

import json
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner

from cdc.commands.app import app
from cdc.commands.starter import configuration

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]
_TYPES: Final[dict[str, Any]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


@cache
def whole() -> dict[str, Any]:
    shown = CliRunner().invoke(app, ["schema"])
    assert shown.exit_code == 0, shown.output
    found: dict[str, Any] = json.loads(shown.stdout)
    return found


def wrong(value: Any, schema: Any, at: str = "") -> list[str]:
    """What of ``value`` contradicts the schema: as much of JSON Schema as ours uses."""
    known = {
        *("$ref", "$defs", "$schema", "title", "description", "default", "format", "writeOnly", "type", "properties", "required"),
        *(
            "additionalProperties",
            "minProperties",
            "propertyNames",
            "items",
            "minItems",
            "enum",
            "const",
            "anyOf",
            "allOf",
            "if",
            "then",
            "pattern",
        ),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength"),
    }
    assert isinstance(schema, bool) or schema.keys() <= known, f"{at}: this test does not know {set(schema) - known}"
    if isinstance(schema, bool):
        return [] if schema else [f"{at} is not known"]
    found: list[str] = []
    if "$ref" in schema:
        found += wrong(value, whole()["$defs"][schema["$ref"].removeprefix("#/$defs/")], at)
    if isinstance(value, dict) and len(value) < schema.get("minProperties", 0):
        found.append(f"{at} has too few keys")
    if "type" in schema and (
        not isinstance(value, _TYPES[schema["type"]]) or (isinstance(value, bool) and schema["type"] != "boolean")
    ):
        return [*found, f"{at} is not of type {schema['type']}"]
    if ("enum" in schema and value not in schema["enum"]) or ("const" in schema and value != schema["const"]):
        found.append(f"{at} is another value")
    if "pattern" in schema and isinstance(value, str) and not re.search(schema["pattern"], value):
        found.append(f"{at} is not of the pattern")
    if isinstance(value, str) and not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)):
        found.append(f"{at} is of another length")
    if isinstance(value, int | float) and (value < schema.get("minimum", value) or value > schema.get("maximum", value)):
        found.append(f"{at} is out of range")
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        found += [f"{at}.{name} is missing" for name in schema.get("required", []) if name not in value]
        for name, inner in value.items():
            found += wrong(name, schema.get("propertyNames", True), f"{at}.{name} (its name)")
            found += wrong(inner, properties.get(name, schema.get("additionalProperties", True)), f"{at}.{name}")
    if isinstance(value, list):
        found += [f"{at} is too short"] if len(value) < schema.get("minItems", 0) else []
        found += [one for number, inner in enumerate(value) for one in wrong(inner, schema.get("items", True), f"{at}[{number}]")]
    if "anyOf" in schema and all(wrong(value, one, at) for one in schema["anyOf"]):
        found.append(f"{at} is nothing of what it may be: {[wrong(value, one, at) for one in schema['anyOf']]}")
    for one in schema.get("allOf", []):
        found += wrong(value, one, at)
    if "if" in schema and not wrong(value, schema["if"], at):
        found += wrong(value, schema.get("then", True), at)
    return found


def test_what_the_product_ships_and_writes_validates() -> None:
    written = "\n".join(configuration(None, []))
    uncommented = "\n".join(
        line.removeprefix("# ") if re.match(r"# (\[stores|\w+ = )", line) else line for line in written.splitlines()
    )
    for text in (written, uncommented, (ROOT / "deploy/compose.toml").read_text(encoding="utf-8")):
        assert wrong(tomllib.loads(text), whole()) == []
    assert len(tomllib.loads(uncommented)["stores"]) == 3


_KINDS: Final = {
    "cache": {"kind": "redis", "url": "redis://127.0.0.1:6379/0"},
    "reports": {"kind": "sql", "url": "postgresql://db.internal/reports"},
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_snippet_of_the_pages_validates(page: Path) -> None:
    for snippet in re.findall(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        raw = tomllib.loads(snippet)
        for name, store in raw.get("stores", {}).items():
            if "kind" not in store:  # a snippet may show a part of it
                store |= _KINDS.get(name, {"kind": "opensearch", "url": "http://127.0.0.1:9200"})
            assert name
        raw["source"] = {"dsn": "host=h", **raw.get("source", {})}
        assert wrong(raw, whole()) == []


@pytest.mark.parametrize(
    "text",
    [
        '[source]\ndns = "x"',
        "[source]\ndsn = 1",
        "[source]\n",
        '[source]\ndsn = "x"\n[stores.s]\nkind = "elastic"',
        '[source]\ndsn = "x"\n[stores.s]\nkind = "console"\nurl = "x"',
        '[source]\ndsn = "x"\n[stores.s]\nkind = "redis"',
        '[source]\ndsn = "x"\n[stores.S]\nkind = "console"',
        '[source]\ndsn = "x"\n[stores.s]\nkind = "console"\ntables = { "public.x" = { colums = ["id"] } }',
        '[source]\ndsn = "x"\n[stores.s]\nkind = "console"\ntables = { x = { columns = ["id"] } }',
        '[source]\ndsn = "x"\n[stores.s]\nkind = "console"\nbatch_rows = 0',
    ],
)
def test_what_is_refused_does_not_validate(text: str) -> None:
    assert wrong(tomllib.loads(text), whole()) != []


def test_secrets_may_stand_in_files_and_keys_say_what_they_mean() -> None:
    assert wrong(tomllib.loads('[source]\ndsn_file = "dsn"\n[stores.s]\nkind = "redis"\nurl_file = "url"'), whole()) == []
    options = whole()["$defs"]["TableOptions"]["properties"]
    assert options["columns"]["description"].startswith("The columns that the store holds")
    assert whole()["$defs"]["stores-opensearch"]["properties"]["shards"]["description"] == "Primary shards of a new index."
