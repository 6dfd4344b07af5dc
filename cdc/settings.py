"""``cdc.toml`` as typed values. Unknown keys are refused with a suggestion; secrets come from ${ENV} or ``*_file``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr


class Strict(BaseModel):
    """Base of every settings model: frozen, no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Source(Strict):
    dsn: SecretStr
    tables: tuple[str, ...] = ("public.*",)
    slot: str = Field("cdc", pattern=r"^[a-z0-9_]{1,63}$")
    publication: str = Field("cdc", min_length=1, max_length=63)
    snapshot_chunk_rows: int = Field(50_000, ge=1)


class Log(Strict):
    dir: Path = Path("var/log")
    segment_bytes: int = Field(64 * 2**20, ge=4096)
    """An Arrow segment that has grown to this size is closed and sealed to Parquet."""
    cleanup: Literal["keep"] = "keep"


class Http(Strict):
    listen: str = "127.0.0.1:8642"


class StoreOptions(Strict):
    """What every store's options have; each sink's own model extends it."""

    kind: str
    tables: tuple[str, ...] = ("*",)
    batch_rows: int = Field(200_000, ge=1)
    batch_bytes: int = Field(64 * 2**20, ge=1)


class Settings(Strict):
    source: Source
    log: Log = Log()
    stores: Mapping[str, StoreOptions] = {}
    http: Http = Http()
    run_dir: Path = Path("var/run")
    """Status files, Spark's scratch space, stop states: what one machine's processes tell each other."""
