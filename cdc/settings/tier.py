"""``[log.tier]``: where sealed files of the log go when they are old."""

from __future__ import annotations

import re
from urllib.parse import unquote

from pydantic import Field, field_validator

from cdc.settings.strict import Strict


class Tier(Strict):
    """``[log.tier]``: where sealed files of the log go when they are old."""

    url: str
    """`s3://bucket/folder`, `gs://bucket/folder` or `file:///folder`. Behind `?` S3 takes `region`, `endpoint_override` and `scheme`. Credentials come
    from the environment (`AWS_ACCESS_KEY_ID`, …), as that store's own programs take them, and never stand here ([log.md](log.md#a-tier-for-old-changes))."""
    after_hours: float = Field(168.0, ge=0)
    """A sealed file goes once its changes are so old."""
    cache_mb: int = Field(4096, ge=1)
    """So much of what is away is kept beside the log while it is read."""
    back: bool = False
    """Everything comes back to the log's disk, and nothing goes any more."""

    @field_validator("url")
    @classmethod
    def _is_an_address_without_secrets(cls, url: str) -> str:
        found = re.fullmatch(r"(?:s3|gs)://[a-z0-9][a-z0-9._-]+(?:/[^?#@]*)?(\?[^#@]*)?|file:///[^?#]+", url)
        options = (found[1] or "?")[1:].split("&") if found else []
        known = ("", "region", "endpoint_override", "scheme") if url.startswith("s3:") else ("",)
        if found is None or any(option.partition("=")[0] not in known or "@" in unquote(option) for option in options):
            raise ValueError(
                "not an address of a tier; write s3://bucket/folder, gs://bucket/folder or file:///folder, without credentials"
            )
        return url
