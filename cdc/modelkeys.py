"""What the models of the configuration have: keys by name, models by place. For messages about a key that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

At = tuple[str | int, ...]


def suggestion(model: type[BaseModel] | None, key: str) -> str | None:
    if model is None:
        return None
    known = list(keys(model))
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]}?" if close else f"known keys: {', '.join(known)}"


def keys(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield field.alias or name
        if is_secret(field):
            yield f"{name}_file"


def model_at(model: type[BaseModel], loc: At) -> type[BaseModel] | None:
    """The model that validates the table at this place, None below anything that is no model."""
    found: type[BaseModel] | None = model
    for step in loc:
        if found is None:
            return None
        if not isinstance(step, str):
            continue
        field = next((field for name, field in found.model_fields.items() if step == (field.alias or name)), None)
        if field is not None:
            found = inner_model(field.annotation) or found
        elif found.model_config.get("extra") == "allow":
            found = inner_model(get_type_hints(found)["__pydantic_extra__"]) or found
    return found


def inner_model(annotation: Any) -> type[BaseModel] | None:
    """The model in ``Model``, ``Model | None``, ``tuple[Model, ...]`` or ``Mapping[str, Model]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((model for model in map(inner_model, get_args(annotation)) if model is not None), None)


def is_secret(field: FieldInfo) -> bool:
    return field.annotation is SecretStr or SecretStr in get_args(field.annotation)
