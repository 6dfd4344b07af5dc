"""The package's version; here, so that rooms below the top can name it without importing ``cdc`` itself."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.1.0"
