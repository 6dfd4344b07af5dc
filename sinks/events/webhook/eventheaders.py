"""The headers that an application gave its event, as headers of a request. Pure.

Whoever writes events chooses neither what they prove nor where they go: each stands under a name that begins with ``event-``, so that it takes the place of no header of
HTTP, of Standard Webhooks, of a proxy, or of the store's own. Those by which traces are passed on keep their names (W3C Trace Context, Baggage).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

PREFIX: Final = "event-"
HEADERS_BYTES_MAX: Final = 4096
"""Names and values of one request together: servers take 8 KB of headers, ours and the store's among them."""
OMITTED: Final = {"event-headers-omitted": "too-long"}
_TRACES: Final = ("traceparent", "tracestate", "baggage")
_PLAIN: Final = re.compile(r"[!-~](?:[ -~]*[!-~])?")
"""A value that is sent as it is: printable ASCII, without a space at either end."""
_VALUE: Final = "!\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"
_NAME: Final = "!#$&'*+^`|"


def as_headers(written: str | None) -> dict[str, str]:
    """The headers of an event. ``written``: the text of a JSON object, or of anything else that the application wrote; None: nothing.

    >>> as_headers('{"Tenant": "north", "traceparent": "00-af-b7-01", "note": "a\\\\r\\\\nb"}')
    {'event-tenant': 'north', 'traceparent': '00-af-b7-01', 'event-note': 'a%0D%0Ab'}
    """
    if written is None:
        return {}
    try:
        said = json.loads(written)
    except (ValueError, RecursionError):  # a number of more digits than Python reads, or brackets within brackets
        return dict(OMITTED)
    found: dict[str, str] = {}
    for name, value in (said if isinstance(said, Mapping) else {"headers": said}).items():
        text = _text(value)
        header = _name(name, text)
        shown = text if header in _TRACES else quote(text, safe=_VALUE, errors="replace")
        found[header] = ", ".join(filter(None, (found.get(header), shown)))
    length = sum(len(name) + len(value) for name, value in found.items())
    return found if length <= HEADERS_BYTES_MAX else dict(OMITTED)


def _name(name: str, value: str) -> str:
    lower = name.lower()
    if lower in _TRACES and _PLAIN.fullmatch(value):
        return lower
    return PREFIX + quote(lower, safe=_NAME, errors="replace")


def _text(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
