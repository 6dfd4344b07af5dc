"""The JSON Schema of ``cdc.toml``, for editors that complete and check it. Pure.

It is made from the settings' models, with the text below each field as its description. Beside what the models say: a secret KEY may be given as
``KEY_file``, ``tables`` of a store may be a list, and the options of a store follow from its ``kind``.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel

from cdc.settings.models import Settings, StoreOptions
from cdc.settings.secretfile import may_be_a_file
from cdc.settings.tableoptions import StoreTables

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

_Json = dict[str, Any]


def json_schema(kinds: Mapping[str, type[StoreOptions]]) -> _Json:
    """``kinds``: the options of each kind of store."""
    whole = _of_model(Settings)
    definitions = whole.setdefault("$defs", {})
    for kind, model in kinds.items():
        own = _of_model(model)
        definitions |= own.pop("$defs", {})
        own["properties"]["kind"] = {"const": kind}
        definitions[f"stores-{kind}"] = own
    cases = [
        {"if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]}, "then": {"$ref": f"#/$defs/stores-{kind}"}}
        for kind in kinds
    ]
    one_store = {"type": "object", "required": ["kind"], "properties": {"kind": {"enum": list(kinds)}}, "allOf": cases}
    whole["properties"]["stores"] = {
        "type": "object",
        "propertyNames": {"pattern": "^[a-z0-9][a-z0-9_-]{0,62}$"},
        "additionalProperties": one_store,
        "description": "Each store by its name.",
    }
    definitions.pop("StoreOptions", None)
    return {"$schema": DIALECT, **whole, "title": "cdc.toml"}


def meaning(model: type[BaseModel], name: str) -> str:
    """The text below the field, of the class that declares it. Raises LookupError for a field without one."""
    for owner in model.__mro__:
        texts = dict(_documented(owner)) if name in vars(owner).get("__annotations__", {}) else {}
        if name in texts:
            return " ".join(texts[name].split()).replace("``", "`")
    raise LookupError(f"{model.__module__}.{model.__name__}.{name} says nowhere what it means: write a text below it")


def _documented(owner: type) -> Iterator[tuple[str, str]]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
    assert isinstance(tree, ast.ClassDef)
    for node, following in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(following, ast.Expr):
            text = following.value
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                yield node.target.id, text.value


def _of_model(model: type[BaseModel]) -> _Json:
    made = model.model_json_schema(by_alias=True)
    models = {one.__name__: one for one in _models(model)}
    for name, definition in made.get("$defs", {}).items():
        if name in models:
            _complete(definition, models[name])
    _complete(made, model)
    for name in [one for one, known in models.items() if issubclass(known, StoreTables) and one in made.get("$defs", {})]:
        tables = made["$defs"][name]
        named = {"pattern": "\\."}
        listed = {"type": "array", "items": {"type": "string"}, "minItems": 1}
        made["$defs"][name] = {"anyOf": [listed, {**tables, "propertyNames": {"anyOf": [{"const": "select"}, named]}}]}
    return made


def _models(model: type[BaseModel], known: set[type[BaseModel]] | None = None) -> Iterator[type[BaseModel]]:
    """The model and all inside, each once: some nest themselves. ``known``: those that were given already."""
    known = set() if known is None else known
    if model in known:
        return
    known.add(model)
    yield model
    inside = [field.annotation for field in model.model_fields.values()]
    extra = model.__annotations__.get("__pydantic_extra__")
    if extra is not None:
        inside.append(inspect.get_annotations(model, eval_str=True)["__pydantic_extra__"])
    for annotation in inside:
        for found in _inside(annotation):
            yield from _models(found, known)


def _inside(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in getattr(annotation, "__args__", ()):
        yield from _inside(argument)


def _complete(schema: _Json, model: type[BaseModel]) -> None:
    """Adds what each key means, and the files that secrets may stand in."""
    properties = schema.get("properties", {})
    schema.pop("description", None)
    for name, field in model.model_fields.items():
        key = field.alias or name
        shown = properties[key]
        try:
            shown["description"] = meaning(model, name)
        except LookupError:
            pass
        if may_be_a_file(field.annotation):
            properties[f"{name}_file"] = {"type": "string", "description": f"A file with the value of {key}."}
            if key in schema.get("required", []):
                schema["required"].remove(key)
                schema.setdefault("allOf", []).append({"anyOf": [{"required": [key]}, {"required": [f"{name}_file"]}]})
