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
from urllib.parse import quote

PREFIX: Final = "whsec_"
ID_MAX: Final = 256
"""Characters of an id. Headers have their limits, and one that is longer says no more."""


def header_id(identity: str) -> str:
    """An event's id as the header has it: printable, and without a full stop, which would let whoever chooses ids move the bounds of what is signed. Two ids
    never become the same; one that is too long becomes its digest.

    >>> header_id("public.orders:4711")
    'public%2Eorders:4711'
    """
    shown = quote(identity, safe=":", errors="replace").replace(".", "%2E")
    return shown if len(shown) <= ID_MAX else f"sha256_{hashlib.sha256(identity.encode()).hexdigest()}"


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
    moment, identity = str(int(at_s)), header_id(identity)
    headers = {"webhook-id": identity, "webhook-timestamp": moment}
    text = b".".join((identity.encode(), moment.encode(), body))
    signatures = [base64.b64encode(hmac.new(key, text, hashlib.sha256).digest()).decode() for key in keys]
    if signatures:
        headers["webhook-signature"] = " ".join(f"v1,{one}" for one in signatures)
    return headers
