"""The base of every model of the settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


class Strict(BaseModel):
    """Frozen, without unknown keys, and without paths that name nothing."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _names_a_path(cls, value: Any, info: ValidationInfo) -> Any:
        """Without a name it would be the folder of ``cdc.toml`` itself."""
        field = cls.model_fields[info.field_name or ""]
        if value == "" and field.annotation in (Path, Path | None):
            raise ValueError("is empty; name a path" + ("" if field.is_required() else ", or leave the key out"))
        return value
