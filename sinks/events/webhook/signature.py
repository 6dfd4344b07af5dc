"""The headers by which a receiver knows that a request is ours, and whether it has had it already: Standard Webhooks, version 1. Pure.

Every attempt carries its own moment, so that a receiver can refuse what somebody else has recorded and sends again; the id stays.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

PREFIX: Final = "whsec_"


def key_of(secret: str) -> bytes:
    """The key that a secret stands for: base64 behind ``whsec_``, the secret's own characters otherwise. Raises ValueError, which does not quote it."""
    if not secret.startswith(PREFIX):
        if not secret:
            raise ValueError("is empty")
        return secret.encode()
    try:
        text = secret.removeprefix(PREFIX).rstrip("=")
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not key:
        raise ValueError(f"is not base64 behind {PREFIX}")
    return key


def signed(identity: str, at_s: float, body: bytes, keys: Sequence[bytes]) -> dict[str, str]:
    """The headers of one attempt. ``at_s``: its moment, Unix time; ``body``: exactly what is sent. A signature for each key, so that a receiver that knows any of
    them is content; none without keys."""
    moment = str(int(at_s))
    headers = {"webhook-id": identity, "webhook-timestamp": moment}
    text = b".".join((identity.encode(), moment.encode(), body))
    signatures = [base64.b64encode(hmac.new(key, text, hashlib.sha256).digest()).decode() for key in keys]
    if signatures:
        headers["webhook-signature"] = " ".join(f"v1,{one}" for one in signatures)
    return headers
